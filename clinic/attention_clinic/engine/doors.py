"""The doors of the clinic: who knocks gets a report, or one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from attention_clinic.engine.budget import Spent
from attention_clinic.engine.patient import first_line, place


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
