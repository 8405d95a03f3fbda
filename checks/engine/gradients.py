"""Compare the gradients of an answer with the right ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from checks.engine.answer import Wrong
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import Crashed, attempt
from checks.engine.compare import copied, same_values, tensors
from checks.engine.message import Message, message


def same_gradients(
    answer: Callable,
    reference: Callable,
    args: tuple[Any, ...],
    names: Sequence[str],
    parameters: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Compare the gradients of inputs and parameters.

    Args:
        answer: the student's function or module.
        reference: the right one.
        args: what both are called with.
        names: what the arguments are called.
        parameters: by name, the answer's and the right one.

    Raises:
        Wrong: a gradient does not reach an input, or differs.
    """
    pairs = parameters or {}
    labels = [
        n for n, a in zip(names, args, strict=True) for t in tensors(a) if t.is_floating_point()
    ]
    labels += pairs
    own, rights = [mine for mine, _ in pairs.values()], [right for _, right in pairs.values()]
    want = gradients_of(reference, args, rights)
    for label, one, other in zip(labels, _caught(answer, args, own), want, strict=True):
        if other is None or (one is None and not other.any()):
            continue
        if one is None:
            raise Wrong(message("no-gradient", name=label))
        if not same_values(one, other):
            raise Wrong(message("gradient-differs", name=label), partial(_cut, answer, args))


def gradients_of(
    answer: Callable, args: tuple[Any, ...], parameters: Sequence[Tensor] = ()
) -> list[Tensor | None]:
    """Return the gradients of a fixed weighted sum of all results, for inputs and parameters.

    Args:
        answer: the function or module.
        args: what it is called with.
        parameters: of the module.
    """
    leaves = copied(args, requires_grad=True)
    results = [t for t in tensors((answer(*leaves),)) if t.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    loss = sum(
        (r * torch.randn(r.shape, generator=generator, dtype=r.dtype)).sum() for r in results
    )
    wanted = [t for t in tensors(leaves) if t.is_floating_point()] + list(parameters)
    if not loss.requires_grad:
        return [None] * len(wanted)
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def _caught(answer: Callable, args: tuple, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    try:
        return attempt(gradients_of, answer, args, parameters)
    except Crashed as crash:
        if "numpy" in str(crash.said):
            raise Wrong("no-gradient-through-numpy") from None
        raise Wrong(message("gradient-raises", what=crash.said)) from None


CUTS = ("detach", "detach_", "item", "tolist")


def _cut(answer: Callable, args: tuple[Any, ...]) -> Message | None:
    """Name a function that the answer calls and that no gradient passes through."""
    with CallTracer() as tracer:
        attempt(answer, *copied(args, requires_grad=True))
    called = [name for name in CUTS if tracer.called[name]]
    return message("part-of-graph-cut", name=called[0]) if called else None
