"""Turns that are wrong in two ways, or beside mistakes that no turn shows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.bank import attention
from patients.modern import Llama, LlamaMixed, LlamaValues, modern

SIZES = ((64, 4),)


@modern("groups-order", "rotary-values", sizes=SIZES)
class TilesAndTurnsValues(LlamaValues):
    def repeated(self, t):
        return t.repeat(1, self.h // self.g, 1, 1)


@modern("groups-order", "rotary-frequencies", sizes=SIZES)
class TilesTwiceTheExponent(Llama):
    def frequencies(self, x):
        return 10_000.0 ** -(2 * torch.arange(0, self.d, 2).to(x) / self.d)

    def repeated(self, t):
        return t.repeat(1, self.h // self.g, 1, 1)


@modern("rotary-mixed", "rotary-values", sizes=SIZES)
class MixesAndTurnsValues(LlamaMixed, LlamaValues):
    pass


@modern("rotary-mixed", "rotary-frequencies", sizes=SIZES)
class MixesHalfTheExponent(LlamaMixed):
    def frequencies(self, x):
        return 10_000.0 ** -(torch.arange(self.d // 2).to(x) / self.d)


class Plain(nn.Module):
    """One layer for all, and neighbours or halves that turn before or behind the split."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def angles(self, n, width):
        return torch.outer(torch.arange(n), 10_000.0 ** (-torch.arange(0, width, 2) / width))

    def pairs(self, t):
        angles = self.angles(t.shape[-2], t.shape[-1]).repeat(1, 2)
        across = torch.stack([-t[..., 1::2], t[..., 0::2]], dim=-1).flatten(-2)
        return t * angles.cos() + across * angles.sin()

    def halves(self, t):
        angles = self.angles(t.shape[-2], t.shape[-1])
        first, second = t.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def split(self, t):
        return t.unflatten(-1, (self.h, -1)).transpose(1, 2)


@attention("rotary-before-split", "rotary-mixed", sizes=SIZES, causal=True)
class MixesBeforeTheSplit(Plain):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = self.split(self.pairs(q)), self.split(self.pairs(k)), self.split(v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention(*("rotary-before-split", "rotary-values", "mask-not-causal"), sizes=SIZES, causal=True)
class TurnsAllBeforeTheSplit(Plain):
    def forward(self, x):
        q, k, v = (self.split(self.halves(t)) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention("rotary-values", "dropout-eval", "mask-not-causal", sizes=SIZES, causal=True)
class TurnsAllAndDrops(Plain):
    def forward(self, x):
        q, k, v = (self.halves(self.split(t)) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention("rotary-no-effect", "dropout-eval", sizes=SIZES, causal=True)
class RotatesHeadsAndDrops(Plain):
    """What takes (b, n, h, d) gets (b, h, n, d), and nothing but the code says that it turns."""

    def rotate(self, t):
        return self.halves(t.transpose(1, 2)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention("rotary-no-effect", "scale-missing", sizes=SIZES, causal=True)
class RotatesSamples(Plain):
    """The samples are counted where the places were meant."""

    def apply_rope(self, t):
        return self.halves(t.transpose(0, 2)).transpose(0, 2)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = self.apply_rope(q), self.apply_rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention(
    *("split-no-transpose", "rotary-no-effect", "rotary-values", "mask-not-causal"),
    sizes=SIZES,
    causal=True,
)
class ViewsAndTurnsSamples(Plain):
    """Keys and values are turned by the number of their sample, each number by its own angle."""

    def turn(self, t):
        angles = self.angles(64, 2 * t.shape[-1])[: len(t), None, None]
        first, second = t.chunk(2, dim=-1)
        return t * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = (t.reshape(b, self.h, n, -1) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = self.turn(k), self.turn(v)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))
