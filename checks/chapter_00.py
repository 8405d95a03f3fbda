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
from checks.engine.shortcuts import PRODUCTS
from checks.engine.verdict import exercise, open_exercise


def moved(pattern: str, *names: str) -> Callable[..., Tensor]:
    """A `rearrange` whose second argument, if any, is the size of the named axes."""
    return lambda images, *size: rearrange(images, pattern, **dict.fromkeys(names, *size))


@exercise("00.1", "Which shape?")
def which_shape(joined_shape, shrunk_shape, mixed_shape) -> str:
    written(joined_shape, shrunk_shape, mixed_shape)
    images, table = torch.zeros(5, 3, 8, 14), torch.zeros(6, 3)
    joined = rearrange(images, "b c H W -> H (b W) c")
    shrunk = reduce(images, "b c (gh ph) (gw pw) -> b gh gw", "max", ph=4, pw=2)
    mixed = einsum(images, table, "b c H W, new c -> b W new")
    same_shape(joined_shape, joined.shape, "H (bW) c")
    same_shape(shrunk_shape, shrunk.shape, "b gh gw")
    same_shape(mixed_shape, mixed.shape, "b W new")
    return "the code gives all three shapes"


# ------------------------------------------------------------------------------------ the sheets


def cut(shape: Callable[..., tuple[int, ...]]) -> Callable[..., Tensor]:
    """A `reshape` where axes should move."""
    return lambda images, *size: images.reshape(shape(*images.shape, *size))


@exercise("00.2", "Two sheets")
def two_sheets(sheet, channels_apart) -> str:
    written(sheet, channels_apart)
    same_function(
        sheet,
        moved("(across down) c H W -> c (down H) (across W)", "across"),
        lambda case: (case.randn("(across down) c H W"), case["across"]),
        trials=Trials(ones=True),
        mistakes={
            "the pictures follow each other along the rows of the sheet, and should go down its "
            "columns: in the batch, the last letter in parentheses runs fastest": moved(
                "(down across) c H W -> c (down H) (across W)", "across"
            ),
            "inside (H down) and (W across) the pictures run fastest, so their rows and columns "
            "are shuffled into each other": moved(
                "(across down) c H W -> c (H down) (W across)", "across"
            ),
            "the rows of the pictures below each other are shuffled into each other: "
            "(H down) should be (down H)": moved(
                "(across down) c H W -> c (H down) (across W)", "across"
            ),
            "the columns of the pictures beside each other are shuffled into each other: "
            "(W across) should be (across W)": moved(
                "(across down) c H W -> c (down H) (W across)", "across"
            ),
            "the numbers were only cut anew as they lie in memory, as view and reshape do; the "
            "axes must move": cut(lambda b, c, H, W, across: (c, b // across * H, across * W)),
        },
    )
    return same_function(
        channels_apart,
        moved("b c H W -> (b H) (c W)"),
        lambda case: (case.randn("b c H W"),),
        trials=Trials(ones=True),
        mistakes={
            "the rows of all pictures are shuffled into each other: (H b) should be (b H)": moved(
                "b c H W -> (H b) (c W)"
            ),
            "the columns of the channels are shuffled into each other: (W c) should be "
            "(c W)": moved("b c H W -> (b H) (W c)"),
            "rows and columns of both are shuffled into each other: the whole picture must come "
            "before the next one, (b H) and (c W)": moved("b c H W -> (H b) (W c)"),
            "the numbers were only cut anew as they lie in memory, as view and reshape do; the "
            "axes must move": cut(lambda b, c, H, W: (b * H, c * W)),
        },
    )


# ---------------------------------------------------------------------------- pixels and channels

SHUFFLE = {
    name: "write the pattern, or the steps of view and permute"
    for name in ("pixel_unshuffle", "pixel_shuffle", "PixelUnshuffle.forward")
}

# What is wrong, and the places of the letters in the block and in the new channels.
FOLDS = {
    "the channel runs fastest, (ph pw c): channel, row, column is (c ph pw)": (
        ("gh ph", "gw pw"),
        "ph pw c",
    ),
    "row and column in the block are exchanged: the column must run fastest": (
        ("gh ph", "gw pw"),
        "c pw ph",
    ),
    "(ph gh) takes one pixel of every block to make a picture of its own; a block is "
    "neighbouring pixels, (gh ph)": (("ph gh", "pw gw"), "c ph pw"),
    "the channel runs fastest, and (ph gh) takes pixels from far apart": (
        ("ph gh", "pw gw"),
        "ph pw c",
    ),
}


def folded(picture: tuple[str, str], channels: str, back: bool) -> Callable[..., Tensor]:
    rows, columns = picture
    sides = [f"b c ({rows}) ({columns})", f"b ({channels}) gh gw"]
    return moved(" -> ".join(sides[::-1] if back else sides), "ph", "pw")


@exercise("00.3", "Pixels into channels, and back")
def pixels_and_channels(to_channels, to_pixels) -> str:
    written(to_channels, to_pixels)
    in_memory = "the numbers were only cut anew as they lie in memory, as view and reshape do"
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
def find_the_bug(healthy) -> str:
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
            "the first columns are normalised, the channels are not: the last axis of "
            "(b, c, H, W) is the width": normalised_along(3),
            "the first rows are normalised, the channels are not: axis 2 of (b, c, H, W) is the "
            "height": normalised_along(2),
            "the first pictures are normalised, the channels are not: axis 0 of (b, c, H, W) is "
            "the batch": normalised_along(0),
            "the mean is subtracted, the division by std is missing": lambda images, mean, std: (
                images - lined_up(mean)
            ),
            "the division by std is there, the mean is not subtracted": lambda images, mean, std: (
                images / lined_up(std)
            ),
            "it is multiplied by std, not divided": lambda images, mean, std: (
                (images - lined_up(mean)) * lined_up(std)
            ),
            "the mean is added, not subtracted": lambda images, mean, std: (
                (images + lined_up(mean)) / lined_up(std)
            ),
            "it divides first and subtracts then: (images - mean) / std": (
                lambda images, mean, std: images / lined_up(std) - lined_up(mean)
            ),
            "mean and std are exchanged": lambda images, mean, std: (
                (images - lined_up(std)) / lined_up(mean)
            ),
            "only the first picture is normalised": lambda images, mean, std: torch.cat(
                [(images[:1] - lined_up(mean)) / lined_up(std), images[1:]]
            ),
            "it is divided by the square of std": lambda images, mean, std: (
                (images - lined_up(mean)) / lined_up(std).square()
            ),
            "all channels get the mean of the first": lambda images, mean, std: (
                (images - mean[0]) / lined_up(std)
            ),
            "all channels get the mean and std of the first": lambda images, mean, std: (
                (images - mean[0]) / std[0]
            ),
            "the pictures' own mean and std are taken, not the given ones": lambda images, *_: (
                (images - images.mean((0, 2, 3), keepdim=True))
                / images.std((0, 2, 3), keepdim=True)
            ),
        },
    )


