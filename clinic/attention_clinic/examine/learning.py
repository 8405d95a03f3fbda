"""Whether what a module holds, and what comes in, learns: gradients against true derivatives.

A step of what comes in, and one of the parameters, changes the output by so much; the gradients
that PyTorch gives must say the same. Who gets none lies behind a cut, or reaches nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import InOrder, Mode, NoDropout, moved, wanting_gradients
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.report import Report
from attention_clinic.engine.severed import Severed
from attention_clinic.engine.tape import tensors_in
from attention_clinic.examine.cuts import Cut
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.unlearned import (
    Learned,
    and_more,
    both,
    listed,
    lost_alone,
    never_dropping,
    told,
    with_great_eps,
)

SEEDS = (71, 72)  # of the directions; what differs must differ in both
UNSETTLED = 0.5  # by which share a shorter step may change a derivative that is one
SHARE = 0.05  # of a derivative that its gradient may miss
FINE = 0.005  # where a cut was heard: it may be a small part of what moves
IN_PLACE = "modified by an inplace operation"  # what PyTorch says


@dataclass
class Gradients(Mode):
    """The comparison for one module.

    Args:
        module: the copy.
        run: calls it, on the same tokens each time.
        given: the tokens that it is called with.
        names: of the parameters that its user would train.
        rough: whether it computes something in single precision.
    """

    module: nn.Module
    run: Callable[[], object]
    given: Sequence[Tensor]
    names: set[str]
    rough: bool
    read: set[int] = field(default_factory=set)
    severed: Severed = field(default_factory=Severed)

    def __post_init__(self) -> None:
        super().__init__()
        self.sizes = [(t.numel(), float(t.double().square().sum())) for t in self.given]
        self.held = {n: p for n, p in self.module.named_parameters() if n in self.names}
        self.step = 1e-2 if self.rough else 1e-4
        self.noise = (1e-5 if self.rough else 1e-9) / self.step

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") != "__get__":
            self.read |= {id(t) for t in args if isinstance(t, nn.Parameter)}
        return func(*args, **kwargs)

    def found(self) -> Learned:
        """Return what does not learn."""
        first = self._once(SEEDS[0])
        if not first.cut:
            return first
        again = self._once(SEEDS[1])
        return both(first, replace(first, cut=again.cut, lost=again.lost))

    def _once(self, seed: int) -> Learned:
        """Compare along one direction."""
        moved = torch.zeros((), dtype=self.given[0].dtype, requires_grad=True)
        with wanting_gradients(self.held.values()):
            with InOrder(), self, self.severed:
                y, made = self._called(moved, seed)
            total = self._sum(y, seed)
            inputs = [moved, *self.held.values()]
            found = self._asked(total, inputs)
            every = sum(t.abs().sum() for t in made if t.requires_grad)
            reached = self._asked(every, inputs)
            answers = sum(t.sum() for t in self.severed.answers) if self.severed.asked else 0
            choosing = self._asked(answers, inputs)[1:]
            self.severed.answers.clear()
            own = _has_own(total)
        floor = self.noise * float(y.detach().double().nan_to_num(0.0).square().sum().sqrt())
        cut = []
        if self._is_told_wrongly(found[0], lambda: self._real_input(seed), floor):
            cut.append("")
        directed = {
            name: None if grad is None else (grad * direction_of(p, seed, n)).sum()
            for n, ((name, p), grad) in enumerate(zip(self.held.items(), found[1:], strict=True))
        }
        told = sum(float(value) for value in directed.values() if value is not None)
        all_ = dict(enumerate(self.held.values()))
        lost = [name for name, value in directed.items() if value is None]
        wrong = self._is_told_wrongly(torch.tensor(told), lambda: self._real(all_, seed), floor)
        wrong = wrong or self.severed.cuts  # what was cut may be a small share of the whole
        for number, (name, p) in enumerate(self.held.items()):
            if not wrong and name not in lost:
                continue
            moving = {number: p}
            if name in lost:
                wronged = self._moves(moving, seed) > floor
            else:
                wronged = self._is_told_wrongly(
                    directed[name], lambda moving=moving: self._real(moving, seed), floor
                )
            cut += [name] * wronged
        if self.severed.tops and not self.severed.cuts:
            cut = []  # with an eps beside them, what they are taken from tells the difference
        pairs = zip(self.held.items(), reached[1:], strict=True)
        unused = {n: id(p) for (n, p), grad in pairs if grad is None and n not in cut}
        read = frozenset(name for name, number in unused.items() if number in self.read)
        silent = ("" in cut and found[0] is None) or any(name in cut for name in lost)
        silent = silent or (bool(cut) and self.severed.cuts and bool(y.isfinite().all()))
        never = [n for n, grad in zip(self.held, reached[1:], strict=True) if grad is None]
        never = tuple(name for name in never if name in lost and name in cut)
        grads = zip(self.held, found[1:], reached[1:], strict=True)
        still = [n for n, *both in grads if all(g is not None and not g.any() for g in both)]
        still = [n for n in still if n not in cut and self._chooses(self.held[n], y)]
        chosen = frozenset(n for n, g in zip(self.held, choosing, strict=True) if g is not None)
        asked = self.severed.asked, chosen
        return Learned(tuple(cut), tuple(unused), own, read, silent, never, tuple(still), *asked)

    def _chooses(self, p: nn.Parameter, y: Tensor) -> bool:
        """Say whether a weight turned over gives another output, as one does that only chooses."""
        if p.ndim < 2:  # an offset of choices is balanced by rules of its own
            return False
        with moved([p], -1.0, 0.0):
            return not same(y, self._called(0.0, SEEDS[0])[0])

    def _is_told_wrongly(
        self, told: Tensor | None, measure: Callable[[], float | None], floor: float
    ) -> bool:
        """Say whether a gradient is not the derivative, by more than a shorter step changes it."""
        real = measure()
        share = FINE if self.severed.cuts and not self.rough else SHARE
        if real is None or not _differ(told, real, floor, share):
            return False
        self.step /= 4
        try:
            nearer = measure()
        finally:
            self.step *= 4
        assert nearer is not None, "it was seen before"
        if told is not None and abs(real - nearer) > UNSETTLED * max(abs(real), abs(nearer)):
            return False  # next to a pole no step is short enough
        return _differ(told, nearer, 4 * floor + 2 * abs(real - nearer), share)

    def _called(self, moved: Tensor | float, seed: int) -> tuple[Tensor, list[Tensor]]:
        """Return what the module returns first, and all tensors that it returns or keeps."""
        results: list[Any] = []
        entered: dict[int, Tensor] = {}

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            size = value.numel(), float(value.detach().double().square().sum())
            if not any(size[0] == n and abs(size[1] - s) <= 1e-6 * s for n, s in self.sizes):
                return value
            if id(value) not in entered:
                self.kept.append(value)  # as long as it lives, no other has its number
                entered[id(value)] = value.detach() + moved * noise_of(value, seed)
            return entered[id(value)]

        def enter(part: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            torch.set_grad_enabled(isinstance(moved, Tensor))
            given = tuple(map(move, args)), {name: move(value) for name, value in kwargs.items()}
            self.severed.inside = True
            return given

        def leave(part: nn.Module, args: tuple, made: Any) -> None:
            self.severed.inside = False
            results.append(made)

        self.kept: list[Tensor] = []
        handles = [
            self.module.register_forward_pre_hook(enter, with_kwargs=True),
            self.module.register_forward_hook(leave),
        ]
        torch.manual_seed(0)
        try:
            self.run()
        finally:
            for handle in handles:
                handle.remove()
        self.entered = bool(entered)
        kept = [value for part in self.module.modules() for value in vars(part).values()]
        made = [t for t in tensors_in([results, kept]) if t.requires_grad and t.grad_fn]
        firsts = [next(iter(tensors_in(result))) for result in results]
        return torch.cat([t.flatten() for t in firsts if t.is_floating_point()]), made

    def _sum(self, y: Tensor, seed: int) -> Tensor:
        return (y * noise_of(y, seed, 1000)).sum()

    def _asked(self, total: Any, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
        """Return the gradients, None where there is none."""
        if not isinstance(total, Tensor) or not total.requires_grad:
            return (None,) * len(inputs)
        return torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)

    def _real_input(self, seed: int) -> float | None:
        """Return how fast the output changes with what comes in, None where that is not seen."""
        ends = []
        for step in (self.step, -self.step):
            with torch.no_grad():
                ends.append(float(self._sum(self._called(step, seed)[0], seed)))
            if not self.entered:
                return None
        return (ends[0] - ends[1]) / (2 * self.step)

    def _real(self, moving: dict[int, Tensor], seed: int) -> float:
        """Return how fast the output changes with some parameters."""
        up, down = (float(self._sum(y, seed)) for y in self._ends(moving, seed))
        return (up - down) / (2 * self.step)

    def _moves(self, moving: dict[int, Tensor], seed: int) -> float:
        """Return how fast the output changes with some parameters, wherever to; NaN aside."""
        up, down = self._ends(moving, seed)
        return float((up - down).double().nan_to_num(0.0).square().sum().sqrt()) / (2 * self.step)

    def _ends(self, moving: dict[int, Tensor], seed: int) -> list[Tensor]:
        """Return the output a step ahead with some parameters, and a step behind."""
        before = {number: p.detach().clone() for number, p in moving.items()}
        ends = []
        try:
            for step in (self.step, -self.step):
                for number, p in moving.items():
                    p.data.copy_(before[number] + step * direction_of(before[number], seed, number))
                with torch.no_grad():
                    ends.append(self._called(0.0, seed)[0])
        finally:
            for number, p in moving.items():
                p.data.copy_(before[number])
        return ends


def noise_of(like: Tensor, seed: int, number: int = 0) -> Tensor:
    """Return random numbers of the same shape, the same for every call."""
    generator = torch.Generator().manual_seed(seed + 31 * number)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def direction_of(p: Tensor, seed: int, number: int) -> Tensor:
    """Return random numbers as large as those of a parameter."""
    size = p.detach().double().square().mean().sqrt()
    return noise_of(p, seed, number) * (float(size) if 0 < size < torch.inf else 1.0)


def _differ(told: Tensor | None, real: float, floor: float, share: float) -> bool:
    """Say whether a gradient is not the derivative, where there is one."""
    said = 0.0 if told is None else float(told)
    return math.isfinite(real) and not abs(said - real) <= share * max(abs(said), abs(real)) + floor


def _has_own(total: Tensor) -> bool:
    """Say whether a graph holds functions with a backward of their own."""
    waiting, seen = [total.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        waiting += [before for before, _ in node.next_functions]
    return False


def _kept_by(error: Exception) -> str:
    """Return whose numbers are written over, as PyTorch says it."""
    made = re.search(r"output \d+ of (\w+?)(Backward)?\d*,", str(error))
    return f"what {made.group(1)} made is changed in its place" if made else ""


def learned(
    report: Report,
    patient: Patient,
    run: Callable[[], object],
    given: Sequence[Tensor],
    parameters: bool = True,
) -> Report:
    """Return a report that says of a module what does not learn in it.

    Args:
        report: on the module.
        patient: its copy, which is not used afterwards.
        run: calls the copy.
        given: the tokens that it is called with.
        parameters: whether what stands unused is to be said: it may be used by others.
    """
    asked = report.healthy or report.explanations
    if not patient.is_module or isinstance(patient.module, Cut):
        return report
    trained = {n for n, p in patient.original.named_parameters() if p.requires_grad}
    held = {n for n, p in patient.module.named_parameters() if p.is_floating_point()}
    frozen = {n for n, p in patient.original.named_parameters() if not p.requires_grad} & held
    inner = {n for n in frozen if "." in n}  # of a part, which may never be called
    rough = patient.dtype != torch.float64 or bool(patient.rough)
    found: Learned | None = None
    for training in (False, True):  # some do it only while they evaluate
        patient.module.train(training)
        names = trained & held | (inner if trained else set())
        gradients = Gradients(patient.module, run, given, names, rough)
        try:
            with NoDropout():
                again = gradients.found()
        except Exception as error:  # what else cannot be differentiated says nothing
            if not report.healthy or IN_PLACE not in str(error):
                return report
            if training:
                return and_more(report, [("graph-overwritten", _kept_by(error))])
            continue
        finally:
            patient.module.eval()
        again = replace(again, cut=tuple(name for name in again.cut if name not in inner))
        found = again if found is None else both(found, again)
        if not found.cut and not found.unused:
            break
    if not asked:
        return lost_alone(report, found)
    used = sorted(frozen.difference(found.unused))
    if used and trained and report.healthy:
        words = f"gradients; frozen, so that nothing there learns: {listed(used)}"
        report = replace(report, checked=(*report.checked, words))
    asked = trained & held | set(found.unused)
    report = told(report, patient, found, asked, parameters)
    return never_dropping(with_great_eps(report, patient), patient, run)


def learned_with(subject: Subject, report: Report, parameters: bool = True) -> Report:
    """Return a report that says of an attention what does not learn in it.

    Args:
        subject: the module.
        report: on it.
        parameters: as in `learned`.
    """
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    given = [t for t in (x, subject.context_of(0)) if t is not None]
    return learned(report, subject.patient, lambda: subject.open_run(x), given, parameters)
