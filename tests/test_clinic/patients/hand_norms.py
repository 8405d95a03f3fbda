"""Blocks whose norms are written by hand after another formula, mostly beside other mistakes."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Views, ViewsScaledByEmbed
from patients.blocks import PostNorm, PreNorm, block
from patients.modern_blocks import LlamaBlock, LlamaProduct
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


# --------------------------------------------------------------------- no formula of a norm


class RMSNorm(nn.Module):
    """As it is meant; others are made of it."""

    def __init__(self, e, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(e)), eps

    def rate(self, x):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * (x * self.rate(x))


class RMSNormAlone(RMSNorm):
    """The token itself is forgotten, and a bias, too."""

    def __init__(self, e):
        super().__init__(e)
        self.bias = nn.Parameter(torch.zeros(e))

    def forward(self, x):
        return self.weight * self.rate(x).expand_as(x)


class RMSNormAdds(RMSNorm):
    def forward(self, x):
        return self.weight * (x + self.rate(x))


class RMSNormOfSquares(RMSNorm):
    """The root is forgotten."""

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class RMSNormByAbsolutes(RMSNorm):
    def rate(self, x):
        return 1 / (x.abs().mean(-1, keepdim=True) + self.eps)


class RMSNormOfNumbers(RMSNorm):
    """The mean is forgotten: each number is divided by itself."""

    def rate(self, x):
        return torch.rsqrt(x.square() + self.eps)


class LayerNormWithDropout(ByHand):
    """The root of the deviation, and a dropout behind the norm."""

    def __init__(self, e):
        super().__init__(e)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        made = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.std(-1, keepdim=True) + self.eps)
        return self.drop(self.gamma * made + self.beta)


@block("norm-formula", "parameter-unused", sizes=ONE[:1])
class FeedsOneNumberOfEachToken(LlamaBlock):
    def norm(self, e):
        return RMSNormAlone(e)


@block("norm-formula", "gate-product", sizes=ONE)
class AddsWhatItMultipliesBy(LlamaProduct):
    def norm(self, e):
        return RMSNormAdds(e)


@block("norm-formula", "scale-embed", sizes=ONE)
class DividesBySquares(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)

    def norm(self, e):
        return RMSNormOfSquares(e)


@block("norm-formula", sizes=TWO)
class DividesByMeanAbsolutes(PreNorm):
    def norm(self, e):
        return RMSNormByAbsolutes(e)


@block("norm-formula", sizes=TWO)
class LeavesSigns(PreNorm):
    def norm(self, e):
        return RMSNormOfNumbers(e)


class OfThePart(PreNorm):
    def norm(self, e):
        return LayerNormWithDropout(e)

    def forward(self, x):
        x = x + self.ln_1(self.attention(x))
        return x + self.ln_2(self.ffn(x))


@block("norm-formula", "scale-embed", sizes=ONE)
class NormsPartsByHandAndDrops(OfThePart):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)


class LayerNormDropping(ByHand):
    def __init__(self, e):
        super().__init__(e)
        self.dropout = nn.Dropout(0.1)

    def made(self, x, mean, variance):
        return self.dropout((x - mean) / (variance + self.eps).sqrt())


@block(sizes=TWO)
class NormsByHandAndDrops(PreNorm):
    def norm(self, e):
        return LayerNormDropping(e)


class RMSNormWithGreatEps(RMSNorm):
    """Its eps stands in the code alone, and is none of those that are usual."""

    def rate(self, x):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.04)


class RMSNormInPart(RMSNorm):
    """What it divides by is that of some of its numbers: pRMSNorm."""

    def rate(self, x):
        return super().rate(x[..., : x.shape[-1] // 4])
