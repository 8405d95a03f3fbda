"""Masks that are joined, added or used late, or that tokens go through before they are attended."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Loops, Views
from patients.bank import SIZES, attention
from patients.masks import padding, triangle

SOME = SIZES[:2]


def past(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


# ------------------------------------------------------- a mask that is given, and a causal one


class Causal(Views):
    """It hides the future, and what is padding."""

    def weigh(self, scores, mask):
        allow = past(scores) if mask is None else self.joined(past(scores), mask)
        return scores.masked_fill(~allow, -torch.inf).softmax(-1)

    def joined(self, causal, mask):
        return causal & mask


attention(mask=padding, causal=True, sizes=SOME)(Causal)


@attention("mask-not-causal", mask=padding, causal=True, sizes=SOME)
class CausalOrPadded(Causal):
    def joined(self, causal, mask):
        return causal | mask


@attention("mask-not-causal", mask=padding, causal=True, sizes=SOME)
class CausalWithoutPadding(Causal):
    """The mask that is given takes the place of its own."""

    def joined(self, causal, mask):
        return mask


@attention("mask-not-causal", mask=padding, causal=True, sizes=SOME)
class LoopsCausalWithoutPadding(Loops):
    def block(self, scores, allow, head):
        seen = past(scores) if allow is None else self.flat(allow)
        return scores.masked_fill(~seen, -1e9)


# --------------------------------------------------------------- what is added, and after what


@attention("mask-positive", mask=padding, sizes=SOME, also=(("mask-inverted",),))
class AddsGreatNumbers(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + 1e9 * ~mask).softmax(-1)


@attention("mask-positive", causal=True, sizes=SOME, also=(("mask-inverted",),))
class TakesNegativeOnes(Views):
    def weigh(self, scores, mask):
        return (scores - torch.full_like(scores, -1e9).triu(1)).softmax(-1)


@attention("mask-after-softmax", mask=padding, sizes=SOME)
class FillsWeights(Views):
    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights.masked_fill(mask == 0, -1e9)


@attention("mask-after-softmax", mask=padding, sizes=SOME)
class AddsToWeights(Loops):
    def normalise(self, all_scores, allow):
        less = 0.0 if allow is None else -1e4 * (1 - self.flat(allow).double())
        return [scores.softmax(-1) + less for scores in all_scores]


# ------------------------------------------------------------------- what comes in is masked


class ZeroedTokens(Views):
    """Padding becomes zeros at once, and is hidden from the others, too."""

    hides = True

    def forward(self, x, mask=None):
        x = x if mask is None else x * mask[:, 0, 0, :, None]
        return super().forward(x, mask if self.hides else None)


attention(mask=padding, sizes=SOME)(ZeroedTokens)


@attention(mask=padding, sizes=SOME)
class FilledTokens(Loops):
    def forward(self, x, mask=None):
        x = x if mask is None else x.masked_fill(~mask[:, 0, 0, :, None], 0.5)
        return super().forward(x, mask)


@attention("mask-tiny", mask=padding, sizes=SOME, also=(("mask-multiply",),))
class ZeroedTokensTiny(ZeroedTokens):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -1e-9)).softmax(-1)


@attention(mask=triangle, sizes=SOME)
class DropsTheMask(Views):
    """Its dropout stands where there is a mask, only."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.2)

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        return self.drop(scores.masked_fill(~mask, -torch.inf).softmax(-1))


# ------------------------------------------------------- what the mask does has no name


@attention("softmax-missing", mask=padding, sizes=SOME)
class BareUnderTanh(Views):
    def weigh(self, scores, mask):
        return scores if mask is None else scores - (~mask * scores.tanh())
