"""Checks of the exercises of chapter 13: the modern decoder."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.verdict import exercise, open_exercise
from utils.modern_decoder import GroupedQueryAttention


@exercise("13.1", "Which shape, and how much is kept?")
def which_shape(k_weight_shape, queries_shape, keys_shape, kept_numbers) -> Message:
    written(k_weight_shape, queries_shape, keys_shape, kept_numbers)
    layer, tokens = GroupedQueryAttention(40, 6, 2, head_dim=8), torch.zeros(3, 11, 40)
    queries = rearrange(layer.q_proj(tokens), "b n (h d) -> b h n d", h=6)
    keys = rearrange(layer.k_proj(tokens), "b n (g d) -> b g n d", g=2)
    same_shape(k_weight_shape, layer.k_proj.weight.shape, "gd e")
    same_shape(queries_shape, queries.shape, "b h n d")
    same_shape(keys_shape, keys.shape, "b g n d")
    kept = 2 * 5 * keys.numel()
    same_number(
        kept_numbers,
        kept,
        0.5,
        "numbers-in-cache",
        known={
            kept // 2: "keys-and-values-are-kept",
            kept // 5: "every-layer-keeps",
            kept // 10: "every-layer-keeps-both",
            kept // 3: "every-text-keeps",
            kept // 11: "every-token-keeps",
            3 * kept: "queries-are-not-kept",
            2 * 5 * queries.numel(): "queries-are-not-kept",
            2 * 5 * (queries.numel() + keys.numel()) // 2: "queries-are-not-kept",
            5 * (queries.numel() + 2 * keys.numel()): "queries-are-not-kept",
        },
    )
    return message("shapes-and-cache-right")


# ------------------------------------------------------------------------------------- the gate


def gated(x: Tensor, wide: Tensor, narrow: Tensor, bend: Callable) -> Tensor:
    gate, value = (x @ wide.T).chunk(2, dim=-1)
    return (bend(gate) * value) @ narrow.T


def from_halves(join: Callable) -> Callable[..., Tensor]:
    """A feed-forward that makes something else of its gate and its value."""

    def wrong(x: Tensor, wide: Tensor, narrow: Tensor, bend: Callable) -> Tensor:
        gate, value = (x @ wide.T).chunk(2, dim=-1)
        return join(gate, value, bend) @ narrow.T

    return wrong


def rows_in_turn(x: Tensor, wide: Tensor, narrow: Tensor, bend: Callable) -> Tensor:
    inner = x @ wide.T
    return (bend(inner[..., 0::2]) * inner[..., 1::2]) @ narrow.T


GATE_MISTAKES = {
    "gate-and-value-exchanged": from_halves(lambda gate, value, bend: gate * bend(value)),
    "both-are-bent": from_halves(lambda gate, value, bend: bend(gate) * bend(value)),
    "nothing-is-bent": from_halves(lambda gate, value, bend: gate * value),
    "product-is-bent": from_halves(lambda gate, value, bend: bend(gate * value)),
    "gate-is-added": from_halves(lambda gate, value, bend: bend(gate) + value),
    "value-is-missing": from_halves(lambda gate, value, bend: bend(gate)),
    "gate-is-missing": from_halves(lambda gate, value, bend: value),
    "bend-is-always-silu": from_halves(lambda gate, value, bend: F.silu(gate) * value),
    "bend-is-always-sigmoid": from_halves(lambda gate, value, bend: torch.sigmoid(gate) * value),
    "gate-times-itself": from_halves(lambda gate, value, bend: gate * bend(gate) * value),
    "rows-taken-in-turn": rows_in_turn,
}


@exercise("13.2", "A gate with one matrix")
def gate_with_one_matrix(gated_answer) -> Message:
    bends = (F.silu, F.gelu, torch.sigmoid, torch.tanh)
    return same_function(
        gated_answer,
        gated,
        lambda case: (
            case.randn("b n e"),
            case.randn("(2 m) e"),
            case.randn("e m"),
            bends[case.random.randrange(4)],
        ),
        mistakes=GATE_MISTAKES,
        trials=Trials(6),
    )


# ---------------------------------------------------------------------------------- the turning


def turned(
    x: Tensor,
    angles: Tensor,
    r: int,
    neighbours: bool = False,
    back: bool = False,
) -> Tensor:
    """Turn the first r numbers of x by angles (b, 1, n, r / 2)."""
    part, rest = x[..., :r], x[..., r:]
    if neighbours:
        part = rearrange(part, "... (p two) -> ... (two p)", two=2)
    first, second = part.chunk(2, dim=-1)
    cos, sin = angles.cos(), -angles.sin() if back else angles.sin()
    part = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    if neighbours:
        part = rearrange(part, "... (two p) -> ... (p two)", two=2)
    return torch.cat([part, rest], dim=-1)


def angles_of(
    x: Tensor, positions: Tensor, r: int, base: float, power: float = 2.0, over: int = 0
) -> Tensor:
    pairs = torch.arange(r // 2, dtype=x.dtype)
    return positions[:, None, :, None] * base ** (-power * pairs / (over or r))


def rotate_part(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    return turned(x, angles_of(x, positions, r, base), r)


def whole_head(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    d = x.shape[-1] // 2 * 2
    return turned(x, angles_of(x, positions, d, base), d)


def last_numbers(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    part = turned(x[..., -r:], angles_of(x, positions, r, base), r)
    return torch.cat([x[..., :-r], part], dim=-1)


def rest_is_lost(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    return rotate_part(x, positions, r, base)[..., :r]


def with_angles(**changed: float) -> Callable[..., Tensor]:
    return lambda x, t, r, base: turned(x, angles_of(x, t, r, base, **changed), r)


def mixed_layout(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    """Turn halves by angles that are laid out for neighbours."""
    angles = angles_of(x, positions, r, base).repeat_interleave(2, dim=-1)
    first, second = x[..., : r // 2], x[..., r // 2 : r]
    other = torch.cat([-second, first], dim=-1)
    part = x[..., :r] * angles.cos() + other * angles.sin()
    return torch.cat([part, x[..., r:]], dim=-1)


TURN_MISTAKES = {
    "turns-neighbours": lambda x, t, r, base: turned(x, angles_of(x, t, r, base), r, True),
    "turns-backwards": lambda x, t, r, base: turned(x, angles_of(x, t, r, base), r, back=True),
    "turns-halves-by-angles-of-neighbours": mixed_layout,
    "turns-whole-head": whole_head,
    "turns-last-numbers": last_numbers,
    "rest-is-lost": rest_is_lost,
    "exponent-without-two": with_angles(power=1.0),
    "exponent-over-all-numbers": lambda x, t, r, base: turned(
        x, angles_of(x, t, r, base, over=x.shape[-1]), r
    ),
    "speeds-grow": with_angles(power=-2.0),
    "base-is-fixed": lambda x, t, r, base: rotate_part(x, t, r, 10_000.0),
    "one-speed-for-all": with_angles(power=0.0),
    "positions-start-at-one": lambda x, t, r, base: rotate_part(x, t + 1, r, base),
    "positions-not-used": lambda x, t, r, base: rotate_part(
        x, torch.arange(x.shape[2]).expand(len(x), -1), r, base
    ),
    "positions-of-first-text": lambda x, t, r, base: rotate_part(x, t[:1], r, base),
}


@exercise("13.3", "Turn a part of each head")
def turn_a_part(rotate_part_answer) -> Message:
    def inputs(case: Case) -> tuple:
        x = case.randn("b h n (d 2)")
        x = torch.cat([x, x.new_ones(1).expand(*x.shape[:-1], 2) * 0.5], dim=-1)
        r = 2 * case.random.randint(2, max(2, case["d"] - 1))
        r = min(r, x.shape[-1] - 2)
        positions = case.integers("b n", 0, 30)
        return x, positions, r, float(case.random.choice([20, 50, 300]))

    return same_function(
        rotate_part_answer, rotate_part, inputs, mistakes=TURN_MISTAKES, trials=Trials(6)
    )


# --------------------------------------------------------------------------------- the converting


def sorted_rows(rows: Tensor, heads: int, back: bool = True) -> Tensor:
    """Sort the rows of each head from halves to neighbours, or the other way."""
    pattern = "(h two p) ... -> (h p two) ..." if back else "(h p two) ... -> (h two p) ..."
    return rearrange(rows, pattern, h=heads, two=2)


def to_neighbours(q: Tensor, k: Tensor, norm: Tensor, h: int, g: int) -> tuple[Tensor, ...]:
    return sorted_rows(q, h), sorted_rows(k, g), sorted_rows(norm, 1)


CONVERT_MISTAKES = {
    "converts-to-halves": lambda q, k, norm, h, g: (
        sorted_rows(q, h, False),
        sorted_rows(k, g, False),
        sorted_rows(norm, 1, False),
    ),
    "norm-is-forgotten": lambda q, k, norm, h, g: (sorted_rows(q, h), sorted_rows(k, g), norm),
    "keys-are-forgotten": lambda q, k, norm, h, g: (sorted_rows(q, h), k, sorted_rows(norm, 1)),
    "queries-are-forgotten": lambda q, k, norm, h, g: (q, sorted_rows(k, g), sorted_rows(norm, 1)),
    "norm-converted-the-other-way": lambda q, k, norm, h, g: (
        sorted_rows(q, h),
        sorted_rows(k, g),
        sorted_rows(norm, 1, False),
    ),
    "heads-not-told-apart": lambda q, k, norm, h, g: (
        sorted_rows(q, 1),
        sorted_rows(k, 1),
        sorted_rows(norm, 1),
    ),
    "heads-exchanged-in-conversion": lambda q, k, norm, h, g: (
        sorted_rows(q, g) if q.shape[0] % (2 * g) == 0 else sorted_rows(q, 1),
        sorted_rows(k, h) if k.shape[0] % (2 * h) == 0 else sorted_rows(k, 1),
        sorted_rows(norm, 1),
    ),
    "columns-are-sorted": lambda q, k, norm, h, g: (
        sorted_rows(q.T, 1).T,
        sorted_rows(k.T, 1).T,
        sorted_rows(norm, 1),
    ),
}


@exercise("13.4", "Convert a layer with norms")
def convert_a_layer(to_neighbours_answer) -> Message:
    def inputs(case: Case) -> tuple:
        h, g = case["h"] * case["g"], case["g"]
        q, k = case.randn("(h g d 2) (e 2)"), case.randn("(g d 2) (e 2)")
        return q, k, case.randn("(d 2)"), h, g

    return same_function(
        to_neighbours_answer, to_neighbours, inputs, mistakes=CONVERT_MISTAKES, trials=Trials(6)
    )


# ----------------------------------------------------------------------------- grouped queries


class Grouped(nn.Module):
    """The healthy layer; `share` says how heads of keys are repeated."""

    def __init__(self, e: int, h: int, g: int, d: int):
        super().__init__()
        self.h, self.g = h, g
        self.q_proj = nn.Linear(e, h * d, bias=False)
        self.k_proj = nn.Linear(e, g * d, bias=False)
        self.v_proj = nn.Linear(e, g * d, bias=False)
        self.out_proj = nn.Linear(h * d, e, bias=False)

    def share(self, heads: Tensor) -> Tensor:
        return repeat(heads, "b g n d -> b (g r) n d", r=self.h // self.g)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h),
            rearrange(self.k_proj(x), "b n (g d) -> b g n d", g=self.g),
            rearrange(self.v_proj(x), "b n (g d) -> b g n d", g=self.g),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        mixed = F.scaled_dot_product_attention(q, self.share(k), self.share(v))
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))


def grouped(**methods: Callable) -> type[nn.Module]:
    """A layer of grouped queries with other methods."""
    return type("Layer", (Grouped,), methods)


def tile(self: Grouped, heads: Tensor) -> Tensor:
    return heads.repeat(1, self.h // self.g, 1, 1)


def only_one(self: Grouped, x: Tensor, keys: Callable, values: Callable) -> Tensor:
    q, k, v = self.split(x)
    mixed = F.scaled_dot_product_attention(q, keys(self, k), values(self, v))
    return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))


def groups_joined_first(self: Grouped, x: Tensor) -> Tensor:
    q, k, v = self.split(x)
    mixed = F.scaled_dot_product_attention(q, self.share(k), self.share(v))
    return self.out_proj(rearrange(mixed, "b (g r) n d -> b n (r g d)", g=self.g))


SHARING_MISTAKES = {
    "heads-tiled": grouped(share=tile),
    "keys-tiled": grouped(forward=lambda self, x: only_one(self, x, tile, Grouped.share)),
    "values-tiled": grouped(forward=lambda self, x: only_one(self, x, Grouped.share, tile)),
    "first-head-for-all": grouped(
        share=lambda self, heads: heads[:, :1].expand(-1, self.h, -1, -1)
    ),
    "last-head-for-all": grouped(
        share=lambda self, heads: heads[:, -1:].expand(-1, self.h, -1, -1)
    ),
    "mean-of-heads": grouped(
        share=lambda self, heads: heads.mean(dim=1, keepdim=True).expand(-1, self.h, -1, -1)
    ),
    "groups-in-reverse": grouped(share=lambda self, heads: Grouped.share(self, heads.flip(1))),
    "joined-in-other-order": grouped(forward=groups_joined_first),
}


@exercise("13.5", "Find the bug")
def find_the_bug(Healthy) -> Message:
    return same_module(
        Healthy,
        Grouped,
        lambda case: {
            "e": case["e"],
            "h": case["g"] * case["r"],
            "g": case["g"],
            "d": case["d"],
        },
        lambda case: (case.randn("b n e"),),
        mistakes=SHARING_MISTAKES,
    )


# ------------------------------------------------------------------------------------ the speeds


def long_speeds(speeds: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
    return mix(clamped(trained * speeds / (2 * math.pi), low, high), speeds, factor)


def clamped(turns: Tensor, low: float, high: float) -> Tensor:
    return ((turns - low) / (high - low)).clamp(0, 1)


def mix(share: Tensor, speeds: Tensor, factor: float) -> Tensor:
    return share * speeds + (1 - share) * speeds / factor


def with_share(share_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """New speeds with another share that is kept: of (turns, low, high)."""

    def wrong(speeds: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
        return mix(share_of(trained * speeds / (2 * math.pi), low, high), speeds, factor)

    return wrong


SPEED_MISTAKES = {
    "all-pairs-slower": lambda s, f, low, high, n: s / f,
    "no-pair-slower": lambda s, f, low, high, n: s,
    "share-outside-0-and-1": with_share(lambda t, low, high: (t - low) / (high - low)),
    "share-not-below-0": with_share(lambda t, low, high: ((t - low) / (high - low)).clamp(max=1)),
    "share-not-above-1": with_share(lambda t, low, high: ((t - low) / (high - low)).clamp(min=0)),
    "share-turned-around": with_share(lambda t, low, high: 1 - clamped(t, low, high)),
    "no-pairs-between": with_share(lambda t, low, high: (t > low).to(t)),
    "no-pairs-between-high": with_share(lambda t, low, high: (t > high).to(t)),
    "between-not-treated": with_share(
        lambda t, low, high: torch.where((t > low) & (t < high), 1.0, clamped(t, low, high))
    ),
    "wavelength-without-2-pi": lambda s, f, low, high, n: long_speeds(
        s, f, low, high, n * 2 * math.pi
    ),
    "multiplied-by-factor": lambda s, f, low, high, n: long_speeds(s, 1 / f, low, high, n),
    "wavelengths-are-mixed": lambda s, f, low, high, n: (
        1 / mix(clamped(n * s / (2 * math.pi), low, high), 1 / s, 1 / f)
    ),
    "returns-wavelengths": lambda s, f, low, high, n: 2 * math.pi / long_speeds(s, f, low, high, n),
}


@exercise("13.6", "The speeds of Llama 3.1")
def speeds_of_llama(long_speeds_answer) -> Message:
    def inputs(case: Case) -> tuple:
        d = 4 * case["p"] + 8
        base = float(case.random.choice([100, 1000, 10_000]))
        speeds = base ** (-torch.arange(0, d, 2, dtype=case.dtype) / d)
        low = case.random.choice([1.0, 1.5, 2.0])
        trained = round(2 * math.pi * low * base**0.5)  # so that there are pairs of every kind
        return speeds, case.random.choice([4.0, 8.0]), low, 3.0 * low, trained

    return same_function(
        long_speeds_answer,
        long_speeds,
        inputs,
        mistakes=SPEED_MISTAKES,
        loops="forbidden",
        trials=Trials(6),
    )


open_exercise("13.7", "Exchange a part yourself")
