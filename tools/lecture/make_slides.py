"""Make slides of the chapters: pages for reveal.js that need no network, and PDFs of them.

    make slides             every chapter, into build/slides/
    make slides NB=03       one chapter (several: NB="03 04")
    make slides NB=03 ARGS=--no-pdf

The slides come from the notebook (deck.py), the speaker notes from the checks of the exercises
(wrong_answers.py). The folder can be copied to a stick. The PDF has a page for each step and is
printed by Chromium; without Chromium, only the pages are made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.course.files import name_of
from tools.course.registry import ROOT, Chapter, course
from tools.lecture.deck import deck
from tools.lecture.printing import printed
from tools.lecture.reveal_page import ASSETS, copy_assets, index, page

OUT = ROOT / "build" / "slides"


def find(names: list[str]) -> list[Chapter]:
    """Return the chapters whose file names begin so, in order; by default all of them."""
    for name in names:
        if not any(chapter.file.startswith(name) for chapter in course().chapters):
            raise SystemExit(f"slides: no chapter is called {name!r} or starts with it")
    return [c for c in course().chapters if not names or c.file.startswith(tuple(names))]


def write(chapters: list[Chapter], folder: Path) -> list[Path]:
    """Write the pages of chapters with their assets into a folder."""
    copy_assets(folder / ASSETS)
    made = []
    for chapter in chapters:
        path = folder / f"{chapter.file}.html"
        slides = deck(chapter)
        path.write_text(page(slides), encoding="utf-8")
        size = path.stat().st_size / 2**20
        print(f"{name_of(path)}: {len(slides.slides)} slides, {size:.1f} MB", flush=True)
        made.append(path)
    there = [path.stem for path in folder.glob("[0-9][0-9]_*.html")]
    (folder / "index.html").write_text(index(course(), there), encoding="utf-8")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all chapters")
    parser.add_argument("--no-pdf", action="store_true", help="only the pages")
    parser.add_argument("--out", type=Path, default=OUT, help="folder (default build/slides)")
    options = parser.parse_args()
    pages = write(find(options.names), options.out)
    if options.no_pdf:
        return
    try:
        for path, pages_of_it in printed(pages):
            size = path.stat().st_size / 2**20
            print(f"{name_of(path)}: {pages_of_it} pages, {size:.1f} MB", flush=True)
    except ValueError as error:
        print(f"slides: the pages are made, the PDFs are not: {error}", flush=True)


if __name__ == "__main__":
    main()
