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
from checks.engine.patches import Patch, patches
from checks.engine.verdict import exercise, open_exercise
from utils.modern_decoder import GroupedQueryAttention


@exercise("13.1", "Which shape, and how much is cached?")
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


def gated(x: Tensor, wide: Tensor, narrow: Tensor, activation: Callable) -> Tensor:
    gate, value = (x @ wide.T).chunk(2, dim=-1)
    return (activation(gate) * value) @ narrow.T


PRODUCT = "(activation(gate) * value)"
GATE_MISTAKES = patches(
    gated,
    {
        "gate-and-value-exchanged": (PRODUCT, "(gate * activation(value))"),
        "both-are-bent": ("* value", "* activation(value)"),
        "nothing-is-bent": ("activation(gate)", "gate"),
        "product-is-bent": (PRODUCT, "activation(gate * value)"),
        "gate-is-added": ("* value", "+ value"),
        "value-is-missing": (" * value", ""),
        "gate-is-missing": ("activation(gate) * ", ""),
        "bend-is-always-silu": ("activation(gate)", "F.silu(gate)"),
        "bend-is-always-sigmoid": ("activation(gate)", "gate.sigmoid()"),
        "gate-times-itself": ("activation(gate)", "gate * activation(gate)"),
        "rows-taken-in-turn": (
            "(x @ wide.T).chunk(2, dim=-1)",
            "(x @ part.T for part in (wide[::2], wide[1::2]))",
        ),
    },
)


@exercise("13.2", "A gate with one matrix")
def gate_with_one_matrix(gated_answer) -> Message:
    activations = (F.silu, F.gelu, torch.sigmoid, torch.tanh)
    return same_function(
        gated_answer,
        gated,
        lambda case: (
            case.randn("b n e"),
            case.randn("(2 m) e"),
            case.randn("e m"),
            activations[case.random.randrange(4)],
        ),
        mistakes=GATE_MISTAKES,
        trials=Trials(6),
    )


# ---------------------------------------------------------------------------------- the rotation


