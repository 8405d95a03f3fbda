"""The doors of the clinic: who knocks gets a report, or one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from attention_clinic.engine.budget import Spent
from attention_clinic.engine.patient import first_line, place

_rooms: ContextVar[int] = ContextVar("rooms", default=0)


@contextmanager
def entered() -> Iterator[None]:
    """Go through a door: what is examined inside of another examination goes through two."""
    token = _rooms.set(_rooms.get() + 1)
    try:
        yield
    finally:
        _rooms.reset(token)


def is_inside() -> bool:
    """Say whether an examination runs inside of another one: nobody reads its refusal."""
    return _rooms.get() > 1


@contextmanager
def answered(where: str, module: Any) -> Iterator[None]:
    """Turn whatever goes wrong in an examination into one line.

    Args:
        where: the public name that the line begins with.
        module: what is examined.

    Raises:
        ValueError: anything went wrong.
    """
    try:
        with entered():
            yield
    except (ValueError, Spent):
        raise
    except Exception as error:
        name = type(module).__name__ if isinstance(module, nn.Module) else "what was given"
        raise ValueError(
            f"{where}: {name} must run in every call that an examination makes, got "
            f"{type(error).__name__}: {first_line(error)}{place(error)}. "
            "Say how to call it: call=lambda module, x: module(x), size=(samples, tokens)."
        ) from error
