"""What `diagnose` says of an attention that no form is equal to, by an account of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attention_clinic.bugs import BUGS
from attention_clinic.engine.report import Report, explain
from attention_clinic.examine.learning import learned_with
from attention_clinic.examine.noticed import noticed
from attention_clinic.examine.observing import observed
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.summed import summed_apart
from attention_clinic.examine.unlearned import IN_CALLS
from attention_clinic.examine.verdict import untried, without_output

ALONE = {"dropout-eval"}  # shown by the calls alone, whatever else is done


def seen_in_steps(subject: Subject, otherwise: Callable[[], Report]) -> Report:
    """Report what an account of its steps says of a module, or something else where it is silent.

    Args:
        subject: the module.
        otherwise: makes the other report.
    """
    found = observed(subject, partly=True) if subject.options.most else None
    if found is None:
        return _seen_in_calls(subject, otherwise)
    alone = not vars(subject)["observed"][1].ended
    alone = alone and not {"out-missing", "out-unused"} & set(found.ids)
    subject.extra[:] = [id for id in subject.extra if id in ALONE]
    said = noticed(subject, (), found.ids)
    ids = sorted({*found.ids, *subject.extra}, key=list(BUGS).index)
    made = explain([BUGS[id] for id in ids], detail="; ".join(filter(None, (found.detail, *said))))
    report = Report(
        subject.patient.name,
        False,
        (replace(made, evidence=found.evidence),),
        checked=("each step of a run, from queries and keys to the output layer",),
        remarks=without_output(subject) * alone,
        untried=untried(subject),
    )
    return learned_with(subject, report)


def _seen_in_calls(subject: Subject, otherwise: Callable[[], Report]) -> Report:
    """Report what two calls show, or something else where they show nothing."""
    extra = [id for id in subject.extra if id in ALONE]
    equation = summed_apart(subject)
    extra += ["sum-apart"] * bool(equation)
    if not extra:
        report = otherwise()
        explained = report.healthy or report.explanations
        return report if explained else learned_with(subject, report)
    made = explain(
        [BUGS[id] for id in extra], detail=f"the weights, in {equation}" * bool(equation)
    )
    found = replace(made, evidence=IN_CALLS)
    return Report(
        subject.patient.name, False, (found,), checked=("two calls",), untried=untried(subject)
    )
