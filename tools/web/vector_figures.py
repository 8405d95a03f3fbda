"""The figures of the book: in lines and letters where the notebooks store pixels.

A chapter runs once more and draws each figure twice. The drawing counts where the pixels beside it
are those that the notebook stores, byte for byte: the book shows what the course shows, and a
drawing that was made once serves as long as its figure stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.course.execute import NotebookError, execute, settle_environment
from tools.course.registry import Chapter, Course
from tools.web import vector_hook

SECONDS = 1800.0  # for one cell; only a dead kernel comes this far


def figures(site: Path) -> dict[str, bytes]:
    """Return the pixels of all figures of the site by the names of their files."""
    found = sorted((site / "_static" / "figures").glob("*.png"))
    return {path.name: path.read_bytes() for path in found}


def drawings(stored: dict[str, bytes], kept: Path) -> dict[str, Path]:
    """Return the drawings that are there, by the names of the figures.

    Args:
        stored: the pixels of each figure.
        kept: the folder of the drawings.
    """
    paths = {name: kept / f"{vector_hook.name(png)}.svg" for name, png in stored.items()}
    return {name: path for name, path in paths.items() if path.is_file()}


def draw(here: Course, stored: dict[str, bytes], kept: Path, at_once: int = 2) -> None:
    """Run the chapters that have figures without a drawing; what is there stays.

    Args:
        here: the course.
        stored: the pixels of each figure.
        kept: the folder of the drawings.
        at_once: how many chapters run side by side.
    """
    kept.mkdir(parents=True, exist_ok=True)
    there, open_ones = drawings(stored, kept), []
    for chapter in here.chapters:
        own = {name: png for name, png in stored.items() if name.startswith(f"{chapter.number}-")}
        if not own.keys() <= there.keys() and not _tried(chapter, kept).exists():
            open_ones.append(chapter)
    if open_ones:
        numbers = ", ".join(chapter.number for chapter in open_ones)
        print(f"book: runs {numbers} for sharp figures (minutes; kept for the next)", flush=True)
        asyncio.run(_run(open_ones, kept, at_once))


def before(kept: Path) -> str:
    """Return the line of code that lets a kernel keep its drawings in a folder."""
    return (
        f"__import__('runpy').run_path({vector_hook.__file__!r})['keep']({str(kept.resolve())!r})"
    )


async def _run(chapters: Sequence[Chapter], kept: Path, at_once: int) -> None:
    settle_environment()
    gate = asyncio.Semaphore(at_once)

    async def one(chapter: Chapter) -> None:
        async with gate:
            try:
                await execute(chapter.notebook, SECONDS, before(kept))
            except NotebookError as error:
                print(f"book: its figures stay as they are: {error}", file=sys.stderr, flush=True)
            else:
                _tried(chapter, kept).touch()

    await asyncio.gather(*map(one, chapters))


def _tried(chapter: Chapter, kept: Path) -> Path:
    """Return the file which says that this notebook ran: what it measures never comes twice."""
    return kept / f"{hashlib.sha256(chapter.notebook.read_bytes()).hexdigest()}.ran"
