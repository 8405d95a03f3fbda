"""Learned temperatures: parameters that multiply all scores, which are right at any value."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.budget import Spent
from attention_clinic.engine.copies import origin_of
from attention_clinic.engine.modes import moved
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.weighing import HIDDEN, WholeScores
from attention_clinic.examine.learning import learned_with
from attention_clinic.examine.leaves import looks_like_a_norm
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.unlearned import without

SCALES = {"scale-other", "scale-missing", "scale-embed"}
FREE = (
    "right at any value, as it is learned; wrong where it is meant to begin at 1 / sqrt(head_dim)"
)
# how a parameter may be moved, times and plus, and what that may do to each score
WAYS = (((2.0, 0.0), (2.0, 0.5)), ((1.0, 1.0), (math.e, 1 / math.e)))
CLOSE = 1e-6  # the largest relative difference of two factors that are one


def without_temperatures(
    subject: Subject, report: Report, examine: Callable[[Subject], Report]
) -> Report:
    """Return a report in which no learned temperature is a mistake: it is a remark.

    What the copy holds in the place of a parameter says nothing of the module: where the scores
    follow one that was made random, the module's own numbers are examined.

    Args:
        subject: the module.
        report: on it.
        examine: what examines a module that runs.
    """
    original = subject.original
    said = {id for one in report.explanations for id in one.ids} & SCALES
    odd = not (report.healthy or report.explanations or report.stopped)
    if not (said or odd) or not isinstance(original, nn.Module) or subject.own_weights:
        return report
    names, free = _followed(subject, original, bool(said))
    drawn = [name for name in names if _is_drawn(subject, original, name)]
    unsaid = False  # whether the report speaks of a number that was drawn
    if drawn:
        own = _with_own(subject, original, drawn, examine)
        settled = own is not None and (own.healthy or bool(own.explanations))
        unsaid = bool(free and said and not settled)
        if own is not None and not unsaid and (said or settled):
            report = replace(own, checked=(*own.checked, f"{', '.join(drawn)} as it is"))
            report = _learned(subject, report) if report.healthy else report
    return _remarked(report, free, unsaid) if free else report


def _learned(subject: Subject, report: Report) -> Report:
    """Return a report that says whether the temperatures of a module learn, too."""
    found = learned_with(subject, report)
    remarks = tuple({remark.ids: remark for remark in found.remarks}.values())
    return replace(found, remarks=remarks, checked=tuple(dict.fromkeys(found.checked)))


def _remarked(report: Report, names: list[str], unsaid: bool) -> Report:
    """Return a report that makes a remark of a factor that is learned.

    Args:
        report: on a module.
        names: of the parameters.
        unsaid: whether the number that was found is none of the module's.
    """
    if not {id for one in report.explanations for id in one.ids} & SCALES:
        return report
    said = [
        replace(
            one, detail="; ".join(w for w in one.detail.split("; ") if not (unsaid and _counts(w)))
        )
        for one in report.explanations
    ]
    first = next(one for one in said if SCALES & set(one.ids))
    words = "; ".join(filter(None, (first.detail, f"{', '.join(names)}: {FREE}")))
    remark = explain([BUGS[id] for id in first.ids if id in SCALES], detail=words)
    found = without(said, SCALES)
    return replace(report, healthy=not found, explanations=found, remarks=(*report.remarks, remark))


def _counts(words: str) -> bool:
    return words.startswith("it multiplies by")


@torch.no_grad()
def _followed(subject: Subject, original: nn.Module, said: bool) -> tuple[list[str], list[str]]:
    """Return the names of parameters that the scores follow, and of those that are temperatures.

    Args:
        subject: the module.
        original: the module itself.
        said: whether a wrong factor was found: then single numbers are looked at, too, and one
            may do something else beside.
    """
    h, groups = subject.h, dict[str, list[str]]()
    sizes = {1, h} if said else {h, subject.e // h, subject.e}
    for name, p in original.named_parameters():
        if p.is_floating_point() and p.numel() in sizes and not _of_norm(original, name):
            groups.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    held = dict(subject.patient.module.named_parameters())
    names: list[str] = []
    free: list[str] = []
    for group in groups.values():
        numbers = [held[name] for name in group if name in held]
        if len(numbers) < len(group):
            continue
        alone = numbers[0].numel() == 1 or numbers[0].numel() != h
        kinds = len(group) if alone else h
        follow, tempered = _follow(lambda: subject.open_run(x), numbers, kinds)
        learns = all(origin_of(original.get_parameter(name)).requires_grad for name in group)
        names += group if tempered or (follow and said and numbers[0].numel() == 1) else []
        free += group if tempered and learns else []
    return names, free


def _of_norm(module: nn.Module, name: str) -> bool:
    path = name.rpartition(".")[0]
    return bool(path) and looks_like_a_norm(path, module.get_submodule(path))


def _is_drawn(subject: Subject, original: nn.Module, name: str) -> bool:
    """Say whether the copy holds other numbers than the module."""
    own = origin_of(original.get_parameter(name)).detach().cpu().double()
    held = subject.patient.module.get_parameter(name).detach().double()
    return not torch.equal(own, held)


def _with_own(
    subject: Subject,
    original: nn.Module,
    names: Sequence[str],
    examine: Callable[[Subject], Report],
) -> Report | None:
    """Examine a module once more, with its own numbers in some parameters; None if it fails."""
    try:
        module = copy.deepcopy(original)
    except Exception:  # some tensor has a history: `copied` lets go of it
        return None
    for name in names:
        path, _, last = name.rpartition(".")
        part, value = module.get_submodule(path), origin_of(original.get_parameter(name))
        delattr(part, last)
        part.register_buffer(last, value.detach().cpu().clone())  # which no copy draws
    other = Subject(module, subject.options)
    other.patient.sides = subject.patient.sides
    with suppress(ValueError, Spent):
        other.find_width(subject.e, lambda *_: False)
        return examine(other)
    return None


def _follow(run: Callable[[], Tensor], held: list[Tensor], kinds: int) -> tuple[bool, bool]:
    """Say whether scores follow some numbers, and whether these multiply them, and nothing else.

    Args:
        run: calls the module.
        held: the numbers, which are moved.
        kinds: how many factors there may be.
    """
    with Held() as before:
        first_made = run()
    follow = False
    for (times, plus), ratios in WAYS:
        with moved(held, times, plus), WholeScores() as scores:
            run()
        after = [t.double() for t in scores.heard]
        if [t.shape for t in before.heard] != [t.shape for t in after] or not after:
            return False, False
        first, second = (torch.cat([t.flatten() for t in one]) for one in (before.heard, after))
        shown = first.isfinite() & second.isfinite() & (first > HIDDEN) & (second > HIDDEN)
        shown &= first.abs() > CLOSE
        by = (second[shown] / first[shown]).sort().values
        if not len(by) or bool(((by - 1).abs() < CLOSE).all()):
            continue
        follow = True
        if any(bool(((by / ratio - 1).abs() < CLOSE).all()) for ratio in ratios):
            return True, True
        steps = by.diff() > CLOSE * by[1:].abs()
        if before.whole and int(steps.sum()) < kinds:
            with moved(held, times, plus), Held(before.made):
                made = run()
            return True, same(first_made, made)
    return follow, False


class Held(WholeScores):
    """Write down what softmaxes get and return, or let them return what they did before.

    Args:
        made: what they returned; None to listen.

    Attributes:
        whole: whether no fused kernel was called.
    """

    listens = False

    def __init__(self, made: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.again: Iterator[Tensor] | None = None if made is None else iter(made)
        self.made: list[Tensor] = []
        self.whole = True

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count = len(self.heard)
        result = super().called(func, args, kwargs)
        if len(self.heard) == count:
            return result
        self.heard[-1] = self.heard[-1].double()
        self.whole &= func is not torch.nn.functional.scaled_dot_product_attention
        self.made.append(result)
        return result if self.again is None else next(self.again)
