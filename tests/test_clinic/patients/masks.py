"""Attention with masks, right and wrong."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import Tensor

from patients.attention import Loops, LoopsDropoutInVain, Views
from patients.bank import SIZES, attention
from patients.partly import Apart
from utils.masking import causal_mask, padding_mask

SOME = SIZES[:3]

# ----------------------------------------------------------------------------------------- masks


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


for _kind in (padding, triangle, ragged):
    attention(mask=_kind)(type(f"Views_{_kind.__name__}", (Views,), {}))
    attention(mask=_kind)(type(f"Loops_{_kind.__name__}", (Loops,), {}))


def hidden(seed: int) -> Tensor:
    """What no token may see: True blocks."""
    return ~padding(seed)


@attention(mask=hidden)
class LoopsBlocked(Loops):
    def forward(self, x, blocked=None):
        return super().forward(x, None if blocked is None else ~blocked)


@attention("softmax-query", mask=triangle)
class ViewsAllowed(Views):
    def forward(self, x, drop_path=None, allowed=None):
        return super().forward(x, allowed)

    def weigh(self, scores, mask):
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        return scores.softmax(dim=-2)


@attention("dropout-unused", mask=padding, call=lambda module, x, mask: module(x, mask.bool()))
class LoopsDropoutBesideAMask(LoopsDropoutInVain):
    """It does not run without a mask."""


@attention("mask-inverted", mask=padding)
@attention("mask-inverted", mask=ragged, also=(("mask-inverted", "mask-query-axis"),))
class ViewsMaskInverted(Views):
    def weigh(self, scores, mask):
        mask = mask if mask is None else ~mask
        return super().weigh(scores, mask) if mask is not None else scores.softmax(-1)


@attention("mask-inverted", mask=padding)
class LoopsMaskInverted(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(self.flat(allow), -math.inf)


@attention("mask-multiply", mask=padding, also=(("mask-tiny",),))
class ViewsMaskMultiply(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores * mask).softmax(dim=-1)


@attention("mask-multiply", mask=ragged, also=(("mask-tiny",),))
class LoopsMaskMultiply(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else torch.where(self.flat(allow), scores, 0.0)


@attention("mask-tiny", mask=padding, also=(("mask-multiply",),))
class ViewsMaskTiny(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e-12)).softmax(-1)


@attention("mask-tiny", mask=triangle, also=(("mask-multiply",),))
class LoopsMaskTiny(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else torch.where(self.flat(allow), scores, 1e-10)


@attention("mask-weak", mask=padding)
class ViewsMaskWeak(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -10)).softmax(-1)


@attention("mask-weak", mask=ragged)
class LoopsMaskWeak(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores + (1.0 - self.flat(allow).to(scores)) * -5.0


@attention("mask-added", mask=padding)
class ViewsMaskAdded(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + mask).softmax(dim=-1)


@attention("mask-added", mask=ragged)
class LoopsMaskAdded(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.add(self.flat(allow).to(scores.dtype))


@attention("mask-after-softmax", mask=padding)
class ViewsMaskAfter(Views):
    def weigh(self, scores, mask):
        weights = scores.softmax(dim=-1)
        return weights if mask is None else weights * mask


@attention("mask-after-softmax", mask=triangle)
class LoopsMaskAfter(Loops):
    def normalise(self, all_scores, allow):
        weights = [s.softmax(-1) for s in all_scores]
        return weights if allow is None else [w.masked_fill(~self.flat(allow), 0) for w in weights]


@attention("mask-query-axis", mask=padding)
class ViewsMaskQuery(Views):
    def weigh(self, scores, mask):
        return super().weigh(scores, None if mask is None else mask.transpose(-2, -1))


@attention("mask-query-axis", mask=ragged)
class LoopsMaskQuery(Loops):
    def flat(self, allow):
        return rearrange(allow, "b 1 j i -> b i j")


@attention("mask-dropped", mask=padding)
class ViewsMaskDropped(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-1)


@attention("mask-dropped", mask=triangle, remark=True, sizes=SOME)
class ViewsMaskTurnedOff(Views):
    """Who builds it said so."""

    def __init__(self, e, h, use_mask=False):
        super().__init__(e, h)
        self.use_mask = use_mask

    def weigh(self, scores, mask):
        return super().weigh(scores, mask if self.use_mask else None)


@attention("mask-dropped", mask=triangle, remark=True, sizes=SOME)
class ViewsOfEncoder(Views):
    """So it does by another name, which is kept under yet another."""

    def __init__(self, e, h, is_decoder=False):
        super().__init__(e, h)
        self.hides = is_decoder

    def weigh(self, scores, mask):
        return super().weigh(scores, mask if self.hides else None)


@attention("mask-dropped", mask=triangle, sizes=SOME)
class ViewsMaskTurnedOn(ViewsMaskTurnedOff):
    """And nothing asks."""

    def weigh(self, scores, mask):
        return super().weigh(scores, None)


@attention("mask-dropped", mask=ragged)
class LoopsMaskDropped(Loops):
    def block(self, scores, allow, head):
        return scores


@attention(mask=padding, sizes=SOME)
class ViewsOfKept(Views):
    """Who is padding gets zeros in the end."""

    def forward(self, x, mask=None):
        made = super().forward(x, mask)
        return made if mask is None else made * mask[:, 0, 0, :, None]


@attention("mask-dropped", mask=padding, sizes=SOME, also=(("mask-query-axis",),))
class ViewsOfKeptMaskDropped(ViewsOfKept):
    """And is seen by the others."""

    def weigh(self, scores, mask):
        return scores.softmax(dim=-1)


class ViewsOfPairs(Views):
    """Padding sees nothing, either."""

    low = -1e9

    def weigh(self, scores, mask):
        pairs = True if mask is None else mask & mask.mT
        return torch.where(torch.as_tensor(pairs), scores, self.low).softmax(dim=-1)


attention(mask=padding, sizes=SOME)(ViewsOfPairs)


@attention("mask-row-empty", mask=padding, sizes=SOME)
class ViewsOfPairsNan(ViewsOfPairs):
    """And its rows are no numbers."""

    low = -torch.inf


@attention("mask-multiply", mask=padding, sizes=SOME, also=(("mask-tiny",),))
class ViewsOfKeysZeroed(Views):
    """Keys of padding become 0, and their scores with them."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        k = k if mask is None else k * mask.mT
        weights = (q @ k.mT * self.factor(x.shape[-1])).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


