"""Latent attention whose weights are absorbed, and scores that are the sum of two products."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from patients.bank import attention
from patients.followed import WIDE, angles_of
from patients.variants import variant

LATENT = ("rotary-pairs", "rotary-partial", "latent-attention")


class Absorbed(nn.Module):
    """DeepSeek's, as it decodes: by letters, keys and values of one narrow vector for all heads."""

    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        self.h, self.d, self.rank, self.turning = h, e // h, e // 4, 4
        self.wq = nn.Linear(e, h * (self.d + self.turning), bias=False)
        self.wkv_a = nn.Linear(e, self.rank + self.turning, bias=False)
        self.kv_norm = nn.RMSNorm(self.rank)
        self.wkv_b = nn.Linear(self.rank, 2 * e, bias=False)
        self.wo = nn.Linear(e, e, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = rearrange(self.wq(x), "b n (h d) -> b n h d", h=self.h)
        q, turned = q.split([self.d, self.turning], dim=-1)
        narrow, key = self.wkv_a(x).split([self.rank, self.turning], dim=-1)
        turned, key, narrow = self.turn(turned), self.turn(key), self.kv_norm(narrow)
        w = self.wkv_b.weight.view(self.h, 2 * self.d, self.rank)
        q = torch.einsum("bshd,hdc->bshc", q, w[:, : self.d])
        scores = torch.einsum("bshc,btc->bsht", q, narrow)
        scores = scores + torch.einsum("bshr,btr->bsht", turned, key)
        weights = self.weigh(scores * self.scale())
        mixed = torch.einsum("bsht,btc->bshc", weights, narrow)
        return self.wo(torch.einsum("bshc,hdc->bshd", mixed, w[:, self.d :]).flatten(2))

    def scale(self) -> float:
        return (self.d + self.turning) ** -0.5

    def turn(self, t: Tensor) -> Tensor:
        angles = angles_of(torch.arange(t.shape[1]), self.turning)
        factors = torch.polar(torch.ones_like(angles), angles)
        factors = factors[:, None] if t.ndim == 4 else factors
        pairs = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * factors).flatten(-2).to(t)

    def weigh(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        later = torch.ones(n, n).triu(1).bool()
        return scores.masked_fill(later[:, None], -torch.inf).softmax(dim=-1)


variant(*LATENT, sizes=WIDE, causal=True)(Absorbed)


class AbsorbedAdded(Absorbed):
    """A mask of ones and zeros is added."""

    def weigh(self, scores):
        n = scores.shape[-1]
        return (scores + torch.ones(n, n).triu(1).bool()[:, None]).softmax(dim=-1)


class AbsorbedOverQueries(Absorbed):
    """The softmax is one over the queries."""

    def weigh(self, scores):
        return scores.softmax(dim=1)


class AbsorbedOther(Absorbed):
    """Scaled by the narrow vector's width."""

    def scale(self):
        return self.rank**-0.5


attention("mask-added", sizes=WIDE, causal=True)(AbsorbedAdded)
attention("softmax-query", sizes=WIDE)(AbsorbedOverQueries)
variant(*LATENT, ids=("scale-other",), sizes=WIDE)(AbsorbedOther)


@variant("latent-attention", sizes=WIDE, causal=True)
class AbsorbedByMatrices(nn.Module):
    """By @, with layers of their own for keys and values; nothing turns."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d, self.down = h, e // h, nn.Linear(e, e // 4)
        self.q_proj, self.out = nn.Linear(e, e), nn.Linear(e, e)
        self.up_k, self.up_v = (nn.Linear(e // 4, e, bias=False) for _ in range(2))

    def forward(self, x):
        n = x.shape[1]
        q = self.q_proj(x).unflatten(-1, (self.h, self.d)).transpose(1, 2)
        narrow = self.down(x).unsqueeze(1)
        to_keys = self.up_k.weight.view(self.h, self.d, -1)
        to_values = self.up_v.weight.view(self.h, self.d, -1).transpose(1, 2)
        scores = (q @ to_keys) @ narrow.transpose(-2, -1) * self.scale()
        weights = scores.masked_fill(torch.ones(n, n).triu(1) == 1, -torch.inf).softmax(-1)
        mixed = (weights @ narrow) @ to_values
        return self.out(mixed.transpose(1, 2).flatten(2))

    def scale(self):
        return self.d**-0.5


class AbsorbedUnscaled(AbsorbedByMatrices):
    """Nothing divides the scores."""

    def scale(self):
        return 1.0


variant("latent-attention", ids=("scale-missing",), sizes=WIDE, causal=True)(AbsorbedUnscaled)


class Apart(Absorbed):
    """Not absorbed: two products by @, one of which turns, a mask filled with a small number."""

    fill, axis = 1e-9, -1

    def forward(self, x):
        n = x.shape[1]
        q = rearrange(self.wq(x), "b n (h d) -> b n h d", h=self.h)
        q, turned = q.split([self.d, self.turning], dim=-1)
        narrow, key = self.wkv_a(x).split([self.rank, self.turning], dim=-1)
        turned, key = self.turn(turned).transpose(1, 2), self.turn(key)[:, None]
        made = rearrange(self.wkv_b(self.kv_norm(narrow)), "b n (h d) -> b h n d", h=self.h)
        k, v = made.chunk(2, dim=-1)
        scores = (q.transpose(1, 2) @ k.mT + turned @ key.mT) * self.scale()
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), self.fill)
        return self.wo((scores.softmax(self.axis) @ v).transpose(1, 2).flatten(2))


class ApartOverQueries(Apart):
    """The softmax is one over the queries, too."""

    axis = -2


attention("mask-tiny", sizes=WIDE, causal=True)(Apart)
attention("mask-tiny", "softmax-query", sizes=WIDE, causal=True)(ApartOverQueries)
