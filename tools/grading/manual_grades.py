"""Manual grades and comments: `by_hand.csv` in the folder of results.

It has a row for every answered open exercise. The instructor's entries, in these or in added rows,
are applied to the tables and pages of every later run and copied to the next by_hand.csv. A row for
an exercise with a check replaces the points from the check.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.grading.grades import ChapterGrade, ExerciseGrade
from tools.grading.results_folder import read_table
from tools.grading.roster import words
from tools.grading.student_report import cells

FILE = "by_hand.csv"
COLUMNS = ("student", "id", "exercise", "points", "of", "comment", "note", "page", "answer")
COMMENT = COLUMNS.index("comment")
EXERCISE = re.compile(r"\D*(\d?\d)[.,](\d+)")
AGAIN = "the answer has changed since you read it; to remove this note, empty the cell answer"


@dataclass(frozen=True)
class ManualGrade:
    """One row.

    Args:
        student, id: as typed; the id may be missing.
        exercise: such as "03.8".
        points: None if there is only a comment.
        of: the points possible; None if the cell is empty.
        comment: for the student.
        answer: hash of the answer that was read, "" in a row that the instructor added.
        line: of the file, for messages.
    """

    student: str
    id: str
    exercise: str
    points: float | None
    of: float | None
    comment: str
    answer: str
    line: int

    @property
    def key(self) -> tuple[tuple[str, ...], str]:
        return words(self.student), self.exercise

    @property
    def is_read(self) -> bool:
        return self.points is not None or bool(self.comment)


def answer_hash(grade: ExerciseGrade) -> str:
    """Return a short hash of an answer."""
    text = "\0".join(cell["source"].strip() for cell in grade.cells)
    return (
        "a" + hashlib.sha256(text.encode()).hexdigest()[:7]
    )  # the letter keeps spreadsheets from reading 1e5


def _number(text: str, column: str, line: int) -> float | None:
    text = text.strip().removeprefix("'")
    if not text:
        return None
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        number = math.nan
    if not 0 <= number < 1000:
        raise ValueError(
            f"{FILE}: {column} must be a number, got {text!r} in line {line}. Write 2 or 1.5."
        )
    return number


class ManualGrades:
    """All manual grades.

    Args:
        lines: of the file.

    Raises:
        ValueError: two rows for one exercise of a student, or two maxima of one exercise.
    """

    def __init__(self, lines: Iterable[ManualGrade] = ()):
        self.lines = [line for line in lines if line.is_read or line.of is not None]
        self._by_key: dict[tuple[tuple[str, ...], str], list[ManualGrade]] = {}
        self.maximum: dict[str, float] = {}
        for line in self.lines:
            if line.of is not None and self.maximum.setdefault(line.exercise, line.of) != line.of:
                raise ValueError(
                    f"{FILE}: of must be the same for all students, got {line.of:g} for exercise "
                    f"{line.exercise} in line {line.line} and {self.maximum[line.exercise]:g} "
                    "before. Change one."
                )
            same = self._by_key.setdefault(line.key, [])
            if any(_is_one_id(line.id, other.id) for other in same):
                raise ValueError(
                    f"{FILE}: each student and exercise must have one line, got a second for "
                    f"{line.student} and {line.exercise} in line {line.line}. Remove one."
                )
            same.append(line)
        for line in self.lines:
            most = self.maximum.get(line.exercise)
            if most is not None and line.points is not None and line.points > most:
                raise ValueError(
                    f"{FILE}: points must be at most {most:g}, got {line.points:g} in line "
                    f"{line.line}. Change one of them."
                )

    def of(self, name: str, id: str, exercise: str) -> ManualGrade | None:
        """Return the row of a student and an exercise; None if there is none."""
        lines = self._by_key.get((words(name), exercise), [])
        return next((line for line in lines if _is_one_id(line.id, id)), None)

    def applied(self, name: str, id: str, grades: list[ChapterGrade]) -> list[ChapterGrade]:
        """Return copies of grades with the manual grades applied."""
        return [
            replace(m, exercises=[self._applied(name, id, e) for e in m.exercises]) for m in grades
        ]

    def _applied(self, name: str, id: str, grade: ExerciseGrade) -> ExerciseGrade:
        given, most = self.of(name, id, grade.id), self.maximum.get(grade.id, grade.possible)
        made = replace(grade, possible=most)
        if given is None:
            made.points = min(grade.points, most)
            return made
        made.comment = given.comment
        if given.points is not None:
            made.by_hand, made.points = True, given.points
            if given.answer and given.answer != answer_hash(grade):
                made.note = AGAIN
        elif given.comment:
            made.by_hand = grade.is_open
        return made

    def unused(self, known: Iterable[tuple[str, str, str]]) -> list[ManualGrade]:
        """Return the rows that fit no student or exercise.

        Args:
            known: name, id and exercise of all grades.
        """
        taken = [line for key in known if (line := self.of(*key))]
        return [line for line in self.lines if line.is_read and line not in taken]


def _is_one_id(first: str, second: str) -> bool:
    """Return whether two ids may be equal: spreadsheets drop zeros, and ids may be missing."""
    first, second = (text.strip().removeprefix("'").lstrip("0") for text in (first, second))
    return first == second or not first or not second


def read(path: Path) -> ManualGrades:
    """Read by_hand.csv as saved by a spreadsheet of any language.

    Args:
        path: of the file; it may be missing.

    Raises:
        ValueError: a cell is not a number or an exercise, or contradicts another row.
    """
    if not path.is_file():
        return ManualGrades()
    return ManualGrades(_lines(read_table(path)))


def _lines(rows: list[dict[str, str]]) -> Iterable[ManualGrade]:
    for line, row in enumerate(rows, start=2):
        cell = {name: row.get(name, "").strip() for name in COLUMNS}
        if not any(cell[name] for name in ("points", "of", "comment")):
            continue
        match = EXERCISE.match(cell["exercise"])
        if not match or not cell["student"]:
            raise ValueError(
                f"{FILE}: each line must name a student and an exercise, got {cell['student']!r} "
                f"and {cell['exercise']!r} in line {line}. Write an exercise as 03.8."
            )
        yield ManualGrade(
            cell["student"].removeprefix("'"),
            cell["id"],
            f"{int(match[1]):02}.{match[2]}",
            _number(cell["points"], "points", line),
            _number(cell["of"], "of", line),
            cell["comment"].removeprefix("'"),
            cell["answer"],
            line,
        )


def write(folder: Path, results: Iterable[Any], given: ManualGrades) -> None:
    """Write the next by_hand.csv.

    Args:
        folder: a new folder.
        results: of each student, with the manual grades applied; see `student_report.Result`.
        given: the manual grades so far; none gets lost.
    """
    lines, written = [], []
    for result in results:
        for grade in (e for m in result.grades for e in m.exercises):
            line = given.of(result.student.name, result.student.id, grade.id)
            if line is not None:
                written.append(line)
            if line or (grade.is_open and grade.written):
                lines.append(_line(result, grade, line))
    lines.sort(key=lambda line: _order(line[2]))
    for line in given.lines:  # of students who left the gradebook
        if line not in written:
            note = "no such student or exercise in this gradebook"
            exercise = f"exercise {line.exercise}"
            numbers = [_text(line.points), _text(line.of)]
            rest = [line.comment, note, "", line.answer]
            lines.append([line.student, line.id, exercise, *numbers, *rest])
    with (folder / FILE).open("w", encoding="utf-8-sig", newline="") as file:
        rows = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        rows.writerow(COLUMNS)
        for line in lines:
            safe = cells(line)
            safe[COMMENT] = line[COMMENT]  # unchanged, with its line breaks
            rows.writerow(safe)


def _order(exercise: str) -> tuple[int, ...]:
    return tuple(map(int, EXERCISE.match(exercise).groups()))


def _line(result: Any, grade: ExerciseGrade, line: ManualGrade | None) -> list[Any]:
    most = grade.possible if grade.is_open and grade.possible else None
    return [
        result.student.name,
        result.student.id,
        f"exercise {grade.id}",  # a spreadsheet would change 03.10 to 3.1
        _text(line.points if line else None),
        _text(line.of if line and line.of is not None else most),
        line.comment if line else "",
        grade.note,
        f"feedback/{result.page}.html#e{grade.id}",
        # A new answer keeps the old hash until it is read again: see `AGAIN`.
        line.answer if line and grade.note else answer_hash(grade) if grade.cells else "",
    ]


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
