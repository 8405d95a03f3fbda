"""Examine an attention that runs: read its program, judge it, and check how it behaves."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from attention_clinic.attention.facts import complete, failing
from attention_clinic.attention.positions import read_turn
from attention_clinic.attention.program import Lost, Program
from attention_clinic.attention.reading import read_program
from attention_clinic.attention.rules import Judgement, judge, prove
from attention_clinic.behaviour.gradients import learned
from attention_clinic.behaviour.unused import (
    created_in_forward,
    dropout_findings,
    plain_findings,
    reads_globals,
)
from attention_clinic.capture.module import CallFailed, same
from attention_clinic.capture.run import Run
from attention_clinic.capture.trial import Trial
from attention_clinic.catalogue import BUGS, VARIANTS
from attention_clinic.report import Explanation, Report, explain

EVERYTHING = "projections, split, scale, softmax, weighted sum, join"
CHOSEN = ("cross-ignored", "mask-dropped")  # bugs that a flag of the module may choose
MOST_FLAGS = 6
LOWEST = float(torch.finfo(torch.float16).min)
OUTSIDE = (
    "right where that layer is outside this module (out_proj=False says so), wrong where there is "
    "none (out_proj=True)"
)
BLOCKED = (
    'agree on what True means; here True = blocked, as true_means="block" says, so mask where it '
    "is True."
)


def examined(trial: Trial) -> Report:
    """Return the report on a module, for one way to call it."""
    patient, x, context = trial.patient, trial.tokens(), trial.context()
    layers = created_in_forward(patient, lambda: trial.run(x, context))
    if layers:
        detail = f"forward builds {' and '.join(dict.fromkeys(layers))}"
        return _simple(trial, "layers-in-forward", detail, "two calls")
    y = trial.run(x, context)
    if not trial.crossed and same(y, trial.run(trial.tokens(seed=9))) and bool(y.isfinite().any()):
        read = reads_globals(patient.original)
        detail = f"forward reads {' and '.join(read)} from outside the module" if read else ""
        return _simple(trial, "ignores-input", detail, "two inputs")
    _check_shape(trial, x, y)
    trial.meanings()  # refuses a mask of a wrong shape
    extra = [] if same(y, trial.run(x, context)) else ["dropout-eval"]
    patient.resting = patient.resting or bool(extra)
    if extra and not same(trial.run(x, context), trial.run(x, context)):
        patient.resting = False
        return unexplained(trial, None, "two calls")
    try:
        p, judged = _read_twice(trial)
    except Lost as lost:
        run = trial.record(0)
        if run is not None and _unused(run):
            return _simple(trial, "attention-unused", "", "one recorded run")
        report = unexplained(trial, run)
        if extra:
            found = explain([BUGS["dropout-eval"]], detail="nothing else is judged")
            return replace(report, explanations=(found,))
        return replace(report, failing=(*report.failing, f"not understood: {lost}"))
    return _reported(trial, p, judged, extra)


def _simple(trial: Trial, id: str, detail: str, compared: str) -> Report:
    """Return the report of one bug that is found before the program is read."""
    found, patient = explain([BUGS[id]], detail=detail), trial.patient
    return Report(patient.name, False, (found,), checked=(compared,), untried=patient.untried())


def _unused(run: Run) -> bool:
    """Return whether a softmax of products of tokens is computed and no token reaches another."""
    lone = bool((run.token[run.y] == run.token[run.y][..., :1]).all()) and not run.products()
    idle = [event for number, event in enumerate(run.events) if not run.used[number]]
    weights = any(event.name == "_softmax" and run.depends(event.out) for event in idle)
    return lone and weights and bool((run.token[run.y] >= 0).all())


def _check_shape(trial: Trial, x: Tensor, y: Tensor) -> None:
    """Refuse a module without one row for each token, or a number of heads that cannot be."""
    name = trial.patient.name
    if y.ndim != 3 or len(y) != trial.b or y.shape[1] not in (trial.n, trial.j, 1):
        raise ValueError(
            f"diagnose: {name} must return tokens (b, n, width), got {tuple(y.shape)} for x of "
            f"shape {tuple(x.shape)}. Say how to call it: call=lambda module, x: module(x)[0]."
        )
    names = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads")
    values = [getattr(trial.patient.original, name, None) for name in names]
    stated = next((v for v in values if type(v) is int), trial.h)
    if stated != trial.h and trial.e % trial.h:
        raise ValueError(
            f"diagnose: num_heads must divide the width of a token, got num_heads={trial.h} and "
            f"embed_dim={trial.e}. The module has {stated}: pass num_heads={stated}."
        )


def _read_twice(trial: Trial) -> tuple[Program, Judgement]:
    """Return the program and its judgement, the same for calls of two sizes; or raise Lost."""
    first = read_once(trial, 0)
    if trial.mask is not None or trial.shape(1) == trial.shape(0) or not trial.takes(1):
        return first
    second = read_once(trial, 1)
    if (first[1].ids, first[1].variants) != (second[1].ids, second[1].variants):
        raise Lost("two sizes give different programs")
    return first


def read_once(trial: Trial, number: int) -> tuple[Program, Judgement]:
    """Read, judge and prove the program of call number 0 or 1; or raise Lost."""
    masked = trial.mask is not None
    run = trial.record(number, masked)
    b, n, j = trial.shape(number)
    if run is None or run.y.ndim != 3 or run.y.shape[0] != b:
        raise Lost("a run that is too long, or not one row for each token")
    module, options = trial.patient.module, trial.options
    matrices = not trial.patient.is_module or any(w.ndim > 1 for w in module.parameters())
    sizes = (b, trial.h, n, j)
    p = Program(trial.h, trial.e, trial.e // trial.h, sizes, causal=options.causal)
    p.asked = {**options.more, "crossed": trial.crossed, "matrices": matrices}
    p.meant = trial.meanings() if masked else ()
    read_program(run, p)
    p.turn = read_turn(run, p)
    complete(trial, run, p)
    judged = judge(p)
    judged.difference = prove(run, p, judged, trial.patient.tolerance)
    return p, judged


def _reported(trial: Trial, p: Program, judged: Judgement, extra: list[str]) -> Report:
    """Return the report on a module whose program was read."""
    patient, x, context = trial.patient, trial.tokens(), trial.context()

    def run() -> Tensor:
        y = trial.run(x, context)
        return y if trial.mask is None else torch.stack([y, trial.run(x, context, masked=True)])

    chosen = {id: _flag(trial, id) for id in judged.ids if id in CHOSEN}
    said = [(id, f"right where {flag} is meant") for id, flag in chosen.items() if flag]
    ids = {id for id in judged.ids if not chosen.get(id)} | set(extra)
    details = list(judged.details)
    if patient.is_module:
        more, words = dropout_findings(patient, run)
        plain = plain_findings(patient, run)
        ids |= {*more, *(id for id, _ in plain)}
        details += [words, *(detail for _, detail in plain)]
    held = patient.original.parameters() if isinstance(patient.original, nn.Module) else ()
    half = any(t.dtype == torch.float16 for t in held)
    if not ids and half and any(-torch.inf < value < LOWEST for value, _ in p.fills):
        ids.add("mask-fp16")
    if not ids and p.empty_rows_differ:
        ids.add("mask-row-empty")
    if p.out == "none" and trial.h > 1 and not ids & {"out-missing", "out-unused"}:
        said += [("out-missing", OUTSIDE)] * (trial.options.more.get("out_proj") is None)
    explanations: tuple[Explanation, ...] = ()
    if ids:
        bugs = [BUGS[id] for id in sorted(ids, key=list(BUGS).index)]
        found = explain(bugs, judged.difference, "; ".join(filter(None, dict.fromkeys(details))))
        blocks = trial.options.true_means == "block"
        fix = found.fix.replace(BUGS["mask-inverted"].fix, BLOCKED) if blocks else found.fix
        explanations = (replace(found, fix=fix),)
    report = Report(
        patient.name,
        not ids,
        explanations,
        checked=checked(trial, p),
        untried=untried(trial, p),
        remarks=tuple(explain([BUGS[id]], detail=words) for id, words in (*judged.remarks, *said)),
        variants=tuple(VARIANTS[name] for name in dict.fromkeys(judged.variants)),
        program=tuple(p.table()),
        tolerance=patient.tolerance,
    )
    own_call = trial.options.call is not None and not report.healthy
    if not patient.is_module or hasattr(patient.original, "examined") or own_call:
        return report
    inputs = [x] if context is None else [x, context]
    return learned(report, patient, lambda: trial.run(*inputs), inputs)


def _flag(trial: Trial, id: str) -> str:
    """Return a flag of the module that turns a bug off when it is changed, "" for none."""
    parts = list(trial.patient.module.named_modules()) if trial.patient.is_module else []
    for path, part in parts:
        flags = [n for n, v in vars(part).items() if type(v) is bool and n != "training"]
        for name in flags[:MOST_FLAGS]:
            value = vars(part)[name]
            vars(part)[name] = not value
            trial.forget()
            try:
                found = read_once(trial, 0)[1].ids
            except (Lost, CallFailed):
                found = (id,)
            finally:
                vars(part)[name] = value
                trial.forget()
            if id not in found:
                return f"{path}.{name} = {value}".lstrip(".")
    return ""


def checked(trial: Trial, p: Program) -> tuple[str, ...]:
    """Return what was compared, in words."""
    h, patient = trial.h, trial.patient
    parts = getattr(patient.original, "examined", EVERYTHING)
    words = [parts, f"{h} head{'s' * (h > 1)} of {trial.e} wide tokens"]
    words += [f"keys and values of a context {trial.c} wide"] * trial.crossed
    how = "every token attends to all tokens" + " of the context" * trial.crossed
    if trial.mask is not None:
        how = "with the mask"
    elif p.allow is not None:
        causal = trial.options.causal or p.allows(p.past)
        how = "causal" if causal else "with the module's own mask"
    elif patient.way.blank is None and any("mask" in name for name in patient.untried()):
        how = "without a mask"
    words += [how, *patient.way.words]
    words += ["no output layer, as one head needs none"] * (p.out == "none" and h == 1)
    words += ["in single precision"] * (patient.dtype == torch.float32)
    return ("; ".join(words),)


def untried(trial: Trial, p: Program | None = None) -> tuple[str, ...]:
    """Return what was not tried, in words."""
    mask, way = trial.mask, trial.patient.way
    open_mask = p is not None and mask is not None and p.allow is None and bool(mask.bool().all())
    one_size = trial.options.size is None and mask is None and not trial.takes(1)
    words = {
        "a mask that blocks something: mask=... tries one": mask is None and way.blank is not None,
        "a mask that blocks something: the given one blocks nothing": open_mask,
        "a different number of tokens, which it does not take": one_size,
        "a context of a different length, which it does not take": trial.same_length,
    }
    return (*trial.patient.untried(), *(text for text, holds in words.items() if holds))


def unexplained(trial: Trial, run: Run | None, what: str = "every known mistake") -> Report:
    """Return the report on a module that no known mistake explains."""
    try:
        fails = tuple(failing(trial, run))
    except CallFailed:
        fails = ()
    what += " with the mask" if trial.mask is not None else ""
    return Report(trial.patient.name, False, failing=fails, checked=(what,), untried=untried(trial))
