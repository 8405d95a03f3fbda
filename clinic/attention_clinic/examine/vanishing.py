"""Weights that are zero, or so small that nothing depends on them: nothing behind them shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import Mode
from attention_clinic.engine.report import Report
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.untried import listed
from attention_clinic.engine.weights import gain_of
from attention_clinic.examine.explaining import Explaining
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.verdict import unexplained, unseen

SMALL = 0.01  # a matrix that makes a number so small of numbers around 1
PRODUCTS = ("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "tensordot")
BEHIND = "so nothing behind it could be tried"


def vanishing(subject: Subject, y: Tensor) -> Report | None:
    """Return a report that says which weights let nothing show, or None where something may.

    Args:
        subject: the module, or function.
        y: what it made of tokens.
    """
    said = _handed(subject, y) if subject.weights else _held(subject)
    if said:
        return unseen(subject, said)
    return None if y.isfinite().any() else unexplained(subject)


def _handed(subject: Subject, y: Tensor) -> str:
    """Say which of the weights of a function are zero, or too small."""
    assert subject.weights is not None, "a function comes with its weights"
    matrices = {n: w for n, w in subject.weights.items() if w.ndim > 1 and w.is_floating_point()}
    odd = [name for name, w in matrices.items() if not bool(w.isfinite().all())]
    zero = [name for name, w in matrices.items() if not bool(w.any())]
    fix = "Hand over random ones, and let the function use them"
    if odd:
        return f"NaN or infinity is in {listed(odd)}, {BEHIND}. {fix}"
    if zero:
        return f"{are(zero)} zero, {BEHIND}. {fix}"
    if y.ndim != 3 or not bool(y.isfinite().all()):
        return ""
    tried, out_dim = Explaining(subject), y.shape[-1]
    read = [(reader, [r for r in rs if not r.ids]) for reader, rs in tried.read(out_dim)]
    first = min((r.rank for _, readings in read for r in readings), default=None)
    right = [(reader, [r for r in readings if r.rank == first]) for reader, readings in read]
    right = [(reader, readings) for reader, readings in right if readings]
    if not right or any(tried.telling(*pair) for pair in right):
        return ""
    small = [name for name, w in matrices.items() if gain_of(w) < SMALL]
    return f"{are(small or list(matrices))} too small, {BEHIND}. {fix}"


def _held(subject: Subject) -> str:
    """Say which plain tensor of a module is zero, and multiplied with what comes in."""
    if not subject.patient.is_module:
        return ""
    found = {
        f"{path}.{name}".lstrip("."): t
        for path, part in subject.patient.module.named_modules()
        for name, t in (*vars(part).items(), *part.named_buffers(recurse=False))
        if isinstance(t, Tensor) and not isinstance(t, nn.Parameter)
        if t.ndim > 1 and t.is_floating_point() and t.numel() and not bool(t.any())
    }
    if not found:
        return ""
    with Zeros() as zeros:
        subject.open_run(subject.patient.tokens(subject.b, subject.n, subject.e))
    names = [name for name, t in found.items() if {t.shape, t.mT.shape} & zeros.shapes]
    return f"{are(names)} zero, and no parameter{'s' * (len(names) > 1)}, {BEHIND}" if names else ""


def are(names: list[str]) -> str:
    """Return "a is" or "a and b are"."""
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"


class Zeros(Mode):
    """Hear of which shapes the matrices of zeros are that something is multiplied by."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[torch.Size] = set()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") in PRODUCTS:
            read = [t for t in tensors_in([args, kwargs]) if t.ndim > 1]
            self.shapes |= {t.shape for t in read if not bool(t.any())}
        return func(*args, **kwargs)
