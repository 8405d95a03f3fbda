"""Low-rank layers beside a weight (LoRA): folded into the weight of the copy they belong to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import permutations

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import same

ADAPTS = re.compile(r"lora|low_?rank|adapter", re.IGNORECASE)
FACTORS = re.compile(r"scal|alpha", re.IGNORECASE)


@torch.no_grad()
def folded(module: nn.Module, run: Callable[[], Tensor]) -> list[str]:
    """Return the names of the low-rank layers that were folded into weights of a copy.

    W x + s B A x is (W + s B A) x: the weight gets the product, A becomes 0, and the output must
    be what it was.

    Args:
        module: the copy, whose numbers change.
        run: calls it.
    """
    found: list[str] = []
    for name, first, second in _pairs(module):
        whole = run()
        kept, product = first.clone(), second @ first
        for rows, factor in _places(module, product, first.shape[0]):
            before = rows.clone()
            rows.add_(factor * product if rows.shape == product.shape else factor * product.mT)
            first.zero_()
            if same(run(), whole):
                found.append(name)
                break
            rows.copy_(before)
            first.copy_(kept)
    return found


def _pairs(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield two matrices whose product is another matrix of a low rank, by their names."""
    held = [(n, p) for n, p in module.named_parameters() if p.ndim == 2 and ADAPTS.search(n)]
    for (name, first), (other, second) in permutations(held, 2):
        apart = [
            pair for pair in zip(name.lower(), other.lower(), strict=False) if len(set(pair)) > 1
        ]
        fits = second.shape[1] == first.shape[0] <= min(second.shape[0], first.shape[1]) // 2
        if len(name) == len(other) and apart in ([("a", "b")], [("b", "a")]) and fits:
            yield name, first, second


def _places(module: nn.Module, product: Tensor, rank: int) -> Iterator[tuple[Tensor, float]]:
    """Yield the rows of weights that a product may be added to, and its factor."""
    said = [v for part in module.modules() for n, v in vars(part).items() if FACTORS.search(n)]
    said = [float(v) for v in said if isinstance(v, int | float) and v]
    factors = dict.fromkeys((*said, *(v / rank for v in said), 1.0, 1 / rank))
    for name, weight in module.named_parameters():
        if weight.ndim != 2 or ADAPTS.search(name):
            continue
        for shape in dict.fromkeys((product.shape, product.mT.shape)):
            if weight.shape[1] == shape[1] and weight.shape[0] % shape[0] == 0:
                for rows in weight.split(shape[0]):
                    yield from ((rows, factor) for factor in factors)
