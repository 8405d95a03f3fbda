"""Write all results from the gradebook: for the instructor, the students and other platforms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tools.grading import (
    class_report,
    exports,
    grade_changes,
    manual_grades,
    roster,
    similarity,
    student_report,
)
from tools.grading.gradebook import Gradebook, Week
from tools.grading.results_folder import Typed, put_in_place, warn_in_heads
from tools.grading.sandbox import NO_ISOLATION, PLAIN


def publish(book: Gradebook, week: Week, made: Path) -> list[str]:
    """Write all results, move them into the folder, and save the gradebook.

    Args:
        book: the gradebook, with the week in it.
        week: the subject of the class report and of the pairs of equal answers.
        made: a new folder, see `results_folder.unfinished`.
    Returns:
        Messages for the instructor.
    """
    messages = write(made, book, week)
    if is_unisolated(book):
        warn_in_heads(made)
    earlier = put_in_place(made, book.out)
    book.save()
    return [*messages, *([f"the results of the earlier run are in {earlier}"] if earlier else [])]


def is_unisolated(book: Gradebook) -> bool:
    """Return whether students' code of some week was not isolated."""
    return any(week.isolation == PLAIN.name for week in book.weeks)


def write(folder: Path, book: Gradebook, week: Week) -> list[str]:
    """Write tables, pages and files for platforms; return messages for the instructor."""
    results = book.results()
    typed = Typed(
        book.out, {"grades.csv": student_report.COLUMNS, "totals.csv": student_report.TOTALS}
    )
    student_report.write(folder, results, typed)
    # The students of this week: those who submitted something or are in its class list.
    names = {roster.words(entry.name) for entry in week.entries}
    chapters = book.chapters_about(week)
    members = [r.of_chapters(chapters) for r in results if roster.words(r.student.name) in names]
    name = week.name if len(book.weeks) > 1 else ""
    class_report.write(folder, members, name, NO_ISOLATION if is_unisolated(book) else "")
    similarity.write(folder, members, week.stubs)
    manual_grades.write(folder, results, book.manual)
    exports.write(folder, book, results)
    if rows := book.who_rows():
        student_report.write_table(folder / "who.csv", roster.WHO, rows)
    return [*_changes(folder, book, results), *_unused(book, results), *_waiting(results)]


def _changes(folder: Path, book: Gradebook, results: list[student_report.Result]) -> list[str]:
    """Write the grade changes since the earlier run; return messages about them."""
    if not book.before:
        return []
    rows = grade_changes.table(book.before, grade_changes.counted(results, book.checks()))
    student_report.write_table(folder / grade_changes.FILE, grade_changes.COLUMNS, rows)
    if not rows:
        return ["no grades have changed since the earlier run"]
    count = len({row[0] for row in rows})
    students = "1 student" if count == 1 else f"{count} students"
    messages = [f"grades of {students} have changed, see {grade_changes.FILE}"]
    if unexplained := sum(row[5] == grade_changes.UNEXPLAINED for row in rows):
        messages.append(f"{unexplained} of the changes have no known cause: check them")
    return messages


def _unused(book: Gradebook, results: list[student_report.Result]) -> list[str]:
    """Return messages about rows of by_hand.csv that fit no student or exercise."""
    known = [
        (result.student.name, result.student.id, exercise.id)
        for result in results
        for grade in result.grades
        for exercise in grade.exercises
    ]
    return [
        f"{manual_grades.FILE}, line {row.line}: exercise {row.exercise} of {row.student} is not "
        "in this gradebook"
        for row in book.manual.unused(known)
    ]


def _waiting(results: list[student_report.Result]) -> list[str]:
    """Return a message about open answers that are worth points and were not read yet."""
    waiting = [
        exercise.id
        for result in results
        for grade in result.grades
        for exercise in grade.exercises
        if exercise.possible and student_report.to_read([replace(grade, exercises=[exercise])])
    ]
    if not waiting:
        return []
    names = ", ".join(sorted(set(waiting)))
    return [f"open answers to {names} not read yet, with 0 points until then: {len(waiting)}"]
