"""What an attention does with what its heads mixed: the output layer, and what stands around it.

A number keeps its place through whatever is done to it alone, and what a layer makes of the numbers
of a token is that token's. So it does not matter what stands before the output layer and behind it:
a norm, a residual, an activation, another layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event
from attention_clinic.examine.written import PRODUCTS, Run

SUMS = {"sum", "mean", "var", "var_mean", "amax", "linalg_vector_norm", "std", "max"}
NORMS = {"native_layer_norm", "_fused_rms_norm"}


@dataclass(frozen=True)
class Ends:
    """What the output layer reads.

    Args:
        joined: ids of what it reads for each token, (b, n, f), as they were mixed.
        ended: whether there is an output layer.
        factor: what was mixed is multiplied by, before it.
        before, after: the names of what else is done before the output layer, and behind it.
        known: whether it is known which token a result is of.
        lost: whether it is not known what becomes of what was mixed.
    """

    joined: Tensor
    ended: bool
    factor: float = 1.0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    known: bool = True
    lost: bool = False

    @property
    def alone(self) -> bool:
        """Whether nothing else is done."""
        return not self.before and not self.after


def ends_of(run: Run, mixed: Tensor) -> Ends:
    """Return what becomes of what was mixed.

    Args:
        run: what was written down.
        mixed: ids, (slots, i, d).
    """
    lost = Ends(mixed, True, known=False, lost=True)
    own = torch.full((run.tape.count,), -1)  # the number that was mixed, for what was made of it
    own[mixed] = mixed
    row = torch.full((run.tape.count,), -1)  # of what the layer read, for each number after it
    rows: Tensor | None = None
    weight = torch.empty(0)  # of the layer, which may be called for each sample anew
    last, factor = 0, 1.0  # how many numbers the layer made
    before: list[str] = []
    after: list[str] = []
    for event, used in zip(run.tape.events, run.used, strict=True):
        if not used or bool((own[event.out] >= 0).all()):
            continue
        tensors = event.read()
        held = [t for t in tensors if bool((own[t] >= 0).any())]
        if held and (rows is None or any(t.equal(weight) for t in tensors)):
            read = _read(event, own)
            if read is not None:
                weight, last = event.args[PRODUCTS[event.name] + 1], event.out.numel()
                start = 0 if rows is None else len(rows)
                rows = own[read] if rows is None else torch.cat([rows, own[read]])
                row[event.out] = torch.arange(start, len(rows))[:, None].expand(event.out.shape)
            elif held[0].shape == event.out.shape and event.name not in PRODUCTS:
                own[event.out] = own[held[0]]
                by = _times(run, event)
                factor *= by or 1.0
                before += [event.name] * (by is None)
            continue
        held = [t for t in tensors if bool((row[t] >= 0).any())]
        if not held:
            continue
        others = [t for t in tensors if t is not held[0]]
        biased = event.name == "add" and not any(run.depends(t) for t in others)
        after += [event.name] * (not biased or event.out.numel() != last)
        made = _behind(event, row[held[0]])
        if made is not None:
            row[event.out] = made
    if rows is None:
        every = own[run.y]
        if bool((every < 0).any()):
            return lost
        return Ends(every, False, factor, tuple(before))
    ends, said = row[run.y], (factor, tuple(before), tuple(after))
    if bool((ends >= 0).all()) and bool((ends == ends[..., :1]).all()):
        return Ends(rows[ends[..., 0]], True, *said)
    if len(rows) != run.y.shape[0] * run.y.shape[1]:
        return lost
    return Ends(rows.view(*run.y.shape[:2], -1), True, *said, known=False)


def _read(event: Event, own: Tensor) -> Tensor | None:
    """Return the operand of an output layer that is made of what was mixed alone."""
    if event.name not in ("mm", "addmm"):
        return None
    first = event.args[PRODUCTS[event.name]]
    return first if bool((own[first] >= 0).all()) else None


def _times(run: Run, event: Event) -> float | None:
    """Return the number that an operation multiplies by, None for another one."""
    if event.name not in ("mul", "div"):
        return None
    by = run.number(event.args[1])
    return None if not by else by if event.name == "mul" else 1 / by


def _behind(event: Event, labels: Tensor) -> Tensor | None:
    """Return which row the numbers are made of that an operation makes, None where of several.

    Args:
        event: the operation.
        labels: the rows of what it reads first, -1 for none.
    """
    out = event.out
    place = PRODUCTS.get(event.name)
    if place is not None or event.name in NORMS:
        alike = labels.ndim > 0 and bool((labels == labels[..., :1]).all())
        if not alike or labels.shape[:-1] != out.shape[:-1]:
            return None
        return labels[..., :1].expand(out.shape)
    if labels.shape == out.shape:
        return labels
    if event.name in SUMS:
        if labels.ndim == 0 or bool((labels != labels[..., :1]).any()):
            return None
        for shape in (labels[..., :1], labels[..., 0]):
            if shape.shape == out.shape:
                return shape
        return None
    try:
        return labels.expand(out.shape)
    except RuntimeError:
        return None
