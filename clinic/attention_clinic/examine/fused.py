"""One layer that makes queries, keys, values and what the feed-forward bends, taken as two."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from attention_clinic.engine.budget import Spent
from attention_clinic.engine.report import Report
from attention_clinic.engine.wiring import Step
from attention_clinic.examine.leaves import matrices

SAID = "{} makes what the attention reads, and what the feed-forward bends: it is taken as two"


class Up(nn.Linear):
    """What such a layer makes for the feed-forward."""


class Joined(nn.Module):
    """A layer that reads what heads mixed beside what the feed-forward bent, as two and a sum.

    Args:
        layer: the whole.
        own: which of the numbers that it reads are those of the attention, (in_features,).
    """

    def __init__(self, layer: nn.Linear, own: Tensor) -> None:
        super().__init__()
        self.own = own
        self.out, self.down = _columns_of(layer, own), _columns_of(layer, ~own, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x[..., self.own]) + self.down(x[..., ~self.own])


class Fused(nn.Module):
    """A layer as two, which return their numbers as it did.

    Args:
        layer: the whole.
        own: which of its numbers the attention reads, (out_features,).
    """

    def __init__(self, layer: nn.Linear, own: Tensor) -> None:
        super().__init__()
        self.qkv, self.up = _rows(nn.Linear, layer, own), _rows(Up, layer, ~own)
        self.places = torch.cat([own.nonzero()[:, 0], (~own).nonzero()[:, 0]]).argsort()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.qkv(x), self.up(x)], dim=-1)[..., self.places]


def in_turn(calls: list[Step]) -> list[Step]:
    """Return the calls of a block with those of the feed-forward behind those of the attention."""
    opened = [one.inner if isinstance(one.module, Fused | Joined) else [one] for one in calls]
    calls = [one for inner in opened for one in inner]
    late = [step for step in calls if isinstance(step.module, Up)]
    if len(late) != 1:
        return calls
    for step in calls:
        if not matrices([step]) and not step.weighs and _reads(step, late):
            late.append(step)
    rest = [step for step in calls if all(step is not one for one in late)]
    down = next((step for step in rest if _reads(step, late)), None)
    rest = [step for step in rest if step is not down]
    mixed = [place for place, step in enumerate(rest) if step.weighs]
    out = [place for place, step in enumerate(rest) if mixed and place > mixed[-1]
           and matrices([step])]  # fmt: skip
    if down is None or not out:
        return calls
    return [*rest[: out[0] + 1], *late, down, *rest[out[0] + 1 :]]


def with_two_layers(
    report: Report,
    module: nn.Module,
    run: Callable[[], object],
    holder: nn.Module,
    examine: Callable[[nn.Module], Report],
) -> Report:
    """Return what is said of a block whose fused layer is taken as two, where that says more.

    Args:
        report: of the block as it is.
        module: the block.
        run: calls a copy of it.
        holder: that copy.
        examine: examines the other block.
    """
    try:
        found = _halves(holder, run)
        if found is None:
            return report
        made = copy.deepcopy(module)
        for path, kind, own in found:
            around, _, name = path.rpartition(".")
            setattr(made.get_submodule(around), name, kind(made.get_submodule(path), own))
        again = examine(made)
    except (Spent, ValueError, RuntimeError, TypeError, AttributeError):
        return report
    if not again.healthy and not again.explanations:
        return report
    return replace(again, checked=(*again.checked, SAID.format(found[0][0])))


def _halves(
    module: nn.Module, run: Callable[[], object]
) -> list[tuple[str, type[Fused | Joined], Tensor]] | None:
    """Return the paths of layers that are two, as what, and which numbers are the attention's.

    Args:
        module: the copy that runs.
        run: calls it.
    """
    layers = [(path, one) for path, one in module.named_modules()
              if isinstance(one, nn.Linear) and not isinstance(one, Up)]  # fmt: skip
    for path, layer in layers:
        if layer.out_features < 4 * layer.in_features:  # q, k, v and as many more, at least
            continue
        made, read = _followed(layer, layers, run)
        if len(made) != 1 or len(read) not in (1, 2):
            continue
        where, t = read[0]
        wide = layer.in_features  # what heads mixed is as wide
        first = torch.arange(t.shape[-1]) < wide
        ways = [(first, t[..., first], t[..., ~first])] * (len(read) == 1 and t.shape[-1] > wide)
        ways += [(own := first.flip(0), t[..., own], t[..., ~own])] * len(ways)
        if len(read) == 2:
            pair = t, read[1][1]
            ways = [(None, *pair), (None, *pair[::-1])]
        for own, mixed, bent in ways:
            halves = [_columns(part, made[0]) for part in (mixed, bent)]
            apart = bool((halves[0] ^ halves[1]).all())
            if apart and _mixes(mixed, made[0]) and not _mixes(bent, made[0]):
                found: list[tuple[str, type[Fused | Joined], Tensor]] = [(path, Fused, halves[0])]
                return found + [(where, Joined, own)] * (own is not None)
    return None


def _followed(
    layer: nn.Linear, layers: list[tuple[str, nn.Linear]], run: Callable[[], object]
) -> tuple[list[Tensor], list[tuple[str, Tensor]]]:
    """Return what a layer made in a run, and which other layers read what was made of it."""
    made: list[Tensor] = []
    read: list[tuple[str, Tensor]] = []

    def follow(part: nn.Module, args: object, y: Tensor) -> Tensor:
        torch.set_grad_enabled(True)  # the run around this ends it
        made.append(y.detach().requires_grad_())
        return made[-1]

    def listen(path: str, part: nn.Module, args: tuple) -> None:
        if made and args and isinstance(args[0], Tensor) and args[0].requires_grad:
            read.append((path, args[0]))

    handles = [layer.register_forward_hook(follow)]
    handles += [one.register_forward_pre_hook(partial(listen, path))
                for path, one in layers if one is not layer]  # fmt: skip
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return made, read


def _columns(t: Tensor, made: Tensor) -> Tensor:
    """Return which numbers of a layer reach a tensor."""
    weights = torch.randn(t.shape, generator=torch.Generator().manual_seed(3)).to(t)
    (slope,) = torch.autograd.grad((t * weights).sum(), made, retain_graph=True)
    return (slope != 0).flatten(0, -2).any(0)


def _mixes(t: Tensor, made: Tensor) -> bool:
    """Say whether what was made of a token depends on what a layer made of others."""
    (slope,) = torch.autograd.grad(t[0, -1].sum(), made, retain_graph=True)
    return bool((slope[0, :-1] != 0).any())


def _columns_of(layer: nn.Linear, own: Tensor, bias: bool = True) -> nn.Linear:
    """Return a layer that reads some of the numbers that another reads."""
    bias = bias and layer.bias is not None
    made = nn.Linear(int(own.sum()), layer.out_features, bias=bias).to(layer.weight)
    with torch.no_grad():
        made.weight.copy_(layer.weight[:, own])
        if bias:
            made.bias.copy_(layer.bias)
    return made


def _rows(kind: type[nn.Linear], layer: nn.Linear, own: Tensor) -> nn.Linear:
    """Return a layer that makes some of the numbers of another."""
    made = kind(layer.in_features, int(own.sum()), bias=layer.bias is not None)
    made.to(layer.weight)
    with torch.no_grad():
        made.weight.copy_(layer.weight[own])
        if layer.bias is not None:
            made.bias.copy_(layer.bias[own])
    return made


def _reads(step: Step, made: list[Step]) -> bool:
    """Say whether a call reads what another one made, or a part of its columns."""
    return any(
        one.result is not None
        and t.shape[:-1] == one.result.shape[:-1]
        and one.result.shape[-1] % t.shape[-1] == 0
        and any(torch.equal(t, piece) for piece in one.result.split(t.shape[-1], dim=-1))
        for t in step.given.values()
        for one in made
    )
