"""Keys and values that have other heads than is said: shared in name only, or otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from attention_clinic.engine.heads import said_shared
from attention_clinic.engine.report import Report
from attention_clinic.examine.account import account_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.written import runs

SHARED = {"grouped-queries", "multi-query"}


def unless_unshared(
    report: Report,
    module: nn.Module | Callable[..., Any],
    num_heads: int,
    told: int | None,
    counted: Callable[[], int | None] | None = None,
) -> Report:
    """Say of what looks right that it shares keys and values otherwise than is said.

    Args:
        report: on a module.
        module: an attention, or a block.
        num_heads: h.
        told: how many heads of keys and values there are to be; None asks the module.
        counted: counts those that have keys of their own, None where it cannot; by default all do
            where no variant says that they are shared.
    """
    said = told or said_shared(module)
    if not report.healthy or said is None or (told is None and said >= num_heads):
        return report
    shared = bool(SHARED & {variant.id for variant in report.variants})
    if num_heads % said or (shared and told is None):
        return report
    found = counted() if counted else None if shared else num_heads
    if found in (None, said):
        return report
    words = f"keys and values have as many heads as is said: {said} are said, {found} were found"
    return replace(report, healthy=False, failing=(words,))


def heads_of_keys(subject: Subject) -> int | None:
    """Return how many heads have keys of their own, None where a run does not show it."""
    try:
        run = runs(subject, subject.b, subject.n, subject.j)
        account = None if run is None else account_of(run, subject.h)
    except Exception:  # what cannot be written down shows nothing
        return None
    if account is None or len(account.k) != account.b * account.h:
        return None
    return len(run.values[account.k].flatten(1).unique(dim=0)) // account.b
