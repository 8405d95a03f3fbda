"""`diagnose` on a whole block or a stack: handed on to the tool for these."""

from __future__ import annotations

from torch import nn

from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.report import Report
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.subject import Subject, Unreadable
from attention_clinic.examine.whole_block import diagnose_block

FIRST = 0.15  # of the steps, for what need not be a block
ATTENTION_ALONE = 5  # matrices that an attention has at most, unless its heads are modules


def as_block(subject: Subject) -> Report | None:
    """Examine a module as a block; None when it is none, or nothing explains it as one."""
    module = subject.original
    if not isinstance(module, nn.Module) or subject.weights is not None or subject.mode is not None:
        return None
    matrices = [p.shape for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.shape == (subject.e,)]
    if len(matrices) < 4 or len(set(matrices)) == 1 or len(vectors) < 3:
        return None
    if len(matrices) <= ATTENTION_ALONE and _explained(subject):
        return None
    options, context = subject.options, subject.context
    try:
        with reserved(0.5):
            report = diagnose_block(
                subject.original,
                subject.h,
                causal=options.causal,
                call=options.call,
                size=options.size,
                mask=None if context else options.mask,
                context=None if context is None else context.said,
                context_mask=options.mask if context else None,
                like=options.like,
            )
    except (ValueError, Spent):
        return None
    if "part-unused" in report.ids:  # layers of its own, perhaps, which no block has
        return None
    vars(subject)["is_block"] = report.healthy or bool(report.explanations)
    return report if vars(subject)["is_block"] else None


def _explained(subject: Subject) -> bool:
    """Say whether a module is a right attention; what takes long to say is asked later."""
    try:
        with reserved(FIRST):
            return bool(Explaining(subject).explained(most=0))
    except (Spent, Unreadable):  # convolutions are read later
        return False
