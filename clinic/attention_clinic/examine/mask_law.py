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

    It is right where a token gets what a text of the tokens that it may attend to gives it, with
    no mask.

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
    before, y = free(x), masked(x)
    if same(before, y):
        return "dropped"
    if not y.isfinite().all():
        return ""
    rows = [(s, i) for s in range(b) for i in range(n) if sees[s, i, i] and not sees[s, i].all()]
    rows = rows[:: max(1, len(rows) // ROWS)]
    try:
        if len(rows) > 1 and all(_alone(free, x, y, sees, *row) for row in rows):
            return "right"
    except (RuntimeError, ValueError, IndexError):  # it takes texts of one length
        return ""
    reached = torch.zeros(b, n, n, dtype=torch.bool)
    for place in range(n):
        other = x.clone()
        other[:, place] += torch.arange(x.shape[2]).to(x).cos()
        reached[:, :, place] = (masked(other) - y).abs().amax(dim=2) > 1e-9
    apart = ~torch.eye(n, dtype=torch.bool)
    return "inverted" if torch.equal(reached & apart, ~sees & apart) else ""


def _alone(
    free: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, sees: Tensor, s: int, i: int
) -> bool:
    """Say whether a token gets the same from a text of those alone that it may attend to."""
    held = sees[s, i].nonzero()[:, 0]
    place = int((held == i).nonzero()[0, 0])
    return same(free(x[s : s + 1, held])[0, place], y[s, i])
