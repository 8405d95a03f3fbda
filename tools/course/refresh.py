"""Run notebooks from the first cell to the last and store their outputs, in a canonical form.

The notebooks in notebooks/exercises/ are left alone: they hold a student's work and are made by
`make exercises`. So is a NAME.new.ipynb, which an update writes next to a changed notebook.

A second run changes nothing, so `git diff` shows the true effect of an edit. The canonical form is
described in tools/course/notebook.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.execute import NotebookError, execute, settle_environment
from tools.course.files import is_newer_file, name_of, write
from tools.course.registry import LIST, ROOT, Course


async def refresh(
    paths: list[Path], *, timeout: float = 600, at_once: int = 2, check: bool = False
) -> int:
    """Refresh the notebooks, a few at once, report on each, and return how many failed."""
    settle_environment()
    gate = asyncio.Semaphore(at_once)

    async def one(path: Path) -> bool:
        async with gate:
            try:
                text = await execute(path, timeout)
            except NotebookError as error:
                print(f"FAILED     {error}", file=sys.stderr, flush=True)
                return False
            if check:
                same = path.read_bytes() == text.encode()
                print(f"{'unchanged' if same else 'DIFFERS  '}  {name_of(path)}", flush=True)
                return same
            state = "refreshed" if write(path, text.encode()) else "unchanged"
            print(f"{state}  {name_of(path)}", flush=True)
            return True

    return (await asyncio.gather(*map(one, paths))).count(False)


def find(names: list[str], root: Path = ROOT) -> list[Path]:
    """Return the notebooks of names, in order: paths, folders, or prefixes of file names."""
    known = sorted(
        path
        for path in (root / "notebooks").rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts and not _is_the_students(path, root)
    )
    if not names:
        return known
    found: list[Path] = []
    for name in names:
        if Path(name).is_file():
            matches = [Path(name).resolve()]
        elif Path(name).is_dir():
            matches = [path for path in known if path.is_relative_to(Path(name).resolve())]
        else:
            matches = [path for path in known if path.name.startswith(name)]
        if not matches:
            raise Refusal(
                f"NB must be paths or prefixes of file names in notebooks/, got {name!r}. Write 03."
            )
        if theirs := [path for path in matches if _is_the_students(path, root)]:
            raise Refusal(
                f"NB must not be a student's notebook, got {name_of(theirs[0])}. Refresh its "
                f"source notebook, then type: {as_typed('exercises')}"
            )
        found.extend(matches)
    return list(dict.fromkeys(found))


def refuse_unlisted(paths: list[Path], here: Course) -> None:
    """Refuse chapters and source notebooks that are not in course.toml."""
    inside = [path.name for path in paths if path.is_relative_to(here.root / "notebooks")]
    if unlisted := here.lacks(inside):
        raise Refusal(f"a chapter must be in {LIST}, got {' and '.join(unlisted)}. Add an entry.")


def _is_the_students(path: Path, root: Path) -> bool:
    return path.is_relative_to(root / "notebooks" / "exercises") or is_newer_file(path)


def main(arguments: Sequence[str] = ()) -> int:
    options = parse_arguments("refresh", arguments)
    paths = find(options.names)
    if options.names:
        refuse_unlisted(paths, Course.read(ROOT))
    failed = asyncio.run(
        refresh(paths, timeout=options.timeout, at_once=options.jobs, check=options.check)
    )
    return bool(failed)
