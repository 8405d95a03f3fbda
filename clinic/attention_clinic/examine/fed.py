"""A feed-forward by what its run shows: its layers one after another, and what bends between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from attention_clinic.engine.wiring import Step
from attention_clinic.examine.part_kinds import Kind, norm_kind
from attention_clinic.examine.units import Unit, is_norm

LAYER, BEND, NORM = "layer", "bend", "norm"


def chained(unit: Unit, x: Tensor, limit: float) -> Kind | None:
    """Return what a feed-forward of any number of layers is, None when it is no plain row of them.

    Args:
        unit: the feed-forward.
        x: tokens, to try its norms.
        limit: the largest difference that counts as equal.
    """
    row = _row(unit, limit)
    if row is None:
        return None
    kinds = [kind for kind, _ in row]
    if kinds.count(LAYER) < 2:
        return None
    for kind, step in row:
        if kind == NORM and not _is_right(step, x, limit):
            return None
    first, last = kinds.index(LAYER), len(kinds) - 1 - kinds[::-1].index(LAYER)
    bends = [_name(step) for kind, step in row if kind == BEND]
    said = f"{kinds.count(LAYER)} layers, {' and '.join(dict.fromkeys(bends))}"
    said += ", with a norm inside" * (NORM in kinds)
    ids = ["activation-last"] * (BEND in kinds[last:])
    detail = odd = ""
    if BEND not in kinds[first:last]:
        ids.append("activation-missing")
        detail = "it stands before both layers" if BEND in kinds[:first] else ""
    elif BEND in kinds[:first]:
        odd = "the feed-forward bends what it reads, before its first layer"
    elif (LAYER, LAYER) in pairwise(kinds):
        odd = "two layers of the feed-forward stand in a row, with nothing between"
    return Kind(tuple(ids), detail, words=said, odd=odd)


def _row(unit: Unit, limit: float) -> list[tuple[str, Step]] | None:
    """Return layers, norms and what bends, each of which reads what the one before returned."""
    row: list[tuple[str, Step]] = []
    now = unit.read
    for step in _leaves(unit.steps):
        given = next(iter(step.given.values()), None)
        if given is None or step.result is None or len(step.given) > 1:
            return None
        if not _near(given, now, limit):
            return None
        now = step.result
        if given.shape == now.shape and torch.equal(given, now):
            continue  # a dropout that rests
        kind = _kind(step)
        if kind is None:
            return None
        row.append((kind, step))
    return row if _near(now, unit.out, limit) else None


def _leaves(steps: list[Step]) -> Iterator[Step]:
    for step in steps:
        inner = [one for one in step.inner if one.result is not None]
        if step.module is None or is_norm(step) or _is_layer(step.module) or not inner:
            yield step
        else:
            yield from _leaves(inner)


def _near(first: Tensor, second: Tensor, limit: float) -> bool:
    """Say whether two tensors are equal, where they stand turned over, too."""
    for one in (first, first.mT):
        if one.shape == second.shape:
            return bool((one - second).abs().max() <= limit * (1 + second.abs().max()))
    return False


def _is_layer(module: nn.Module | None) -> bool:
    if isinstance(module, nn.Conv1d):
        return module.kernel_size == (1,) and module.groups == 1
    own = [] if module is None else [p for p in module.parameters(recurse=False) if p.ndim == 2]
    return len(own) == 1


def _kind(step: Step) -> str | None:
    """Return what a call is: a layer, a norm, what bends, None for anything else."""
    if is_norm(step):
        return NORM
    if _is_layer(step.module):
        return LAYER
    run = step.again or step.module
    given = next(iter(step.given.values()))
    if run is None or (step.module is not None and any(True for _ in step.module.parameters())):
        return None
    flat = given.flatten()
    order = torch.arange(len(flat)).flip(0)
    return BEND if torch.equal(run(flat[order].clone())[order], run(flat.clone())) else None


def _is_right(step: Step, x: Tensor, limit: float) -> bool:
    run, given = step.again or step.module, next(iter(step.given.values()))
    assert run is not None
    width = given.shape[-1]
    wide = x.repeat(1, 1, -(-width // x.shape[-1]))[..., :width]
    kind = norm_kind(run, wide + torch.arange(width).to(x).sin(), limit)
    return kind is not None and not kind.ids


def _name(step: Step) -> str:
    named = type(step.module).__name__ if step.module is not None else step.path.split(" ")[-1]
    return named.lower().rstrip("_")
