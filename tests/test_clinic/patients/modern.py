"""Attention of today's decoders: rotary positions, grouped queries, norms, biases, caches.

Two families, each written differently on purpose: `Llama` makes its own angles and rotates halves,
`Meta` gets complex numbers and rotates neighbours.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patients.bank import attention, changed
from patients.healthy import Views

MODERN = ((24, 4), (36, 6), (8, 1))
SEVERAL = MODERN[:2]
HALVES = ("grouped-queries", "rotary-halves")


@attention(sizes=SEVERAL, variants=HALVES)
class Llama(Views):
    """Four layers, angles of its own, halves rotated, keys and values repeated."""

    normed = False

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.g, self.d = self.shared(h), e // h
        self.qkv = nn.ModuleList(nn.Linear(e, g * self.d) for g in (h, self.g, self.g))
        if self.normed:
            self.q_norm, self.k_norm = self.norm(h), self.norm(self.g)

    def shared(self, h: int) -> int:
        return max(1, h // 2)

    def norm(self, heads: int) -> nn.Module:
        return nn.RMSNorm(self.d, eps=1e-6)

    def normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (self.q_norm(q), self.k_norm(k)) if self.normed else (q, k)

    def frequencies(self, x: Tensor) -> Tensor:
        return 10_000.0 ** -(torch.arange(0, self.d, 2).to(x) / self.d)

    def angles(self, x: Tensor, n: int, start: int = 0) -> Tensor:
        angles = torch.outer(torch.arange(start, start + n).to(x), self.frequencies(x))
        return torch.cat([angles, angles], dim=-1)

    def rotate_half(self, t: Tensor) -> Tensor:
        first, second = t.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    def rotate(self, t: Tensor, angles: Tensor) -> Tensor:
        return t * angles.cos() + self.rotate_half(t) * angles.sin()

    def rotated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angles = self.angles(q, q.shape[2])
        return self.rotate(q, angles), self.rotate(k, angles), v

    def prepared(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotated(*self.normalized(q, k), v)

    def repeated(self, t: Tensor) -> Tensor:
        return t.repeat_interleave(self.h // self.g, dim=1)

    def projected(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.qkv]

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        split = (t.unflatten(2, (-1, self.d)).transpose(1, 2) for t in self.projected(x))
        q, k, v = self.prepared(*split)
        return q, self.repeated(k), self.repeated(v)


@attention(sizes=SEVERAL, variants=("rotary-pairs",))
class Meta(Views):
    """Complex numbers from outside rotate neighbours."""

    def rotate(self, t: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    def prepared(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return self.rotate(q, self.turns), self.rotate(k, self.turns), v

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.prepared(*super().heads(x))

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        self.turns = freqs_cis
        return super().forward(x)


def wide_angles(t: Tensor) -> Tensor:
    """Return angles for all numbers of a token together, (n, width / 2)."""
    steps = 10_000.0 ** -(torch.arange(0, t.shape[2], 2).to(t) / t.shape[2])
    return torch.outer(torch.arange(t.shape[1]).to(t), steps)


llama, meta, views = (partial(changed, base, sizes=SEVERAL) for base in (Llama, Meta, Views))


# --------------------------------------------------------------------------------------- rotary


@attention(sizes=SEVERAL, variants=(*HALVES, "rotary-partial"))
class LlamaPartial(Llama):
    def frequencies(self, x):
        return 10_000.0 ** -(torch.arange(0, self.d - 2, 2).to(x) / (self.d - 2))

    def rotate(self, t, angles):
        return torch.cat([super().rotate(t[..., :-2], angles), t[..., -2:]], dim=-1)


@attention("rotary-mixed", sizes=SEVERAL)
class LlamaMixed(Llama):
    def angles(self, x, n, start=0):
        angles = torch.outer(torch.arange(n).to(x), self.frequencies(x))
        return angles.repeat_interleave(2, dim=-1)


@attention("rotary-frequencies", sizes=SEVERAL)
class LlamaHalfExponent(Llama):
    def frequencies(self, x):
        return 10_000.0 ** -(torch.arange(self.d // 2).to(x) / self.d)


@attention("rotary-values", sizes=MODERN)
class MetaValues(Meta):
    def prepared(self, q, k, v):
        return tuple(self.rotate(t, self.turns) for t in (q, k, v))


@attention("rotary-before-split", sizes=SEVERAL)
class LlamaBeforeSplit(Llama):
    def projected(self, x):
        q, k, v = super().projected(x)
        return *(self.rotate(t, torch.cat([wide_angles(t)] * 2, dim=-1)) for t in (q, k)), v

    def rotated(self, q, k, v):
        return q, k, v


@attention("rotary-no-effect", sizes=MODERN)
class MetaUnused(Meta):
    """The result of the rotation is thrown away."""

    def prepared(self, q, k, v):
        super().prepared(q, k, v)
        return q, k, v


def _pairs(self, t):
    return torch.stack([-t[..., 1::2], t[..., 0::2]], dim=-1).flatten(-2)


def _values_too(self, q, k, v):
    q, k, v = Llama.rotated(self, q, k, v)
    return q, k, self.rotate(v, self.angles(v, v.shape[2]))


def _all_heads(self, q, k, v):
    def early(t: Tensor) -> Tensor:
        flat = t.transpose(1, 2).flatten(2)
        angles = wide_angles(flat)
        turned = self.rotate(flat, torch.polar(torch.ones_like(angles), angles))
        return turned.unflatten(2, (self.h, -1)).transpose(1, 2)

    return early(q), early(k), v


def _along_heads(self, q, k, v):
    """Take the axis of the heads for that of the tokens."""
    return *(self.rotate(t, self.angles(t, t.shape[1])[:, None]) for t in (q, k)), v


half = Llama.rotate_half
llama(variants=(*HALVES, "rotary-backwards"), rotate_half=lambda self, t: -half(self, t))
llama("rotary-mixed", rotate_half=_pairs)
speeds = Llama.frequencies
llama("rotary-frequencies", frequencies=lambda self, x: speeds(self, x).flip(0))
llama("rotary-values", rotated=_values_too)
meta("rotary-before-split", prepared=_all_heads)
llama("rotary-no-effect", rotated=_along_heads)

# ------------------------------------------------------------------------ groups of heads, cache


@attention("groups-order", sizes=SEVERAL)
class LlamaTiled(Llama):
    def repeated(self, t):
        return t.repeat(1, self.h // self.g, 1, 1)


llama("groups-order", repeated=lambda self, t: t[:, torch.arange(self.h) % self.g])
llama(variants=("multi-query", "rotary-halves"), shared=lambda self, h: 1)


class Held:
    """Keys and values of earlier tokens."""

    pair: tuple[Tensor, ...] = ()

    def extend(self, *pair: Tensor) -> tuple[Tensor, ...]:
        held = self.pair or tuple(t[:, :, :0] for t in pair)
        self.pair = tuple(torch.cat(both, dim=2) for both in zip(held, pair, strict=True))
        return self.pair


@attention(sizes=SEVERAL, cache=Held, variants=HALVES)
class LlamaCached(Llama):
    """Keeps rotated keys, or rotates all of them again."""

    keeps_rotated = counts = True

    def rotated(self, q, k, v):
        before = self.cache.pair[0].shape[2] if self.cache.pair else 0
        angles = self.angles(q, q.shape[2], before if self.counts else 0)
        k, v = self.cache.extend(self.rotate(k, angles) if self.keeps_rotated else k, v)
        k = k if self.keeps_rotated else self.rotate(k, self.angles(k, k.shape[2]))
        return self.rotate(q, angles), k, v

    def weigh(self, scores, mask):
        past = torch.ones_like(scores).tril(scores.shape[3] - scores.shape[2])
        return super().weigh(scores, past.bool())

    def forward(self, x, cache=None):
        self.cache = cache
        return super().forward(x)


@attention("cache-position", sizes=SEVERAL, cache=Held)
class LlamaStartsAgain(LlamaCached):
    counts = False


changed(LlamaStartsAgain, "cache-position", sizes=SEVERAL, cache=Held, keeps_rotated=False)

# ------------------------------------------------------ norms of queries and keys, narrow vectors


def _both(norm):
    """Return a method that normalizes queries and keys."""

    def heads(self, x):
        q, k, v = Views.heads(self, x)
        return norm(q), norm(k), v

    return heads


class Narrow(Views):
    """Keys and values, or queries, are made from ten numbers."""

    narrow = (False, True, True)

    def __init__(self, e, h):
        super().__init__(e, h)
        self.down = nn.Linear(e, 10)
        self.qkv = nn.ModuleList(nn.Linear(10 if few else e, e) for few in self.narrow)

    def heads(self, x):
        given = [self.down(x) if few else x for few in self.narrow]
        made = (layer(t) for layer, t in zip(self.qkv, given, strict=True))
        return tuple(t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in made)


llama(variants=(*HALVES, "qk-norm"), normed=True)
views(
    variants=("qk-norm", "qk-norm-layer"),
    heads=_both(lambda t: F.layer_norm(t, t.shape[-1:])),
)
attention(sizes=SEVERAL, variants=("latent-attention",))(Narrow)
changed(Narrow, sizes=SEVERAL, variants=("latent-queries",), narrow=(True, False, False))

# --------------------------------------------------------------------- biases and caps of scores


class Biased(Views):
    """Adds a learned number to each score, for every distance."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative = nn.Embedding(64, h)

    def bias(self, n):
        return self.relative(distances(n) + 32).permute(2, 0, 1)

    def weigh(self, scores, mask):
        return super().weigh(scores + self.bias(scores.shape[-1]).to(scores), mask)


def distances(n: int) -> Tensor:
    return torch.arange(n)[None, :] - torch.arange(n)[:, None]


attention(sizes=SEVERAL, variants=("relative-bias",))(Biased)
