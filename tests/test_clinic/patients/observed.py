"""Mistakes that an account of the steps shows, whatever the layers before and behind them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Loops, Views
from patients.bank import SIZES, attention
from patients.relatives import LinearBySoftmax
from patients.unknown import unknown

SOME = SIZES[:3]


# ------------------------------------------------------------------------ layers that do nothing


@attention("projection-unused", sizes=SOME)
class LoopsOnTokens(Loops):
    def projected(self, tokens):
        super().projected(tokens)
        return tokens, tokens, tokens


class Kept(nn.Module):
    """What the layers make is kept, and what came in is viewed as heads."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(e, e) for _ in range(4))

    def forward(self, x):
        self.q, self.k, self.v = self.W_q(x), self.W_k(x), self.W_v(x)
        q, k, v = (t.view(*x.shape[:2], self.h, -1).transpose(1, 2) for t in self.given(x))
        return self.W_o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def given(self, x):
        return x, x, x


attention("projection-unused", sizes=SOME)(Kept)


@attention("projection-unused", sizes=SOME)
class KeptQueries(Kept):
    def given(self, x):
        return self.q, x, self.v


@attention("attention-unused", sizes=SOME)
class ViewsOfTokens(Views):
    """The output layer gets the tokens."""

    def forward(self, x):
        super().forward(x)
        return self.proj(x)


@attention("attention-unused", sizes=SOME)
class LoopsForgotten(Loops):
    def concatenate(self, mixed):
        return torch.cat(self.cut(self.tovalues(self.seen)), dim=2)

    def projected(self, tokens):
        self.seen = tokens
        return super().projected(tokens)


# ------------------------------------------------------------------------------ ALiBi upside down


def slopes(h):
    return 2.0 ** (-8.0 * torch.arange(1, h + 1) / h)


@attention("alibi-inverted", sizes=SOME)
class ViewsFurtherIsMore(Views):
    def weigh(self, scores, mask):
        i = torch.arange(scores.shape[-1])
        return super().weigh(scores + slopes(self.h)[:, None, None] * (i[:, None] - i), mask)


@attention("alibi-inverted", sizes=SOME)
class LoopsFurtherIsMore(Loops):
    def normalise(self, all_scores, allow):
        i = torch.arange(all_scores[0].shape[-1])
        away = (i - i[:, None]).abs()
        with_slopes = zip(all_scores, slopes(self.num_heads), strict=True)
        return super().normalise([s + m * away for s, m in with_slopes], allow)


# ------------------------------------------------------------------- what masks are filled with


@attention("mask-positive", sizes=SOME, causal=True)
class ViewsFilledWithMuch(Views):
    def weigh(self, scores, mask):
        return scores.masked_fill(torch.ones_like(scores).tril() == 0, 1e9).softmax(dim=-1)


@attention("mask-positive", sizes=SOME, causal=True)
class LoopsFilledWithInfinity(Loops):
    def block(self, scores, allow, head):
        return torch.where(torch.ones_like(scores).tril() == 0, 1e30, scores)


@attention("mask-weak", sizes=SOME, causal=True)
class LoopsFilledWithOne(Loops):
    def block(self, scores, allow, head):
        return scores.masked_fill(torch.ones_like(scores).tril() == 0, 1.0)


# ----------------------------------------------------- layers that no reading of the weights knows


