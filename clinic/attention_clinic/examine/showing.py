"""Whether what was compared could have differed, and whether it holds for larger tokens, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import Report
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.matching import Match, Search
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.verdict import unexplained, unseen

LIKELIEST = 4  # readings of a right module that are asked whether anything shows
GROWN = 3.5  # times as large: scores grow by the square of it
LOOSE = 1000.0  # times the usual tolerance: what scores are rounded to grows with them
CUT = (
    f"larger scores are weighed as they are: with tokens {GROWN:g} times as large, as training may "
    "make them, they are cut or bent"
)

USUAL = "random tokens around 1, with which it is right"


def shown(subject: Subject, right: Sequence[tuple[Reader, Match]]) -> Report | None:
    """Return a report where a right module need not be right, or None.

    Args:
        subject: the module.
        right: what it is without a mistake; () where there is none.
    """
    right = right[:LIKELIEST]
    if not right:
        return None
    tried = Explaining(subject)
    if not any(tried.shows(*pair) for pair in right):
        return unseen(subject)
    if subject.options.cache is not None or any(_holds_larger(subject, *pair) for pair in right):
        return None
    report = unexplained(subject)
    return replace(report, failing=(CUT, *report.failing), checked=(USUAL,))


def _holds_larger(subject: Subject, reader: Reader, match: Match) -> bool:
    """Say whether a match gives what the module makes of larger tokens, too."""
    probe = subject.first
    x = probe.x * GROWN
    try:
        y = subject.inside(x)
    except Exception:  # it takes no such tokens
        return True
    if y.shape != probe.y.shape:
        return True
    context = x if probe.context is probe.x else probe.context
    grown = replace(probe, x=x, y=y, context=context, causal=match.causal)
    search = Search(
        reader,
        [match.reading],
        grown,
        match.shell,
        LOOSE * subject.patient.tolerance,
        looks=None,
        forms=match.forms(),
    )
    return any(True for _ in search.matches(len(match.path.ids)))
