"""Overwrite the cells of a submitted notebook that belong to the grader, and report changes.

Only the students' own sources are kept, as with nbgrader's OverwriteCells. Checks and their
metadata come from the source notebook, one after the answers of each exercise, whether the
submission deleted, duplicated, moved or edited them. A notebook that lost all metadata is restored
by its headings.
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

# All patterns take linear time: a cell may be as long as a student likes.
LINK = re.compile(r"\[([^\][]*)\]\([^()\s]+\)")
# The last line of the hints: a link, the text of a release, or the text of a copy for Colab.
SOLUTION = re.compile(rf"(?:\[Solution\]\([^()\n]*\)|\*Solution\*|{re.escape(SOLUTION_LINE)})\s*$")


@dataclass
class OriginalExercise:
    """One exercise as it was released.

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
    """Return the exercises of a released notebook."""
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
    """The notebook that is graded instead of the submitted one.

    Args:
        notebook: in nbformat 4.5, with the original checks and metadata.
        own: indices (in that notebook) of the student's cells, by exercise.
        outside: indices of the student's cells outside of the exercises.
        remarks: what was restored, for the instructor.
        numbers: for each index, the number of the cell in the submission; None for checks.
    """

    notebook: Notebook
    own: dict[str, list[int]]
    outside: list[int] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)


def overwrite_cells(submitted: Notebook, exercises: Notebook) -> OverwrittenNotebook:
    """Return the notebook to grade.

    Args:
        submitted: as `tidy` returns it.
        exercises: the released notebook, with its check cells and metadata.
    """
    submission = _Submission(submitted, exercises)
    remarks = [*submission.read_roles(), *submission.read_answers(), *submission.read_checks()]
    graded = _Graded(submission, exercises)
    graded.put_checks(-1)
    for index, cell in enumerate(submission.cells):
        graded.put(cell, index)
        graded.put_checks(index)
    return OverwrittenNotebook(
        graded.notebook(), graded.own, graded.outside, remarks, graded.numbers
    )


class _Submission:
    """The submitted cells and their roles.

    Args:
        submitted: as `tidy` returns it.
        exercises: the released notebook.
    """

    def __init__(self, submitted: Notebook, exercises: Notebook):
        self.originals = original_exercises(exercises)
        self.named = {grade_id(cell): cell for cell in exercises["cells"] if grade_id(cell)}
        self.cells = [dict(cell, number=n) for n, cell in enumerate(submitted["cells"], start=1)]
        self.where: dict[str, list[int]] = {}  # the indices of each original cell, by its grade_id

    def read_roles(self) -> Iterator[str]:
        """Store in each cell which original cell it is, and yield remarks about metadata."""
        for index, cell in enumerate(self.cells):
            cell["role"] = name = _which(cell, self.named)
            if name:
                self.where.setdefault(name, []).append(index)
            elif name := grade_id(cell):
                yield f"cell {cell['number']} has the unknown grade_id {name[:40]}"
        if self.originals and not any(name.startswith("answer-") for name in self.where):
            yield "the grading metadata is missing: answers are identified by the headings"

    def read_answers(self) -> Iterator[str]:
        """Turn every answer into a code cell, and yield remarks about answers."""
        for name in (name for original in self.originals for name in original.answers):
            indices = self.where.get(name, [])
            if len(indices) > 1:
                yield f"{name} occurs {len(indices)} times: all are run, the last one is shown"
            for cell in (self.cells[index] for index in indices):
                if cell["cell_type"] != "code":
                    yield f"{name} was changed to a text cell: it is run as code"
                    cell["cell_type"] = "code"

    def read_checks(self) -> list[str]:
        """Return a remark for each way in which checks were changed."""
        found: dict[str, list[str]] = {}
        for original in self.originals:
            if original.check and (change := self._change(original.check)):
                found.setdefault(change, []).append(original.id)
        return [f"restored: the check of {', '.join(ids)}, {what}" for what, ids in found.items()]

    def _change(self, check: str) -> str | None:
        indices = self.where.get(check, [])
        if not indices:
            return "which was deleted"
        if len(indices) > 1:
            return "which occurred several times"
        cell, original = self.cells[indices[0]], self.named[check]
        is_same = cell["source"].strip() == source(original).strip()
        return None if is_same and cell["cell_type"] == "code" else "which was changed"

    def checks_by_index(self) -> dict[int, list[OriginalExercise]]:
        """Return the checks after each index; -1 is the beginning."""
        edges = _edges(self.cells)
        after: dict[int, list[OriginalExercise]] = {}
        for original in (original for original in self.originals if original.check):
            after.setdefault(self._place(original, edges), []).append(original)
        return after

    def _place(self, original: OriginalExercise, edges: dict[int, int]) -> int:
        """Return the index before the check of an exercise; -1 is the beginning."""
        own = self.where.get(original.check or "", [])
        answers = [index for name in original.answers for index in self.where.get(name, [])]
        last = max(answers, default=-1)
        if last >= 0:
            return max(own[-1], last) if own else last
        end = own[-1] if own else len(self.cells) - 1
        return edges.get(int(original.id.partition(".")[2]), end)


