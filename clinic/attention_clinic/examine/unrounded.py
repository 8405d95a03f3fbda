"""Modules that round what they made: nothing before that learns, and nothing else shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.modes import Mode, keeping_history, wanting_gradients
from attention_clinic.engine.report import Report
from attention_clinic.engine.tape import tensors_in
from attention_clinic.examine.first_call import forget
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.unlearned import and_more

SHARE = 0.6  # of the steps that are left, for the module that does not round
NAMES = ("round", "round_")
WORDS = "it rounds what its layers made, and the gradient of round is 0"


class Unrounded(Mode):
    """Leave out each rounding of numbers.

    Attributes:
        learns: whether what is rounded would want a gradient, for each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learns: list[bool] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        t = args[0] if args else kwargs.get("input")
        if getattr(func, "__name__", "") in NAMES and isinstance(t, Tensor):
            self.learns.append(t.requires_grad)
            return t
        return func(*args, **kwargs)


def without_rounding(subject: Subject, examine: Callable[[Subject], Report]) -> Report | None:
    """Return a report on a module that rounds all that it returns; None for any other.

    It is examined as if it did not round, and gets a name if it is explained so.

    Args:
        subject: the module.
        examine: what examines a module that runs.
    """
    free = subject.options.cache is None and subject.patient.is_module and subject.options.most
    if not free or subject.mode is not None or not _rounds(subject):
        return None
    subject.mode = Unrounded
    forget(subject)
    try:
        with reserved(SHARE):
            found = examine(subject)
    except (Spent, ValueError):
        found = None
    if found is None or not (found.healthy or found.explanations):
        subject.mode = None
        forget(subject)
        return None
    return and_more(found, [("graph-cut", WORDS)])


def _rounds(subject: Subject) -> bool:
    """Say whether a module rounds what learns, and no gradient passes by."""
    x, module = subject.patient.tokens(subject.b, subject.n, subject.e), subject.patient.module
    held = list(module.parameters())
    made: list[Tensor] = []
    handles = [
        keeping_history(module),
        module.register_forward_hook(lambda _, __, result: made.extend(tensors_in(result))),
    ]
    try:
        with wanting_gradients(held):
            with Unrounded() as heard:
                subject.open_run(x)
            if not heard.learns or not all(heard.learns):
                return False
            made.clear()
            subject.open_run(x)
            if not made or not made[0].requires_grad:
                return False
            found = torch.autograd.grad(made[0].sum(), held, allow_unused=True)
    except RuntimeError:  # what cannot be differentiated
        return False
    finally:
        for handle in handles:
            handle.remove()
    return not any(grad is not None and bool(grad.any()) for grad in found)
