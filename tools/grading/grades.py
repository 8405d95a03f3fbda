"""Grades: of one exercise, of one chapter; and what a check reports.

All are plain data that JSON files keep between runs. `from_plain` also reads the files of version
1.0, whose keys are in `OLD_KEYS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

RIGHT, NOT_RIGHT, NOT_YET = "right", "not right", "not yet"  # as checks.engine.verdict has them
NOT_CHECKED, OPEN, NOT_SUBMITTED = "not checked", "open", "not handed in"
OLD_KEYS = {"minus": "penalty", "marks": "grades", "sent": "submissions", "others": "ignored"}


@dataclass(frozen=True)
class CheckResult:
    """The report of the check of one exercise.

    Args:
        state: one of the six states above.
        reason: one or two sentences.
        topic: an id, the same for equal reasons of different students; "" if nothing is wrong.
        words: the topic as a sentence, without details of the student's answer.
        named: whether the words name a mistake, not only that something is wrong.
        remarks: for the instructor; they cost no points.
    """

    state: str
    reason: str = ""
    topic: str = ""
    words: str = ""
    named: bool = False
    remarks: list[str] = field(default_factory=list)


@dataclass
class ExerciseGrade:
    """The grade of one student for one exercise.

    Args:
        id, title: of the exercise.
        points, possible: 0 and 0 for an open exercise.
        result: what its check reports.
        cells: what the student wrote: number, kind, source, text and pictures of each cell.
        written: whether the cells differ from the stub.
        by_hand: whether the instructor gave the points or read the answer; see manual_grades.py.
        comment: of the instructor, for the student.
        note: for the instructor: the answer has changed since it was read.
    """

    id: str
    title: str
    points: float
    possible: float
    result: CheckResult
    cells: list[dict[str, Any]] = field(default_factory=list)
    written: bool = False
    by_hand: bool = False
    comment: str = ""
    note: str = ""

    @property
    def is_open(self) -> bool:
        return self.result.state == OPEN

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ExerciseGrade:
        """Return the grade that `dataclasses.asdict` made plain."""
        if "result" not in plain:  # version 1.0
            names = [f.name for f in fields(CheckResult)]
            plain = {**plain, "result": {n: plain[n] for n in names if n in plain}}
            plain = {name: value for name, value in plain.items() if name not in names}
        return cls(**{**plain, "result": CheckResult(**plain["result"])})


@dataclass
class ChapterGrade:
    """The grade of one student for one chapter.

    Args:
        chapter: two digits.
        file: the graded notebook, "" if there is none.
        exercises: in the order of the notebook.
        reason: why points are missing, or what the grader restored; "" if nothing.
        remarks: for the instructor; they cost no points.
        outside: cells that the student wrote outside of the exercises, as `ExerciseGrade.cells`.
        days_late: started days after the due date; 0 if in time or without a due date.
        penalty: points taken for lateness.
    """

    chapter: str
    file: str
    exercises: list[ExerciseGrade]
    reason: str = ""
    remarks: str = ""
    outside: list[dict[str, Any]] = field(default_factory=list)
    days_late: int = 0
    penalty: float = 0.0

    @property
    def earned(self) -> float:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def points(self) -> float:
        return self.earned - self.penalty

    @property
    def possible(self) -> float:
        return sum(exercise.possible for exercise in self.exercises)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ChapterGrade:
        """Return the grade that `dataclasses.asdict` made plain."""
        exercises = [ExerciseGrade.from_plain(exercise) for exercise in plain["exercises"]]
        return cls(**{**renamed(plain), "exercises": exercises})


def renamed(plain: dict[str, Any]) -> dict[str, Any]:
    """Return plain data with the keys of version 1.0 replaced."""
    return {OLD_KEYS.get(name, name): value for name, value in plain.items()}
