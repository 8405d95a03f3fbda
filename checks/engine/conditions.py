"""The conditions under which answers are judged: those of a notebook, or those of a grader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from checks.engine.message import Message


@dataclass(frozen=True)
class Conditions:
    """How answers are judged; a notebook uses the defaults.

    Args:
        salt: seed of secret cases; "" for the cases of the notebook.
        remarks: collects what an answer does on its way, where the answer runs in another process
            whose reports prove nothing; None raises it.
    """

    salt: str = ""
    remarks: list[Message] | None = None


NOTEBOOK = Conditions()
_now: ContextVar[Conditions] = ContextVar("conditions")


def conditions() -> Conditions:
    """Return the conditions that hold now."""
    return _now.get(NOTEBOOK)


@contextmanager
def under(chosen: Conditions) -> Iterator[None]:
    """Judge under these conditions inside the block.

    Args:
        chosen: by a grader.
    """
    token = _now.set(chosen)
    try:
        yield
    finally:
        _now.reset(token)
