"""Points and comments that the instructor gives: `by_hand.csv` in the folder of results.

It has a line for every open exercise in which something stands. What is typed there, and whatever
lines are added, comes into the tables and pages of every later run, and into the next by_hand.csv.
A line for an exercise with a check takes the place of what the check gave.
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

from tools.grading.autograde import ExerciseGrade, ChapterGrade
from tools.grading.results_folder import read_table
from tools.grading.roster import words
from tools.grading.student_report import cells

FILE = "by_hand.csv"
COLUMNS = ("student", "id", "exercise", "points", "of", "comment", "note", "page", "answer")
COMMENT = COLUMNS.index("comment")
EXERCISE = re.compile(r"\D*(\d?\d)[.,](\d+)")
AGAIN = "the answer has changed since you read it; to take this away, empty the cell answer"


@dataclass(frozen=True)
class ManualGrade:
    """What stands in one line.

    Args:
        student, id: as typed; the id may be missing.
        exercise: such as "03.8".
        points: None where only a comment is given.
        of: the most that one can get there; None where nothing stands.
        comment: for the student.
        answer: fingerprint of the answer that was read, "" in a line of the instructor's own.
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


def fingerprint(grade: ExerciseGrade) -> str:
    """Return a few letters that change when the answer does."""
    text = "\0".join(cell["source"].strip() for cell in grade.cells)
    return "a" + hashlib.sha256(text.encode()).hexdigest()[:7]  # no spreadsheet takes it for 1e5


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
            f"{FILE}: {column} is a number, got {text!r} in line {line}. Write 2 or 1.5"
        )
    return number


class ManualGrades:
    """All that the instructor gave.

    Args:
        lines: of the file.

    Raises:
        ValueError: two lines for one exercise of one student, or two maxima of one exercise.
    """

    def __init__(self, lines: Iterable[ManualGrade] = ()):
        self.lines = [line for line in lines if line.is_read or line.of is not None]
        self._by_key: dict[tuple[tuple[str, ...], str], list[ManualGrade]] = {}
        self.most: dict[str, float] = {}
        for line in self.lines:
            if line.of is not None and self.most.setdefault(line.exercise, line.of) != line.of:
                raise ValueError(
                    f"{FILE}: an exercise is worth the same for all, got {line.exercise} of "
                    f"{line.of:g} in line {line.line} and of {self.most[line.exercise]:g} before. "
                    "Change one"
                )
            same = self._by_key.setdefault(line.key, [])
            if any(_is_one_id(line.id, other.id) for other in same):
                raise ValueError(
                    f"{FILE}: one line for each student and exercise, got another for "
                    f"{line.student} and {line.exercise} in line {line.line}. Take one out"
                )
            same.append(line)
        for line in self.lines:
            most = self.most.get(line.exercise)
            if most is not None and line.points is not None and line.points > most:
                raise ValueError(
                    f"{FILE}: nobody gets more than there is, got {line.points:g} of {most:g} in "
                    f"line {line.line}. Change one of them"
                )

    def of(self, name: str, id: str, exercise: str) -> ManualGrade | None:
        """Return what a student got for an exercise; None if nothing."""
        lines = self._by_key.get((words(name), exercise), [])
        return next((line for line in lines if _is_one_id(line.id, id)), None)

    def applied(self, name: str, id: str, grades: list[ChapterGrade]) -> list[ChapterGrade]:
        """Return grades with what was given in them; those that came in stay as they are."""
        return [
            replace(m, exercises=[self._applied(name, id, e) for e in m.exercises]) for m in grades
        ]

    def _applied(self, name: str, id: str, grade: ExerciseGrade) -> ExerciseGrade:
        given, most = self.of(name, id, grade.id), self.most.get(grade.id, grade.possible)
        made = replace(grade, possible=most)
        if given is None:
            made.points = min(grade.points, most)
            return made
        made.comment = given.comment
        if given.points is not None:
            made.by_hand, made.points = True, given.points
            if given.answer and given.answer != fingerprint(grade):
                made.note = AGAIN
        elif given.comment:
            made.by_hand = grade.state == "open"
        return made

    def unused(self, known: Iterable[tuple[str, str, str]]) -> list[ManualGrade]:
        """Return lines that belong to no exercise of a student of this gradebook.

        Args:
            known: name, id and exercise of all that there are.
        """
        taken = [line for key in known if (line := self.of(*key))]
        return [line for line in self.lines if line.is_read and line not in taken]


def _is_one_id(first: str, second: str) -> bool:
    """Return whether two ids may be of one student: a spreadsheet drops zeros, and many have none."""
    first, second = (text.strip().removeprefix("'").lstrip("0") for text in (first, second))
    return first == second or not first or not second


def read(path: Path) -> ManualGrades:
    """Read by_hand.csv, as a spreadsheet of any language saves it.

    Args:
        path: of the file; it need not be there.

    Raises:
        ValueError: something in it is no number or no exercise, or contradicts another line.
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
                f"{FILE}: a line names a student and an exercise, got {cell['student']!r} and "
                f"{cell['exercise']!r} in line {line}. Write exercise 03.8"
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
        results: of each student, with what was given applied; see `report.Result`.
        given: what was typed before; nothing of it is lost.
    """
    lines, told = [], []
    for result in results:
        for grade in (e for m in result.grades for e in m.exercises):
            line = given.of(result.student.name, result.student.id, grade.id)
            if line is not None:
                told.append(line)
            if line or (grade.state == "open" and grade.written):
                lines.append(_line(result, grade, line))
    lines.sort(key=lambda line: _order(line[2]))
    for line in given.lines:  # of who is no longer in the gradebook
        if line not in told:
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
            safe[COMMENT] = line[COMMENT]  # the instructor's own words, with their lines
            rows.writerow(safe)


def _order(exercise: str) -> tuple[int, ...]:
    return tuple(map(int, EXERCISE.match(exercise).groups()))


def _line(result: Any, grade: ExerciseGrade, line: ManualGrade | None) -> list[Any]:
    most = grade.possible if grade.state == "open" and grade.possible else None
    return [
        result.student.name,
        result.student.id,
        f"exercise {grade.id}",  # a number alone a spreadsheet would make to 3.1
        _text(line.points if line else None),
        _text(line.of if line and line.of is not None else most),
        line.comment if line else "",
        grade.note,
        f"feedback/{result.page}.html#e{grade.id}",
        # A new answer keeps the old one's letters until it is read again: see `AGAIN`.
        line.answer if line and grade.note else fingerprint(grade) if grade.cells else "",
    ]


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"
