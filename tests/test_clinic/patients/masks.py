"""Attention with masks, correct and buggy."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from patients.bank import SIZES, attention, changed
from patients.healthy import Loops, Views
from utils.masking import causal_mask, padding_mask

SOME = SIZES[:2]
HIDDEN = -torch.inf

# ------------------------------------------------------------------------ masks, by their seed


def padding(seed: int) -> Tensor:
    return padding_mask(torch.tensor([4, 6]), 6)


def triangle(seed: int) -> Tensor:
    return causal_mask(6)[None, None]


def ragged(seed: int) -> Tensor:
    """Three samples, each of whose queries sees other keys."""
    allow = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(seed)) < 0.5
    return allow | torch.eye(5, dtype=torch.bool)


def empty_row(seed: int) -> Tensor:
    return padding_mask(torch.tensor([0, 3]), 5)


for _base in (Views, Loops):
    for _mask in (padding, triangle, ragged):
        attention(mask=_mask, sizes=SOME)(type(f"{_base.__name__}_{_mask.__name__}", (_base,), {}))

views, loops = (partial(changed, base, sizes=SOME) for base in (Views, Loops))


@attention(mask=lambda seed: ~padding(seed))
class LoopsBlocked(Loops):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, None if key_padding_mask is None else ~key_padding_mask)


# ------------------------------------------------------------------- what masked scores get


@attention("mask-multiply", mask=padding, sizes=SOME)
class ViewsMaskMultiply(Views):
    def hide(self, scores, mask):
        return scores * mask


def _after(self, s, m):
    return [t.softmax(-1) * (1 if m is None else m[:, 0]) for t in s]


views("mask-tiny", mask=padding, hide=lambda self, s, m: s.masked_fill(m == 0, -1e-12))
views("mask-added", mask=padding, hide=lambda self, s, m: s + m)
views(
    "mask-after-softmax",
    mask=padding,
    weigh=lambda self, s, m: s.softmax(-1) * (1 if m is None else m),
)
loops("mask-multiply", mask=ragged, block=lambda self, s, m: torch.where(m, s, 0.0))
loops("mask-tiny", mask=padding, block=lambda self, s, m: s + 1e-9 * ~m)
loops("mask-added", mask=ragged, block=lambda self, s, m: s.add(m.to(s.dtype)))
loops("mask-after-softmax", mask=triangle, weigh=_after)

# ------------------------------------------------------------------------- which keys are seen


@attention("mask-inverted", mask=ragged, sizes=SOME)
@attention("mask-inverted", mask=padding)
class ViewsMaskInverted(Views):
    def hide(self, scores, mask):
        return scores.masked_fill(mask, HIDDEN)


views("mask-query-axis", mask=padding, hide=lambda self, s, m: Views.hide(self, s, m.mT))
views("mask-dropped", mask=padding, hide=lambda self, s, m: s)
loops("mask-inverted", mask=padding, block=lambda self, s, m: s.masked_fill(m, HIDDEN))
loops("mask-query-axis", mask=ragged, block=lambda self, s, m: torch.where(m.mT, s, HIDDEN))
loops("mask-dropped", mask=ragged, block=lambda self, s, m: s)


class Causal(Views):
    """Makes its own mask."""

    diagonal = 0

    def weigh(self, scores, mask):
        return super().weigh(scores, torch.ones_like(scores).tril(self.diagonal).bool())


class CausalLoops(Loops):
    def normalize(self, all_scores):
        i = torch.arange(all_scores[0].shape[1])
        later = self.later(i[:, None], i[None, :])
        return [F.softmax(s.masked_fill(later, HIDDEN), dim=-1) for s in all_scores]

    def later(self, i, j):
        return j > i


attention(causal=True)(Causal)
attention(sizes=SOME)(Causal)
attention(causal=True)(CausalLoops)


@attention("mask-off-by-one")
class CausalWithoutItself(Causal):
    diagonal = -1


@attention("mask-not-causal", causal=True)
class NotCausal(Views):
    """Without a mask of its own."""


changed(Causal, "mask-off-by-one", causal=True, sizes=SOME, diagonal=1)
changed(CausalLoops, "mask-off-by-one", causal=True, sizes=SOME, later=lambda self, i, j: j >= i)
changed(CausalLoops, "mask-inverted", causal=True, sizes=SOME, later=lambda self, i, j: j <= i)
changed(CausalLoops, "mask-inverted", causal=True, sizes=SOME, later=lambda self, i, j: j < i)
changed(CausalLoops, "mask-not-causal", causal=True, sizes=SOME, later=lambda self, i, j: j < 0)

# ---------------------------------------------------------------- fully masked rows


@attention(mask=empty_row, sizes=SOME)
class EmptyRowsOfZeros(Views):
    def weigh(self, scores, mask):
        return super().weigh(scores, mask).nan_to_num(0.0)


@attention("mask-row-empty", mask=empty_row)
class RowsOfNan(Views):
    """A softmax of nothing but -inf is NaN."""


def _low(self, scores, allow):
    return scores.masked_fill(~allow, -1e9)


loops("mask-row-empty", mask=empty_row, block=_low)

# -------------------------------------------------------------------------------------- windows


@attention(variants=("window",), sizes=SOME)
class Neighbours(Views):
    def weigh(self, scores, mask):
        return super().weigh(scores, torch.ones_like(scores).triu(-2).tril(2).bool())
