"""Checks of the exercises of chapter 03: scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.measures import same_measure
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.shortcuts import ATTENTION, SOFTMAX
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished


@exercise("03.1", "Which shape?")
def which_shape(scores_shape, output_shape) -> Message | str:
    written(scores_shape, output_shape)
    q, k, v = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 7, 6)
    output, weights = finished.scaled_dot_product_attention(q, k, v)
    same_shape(scores_shape, weights.shape, "b h i j")
    same_shape(output_shape, output.shape, "b h i dv")
    return "gives-both-shapes"


# ------------------------------------------------------------------------------------ the softmax


def softmax_of(scores: Tensor) -> Tensor:
    top = scores.amax(dim=-1, keepdim=True)
    powers = (scores - top).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


DIVISION = " / powers.sum(dim=-1, keepdim=True)"
SOFTMAX_MISTAKES = patches(
    softmax_of,
    {
        "softmax-over-queries": ("dim=-1", "dim=-2"),
        "softmax-over-heads": ("dim=-1", "dim=1"),
        "softmax-over-batch": ("dim=-1", "dim=0"),
        "softmax-over-queries-and-keys": [
            ("dim=-1", "dim=(-2, -1)"),
            ("sum(dim=-1", "sum(dim=(-2, -1)"),
        ],
        "softmax-over-everything": [
            ("dim=-1", "dim=(0, 1, 2, 3)"),
            ("sum(dim=-1", "sum(dim=(0, 1, 2, 3)"),
        ],
        "softmax-without-division": [(" - top", "", DIVISION, ""), (DIVISION, "")],
        "softmax-without-exp": ("(scores - top).exp()", "scores"),
        "softmax-logarithm": (f"powers{DIVISION}", "scores.log_softmax(dim=-1)"),
    },
)
LARGE_MISTAKES = patches(
    softmax_of,
    {
        "softmax-less-nothing": (" - top", ""),
        "softmax-less-mean": ("amax", "mean"),
        "softmax-less-total": ("amax(dim=-1, keepdim=True)", "max()"),
    },
)


@exercise("03.2", "The softmax by hand")
def softmax_by_hand(softmax) -> Message | str:
    compared = same_function(
        softmax,
        softmax_of,
        lambda case: (case.randn("b h i j") * 3,),
        forbidden=SOFTMAX,
        mistakes=SOFTMAX_MISTAKES,
    )
    for rows in ([[1000, 1001, 1002], [998, 999, 1000]], [[-1000, 0, 1000], [-1000] * 3]):
        scores = torch.tensor(rows, dtype=torch.float32)
        found = run(softmax, (scores,), ["scores"])
        close = torch.isclose(found, scores.softmax(-1), atol=1e-6).all(dim=-1)
        if not close.all():
            first = rows[close.tolist().index(False)]
            raise Wrong(message("not-for-large-scores", row=first), partial(lost, scores, found))
    return message("and-large-rows-survive", compared=compared)


def lost(scores: Tensor, found: Tensor) -> str:
    """Say why a softmax that is right for small scores fails for large ones."""
    for cause, (way,) in LARGE_MISTAKES.items():
        if torch.allclose(found, way(scores), equal_nan=True):
            return cause
    return "softmax-subtract-largest"


# ------------------------------------------------------------------------------------- the scores


def scaled(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores


ROOT = " / q.shape[-1] ** 0.5"
WRONG_ROOTS = {
    "scores-not-divided": (ROOT, ""),
    "scores-divided-by-d": (ROOT, " / q.shape[-1]"),
    "scores-multiplied": (ROOT, " * q.shape[-1] ** 0.5"),
    "scores-divided-by-queries": (ROOT, " / q.shape[-2] ** 0.5"),
    "scores-divided-by-keys": (ROOT, " / k.shape[-2] ** 0.5"),
    "scores-divided-by-heads": (ROOT, " / len(q[0, :, 0, 0]) ** 0.5"),  # four axes have heads
    "scores-divided-by-axis": [(ROOT, f" / q.shape[{axis}] ** 0.5") for axis in (0, 1)],
    "scores-divided-by-token-width": (ROOT, " / q[0, :, 0, :].numel() ** 0.5"),
    "scores-divided-by-a-fixed-number": [
        (ROOT, f" / {d} ** 0.5") for d in (8, 16, 32, 64, 96, 128, 512, 768)
    ],
}
SCORE_MISTAKES = patches(
    scaled,
    {
        **WRONG_ROOTS,
        "scores-transposed": ("q @ k.mT", "k @ q.mT"),
        "keys-viewed": ("k.mT", "k.reshape(k.mT.shape)"),
        "scores-of-all-heads": ("k.mT", "k.sum(dim=1, keepdim=True).mT"),
        "scores-are-weights": ("return scores", "return scores.softmax(dim=-1)"),
    },
)


@exercise("03.3", "Scores: the loop, then without it")
def loop_and_line(scores_loop, scores) -> Message | str:
    written(scores_loop, scores)
    same_function(
        scores_loop,
        scaled,
        lambda case: (case.randn("i d"), case.randn("j d")),
        mistakes=SCORE_MISTAKES,
        gradients=False,
        loops="asked",
        trials=Trials(counted=lambda case: (case.randn("i 2"), case.randn("j 2"))),
    )
    return same_function(
        scores,
        scaled,
        lambda case: (case.randn("b h i d"), case.randn("b h j d")),
        mistakes=SCORE_MISTAKES,
        loops="forbidden",
    )


# --------------------------------------------------------------------------------- the attention


class TwoHeads(nn.Module):
    """A layer around a function, so that the clinic can examine it."""

    def __init__(self, attend: Callable):
        super().__init__()
        self.attend = attend
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (rearrange(layer(x), "b n (h d) -> b h n d", h=2) for layer in layers)
        return self.out_proj(rearrange(self.attend(q, k, v)[0], "b h n d -> b n (h d)"))


def clinic(attend: Callable) -> Report:
    return diagnose(TwoHeads(attend), num_heads=2)


def attended(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


WEIGHTS = "scores.softmax(dim=-1)"
ATTENTION_MISTAKES = patches(
    attended,
    {
        "softmax-over-queries": ("dim=-1", "dim=-2"),
        "softmax-over-queries-and-keys": (
            WEIGHTS,
            "scores.exp() / scores.exp().sum(dim=(-2, -1), keepdim=True)",
        ),
        "softmax-over-everything": (WEIGHTS, "scores.exp() / scores.exp().sum()"),
        "softmax-over-axis-one": ("dim=-1", "dim=1"),
        "softmax-over-axis-zero": ("dim=-1", "dim=0"),
        **WRONG_ROOTS,
        "scores-divided-by-value-width": (ROOT, " / v.shape[-1] ** 0.5"),
        "weights-divided": (ROOT, "", WEIGHTS, WEIGHTS + ROOT),
        "weights-divided-too": (WEIGHTS, WEIGHTS + ROOT),
        "mix-divided": [
            ("weights @ v", f"weights @ v{ROOT}"),
            (ROOT, "", "weights @ v", f"weights @ v{ROOT}"),
        ],
        "no-softmax": (WEIGHTS, "scores"),
        "keys-viewed": ("k.mT", "k.reshape(k.mT.shape)"),
        "scores-returned": ("v, weights", "v, scores"),
    },
)


def queries_keys_values(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Two, three or four axes; values and keys differ in dimension."""
    front = case.random.choice(["b h ", "b ", ""])
    return tuple(case.randn(front + axes) for axes in ("i d", "j d", "j dv"))