class _Graded:
    """The notebook to grade, assembled cell by cell.

    Args:
        submission: the submitted cells.
        exercises: the released notebook.
    """

    def __init__(self, submission: _Submission, exercises: Notebook):
        originals = submission.originals
        self.named, self.where = submission.named, submission.where
        self.metadata = exercises["metadata"]
        self.known = {_bare(cell) for cell in exercises["cells"]}
        self.ids = {original.id.partition(".")[2]: original.id for original in originals}
        self.home = {name: original.id for original in originals for name in original.answers}
        self.its_checks = {original.check for original in originals if original.check}
        self.checks = submission.checks_by_index()
        self.cells: list[Cell] = []
        self.numbers: list[int | None] = []
        self.own: dict[str, list[int]] = {original.id: [] for original in originals}
        self.outside: list[int] = []
        self._section: str | None = None  # the exercise of the last heading

    def put(self, cell: Cell, index: int) -> None:
        """Add a submitted cell, unless it is a check or claims to be one."""
        if cell["cell_type"] == "markdown" and (heading := HEADING.match(cell["source"])):
            numbered = NUMBERED.fullmatch(heading.group(1))
            self._section = self.ids.get(numbered.group(1)) if numbered else None
        role = cell["role"]
        if role in self.its_checks or _is_stray_check(cell):
            return
        if (role or _bare(cell) not in self.known) and cell["source"].strip():
            exercise = self.home.get(role or "", self._section)
            (self.own[exercise] if exercise else self.outside).append(len(self.cells))
        is_last = role and self.where[role][-1] == index
        self._add(_own_cell(cell, self.named[role] if is_last else None), cell["number"])

    def put_checks(self, index: int) -> None:
        """Add the checks after an index."""
        for original in self.checks.get(index, []):
            self._add(_check_cell(self.named[original.check]), None)

    def _add(self, cell: Cell, number: int | None) -> None:
        cell["id"] = f"cell-{len(self.cells)}"
        self.cells.append(cell)
        self.numbers.append(number)

    def notebook(self) -> Notebook:
        cells = {"cells": self.cells, "metadata": self.metadata}
        return {**cells, "nbformat": 4, "nbformat_minor": 5}


def _bare(cell: Cell) -> tuple[str, str]:
    """Return the kind of a cell, and its text as it is in every released form.

    `make release` removes links to files that are not released, such as solutions; a copy for Colab
    has asterisks around the words of links into the course.
    """
    text = source(cell)
    if cell["cell_type"] == "markdown":
        text = LINK.sub(r"\1", SOLUTION.sub("", text)).replace("*", "")
    return cell["cell_type"], " ".join(text.split())


def _which(cell: Cell, named: dict[str, Cell]) -> str | None:
    """Return which original cell this is: by its grade_id, or for a check by its text."""
    name = grade_id(cell)
    if name in named:
        return name
    if cell["cell_type"] == "code" and (call := CALL.match(cell["source"])):
        name = f"check-{call.group(1)}-{call.group(2)}"
        if name in named and "\n" not in cell["source"].strip():
            return name
    return None


def _is_stray_check(cell: Cell) -> bool:
    """Return whether a cell claims to be a check that does not exist."""
    return grade_id(cell).startswith("check-")


def _edges(cells: list[Cell]) -> dict[int, int]:
    """Return the index of the last cell of each numbered section."""
    found: dict[int, int] = {}
    number: int | None = None
    for index, cell in enumerate(cells):
        heading = HEADING.match(cell["source"]) if cell["cell_type"] == "markdown" else None
        if heading:
            numbered = NUMBERED.fullmatch(heading.group(1))
            number = int(numbered.group(1)) if numbered else None
        if number is not None:
            found[number] = index
    return found


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
