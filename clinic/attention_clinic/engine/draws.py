"""Dropout written by hand: uniform numbers are drawn, and compared with a share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attention_clinic.engine.constants import is_number

DRAWN = ("rand", "rand_like", "uniform")
GREATER, LESS = ("gt", "ge", "greater", "greater_equal"), ("lt", "le", "less", "less_equal")


class Draws:
    """What is drawn is known again, and what is made of it draws no more.

    What is mostly drawn is kept, and what is then divided by its share is left as it is.

    Attributes:
        made: by id, uniform numbers, with the number that was added to each.
        kept: the shares that were kept.
    """

    def __init__(self) -> None:
        self.made: dict[int, tuple[Tensor, float]] = {}
        self.kept: list[float] = []

    def called(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, float] | None:
        """Return what a function returns where nothing drops, and the share that it drops; or None.

        Args:
            func: the function.
            args, kwargs: what it got.
        """
        name = getattr(func, "__name__", "").strip("_")
        if name in DRAWN:
            made = func(*args, **kwargs)
            self.made[id(made)] = made, 0.0
            return made, 0.0
        if not self.made:
            return None
        first, *others = args or (None,)
        other = others[0] if others else None
        if self.kept and is_number(other) and self._undoes(name, other):
            return first, 0.0
        drawn, plus = self.made.get(id(first), (None, 0.0))
        if drawn is None:
            return None
        if name in ("add", "radd") and is_number(other):
            made = func(*args, **kwargs)
            self.made[id(made)] = made, plus + other
            return made, 0.0
        if name == "floor" and 0 < plus < 1:
            self.kept.append(plus)
            whole = torch.full_like(drawn, float(plus >= 0.5))
            inside = getattr(func, "__name__", "").endswith("_")
            return (drawn.copy_(whole) if inside else whole), min(plus, 1 - plus)
        if name in (*GREATER, *LESS) and is_number(other):
            share = min(max(other - plus, 0.0), 1.0)
            mostly = share <= 0.5 if name in GREATER else share > 0.5
            self.kept.append(max(share, 1 - share))
            return torch.full_like(drawn, mostly, dtype=torch.bool), min(share, 1 - share)
        return None

    def _undoes(self, name: str, number: float) -> bool:
        """Say whether this makes up for what was dropped."""
        if name in ("div", "truediv", "divide"):
            return any(math.isclose(number, share) for share in self.kept)
        makes = name in ("mul", "rmul", "multiply")
        return makes and any(math.isclose(number * share, 1.0) for share in self.kept)
