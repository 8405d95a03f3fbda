"""Reports of the parts of a model, put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import Tensor

from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report


def first_of(
    tool: Callable[[tuple[int, int] | None], Report], sizes: Iterable[tuple[int, int] | None]
) -> Report | None:
    """Return what is found with the first size that a part takes, None where it takes none."""
    for size in sizes:
        try:
            return tool(size)
        except Exception:  # a stand-in may raise anything in a call that it was not made for
            continue
    return None


def has_shell(report: Report) -> bool:
    """Say whether an attention holds a norm or a residual of its own."""
    return any(re.search(r"LayerNorm|residual", words) for words in report.checked)


def merged(block: Report, attentions: list[Report]) -> Report:
    """Return the report of a block with what was found in its attentions, all of them right."""
    variants = [v for report in (*attentions, block) for v in report.variants]
    checked = [words for report in (block, *attentions) for words in report.checked]
    untried = [words for report in attentions for words in report.untried]
    return replace(
        block,
        variants=tuple(dict.fromkeys(variants)),
        checked=tuple(dict.fromkeys(checked)),
        untried=tuple(dict.fromkeys(untried)),
    )


def equal(first: Tensor | None, second: Tensor | None) -> bool:
    return first is not None and second is not None and same(first, second)


def said(report: Report) -> Report:
    """Return a report without what is said of arguments that the model itself fills."""
    kept = tuple(w for w in report.untried if "mask" in w or "comes from outside" in w)
    return replace(report, untried=kept)