def same_attention(answer: Callable) -> Message | str:
    return same_function(
        answer,
        attended,
        queries_keys_values,
        mistakes=ATTENTION_MISTAKES,
        forbidden=ATTENTION,
        clinic=clinic,
        loops="forbidden",
        trials=Trials(6),
    )


@exercise("03.4", "Attention in one piece")
def attention_in_one_piece(attention) -> Message | str:
    return same_attention(attention)


@exercise("03.5", "Find the bug")
def find_the_bug(healthy) -> Message | str:
    return same_attention(healthy)


# -------------------------------------------------------------------------------- the experiment


@exercise("03.6", "Longer queries and keys, measured")
def longer_keys(measure, divisor) -> Message | str:
    written(measure, divisor)
    measured = same_measure(
        measure,
        lambda d, a, b: d * (a * b) ** 2,
        [(24, 0.5, 3.0), (7, 3.0, 2.0), (150, 1.7, 0.4)],
        what="variance-of-scores",
        mistakes={
            "spreads-not-used": lambda d, a, b: d,
            "keys-without-spread": lambda d, a, b: d * a**2,
            "queries-without-spread": lambda d, a, b: d * b**2,
            "deviation-not-variance": lambda d, a, b: d**0.5 * a * b,
            "products-not-summed": lambda d, a, b: (a * b) ** 2,
            "products-averaged": lambda d, a, b: (a * b) ** 2 / d,
            "spread-for-variance": lambda d, a, b: d * a * b,
        },
    )
    same_measure(
        divisor,
        lambda d, a, b: d**0.5 * a * b,
        [(8, 4.5, 2.5), (24, 0.5, 3.0), (15, 2.0, 0.7)],
        what="divisor-needed",
        within=0.05,
        draws=False,
        mistakes={
            "divisor-without-spreads": lambda d, a, b: d**0.5,
            "divisor-is-variance": lambda d, a, b: d * (a * b) ** 2,
            "divisor-root-of-spreads": lambda d, a, b: (d * a * b) ** 0.5,
            "divisor-spreads-squared": lambda d, a, b: d**0.5 * (a * b) ** 2,
            "divisor-spreads-added": lambda d, a, b: d**0.5 * (a + b),
            "divisor-upside-down": lambda d, a, b: 1 / (d**0.5 * a * b),
            "divisor-width-without-root": lambda d, a, b: d * a * b,
        },
    )
    return message("and-divisor-fits", measured=measured)


open_exercise("03.7", "Another way to match")
