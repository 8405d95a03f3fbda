"""Blocks whose parts are right or wrong one by one, and whose wiring is wrong beside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Views, ViewsScaledByEmbed, ViewsSoftmaxQuery
from patients.blocks import BLOCK_SIZES, PostNorm, PreNorm, block
from patients.crossing import Apart
from patients.decoders import PostDecoder

TWO, ONE = BLOCK_SIZES[:2], BLOCK_SIZES[:1]


# ------------------------------------------------------------------------------ right ones


@block(sizes=TWO)
class NormedByFunctions(nn.Module):
    """No norm is a module, and no feed-forward either."""

    def __init__(self, e, h):
        super().__init__()
        self.attention = Views(e, h)
        self.up, self.down = nn.Linear(e, 3 * e), nn.Linear(3 * e, e)

    def forward(self, x):
        x = x + self.attention(F.layer_norm(x, x.shape[-1:]))
        return x + self.down(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]))))


class Around(nn.Module):
    """What the annotated Transformer calls a sublayer connection, around a norm of its own."""

    def __init__(self, e, norm=nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(e), nn.Dropout(0.1)

    def forward(self, x, part):
        return x + self.dropout(part(self.norm(x)))


@block(sizes=TWO)
class Connected(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.attn, self.mlp = Views(e, h), nn.Sequential(
            nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e)
        )  # fmt: skip
        self.connections = nn.ModuleList([self.connection(e), self.connection(e)])

    def connection(self, e):
        return Around(e)

    def forward(self, x):
        x = self.connections[0](x, lambda t: self.attn(t))
        return self.connections[1](x, self.mlp)


# ---------------------------------------------------------------- a part that is never called


@block("part-unused", sizes=TWO)
class AttendsTwice(Connected):
    def forward(self, x):
        x = self.connections[0](x, self.attn)
        return self.connections[1](x, self.attn)


@block("part-unused", sizes=TWO)
class NormsInVain(PreNorm):
    """The result of a third norm is thrown away."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_3 = nn.LayerNorm(e)

    def forward(self, x):
        x = super().forward(x)
        self.ln_3(x)
        return x


@block("norm-missing", sizes=TWO)
class NormsTooLate(PreNorm):
    """The first norm's result is thrown away."""

    def forward(self, x):
        self.ln_1(x)
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


@block("part-unused", context=True, sizes=ONE)
class NeverFeeds(PostDecoder):
    """A decoder's block that asks twice, and feeds nothing forward."""

    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        return self.norms[1](x + self.listen(x, memory, None))


# --------------------------------------------------------------------- norms in a row, or mixed


@block("norm-doubled", sizes=TWO)
class NormsInside(Connected):
    """The connection normalises, and the part does, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.inner = nn.ModuleList([nn.LayerNorm(e), nn.LayerNorm(e)])

    def forward(self, x):
        x = self.connections[0](x, lambda t: self.attn(self.inner[0](t)))
        return self.connections[1](x, lambda t: self.mlp(self.inner[1](t)))


@block("norm-doubled", sizes=TWO)
class NormsTwice(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_0 = nn.LayerNorm(e)

    def forward(self, x):
        x = x + self.attention(self.ln_1(self.ln_0(x)))
        return x + self.ffn(self.ln_2(x))


@block("norm-mixed", sizes=TWO)
class PreThenPost(PreNorm):
    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return self.ln_2(x + self.ffn(x))


@block("norm-mixed", sizes=TWO)
class PostThenPre(PostNorm):
    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return x + self.feed(self.norms[1](x))


# ----------------------------------------------------------------------------- norms by hand


class ByHand(nn.Module):
    def __init__(self, e, eps=1e-6):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))
        self.eps = eps

    def forward(self, x):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.gamma * self.made(x, mean, variance) + self.beta


class WithoutItsNumbers(ByHand):
    def made(self, x, mean, variance):
        return (mean - variance) / torch.sqrt(variance + self.eps)


class ByVariance(ByHand):
    def made(self, x, mean, variance):
        return (x - mean) / (variance + self.eps)


class ByLength(ByHand):
    def made(self, x, mean, variance):
        return (x - mean) / ((x - mean).square().sum(-1, keepdim=True) + self.eps).sqrt()


@block("norm-formula", sizes=TWO)
class NormsNothing(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([WithoutItsNumbers(e), WithoutItsNumbers(e)])


@block("norm-formula", sizes=TWO)
class NormsByVariance(PreNorm):
    def norm(self, e):
        return ByVariance(e)


@block("norm-formula", "scale-embed", sizes=ONE)
class NormsByLengthAndScales(Connected):
    """One of two norms only."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn, self.connections[1] = ViewsScaledByEmbed(e, h), Around(e, ByLength)


