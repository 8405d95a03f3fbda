"""Blocks whose norms are written by hand after another formula, mostly beside other mistakes."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Views
from patients.blocks import PostNorm, PreNorm, block
from patients.wirings import ONE, TWO, Around, ByHand, Connected


class ByMean(ByHand):
    """One weight and one bias for all numbers; what is called deviation is the mean."""

    def __init__(self, e):
        super().__init__(1)

    def made(self, x, mean, variance):
        return (x - mean) / (mean + self.eps)


class ByRoot(ByHand):
    def made(self, x, mean, variance):
        return (x - mean) / torch.sqrt(x.std(-1, keepdim=True) + self.eps)


class LayerNormByAbsolutes(ByHand):
    """Its name says what it is to be, and no formula of those that are listed is it."""

    def made(self, x, mean, variance):
        return (x - mean) / ((x - mean).abs().sum(-1, keepdim=True) + self.eps)


class PlusOne(ByHand):
    """Its weight is counted from 1."""

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], 1 + self.gamma, self.beta)


@block("norm-formula", "activation-missing", sizes=TWO)
class DividesByTheMean(Connected):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.mlp = nn.Sequential(nn.Linear(e, 2 * e), nn.Dropout(0.1), nn.Linear(2 * e, e))

    def connection(self, e):
        return Around(e, ByMean)


@block("norm-formula", "residual-from-norm", sizes=TWO)
class RootOfTheDeviation(PreNorm):
    def norm(self, e):
        return ByRoot(e)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        x = self.ln_2(x)
        return x + self.ffn(x)


@block("norm-formula", "norm-shared", sizes=TWO)
class DividesByAbsolutes(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([LayerNormByAbsolutes(e)] * 2)


@block(sizes=TWO)
class CountsWeightsFromOne(PreNorm):
    def norm(self, e):
        return PlusOne(e)


class AddsAndNorms(ByRoot):
    """The sum is made inside of the norm."""

    def forward(self, x, part):
        return super().forward(x + part)


@block("norm-formula", sizes=TWO)
class NormsSums(nn.Module):
    norm = AddsAndNorms

    def __init__(self, e, h):
        super().__init__()
        self.attention, self.up, self.down = Views(e, h), nn.Linear(e, 2 * e), nn.Linear(2 * e, e)
        self.first, self.second = self.norm(e), self.norm(e)

    def forward(self, x):
        x = self.first(x, self.attention(x))
        return self.second(x, self.down(self.up(x).relu()))


class AddsAndNormsDeviations(AddsAndNorms):
    """The root is that of n - 1 numbers."""

    def made(self, x, mean, variance):
        return (x - mean) / (x.std(-1, keepdim=True) + self.eps)


@block("norm-bessel", "activation-missing", sizes=ONE)
class NormsSumsOfStraightParts(NormsSums):
    norm = AddsAndNormsDeviations

    def forward(self, x):
        x = self.first(x, self.attention(x))
        return self.second(x, self.down(self.up(x)))


class BeginsWithANorm(nn.Sequential):
    def __init__(self, e):
        super().__init__(nn.LayerNorm(e), nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))


@block("norm-doubled", sizes=TWO)
class NormsWhatANormReturned(PostNorm):
    """A feed-forward of another model, which begins with a norm of its own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        del self.w_1, self.w_2
        self.mlp = BeginsWithANorm(e)

    def feed(self, x):
        return self.mlp(x)


@block("norm-doubled", "norm-shared", sizes=ONE)
class SharesNormsAndDoublesThem(nn.Module):
    """Two layers between which two norms are shared."""

    def __init__(self, e, h):
        super().__init__()
        self.first, self.second = nn.LayerNorm(e), nn.LayerNorm(e)
        made = [nn.ModuleList([Views(e, h), BeginsWithANorm(e)]) for _ in range(2)]
        self.layers = nn.ModuleList(made)

    def forward(self, x):
        for attention, feed in self.layers:
            x = self.first(x + attention(x))
            x = self.second(x + feed(x))
        return x
