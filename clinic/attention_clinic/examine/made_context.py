"""A layer of a cross-attention's block that makes of its context what the attention asks."""

from __future__ import annotations

from torch import Tensor

from attention_clinic.engine.wiring import Step
from attention_clinic.examine.leaves import equal_tensors, matrices


def context_makers(root: Step, context: Tensor | None) -> list[Step]:
    """Return the call that makes of the context what an attention asks, [] where none does.

    Args:
        root: the call of the block.
        context: that it got, or None.
    """
    if context is None:
        return []

    def read(step: Step, tokens: Tensor) -> bool:
        return any(equal_tensors(t, tokens) for t in step.given.values())

    makers = [step for step in root.inner if read(step, context)]
    result = makers[0].result if len(makers) == 1 else None
    if result is None or result.shape[:2] != context.shape[:2]:
        return []
    maps = makers[0].module is not None and not makers[0].mixes and bool(matrices(makers))
    asks = (one.module is not None and one.mixes and read(one, result) for one in root.inner)
    return makers if maps and any(asks) else []


def making(makers: list[Step]) -> list[str]:
    """Say what is not tried where a call makes the context."""
    return [f"{step.path}, which makes what it asks of its context" for step in makers]
