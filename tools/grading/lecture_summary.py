"""Three sentences for the start of the next lecture, from the results of the checks.

Two are about the most frequent mistakes, one about the exercise that most students failed or left
out. Each counts students and names none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIN_STUDENTS = 2  # with the same mistake


def _count(number: int, of: int) -> str:
    if number == of and of > 1:
        return "both" if of == 2 else f"all {of}"
    return f"{number} of {of}"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _of_causes(exercises: list[Any], repeated: list[tuple[Any, list[str]]]) -> Iterator[str]:
    """Yield a sentence for each frequent named mistake, the most frequent first."""
    by_id = {exercise.id: exercise for exercise in exercises}
    for cause, where in repeated:
        if len(cause.results) < MIN_STUDENTS:
            return
        tried = {id(result) for name in where for result in by_id[name].tried}
        tried |= {id(result) for result in cause.results}
        first = by_id[where[0]]
        places = f"{first.id} ({first.title})" + "".join(f", {name}" for name in where[1:])
        how_many = f"{_count(len(cause.results), len(tried))} students who tried it"
        yield f"In {places}, {how_many} had the same mistake: {cause.words.rstrip('.')}."


def _of_exercises(
    exercises: list[Any], submitted: dict[str, int], named: set[str]
) -> Iterator[str]:
    """Yield sentences for the exercises that most students failed and left out."""

    def left_out(exercise: Any) -> int:
        return submitted[exercise.id[:2]] - len(exercise.tried)

    checked = [e for e in exercises if not e.is_open]
    others = [e for e in checked if e.id not in named]  # exercises without a sentence so far
    failed = max(others, key=lambda e: len(e.tried) - len(e.solved), default=None)
    left = max(checked, key=left_out, default=None)
    found = []
    if failed and (count := len(failed.tried) - len(failed.solved)):
        what = (
            f"students who tried {failed.id} ({failed.title}) did not solve it: solve it together"
        )
        found.append((count, _sentence(f"{_count(count, len(failed.tried))} {what}")))
    if left and (count := left_out(left)):
        chapter = left.id[:2]
        what = f"students with chapter {chapter} left out {left.id} ({left.title})"
        how_many = _count(count, submitted[chapter])
        found.append((count, _sentence(f"{how_many} {what}: show its first step")))
    for _, sentence in sorted(found, reverse=True):
        yield sentence


def _of_success(exercises: list[Any], submitted: dict[str, int]) -> Iterator[str]:
    solved = [e for e in exercises if not e.is_open and len(e.solved) == submitted[e.id[:2]]]
    if solved:
        names = ", ".join(e.id for e in solved[:6]) + (" and others" if len(solved) > 6 else "")
        yield f"All students solved {names}: there is nothing to repeat."
    several = [e for e in exercises if e.is_open and e.tried]
    if several:
        most = max(several, key=lambda e: len(e.tried))
        how_many = _count(len(most.tried), submitted[most.id[:2]])
        what = (
            f"students answered the open exercise {most.id} ({most.title}): read two answers aloud"
        )
        yield _sentence(f"{how_many} {what}")
    yield "No check named a mistake of several students."


def sentences(
    exercises: list[Any], repeated: list[tuple[Any, list[str]]], submitted: dict[str, int]
) -> list[str]:
    """Return three sentences.

    Args:
        exercises: of the whole class; see `class_report.exercises_of`.
        repeated: the named mistakes; see `class_report.to_repeat`.
        submitted: the number of submissions of each chapter.
    """
    causes = list(_of_causes(exercises, repeated))[:2]
    named = {name for _, where in repeated[: len(causes)] for name in where}
    rest = [*_of_exercises(exercises, submitted, named), *_of_success(exercises, submitted)]
    found = list(dict.fromkeys([*causes, *rest]))
    return found[:3]
