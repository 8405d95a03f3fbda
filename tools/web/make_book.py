"""Make the whole course as one PDF, with contents, page numbers and links.

    make book                       build/attention-shape-by-shape.pdf
    make book ARGS="--out my.pdf"   elsewhere
    make book ARGS=--as-stored      figures with the pixels that the notebooks have; nothing runs

The book is the printed website: chapters with their exercises, the clinic, both indexes. Folded
text is open. The first time, each chapter runs once to draw its figures as lines; figures of
measured times keep their pixels. It needs Chromium, and checks its own pages.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tools.course.chromium import launched
from tools.course.registry import ROOT, course
from tools.web import book, vector_figures
from tools.web.make_site import build

NAME = "attention-shape-by-shape.pdf"
SHARP = ROOT / "build" / "sharp"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make book", description="Make the course as one PDF.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / NAME, metavar="FILE.pdf")
    parser.add_argument("--as-stored", action="store_true", help="run nothing: figures in pixels")
    given = parser.parse_args()
    began, here, site = time.monotonic(), course(), ROOT / "build" / "site"
    try:
        build(here, site, ROOT / "build" / "site-work")
        stored = vector_figures.figures(site)
        if not given.as_stored:
            vector_figures.draw(here, stored, SHARP)
        drawn = {} if given.as_stored else vector_figures.drawings(stored, SHARP)
        with launched() as browser:
            count = book.write(browser, site, book.parts(here), given.out, drawn)
    except ValueError as error:
        raise SystemExit(f"book: {error}") from None
    size, took = given.out.stat().st_size / 2**20, time.monotonic() - began
    sharply = f"{len(drawn)} of {len(stored)} figures in lines"
    print(f"{given.out}: {count} pages, {size:.0f} MB, {sharply}, made in {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
