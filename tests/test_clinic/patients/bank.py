"""The bank of the clinic: what a patient is, and the list that every file beside adds to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from attention_clinic import (
    Report,
    diagnose,
)

SIZES = ((24, 4), (64, 8), (15, 3), (30, 10), (7, 1))  # (e, h): odd widths, n < h, one head
BLIND_WITH_ONE_HEAD = {
    "scale-embed", "merge-no-transpose", "split-no-transpose", "head-shared-projection",
    "merge-batch-head", "softmax-joint", "out-missing", "softmax-heads", "heads-not-joined",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One patient.

    Args:
        name: of the implementation.
        ids: what must be found, () for a healthy one.
        examine: (seed, e, h) -> report.
        also: further ids that give the same output and may stand beside it.
        sizes: the (e, h) that it can be built with.
        remark: True when the ids must stand in a remark, and the patient is healthy.
    """

    name: str
    ids: tuple[str, ...]
    examine: Callable[[int, int, int], Report]
    also: tuple[tuple[str, ...], ...] = ()
    sizes: tuple[tuple[int, int], ...] = field(default=SIZES)
    remark: bool = False

    def judge(self, report: Report, h: int) -> str | None:
        """Return what is wrong with a report, None when it is right."""
        expected = self.ids
        if h == 1:  # what one head cannot get wrong
            expected = tuple(id for id in expected if id not in BLIND_WITH_ONE_HEAD)
        if self.remark:
            said = [remark.ids for remark in report.remarks]
            good = report.healthy and said == [expected] * bool(expected)
            return None if good else f"healthy with a remark {expected}, but called {report!r}"
        if not expected:
            return None if report.healthy else f"healthy, but called {report.ids or 'unexplained'}"
        if report.healthy:
            return f"{' + '.join(expected)}, but called healthy"
        found = [explanation.ids for explanation in report.explanations]
        if sorted(expected) not in [sorted(ids) for ids in found]:
            return f"{' + '.join(expected)}, but called {found or 'unexplained'}"
        allowed = [sorted(ids) for ids in (expected, *self.also)]
        wrong = [ids for ids in found if sorted(ids) not in allowed]
        return f"{' + '.join(expected)}, but also called {wrong}" if wrong else None


CASES: list[Entry] = []


def attention(
    *ids: str,
    also: tuple[tuple[str, ...], ...] = (),
    sizes: tuple = SIZES,
    remark: bool = False,
    **options,
) -> Callable:
    """Enter a class of attention, built with (e, h), among the patients."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            given = {
                key: v(seed) if callable(v) and key != "call" else v for key, v in options.items()
            }
            return diagnose(make(e, h), h, **given)

        CASES.append(Entry(make.__name__, ids, examine, also, sizes, remark))
        return make

    return enter
