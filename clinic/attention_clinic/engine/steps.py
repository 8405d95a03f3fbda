"""The steps of one run: every tensor that is made on the way, whatever its axes are called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine import fused
from attention_clinic.engine.modes import Mode

MOST = 100_000  # numbers of a tensor that is written down
CLOSE = 1e-8  # relative to the largest number, for a module in double precision


class Steps(Mode):
    """Write down what every function of torch returns, the fused kernel's own steps included.

    Attributes:
        made: what was made, by how many numbers it has.
    """

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, list[Tensor]] = {}

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            for made in fused.steps(fused.given(args, kwargs)):
                self._note(made)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self._note(result)
        return result

    def _note(self, t: Tensor) -> None:
        if t.is_floating_point() and 1 < t.numel() <= MOST:
            seen = self.made.setdefault(t.numel(), [])
            if not any(t is other for other in seen[-1:]):
                seen.append(t.detach().clone())


class Seen:
    """What was made on the way, asked without regard to the order of axes.

    Args:
        run: calls the module once.
        heads: h.
        close: the largest relative difference that counts as equal.
    """

    def __init__(self, run: Callable[[], object], heads: int, close: float = CLOSE) -> None:
        with Steps() as steps:
            run()
        self.steps, self.heads, self.close = steps, heads, close
        self._sorted: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, count: int) -> tuple[Tensor, Tensor]:
        """Return what was made with so many numbers, each sorted, and the length of each."""
        if count not in self._sorted:
            whole = [t.flatten() for t in self.steps.made.get(count, ())]
            finite = [t.double().sort().values for t in whole if t.isfinite().all()]
            made = torch.stack(finite) if finite else torch.empty(0, count, dtype=torch.float64)
            self._sorted[count] = made, made.norm(dim=1)
        return self._sorted[count]

    def by_head(self, count: int) -> bool:
        """Say whether heads may have made so many numbers one by one."""
        apart = self.steps.made.get(count // self.heads, ())
        return count % self.heads == 0 and len(apart) >= self.heads > 1

    def has(self, t: Tensor) -> bool:
        """Say whether these numbers were made, in whatever order they lay.

        Args:
            t: (b, h, ...), which may have been made head by head.
        """
        if not t.isfinite().all():
            return False
        if self._has(t):
            return True
        return self.by_head(t.numel()) and all(self._has(t[:, head]) for head in range(t.shape[1]))

    def _has(self, t: Tensor) -> bool:
        wanted = t.flatten().double().sort().values
        limit = self.close * (1 + wanted.abs().max())
        made = self.of(t.numel())[0]
        return len(made) > 0 and bool(((made - wanted).abs().amax(dim=1) <= limit).any())

    def factors(self, rows: Tensor) -> list[list[float]]:
        """Return for each row the numbers above 0 times which its numbers were made.

        Args:
            rows: (r, b, h, ...), which may have been made head by head.
        """
        found = self._factors(rows)
        if self.by_head(rows[0].numel()):
            heads = [self._factors(rows[:, :, head]) for head in range(rows.shape[2])]
            for row, common in enumerate(found):
                common += [
                    factor
                    for factor in heads[0][row]
                    if all(
                        any(math.isclose(factor, other, rel_tol=1e-6) for other in head[row])
                        for head in heads[1:]
                    )
                ]
        return found

    def _factors(self, rows: Tensor) -> list[list[float]]:
        wanted = rows.flatten(1).double()
        found: list[list[float]] = [[] for _ in wanted]
        made, lengths = self.of(wanted.shape[1])
        fits = wanted.isfinite().all(dim=1) & wanted.any(dim=1)
        if not len(made) or not fits.any():
            return found
        wanted = wanted.nan_to_num(0.0, 0.0, 0.0)
        own = wanted.norm(dim=1).clamp(min=1e-300)
        alike = made / lengths.clamp(min=1e-300)[:, None]
        ends = torch.stack([wanted.amin(dim=1), wanted.amax(dim=1)], dim=1) / own[:, None]
        fits &= ((ends[:, None] - alike[:, [0, -1]]).abs().amax(dim=2) <= self.close).any(dim=1)
        if not fits.any():  # the least and the greatest say so already
            return found
        wanted = wanted.sort(dim=1).values
        gaps = (alike[None] - (wanted / own[:, None])[:, None]).abs().amax(dim=2)
        close = (gaps <= self.close) & fits[:, None] & (lengths > 0)
        for row, number in torch.nonzero(close).tolist():
            factor = round(float(lengths[number] / own[row]), 12)
            found[row] += [factor] * (factor not in found[row])
        return found