def rotate_part(x: Tensor, positions: Tensor, r: int, base: float) -> Tensor:
    pairs = torch.arange(r // 2, dtype=x.dtype)
    angles = positions[:, None, :, None] * base ** (-2 * pairs / r)
    angles = angles.repeat(1, 1, 1, 2)
    part, rest = x[..., :r], x[..., r:]
    first, second = part.chunk(2, dim=-1)
    across = torch.cat([-second, first], dim=-1)
    turned = part * angles.cos() + across * angles.sin()
    return torch.cat([turned, rest], dim=-1)


REPEATED, BY_NEIGHBOURS = "repeat(1, 1, 1, 2)", "repeat_interleave(2, dim=-1)"
PLACES, DOUBLE = "positions[:, None, :, None]", "-2 * pairs"
TURN_MISTAKES = patches(
    rotate_part,
    {
        "turns-neighbours": (
            *(REPEATED, BY_NEIGHBOURS),
            *("part.chunk(2, dim=-1)", "part[..., ::2], part[..., 1::2]"),
            *("cat([-second, first], dim=-1)", "stack([-second, first], dim=-1).flatten(-2)"),
        ),
        "turns-backwards": ("[-second, first]", "[second, -first]"),
        "turns-halves-by-angles-of-neighbours": (REPEATED, BY_NEIGHBOURS),
        "turns-whole-head": ("    pairs", "    r = x.shape[-1] // 2 * 2\n    pairs"),
        "turns-last-numbers": (
            *("x[..., :r], x[..., r:]", "x[..., -r:], x[..., :-r]"),
            *("[turned, rest]", "[rest, turned]"),
        ),
        "sign-is-wrong": [("second, first]", "second, -first]"), ("-second,", "second,")],
        "neighbours-written": ("[turned,", "[turned.unflatten(-1, (2, -1)).mT.flatten(-2),"),
        "neighbours-read": ("x[..., :r],", "x[..., :r].unflatten(-1, (-1, 2)).mT.flatten(-2),"),
        "rest-is-lost": ("torch.cat([turned, rest], dim=-1)", "turned"),
        "exponent-without-two": (DOUBLE, "-pairs"),
        "exponent-over-all-numbers": ("/ r)", "/ x.shape[-1])"),
        "exponent-over-pairs": ("/ r)", "/ (r // 2))"),
        "speeds-grow": (DOUBLE, "2 * pairs"),
        "pairs-counted-from-one": ("arange(r // 2", "arange(1, r // 2 + 1"),
        "base-is-fixed": ("base **", "10_000.0 **"),
        "one-speed-for-all": (DOUBLE, "0 * pairs"),
        "positions-start-at-one": (PLACES, f"({PLACES} + 1)"),
        "positions-not-used": (PLACES, "torch.arange(x.shape[2]).view(1, 1, -1, 1)"),
        "positions-of-first-text": (PLACES, "positions[:1, None, :, None]"),
    },
)


@exercise("13.3", "Rotate part of each head")
def turn_a_part(rotate_part_answer) -> Message:
    def inputs(case: Case) -> tuple:  # always float32, as models compute angles
        x = case.randn("b h n (d 2)")
        x = torch.cat([x, x.new_ones(1).expand(*x.shape[:-1], 2) * 0.5], dim=-1)
        r = 2 * case.random.randint(2, max(2, case["d"] - 1))
        r = min(r, x.shape[-1] - 2)
        positions = case.integers("b n", 0, 30)
        return x.float(), positions, r, float(case.random.choice([20, 50, 300]))

    return same_function(
        rotate_part_answer, rotate_part, inputs, mistakes=TURN_MISTAKES, trials=Trials(6)
    )


# --------------------------------------------------------------------------------- the conversion


def to_neighbours(q: Tensor, k: Tensor, norm: Tensor, h: int, g: int) -> tuple[Tensor, ...]:
    pattern = "(h two p) ... -> (h p two) ..."
    q = rearrange(q, pattern, h=h, two=2)
    k = rearrange(k, pattern, h=g, two=2)
    norm = rearrange(norm, pattern, h=1, two=2)
    return q, k, norm


TO_HALVES = '"(h p two) ... -> (h two p) ..."'
CONVERT_MISTAKES = patches(
    to_neighbours,
    {
        "converts-to-halves": ('"(h two p) ... -> (h p two) ..."', TO_HALVES),
        "norm-is-forgotten": ("rearrange(norm, pattern, h=1, two=2)", "norm"),
        "keys-are-forgotten": ("rearrange(k, pattern, h=g, two=2)", "k"),
        "queries-are-forgotten": ("rearrange(q, pattern, h=h, two=2)", "q"),
        "norm-converted-the-other-way": ("norm, pattern", f"norm, {TO_HALVES}"),
        "heads-not-told-apart": ("h=h", "h=1", "h=g", "h=1"),
        "heads-exchanged-in-conversion": (
            *("q, pattern, h=h", "q, pattern, h=g if len(q) % (2 * g) == 0 else 1"),
            *("k, pattern, h=g", "k, pattern, h=h if len(k) % (2 * h) == 0 else 1"),
        ),
        "columns-are-sorted": (
            *("rearrange(q, pattern, h=h, two=2)", "rearrange(q.T, pattern, h=1, two=2).T"),
            *("rearrange(k, pattern, h=g, two=2)", "rearrange(k.T, pattern, h=1, two=2).T"),
        ),
    },
)


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
    """The right layer."""

    def __init__(self, e: int, h: int, g: int, d: int):
        super().__init__()
        self.h, self.g = h, g
        self.q_proj = nn.Linear(e, h * d, bias=False)
        self.k_proj = nn.Linear(e, g * d, bias=False)
        self.v_proj = nn.Linear(e, g * d, bias=False)
        self.out_proj = nn.Linear(h * d, e, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h)
        k = rearrange(self.k_proj(x), "b n (g d) -> b g n d", g=self.g)
        v = rearrange(self.v_proj(x), "b n (g d) -> b g n d", g=self.g)
        k = repeat(k, "b g n d -> b (g r) n d", r=self.h // self.g)
        v = repeat(v, "b g n d -> b (g r) n d", r=self.h // self.g)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))


def one_for_all(head: str) -> Patch:
    """One head of keys and one of values, made in this way, for all queries."""
    return ("(k, ", f"(k{head}, ", "(v, ", f"(v{head}, ", "r=self.h // self.g", "r=self.h")


ATTENTION = "attention(q, k, v"
SHARING_MISTAKES = patches(
    Grouped,
    {
        "heads-tiled": ("(g r)", "(r g)"),
        "keys-tiled": ('k, "b g n d -> b (g r)', 'k, "b g n d -> b (r g)'),
        "values-tiled": ('v, "b g n d -> b (g r)', 'v, "b g n d -> b (r g)'),
        "first-head-for-all": one_for_all("[:, :1]"),
        "last-head-for-all": one_for_all("[:, -1:]"),
        "mean-of-heads": one_for_all(".mean(dim=1, keepdim=True)"),
        "groups-in-reverse": ("repeat(k,", "repeat(k.flip(1),", "repeat(v,", "repeat(v.flip(1),"),
        "joined-in-other-order": ('b h n d -> b n (h d)"', 'b (g r) n d -> b n (r g d)", g=self.g'),
        "attends-causally": (ATTENTION, f"{ATTENTION}, is_causal=True"),
        "scores-not-divided": (ATTENTION, f"{ATTENTION}, scale=1.0"),
        "joined-interleaved": ('b n (h d)"))', 'b n (d h)"))'),
    },
)


@exercise("13.5", "Find the bug")
def find_the_bug(Healthy) -> Message:
    return same_module(
        Healthy,
        Grouped,
        lambda case: {"h": case["g"] * case["r"], **{axis: case[axis] for axis in "egd"}},
        lambda case: (case.randn("b n e"),),
        mistakes=SHARING_MISTAKES,
    )


# ------------------------------------------------------------------------------------ the speeds


def long_speeds(speeds: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
    turns = trained * speeds / (2 * math.pi)
    fraction = ((turns - low) / (high - low)).clamp(0, 1)
    return fraction * speeds + (1 - fraction) * speeds / factor


FRACTION = "((turns - low) / (high - low)).clamp(0, 1)"
MIX = "fraction * speeds + (1 - fraction) * speeds / factor"
SPEED_MISTAKES = patches(
    long_speeds,
    {
        "all-pairs-slower": (MIX, "speeds / factor"),
        "no-pair-slower": (MIX, "speeds"),
        "share-outside-0-and-1": (".clamp(0, 1)", ""),
        "share-not-below-0": ("clamp(0, 1)", "clamp(max=1)"),
        "share-not-above-1": ("clamp(0, 1)", "clamp(min=0)"),
        "share-turned-around": (FRACTION, f"1 - {FRACTION}"),
        "no-pairs-between": (FRACTION, "(turns > low).to(turns)"),
        "no-pairs-between-high": (FRACTION, "(turns > high).to(turns)"),
        "wavelength-without-2-pi": (" / (2 * math.pi)", ""),
        "multiplied-by-factor": ("/ factor", "* factor"),
        "ratio-inverted": ("trained * speeds / (2 * math.pi)", "2 * math.pi / (trained * speeds)"),
        "wavelengths-are-mixed": (MIX, "speeds / (fraction + (1 - fraction) * factor)"),
        "returns-wavelengths": (MIX, f"2 * math.pi / ({MIX})"),
    },
)


@exercise("13.6", "The speeds of Llama 3.1")
def speeds_of_llama(long_speeds_answer) -> Message:
    def inputs(case: Case) -> tuple:
        d = 4 * case["p"] + 8
        base = float(case.random.choice([100, 1000, 10_000]))
        speeds = base ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        low = case.random.choice([1.0, 1.5, 2.0])
        trained = round(2 * math.pi * low * base**0.5)  # so that there are pairs of every kind
        return speeds, case.random.choice([4.0, 8.0]), low, 3.0 * low, trained

    options = {"mistakes": SPEED_MISTAKES, "loops": "forbidden", "trials": Trials(6)}
    return same_function(long_speeds_answer, long_speeds, inputs, **options)


open_exercise("13.7", "Replace a part yourself")
