"""What a check says: right, not right or not yet, and the table of what is done."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import torch

from attention_clinic.patient import undisturbed
from checks.engine.answer import NotYet, Wrong, raised, stub_left

PAGE = 96  # columns that a notebook shows without breaking a line
RIGHT, NOT_YET, NOT_RIGHT, NOT_RUN, OPEN = "right", "not yet", "not right", "not run", "open"


class CheckFailed(AssertionError):
    """Raised by `check` when a grader runs the notebook: the exercise earns nothing."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Args:
        exercise: number of chapter and exercise, such as "03.2".
        state: "right", "not yet" or "not right".
        reason: one or two sentences.
    """

    exercise: str
    state: str
    reason: str

    def __str__(self) -> str:
        text = f"{self.exercise}  {self.state}: {self.reason}"
        return "\n".join(wrap(text, PAGE, subsequent_indent=" " * 6, break_on_hyphens=False))


@dataclass(frozen=True)
class Exercise:
    """One exercise of a chapter.

    Args:
        id: number of chapter and exercise, such as "03.2".
        title: the title of its card.
        judge: takes the answers, returns what was compared, raises `Wrong` or `NotYet`; None for
            an open exercise.
    """

    id: str
    title: str
    judge: Callable[..., str] | None


EXERCISES: dict[str, Exercise] = {}
_SEEN: dict[str, str] = {}  # what the checks of this session said last, by exercise


def exercise(id: str, title: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a function as the check of an exercise.

    Args:
        id: number of chapter and exercise, such as "03.2".
        title: the title of its card.
    """

    def register(judge: Callable[..., str]) -> Callable[..., str]:
        EXERCISES[id] = Exercise(id, title, judge)
        return judge

    return register


def open_exercise(id: str, title: str) -> None:
    """Register an exercise that nobody checks.

    Args:
        id: number of chapter and exercise, such as "03.7".
        title: the title of its card.
    """
    EXERCISES[id] = Exercise(id, title, None)


def exercises(chapter: str) -> list[Exercise]:
    """Return the exercises of a chapter, in order.

    Args:
        chapter: two digits, such as "03".

    Raises:
        ValueError: no such chapter.
    """
    name = f"checks.chapter_{chapter}"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ValueError(
            f"check: an exercise is called by chapter and number, got chapter {chapter!r}. "
            'Write for example "03.2", as the notebook does.'
        ) from None
    return sorted((e for e in EXERCISES.values() if e.id[:2] == chapter), key=lambda e: e.id)


def examine(id: str, *answers: Any, explain: bool = True) -> Verdict:
    """Judge the answers to one exercise, and print nothing.

    Args:
        id: number of chapter and exercise, such as "03.2".
        answers: what the exercise asks for: functions, classes, shapes, numbers.
        explain: whether to look for the mistake behind a wrong answer.

    Raises:
        ValueError: no such exercise, or another number of answers.
    """
    known = {e.id: e.judge for e in exercises(str(id).partition(".")[0])}
    judge = known.get(id)
    if judge is None:
        checked = [name for name, function in known.items() if function]
        raise ValueError(
            f"check: the exercise must be one of {checked}, got {id!r}. "
            "Write the number as it stands in the check cell of the notebook."
        )
    wanted = list(inspect.signature(judge).parameters)
    if len(wanted) != len(answers):
        raise ValueError(
            f"check: exercise {id} takes {', '.join(wanted)}, got {len(answers)} answers. "
            "Put the check cell back as the notebook had it."
        )
    with undisturbed(), _alike():
        try:
            return Verdict(id, RIGHT, f"{judge(*answers)}.")
        except NotYet as empty:
            return Verdict(id, NOT_YET, f"{empty}. Write your code, run its cell, run this cell.")
        except Wrong as wrong:
            for answer in filter(stub_left, answers):
                if wrong.answer not in (None, answer.__name__):
                    continue  # some other answer is wrong
                reason = f"put your code in the place of pass in {answer.__name__}."
                return Verdict(id, NOT_YET, reason)
            why = _why(wrong) if explain else None
            because = f": {why}" if why else ""
            tried = f" Tried with {wrong.inputs}." if wrong.inputs else ""
            what = wrong.what
            several = sum(map(callable, answers)) > 1
            if several and wrong.answer and wrong.answer not in re.findall(r"\w+", what):
                what = f"{wrong.answer}: {what}"
            return Verdict(id, NOT_RIGHT, f"{what}{because}.{tried} Chapter {id[:2]}.")
        except Exception as error:  # of an answer that no judge foresaw
            reason = f"the check cannot use this answer: it {raised(error)}. Chapter {id[:2]}."
            return Verdict(id, NOT_RIGHT, reason)


@contextmanager
def _alike() -> Iterator[None]:
    """Begin with the same random numbers every time, and with gradients, whatever was before.

    Warnings are silent: they would show paths of this machine, and the verdict says what matters.
    """
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
        yield


def _why(wrong: Wrong) -> str | None:
    """Find out why; an answer that no judge foresaw has no reason."""
    try:
        return wrong.why() if wrong.why else None
    except Exception:
        return None


def check(id: str, *answers: Any) -> None:
    """Print whether the answers to an exercise are right and, if not, what is wrong and why.

    It raises nothing for a wrong answer, so that Run All goes on. Only when nbgrader runs the
    notebook (it sets the variable NBGRADER_EXECUTION) a wrong or empty answer raises, too.

    Args:
        id: number of chapter and exercise, such as "03.2".
        answers: what the exercise asks for.

    Raises:
        ValueError: no such exercise, or another number of answers.
        CheckFailed: the answer is not right, and nbgrader asks.
    """
    verdict = examine(id, *answers)
    _SEEN[id] = verdict.state
    print(verdict)
    if verdict.state != RIGHT and os.environ.get("NBGRADER_EXECUTION"):
        raise CheckFailed(str(verdict))


def progress(chapter: str) -> None:
    """Print which exercises of a chapter are done, as far as their checks ran in this session.

    Args:
        chapter: two digits, such as "03".

    Raises:
        ValueError: no such chapter.
    """
    known = exercises(chapter)
    checked = [e for e in known if e.judge]
    done = sum(_SEEN.get(e.id) == RIGHT for e in checked)
    print(f"Chapter {chapter}: {done} of {len(checked)} right")
    for e in known:
        state = _SEEN.get(e.id, NOT_RUN) if e.judge else OPEN
        print(f"  {e.id}  {state:9}  {e.title}")
