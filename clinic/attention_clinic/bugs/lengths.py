"""Fewer keys than tokens: a layer mixes their places, or all but the highest scores are dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, variant

variant(
    "linformer",
    "mixes the places of keys and values into another number of them, by matrices of its own, "
    "learned or fixed",
    "Linformer",
    "16",
)
variant(
    "top-k",
    "keeps only the highest scores of each query: all others get no weight",
    "sparse Transformers with top-k, KVT",
    "16",
)


@dataclass(frozen=True)
class Places:
    """A layer over the places of tokens.

    Args:
        weight: (n, m), or (h, n, m), from places to others; it may hold more than n places.
        bias: (m,), or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    def run(self, t: Tensor) -> Tensor:
        """Mix the places of keys or values, (r, b, h, n, d) -> (r, b, h, m, d)."""
        made = (t.mT @ self.weight[..., : t.shape[3], :]).mT
        return made if self.bias is None else made + self.bias[:, None]


# ------------------------------------- places: k and v (r, b, h, n, d) -> (r, b, h, m, d)


def _mixed(form: Form, state: State) -> State:
    if form.run is None:
        return {}
    keys, values = form.run
    return {"k": keys.run(state["k"]), "v": values.run(state["v"])}


def _layers(state: State) -> Iterator[Form]:
    """Find the layers over places: one for keys and one for values, or one for both."""
    n = state["k"].shape[3]
    layers = [layer for layer in state.get("places", ()) if layer.weight.shape[-2] >= n]
    for keys, values in product(layers, layers):
        if keys.weight.shape[-1] != values.weight.shape[-1]:
            continue
        yield Form((keys, values), variants=("linformer",))


PLACES = Stage("places", _mixed, _layers, [Form(None)])

# ------------------------------------------------- top-k: in the place of the softmax


def highest(count: Callable[[int], int]) -> Callable[[Tensor], Tensor]:
    """Return the softmax of the highest scores of each query.

    Args:
        count: how many they are, of so many keys.
    """

    def run(scores: Tensor) -> Tensor:
        least = scores.topk(count(scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)

    return run


def tops(state: State) -> Iterator[Form]:
    """Find how many scores a module keeps: a number, the root of the keys, or a share of them."""
    n, heard = state["scores"].shape[-1], state.get("tops", ())
    for kept, of in heard:
        ways: list[Callable[[int], int]] = [lambda n, k=kept: min(k, n)]
        ways += [lambda n: math.ceil(math.sqrt(n)), math.isqrt]
        for share in (0.1, 0.2, 0.25, 0.3, 0.5, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9):
            ways += [lambda n, s=share: max(1, int(n * s)), lambda n, s=share: math.ceil(n * s)]
        for way in ways:
            if way(of) == kept and 1 <= way(n) <= n:
                yield Form(highest(way), variants=("top-k",))
