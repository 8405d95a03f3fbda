"""Blocks that drop numbers of their stream, where others drop those of what a part returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import NoDropout, dropped_share
from attention_clinic.engine.patient import same
from attention_clinic.engine.tape import tensors_in

Run = Callable[[Tensor, Tensor | None], Tensor]
MOST = 12  # dropouts of a block that are emptied, one after the other


class Emptied(NoDropout):
    """Let one dropout return zeros, and all others what they get.

    Args:
        shape: of the tokens; dropouts of others are left alone.
        number: of the dropout, in the order of their calls; -1 for none.

    Attributes:
        read: what the dropouts got.
        added: of these, those that got a sum of two others of their shape.
        followed: of these, those after which something with weights of its own was called.
        made: what the block returned.
    """

    def __init__(self, shape: torch.Size, number: int = -1) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        self.read: list[Tensor] = []
        self.added: set[int] = set()
        self.followed: set[int] = set()
        self.sums: list[Tensor] = []
        self.made = torch.empty(0)  # what the block returned

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        tensors = list(tensors_in([*args, *kwargs.values()]))
        drops = kwargs.get("training", args[2] if len(args) > 2 else True)
        share = dropped_share(args, kwargs)
        if "dropout" in name and drops and share and tensors[0].shape == self.shape:
            number = len(self.read)
            self.read.append(tensors[0])
            self.added |= {number} if any(tensors[0] is t for t in self.sums) else set()
            return torch.zeros_like(tensors[0]) if number == self.number else tensors[0]
        if any(isinstance(t, nn.Parameter) and t.ndim > 1 for t in tensors):
            self.followed |= {*range(len(self.read))}
        result = super().called(func, args, kwargs)
        whole = [t for t in tensors if t.shape == self.shape]
        if "add" in name and len(whole) > 1:
            self.sums.append(result)
        return result


def _heard(run: Run, x: Tensor, context: Tensor | None, number: int = -1) -> Emptied:
    """Return what was heard while a block ran with one dropout emptied."""
    with Emptied(x.shape, number) as heard:
        heard.made = run(x, context)
    return heard


def dropped_stream(module: nn.Module, run: Run, x: Tensor, context: Tensor | None) -> int:
    """Return how many dropouts of a block drop numbers of its stream.

    Where one of them returns zeros, nothing of the tokens is left: no residual goes around it. What
    the tokens go through before they hear of others belongs to what enters, and what only a norm at
    the end of a stack made goes to a head.

    Args:
        module: the copy.
        run: calls it.
        x: tokens that it takes.
        context: those of the context, or None.
    """
    some = torch.arange(x.shape[2]).to(x)
    first = x.clone()
    first[:, :1] += some
    calls = [(x, context), (first, context)]
    calls += [] if context is None else [(x, context.flip(-1) - 1.0)]
    before = module.training
    module.train()
    try:
        usual, *others = (_heard(run, *given) for given in calls)
        asked = [
            number
            for number in sorted(usual.added | usual.followed)[:MOST]
            if any(not same(usual.read[number][:, -1], one.read[number][:, -1]) for one in others)
        ]
        pairs = [[_heard(run, t, context, n).made for t in (x, x.flip(0) + some)] for n in asked]
        return sum(same(*pair) for pair in pairs)
    except (RuntimeError, TypeError, ValueError, IndexError):  # it does not run while training
        return 0
    finally:
        module.train(before)
