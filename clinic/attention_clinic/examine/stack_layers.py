"""The layers of a stack: each is called as the stack calls it, and each kind is examined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.replay import Replay, replay_of
from attention_clinic.engine.report import Explanation, Report, explain

ALTERNATIVES = 4
Heard = tuple[int, Tensor, Tensor]  # which layer was called, what it got, what it returned


@dataclass(frozen=True)
class Kind:
    """A layer that is unlike those before it.

    Args:
        path: of the layer in the stack.
        patient: its copy, which is called as in the stack.
        x: tokens that it takes.
        still: the arguments that are 0 meanwhile.
    """

    path: str
    patient: Patient
    x: Tensor
    still: tuple[str, ...] = ()

    def made(self, context: Tensor | None) -> Tensor | None:
        """Return what it gives with the random weights that all layers get."""
        with suppress(Exception):
            return self.patient.run(self.x, context=context)
        return None


class Layers:
    """The layers of a stack that ran.

    Args:
        stack: the copy of the stack.
        x: tokens that it got.
        context: that it got, or None.
        recording: of the run; None where its user hands masks or a context over, which the layers
            are to get as their own signature says.
        heard: the calls of its layers.
        time_first: whether these get places first, samples second.
    """

    def __init__(
        self,
        stack: Patient,
        x: Tensor,
        context: Tensor | None,
        recording: Recording | None,
        heard: Sequence[Heard],
        time_first: bool,
    ) -> None:
        self.stack, self.x, self.context, self.recording = stack, x, context, recording
        self.time_first = time_first
        self.heard = {number: (given, made) for number, given, made in reversed(heard)}
        self.names = {id(part): path for path, part in stack.module.named_modules()}

    def kinds(self, layers: Sequence[nn.Module]) -> Iterator[Kind]:
        """Yield the first layer, and each that does with the same weights what none before did."""
        seen: list[tuple[list[tuple[str, torch.Size]], Tensor | None]] = []
        for layer in dict.fromkeys(layers):
            kind = self._called(layer)
            made = kind.made(self.context)
            held = [(name, p.shape) for name, p in layer.named_parameters()]
            if any(held == own and _alike(made, other) for own, other in seen):
                continue
            if made is not None or not seen:
                yield kind
            seen.append((held, made))

    def _called(self, layer: nn.Module) -> Kind:
        """Return a layer with the call of the stack, or a plain one where that does the same."""
        path = self.names[id(layer)]
        patient = Patient("diagnose_block", layer)
        if self.time_first:
            patient.time_first = patient.was_time_first = True
        elif self.context is None and id(layer) in self.heard:
            alone = self._does_the_same(layer)
            replay = None if alone else self._replay(path, layer)
            if replay is not None:
                patient = Patient("diagnose_block", layer, replay)
                b, n = next(size for size in replay.sizes if size is not None)
                x = patient.tokens(b, n, replay.shape[2])
                return Kind(path, patient, x, replay.still)
            patient = Patient("diagnose_block", layer, lambda m, x: m(x))
            try:
                patient.run(self.x)
            except Exception:
                patient.call = None
        return Kind(path, patient, self.x.to(patient.dtype))

    @torch.no_grad()
    def _does_the_same(self, layer: nn.Module) -> bool:
        """Say whether a layer makes of its tokens alone what it made in the stack."""
        given, made = self.heard[id(layer)]
        with suppress(Exception):
            return same(first_tensor(layer(given.clone())), made)
        return False

    def _replay(self, path: str, layer: nn.Module) -> Replay | None:
        """Return how to call a layer as the stack did."""
        if self.recording is None:
            return None
        inside = [w for w in self.recording.weighings if f"{w.path}.".startswith(f"{path}.")]
        shapes = {w.shape for w in inside}
        return replay_of(
            layer, self.recording.calls[path], shapes.pop() if len(shapes) == 1 else None
        )


def _alike(made: Tensor | None, other: Tensor | None) -> bool:
    if made is None or other is None:
        return made is other
    return same(made, other)


def together(found: Sequence[tuple[Kind, Report]]) -> Report:
    """Return one report on the layers of a stack.

    Args:
        found: a layer of each kind, and what is said of it.
    """
    reports = [_said(kind, report) for kind, report in found]
    if len(reports) == 1:
        return reports[0]
    sick = [
        (kind.path, one) for (kind, _), one in zip(found, reports, strict=True) if not one.healthy
    ]
    variants = [variant for one in reports for variant in one.variants]
    return replace(
        reports[0],
        healthy=not sick,
        explanations=tuple(_explanations(sick)),
        failing=tuple(f"{path}: {words}" for path, one in sick for words in one.failing),
        checked=tuple(dict.fromkeys(words for one in reports for words in one.checked)),
        untried=tuple(dict.fromkeys(words for one in reports for words in one.untried)),
        remarks=tuple(dict.fromkeys(remark for one in reports for remark in one.remarks)),
        variants=tuple(dict.fromkeys(variants)),
        stopped=max(one.stopped for one in reports),
        tolerance=max(one.tolerance for one in reports),
    )


def _said(kind: Kind, report: Report) -> Report:
    """Return the report on a layer, with what was left out of its call alone."""
    words = f"what comes from outside as {', '.join(kind.still)}"
    return replace(report, untried=(words,) * bool(kind.still))


def _explanations(sick: Sequence[tuple[str, Report]]) -> Iterator[Explanation]:
    """Yield what explains all layers that are wrong and that something explains."""
    named = [(path, one.explanations) for path, one in sick if one.explanations]
    if not named:
        return
    if len({frozenset(one.ids for one in ways) for _, ways in named}) == 1 and len(named) == len(
        sick
    ):
        yield from named[0][1]
        return
    for ways in islice(product(*(ways for _, ways in named)), ALTERNATIVES):
        ids = {id for way in ways for id in way.ids}
        words = (
            f"{path}: {', '.join(way.ids)}" + f", {way.detail}" * bool(way.detail)
            for (path, _), way in zip(named, ways, strict=True)
        )
        bugs = [BUGS[id] for id in sorted(ids, key=list(BUGS).index)]
        found = explain(bugs, max(way.difference for way in ways), "; ".join(words))
        yield replace(found, evidence=ways[0].evidence)
