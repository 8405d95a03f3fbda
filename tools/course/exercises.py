"""Make the exercise notebooks from the source notebooks, which contain the solutions.

CONTRIBUTING.md explains their form. nbgrader's preprocessors lock the cells and remove the
solutions. A notebook that a student changed is never overwritten; if its released version has
changed, the new one is written next to it as NN_exercises.new.ipynb.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.files import is_newer_file, name_of
from tools.course.local_changes import put, say
from tools.course.make_exercises import generate
from tools.course.notebook import canonical
from tools.course.registry import LIST, ROOT, Chapter, Course
from tools.course.source_notebooks import read


def made(chapter: Chapter) -> bytes:
    """Return the exercises of a chapter, as bytes of a notebook.

    Raises:
        ValueError: its source notebook breaks a rule.
    """
    return canonical(generate(read(chapter))).encode()


def superfluous(here: Course) -> list[Path]:
    """Return the exercise notebooks without a source notebook."""
    known = {chapter.exercises for chapter in here.chapters if chapter.source_notebook.is_file()}
    found = (here.root / "notebooks" / "exercises").glob("*.ipynb")
    return sorted(path for path in found if path not in known and not is_newer_file(path))


def strangers(here: Course) -> list[Path]:
    """Return the source notebooks of chapters that are not in course.toml."""
    known = set(here.source_notebooks())
    return sorted(set((here.root / "notebooks" / "solutions").glob("*.ipynb")) - known)


def check(here: Course, chosen: list[Chapter]) -> Iterator[str]:
    """Yield what is wrong with source notebooks and exercises, without writing anything."""
    for chapter in chosen:
        where = name_of(chapter.exercises, here.root)
        try:
            wanted = made(chapter)
        except ValueError as error:
            yield str(error)
            continue
        if not chapter.exercises.exists() or chapter.exercises.read_bytes() != wanted:
            got = "a different one" if chapter.exercises.exists() else "none"
            how = f"Type: {as_typed('exercises')}"
            yield f"{where} must match its source notebook, got {got}. {how}"
    for path in superfluous(here):
        where = name_of(path, here.root)
        yield f"{where} must have a source notebook, got none. Remove it, or add one"
    for path in strangers(here):
        where = name_of(path, here.root)
        yield f"{where} must belong to a chapter in {LIST}, got none. Add an entry, or rename it"


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> int:
    options = parse_arguments("exercises", arguments)
    here = Course.read(root)
    if not (root / "notebooks" / "solutions").is_dir():
        raise Refusal(
            "notebooks/solutions must hold the source notebooks, got no such folder. "
            "Use the exercises as they are: a student's copy has no source notebooks.",
            status=1,
        )
    prefixes = tuple(options.names or [""])
    named = [c for c in here.chapters if c.source_notebook.name.startswith(prefixes)]
    chosen = [chapter for chapter in named if chapter.source_notebook.is_file()]
    if unlisted := here.lacks(options.names):
        raise Refusal(f"a chapter must be in {LIST}, got {' and '.join(unlisted)}. Add an entry.")
    if not chosen and options.names:
        raise Refusal(
            f"NB must be prefixes of file names in notebooks/solutions, got "
            f"{' '.join(options.names)}. Write 03."
        )
    if options.check:
        complaints = list(check(here, chosen))
        print("\n".join(complaints) or f"{len(chosen)} notebooks match their sources", flush=True)
        return bool(complaints)
    failed = False
    for chapter in chosen:
        try:
            content = made(chapter)
        except ValueError as error:
            print(f"FAILED     {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        say(put(chapter.exercises, content), chapter.exercises, root)
    for path in superfluous(here):
        print(f"no source  {name_of(path, root)}: left unchanged", flush=True)
    for path in strangers(here):
        print(f"FAILED     {name_of(path, root)}: {LIST} has no such chapter", file=sys.stderr)
        failed = True
    for chapter in named:
        if chapter not in chosen:
            where = name_of(chapter.notebook, root)
            print(f"no source  {where}: the chapter has no exercises yet", flush=True)
    return failed
