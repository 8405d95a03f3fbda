"""`diagnose_loss`: mistakes of a loss function that training does not complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.bugs import BUGS, LOSS, VARIANTS
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.forms import State, simplest
from attention_clinic.engine.patient import place, undisturbed
from attention_clinic.engine.report import Report, explain


def diagnose_loss(
    loss: Callable[..., Any],
    num_classes: int = 7,
    *,
    next_token: bool = False,
    smoothing: float = 0.0,
    padding_id: int | None = None,
) -> Report:
    """Compare a loss function with the cross-entropy and name the mistake that explains it.

    Args:
        loss: takes scores and the right classes, returns the loss.
        num_classes: how many classes the scores are for, k.
        next_token: False for a classifier; True for a language model, whose loss takes the scores
            of all positions and the tokens that were its input, and shifts them itself.
        smoothing: the label smoothing that the loss is meant to have.
        padding_id: the class that fills up short samples and must not count; None if there is no
            padding. Without next_token, the targets are those that belong to the scores already,
            as in a translator.

    Shape:
        scores   (b, k), or (b, n, k) for next_token or padding_id
        classes  (b,), or (b, n) for next_token or padding_id
        result   () or one number for each target

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a function, a padding_id that is no class, or an exception inside the loss.
    """
    name = getattr(loss, "__name__", type(loss).__name__)
    if not callable(loss):
        raise ValueError(
            f"diagnose_loss: loss must be a function of scores and classes, got {loss!r}. "
            "Pass the function itself, without calling it."
        )
    padded = padding_id is not None
    if padded and padding_id >= num_classes:
        raise ValueError(
            f"diagnose_loss: padding_id must be below num_classes, got padding_id={padding_id} and "
            f"num_classes={num_classes}. Pass the size of the vocabulary as num_classes."
        )
    generator = torch.Generator().manual_seed(0)
    shape: tuple[int, ...] = (4, 6) if next_token or padded else (5,)
    scores = 2 * torch.randn(*shape, num_classes, generator=generator, dtype=torch.float64)
    classes = torch.randint(num_classes, shape, generator=generator)
    if padded:
        others = [number for number in range(num_classes) if number != padding_id]
        classes = torch.tensor(others)[classes % len(others)]
        lengths = torch.tensor([[6], [4], [3], [5]])
        classes = classes.where(torch.arange(6) < lengths, torch.tensor(padding_id))
    keep = classes != (padding_id if padded else -1)
    with undisturbed(), torch.no_grad():
        try:
            value = first_tensor(loss(scores.clone(), classes.clone()))
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            raise ValueError(
                f"diagnose_loss: {name} must take scores {tuple(scores.shape)} and classes "
                f"{shape}, got {type(error).__name__}: {text[0].rstrip('.')}{place(error)}. "
                "Wrap it: diagnose_loss(lambda scores, classes: ...)."
            ) from error

    def difference(state: State) -> float | None:
        made = state["made"]
        if made.numel() != value.numel():
            return None
        gap = float((made.reshape(-1) - value.reshape(-1)).abs().max())
        # who turns the scores to single precision first gets no closer
        limit = 1e-9 if value.dtype == torch.float64 else 1e-6
        return gap if gap <= limit * (1 + value.abs().max().item()) else None

    state = {"scores": scores, "classes": classes, "next_token": next_token, "keep": keep}
    found = simplest(LOSS, {**state, "smoothing": smoothing}, difference)
    explanations = tuple(
        explain([BUGS[id] for id in ids], way.difference, way.path.detail)
        for ids, way in found.items()
        if ids
    )
    healthy = () in found
    failing = () if found else tuple(_failing(loss, scores, classes))
    checked = "cross-entropy of the scores" + (" and the next token" if next_token else "")
    checked += f"; padding ({padding_id}) left out" if padded else ""
    named = next(iter(found.values())).path.variants if found else ()
    return Report(
        name,
        healthy,
        explanations,
        failing,
        (checked,),
        variants=tuple(VARIANTS[id] for id in named),
    )


def _failing(loss: Callable[..., Any], scores: Tensor, classes: Tensor) -> Iterator[str]:
    """Yield the properties of a cross-entropy that do not hold."""
    with undisturbed(), torch.no_grad():
        value = first_tensor(loss(scores.clone(), classes.clone()))
        if not value.isfinite().all():
            yield "the loss is a number: it is NaN or infinite"
            return
        moved = first_tensor(loss(scores + 3.0, classes.clone()))
        if (moved - value).abs().max() > 1e-6:
            yield "adding one number to all scores changes nothing"
        sure = 50.0 * F.one_hot(classes, scores.shape[-1]).to(scores)
        if scores.ndim == 2 and first_tensor(loss(sure, classes.clone())).abs().max() > 1e-6:
            yield "a sure and right answer costs nothing"
