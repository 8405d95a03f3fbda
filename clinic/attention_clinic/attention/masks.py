"""Masks that the caller did not give, and two calls with a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.attention.examine import examined
from attention_clinic.attention.operands import read_operand
from attention_clinic.attention.positions import start_of
from attention_clinic.attention.program import Lost
from attention_clinic.capture.calling import BLANKS, mask_argument
from attention_clinic.capture.module import CallFailed, same
from attention_clinic.capture.run import capture
from attention_clinic.capture.trial import Options, Trial
from attention_clinic.catalogue import BUGS
from attention_clinic.report import Report, explain

# bugs that a mask of a form that the module does not take would not show
SHOWN = {
    *("mask-tiny", "mask-weak", "mask-multiply", "mask-after-softmax", "mask-query-axis"),
    *("mask-other-sample", "mask-added", "mask-positive"),
}
SIDES = {
    *("attn", "attention", "att", "src", "tgt", "trg", "padding", "pad", "key", "causal", "self"),
    *("slf", "memory", "enc", "encoder", "dec", "decoder", "cross", "input", "context", "source"),
    *("target", "look", "ahead", "lookahead", "token", "x"),
}
MOST = 2  # forms of each value that are examined


def with_masks(trial: Trial, report: Report) -> Report:
    """Return a report, or the one on what masks show of a module that is correct without one.

    A module takes the form of a mask with which it does what a mask must do.
    """
    name = mask_argument(trial.patient.module, trial.crossed) or ""
    given = any(one is not None for one in (trial.mask, trial.options.call, trial.options.size))
    *sides, last = name.lower().split("_")
    plain = last in ("mask", "masks") and set(sides) <= SIDES
    if not report.healthy or given or not plain or trial.n < 3:
        return report
    found: list[Report] = []
    for mask, means in _masks(trial):
        again = examined(_like(trial, replace(trial.options, mask=mask, true_means=means)))
        if again.healthy:
            return report
        if again.explanations and set(again.ids) <= SHOWN:
            found.append(again)
    if not found:
        return report
    best = min(found, key=lambda one: len(one.ids))
    return replace(best, checked=(*best.checked, f"with a mask as {name}"))


def _like(trial: Trial, options: Options) -> Trial:
    """Return a trial of the same sizes and way to call, with other options."""
    made = Trial(trial.patient.original, options)
    for name in ("b", "n", "e", "j", "c", "same_length"):
        setattr(made, name, getattr(trial, name))
    made.patient.way = replace(trial.patient.way, blank=None)
    made.patient.resting = trial.patient.resting
    made.patient.in_single(trial.patient.dtype == torch.float32)
    return made


def _masks(trial: Trial) -> Iterator[tuple[Tensor, str]]:
    """Yield masks that run and change something, with what their True means."""
    x, context, j = trial.tokens(), trial.context(), trial.j
    padding = torch.ones(trial.b, 1, 1, j, dtype=torch.bool)
    for sample in range(trial.b):
        padding[sample, ..., 1 + sample % (j - 1)] = False
    rows = torch.ones(1, 1, trial.n, j, dtype=torch.bool).tril(j - trial.n)
    open_run = trial.run(x, context)
    for value in (True, 1.0, False, 0.0):
        count = 0
        for blank in (one for one in BLANKS if repr(one.value) == repr(value)):
            mask = blank.hiding(padding if "b" in blank.shape else rows, x, j)
            if mask is None or count >= MOST:
                continue
            try:
                y = trial.patient.run(x, mask, context)
            except CallFailed:
                continue
            if y.shape == open_run.shape and bool(y.isfinite().any()) and not same(y, open_run):
                count += 1
                yield mask, "block" if value is False else "attend"


def with_cache(trial: Trial, report: Report) -> Report:
    """Return a report on a module, after two calls with a cache and one call without."""
    x, cut = trial.tokens(), (trial.n + 1) // 2

    def both(x: Tensor) -> Tensor:
        cache = trial.options.more["cache"]()
        first = trial.patient.run(x[:, :cut], cache=(cache, 0))
        return torch.cat([first, trial.patient.run(x[:, cut:], cache=(cache, cut))], dim=1)

    made = both(x)
    checked = (*report.checked, "in two calls, with a cache")
    if same(made, torch.cat([trial.run(x[:, :cut]), trial.run(x)[:, cut:]], dim=1)):
        return replace(report, checked=checked)
    report = replace(report, healthy=False, checked=checked, variants=())
    named = list(trial.patient.module.named_parameters()) if trial.patient.is_module else []
    run = capture(both, [x], [x.flip(0) + 1], named)
    for _, queries, _ in [] if run is None else run.products():
        try:
            side = read_operand(run, queries)
        except Lost:
            continue
        late = int(run.token[side.ids].min()) == cut
        if side.rotation is not None and late and start_of(run, side) == 0:
            return replace(report, explanations=(explain([BUGS["cache-position"]]),))
    return replace(report, failing=("two calls with a cache give what one call gives",))
