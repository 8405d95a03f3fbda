"""How long a search may take: counted in steps, not in time, so that it ends alike everywhere.

A step is one form of one stage, applied to what the stages before have made. Large tensors count
for more. Whoever examines opens a budget; the search spends from the one that is open, if any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

STEPS = 50_000  # of one examination
CHOICE = 0.2  # what a step costs that makes no tensor
READINGS = 10  # of the weights, that take as long to list as a step
NUMBERS = 10_000  # numbers of a tensor that take as long to make as a step takes to begin


class Spent(Exception):
    """The steps of a budget are used up.

    Args:
        steps: how many they were.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(f"the search stopped after {steps} steps")
        self.steps = steps


class Budget:
    """The steps that a search may take.

    Args:
        steps: how many.
        whole: how many the whole examination may take, of which these are a part.
    """

    def __init__(self, steps: int, whole: int | None = None) -> None:
        self.steps, self.taken = steps, 0.0
        self.whole = steps if whole is None else whole

    @property
    def left(self) -> float:
        """How many steps may still be taken."""
        return max(0.0, self.steps - self.taken)

    def take(self, steps: float) -> None:
        """Take steps.

        Raises:
            Spent: there are no more.
        """
        self.taken += steps
        if self.taken > self.steps:
            raise Spent(self.whole)


_open: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budget(steps: int) -> Iterator[None]:
    """Open a budget; what is examined inside of another examination spends from that one.

    Args:
        steps: how many, where none is open.
    """
    outer = _open.get()
    token = _open.set(Budget(steps) if outer is None else outer)
    try:
        yield
    finally:
        _open.reset(token)


def steps_of(where: str, effort: float) -> int:
    """Return how many steps an effort is.

    Args:
        where: the public name that an error begins with.
        effort: what the caller of a tool said.

    Raises:
        ValueError: no effort.
    """
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not effort > 0:
        raise ValueError(
            f"{where}: effort must be a number above 0, got effort={effort!r}. 1 is the usual one, "
            "10 searches ten times as long."
        )
    return max(1, round(effort * STEPS))


@contextmanager
def reserved(share: float) -> Iterator[None]:
    """Let what runs inside take no more than a share of the steps that are left.

    Args:
        share: from 0 to 1.
    """
    outer = _open.get()
    if outer is None:
        yield
        return
    inner = Budget(int(share * outer.left), outer.whole)
    token = _open.set(inner)
    try:
        yield
    finally:
        _open.reset(token)
        outer.taken += min(inner.taken, inner.steps)


@contextmanager
def beside(share: float) -> Iterator[None]:
    """Let what runs inside take steps of its own, even where none are left.

    Args:
        share: of all steps, from 0 to 1.
    """
    outer = _open.get()
    whole = STEPS if outer is None else outer.whole
    token = _open.set(Budget(int(share * whole), whole))
    try:
        yield
    finally:
        _open.reset(token)


def is_spent() -> bool:
    """Say whether a budget is open that has no steps left."""
    now = _open.get()
    return now is not None and now.left == 0


def spend(steps: float) -> None:
    """Take steps from the budget that is open.

    Raises:
        Spent: there are no more.
    """
    now = _open.get()
    if now is not None:
        now.take(steps)


def spend_on(made: Iterable[Any]) -> None:
    """Take the steps that tensors cost.

    Args:
        made: what a step has made, tensors and other things.

    Raises:
        Spent: there are no more.
    """
    now = _open.get()
    if now is not None:
        sizes = [value.numel() for value in made if isinstance(value, Tensor)]
        now.take(1 + max(sizes) / NUMBERS if sizes else CHOICE)
