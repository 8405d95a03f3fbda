"""Checks of the exercises of chapter 03: scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable

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
from checks.engine.shortcuts import ATTENTION, SOFTMAX
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished


@exercise("03.1", "Which shape?")
def which_shape(scores_shape, mixed_shape) -> str:
    written(scores_shape, mixed_shape)
    q, k, v = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 7, 6)
    mixed, weights = finished.scaled_dot_product_attention(q, k, v)
    same_shape(scores_shape, weights.shape, "b h i j")
    same_shape(mixed_shape, mixed.shape, "b h i dv")
    return "the code gives both shapes"


# ------------------------------------------------------------------------------------ the softmax


def shares(dim: int | tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A softmax over the given axes."""
    return lambda scores: scores.exp() / scores.exp().sum(dim=dim, keepdim=True)


@exercise("03.2", "The softmax by hand")
def softmax_by_hand(softmax) -> str:
    compared = same_function(
        softmax,
        lambda scores: scores.softmax(dim=-1),
        lambda case: (case.randn("b h i j") * 3,),
        forbidden=SOFTMAX,
        mistakes={
            "it runs over the queries (columns sum to 1)": shares(-2),
            "it runs over the heads": shares(1),
            "it runs over the batch": shares(0),
            "it runs over all queries and keys at once": shares((-2, -1)),
            "it runs over the whole tensor at once": shares((0, 1, 2, 3)),
            "exp is there, the division by the sum of the row is not": torch.exp,
            "the numbers are divided by their sum without exp": lambda scores: (
                scores / scores.sum(dim=-1, keepdim=True)
            ),
            "it is the logarithm of the softmax": lambda scores: scores.log_softmax(dim=-1),
        },
    )
    large = torch.tensor([[1000.0, 1001.0, 1002.0], [998.0, 999.0, 1000.0]])
    far = torch.tensor([[-1000.0, 0.0, 1000.0], [-1000.0] * 3])
    for scores, rows in ((large, "(1000, 1001, 1002)"), (far, "(-1000, -1000, -1000)")):
        if not torch.allclose(run(softmax, (scores,), ["scores"]), scores.softmax(-1), atol=1e-6):
            raise Wrong(
                f"right for small scores, but not where {rows} is one of the rows: exp leaves the "
                "range of the computer there, so subtract the largest score of each row before exp"
            )
    return f"{compared}, and rows of 1000 and -1000 survive"


# ------------------------------------------------------------------------------------- the scores


def scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


SCORE_MISTAKES = {
    "the scores are not divided by the square root of d": lambda q, k: q @ k.mT,
    "they are divided by d, not by its square root": lambda q, k: q @ k.mT / q.shape[-1],
    "they are multiplied by the square root of d": lambda q, k: q @ k.mT * q.shape[-1] ** 0.5,
    "they are divided by the square root of the number of queries, not of d": lambda q, k: (
        q @ k.mT / q.shape[-2] ** 0.5
    ),
    "they are divided by the square root of the number of keys, not of d": lambda q, k: (
        q @ k.mT / k.shape[-2] ** 0.5
    ),
    "they are divided by the square root of h * d, the width of a token": lambda q, k: (
        q @ k.mT / (q.shape[1] * q.shape[-1]) ** 0.5
    ),
    "queries and keys are exchanged: i comes first, then j": lambda q, k: scaled(q, k).mT,
    "the keys were turned with view or reshape, which cuts them elsewhere: transpose": (
        lambda q, k: q @ k.reshape(k.mT.shape) / q.shape[-1] ** 0.5
    ),
    "each query meets the keys of all heads: the h of the keys must be the h of the queries": (
        lambda q, k: scaled(q, k.sum(dim=1, keepdim=True))
    ),
    "these are the weights: the softmax comes later": lambda q, k: scaled(q, k).softmax(dim=-1),
}


@exercise("03.3", "Scores: the loop, then without it")
def loop_and_line(scores_loop, scores) -> str:
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


