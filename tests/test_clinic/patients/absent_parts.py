"""Blocks in which a part is never called, or called once more for its shape alone."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Views, ViewsScaledByEmbed
from patients.bank import attention
from patients.blocks import PostNorm, PreNorm, block
from patients.connections import AddsAndNorms
from patients.decoders import PostDecoder, PreDecoder
from patients.masked_blocks import RootedNorm
from patients.wirings import ONE, TWO


@block("part-unused", context=True, sizes=TWO)
class DeafToTheContext(PostDecoder):
    """The tokens are added to themselves, where the cross-attention belongs."""

    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        x = self.norms[1](x + x)
        return self.norms[2](x + self.feed(x))


@block("part-unused", context=True, sizes=TWO)
class OnlyNormed(PostDecoder):
    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        x = self.norms[1](x)
        return self.norms[2](x + self.feed(x))


@block("part-unused", context=True, sizes=ONE)
class NormAdded(PreDecoder):
    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        x = x + self.ln_2(x)
        return x + self.ffn(self.ln_3(x))


@block("part-unused", sizes=TWO)
class AddedToItself(PreNorm):
    def forward(self, x):
        x = x + x
        return x + self.ffn(self.ln_2(x))


@block(sizes=TWO)
class LooksAtTheShape(PostNorm):
    """The attention is called once more, and nothing is done with what it returns."""

    def forward(self, x):
        if self.self_attn(x).shape != x.shape:
            raise ValueError("the attention changes the width")
        return super().forward(x)


@block("norm-shared", sizes=TWO)
class LooksAndShares(PostNorm):
    def forward(self, x):
        if self.self_attn(x).shape != x.shape:
            raise ValueError("the attention changes the width")
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[0](x + self.feed(x))


@block("residual-again", sizes=ONE)
class LooksAndAddsTwice(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = AddsAndNorms(e, h)

    def forward(self, x):
        assert self.attention(x).shape == x.shape
        x = self.ln_1(x + self.attention(x))
        return self.ln_2(x + self.ffn(x))


@block("residual-from-norm", sizes=TWO)
class AddsItsNorms(PreDecoder):
    """A context is an option, and its norm rests with its attention."""

    def forward(self, x, context=None):
        x = self.ln_1(x)
        x = x + self.attention(x)
        if context is not None:
            x = x + self.cross(self.ln_2(x), context)
        x = self.ln_3(x)
        return x + self.ffn(x)


# ----------------------------------------- what is never called stands beside another mistake


class Around(nn.Module):
    """A norm and a residual around a part, in one module; eps outside of the root, of n - 1."""

    def __init__(self, e):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))

    def forward(self, x, part):
        spread = x.std(-1, keepdim=True) + 1e-6
        return x + part(self.gain * (x - x.mean(-1, keepdim=True)) / spread + self.shift)


@block("norm-bessel", "part-unused", sizes=TWO)
class OneAroundTooMany(PreNorm):
    """The layer of a decoder that lost its middle."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.around = nn.ModuleList(Around(e) for _ in range(3))
        self.ln_1 = self.ln_2 = None

    def forward(self, x):
        return self.around[2](self.around[0](x, self.attention), self.ffn)


class Gains(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.low, self.high = nn.Parameter(torch.ones(e)), nn.Parameter(torch.ones(e))


@attention("scale-embed", "part-unused", sizes=ONE)
class ScaledAndIdle(ViewsScaledByEmbed):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.gains = Gains(e)


class Words(nn.Module):
    """Looks up words and places."""

    def __init__(self, e):
        super().__init__()
        self.of_words, self.of_places = nn.Embedding(40, e), nn.Embedding(16, e)

    def forward(self, ids):
        return self.of_words(ids) + self.of_places(torch.arange(ids.shape[1]))


@block("residual-from-norm", "part-unused", sizes=TWO)
class FromTheNormWithWords(PreNorm):
    """The tokens are made elsewhere: each layer builds their embedding once more."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.words = Words(e)

    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


@block("residual-missing", "part-unused", sizes=TWO)
class LostWithPlaces(PostNorm):
    """One table of places, which nobody reads, beside a sum that is missing."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Embedding(16, e)

    def forward(self, x):
        x = self.norms[0](self.self_attn(x))
        return self.norms[1](x + self.feed(x))


class Sandwich(PreNorm):
    """A norm before and a norm behind each part; a part may be left out between its two."""

    left_out = ""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm_behind_1, self.norm_behind_2 = self.norm(e), self.norm(e)

    def forward(self, x):
        y = self.ln_1(x)
        y = y if self.left_out == "attention" else self.attention(y)
        x = x + self.norm_behind_1(y)
        y = self.ln_2(x)
        y = y if self.left_out == "ffn" else self.ffn(y)
        return x + self.norm_behind_2(y)


for _part in ("attention", "ffn"):
    block("part-unused", sizes=TWO)(type(f"SandwichOfNo_{_part}", (Sandwich,), {"left_out": _part}))


@block("part-unused", sizes=TWO)
class AttendsOnly(nn.Module):
    """No feed-forward, as its name says; the norm of one is there."""

    def __init__(self, e, h):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.attention = Views(e, h)

    def forward(self, x):
        return x + self.attention(self.norm_1(x))


@block("scale-embed", "norm-bessel", sizes=TWO)
class AttendsOnlyWrongly(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.attention, self.norm = ViewsScaledByEmbed(e, h), RootedNorm(e)

    def forward(self, x):
        return self.norm(x + self.attention(x))
