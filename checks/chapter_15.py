"""Checks of the exercises of chapter 15: pretrained weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
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


PATCH_MISTAKES = patches(
    to_linear,
    {
        "channels-lie-last": ("(c ph pw)", "(ph pw c)"),
        "patch-goes-by-columns": ("(c ph pw)", "(c pw ph)"),
        "channels-last-column-by-column": ("(c ph pw)", "(pw ph c)"),
        "channels-in-the-middle": ("(c ph pw)", "(ph c pw)"),
        "channels-in-the-middle-of-columns": ("(c ph pw)", "(pw c ph)"),
        "kernel-not-sorted": (
            'rearrange(kernel, "ph pw c e -> e (c ph pw)")',
            "kernel.reshape(kernel.shape[-1], -1)",
        ),
        "kernel-upside-down": ("(kernel,", "(kernel.flip(0, 1),"),
    },
)


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
    x: Tensor, c_attn: Tensor, attn_bias: Tensor, c_proj: Tensor, proj_bias: Tensor, h: int
) -> Tensor:
    packed = x @ c_attn + attn_bias
    q, k, v = rearrange(packed, "b n (three h d) -> three b h n d", three=3, h=h)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return rearrange(mixed, "b h n d -> b n (h d)") @ c_proj + proj_bias


ATTENTION_MISTAKES = patches(
    attention,
    {
        "c-proj-not-turned": ("@ c_proj", "@ c_proj.T"),
        "packed-head-by-head": ("(three h d)", "(h three d)"),
        "heads-run-fastest": ("(three h d)", "(three d h)"),
        "keys-before-queries": ("q, k, v =", "k, q, v ="),
        "values-exchanged-with-keys": ("q, k, v =", "q, v, k ="),
        "values-before-all": ("q, k, v =", "v, k, q ="),
        "sees-later-tokens": ("is_causal=True", "is_causal=False"),
        "heads-joined-as-d-h": ("-> b n (h d)", "-> b n (d h)"),
        "proj-bias-left-out": (" + proj_bias", ""),
        "attn-bias-left-out": (" + attn_bias", ""),
    },
)


@exercise("15.3", "Find the bug")
def find_the_bug(attention_answer) -> Message:
    def inputs(case: Case) -> tuple:
        e, h = case["h"] * case["d"], case["h"]
        options = {"generator": case.generator, "dtype": case.dtype}
        shapes = (e, 3 * e), (3 * e,), (e, e), (e,)
        tensors = [torch.randn(shape, **options) * e**-0.5 for shape in shapes]
        return case.randn("b n (h d)"), *tensors, h

    return same_function(attention_answer, attention, inputs, mistakes=ATTENTION_MISTAKES)


# ------------------------------------------------------------------------------- packed in groups


def unpack(packed: Tensor, g: int, r: int) -> tuple[Tensor, Tensor, Tensor]:
    groups = rearrange(packed, "(g heads d) e -> g heads d e", g=g, heads=r + 2)
    q, k, v = groups[:, :r], groups[:, r : r + 1], groups[:, r + 1 :]
    q, k, v = (rearrange(part, "g heads d e -> (g heads d) e") for part in (q, k, v))
    return q, k, v


PARTS = "groups[:, :r], groups[:, r : r + 1], groups[:, r + 1 :]"
LAST = "groups[:, 2:], groups[:, :1], groups[:, 1:2]"
GROUP_MISTAKES = patches(
    unpack,
    {
        "cut-as-three-blocks": ("g=g, heads=r + 2", "g=1, heads=r + 2"),
        "keys-exchanged-with-values": ("return q, k, v", "return q, v, k"),
        "keys-returned-as-values": ("return q, k, v", "return q, k, k"),
        "keys-before-the-queries": (PARTS, "groups[:, 1:-1], groups[:, :1], groups[:, -1:]"),
        "keys-and-values-lie-first": (PARTS, LAST),
        "queries-lie-last": (PARTS, LAST, "return q, k, v", "return q, v, k"),
        "queries-by-place-in-the-group": (
            "return q",
            "return rearrange(q, '(g r d) e -> (r g d) e', g=g, r=r)",
        ),
        "groups-run-inside": ("(g heads d) e ->", "(heads g d) e ->"),
        "rows-run-outside": ("(g heads d) e ->", "(d g heads) e ->"),
    },
)


@exercise("15.4", "Packed in groups")
def packed_in_groups(unpack_answer) -> Message:
    def inputs(case: Case) -> tuple:
        g, r, d = case["g"], case["r"], case["d"]
        shape = g * (r + 2) * d, case["e"]
        return torch.randn(shape, generator=case.generator, dtype=case.dtype), g, r

    return same_function(unpack_answer, unpack, inputs, mistakes=GROUP_MISTAKES)


# ------------------------------------------------------------------------------- a larger picture


def resize(positions: Tensor, gh: int, gw: int, new_gh: int, new_gw: int) -> Tensor:
    first, rest = positions[:, :1], positions[:, 1:]
    grid = rearrange(rest, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)
    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic", align_corners=False)
    rest = rearrange(grid, "b e gh gw -> b (gh gw) e")
    return torch.cat([first, rest], dim=1)


BILINEAR, CORNERS = ("bicubic", "bilinear"), ("align_corners=False", "align_corners=True")
RESIZE_MISTAKES = patches(
    resize,
    {
        "stretched-bilinearly": BILINEAR,
        "nearest-taken": ("bicubic", "nearest", ", align_corners=False", ""),
        "corners-aligned": CORNERS,
        "antialiased": (CORNERS[0], "antialias=True"),
        "bilinear-corners-aligned": (*BILINEAR, *CORNERS),
        "class-token-is-lost": ("[first, rest]", "[rest]"),
        "class-token-set-to-0": ("[first, rest]", "[0 * first, rest]"),
        "class-token-put-last": ("[first, rest]", "[rest, first]"),
        "class-token-taken-from-the-end": (
            *("positions[:, :1], positions[:, 1:]", "positions[:, -1:], positions[:, :-1]"),
            *("[first, rest]", "[rest, first]"),
        ),
        "height-and-width-swapped": ("(new_gh, new_gw)", "(new_gw, new_gh)"),
        "grid-read-by-columns": ("b (gh gw) e ->", "b (gw gh) e ->"),
        "grid-written-by-columns": ("-> b (gh gw) e", "-> b (gw gh) e"),
        "numbers-mixed-by-a-view": (
            'rearrange(rest, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)',
            "rest.reshape(1, -1, gh, gw)",
        ),
        "numbers-mixed-by-a-view-at-the-end": (
            'rearrange(grid, "b e gh gw -> b (gh gw) e")',
            "grid.reshape(1, new_gh * new_gw, -1)",
        ),
        "stretched-as-one-row": (
            *("b e gh gw", "b e (gh gw)", "bicubic", "linear"),
            *("(new_gh, new_gw)", "new_gh * new_gw"),
            *('-> b (gh gw) e")', '-> b (gh gw) e", gh=new_gh)'),
        ),
    },
)


@exercise("15.5", "A larger picture")
def a_larger_picture(resize_answer) -> Message:
    def inputs(case: Case) -> tuple:
        sides = [case[letter] for letter in ("gh", "gw", "H", "W")]
        shape = (1, 1 + sides[0] * sides[1], case["e"])
        return torch.randn(shape, generator=case.generator, dtype=case.dtype), *sides

    return same_function(resize_answer, resize, inputs, mistakes=RESIZE_MISTAKES)


# ------------------------------------------------------------------------------ LoRA after the fact


def compress(before: Tensor, after: Tensor, r: int) -> Tensor:
    u, s, v = torch.linalg.svd(after - before, full_matrices=False)
    product = (u[:, :r] * s[:r]) @ v[:r]
    return before + product


CHANGE, RESULT = "after - before", "before + product"
COMPRESS_MISTAKES = patches(
    compress,
    {
        "after-is-compressed": (CHANGE, "after", RESULT, "product"),
        "after-is-compressed-and-added": (CHANGE, "after"),
        "only-the-product": (RESULT, "product"),
        "change-has-the-wrong-sign": (CHANGE, "before - after"),
        "added-to-after": (RESULT, "after + product"),
        "singular-values-left-out": (" * s[:r]", ""),
        "singular-values-twice": ("* s[:r]", "* s[:r] ** 2"),
        "smallest-kept": (":r]", "-r:]"),
        "largest-left-out": (":r]", "r:]"),
        "one-too-many": (":r]", ": r + 1]"),
        "one-too-few": (":r]", ": r - 1]"),
        "nothing-is-compressed": (RESULT, "after"),
    },
)


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
        gradients=False,  # those of a decomposition are large where singular values are close
        trials=Trials(6),
    )


open_exercise("15.7", "How many numbers does a new task need?")
