"""Checks of the exercises of chapter 00: shapes and einops."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor

from checks.engine.answer import written
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.shortcuts import PRODUCTS
from checks.engine.verdict import exercise, open_exercise


def moved(pattern: str, *names: str) -> Callable[..., Tensor]:
    """A `rearrange` whose second argument, if any, is the size of the named axes."""
    return lambda images, *size: rearrange(images, pattern, **dict.fromkeys(names, *size))


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


def cut(shape: Callable[..., tuple[int, ...]]) -> Callable[..., Tensor]:
    """A `reshape` where axes should move."""
    return lambda images, *size: images.reshape(shape(*images.shape, *size))


@exercise("00.2", "Two sheets")
def two_sheets(sheet, channels_apart) -> Message | str:
    written(sheet, channels_apart)
    same_function(
        sheet,
        moved("(across down) c H W -> c (down H) (across W)", "across"),
        lambda case: (case.randn("(across down) c H W"), case["across"]),
        trials=Trials(ones=True),
        mistakes={
            "sheet-goes-along-rows": moved(
                "(down across) c H W -> c (down H) (across W)", "across"
            ),
            "sheet-pictures-run-fastest": moved(
                "(across down) c H W -> c (H down) (W across)", "across"
            ),
            "sheet-rows-shuffled": moved("(across down) c H W -> c (H down) (across W)", "across"),
            "sheet-columns-shuffled": moved(
                "(across down) c H W -> c (down H) (W across)", "across"
            ),
            "only-cut-anew": cut(lambda b, c, H, W, across: (c, b // across * H, across * W)),
        },
    )
    return same_function(
        channels_apart,
        moved("b c H W -> (b H) (c W)"),
        lambda case: (case.randn("b c H W"),),
        trials=Trials(ones=True),
        mistakes={
            "apart-rows-shuffled": moved("b c H W -> (H b) (c W)"),
            "apart-columns-shuffled": moved("b c H W -> (b H) (W c)"),
            "apart-both-shuffled": moved("b c H W -> (H b) (W c)"),
            "only-cut-anew": cut(lambda b, c, H, W: (b * H, c * W)),
        },
    )


# ---------------------------------------------------------------------------- pixels and channels

SHUFFLE = {
    name: "write-pattern-or-steps"
    for name in ("pixel_unshuffle", "pixel_shuffle", "PixelUnshuffle.forward")
}

# What is wrong, and the places of the letters in the block and in the new channels.
FOLDS = {
    "fold-channel-fastest": (
        ("gh ph", "gw pw"),
        "ph pw c",
    ),
    "fold-row-and-column-exchanged": (
        ("gh ph", "gw pw"),
        "c pw ph",
    ),
    "fold-takes-distant-pixels": (("ph gh", "pw gw"), "c ph pw"),
    "fold-channel-fastest-distant": (
        ("ph gh", "pw gw"),
        "ph pw c",
    ),
}


def folded(picture: tuple[str, str], channels: str, back: bool) -> Callable[..., Tensor]:
    rows, columns = picture
    sides = [f"b c ({rows}) ({columns})", f"b ({channels}) gh gw"]
    return moved(" -> ".join(sides[::-1] if back else sides), "ph", "pw")


@exercise("00.3", "Pixels into channels, and back")
def pixels_and_channels(to_channels, to_pixels) -> Message | str:
    written(to_channels, to_pixels)
    in_memory = "only-cut-anew"
    same_function(
        to_channels,
        lambda images, side: F.pixel_unshuffle(images, side),
        lambda case: (case.randn("b c (gh side) (gw side)"), case["side"]),
        trials=Trials(ones=True),
        mistakes={words: folded(*fold, back=False) for words, fold in FOLDS.items()}
        | {in_memory: cut(lambda b, c, H, W, side: (b, c * side**2, H // side, W // side))},
        forbidden=SHUFFLE,
    )
    return same_function(
        to_pixels,
        lambda folded, side: F.pixel_shuffle(folded, side),
        lambda case: (case.randn("b (c side side) gh gw"), case["side"]),
        trials=Trials(ones=True),
        mistakes={words: folded(*fold, back=True) for words, fold in FOLDS.items()}
        | {in_memory: cut(lambda b, c, gh, gw, side: (b, c // side**2, gh * side, gw * side))},
        forbidden=SHUFFLE,
    )


# ------------------------------------------------------------------------------- the wrong axis


def normalised_along(axis: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The first entries of another axis, normalised as if they were the channels."""

    def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        first = images.narrow(axis, 0, len(mean))
        sizes = [-1 if a == axis else 1 for a in range(4)]
        rest = images.narrow(axis, len(mean), images.shape[axis] - len(mean))
        return torch.cat([(first - mean.view(sizes)) / std.view(sizes), rest], dim=axis)

    return normalise


def lined_up(values: Tensor) -> Tensor:
    return rearrange(values, "c -> c 1 1")


