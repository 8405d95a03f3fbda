"""Examine an attention that runs: read its program, judge it, and check how it behaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attention_clinic.attention.positions import read_turn
from attention_clinic.attention.program import Lost, Program
from attention_clinic.attention.reading import read_program, weighted_products
from attention_clinic.attention.rules import Finding, Judgement, complete, judge, prove
from attention_clinic.behaviour.gradients import learned
from attention_clinic.behaviour.unused import created_in_forward, dropout_findings, plain_findings
from attention_clinic.capture.module import CallFailed, same
from attention_clinic.capture.run import Run
from attention_clinic.capture.trial import HEAD_NAMES, Trial
from attention_clinic.catalogue import BUGS, VARIANTS
from attention_clinic.report import Explanation, Report, explain

EVERYTHING = "projections, split, scale, softmax, weighted sum, join"
OUTSIDE = (
    "right where that layer is outside this module (out_proj=False says so), wrong where there is "
    "none (out_proj=True)"
)


def examined(trial: Trial) -> Report:
    """Return the report on a module, for one way to call it."""
    x, context = trial.tokens(), trial.context()

    def run() -> Tensor:
        return trial.run(x, context)

    found = builds_layers(trial, run)
    if found is not None:
        return found
    y = run()
    _check_shape(trial, x, y)
    trial.meanings()  # refuses a mask of a wrong shape
    extra: list[Finding] = []
    try:
        extra += active_dropout(trial, run)
        judged = read_twice(trial, read_once, trial.mask is not None)
    except Lost as lost:
        recorded = trial.record(0)
        if recorded is not None and _unused(recorded):
            return _simple(trial, "attention-unused", "", "one recorded run")
        return unexplained(trial, recorded, f"not understood: {lost}", extra)
    return _reported(trial, judged, extra)


def builds_layers(trial: Trial, run: Callable[[], Tensor]) -> Report | None:
    """Return the report on a module that builds layers in forward; None for others."""
    layers = created_in_forward(run)
    detail = f"forward builds {' and '.join(dict.fromkeys(layers))}"
    return _simple(trial, "layers-in-forward", detail, "two calls") if layers else None


def active_dropout(trial: Trial, run: Callable[[], Tensor]) -> list[Finding]:
    """Return the bug of a dropout that is active in eval mode, which is then switched off."""
    if same(run(), run()):
        return []
    trial.patient.resting = True
    if not same(run(), run()):
        trial.patient.resting = False
        raise Lost("two calls differ")
    return [("dropout-eval", "")]


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
    values = [getattr(trial.patient.original, name, None) for name in HEAD_NAMES]
    stated = next((v for v in values if type(v) is int), trial.h)
    if stated != trial.h and trial.e % trial.h:
        raise ValueError(
            f"diagnose: num_heads must divide the embedding dimension, got num_heads={trial.h} "
            f"and embed_dim={trial.e}. The module has {stated}: pass num_heads={stated}."
        )


def read_twice(trial: Trial, read: Callable[[Trial, int], Judgement], masked: bool) -> Judgement:
    """Return the verdict of a reader, the same for calls of two sizes; or raise Lost."""
    first = read(trial, 0)
    if not masked and trial.shape(1) != trial.shape(0) and trial.takes(1):
        second = read(trial, 1)
        if (set(first.ids), first.variants) != (set(second.ids), second.variants):
            raise Lost("two sizes give different programs")
    return first


def read_once(trial: Trial, number: int) -> Judgement:
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
    return proved(trial, run, p, run)


def proved(trial: Trial, run: Run, p: Program, whole: Run) -> Judgement:
    """Fill a program from a run, which may be part of a whole one; judge and prove it."""
    read_program(run, p)
    p.turn = read_turn(run, p)
    complete(trial, run, p, whole)
    judged = judge(p)
    judged.difference = prove(run, p, judged, trial.patient.tolerance)
    return judged


def _reported(trial: Trial, judged: Judgement, extra: list[Finding]) -> Report:
    """Return the report on a module whose program was read."""
    p, patient, x, context = judged.program, trial.patient, trial.tokens(), trial.context()

    def run() -> Tensor:
        y = trial.run(x, context)
        return y if trial.mask is None else torch.stack([y, trial.run(x, context, masked=True)])

    judged.found += [*extra, *behaving(trial, run)]
    if not judged.found and p.empty_rows_differ:
        judged.found.append(("mask-row-empty", ""))
    missing = p.out == "none" and trial.h > 1 and not {"out-missing", "out-unused"} & {*judged.ids}
    if missing and trial.options.more.get("out_proj") is None:
        judged.remarks.append(("out-missing", OUTSIDE))
    words, table = checked(trial, p), tuple(p.table())
    report = written(trial, judged, checked=words, untried=untried(trial), program=table)
    own_call = trial.options.call is not None and not report.healthy
    if hasattr(patient.original, "examined") or own_call:
        return report
    inputs = [x] if context is None else [x, context]
    return learned(report, patient, lambda: trial.run(*inputs), inputs)


def behaving(trial: Trial, run: Callable[[], Tensor]) -> list[Finding]:
    """Return the bugs that training, unused parts and plain tensors show."""
    if not trial.patient.is_module:
        return []
    return [*dropout_findings(trial.patient, run), *plain_findings(trial.patient, run)]


def written(trial: Trial, judged: Judgement, **more: Any) -> Report:
    """Return a report of bugs, remarks and variants; `more` are its further fields."""
    explanations: tuple[Explanation, ...] = ()
    if judged.found:
        bugs = [BUGS[id] for id in sorted(judged.ids, key=list(BUGS).index)]
        detail = "; ".join(dict.fromkeys(words for _, words in judged.found if words))
        explanations = (explain(bugs, judged.difference, detail),)
    return Report(
        trial.patient.name,
        not explanations,
        explanations,
        remarks=tuple(explain([BUGS[id]], detail=words) for id, words in judged.remarks),
        variants=tuple(VARIANTS[name] for name in dict.fromkeys(judged.variants)),
        tolerance=trial.patient.tolerance,
        **more,
    )


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


def untried(trial: Trial) -> tuple[str, ...]:
    """Return what was not tried, in words."""
    mask, way = trial.mask, trial.patient.way
    one_size = trial.options.size is None and mask is None and not trial.takes(1)
    words = {
        "a mask that blocks something: mask=... tries one": mask is None and way.blank is not None,
        "a different number of tokens, which it does not take": one_size,
        "a context of a different length, which it does not take": trial.same_length,
    }
    return (*trial.patient.untried(), *(text for text, holds in words.items() if holds))


def unexplained(trial: Trial, run: Run | None, why: str, extra: list[Finding]) -> Report:
    """Return the report on a module that no known mistake explains, perhaps with one that shows."""
    try:
        fails = tuple(failing(trial, run))
    except CallFailed:
        fails = ()
    what = "every known mistake" + " with the mask" * (trial.mask is not None)
    bugs = [BUGS[id] for id, _ in extra]
    return Report(
        trial.patient.name,
        False,
        (explain(bugs, detail="nothing else is judged"),) if bugs else (),
        failing=(*fails, why),
        checked=(what,),
        untried=untried(trial),
    )


def failing(trial: Trial, run: Run | None) -> Iterator[str]:
    """Yield the properties that do not hold, in words."""
    x, context = trial.tokens(seed=7), trial.context()
    y = trial.run(x, context)
    if not y.isfinite().all():
        many = "nothing but" if not y.isfinite().any() else "some"
        yield f"the output holds numbers: it has {many} {'NaN' if y.isnan().any() else 'infinity'}"
        return
    if not torch.allclose(trial.run(x, context), y, rtol=1e-6, atol=1e-9):
        yield "two calls in eval mode give the same output"
        return
    limit = 1e3 * trial.patient.tolerance * (1 + y.abs().max().item())

    def moves(other: Tensor) -> Tensor:
        made = trial.run(other, context)
        return (made - y).abs() if made.shape == y.shape else torch.full_like(y, torch.inf)

    changed = x.clone()
    changed[0] = trial.tokens(seed=21)[0]
    if len(x) > 1 and moves(changed)[1:].max() > limit:
        yield "samples stay apart: changing one changes another"
    later = x.clone()
    later[:, -1] = trial.tokens(seed=22)[:, -1]
    future = y.shape[1] > 1 and bool(moves(later)[:, :-1].max() > limit)
    if future and trial.options.causal and context is None:
        yield "the past does not see the future: changing the last token changes earlier ones"
    elif future and trial.mask is None and context is None:
        order = torch.arange(x.shape[1]).roll(2)
        if (trial.run(x[:, order]) - y[:, order]).abs().max() > limit:
            yield "order does not matter: permuted tokens do not give permuted outputs"
    if run is not None and _rows_sum_to_one(run) is False:
        yield "rows sum to 1: tokens with equal values do not give equal outputs"


def _rows_sum_to_one(run: Run) -> bool | None:
    """Return whether equal values give equal sums, None where no weighted sum is found."""
    try:
        _, v, mixed = weighted_products(run)
    except Lost:
        return None
    flat = torch.arange(1.0, v.shape[-1] + 1, dtype=torch.float64)
    made = run.again([(v, flat.expand(v.shape))], mixed)
    return torch.allclose(made, flat.expand(made.shape), rtol=1e-6, atol=1e-9)
