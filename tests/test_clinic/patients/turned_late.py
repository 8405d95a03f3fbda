"""Turns that only a run shows, beside other mistakes, and keys that are shared in name only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.bank import attention
from patients.blocks import block
from patients.modern import Llama
from patients.modern_blocks import LlamaBlock
from patients.turned_beside import Plain

SIZES = ((64, 4),)


def later(x):
    return torch.ones(x.shape[1], x.shape[1]).triu(1)


class Holds(nn.Module):
    """A cache that is written anew, and returned."""

    def __init__(self, *sizes: int):
        super().__init__()
        self.held = nn.Parameter(torch.zeros(16, 64, *sizes), requires_grad=False)

    def forward(self, t):
        self.held[: len(t), : t.shape[2]] = t.transpose(1, 2)
        return self.held[: len(t), : t.shape[2]].transpose(1, 2)


class HeldComplex(nn.Module):
    """Shared keys, complex numbers, caches, and a mask that is added as it is handed over."""

    def __init__(self, e: int, h: int, width: int):
        super().__init__()
        self.h, self.d = h, e // h
        self.q, self.k = nn.Linear(e, e, bias=False), nn.Linear(e, e // 2, bias=False)
        self.v, self.o = nn.Linear(e, e // 2, bias=False), nn.Linear(e, e, bias=False)
        self.keys, self.values = Holds(h // 2, self.d), Holds(h // 2, self.d)
        angles = torch.outer(torch.arange(64), 10_000.0 ** (-torch.arange(0, e, 2) / width))
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def turn(self, t):
        pairs = torch.view_as_complex(t.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[: t.shape[2], : self.d // 2]).flatten(-2)

    def forward(self, x, mask):
        q, k, v = (
            one(x).unflatten(-1, (-1, self.d)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        k, v = self.keys(self.turn(k)), self.values(v)
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(self.turn(q), k, v, mask.to(q))
        return self.o(y.transpose(1, 2).flatten(2))


class HeldBlock(LlamaBlock):
    width = 1

    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = HeldComplex(e, h, e // self.width)

    def forward(self, x, mask):
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.feed(self.post_attention_layernorm(x))


LATER = {"causal": True, "call": lambda m, x: m(x, later(x))}


@block("rotary-frequencies", "mask-added", sizes=SIZES, **LATER)
class SpreadsOverAllHeads(HeldBlock):
    pass


@block("mask-added", sizes=SIZES, causal=True, call=lambda m, x: m(x, later(x).bool()))
class AddsTheMaskRight(HeldBlock):
    def __init__(self, e, h):
        self.width = h
        super().__init__(e, h)


class AddsOnes(Llama):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.keys, self.values = Holds(self.g, self.d), Holds(self.g, self.d)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (-1, self.d)).transpose(1, 2) for t in self.project(x))
        q, k, v = self.prepared(q, k, v)
        k, v = self.repeated(self.keys(k)), self.repeated(self.values(v))
        scores = q @ k.mT / self.d**0.5
        scores = scores + (torch.arange(x.shape[1]) > torch.arange(x.shape[1])[:, None])
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class HalfTheExponent(AddsOnes):
    def frequencies(self, x):
        return 10_000.0 ** -(torch.arange(self.d // 2).to(x) / self.d)


@block("mask-added", sizes=SIZES, causal=True)
class AddsOnesBlock(LlamaBlock):
    attention = AddsOnes


@block("rotary-frequencies", "mask-added", sizes=SIZES, causal=True)
class AddsOnesHalfBlock(LlamaBlock):
    attention = HalfTheExponent


# ------------------------------------------------------------------------- shared in name only


class CutsGroups(Plain):
    """Keys and values are as wide as queries: what should be shared is cut into heads instead."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.num_kv_heads = max(1, h // 2)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k, v = (
            t.view(b, n, self.num_kv_heads, -1, e // self.h).permute(0, 2, 3, 1, 4).flatten(1, 2)
            for t in (k, v)
        )
        q, k = self.halves(self.split(q)), self.halves(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


@attention(sizes=SIZES, num_kv_heads=2)
class SharesForOnce(Llama):
    """It says two heads, and has two."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.num_kv_heads = self.g


# ------------------------------------------------------- a narrow vector that is made smaller


class Narrow(Plain):
    """Keys and values of one narrow vector, times a number; a layer for each head."""

    base = 100_000.0

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.q, self.down, self.qkv = nn.Linear(e, e), nn.Linear(e, e // 4, bias=False), None
        self.k = nn.ModuleList(nn.Linear(e // 4, e // h) for _ in range(h))
        self.v = nn.ModuleList(nn.Linear(e // 4, e // h) for _ in range(h))

    def angles(self, n, width):
        return torch.outer(torch.arange(n), self.base ** (-torch.arange(0, width, 2) / width))

    def made(self, x):
        narrow = self.down(x) * self.h**-0.5
        k, v = (torch.stack([one(narrow) for one in side], dim=1) for side in (self.k, self.v))
        return self.halves(self.split(self.q(x))), self.halves(k), v

    def forward(self, x):
        q, k, v = self.made(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


attention(sizes=SIZES, causal=True)(Narrow)


@attention(sizes=SIZES)
class NarrowPacked(Narrow):
    """One layer for the keys and values of all heads; neighbours turn."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.k, self.v, self.up = None, None, nn.Linear(e // 4, 2 * e)

    def made(self, x):
        k, v = map(self.split, self.up(self.down(x) / 3).chunk(2, dim=-1))
        return self.pairs(self.split(self.q(x))), self.pairs(k), v

    def pairs(self, t):
        angles = self.angles(t.shape[-2], t.shape[-1]).repeat_interleave(2, dim=-1)
        across = torch.stack([-t[..., 1::2], t[..., 0::2]], dim=-1).flatten(-2)
        return t * angles.cos() + across * angles.sin()
