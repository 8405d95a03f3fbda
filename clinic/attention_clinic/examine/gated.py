"""Gates that stand where a residual does: the stream and what a part returned, weighed."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn

from attention_clinic.engine.wiring import Slot, Step


def gate_of(step: Step, shape: torch.Size) -> tuple[Slot, Slot] | None:
    """Return which argument of a gate is the stream, and which the part's result; None for none.

    A gate returns z * stream + (1 - z) * other, or stream + z * other, where a sigmoid made z, and
    a tanh the other, or it is what was handed over.

    Args:
        step: the call.
        shape: of the tokens.
    """
    given = {slot: t for slot, t in step.given.items() if t.shape == shape}
    if len(given) != 2 or len(step.given) != 2 or step.result is None or step.mixes:
        return None
    first, second = given
    if isinstance(step.module, nn.GRUCell):
        return second, first
    opened = _made_by("sigmoid", step, shape)
    bent = _made_by("tanh", step, shape)
    for kept, other in ((first, second), (second, first)):
        stream = given[kept]
        for z, made in product(opened, (*bent, given[other])):
            sums = (stream + z * (made - stream), made + z * (stream - made), stream + z * made)
            if any(_near(one, step.result) for one in sums):
                return kept, other
    return None


def _made_by(name: str, step: Step, shape: torch.Size) -> list[Tensor]:
    """Return what calls of an activation returned in a call, cut into pieces as wide as a token."""
    found: list[Tensor] = []
    for one in step.all():
        said = one.path.rpartition(" ")[2] if one.module is None else type(one.module).__name__
        if said.lower().rstrip("_") == name and one.result is not None:
            found += one.result.split(shape[-1], dim=-1)
    return [t for t in found if t.shape == shape]


def _near(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() <= 1e-6 * (1 + second.abs().max()))
