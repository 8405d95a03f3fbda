"""Transformer-XL without its shift: codes of places, where those of distances were meant."""

from __future__ import annotations

import torch
from einops import einsum, rearrange
from torch import nn

from patients.attention import Views
from patients.followed import WIDE, Recurrent, angles_of
from patients.unknown import unknown
from patients.variants import variant


class Unshifted(Recurrent):
    """No shift: the codes are those of the places 0, 1, 2, ..."""

    def forward(self, x):
        q, k, v = self.heads(x)
        n, e = x.shape[1:]
        angles = angles_of(torch.arange(n), e + e % 2).to(x)
        codes = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)[:, :e]
        r = rearrange(self.r_net(codes), "m (h d) -> h m d", h=self.h)
        asked = (q + self.u[:, None]) @ k.mT
        placed = (q + self.v_bias[:, None]) @ r.mT
        weights = ((asked + placed) / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


variant("content-bias", ids=("relative-unshifted",), sizes=WIDE)(Unshifted)


@variant("content-bias", ids=("relative-unshifted",), sizes=WIDE)
class LearnedUnshifted(Views):
    """A learned table, the past alone, one product for both; v is u."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rel_pos = nn.Embedding(32, e)
        self.bias = nn.Parameter(torch.randn(h, 1, e // h))

    def forward(self, x):
        q, k, v = self.heads(x)
        n = x.shape[1]
        past = rearrange(self.rel_pos(torch.arange(n)), "n (h d) -> h n d", h=self.h)
        q = q + self.bias
        scores = einsum(q, k, "b h i d, b h j d -> b h i j")
        scores = (scores + einsum(q, past, "b h i d, h j d -> b h i j")) * q.shape[-1] ** -0.5
        weights = self.weigh(scores, torch.ones(n, n).tril().bool())
        return self.proj(self.join(weights @ v))


@unknown
class QueriesAndPlaces(Views):
    """Places meet queries, and nothing says that distances were meant."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Parameter(torch.randn(h, 32, e // h))

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = (q @ k.mT + q @ self.places[:, : x.shape[1]].mT) * q.shape[-1] ** -0.5
        return self.proj(self.join(scores.softmax(-1) @ v))
