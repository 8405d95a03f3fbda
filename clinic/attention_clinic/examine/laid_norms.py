"""Norms, and what bends, that get tokens in another order than (b, n, e), or in several terms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attention_clinic.engine.parcels import Order
from attention_clinic.engine.wiring import Step
from attention_clinic.examine.leaves import NORM, has_parts


class InOrder(nn.Module):
    """A norm, or what bends, that gets its tokens in another order, such as (b, e, n)."""

    def __init__(self, run: Callable[[Tensor], Tensor], order: Order) -> None:
        super().__init__()
        self.run, self.order = run, order

    def forward(self, x: Tensor) -> Tensor:
        return self.order.joined(self.run(self.order.cut(x)))


class InOneRow(nn.Module):
    """A norm that gets the tokens of all samples in one row, (b n, e)."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.flatten(0, 1)).view(x.shape)


class Imaged(nn.Module):
    """A norm that gets its tokens as an image, (b, e, rows, columns)."""

    def __init__(self, run: Callable[[Tensor], Tensor], image: tuple[int, int]) -> None:
        super().__init__()
        self.run, self.image = run, image

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.mT.unflatten(2, self.image)).flatten(2).mT


class OfSum(nn.Module):
    """A norm that adds up what it gets before it norms: x, and what a part returned.

    Args:
        run: the norm.
        terms: how many it adds.
    """

    def __init__(self, run: nn.Module, terms: int) -> None:
        super().__init__()
        self.run, self.terms = run, terms

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, *(torch.zeros_like(x) for _ in range(self.terms - 1)))


@torch.no_grad()
def take_sum(step: Step) -> None:
    """Let the call of a norm that adds up what it gets be one that gets the sum."""
    given, module, made = list(step.given.values()), step.module, step.result
    alike = made is not None and all(t.shape == made.shape for t in given)
    if module is None or len(given) < 2 or not alike or step.mixes or has_parts(module):
        return
    if not NORM.search(f"{type(module).__name__} {step.path}".lower()):
        return
    run, whole = OfSum(module, len(given)), torch.stack(given).sum(0)
    try:
        again = run(whole.clone())
    except Exception:  # whatever a stranger's code raises
        return
    if torch.allclose(again, made, rtol=1e-6, atol=1e-6):
        step.given, step.again = {0: whole}, run
