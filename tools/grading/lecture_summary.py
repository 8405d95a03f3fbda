"""Three sentences with which the next lecture may start, from what the checks said.

The first two are the mistakes that most of the class made, the third is the exercise that most
failed or left out. Each says of how many it holds; nobody is named in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FEW = 2  # students: what fewer had is no matter for all


def _count(number: int, of: int) -> str:
    if number == of and of > 1:
        return "both" if of == 2 else f"all {of}"
    return f"{number} of {of}"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _of_causes(exercises: list[Any], repeated: list[tuple[Any, list[str]]]) -> Iterator[str]:
    """Yield a sentence for each named mistake that several made, the most frequent first."""
    by_id = {exercise.id: exercise for exercise in exercises}
    for cause, where in repeated:
        if len(cause.results) < FEW:
            return
        tried = {id(result) for name in where for result in by_id[name].tried}
        tried |= {id(result) for result in cause.results}
        first = by_id[where[0]]
        places = f"{first.id} ({first.title})" + "".join(f", {name}" for name in where[1:])
        how_many = f"{_count(len(cause.results), len(tried))} who tried it"
        yield f"In {places}, {how_many} had the same mistake: {cause.words.rstrip('.')}."


def _of_exercises(exercises: list[Any], handed_in: dict[str, int], said: set[str]) -> Iterator[str]:
    """Yield a sentence for the exercise that most failed, and one for that which most left out."""

    def left_out(exercise: Any) -> int:
        return handed_in[exercise.id[:2]] - len(exercise.tried)

    checked = [e for e in exercises if not e.is_open]
    others = [e for e in checked if e.id not in said]  # of these a mistake was told already
    failed = max(others, key=lambda e: len(e.tried) - len(e.solved), default=None)
    left = max(checked, key=left_out, default=None)
    found = []
    if failed and (count := len(failed.tried) - len(failed.solved)):
        what = f"who tried {failed.id} ({failed.title}) did not solve it: solve it together"
        found.append((count, _sentence(f"{_count(count, len(failed.tried))} {what}")))
    if left and (count := left_out(left)):
        chapter = left.id[:2]
        what = f"who handed in chapter {chapter} left out {left.id} ({left.title})"
        how_many = _count(count, handed_in[chapter])
        found.append((count, _sentence(f"{how_many} {what}: say how one begins it")))
    for _, sentence in sorted(found, reverse=True):
        yield sentence


def _of_success(exercises: list[Any], handed_in: dict[str, int]) -> Iterator[str]:
    solved = [e for e in exercises if not e.is_open and len(e.solved) == handed_in[e.id[:2]]]
    if solved:
        names = ", ".join(e.id for e in solved[:6]) + (" and others" if len(solved) > 6 else "")
        yield f"Everybody solved {names}: there is nothing to repeat in them."
    several = [e for e in exercises if e.is_open and e.tried]
    if several:
        most = max(several, key=lambda e: len(e.tried))
        how_many = _count(len(most.tried), handed_in[most.id[:2]])
        what = f"wrote an answer to the open {most.id} ({most.title}): read two of them aloud"
        yield _sentence(f"{how_many} {what}")
    yield "No check named a mistake that several made."


def sentences(
    exercises: list[Any], repeated: list[tuple[Any, list[str]]], handed_in: dict[str, int]
) -> list[str]:
    """Return three sentences.

    Args:
        exercises: as the whole class did them; see `glance.exercises_of`.
        repeated: the named mistakes; see `glance.to_repeat`.
        handed_in: how many handed in each chapter.
    """
    causes = list(_of_causes(exercises, repeated))[:2]
    said = {name for _, where in repeated[: len(causes)] for name in where}
    rest = [*_of_exercises(exercises, handed_in, said), *_of_success(exercises, handed_in)]
    found = list(dict.fromkeys([*causes, *rest]))
    return found[:3]
