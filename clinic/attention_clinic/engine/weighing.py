"""The scores that a module weighs, in no order: a form that gives others need not be followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine import fused
from attention_clinic.engine.modes import Scores

HIDDEN = -1e4  # below it a score is masked
LOOKED_AT = 64  # scores of a reading that are looked for
LEAST = 0.1  # of them that must be found: a mask may have hidden the others


class WholeScores(Scores):
    """Write down what every softmax gets, the fused kernel's own included."""

    def of_kernel(self, given: dict[str, Any]) -> Tensor:
        """Return the scores that the fused kernel weighs, masked."""
        scores = given["query"] @ fused.shared(given)[0].mT * fused.scale(given)
        return fused.masked(scores, given)


class Weighed:
    """The numbers that a module gave to a softmax over pairs of tokens.

    Args:
        run: calls the module once.
        sizes: how many tokens ask, and how many are asked.
        close: the largest relative difference that counts as equal.

    Attributes:
        numbers: what was given, sorted; none where each row was shifted to begin at 0.
        shapes: of the tensors that they come from.
    """

    def __init__(self, run: Callable[[], object], sizes: tuple[int, int], close: float) -> None:
        with WholeScores() as scores:
            run()
        heard = [t for t in scores.heard if _of_pairs(t.shape, sizes)]
        self.shapes = [t.shape for t in heard]
        found = [t.flatten().double() for t in heard if not _shifted(t)]
        numbers = torch.cat(found) if found else torch.empty(0, dtype=torch.float64)
        self.numbers = numbers[numbers.isfinite() & (numbers > HIDDEN)].sort().values
        self.ends = F.pad(self.numbers, (1, 0), value=-torch.inf)
        self.ends = F.pad(self.ends, (0, 1), value=torch.inf)
        self.close = close * (1 + (self.numbers.abs().max().item() if len(self.numbers) else 0.0))

    def may_be(self, scores: Tensor) -> bool:
        """Say whether some of these scores may be what the module weighed.

        Where no softmax was heard, they may be.

        Args:
            scores: of each reading, (r, b, h, i, j).
        """
        if not len(self.numbers):
            return True
        flat = scores.flatten(1)
        some = torch.linspace(0, flat.shape[1] - 1, min(LOOKED_AT, flat.shape[1])).long()
        looked = flat[:, some].double()
        after = torch.searchsorted(self.ends, looked).clamp(1, len(self.ends) - 1)
        gaps = torch.minimum(self.ends[after] - looked, looked - self.ends[after - 1])
        near = (gaps <= self.close).sum(dim=1)
        return int(near.max()) >= LEAST * len(some)


def hides_all(scores: Tensor) -> bool:
    """Say whether all that is weighed is hidden, or the same for all who are asked."""
    if not scores.is_floating_point() or scores.shape[-1] < 2:
        return False
    scores = scores.detach().clamp(min=HIDDEN)
    return bool((scores == scores[..., :1]).all())


def _shifted(t: Tensor) -> bool:
    """Say whether the largest number of each row was taken away, as a stable softmax does."""
    return not t.amax(dim=-1).any()


def _of_pairs(shape: torch.Size, sizes: tuple[int, int]) -> bool:
    """Say whether a tensor has an axis for those who ask, and another for those who are asked."""
    left = list(shape)
    for size in sizes:
        if size not in left:
            return False
        left.remove(size)
    return True
