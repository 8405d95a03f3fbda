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
from checks.engine.patches import patches
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


def right_cut(images: Tensor, ph: int, pw: int) -> Tensor:
    return rearrange(images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)


STRIPS = "reshape(len(images), -1, images.shape[1] * ph * pw)"
ORDER, RESHAPED = "b (gh gw) (c ph pw)", ("pw=pw)", f"pw=pw).{STRIPS}")
CUT = f'rearrange(images, "b c (gh ph) (gw pw) -> {ORDER}", ph=ph, pw=pw)'
CUT_MISTAKES = patches(
    right_cut,
    {
        "patches-are-strips": (CUT, f"images.{STRIPS}"),
        "channels-before-grid": (ORDER, "b c gh gw ph pw", *RESHAPED),
        "columns-behind-channels": (ORDER, "b gh c gw ph pw", *RESHAPED),
        "patches-by-column": ("(gh gw)", "(gw gh)"),
        "patch-channels-last": ("(c ph pw)", "(ph pw c)"),
        "patch-by-column": ("(c ph pw)", "(c pw ph)"),
        "patch-pw-ph-c": ("(c ph pw)", "(pw ph c)"),
        "patch-ph-c-pw": ("(c ph pw)", "(ph c pw)"),
        "patches-of-distant-pixels": ("(gh ph) (gw pw)", "(ph gh) (pw gw)"),
        "ph-and-pw-exchanged": ("ph=ph, pw=pw", "ph=pw, pw=ph"),
        "unfold-viewed": (CUT, f"F.unfold(images, (ph, pw), stride=(ph, pw)).{STRIPS}"),
    },
)
LOOP_MISTAKES = {
    words: lambda image, ph, pw, mistake=mistake: mistake(image[None], ph, pw)[0]
    for words, (mistake,) in CUT_MISTAKES.items()
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


def projected(images: Tensor, weight: Tensor, bias: Tensor, ph: int, pw: int) -> Tensor:
    patches = rearrange(images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)
    tokens = F.linear(patches, weight, bias)
    return tokens


CONV_MISTAKES = patches(
    projected,
    {
        "maps-viewed-as-tokens": ("return tokens", "return tokens.mT.reshape(tokens.shape)"),
        "projection-bias-missing": ("weight, bias)", "weight)"),
        "tokens-by-column": ("(gh gw)", "(gw gh)"),
        "weight-split-channels-last": ("(c ph pw)", "(ph pw c)"),
        "weight-split-by-column": ("(c ph pw)", "(c pw ph)"),
    },
)


def converted_weight(weight: Tensor, c: int, ph: int, pw: int) -> Tensor:
    return rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw)


CONVERTED_MISTAKES = patches(
    converted_weight,
    {
        "weight-way-back": ("(ph pw c) -> e (c ph pw)", "(c ph pw) -> e (ph pw c)"),
        "weight-read-pw-ph-c": ("(ph pw c)", "(pw ph c)"),
        "weight-out-c-pw-ph": ("(c ph pw)", "(c pw ph)"),
        "weight-out-pw-ph-c": ("(c ph pw)", "(pw ph c)"),
        "weight-out-ph-c-pw": ("(c ph pw)", "(ph c pw)"),
    },
)


def with_weights(case: Case) -> tuple[Any, ...]:
    """Pictures, the weight and bias of their projection, and the size of a patch."""
    images, ph, pw = pictures(case)
    return images, case.randn("e (c ph pw)"), case.randn("e"), ph, pw


@exercise("01.4", "Weights that others trained")
def weights_of_others(tokens_by_conv, converted) -> Message | str:
    written(tokens_by_conv, converted)
    compared = same_function(
        tokens_by_conv,
        projected,
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
        converted_weight,
        lambda case: (case.randn("e (ph pw c)"), case["c"], case["ph"], case["pw"]),
        mistakes=CONVERTED_MISTAKES,
    )
    return message("and-weights-fit", compared=compared)


# ------------------------------------------------------------------------------------ the class


