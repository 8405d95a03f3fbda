"""What a patient is, and the list that the other files add to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attention_clinic import Report, diagnose

SIZES = ((24, 4), (15, 3), (30, 10), (7, 1))  # (e, h): odd widths, n < h, one head
SEVERAL = SIZES[:3]  # with more than one head
OPTIONS = ("sizes", "variants", "remark", "mask", "causal", "context", "cache", "size", "out_proj")
BLIND_WITH_ONE_HEAD = {
    *("scale-embed", "merge-no-transpose", "split-no-transpose", "head-shared-projection"),
    *("merge-batch-head", "softmax-joint", "out-missing", "softmax-heads"),
}


@dataclass(frozen=True)
class Entry:
    """One patient.

    Args:
        name: of the implementation.
        ids: what must be found, () for a healthy one.
        examine: (seed, e, h) -> report.
        sizes: the (e, h) that it can be built with.
        remark: True when the ids must be a remark, and the patient is healthy.
        variants: what a healthy report must name, in any order; None for anything.
    """

    name: str
    ids: tuple[str, ...]
    examine: Callable[[int, int, int], Report]
    sizes: tuple[tuple[int, int], ...] = SIZES
    remark: bool = False
    variants: tuple[str, ...] | None = ()

    def judge(self, report: Report, h: int) -> str | None:
        """Return what is wrong with a report, None when it is correct."""
        expected = self.ids
        if h == 1:  # what one head cannot get wrong
            expected = tuple(id for id in expected if id not in BLIND_WITH_ONE_HEAD)
        if self.remark:
            found = [remark.ids for remark in report.remarks]
            good = report.healthy and found == [expected] * bool(expected)
            return None if good else f"healthy with a remark {expected}, but called {report!r}"
        if not expected:
            named = sorted(variant.id for variant in report.variants)
            free = self.variants is None
            good = report.healthy and (free or named == sorted(self.variants))
            return None if good else f"healthy {self.variants}, but called {report!r}"
        if report.healthy:
            return f"{' + '.join(expected)}, but called healthy"
        named = [sorted(explanation.ids) for explanation in report.explanations]
        good = named == [sorted(expected)]
        return None if good else f"{' + '.join(expected)}, but called {named or 'unexplained'}"


CASES: list[Entry] = []


def attention(
    *ids: str,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    remark: bool = False,
    variants: tuple[str, ...] = (),
    **options: Any,
) -> Callable[[Any], Any]:
    """Add a class of attention, built with (e, h), to the patients.

    Args:
        ids, sizes, remark, variants: as in `Entry`.
        options: of `diagnose`; `mask` may be a function of the seed.
    """

    def enter(make: Any) -> Any:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            mask = options.get("mask")
            given = {**options, "mask": mask(seed) if callable(mask) else mask}
            return diagnose(make(e, h), h, **given)

        CASES.append(Entry(make.__name__, ids, examine, sizes, remark, variants))
        return make

    return enter


def derived(base: type, **members: Any) -> type:
    """Return a class with some of its members replaced."""
    name = f"{base.__name__}With{''.join(member.strip('_').title() for member in members)}"
    return type(name, (base,), members)


def changed(base: type, *ids: str, **given: Any) -> None:
    """Add a class with some of its members replaced to the patients.

    Args:
        base: the class.
        ids: what must be found.
        given: options of `attention`, and new methods and attributes.
    """
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    attention(*ids, **options)(derived(base, **given))
