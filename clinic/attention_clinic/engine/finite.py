"""A run in which a call makes NaN or infinity: other numbers take their places behind that call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.wiring import Place, Step


def first_broken(step: Step) -> Place | None:
    """Return the first call of a module that returned NaN or infinity, None where none did.

    Args:
        step: the call of the block.
    """
    for inner in step.inner:
        found = first_broken(inner)
        if found is not None:
            return found
    whole = step.module is None or step.result is None or bool(step.result.isfinite().all())
    return None if whole else step.place


@contextmanager
def mended(block: nn.Module, places: list[Place]) -> Iterator[None]:
    """Let some calls return random numbers where they return NaN or infinity, in this context.

    Args:
        block: the copy that will run.
        places: the calls, of whatever number.
    """
    handles = [
        block.get_submodule(path).register_forward_hook(lambda part, given, made: _filled(made))
        for path in {path for path, _ in places}
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _filled(made: Any) -> Any:
    """Return tensors, or tuples of them, of the same shapes without NaN and infinity."""
    if isinstance(made, tuple):
        return tuple(map(_filled, made))
    if not isinstance(made, Tensor) or bool(made.isfinite().all()):
        return made
    other = torch.randn(made.shape, generator=torch.Generator().manual_seed(53))
    return torch.where(made.isfinite(), made, other.to(made))
