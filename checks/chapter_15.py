"""Checks of the exercises of chapter 15: pretrained weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.verdict import exercise, open_exercise


@exercise("15.1", "Which shape, and how many numbers?")
def which_shape(c_attn_shape, fc1_shape, numbers_to_train) -> Message:
    written(c_attn_shape, fc1_shape, numbers_to_train)
    e, m, r = 40, 160, 4
    same_shape(c_attn_shape, (e, 3 * e), "in out")
    same_shape(fc1_shape, (m, e), "out in")
    attention, forward = 4 * r * (e + e), 2 * r * (e + m)
    same_number(
        numbers_to_train,
        attention + forward,
        0.5,
        "numbers-to-train",
        known={
            attention: "feed-forward-has-products-too",
            forward: "attention-has-products-too",
            (attention + forward) // r: "rank-is-left-out",
            (attention + forward) // 2: "one-of-two-matrices",
            4 * e * e + 2 * e * m: "whole-weights-counted",
            attention + forward + 4 * e + m + e: "biases-stay-frozen",
            attention + forward // 2: "one-linear-of-the-feed-forward",
            r * (e + 3 * e) + r * (e + e) + forward: "packed-as-one-linear",
        },
    )
    return message("shapes-and-numbers-right")


# ------------------------------------------------------------------------------- other patches


def to_linear(kernel: Tensor) -> Tensor:
    return rearrange(kernel, "ph pw c e -> e (c ph pw)")


def laid_out(order: str) -> Callable[[Tensor], Tensor]:
    return lambda kernel: rearrange(kernel, f"ph pw c e -> e ({order})")


PATCH_MISTAKES = {
    "channels-lie-last": laid_out("ph pw c"),
    "patch-goes-by-columns": laid_out("c pw ph"),
    "channels-last-column-by-column": laid_out("pw ph c"),
    "channels-in-the-middle": laid_out("ph c pw"),
    "channels-in-the-middle-of-columns": laid_out("pw c ph"),
    "kernel-not-sorted": lambda kernel: kernel.reshape(kernel.shape[-1], -1),
    "kernel-upside-down": lambda kernel: to_linear(kernel.flip(0, 1)),
}


@exercise("15.2", "Patches of another library")
def patches_of_another_library(to_linear_answer) -> Message:
    return same_function(
        to_linear_answer,
        to_linear,
        lambda case: (case.randn("ph pw c e"),),
        mistakes=PATCH_MISTAKES,
        loops="forbidden",
    )


# ----------------------------------------------------------------------------- GPT-2's attention


def attention(
    x: Tensor,
    c_attn: Tensor,
    attn_bias: Tensor,
    c_proj: Tensor,
    proj_bias: Tensor,
    h: int,
    pattern: str = "b n (three h d) -> three b h n d",
    order: tuple[int, int, int] = (0, 1, 2),
    causal: bool = True,
) -> Tensor:
    """Attend with GPT-2's tensors; the last three arguments make what may go wrong."""
    parts = rearrange(x @ c_attn + attn_bias, pattern, three=3, h=h)
    q, k, v = (parts[place] for place in order)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return rearrange(mixed, "b h n d -> b n (h d)") @ c_proj + proj_bias


def attend(**changed: object) -> Callable[..., Tensor]:
    return lambda x, a, b, c, d, h: attention(x, a, b, c, d, h, **changed)


ATTENTION_MISTAKES = {
    "c-proj-not-turned": lambda x, a, b, c, d, h: attention(x, a, b, c.T, d, h),
    "packed-head-by-head": attend(pattern="b n (h three d) -> three b h n d"),
    "heads-run-fastest": attend(pattern="b n (three d h) -> three b h n d"),
    "keys-before-queries": attend(order=(1, 0, 2)),
    "values-exchanged-with-keys": attend(order=(0, 2, 1)),
    "values-before-all": attend(order=(2, 1, 0)),
    "sees-later-tokens": attend(causal=False),
    "proj-bias-left-out": lambda x, a, b, c, d, h: attention(x, a, b, c, 0 * d, h),
    "attn-bias-left-out": lambda x, a, b, c, d, h: attention(x, a, 0 * b, c, d, h),
}


