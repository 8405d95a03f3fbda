"""Whether everything learns: the gradients of autograd against true derivatives.

Where a run cuts numbers from their history, a small step shows how fast the output really changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
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
    wanting_gradients,
)
from attention_clinic.catalogue.forms import with_more
from attention_clinic.report import Report

BRANCHES = (  # functions by whose results code decides what to do next
    "__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "equal", "allclose",
    "__gt__", "__lt__", "__ge__", "__le__", "gt", "lt", "ge", "le", "argmax", "argmin", "argsort",
    "sort", "topk", "multinomial", "nonzero", "masked_select", "unique", "bincount",
)  # fmt: skip
MISSED = 0.01  # the fraction of a derivative that a gradient may miss
UNSETTLED = 0.5  # the fraction by which a shorter step may change a derivative
IN_CALLS = "seen in calls; nothing else is explained"
# they name what is not used, or what was used in its place
UNUSED = {
    "attention-unused", "cross-ignored", "norm-missing", "norm-shared", "out-unused",
    "parameter-unused", "part-unused", "projection-shared", "projection-unused",
    "stack-last-only", "value-from-key",
}  # fmt: skip


class Trace(Mode):
    """One run, on `enter(t)` for each tensor t, with gradients of the named parameters."""

    def __init__(
        self, module: nn.Module, names: Collection[str], enter: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.module, self.enter, self.training = module, enter, module.training
        self.held = {n: p for n, p in module.named_parameters() if n in names}
        self.results: list[Any] = []  # what the module returned
        self.grads: dict[str, Tensor] = {}  # of all that it returned or keeps
        self.read: set[int] = set()  # ids of the parameters that a function got
        self.asked = self.inside = False  # whether code decided by any numbers; ran in forward
        self.cuts = False  # whether numbers that learn went on without their history
        self.overwritten = False  # whether backward needed numbers that were changed in place

    def made(self, run: Call) -> Self:
        """Run the module and return this trace; `CallFailed` for an error or no call of it."""
        handles = [
            self.module.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.module.register_forward_hook(self._end),
        ]
        try:
            with torch.random.fork_rng(devices=[]), wanting_gradients(list(self.held.values())):
                torch.manual_seed(0)
                with NoDropout(), self:
                    run()
        finally:
            for handle in handles:
                handle.remove()
        if not self.results:
            raise CallFailed
        held = held_tensors([self.results, [vars(part) for part in self.module.modules()]])
        self.grads = self.reached([t for t in held if t.grad_fn])
        return self

    def _begin(self, part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        torch.set_grad_enabled(True)
        given = [self.enter(v) if isinstance(v, Tensor) else v for v in (*args, *kwargs.values())]
        self.inside = True
        return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))

    def _end(self, part: nn.Module, args: Any, result: Any) -> None:
        self.inside = False
        self.results.append(result)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "group_norm":  # its backward may end the process where channels come last
            args = tuple(t.contiguous() if isinstance(t, Tensor) else t for t in args)
        if not self.inside:
            return func(*args, **kwargs)
        given = list(held_tensors([args, kwargs]))
        learns = any(t.requires_grad for t in given)
        result = func(*args, **kwargs)
        if name != "__get__":
            self.read |= {id(t) for t in given if isinstance(t, nn.Parameter)}
        self.asked |= name in BRANCHES or (name == "where" and len(args) == 1)
        if learns and "_like" not in name and not name.startswith("new_"):
            out = given[0] if name == "__setitem__" else result
            bare = isinstance(out, Tensor) and out.is_floating_point() and not out.requires_grad
            self.cuts |= bare or name in ("item", "tolist", "numpy")
        return result

    @property
    def output(self) -> Tensor:
        """The first tensor of each result, flat."""
        firsts = [next(held_tensors(result)) for result in self.results]
        return torch.cat([t.flatten() for t in firsts if t.is_floating_point()])

    def reached(
        self, ends: Sequence[Tensor], starts: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the gradients of a sum of sizes by the starts, or parameters, that it needs."""
        total = sum((t.abs().sum() for t in ends if t.requires_grad), torch.zeros(()))
        starts = starts or self.held
        if not total.requires_grad or not starts:
            return {}
        try:
            with wanting_gradients(list(self.held.values())):
                given = list(starts.values())
                found = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
        except RuntimeError as error:  # a function without derivatives, or a stranger's own
            if "inplace operation" not in str(error):
                raise CallFailed from error
            self.overwritten = True
            return {}
        return {n: grad for n, grad in zip(starts, found, strict=True) if grad is not None}


class Comparison:
    """The gradients of one module, and how fast its output really changes."""

    def __init__(self, patient: Patient, run: Call, inputs: Sequence[Tensor]) -> None:
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
        """Return whether a slope is not the derivative; see `_derivative`."""
        real = self._derivative(names, self.step)
        limit = MISSED * max(abs(slope), abs(real)) + floor
        if abs(real) <= floor or not math.isfinite(real) or abs(slope - real) <= limit:
            return False  # rounding has a derivative of 0
        nearer = self._derivative(names, self.step / 4)
        apart, size = abs(real - nearer), max(abs(real), abs(nearer))
        limit = MISSED * max(abs(slope), abs(nearer)) + 4 * floor + 2 * apart
        # near a pole no step is short enough
        return apart <= UNSETTLED * size and abs(slope - nearer) > limit

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
    compared = Comparison(patient, run, inputs)
    try:
        traces: list[Trace] = []
        for training in (False, True):  # in training mode only if anything did not learn before
            with in_training(patient.module, training):
                trace = Trace(patient.module, names, compared.enter).made(run)
                traces.append(trace)
                if len(trace.grads) == len(trace.held) and not trace.cuts:
                    break
        if all(trace.overwritten for trace in traces):
            explained = report.healthy or report.explanations
            return with_more(report, [("graph-overwritten", "")]) if explained else report
        cut = set.intersection(*(compared.cut(trace) for trace in traces))
        held = traces[0].held
        idle = [n for n in held if all(n not in trace.grads for trace in traces)]
        some = bool(idle) and moves(run, [held[n] for n in idle])
        lost = {n for n in idle if some and moves(run, [held[n]])}
        cut = cut & (trained | {""}) | lost & trained
        unused = [] if UNUSED.intersection(report.ids) else [n for n in idle if n not in lost]
        more = list(unused_parts(patient.module, traces, unused, bool(cut)))
        plain = plain_findings(patient, run)
    except CallFailed:  # what has no gradients says nothing
        return report
    if not report.healthy and not report.explanations:
        words = f"no gradient reaches {listed(sorted(lost & trained))}"
        alone = with_more(report, [("graph-cut", words)] * bool(lost & trained) + plain)
        found = [replace(one, evidence=IN_CALLS) for one in alone.explanations]
        return replace(report, explanations=tuple(found))
    if cut:
        shown = listed([name or "the input" for name in sorted(cut)])
        words = "every parameter" if trained and cut >= trained else shown
        more.insert(0, ("graph-cut", f"no gradient, or only a part of it, reaches {words}"))
    return with_more(report, more + [one for one in plain if one[0] not in report.ids])


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