class Latent(nn.Module):
    """Queries, keys and values of narrow latents, with a norm in between."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h
        self.down_q, self.down_kv = nn.Linear(e, 12), nn.Linear(e, 10)
        self.up_q, self.up_k, self.up_v = nn.Linear(12, e), nn.Linear(10, e), nn.Linear(10, e)
        self.norm_q, self.norm_kv = nn.LayerNorm(12), nn.LayerNorm(10)
        self.out = nn.Linear(e, e)

    def heads(self, t):
        return t.unflatten(2, (self.h, self.d)).transpose(1, 2)

    def weigh(self, scores):
        return (scores * self.d**-0.5).softmax(dim=-1)

    def join(self, mixed):
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x):
        c = self.norm_kv(self.down_kv(x))
        q = self.heads(self.up_q(self.norm_q(self.down_q(x))))
        k, v = self.heads(self.up_k(c)), self.heads(self.up_v(c))
        return self.out(self.join(self.weigh(q @ k.mT) @ v))


@attention("heads-as-tokens", sizes=SOME)
class LatentHeads(Latent):
    def heads(self, t):
        return t.unflatten(2, (self.h, self.d))

    def join(self, mixed):
        return mixed.flatten(2)


@attention("mask-not-causal", sizes=SOME, causal=True)
class LatentOpen(Latent):
    def weigh(self, scores):
        scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
        return super().weigh(scores)


@attention("split-no-transpose", "scale-embed", "softmax-heads", "merge-no-transpose", sizes=SOME)
class LatentOfFour(Latent):
    def heads(self, t):
        return t.reshape(len(t), self.h, -1, self.d)

    def weigh(self, scores):
        return (scores / self.out.in_features**0.5).softmax(dim=1)

    def join(self, mixed):
        return mixed.reshape(len(mixed), -1, self.out.in_features)


# ------------------------------------------------------------- split, mixed and joined otherwise


@attention("split-no-transpose", sizes=SOME)
class LatentInAnotherOrder(Latent):
    """(b, n, e) is viewed as (b, d, n, h): a vector holds numbers of several tokens."""

    def heads(self, t):
        return t.reshape(len(t), self.d, -1, self.h).permute(0, 3, 2, 1)


@attention("softmax-heads", "mask-not-causal", sizes=SOME, causal=True)
class LatentByPowers(Latent):
    def weigh(self, scores):
        powers = (scores * self.d**-0.5 - scores.amax()).exp()
        return powers / powers.sum(dim=1, keepdim=True)


@attention("scale-other", "batch-first", sizes=SOME)
class LatentOfSamples(Latent):
    """Tokens of other samples are weighed."""

    def weigh(self, scores):
        return (scores * 0.3141).softmax(dim=-1)

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


# --------------------------------------------------------------------------- linear, and mixed up


@attention("linear-operands", sizes=SOME)
class LinearOfQueriesAndKeys(LinearBySoftmax):
    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = q.softmax(dim=-1) * self.scale, k.softmax(dim=-2)
        context = torch.einsum("bhnd,bhnm->bhdm", q, k)
        mixed = torch.einsum("bhdm,bhnd->bhnm", context, v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


@attention("linear-operands", sizes=SOME)
class LinearOfKeysAndQueries(Loops):
    def forward(self, tokens):
        made = []
        for q, k, v in zip(*(self.cut(t) for t in self.projected(tokens)), strict=True):
            made.append(v @ (q.softmax(dim=2).mT @ F.softmax(k, dim=1)))
        return self.unifyheads(self.concatenate(made))


@unknown
class LatentSquared(Latent):
    """Weights that nothing names."""

    def weigh(self, scores):
        return super().weigh(scores) ** 2


@unknown
class LatentOfNeighbours(Latent):
    """Its keys are those of the token before, too."""

    def heads(self, t):
        return super().heads(t + t.roll(1, dims=1))


# --------------------------------------------------------------- heads, and the layers they share


@attention("head-shared-projection", sizes=SOME)
class OneLayerForAll(nn.Module):
    """Splits first; one layer makes queries, keys and values of every head."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.qkv_proj, self.fc_out = nn.Linear(e // h, 3 * e // h), nn.Linear(e, e)

    def forward(self, x):
        q, k, v = self.qkv_proj(x.unflatten(2, (self.h, -1)).transpose(1, 2)).chunk(3, dim=-1)
        return self.fc_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@attention("out-unused", "groups-order", sizes=SIZES[:2])
class HeadsByTurns(nn.Module):
    """A layer for each head of queries, two heads of keys by turns, and W is never called."""

    def __init__(self, e, h):
        super().__init__()
        self.Q, self.K, self.V = (
            nn.ModuleList(nn.Linear(e, e // h) for _ in range(count)) for count in (h, 2, 2)
        )
        self.W = nn.Linear(e, e)

    def forward(self, x):
        heads = []
        for number, query in enumerate(self.Q):
            q, k, v = query(x), self.K[number % 2](x), self.V[number % 2](x)
            heads.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return torch.cat(heads, dim=-1)


@attention("heads-not-split", sizes=SIZES[:2])
class OneWideHead(Kept):
    """Scaled for its own width."""

    def forward(self, x):
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        return self.W_o((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


@attention("heads-not-split", sizes=SIZES[:2], context=True)
class OneWideHeadAcross(OneWideHead):
    def forward(self, x, context):
        q, k, v = self.W_q(x), self.W_k(context), self.W_v(context)
        return self.W_o((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)


@attention("heads-not-split", "mask-not-causal", sizes=SIZES[:2], causal=True)
class OneWideHeadOfTwoLayers(Loops):
    """Scaled for a narrow head, and not causal."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.first = nn.Linear(e, 2 * e)
        self.toqueries = nn.Linear(2 * e, e)

    def forward(self, x):
        q, k, v = self.toqueries(self.first(x).relu()), self.tokeys(x), self.tovalues(x)
        return self.unifyheads((q @ k.mT / self.width**0.5).softmax(-1) @ v)


@attention("scale-embed", sizes=SOME)
class GainOfEachNumber(Loops):
    """Its layers multiply by a bias."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gain = nn.Parameter(torch.randn(e))

    def projected(self, tokens):
        return [t * self.gain for t in super().projected(tokens)]

    def score(self, q, k):
        return q @ k.mT / self.tokeys.in_features**0.5
