"""Modules of which one part is wrong by itself: set right, it shows what the others are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor, nn

from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.report import Report
from attention_clinic.examine.absorbed import unabsorbed
from attention_clinic.examine.inner_norms import Wrong, said_of, wrong_norms
from attention_clinic.examine.leaves import RMS
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.tempered import without_temperatures
from attention_clinic.examine.unlearned import and_more
from attention_clinic.examine.unrounded import without_rounding

SHARE = 0.6  # of the steps that are left, for the module with right norms
EVIDENCE = "shown by the norm alone; with a right one, nothing else differs"


def part_by_part(subject: Subject, examine: Callable[[Subject], Report]) -> Report:
    """Examine a module, and once more where what one part of it does says nothing of the others.

    Args:
        subject: the module.
        examine: what examines a module that runs.
    """

    def usual(subject: Subject) -> Report:
        return unabsorbed(subject, examine)

    for one in (_with_right_norms, without_rounding):
        report = one(subject, usual)
        if report is not None:
            return report
    return without_temperatures(subject, usual(subject), usual)


def _with_right_norms(subject: Subject, examine: Callable[[Subject], Report]) -> Report | None:
    """Return a report on a module whose norms are none, None where there are no such norms.

    Its other parts are examined with right norms in their place: what a norm does that no norm
    does is no part of any reference.
    """
    patient, options, original = subject.patient, subject.options, subject.original
    free = options.cache is None and options.weights is None and options.most
    if not free or subject.mode is not None or not isinstance(original, nn.Module):
        return None

    def run() -> Tensor:
        return subject.open_run(patient.tokens(subject.b, subject.n, subject.e))

    try:
        wrong = wrong_norms(patient.module, run, patient.tolerance)
        wrong = [one for one in wrong if one.terms == 1]
        if not wrong:
            return None
        other = Subject(_righted(original, wrong), options)
        other.patient.sides = patient.sides
        other.find_width(subject.e, lambda *_: False)
        with reserved(SHARE):
            found = examine(other)
    except (Spent, ValueError, RuntimeError, TypeError, AttributeError):  # a stranger's code
        return None
    if not found.healthy and not found.explanations:
        return None
    ids = dict.fromkeys(id for one in wrong for id in one.kind.ids)
    found = and_more(found, [(id, said_of(wrong)) for id in ids])
    seen = tuple(replace(one, evidence=EVIDENCE) for one in found.explanations)
    return replace(found, explanations=seen)


def _righted(original: nn.Module, wrong: list[Wrong]) -> nn.Module:
    """Return a copy of a module that holds right norms, as they are called."""
    module = copy.deepcopy(original)
    for one in wrong:
        part = module.get_submodule(one.path)
        rms = bool(RMS.search(type(part).__name__.lower()))
        right = nn.RMSNorm(one.width) if rms else nn.LayerNorm(one.width)
        if not rms and len(list(part.parameters())) == 1:
            right = nn.LayerNorm(one.width, bias=False)
        right = right.to(next(part.parameters()))
        for path, held in [*module.named_modules(remove_duplicate=False)]:
            if held is part:
                around, _, name = path.rpartition(".")
                setattr(module.get_submodule(around), name, right)
    return module
