"""Relatives of attention: heads that talk, sinks, linear attention; and mistakes beside them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from patients.attention import Loops, Views, ViewsMerge, ViewsScaledByEmbed
from patients.bank import attention
from patients.declared import Scored
from patients.unknown import unknown
from patients.variants import variant

TWO = ((24, 4), (15, 3))


@variant("relative-keys")
class Shaw(Views):
    """Distances up to 2, one table for all heads."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative_position = nn.Embedding(5, e // h)

    def vectors(self, n):
        ahead = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        return self.relative_position(ahead.clamp(-2, 2) + 2)

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        scores = q @ k.mT + einsum(q, self.vectors(x.shape[1]), "b h i d, i j d -> b h i j")
        weights = self.weigh(scores * self.factor(x.shape[-1]), mask)
        return self.proj(self.join(self.mix(weights, v)))

    def mix(self, weights, v):
        return weights @ v


@variant("relative-keys", ids=("scale-embed",), sizes=TWO[:1])
class ShawScaledByEmbed(Shaw):
    def factor(self, e):
        return e**-0.5


@variant("relative-keys", "relative-values")
class ShawValues(Shaw):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative_value = nn.Parameter(torch.randn(5, e // h))

    def mix(self, weights, v):
        n = v.shape[2]
        ahead = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        vectors = self.relative_value[2 - ahead.clamp(-2, 2)]
        return weights @ v + einsum(weights, vectors, "b h i j, i j d -> b h i d")


@variant("relative-keys", sizes=TWO)
class Music(Views):
    """A vector for each distance in the past and each head, skewed into its place."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.E = nn.Embedding(32, e)

    def forward(self, x):
        q, k, v = self.heads(x)
        n = x.shape[1]
        past = rearrange(self.E.weight[-n:], "n (h d) -> h n d", h=self.h)
        skewed = F.pad(q @ past.mT, (1, 0)).reshape(*q.shape[:2], n + 1, n)[:, :, 1:]
        scores = (q @ k.mT + skewed) * self.factor(x.shape[-1])
        weights = self.weigh(scores, torch.ones(n, n).tril().bool())
        return self.proj(self.join(weights @ v))


@variant("talking-heads", sizes=TWO)
class TalksTwice(Views):
    """CaiT: a layer over the heads before the softmax, one after it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj_l, self.proj_w = nn.Linear(h, h), nn.Linear(h, h)

    def weigh(self, scores, mask):
        scores = self.proj_l(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = super().weigh(scores, mask)
        return self.proj_w(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@variant("talking-heads", sizes=TWO)
class TalksBefore(Views):
    """A convolution one wide over the heads, and a mask after it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.pre_softmax = nn.Conv2d(h, h, 1, bias=False)

    def weigh(self, scores, mask):
        return super().weigh(self.pre_softmax(scores), mask)


@variant("talking-heads", sizes=TWO)
class TalksAfter(Views):
    """A bare matrix, multiplied from the other side."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.reattend = nn.Parameter(torch.randn(h, h))

    def weigh(self, scores, mask):
        return einsum(super().weigh(scores, mask), self.reattend, "b h i j, h g -> b g i j")


@variant("talking-heads", ids=("scale-embed",), sizes=TWO[:1])
class TalksScaledByEmbed(TalksBefore, ViewsScaledByEmbed):
    pass


@variant("rotary-halves", "grouped-queries", "attention-sink", sizes=((24, 4), (36, 6)))
class Sinks(Scored):
    """gpt-oss: one more column, thrown away after the softmax."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.sinks = nn.Parameter(torch.empty(h))

    def weigh(self, q, k):
        scores = q @ k.mT * self.factor()
        column = self.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


@variant("attention-sink", sizes=TWO)
class SinksByHand(Loops):
    """One more term in the sum that the exponentials are divided by; the past only."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.sink_logit = nn.Parameter(torch.zeros(h, 1))

    def normalise(self, all_scores, allow):
        n = all_scores[0].shape[-1]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        made = []
        for scores, sink in zip(all_scores, self.sink_logit, strict=True):
            powers = scores.masked_fill(future, -math.inf).exp()
            made.append(powers / (powers.sum(-1, keepdim=True) + sink.exp()))
        return made


@variant("attention-sink", ids=("merge-no-transpose",), sizes=TWO[:1])
class SinksMerged(ViewsMerge):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.sinks = nn.Parameter(torch.zeros(h))

    def weigh(self, scores, mask):
        column = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([column, scores], dim=-1).softmax(-1)[..., 1:]


@variant("linear-attention", sizes=TWO)
class LinearBySoftmax(nn.Module):
    """Efficient Attention: queries over their numbers, keys over the tokens."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def heads_of(self, x: Tensor) -> Tensor:
        return rearrange(self.to_qkv(x), "b n (k h d) -> k b h n d", k=3, h=self.heads)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = q.softmax(dim=-1) * self.scale, k.softmax(dim=-2)
        context = einsum(k, v, "b h n d, b h n m -> b h d m")
        mixed = einsum(context, q, "b h d m, b h n d -> b h n m")
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@variant("linear-attention", sizes=TWO)
class LinearByElu(LinearBySoftmax):
    """Katharopoulos and others: a positive map, and a sum to divide by."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        mixed = q @ (k.mT @ v) / ((q @ k.sum(2)[..., None]) + 1e-6)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@variant("linear-attention", ids=("merge-no-transpose",), sizes=TWO[:1])
class LinearMerged(LinearBySoftmax):
    def forward(self, x):
        q, k, v = self.heads_of(x)
        mixed = q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)
        return self.to_out(mixed.reshape(x.shape))


@unknown
class LinearOfAll(LinearBySoftmax):
    """Keys are weighed over their numbers, too: nothing sums to 1."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        mixed = q.softmax(dim=-1) @ (k.softmax(dim=-1).mT @ v)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


class Tabled(Views):
    """A number for each offset in an image of 3 x 3 tokens, and head; class tokens see none."""

    side = 3

    def __init__(self, e, h):
        super().__init__(e, h)
        self.table = nn.Parameter(torch.randn((2 * self.side - 1) ** 2, h))

    def number(self, y, x):
        return (y + self.side - 1) * (2 * self.side - 1) + x + self.side - 1

    def apart(self, one):
        return one[:, None] - one[None]

    def weigh(self, scores, mask):
        y, x = torch.arange(self.side**2) // self.side, torch.arange(self.side**2) % self.side
        bias = self.table[self.number(self.apart(y), self.apart(x))]
        return super().weigh(scores + bias.permute(2, 0, 1), mask)


NINE = {"size": (2, 9), "sizes": ((24, 4),)}
attention(**NINE)(Tabled)


@attention(sizes=TWO)
class ClippedInARow(Views):
    """Far offsets share a number on purpose; the table has as many as one of a square would."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative = nn.Embedding(25, h)

    def weigh(self, scores, mask):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).clamp(-2, 2) + 12
        return super().weigh(scores + self.relative(far).permute(2, 0, 1), mask)


class Sixteen(Tabled):
    """A square of 4 x 4, which is as long as a film of 2 x 2 x 4."""

    side = 4


SIXTEEN = {"size": (2, 16), "sizes": ((24, 4),)}
attention(**SIXTEEN)(Sixteen)


@attention("relative-index", **SIXTEEN)
class SixteenMixed(Sixteen):
    """One step down is one step to the right."""

    def number(self, y, x):
        return y + x + 2 * self.side - 2


@attention("relative-index", **SIXTEEN)
class RowsTooShort(Sixteen):
    """A row is as long as the window, not as all offsets across it."""

    def number(self, y, x):
        return (y + self.side - 1) * self.side + x + self.side - 1


@attention("relative-index", **NINE)
class RowsAndColumnsMixed(Tabled):
    """One step down is one step to the right: the rows were never multiplied."""

    def number(self, y, x):
        return y + x + 2 * self.side - 2


@attention("relative-index", "scale-missing", **NINE)
class SumsOfPlaces(Tabled):
    """The sum of two places, where their difference was meant; nobody scales."""

    def factor(self, e):
        return 1.0

    def number(self, y, x):
        return y * (2 * self.side - 1) + x

    def apart(self, one):
        return one[:, None] + one[None]


class Buckets(Views):
    """The buckets of T5's decoder, where nothing hides what comes later."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative = nn.Embedding(32, h)

    def bucket(self, ahead):
        behind = (-ahead).clamp(min=0)
        far = 16 + (behind.float().clamp(min=1) / 16).log() / math.log(8) * 16
        return torch.where(behind < 16, behind, far.long().clamp(max=31))

    def added(self, n):
        places = torch.arange(n)
        return self.relative(self.bucket(places[None] - places[:, None])).permute(2, 0, 1)


@attention("relative-index", sizes=TWO)
class OneSidedBuckets(Buckets):
    def forward(self, x):
        q, k, v = self.heads(x)
        scores = q @ k.mT * self.factor(x.shape[-1]) + self.added(x.shape[1])
        return self.proj(self.join(scores.softmax(-1) @ v))


@attention("relative-index", "scale-embed", sizes=TWO)
class AheadOnly(OneSidedBuckets):
    """What lies behind shares the number of the token itself."""

    def bucket(self, ahead):
        return ahead.clamp(0, 31)

    def factor(self, e):
        return e**-0.5


@attention(sizes=TWO)
class BucketsOfADecoder(Buckets):
    """Whoever calls it may hand it the mask that hides what comes later."""

    def weigh(self, scores, mask):
        return super().weigh(scores + self.added(scores.shape[-1]), mask)


@attention("relative-index", sizes=TWO)
class SumsInARow(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative = nn.Embedding(64, h)

    def weigh(self, scores, mask):
        places = torch.arange(scores.shape[-1])
        bias = self.relative(places[:, None] + places)
        return super().weigh(scores + bias.permute(2, 0, 1), mask)
