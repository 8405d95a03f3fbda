"""A block with masks that no form explains: by its run, and by what the masks do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_clinic.engine.begins import no_numbers
from attention_clinic.engine.budget import beside
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import NO_NUMBERS, Report
from attention_clinic.examine.around import Around, Question
from attention_clinic.examine.block_noticed import says_causal
from attention_clinic.examine.filling import FAILS, fill_of, fill_remark
from attention_clinic.examine.layer import Layer
from attention_clinic.examine.mask_argument import adds, allowed
from attention_clinic.examine.mask_law import law_of_context_mask, law_of_mask
from attention_clinic.examine.unlearned import and_more
from attention_clinic.examine.wired import Wired

SHARE = 0.5  # of all steps, for a run without the masks
IDS = {
    ("mask", "dropped"): ("mask-dropped", "the mask changes nothing"),
    ("mask", "inverted"): ("mask-inverted", "tokens get what it blocks, only"),
    ("context", "dropped"): ("context-mask-dropped", "the mask of the context changes nothing"),
    ("context", "inverted"): ("mask-inverted", "tokens get what the context's mask blocks, only"),
}
RIGHT = {
    "mask": "with the mask: a token gets what the tokens that it allows give alone",
    "context": "with the context's mask: a token gets what the allowed tokens give alone",
}
UNCLEAR = {  # what is wrong without a mask is wrong, whatever a mask does
    "mask": "what the mask does beside that: it was left out",
    "context": "what the mask of the context does beside that: it was left out",
}


def masked_wired(asked: Question) -> Report | None:
    """Examine a block by its run, and its masks with each attention, or by their effects.

    Args:
        asked: what is asked of it, with a mask.
    """
    report = _found(Wired(asked, masked=True).report())
    return _by_laws(asked) if report is None else report


def numberless(asked: Question) -> Report | None:
    """Report that a block gives nothing but NaN with its masks, which proves no name.

    Args:
        asked: what is asked of it.
    """
    patient, around = asked.patient, asked.around
    if around.mask is None and around.context_mask is None:
        return None
    with _masked_run(asked, around) as run, suppress(Exception):  # others say what it needs
        y = run(asked.x)
        if not y.isfinite().any():
            said = no_numbers(patient.module, lambda: run(asked.x), y)
            failing, checked = (f"{NO_NUMBERS}with the masks {said}",), ("one call with the masks",)
            return Report(patient.name, False, (), failing, checked, patient.untried(mask=True))
    return None


def with_fill(report: Report, asked: Question, half: bool) -> Report:
    """Return a report that says that a fill of masked scores does not fit in half precision.

    Args:
        report: on the block.
        asked: what is asked of it.
        half: whether half precision is asked for.
    """
    around, said = asked.around, ""
    if around.mask is not None and adds(around.mask):
        around = replace(around, mask=None)
    if around.context_mask is not None and adds(around.context_mask):
        around = replace(around, context_mask=None)
    known = any("mask-fp16" in one.ids for one in (*report.explanations, *report.remarks))
    if known or asked.patient.wide or not (report.healthy or report.explanations):
        return report
    with _masked_run(asked, around) as run, suppress(Exception):
        said = fill_of(run, asked.patient.module, asked.x)
    if said == FAILS and half:
        return and_more(report, [("mask-fp16", "")])
    return replace(report, remarks=(*report.remarks, *fill_remark(said)))


@contextmanager
def _masked_run(asked: Question, around: Around) -> Iterator[Callable[[Tensor], Tensor]]:
    """Lend what calls a block with masks.

    Args:
        asked: what is asked of it.
        around: what it gets.
    """
    patient = asked.patient
    given, time_first = patient.call, patient.time_first
    layer = Layer(asked, given)
    layer.now = around
    try:
        yield layer.run
    finally:
        patient.call, patient.time_first = given, time_first


def _found(report: Report | None) -> Report | None:
    """Return a report that says something, None for another."""
    return report if report is not None and (report.healthy or report.explanations) else None


def _by_laws(asked: Question) -> Report | None:
    """Examine a block without its masks, and judge by its effects what each does."""
    patient, around = asked.patient, asked.around
    given, time_first = patient.call, patient.time_first
    layer = Layer(asked, given)
    free = None if _runs_alone(asked, layer) else given
    laws = dict(_laws(asked, layer, free))
    patient.call, patient.time_first = free, time_first
    if not laws:
        return None
    blocks_later, only_later = _later(asked)
    causal = None if blocks_later else asked.causal  # without the mask, all tokens may be seen
    wired = Wired(replace(asked, around=Around(around.context), causal=causal))
    with beside(SHARE):  # the search before it may have taken all
        report = wired.report()
    report = wired.partly if report is None else report
    unclear = tuple(UNCLEAR[of] for of, law in laws.items() if not law)
    if report is None or not (report.explanations or (report.healthy and not unclear)):
        return None
    if laws.get("mask") == "dropped" and only_later and says_causal(report):
        laws["mask"] = "unheard"  # later tokens are hidden anyway: others are mixed behind that
    report = replace(
        report,
        checked=(*report.checked, *(RIGHT[of] for of, law in laws.items() if law == "right")),
        untried=(*unclear, *report.untried),
    )
    cancels = "softmax-query" in report.ids  # what is the same for all who ask
    wrong = [IDS[of, law] for of, law in laws.items()
             if (of, law) in IDS and not (cancels and law == "dropped")]  # fmt: skip
    return and_more(report, [(id, words) for id, words in wrong if id not in report.ids])


def _later(asked: Question) -> tuple[bool, bool]:
    """Say whether the mask of the tokens blocks all later ones, and whether it blocks no others."""
    mask, (b, n) = asked.around.mask, asked.x.shape[:2]
    with suppress(ValueError):
        allow = torch.ones(1, 1, n, n).bool() if mask is None else allowed(mask, b, n)
        later = torch.ones(n, n).triu(1).bool()
        return not bool((allow & later).any()), bool((allow | later).all())
    return False, False


def _runs_alone(asked: Question, layer: Layer) -> bool:
    """Say whether a block needs nothing of what its user's call hands over but masks."""
    layer.now, given = Around(asked.around.context), layer.user_call
    if given is None:
        return True
    try:
        y = asked.patient.run(asked.x)
        layer.user_call = None
        return same(asked.patient.run(asked.x), y)
    except Exception:
        return False
    finally:
        layer.user_call = given


