"""Scores that are bent one by one, where others take a softmax over the keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, State, variant

variant(
    "pointwise-attention",
    "bends each score by itself, by a sigmoid or a ReLU: no softmax divides the attention of a "
    "token among its keys",
    "sigmoid attention, ReLU attention",
    "16",
)


def _keys(scores: Tensor) -> int:
    return scores.shape[-1]


def _moved(shift: float | Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return the sigmoid of what is moved: by a number, one for each head, None for its keys."""

    def run(scores: Tensor) -> Tensor:
        return (scores + (-math.log(_keys(scores)) if shift is None else shift)).sigmoid()

    return run


# the mean over the keys takes the place of the sum that a softmax divides by
RECTIFIED: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda scores: scores.relu() / _keys(scores),
    lambda scores: scores.relu().square() / _keys(scores),
    lambda scores: (scores.relu() / _keys(scores)).square(),
)


def bendings(state: State) -> Iterator[Form]:
    """Find what a module was heard to bend its scores by, if it takes no softmax."""
    heard = state.get("pointwise", ())
    ways = list(RECTIFIED) if "relu" in heard else []
    if "sigmoid" in heard:
        ways += [_moved(shift) for shift in (0.0, None, *state.get("shifts", ()))]
        ways.append(lambda scores: scores.sigmoid() / _keys(scores))
    for way in ways:
        yield Form(way, variants=("pointwise-attention",))


variant(
    "distance-scores",
    "compares by the distance of queries and keys: the nearer a key, the more weight it gets",
    "L2 attention, Gaussian kernels",
    "16",
)


def _squares(q: Tensor, k: Tensor) -> Tensor:
    lengths = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    return 2 * q @ k.mT - lengths


def _far(q: Tensor, k: Tensor) -> Tensor:
    return -torch.cdist(q, k)


# how far apart queries and keys are; without a scale, what does not grow with their width
NEAR: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _squares,
    lambda q, k: _squares(q, k) / 2,
    _far,
)
SIZED: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda q, k: _squares(q, k) / q.shape[-1],
    _far,
)


def nearness(state: State) -> Iterator[Form]:
    """Find the distances of queries and keys, where a module was heard to take some."""
    if state.get("apart"):
        for way in NEAR:
            yield Form(way, variants=("distance-scores",))
        for way in SIZED:
            yield Form(lambda q, k, way=way: (way(q, k), True), variants=("distance-scores",))
