"""Transformer-XL without its shift: codes of places, where those of distances were meant."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import nn

from patients.attention import Views
from patients.bank import attention
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


@attention("relative-unshifted", sizes=WIDE)
class NamedUnshifted(Views):
    """Only its name says that rows are distances."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.Er = nn.Parameter(torch.randn(32, e // h))

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = (q @ k.mT + q @ self.Er[: x.shape[1]].mT) * q.shape[-1] ** -0.5
        return self.proj(self.join(scores.softmax(dim=-1) @ v))


@attention("relative-shift", sizes=WIDE)
class HalfShifted(Recurrent):
    """A column is padded, and the second half of twice as many rows is taken."""

    def shifted(self, placed):
        n = placed.shape[2]
        return F.pad(placed, (0, 1)).reshape(*placed.shape[:2], 2 * n, n)[:, :, n:]

    def forward(self, x):
        q, k, v = self.heads(x)
        n, e = x.shape[1:]
        angles = angles_of(torch.arange(n - 1, -n, -1), e + e % 2).to(x)
        sines = torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :e]
        r = rearrange(self.r_net(sines), "m (h d) -> h m d", h=self.h)
        placed = self.shifted((q + self.v_bias[:, None]) @ r.mT)
        scores = ((q + self.u[:, None]) @ k.mT + placed) / q.shape[-1] ** 0.5
        return self.proj(self.join(scores.softmax(dim=-1) @ v))


@attention("relative-shift", sizes=WIDE)
class TurnedShift(Views):
    """The scores of query j with the distance of key i: rows and columns exchanged."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Parameter(torch.randn(h, 63, e // h))

    def forward(self, x):
        q, k, v = self.heads(x)
        n = x.shape[1]
        ahead = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        met = einsum(q, self.places[:, ahead + 31], "b h i d, h i j d -> b h j i")
        scores = (q @ k.mT + met) * q.shape[-1] ** -0.5
        return self.proj(self.join(scores.softmax(dim=-1) @ v))


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