class OverTokens(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))

    def forward(self, x):
        mean, variance = x.mean((1, 2), keepdim=True), x.var((1, 2), keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * self.scale + self.shift


@block("norm-axis", sizes=TWO)
class NormsOverTokens(PreNorm):
    def norm(self, e):
        return OverTokens(e)


@block("norm-axis", "residual-from-norm", size=(3, 6), sizes=TWO)
class NormsWholeTexts(PreNorm):
    """A weight for each token: it takes no other number of them."""

    def norm(self, e):
        return nn.LayerNorm([6, e])

    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        x = self.ln_2(x)
        return x + self.ffn(x)


# ----------------------------------------------------------------------- bends too few, too many


@block("activation-missing", sizes=TWO)
class FeedsStraight(PreNorm):
    def bend(self):
        return nn.Dropout(0.1)


@block("activation-missing", sizes=TWO)
class FeedsStraightByHand(PostNorm):
    def feed(self, x):
        return self.w_2(self.w_1(x))


@block("activation-last", sizes=TWO)
class BendsLast(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn.append(nn.GELU())


@block("activation-last", "residual-from-norm", sizes=TWO)
class BendsLastAddsNorm(nn.Module):
    """The feed-forward is as wide as its tokens."""

    def __init__(self, e, h):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.mhsa = Views(e, h)
        layers = nn.Linear(e, e), nn.GELU(), nn.Linear(e, e), nn.GELU()
        self.mlp = nn.Sequential(*layers, nn.Dropout(0.1))

    def forward(self, x):
        x = self.norm1(x)
        x = x + self.mhsa(x)
        x = self.norm2(x)
        return x + self.mlp(x)


@block("activation-last", sizes=TWO)
class BendsLastByHand(Connected):
    def forward(self, x):
        x = self.connections[0](x, self.attn)
        return self.connections[1](x, lambda t: self.mlp(t).relu())


# ----------------------------------------------------------------------------- many at once


@block("scale-embed", "norm-shared", "norm-bessel", "activation-last", sizes=ONE)
class FourAtOnce(Connected):
    """One connection for both parts."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn = ViewsScaledByEmbed(e, h)

    def connection(self, e):
        return Around(e, ByDeviation)

    def forward(self, x):
        x = self.connections[0](x, self.attn)
        return self.connections[0](x, lambda t: self.mlp(t).relu())


class ByDeviation(ByHand):
    def forward(self, x):
        std = x.std(-1, keepdim=True)
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (std + self.eps) + self.beta


@block("softmax-query", "residual-missing", "norm-formula", sizes=ONE)
class ThreeAtOnce(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsSoftmaxQuery(e, h)

    def norm(self, e):
        return ByLength(e)

    def forward(self, x):
        x = self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


# ------------------------------------------------------------- blocks that only ask a context


@block(context=True, sizes=TWO)
class OnlyAsks(nn.Module):
    """No attention to its own tokens."""

    def __init__(self, e, h):
        super().__init__()
        self.norm1, self.norm2, self.norm_context = (nn.LayerNorm(e) for _ in range(3))
        self.cross_attn = Apart(e, h)
        self.mlp = nn.Sequential(nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))

    def forward(self, x, context):
        context = self.norm_context(context)
        x = x + self.cross_attn(self.norm1(x), context, context)[0]
        return x + self.mlp(self.norm2(x))


@block("residual-from-norm", "scale-embed", context=True, sizes=ONE)
class OnlyAsksAddsNorm(OnlyAsks):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross_attn = ApartScaledByEmbed(e, h)

    def forward(self, x, context):
        x = self.norm1(x)
        x = x + self.cross_attn(x, context, context)[0]
        return x + self.mlp(self.norm2(x))


class ApartScaledByEmbed(Apart):
    def root(self):
        return self.fc.in_features**0.5


class ShortNamed(nn.Module):
    """GPT's layer: w and b, (in, out)."""

    def __init__(self, wide, e):
        super().__init__()
        self.w, self.b = (
            nn.Parameter(torch.randn(e, wide) / e**0.5),
            nn.Parameter(torch.randn(wide)),
        )

    def forward(self, x):
        return (x.reshape(-1, x.shape[-1]) @ self.w + self.b).view(*x.shape[:-1], -1)


@block(sizes=ONE)
class ShortNamedFeed(PostNorm):
    """GPT of 2018: its GELU is a formula."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.w_1, self.w_2 = ShortNamed(4 * e, e), ShortNamed(e, 4 * e)

    def feed(self, x):
        t = self.w_1(x)
        return self.w_2(0.5 * t * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (t + 0.044715 * t**3))))
