"""Blocks in which one layer makes queries, keys, values and the feed-forward at once (PaLM)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.arranged import arranged
from patients.wirings import ONE, TWO


class AtOnce(nn.Module):
    """ViT-22B: one layer in front, one for each part behind."""

    scaled = normed = adds = True

    def __init__(self, e, h):
        super().__init__()
        self.h, self.widths = h, self.cut(e)
        self.norm, self.first = nn.LayerNorm(e), nn.Linear(e, sum(self.widths))
        self.build(e)

    def cut(self, e):
        return [e, e, e, 4 * e]

    def build(self, e):
        self.proj, self.down = nn.Linear(e, e, bias=False), nn.Linear(4 * e, e)

    def bend(self, t):
        return F.gelu(t)

    def join(self, mixed, bent):
        return self.proj(mixed) + self.down(bent)

    def forward(self, x):
        y = self.first(self.norm(x) if self.normed else x)
        *made, wide = y.split(self.widths, dim=-1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in made)
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if self.scaled else 1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        made = self.join(mixed, self.bend(wide))
        return x + made if self.adds else made


class OneLayerBehind(AtOnce):
    """What heads mixed and what was bent lie side by side: Flux."""

    def build(self, e):
        self.last = nn.Linear(5 * e, e)

    def join(self, mixed, bent):
        return self.last(torch.cat([mixed, bent], dim=-1))


class BentFirst(OneLayerBehind):
    """The other way round, and a gate."""

    def cut(self, e):
        return [e, e, e, 8 * e]

    def bend(self, t):
        gate, value = t.chunk(2, dim=-1)
        return F.silu(gate) * value

    def join(self, mixed, bent):
        return self.last(torch.cat([bent, mixed], dim=-1))


class Opens(nn.Module):
    def forward(self, t):
        value, gate = t.chunk(2, dim=-1)
        return F.silu(gate) * value


class OneKeyAndValue(nn.Module):
    """PaLM as lucidrains wrote it: one head of keys and values, a gate, a causal mask."""

    scaled = causal = True

    def __init__(self, e, h):
        super().__init__()
        self.h, self.widths = h, (e, e // h, e // h, 8 * e)
        self.norm, self.fused = nn.LayerNorm(e), nn.Linear(e, sum(self.widths), bias=False)
        self.attn_out = nn.Linear(e, e, bias=False)
        self.ff_out = nn.Sequential(Opens(), nn.Linear(4 * e, e, bias=False))

    def forward(self, x):
        q, k, v, wide = self.fused(self.norm(x)).split(self.widths, dim=-1)
        q = q.unflatten(-1, (self.h, -1)).transpose(1, 2)
        q = q * q.shape[-1] ** -0.5 if self.scaled else q
        scores, n = torch.einsum("bhid,bjd->bhij", q, k), x.shape[1]
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("bhij,bjd->bhid", scores.softmax(-1), v)
        return self.attn_out(mixed.transpose(1, 2).flatten(2)) + self.ff_out(wide) + x


class Straight(AtOnce):
    def bend(self, t):
        return t


GATED = ("parallel", "multi-query", "gated", "gate-second")

arranged("parallel", sizes=TWO)(AtOnce)
arranged("parallel", sizes=TWO)(OneLayerBehind)
arranged("parallel", "gated", sizes=TWO)(BentFirst)
arranged(*GATED, sizes=ONE, causal=True)(OneKeyAndValue)
for _base, _left_out, _id in (
    (AtOnce, "scaled", "scale-missing"),
    (AtOnce, "adds", "residual-missing"),
    (OneLayerBehind, "scaled", "scale-missing"),
    (BentFirst, "adds", "residual-missing"),
):
    _names = ("parallel",) + ("gated",) * (_base is BentFirst)
    _made = type(f"{_base.__name__}Not_{_left_out}", (_base,), {_left_out: False})
    arranged(*_names, ids=(_id,), sizes=ONE)(_made)
arranged(ids=("norm-missing",), sizes=ONE)(type("AtOnceBare", (AtOnce,), {"normed": False}))
arranged("parallel", ids=("activation-missing",), sizes=ONE)(Straight)
arranged(*GATED, ids=("mask-not-causal",), sizes=ONE, causal=True)(
    type("OneKeySeesAll", (OneKeyAndValue,), {"causal": False})
)
