"""Scores that no softmax makes weights of, where they are biased or cut; matrices of slices."""

from __future__ import annotations

import torch
from einops import einsum, rearrange
from torch import nn

from patients.attention import Views
from patients.bank import attention
from patients.followed import WIDE
from patients.variants import distances


@attention("softmax-missing", sizes=WIDE)
class NearScores(Views):
    """Scores of the neighbours, by which values are mixed; others are 0."""

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        far = distances(x.shape[1]).abs() > 2
        return self.proj(self.join(scores.masked_fill(far, 0.0) @ v))


@attention("softmax-missing", sizes=WIDE)
class BiasedScores(Views):
    """A number for each distance and head is added."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.bias = nn.Embedding(63, h)

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
        scores = scores + self.bias(distances(x.shape[1]) + 31).permute(2, 0, 1)
        return self.proj(self.join(einsum(scores, v, "b h i j, b h j d -> b h i d")))


@attention("softmax-missing", "mask-not-causal", sizes=WIDE, causal=True)
class NearScoresOfBoth(NearScores):
    """It must be causal, and sees later neighbours, too."""


class SlicesByLetters(nn.Module):
    """A matrix for each head, of its own slice of the token alone."""

    over = -1

    def __init__(self, e, h):
        super().__init__()
        self.h, self.e, self.out = h, e, nn.Linear(e, e)
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(h, e // h, e // h)) for _ in "qkv")

    def heads(self, x):
        own = x.unflatten(-1, (self.h, self.e // self.h))
        made = (einsum(own, w, "b n h c, h c d -> b n h d") for w in (self.wq, self.wk, self.wv))
        return (t.transpose(1, 2) for t in made)

    def scale(self):
        return (self.e // self.h) ** -0.5

    def forward(self, x):
        q, k, v = self.heads(x)
        weights = (q @ k.mT * self.scale()).softmax(dim=self.over)
        return self.out(rearrange(weights @ v, "b h n d -> b n (h d)"))


class SlicesByMatrices(SlicesByLetters):
    """By @, over the queries, divided by the root of the whole width."""

    over = -2

    def heads(self, x):
        own = x.unflatten(-1, (self.h, self.e // self.h)).transpose(1, 2)
        return (own @ w for w in (self.wq, self.wk, self.wv))

    def scale(self):
        return self.e**-0.5


attention("head-own-slice", sizes=WIDE)(SlicesByLetters)
attention("head-own-slice", "softmax-query", "scale-embed", sizes=WIDE)(SlicesByMatrices)
