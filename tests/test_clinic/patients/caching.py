"""Decoders that keep the keys and values of earlier tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose_cache
from patients.bank import CASES, Entry

SIZES = ((24, 4), (8, 1))


def caching(*ids: str, also: tuple[tuple[str, ...], ...] = (), **options: Any) -> Callable:
    """Enter a decoder, built with (e, h), among the patients."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_cache(make(e, h), **options)

        CASES.append(Entry(make.__name__, ids, examine, also, SIZES))
        return make

    return enter


# -------------------------- learned places, scores by hand, a list of pairs that is handed on


class Words(nn.Module):
    """Two layers as in GPT-2."""

    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.wte, self.wpe = nn.Embedding(21, e), nn.Embedding(40, e)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(e),
                    "qkv": nn.Linear(e, 3 * e),
                    "proj": nn.Linear(e, e),
                    "mlp": nn.Sequential(nn.LayerNorm(e), nn.Linear(e, 2 * e), nn.GELU()),
                    "down": nn.Linear(2 * e, e),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(e, 21, bias=False)

    def places(self, start: int, n: int) -> Tensor:
        return torch.arange(start, start + n)

    def joined(self, held: Tensor, new: Tensor, name: str) -> Tensor:
        return torch.cat([held, new], dim=2)

    def seen(self, n: int, j: int) -> Tensor:
        return torch.ones(n, j).bool().tril(j - n)

    def forward(self, ids: Tensor, past: list | None = None) -> tuple[Tensor, list]:
        n = ids.shape[1]
        start = past[0][0].shape[2] if past else 0
        x = self.wte(ids) + self.wpe(self.places(start, n))
        present = []
        for number, layer in enumerate(self.layers):
            q, k, v = (
                t.unflatten(2, (self.h, -1)).transpose(1, 2)
                for t in layer["qkv"](layer["norm"](x)).chunk(3, dim=2)
            )
            held = past[number] if past else None
            present.append(self.kept(held, k, v))
            k, v = self.read(held, k, v)
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~self.seen(n, k.shape[2]), -math.inf)
            mixed = scores.softmax(-1) @ v
            x = x + layer["proj"](mixed.transpose(1, 2).flatten(2))
            x = x + layer["down"](layer["mlp"](x))
        return self.head(x), present

    def kept(self, held: tuple | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.all_of(held, k, v)

    def read(self, held: tuple | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.all_of(held, k, v)

    def all_of(self, held: tuple | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if held is None:
            return k, v
        return self.joined(held[0], k, "k"), self.joined(held[1], v, "v")


def by_row(cache: list, order: Tensor) -> list:
    return [(k[order], v[order]) for k, v in cache]


caching(reorder=by_row)(Words)


@caching()
class WordsLastOnly(Words):
    """The head runs on the last token, to save work."""

    def forward(self, ids, past=None):
        scores, past = super().forward(ids, past)
        return scores[:, [-1], :], past


@caching("cache-position")
class WordsAnew(Words):
    def places(self, start, n):
        return torch.arange(n)


@caching("cache-position")
class WordsAnewLast(WordsAnew):
    """The scores of the last token only."""

    def forward(self, ids, past=None):
        scores, past = super().forward(ids, past)
        return scores[:, -1, :], past


@caching("cache-offset")
class WordsOneLess(Words):
    def places(self, start, n):
        return torch.arange(start, start + n) - int(start > 0)


@caching("cache-order")
class WordsInFront(Words):
    def joined(self, held, new, name):
        return torch.cat([new, held], dim=2)


@caching("cache-order")
class WordsValuesInFront(Words):
    def joined(self, held, new, name):
        return torch.cat([new, held] if name == "v" else [held, new], dim=2)


@caching("cache-not-read")
class WordsForgets(Words):
    """It keeps all, and reads nothing."""

    def read(self, held, k, v):
        return k, v


@caching("cache-not-read")
class WordsLastCall(Words):
    """It keeps the keys of one call."""

    def kept(self, held, k, v):
        return k, v

    def forward(self, ids, past=None):
        self.start = getattr(self, "start", 0) if past else 0
        made = super().forward(ids, past)
        self.start += ids.shape[1]
        return made

    def places(self, start, n):
        return torch.arange(self.start, self.start + n)


@caching("cache-own-left-out")
class WordsNotItself(Words):
    def read(self, held, k, v):
        return (k, v) if held is None else held

    def seen(self, n, j):
        return super().seen(n, j) if j == n and self.first else torch.ones(n, j).bool()

    def forward(self, ids, past=None):
        self.first = past is None
        return super().forward(ids, past)


@caching("cache-new-twice")
class WordsTwice(Words):
    def read(self, held, k, v):
        k, v = self.all_of(held, k, v)
        return (k, v) if held is None else (self.again(k), self.again(v))

    def again(self, t):
        return torch.cat([t, t[:, :, -self.new :]], dim=2)

    def seen(self, n, j):
        own = torch.ones(n, n).bool().tril()
        if self.start:
            return torch.cat([torch.ones(n, self.start).bool(), own, own], dim=1)
        return own

    def forward(self, ids, past=None):
        self.new, self.start = ids.shape[1], past[0][0].shape[2] if past else 0
        return super().forward(ids, past)


@caching("cache-mask-corner")
class WordsCorner(Words):
    def seen(self, n, j):
        return torch.ones(n, j).bool().tril()


@caching("cache-mask-open")
class WordsOpen(Words):
    def seen(self, n, j):
        return torch.ones(n, j).bool() if j > n else torch.ones(n, n).bool().tril()


@caching("cache-position", "cache-mask-corner")
class WordsAnewCorner(WordsAnew, WordsCorner):
    pass


@caching("cache-stale-beams", reorder=lambda cache, order: cache)
class WordsStale(Words):
    pass


@caching("cache-stale-beams", reorder=lambda cache, order: [(k[order], v) for k, v in cache])
class WordsHalfStale(Words):
    """The keys follow the beams, the values do not."""


@caching("cache-stale-beams", reorder=lambda cache, order: [(k, v[order]) for k, v in cache])
class WordsOtherHalfStale(Words):
    """The values follow, the keys do not."""


@caching("cache-stale-beams")
class WordsBackwards(Words):
    def _reorder_cache(self, past, order):
        return by_row(past, order.argsort())


@caching("cache-not-emptied", cache=lambda model: model.kept_pairs)
class WordsKeep(Words):
    """The list is made once, with the model, and filled in place."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.kept_pairs = []

    def forward(self, ids, past=None):
        scores, present = super().forward(ids, past or None)
        if past is not None:
            past[:] = present
        return scores


# ------------------- turned as complex numbers, groups, slots inside the layers, fused kernel


class Turned(nn.Module):
    """Two layers as in Llama, with slots for as many tokens as there may be."""

    def __init__(self, e: int, h: int, most: int = 32, samples: int = 43) -> None:
        super().__init__()
        self.h, self.g, self.d = h, max(1, h // 2), e // h
        self.tok = nn.Embedding(19, e)
        self.wq = nn.ModuleList(nn.Linear(e, e, bias=False) for _ in range(2))
        self.wk = nn.ModuleList(nn.Linear(e, self.g * self.d, bias=False) for _ in range(2))
        self.wv = nn.ModuleList(nn.Linear(e, self.g * self.d, bias=False) for _ in range(2))
        self.wo = nn.ModuleList(nn.Linear(e, e, bias=False) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))
        self.head = nn.Linear(e, 19, bias=False)
        self.slots_k = [torch.zeros(samples, most, self.g, self.d) for _ in range(2)]
        self.slots_v = [torch.zeros(samples, most, self.g, self.d) for _ in range(2)]
        steps = 10_000 ** (-torch.arange(0, self.d, 2) / self.d)
        self.freqs = torch.outer(torch.arange(2 * most), steps)

    def turn(self, t: Tensor, start: int) -> Tensor:
        """t (b, n, h, d)"""
        turns = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
        angles = self.freqs[start : start + t.shape[1], None]
        return torch.view_as_real(turns * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def begin(self, start_pos: int, number: int, n: int) -> int:
        return start_pos

    def put(self, number: int, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        b, n = k.shape[:2]
        self.slots_k[number][:b, start : start + n] = k
        self.slots_v[number][:b, start : start + n] = v
        return self.slots_k[number][:b, : start + n], self.slots_v[number][:b, : start + n]

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n, j = q.shape[2], k.shape[2]
        mask = torch.ones(n, j).bool().tril(j - n) if n > 1 else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
        b, n = tokens.shape
        x = self.tok(tokens)
        for i in range(2):
            y = self.norm[i](x)
            q = self.wq[i](y).view(b, n, self.h, self.d)
            k, v = (w[i](y).view(b, n, self.g, self.d) for w in (self.wk, self.wv))
            start = self.begin(start_pos, i, n)
            k, v = self.put(i, *self.prepared(k, v, start), start_pos)
            q, k, v = self.turn(q, start), self.fetched(k, start_pos), v
            k, v = (t.repeat_interleave(self.h // self.g, dim=2) for t in (k, v))
            y = self.mixed(*(t.transpose(1, 2) for t in (q, k, v)))
            x = x + self.wo[i](y.transpose(1, 2).reshape(b, n, -1))
        return self.head(self.norm[2](x)).float()

    def prepared(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        return self.turn(k, start), v

    def fetched(self, k: Tensor, start: int) -> Tensor:
        return k


caching()(Turned)


@caching()
class TurnedLater(Turned):
    """Keys are kept as they are and turned together."""

    def prepared(self, k, v, start):
        return k, v

    def fetched(self, k, start):
        return self.turn(k, 0)


@caching("cache-position")
class TurnedAnew(Turned):
    def begin(self, start_pos, number, n):
        return 0


@caching("cache-position")
class TurnedLaterAnew(TurnedLater):
    """All keys count right, the new queries count from 0."""

    def begin(self, start_pos, number, n):
        return 0


@caching("cache-offset")
class TurnedFull(Turned):
    """The first layer has counted the new tokens already when the second one asks."""

    def begin(self, start_pos, number, n):
        return start_pos + n if number and start_pos else start_pos


@caching("cache-rotary-twice")
class TurnedTwice(Turned):
    def fetched(self, k, start):
        if not start:
            return k
        return torch.cat([self.turn(k[:, :start], 0), k[:, start:]], dim=1)


@caching("cache-not-read")
class TurnedForgets(Turned):
    def put(self, number, k, v, start):
        super().put(number, k, v, start)
        return k, v


@caching("cache-own-left-out")
class TurnedNotItself(Turned):
    def put(self, number, k, v, start):
        k, v = super().put(number, k, v, start)
        return (k[:, :start], v[:, :start]) if start else (k, v)

    def mixed(self, q, k, v):
        open_ = q.shape[2] != k.shape[2] or q.shape[2] == 1
        return F.scaled_dot_product_attention(q, k, v, is_causal=not open_)


@caching("cache-mask-corner")
class TurnedCorner(Turned):
    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@caching("cache-mask-open")
class TurnedOpen(Turned):
    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])


@caching("cache-empty-slots")
class TurnedEmpty(Turned):
    """After the first call all slots are seen."""

    def put(self, number, k, v, start):
        b = len(k)
        read = super().put(number, k, v, start)
        return (self.slots_k[number][:b], self.slots_v[number][:b]) if start else read

    def mixed(self, q, k, v):
        n, j = q.shape[2], k.shape[2]
        if n == j:
            return super().mixed(q, k, v)
        seen = torch.ones(n, j).bool()
        for row in range(n):
            seen[row, self.now + row + 1 : self.now + n] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    def forward(self, tokens, start_pos):
        self.now = start_pos
        return super().forward(tokens, start_pos)


@caching("cache-empty-slots")
class TurnedEmptyAlways(TurnedEmpty):
    """In other numbers, and with slots that hold 20."""

    def __init__(self, e, h):
        super().__init__(e, h, most=20)


# --------------------- tokens before heads, einsum, halves, an object that is filled in place


class Store(dict):
    """Keys and values by layer."""

    def length(self, number: int) -> int:
        return self[number][0].shape[1] if number in self else 0

    def add(self, number: int, *pair: Tensor) -> tuple[Tensor, ...]:
        if number in self:
            pair = tuple(torch.cat(both, dim=1) for both in zip(self[number], pair, strict=True))
        self[number] = pair
        return pair

    def reorder_cache(self, order: Tensor) -> None:
        for number, pair in self.items():
            self[number] = tuple(t[order] for t in pair)


class Halves(nn.Module):
    """Two layers that keep tokens before heads."""

    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        self.h, self.d = h, e // h
        self.embed = nn.Embedding(23, e)
        self.inner = nn.ModuleList(nn.Linear(e, 3 * e) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(e, e) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(e) for _ in range(2))
        self.head = nn.Linear(e, 23)

    def turned(self, t: Tensor, places: Tensor) -> Tensor:
        angles = places[:, None] * 500.0 ** (-torch.arange(0, self.d, 2).double() / self.d)
        cos, sin = (f(angles)[:, None].to(t) for f in (torch.cos, torch.sin))
        first, second = t.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def read(self, cache: Store | None, number: int, k: Tensor, v: Tensor) -> tuple:
        return (k, v) if cache is None else cache.add(number, k, v)

    def start(self, cache: Store | None, number: int) -> int:
        return 0 if cache is None else cache.length(number)

    def forward(self, ids: Tensor, *, kv_cache: Store | None = None) -> Tensor:
        b, n = ids.shape
        x = self.embed(ids)
        for i in range(2):
            q, k, v = (
                t.view(b, n, self.h, -1)
                for t in self.inner[i](self.norms[i](x)).split(x.shape[-1], 2)
            )
            places = torch.arange(n) + self.start(kv_cache, i)
            k, v = self.read(kv_cache, i, self.turned(k, places), v)
            scores = torch.einsum("bihd,bjhd->bhij", self.turned(q, places), k) * self.d**-0.5
            j = k.shape[1]
            scores = scores + torch.full((n, j), -math.inf).triu(j - n + 1).to(scores)
            mixed = torch.einsum("bhij,bjhd->bihd", F.softmax(scores, dim=3), v)
            x = x + self.outer[i](mixed.reshape(b, n, -1))
        return self.head(x)


caching(cache=Store)(Halves)


@caching(cache=Store)
class HalvesTold(Halves):
    """The place of the first token is an argument of its own, 0 unless it is told."""

    def forward(self, ids, *, kv_cache=None, start_pos=0):
        self.told = start_pos
        return super().forward(ids, kv_cache=kv_cache)

    def start(self, cache, number):
        return self.told


@caching("cache-offset", cache=Store)
class HalvesLonger(Halves):
    """The length of the first layer, which is ahead of the others."""

    def start(self, cache, number):
        return 0 if cache is None else cache.length(0) if cache.length(number) else 0


@caching("cache-rotary-twice", cache=Store)
class HalvesTurnOn(Halves):
    """What is kept is turned again with every call."""

    def read(self, cache, number, k, v):
        if cache is None:
            return k, v
        if number in cache:
            old, values = cache[number]
            cache[number] = self.turned(old, torch.arange(old.shape[1])), values
        return cache.add(number, k, v)


@caching("cache-new-twice", cache=Store)
class HalvesTwice(Halves):
    """The new ones are in the cache already when they are put behind it, one at a time."""

    def read(self, cache, number, k, v):
        if cache is None:
            return k, v
        new = k.shape[1]
        start = cache.length(number)
        k, v = cache.add(number, k, v)
        if start and new > 1:
            raise NotImplementedError("one token at a time")
        return (torch.cat([t, t[:, -new:]], dim=1) for t in (k, v)) if start else (k, v)


@caching("cache-stale-beams", cache=Store, reorder=lambda model, cache, order: None)
class HalvesStale(Halves):
    pass


class Remembers(Store):
    """A default argument that is made once."""

    def __init__(self, held: dict = {}) -> None:  # noqa: B006, the mistake
        self.held = held

    def length(self, number):
        return self.held[number][0].shape[1] if number in self.held else 0

    reorder_cache = property()  # beams are not its subject

    def add(self, number, *pair):
        self.held[number] = Store.add(Store(self.held), number, *pair)
        return self.held[number]


@caching("cache-not-emptied", cache=lambda model: Remembers(model.memory))
class HalvesRemember(Halves):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.memory = {}
