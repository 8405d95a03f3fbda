"""Make the whole course as one PDF, with contents, page numbers and links.

    make book                       build/attention-shape-by-shape.pdf
    make book ARGS="--out my.pdf"   elsewhere

It is the website on paper: chapters with their exercises, the clinic, both indexes. What is folded
on a screen is open. It needs Chromium.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from course.chromium import launched
from course.registry import ROOT, course
from make_site import build
from web import book

NAME = "attention-shape-by-shape.pdf"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make book", description="Make the course as one PDF.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / NAME, metavar="FILE.pdf")
    given = parser.parse_args()
    began, here, site = time.monotonic(), course(), ROOT / "build" / "site"
    try:
        build(here, site, ROOT / "build" / "site-work")
        with launched() as browser:
            count = book.write(browser, site, book.parts(here), given.out)
    except ValueError as error:
        raise SystemExit(f"book: {error}") from None
    size, took = given.out.stat().st_size / 2**20, time.monotonic() - began
    print(f"{given.out}: {count} pages, {size:.0f} MB, made in {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
