"""Read the projections of an attention whose keys and values have fewer heads than its queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.pieces import Piece
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.weights import Source

# the order of the rows of one packed layer; q holds h heads, k and v hold g of them
PACKED = ("q k v", "q v k", "g q k v")


@dataclass(frozen=True)
class Rows(Piece):
    """One projection as some rows of a source.

    Args:
        rows: their numbers, () for all.
    """

    rows: tuple[int, ...] = ()


class GroupedReader(Reader):
    """All ways to read the weights of grouped queries: h heads of queries, g of keys and values.

    Args:
        sources: the weights.
        embed_dim: e.
        num_heads: h.
        num_kv_heads: g.
        inner: h * d.
        out_dim: width of the output.
        needs_out: False when the output projection may stand in another module.
    """

    def __init__(
        self,
        sources: list[Source],
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        inner: int,
        out_dim: int,
        needs_out: bool = True,
    ) -> None:
        super().__init__(sources, embed_dim, num_heads, inner, out_dim, needs_out)
        self.g = num_kv_heads

    def flat(self, piece: Piece, x: Tensor, cache: dict) -> Tensor:
        """Return the projection of x by a piece, (b, n, h * d) or (b, n, g * d)."""
        key = (piece.source, piece.form)
        if key not in cache:
            cache[key] = self._project(self.sources[piece.source], piece.form, x)
        rows = piece.rows if isinstance(piece, Rows) else ()
        return cache[key][..., list(rows)] if rows else cache[key]

    def _triples(
        self, ins: dict, asked: dict
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield (q, k, v), the sources used, the ids implied and the rank."""
        few, width = self.g * self.d, self.f
        for form in ("oi", "io"):
            turned = int(form == "io")
            singles, pairs, queries, alls = [], [], [], []
            for number, source in enumerate(self.sources):
                if source.weight.ndim != 2 or form not in source.forms:
                    continue
                o, i = source.weight.shape if form == "oi" else source.weight.shape[::-1]
                if i != self.e:
                    continue
                kinds = (
                    (few, singles),
                    (2 * few, pairs),
                    (width, queries),
                    (width + 2 * few, alls),
                )
                for size, kind in kinds:
                    if o == size:
                        kind.append(number)
            for q in queries:
                head = self.number(Rows(q, form, "k h d", 0, 1))
                rank = turned + self._mismatch(q, "q")
                for k, v in permutations([s for s in singles if s != q], 2):
                    found = [self.number(Rows(s, form, "k h d", 0, 1)) for s in (k, v)]
                    more = self._mismatch(k, "k") + self._mismatch(v, "v")
                    yield (head, *found), {q, k, v}, (), rank + more
                for k in singles:
                    if k != q:
                        found = self.number(Rows(k, form, "k h d", 0, 1))
                        more = rank + self._mismatch(k, "k")
                        yield (head, found, found), {q, k}, ("value-from-key",), more
                for pair in pairs:
                    if pair == q:
                        continue
                    for layout in ("k g d", "g k d"):
                        both = self._halves(pair, form, layout)
                        more = rank + (layout != "k g d") + self._mismatch(pair, "kv")
                        yield (head, *both), {q, pair}, (), more
                        yield (head, *both[::-1]), {q, pair}, (), more + 3
            for packed in alls:
                for number, layout in enumerate(PACKED):
                    rank = turned + number + self._mismatch(packed, "qkv")
                    yield self._packed(packed, form, layout), {packed}, (), rank

    def _halves(self, source: int, form: str, layout: str) -> list[int]:
        """Return the pieces of keys and values that share a source."""
        rows = torch.arange(2 * self.g * self.d)
        parts = rearrange(rows, f"({layout}) -> k (g d)", k=2, g=self.g, d=self.d)
        return [
            self.number(Rows(source, form, layout, part, 2, rows=tuple(parts[part].tolist())))
            for part in (0, 1)
        ]

    def _packed(self, source: int, form: str, layout: str) -> tuple[int, int, int]:
        """Return the pieces of queries, keys and values that share a source."""
        few, rows = self.g * self.d, torch.arange(self.f + 2 * self.g * self.d)
        if layout == "g q k v":  # in each group its queries, then its key, then its value
            groups = rearrange(rows, "(g s d) -> g s d", g=self.g, d=self.d)
            q, k, v = groups[:, :-2], groups[:, -2], groups[:, -1]
        else:
            q, k, v = rows.split([self.f, few, few])
            k, v = (v, k) if layout == "q v k" else (k, v)
        return tuple(
            self.number(Rows(source, form, layout, part, 3, rows=tuple(t.flatten().tolist())))
            for part, t in enumerate((q, k, v))
        )


