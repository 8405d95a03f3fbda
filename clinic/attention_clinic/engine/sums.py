"""Products that are written as a multiplication and a sum, as the products that they are."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event, Tape


def with_products(tape: Tape) -> None:
    """Replace each sum of products of two tensors on a tape by their product.

    Args:
        tape: of a run.
    """
    made: dict[int, Event] = {}  # what multiplies two tensors, by its first id
    for number, event in enumerate(tape.events):
        tensors = event.read()
        if event.name == "mul" and len(tensors) == 2:
            made[int(event.out.flatten()[0])] = event
        elif event.name == "sum" and tensors:
            factors = made.get(int(tensors[0].flatten()[0]))
            product = None if factors is None else _product(factors, event)
            if product is not None:
                tape.events[number] = product


def _product(factors: Event, event: Event) -> Event | None:
    """Return the product of matrices that a multiplication and a sum are, None for another thing.

    Args:
        factors: multiplies.
        event: sums.
    """
    read, *axes = event.args
    axes = axes[0] if axes and isinstance(axes[0], list) else []
    shape = factors.out.shape
    if len(axes) != 1 or not torch.equal(read, factors.out):
        return None
    along = axes[0] % len(shape)
    a, b = (t.expand(shape) for t in factors.read())
    both, only_a, only_b = [], [], []
    for axis in range(len(shape)):
        if axis != along:
            kind = both if _varies(a, axis) == _varies(b, axis) else only_b
            (only_a if kind is only_b and _varies(a, axis) else kind).append(axis)
    if not only_a or not only_b or not (_varies(a, along) and _varies(b, along)):
        return None
    first = _laid(a, both, only_a, [along], only_b)
    second = _laid(b, both, [along], only_b, only_a)
    rest = [axis for axis in range(len(shape)) if axis != along]
    out = event.out.reshape([shape[axis] for axis in rest])
    places = [[rest.index(axis) for axis in kind] for kind in (both, only_a, only_b)]
    return Event("bmm", (first, second), _laid(out, *places, []))


def _varies(t: Tensor, axis: int) -> bool:
    return bool((t != t.narrow(axis, 0, 1)).any())


def _laid(t: Tensor, *axes: list[int]) -> Tensor:
    """Return a tensor as matrices (lead, rows, columns); along the other axes it is the same."""
    lead, rows, columns, rest = axes
    sizes = [max(1, torch.Size([t.shape[axis] for axis in kind]).numel()) for kind in (lead, rows)]
    t = t.permute(*lead, *rows, *columns, *rest)
    t = t[(..., *(0 for _ in rest))]
    return t.reshape(*sizes, -1)
