"""Exports for learning platforms: points as csv, pages of feedback as zip files.

    exports/WEEK for Moodle.csv             "Upload grading worksheet" of the assignment
    exports/WEEK feedback for Moodle.zip    "Upload multiple feedback files in a zip"
    exports/canvas.csv                      "Import" in the gradebook, all weeks
    exports/WEEK feedback for Canvas.zip    "Upload submissions" of the assignment
    exports/points.csv                      for other platforms, columns as Gradescope exports them
    exports/WEEK feedback.zip               a folder for each student

Files for Moodle and Canvas need the platform's numbers of the students. They are written if the
class list or the names of the submissions come from the platform.

Sources: mod/assign/feedback/offline/importgradeslib.php and feedback/file/importziplib.php of
Moodle; lib/gradebook_importer.rb and infer_comment_context_from_filename of Canvas.
"""

from __future__ import annotations

import csv
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from statistics import mode
from typing import Any

from tools.grading import student_report
from tools.grading.gradebook import Gradebook, Week
from tools.grading.student_report import Result, points

FOLDER = "exports"
# Moodle's names of submissions begin with "Ada Lovelace_12345_assignsubmission_file_".
OF_MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+")
# "lovelaceada_LATE_12345_67890_03_exercises.ipynb": the numbers of the student and of the file.
OF_CANVAS = re.compile(r"^(?P<name>.+?)_(?:LATE_)?(?P<id>\d+)_(?P<file>\d+)_")
WORKSHEET = ("Identifier", "Full name", "Grade", "Maximum Grade")
WORKSHEET += ("Last modified (grade)", "Feedback comments")
DATED = (1980, 1, 1, 0, 0, 0)  # equal pages make equal zip files


def write(folder: Path, book: Gradebook, results: list[Result]) -> None:
    """Write the files for all platforms.

    Args:
        folder: a new folder.
        book: the weeks.
        results: of each student, in all weeks.
    """
    place = folder / FOLDER
    place.mkdir()
    for week in book.weeks:
        parts = [(result, result.of_week(week.name)) for result in results]
        lines = list(_moodle(week, [part for _, part in parts]))
        if lines:
            _table(place / f"{week.name} for Moodle.csv", lines)
        pages = {part.page: student_report.feedback(part) for _, part in parts if part.grades}
        _zips(place, week.name, [part for _, part in parts if part.grades], pages)
    if lines := list(_canvas(book, results)):
        _table(place / "canvas.csv", lines)
    _table(place / "points.csv", _generic(book, results))


def _table(path: Path, lines: Iterable[Iterable[Any]]) -> None:
    """Write a csv file for platforms: UTF-8 without BOM, commas, few quotes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _found(result: Result, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of a platform's pattern in the names of this week's files."""
    chapters = {grade.chapter for grade in result.grades}
    submissions = [s for chapter, s in result.student.chapters.items() if chapter in chapters]
    labels = [s.label.partition("/")[0] for s in submissions]
    return next(filter(None, map(pattern.match, labels)), None)


# ------------------------------------------------------------------------------------------ Moodle


def _moodle(week: Week, results: list[Result]) -> Iterator[list[str]]:
    """Yield the rows of a grading worksheet: the downloaded one, or one made from names."""
    rows = {entry.name: entry.row for entry in week.entries if week.kind == "moodle"}
    known = [r for r in results if rows.get(r.student.name)]
    if known:
        yield week.columns
        for result in known:
            row = rows[result.student.name]
            filled = {**row, **_graded(result, row.get("Maximum Grade", ""))}
            yield [filled.get(column, "") for column in week.columns]
        return
    named = [(result, match) for result in results if (match := _found(result, OF_MOODLE))]
    if named:
        yield list(WORKSHEET)
    for result, match in named:
        filled = _graded(result, "")
        name = student_report.safe(match["name"])
        row = {"Identifier": f"Participant {match['id']}", "Full name": name, **filled}
        row |= {"Maximum Grade": points(result.possible), "Last modified (grade)": "-"}
        yield [row[column] for column in WORKSHEET]


def _graded(result: Result, maximum: str) -> dict[str, str]:
    """Return the cells of a grade, scaled to Moodle's maximum."""
    try:
        number = float(maximum.replace(",", "."))
    except ValueError:
        number = result.possible
    share = result.points / result.possible if result.possible else 0.0
    grade = result.points if number == result.possible else share * number
    return {"Grade": f"{grade:.2f}", "Feedback comments": summary(result)}


