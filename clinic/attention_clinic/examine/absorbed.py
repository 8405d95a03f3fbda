"""Attention that multiplies queries with the weights of its keys: examined as if keys had heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.regrouped import Regrouped
from attention_clinic.engine.report import Report
from attention_clinic.examine.followed import seen_in_run
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.verdict import unexplained

SHARE = 0.6  # of the steps that are left, for the products in the other order
WORDS = "absorbed weights as layers of keys and values: (q w) k is q (w k)"


def unabsorbed(subject: Subject, examine: Callable[[Subject], Report]) -> Report:
    """Examine a module, with its products in the usual order where it absorbs weights.

    Args:
        subject: the module.
        examine: what examines a module that runs.
    """
    report = _in_heads(subject, examine)
    return examine(subject) if report is None else report


def _in_heads(subject: Subject, examine: Callable[[Subject], Report]) -> Report | None:
    """Return a report on a module that absorbs weights, None where it absorbs none."""
    patient, options = subject.patient, subject.options
    if not patient.is_module or subject.mode is not None or options.cache is not None:
        return None
    try:
        with Regrouped(patient.module.parameters()) as regrouped:
            subject.open_run(patient.tokens(subject.b, subject.n, subject.e))
        if not regrouped.apart:
            return None
        other = Subject(subject.original, options)
        other.patient.sides = patient.sides
        other.patient.around = lambda module: Regrouped(module.parameters(), regrouped.apart)
        other.find_width(subject.e, lambda *_: False)
        try:
            with reserved(SHARE):
                found = examine(other)
        except Spent as spent:
            said = unexplained(other, stopped=spent.steps)
            found = seen_in_run(other, lambda: said)
    except (ValueError, RuntimeError, TypeError, AttributeError):  # a stranger's code
        return None
    settled = found.healthy or found.explanations
    return replace(found, checked=(*found.checked, WORDS)) if settled else None
