"""An attention without layers of its own, in the ways in which it may take its operands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attention_clinic.engine.budget import is_spent, reserved
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.operands import Operands, said_forms
from attention_clinic.engine.patient import copied
from attention_clinic.engine.replay import Replay
from attention_clinic.engine.report import Report
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.bare import WithLayers, kernels, says_projections
from attention_clinic.examine.handed import handed, runs
from attention_clinic.examine.kernel_widths import widths_of, widths_said
from attention_clinic.examine.options import Options
from attention_clinic.examine.refusing import name_of, question

# what a wrong guess of where heads lie looks like
OF_LAYOUTS = {
    *("heads-as-tokens", "softmax-heads", "softmax-batch", "softmax-query", "heads-not-split"),
    *("softmax-axes", "softmax-joint", "heads-mixed", "heads-not-joined"),
}
UNSCALED = "scores are divided by sqrt(head_dim): they are not scaled, right where queries come so"

Examine = Callable[[WithLayers, dict[str, Any]], Report]


def kernels_of(
    module: Any, num_heads: int | None, options: Options, embed_dim: int | None
) -> Sequence[WithLayers]:
    """Return the ways in which a module or function runs on operands that layers make; () for none.

    Args:
        module: what the caller gave.
        num_heads: h, None when nobody says it.
        options: of the caller, whose call may say how it takes them.
        embed_dim: as in `diagnose`.
    """
    call, crossed, mask = options.call, options.context is not None, options.mask
    if call is None:
        return kernels(module, num_heads, crossed, options.causal is True, embed_dim)
    inside = isinstance(call, Replay)  # the model around it has made its queries, keys and values
    if inside or isinstance(module, type) or not callable(module) or says_projections(module):
        return ()
    plain = not isinstance(module, nn.Module)
    h = num_heads or said_heads(module) or 1
    ends = not plain and bool(sources_of(module))
    b, n = next((b, n) for b, n in ((2, 5), (3, 7), (2, 11)) if h not in (b, n))
    if mask is not None and mask.ndim > 1:
        n = mask.shape[-2] if mask.shape[-2] > 1 else mask.shape[-1]
        b = mask.shape[0] if mask.ndim > 2 and mask.shape[0] > 1 else b
    b, n = options.size or (b, n)
    wide = widths_of(module, h, embed_dim)
    for width in (*wide, *(w // h for w in wide if w % h == 0)):
        way = Operands(("q", "k", "v"), heads=h, width=width)
        one = handed(module, way, call, crossed, ends)
        x = torch.randn(b, n, h * width, generator=torch.Generator().manual_seed(0))
        fits = runs(one, copied("diagnose", handed(module, way, call, crossed, ends)), x, mask)
        if fits is None:
            return ()
        if fits:
            return (one,)
    return ()


def by_layout(found: Sequence[WithLayers], examine: Examine) -> Report:
    """Examine a kernel as it takes its operands: as it says, or as it is right.

    Args:
        found: the ways in which it runs, the likeliest first.
        examine: examines it in one of these, with further options.

    Raises:
        ValueError: nothing says which way is meant, and they say different things; or it fails.
    """
    tried: list[tuple[WithLayers, Report]] = []
    failed: ValueError | None = None
    for one in found:
        try:
            report = examine(one, {"num_heads": one.num_heads, "most": 0})
        except ValueError as error:
            failed = failed or error
            continue
        tried.append((one, report))
        if report.healthy and one.operands.axes == tried[0][0].operands.axes:
            break
    if not tried:
        assert failed is not None, "there is a way"
        raise failed
    sure = bool(said_forms(found[0].kernel)) or len({one.operands.axes for one, _ in tried}) == 1
    axes = tried[0][0].operands.axes
    alike = [(one, report) for one, report in tried if one.operands.axes == axes]
    right = [pair for pair in alike if pair[1].healthy]
    if right:
        return told(*right[0])
    if not sure and any(report.healthy for _, report in tried):
        raise ValueError(question(found[0].kernel))
    first = next((form for form in said_forms(found[0].kernel) if form[1:] != "?"), "")
    alike = [pair for pair in alike if pair[0].operands.form == first] or alike
    named = [told(one, report) for one, report in alike if report.explanations]
    for most in (1, 2) if not named else ():  # one mistake of any before two of the first
        for number, (one, _) in enumerate(alike, 1):
            with reserved(1 / (len(alike) - number + 2) if most == 1 else 1.0):
                report = told(one, examine(one, {"num_heads": one.num_heads, "most": most}))
            if report.healthy:
                return report
            named.append(report)
            if is_spent() or (report.explanations and not OF_LAYOUTS & set(report.ids)):
                break
        if is_spent() or any(report.explanations for report in named):
            break
    return perhaps(min(named, key=lambda r: (not r.explanations, len(r.ids))), found[0].kernel)


def perhaps(report: Report, kernel: Any) -> Report:
    """Return a report; one that says no more than that nothing is scaled where others may do it."""
    if any(one.ids != ("scale-missing",) for one in report.explanations) or not report.explanations:
        return report
    if re.search(r"(?<!un)scaled", name_of(kernel).lower().replace("_", "")) or any(
        widths_said(kernel)
    ):
        return report
    return replace(report, explanations=(), failing=(UNSCALED,))


def told(one: WithLayers, report: Report) -> Report:
    """Return a report that says what was handed in."""
    return replace(report, checked=(*report.checked, one.words))