def summary(result: Result) -> str:
    """Return one line: the points of each exercise, and the instructor's comments."""
    parts = [
        f"{e.id} {points(e.points)}/{points(e.possible)}"
        for grade in result.grades
        for e in grade.exercises
        if e.possible or e.points
    ]
    parts += [
        f"{e.id}: {' '.join(e.comment.split())}"
        for grade in result.grades
        for e in grade.exercises
        if e.comment
    ]
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------ Canvas


def _canvas(book: Gradebook, results: list[Result]) -> Iterator[list[str]]:
    """Yield the rows of a gradebook for Canvas, with a column for each week."""
    week = next((week for week in reversed(book.weeks) if week.kind == "canvas"), None)
    if week is not None:
        leading = week.columns[: week.columns.index("Section") + 1]
        rows = {entry.name: entry.row for entry in week.entries}
        titles = {_title(c): c for c in week.columns[len(leading) :]}
        students = [(r, rows[r.student.name]) for r in results if rows.get(r.student.name)]
    else:
        leading, titles, students = ["Student", "ID", "Section"], {}, []
        for result in results:
            if match := _found(result, OF_CANVAS):
                name = student_report.safe(result.student.name)
                students.append((result, {"Student": name, "ID": match["id"]}))
    if not students:
        return
    yield [*leading, *(titles.get(w.name.casefold(), w.name) for w in book.weeks)]
    # Sums differ for students who submit a chapter again later: see `Gradebook.home_week`.
    maxima = [points(mode(r.of_week(w.name).possible for r, _ in students)) for w in book.weeks]
    yield ["    Points Possible", *[""] * (len(leading) - 1), *maxima]
    for result, row in students:
        earned = [points(result.of_week(w.name).points) for w in book.weeks]
        yield [*(row.get(column, "") for column in leading), *earned]


def _title(column: str) -> str:
    """Return the title of an assignment, which Canvas writes as "Title (1234)"."""
    return re.sub(r"\s*\(\d+\)$", "", column).strip().casefold()


# ------------------------------------------------------------------------------- other platforms


def _generic(book: Gradebook, results: list[Result]) -> Iterator[list[str]]:
    """Yield the rows of a table like Gradescope's export of a course."""
    columns = ["Name", "SID", "Email"]
    for week in book.weeks:
        columns += [week.name, f"{week.name} - Max Points"]
        columns += [f"{week.name} - Submission Time", f"{week.name} - Lateness (H:M:S)"]
    yield columns
    for result in results:
        cells = [result.student.name, result.student.id, email(result.student.row)]
        for week in book.weeks:
            part, policy = result.of_week(week.name), week.late_policy()
            submitted = {g.chapter: part.student.chapters.get(g.chapter) for g in part.grades}
            times = {chapter: s.when for chapter, s in submitted.items() if s and s.when}
            late = [
                when - due for c, when in times.items() if (due := policy.due(c)) and when > due
            ]
            time = f"{max(times.values()):%Y-%m-%d %H:%M:%S %z}" if times else ""
            lateness = _hours(max(late, default=timedelta(0))) if times else ""
            cells += [points(part.points), points(part.possible), time, lateness]
        yield [student_report.safe(cell) for cell in cells]


def _hours(late: timedelta) -> str:
    minutes, seconds = divmod(int(late.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"


def email(row: dict[str, str]) -> str:
    """Return the address in a row of the class list; "" if none."""
    return next((v for k, v in row.items() if "mail" in k.casefold() and "@" in v), "")


# -------------------------------------------------------------------------------------------- pages


def _zips(place: Path, week: str, results: list[Result], pages: dict[str, str]) -> None:
    """Write the pages of one week as each platform expects them."""

    def for_moodle(result: Result) -> str | None:
        match = _found(result, OF_MOODLE)
        if not match:
            return None
        return f"{match['name']}_{match['id']}_assignsubmission_file_/feedback.html"

    def for_canvas(result: Result) -> str | None:
        match = _found(result, OF_CANVAS)
        if not match or _found(result, OF_MOODLE):
            return None
        return f"{match['name']}_{match['id']}_{match['file']}_feedback.html"

    def for_all(result: Result) -> str:
        return f"{result.page}/feedback.html"

    kinds: list[tuple[str, Callable[[Result], str | None]]] = [
        (f"{week} feedback for Moodle.zip", for_moodle),
        (f"{week} feedback for Canvas.zip", for_canvas),
        (f"{week} feedback.zip", for_all),
    ]
    for name, called in kinds:
        entries = [(path, pages[r.page]) for r in results if (path := called(r))]
        if entries:
            with zipfile.ZipFile(place / name, "w", zipfile.ZIP_DEFLATED) as archive:
                for path, page in entries:
                    info = zipfile.ZipInfo(path, DATED)
                    info.external_attr = 0o644 << 16
                    info.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(info, page.encode("utf-8", "replace"))
