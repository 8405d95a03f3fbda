"""Writes all that an instructor reads and gives back, from the gradebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grading import alike, by_hand, exports, glance, moved, report, roster
from grading.gradebook import Gradebook, Week
from grading.results import Typed


def write(folder: Path, book: Gradebook, week: Week) -> list[str]:
    """Writes tables, pages and files for platforms.

    Args:
        folder: a new folder.
        book: the gradebook, with the week in it.
        week: the one that the class page and the pairs are about.
    Returns:
        Lines for who typed the command.
    """
    results = book.results()
    typed = Typed(book.out, {"grades.csv": report.COLUMNS, "totals.csv": report.TOTALS})
    report.write(folder, results, typed)
    # Of this week: who handed something in, or stands in its list.
    names = {roster.words(entry.name) for entry in week.entries}
    chapters = book.about(week)
    mine = [r.of_chapters(chapters) for r in results if roster.words(r.student.name) in names]
    glance.write(folder, mine, week.name if len(book.weeks) > 1 else "")
    alike.write(folder, mine, week.stubs)
    by_hand.write(folder, results, book.given)
    exports.write(folder, book, results)
    if questions := book.questions():
        report.write_table(folder / "who.csv", roster.WHO, questions)
    return [*_moved(folder, book, results), *_unused(book, results), *_waiting(results)]


def _moved(folder: Path, book: Gradebook, results: list[report.Result]) -> list[str]:
    """Writes who moved since the earlier run, and says it."""
    if not book.before:
        return []
    lines = moved.table(book.before, moved.counted(results, book.checks()))
    report.write_table(folder / moved.FILE, moved.COLUMNS, lines)
    if not lines:
        return ["nobody moved since the earlier run"]
    count = len({line[0] for line in lines})
    said = [f"{count} moved since the earlier run, see {moved.FILE}"]
    if look := sum(line[5] == moved.LOOK for line in lines):
        said.append(f"{look} of its lines have no cause that is known: look at them")
    return said


def _unused(book: Gradebook, results: list[report.Result]) -> list[str]:
    """Names lines of by_hand.csv that are about nobody."""
    known = [
        (result.student.name, result.student.id, exercise.id)
        for result in results
        for mark in result.marks
        for exercise in mark.exercises
    ]
    return [
        f"{by_hand.FILE}, line {line.line}: no {line.exercise} of {line.student} in this gradebook"
        for line in book.given.unused(known)
    ]


def _waiting(results: list[report.Result]) -> list[str]:
    """Says that open exercises which are worth points were not read yet."""
    waiting = [
        exercise.id
        for result in results
        for mark in result.marks
        for exercise in mark.exercises
        if exercise.possible and report.to_read([replace(mark, exercises=[exercise])])
    ]
    if not waiting:
        return []
    names = ", ".join(sorted(set(waiting)))
    return [
        f"open answers to {names} that wait to be read, with 0 points until then: {len(waiting)}"
    ]
