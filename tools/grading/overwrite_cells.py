"""Put a handed-in notebook into the order that grading needs, and return what was changed.

Only the students' own sources are taken from it. Checks come from the master, one after the answers
of each exercise, whatever was deleted, doubled, moved or rewritten; so does the metadata that says
which cell is what. A notebook that lost all metadata is put together by its headings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tools.course.cards import HEADING, NUMBERED, grade_id, sections
from tools.course.notebook import Cell, Notebook, source
from tools.course.student_copy import SOLUTION_LINE
from tools.grading.notebook_file import CALL, GRADE_ID

# No pattern here takes the square of a cell's length: cells are as long as somebody wants.
LINK = re.compile(r"\[([^\][]*)\]\([^()\s]+\)")
# The last line under the hints: a link, in its place what a release says, or what Colab shows.
SOLUTION = re.compile(rf"(?:\[Solution\]\([^()\n]*\)|\*Solution\*|{re.escape(SOLUTION_LINE)})\s*$")


@dataclass
class OriginalExercise:
    """One exercise as it was handed out.

    Args:
        id: such as "03.2".
        title: of its card.
        points: 0 for an open exercise.
        check: grade_id of its check cell, None for an open exercise.
        answers: grade_ids of its answer cells.
        stubs: their sources.
    """

    id: str
    title: str
    points: float
    check: str | None
    answers: list[str]
    stubs: list[str]


def original_exercises(exercises: Notebook) -> list[OriginalExercise]:
    """List the exercises of a notebook that was made from a master."""
    found = []
    for part in sections(exercises):
        if part.number is None:
            continue
        numbers = GRADE_ID.fullmatch(grade_id(part.answers[0])) if part.answers else None
        if not numbers:
            continue
        check = part.checks[0] if part.checks else None
        found.append(
            OriginalExercise(
                id=f"{numbers.group(2)}.{numbers.group(3)}",
                title=NUMBERED.fullmatch(part.heading).group(2),
                points=float(check["metadata"]["nbgrader"]["points"]) if check else 0.0,
                check=grade_id(check) if check else None,
                answers=[grade_id(cell) for cell in part.answers],
                stubs=[source(cell).strip() for cell in part.answers],
            )
        )
    return found


@dataclass
class OverwrittenNotebook:
    """What is graded in place of what was handed in.

    Args:
        notebook: in nbformat 4.5, with the master's checks and metadata.
        own: places (in that notebook) of the cells that are the student's, by exercise.
        outside: places of the student's cells that stand in no exercise.
        remarks: what was put back, for the instructor.
        numbers: for each place, the number of the cell as the student saw it, None for checks.
    """

    notebook: Notebook
    own: dict[str, list[int]]
    outside: list[int] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)


def overwrite_cells(handed_in: Notebook, exercises: Notebook) -> OverwrittenNotebook:
    """Make the notebook that is graded from what was handed in and what was handed out.

    Args:
        handed_in: as `tidy` gives it.
        exercises: what was made from the master, with its check cells and metadata.
    """
    originals = original_exercises(exercises)
    named = {grade_id(cell): cell for cell in exercises["cells"] if grade_id(cell)}
    cells = [dict(cell, number=n) for n, cell in enumerate(handed_in["cells"], start=1)]
    where, remarks = _recognised(cells, named)
    if not any(name.startswith("answer-") for name in where) and originals:
        remarks.append("the grading metadata is gone: answers are found by the headings")
    remarks += _answers_as_code(originals, where, cells)
    remarks += _checks_put_back(originals, where, cells, named)
    graded = _Graded(exercises, originals, named, where)
    graded.checks = _places_of_checks(originals, where, cells)
    graded.put_checks(-1)
    for place, cell in enumerate(cells):
        graded.put(cell, place)
        graded.put_checks(place)
    return graded.restored(remarks)


def _recognised(
    cells: list[Cell], named: dict[str, Cell]
) -> tuple[dict[str, list[int]], list[str]]:
    """Write into each cell which one of the master it is.

    Returns:
        The places of each by its grade_id, and remarks about ids that the master does not have.
    """
    where: dict[str, list[int]] = {}
    remarks = []
    for place, cell in enumerate(cells):
        cell["role"] = name = _which(cell, named)
        if name:
            where.setdefault(name, []).append(place)
        elif grade_id(cell):
            remarks.append(f"cell {cell['number']} has the unknown grade_id {grade_id(cell)[:40]}")
    return where, remarks


def _answers_as_code(
    originals: list[OriginalExercise], where: dict[str, list[int]], cells: list[Cell]
) -> Iterator[str]:
    """Make every answer a cell of code, and return what is odd about the answers."""
    for name in (name for original in originals for name in original.answers):
        places = where.get(name, [])
        if len(places) > 1:
            yield f"{name} stands {len(places)} times: the last one is shown, all are run"
        for place in places:
            if cells[place]["cell_type"] != "code":
                yield f"{name} was made a cell of text: it is run as code"
                cells[place]["cell_type"] = "code"


def _checks_put_back(
    originals: list[OriginalExercise],
    where: dict[str, list[int]],
    cells: list[Cell],
    named: dict[str, Cell],
) -> list[str]:
    """Return which checks are put back, one line for each of the ways in which they were changed."""
    found: dict[str, list[str]] = {}
    for original in originals:
        if original.check and (said := _changed(original, where, cells, named)):
            found.setdefault(said, []).append(original.id)
    return [f"put back: the check of {', '.join(ids)}, {what}" for what, ids in found.items()]


def _places_of_checks(
    originals: list[OriginalExercise], where: dict[str, list[int]], cells: list[Cell]
) -> dict[int, list[OriginalExercise]]:
    """Return after which place which checks stand; -1 is the beginning."""
    edges = _edges(cells)
    after: dict[int, list[OriginalExercise]] = {}
    for original in originals:
        if original.check:
            answers = [place for name in original.answers for place in where.get(name, [])]
            place = _place(original, answers, where, edges, len(cells))
            after.setdefault(place, []).append(original)
    return after


class _Graded:
    """The notebook that is graded, while it is put together cell by cell.

    Args:
        exercises: what was handed out.
        originals: its exercises.
        named: its cells by grade_id.
        where: the places of these in what was handed in.
    """

    def __init__(
        self,
        exercises: Notebook,
        originals: list[OriginalExercise],
        named: dict[str, Cell],
        where: dict[str, list[int]],
    ):
        self.named, self.where, self.metadata = named, where, exercises["metadata"]
        self.known = {_bare(cell) for cell in exercises["cells"]}
        self.ids = {original.id.partition(".")[2]: original.id for original in originals}
        self.home = {name: original.id for original in originals for name in original.answers}
        self.its_checks = {original.check for original in originals if original.check}
        self.checks: dict[int, list[OriginalExercise]] = {}  # after which place which are put
        self.cells: list[Cell] = []
        self.numbers: list[int | None] = []
        self.own: dict[str, list[int]] = {original.id: [] for original in originals}
        self.outside: list[int] = []
        self._section: str | None = None  # the exercise under whose heading the cells stand

    def put(self, cell: Cell, place: int) -> None:
        """Add a cell that was handed in, unless it is or claims to be a check."""
        if cell["cell_type"] == "markdown" and (heading := HEADING.match(cell["source"])):
            numbered = NUMBERED.fullmatch(heading.group(1))
            self._section = self.ids.get(numbered.group(1)) if numbered else None
        role = cell["role"]
        if role in self.its_checks or _is_stray_check(cell):
            return
        if (role or _bare(cell) not in self.known) and cell["source"].strip():
            exercise = self.home.get(role or "", self._section)
            (self.own[exercise] if exercise else self.outside).append(len(self.cells))
        is_last = role and self.where[role][-1] == place
        self._add(_own_cell(cell, self.named[role] if is_last else None), cell["number"])

    def put_checks(self, place: int) -> None:
        """Add the checks that stand after a place."""
        for original in self.checks.get(place, []):
            self._add(_check_cell(self.named[original.check]), None)

    def _add(self, cell: Cell, number: int | None) -> None:
        cell["id"] = f"cell-{len(self.cells)}"
        self.cells.append(cell)
        self.numbers.append(number)

    def restored(self, remarks: list[str]) -> OverwrittenNotebook:
        notebook = {
            "cells": self.cells,
            "metadata": self.metadata,
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        return OverwrittenNotebook(notebook, self.own, self.outside, remarks, self.numbers)


def _bare(cell: Cell) -> tuple[str, str]:
    """Return the kind of a cell, and its text as it is in every form that is handed out.

    What `make release` hands out lacks the links to what stays at home, the solutions among them;
    in a copy for Colab stars stand around the words of all links that lead into the course.
    """
    text = source(cell)
    if cell["cell_type"] == "markdown":
        text = LINK.sub(r"\1", SOLUTION.sub("", text)).replace("*", "")
    return cell["cell_type"], " ".join(text.split())


def _which(cell: Cell, named: dict[str, Cell]) -> str | None:
    """Return which cell of the master this is: by its grade_id, or as a check by its text."""
    name = grade_id(cell)
    if name in named:
        return name
    if cell["cell_type"] == "code" and (call := CALL.match(cell["source"])):
        name = f"check-{call.group(1)}-{call.group(2)}"
        if name in named and "\n" not in cell["source"].strip():
            return name
    return None


def _is_stray_check(cell: Cell) -> bool:
    """Return whether a cell claims to be a check that the master does not have."""
    return grade_id(cell).startswith("check-")


def _edges(cells: list[Cell]) -> dict[int, int]:
    """Return the place of the last cell of each numbered section."""
    found: dict[int, int] = {}
    number: int | None = None
    for place, cell in enumerate(cells):
        heading = HEADING.match(cell["source"]) if cell["cell_type"] == "markdown" else None
        if heading:
            numbered = NUMBERED.fullmatch(heading.group(1))
            number = int(numbered.group(1)) if numbered else None
        if number is not None:
            found[number] = place
    return found


def _place(
    original: OriginalExercise,
    answers: list[int],
    where: dict[str, list[int]],
    edges: dict[int, int],
    count: int,
) -> int:
    """Return the place after which the check of an exercise stands; -1 is the beginning."""
    own = where.get(original.check or "", [])
    last = max(answers, default=-1)
    if own and own[-1] > last >= 0:
        return own[-1]
    if last >= 0:
        return last
    return edges.get(int(original.id.partition(".")[2]), own[-1] if own else count - 1)


def _changed(
    original: OriginalExercise, where: dict[str, list[int]], cells: list[Cell], named: dict[str, Cell]
) -> str | None:
    places = where.get(original.check or "", [])
    if not places:
        return "which was deleted"
    if len(places) > 1:
        return "which stood there several times"
    cell = cells[places[0]]
    if (
        cell["cell_type"] != "code"
        or cell["source"].strip() != source(named[original.check]).strip()
    ):
        return "which was changed"
    return None


def _check_cell(original: Cell) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": json.loads(json.dumps(original["metadata"])),
        "outputs": [],
        "source": source(original),
    }


def _own_cell(cell: Cell, original: Cell | None) -> Cell:
    made: Cell = {"cell_type": cell["cell_type"], "metadata": {}, "source": cell["source"]}
    if original is not None:
        made["metadata"] = json.loads(json.dumps(original["metadata"]))
    if cell["cell_type"] == "code":
        made |= {"execution_count": None, "outputs": []}
    return made
