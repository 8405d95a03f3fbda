"""Grade changes between two runs, with their causes.

A run after a corrected check should change what the check changes, and nothing else. `moved.csv`
lists every exercise with different points and the cause: the check, the answer, the file or a
manual grade. A row without a known cause must be checked by the instructor.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from checks.engine.answer import source
from checks.engine.verdict import exercises
from tools.course.registry import ROOT
from tools.grading.manual_grades import answer_hash

FILE = "moved.csv"
COLUMNS = ("student", "id", "exercise", "before", "now", "why", "said_before", "says_now")
UNEXPLAINED, LATE = "no known cause: check it", "late by the current due date"
SHARED = ("checks/engine", "utils", "clinic/attention_clinic", "tools/grading")


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


@cache
def _shared() -> str:
    files = sorted(path for name in SHARED for path in (ROOT / name).rglob("*.py"))
    return _hash(*(path.read_text(encoding="utf-8") for path in files))


def _code(text: str) -> str:
    """Return code without comments and blank lines."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(t.string for t in tokens if t.type not in (tokenize.COMMENT, tokenize.NL))


def checks_of(chapter: str) -> dict[str, tuple[str, str, str]]:
    """Return three hashes of what the verdict on each exercise depends on.

    Args:
        chapter: two digits.
    Returns:
        By exercise: its own check, the rest of its chapter's file, and the code that all share.
    """
    own = {check.id: source(check.function) for check in exercises(chapter) if check.function}
    rest = source(sys.modules[f"checks.chapter_{chapter}"])
    for text in own.values():
        rest = rest.replace(text, "")
    common = _hash(_code(rest)), _shared()
    return {id: (_hash(_code(text)), *common) for id, text in own.items()}


@dataclass(frozen=True)
class CountedExercise:
    """What one exercise of one student counts.

    Args:
        student, id: of the student.
        exercise: such as "03.2"; "03 late" for a late penalty.
        points, possible: of it.
        by_hand: whether the instructor gave the points.
        file: the graded notebook, "" if none.
        answer: hash of the answer.
        checks: see `checks_of`; empty without a check.
        said: what the page says about it.
    """

    student: str
    id: str
    exercise: str
    points: float
    possible: float
    by_hand: bool
    file: str
    answer: str
    checks: tuple[str, ...]
    said: str

    @property
    def key(self) -> tuple[str, str]:
        return self.student, self.exercise

    @property
    def late(self) -> bool:
        """Whether it is a late penalty."""
        return self.exercise.endswith(" late")

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> CountedExercise:
        return cls(**{**plain, "checks": tuple(plain["checks"])})


def counted(
    results: Iterable[Any], checks: dict[str, dict[str, Iterable[str]]]
) -> Iterator[CountedExercise]:
    """Yield what counts, for all students.

    Args:
        results: of each student; see `student_report.Result`.
        checks: the hashes that graded the answers, by week and exercise; see `checks_of`.
    """
    for result in results:
        who = result.student.name, result.student.id
        for grade in result.grades:
            of_week = checks.get(result.weeks.get(grade.chapter, ""), {})
            for e in grade.exercises:
                said = f"{e.result.state}: {e.result.reason}" if e.result.reason else e.result.state
                kind = e.by_hand, grade.file, answer_hash(e) if e.cells else ""
                depends = tuple(of_week.get(e.id, ()))
                yield CountedExercise(*who, e.id, e.points, e.possible, *kind, depends, said[:300])
            if grade.penalty:
                name = f"{grade.chapter} late"
                yield CountedExercise(
                    *who, name, -grade.penalty, 0.0, False, grade.file, "", (), grade.reason
                )


def why(before: CountedExercise, now: CountedExercise) -> str:
    """Return the cause of different points."""
    if now.by_hand or before.by_hand:
        return "given by hand" if now.by_hand else "no longer given by hand"
    found = []
    if before.file != now.file:
        found.append(
            f"{now.file} counts instead of {before.file}"
            if before.file and now.file
            else "submitted now"
            if now.file
            else "no longer submitted"
        )
    elif before.answer != now.answer:
        found.append("the answer was changed")
    if before.checks and now.checks:
        chapter = now.exercise[:2]
        words = (
            f"the check of {now.exercise} was changed",
            f"the checks of chapter {chapter} were changed",
            "code of all checks was changed",
        )
        pairs = zip(before.checks, now.checks, words, strict=True)
        found += [text for old, new, text in pairs if old != new][:1]
    if before.possible != now.possible:
        found.append(f"it is worth {now.possible:g} instead of {before.possible:g}")
    return " and ".join(found) or UNEXPLAINED


def table(before: Iterable[CountedExercise], now: Iterable[CountedExercise]) -> list[list[Any]]:
    """Return the rows of moved.csv; those without a known cause come first.

    Args:
        before: what counted after the earlier run.
        now: what counts after this one. An exercise that is new has not changed.
    """
    old, found = {entry.key: entry for entry in before}, []
    for entry in now:
        was = old.pop(entry.key, replace(entry, points=0.0, said="") if entry.late else None)
        if was and was.points != entry.points:
            found.append((was, entry, LATE if entry.late else why(was, entry)))
    gone = [was for was in old.values() if was.late]
    found += [(was, replace(was, points=0.0, said=""), "no longer late") for was in gone]
    rows = [
        [*(e.student, e.id, e.exercise), f"{w.points:g}", f"{e.points:g}", reason, w.said, e.said]
        for w, e, reason in found
    ]
    return sorted(rows, key=lambda row: row[5] != UNEXPLAINED)
