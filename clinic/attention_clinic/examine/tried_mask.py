"""Masks that nobody handed over: what is right without one is tried with some.

Whom a mask blocks changes nothing for others. The form of mask for which that holds is the one that
a module takes, and no more is asked. Where none is, the module is examined with those that it
takes, and believed to be sick by what they show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.engine.modes import Scores
from attention_clinic.engine.openings import Opening, openings
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report
from attention_clinic.examine.idle_mask import tried_by_itself
from attention_clinic.examine.subject import Subject

MEANT = (True, 1.0, False)  # what a mask may be filled with: of each, one form is examined
ADDED = 1e-6  # of 1, which a mask of ones adds to the scores
PLAIN = re.compile(  # what hides keys: no decay, no heads, no edges of a graph
    r"((allow(ed)?|att|attn|attention|causal|self|slf|cross|pad|padding|padded|valid|non|key|k|kv|x"
    r"|src|source|tgt|trg|target|input|enc|encoder|dec|decoder|mem|memory|context|ctx|text|seq"
    r"|sequence|token)_?)*masks?"
)
SHOWN = {  # what no mask of a form that was not meant would show
    *("mask-tiny", "mask-weak", "mask-multiply", "mask-after-softmax", "mask-query-axis"),
    "mask-other-sample",
}


@dataclass(frozen=True)
class _Form:
    """One form of mask, and the mask.

    Args:
        opening: the form.
        blocked: (b, j), the keys that it blocks for all who ask.
        mask: as the module gets it.
    """

    opening: Opening
    blocked: Tensor
    mask: Tensor


def with_tried_mask(
    subject: Subject, report: Report, examined: Callable[[Subject], Report]
) -> Report:
    """Return a report on what masks show of a right module that was handed none.

    Args:
        subject: the module.
        report: on it.
        examined: examines a module.
    """
    name = tried_by_itself(subject) if report.healthy and subject.windows is None else None
    if (
        name is None
        or not PLAIN.fullmatch(name.lower())
        or subject.n < 2
        or subject.options.size is not None
    ):
        return report
    given = set(subject.patient.given)
    try:
        wrong = list(_wrong(subject))
    finally:
        subject.patient.given = given  # what these calls tried is no examination of a mask
    found: list[Report] = []
    for value in MEANT:
        alike = (one for one in wrong if repr(one.opening.value) == repr(value))
        form = next(alike, None)
        if form is None:
            continue
        means = "block" if form.opening.value is False else "attend"
        options = replace(subject.options, mask=form.mask, true_means=means)
        other = Subject(subject.original, options)
        other.patient.sides = subject.patient.sides
        try:
            other.find_width(subject.e, lambda *_: False)
            again = examined(other)
        except ValueError:
            continue
        if again.healthy:
            return report
        if again.explanations and all(set(one.ids) <= SHOWN for one in again.explanations):
            shape = ", ".join(form.opening.shape.split())
            words = f"handed a mask ({shape}) as {name}, in which {form.opening.means}"
            found.append(replace(again, checked=(*again.checked, words)))
    return min(found, key=lambda one: len(one.ids), default=report)


def _wrong(subject: Subject) -> Iterator[_Form]:
    """Yield the forms of mask that change something, and let who is blocked be heard by others.

    There is none where another form does what it should. Where that is only one that is added, it
    may be made of another one in the wrong way: one of ones and zeros shows it.
    """
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    open_run, wrong = subject.open_run(x), []
    for form in _forms(subject):
        try:
            y = subject.run(x, form.mask)
        except Exception:
            continue
        if y.shape != open_run.shape or not bool(y.isfinite().any()) or same(y, open_run):
            continue
        if _is_deaf(subject, x, y, form):
            if not form.opening.is_added:
                return
            wrong = [one for one in wrong if _does_more(subject, x, one)]
            break
        wrong.append(form)
    yield from wrong


def _forms(subject: Subject) -> Iterator[_Form]:
    b, j = subject.b, subject.j if subject.crossed else subject.n
    x = subject.patient.tokens(b, subject.n, subject.e)
    for opening in sorted(openings(), key=lambda one: one.value is not True):
        samples = b if "b" in opening.shape.split() else 1
        blocked = torch.zeros(samples, j, dtype=torch.bool)
        for number in range(samples):
            blocked[number, 1 + number % (j - 1)] = True
        yield _Form(opening, blocked, opening.hiding(blocked, x))


def _is_deaf(subject: Subject, x: Tensor, y: Tensor, form: _Form) -> bool:
    """Say whether other tokens in the blocked places change nothing for all others."""
    blocked = form.blocked.expand(subject.b, -1)
    context = subject.context_of(0)
    asked = x if context is None else context
    moved = torch.where(blocked[..., None], asked.flip(2) - 1.0, asked)
    with subject.repaired():
        given = (moved, form.mask, None) if context is None else (x, form.mask, moved)
        again = subject.patient.run(*given)
    kept = ~blocked if context is None else torch.ones(y.shape[:2], dtype=torch.bool)
    whole = y.shape[:2] == kept.shape and bool(y[kept].isfinite().all())
    return whole and same(y[kept], again[kept])


def _does_more(subject: Subject, x: Tensor, form: _Form) -> bool:
    """Say whether a mask of ones and zeros does more than add them to the scores."""
    if isinstance(form.opening.value, bool):
        return False
    heard = []
    for mask in (None, form.mask):
        with Scores() as scores:
            subject.open_run(x) if mask is None else subject.run(x, mask)
        heard.append(scores.heard)
    pairs = zip(*heard, strict=False)
    changes = [(new - old).double() for old, new in pairs if old.shape == new.shape]
    return any(abs(float(t.max() - t.min()) - 1.0) > ADDED for t in changes)
