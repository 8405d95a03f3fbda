"""What a mask does, by its effects alone: nothing, the right thing, the contrary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_clinic.engine.patient import same

ROWS = 40  # that are compared with a text of the allowed tokens alone


def law_of_mask(
    free: Callable[[Tensor], Tensor], masked: Callable[[Tensor], Tensor], x: Tensor, allow: Tensor
) -> str:
    """Return "dropped", "right", "inverted", or "" where the effects say nothing of these.

    "unheard" is a mask of what reaches nobody without it, either. It is right where a token gets
    what a text of the tokens that it may attend to gives it, with no mask.

    Args:
        free: calls the module without the mask, on texts of any length.
        masked: calls it with the mask.
        x: tokens.
        allow: who may attend to whom.

    Shape:
        x      (b, n, e)
        allow  (1 or b, 1 or h, 1 or n, n)
    """
    b, n, _ = x.shape
    if bool(allow.all()) or bool((allow != allow[:, :1]).any()):
        return ""
    sees = allow[:, 0].expand(b, n, n)
    apart = ~torch.eye(n, dtype=torch.bool)
    before, y = free(x), masked(x)
    if same(before, y):
        return "dropped" if bool((_reached(free, x) & ~sees & apart).any()) else "unheard"
    if not y.isfinite().all():
        return ""
    rows = [(s, i) for s in range(b) for i in range(n) if sees[s, i, i] and not sees[s, i].all()]
    rows = rows[:: max(1, len(rows) // ROWS)]
    try:
        if len(rows) > 1 and all(_alone(free, x, y, sees, *row) for row in rows):
            return "right"
    except (RuntimeError, ValueError, IndexError):  # it takes texts of one length
        return ""
    asks = (~sees).any(dim=2)  # inverted; who may attend to nothing has weights of some other kind
    apart = asks[:, :, None] & apart
    inverted = bool(asks.any()) and torch.equal(_reached(masked, x) & apart, ~sees & apart)
    return "inverted" if inverted else ""


def law_of_context_mask(
    free: Callable[[Tensor, Tensor], Tensor], y: Tensor, x: Tensor, context: Tensor, allow: Tensor
) -> str:
    """Return what `law_of_mask` returns, of the mask of a context.

    It is right where each sample gets what it gets of the allowed tokens of its context alone.

    Args:
        free: calls the module without a mask of the context, on a context of any length.
        y: what it gives with the mask.
        x: tokens.
        context: tokens of the context.
        allow: who may attend to which of them.

    Shape:
        x        (b, n, e)
        context  (b, j, c)
        allow    (1 or b, 1 or h, 1 or n, j)
    """
    b = len(x)
    if bool(allow.all()) or bool((allow != allow[:, :1, :1]).any()):
        return ""
    before = free(x, context)
    if same(before, y):
        return "unheard" if same(before, free(x, context.flip(-1))) else "dropped"
    sees = allow[:, 0, 0].expand(b, -1)
    for law, kept in (("right", sees), ("inverted", ~sees)):
        told = [s for s in range(b) if bool(kept[s].any())]
        if told and all(
            same(free(x[s : s + 1], context[s : s + 1, kept[s]])[0], y[s]) for s in told
        ):
            return law
    return ""


def _reached(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return which tokens get another result where another token changes, (b, n, n)."""
    b, n, e = x.shape
    y, reached = run(x), torch.zeros(b, n, n, dtype=torch.bool)
    for place in range(n):
        other = x.clone()
        other[:, place] += torch.arange(e).to(x).cos()
        reached[:, :, place] = (run(other) - y).abs().amax(dim=2) > 1e-9
    return reached


def _alone(
    free: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, sees: Tensor, s: int, i: int
) -> bool:
    """Say whether a token gets the same from a text of those alone that it may attend to."""
    held = sees[s, i].nonzero()[:, 0]
    place = int((held == i).nonzero()[0, 0])
    return same(free(x[:, held])[s, place], y[s, i])
