"""Gates that stand where a residual does: the stream and what a part returned, weighed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import torch
from torch import Tensor, nn

from attention_clinic.engine.wiring import Slot, Step
from attention_clinic.examine.leaves import equal_tensors


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


def with_gates(leaves: list[Step], sums: list[tuple[Tensor, Tensor, Tensor]]) -> list[Step]:
    """Return calls in which those of a gate that no module is are one, a highway's for instance.

    Args:
        leaves: calls, in their order.
        sums: what was added to what, and the sum.
    """
    for first, second, whole in sums:
        found = next((gate for pair in permutations((first, second))
                      if (gate := _gate(leaves, *pair, whole)) is not None), None)  # fmt: skip
        if found is not None:
            gate, own = found
            last = max(place for place, step in enumerate(leaves) if any(step is o for o in own))
            rest = [step for step in leaves[last + 1 :] if all(step is not one for one in own)]
            before = [step for step in leaves[:last] if all(step is not one for one in own)]
            leaves = [*before, gate, *rest]
    return leaves


def _gate(
    leaves: list[Step], kept: Tensor, opened: Tensor, whole: Tensor
) -> tuple[Step, list[Step]] | None:
    """Return the gate that a sum is, as one call, with the calls that make it; None for none.

    It is (1 - z) * stream + z * other, or stream + z * other.
    """
    products = [step for step in leaves if step.path.endswith("times") and step.result is not None]
    times = next((step for step in products if equal_tensors(step.result, opened)), None)
    closes = next((step for step in products if equal_tensors(step.result, kept)), None)
    for makers in () if times is None else _opening(leaves, *times.given.values()):
        z, layer = makers[-1].result, makers[0]
        other = next((t for t in times.given.values() if not equal_tensors(t, z)), None)
        rest = () if closes is None else tuple(closes.given.values())
        shut = [t for t in rest if _near(1 - t, z)]
        stream = next((t for t in rest if t is not shut[0]), None) if shut else kept
        if other is None or stream is None or (not shut and _is_beside(leaves, layer, other)):
            continue
        path = layer.path.removesuffix(" sigmoid")
        made = Step((path, 0), None, {0: stream, 1: other}, whole, [*makers])
        return made, [*makers, times, *([closes] if shut else [])]
    return None


def _opening(leaves: list[Step], *given: Tensor) -> Iterator[list[Step]]:
    """Yield the calls that made what a product got by a sigmoid: layers, and the sigmoid."""
    for step in leaves:
        made = step.result
        if made is None or not any(equal_tensors(made, t) for t in given) or step.mixes:
            continue
        sigmoids = _made_by("sigmoid", step, made.shape)
        if any(equal_tensors(one, made) for one in sigmoids):
            read = next(iter(step.given.values()))
            layers = [one for one in leaves if isinstance(one.module, nn.Linear)
                      and one.result is not None and equal_tensors(one.result, read)]  # fmt: skip
            yield [*layers, step]


def _is_beside(leaves: list[Step], layer: Step, other: Tensor) -> bool:
    """Say whether a layer that reads the same made what goes through: a gated linear unit."""
    read = next(iter(layer.given.values()))
    made = [one for one in leaves if one.result is not None and equal_tensors(one.result, other)]
    return any(equal_tensors(t, read) for one in made for t in one.given.values())


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