class Embedding(finished.PatchEmbedding):
    """The right class, step by step."""

    def forward(self, images: Tensor) -> Tensor:
        patches = self.proj(finished.patchify(images, self.patch_size))
        first = self.class_token.expand(len(images), -1, -1)
        return torch.cat([first, patches], dim=1) + self.positions


PLUS = "+ self.positions"
EMBEDDING_MISTAKES = patches(
    Embedding,
    {
        "positions-missing": (PLUS, ""),
        "class-token-at-end": ("[first, patches]", "[patches, first]"),
        "class-token-without-position": (PLUS, "", "patches]", "patches + self.positions[:, 1:]]"),
        "positions-of-neighbours": (PLUS, "", "patches]", "patches + self.positions[:, :-1]]"),
        "positions-shifted": [(PLUS, f"{PLUS}.roll({by}, dims=1)") for by in (1, -1)],
        "positions-twice": (PLUS, "+ 2 * self.positions"),
        "positions-multiplied": (PLUS, "* self.positions"),
    },
)


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
    """Patches that are 0, except for the last picture."""
    return torch.cat([torch.zeros_like(patches[:-1]), patches[-1:]])


def black_and_white(case: Case) -> tuple[Any, ...]:
    """Pictures whose first square is white and whose last one is black, and the patch size."""
    images, ph, pw = pictures(case)
    images[:, :, :ph, :pw], images[:, :, -ph:, -pw:] = 1.0, 0.0
    return images, ph, pw


def some_negative(patches: Tensor) -> Tensor:
    """Patches whose numbers have alternating signs, + and -."""
    signs = torch.tensor([1, -1], dtype=patches.dtype).repeat(patches.shape[-1])
    return patches * signs[: patches.shape[-1]]


CUTS = {
    "cut-right": right_cut,
    "cut-of-exercise-three": CUT_MISTAKES["channels-before-grid"][0],
    "cut-strips": CUT_MISTAKES["patches-are-strips"][0],
    "cut-by-columns": CUT_MISTAKES["patches-by-column"][0],
    "cut-last-picture": lambda *args: last_picture(right_cut(*args)),
    "cut-with-signs": lambda *args: some_negative(right_cut(*args)),
}


def changes(cut: Callable, images: Tensor, ph: int, pw: int) -> Tensor:
    before, table = cut(images, ph, pw), []
    for row in range(0, images.shape[2], ph):
        for column in range(0, images.shape[3], pw):
            painted = images.clone()
            painted[:, :, row : row + ph, column : column + pw] += 1
            changed = cut(painted, ph, pw) != before
            table.append(changed.any(dim=2).any(dim=0))
    return torch.stack(table)


STACK, COPY = "torch.stack(table)", "painted = images.clone()\n"
BY_COLUMN = f'rearrange({STACK}, "(gh gw) n -> (gw gh) n", gh=images.shape[2] // ph)'
COPIED_ONCE = (f"            {COPY}", "", "    before", f"    {COPY}    before")
INFLUENCE_MISTAKES = patches(
    changes,
    {
        "always-own-patch": (STACK, "torch.eye(len(table), dtype=torch.bool)"),
        "influence-transposed": (STACK, "torch.stack(table).mT"),
        "influence-inverted": (STACK, "~torch.stack(table)"),
        "painted-without-fresh-copy": COPIED_ONCE,
        "paint-taken-away": (
            *COPIED_ONCE,
            "table.append",
            "painted[:, :, row : row + ph, column : column + pw] -= 1\n            table.append",
        ),
        "squares-by-column": (STACK, BY_COLUMN),
        "paints-first-channel": ("[:, :, row", "[:, :1, row"),
        "asks-all-numbers": ("any(dim=2)", "all(dim=2)"),
        "asks-all-pictures": ("any(dim=0)", "all(dim=0)"),
        "paints-white": ("+= 1", "= 1.0"),
        "paints-black": ("+= 1", "= 0.0"),
        "no-patch-changes": (STACK, "torch.zeros_like(torch.stack(table))"),
    },
)


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
