"""What a student wrote: still the stub, or an answer."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from textwrap import dedent
from typing import Any

from checks.engine.conditions import conditions
from checks.engine.message import Message, as_message, message

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # an address in memory
LONGEST = 160  # characters of a raised error that are shown
# The two lines that replace a solution.
STUB = re.compile(r"^[ \t]*# your code here[ \t]*\n[ \t]*pass[ \t]*$", re.MULTILINE)


class NotYet(Exception):
    """The answer is still empty.

    Args:
        what: says so.
    """

    def __init__(self, what: Message):
        super().__init__(what)
        self.what = what


class Wrong(Exception):
    """The answer is wrong.

    Args:
        what: what is wrong: a message, or the id of one without parameters.
        why: finds out why; called only when the reason will be shown. It returns None when no
            known mistake explains the answer.
        inputs: the inputs for which it is wrong, as `aloud` gives them.
        rounded: whether the result is right to about six digits.

    Its attribute `answer` names the wrong one of several answers; None when that is not known.
    """

    def __init__(
        self,
        what: Message | str,
        why: Callable[[], Message | str | None] | None = None,
        inputs: Sequence[Message] = (),
        rounded: bool = False,
    ):
        super().__init__(what)
        self.what, self.why, self.inputs = as_message(what), why, inputs
        self.rounded = rounded
        self.answer: str | None = None


def noticed(wrong: Wrong) -> None:
    """Raise what was seen of how an answer works, or collect it as a remark: see `Conditions`.

    Args:
        wrong: what it should not do, though its results may be right.

    Raises:
        Wrong: remarks are not collected.
    """
    remarks = conditions().remarks
    if remarks is None:
        raise wrong
    remarks.append(wrong.what)


def written(*answers: Any) -> None:
    """Raise `NotYet` for an answer that is empty: `...`, or a function without a new line.

    Args:
        answers: what the student passed to `check`.

    Raises:
        NotYet: one of them is empty.
    """
    for answer in answers:
        if answer is ... or answer is None:
            raise NotYet(message("still-empty"))
        if name := _empty(answer):
            raise NotYet(message("function-still-empty", name=name))


def stub_left(answer: Any) -> bool:
    """Say whether a function or class still contains the two lines of the stub.

    Args:
        answer: what the student passed to `check`.
    """
    return any(STUB.search(source(function)) for function in functions_of(answer))


@lru_cache(maxsize=32)  # a check reads it several times
def source(function: Callable) -> str:
    """Return the source of a function, "" when it cannot be found.

    Args:
        function: for a class pass its methods; a notebook cannot locate the source of a class.
    """
    try:
        return dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def raised(error: BaseException) -> Message:
    """Say what an answer raised, in one line that is the same on every machine.

    Args:
        error: what it raised.
    """
    name = type(error).__name__
    try:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
    except Exception:
        lines = []
    if any("modified by an inplace operation" in line for line in lines):
        return message("raises-in-place", error=name)
    # einops names the pattern first and the reason last, like other errors that end with a colon
    last = lines and (name == "EinopsError" or lines[0].endswith(":"))
    words = _shortened(ADDRESS.sub("", lines[-1 if last else 0]).strip()) if lines else ""
    return (
        message("raises", error=name, words=words) if words else message("raises-only", error=name)
    )


def _shortened(words: str) -> str:
    """Cut a long line where a sentence or at least a word ends."""
    if len(words) > LONGEST:
        start = words[:LONGEST]
        end = max(start.rfind(". "), start.rfind("; "))
        words = start[:end] if end > LONGEST // 3 else f"{start.rpartition(' ')[0]} ..."
    return words.removesuffix(".") if not words.endswith("...") else words


def functions_of(answer: Any) -> list[Callable]:
    """Return the functions that the student wrote: the answer itself, or the methods of a class."""
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    return [part for part in parts if inspect.isfunction(part)]


def _empty(answer: Any) -> str | None:
    """Return the name of the first function in an answer that does nothing yet."""
    for function in functions_of(answer):
        try:
            (node,) = ast.parse(source(function)).body
        except (SyntaxError, ValueError):
            continue
        if isinstance(node, ast.FunctionDef) and not any(map(_does_something, node.body)):
            return function.__qualname__.rpartition("<locals>.")[2]
    return None


def _does_something(line: ast.stmt) -> bool:
    """Say whether a line is more than a docstring, `...` or the call of super().__init__."""
    if not isinstance(line, ast.Expr):
        return not isinstance(line, ast.Pass)
    return not (isinstance(line.value, ast.Constant) or ast.unparse(line) == "super().__init__()")
