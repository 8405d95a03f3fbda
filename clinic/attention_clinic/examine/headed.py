"""Heads that a block calls itself, one after another, and whose results it joins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attention_clinic.engine.wiring import Slot, Step
from attention_clinic.examine.leaves import equal_tensors


class Head(NamedTuple):
    """One head.

    Args:
        path: of the module.
        slot: the argument that takes its tokens.
        start: the first number of a token that it gets.
        width: how many of them.
    """

    path: str
    slot: Slot
    start: int
    width: int


class Heads(nn.Module):
    """Such heads as a module.

    Args:
        block: that holds them.
        heads: in the order in which their results are joined.
        out: the path of the layer behind them, "" for none.
    """

    def __init__(self, block: nn.Module, heads: list[Head], out: str) -> None:
        super().__init__()
        self.heads = nn.ModuleList(block.get_submodule(head.path) for head in heads)
        self.out_proj = block.get_submodule(out) if out else None
        self.given = heads

    def forward(self, x: Tensor) -> Tensor:
        made = []
        for head, (_, slot, start, width) in zip(self.heads, self.given, strict=True):
            read = x[..., start : start + width]
            made.append(head(read) if isinstance(slot, int) else head(**{slot: read}))
        joined = torch.cat(made, dim=-1)
        return joined if self.out_proj is None else self.out_proj(joined)


def heads_of(group: list[Step], known: list[Tensor]) -> tuple[list[Head], Tensor, Tensor] | None:
    """Return the heads that some calls are, what they read, and their results; None for others.

    Args:
        group: calls that belong to no part yet.
        known: what they may read.
    """
    called = [step for step in group if step.mixes and len(step.given) == 1]
    if len(called) < 2 or len(called) < len(group):
        return None
    if any(step.module is None or step.result is None or step.order for step in called):
        return None
    for read in reversed(known):
        heads = [_head(step, read) for step in called]
        made = [step.result for step in called if step.result is not None]
        if all(t.ndim == 3 and t.shape[:2] == read.shape[:2] for t in made) and all(heads):
            return [head for head in heads if head], read, torch.cat(made, dim=-1)
    return None


def _head(step: Step, read: Tensor) -> Head | None:
    slot, t = next(iter(step.given.items()))
    if t.shape[:-1] != read.shape[:-1]:
        return None
    width = t.shape[-1]
    starts = range(read.shape[-1] - width + 1)
    start = next((at for at in starts if equal_tensors(t, read[..., at : at + width])), None)
    return None if start is None else Head(step.path, slot, start, width)
