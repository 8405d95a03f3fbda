"""Numbers of a head, turned by angles: as they should be, or with a slip in the line."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.bugs.models import HALVES

# what stands in the place of (-second, first): how often the first and the second number, each
ACROSS = {
    "(-first, first)": ((-1, 0), (1, 0)),
    "(-first, second)": ((-1, 0), (0, 1)),
    "(second, first)": ((0, 1), (1, 0)),
    "(-second, second)": ((0, -1), (0, 1)),
    "(-second, -first)": ((0, -1), (-1, 0)),
}


def turned(
    t: Tensor,
    angles: Tensor,
    layout: str = HALVES,
    table: str | None = None,
    rows: tuple[tuple[int, int], ...] = ((0, -1), (1, 0)),
) -> Tensor:
    """Turn the first numbers of each head, the others stay as they are.

    Args:
        t: queries or keys.
        angles: of each pair at each place.
        layout: what a pair is: numbers p and p + w/2, or neighbours.
        table: for which layout the cosines and sines are laid out; None is the same.
        rows: what is taken of both numbers of a pair, times the sine.

    Shape:
        t       (..., n, d)
        angles  (n, w/2), or (h, 1, w/2)
        result  (..., n, d)
    """
    width = 2 * angles.shape[-1]
    angles = angles.to(t)
    wide = (
        torch.cat([angles, angles], dim=-1)
        if (table or layout) == HALVES
        else angles.repeat_interleave(2, dim=-1)
    )
    t, rest = t[..., :width], t[..., width:]
    pair = t.chunk(2, dim=-1) if layout == HALVES else (t[..., 0::2], t[..., 1::2])
    made = [times[0] * pair[0] + times[1] * pair[1] for times in rows]
    across = torch.cat(made, dim=-1) if layout == HALVES else torch.stack(made, -1).flatten(-2)
    return torch.cat([t * wide.cos() + across * wide.sin(), rest], dim=-1)


def places(t: Tensor) -> Tensor:
    """Return the places of the tokens of queries or keys, (n, 1)."""
    return torch.arange(t.shape[-2], dtype=torch.float64)[:, None]


def mixed_words(layout: str) -> str:
    """Say of numbers that turn so that their angles are laid out for the other way."""
    laid, turn = ("neighbours", "halves") if layout == HALVES else ("halves", "neighbours")
    return f"angles for {laid}, {turn} turned"
