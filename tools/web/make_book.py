"""Make the whole course as one PDF, with contents, page numbers and links.

The book is the printed website: chapters with their exercises, the clinic, both indexes. Folded
text is open. The first time, each chapter runs once to draw its figures as lines; figures of
measured times keep their pixels. It needs Chromium, and checks its own pages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tools.commands import Refusal, parse_arguments
from tools.course.chromium import launched
from tools.course.registry import ROOT, course
from tools.web import book, vector_figures
from tools.web.make_site import build

SHARP = ROOT / "build" / "sharp"


def main(arguments: Sequence[str] = ()) -> None:
    given = parse_arguments("book", arguments)
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
        raise Refusal(str(error), status=1) from None
    size, took = given.out.stat().st_size / 2**20, time.monotonic() - began
    sharply = f"{len(drawn)} of {len(stored)} figures in lines"
    print(f"{given.out}: {count} pages, {size:.0f} MB, {sharply}, made in {took:.0f} s", flush=True)
