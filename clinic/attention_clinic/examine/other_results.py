"""Calls of a block that make nothing but other results of it, such as those of a second stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import tensor_for
from attention_clinic.engine.modes import Called, NoDropout
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.wiring import Place, Step, Whole
from attention_clinic.examine.leaves import equal_tensors, leaves
from attention_clinic.examine.unlearned import listed


@torch.no_grad()
def calls_of_others(whole: Whole, run: Callable[[], object], root: Step, x: Tensor) -> list[Step]:
    """Return the calls that change other results of a block, and no number of the one that counts.

    Args:
        whole: the block.
        run: calls it, on the same tokens each time, and returns the result that counts.
        root: its call.
        x: the tokens that it got.
    """
    block = whole.block
    raw: list[Any] = []
    handle = block.register_forward_hook(lambda part, given, made: raw.append(made))

    def results(place: Place | None = None) -> tuple[Tensor, list[Tensor]]:
        raw.clear()
        straight = Called(block) if whole.straight else nullcontext()
        with NoDropout(), straight, _changed(block, place):
            y = tensor_for(run(), x).clone()
        rows = (t for t in tensors_in(raw[-1:]) if t.ndim == 3 and t.shape[2] == y.shape[-1])
        return y, [t.clone() for t in rows]

    try:
        y, others = results()
        if all(equal_tensors(t, y) for t in others):
            return []
        found = []
        for step in leaves(root, x):
            if step.module is not None and step.path:
                then, now = results(step.place)
                alike = len(now) == len(others) and all(map(equal_tensors, now, others))
                found += [step] * (equal_tensors(then, y) and not alike)
        return found
    finally:
        handle.remove()


def other_results(calls: list[Step]) -> list[str]:
    """Say what is not tried where some calls make other results."""
    return [f"its other results, which {listed([step.path for step in calls])} make"] * bool(calls)


def without(step: Step, left_out: list[Step]) -> Step:
    """Return a call without some of the calls inside of it."""
    inner = [one for one in step.inner if not any(one is other for other in left_out)]
    return replace(step, inner=[without(one, left_out) for one in inner]) if step.inner else step


@contextmanager
def _changed(block: nn.Module, place: Place | None) -> Iterator[None]:
    """Let one call return other numbers, in this context."""
    if place is None:
        yield
        return
    calls: list[Any] = []

    def change(part: nn.Module, given: Any, made: Any) -> Any:
        calls.append(part)
        return _other(made) if len(calls) == place[1] + 1 else made

    handle = block.get_submodule(place[0]).register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


def _other(made: Any) -> Any:
    """Return other numbers, of the same shapes, which no norm makes the same again."""
    if isinstance(made, tuple):
        return tuple(map(_other, made))
    if not isinstance(made, Tensor) or not made.is_floating_point():
        return made
    return made + torch.arange(made.numel()).view(made.shape).to(made).sin()
