"""The conditions of a check: which cases it draws, and what it only remarks on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from checks.engine.message import Message


@dataclass(frozen=True)
class Conditions:
    """The defaults are those of a notebook.

    Args:
        salt: seed of secret cases; "" for the cases of the notebook.
        remarks: collects what is seen of how an answer works; None makes the answer wrong.
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
    """Check under these conditions inside the block.

    Args:
        chosen: instead of the defaults.
    """
    token = _now.set(chosen)
    try:
        yield
    finally:
        _now.reset(token)
