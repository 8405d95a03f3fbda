"""Reports of the parts of a model, put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from attention_clinic.engine.model_report import Row
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report
from attention_clinic.engine.sites import Site


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


def is_open(report: Report) -> bool:
    """Say whether nothing explains an attention: it may hold anything."""
    return not report.healthy and not report.explanations


def tells(row: Row) -> bool:
    """Say whether something was compared in a row that is more than a table of positions."""
    return bool(row.report.explanations or (row.report.checked and row.kind != "positions"))


def lost_in(report: Report) -> bool:
    """Say whether a block lacks what its attention may hold as well: a norm, or the residual."""
    return not {"norm-missing", "residual-missing"}.isdisjoint(report.ids)


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


def alike(one: nn.Module, sites: list[Site], other: nn.Module, others: list[Site]) -> bool:
    """Say whether two parts are of one kind and have parameters of the same names and sizes."""
    heads = [site.num_heads for site in sites] == [site.num_heads for site in others]
    shapes = [[(n, p.shape) for n, p in part.named_parameters()] for part in (one, other)]
    return heads and shapes[0] == shapes[1]


def grouped(
    found: Mapping[str, list[Site]],
    parts: Mapping[str, nn.Module],
    fingerprint: Callable[[str, list[Site]], Tensor | None],
) -> list[tuple[str, list[str], list[Site]]]:
    """Return parts of one kind together: the first, the paths of all, the attentions of the first.

    Args:
        found: paths with the attentions in each.
        parts: the model's.
        fingerprint: what a part gives with the random weights that all parts get.
    """
    groups: list[tuple[str, list[str], list[Site], Tensor | None]] = []
    for path, sites in found.items():
        print_ = fingerprint(path, sites)
        for first, places, others, other in groups:
            if alike(parts[first], others, parts[path], sites) and equal(print_, other):
                places.append(path)
                break
        else:
            groups.append((path, [path], sites, print_))
    return [(path, places, sites) for path, places, sites, _ in groups]


def without_heads(part: nn.Module) -> Report:
    """Return what is said of a part whose number of heads nobody says."""
    said = "its number of heads is known: say diagnose_model(model, num_heads=8)"
    return Report(type(part).__name__, False, failing=(said,))


def equal(first: Tensor | None, second: Tensor | None) -> bool:
    return first is not None and second is not None and same(first, second)


def said(report: Report) -> Report:
    """Return a report without what is said of arguments that the model itself fills."""
    kept = tuple(w for w in report.untried if "mask" in w or "comes from outside" in w)
    return replace(report, untried=kept)


def moved(level: str, path: str, other: str) -> str:
    """Return the path in another block of what stands in one block."""
    return f"{other}{level[len(path) :]}".lstrip(".")


def outer(place: str, first: str, level: str) -> str:
    """Return the path of a level around an attention, where that of another is known.

    Args:
        place: the path of the attention.
        first: that of the other one.
        level: what stands around the other one.
    """
    names = place.split(".")
    up = first.count(".") - level.count(".") if level else len(names)
    return ".".join(names[: len(names) - up])
