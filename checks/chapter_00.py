"""Checks of the exercises of chapter 00: shapes and einops."""

from __future__ import annotations

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor

from checks.engine.answer import written
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.shortcuts import PRODUCTS
from checks.engine.verdict import exercise, open_exercise


@exercise("00.1", "Which shape?")
def which_shape(joined_shape, shrunk_shape, mixed_shape) -> Message | str:
    written(joined_shape, shrunk_shape, mixed_shape)
    images, table = torch.zeros(5, 3, 8, 14), torch.zeros(6, 3)
    joined = rearrange(images, "b c H W -> H (b W) c")
    shrunk = reduce(images, "b c (gh ph) (gw pw) -> b gh gw", "max", ph=4, pw=2)
    mixed = einsum(images, table, "b c H W, new c -> b W new")
    same_shape(joined_shape, joined.shape, "H (bW) c")
    same_shape(shrunk_shape, shrunk.shape, "b gh gw")
    same_shape(mixed_shape, mixed.shape, "b W new")
    return "gives-all-three-shapes"


# ------------------------------------------------------------------------------------ the sheets


def sheet_of(images: Tensor, across: int) -> Tensor:
    return rearrange(images, "(across down) c H W -> c (down H) (across W)", across=across)


def laid_apart(images: Tensor) -> Tensor:
    return rearrange(images, "b c H W -> (b H) (c W)")


@exercise("00.2", "Two sheets")
def two_sheets(sheet, channels_apart) -> Message | str:
    written(sheet, channels_apart)
    same_function(
        sheet,
        sheet_of,
        lambda case: (case.randn("(across down) c H W"), case["across"]),
        trials=Trials(ones=True),
        mistakes=patches(
            sheet_of,
            {
                "sheet-goes-along-rows": ("(across down)", "(down across)"),
                "sheet-pictures-run-fastest": ("(down H) (across W)", "(H down) (W across)"),
                "sheet-rows-shuffled": ("(down H)", "(H down)"),
                "sheet-columns-shuffled": ("(across W)", "(W across)"),
            },
        )
        | {
            "only-cut-anew": lambda images, across: images.reshape(
                images.shape[1], -1, images.shape[3] * across
            )
        },
    )
    return same_function(
        channels_apart,
        laid_apart,
        lambda case: (case.randn("b c H W"),),
        trials=Trials(ones=True),
        mistakes={
            "apart-rows-shuffled": lambda images: rearrange(images, "b c H W -> (H b) (c W)"),
            "apart-columns-shuffled": lambda images: rearrange(images, "b c H W -> (b H) (W c)"),
            "apart-both-shuffled": lambda images: rearrange(images, "b c H W -> (H b) (W c)"),
            "only-cut-anew": lambda images: images.reshape(len(images) * images.shape[2], -1),
        },
    )


# ---------------------------------------------------------------------------- pixels and channels

SHUFFLE = {
    name: "write-pattern-or-steps"
    for name in ("pixel_unshuffle", "pixel_shuffle", "PixelUnshuffle.forward")
}


def unshuffled(images: Tensor, side: int) -> Tensor:
    return rearrange(images, "b c (gh ph) (gw pw) -> b (c ph pw) gh gw", ph=side, pw=side)


def shuffled(images: Tensor, side: int) -> Tensor:
    return rearrange(images, "b (c ph pw) gh gw -> b c (gh ph) (gw pw)", ph=side, pw=side)


CHANNEL_LAST, DISTANT = ("(c ph pw)", "(ph pw c)"), ("(gh ph) (gw pw)", "(ph gh) (pw gw)")
FOLDS = {
    "fold-channel-fastest": CHANNEL_LAST,
    "fold-row-and-column-exchanged": ("(c ph pw)", "(c pw ph)"),
    "fold-takes-distant-pixels": DISTANT,
    "fold-channel-fastest-distant": (*CHANNEL_LAST, *DISTANT),
}


@exercise("00.3", "Pixels into channels, and back")
def pixels_and_channels(to_channels, to_pixels) -> Message | str:
    written(to_channels, to_pixels)
    same_function(
        to_channels,
        unshuffled,
        lambda case: (case.randn("b c (gh side) (gw side)"), case["side"]),
        trials=Trials(ones=True),
        mistakes=patches(unshuffled, FOLDS)
        | {
            "only-cut-anew": lambda images, side: images.reshape(
                len(images), -1, images.shape[2] // side, images.shape[3] // side
            )
        },
        forbidden=SHUFFLE,
    )
    return same_function(
        to_pixels,
        shuffled,
        lambda case: (case.randn("b (c side side) gh gw"), case["side"]),
        trials=Trials(ones=True),
        mistakes=patches(shuffled, FOLDS)
        | {
            "only-cut-anew": lambda images, side: images.reshape(
                len(images), -1, images.shape[2] * side, images.shape[3] * side
            )
        },
        forbidden=SHUFFLE,
    )


# ------------------------------------------------------------------------------- the wrong axis