# ------------------------------------------------------------------------------------ the mixing

ONE_TABLE = "b c H W, new c -> b new H W"


@exercise("00.5", "Mixing channels: the loop, then without it")
def mixing_channels(remix_loop, remix) -> str:
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
            "it is the mean over the channels, not the sum": lambda image, table: (
                einsum(image, table, "c H W, new c -> new H W") / len(image)
            ),
            "each new channel holds its last product only: add to it, do not write over it": (
                lambda image, table: table[:, -1, None, None] * image[-1]
            ),
            "every new channel is the sum of the old ones, without the table": (
                lambda image, table: image.sum(0).expand(len(table), -1, -1) + 0
            ),
        },
    )
    return same_function(
        remix,
        lambda images, tables: einsum(images, tables, "b c H W, b new c -> b new H W"),
        lambda case: (case.randn("b c H W"), case.randn("b new c")),
        trials=Trials(ones=True),
        mistakes={
            "every picture is mixed with the first picture's table": lambda images, tables: einsum(
                images, tables[0], ONE_TABLE
            ),
            "every picture is mixed with the last picture's table": lambda images, tables: einsum(
                images, tables[-1], ONE_TABLE
            ),
            "every picture is mixed with the sum of all tables: the b of the tables must be the b "
            "of the pictures": lambda images, tables: einsum(images, tables.sum(0), ONE_TABLE),
            "every picture is mixed with the mean of all tables": lambda images, tables: einsum(
                images, tables.mean(0), ONE_TABLE
            ),
            "it is the mean over the channels, not the sum": lambda images, tables: (
                einsum(images, tables, "b c H W, b new c -> b new H W") / images.shape[1]
            ),
            "the tables were turned with view or reshape; that cuts them elsewhere": (
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


@exercise("00.6", "What shrinking takes away")
def what_shrinking_takes(lost, times) -> str:
    written(lost, times)
    compared = same_function(
        lost,
        lambda images, side: (images - blocks(images, side)).square().mean(),
        lambda case: (case.randn("b c (gh side) (gw side)"), case["side"]),
        mistakes={
            "it is the sum, not the mean": lambda images, side: (
                (images - blocks(images, side)).square().sum()
            ),
            "the differences cancel each other: square each of them, then take the mean": (
                lambda images, side: (images - blocks(images, side)).mean()
            ),
            "it is the mean size of the difference, not of its square": lambda images, side: (
                (images - blocks(images, side)).abs().mean()
            ),
            "it is the root of the mean square": lambda images, side: (
                (images - blocks(images, side)).square().mean().sqrt()
            ),
            "the blocks are enlarged by tiling: (ph gh) should be (gh ph)": lambda images, side: (
                (images - blocks(images, side, pattern="b c gh gw -> b c (ph gh) (pw gw)"))
                .square()
                .mean()
            ),
            "the blocks hold their largest number, not their mean": lambda images, side: (
                (images - blocks(images, side, "max")).square().mean()
            ),
            "the blocks hold their sum, not their mean": lambda images, side: (
                (images - blocks(images, side, "sum")).square().mean()
            ),
            "it is the mean square of the shrunk pictures, not of the difference": (
                lambda images, side: means(images, side).square().mean()
            ),
        },
    )
    measured = same_number(
        times,
        9.75,
        0.15,
        "how many times more the shuffled photographs lose",
        known={
            1.0: "the shuffled photographs lose as much as the photographs: their numbers still "
            "have the old neighbours",
            1 / 9.75: "divide the other way round: shuffled by photographs",
            0.0693: "this is what the shuffled photographs lose; divide it by what the photographs "
            "lose",
            0.0622: "this is a difference; how many times more is a quotient",
            0.0071: "this is what the photographs lose; how many times more do the shuffled ones?",
            7.28: "the numbers stayed in their photograph and in their channel; they may go "
            "anywhere",
            8.5: "the numbers stayed in their photograph; they may go to any photograph",
            9.22: "the numbers stayed in their channel, as when the three colours of a pixel move "
            "together; every number goes by itself",
            19.7: "these are blocks of 2 x 2",
            5.52: "these are blocks of 8 x 8",
            3.39: "these are blocks of 16 x 16",
        },
    )
    return f"{compared}; {measured}"


open_exercise("00.7", "Upside down")
