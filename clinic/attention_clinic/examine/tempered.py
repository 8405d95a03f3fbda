"""Learned temperatures: parameters that multiply all scores, which are right at any value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.modes import moved
from attention_clinic.engine.report import Explanation, Report, explain
from attention_clinic.engine.weighing import HIDDEN, WholeScores
from attention_clinic.examine.leaves import looks_like_a_norm
from attention_clinic.examine.subject import Subject

SCALES = {"scale-other", "scale-missing", "scale-embed"}
FREE = (
    "right at any value, as it is learned; wrong where it is meant to begin at 1 / sqrt(head_dim)"
)
# how a parameter may be moved, times and plus, and what that may do to each score
WAYS = (((2.0, 0.0), (2.0, 0.5)), ((1.0, 1.0), (math.e, 1 / math.e)))


def without_temperatures(subject: Subject, report: Report) -> Report:
    """Return a report in which no learned temperature is a mistake: it is a remark.

    Args:
        subject: the module.
        report: on it.
    """
    said = {id for one in report.explanations for id in one.ids} & SCALES
    original = subject.original
    names = temperatures_of(subject, original) if said and isinstance(original, nn.Module) else []
    if not names:
        return report
    left: dict[tuple[str, ...], Explanation] = {}
    remarks: dict[tuple[str, ...], Explanation] = {}
    for one in report.explanations:
        ids, scales = (tuple(id for id in one.ids if (id in SCALES) is of) for of in (False, True))
        rest = explain([BUGS[id] for id in ids], one.difference) if ids else one
        left.setdefault(ids, replace(rest, detail=one.detail, evidence=one.evidence))
        if scales:
            words = "; ".join(filter(None, (one.detail, f"{', '.join(names)}: {FREE}")))
            remarks.setdefault(scales, explain([BUGS[id] for id in scales], detail=words))
    found = () if () in left else tuple(left.values())
    return replace(
        report,
        healthy=not found,
        explanations=found,
        remarks=(*report.remarks, *list(remarks.values())[:1]),
    )


@torch.no_grad()
def temperatures_of(subject: Subject, original: nn.Module) -> list[str]:
    """Return the names of learned numbers, one or one for each head, that the scores follow."""
    module, groups = subject.patient.module, dict[str, list[str]]()
    for name, p in original.named_parameters():
        if p.requires_grad and p.numel() in (1, subject.h) and not _of_norm(module, name):
            groups.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    held = dict(module.named_parameters())
    names = []
    for group in groups.values():
        if _follow(lambda: subject.open_run(x), [held[name] for name in group if name in held]):
            names += group
    return names


def _of_norm(module: nn.Module, name: str) -> bool:
    path = name.rpartition(".")[0]
    return bool(path) and looks_like_a_norm(path, module.get_submodule(path))


def _follow(run: Callable[[], object], held: list[Tensor]) -> bool:
    """Say whether all scores, and nothing that makes values, are multiplied by some numbers."""
    before = _scores(run)
    for (times, plus), ratios in WAYS if held else ():
        with moved(held, times, plus):
            after = _scores(run)
        if [t.shape for t in before] != [t.shape for t in after] or not before:
            return False
        first, second = (torch.cat([t.flatten() for t in one]) for one in (before, after))
        shown = first.isfinite() & second.isfinite() & (first > HIDDEN) & (second > HIDDEN)
        shown &= first.abs() > 1e-6
        first, second = first[shown], second[shown]
        near = (bool(((second / first) / by - 1).abs().max() < 1e-6) for by in ratios)
        if len(first) and any(near):
            return True
    return False


def _scores(run: Callable[[], object]) -> list[Tensor]:
    with WholeScores() as scores:
        run()
    return [t.double() for t in scores.heard]
