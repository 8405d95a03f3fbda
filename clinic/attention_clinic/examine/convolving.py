"""A convolution as a part of a block: layers one after another, which nobody wrote as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.wiring import Step
from attention_clinic.examine.fed import holds, near
from attention_clinic.examine.leaves import CONVOLUTIONS, bends, is_norm, looks_around, matrices
from attention_clinic.examine.unit import Unit

LIMIT = 1e-8


def convolution(leaves: list[Step], shape: torch.Size, sums: list[Tensor]) -> Unit | None:
    """Return the part that the first of some calls begins, None when it begins none.

    Args:
        leaves: calls, in their order.
        shape: of the tokens.
        sums: what was added to other tokens.
    """
    first = leaves[0]
    if not isinstance(first.module, CONVOLUTIONS) or len(first.given) != 1:
        return None
    read = next(iter(first.given.values()))
    row = _row(leaves)
    added = (
        place
        for place, step in enumerate(row)
        if _ends(step, shape)
        and looks_around(row[: place + 1])
        and (_is_added(step, sums) or _bent(row[place + 1 :], sums))
    )
    place = next(added, None)
    if place is None or read.shape != shape:
        return None
    row, last = row[: place + 1], row[place]
    paths = list(dict.fromkeys(step.path for step in row if step.module is not None))
    unit = Unit("feed", last.path, read, last.result, paths=paths, steps=row)
    unit.entries, unit.end = {first.place: {next(iter(first.given)): False}}, last.place
    return unit


def _row(leaves: list[Step]) -> list[Step]:
    """Return the calls of which each reads what one before it returned."""
    row = [leaves[0]]
    for step in leaves[1:]:
        given = next(iter(step.given.values()), None)
        made = [one.result for one in row if one.result is not None]
        if given is None or step.mixes or not any(_reads(t, given) for t in made):
            break
        row.append(step)
    return row


def _reads(made: Tensor, given: Tensor) -> bool:
    return made.ndim > 2 and given.ndim > 2 and holds(made, given, LIMIT)


def _ends(step: Step, shape: torch.Size) -> bool:
    return bool(matrices([step])) and step.result is not None and step.result.shape == shape


def _bent(behind: list[Step], sums: list[Tensor]) -> bool:
    """Say whether the next of some calls, but for norms, bends what it gets, and is added."""
    last = next((step for step in behind if not is_norm(step)), None)
    return last is not None and bends(last) and _is_added(last, sums)


def _is_added(step: Step, sums: list[Tensor]) -> bool:
    return step.result is not None and any(near(step.result, t, LIMIT) for t in sums)
