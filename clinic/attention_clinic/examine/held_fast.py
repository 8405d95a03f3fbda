"""What else is wrong in a module that builds layers in forward, once they are held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from attention_clinic.engine.budget import Spent
from attention_clinic.engine.built import holding
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.report import Report
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.unlearned import and_more


def held_fast(subject: Subject, report: Report, examine: Callable[[Subject], Report]) -> Report:
    """Return a report that names the other mistakes of a module that builds layers in forward.

    Args:
        subject: the module.
        report: that it builds them.
        examine: examines another module.
    """
    if not subject.patient.is_module:
        return report
    x = subject.patient.tokens(subject.b, subject.n, subject.e)

    def examined(made: nn.Module) -> Report:
        other = Subject(made, subject.options)
        other.find_width(subject.e, lambda *_: False)
        return examine(other)

    return with_layers_held(report, subject.patient, lambda: subject.open_run(x), examined)


def with_layers_held(
    report: Report,
    patient: Patient,
    run: Callable[[], object],
    examine: Callable[[nn.Module], Report],
) -> Report:
    """Return a report that names the other mistakes of a module that builds layers in forward.

    Args:
        report: that it builds them.
        patient: its copy.
        run: calls that.
        examine: examines the module that holds its layers.
    """
    try:
        made = holding(patient.original, patient.module, run)
        if made is None:
            return report
        found = examine(made)
    except (Spent, ValueError, RuntimeError, TypeError):  # its code may mind who builds them
        return report
    if not found.healthy and not found.explanations:
        return replace(report, failing=(*report.failing, *found.failing))
    (built,) = report.explanations
    checked = (*report.checked, *found.checked)
    return replace(and_more(found, [(built.ids[0], built.detail)]), checked=checked)
