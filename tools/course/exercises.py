"""Make the exercise notebooks from the source notebooks, which contain the solutions.

CONTRIBUTING.md says how they are written. nbgrader's own preprocessors lock the cells and take
the solutions out. A notebook that a student changed stays byte for byte as it is; when the new one
differs from what the student began with, it is put beside it as NN_exercises.new.ipynb.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.commands import Refusal, parse_arguments
from tools.course.files import is_beside, name_of
from tools.course.local_changes import put, say
from tools.course.make_exercises import generate
from tools.course.notebook import canonical
from tools.course.registry import LIST, ROOT, Chapter, Course
from tools.course.source_notebooks import read


def made(chapter: Chapter) -> bytes:
    """Returns the exercises of a chapter as they are written.

    Raises:
        ValueError: its master breaks a rule.
    """
    return canonical(generate(read(chapter))).encode()


def superfluous(here: Course) -> list[Path]:
    """Finds exercise notebooks without a chapter that has a master."""
    known = {chapter.exercises for chapter in here.chapters if chapter.source_notebook.is_file()}
    found = (here.root / "notebooks" / "exercises").glob("*.ipynb")
    return sorted(path for path in found if path not in known and not is_beside(path))


def strangers(here: Course) -> list[Path]:
    """Finds notebooks among the masters that no chapter of the list has."""
    known = set(here.source_notebooks())
    return sorted(set((here.root / "notebooks" / "solutions").glob("*.ipynb")) - known)


def check(here: Course, chosen: list[Chapter]) -> Iterator[str]:
    """Says, without writing anything, what does not fit: masters, and what is made of them."""
    for chapter in chosen:
        where = name_of(chapter.exercises, here.root)
        try:
            wanted = made(chapter)
        except ValueError as error:
            yield str(error)
            continue
        if not chapter.exercises.exists() or chapter.exercises.read_bytes() != wanted:
            got = "another" if chapter.exercises.exists() else "none"
            yield f"{where}: it is made from its master, got {got}. Run: make exercises"
    for path in superfluous(here):
        where = name_of(path, here.root)
        yield f"{where}: every one has its master, got none. Remove it, or add a master"
    for path in strangers(here):
        where = name_of(path, here.root)
        yield f"{where}: a master belongs to a chapter of course.toml, got none. Add or rename it"


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> int:
    options = parse_arguments("exercises", arguments)
    here = Course.read(root)
    if not (root / "notebooks" / "solutions").is_dir():
        raise Refusal(
            "exercises must be made from notebooks/solutions, got no such folder. "
            "A copy that was handed out has none; its exercises are ready.",
            status=1,
        )
    beginnings = tuple(options.names or [""])
    named = [c for c in here.chapters if c.source_notebook.name.startswith(beginnings)]
    chosen = [chapter for chapter in named if chapter.source_notebook.is_file()]
    if unlisted := here.lacks(options.names):
        raise Refusal(f"a chapter must be in {LIST}, got {' and '.join(unlisted)}. Add an entry.")
    if not chosen and options.names:
        raise Refusal(
            f"NB must be beginnings of names in notebooks/solutions, got "
            f"{' '.join(options.names)}. Write 03."
        )
    if options.check:
        complaints = list(check(here, chosen))
        print("\n".join(complaints) or f"{len(chosen)} masters and their exercises fit", flush=True)
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
        print(f"no master  {name_of(path, root)}: it is left as it is", flush=True)
    for path in strangers(here):
        print(f"FAILED     {name_of(path, root)}: course.toml has no such chapter", file=sys.stderr)
        failed = True
    for chapter in named:
        if chapter not in chosen:
            where = name_of(chapter.notebook, root)
            print(f"no master  {where}: its chapter has no exercises yet", flush=True)
    return failed
