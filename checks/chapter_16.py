"""Checks of the exercises of chapter 16: fast attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import einsum, rearrange
from torch import Tensor

from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.results import Tables
from checks.engine.verdict import exercise, open_exercise
from utils.cache import KeyValueCache
from utils.modern_decoder import GroupedQueryAttention


@exercise("16.1", "Which shape, how many bytes?")
def which_shape(new_keys_shape, all_keys_shape, scores_shape, cache_bytes) -> Message:
    written(new_keys_shape, all_keys_shape, scores_shape, cache_bytes)
    layer, cache = GroupedQueryAttention(96, 12, 4, head_dim=8), KeyValueCache()
    for start, n in ((0, 32), (32, 1)):
        tokens, places = torch.zeros(5, n, 96), torch.arange(start, start + n)
        layer(tokens, positions=places, cache=cache)
    new = rearrange(layer.k_proj(tokens), "b n (g d) -> b g n d", g=4)
    queries = rearrange(layer.q_proj(tokens), "b n (h d) -> b h n d", h=12)
    keys, _ = cache.update(layer, new[:, :, :0], new[:, :, :0])
    scores = einsum(queries, keys.repeat_interleave(3, dim=1), "b h i d, b h j d -> b h i j")
    same_shape(new_keys_shape, new.shape, "b g n d")
    same_shape(all_keys_shape, keys.shape, "b g n d")
    same_shape(scores_shape, scores.shape, "b h i j")
    held = 6 * cache.nbytes
    same_number(
        cache_bytes,
        held,
        0.5,
        "bytes-of-the-cache",
        known={
            held // 2: "keys-and-values-are-kept",
            held // 6: "cache-of-every-layer",
            held // 12: "cache-of-every-layer-both",
            held // 5: "cache-of-every-text",
            held // 33: "cache-of-every-token",
            held // 33 * 20: "cache-of-later-tokens",
            held // 33 * 13: "cache-of-earlier-tokens",
            held // 33 * 32: "cache-of-last-token",
            held // 4: "cache-in-bytes",
            3 * held: "cache-keeps-no-queries",
        },
    )
    return message("cache-shapes-right")


# ------------------------------------------------------------------------------- two halves

State = tuple[Tensor, Tensor, Tensor]


def joined(
    top_1: Tensor, total_1: Tensor, mixed_1: Tensor, top_2: Tensor, total_2: Tensor, mixed_2: Tensor
) -> State:
    top = torch.maximum(top_1, top_2)
    one, two = (top_1 - top).exp(), (top_2 - top).exp()
    return top, total_1 * one + total_2 * two, mixed_1 * one + mixed_2 * two


def by_factors(factors: Callable[[Tensor, Tensor, Tensor], tuple]) -> Callable[..., State]:
    """A join that brings the halves to one maximum by factors of its own."""

    def wrong(top_1, total_1, mixed_1, top_2, total_2, mixed_2) -> State:
        top = torch.maximum(top_1, top_2)
        a, b, c, d = factors(top_1, top_2, top)
        return top, total_1 * a + total_2 * b, mixed_1 * c + mixed_2 * d

    return wrong


def divided(*state: Tensor) -> State:
    top, total, mixed = joined(*state)
    return top, total, mixed / total


def of_divided(top_1, total_1, mixed_1, top_2, total_2, mixed_2) -> State:
    return joined(top_1, total_1, mixed_1 / total_1, top_2, total_2, mixed_2 / total_2)


def relative_to(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., State]:
    """A join, right but for the number that its sums are relative to."""

    def wrong(top_1, total_1, mixed_1, top_2, total_2, mixed_2) -> State:
        top = choose(top_1, top_2)
        one, two = (top_1 - top).exp(), (top_2 - top).exp()
        return top, total_1 * one + total_2 * two, mixed_1 * one + mixed_2 * two

    return wrong


JOIN_MISTAKES = {
    "halves-not-shrunk": by_factors(lambda a, b, top: (1, 1, 1, 1)),
    "only-total-shrinks": by_factors(lambda a, b, top: ((a - top).exp(), (b - top).exp(), 1, 1)),
    "only-mixed-shrinks": by_factors(lambda a, b, top: (1, 1, (a - top).exp(), (b - top).exp())),
    "halves-grow": by_factors(lambda a, b, top: 2 * ((top - a).exp(), (top - b).exp())),
    "factors-exchanged": by_factors(lambda a, b, top: 2 * ((b - top).exp(), (a - top).exp())),
    "factors-without-exp": by_factors(lambda a, b, top: 2 * (a - top, b - top)),
    "relative-to-nothing": by_factors(lambda a, b, top: 2 * (a.exp(), b.exp())),
    "mixed-is-divided": divided,
    "halves-are-divided": of_divided,
    "relative-to-smaller": relative_to(torch.minimum),
    "relative-to-first": relative_to(lambda a, b: a),
    "relative-to-second": relative_to(lambda a, b: b),
    "relative-to-mean": relative_to(lambda a, b: (a + b) / 2),
    "relative-to-all-queries": relative_to(lambda a, b: torch.maximum(a, b).max().expand_as(a)),
}


@exercise("16.2", "Join two halves")
def join_two_halves(join) -> Message:
    def inputs(case: Case) -> tuple:
        halves = []
        for letter in ("j", "l"):
            scores = 3 * einsum(
                case.randn("b h i d"), case.randn(f"b h {letter} d"), "b h i d, b h j d -> b h i j"
            )
            top = scores.amax(dim=-1, keepdim=True)
            weights = (scores - top).exp()
            halves += [
                top,
                weights.sum(dim=-1, keepdim=True),
                weights @ case.randn(f"b h {letter} d"),
            ]
        return tuple(halves)

    return same_function(
        join, joined, inputs, mistakes=JOIN_MISTAKES, loops="forbidden", gradients=False
    )


# ------------------------------------------------------------------------------------ tiles


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: int,
    *,
    offset: Callable[[int, int], int] = lambda i, j: j - i,
    width: float = 1.0,
    own: int = 0,
) -> Tensor:
    """Attend from the last i of j tokens, in the open form."""
    i, j = q.shape[2], k.shape[2]
    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / (q.shape[3] ** 0.5 * width)
    places = offset(i, j) + torch.arange(i)[:, None] + own
    scores = scores.masked_fill(torch.arange(j) > places, -torch.inf)
    return einsum(scores.softmax(dim=-1).nan_to_num(), v, "b h i j, b h j d -> b h i d")


def of_last_tile(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """The sum over tiles of what each tile alone attends to: the sums are not joined."""
    i, j = q.shape[2], k.shape[2]
    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[3] ** 0.5
    scores = scores.masked_fill(torch.arange(j) > j - i + torch.arange(i)[:, None], -torch.inf)
    parts = zip(scores.split(size, dim=-1), v.split(size, dim=2), strict=True)
    return sum(part.softmax(dim=-1).nan_to_num() @ values for part, values in parts)


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: int,
    *,
    own: float = 0,
    shrink_total: bool = True,
    shrink_mixed: bool = True,
    divide: bool = True,
) -> Tensor:
    """Attend tile by tile, up to the last tile that a block of queries sees."""
    parts, j = [], k.shape[2]
    places = j - q.shape[2] + torch.arange(q.shape[2])
    for rows, place in zip(q.split(size, dim=2), places.split(size), strict=True):
        top = rows.new_full((*rows.shape[:3], 1), -torch.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
        for start in range(0, int(place.max()) + 1, size):
            part = slice(start, start + size)
            scores = einsum(rows, k[:, :, part], "b h i d, b h j d -> b h i j")
            scores = scores / rows.shape[3] ** 0.5
            future = torch.arange(j)[part] > place[:, None] + own
            scores = scores.masked_fill(future, -torch.inf)
            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            shrink, weights = (top - higher).exp(), (scores - higher).exp()
            total = total * (shrink if shrink_total else 1) + weights.sum(dim=-1, keepdim=True)
            mixed = mixed * (shrink if shrink_mixed else 1) + weights @ v[:, :, part]
            top = higher
        parts.append(mixed / total if divide else mixed)
    return torch.cat(parts, dim=2)


def of_tiles(**options: object) -> Callable[..., Tensor]:
    return lambda q, k, v, size: tiled(q, k, v, size, **options)


def of_open_form(**options: object) -> Callable[..., Tensor]:
    return lambda q, k, v, size: attended(q, k, v, size, **options)


TILE_MISTAKES = {
    "corner-at-top-left": of_open_form(offset=lambda i, j: 0),
    "no-causal-mask": of_open_form(offset=lambda i, j: j),
    "no-causal-mask-in-tiles": of_tiles(own=torch.inf),
    "not-its-own-key": of_open_form(own=-1),
    "sees-one-key-too-many": of_open_form(own=1),
    "sees-one-key-too-many-in-tiles": of_tiles(own=1),
    "tiles-scores-not-divided": lambda q, k, v, size: attended(
        q, k, v, size, width=q.shape[3] ** -0.5
    ),
    "scores-divided-twice": lambda q, k, v, size: attended(q, k, v, size, width=q.shape[3] ** 0.5),
    "tiles-not-joined": of_last_tile,
    "tiles-mixed-not-shrunk": of_tiles(shrink_mixed=False),
    "tiles-total-not-shrunk": of_tiles(shrink_total=False),
    "tiles-not-divided": of_tiles(divide=False),
}


TILED_D = 3  # the width of a head in the call that is watched: no table is as narrow


@exercise("16.3", "Tiles that look back")
def tiles_that_look_back(attend_back) -> Message:
    def inputs(case: Case) -> tuple:
        q, k, v = case.randn("b h i d"), case.randn("b h (i 2) d"), case.randn("b h (i 2) d")
        extra = case.random.randrange(0, case["i"] + 1)
        j = case["i"] + extra
        return q, k[:, :, :j], v[:, :, :j], case.random.randint(2, 4)

    said = same_function(
        attend_back, attended, inputs, mistakes=TILE_MISTAKES, trials=Trials(5), gradients=False
    )
    q, k, v = (torch.randn(2, 2, n, TILED_D) for n in (24, 40, 40))
    with torch.no_grad(), Tables(8, TILED_D) as tables:
        run(attend_back, (q, k, v, 8))
    if tables.found:
        noticed(Wrong(message("holds-a-table", rows=tables.found[0], columns=tables.found[1])))
    return said


# ---------------------------------------------------------------------------- whole numbers


def whole(
    x: Tensor,
    weight: Tensor,
    *,
    of_x: Callable[[Tensor], Tensor] = lambda x: x.abs().amax(dim=-1, keepdim=True),
    of_weight: Callable[[Tensor], Tensor] = lambda w: w.abs().amax(dim=-1, keepdim=True),
    rounded: Callable[[Tensor], Tensor] = torch.round,
    largest: int = 127,
    scales: str = "both",
) -> Tensor:
    x_scale, scale = of_x(x) / largest, of_weight(weight) / largest
    product = einsum(rounded(x / x_scale), rounded(weight / scale), "b n e, o e -> b n o")
    if scales in ("both", "x"):
        product = product * x_scale
    if scales in ("both", "weight"):
        product = product * scale.mT
    return product


def of_whole(**options: object) -> Callable[..., Tensor]:
    return lambda x, weight: whole(x, weight, **options)


def in_eight_bits(x: Tensor, weight: Tensor) -> Tensor:
    """Products and sums that are kept in int8, where they wrap around."""
    result = whole(x, weight, scales="none")
    wrapped = result.to(torch.int64).to(torch.int8).to(x)
    scales = (part.abs().amax(dim=-1, keepdim=True) / 127 for part in (x, weight))
    x_scale, scale = scales
    return wrapped * x_scale * scale.mT


WHOLE_MISTAKES = {
    "one-scale-for-all-tokens": of_whole(of_x=lambda x: x.abs().max()[None, None]),
    "one-scale-for-each-text": of_whole(of_x=lambda x: x.abs().amax(dim=(1, 2), keepdim=True)),
    "scale-of-columns-of-x": lambda x, weight: whole_by_columns(x, weight),
    "one-scale-for-all-rows": of_whole(of_weight=lambda w: w.abs().max()[None, None]),
    "scale-without-abs": of_whole(
        of_x=lambda x: x.amax(dim=-1, keepdim=True),
        of_weight=lambda w: w.amax(dim=-1, keepdim=True),
    ),
    "not-rounded": of_whole(rounded=lambda x: x),
    "cut-off-not-rounded": of_whole(rounded=torch.trunc),
    "rounded-down": of_whole(rounded=torch.floor),
    "up-to-128": of_whole(largest=128),
    "up-to-255": of_whole(largest=255),
    "scale-of-x-is-missing": of_whole(scales="weight"),
    "scale-of-weight-is-missing": of_whole(scales="x"),
    "scales-are-missing": of_whole(scales="none"),
    "sums-in-eight-bits": in_eight_bits,
    "only-weight-is-whole": lambda x, weight: einsum(
        x,
        (weight / (s := weight.abs().amax(dim=-1, keepdim=True) / 127)).round() * s,
        "b n e, o e -> b n o",
    ),
    "only-x-is-whole": lambda x, weight: einsum(
        (x / (s := x.abs().amax(dim=-1, keepdim=True) / 127)).round() * s,
        weight,
        "b n e, o e -> b n o",
    ),
}


def whole_by_columns(x: Tensor, weight: Tensor) -> Tensor:
    """Whole numbers by the largest value of each column of x, put back before the product."""
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    rows = weight.abs().amax(dim=-1, keepdim=True) / 127
    back = (x / scale).round() * scale
    return einsum(back, (weight / rows).round() * rows, "b n e, o e -> b n o")


@exercise("16.4", "Whole numbers times whole numbers")
def whole_times_whole(whole_linear) -> Message:
    return same_function(
        whole_linear,
        whole,
        lambda case: (case.randn("b n e"), case.randn("o e")),
        mistakes=WHOLE_MISTAKES,
        loops="forbidden",
        gradients=False,
        trials=Trials(5),
    )


# ------------------------------------------------------------------------------------ beams

Layers = list[tuple[Tensor, Tensor]]


def followed(layers: Layers, parents: Tensor) -> Layers:
    return [(k[parents], v[parents]) for k, v in layers]


def one_by_one(layers: Layers, parents: Tensor) -> Layers:
    result = []
    for pair in layers:
        pair = tuple(part.clone() for part in pair)
        for row, parent in enumerate(parents.tolist()):
            for part in pair:
                part[row] = part[parent].clone()
        result.append(pair)
    return result


def only(which: Callable[[int, int], bool]) -> Callable[[Layers, Tensor], Layers]:
    """Beams that take along only some of (layer number, 0 for keys or 1 for values)."""
    return lambda layers, parents: [
        tuple(part[parents] if which(n, m) else part.clone() for m, part in enumerate(pair))
        for n, pair in enumerate(layers)
    ]


def scattered(layers: Layers, parents: Tensor) -> Layers:
    result = []
    for pair in layers:
        moved = tuple(part.clone() for part in pair)
        for row, parent in enumerate(parents.tolist()):
            for new, old in zip(moved, pair, strict=True):
                new[parent] = old[row]
        result.append(moved)
    return result


BEAM_MISTAKES = {
    "rows-overwritten": one_by_one,
    "values-stay": only(lambda layer, part: part == 0),
    "keys-stay": only(lambda layer, part: part == 1),
    "later-layers-stay": only(lambda layer, part: layer == 0),
    "nothing-follows": only(lambda layer, part: False),
    "beams-go-to-parents": scattered,
    "wide-keys-values-exchanged": lambda layers, parents: [
        (v[parents], k[parents]) for k, v in layers
    ],
    "heads-follow": lambda layers, parents: [
        (k[:, parents % k.shape[1]], v[:, parents % v.shape[1]]) for k, v in layers
    ],
}


@exercise("16.5", "Find the bug")
def find_the_bug(follow) -> Message:
    def inputs(case: Case) -> tuple:
        layers = [(case.randn("w h c d"), case.randn("w h c d")) for _ in range(3)]
        parents = case.integers("w", 0, case["w"])
        parents[:2] = torch.tensor([case["w"] - 1, 0])  # row 0 is overwritten, then read
        return layers, parents

    return same_function(follow, followed, inputs, mistakes=BEAM_MISTAKES, trials=Trials(5))


# ---------------------------------------------------------------------------- unequal shares


def factors(sizes: list[int]) -> Tensor:
    counts = torch.tensor(sizes, dtype=torch.float32)
    return counts * len(sizes) / counts.sum()


FACTOR_MISTAKES = {
    "division-by-processes-forgotten": lambda sizes: factors(sizes) / len(sizes),
    "shares-count-alike": lambda sizes: torch.ones(len(sizes)),
    "factor-upside-down": lambda sizes: 1 / factors(sizes),
    "sizes-not-divided": lambda sizes: torch.tensor(sizes, dtype=torch.float32),
    "divided-by-largest-share": lambda sizes: torch.tensor(sizes) / max(sizes),
}


@exercise("16.6", "Unequal shares")
def unequal_shares(factors_answer) -> Message:
    return same_function(
        factors_answer,
        factors,
        lambda case: ([case.random.randrange(1, 40) for _ in range(case.random.randrange(2, 7))],),
        mistakes=FACTOR_MISTAKES,
        gradients=False,
        trials=Trials(6),
    )


open_exercise("16.7", "When does a draft pay?")
