"""Examine a block or a stack that runs, and write the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.attention.examine import unexplained, untried
from attention_clinic.attention.program import Lost
from attention_clinic.behaviour.gradients import learned
from attention_clinic.behaviour.unused import created_in_forward, dropout_findings, plain_findings
from attention_clinic.blocks.judging import Asked, Verdict, read_once
from attention_clinic.capture.calling import Layout
from attention_clinic.capture.module import CallFailed, same
from attention_clinic.capture.trial import Trial
from attention_clinic.catalogue import BUGS, VARIANTS
from attention_clinic.report import Report, explain

EVIDENCE = "each connection, and each part, gives exactly your numbers"


def examined(trial: Trial, asked: Asked) -> Report:
    """Return the report on a block, for one way to call it."""
    patient = trial.patient
    run, (x, *_) = _runs(trial)
    y = run()
    if y.shape != x.shape:
        raise ValueError(
            f"diagnose_block: {patient.name} must return tokens (b, n, e) as it gets them, got "
            f"{tuple(y.shape)} for x of shape {tuple(x.shape)}. Say how to call it: "
            "call=lambda block, x: block(x)[0]."
        )
    layers = created_in_forward(patient, run)
    if layers:
        detail = f"forward builds {' and '.join(dict.fromkeys(layers))}"
        found = explain([BUGS["layers-in-forward"]], detail=detail)
        return Report(patient.name, False, (found,), checked=("two calls",))
    extra: list[str] = []
    if not same(y, run()):
        patient.resting = True
        extra.append("dropout-eval")
        if not same(run(), run()):
            patient.resting = False
            return _unexplained(trial, "two calls differ", [])
    try:
        verdict = _read_twice(trial, asked)
    except Lost as lost:
        other = _samples_first(trial, asked)
        return _unexplained(trial, str(lost), extra) if other is None else other
    return _reported(trial, verdict, extra)


def _runs(trial: Trial) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Return a call of a block, and the tokens that it gets."""
    inputs = [t for t in (trial.tokens(), trial.context()) if t is not None]
    return lambda: trial.run(*inputs), inputs


def _samples_first(trial: Trial, asked: Asked) -> Report | None:
    """Return the report on a block that takes tokens first and samples second; None for others."""
    patient, (run, (x, *context)) = trial.patient, _runs(trial)
    if patient.call is not None or patient.way.layout.form != "b n e":
        return None
    changed = x.clone()
    changed[0] = trial.tokens(seed=21)[0]
    if same(trial.run(changed, *context)[1:], run()[1:]):
        return None
    way = patient.way
    patient.way = replace(way, layout=Layout("n b e"))
    try:
        verdict = read_once(trial, asked, 0)
    except (CallFailed, Lost):
        return None
    finally:
        patient.way = way
    detail = "with tokens first and samples second it is correct: give it x.transpose(0, 1)"
    verdict.found = [("batch-first", "" if verdict.found else detail), *verdict.found]
    return _reported(trial, verdict, [])


def _read_twice(trial: Trial, asked: Asked) -> Verdict:
    """Return the verdict, the same for calls of two sizes."""
    first = read_once(trial, asked, 0)
    masked = asked.masks.own or asked.masks.context
    if masked or not trial.takes(1) or trial.shape(1) == trial.shape(0):
        return first
    second = read_once(trial, asked, 1)
    if (sorted(first.ids), first.variants) != (sorted(second.ids), second.variants):
        raise Lost("two sizes give different programs")
    return first


def _reported(trial: Trial, verdict: Verdict, extra: list[str]) -> Report:
    """Return the report on a block that was read."""
    patient, (run, inputs) = trial.patient, _runs(trial)
    dropout, said = dropout_findings(patient, run)
    plain = plain_findings(patient, run)
    details = [*(words for _, words in verdict.found), said, *(words for _, words in plain)]
    found = {*verdict.ids, *extra, *dropout, *(id for id, _ in plain)}
    ids = sorted(found, key=list(BUGS).index)
    explanations = ()
    if ids:
        detail = "; ".join(filter(None, dict.fromkeys(details)))
        made = explain([BUGS[id] for id in ids], verdict.difference, detail)
        if "exactly" in made.evidence and "dropout-eval" not in ids:
            made = replace(made, evidence=EVIDENCE)
        explanations = (made,)
    report = Report(
        patient.name,
        not ids,
        explanations,
        checked=verdict.words,
        untried=untried(trial),
        remarks=tuple(explain([BUGS[id]], detail=words) for id, words in verdict.remarks),
        variants=tuple(VARIANTS[name] for name in verdict.variants),
        tolerance=patient.tolerance,
    )
    return learned(report, patient, run, inputs)


def _unexplained(trial: Trial, why: str, extra: list[str]) -> Report:
    """Return the report on a block that is not understood."""
    report = unexplained(trial, None, "every known block")
    report = replace(report, failing=(*report.failing, f"understood up to here: {why}"))
    if extra:
        found = explain([BUGS[id] for id in extra], detail="nothing else is judged")
        report = replace(report, explanations=(found,))
    run, inputs = _runs(trial)
    if extra or not bool(torch.isfinite(run()).all()):
        return report
    return learned(report, trial.patient, run, inputs)