def normalized(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    result = images.clone()
    for c in range(len(mean)):
        result[:, c] = (images[:, c] - mean[c]) / std[c]
    return result


NORMALIZE_MISTAKES = patches(
    normalized,
    {
        "normalized-columns": ("[:, c]", "[..., c]"),
        "normalized-rows": ("[:, c]", "[:, :, c]"),
        "normalized-pictures": ("[:, c]", "[c]"),
        "std-missing": (" / std[c]", ""),
        "mean-missing": (" - mean[c]", ""),
        "std-multiplied": ("/ std", "* std"),
        "mean-added": ("- mean", "+ mean"),
        "divides-before-subtracting": ("- mean[c]) / std[c]", "/ std[c]) - mean[c]"),
        "only-mean-divided": ("(images[:, c] - mean[c]) /", "images[:, c] - mean[c] /"),
        "mean-and-std-exchanged": ("- mean[c]) / std[c]", "- std[c]) / mean[c]"),
        "only-first-picture": ("[:, c]", "[0, c]"),
        "divided-by-variance": ("std[c]", "std[c] ** 2"),
        "mean-of-first-channel": ("mean[c]", "mean[0]"),
        "mean-and-std-of-first-channel": ("[c]", "[0]"),
        "own-mean-and-std": ("mean[c]", "images[:, c].mean()", "std[c]", "images[:, c].std()"),
    },
)


@exercise("00.4", "Find the bug")
def find_the_bug(healthy) -> Message | str:
    return same_function(
        healthy,
        normalized,
        # more rows, columns and pictures than channels, so that every wrong axis runs
        lambda case: (
            case.randn("(5 b) c (5 H) (5 W)"),
            case.randn("c"),
            case.randn("c").exp() + 1,
        ),
        gradients=False,  # writing into a copy is right here
        mistakes=NORMALIZE_MISTAKES,
    )


# ------------------------------------------------------------------------------------ the tables


def remixed(images: Tensor, tables: Tensor) -> Tensor:
    return einsum(images, tables, "b c H W, b new c -> b new H W")


TABLES, ONE_TABLE = "images, tables,", (", b new c", ", new c")
REMIX_MISTAKES = patches(
    remixed,
    {
        "first-pictures-table": (TABLES, "images, tables[0],", *ONE_TABLE),
        "last-pictures-table": (TABLES, "images, tables[-1],", *ONE_TABLE),
        "sum-of-all-tables": (TABLES, "images, tables.sum(0),", *ONE_TABLE),
        "mean-of-all-tables": (TABLES, "images, tables.mean(0),", *ONE_TABLE),
        "mean-over-channels": (TABLES, "images / images.shape[1], tables,"),
        "tables-cut-anew": (
            "tables,",
            "tables.reshape(tables.mT.shape),",
            ", b new c",
            ", b c new",
        ),
    },
)


@exercise("00.5", "Mixing channels: the loop, then without it")
def mixing_channels(remix_loop, remix) -> Message | str:
    written(remix_loop, remix)
    same_function(
        remix_loop,
        lambda image, table: einsum(image, table, "c H W, new c -> new H W"),
        lambda case: (case.randn("c H W"), case.randn("new c")),
        forbidden=PRODUCTS,
        gradients=False,
        loops="asked",
        trials=Trials(ones=True, counted=lambda case: (case.randn("c 2 1"), case.randn("new c"))),
        mistakes={
            "mean-over-channels": lambda image, table: (
                einsum(image, table, "c H W, new c -> new H W") / len(image)
            ),
            "last-product-only": (lambda image, table: table[:, -1, None, None] * image[-1]),
            "sum-without-table": (lambda image, table: image.sum(0).expand(len(table), -1, -1) + 0),
        },
    )
    return same_function(
        remix,
        remixed,
        lambda case: (case.randn("b c H W"), case.randn("b new c")),
        trials=Trials(ones=True),
        mistakes=REMIX_MISTAKES,
        loops="forbidden",
    )


# -------------------------------------------------------------------------------- the experiment


def loss_of_shrinking(images: Tensor, side: int) -> Tensor:
    small = reduce(images, "b c (gh ph) (gw pw) -> b c gh gw", "mean", ph=side, pw=side)
    large = repeat(small, "b c gh gw -> b c (gh ph) (gw pw)", ph=side, pw=side)
    return (images - large).square().mean()


LOST_MISTAKES = patches(
    loss_of_shrinking,
    {
        "sum-not-mean": ("square().mean()", "square().sum()"),
        "grid-for-block": (
            '"mean", ph=side, pw=side',
            '"mean", gh=side, gw=side',
            "ph=side, pw=side",
            "ph=images.shape[2] // side, pw=images.shape[3] // side",
        ),
        "differences-cancel": (".square()", ""),
        "size-not-square": ("square", "abs"),
        "root-of-mean-square": (".mean()", ".mean().sqrt()"),
        "enlarged-by-tiling": ("-> b c (gh ph) (gw pw)", "-> b c (ph gh) (pw gw)"),
        "blocks-hold-largest": ('"mean"', '"max"'),
        "blocks-hold-sum": ('"mean"', '"sum"'),
        "square-of-shrunk": ("(images - large)", "small"),
    },
)


@exercise("00.6", "What shrinking takes away")
def what_shrinking_takes(lost, times) -> Message | str:
    written(lost, times)
    compared = same_function(
        lost,
        loss_of_shrinking,
        lambda case: (case.randn("b c (gh side) (gw side)"), case["side"]),
        mistakes=LOST_MISTAKES,
    )
    measured = same_number(
        times,
        9.75,
        0.15,
        "times-shuffled-lose",
        known={
            1.0: "shuffled-keep-neighbours",
            1 / 9.75: "quotient-upside-down",
            0.0693: "loss-of-shuffled",
            0.0622: "difference-not-quotient",
            0.0071: "loss-of-photographs",
            7.28: "stayed-in-photograph-and-channel",
            8.5: "stayed-in-photograph",
            9.22: "stayed-in-channel",
            19.7: "blocks-of-two",
            5.52: "blocks-of-eight",
            3.39: "blocks-of-sixteen",
        },
    )
    return message("two-results", one=compared, other=measured)


open_exercise("00.7", "Upside down")
