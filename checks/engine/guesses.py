"""Compare what a student states: a shape or a number."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from checks.engine.answer import Wrong, written
from checks.engine.compare import kind, number, shown
from checks.engine.message import Message, as_message, message
from utils.shapes import compare_guess


def same_shape(guess: Any, shape: Sequence[int], letters: str) -> Message:
    """Compare a predicted shape with the true one, without giving the true one away.

    Args:
        guess: what the student wrote.
        shape: the true shape, computed.
        letters: the axes, such as "b h i j".

    Raises:
        NotYet: `...`.
        Wrong: anything but the shape.
    """
    written(guess)
    names = letters.split()
    differs = compare_guess(guess, shape)
    if differs == "no shape":
        raise Wrong(message("no-shape", got=shown(guess)))
    guessed = tuple(map(operator.index, guess))
    if differs == "right":
        return message("is-the-shape", shape=guessed)
    wrong = [n for n, g, s in zip(names, guessed, shape, strict=False) if g != s]
    why = {
        "rank": partial(message, "number-of-axes", want=len(names), got=len(guessed)),
        "order": partial(message, "sizes-in-another-order"),
        "layout": partial(message, "laid-out-otherwise"),
        "sizes": partial(message, "look-at-axes", wrong=wrong),
    }
    raise Wrong(message("not-the-shape", got=guessed), partial(why[differs], axes=names))


def same_number(
    value: Any,
    want: float,
    margin: float,
    what: Message | str,
    known: Mapping[float, Message | str] | None = None,
) -> Message:
    """Compare a number with the right one, within a margin.

    Args:
        value: what the student wrote or measured: a number, or a tensor of one number.
        want: the right number.
        margin: largest difference that counts as right.
        what: what the number is, such as "the variance of the scores".
        known: tempting wrong numbers and what is wrong with them.

    Raises:
        NotYet: `...`.
        Wrong: not a number, or one outside the margin.
    """
    written(value)
    what, known = as_message(what), {n: as_message(c) for n, c in (known or {}).items()}
    given, value = value, number(value)
    if value is None:
        raise Wrong(message("number-is-asked", name=what, got=kind(given)))
    if abs(value - want) <= margin:
        return message("number-agrees", name=what, margin=float(margin), want=float(want))

    def why() -> Message:
        near = min(known, key=lambda number: abs(value - number), default=None)
        if near is not None and abs(value - near) <= min(margin, abs(near) / 10):
            return known[near]
        return too_far(value, want)

    raise Wrong(message("number-differs", got=float(value), name=what), why)


def too_far(got: float, want: float) -> Message:
    """Say on which side of the right number a wrong one is.

    Args:
        got: the wrong number.
        want: the right one.
    """
    if got != got:
        return message("not-a-number")
    return message("too-large" if got > want else "too-small")