ATTENTION_MISTAKES = {
    "softmax runs over the queries (columns sum to 1)": mixing(
        lambda q, k: scaled(q, k).softmax(dim=-2)
    ),
    "the scores are not divided by the square root of d": mixing(
        lambda q, k: (q @ k.mT).softmax(dim=-1)
    ),
    "the weights are divided by the square root of d, not the scores: rows do not sum to 1": mixing(
        lambda q, k: (q @ k.mT).softmax(dim=-1) / q.shape[-1] ** 0.5
    ),
    "there is no softmax": mixing(scaled),
    "the keys were turned with view or reshape, which cuts them elsewhere: transpose": mixing(
        lambda q, k: (q @ k.reshape(k.mT.shape) / q.shape[-1] ** 0.5).softmax(dim=-1)
    ),
    "the scores are divided by the square root of the width of a value, not of a key": (
        lambda q, k, v: mixing(
            lambda q, k: (q @ k.mT / v.shape[-1] ** 0.5).softmax(dim=-1),
        )(q, k, v)
    ),
    "the mix is right, but the scores are returned instead of the weights": lambda q, k, v: (
        scaled(q, k).softmax(dim=-1) @ v,
        scaled(q, k),
    ),
}


def queries_keys_values(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Two, three or four axes; a value has another width than a key."""
    front = case.random.choice(["b h ", "b ", ""])
    return tuple(case.randn(front + axes) for axes in ("i d", "j d", "j dv"))


def same_attention(answer: Callable) -> str:
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
def attention_in_one_piece(attention) -> str:
    return same_attention(attention)


@exercise("03.5", "Find the bug")
def find_the_bug(healthy) -> str:
    return same_attention(healthy)


# -------------------------------------------------------------------------------- the experiment


@exercise("03.6", "Longer queries and keys, measured")
def longer_keys(measure, divisor) -> str:
    written(measure, divisor)
    measured = same_measure(
        measure,
        lambda d, a, b: d * (a * b) ** 2,
        [(24, 0.5, 3.0), (7, 3.0, 2.0), (150, 1.7, 0.4)],
        what="the variance of such scores",
        mistakes={
            "the spreads are not used": lambda d, a, b: d,
            "the keys are not multiplied by their spread": lambda d, a, b: d * a**2,
            "the queries are not multiplied by their spread": lambda d, a, b: d * b**2,
            "this is the standard deviation, not its square": lambda d, a, b: d**0.5 * a * b,
            "it is d times too small: the products of a query and a key are not summed over d, or "
            "their sum is divided already": lambda d, a, b: (a * b) ** 2,
            "the products are averaged over d, not summed": lambda d, a, b: (a * b) ** 2 / d,
            "the spread is taken for the variance": lambda d, a, b: d * a * b,
        },
    )
    same_measure(
        divisor,
        lambda d, a, b: d**0.5 * a * b,
        [(8, 4.5, 2.5), (24, 0.5, 3.0), (15, 2.0, 0.7)],
        what="the divisor that is needed",
        within=0.05,
        draws=False,
        mistakes={
            "the spreads are missing: longer keys make larger scores": lambda d, a, b: d**0.5,
            "this is the variance; dividing by c divides it by c squared": lambda d, a, b: (
                d * (a * b) ** 2
            ),
            "the spreads stand under the root once, and their squares should": lambda d, a, b: (
                (d * a * b) ** 0.5
            ),
            "the spreads are squared, and should not be": lambda d, a, b: d**0.5 * (a * b) ** 2,
            "the spreads are added, not multiplied": lambda d, a, b: d**0.5 * (a + b),
            "it is upside down: the scores are divided by it": lambda d, a, b: 1 / (d**0.5 * a * b),
            "the width needs its square root": lambda d, a, b: d * a * b,
        },
    )
    return f"{measured}, and the divisor brings it to 1"


open_exercise("03.7", "Another way to match")
