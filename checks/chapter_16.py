"""Checks of the exercises of chapter 16: fast attention."""

from __future__ import annotations

import torch
from einops import einsum, rearrange
from torch import Tensor

from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.results import Tables
from checks.engine.verdict import exercise, open_exercise
from utils.cache import KeyValueCache
from utils.modern_decoder import GroupedQueryAttention


@exercise("16.1", "Which shape, how many bytes?")
def which_shape(new_keys_shape, all_keys_shape, scores_shape, cache_bytes) -> Message:
    written(new_keys_shape, all_keys_shape, scores_shape, cache_bytes)
    layer, cache = GroupedQueryAttention(96, 12, 4, head_dim=8), KeyValueCache()
    for start, n in ((0, 32), (32, 1)):
        tokens, positions = torch.zeros(5, n, 96), torch.arange(start, start + n)
        layer(tokens, positions=positions, cache=cache)
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


def joined(
    top_1: Tensor, total_1: Tensor, mixed_1: Tensor, top_2: Tensor, total_2: Tensor, mixed_2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    top = torch.maximum(top_1, top_2)
    one, two = (top_1 - top).exp(), (top_2 - top).exp()
    total = total_1 * one + total_2 * two
    mixed = mixed_1 * one + mixed_2 * two
    return top, total, mixed


TOP, FACTORS = "torch.maximum(top_1, top_2)", "(top_1 - top).exp(), (top_2 - top).exp()"
JOIN_MISTAKES = patches(
    joined,
    {
        "halves-not-shrunk": (FACTORS, "1, 1"),
        "only-total-shrinks": ("mixed_1 * one + mixed_2 * two", "mixed_1 + mixed_2"),
        "only-mixed-shrinks": ("total_1 * one + total_2 * two", "total_1 + total_2"),
        "halves-grow": (FACTORS, "(top - top_1).exp(), (top - top_2).exp()"),
        "factors-exchanged": ("one, two =", "two, one ="),
        "factors-without-exp": (".exp()", ""),
        "relative-to-nothing": (" - top)", ")"),
        "divided-after-exp": (FACTORS, "top_1.exp() / top.exp(), top_2.exp() / top.exp()"),
        "mixed-is-divided": ("total, mixed", "total, mixed / total"),
        "halves-are-divided": (
            *("mixed_1 *", "mixed_1 / total_1 *"),
            *("mixed_2 *", "mixed_2 / total_2 *"),
        ),
        "relative-to-smaller": ("maximum", "minimum"),
        "relative-to-first": (TOP, "top_1"),
        "relative-to-second": (TOP, "top_2"),
        "relative-to-mean": (TOP, "(top_1 + top_2) / 2"),
        "relative-to-all-queries": (TOP, f"{TOP}.max().expand_as(top_1)"),
    },
)


@exercise("16.2", "Join two halves")
def join_two_halves(join) -> Message:
    def inputs(case: Case) -> tuple:
        halves = []
        for letter in ("j", "l"):
            queries, keys = case.randn("b h i d"), case.randn(f"b h {letter} d")
            scores = 3 * queries @ keys.mT
            scores[:, :, 0] += 1000  # exp(1000) overflows
            top = scores.amax(dim=-1, keepdim=True)
            weights = (scores - top).exp()
            values = weights @ case.randn(f"b h {letter} d")
            halves += [top, weights.sum(dim=-1, keepdim=True), values]
        return tuple(halves)

    return same_function(join, joined, inputs, mistakes=JOIN_MISTAKES, gradients=False)


# ------------------------------------------------------------------------------------ tiles


def attended(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """Attend from the last i of j tokens, with the whole table."""
    i, j = q.shape[2], k.shape[2]
    scores = q @ k.mT / q.shape[3] ** 0.5
    future = torch.arange(j) > j - i + torch.arange(i)[:, None]
    scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1) @ v


def tiled(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """Attend tile by tile, up to the last tile that a block of queries attends to."""
    parts, j = [], k.shape[2]
    positions = j - q.shape[2] + torch.arange(q.shape[2])
    for rows, position in zip(q.split(size, dim=2), positions.split(size), strict=True):
        top = rows.new_full((*rows.shape[:3], 1), -torch.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
        for start in range(0, int(position.max()) + 1, size):
            part = slice(start, start + size)
            scores = rows @ k[:, :, part].mT / rows.shape[3] ** 0.5
            future = torch.arange(j)[part] > position[:, None]
            scores = scores.masked_fill(future, -torch.inf)
            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            shrink, weights = (top - higher).exp(), (scores - higher).exp()
            total = total * shrink + weights.sum(dim=-1, keepdim=True)
            mixed = mixed * shrink + weights @ v[:, :, part]
            top = higher
        parts.append(mixed / total)
    return torch.cat(parts, dim=2)


ALL_TILES = ("(0, int(position.max()) + 1, size)", "(0, j, size)")
TILE_MISTAKES = patches(
    attended,
    {
        "corner-at-top-left": ("j - i + ", ""),
        "no-causal-mask": (".masked_fill(future, -torch.inf)", ""),
        "future-scores-zero": ("-torch.inf)", "0.0)"),
        "not-its-own-key": (
            *("j - i +", "j - i - 1 +"),
            *("softmax(dim=-1)", "softmax(dim=-1).nan_to_num()"),
        ),
        "sees-one-key-too-many": ("j - i +", "j - i + 1 +"),
        "tiles-scores-not-divided": (" / q.shape[3] ** 0.5", ""),
        "scores-divided-twice": ("** 0.5", ""),
        "tiles-not-joined": (
            "scores.softmax(dim=-1) @ v",
            "sum(s.softmax(dim=-1).nan_to_num() @ values for s, values in"
            " zip(scores.split(size, dim=-1), v.split(size, dim=2)))",
        ),
    },
) | patches(
    tiled,
    {
        "no-causal-mask-in-tiles": (".masked_fill(future, -torch.inf)", ""),
        "future-scores-zero-in-tiles": ("future, -torch.inf", "future, 0.0"),
        "sees-one-key-too-many-in-tiles": ("> position[:, None]", "> position[:, None] + 1"),
        "keys-counted-in-tile": (*ALL_TILES, "(j)[part]", "(scores.shape[3])"),
        "queries-counted-in-tile": (*ALL_TILES, "> position[", "> positions[: len(position)]["),
        "tiles-mixed-not-shrunk": ("mixed * shrink", "mixed"),
        "tiles-total-not-shrunk": ("total * shrink", "total"),
        "tiles-not-divided": ("mixed / total", "mixed"),
    },
)


TILED_D = 3  # the head dimension in the traced call: every table is wider


@exercise("16.3", "Causal tiles")
def causal_tiles(attend_back) -> Message:
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


# ---------------------------------------------------------------------------- integers


def quantized(x: Tensor, weight: Tensor) -> Tensor:
    x_scale = x.abs().amax(dim=-1, keepdim=True) / 127
    scale = weight.abs().amax(dim=-1, keepdim=True) / 127
    int_x, int_weight = (x / x_scale).round(), (weight / scale).round()
    return int_x @ int_weight.mT * x_scale * scale.mT


QUANTIZED_MISTAKES = patches(
    quantized,
    {
        "one-scale-for-all-tokens": ("x.abs().amax(dim=-1, keepdim=True)", "x.abs().max()"),
        "one-scale-for-each-text": ("x.abs().amax(dim=-1", "x.abs().amax(dim=(1, 2)"),
        # the columns are rescaled before the product
        "scale-of-columns-of-x": (
            *("x.abs().amax(dim=-1", "x.abs().amax(dim=1"),
            *(" * x_scale", "", "(x / x_scale).round()", "(x / x_scale).round() * x_scale"),
        ),
        "one-scale-for-all-rows": ("weight.abs().amax(dim=-1", "weight.abs().amax(dim=(0, 1)"),
        "scale-without-abs": (".abs()", ""),
        "not-rounded": (".round()", ""),
        "cut-off-not-rounded": (".round()", ".trunc()"),
        "rounded-down": (".round()", ".floor()"),
        "up-to-128": ("127", "128"),
        "up-to-255": ("127", "255"),
        "scale-of-x-is-missing": (" * x_scale", ""),
        "scale-of-weight-is-missing": (" * scale.mT", ""),
        "scales-are-missing": (" * x_scale * scale.mT", ""),
        "sums-in-eight-bits": (
            "int_x @ int_weight.mT",
            "(int_x @ int_weight.mT).long().to(torch.int8)",
        ),
        "only-weight-is-whole": ("int_x @", "x @", " * x_scale", ""),
        "only-x-is-whole": ("@ int_weight", "@ weight", " * scale.mT", ""),
    },
)


@exercise("16.4", "Integers times integers")
def integers_times_integers(int8_linear) -> Message:
    return same_function(
        int8_linear,
        quantized,
        lambda case: (case.randn("b n e"), case.randn("o e")),
        mistakes=QUANTIZED_MISTAKES,
        loops="forbidden",
        gradients=False,
        trials=Trials(5),
    )


# ------------------------------------------------------------------------------------ beams

Layers = list[tuple[Tensor, Tensor]]


def followed(layers: Layers, parents: Tensor) -> Layers:
    moved = []
    for k, v in layers:
        moved.append((k[parents], v[parents]))
    return moved


PAIR = "k[parents], v[parents]"
BEAM_MISTAKES = patches(
    followed,
    {
        "rows-overwritten": (
            f"moved.append(({PAIR}))",
            "for row, parent in enumerate(parents):\n"
            "            k[row], v[row] = k[parent], v[parent]\n"
            "        moved.append((k, v))",
        ),
        "values-stay": (PAIR, "k[parents], v"),
        "keys-stay": (PAIR, "k, v[parents]"),
        "later-layers-stay": (
            *("in layers:", "in layers[:1]:"),
            *("return moved", "return moved + layers[1:]"),
        ),
        "nothing-follows": (PAIR, "k, v"),
        "beams-go-to-parents": (PAIR, "k.index_copy(0, parents, k), v.index_copy(0, parents, v)"),
        "wide-keys-values-exchanged": (PAIR, "v[parents], k[parents]"),
        "heads-follow": (PAIR, "k[:, parents % k.shape[1]], v[:, parents % v.shape[1]]"),
    },
)


@exercise("16.5", "Find the bug")
def find_the_bug(follow) -> Message:
    def inputs(case: Case) -> tuple:
        layers = [(case.randn("w h c d"), case.randn("w h c d")) for _ in range(3)]
        parents = case.integers("w", 0, case["w"])
        parents[:2] = torch.tensor([case["w"] - 1, 0])  # row 0 is overwritten, then read
        return layers, parents

    return same_function(follow, followed, inputs, mistakes=BEAM_MISTAKES, trials=Trials(5))


# ---------------------------------------------------------------------------- unequal batches


def factors(sizes: list[int]) -> Tensor:
    counts = torch.tensor(sizes, dtype=torch.float32)
    return counts * len(sizes) / counts.sum()


FACTOR_MISTAKES = {
    "division-by-processes-forgotten": lambda sizes: factors(sizes) / len(sizes),
    "shares-count-alike": lambda sizes: torch.ones(len(sizes)),
    "factor-upside-down": [
        lambda sizes: 1 / factors(sizes),
        lambda sizes: sum(sizes) / torch.tensor(sizes),
    ],
    "sizes-not-divided": lambda sizes: torch.tensor(sizes, dtype=torch.float32),
    "divided-by-largest-share": lambda sizes: torch.tensor(sizes) / max(sizes),
    "divided-by-smallest-share": lambda sizes: torch.tensor(sizes) / min(sizes),
}


@exercise("16.6", "Unequal batches")
def unequal_batches(factors_answer) -> Message:
    return same_function(
        factors_answer,
        factors,
        lambda case: ([case.random.randrange(1, 40) for _ in range(case.random.randrange(2, 7))],),
        mistakes=FACTOR_MISTAKES,
        gradients=False,
        trials=Trials(6),
    )


open_exercise("16.7", "When does a draft pay?")
