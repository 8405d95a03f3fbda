"""What a part that nothing explains may do itself: add what it reads, or normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.tape import Event, TooLong, taped, tensors_in

PRODUCTS = {"mm", "addmm", "bmm", "convolution"}
SUMS = {"add", "sub", "rsub", "addmm"}
SCALED = {"mul", "div", "neg"}
# what they return holds no numbers of what they read
EMPTY = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_empty"),
    *("eq", "ne", "lt", "le", "gt", "ge", "nonzero", "bincount", "argmax", "argsort", "isin"),
}
# none of these, and no chain of them, divides a token by how large it is
NO_NORMS = PRODUCTS | SUMS | SCALED | {
    *("_softmax", "relu", "gelu", "silu", "sigmoid", "leaky_relu", "elu", "softplus"),
    *("masked_fill", "where", "topk", "sort", "index_add", "index_put", "embedding"),
}  # fmt: skip
OF_NORMS = {"norm-missing", "norm-mixed", "norm-order"}
OF_SUMS = {"residual-missing"}


@dataclass(frozen=True)
class Doubt:
    """What a part may do itself.

    Args:
        words: what it is, such as "feed-forward".
        adds: whether it may add what it reads to its result.
        norms: whether it may normalise something.
    """

    words: str
    adds: bool
    norms: bool

    def denies(self, id: str, said: str) -> bool:
        """Say whether a mistake between the parts may be none because of it."""
        if id in OF_NORMS:
            return self.norms
        return self.adds and id in OF_SUMS and self.words in said


def may_be_denied(id: str) -> bool:
    """Say whether a mistake between the parts may be none because of what a part does itself."""
    return id in OF_NORMS | OF_SUMS


def doubt_of(words: str, part: nn.Module, *given: Tensor) -> Doubt:
    """Follow the numbers that a part reads, and return what it may do with them.

    Args:
        words: what it is.
        part: as a module.
        given: what it reads, the stream first.
    """
    try:
        tape, _ = taped(lambda: part(*given), [("x", given[0])])
    except TooLong:
        return Doubt(words, True, True)
    _, start, end = tape.given[0]
    read = torch.zeros(tape.count, dtype=torch.bool)
    read[start:end] = True
    heard, linear = read.clone(), read.clone()  # what it reaches, and how much of that is linear
    adds = norms = False
    for event in tape.events:
        reached = [ids for ids in event.read() if bool(heard[ids].any())]
        if not reached or event.name in EMPTY:
            continue
        straight = [bool(linear[ids][heard[ids]].all()) for ids in reached]
        bare = any(bool(read[ids].any()) for ids in _but_factors(event))
        adds |= bare or (event.name in SUMS and len({*straight}) > 1)
        divides = event.name == "div" and any(bool(heard[ids].any()) for ids in event.read()[1:])
        norms |= divides or event.name not in NO_NORMS
        keeps = event.name in PRODUCTS | SCALED and len(reached) == 1
        heard[event.out] = True
        linear[event.out] = all(straight) and (keeps or event.name in SUMS)
    return Doubt(words, adds, norms)


def _but_factors(event: Event) -> list[Tensor]:
    """Return what an operation reads, but for the factors of a product."""
    args: tuple[Any, ...] = event.args
    if event.name in PRODUCTS:
        args = args[:1] if event.name == "addmm" else ()
    return list(tensors_in(args))
