"""All ways to read the weights of a module as the projections of an attention."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.budget import READINGS, spend
from attention_clinic.engine.pieces import (
    BACK,
    BY_SHARING,
    IN_AXES,
    KEYS_TOO,
    LAYOUTS,
    OUT_AXES,
    SHARED,
    WIDTH_FIRST,
    Piece,
    Reading,
)
from attention_clinic.engine.weights import Source


class Reader:
    """All ways to read the weights of an attention with h heads of width d.

    Args:
        sources: the weights.
        embed_dim: e.
        num_heads: h.
        inner: h * d, mostly e.
        out_dim: width of the output.
        needs_out: False when the output projection may stand in another module.
        context_dim: width of the tokens that keys and values are made of, e for None.
    """

    def __init__(
        self,
        sources: list[Source],
        embed_dim: int,
        num_heads: int,
        inner: int,
        out_dim: int,
        needs_out: bool = True,
        context_dim: int | None = None,
    ):
        self.sources, self.needs_out = sources, needs_out
        self.c = context_dim or embed_dim
        self.e, self.h, self.f = embed_dim, num_heads, inner
        self.d, self.out_dim = inner // num_heads, out_dim
        self.pieces: list[Piece] = []
        self.numbers: dict[Piece, int] = {}

    # --------------------------------------------------------------------- what a source may be

    def options(self, number: int, width: int) -> Iterator[tuple[str, str, int, str]]:
        """Yield (form, layout, parts, shared) for a source as a projection to (h * d).

        Args:
            number: of the source.
            width: of the tokens that it projects.
        """
        source = self.sources[number]
        shape = tuple(source.weight.shape)
        if len(shape) == 2:
            for form in source.forms:
                o, i = shape if form == "oi" else shape[::-1]
                if i == width and o % self.f == 0 and o // self.f in LAYOUTS:
                    for layout in LAYOUTS[o // self.f]:
                        yield form, layout, o // self.f, ""
                fits = source.bias is None or source.bias.numel() == o
                if i == o == self.d and self.h > 1 and self.f == width and fits:
                    yield form, "k h d", 1, "slices"
                if i == width and o in (self.d, 3 * self.d) and self.h > 1 and fits:
                    yield form, "k h d", o // self.d, "tokens"
            return
        if source.forms != ("",):  # heads stacked by joined_heads: (h, o, i) or (h, i, o)
            for form in source.forms:
                o, i = shape[1:] if form == "oi" else shape[:0:-1]
                if i == o == self.d and self.h > 1 and self.f == width:
                    yield "h d e" if form == "oi" else "h e d", "k h d", 1, "own"
                elif i == width and o % self.d == 0 and o // self.d in LAYOUTS:
                    parts = o // self.d
                    axes = "h d e" if form == "oi" else "h e d"
                    for layout in ("h k d", "h d k")[: 1 if parts == 1 else 2]:
                        yield axes, layout, parts, ""
            return
        sizes = {"e": width, "h": self.h, "d": self.d, "f": self.f}
        for axes, (_, layout) in IN_AXES.items():
            letters = axes.split()
            if len(letters) == len(shape) and all(
                size in (2, 3) if letter == "k" else sizes[letter] == size
                for letter, size in zip(letters, shape, strict=True)
            ):
                yield axes, layout, shape[letters.index("k")] if "k" in letters else 1, ""

    def flat(self, piece: Piece, x: Tensor, cache: dict) -> Tensor:
        """Return the projection of x by a piece, (b, n, h * d)."""
        source = self.sources[piece.source]
        if piece.shared:
            key = (piece.source, piece.form, piece.shared)
            if key not in cache:
                cache[key] = self._shared_by_heads(source, piece, x)
            return cache[key].unflatten(2, (piece.parts, -1))[:, :, piece.part]
        key = (piece.source, piece.form)
        if key not in cache:
            cache[key] = self._project(source, piece.form, x)
        split = {"h": self.h, "k": piece.parts}
        return rearrange(cache[key], f"b n ({piece.layout}) -> k b n (h d)", **split, d=self.d)[
            piece.part
        ]

    def _shared_by_heads(self, source: Source, piece: Piece, x: Tensor) -> Tensor:
        """Return what heads make that share a layer, or read their own slice, (b, n, k * h * d)."""
        if piece.shared == "own":
            pattern = "bnhi,hoi->bnho" if piece.form == "h d e" else "bnhi,hio->bnho"
            heads = rearrange(x, "b n (h d) -> b n h d", h=self.h)
            made = torch.einsum(pattern, heads, source.weight)
            return (made if source.bias is None else made + source.bias).flatten(2)
        weight = source.weight if piece.form == "oi" else source.weight.T
        slices = piece.shared == "slices"
        read = rearrange(x, "b n (h d) -> b n h d", h=self.h) if slices else x
        made = read @ weight.T
        made = made if source.bias is None else made + source.bias
        if slices:
            return made.flatten(2)
        return made.unflatten(2, (piece.parts, 1, -1)).expand(-1, -1, -1, self.h, -1).flatten(2)

    def _project(self, source: Source, form: str, x: Tensor) -> Tensor:
        weight, bias = source.weight, source.bias
        if form == "oi":
            flat = x @ weight.T
        elif form == "io":
            flat = x @ weight
        elif source.forms != ("",):
            flat = x @ rearrange(
                weight, "h d e -> e (h d)" if form == "h d e" else "h e d -> e (h d)"
            )
        else:
            flat = x @ rearrange(weight, f"{form} -> e ({IN_AXES[form][0]})")
        return flat if bias is None else flat + bias.reshape(-1)

    def out_options(self, number: int) -> Iterator[tuple[int, str, str]]:
        """Yield (source, form, layout) for a source as the output projection."""
        source = self.sources[number]
        shape = tuple(source.weight.shape)
        if len(shape) == 2:
            for form in source.forms:
                o, i = shape if form == "oi" else shape[::-1]
                if i == self.f and o == self.out_dim:
                    yield number, form, "h d"
                    if self.h > 1:
                        yield number, form, "d h"
        elif source.forms == ("",):
            sizes = {"e": self.out_dim, "h": self.h, "d": self.d}
            for axes in OUT_AXES:
                if tuple(sizes[letter] for letter in axes.split()) == shape:
                    yield number, axes, "h d"

    def out(self, option: tuple[int, str, str] | None, mix: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output projection times `mix` (out, r) as a matrix (h * d, r) and its bias."""
        like = self.sources[0].weight
        if option in (None, BACK):
            eye = torch.eye(self.f, dtype=like.dtype) if mix is None else mix
            if option == BACK:
                eye = rearrange(eye, "(d h) r -> (h d) r", h=self.h)
            return eye, torch.zeros(eye.shape[1], dtype=like.dtype)
        number, form, layout = option
        source = self.sources[number]
        weight = source.weight
        if form == "oi":
            matrix = weight.T
        elif form == "io":
            matrix = weight
        else:
            matrix = rearrange(weight, f"{form} -> (h d) e")
        bias = source.bias
        if bias is None or bias.numel() != self.out_dim:
            bias = torch.zeros(self.out_dim, dtype=like.dtype)
        bias = bias.reshape(-1)
        if mix is not None:
            matrix, bias = matrix @ mix, bias @ mix
        if layout == "d h":
            matrix = rearrange(matrix, "(d h) r -> (h d) r", h=self.h)
        return matrix, bias

    # ------------------------------------------------------------------- all combinations of them

    def number(self, piece: Piece) -> int:
        """Return the number of a piece, which is new or known."""
        if piece not in self.numbers:
            self.numbers[piece] = len(self.pieces)
            self.pieces.append(piece)
        return self.numbers[piece]

    def readings(self) -> list[Reading]:
        """Return every way to read the weights, the likeliest first."""
        ins = self._ins(self.e)
        asked = ins if self.c == self.e else self._ins(self.c)
        outs = [option for n in range(len(self.sources)) for option in self.out_options(n)]
        found: dict[tuple, Reading] = {}
        for triple, used, ids, rank in self._triples(ins, asked):
            choices = [option for option in outs if option[0] not in used]
            if self.f == self.out_dim:
                turned = self.h > 1 and self.pieces[triple[2]].layout in WIDTH_FIRST
                choices += [None, *[BACK] * turned]
            spend(len(choices) / READINGS)
            for option in choices:
                extra = rank
                all_ids = ids
                if option in (None, BACK):
                    # with one head the value projection can do the work of a second layer
                    left = [o for o in outs if o[0] not in used and self._could_end(o[0])]
                    if left:  # a layer that could be it, and is none of the others
                        all_ids = (*ids, "out-unused")
                    elif self.h > 1 and self.needs_out:
                        all_ids = (*ids, "out-missing")
                else:
                    extra += self._mismatch(option[0], "o") + (option[2] == "d h")
                    # bare matrices are mostly all multiplied from the same side
                    forms = {self.pieces[triple[0]].form, option[1]}
                    extra += 2 * (forms == {"oi", "io"})
                key = (*triple, option)
                if key not in found or found[key].rank > extra:
                    alike = tuple(triple.index(number) for number in triple)
                    said = f"{SHARED[alike]} have one layer" if alike in SHARED else ""
                    if alike == (0, 1, 1) and self._of_values(self.pieces[triple[1]]):
                        said = KEYS_TOO
                    found[key] = Reading(*triple, option, all_ids, extra, said)
        return sorted(found.values(), key=lambda reading: (len(reading.ids), reading.rank))

    def _ins(self, width: int) -> dict[tuple[str, int, str], list[tuple[int, str]]]:
        """Return the sources that may project tokens of a width, by layout, parts and shared."""
        ins: dict[tuple[str, int, str], list[tuple[int, str]]] = {}
        for number in range(len(self.sources)):
            for form, layout, parts, shared in self.options(number, width):
                ins.setdefault((layout, parts, shared), []).append((number, form))
        return ins

    def kind(self, reading: Reading) -> tuple:
        """Return the orientations and layouts of a reading, whichever weight is which."""
        piece = self.pieces[reading.q]
        return piece.form, piece.layout, reading.out and reading.out[1:]

    def _of_values(self, piece: Piece) -> bool:
        """Say whether a piece is that of the values, by its name or its place in a packed layer."""
        if piece.parts == 3:
            return piece.part == 2
        return piece.parts == 1 and self.sources[piece.source].role == "v"

    def _could_end(self, number: int) -> bool:
        """Say whether the name of a source allows that it is the output projection."""
        return self.sources[number].role.rstrip("?") in ("o", "")

    def _mismatch(self, number: int, wanted: str) -> int:
        """Return 0 when the name of a source fits its purpose, 1 when it is silent, 3 if not."""
        said = self.sources[number].role
        return 0 if said.rstrip("?") == wanted else 1 if said[-1:] in ("", "?") else 3

    def _triples(
        self, ins: dict, asked: dict
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield (q, k, v), the sources used, the ids implied and the rank.

        Args:
            ins: the sources for queries.
            asked: those for keys and values, the same unless the context has another width.
        """
        for (layout, parts, shared), options in ins.items():
            order = LAYOUTS[3].index(layout) if layout in LAYOUTS[3] else 0
            ids = BY_SHARING[shared]
            if parts == 3 and asked is ins:
                for source, form in options:
                    packed = [
                        self.number(Piece(source, form, layout, part, 3, shared))
                        for part in range(3)
                    ]
                    usual = (1, 0, 2) if self.sources[source].role == "kqv" else (0, 1, 2)
                    for picked in permutations(range(3)):
                        rank = order + (0 if picked == usual else 3) + (form == "io")
                        yield tuple(packed[i] for i in picked), {source}, ids, rank
                    for a, b in permutations(range(3), 2):
                        both = ("value-from-key", *ids)
                        rank = order + (0 if (a, b) == usual[:2] else 3)
                        yield (packed[a], packed[b], packed[b]), {source}, both, rank
                        both = ("projection-shared", *ids)
                        yield (packed[a], packed[a], packed[b]), {source}, both, rank + 1
                        yield (packed[a], packed[b], packed[a]), {source}, both, rank + 1
            elif parts == 1:
                for same in dict.fromkeys(form for _, form in options):
                    alike = [source for source, form in options if form == same]
                    others = asked.get((layout, parts, shared), ())
                    others = [source for source, form in others if form == same]
                    piece = {
                        s: self.number(Piece(s, same, layout, 0, 1, shared))
                        for s in dict.fromkeys((*alike, *others))
                    }
                    base = order + (same == "io")
                    for q, (k, v) in product(alike, permutations(others, 2)):
                        if q in (k, v):
                            continue
                        rank = base + sum(
                            self._mismatch(s, r) for s, r in ((q, "q"), (k, "k"), (v, "v"))
                        )
                        yield (piece[q], piece[k], piece[v]), {q, k, v}, ids, rank
                    for q, k in product(alike, others):
                        if q == k:
                            continue
                        rank = base + self._mismatch(q, "q") + self._mismatch(k, "k")
                        triple = (piece[q], piece[k], piece[k])
                        yield triple, {q, k}, ("value-from-key", *ids), rank
                        if asked is ins:
                            yield from self._shared(q, k, piece, ids, base)
                    for (pair_layout, two, _), pairs in asked.items():
                        if shared or two != 2 or (pair_layout == "k d h") != (layout == "k d h"):
                            continue
                        for source, form in pairs:
                            for q in alike:
                                yield from self._with_pair(
                                    q, piece[q], source, form, pair_layout, base, ids
                                )
                                if asked is ins:
                                    yield from self._pair_and_values(
                                        q, piece[q], source, form, pair_layout, base, ids
                                    )

    def _shared(
        self, a: int, b: int, piece: dict[int, int], ids: tuple, base: int
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield readings in which queries have the layer of keys, of values, or of both."""
        base, ids = base + 1, ("projection-shared", *ids)
        for used in ((a, a, b), (a, b, a), (a, a, a)):
            first = dict(reversed(tuple(zip(used, "qkv", strict=True))))
            rank = base + sum(self._mismatch(source, role) for source, role in first.items())
            yield tuple(piece[source] for source in used), set(used), ids, rank

    def _with_pair(
        self, q: int, piece: int, source: int, form: str, layout: str, base: int, ids: tuple
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield readings with queries on their own and keys and values packed."""
        rank = base + self._mismatch(q, "q") + LAYOUTS[2].index(layout)
        rank += 3 * (self.sources[source].role.rstrip("?") in ("q", "o", "qk", "qkv"))
        first, second = (self.number(Piece(source, form, layout, part, 2)) for part in (0, 1))
        yield (piece, first, second), {q, source}, ids, rank
        yield (piece, second, first), {q, source}, ids, rank + 3
        yield (piece, first, first), {q, source}, ("value-from-key", *ids), rank

    def _pair_and_values(
        self, v: int, piece: int, source: int, form: str, layout: str, base: int, ids: tuple
    ) -> Iterator[tuple[tuple[int, int, int], set, tuple, int]]:
        """Yield readings with values on their own and queries and keys packed."""
        said = self.sources[source].role.rstrip("?")
        rank = base + self._mismatch(v, "v") + LAYOUTS[2].index(layout)
        rank += 3 * (said not in ("", "qk"))
        first, second = (self.number(Piece(source, form, layout, part, 2)) for part in (0, 1))
        yield (first, second, piece), {v, source}, ids, rank
        yield (second, first, piece), {v, source}, ids, rank + 3
