"""The figures of the book as lines and text instead of pixels.

Each chapter runs once and draws each figure twice. A drawing is used if the pixels of its run equal
the stored ones, byte for byte, so the book equals the course, and a drawing is valid until its
figure changes.
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

SECONDS = 1800.0  # for one cell; only a dead kernel takes longer


def figures(site: Path) -> dict[str, bytes]:
    """Return the pixels of all figures of the site by the names of their files."""
    found = sorted((site / "_static" / "figures").glob("*.png"))
    return {path.name: path.read_bytes() for path in found}


def drawings(stored: dict[str, bytes], kept: Path) -> dict[str, Path]:
    """Return the existing drawings, by the names of the figures.

    Args:
        stored: the pixels of each figure.
        kept: the folder of the drawings.
    """
    paths = {name: kept / f"{vector_hook.name(png)}.svg" for name, png in stored.items()}
    return {name: path for name, path in paths.items() if path.is_file()}


def draw(here: Course, stored: dict[str, bytes], kept: Path, at_once: int = 2) -> None:
    """Run the chapters with figures that have no drawing yet.

    Args:
        here: the course.
        stored: the pixels of each figure.
        kept: the folder of the drawings.
        at_once: chapters at a time.
    """
    kept.mkdir(parents=True, exist_ok=True)
    there, open_ones = drawings(stored, kept), []
    for chapter in here.chapters:
        own = {name: png for name, png in stored.items() if name.startswith(f"{chapter.number}-")}
        if not own.keys() <= there.keys() and not _tried(chapter, kept).exists():
            open_ones.append(chapter)
    if open_ones:
        numbers = ", ".join(chapter.number for chapter in open_ones)
        print(f"book: running {numbers} for sharp figures (minutes; stored for later)", flush=True)
        asyncio.run(_run(open_ones, kept, at_once))


def before(kept: Path) -> str:
    """Return the line of code that makes a kernel store its drawings in a folder."""
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
                print(f"book: figures keep their pixels: {error}", file=sys.stderr, flush=True)
            else:
                _tried(chapter, kept).touch()

    await asyncio.gather(*map(one, chapters))


def _tried(chapter: Chapter, kept: Path) -> Path:
    """Return the file that marks this notebook as run: measured figures never repeat."""
    return kept / f"{hashlib.sha256(chapter.notebook.read_bytes()).hexdigest()}.ran"