def _laws(
    asked: Question, layer: Layer, free: Callable[..., Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield the masks that were given, each with what it does: "" where that is not clear.

    Args:
        asked: what is asked of the block.
        layer: calls it.
        free: how it is called without masks, None as its signature says.
    """
    patient, x, around = asked.patient, asked.x, asked.around
    context, given = around.context, layer.user_call

    def run(x: Tensor, now: Around) -> Tensor:
        masked = now.mask is not None or now.context_mask is not None
        layer.now, layer.user_call = now, given if masked else free
        return patient.run(x)

    def asked_of(x: Tensor) -> Tensor | None:  # one context for all samples
        return None if context is None else context[:1].expand(len(x), -1, -1)

    if around.mask is not None:
        law = ""
        with suppress(RuntimeError, ValueError, IndexError, TypeError):
            law = law_of_mask(
                lambda x: run(x, Around(asked_of(x))),
                lambda x: run(x, Around(asked_of(x), around.mask)),
                *(x, allowed(around.mask, *x.shape[:2])),
            )
        yield "mask", law
    if around.context_mask is not None and context is not None:
        allow = allowed(around.context_mask, *x.shape[:2], keys=context.shape[1])
        law = ""
        with suppress(RuntimeError, ValueError, IndexError, TypeError):
            law = law_of_context_mask(
                lambda x, context: run(x, Around(context)),
                *(run(x, Around(context, None, around.context_mask)), x, context, allow),
            )
        yield "context", law
