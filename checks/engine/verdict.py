"""What a check says: right, not right or not yet, and the table of what is done."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import torch

from attention_clinic.capture.module import undisturbed
from checks.engine.answer import NotYet, Wrong, functions_of, raised, source, stub_left
from checks.engine.calls import DoubleConstants, name_of
from checks.engine.message import Message, as_message, message, say

PAGE = 84  # columns that a notebook shows without breaking a line
SHAPE = re.compile(r"\(\d+(, \d+)*,?\)")  # stays on one line
NO_BREAK = "\N{NO-BREAK SPACE}"
VERDICT_MIME = "application/vnd.attention-course.verdict+json"
PROGRESS_MIME = "application/vnd.attention-course.progress+json"
VERSION = 1  # of what a notebook stores under these two
RIGHT, NOT_YET, NOT_RIGHT, NOT_RUN, OPEN = "right", "not yet", "not right", "not run", "open"
STATES = {
    s: Message("state-" + s.replace(" ", "-")) for s in (RIGHT, NOT_YET, NOT_RIGHT, NOT_RUN, OPEN)
}


class CheckFailed(AssertionError):
    """Raised by `check` when nbgrader runs the notebook: the exercise earns nothing."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


# Messages that say only that something differs, and causes that say only how.
UNNAMED = {"values-differ", "gradient-differs", "result-is", "number-differs", "measure-differs"}
UNNAMED |= {"not-the-shape", "too-large", "too-small", "unforeseen"}


# Reasons that single precision may cause, and words of torch's errors about dtypes.
OF_PRECISION = {"gradient-differs", "this-shift-differs"}
DOUBLE = re.compile(r"\bdouble\b|\bfloat64\b")
DTYPES = re.compile(r"dtype|scalar type|\b(Double|Float)\b")

