"""The search that `diagnose` begins: with random weights, with a bias, with other heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.budget import Spent, beside
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.weights import kept_matrices
from attention_clinic.examine.adding import (
    find_bias,
    find_made,
    find_windows,
    leave_made,
    leave_windows,
)
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.followed import Followed, follow
from attention_clinic.examine.matching import Match
from attention_clinic.examine.shared_keys import heads_of_keys, unless_unshared
from attention_clinic.examine.subject import Subject, Unreadable
from attention_clinic.examine.unprojected import unprojected

OTHER_HEADS = 0.1  # of the steps of a search, for them
MOST_HEADS = 64  # that are tried when the number given explains nothing


def search(subject: Subject) -> list[tuple[Reader, Match]]:
    """Search, and once more with the module's own weights if it keeps copies of them."""
    most = subject.options.most
    unprojected(subject)
    if find_made(subject):
        found = Explaining(subject).explained(0)
        if not found and find_bias(subject):
            found = Explaining(subject).explained(0)
            subject.biased = bool(found)
        found = found or (Explaining(subject).explained(most, least=1) if most else [])
        if found:
            return found
        leave_made(subject)
    cut = find_windows(subject)
    found = Explaining(subject).explained(most if cut else 0)
    if cut and not found:
        leave_windows(subject)
        found = Explaining(subject).explained(most=0)
    if not found and find_bias(subject):
        found = Explaining(subject).explained(0)
        if not found and most:
            follow(subject, whole=False)
            found = Explaining(subject).explained(most, least=1)
        subject.biased = bool(found)
        subject.__dict__.pop("first", None)
        subject.__dict__.pop("second", None)
    followed = None if found or not most else follow(subject, whole=False)
    try:
        if not found and most:
            last = Explaining(subject, before_pairs=lambda: follow(subject, whole=True))
            found = last.explained(most, least=1)
    except (Spent, Unreadable):
        if followed is None:
            raise
    if not found and followed is not None:
        raise Followed(followed)
    if not found and most and subject.patient.is_module and keeps_copies(subject.patient.module):
        subject.start(own_weights=True)
        found = Explaining(subject).explained(min(most, 1))
        if not found:
            subject.start(own_weights=False)
    return found


def keeps_copies(module: nn.Module) -> bool:
    """Say whether a module holds matrices that are not parameters."""
    return any(
        isinstance(value, Tensor) and value.ndim > 1 and value.is_floating_point()
        for part in module.modules()
        for value in [*vars(part).values(), *part.buffers(recurse=False)]
    ) or any(True for part in module.modules() for _ in kept_matrices(part))


def with_other_heads(subject: Subject, report: Report) -> Report:
    """Say with which numbers of heads the module would be right."""
    with beside(OTHER_HEADS):
        fitting = fitting_heads(subject)
    if not fitting:
        return report
    if fitting == [1] and heads_weighed(subject) == [1]:
        found = explain([BUGS["heads-not-split"]], detail="it weighs by one head alone")
        found = replace(found, evidence="with num_heads=1 it is right")
        return replace(report, explanations=(found,), stopped=0)
    listed = " or ".join(map(str, fitting))
    said = f"num_heads is {subject.h}: with num_heads={listed} it is right"
    return replace(report, failing=(said, *report.failing))


def with_its_own_heads(
    subject: Subject, report: Report, again: Callable[[Subject], Report]
) -> Report:
    """Say of a sick module what it is with the number of heads that it says, or weighs by.

    What shares no keys and values, though it says so, is sick.

    Args:
        subject: the module.
        report: on it, with the number of heads that was asked for.
        again: examines it with another number.
    """
    h, shared = subject.h, subject.options.num_kv_heads
    count, free = partial(heads_of_keys, subject), shared is None
    report = unless_unshared(report, subject.original, h, shared, count)
    right = report.healthy or any(words.startswith("num_heads is") for words in report.failing)
    if right or not subject.options.most or not free:
        return report
    said = said_heads(subject.original)
    try:
        found = [said] if said else heads_weighed(subject)
    except (Spent, Unreadable, ValueError):
        return report
    if len(found) != 1 or found[0] == h or subject.e % found[0]:
        return report
    other = Subject(subject.original, replace(subject.options, num_heads=found[0]))
    with beside(OTHER_HEADS):
        try:
            other.find_width(subject.e, lambda *_: False)
            told = again(other)
        except (Spent, Unreadable, ValueError):
            return report
    fewer = told.ids and (not report.ids or len(told.ids) <= len(report.ids))
    if not told.healthy and not fewer:
        return report
    does = f"{'says' if said else 'weighs by'} {found[0]}{' heads' * (found[0] > 1)}"
    words = "right" if told.healthy else " + ".join(told.ids)
    words = f"num_heads is {h}, and it {does}: with num_heads={found[0]} it is {words}"
    return replace(report, failing=(words, *report.failing))


def fitting_heads(subject: Subject) -> list[int]:
    """Return the other numbers of heads with which a module would be right."""
    fitting: list[int] = []
    seen = heads_weighed(subject)
    for h in seen or range(1, min(subject.e, MOST_HEADS) + 1):
        kept = subject.options.num_kv_heads
        if h == subject.h or subject.e % h or (kept is not None and h % kept):
            continue
        other = Subject(subject.original, replace(subject.options, num_heads=h))
        try:
            other.find_width(subject.e, lambda *_: False)
            tried = Explaining(other)
            fitting += [h] * tried.is_right()
        except (Unreadable, ValueError):
            continue
        except Spent:
            break
    return fitting


def heads_weighed(subject: Subject) -> list[int]:
    """Return how many heads the scores have that a module weighs, [] where they do not say it."""
    weighed = Explaining(subject).weighed()
    if weighed is None or subject.windows is not None:
        return []
    b = len(subject.first.x)
    found = [shape[1] for shape in weighed.shapes if len(shape) == 4 and shape[0] == b]
    flat = [shape[0] for shape in weighed.shapes if len(shape) == 3]
    found += [rows // b for rows in flat if rows % b == 0 and rows > b]
    found += [flat.count(b)] * (b in flat)
    return list(dict.fromkeys(found)) if len(found) >= len(weighed.shapes) > 0 else []
