"""Arguments that all got the same tokens: whether each is read where its name says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attention_clinic.engine.budget import reserved
from attention_clinic.engine.operands import role_of
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report
from attention_clinic.engine.untried import arguments
from attention_clinic.examine.bare import WithLayers
from attention_clinic.examine.options import Context
from attention_clinic.examine.subject import Subject

UNREAD = "{0} reaches the result: with other tokens there the output is the same"
EXCHANGED = "values are made of {1}: they are made of {0}, and the scores of {1}"
SHARE = 0.9  # of the steps that are left, to examine it with a context
CHECKED = "keys of other tokens than values"


def given_apart(subject: Subject, report: Report, examined: Callable[[Subject], Report]) -> Report:
    """Return a report that says what several arguments do with tokens of their own each.

    Args:
        subject: who was examined, with the same tokens for all of them, or with a context.
        report: what was found.
        examined: examines it with a context; asked only where the sides are not kept apart.
    """
    module, options, sides = subject.original, subject.options, subject.patient.sides
    told = (options.call, options.weights, options.cache, options.layout, options.mask)
    free = all(value is None for value in told) and isinstance(module, nn.Module)
    if not free or sides is None or isinstance(module, WithLayers) or subject.n < 2:
        return report
    if type(module).__module__.startswith("torch.") or not sides.needed(module):
        return report
    if (not report.healthy and not report.explanations) or vars(subject).get("is_block"):
        return report
    if not subject.crossed:
        kept = _sides_kept(subject)
        if kept is None or not all(kept):
            certain = kept and report.healthy and not sides.guessed
            found = _across(subject, examined) if certain else None
            if found is not None and (found.healthy or found.explanations):
                return report if found.healthy else found
            said = f"another context than the tokens ({', '.join(sides.asked)}): context=True"
            said = f"{said} tries one"
            if kept and sides.guessed and not kept[1]:
                said = f"{arguments(list(sides.asked))} with anything else than the tokens"
            return replace(report, untried=(*report.untried, said))
    if not report.healthy:
        return report
    try:
        failing = _unread(subject)
    except Exception:  # it takes no other keys than values
        return report
    if failing is None:
        return report
    return Report(
        report.name, False, failing=(failing,), checked=(CHECKED,), untried=report.untried
    )


def _across(subject: Subject, examined: Callable[[Subject], Report]) -> Report | None:
    """Examine a module with a context of its own; None where it does not run on one."""
    other = Subject(subject.original, replace(subject.options, context=Context()))
    try:
        with reserved(SHARE):
            other.find_width(subject.e, lambda *_: False)
            return examined(other)
    except ValueError:
        return None


def _sides_kept(subject: Subject) -> tuple[bool, bool] | None:
    """Say whether each token asks for itself, and whether the context is heard; None: who knows."""
    patient = subject.patient
    x, c, other = (patient.tokens(subject.b, subject.n, subject.e, seed=s) for s in (0, 41, 42))
    changed = x.clone()
    changed[:, 0] += 1.0
    try:
        with subject.repaired():
            if not same(patient.run(x), patient.run(x, context=x)):
                return None
            y, heard = patient.run(x, context=c), patient.run(x, context=other)
            asked = patient.run(changed, context=c)
    except Exception:
        return None
    if y.ndim != 3 or y.shape[1] != subject.n:
        return None
    apart = same(y[:, 1:], asked[:, 1:]) and not same(y[:, :1], asked[:, :1])
    return apart, not same(y, heard)


def _unread(subject: Subject) -> str | None:
    """Say which of key and value reaches nothing, or that they are exchanged; None: neither."""
    patient, sides = subject.patient, subject.patient.sides
    assert sides is not None
    keys = [name for name in sides.asked if role_of(name) == "k"]
    values = [name for name in sides.asked if role_of(name) == "v"]
    if len(keys) != 1 or len(values) != 1:
        return None
    x = patient.tokens(subject.b, subject.n, subject.e)
    context = subject.context_of(0)
    context = patient.tokens(*x.shape, seed=41) if context is None else context

    def run(name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
        with subject.repaired(), _changed(patient.module, name, change):
            return patient.run(x, context=context)

    y = run(keys[0], lambda t: t)
    for name in (*keys, *values):
        if same(y, run(name, lambda t: t.flip(-1))):
            return UNREAD.format(name)

    def is_straight(name: str) -> bool:
        return same(run(name, lambda t: 2 * t) - y, y - run(name, lambda t: 0 * t))

    if is_straight(keys[0]) and not is_straight(values[0]):
        return EXCHANGED.format(keys[0], values[0])
    return None


@contextmanager
def _changed(module: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let an argument of forward get other tokens than it is called with."""

    def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, name: change(kwargs[name])}

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
