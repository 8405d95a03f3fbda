"""A stack of blocks: which layers run, and what each of them reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.wiring import Step, Wires
from attention_clinic.examine.around import Around
from attention_clinic.examine.one_block import examined_layer
from attention_clinic.examine.stack_layers import Heard, Kind, Layers, together

SMALL = 0.25  # of the numbers of a layer: less may be shared on purpose


def _big(module: nn.Module) -> bool:
    """Say whether a module could be a block: it has several matrices and a norm."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    return len(matrices) >= 3 and len(vectors) >= 2


def _could_be_layer(module: nn.Module) -> bool:
    """Say whether a module has a norm, or a feed-forward beside its attention: heads have none."""
    norms = (
        [p.shape for p in part.parameters(recurse=False)] for part in module.modules()
    )  # a weight and a bias, or a weight alone
    return _is_block(module) or any(shapes and {len(s) for s in shapes} == {1} for shapes in norms)


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a stack, [] for a single block."""
    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential):
            children = list(part)
            if len(children) > 1 and all(
                _big(child)
                and _could_be_layer(child)
                and type(child) is type(children[0])
                and not isinstance(child, nn.ModuleList | nn.ModuleDict)  # they cannot be called
                for child in children
            ):
                return children
    direct = [child for child in module.children() if _big(child) and _has_all(child, module)]
    if len(direct) != 1 or isinstance(direct[0], nn.ModuleList | nn.ModuleDict):
        return []
    return direct if _is_block(direct[0]) else []


def _has_all(child: nn.Module, module: nn.Module) -> bool:
    mine = sum(p.ndim > 1 for p in child.parameters())
    return mine == sum(p.ndim > 1 for p in module.parameters())


def _is_block(module: nn.Module) -> bool:
    return len({p.shape for p in module.parameters() if p.ndim > 1}) > 1


def _weighs_elsewhere(root: Step, layers: list[nn.Module]) -> bool:
    """Say whether tokens are weighed by tokens, and in none of the layers: they are parts."""
    steps = list(root.all())
    inside = any(step.mixes and step.module is not None and step.module in layers for step in steps)
    return any(step.weighs for step in steps) and not inside


class Stack:
    """The examination of a stack."""

    def __init__(
        self,
        original: nn.Module,
        patient: Patient,
        x: Tensor,
        around: Around,
        layers: list[nn.Module],
        num_heads: int,
        meant: Meant,
        causal: bool | None,
    ) -> None:
        self.original, self.patient, self.x, self.around = original, patient, x, around
        self.layers, self.h, self.meant, self.causal = layers, num_heads, meant, causal

    def report(self) -> Report | None:
        """Return what is found, None where the parts are no layers: heads run side by side."""
        name = self.patient.name
        copies = layers_of(self.patient.module)
        calls: list[Heard] = []

        def listen(layer: Any, args: Any, kwargs: Any, result: Any) -> None:
            given = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
            calls.append((id(layer), given.detach().clone(), first_tensor(result).clone()))

        handles = [
            layer.register_forward_hook(listen, with_kwargs=True) for layer in dict.fromkeys(copies)
        ]
        wires = Wires(self.patient.module, self.x)
        with Recording(self.patient.module) as recording, wires:
            y = self.patient.run(self.x, context=self.around.context)
        for handle in handles:
            handle.remove()
        if self.are_heads(calls, y) or _weighs_elsewhere(wires.all, copies):
            return None
        ids, failing = [], []
        if len({call[0] for call in calls}) < len(calls) or share(self.layers):
            ids.append("layers-shared")
        elif start_alike(self.layers):
            ids.append("layers-same-init")
        inputs = [call[1] for call in calls]
        chained = all(torch.equal(after[1], before[2]) for before, after in pairwise(calls))
        if not chained:
            if all(torch.equal(given, inputs[0]) for given in inputs):
                ids.append("stack-last-only")
            else:
                failing.append("each layer reads what the one before it returned")
        if calls and not self.ends_with(calls[-1][2], y):
            failing.append("the stack returns what its last layer returned, normalised or not")
        if not calls:
            failing.append("the layers are called")
        found = self.examined(copies, calls, recording)
        inner = together(found)
        count = f"{len(calls)} calls of {len(dict.fromkeys(map(id, copies)))} layers"
        count += f" of {len(found)} kinds" * (len(found) > 1)
        checked = (count, *inner.checked)
        explanations = [explain([BUGS[id] for id in ids])] if ids else []
        if inner.explanations and ids:
            explanations = [
                explain(
                    [BUGS[id] for id in (*ids, *inner.ids)], detail=inner.explanations[0].detail
                )
            ]
        elif inner.explanations:
            explanations = list(inner.explanations)
        healthy = not ids and not failing and inner.healthy
        return Report(
            name, healthy, tuple(explanations), (*failing, *inner.failing), checked,
            (*self.patient.untried(mask=False), *inner.untried), variants=inner.variants,
            stopped=inner.stopped, tolerance=inner.tolerance,
        )  # fmt: skip

    def examined(
        self, copies: list[nn.Module], calls: list[Heard], recording: Recording
    ) -> list[tuple[Kind, Report]]:
        """Return what is said of each kind of layers."""
        turned = bool(calls) and self.turns(calls[0][1])
        bare = self.around == Around()  # else the layers are to get what stands around them
        layers = Layers(
            self.patient, self.x, self.around.context, recording if bare else None, calls, turned
        )
        given = self.around, self.h, self.meant, self.causal
        return [(one, examined_layer(one.patient, one.x, *given)) for one in layers.kinds(copies)]

    def turns(self, given: Tensor) -> bool:
        """Say whether the layers are handed places first, samples second."""
        b, n = self.x.shape[:2]
        return b != n and given.shape[:2] == (n, b)

    def are_heads(self, calls: list[Heard], y: Tensor) -> bool:
        """Say whether all read the same, and the last alone is not what is returned."""
        if len(calls) < 2 or any(not torch.equal(given, calls[0][1]) for _, given, _ in calls):
            return False
        _, given, made = calls[-1]
        return made.shape != given.shape or not self.ends_with(made, y)

    def ends_with(self, last: Tensor, y: Tensor) -> bool:
        """Say whether the stack returns its last layer's output, normalised or not."""
        if last.shape != y.shape:
            return True
        with torch.no_grad():
            ends = [last] + [
                norm(last)
                for norm in self.patient.module.modules()
                if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == last.shape[-1:]
            ]
        return any(torch.allclose(end, y, rtol=1e-6, atol=1e-6) for end in ends)


def share(layers: Sequence[nn.Module]) -> bool:
    """Say whether two layers are one, or hold the same numbers: more of them than a few.

    All layers of a stack may share a small part on purpose, such as T5's bias of distances.
    """
    seen: set[int] = set()
    for layer in layers:
        mine = {id(p): p.numel() for p in layer.parameters() if p.ndim > 1}
        shared = sum(count for number, count in mine.items() if number in seen)
        if shared > SMALL * sum(mine.values()):
            return True
        seen |= set(mine)
    return False


def start_alike(layers: Sequence[nn.Module]) -> bool:
    """Say whether all layers have the same random matrices, though they are different layers."""
    first, *others = [[p for p in layer.parameters() if p.ndim > 1] for layer in layers]
    random = [n for n, p in enumerate(first) if p.is_floating_point() and p.unique().numel() > 2]
    return bool(random and others) and all(
        len(first) == len(other)
        and all(
            first[n].shape == other[n].shape and torch.equal(first[n], other[n]) for n in random
        )
        for other in others
    )
