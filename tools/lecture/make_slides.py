"""Make slides of the chapters: pages for reveal.js that need no network, and PDFs.

The slides come from the notebook (deck.py), the speaker notes from the checks of the exercises
(wrong_answers.py). The folder can be copied to a USB stick. The PDF has a page for each step and is
printed by Chromium; without Chromium, only the pages are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, parse_arguments
from tools.course.files import name_of
from tools.course.registry import Chapter, course
from tools.lecture.deck import deck
from tools.lecture.printing import printed
from tools.lecture.reveal_page import ASSETS, copy_assets, index, page


def find(names: list[str]) -> list[Chapter]:
    """Return the chapters with these prefixes of file names, in order; by default all of them."""
    for name in names:
        if not any(chapter.file.startswith(name) for chapter in course().chapters):
            raise Refusal(f"NB must be prefixes of chapter names, got {name!r}. Write 03.")
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


def main(arguments: Sequence[str] = ()) -> None:
    options = parse_arguments("slides", arguments)
    pages = write(find(options.names), options.out)
    if options.no_pdf:
        return
    try:
        for path, pages_of_it in printed(pages):
            size = path.stat().st_size / 2**20
            print(f"{name_of(path)}: {pages_of_it} pages, {size:.1f} MB", flush=True)
    except ValueError as error:
        print(f"slides: made the pages, but no PDFs: {error}", flush=True)
