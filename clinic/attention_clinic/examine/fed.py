"""A feed-forward by what its run shows: its layers one after another, and what bends between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.wiring import Step
from attention_clinic.examine.experts import kind_of_experts
from attention_clinic.examine.leaves import (
    CONVOLUTIONS,
    bends,
    called_as,
    equal_tensors,
    is_norm,
    matrices,
)
from attention_clinic.examine.part_kinds import BATCH, Kind, feed_kind, norm_kind
from attention_clinic.examine.unit import Unit

LAYER, CONV, BEND, NORM, GATE = "layer", "convolution", "bend", "norm", "gate"
SQUARE = "square"  # of what was bent (Primer)
BOTH = "a gate of which both halves are bent"
PAD = "padding"
GLU = "gated linear unit"
Chain = tuple[tuple[str, Step], ...]  # what made a tensor of what the feed-forward read, in order


def kind_of_feed(
    unit: Unit,
    part: nn.Module,
    x: Tensor,
    limit: float,
    heard: list[str],
    meant: Meant,
    beside: bool,
) -> Kind | None:
    """Return what a feed-forward is, of experts too; None when that shows in another way, or none.

    Args:
        unit: the feed-forward.
        part: the same as a module.
        x: tokens to try it with.
        limit: the largest difference that counts as equal.
        heard: the activations that ran.
        meant: what the block is meant to be.
        beside: whether it is a convolution beside a feed-forward.
    """
    if unit.experts:
        return kind_of_experts(unit.experts, x, limit, heard, meant)
    if beside:
        return chained(unit, x, limit, beside)
    kind = feed_kind(part, x, limit, heard, meant, unit.adds)
    return chained(unit, x, limit) if kind is None else kind


def is_plain(unit: Unit) -> bool:
    """Say whether a feed-forward has no experts, bends no result, and adds nothing itself."""
    return not unit.experts and unit.after is None and not unit.adds


def chained(unit: Unit, x: Tensor, limit: float, beside: bool = False) -> Kind | None:
    """Return what a feed-forward of any number of layers is, None when it is no row of them.

    Args:
        unit: the feed-forward.
        x: tokens, to try its norms.
        limit: the largest difference that counts as equal.
        beside: whether it is a convolution beside a feed-forward: that bends where it likes.
    """
    row = _row(unit, limit)
    if row is None:
        return None
    both = any(kind == BOTH for kind, _ in row)
    kinds = [GATE if kind in (BOTH, GLU) else kind for kind, _ in row]
    opened = any(kind == GLU for kind, _ in row)  # by a sigmoid
    layers = [place for place, kind in enumerate(kinds) if kind in (LAYER, CONV)]
    # of each channel alone, and then of each token alone: together they are one convolution
    apart = [place for place in layers[:-1] if _is_deep(row[place][1]) and place + 1 in layers]
    one = len(layers) - len(apart) == 1
    if len(layers) < 2 or (one and BEND in kinds and not beside):
        return None
    for kind, step in row:
        if kind == NORM and not _is_right(step, x, limit):
            return None
    first, last = layers[0], layers[-1]
    last = len(kinds) if kinds[-1] == GATE else last  # a gated unit without a layer behind it
    bends = [called_as(step) for kind, step in row if kind == BEND]
    said = f"{len(layers)} layers" + ", " * bool(bends) + " and ".join(dict.fromkeys(bends))
    said += ", squared" * (SQUARE in kinds)
    said += ", a gate" * (GATE in kinds) + ", with a norm inside" * (NORM in kinds)
    variants = ("gated",) * (GATE in kinds) + ("conv-feed",) * (CONV in kinds)
    if beside:
        twice = ("activation-twice",) * ((BEND, BEND) in pairwise(kinds))
        return Kind(twice, variants=variants, words=said)
    ids = ["activation-last"] * (BEND in kinds[last:])
    detail = odd = ""
    if BEND not in kinds[first:last] and not opened:
        ids.append("activation-missing")
        detail = "it stands before both layers" if BEND in kinds[:first] else ""
    elif BEND in kinds[:first]:
        odd = "the feed-forward bends what it reads, before its first layer"
    elif (LAYER, LAYER) in pairwise(kinds) and GATE not in kinds:
        odd = "two layers of the feed-forward stand in a row, with nothing between"
    elif (BEND, BEND) in pairwise(kinds):
        ids.append("activation-twice")
    elif both:
        odd = "the feed-forward bends both halves of its gate"
    if GATE in kinds and "activation-missing" in ids:
        return None  # what bends nothing in a gate may be meant so
    return Kind(tuple(ids), detail, variants, words=said, odd=odd)


def _row(unit: Unit, limit: float) -> Chain | None:
    """Return layers, norms and what bends, as they made what the feed-forward returns."""
    made: list[tuple[Tensor, Chain]] = [(unit.read, ())]
    for step in _leaves(unit.steps):
        given = list(step.given.values())
        if not given or step.result is None:
            return None
        before = [_behind(made, one, limit) for one in given]
        if all(chain is None for chain in before):
            continue  # of another part, whose last calls came before this one's
        if any(chain is None for chain in before):
            return None
        if len(given) == 2 and step.module is None:
            first, second = sorted(before, key=len)
            if second and second[:-1] == first and second[-1][0] == BEND:
                made.append((step.result, second))  # t * sigmoid(t) is an activation of its own
                continue
            more = tuple(one for one in first if one not in second)
            kind = BOTH if _both_bent(first, second) else GATE
            made.append((step.result, (*more, *second, (kind, step))))
            continue
        now = step.result
        if any(equal_tensors(t, now) for t in (given[0], given[0].mT)):
            continue  # a dropout that rests, or tokens turned over
        if len(given) == 1 and _times(given[0], now, limit):
            continue  # a factor
        kind = _kind(step)
        if kind is None or len(given) > 1:
            return None
        made.append((now, before[0] if kind == PAD else (*before[0], (kind, step))))
    return next((chain for t, chain in reversed(made) if near(t, unit.out, limit)), None)


def _both_bent(first: Chain, second: Chain) -> bool:
    """Say whether both halves of a gate are bent.

    A part that opens itself has one half, and tanh times sigmoid is a gate of its own (WaveNet).
    """
    ends = [chain[-1] for chain in (first, second) if chain]
    if len(ends) < 2 or second[: len(first)] == first or any(kind != BEND for kind, _ in ends):
        return False
    return {called_as(step) for _, step in ends} != {"sigmoid", "tanh"}


def _behind(made: list[tuple[Tensor, Chain]], given: Tensor, limit: float) -> Chain | None:
    """Return what made a tensor, None where nothing of the feed-forward did."""
    for t, chain in reversed(made):
        if holds(t, given, limit):
            return chain
        if chain and chain[-1][0] == BEND and near(t.square(), given, limit):
            return (*chain, (SQUARE, chain[-1][1]))
    return None


def holds(made: Tensor, given: Tensor, limit: float) -> bool:
    """Say whether a tensor is what is given, or one half of it is."""
    halves = [half for axis in (1, -1) if made.shape[axis] % 2 == 0
              for half in made.chunk(2, dim=axis)]  # fmt: skip
    alike = (near(one, given, limit) or _padded(one, given) for one in (made, *halves))
    return any(alike) or _times(made, given, limit)


def _times(made: Tensor, given: Tensor, limit: float) -> bool:
    """Say whether what is given is the same tensor, times one number (Swish)."""
    if made.shape != given.shape:
        return False
    factor = (made * given).sum() / made.square().sum()
    return bool(factor > 0) and near(made * factor, given, limit)


def _padded(made: Tensor, given: Tensor) -> bool:
    """Say whether one is the other with zeros around, or a piece of it: tokens or columns."""
    for one in (made, made.mT) if made.ndim == given.ndim == 3 else ():
        if one.shape[0] != given.shape[0] or one.shape == given.shape:
            continue
        for axis in (1, 2):
            short, long = sorted((one, given), key=lambda t, axis=axis: t.shape[axis])
            if short.shape[3 - axis] != long.shape[3 - axis]:
                continue
            for start in range(long.shape[axis] - short.shape[axis] + 1):
                inside = torch.equal(long.narrow(axis, start, short.shape[axis]), short)
                rest = long.count_nonzero() - short.count_nonzero()
                if inside and (long is one or not rest):
                    return True
    return False


def _leaves(steps: list[Step]) -> Iterator[Step]:
    for step in steps:
        inner = [one for one in step.inner if one.result is not None]
        whole = is_norm(step) or _is_layer(step.module) or isinstance(step.module, CONVOLUTIONS)
        if step.module is None or whole or not inner:
            yield step
        else:
            yield from _leaves(inner)


def near(first: Tensor, second: Tensor, limit: float) -> bool:
    """Say whether two tensors are equal, where they stand turned over, too."""
    forms = [first, first.mT]
    if first.ndim == 4:  # an image, (b, c, h, w)
        forms += [first.flatten(2).mT, first.flatten(1, 2)]
    elif second.ndim == 4 and first.shape[-2] == second[0, 0].numel():
        forms.append(first.mT.unflatten(2, second.shape[2:]))
    return any(
        one.shape == second.shape
        and bool((one - second).abs().max() <= limit * (1 + second.abs().max()))
        for one in forms
    )


def _is_layer(module: nn.Module | None) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return {*module.kernel_size} == {1} and module.groups == 1
    own = [] if module is None else [p for p in module.parameters(recurse=False) if p.ndim == 2]
    return len(own) == 1


def _kind(step: Step) -> str | None:
    """Return what a call is: a layer, a norm, what bends, None for anything else."""
    if is_norm(step):
        return NORM
    if _is_layer(step.module):
        return LAYER
    if isinstance(step.module, nn.Conv1d | nn.Conv2d):
        return CONV if {*step.module.stride} == {1} else None
    if isinstance(step.module, nn.GLU) or step.path.endswith(" glu"):
        return GLU
    if isinstance(step.module, nn.modules.padding._ConstantPadNd):
        return PAD
    return BEND if bends(step) else None


def _is_deep(step: Step) -> bool:
    """Say whether a convolution sees each channel alone."""
    module = step.module
    return isinstance(module, nn.Conv1d | nn.Conv2d) and 1 < module.groups == module.in_channels


def _first(step: Step) -> Tensor:
    return next(iter(step.given.values()))


def _is_right(step: Step, x: Tensor, limit: float) -> bool:
    run, given = step.again or step.module, _first(step)
    assert run is not None
    if isinstance(run, BATCH):
        return True
    width = given.shape[-1]
    wide = x.repeat(1, 1, -(-width // x.shape[-1]))[..., :width]
    kind = norm_kind(run, wide + torch.arange(width).to(x).sin(), limit)
    return kind is not None and not kind.ids


def of_one(unit: Unit, beside: bool) -> Kind | None:
    """Return the feed-forward that is one linear layer, None for another.

    Args:
        unit: the feed-forward.
        beside: whether it is a convolution beside a feed-forward.
    """
    if beside and len(matrices(unit.steps)) == 1:  # whether it is bent, or not
        return Kind(variants=("conv-feed",), words="a convolution")
    if len(unit.steps) > 2 or not isinstance(unit.steps[0].module, nn.Linear) or unit.adds:
        return None
    if unit.after is None:
        return Kind(("activation-missing",), f"it is one layer, {unit.name}", words="1 layer")
    return Kind(words="1 layer", odd=f"the feed-forward is one layer, {unit.name}, which is bent")