@exercise("00.4", "Find the bug")
def find_the_bug(healthy) -> Message | str:
    return same_function(
        healthy,
        lambda images, mean, std: (images - lined_up(mean)) / lined_up(std),
        # more rows, columns and pictures than channels, so that every wrong axis runs
        lambda case: (
            case.randn("(5 b) c (5 H) (5 W)"),
            case.randn("c"),
            case.randn("c").exp() + 1,
        ),
        gradients=False,  # to write into a copy is right here
        mistakes={
            "normalised-columns": normalised_along(3),
            "normalised-rows": normalised_along(2),
            "normalised-pictures": normalised_along(0),
            "std-missing": lambda images, mean, std: images - lined_up(mean),
            "mean-missing": lambda images, mean, std: images / lined_up(std),
            "std-multiplied": lambda images, mean, std: (images - lined_up(mean)) * lined_up(std),
            "mean-added": lambda images, mean, std: (images + lined_up(mean)) / lined_up(std),
            "divides-before-subtracting": (
                lambda images, mean, std: images / lined_up(std) - lined_up(mean)
            ),
            "mean-and-std-exchanged": lambda images, mean, std: (
                (images - lined_up(std)) / lined_up(mean)
            ),
            "only-first-picture": lambda images, mean, std: torch.cat(
                [(images[:1] - lined_up(mean)) / lined_up(std), images[1:]]
            ),
            "divided-by-variance": lambda images, mean, std: (
                (images - lined_up(mean)) / lined_up(std).square()
            ),
            "mean-of-first-channel": lambda images, mean, std: (images - mean[0]) / lined_up(std),
            "mean-and-std-of-first-channel": lambda images, mean, std: (images - mean[0]) / std[0],
            "own-mean-and-std": lambda images, *_: (
                (images - images.mean((0, 2, 3), keepdim=True))
                / images.std((0, 2, 3), keepdim=True)
            ),
        },
    )


# ------------------------------------------------------------------------------------ the mixing

ONE_TABLE = "b c H W, new c -> b new H W"


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
        lambda images, tables: einsum(images, tables, "b c H W, b new c -> b new H W"),
        lambda case: (case.randn("b c H W"), case.randn("b new c")),
        trials=Trials(ones=True),
        mistakes={
            "first-pictures-table": lambda images, tables: einsum(images, tables[0], ONE_TABLE),
            "last-pictures-table": lambda images, tables: einsum(images, tables[-1], ONE_TABLE),
            "sum-of-all-tables": lambda images, tables: einsum(images, tables.sum(0), ONE_TABLE),
            "mean-of-all-tables": lambda images, tables: einsum(images, tables.mean(0), ONE_TABLE),
            "mean-over-channels": lambda images, tables: (
                einsum(images, tables, "b c H W, b new c -> b new H W") / images.shape[1]
            ),
            "tables-cut-anew": (
                lambda images, tables: einsum(
                    images,
                    tables.reshape(len(tables), images.shape[1], -1),
                    "b c H W, b c new -> b new H W",
                )
            ),
        },
        loops="forbidden",
    )


# -------------------------------------------------------------------------------- the experiment

ENLARGE = "b c gh gw -> b c (gh ph) (gw pw)"


def means(images: Tensor, side: int, how: str = "mean") -> Tensor:
    pattern = "b c (gh ph) (gw pw) -> b c gh gw"
    return reduce(images, pattern, how, ph=side, pw=side)


def blocks(images: Tensor, side: int, how: str = "mean", pattern: str = ENLARGE) -> Tensor:
    return repeat(means(images, side, how), pattern, ph=side, pw=side)


def blocks_of_grid(images: Tensor, side: int) -> Tensor:
    """Blocks that are too large: side says how many there are, not how large each is."""
    pattern = "b c (gh ph) (gw pw) -> b c gh gw"
    small = reduce(images, pattern, "mean", gh=side, gw=side)
    rows, columns = (size // side for size in images.shape[2:])
    return repeat(small, ENLARGE, ph=rows, pw=columns)


@exercise("00.6", "What shrinking takes away")
def what_shrinking_takes(lost, times) -> Message | str:
    written(lost, times)
    compared = same_function(
        lost,
        lambda images, side: (images - blocks(images, side)).square().mean(),
        lambda case: (case.randn("b c (gh side) (gw side)"), case["side"]),
        mistakes={
            "sum-not-mean": lambda images, side: (images - blocks(images, side)).square().sum(),
            "grid-for-block": lambda images, side: (
                (images - blocks_of_grid(images, side)).square().mean()
            ),
            "differences-cancel": (lambda images, side: (images - blocks(images, side)).mean()),
            "size-not-square": lambda images, side: (images - blocks(images, side)).abs().mean(),
            "root-of-mean-square": lambda images, side: (
                (images - blocks(images, side)).square().mean().sqrt()
            ),
            "enlarged-by-tiling": lambda images, side: (
                (images - blocks(images, side, pattern="b c gh gw -> b c (ph gh) (pw gw)"))
                .square()
                .mean()
            ),
            "blocks-hold-largest": lambda images, side: (
                (images - blocks(images, side, "max")).square().mean()
            ),
            "blocks-hold-sum": lambda images, side: (
                (images - blocks(images, side, "sum")).square().mean()
            ),
            "square-of-shrunk": (lambda images, side: means(images, side).square().mean()),
        },
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
