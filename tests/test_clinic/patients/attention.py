"""Attention without a mask: bugs of scale, softmax, weighted sum, split and join of heads."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from patients.bank import SEVERAL, SIZES, attention, changed, derived
from patients.healthy import Loops, Views

TWO = SIZES[:2]
views, loops = partial(changed, Views), partial(changed, Loops)

# --------------------------------------------------------------------------------------- scale


@attention("scale-embed")
class ViewsScaledByEmbed(Views):
    def factor(self, e):
        return e**-0.5


@attention("scale-missing")
class ViewsUnscaled(Views):
    def factor(self, e):
        return 1.0


@attention("scale-unused")
class ViewsScaleUnused(ViewsUnscaled):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = (e // h) ** -0.5


def _with_root(self, e, h):
    Loops.__init__(self, e, h)
    self.temperature = math.sqrt(e // h)


def _by_length(self, q, k):
    return q @ k.mT / math.sqrt(k.shape[1])


def _scaled_again(self, all_scores):
    return [scores.softmax(dim=-1) / 2 for scores in all_scores]


views("scale-other", factor=lambda self, e: 0.2718)
views("scale-after-softmax", weigh=lambda self, s, m: s.softmax(-1) / 2)
loops("scale-embed", score=lambda self, q, k: (q / self.toqueries.in_features**0.5) @ k.mT)
loops("scale-missing", score=lambda self, q, k: torch.bmm(q, k.mT))
loops("scale-unused", __init__=_with_root, score=lambda self, q, k: q @ k.mT)
loops("scale-other", sizes=SIZES[::2], score=_by_length)
loops("scale-after-softmax", normalize=_scaled_again)

# ------------------------------------------------------------------------- softmax, weighted sum


@attention("softmax-query")
class ViewsSoftmaxQuery(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-2)


@attention("softmax-joint", sizes=SEVERAL)
class LoopsSoftmaxJoint(Loops):
    def normalize(self, all_scores):
        return list(torch.cat(all_scores, dim=2).softmax(dim=2).chunk(self.num_heads, dim=2))


def _by_hand(*axes):
    """Divide exponentials by their sums over these axes of (b, i, j)."""
    return lambda self, s: [t.exp() / t.exp().sum(dim=axes, keepdim=True) for t in s]


def _jointly(self, scores, mask):
    together = scores.transpose(1, 2)  # (b, i, h, j)
    return together.flatten(2).softmax(-1).view_as(together).transpose(1, 2)


def _of_rows(self, scores, mask):
    return nn.Softmax(dim=0)(scores.flatten(0, 1)).view_as(scores)


loops("softmax-batch", normalize=lambda self, s: [t.softmax(0) for t in s])
views("softmax-heads", sizes=SEVERAL, weigh=lambda self, s, m: F.softmax(s, dim=1))
views("softmax-missing", sizes=SEVERAL, weigh=lambda self, s, m: s)
views("mix-transposed", weigh=lambda self, s, m: s.softmax(dim=-1).transpose(2, 3))
loops("softmax-query", normalize=_by_hand(1))
loops("softmax-heads", sizes=SEVERAL, normalize=lambda self, s: list(torch.stack(s).softmax(0)))
views("softmax-batch", sizes=SEVERAL, weigh=_of_rows)
views("softmax-joint", sizes=SEVERAL, weigh=_jointly)
loops("softmax-missing", sizes=SEVERAL, normalize=lambda self, all_scores: all_scores)
loops("mix-transposed", normalize=lambda self, s: [t.softmax(2).permute(0, 2, 1) for t in s])


# ------------------------------------------------------------------------------ split and join


@attention("split-no-transpose", sizes=SEVERAL)
class ViewsSplit(Views):
    def heads(self, x):
        b, n, e = x.shape
        return tuple(t.reshape(b, self.h, n, e // self.h) for t in self.qkv(x).chunk(3, dim=-1))


@attention("heads-as-tokens", sizes=SEVERAL)
class HeadsMeet(Views):
    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, e // self.h).unbind(2)
        return self.proj(F.scaled_dot_product_attention(q, k, v).reshape(b, n, e))


@attention("heads-not-split", sizes=SEVERAL)
class NeverSplit(Loops):
    def cut(self, t):
        return [t]


@attention("batch-first")
class TorchNotBatchFirst(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(e, h)

    def forward(self, x):
        return self.attn(x, x, x)[0]


@attention("merge-no-transpose", sizes=SEVERAL)
class ViewsMerge(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.reshape(b, n, h * d)


@attention("merge-batch-head", sizes=SEVERAL)
class ViewsMergeBatch(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.transpose(0, 1).reshape(b, n, h * d)


@attention(variants=("class-attention",), sizes=SEVERAL)
class FirstTokenAttends(Views):
    def forward(self, x):
        q, k, v = self.heads(x)
        weights = self.weigh(q[:, :, :1] @ k.mT * self.factor(x.shape[-1]), None)
        return self.proj(self.join(weights @ v))


@attention("merge-axes", sizes=SEVERAL)
class TokensBeforeSamples(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.transpose(1, 2).reshape(n, b, h * d).transpose(0, 1)


def _viewed(self, t):
    b, n, _ = t.shape
    return list(t.reshape(b, self.num_heads, n, self.width).unbind(1))


def _meet(self, tokens, allow_mask=None):
    q, k, v = (t.unflatten(2, (self.num_heads, -1)) for t in self.projected(tokens))
    weights = (torch.einsum("bngd,bnhd->bngh", q, k) / self.width**0.5).softmax(-1)
    return self.unifyheads(torch.einsum("bngh,bnhd->bngd", weights, v).flatten(2))


def _whole(self, x):
    return [t[:, None] for t in self.qkv(x).chunk(3, dim=-1)]


def _over_samples(self, tokens):
    n, b, _ = tokens.shape  # what it believes
    q, k, v = (t.view(n, b, self.num_heads, self.width) for t in self.projected(tokens))
    scores = torch.einsum("ibhd,jbhd->bhij", q, k) / self.width**0.5
    return self.unifyheads(torch.einsum("bhij,jbhd->ibhd", scores.softmax(-1), v).flatten(2))


def _stacked(*axes):
    """Stack the heads, (h, b, n, d), permute axes, and view the result as (b, n, e)."""
    return lambda self, mixed: torch.stack(mixed).permute(axes).reshape(*mixed[0].shape[:2], -1)


loops("split-no-transpose", sizes=SEVERAL, cut=_viewed)
loops("heads-as-tokens", sizes=SEVERAL, forward=_meet)
views("heads-not-split", sizes=SEVERAL, heads=_whole)
loops("batch-first", sizes=SEVERAL, forward=_over_samples)
loops("merge-no-transpose", sizes=SEVERAL, concatenate=_stacked(1, 0, 2, 3))
loops("merge-no-transpose", sizes=SEVERAL, concatenate=_stacked(1, 0, 3, 2))
loops("merge-batch-head", sizes=SEVERAL, concatenate=_stacked(0, 1, 2, 3))
loops("merge-axes", sizes=SEVERAL, concatenate=_stacked(2, 0, 1, 3))

# ------------------------------------------ what the catalogue does not explain, and must not name


def _linear(self, x):
    q, k, v = self.heads(x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return self.proj(self.join(q @ (k.mT @ v) / (q @ k.sum(dim=2, keepdim=True).mT)))


def _one_sign(self, x):
    q, k, v = Views.heads(self, x)
    angle = torch.arange(x.shape[1])[:, None].to(x)
    return *(t * angle.cos() + t.flip(-1) * angle.sin() for t in (q, k)), v


def _others_nearby(self, scores, mask):
    place = torch.arange(scores.shape[-1])
    away = (place[:, None] - place).abs()
    return scores.masked_fill((away == 0) | (away > 2), -math.inf).softmax(-1)


def _noisy(self, q, k):
    return Loops.score(self, q, k) + 0.01 * torch.randn(q.shape[1], k.shape[1]).to(q)


UNKNOWN = [
    derived(Views, weigh=lambda self, s, m: s.sin()),
    derived(Views, weigh=lambda self, s, m: s.softmax(-1) ** 2),
    derived(Views, weigh=lambda self, s, m: (s + 1e-4 * s**2).softmax(-1)),
    derived(Views, weigh=lambda self, s, m: (s + s.mean() * torch.eye(s.shape[-1])).softmax(-1)),
    derived(Views, weigh=_others_nearby),
    derived(Views, heads=_one_sign),
    derived(Views, forward=_linear),
    derived(Loops, score=_noisy),
]
