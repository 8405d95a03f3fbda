"""Keys and values that are said to be shared by several heads, and are not."""

from __future__ import annotations

from dataclasses import replace

from attention_clinic.engine.heads import said_shared
from attention_clinic.engine.report import Report
from attention_clinic.examine.account import account_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.written import runs

SHARED = {"grouped-queries", "multi-query"}


def unless_unshared(subject: Subject, report: Report) -> Report:
    """Say of what looks right that it shares no keys and values, where it is said to.

    Args:
        subject: the module.
        report: on it.
    """
    said = subject.options.num_kv_heads or said_shared(subject.original)
    if not report.healthy or said is None or subject.h <= said or subject.h % said:
        return report
    if SHARED & {variant.id for variant in report.variants}:
        return report
    found = _heads_of_keys(subject)
    if found in (None, said):
        return report
    words = (
        f"heads share keys and values: {said} heads of keys and values are said, and each of "
        f"{found} heads has its own"
    )
    return replace(report, healthy=False, failing=(words,))


def _heads_of_keys(subject: Subject) -> int | None:
    """Return how many heads have keys of their own, None where a run does not show it."""
    try:
        run = runs(subject, subject.b, subject.n, subject.j)
        account = None if run is None else account_of(run, subject.h)
    except Exception:  # what cannot be written down shows nothing
        return None
    if account is None or len(account.k) != account.b * account.h:
        return None
    return len(run.values[account.k].flatten(1).unique(dim=0)) // account.b
