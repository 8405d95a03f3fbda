"""What the bench prints: the table, and what an honest reader may conclude."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import fill

from wild.scoring import (
    BROKEN,
    FALSE,
    OUTCOMES,
    PART,
    RIGHT,
    WRONG,
    Result,
    interval,
    quantile,
    rows,
)

WIDTH = 84


def report(results: Sequence[Result], title: str) -> str:
    """Return the whole report on one share.

    Args:
        results: of all its cases.
        title: what stands above it.
    """
    parts = [_kinds(results, title), _bugs(results), _first_calls(results), _read(results)]
    return "\n\n".join(part for part in parts if part)


def _kinds(results: Sequence[Result], title: str) -> str:
    """Return the table by kind."""
    lines = [title, f"{'truth':9}{'cases':>6}" + "".join(f"{one:>14}" for one in OUTCOMES)]
    for row in rows(results):
        counts = "".join(f"{row.counts[one]:14}" for one in OUTCOMES)
        lines.append(f"{row.kind:9}{row.cases:6}{counts}")
    lines.append("")
    lines.append(f"{'said':9}{'precision':>24}{'recall':>24}")
    for row in rows(results):
        precision = _rate(row.true_claims, row.claims)
        lines.append(f"{row.kind:9}{precision:>24}{_rate(row.counts[RIGHT], row.cases):>24}")
    return "\n".join(lines)


def _rate(right: int, of: int) -> str:
    """Write a rate and between which bounds it lies."""
    low, high = interval(right, of)
    return f"{right} of {of} ({100 * low:.0f}-{100 * high:.0f} %)" if of else "-"


def _bugs(results: Sequence[Result]) -> str:
    """Return how often each bug was there and was named; then what went wrong, case by case."""
    there: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for result in results:
        if result.case.truth == "bug" and result.outcome != BROKEN:
            said = {one for ids in result.verdict.ids[:1] for one in ids}
            there.update(result.case.ids)
            named.update(i for i in result.case.ids if result.outcome == RIGHT or i in said)
    lines = [f"{'bug':28}{'cases':>6}{'named':>7}"] if there else []
    for bug, count in sorted(there.items(), key=lambda one: (-one[1], one[0])):
        lines.append(f"{bug:28}{count:6}{named[bug]:7}")
    misses = [r for r in results if r.outcome != RIGHT]
    lines += ["", "Not right:"] if misses else []
    for result in misses:
        verdict = result.verdict
        said = " or ".join(" + ".join(ids) for ids in verdict.ids[:2]) or ", ".join(
            verdict.variants
        )
        if not said and verdict.state != "answered":
            said = f"{verdict.state}: {' '.join(verdict.words.split())[:70]}"
        truth = " + ".join(result.case.ids) or result.case.truth
        lines.append(f"  {result.outcome:14}{result.case.id}: is {truth}, said {said or 'nothing'}")
    return "\n".join(lines)


def _first_calls(results: Sequence[Result]) -> str:
    """Return how many first calls were answered, and how long they took."""
    built = [r for r in results if r.outcome != BROKEN]
    helped = sum(r.verdict.helped or r.verdict.state == "refused" for r in built)
    seconds = [r.verdict.seconds for r in built if r.verdict.state == "answered"]
    lines = [f"More than the question was needed by {helped} of {len(built)}."]
    if seconds:
        times = ", ".join(
            f"{name} {quantile(seconds, part):.2f} s"
            for name, part in (("median", 0.5), ("99 %", 0.99), ("longest", 1.0))
        )
        lines.append(f"Processor time: {times}.")
    late = sum(r.verdict.state == "late" for r in built)
    lines += [f"{late} did not end in time, and count as refused."] if late else []
    broken = len(results) - len(built)
    lines += [f"{broken} could not be built here, and count nowhere."] if broken else []
    return "\n".join(lines)


def _read(results: Sequence[Result]) -> str:
    """Return what may be concluded, and what may not."""
    built = [r for r in results if r.outcome != BROKEN]
    if not built:
        return ""
    said = []
    for words, bad in (("a wrong name", WRONG), ("a false healthy", FALSE)):
        count = sum(r.outcome == bad for r in built)
        low, high = interval(count, len(built))
        said.append(
            f"{count} of {len(built)} verdicts were {words}: on modules like these, between "
            f"{100 * low:.1f} and {100 * high:.1f} % are (95 % confidence)."
        )
    half = sum(r.outcome == PART for r in built)
    if half:
        said.append(f"{half} say the truth and not the whole truth; they count as neither.")
    hunted = sum(r.case.found == "hunted" for r in built)
    said.append(
        f"{hunted} of {len(built)} modules were looked for because of their bug: how often bugs "
        "are here says nothing of how often they happen; the study counts the sample alone."
    )
    said.append(
        "The truth was read by people, before the tool saw the module; where they misread, the "
        f"bench is wrong, too ({sum(bool(r.case.corrected) for r in built)} truths were corrected "
        "afterwards, each with its reason). All modules are public Python for PyTorch, most of "
        "them written to learn; of closed code, of other frameworks and of kernels it says nothing."
    )
    return "\n".join(fill(one, WIDTH, subsequent_indent="  ") for one in said)
