"""The results of all students: grades.csv, totals.csv, and a page for each student."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.course.templates import rendered
from tools.grading.collect import Student
from tools.grading.grades import ChapterGrade
from tools.grading.results_folder import WEEKLY, Typed

FORMULA = ("=", "+", "-", "@")  # first characters of formulas in spreadsheets
NUMBER = re.compile(r"-\d+(\.\d+)?", re.ASCII)
# A formula after a semicolon, which ends a cell in some languages' spreadsheets.
CELL_AND_FORMULA = re.compile(r"(;\s*)(?=[=+@-])")
COLUMNS = (
    "student",
    "id",
    "week",
    "chapter",
    "file",
    "late",
    "days_late",
    "handed_in",
    "points",
    "possible",
    "share",
    "exercises",
    "to_read",
    "reason",
)
TOTALS = (
    "student",
    "id",
    "points",
    "possible",
    "share",
    "handed_in",
    "late",
    "to_read",
    "reason",
    "page",
)
MAX_REASON = 1000  # characters
MAX_IGNORED = 20  # ignored files on a page


@dataclass(frozen=True)
class Result:
    """All results of one student.

    Args:
        student: the submissions.
        page: the name of the page of feedback without suffix.
        grades: of all chapters that count.
        weeks: the name of the week in which each chapter counts.
    """

    student: Student
    page: str
    grades: list[ChapterGrade]
    weeks: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(grade.points for grade in self.grades)

    @property
    def possible(self) -> float:
        return sum(grade.possible for grade in self.grades)

    @property
    def to_read(self) -> int:
        return to_read(self.grades)

    def is_late(self, grade: ChapterGrade) -> bool:
        submission = self.student.chapters.get(grade.chapter)
        return grade.days_late > 0 or (submission is not None and submission.late)

    def of_week(self, week: str) -> Result:
        """Return the part of the results that belongs to a week."""
        return self.of_chapters([c for c, name in self.weeks.items() if name == week])

    def of_chapters(self, chapters: Iterable[str]) -> Result:
        """Return the part of the results that belongs to some chapters."""
        wanted = set(chapters)
        return replace(self, grades=[grade for grade in self.grades if grade.chapter in wanted])


def to_read(grades: Iterable[ChapterGrade]) -> int:
    """Return the number of answered open exercises that the instructor has not read."""
    exercises = [e for grade in grades for e in grade.exercises if e.is_open and e.written]
    return sum(not e.by_hand or bool(e.note) for e in exercises)


def points(number: float) -> str:
    return f"{number:g}"


def fraction(got: float, possible: float) -> str:
    return f"{got / possible:.3f}" if possible else "0.000"


def safe(text: Any) -> str:
    """Return a text as one line that no spreadsheet computes."""
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in str(text))
    line = " ".join(line.split())
    if NUMBER.fullmatch(line):
        return line
    return f"'{line}" if line.startswith(FORMULA) else line


def cells(values: Iterable[Any]) -> list[str]:
    """Return the cells of a row, safe for readers that separate cells by "," or by ";".

    All cells are quoted. For a reader with ";" only the first cell, the name, is quoted correctly,
    so the text of the others must be safe by itself.
    """
    first, *rest = (safe(value) for value in values)
    return [first, *(CELL_AND_FORMULA.sub(r"\1'", text) for text in rest)]


def page_name(name: str, taken: set[str]) -> str:
    """Return a file name for a student that is unique on any system."""
    kept = "".join(c if c.isalnum() or c in " -_." else "_" for c in name).strip(" .") or "student"
    while len(kept.encode()) > 120:
        kept = kept[:-1]
    stem, number = kept, 1
    while unicodedata.normalize("NFKC", stem).casefold() in taken:
        number += 1
        stem = f"{kept} {number}"
    taken.add(unicodedata.normalize("NFKC", stem).casefold())
    return stem


def write_table(path: Path, columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> None:
    """Write a csv file that every spreadsheet reads as UTF-8."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        table.writerow(columns)
        table.writerows(cells(line) for line in lines)


def grades_row(result: Result, grade: ChapterGrade) -> list[Any]:
    """Return a row of grades.csv, in the order of COLUMNS."""
    exercises = "; ".join(
        f"{e.id} {points(e.points)}/{points(e.possible)}{' by hand' if e.by_hand else ''}"
        for e in grade.exercises
        if e.possible or e.points
    )
    reason = "; ".join(filter(None, [*result.student.remarks, grade.reason, grade.remarks]))
    submission = result.student.chapters.get(grade.chapter)
    return [
        result.student.name,
        result.student.id,
        result.weeks.get(grade.chapter, ""),
        grade.chapter,
        grade.file,
        "late" if result.is_late(grade) else "",
        grade.days_late or "",
        f"{submission.when:%Y-%m-%d %H:%M} ({submission.clock})"
        if submission and submission.when
        else "",
        points(grade.points),
        points(grade.possible),
        fraction(grade.points, grade.possible),
        exercises,
        to_read([grade]),
        reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + " ...",
    ]


def weekly(results: list[Result]) -> list[str]:
    """Return the names of the weeks, in the order of their first chapters; [] for a single week."""
    order: dict[str, str] = {}
    for chapter, week in (pair for result in results for pair in result.weeks.items()):
        order[week] = min(chapter, order.get(week, chapter))
    found = sorted(order, key=lambda week: (order[week], week))
    return found if len(found) > 1 else []


def totals_row(result: Result, weeks: list[str]) -> list[Any]:
    """Return a row of totals.csv, in the order of TOTALS, with two cells for each week."""
    parts = [result.of_week(week) for week in weeks]
    return [
        result.student.name,
        result.student.id,
        points(result.points),
        points(result.possible),
        fraction(result.points, result.possible),
        sum(bool(grade.file) for grade in result.grades),
        sum(result.is_late(grade) for grade in result.grades),
        result.to_read,
        "; ".join([*result.student.remarks, *map(str, result.student.ignored)])[:MAX_REASON],
        f"feedback/{result.page}.html",
        *(points(number) for part in parts for number in (part.points, part.possible)),
    ]


def write(folder: Path, results: list[Result], typed: Typed) -> None:
    """Write the tables and the pages of all students.

    Args:
        folder: a new folder.
        results: of each student.
        typed: columns that the instructor added to earlier tables.
    """
    columns = typed.columns("grades.csv")
    lines = [
        [*grades_row(r, grade), *typed.values("grades.csv", (r.student.name, grade.chapter))]
        for r in results
        for grade in r.grades
    ]
    write_table(folder / "grades.csv", [*COLUMNS, *columns], lines)
    columns = typed.columns("totals.csv")
    weeks = weekly(results)
    lines = [
        [*totals_row(r, weeks), *typed.values("totals.csv", (r.student.name,))] for r in results
    ]
    of_weeks = [week + end for week in weeks for end in WEEKLY]
    write_table(folder / "totals.csv", [*TOTALS, *of_weeks, *columns], lines)
    (folder / "feedback").mkdir()
    for result in results:
        path = folder / "feedback" / f"{result.page}.html"
        path.write_text(feedback(result), encoding="utf-8", errors="replace")


def feedback(result: Result) -> str:
    """Return the page of a student: HTML that loads nothing and runs nothing."""
    return rendered(
        "grading/templates/feedback.html",
        name=result.student.name,
        grades=result.grades,
        remarks=[str(file) for file in result.student.ignored if file.likely][:MAX_IGNORED],
        total=result.points,
        possible=result.possible,
        to_read=result.to_read,
        points=points,
    )
