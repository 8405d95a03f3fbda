"""Attention that takes a mask and was handed none: what it would do with one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Views
from patients.bank import attention
from patients.crossing import Apart as Crossed
from patients.masks import (
    LoopsMaskAfter,
    LoopsMaskQuery,
    LoopsMaskWeak,
    LoopsOtherSample,
    ViewsMaskAfter,
    ViewsMaskMultiply,
    ViewsMaskQuery,
    ViewsMaskTiny,
    ViewsMaskWeak,
    ViewsOtherSample,
)

SOME, CROSSED = ((24, 4), (64, 8)), ((24, 4),)

for _id, _makes in {
    "mask-weak": (ViewsMaskWeak, LoopsMaskWeak),
    "mask-after-softmax": (ViewsMaskAfter, LoopsMaskAfter),
    "mask-query-axis": (ViewsMaskQuery, LoopsMaskQuery),
    "mask-other-sample": (ViewsOtherSample, LoopsOtherSample),
}.items():
    for _make in _makes:
        attention(_id, sizes=SOME)(_make)
attention("mask-tiny", sizes=SOME, also=(("mask-multiply",),))(ViewsMaskTiny)
attention("mask-multiply", sizes=SOME, also=(("mask-tiny",),))(ViewsMaskMultiply)


class Apart(nn.Module):
    """Queries, keys and values are handed over apart, and a mask."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(e, e) for _ in range(4))

    def forward(self, q, k, v, mask=None):
        q, k, v = self.w_q(q), self.w_k(k), self.w_v(v)
        q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = self.masked(scores, mask)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@attention("mask-tiny", sizes=SOME, also=(("mask-multiply",),))
class FillsByPadding(Apart):
    """(b, n), 1 = a token."""

    def masked(self, scores, mask):
        return scores.masked_fill(mask[:, None, None] == 0, 1e-9)


@attention("mask-weak", sizes=SOME)
class WeakForPadding(Views):
    """(b, n) numbers, of which a mask that is added is made: -10 where -10000 was meant."""

    def forward(self, x, attention_mask=None):
        mask = None if attention_mask is None else (1.0 - attention_mask[:, None, None]) * -10.0
        return super().forward(x, mask)

    def weigh(self, scores, mask):
        return (scores if mask is None else scores + mask).softmax(-1)


@attention("mask-other-sample", sizes=CROSSED, context=True)
class RepeatsTheBatch(nn.Module):
    """Rows are b * h, and the masks of the context are repeated as a whole."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.to_q, self.to_kv = h, nn.Linear(e, e), nn.Linear(e, 2 * e)
        self.to_out = nn.Linear(e, e)

    def forward(self, x, context, mask=None):
        k, v = self.to_kv(context).chunk(2, -1)
        q, k, v = (t.unflatten(2, (self.h, -1)) for t in (self.to_q(x), k, v))
        q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat(self.h, 1)[:, None], -1e9)
        mixed = scores.softmax(-1) @ v
        return self.to_out(mixed.unflatten(0, (len(x), -1)).transpose(1, 2).flatten(2))


# ------------------------------------------------------------------ right ones, of every convention


@attention(sizes=SOME)
class FillsByPaddingRightly(Apart):
    def masked(self, scores, mask):
        return scores.masked_fill(mask[:, None, None] == 0, -1e9)


@attention(sizes=SOME)
class FillsWhereTrue(Apart):
    """True = blocked, one row for each query."""

    def masked(self, scores, mask):
        return scores.masked_fill(mask.unsqueeze(1), -torch.inf)


@attention(sizes=SOME)
class AddsWhatItGets(Views):
    """A mask that is added, as the models of transformers do."""

    def weigh(self, scores, mask):
        return (scores if mask is None else scores + mask).softmax(-1)


@attention(sizes=SOME)
class AddsMuch(WeakForPadding):
    def forward(self, x, attention_mask=None):
        mask = None if attention_mask is None else (1.0 - attention_mask[:, None, None]) * -1e4
        return Views.forward(self, x, mask)


@attention(sizes=SOME)
class HandsItToTheKernel(Views):
    """Causal by itself; a mask takes the place of that."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.proj(self.join(mixed))


@attention(sizes=SOME)
class MasksQueriesToo(Apart):
    """The rows of padding are masked as its columns are: they see all keys alike."""

    def masked(self, scores, mask):
        both = mask[:, None, :, None] * mask[:, None, None, :]
        return scores.masked_fill(both == 0, -1e9)


@attention(sizes=SOME)
class Decays(Views):
    """What is called a mask are factors of the weights, which decay by distance."""

    def forward(self, x, decay_mask=None):
        return super().forward(x, decay_mask)

    def weigh(self, scores, mask):
        return scores.softmax(-1) if mask is None else scores.softmax(-1) * mask


attention(sizes=CROSSED, context=True)(Crossed)
