"""Blocks of two streams that return both, blocks that add places first, attentions of no layer."""

from __future__ import annotations

import math

import torch
from torch import nn

from patients.blocks import PostNorm, PreNorm, block
from patients.wirings import ONE, TWO


def first(module, x, context):
    return module(x, context)[0]


class Stream(nn.Module):
    """What one stream does: it asks the other one."""

    def __init__(self, e, h):
        super().__init__()
        self.attention = nn.MultiheadAttention(e, h, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))

    def ask(self, x, other):
        return self.norm1(x + self.attention(x, other, other)[0])

    def think(self, x):
        return self.norm2(x + self.ffn(x))


@block(sizes=TWO, context=True, call=first)
class OneAfterTheOther(nn.Module):
    """ecnu-Sun/CrossModalDeepAteention: the second stream asks what the first one made."""

    def __init__(self, e, h):
        super().__init__()
        self.one, self.two = self.stream(e, h), self.stream(e, h)

    def stream(self, e, h):
        return Stream(e, h)

    def forward(self, x, y):
        x = self.one.think(self.one.ask(x, y))
        return x, self.two.think(self.two.ask(y, x))


class NormOfBoth(Stream):
    def think(self, x):
        return self.norm1(x + self.ffn(x))


@block("norm-shared", sizes=ONE, context=True)
class StreamsInTurn(OneAfterTheOther):
    """Both streams ask, and then both think."""

    def stream(self, e, h):
        return NormOfBoth(e, h)

    def forward(self, x, context):
        one, two = self.one.ask(x, context), self.two.ask(context, x)
        return self.one.think(one), self.two.think(two)


def sines(n, e):
    angles = torch.arange(n)[:, None] * torch.exp(torch.arange(0, e, 2) * (-math.log(1e4) / e))
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :e]


@block(sizes=TWO)
class PlacesFirst(PreNorm):
    def forward(self, x):
        return super().forward(x + sines(*x.shape[1:]))


@block("norm-shared", sizes=ONE)
class PlacesFirstAndOneNorm(PostNorm):
    """Its tokens grow before the places are added, as in a model."""

    def forward(self, x):
        x = x * x.shape[-1] ** 0.5 + sines(*x.shape[1:])
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[0](x + self.feed(x))


class Unprojected(nn.Module):
    """It compares the tokens as they are."""

    def __init__(self, h):
        super().__init__()
        self.h = h

    def forward(self, x, context):
        q, k = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (x, context))
        return ((q @ k.mT * self.factor(q)).softmax(-1) @ k).transpose(1, 2).flatten(2)

    def factor(self, q):
        return q.shape[-1] ** -0.5


class UnprojectedByEmbed(Unprojected):
    def factor(self, q):
        return (self.h * q.shape[-1]) ** -0.5


@block("out-missing", sizes=TWO)
class ProjectsNothing(PreNorm):
    """RefrainYu/Transformer-Forecasting."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = Unprojected(h)

    def forward(self, x):
        read = self.ln_1(x)
        x = x + self.attention(read, read)
        return x + self.ffn(self.ln_2(x))


@block("out-missing", "scale-embed", sizes=ONE)
class ProjectsNothingAndScales(ProjectsNothing):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = UnprojectedByEmbed(h)


@block("mask-not-causal", "out-missing", sizes=ONE, context=True, causal=True)
class ProjectsNothingAcross(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.own, self.cross = Unprojected(h), Unprojected(h)
        self.norms = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))

    def forward(self, x, memory):
        x = self.norms[0](x + self.own(x, x))
        x = self.norms[1](x + self.cross(x, memory))
        return self.norms[2](x + self.ffn(x))


class NormOfAll(PostNorm):
    """A norm of what enters, and two more behind the parts."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.first = nn.LayerNorm(e)


@block(sizes=TWO)
class NormedAtFirst(NormOfAll):
    def forward(self, x):
        return super().forward(self.first(x))


@block("norm-shared", "residual-from-norm", sizes=ONE)
class NormedByTheSameNorm(NormOfAll):
    """Its first norm is that of the attention."""

    def forward(self, x):
        return super().forward(self.norms[0](x))
