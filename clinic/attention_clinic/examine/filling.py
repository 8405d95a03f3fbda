"""Whether what masked scores are filled with fits in half precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.modes import Scores
from attention_clinic.engine.report import Explanation, explain
from attention_clinic.examine.mask_argument import adds
from attention_clinic.examine.subject import Subject

FAILS = "here it does no harm"
ENDS = "in half precision it is -inf: no harm, but to rows that may attend to nothing"
LEAST = torch.finfo(torch.float16).min


def fill_of(run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> str:
    """Return what becomes of a fill in half precision: FAILS, ENDS, "" where it fits or is unknown.

    Args:
        run: calls the copy, with its mask.
        module: the copy.
        x: tokens.
    """
    with Scores() as whole:
        y = run(x)
    if not any(bool((t.isfinite() & (t < LEAST)).any()) for t in whole.heard):
        return ""
    with halved(module), Scores() as halves:
        try:
            made = run(x.half())
        except RuntimeError as error:
            return FAILS if "overflow" in str(error) else ""
        except Exception:
            return ""
    pairs = zip(whole.heard, halves.heard, strict=False)
    ended = any(t.shape == h.shape and bool((h.isneginf() & t.isfinite()).any()) for t, h in pairs)
    if not ended:
        return ""
    return FAILS if bool((made.isnan() & ~y.isnan()).any()) else ENDS


@contextmanager
def halved(module: nn.Module) -> Iterator[None]:
    """Let a copy be in half precision for a while."""
    kept = [(p, p.data) for p in module.parameters()]
    buffers = [(part, dict(part.named_buffers(recurse=False))) for part in module.modules()]
    try:
        module.half()
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
        for part, held in buffers:
            for name, buffer in held.items():
                setattr(part, name, buffer)


def is_half(module: nn.Module | Callable) -> bool:
    """Say whether half precision is asked for: a module is handed over in it."""
    parameters = module.parameters() if isinstance(module, nn.Module) else ()
    return any(p.dtype == torch.float16 for p in parameters)


def fill_remark(said: str) -> tuple[Explanation, ...]:
    """Return the remark on a fill that does not fit, () where none is to be made.

    Args:
        said: what `fill_of` returned.
    """
    if not said:
        return ()
    made = explain([BUGS["mask-fp16"]], detail=said)
    return (made if said == FAILS else replace(made, evidence="seen in a run in half precision"),)


def misfits(subject: Subject) -> str:
    """Return what is to be remarked of the fill; where half precision is asked for, add the id.

    Args:
        subject: the module.
    """
    patient, mask = subject.patient, subject.mask
    if not patient.is_module or patient.wide or subject.options.cache is not None:
        return ""
    mask = None if mask is None or adds(mask) else mask
    run = subject.open_run if mask is None else lambda x: subject.run(x, mask)
    said = fill_of(run, patient.module, patient.tokens(subject.b, subject.n, subject.e))
    if said != FAILS or not is_half(subject.original):
        return said
    subject.extra.append("mask-fp16")
    return ""
