"""The class report: class.html and class.csv, results of checks by exercise.

For each exercise: how many students solved it, how many tried, and the reports of the checks.
Reports are counted by the id of the verdict, not by its words. See `checks.engine.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.course.templates import rendered
from tools.grading.grades import NOT_RIGHT, RIGHT, ExerciseGrade
from tools.grading.lecture_summary import sentences
from tools.grading.student_report import Result, points, write_table

COLUMNS = ("exercise", "title", "students", "tried", "solved", "cause", "had_it", "words")
MAX_REPEATED = 12  # causes at the top of the page
TRIED = (RIGHT, NOT_RIGHT)


@dataclass
class Cause:
    """A result of checks, and the students who got it.

    Args:
        topic: its id.
        words: a sentence.
        named: whether the words name a mistake.
        results: the students.
    """

    topic: str
    words: str
    named: bool
    results: list[Result] = field(default_factory=list)


@dataclass
class ExerciseSummary:
    """One exercise of the whole class.

    Args:
        id, title: of the exercise.
        is_open: whether it has no check.
        tried, solved: the students.
        causes: the most frequent first.
    """

    id: str
    title: str
    is_open: bool
    tried: list[Result] = field(default_factory=list)
    solved: list[Result] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    def add(self, result: Result, grade: ExerciseGrade) -> None:
        """Count the grade of one student."""
        check = grade.result
        if grade.written or (check.state in TRIED and not self.is_open):
            self.tried.append(result)
        if check.state == RIGHT:
            self.solved.append(result)
        if check.topic:
            same = next((c for c in self.causes if c.topic == check.topic), None)
            if same is None:
                self.causes.append(same := Cause(check.topic, check.words, check.named))
            same.results.append(result)


def exercises_of(results: list[Result]) -> list[ExerciseSummary]:
    """Count the grades of all students, in the order of the exercises.

    Args:
        results: of each student, all with grades of the same chapters.
    """
    found: dict[str, ExerciseSummary] = {}
    for result in results:
        for grade in (e for chapter in result.grades for e in chapter.exercises):
            made = ExerciseSummary(grade.id, grade.title, grade.is_open)
            found.setdefault(grade.id, made).add(result, grade)
    for exercise in found.values():
        exercise.causes.sort(key=lambda cause: (-len(cause.results), not cause.named, cause.topic))
    return list(found.values())


def to_repeat(exercises: list[ExerciseSummary]) -> list[tuple[Cause, list[str]]]:
    """Combine the named mistakes of all exercises, the most frequent first.

    Returns:
        Each mistake with all its students, and the ids of the exercises.
    """
    found: dict[str, tuple[Cause, list[str]]] = {}
    for exercise in exercises:
        for cause in (cause for cause in exercise.causes if cause.named):
            new = Cause(cause.topic, cause.words, True), []
            whole, where = found.setdefault(cause.topic, new)
            where.append(exercise.id)
            whole.results += [r for r in cause.results if r not in whole.results]
    return sorted(found.values(), key=lambda pair: -len(pair[0].results))


def _lines(exercises: list[ExerciseSummary], students: int) -> Iterator[list[object]]:
    for exercise in exercises:
        counts = [students, len(exercise.tried)]
        counts += ["" if exercise.is_open else len(exercise.solved)]
        for cause in exercise.causes or [Cause("", "", False)]:
            yield [
                *(exercise.id, exercise.title, *counts),
                *(cause.topic, len(cause.results), cause.words),
            ]


def write(folder: Path, results: list[Result], week: str = "", warning: str = "") -> None:
    """Write class.csv and class.html.

    Args:
        folder: a new folder; its `feedback/` holds the pages of the students.
        results: of each student.
        week: the name of the week, "" if there is only one.
        warning: for the top of the page.
    """
    exercises = exercises_of(results)
    write_table(folder / "class.csv", COLUMNS, _lines(exercises, len(results)))
    text = page(results, exercises, week, warning)
    (folder / "class.html").write_text(text, encoding="utf-8", errors="replace")


def page(
    results: list[Result], exercises: list[ExerciseSummary], week: str = "", warning: str = ""
) -> str:
    """Return class.html: it loads nothing and runs nothing."""
    chapters = list(dict.fromkeys(exercise.id[:2] for exercise in exercises))
    submitted = {c: sum(c in result.student.chapters for result in results) for c in chapters}
    return rendered(
        "grading/templates/class.html",
        results=results,
        students=len(results),
        to_read=sum(result.to_read for result in results),
        sentences=sentences(exercises, to_repeat(exercises), submitted),
        week=week,
        warning=warning,
        repeat=to_repeat(exercises)[:MAX_REPEATED],
        chapters=[(c, [e for e in exercises if e.id[:2] == c]) for c in chapters],
        submitted=submitted,
        points=points,
    )
