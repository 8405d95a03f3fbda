"""Write all that an instructor reads and yield back, from the gradebook."""

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
from tools.grading.results_folder import Typed


def write(folder: Path, book: Gradebook, week: Week) -> list[str]:
    """Write tables, pages and files for platforms.

    Args:
        folder: a new folder.
        book: the gradebook, with the week in it.
        week: the one that the class page and the pairs are about.
    Returns:
        Lines for who typed the command.
    """
    results = book.results()
    typed = Typed(
        book.out, {"grades.csv": student_report.COLUMNS, "totals.csv": student_report.TOTALS}
    )
    student_report.write(folder, results, typed)
    # Of this week: who handed something in, or stands in its list.
    names = {roster.words(entry.name) for entry in week.entries}
    chapters = book.about(week)
    mine = [r.of_chapters(chapters) for r in results if roster.words(r.student.name) in names]
    class_report.write(folder, mine, week.name if len(book.weeks) > 1 else "")
    similarity.write(folder, mine, week.stubs)
    manual_grades.write(folder, results, book.given)
    exports.write(folder, book, results)
    if questions := book.questions():
        student_report.write_table(folder / "who.csv", roster.WHO, questions)
    return [*_moved(folder, book, results), *_unused(book, results), *_waiting(results)]


def _moved(folder: Path, book: Gradebook, results: list[student_report.Result]) -> list[str]:
    """Write who moved since the earlier run, and return it."""
    if not book.before:
        return []
    lines = grade_changes.table(book.before, grade_changes.counted(results, book.checks()))
    student_report.write_table(folder / grade_changes.FILE, grade_changes.COLUMNS, lines)
    if not lines:
        return ["nobody moved since the earlier run"]
    count = len({line[0] for line in lines})
    said = [f"{count} moved since the earlier run, see {grade_changes.FILE}"]
    if look := sum(line[5] == grade_changes.UNEXPLAINED for line in lines):
        said.append(f"{look} of its lines have no cause that is known: look at them")
    return said


def _unused(book: Gradebook, results: list[student_report.Result]) -> list[str]:
    """Name lines of by_hand.csv that are about nobody."""
    known = [
        (result.student.name, result.student.id, exercise.id)
        for result in results
        for grade in result.grades
        for exercise in grade.exercises
    ]
    return [
        f"{manual_grades.FILE}, line {line.line}: no {line.exercise} of {line.student} in this gradebook"
        for line in book.given.unused(known)
    ]


def _waiting(results: list[student_report.Result]) -> list[str]:
    """Return that open exercises which are worth points were not read yet."""
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
    return [
        f"open answers to {names} that wait to be read, with 0 points until then: {len(waiting)}"
    ]