@attention("mask-row-empty", mask=empty_row)
class ViewsRowNan(Views):
    pass


@attention("mask-row-empty", mask=empty_row)
class LoopsRowEven(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(~self.flat(allow), -1e9 if
               scores.dtype != torch.half else -1e4)  # fmt: skip


@attention("mask-fp16", mask=padding, remark=True)
class ViewsMaskHalf(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(dim=-1)


@attention("mask-fp16", mask=ragged, remark=True)
class LoopsMaskHalf(Loops):
    def block(self, scores, allow, head):
        return (
            scores if allow is None else scores.masked_fill_(self.flat(allow).logical_not(), -1e20)
        )


SEVERAL = ((24, 4), (64, 8), (15, 3), (30, 10))


@attention("mask-other-sample", mask=padding, sizes=SEVERAL)
class ViewsOtherSample(Views):
    """Rows are b * h, and the whole batch of masks is repeated."""

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        flat = scores.flatten(0, 1).masked_fill(~mask[:, 0].repeat(self.h, 1, 1), -math.inf)
        return flat.softmax(-1).view_as(scores)


@attention("mask-other-sample", mask=ragged, sizes=SEVERAL[:2])
class LoopsOtherSample(Loops):
    """Rows are h * b, and each mask is repeated where it stands."""

    def block(self, scores, allow, head):
        if allow is None:
            return scores
        rows = self.flat(allow).repeat_interleave(self.num_heads, dim=0)
        mine = rows[head * len(scores) : (head + 1) * len(scores)]
        return scores.masked_fill(~mine, -math.inf)


class Causal(Views):
    """Draws its own mask."""

    diagonal = 0

    def weigh(self, scores, mask):
        n = scores.shape[-1]
        return super().weigh(scores, torch.ones(n, n, dtype=torch.bool).tril(self.diagonal))


class CausalLoops(Loops):
    def block(self, scores, allow, head):
        i = torch.arange(scores.shape[1])
        return scores.masked_fill(self.later(i[:, None], i[None, :]), -math.inf)

    def later(self, i, j):
        return j > i


attention(causal=True)(Causal)
attention()(type("CausalUnsaid", (Causal,), {}))
attention(causal=True)(CausalLoops)
attention("mask-off-by-one")(type("CausalWithoutItself", (Causal,), {"diagonal": -1}))
attention("mask-off-by-one", causal=True)(type("CausalOnePast", (Causal,), {"diagonal": 1}))


@attention("mask-off-by-one", causal=True)
class CausalLoopsOff(CausalLoops):
    def later(self, i, j):
        return j >= i


attention("mask-not-causal", causal=True)(type("ViewsNotCausal", (Views,), {}))
attention("mask-not-causal", causal=True)(type("LoopsNotCausal", (Loops,), {}))


@attention("mask-inverted", causal=True)
class CausalUpsideDown(CausalLoops):
    def later(self, i, j):
        return j <= i


@attention("mask-inverted", causal=True)
class CausalKeepsTheLater(CausalLoops):
    """triu where tril was meant, the diagonal in it."""

    def later(self, i, j):
        return j < i


# -------------------------------------------- masks beside what no form has: read off their own run


class Steps(Apart):
    """Apart, with a mask."""

    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, -1e9)

    def weights(self, scores, e):
        scores = self.scaled(scores, e)
        return self.softened(scores if self.mask is None else self.hide(scores, self.mask))

    def scaled(self, scores, e):
        return scores * (e // self.heads) ** -0.5

    def softened(self, scores):
        return scores.softmax(-1)

    def forward(self, x, mask=None):
        self.mask = mask
        return super().forward(x)


@attention("mask-tiny", "softmax-query", mask=triangle, sizes=SOME)
@attention("mask-tiny", "softmax-query", mask=padding, sizes=SOME)
class BentAndTiny(Steps):
    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)

    def softened(self, scores):
        return (scores + 0.1 * scores.sin()).softmax(-2)


@attention("mask-inverted", mask=padding, sizes=SOME)
@attention("mask-inverted", mask=ragged, sizes=SOME)
class BentAndInverted(Steps):
    def hide(self, scores, mask):
        return (scores + 0.1 * scores.sin()).masked_fill(mask == 1, -1e9)


@attention("softmax-query", mask=triangle, sizes=SOME)
class BentAndNotJudged(Steps):
    """It has no mask, but what bends the scores could be one."""

    def hide(self, scores, mask):
        return scores + 0.1 * scores.sin()

    def softened(self, scores):
        return scores.softmax(-2)


class BareKeys(Loops):
    """Its keys are the tokens: nothing calls the layer that is there for them."""

    def projected(self, x):
        return self.toqueries(x), x, self.tovalues(x)


@attention("mask-tiny", "projection-unused", mask=padding, sizes=SOME)
class BareKeysTiny(BareKeys):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(~self.flat(allow), 1e-9)


@attention("softmax-query", "projection-unused", mask=padding, sizes=SOME)
class BareKeysColumns(BareKeys):
    """What is filled in for all that ask is nothing to a softmax over them."""

    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(~self.flat(allow), -1e9)

    def normalise(self, all_scores, allow):
        return [self.block(s, allow, i).softmax(1) for i, s in enumerate(all_scores)]


@attention("mask-inverted", "softmax-query", mask=triangle, sizes=SOME)
class SampleBySample(Steps):
    """Its output layer is called for each sample anew."""

    def forward(self, x, mask=None):
        self.mask = mask if mask is None else mask[0]
        return torch.cat([self.one(own[None]) for own in x])

    def one(self, x):
        q, k, v = (self.cut(layer(x)) for layer in (self.q, self.k, self.v))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))

    def hide(self, scores, mask):
        return (scores + 0.1 * scores.sin()).masked_fill(mask == 1, -1e9)

    def softened(self, scores):
        return scores.softmax(-2)


@attention("softmax-batch", causal=True, sizes=SIZES[:4])
class CleanedSoftmaxBatch(Views):
    """What is hidden in every sample gives NaN, which becomes 0."""

    axis = 0

    def weigh(self, scores, mask):
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return scores.masked_fill(hidden, -torch.inf).softmax(self.axis).nan_to_num(0.0)


@attention("softmax-heads", causal=True, sizes=SIZES[:4])
class CleanedSoftmaxHeads(CleanedSoftmaxBatch):
    axis = 1
