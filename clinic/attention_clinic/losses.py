"""`diagnose_loss`: mistakes of a loss function that training does not complain about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_clinic.capture.calling import first_tensor
from attention_clinic.capture.module import CallFailed, attempted, first_line, place, undisturbed
from attention_clinic.catalogue.forms import BUGS, State, simplest
from attention_clinic.catalogue.training import LOSS
from attention_clinic.report import Report, explain

WHERE = "diagnose_loss"


def diagnose_loss(
    loss: Callable[..., Any],
    num_classes: int = 7,
    *,
    next_token: bool = False,
    smoothing: float = 0.0,
    padding_id: int | None = None,
) -> Report:
    """Compare a loss function with the cross-entropy and explain the difference.

    Args:
        loss: takes logits and the correct classes, returns the loss.
        num_classes: how many classes the logits are for, k.
        next_token: False for a classifier; True for a language model, whose loss takes the logits
            of all positions and the tokens that were its input, and shifts them itself.
        smoothing: the label smoothing that the loss is meant to have.
        padding_id: the class that fills up short samples and must not count, None for no padding.
            Without next_token, the targets belong to the logits already, as in a translator.

    Shape:
        logits   (b, k), or (b, n, k) for next_token or padding_id
        classes  (b,), or (b, n) for next_token or padding_id
        result   () or one number for each target

    Raises:
        ValueError: not a function, a padding_id that is not a class, or an error inside the loss.
    """
    if not callable(loss):
        raise ValueError(
            f"{WHERE}: loss must be a function, got {loss!r}. Pass the function, do not call it."
        )
    if padding_id is not None and padding_id >= num_classes:
        raise ValueError(
            f"{WHERE}: padding_id must be below num_classes={num_classes}, got {padding_id}. "
            "Pass the size of the vocabulary as num_classes."
        )
    name = getattr(loss, "__name__", type(loss).__name__)
    logits, classes = _examples(num_classes, next_token, padding_id)
    try:
        with undisturbed(), torch.no_grad():
            value = attempted(lambda: first_tensor(loss(logits.clone(), classes.clone())))
            moved = attempted(lambda: first_tensor(loss(logits + 3.0, classes.clone())))
    except CallFailed as failed:
        error, shapes = failed.error, f"{tuple(logits.shape)} and classes {tuple(classes.shape)}"
        raise ValueError(
            f"{WHERE}: {name} must take logits {shapes}, got {type(error).__name__}: "
            f"{first_line(error)}{place(error)}. Wrap it: {WHERE}(lambda logits, classes: ...)."
        ) from error
    limit = (1e-9 if value.dtype == torch.float64 else 1e-6) * (1 + float(value.abs().max()))

    def difference(state: State) -> float | None:
        if state["made"].numel() != value.numel():
            return None
        gap = float((state["made"].flatten() - value.flatten()).abs().max())
        return gap if gap <= limit else None

    keep = classes != (-1 if padding_id is None else padding_id)
    state = {"logits": logits, "classes": classes, "keep": keep}
    state |= {"next_token": next_token, "smoothing": smoothing}
    finite = bool(value.isfinite().all())
    found = simplest(LOSS, state, difference) if finite else {}
    failing = () if finite else ("the loss is a number: it is NaN or infinite",)
    if finite and not found and (moved - value).abs().max() > 1e-6:
        failing = ("adding one number to all logits changes nothing",)
    checked = "cross-entropy of the logits" + " and the next token" * next_token
    checked += f"; padding ({padding_id}) left out" if padding_id is not None else ""
    said = [explain([BUGS[i] for i in ids], w.difference) for ids, w in found.items() if ids]
    return Report(name, () in found, tuple(said), failing, (checked,))


def _examples(k: int, next_token: bool, padding_id: int | None) -> tuple[Tensor, Tensor]:
    """Return random logits and classes; three samples of four end in padding, if there is any."""
    shape = (4, 6) if next_token or padding_id is not None else (5,)
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(*shape, k, generator=generator, dtype=torch.float64)
    classes = torch.randint(k, shape, generator=generator)
    if padding_id is not None:
        classes[classes == padding_id] = (padding_id + 1) % k
        classes[torch.arange(6) >= torch.tensor([[6], [4], [3], [5]])] = padding_id
    return logits, classes
