"""Compare verdicts with the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wild.cases import NONE, Case
from wild.trial import Verdict

RIGHT, PART, OPEN, REFUSED = "right", "in part", "unexplained", "refused"
WRONG, FALSE, BROKEN = "wrong name", "false healthy", "not built"
OUTCOMES = (RIGHT, PART, OPEN, REFUSED, WRONG, FALSE)


@dataclass(frozen=True)
class Result:
    """A case, its verdict, and what that verdict is worth."""

    case: Case
    verdict: Verdict
    outcome: str


def outcome(case: Case, verdict: Verdict) -> str:
    """Return what a verdict is worth.

    A wrong name is a bug or a variant that is not there; false healthy is a bug or a variant that
    is passed over in silence. Both are lies; unexplained and refused are none.

    Args:
        case: holds the truth.
        verdict: holds what was said.
    """
    if verdict.state != "answered":
        return BROKEN if verdict.state == "broken" else REFUSED
    bugs = set(case.ids) if case.truth == "bug" else set()
    variants = set(case.ids if case.truth == "variant" else case.variants) - {NONE}
    others = [set(one) for one in case.also] if case.truth == "variant" else []
    if set(verdict.variants) in others:
        variants = set(verdict.variants)
    sets = [bugs, *(set(one) for one in case.also)] if case.truth == "bug" else [set()]
    said = [set(one) for one in verdict.ids]
    if said and not any(one <= true for one in said for true in sets):
        return WRONG
    if set(verdict.variants) - variants:
        return WRONG
    if case.truth == "bug":
        if verdict.healthy:
            return PART if bugs & set(verdict.remarks) else FALSE
        return RIGHT if any(one in sets for one in said) else PART if said else OPEN
    if not verdict.healthy:
        return WRONG if said else OPEN
    if case.truth == "healthy" or set(verdict.variants) in (set(case.ids), *others):
        return RIGHT
    return PART if verdict.variants else FALSE


def claimed(verdict: Verdict) -> str:
    """Return the kind that a verdict claims: healthy, bug, variant; "" when it claims none."""
    if verdict.state != "answered":
        return ""
    if not verdict.healthy:
        return "bug" if verdict.ids else ""
    return "variant" if verdict.variants else "healthy"


@dataclass(frozen=True)
class Row:
    """How one kind fared.

    Args:
        kind: healthy, bug or variant: what the cases are.
        counts: how many had which outcome.
        claims: how many verdicts, on cases of any kind, claim this kind.
        true_claims: how many of those are right.
    """

    kind: str
    counts: dict[str, int]
    claims: int
    true_claims: int

    @property
    def cases(self) -> int:
        """How many cases of the kind were examined."""
        return sum(self.counts.values())


def rows(results: Iterable[Result]) -> tuple[Row, ...]:
    """Return a row for each kind that has cases; what could not be built is left out.

    Args:
        results: of all cases.
    """
    built = [r for r in results if r.outcome != BROKEN]
    made = []
    for kind in ("healthy", "bug", "variant"):
        mine = [r for r in built if r.case.truth == kind]
        claims = [r for r in built if claimed(r.verdict) == kind]
        right = sum(r.outcome == RIGHT and r.case.truth == kind for r in claims)
        counts = {one: sum(r.outcome == one for r in mine) for one in OUTCOMES}
        made.append(Row(kind, counts, len(claims), right))
    return tuple(made)


def interval(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return between which rates the true one lies, with 95 % confidence (Wilson's interval).

    Args:
        right: how often it happened.
        of: in how many tries.
        z: how many standard deviations; 1.96 for 95 %.

    Source: Wilson, 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if not of:
        return 0.0, 1.0
    rate, square = right / of, z * z / of
    middle = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / of + square / of / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of all values lies.

    Args:
        values: at least one.
        part: 0.5 for the median.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(part * len(ordered)) - 1)]