# The clinic's ids of mistakes that checks name themselves.
OF_CLINIC = {"softmax-query": "softmax-over-queries", "scale-missing": "scores-not-divided"}


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Args:
        exercise: number of chapter and exercise, such as "03.2".
        state: "right", "not yet" or "not right".
        message: what was found.
        cause: the mistake that explains a wrong answer, where one is known.
        answer: which of several answers is meant; None where the message says it.
        inputs: those for which an answer is wrong.
    """

    exercise: str
    state: str
    message: Message
    cause: Message | None = None
    answer: str | None = None
    inputs: tuple[Message, ...] = ()

    def __str__(self) -> str:
        text = f"{self.exercise}  {say(STATES[self.state])}: {self.reason}"
        whole = SHAPE.sub(lambda shape: shape.group().replace(" ", NO_BREAK), text)
        indent = {"subsequent_indent": " " * 6}
        lines = wrap(whole, PAGE, **indent, break_on_hyphens=False, break_long_words=False)
        return "\n".join(lines).replace(NO_BREAK, " ")

    @property
    def reason(self) -> str:
        """The whole verdict in sentences, without number and state."""
        what = self.message
        if self.answer:
            what = message("in-answer", answer=self.answer, what=what)
        if self.cause:
            what = message("because", what=what, cause=self.cause)
        said = [what]
        if self.state == NOT_YET and self.message.id in ("still-empty", "function-still-empty"):
            said.append(message("write-and-run"))
        if self.state == NOT_RIGHT:
            if self.inputs:
                said.append(message("tried-with", inputs=list(self.inputs)))
            said.append(message("see-chapter", chapter=self.exercise[:2]))
        return " ".join(f"{say(part)}." for part in said)

    @property
    def named(self) -> bool:
        """Whether a verdict says more about a wrong answer than that its numbers are not right.

        A cause counts when it is a mistake, a property of the result that shows where to look
        ("the values of v do not affect the result"), or what the clinic found; "it is too large"
        does not. Without a cause the message counts when it says what to change: a wrong shape with
        the right one next to it, None returned, an error that was raised, a forbidden call, a
        missing parameter. "The values are not" does not.
        """
        return (self.cause or self.message).core.id not in UNNAMED

    @property
    def topic(self) -> str:
        """The id by which equal reasons of many students are counted together.

        A mistake that both the clinic and a check name has the check's id.
        """
        core = (self.cause or self.message).core
        if core.id != "clinic-found":
            return core.id
        ids = core.params["ids"]
        return (len(ids) == 1 and OF_CLINIC.get(ids[0])) or "/".join([core.id, *ids])

    def to_json(self) -> dict[str, Any]:
        """Return what a notebook stores with the text."""
        return {
            "version": VERSION,
            "exercise": self.exercise,
            "state": self.state,
            "message": self.message.to_json(),
            "cause": self.cause.to_json() if self.cause else None,
            "answer": self.answer,
            "inputs": [part.to_json() for part in self.inputs],
            "topic": self.topic,
            "text": self.reason,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote.

        Args:
            data: what a notebook stores under VERDICT_MIME.

        Raises:
            ValueError: it is something else, or of another version.
        """
        try:
            if data["version"] != VERSION or data["state"] not in STATES:
                raise KeyError("version")
            return cls(
                str(data["exercise"]),
                data["state"],
                Message.from_json(data["message"]),
                Message.from_json(data["cause"]) if data["cause"] else None,
                data["answer"],
                tuple(map(Message.from_json, data["inputs"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Verdict: the data must be what a check stored, version {VERSION}, got "
                f"{str(data)[:60]!r} ({error}). Run the check again."
            ) from None


@dataclass(frozen=True)
class Check:
    """The check of one exercise.

    Args:
        id: number of chapter and exercise, such as "03.2".
        title: the title of its card.
        function: takes the answers, returns what was compared, raises `Wrong` or `NotYet`; None for
            an open exercise.
    """

    id: str
    title: str
    function: Callable[..., Message | str] | None


EXERCISES: dict[str, Check] = {}
_SEEN: dict[str, str] = {}  # what the checks of this session said last, by exercise


def exercise(id: str, title: str) -> Callable[[Callable], Callable]:
    """Register a function as the check of an exercise.

    Args:
        id: number of chapter and exercise, such as "03.2".
        title: the title of its card.

    Raises:
        ValueError: the exercise has a check already.
    """

    def register(function: Callable) -> Callable:
        _register(Check(id, title, function))
        return function

    return register


def open_exercise(id: str, title: str) -> None:
    """Register an exercise without a check.

    Args:
        id: number of chapter and exercise, such as "03.7".
        title: the title of its card.

    Raises:
        ValueError: the exercise is registered already.
    """
    _register(Check(id, title, None))


def _register(new: Check) -> None:
    if new.id in EXERCISES:
        raise ValueError(
            f"exercise: each is registered once, got {new.id} again. Give it another number."
        )
    EXERCISES[new.id] = new


def exercises(chapter: str) -> list[Check]:
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
            f"check: an exercise is called by chapter and number, got chapter {chapter!r}, and "
            f'there is no checks/chapter_{chapter}.py. Write for example "03.2", as the notebook '
            "does; a new chapter needs that file."
        ) from None
    return sorted((e for e in EXERCISES.values() if e.id[:2] == chapter), key=lambda e: e.id)


def examine(id: str, *answers: Any, explain: bool = True) -> Verdict:
    """Check the answers to one exercise without printing.

    Args:
        id: number of chapter and exercise, such as "03.2".
        answers: what the exercise asks for: functions, classes, shapes, numbers.
        explain: whether to look for the mistake that explains a wrong answer.

    Raises:
        ValueError: no such exercise, or the wrong number of answers.
    """
    known = {e.id: e.function for e in exercises(str(id).partition(".")[0])}
    function = known.get(id)
    if function is None:
        checked = [name for name, function in known.items() if function]
        raise ValueError(
            f"check: the exercise must be one of {checked}, got {id!r}. "
            "Write the number as in the check cell of the notebook."
        )
    wanted = list(inspect.signature(function).parameters)
    if len(wanted) != len(answers):
        raise ValueError(
            f"check: exercise {id} takes {', '.join(wanted)}, got {len(answers)} answers. "
            "Put the check cell back as the notebook had it."
        )
    with undisturbed():
        try:
            with _alike():
                return Verdict(id, RIGHT, as_message(function(*answers)))
        except NotYet as empty:
            return Verdict(id, NOT_YET, empty.what)
        except Exception as error:
            with _alike():
                refused = _refused(id, answers, error, explain)
            if not _of_precision(error, refused, answers):
                return refused
            return _in_double(function, answers, refused, explain)


def _of_precision(error: Exception, verdict: Verdict, answers: tuple[Any, ...]) -> bool:
    """Whether single precision may be all that is wrong with answers that never ask for double."""
    named = getattr(error, "answer", None)
    parts = [f for a in answers if named in (None, name_of(a)) for f in functions_of(a)]
    if any(DOUBLE.search(source(part)) for part in parts):
        return False
    core = verdict.message.core
    if core.id == "dtype-differs":
        return core.params["got"] == "torch.float32"
    rounded = isinstance(error, Wrong) and error.rounded
    return rounded or core.id in OF_PRECISION or bool(DTYPES.search(verdict.reason))


def _in_double(
    function: Callable, answers: tuple[Any, ...], first: Verdict, explain: bool
) -> Verdict:
    """Check answers again, with all their tensors in double precision.

    A notebook works in single precision, checks work in double: torch.zeros(n) is right there.

    Returns:
        The verdict on right answers, or on answers whose dtype was all that the first verdict
        said, or raised an error about; the first verdict on others.
    """
    with _alike(), DoubleConstants():
        try:
            return Verdict(first.exercise, RIGHT, as_message(function(*answers)))
        except Exception as error:
            if first.message.core.id not in ("raises", "dtype-differs"):
                return first
            again = _refused(first.exercise, answers, error, explain)
            same = again.message.core.id == first.message.core.id == "dtype-differs"
            return first if same else again  # the first says the dtype that the student sees


def _refused(id: str, answers: tuple[Any, ...], wrong: Exception, explain: bool) -> Verdict:
    """The verdict on a wrong answer; a function that still has its stub is "not yet"."""
    if not isinstance(wrong, Wrong):  # of an answer that no check foresaw
        return Verdict(id, NOT_RIGHT, message("unforeseen", what=raised(wrong)))
    for answer in filter(stub_left, answers):
        if wrong.answer in (None, answer.__name__):  # not a different answer
            return Verdict(id, NOT_YET, message("stub-left", name=answer.__name__))
    several = sum(map(callable, answers)) > 1
    named = wrong.answer and wrong.answer in re.findall(r"\w+", str(wrong.what))
    return Verdict(
        id,
        NOT_RIGHT,
        as_message(wrong.what),
        _why(wrong) if explain else None,
        wrong.answer if several and not named else None,
        tuple(wrong.inputs),
    )


@contextmanager
def _alike() -> Iterator[None]:
    """Begin with the same random numbers every time, and with gradients, whatever ran before.

    Warnings are silent: they would show paths of this machine, and the verdict says what matters.
    """
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
        yield


def _why(wrong: Wrong) -> Message | None:
    """Find out why; an answer that no check foresaw has no reason."""
    try:
        why = wrong.why() if wrong.why else None
    except Exception:
        return None
    return as_message(why) if why else None


def check(id: str, *answers: Any) -> None:
    """Show whether the answers to an exercise are right and, if not, what is wrong and why.

    It raises nothing for a wrong answer, so that Run All goes on. Only when nbgrader runs the
    notebook (it sets the variable NBGRADER_EXECUTION) a wrong or empty answer raises, too.

    Args:
        id: number of chapter and exercise, such as "03.2".
        answers: what the exercise asks for.

    Raises:
        ValueError: no such exercise, or the wrong number of answers.
        CheckFailed: the answer is not right, and nbgrader runs the notebook.
    """
    verdict = examine(id, *answers)
    _SEEN[id] = verdict.state
    _show(str(verdict), VERDICT_MIME, verdict.to_json())
    if verdict.state != RIGHT and os.environ.get("NBGRADER_EXECUTION"):
        raise CheckFailed(str(verdict))


def progress(chapter: str) -> None:
    """Show which exercises of a chapter are done, as far as their checks ran in this session.

    Args:
        chapter: two digits, such as "03".

    Raises:
        ValueError: no such chapter.
    """
    known = exercises(chapter)
    states = {e.id: _SEEN.get(e.id, NOT_RUN) if e.function else OPEN for e in known}
    checked = [e for e in known if e.function]
    done = sum(states[e.id] == RIGHT for e in checked)
    lines = [say(message("progress", chapter=chapter, done=done, checked=len(checked)))]
    lines += [f"  {e.id}  {say(STATES[states[e.id]]):9}  {e.title}" for e in known]
    stored = [{"id": e.id, "title": e.title, "state": states[e.id]} for e in known]
    data = {"version": VERSION, "chapter": chapter, "exercises": stored}
    _show("\n".join(lines), PROGRESS_MIME, data)


def _show(text: str, mime: str, data: dict[str, Any]) -> None:
    """Show one output with text and data in a notebook; print the text anywhere else."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    if ipython is None or ipython.get_ipython() is None:
        print(text)
    else:
        ipython.display.display({"text/plain": text, mime: data}, raw=True)