@exercise("15.3", "Find the bug")
def find_the_bug(attention_answer) -> Message:
    def inputs(case: Case) -> tuple:
        e, h = case["h"] * case["d"], case["h"]
        case_of = {"a": (e, 3 * e), "b": (3 * e,), "c": (e, e), "d": (e,)}
        tensors = [
            torch.randn(shape, generator=case.generator, dtype=case.dtype) * e**-0.5
            for shape in case_of.values()
        ]
        return case.randn("b n (h d)"), *tensors, h

    return same_function(attention_answer, attention, inputs, mistakes=ATTENTION_MISTAKES)


# ------------------------------------------------------------------------------- packed in groups


def unpack(packed: Tensor, g: int, r: int) -> tuple[Tensor, Tensor, Tensor]:
    groups = rearrange(packed, "(g heads d) e -> g heads d e", g=g, heads=r + 2)
    return (
        rearrange(groups[:, :r], "g r d e -> (g r d) e"),
        rearrange(groups[:, r], "g d e -> (g d) e"),
        rearrange(groups[:, r + 1], "g d e -> (g d) e"),
    )


def groups_cut(
    q: Callable[[Tensor, int], Tensor],
    k: int,
    v: int,
    pattern: str = "(g heads d) e -> g heads d e",
) -> Callable[..., tuple[Tensor, ...]]:
    """Cut groups otherwise; k and v are places of heads, negative ones from the end."""

    def wrong(packed: Tensor, g: int, r: int) -> tuple[Tensor, ...]:
        groups = rearrange(packed, pattern, g=g, heads=r + 2)
        return q(groups, r).flatten(0, 2), groups[:, k].flatten(0, 1), groups[:, v].flatten(0, 1)

    return wrong


def as_blocks(packed: Tensor, g: int, r: int) -> tuple[Tensor, ...]:
    rows = len(packed) // (r + 2)  # g * d
    return packed[: r * rows], packed[r * rows : (r + 1) * rows], packed[(r + 1) * rows :]


def queries_by_place(packed: Tensor, g: int, r: int) -> tuple[Tensor, ...]:
    q, k, v = unpack(packed, g, r)
    return rearrange(q, "(g r d) e -> (r g d) e", g=g, r=r), k, v


GROUP_MISTAKES = {
    "cut-as-three-blocks": as_blocks,
    "keys-exchanged-with-values": groups_cut(lambda groups, r: groups[:, :r], -1, -2),
    "keys-and-values-lie-first": groups_cut(lambda groups, r: groups[:, 2:], 0, 1),
    "queries-lie-last": groups_cut(lambda groups, r: groups[:, 2:], 1, 0),
    "queries-by-place-in-the-group": queries_by_place,
    "groups-run-inside": groups_cut(
        lambda groups, r: groups[:, :r], -2, -1, "(heads g d) e -> g heads d e"
    ),
    "rows-run-outside": groups_cut(
        lambda groups, r: groups[:, :r], -2, -1, "(d g heads) e -> g heads d e"
    ),
}


@exercise("15.4", "Packed in groups")
def packed_in_groups(unpack_answer) -> Message:
    def inputs(case: Case) -> tuple:
        g, r, d = case["g"], case["r"], case["d"]
        rows = g * (r + 2) * d
        packed = torch.randn(rows, case["e"], generator=case.generator, dtype=case.dtype)
        return packed, g, r

    return same_function(unpack_answer, unpack, inputs, mistakes=GROUP_MISTAKES)


# ------------------------------------------------------------------------------- a larger picture


