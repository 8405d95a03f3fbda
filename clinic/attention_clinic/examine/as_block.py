"""`diagnose` on a whole block or a stack: handed on to the tool for these."""

from __future__ import annotations

from torch import nn

from attention_clinic.engine.report import Report
from attention_clinic.examine.stack import diagnose_block
from attention_clinic.examine.subject import Subject


def may_be_block(subject: Subject) -> bool:
    """Say whether a module could be a block or a stack rather than an attention."""
    module = subject.original
    if not isinstance(module, nn.Module) or subject.weights is not None or subject.mode is not None:
        return False
    matrices = [p.shape for p in module.parameters() if p.ndim > 1]
    norms = [p for p in module.parameters() if p.shape == (subject.e,)]
    return len(matrices) >= 4 and len(set(matrices)) > 1 and len(norms) >= 3


def as_block(subject: Subject) -> Report | None:
    """Examine a module as a block; None when that explains nothing."""
    options, context = subject.options, subject.context
    try:
        report = diagnose_block(
            subject.original,
            subject.h,
            causal=options.causal,
            call=options.call,
            size=options.size,
            mask=None if context else options.mask,
            context=None if context is None else context.said,
            context_mask=options.mask if context else None,
        )
    except ValueError:
        return None
    return report if report.healthy or report.explanations else None