class WideValueReader(GroupedReader):
    """All ways to read the weights where a head of values has another width than one of keys.

    Args:
        sources: the weights.
        embed_dim: e.
        num_heads: h.
        keys: h times the width of a key.
        values: h times the width of a value.
        out_dim: width of the output.
        needs_out: as in `Reader`.
        context_dim: as in `Reader`.
    """

    def __init__(
        self,
        sources: list[Source],
        embed_dim: int,
        num_heads: int,
        keys: int,
        values: int,
        out_dim: int,
        needs_out: bool,
        context_dim: int | None = None,
    ) -> None:
        super().__init__(sources, embed_dim, num_heads, num_heads, values, out_dim, needs_out)
        self.c = context_dim or embed_dim
        self.keys, self.d = keys, keys // num_heads

    def _triples(
        self, ins: dict, asked: dict
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield (q, k, v), the sources used, the ids implied and the rank."""
        for form in ("oi", "io"):
            made = [
                (number, *(s.weight.shape if form == "oi" else s.weight.shape[::-1]))
                for number, s in enumerate(self.sources)
                if s.weight.ndim == 2 and form in s.forms
            ]
            queries = [number for number, o, i in made if (o, i) == (self.keys, self.e)]
            keys = [number for number, o, i in made if (o, i) == (self.keys, self.c)]
            values = [number for number, o, i in made if (o, i) == (self.f, self.c)]
            for q, k, v in product(queries, keys, values):
                if q == k:
                    continue
                triple = tuple(self.number(Rows(s, form, "k h d", 0, 1)) for s in (q, k, v))
                wanted = ((q, "q"), (k, "k"), (v, "v"))
                rank = int(form == "io") + sum(self._mismatch(s, role) for s, role in wanted)
                yield triple, {q, k, v}, (), rank
            for number, o, i in made if self.c == self.e else ():
                if (o, i) == (2 * self.keys + self.f, self.e):
                    rank = int(form == "io") + self._mismatch(number, "qkv")
                    yield self._one(number, form, True), {number}, (), rank
                    yield self._one(number, form, False), {number}, (), rank + 1

    def _one(self, source: int, form: str, by_head: bool) -> tuple[int, int, int]:
        """Return the pieces of a packed layer, which are cut in each head or over all."""
        rows, sizes = torch.arange(2 * self.keys + self.f), [self.keys, self.keys, self.f]
        if by_head:
            rows, sizes = rows.view(self.h, -1), [size // self.h for size in sizes]
        return tuple(
            self.number(Rows(source, form, "", part, 3, rows=tuple(cut.flatten().tolist())))
            for part, cut in enumerate(rows.split(sizes, dim=-1))
        )


def wide_value_readers(
    sources: list[Source],
    embed_dim: int,
    num_heads: int,
    out_dim: int,
    needs_out: bool,
    context_dim: int | None,
) -> Iterator[WideValueReader]:
    """Yield a reader for each pair of widths, of keys and of values, that the weights allow."""
    sources = [_in_rows(source, num_heads) for source in sources]
    sizes = {size for s in sources if s.weight.ndim == 2 for size in s.weight.shape}
    fitting = sorted(size for size in sizes if size % num_heads == 0)
    pairs = [*permutations(fitting, 2)]
    for total, values in permutations(sorted(sizes), 2):  # all packed in one layer
        keys = (total - values) // 2
        if total > values and (total - values) % 2 == keys % num_heads == values % num_heads == 0:
            pairs.append((keys, values))
    for keys, values in dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]):
        yield WideValueReader(
            sources, embed_dim, num_heads, keys, values, out_dim, needs_out, context_dim
        )


def _in_rows(source: Source, num_heads: int) -> Source:
    """Return the layers of heads that were stacked, (h, o, i), as one layer (h * o, i)."""
    weight, bias = source.weight, source.bias
    if weight.ndim != 3 or source.forms != ("oi",) or len(weight) != num_heads:
        return source
    bias = None if bias is None else bias.flatten()
    return replace(source, weight=weight.flatten(0, 1), bias=bias)


def grouped_readers(
    sources: list[Source],
    embed_dim: int,
    num_heads: int,
    num_kv_heads: int | None,
    out_dim: int,
    needs_out: bool,
) -> Iterator[GroupedReader]:
    """Yield a reader for each width of a head and number of key heads that the weights allow.

    Args:
        sources: the weights.
        embed_dim: e.
        num_heads: h.
        num_kv_heads: g; None tries all that divide h.
        out_dim: width of the output.
        needs_out: as in `Reader`.
    """
    divisors = [g for g in range(1, num_heads) if num_heads % g == 0]
    shared = divisors if num_kv_heads is None else [num_kv_heads]
    sizes = {size for s in sources if s.weight.ndim == 2 for size in s.weight.shape}
    for inner in sorted(sizes, reverse=True):
        if inner % num_heads:
            continue
        for g in shared:
            few = g * inner // num_heads
            if few in sizes or 2 * few in sizes:
                yield GroupedReader(sources, embed_dim, num_heads, g, inner, out_dim, needs_out)
    for total in sorted(sizes):  # all packed in one layer: (h + 2 g) d rows
        for g in shared:
            if total % (num_heads + 2 * g) == 0:
                inner = num_heads * total // (num_heads + 2 * g)
                if inner in sizes:
                    yield GroupedReader(sources, embed_dim, num_heads, g, inner, out_dim, needs_out)
