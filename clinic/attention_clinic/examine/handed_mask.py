"""Masks that are handed over by the names in a signature: those of a user, and a causal one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import mask_argument, standard_call
from attention_clinic.engine.crossing import sides_of
from attention_clinic.engine.openings import Opening, openings
from attention_clinic.engine.patient import Patient, possible_widths, same, undisturbed
from attention_clinic.engine.report import Report
from attention_clinic.engine.weighing import WholeScores, hides_all
from attention_clinic.examine.around import Around, called, mask_arguments

Tool = TypeVar("Tool", bound=Callable[..., Report])
LOST = "mask-not-causal"
OWN = ("mask", "call", "cache", "weights")  # who says one of these has thought of the mask
MEANS = ", in which True means may attend"
SIZES = (2, 5), (3, 7)  # of samples and tokens: the first whose tokens are not as many as heads


def by_signature(
    module: nn.Module, crossed: bool = False, form: Opening | None = None, alone: bool = False
) -> Callable[..., Any]:
    """Return a call that hands masks over by their names, and open ones where there must be some.

    Args:
        module: an attention or a block.
        crossed: whether it gets a context.
        form: how it takes its mask; None hands over what it is given.
        alone: whether it is an attention.
    """
    sides, found = sides_of(module), []

    def run(module: nn.Module, x: Tensor, around: Around) -> object:
        if form is not None and around.mask is not None:
            around = replace(around, mask=form.blocking(around.mask, x))
        error: Exception | None = None
        for opening in found or (None, *openings()):
            try:
                with WholeScores() as scores:
                    result = once(module, x, around, opening)
            except Exception as raised:
                error = error or raised
                continue
            if found or not any(map(hides_all, scores.heard)):
                found[:] = [opening]
                return result
        raise error or ValueError("no mask that blocks nothing was found")

    def once(module: nn.Module, x: Tensor, around: Around, opening: Opening | None) -> object:
        if alone:
            return standard_call(module, x, around.mask, opening=opening)
        return called(module, x, around, sides, None, opening)

    def plain(module: nn.Module, x: Tensor, mask: Tensor | None = None) -> object:
        return run(module, x, Around(None, mask))

    def asking(
        module: nn.Module,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> object:
        return run(module, x, Around(context, mask, context_mask))

    return asking if crossed else plain


def handing_causal(tool: Tool) -> Tool:
    """Let a tool hand a causal mask to what must be causal, and does not run without a mask.

    What may be called without one is not causal there: it is said that a mask makes it so.

    Args:
        tool: `diagnose` or `diagnose_block`.
    """

    @wraps(tool)
    def run(module: nn.Module, num_heads: int | None = None, **given: Any) -> Report:
        report = tool(module, num_heads, **given)
        told = any(given.get(name) is not None for name in OWN)
        lost = LOST in report.ids or not (report.healthy or report.explanations)
        if given.get("causal") is not True or told or not lost or not isinstance(module, nn.Module):
            return report
        where = mask_argument(module) and (mask_arguments(module)[0] or mask_argument(module))
        found = None if where is None else _again(tool, module, num_heads, given)
        if found is None:
            return report
        again, form = found
        words = f"a causal mask as {where}, in which {form.means}"
        if inspect.signature(module.forward).parameters[where].default is inspect.Parameter.empty:
            checked = [said.replace(MEANS, "") for said in again.checked]
            return replace(again, checked=(*checked, f"handed {words}"))
        detail = f"handed {words}, it hides the future"
        explained = tuple(
            replace(one, detail="; ".join(filter(None, (one.detail, detail))))
            if LOST in one.ids
            else one
            for one in report.explanations
        )
        return replace(report, explanations=explained)

    return cast(Tool, run)


def _again(
    tool: Callable[..., Report], module: nn.Module, num_heads: int | None, given: dict[str, Any]
) -> tuple[Report, Opening] | None:
    """Examine a module with a causal mask, None where that does not make it causal."""
    context = given.get("context")
    sides = sides_of(module)
    alone = tool.__name__ == "diagnose"
    crossed = context is not None or (not alone and sides is not None and sides.needed(module))
    if crossed and context is None:
        given = {**given, "context": True}
    b, n = next(size for size in SIZES if size[1] != num_heads)
    mask = torch.ones(n, n).tril().bool()
    for form, call in _causal_calls(module, crossed, alone, mask, b):
        try:
            report = tool(module, num_heads, **given, call=call, mask=mask)
        except ValueError:
            continue
        if LOST not in report.ids and (report.healthy or report.explanations):
            return report, form
    return None


def _causal_calls(
    module: nn.Module, crossed: bool, alone: bool, mask: Tensor, b: int
) -> Iterator[tuple[Opening, Callable[..., Any]]]:
    """Yield the forms of a mask that hide the future, and nothing else, with a call for each."""
    for form in openings():
        if "i" not in form.shape:
            continue
        call = by_signature(module, crossed, form, alone)
        with undisturbed():
            patient = Patient("diagnose", module, call)
            for width in possible_widths(module, dict(module.named_parameters()))[:3]:
                x = patient.tokens(b, len(mask), width)
                context = patient.tokens(b, 6, width, seed=9) if crossed else None
                try:
                    hides = _hides_the_future(partial(patient.run, context=context), x, mask)
                except Exception:
                    continue
                if hides:
                    yield form, call
                break


def _hides_the_future(run: Callable[..., Tensor], x: Tensor, mask: Tensor) -> bool:
    """Say whether the last token changes only itself, and the first one the last."""
    y, first, last = run(x, mask), x.clone(), x.clone()
    first[:, 0] += torch.arange(x.shape[2]).to(x)
    last[:, -1] += torch.arange(x.shape[2]).to(x)
    early, late = run(first, mask), run(last, mask)
    return (
        bool(y.isfinite().all())
        and same(late[:, :-1], y[:, :-1])
        and not same(late[:, -1], y[:, -1])
        and not same(early[:, -1], y[:, -1])
    )
