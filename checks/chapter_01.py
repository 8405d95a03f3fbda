"""Checks of the exercises of chapter 01: patch embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose_embedding
from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.shortcuts import Loops
from checks.engine.verdict import exercise, open_exercise
from utils import embedding as finished

FINISHED = {"patchify": "make-patches-yourself"}
CUTTING = {**FINISHED, "unfold": "write-pattern-yourself"}


@exercise("01.1", "Which shape?")
def which_shape(patches_shape, tokens_shape, kernel_shape) -> Message | str:
    written(patches_shape, tokens_shape, kernel_shape)
    embed = finished.PatchEmbedding((15, 42), (5, 6), in_channels=4, embed_dim=9)
    pictures = torch.zeros(2, 4, 15, 42)
    same_shape(patches_shape, finished.patchify(pictures, (5, 6)).shape, "b n p")
    same_shape(tokens_shape, embed(pictures).shape, "b n e")
    same_shape(kernel_shape, nn.Conv2d(4, 9, (5, 6), stride=(5, 6)).weight.shape, "e c ph pw")
    return "gives-all-three-shapes"


# ------------------------------------------------------------------------------------- the cuts


def by_pattern(pattern: str) -> Callable[[Tensor, int, int], Tensor]:
    """A cut whose patches are put together in the given order."""
    return lambda images, ph, pw: rearrange(
        images, f"b c (gh ph) (gw pw) -> {pattern}", ph=ph, pw=pw
    )


right_cut = by_pattern("b (gh gw) (c ph pw)")


def strips(images: Tensor, ph: int, pw: int) -> Tensor:
    return images.reshape(len(images), -1, images.shape[1] * ph * pw)


def mixed_channels(images: Tensor, ph: int, pw: int) -> Tensor:
    return strips(by_pattern("b c gh gw ph pw")(images, ph, pw), ph, pw)


def unfolded(images: Tensor, ph: int, pw: int) -> Tensor:
    return F.unfold(images, (ph, pw), stride=(ph, pw))  # (b, p, n)


CUT_MISTAKES = {
    "patches-are-strips": strips,
    "channels-before-grid": (mixed_channels),
    "columns-behind-channels": (
        lambda images, ph, pw: by_pattern("b gh c gw ph pw")(images, ph, pw).reshape(
            len(images), -1, images.shape[1] * ph * pw
        )
    ),
    "patches-by-column": (by_pattern("b (gw gh) (c ph pw)")),
    "patch-channels-last": (by_pattern("b (gh gw) (ph pw c)")),
    "patch-by-column": (by_pattern("b (gh gw) (c pw ph)")),
    "patch-pw-ph-c": by_pattern("b (gh gw) (pw ph c)"),
    "patch-ph-c-pw": by_pattern("b (gh gw) (ph c pw)"),
    "patches-of-distant-pixels": lambda images, ph, pw: rearrange(
        images, "b c (ph gh) (pw gw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw
    ),
    "ph-and-pw-exchanged": lambda images, ph, pw: right_cut(images, pw, ph),
    "unfold-viewed": (
        lambda images, ph, pw: unfolded(images, ph, pw).reshape(
            len(images), -1, images.shape[1] * ph * pw
        )
    ),
}
LOOP_MISTAKES = {
    words: lambda image, ph, pw, mistake=mistake: mistake(image[None], ph, pw)[0]
    for words, mistake in CUT_MISTAKES.items()
}


def cut_clinic(cut: Callable) -> Report:
    return diagnose_embedding(cut, (6, 20), (3, 4), call=lambda f, images: f(images, 3, 4))


def pictures(case: Case) -> tuple[Any, ...]:
    """Pictures and the size of a patch."""
    return case.randn("b c (gh ph) (gw pw)"), case["ph"], case["pw"]


def same_cut(answer: Callable, forbidden: dict[str, str], loops: Loops) -> Message:
    return same_function(
        answer,
        right_cut,
        pictures,
        mistakes=CUT_MISTAKES,
        forbidden=forbidden,
        clinic=cut_clinic,
        loops=loops,
        trials=Trials(counted=lambda case: (case.randn("b 1 (gh 2) (gw 3)"), 2, 3)),
    )


@exercise("01.2", "Patches: the loop, then one line")
def loop_and_line(cut_loop, cut) -> Message | str:
    written(cut_loop, cut)
    same_function(
        cut_loop,
        lambda image, ph, pw: right_cut(image[None], ph, pw)[0],
        lambda case: (case.randn("c (gh ph) (gw pw)"), case["ph"], case["pw"]),
        mistakes=LOOP_MISTAKES,
        forbidden={**CUTTING, "rearrange": "cut-one-slice-each"},
        loops="asked",
        trials=Trials(counted=lambda case: (case.randn("2 gh gw"), 1, 1)),
    )
    return same_cut(cut, CUTTING, loops="forbidden")


@exercise("01.3", "Find the bug")
def find_the_bug(healthy) -> Message | str:
    return same_cut(healthy, FINISHED, loops="free")


# ---------------------------------------------------------------------------------- convolution


def tokens_of(cut: Callable) -> Callable:
    """The tokens of patches that are cut in the given way."""
    return lambda images, weight, bias, ph, pw: F.linear(cut(images, ph, pw), weight, bias)


def viewed_maps(images: Tensor, weight: Tensor, bias: Tensor, ph: int, pw: int) -> Tensor:
    tokens = tokens_of(right_cut)(images, weight, bias, ph, pw)
    return tokens.mT.reshape(tokens.shape)


CONV_MISTAKES = {
    "maps-viewed-as-tokens": (viewed_maps),
    "projection-bias-missing": lambda images, weight, bias, ph, pw: F.linear(
        right_cut(images, ph, pw), weight
    ),
    "tokens-by-column": (tokens_of(by_pattern("b (gw gh) (c ph pw)"))),
    "weight-split-channels-last": (tokens_of(by_pattern("b (gh gw) (ph pw c)"))),
    "weight-split-by-column": (tokens_of(by_pattern("b (gh gw) (c pw ph)"))),
}


def reordered(pattern: str) -> Callable:
    return lambda weight, c, ph, pw: rearrange(weight, pattern, c=c, ph=ph, pw=pw)


CONVERTED_MISTAKES = {
    "weight-way-back": reordered("e (c ph pw) -> e (ph pw c)"),
    "weight-read-pw-ph-c": reordered("e (pw ph c) -> e (c ph pw)"),
    "weight-out-c-pw-ph": reordered("e (ph pw c) -> e (c pw ph)"),
    "weight-out-pw-ph-c": reordered("e (ph pw c) -> e (pw ph c)"),
    "weight-out-ph-c-pw": reordered("e (ph pw c) -> e (ph c pw)"),
}


def with_weights(case: Case) -> tuple[Any, ...]:
    """Pictures, the weight and bias of their projection, and the size of a patch."""
    images, ph, pw = pictures(case)
    return images, case.randn("e (c ph pw)"), case.randn("e"), ph, pw


@exercise("01.4", "Weights that others trained")
def weights_of_others(tokens_by_conv, converted) -> Message | str:
    written(tokens_by_conv, converted)
    compared = same_function(
        tokens_by_conv,
        tokens_of(right_cut),
        with_weights,
        mistakes=CONV_MISTAKES,
        forbidden=dict.fromkeys(CUTTING, "conv-cuts-and-projects"),
    )
    with CallTracer() as tracer:
        run(tokens_by_conv, with_weights(Case(0)))
    if not tracer.called["conv2d"]:
        noticed(Wrong("convolution-missing"))
    same_function(
        converted,
        reordered("e (ph pw c) -> e (c ph pw)"),
        lambda case: (case.randn("e (ph pw c)"), case["c"], case["ph"], case["pw"]),
        mistakes=CONVERTED_MISTAKES,
    )
    return message("and-weights-fit", compared=compared)


# ------------------------------------------------------------------------------------ the class


def put_together(
    join: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> type[finished.PatchEmbedding]:
    """The class with another way to join class token (b, 1, e), patches and positions."""

    class Mistaken(finished.PatchEmbedding):
        def forward(self, images: Tensor) -> Tensor:
            patches = self.proj(finished.patchify(images, self.patch_size))
            return join(self.class_token.expand(len(images), -1, -1), patches, self.positions)

    return Mistaken


EMBEDDING_MISTAKES = {
    "positions-missing": put_together(
        lambda first, patches, positions: torch.cat([first, patches], dim=1)
    ),
    "class-token-at-end": put_together(
        lambda first, patches, positions: torch.cat([patches, first], dim=1) + positions
    ),
    "class-token-without-position": (
        put_together(
            lambda first, patches, positions: torch.cat([first, patches + positions[:, 1:]], dim=1)
        )
    ),
    "positions-of-neighbours": put_together(
        lambda first, patches, positions: torch.cat([first, patches + positions[:, :-1]], dim=1)
    ),
    "positions-shifted": [
        put_together(
            lambda first, patches, positions, by=by: (
                torch.cat([first, patches], dim=1) + positions.roll(by, dims=1)
            )
        )
        for by in (1, -1)
    ],
    "positions-twice": put_together(
        lambda first, patches, positions: torch.cat([first, patches], dim=1) + 2 * positions
    ),
    "positions-multiplied": put_together(
        lambda first, patches, positions: torch.cat([first, patches], dim=1) * positions
    ),
}


def embedding_clinic(module: nn.Module, built: dict[str, Any]) -> Report:
    return diagnose_embedding(
        module, built["image_size"], built["patch_size"], built["in_channels"]
    )


@exercise("01.5", "The class, for pictures that are not square")
def patch_embedding(PatchEmbedding) -> Message | str:
    compared = same_module(
        PatchEmbedding,
        finished.PatchEmbedding,
        lambda case: {
            "image_size": case.shape("(gh ph) (gw pw)"),
            "patch_size": case.shape("ph pw"),
            "in_channels": case["c"],
            "embed_dim": case["e"],
        },
        lambda case: (case.randn("b c (gh ph) (gw pw)"),),
        mistakes=EMBEDDING_MISTAKES,
        forbidden={"PatchEmbedding.forward": "write-embedding-steps"},
        clinic=embedding_clinic,
    )
    torch.manual_seed(0)
    fresh = PatchEmbedding((6, 10), (3, 2), 1, 4000)
    for name in ("class_token", "positions"):
        spread = getattr(fresh, name).std().item()
        if not abs(spread - 0.02) < 0.002:
            raise Wrong(message("starts-with-deviation", name=name, got=spread, want=0.02))
    return compared


# ------------------------------------------------------------------------------- the experiment


def last_picture(patches: Tensor) -> Tensor:
    """Patches that are 0 but for the last picture."""
    return torch.cat([torch.zeros_like(patches[:-1]), patches[-1:]])


def black_and_white(case: Case) -> tuple[Any, ...]:
    """Pictures whose first square is white and whose last one is black, and the patch size."""
    images, ph, pw = pictures(case)
    images[:, :, :ph, :pw], images[:, :, -ph:, -pw:] = 1.0, 0.0
    return images, ph, pw


def some_negative(patches: Tensor) -> Tensor:
    """Patches whose numbers have the signs + and - in turn."""
    signs = torch.tensor([1, -1], dtype=patches.dtype).repeat(patches.shape[-1])
    return patches * signs[: patches.shape[-1]]


CUTS = {
    "cut-right": right_cut,
    "cut-of-exercise-three": mixed_channels,
    "cut-strips": strips,
    "cut-by-columns": by_pattern("b (gw gh) (c ph pw)"),
    "cut-last-picture": lambda *args: last_picture(right_cut(*args)),
    "cut-with-signs": lambda *args: some_negative(right_cut(*args)),
}


def changes(
    cut: Callable,
    images: Tensor,
    ph: int,
    pw: int,
    channels: int | None = None,
    fresh: bool = True,
    restored: bool = False,
    by_columns: bool = False,
    whole: bool = False,
    every: bool = False,
    colour: float | None = None,
) -> Tensor:
    """The table of who changes whom, right or with one of its mistakes."""
    before, painted, rows = cut(images, ph, pw), images.clone(), []
    grid = (images.shape[2] // ph, images.shape[3] // pw)
    order = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    for row, column in sorted(order, key=lambda place: place[::-1]) if by_columns else order:
        painted = images.clone() if fresh else painted
        square = (slice(row * ph, (row + 1) * ph), slice(column * pw, (column + 1) * pw))
        places = (slice(None), slice(channels), *square)
        painted[places] = painted[places] + 1 if colour is None else colour
        changed = cut(painted, ph, pw) != before
        changed = changed.all(dim=2) if whole else changed.any(dim=2)
        rows.append(changed.all(dim=0) if every else changed.any(dim=0))
        if restored:
            painted[places] -= 1
    return torch.stack(rows)


def squares(images: Tensor, ph: int, pw: int) -> int:
    return images.shape[2] // ph * (images.shape[3] // pw)


INFLUENCE_MISTAKES = {
    "always-own-patch": (
        lambda cut, images, ph, pw: torch.eye(squares(images, ph, pw), dtype=torch.bool)
    ),
    "influence-transposed": (lambda cut, images, ph, pw: changes(cut, images, ph, pw).mT),
    "influence-inverted": (lambda cut, images, ph, pw: ~changes(cut, images, ph, pw)),
    "painted-without-fresh-copy": (lambda *args: changes(*args, fresh=False)),
    "paint-taken-away": lambda *args: changes(*args, fresh=False, restored=True),
    "squares-by-column": (lambda *args: changes(*args, by_columns=True)),
    "paints-first-channel": (lambda *args: changes(*args, channels=1)),
    "asks-all-numbers": (lambda *args: changes(*args, whole=True)),
    "asks-all-pictures": (lambda *args: changes(*args, every=True)),
    "paints-white": (lambda *args: changes(*args, colour=1.0)),
    "paints-black": (lambda *args: changes(*args, colour=0.0)),
    "no-patch-changes": (
        lambda cut, images, ph, pw: torch.zeros(
            squares(images, ph, pw), squares(images, ph, pw), dtype=torch.bool
        )
    ),
}


@exercise("01.6", "Who changes whom?")
def who_changes_whom(influence, reach) -> Message | str:
    written(influence, reach)
    for number, (name, cut) in enumerate(CUTS.items()):
        try:
            same_function(
                influence,
                changes,
                lambda case, cut=cut: (cut, *black_and_white(case)),
                mistakes=INFLUENCE_MISTAKES,
                trials=Trials(1 if number else 2),  # each calls the cut for every patch
            )
        except Wrong as wrong:
            wrong.what = message("with-cut", cut=message(name), what=wrong.what)
            raise
    found = same_number(
        reach,
        3.0,
        0.01,
        "mean-patches-that-change",
        known={
            1.0: "reach-of-right-cut",
            3 / 36: "reach-as-share",
            108.0: "reach-of-all-marks",
            36.0: "reach-number-of-patches",
            2.0: "reach-other-channels",
        },
    )
    return message("tables-agree", cuts=len(CUTS), found=found)


open_exercise("01.7", "Patches that overlap")
