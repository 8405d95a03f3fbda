"""`diagnose_loss`: mistakes of a loss function that training does not complain about."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.catalogue import BUGS
from attention_clinic.patient import first_tensor, place, undisturbed
from attention_clinic.report import Report, explain

REDUCTIONS = ("mean", "sum", "none")


def diagnose_loss(
    loss: Callable, num_classes: int = 7, *, next_token: bool = False, smoothing: float = 0.0
) -> Report:
    """Compare a loss function with the cross-entropy and name the mistake that explains it.

    Args:
        loss: takes scores and the right classes, returns the loss.
        num_classes: how many classes the scores are for, k.
        next_token: False for a classifier; True for a language model, whose loss takes the scores
            of all positions and the tokens that were its input, and shifts them itself.
        smoothing: the label smoothing that the loss is meant to have.

    Shape:
        scores   (b, k), or (b, n, k) for next_token
        classes  (b,), or (b, n) for next_token
        result   () or one number for each target

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a function, or an exception inside the loss.
    """
    name = getattr(loss, "__name__", type(loss).__name__)
    if not callable(loss):
        raise ValueError(
            f"diagnose_loss: loss must be a function of scores and classes, got {loss!r}. "
            "Pass the function itself, without calling it."
        )
    generator = torch.Generator().manual_seed(0)
    shape = (4, 6) if next_token else (5,)
    scores = 2 * torch.randn(*shape, num_classes, generator=generator, dtype=torch.float64)
    classes = torch.randint(num_classes, shape, generator=generator)
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
    found = []
    for ids, made in _losses(scores, classes, next_token, smoothing):
        if made.shape == value.shape:
            difference = (made - value).abs().max().item()
        elif made.numel() == value.numel():
            difference = (made.reshape(-1) - value.reshape(-1)).abs().max().item()
        else:
            continue
        if difference <= 1e-9 * (1 + value.abs().max().item()):
            found.append((ids, difference))
    fewest = min((len(ids) for ids, _ in found), default=0)
    found = [(ids, difference) for ids, difference in found if len(ids) == fewest]
    explanations = {
        ids: explain([BUGS[id] for id in ids], difference) for ids, difference in found if ids
    }
    healthy = bool(found) and fewest == 0
    failing = () if found else tuple(_failing(loss, scores, classes))
    checked = "cross-entropy of the scores" + (" and the next token" if next_token else "")
    return Report(name, healthy, tuple(explanations.values()), failing, (checked,))


def _losses(scores: Tensor, classes: Tensor, next_token: bool, smoothing: float):
    """Yield ids and the value of every combination of right and wrong parts."""
    shifts = [((), scores, classes)]
    if next_token:
        shifts = [
            ((), scores[:, :-1], classes[:, 1:]),
            (("target-not-shifted",), scores, classes),
            (("target-not-shifted",), scores[:, :-1], classes[:, :-1]),
            (("target-not-shifted",), scores[:, 1:], classes[:, 1:]),
        ]
    for ids, s, c in shifts:
        s, c = s.reshape(-1, s.shape[-1]), c.reshape(-1)
        for more, given in (((), s), (("double-softmax",), s.softmax(dim=-1))):
            for reduction in REDUCTIONS:
                made = F.cross_entropy(given, c, reduction=reduction, label_smoothing=smoothing)
                yield (*ids, *more), made


def _failing(loss: Callable, scores: Tensor, classes: Tensor):
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
