"""Whether everything learns: the gradients of autograd against true derivatives.

Where a run cuts numbers from their history, a small step shows how fast the output really changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.behaviour.unused import Trace, listed, moves, plain_findings, unused_parts
from attention_clinic.capture.module import CallFailed, Patient, in_training
from attention_clinic.catalogue.forms import with_more
from attention_clinic.report import Report

MISSED = 0.01  # the fraction of a derivative that a gradient may miss
UNSETTLED = 0.5  # the fraction by which a shorter step may change a derivative
IN_CALLS = "seen in calls; nothing else is explained"
# they name what is not used, or what was used in its place
UNUSED = {
    "attention-unused", "cross-ignored", "norm-missing", "norm-shared", "out-unused",
    "parameter-unused", "part-unused", "projection-shared", "projection-unused",
    "stack-last-only", "value-from-key",
}  # fmt: skip


class Comparison:
    """The gradients of one module, and how fast its output really changes."""

    def __init__(
        self, patient: Patient, run: Callable[[], Tensor], inputs: Sequence[Tensor]
    ) -> None:
        self.module, self.run = patient.module, run
        rough = patient.dtype != torch.float64 or patient.rough
        self.step, self.noise = (1e-2, 1e-3) if rough else (1e-4, 1e-5)  # and its rounding
        self.sizes = [(t.numel(), float(t.double().square().sum())) for t in inputs]
        self.shift: Tensor | float = torch.zeros((), dtype=patient.dtype, requires_grad=True)

    def enter(self, t: Tensor) -> Tensor:
        """Return an input that moved by `shift` along a random direction, and any other tensor."""
        size, square = t.numel(), float(t.detach().double().square().sum())
        given = any(n == size and abs(square - s) <= 1e-6 * s for n, s in self.sizes)
        return t.detach() + self.shift * _noise(t) if given and t.is_floating_point() else t

    def cut(self, trace: Trace) -> set[str]:
        """Return the parameters, "" for the input, whose gradient is not the derivative."""
        if not trace.cuts:
            return set()
        end = _projected(trace.output)
        grads = trace.reached([end], {**trace.held, "": self.shift})  # of the size of `end`
        names, slopes = list(trace.held), dict.fromkeys(["", *trace.held], 0.0)
        for n, grad in grads.items():
            way = _direction(trace.held[n]) if n else 1.0
            slopes[n] = float(end.sign() * (grad * way).sum())
        floor = self.noise * float(trace.output.detach().double().norm())
        with in_training(self.module, trace.training):
            together = self._misses(sum(slopes[n] for n in names), names, floor)
            found = {n for n in names if together and self._misses(slopes[n], [n], floor)}
            return found | ({""} if self._misses(slopes[""], [], floor) else set())

    def _misses(self, slope: float, names: list[str], floor: float) -> bool:
        """Return whether a slope is not the derivative, whatever the step; see `_derivative`."""
        real = self._derivative(names, self.step)
        limit = MISSED * max(abs(slope), abs(real)) + floor
        if abs(real) <= floor or not math.isfinite(real) or abs(slope - real) <= limit:
            return False  # rounding has a derivative of 0
        nearer = self._derivative(names, self.step / 4)
        apart = abs(real - nearer)
        if not apart <= UNSETTLED * max(abs(real), abs(nearer)):
            return False  # near a pole no step is short enough
        limit = MISSED * max(abs(slope), abs(nearer)) + 4 * floor + 2 * apart
        return not abs(slope - nearer) <= limit

    def _derivative(self, names: list[str], step: float) -> float:
        """Return how fast the projected output changes with some parameters, [] for the input."""
        parameters = [self.module.get_parameter(name) for name in names]
        kept = [(p, p.detach().clone(), _direction(p)) for p in parameters]
        ends, shift = [], self.shift
        try:
            for sign in (step, -step):
                for p, before, way in kept:
                    p.data.copy_(before + sign * way)
                self.shift = 0.0 if names else sign
                y = Trace(self.module, (), self.enter).made(self.run).output
                ends.append(float(_projected(y.detach())))
        finally:
            self.shift = shift
            for p, before, _ in kept:
                p.data.copy_(before)
        return (ends[0] - ends[1]) / (2 * step)


def _noise(like: Tensor, seed: int = 71) -> Tensor:
    """Return random numbers of the same shape, the same in every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def _projected(y: Tensor) -> Tensor:
    """Return the output along a random direction."""
    return (y * _noise(y, 72)).sum()


def _direction(p: Tensor) -> Tensor:
    """Return random numbers as large as those of a parameter."""
    size = float(p.detach().double().square().mean().sqrt())
    return _noise(p) * (size if 0 < size < math.inf else 1.0)


def learned(
    report: Report, patient: Patient, run: Callable[[], Tensor], inputs: Sequence[Tensor]
) -> Report:
    """Return a report that also says what does not learn in a module.

    Of a module that nothing explains, only what never learns is named: what is before a cut that
    lets no gradient through, and what no optimizer gets. `run` calls the copy on `inputs`.
    """
    if not patient.is_module:
        return report
    own = dict(patient.original.named_parameters())
    names = {n for n, p in own.items() if p.is_floating_point() and p.numel()}
    trained = {n for n in names if own[n].requires_grad}
    names = trained | {n for n in names if "." in n and trained}  # a frozen one is part of a layer
    compared = Comparison(patient, run, inputs)
    try:
        traces: list[Trace] = []
        for training in (False, True):  # in training mode only if anything did not learn before
            with in_training(patient.module, training):
                trace = Trace(patient.module, names, compared.enter).made(run)
                traces.append(trace)
                if len(trace.grads) == len(trace.held) and not (trace.cuts or trace.overwritten):
                    break
        cut = set.intersection(*(compared.cut(trace) for trace in traces))
        unused, lost = _idle(run, traces)
        cut = cut & (trained | {""}) | lost & trained
        unused = set() if UNUSED.intersection(report.ids) else unused
        more = list(unused_parts(patient.module, traces, unused, bool(cut)))
        plain = plain_findings(patient, run)
    except CallFailed:  # what has no gradients says nothing
        return report
    if not report.healthy and not report.explanations:
        words = f"no gradient reaches {listed(sorted(lost & trained))}"
        alone = with_more(report, [("graph-cut", words)] * bool(lost & trained) + plain)
        found = [replace(one, evidence=IN_CALLS) for one in alone.explanations]
        return replace(report, explanations=tuple(found))
    if all(trace.overwritten for trace in traces):
        return with_more(report, [("graph-overwritten", "")])
    if cut:
        shown = listed([name or "the input" for name in sorted(cut)])
        words = "every parameter" if trained and cut >= trained else shown
        more.insert(0, ("graph-cut", f"no gradient, or only a part of it, reaches {words}"))
    return with_more(report, more + [one for one in plain if one[0] not in report.ids])


def _idle(run: Callable[[], Tensor], traces: Sequence[Trace]) -> tuple[set[str], set[str]]:
    """Return the parameters that reach no result, and those that do without a gradient."""
    held, grads = traces[0].held, [trace.grads for trace in traces]
    idle = {n for n in held if all(n not in one for one in grads)}
    lost = idle if idle and moves(run, [held[n] for n in idle]) else set()
    wide = [n for n in held if held[n].ndim > 1 and all(n in one for one in grads)]
    zero = {n for n in wide if not any(one[n].any() for one in grads)}
    lost = {n for n in lost | zero if moves(run, [held[n]])}
    return idle - lost, lost
