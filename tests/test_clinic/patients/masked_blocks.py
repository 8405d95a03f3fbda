"""Blocks with masks, in which more is wrong than a search tries, or nothing that it knows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patients.blocks import block
from patients.decoders import CAUSAL, PADDED, PostDecoder, decoder
from patients.wirings import TWO

HIDDEN = -1e9


class Weighs(nn.Module):
    """Four layers, and a mask that a method turns into scores."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h, self.ask, self.offer = h, nn.Linear(e, e), nn.Linear(e, 2 * e)
        self.last = nn.Linear(e, e)

    def hide(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, HIDDEN)

    def forward(self, x: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
        heads = (t.unflatten(-1, (self.h, -1)).transpose(1, 2)
                 for t in (self.ask(x), *self.offer(other).chunk(2, dim=-1)))  # fmt: skip
        q, k, v = heads
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else self.hide(scores, mask)
        return self.last((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class FillsWithLittle(Weighs):
    def hide(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)


class RootedNorm(nn.Module):
    """A norm of n - 1 numbers, with eps beside the root."""

    def __init__(self, e: int):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))

    def forward(self, x):
        deviation = x.std(dim=-1, keepdim=True) + 1e-6
        return self.gain * (x - x.mean(dim=-1, keepdim=True)) / deviation + self.shift


class Layered(nn.Module):
    """Post-norm; forward(x, mask)."""

    kind: type[nn.Module] = Weighs

    def __init__(self, e: int, h: int):
        super().__init__()
        self.attention = self.kind(e, h)
        self.norm_1, self.norm_2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.wide, self.narrow, self.bend = nn.Linear(e, 2 * e), nn.Linear(2 * e, e), nn.ReLU()

    def feed(self, x):
        return self.narrow(self.bend(self.wide(x)))

    def forward(self, x, mask=None):
        x = self.norm_1(x + self.attention(x, x, mask))
        return self.norm_2(x + self.feed(x))


class Crossing(Layered):
    """With a context; forward(x, context, mask, context_mask)."""

    norm: type[nn.Module] = nn.LayerNorm

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.cross, self.norm_3 = self.kind(e, h), nn.LayerNorm(e)
        self.norm_1, self.norm_2, self.norm_3 = (self.norm(e) for _ in range(3))

    def forward(self, x, context, mask=None, context_mask=None):
        x = self.norm_1(x + self.attention(x, x, mask))
        x = self.norm_2(x + self.cross(x, context, context_mask))
        return self.norm_3(x + self.feed(x))


class Straight:
    """What bends the feed-forward is built, and never called."""

    def feed(self, x):
        return self.narrow(self.wide(x))


block("mask-tiny", "activation-missing", mask=CAUSAL, sizes=TWO)(
    type("TinyAndStraight", (Straight, Layered), {"kind": FillsWithLittle})
)


@decoder("mask-tiny", "residual-missing", "activation-missing", mask=CAUSAL, sizes=TWO)
class TinyAndLost(Straight, Crossing):
    """Nothing is ever added to the stream."""

    kind = FillsWithLittle

    def forward(self, x, context, mask=None, context_mask=None):
        x = self.norm_1(self.attention(x, x, mask))
        x = self.norm_2(self.cross(x, context, context_mask))
        return self.norm_3(self.feed(x))


@decoder(mask=CAUSAL, context_mask=PADDED, sizes=TWO)
class TwoKinds(Crossing):
    """Which layers are whose, no name says."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.one, self.two = self.attention, self.cross
        self.attention = self.cross = None

    def forward(self, x, context, mask=None, context_mask=None):
        x = self.norm_1(x + self.one(x, x, mask))
        x = self.norm_2(x + self.two(x, context, context_mask))
        return self.norm_3(x + self.feed(x))


@decoder("norm-bessel", "part-unused", "part-shared", mask=CAUSAL, sizes=TWO)
class OneForBoth(Crossing):
    """The context's attention is built; the other one asks the context, too."""

    norm = RootedNorm

    def forward(self, x, context, mask=None, context_mask=None):
        y = self.norm_1(x)
        x = x + self.attention(y, y, mask)
        x = x + self.attention(self.norm_2(x), context, context_mask)
        return x + self.feed(self.norm_3(x))


@decoder(
    "context-mask-dropped", "norm-shared", mask=CAUSAL[None, None], context_mask=PADDED, sizes=TWO
)
class HearsThePadding(PostDecoder):
    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norms[0](x + self.look(x, tgt_mask))
        x = self.norms[0](x + self.listen(x, memory, None))
        return self.norms[2](x + self.feed(x))


@block(
    "mask-inverted",
    mask=torch.arange(5)[None, None, None] < 2,
    sizes=TWO,
    call=lambda module, x, mask: module(x, ~mask),
)
class SaysWhatIsHidden(Layered):
    """Its callers say what is hidden, and it hides the rest; there is no call without a mask."""


@decoder("mask-inverted", "norm-bessel", "activation-missing", mask=CAUSAL, sizes=TWO)
class HidesThePast(Straight, Crossing):
    norm = RootedNorm

    def forward(self, x, context, mask=None, context_mask=None):
        hidden = None if mask is None else ~mask
        return super().forward(x, context, hidden, context_mask)


@block(
    "mask-inverted",
    causal=True,
    sizes=TWO,
    call=lambda module, x: module(x, torch.ones(x.shape[1], x.shape[1]).triu()),
)
class KeepsTheLater(Layered):
    """Its model makes the mask: triu, with the diagonal, where tril was meant."""


# ----------------------------------------------------- a mask that waits for another, and its name


@block(context=True, sizes=TWO)
class SequenceMaskBesidePadding(PostDecoder):
    """The mask of the sequence is read only where there is one of padding, too."""

    def forward(self, x, memory, src_mask=None, tgt_padding_mask=None, tgt_sequence_mask=None):
        mask = None
        if tgt_padding_mask is not None:
            mask = ~tgt_padding_mask[:, None, None, :]
            if tgt_sequence_mask is not None:
                mask = mask & tgt_sequence_mask.bool()
        return super().forward(x, memory, src_mask, mask)


@block("mask-dropped", context=True, sizes=TWO)
class SequenceMaskUnread(PostDecoder):
    """A sequence is no encoder's, though its letters hold enc."""

    def forward(self, x, memory, src_mask=None, tgt_sequence_mask=None):
        return super().forward(x, memory, src_mask, None)
