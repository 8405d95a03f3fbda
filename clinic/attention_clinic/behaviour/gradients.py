"""Whether everything learns: which parameters get gradients, and which of the others matter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from attention_clinic.behaviour.unused import Call, is_mentioned, listed, moves, plain_findings
from attention_clinic.capture.module import (
    CallFailed,
    Mode,
    NoDropout,
    Patient,
    held_tensors,
    in_training,
)
from attention_clinic.catalogue.forms import with_more
from attention_clinic.report import Report

BRANCHES = (  # functions by whose results code decides what to do next
    "__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "equal", "allclose",
    "__gt__", "__lt__", "__ge__", "__le__", "gt", "lt", "ge", "le", "argmax", "argmin", "argsort",
    "sort", "topk", "multinomial", "nonzero", "masked_select", "unique", "bincount",
)  # fmt: skip
CUTS = {"detach", "detach_", "item", "tolist", "numpy"}  # no gradient passes through them
STEP, MISSED = 1e-4, 0.02  # of a difference quotient, and the part of it that a gradient may miss
IN_CALLS = "seen in calls; nothing else is explained"
# they name what is not used, or what was used instead
UNUSED = {
    "attention-unused", "cross-ignored", "norm-missing", "norm-shared", "out-unused",
    "parameter-unused", "part-unused", "projection-shared", "projection-unused",
    "stack-last-only", "value-from-key",
}  # fmt: skip


class Trace(Mode):
    """One run, with gradients of the inputs and of the named parameters."""

    def __init__(self, module: nn.Module, names: set[str], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.module, self.sizes = module, {t.numel() for t in inputs}
        self.held = {n: p for n, p in module.named_parameters() if n in names}
        self.entered: list[Tensor] = []  # the inputs that the module got
        self.passes = False  # whether a gradient reaches any of that, as far as it is known
        self.results: list[Any] = []  # what the module returned
        self.learns: set[str] = set()  # the parameters that a gradient reaches
        self.read: set[int] = set()  # ids of the parameters that a function got
        self.asked = self.inside = False  # whether code decided by any numbers; ran in forward
        self.overwritten = False  # whether backward needed numbers that were changed in place
        self.cuts = False  # whether something ran that lets no gradient through
        self.slope = 0.0  # what the gradients say of `_total` along `_direction` of parameters

    def made(self, run: Call) -> Self:
        """Run the module and return this trace; `CallFailed` for an error or no call of it."""
        handles = [
            self.module.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.module.register_forward_hook(self._end),
        ]
        try:
            for p in self.held.values():
                p.requires_grad_(True)
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(0)
                with NoDropout(), self:
                    run()
                self._follow()
        finally:
            for p in self.held.values():
                p.requires_grad_(False)
            for handle in handles:
                handle.remove()
        if not self.results:
            raise CallFailed
        return self

    def _begin(self, part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        torch.set_grad_enabled(True)
        made = tuple(map(self._enter, args)), {k: self._enter(v) for k, v in kwargs.items()}
        self.inside = True
        return made

    def _enter(self, value: Any) -> Any:
        """Return an argument, which wants gradients if it is an input."""
        known = isinstance(value, Tensor) and value.is_floating_point()
        if not known or value.numel() not in self.sizes:
            return value
        self.entered.append(value.detach().requires_grad_())
        return self.entered[-1].clone()  # which may be changed in place

    def _end(self, part: nn.Module, args: Any, result: Any) -> None:
        self.inside = False
        self.results.append(result)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "group_norm":  # its backward may end the process where channels come last
            args = tuple(t.contiguous() if isinstance(t, Tensor) else t for t in args)
        if self.inside:
            data = name == "__get__" and func == Tensor.data.__get__
            self.cuts |= name in CUTS or data or not torch.is_grad_enabled()
            if name != "__get__":
                given = held_tensors([args, kwargs])
                self.read |= {id(t) for t in given if isinstance(t, nn.Parameter)}
            self.asked |= name in BRANCHES or (name == "where" and len(args) == 1)
        return func(*args, **kwargs)

    def _follow(self) -> None:
        """Note the parameters that all that the module returned or keeps needs."""
        kept = [vars(part) for part in self.module.modules()]
        ends = [t.abs().sum() for t in held_tensors([self.results, kept]) if t.grad_fn]
        starts = [*self.entered, *self.held.values()]
        self.passes = not self.entered
        if not ends or not starts:
            return
        try:
            found = torch.autograd.grad(sum(ends), starts, retain_graph=True, allow_unused=True)
        except RuntimeError as error:  # a function without derivatives, or a user's own
            if "inplace operation" not in str(error):
                raise CallFailed from error
            self.overwritten = True
            return
        inputs, own = found[: len(self.entered)], found[len(self.entered) :]
        self.passes |= any(grad is not None for grad in inputs)
        self.learns = {n for n, grad in zip(self.held, own, strict=True) if grad is not None}
        if self.cuts and self.held and (total := _total(self.results)).grad_fn:
            given = list(self.held.values())
            pairs = zip(given, torch.autograd.grad(total, given, allow_unused=True), strict=True)
            self.slope = sum(float((g * _direction(p)).sum()) for p, g in pairs if g is not None)


def _random(like: Tensor) -> Tensor:
    """Return random numbers of the same shape, the same in every call."""
    generator = torch.Generator().manual_seed(71)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def _direction(p: Tensor) -> Tensor:
    """Return the direction in which a parameter is moved, as large as the parameter."""
    return _random(p) * p.detach().square().mean().sqrt().clamp(min=1e-3)


def _total(results: Sequence[Any]) -> Tensor:
    """Return a random sum of what a module returned first."""
    y = next(t for t in held_tensors(results) if t.is_floating_point())
    return (y * _random(y)).sum()


def partly_cut(patient: Patient, trace: Trace, run: Call) -> bool:
    """Return whether gradients are not derivatives, because a part of them was cut off."""
    if not trace.cuts or trace.overwritten or patient.dtype != torch.float64 or patient.rough:
        return False
    start = {name: p.detach().clone() for name, p in trace.held.items()}

    def quotient(step: float) -> float:
        ends = []
        for sign in (step, -step):
            for name, p in trace.held.items():
                p.data.copy_(start[name] + sign * _direction(start[name]))
            ends.append(float(_total(Trace(trace.module, set(), ()).made(run).results)))
        return (ends[0] - ends[1]) / (2 * step)

    try:
        real, nearer = quotient(STEP), quotient(STEP / 4)
    finally:
        for name, p in trace.held.items():
            p.data.copy_(start[name])
    size = max(abs(real), abs(trace.slope))
    return (
        abs(real - nearer) <= MISSED * size / 4 and abs(real - trace.slope) > MISSED * size > 1e-6
    )


def learned(report: Report, patient: Patient, run: Call, inputs: Sequence[Tensor]) -> Report:
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
    try:
        traces: list[Trace] = []
        for training in (False, True):  # in training mode only if anything did not learn before
            with in_training(patient.module, training):
                traces.append(Trace(patient.module, names, inputs).made(run))
            if len(traces[-1].learns) == len(traces[-1].held) and traces[-1].passes:
                break
        if all(trace.overwritten for trace in traces):
            explained = report.healthy or report.explanations
            return with_more(report, [("graph-overwritten", "")]) if explained else report
        held = traces[0].held
        idle = [n for n in held if all(n not in trace.learns for trace in traces)]
        lost = {n for n in idle if moves(run, [held[n]])}
        unused = [] if UNUSED.intersection(report.ids) else [n for n in idle if n not in lost]
        cut = lost & trained
        passes = any(trace.passes for trace in traces) or not moves(run, inputs)
        partly = passes and not lost and partly_cut(patient, traces[0], run)
        more = list(unused_parts(patient.module, traces, unused, bool(cut) or partly))
        plain = plain_findings(patient, run)
    except CallFailed:  # what has no gradients says nothing
        return report
    before = ["the input"] * (not passes and report.kind != "unexplained") + sorted(cut)
    words = "every parameter" if trained and cut >= trained else listed(before)
    cuts = [("graph-cut", f"no gradient reaches {words}")] * bool(before)
    if partly:
        cuts = [("graph-cut", "only a part of the gradient reaches the parameters")]
    if report.healthy or report.explanations:
        return with_more(report, [*cuts, *more, *(p for p in plain if p[0] not in report.ids)])
    alone = with_more(report, cuts + plain)
    found = [replace(one, evidence=IN_CALLS) for one in alone.explanations]
    return replace(report, explanations=tuple(found))


def unused_parts(
    module: nn.Module, traces: Sequence[Trace], unused: Collection[str], cut: bool
) -> Iterator[tuple[str, str]]:
    """Yield the bugs of unused parameters; what was read may come before a cut gradient."""
    highest: dict[str, list[str]] = {}  # the highest parts none of whose parameters is used
    for name in sorted(unused):
        parts = name.split(".")
        for path in (".".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
            if all(n in unused for n in traces[0].held if f"{n}.".startswith(f"{path}.")):
                highest.setdefault(path, []).append(name)
                break
    asked = any(trace.asked for trace in traces)
    for path, inside in highest.items():
        where, _, name = path.rpartition(".")
        part = getattr(module.get_submodule(where), name)
        layer = not isinstance(part, Tensor | nn.ParameterList | nn.ParameterDict)
        bug = "part-unused" if layer else "parameter-unused"
        ids = {id(module.get_parameter(n)) for n in inside}
        if any(ids & trace.read for trace in traces):
            if not (cut or asked):  # code may have decided by what it read
                yield bug, f"nothing uses what {path} returns" if layer else f"nothing uses {path}"
        elif not ((name.isdigit() and asked) or is_mentioned(module, path)):
            yield bug, f"{path} is never {'called' if layer else 'read'}"
