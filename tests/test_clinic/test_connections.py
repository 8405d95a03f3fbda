"""Blocks that are connected in a way of their own, on purpose or not: words, and no name."""

from __future__ import annotations

import pytest
import torch
from patients.attention import Views
from patients.blocks import PostNorm, PreNorm
from patients.connections import Conditioned, TwoSided
from patients.windowed_blocks import IMAGE, NotPutBack, NotRolledBack
from torch import nn

from attention_clinic import diagnose_block


class DeepNorm(PostNorm):
    """Eight layers deep, its factor is 2."""

    factor = 2.0

    def forward(self, x):
        x = self.norms[0](self.factor * x + self.self_attn(x))
        return self.norms[1](self.factor * x + self.feed(x))


class DeeperNorm(DeepNorm):
    factor = 2.5


class LongSkip(PreNorm):
    """What enters is added at the end, too."""

    def forward(self, x):
        return x + super().forward(x)


class LastNorm(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_3 = nn.LayerNorm(e)

    def forward(self, x):
        return self.ln_3(super().forward(x))


class NormedQueries(PreNorm):
    """Queries of the norm; keys and values of the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = TwoSided(e, h)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x), x)
        return x + self.ffn(self.ln_2(x))


class TwoStreams(PostNorm):
    """ResiDual: one stream is normalised after each sum, another one at the end alone."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.last = nn.LayerNorm(e)

    def forward(self, x):
        a = self.self_attn(x)
        y = self.norms[0](x + a)
        f = self.feed(y)
        return self.norms[1](y + f) + self.last(x + a + f)


class TwoAttentions(PreNorm):
    """Over time, then over space."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.before, self.ln_0 = Views(e, h), nn.LayerNorm(e)

    def forward(self, x):
        return super().forward(x + self.before(self.ln_0(x)))


class BendsFirst(PreNorm):
    """An activation stands before the layers, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn.insert(0, nn.ReLU())


SAID = {
    DeepNorm: "behind the self-attention, x is added once more",
    DeeperNorm: "2.5 times x is added, where x was expected",
    LongSkip: "behind the feed-forward, x is added once more",
    LastNorm: "the feed-forward has norms before it and behind the sum",
    NormedQueries: "the self-attention asks x, with queries of what ln_1 returned",
    TwoStreams: "",
    TwoAttentions: "it runs self-attention, self-attention, feed-forward",
    BendsFirst: "the feed-forward bends what it reads",
    Conditioned: "a condition scales and shifts its norms",
}


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_what_may_be_meant_so_gets_words_and_no_name(make: type) -> None:
    torch.manual_seed(5)
    report = diagnose_block(make(24, 4), 4, effort=0.25)
    assert not report.healthy and not report.explanations
    assert any(SAID[make] in said for said in report.failing) or not SAID[make]


class ScaledByContext(PreNorm):
    """The mean of the context scales what a norm returns: it is heard, though nothing asks it."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x) * (1 + context.mean((0, 1))))


def test_a_context_that_scales_a_norm_is_not_ignored() -> None:
    torch.manual_seed(0)
    assert "cross-ignored" not in diagnose_block(ScaledByContext(24, 4), 4, context=True).ids


@pytest.mark.parametrize("wrong", (NotPutBack, NotRolledBack))
def test_windows_that_are_not_put_back_are_neither_right_nor_named(wrong: type) -> None:
    torch.manual_seed(0)
    report = diagnose_block(wrong(24, 4), 4, size=IMAGE)
    assert not report.healthy and not report.ids and not report.variants