def resize(
    positions: Tensor,
    gh: int,
    gw: int,
    new_gh: int,
    new_gw: int,
    mode: str = "bicubic",
    corners: bool | None = False,
) -> Tensor:
    """Stretch the table of positions; the last two arguments make what may go wrong."""
    grid = rearrange(positions[:, 1:], "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode=mode, align_corners=corners)
    return torch.cat([positions[:, :1], rearrange(grid, "b e gh gw -> b (gh gw) e")], dim=1)


def from_columns(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    grid = rearrange(p[:, 1:], "b (gw gh) e -> b e gh gw", gh=gh, gw=gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic", align_corners=False)
    return torch.cat([p[:, :1], rearrange(grid, "b e gh gw -> b (gh gw) e")], dim=1)


def into_columns(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    grid = rearrange(p[:, 1:], "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic", align_corners=False)
    return torch.cat([p[:, :1], rearrange(grid, "b e gh gw -> b (gw gh) e")], dim=1)


def viewed(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    grid = p[:, 1:].reshape(1, -1, gh, gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic", align_corners=False)
    return torch.cat([p[:, :1], rearrange(grid, "b e gh gw -> b (gh gw) e")], dim=1)


def viewed_back(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    grid = rearrange(p[:, 1:], "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic", align_corners=False)
    return torch.cat([p[:, :1], grid.reshape(1, new_gh * new_gw, -1)], dim=1)


def in_one_row(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    row = F.interpolate(p[:, 1:].mT, new_gh * new_gw, mode="linear", align_corners=False)
    return torch.cat([p[:, :1], row.mT], dim=1)


def last_is_class_token(p: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    turned = resize(p.roll(1, dims=1), gh, gw, new_gh, new_gw)
    return turned.roll(-1, dims=1)


RESIZE_MISTAKES = {
    "stretched-bilinearly": lambda *a: resize(*a, mode="bilinear"),
    "nearest-taken": lambda *a: resize(*a, mode="nearest", corners=None),
    "corners-aligned": lambda *a: resize(*a, corners=True),
    "bilinear-corners-aligned": lambda *a: resize(*a, mode="bilinear", corners=True),
    "class-token-is-lost": lambda *a: resize(*a)[:, 1:],
    "class-token-set-to-0": lambda p, *a: torch.cat([0 * p[:, :1], resize(p, *a)[:, 1:]], 1),
    "class-token-put-last": lambda *a: resize(*a).roll(-1, dims=1),
    "class-token-taken-from-the-end": last_is_class_token,
    "grid-read-by-columns": from_columns,
    "grid-written-by-columns": into_columns,
    "numbers-mixed-by-a-view": viewed,
    "numbers-mixed-by-a-view-at-the-end": viewed_back,
    "stretched-as-one-row": in_one_row,
}


@exercise("15.5", "A larger picture")
def a_larger_picture(resize_answer) -> Message:
    def inputs(case: Case) -> tuple:
        gh, gw, new_gh, new_gw = (case[letter] for letter in ("gh", "gw", "H", "W"))
        shape = (1, 1 + gh * gw, case["e"])
        positions = torch.randn(shape, generator=case.generator, dtype=case.dtype)
        return positions, gh, gw, new_gh, new_gw

    return same_function(resize_answer, resize, inputs, mistakes=RESIZE_MISTAKES)


# ------------------------------------------------------------------------------ LoRA after the fact


def compress(before: Tensor, after: Tensor, r: int) -> Tensor:
    return before + of_rank(after - before, r)


def of_rank(
    change: Tensor, r: int, power: float = 1.0, last: bool = False, below: bool = False
) -> Tensor:
    """Return the part of rank r; the last three arguments make what may go wrong."""
    u, s, v = torch.linalg.svd(change, full_matrices=False)
    kept = slice(-r, None) if last else slice(None, r)
    if below:
        kept = slice(r, None)
    return (u[:, kept] * s[kept] ** power) @ v[kept]


COMPRESS_MISTAKES = {
    "after-is-compressed": lambda before, after, r: of_rank(after, r),
    "after-is-compressed-and-added": lambda before, after, r: before + of_rank(after, r),
    "only-the-product": lambda before, after, r: of_rank(after - before, r),
    "change-has-the-wrong-sign": lambda before, after, r: before + of_rank(before - after, r),
    "added-to-after": lambda before, after, r: after + of_rank(after - before, r),
    "singular-values-left-out": lambda before, after, r: (
        before + of_rank(after - before, r, power=0.0)
    ),
    "singular-values-twice": lambda before, after, r: before + of_rank(after - before, r, 2.0),
    "smallest-kept": lambda before, after, r: before + of_rank(after - before, r, last=True),
    "largest-left-out": lambda before, after, r: before + of_rank(after - before, r, below=True),
    "one-too-many": lambda before, after, r: compress(before, after, r + 1),
    "one-too-few": lambda before, after, r: compress(before, after, r - 1),
    "nothing-is-compressed": lambda before, after, r: after,
}


@exercise("15.6", "LoRA after the fact")
def lora_after_the_fact(compress_answer) -> Message:
    def inputs(case: Case) -> tuple:
        shape = 4 + case["o"], 4 + case["i"]
        before, after = torch.randn(2, *shape, generator=case.generator, dtype=case.dtype)
        return before, after, case.random.randint(2, 3)

    return same_function(
        compress_answer,
        compress,
        inputs,
        mistakes=COMPRESS_MISTAKES,
        gradients=False,  # those of a decomposition are large where singular values lie close
        trials=Trials(6),
    )


open_exercise("15.7", "How many numbers does a new task need?")
