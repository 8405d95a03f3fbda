"""Mistakes that are named because every step of a module is looked at, and many of them at once."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import (
    Loops,
    LoopsSplit,
    LoopsUnscaled,
    Views,
    ViewsMerge,
    ViewsNoOut,
    ViewsScaledByEmbed,
    ViewsSoftmaxQuery,
)
from patients.bank import SIZES, attention
from patients.blocks import PreNorm, block


@attention("sum-apart", sizes=SIZES[:4])
class MixedApart(Views):
    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        weights = self.weigh(q @ k.transpose(-2, -1) * self.factor(x.shape[-1]), mask)
        return self.proj(torch.einsum("bhij,bhkd->bihd", weights, v).flatten(2))


@attention("sum-apart")
class ComparedApart(Loops):
    def score(self, q, k):
        return torch.einsum("bid,bje->bij", q, k) / self.width**0.5


@attention("sum-apart", sizes=((12, 1),), size=(2, 8))
class ChannelsApart(nn.Module):
    """Channels are compared over all places, and what is found weighs nothing."""

    def __init__(self, e, h):
        super().__init__()
        self.query, self.key, self.out = (nn.Linear(e, e) for _ in range(3))
        self.norm = nn.LayerNorm(e)

    def forward(self, x):
        q, k = self.norm(self.query(x)), self.key(x).tanh()
        weights = torch.einsum("n s c, n s m -> n c m", q, k).softmax(dim=2)
        return self.out(torch.einsum("n s c, n c m -> n s c", x, weights))


@attention("sum-apart", sizes=SIZES[:2])
class BentAndMixedApart(Loops):
    """What is done to the scores has no name."""

    def forward(self, x):
        q, k, v = (torch.stack(self.cut(t)) for t in self.projected(x))
        scores = q @ k.mT / self.width**0.5
        weights = (scores + 0.1 * scores.square()).softmax(dim=-1)
        mixed = torch.einsum("hbij,hbkd->hbid", weights, v.sin())
        return self.unifyheads(self.concatenate(list(mixed)))


@attention("softmax-axes")
class OverAllPairs(Views):
    def weigh(self, scores, mask):
        return scores.flatten(2).softmax(dim=-1).view_as(scores)


@attention("softmax-axes")
class OverAllScores(Loops):
    def normalise(self, all_scores, allow):
        made = torch.stack(all_scores).exp()
        return list(made / made.sum(dim=(0, 2, 3), keepdim=True))


@attention("merge-axes", sizes=SIZES[:4])
class TimeFirst(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.transpose(1, 2).reshape(n, b, h * d).transpose(0, 1)


@attention("merge-axes", sizes=SIZES[:4])
class TokensThenHeads(Loops):
    def concatenate(self, mixed):
        h, (b, n, d) = len(mixed), mixed[0].shape
        return torch.stack(mixed).permute(2, 0, 1, 3).reshape(b, n, h * d)


@attention(
    *("scale-embed", "softmax-query", "merge-no-transpose", "out-missing"),
    sizes=SIZES[:2],
    out_proj=True,
)
class FourMistakes(ViewsNoOut, ViewsScaledByEmbed, ViewsSoftmaxQuery, ViewsMerge):
    pass


@attention("split-no-transpose", "scale-missing", "softmax-axes", "merge-axes", sizes=SIZES[:1])
class FourInLoops(LoopsSplit, LoopsUnscaled, OverAllScores, TokensThenHeads):
    pass


@attention("scale-other", "merge-axes", sizes=SIZES[:2])
class ByTheNumberOfSamples(TimeFirst):
    def heads(self, x):
        q, k, v = super().heads(x)
        return q * ((self.qkv.in_features // self.h) / len(x)) ** 0.5, k, v


@attention("heads-not-split", "softmax-query", sizes=SIZES[:2])
class OneHeadOverQueries(nn.Module):
    def __init__(self, e: int, h: int):
        super().__init__()
        self.scale = (e // h) ** -0.5
        self.query, self.key, self.value = (nn.Linear(e, e) for _ in range(3))
        self.out = nn.Linear(e, e)

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT * self.scale).softmax(dim=1)
        return self.out(weights @ self.value(x))


@attention("split-no-transpose", "scale-embed", sizes=SIZES[:2])
class ValuesViewed(ViewsScaledByEmbed):
    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k, v.transpose(1, 2).reshape(v.shape)


# ------------------------------------------------------------------- the same inside of a block


class MixedAndSplit(Views):
    """Nobody is compared, and a head holds pieces of several tokens."""

    def heads(self, x):
        return (t.reshape(len(x), self.h, x.shape[1], -1) for t in self.qkv(x).chunk(3, dim=-1))

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        weights = self.weigh(q @ k.transpose(-2, -1) * self.factor(x.shape[-1]), mask)
        return self.proj(torch.einsum("bhij,bhkd->bihd", weights, v).flatten(2))


@block("sum-apart", sizes=SIZES[:2])
class MixesApart(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = MixedApart(e, h)


@block("split-no-transpose", "sum-apart", "norm-shared", sizes=SIZES[:1])
class MixesTwiceApart(PreNorm):
    """It takes a mask, which makes no difference to sums of weights."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = MixedAndSplit(e, h)

    def forward(self, x, mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.ffn(self.ln_1(x))


@attention(
    *("mask-dropped", "merge-no-transpose", "part-unused"),
    mask=torch.ones(5, 5).tril().bool(),
    sizes=SIZES[:2],
)
class MergesBesideALayer(ViewsMerge):
    """Two output layers, one of which nothing calls, and a mask that ends here."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.other = nn.Linear(e, e)

    def forward(self, x, mask=None):
        return super().forward(x)
