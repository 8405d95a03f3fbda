"""Feed-forwards of experts: each token gets a sum of some experts' results, weighed by a router."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.wiring import Step
from attention_clinic.examine.fitted import fitted
from attention_clinic.examine.leaves import is_matrix
from attention_clinic.examine.part_kinds import Kind, feed_kind
from attention_clinic.examine.unit import Unit

SMALL = 1e-6


@torch.no_grad()
def experts_of(unit: Unit) -> list[nn.Module]:
    """Return the experts of a part, [] when its results are no weighed sums of such.

    The weights are solved for, token by token, and must be what a softmax or sigmoid makes of what
    a linear layer, the router, returned: of all of it, or of the largest numbers. An expert that
    all tokens go to counts as it is, by a gate of its own, or by a fixed share beside the others.

    Args:
        unit: the part.
    """
    step = unit.steps[0] if len(unit.steps) == 1 else None
    if step is None or step.module is None or unit.asked is not None:
        return []
    rows, made = unit.read.flatten(0, 1), unit.out.flatten(0, 1)
    for experts in _lists(step.module):
        routers = [one for one in step.all() if _routes(one, len(experts), len(rows))]
        beside = [one for one in step.inner if _is_beside(one, experts, unit)]
        if not routers or len(experts) + len(beside) >= rows.shape[1]:
            continue
        results = [_result(expert, rows) for expert in experts]
        results += [None if one.result is None else one.result.flatten(0, -2) for one in beside]
        if any(t is None or t.shape != rows.shape for t in results):
            continue
        columns = torch.stack([t for t in results if t is not None], dim=2)  # (t, e, experts)
        weights = torch.linalg.lstsq(columns, made[..., None]).solution
        if _apart(columns @ weights, made[..., None]) > SMALL:
            continue
        routed, others = weights[:, : len(experts), 0], weights[:, len(experts) :, 0]
        logits = [one.result.flatten(0, -2) for one in routers if one.result is not None]
        gates = [one.result.flatten() for one in step.all() if _routes(one, 1, len(rows))]
        added = [t.detach() for t in _tensors(step.module) if t.shape == (len(experts),)]
        routed = _without_share(routed, others, gates)
        if routed is not None and any(_is_routed(routed, one, added) for one in logits):
            return [*experts, *(one.module for one in beside if one.module is not None)]
    return []


def kind_of_experts(
    experts: list[nn.Module], x: Tensor, limit: float, heard: list[str], meant: Meant
) -> Kind | None:
    """Return what experts are, each by itself, None when one is not understood.

    Args:
        experts: of one part.
        x: tokens that they take.
        limit, heard, meant: as in `feed_kind`.
    """
    kinds = []
    for expert in experts:
        kind = feed_kind(expert, x, limit, heard, meant)
        kind = fitted(expert, x) if kind is None else kind
        if kind is None:
            return None
        kinds.append(kind)
    ids = dict.fromkeys(id for kind in kinds for id in kind.ids)
    variants = dict.fromkeys(v for kind in kinds for v in kind.variants)
    words = f"{len(kinds)} experts, {kinds[0].words}"
    return Kind((*ids,), kinds[0].detail, ("experts", *variants), words)


def _lists(module: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield lists of modules that may be experts."""
    for part in module.modules():
        inner = list(part.children())
        held = [sum(is_matrix(p) for p in one.parameters()) for one in inner]
        if isinstance(part, nn.ModuleList) and len(inner) > 1 and min(held) > 1:
            yield inner


def _routes(step: Step, experts: int, tokens: int) -> bool:
    """Say whether a call makes a number for each token and expert."""
    made = step.result
    fits = made is not None and made.shape[-1] == experts and made.numel() == tokens * experts
    return isinstance(step.module, nn.Linear) and fits


def _is_beside(step: Step, experts: list[nn.Module], unit: Unit) -> bool:
    """Say whether a call is that of an expert which all tokens go to."""
    module = step.module
    if module is None or step.result is None or step.result.numel() != unit.read.numel():
        return False
    own = not {*module.modules()} & {*experts}
    return own and sum(is_matrix(p) for p in module.parameters()) > 1


def _result(expert: nn.Module, rows: Tensor) -> Tensor | None:
    try:
        return expert(rows.clone())
    except Exception:  # whatever a stranger's code raises
        return None


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _without_share(routed: Tensor, others: Tensor, gates: list[Tensor]) -> Tensor | None:
    """Return the weights, (t, experts), as if nothing were divided with those that get all tokens.

    Args:
        routed: the weights of the experts.
        others: those of the experts that all tokens go to.
        gates: what layers with one output returned.
    """
    ways = [torch.ones_like(others), *(gate.sigmoid()[:, None] for gate in gates)]
    if any(_apart(others, way) < SMALL for way in ways):
        return routed
    whole = torch.cat([routed, others], dim=1).sum(1)
    shared = others[:, :1]
    if _apart(others, shared) < SMALL and _apart(whole, torch.ones_like(whole)) < SMALL:
        return routed / shared
    return None


def _is_routed(weights: Tensor, logits: Tensor, added: list[Tensor]) -> bool:
    """Say whether weights, (t, experts), are what is usually made of the router's numbers.

    Args:
        weights: of the experts.
        logits: the router's numbers.
        added: what may be added to these, so that all experts get tokens: when they are chosen, or
            when they are weighed, too.
    """
    chosen = weights.abs() > SMALL
    counts = chosen.sum(dim=1)
    if bool((counts != counts[0]).any()) or int(counts[0]) == 0:
        return False

    def are_largest(numbers: Tensor) -> bool:
        largest = numbers.topk(int(counts[0]), dim=1).indices
        return torch.equal(torch.zeros_like(chosen).scatter(1, largest, True), chosen)

    for numbers in (logits, *(logits + bias for bias in added)):
        for made in (numbers.softmax(dim=1), numbers.sigmoid()):
            if not any(map(are_largest, (made, *(made + bias for bias in added)))):
                continue
            kept = made * chosen
            for way in (kept, kept / kept.sum(1, keepdim=True)):
                factor = (weights * way).sum() / way.square().sum()  # DeepSeek scales them
                if factor > 0 and _apart(weights, factor * way) < SMALL:
                    return True
    return False


def _apart(first: Tensor, second: Tensor) -> float:
    """Return the largest difference, relative; 0 where there is nothing to compare."""
    if not first.numel():
        return 0.0
    return float((first - second).abs().max() / (1 + second.abs().max()))
