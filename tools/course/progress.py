"""Show which exercises are done, according to the student's notebooks.

It reads the stored results of the check cells in notebooks/exercises/. It runs nothing, writes
nothing and sends nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.commands import parse_arguments
from tools.course.cards import CARD_LINE, STUB, Section, grade_id, sections
from tools.course.files import is_newer_file, newer_file
from tools.course.notebook import Cell, Notebook, parse, source
from tools.course.registry import Course, course

RIGHT, NOT_RIGHT, NOT_YET, NOT_RUN = "right", "not right", "not yet", "not run"
OPEN, WRITTEN = "open", "open, begun"
STATES = (RIGHT, NOT_RIGHT, NOT_YET, NOT_RUN, OPEN, WRITTEN)
VERDICT_MIME = "application/vnd.attention-course.verdict+json"  # what a check stores


@dataclass(frozen=True)
class Exercise:
    number: int
    state: str
    minutes: int


def exercises(notebook: Notebook | None, chapter: str) -> list[Exercise]:
    """Return the state of each exercise of a notebook, for any order of its cells.

    Raises:
        TypeError, KeyError, AttributeError: it is not a valid notebook.
    """
    found = {}
    for section in sections(notebook):
        if section.number is None:
            continue
        text = "\n\n".join(source(c) for c in section.cells if c["cell_type"] == "markdown")
        card = CARD_LINE.search(text)
        checks = list(_checks(notebook, chapter, section.number))
        state = _state(checks, f"{chapter}.{section.number}") if checks else _open(section)
        found[section.number] = Exercise(section.number, state, int(card.group(2)) if card else 0)
    return [found[number] for number in sorted(found)]


def _checks(notebook: Notebook, chapter: str, number: int) -> Iterator[Cell]:
    call = re.compile(rf"\s*check\([\"']{chapter}\.{number}[\"']")
    for cell in notebook["cells"]:
        named = grade_id(cell) == f"check-{chapter}-{number}"
        if cell["cell_type"] == "code" and (named or call.match(source(cell))):
            yield cell


def _state(checks: list[Cell], exercise: str) -> str:
    """Return the result of the check that ran last; a copied cell may be a second check."""
    last = max(checks, key=lambda cell: cell.get("execution_count") or 0)
    outputs = last.get("outputs", [])
    for output in outputs:
        said = output.get("data", {}).get(VERDICT_MIME) or {}
        if said.get("exercise") == exercise and said.get("state") in (RIGHT, NOT_RIGHT, NOT_YET):
            return said["state"]
    # printed by an earlier version of the course
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    states = "|".join((RIGHT, NOT_RIGHT, NOT_YET))
    found = re.search(rf"^{re.escape(exercise)}  ({states}):", printed, re.MULTILINE)
    return found.group(1) if found else NOT_RUN


def _open(section: Section) -> str:
    untouched = any(
        STUB.splitlines()[0] in source(cell)
        for cell in section.cells
        if cell["cell_type"] == "code"
    )
    return OPEN if untouched else WRITTEN


def line(chapter: str, title: str, found: list[Exercise]) -> str:
    """Return the state of a chapter in one line."""
    checked = [exercise for exercise in found if exercise.state not in (OPEN, WRITTEN)]
    done = sum(exercise.state == RIGHT for exercise in checked)
    bar = "#" * done + "-" * (len(checked) - done)
    parts = [
        f"{state} {' '.join(str(e.number) for e in found if e.state == state)}"
        for state in STATES
        if any(e.state == state for e in found)
    ]
    return f"{chapter}  {title:32}  [{bar}]{' ' * (8 - len(bar))} {', '.join(parts)}".rstrip()


def notebooks(here: Course) -> list[Path]:
    """Return the exercise notebooks, including missing ones of chapters."""
    found = (here.root / "notebooks" / "exercises").glob("[0-9][0-9]_*.ipynb")
    there = {path for path in found if not is_newer_file(path)}
    return sorted(there | {chapter.exercises for chapter in here.chapters})


def _rank(exercise: Exercise) -> int:
    return (RIGHT, WRITTEN, NOT_RIGHT, NOT_YET, OPEN, NOT_RUN).index(exercise.state)


def report(here: Course) -> Iterator[str]:
    """Yield a line for each exercise notebook, and the total."""
    titles = {chapter.exercises: chapter.title for chapter in here.chapters}
    everything: dict[tuple[str, int], Exercise] = {}
    for path in notebooks(here):
        # A notebook with a different name, such as a copy, is shown with its own name.
        chapter = path.stem[:2]
        title = titles.get(path, path.stem[3:].replace("_", " "))
        if not path.exists():
            yield f"{chapter}  {title:32}  its exercise notebook is missing"
            continue
        notebook = parse(path.read_bytes())
        try:
            found = exercises(notebook, chapter)
        except (TypeError, KeyError, AttributeError):
            yield f"{chapter}  {title:32}  its exercise notebook is damaged"
            continue
        for exercise in found:
            # With a copy, or the notebook of an older version, the better state counts.
            known = everything.setdefault((chapter, exercise.number), exercise)
            everything[chapter, exercise.number] = min(known, exercise, key=_rank)
        new = f"  (a newer version: {newer_file(path).name})" if newer_file(path).exists() else ""
        yield line(chapter, title, found) + new
    total = everything.values()
    checked = [exercise for exercise in total if exercise.state not in (OPEN, WRITTEN)]
    right = sum(exercise.state == RIGHT for exercise in checked)
    left = sum(e.minutes for e in total if e.state not in (RIGHT, WRITTEN))
    yield f"\n{right} of {len(checked)} right, about {left} minutes left"


def main(arguments: Sequence[str] = ()) -> None:
    parse_arguments("progress", arguments)
    for text in report(course()):
        print(text)
