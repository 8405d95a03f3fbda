"""Checks of the exercises of chapter 03: scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from checks.engine import explain
from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.measures import same_measure
from checks.engine.message import Message, message
from checks.engine.shortcuts import ATTENTION, SOFTMAX
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished


@exercise("03.1", "Which shape?")
def which_shape(scores_shape, mixed_shape) -> Message | str:
    written(scores_shape, mixed_shape)
    q, k, v = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 7, 6)
    mixed, weights = finished.scaled_dot_product_attention(q, k, v)
    same_shape(scores_shape, weights.shape, "b h i j")
    same_shape(mixed_shape, mixed.shape, "b h i dv")
    return "gives-both-shapes"


# ------------------------------------------------------------------------------------ the softmax


def largest(scores: Tensor) -> Tensor:
    return scores.amax(dim=-1, keepdim=True)


def shares(
    dim: int | tuple[int, ...], less: Callable[[Tensor], Tensor] = torch.zeros_like
) -> Callable[[Tensor], Tensor]:
    """A softmax over the given axes; something may be subtracted first."""

    def softmax(scores: Tensor) -> Tensor:
        powers = (scores - less(scores)).exp()
        return powers / powers.sum(dim=dim, keepdim=True)

    return softmax


@exercise("03.2", "The softmax by hand")
def softmax_by_hand(softmax) -> Message | str:
    compared = same_function(
        softmax,
        lambda scores: scores.softmax(dim=-1),
        lambda case: (case.randn("b h i j") * 3,),
        forbidden=SOFTMAX,
        mistakes={
            "softmax-over-queries": shares(-2),
            "softmax-over-heads": shares(1),
            "softmax-over-batch": shares(0),
            "softmax-over-queries-and-keys": [shares((-2, -1)), shares((-2, -1), less=largest)],
            "softmax-over-everything": [
                shares((0, 1, 2, 3)),
                shares((0, 1, 2, 3), less=largest),
            ],
            "softmax-without-division": [
                torch.exp,
                lambda scores: (scores - largest(scores)).exp(),
            ],
            "softmax-without-exp": lambda scores: scores / scores.sum(dim=-1, keepdim=True),
            "softmax-logarithm": lambda scores: scores.log_softmax(dim=-1),
        },
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
    ways = {
        "softmax-less-nothing": torch.zeros_like,
        "softmax-less-mean": lambda scores: scores.mean(-1, True),
        "softmax-less-total": torch.max,
    }
    for cause, less in ways.items():
        if torch.allclose(found, shares(-1, less)(scores), equal_nan=True):
            return cause
    return "softmax-subtract-largest"


# ------------------------------------------------------------------------------------- the scores


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def over(root_of: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], Tensor]:
    """Scores that are divided by the square root of something."""
    return lambda q, k: q @ k.mT / root_of(q, k) ** 0.5


def heads_of(q: Tensor) -> int:
    """The number of heads of (b, h, i, d); no other shape has heads."""
    _, h, _, _ = q.shape
    return h


def by_wrong_root(of: Callable[[Callable], Callable] = lambda scores: scores) -> explain.Mistakes:
    """The scores with a wrong divisor, or what is made of them, by what is wrong."""
    return {
        "scores-not-divided": of(over(lambda q, k: 1)),
        "scores-divided-by-d": of(over(lambda q, k: q.shape[-1] ** 2)),
        "scores-multiplied": of(over(lambda q, k: 1 / q.shape[-1])),
        "scores-divided-by-queries": of(over(lambda q, k: q.shape[-2])),
        "scores-divided-by-keys": of(over(lambda q, k: k.shape[-2])),
        "scores-divided-by-heads": of(over(lambda q, k: heads_of(q))),
        "scores-divided-by-axis": [of(over(lambda q, k, a=a: q.shape[a])) for a in (0, 1)],
        "scores-divided-by-token-width": of(over(lambda q, k: heads_of(q) * q.shape[-1])),
        "scores-divided-by-a-fixed-number": [
            of(over(lambda q, k, d=d: d)) for d in (8, 16, 32, 64, 96, 128, 512, 768)
        ],
    }


SCORE_MISTAKES = {
    **by_wrong_root(),
    "scores-transposed": lambda q, k: scaled(q, k).mT,
    "keys-viewed": lambda q, k: q @ k.reshape(k.mT.shape) / q.shape[-1] ** 0.5,
    "scores-of-all-heads": lambda q, k: scaled(q, k.sum(dim=1, keepdim=True)),
    "scores-are-weights": lambda q, k: scaled(q, k).softmax(dim=-1),
}


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


def mixing(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable:
    """An attention with the given weights of queries and keys."""
    return lambda q, k, v: (weigh(q, k) @ v, weigh(q, k))


def shared(*dims: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The weights of a softmax over the given axes."""

    def weigh(q: Tensor, k: Tensor) -> Tensor:
        powers = scaled(q, k).exp()
        return powers / powers.sum(dim=dims or tuple(range(powers.ndim)), keepdim=True)

    return weigh


def softly(scores: Callable[[Tensor, Tensor], Tensor]) -> Callable:
    """An attention whose weights are the softmax of the given scores."""
    return mixing(lambda q, k: scores(q, k).softmax(dim=-1))


right_weights = shared(-1)

ATTENTION_MISTAKES = {
    "softmax-over-queries": mixing(shared(-2)),
    "softmax-over-queries-and-keys": mixing(shared(-2, -1)),
    "softmax-over-everything": mixing(shared()),
    "softmax-over-axis-one": mixing(shared(1)),
    "softmax-over-axis-zero": mixing(shared(0)),
    **by_wrong_root(softly),
    "scores-divided-by-value-width": lambda q, k, v: softly(over(lambda *_: v.shape[-1]))(q, k, v),
    "weights-divided": mixing(lambda q, k: (q @ k.mT).softmax(dim=-1) / q.shape[-1] ** 0.5),
    "weights-divided-too": mixing(lambda q, k: right_weights(q, k) / q.shape[-1] ** 0.5),
    "mix-divided": [
        lambda q, k, v: (right_weights(q, k) @ v / q.shape[-1] ** 0.5, right_weights(q, k)),
        lambda q, k, v: (
            (q @ k.mT).softmax(dim=-1) @ v / q.shape[-1] ** 0.5,
            (q @ k.mT).softmax(dim=-1),
        ),
    ],
    "no-softmax": mixing(scaled),
    "keys-viewed": softly(lambda q, k: q @ k.reshape(k.mT.shape) / q.shape[-1] ** 0.5),
    "scores-returned": lambda q, k, v: (right_weights(q, k) @ v, scaled(q, k)),
}


def queries_keys_values(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Two, three or four axes; a value has another width than a key."""
    front = case.random.choice(["b h ", "b ", ""])
    return tuple(case.randn(front + axes) for axes in ("i d", "j d", "j dv"))


def same_attention(answer: Callable) -> Message | str:
    return same_function(
        answer,
        lambda q, k, v: finished.scaled_dot_product_attention(q, k, v),
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
