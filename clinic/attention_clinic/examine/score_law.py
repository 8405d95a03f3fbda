"""What a module adds to its scores, or to what it mixed, as a law of queries, keys and places.

Of many samples, each score is written as a number times the product of its query and its key, plus
a vector times the query, plus a vector times the key, plus a number: these are solved for, and must
give every score. Whatever depends on the tokens in another way stays unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.examine.offsets import layouts

CLOSE = 1e-6
ALIKE = 1e-5


@dataclass(frozen=True)
class Law:
    """How scores are made.

    Args:
        scale: what the product of query and key is multiplied by, (h,).
        asked: what the queries are multiplied with beside, (h, i, j, d), or None.
        answered: the same of the keys, or None.
        added: (h, i, j), or None.
    """

    scale: Tensor
    asked: Tensor | None = None
    answered: Tensor | None = None
    added: Tensor | None = None

    def parts(self) -> list[Tensor]:
        """Return what stands beside the product of query and key."""
        return [t for t in (self.asked, self.answered, self.added) if t is not None]

    def agrees(self, other: Law | None) -> bool:
        """Say whether another call has the same law: else it depends on the tokens."""
        if other is None or len(self.parts()) != len(other.parts()):
            return False
        pairs = zip(self.parts(), other.parts(), strict=True)
        return all(bool((a - c).abs().max() <= ALIKE * (1 + a.abs().max())) for a, c in pairs)


def law_of(s: Tensor, raw: Tensor, q: Tensor, k: Tensor, seen: Tensor) -> Law | None:
    """Return the law of scores, None where there is none.

    Args:
        s: the scores.
        raw: products of queries and keys.
        q: queries.
        k: keys.
        seen: which scores count.

    Shape:
        s, raw  (b, h, i, j)
        q       (b, h, i, d)
        k       (b, h, j, d)
        seen    (h, i, j)
    """
    b, h, i, j = s.shape
    d = q.shape[-1]
    s = s.double().masked_fill(~seen, 0.0)
    raw = raw.double() * seen
    scale = (s * raw).sum((0, 2, 3)) / raw.square().sum((0, 2, 3))
    limit = CLOSE * (1 + s.abs().max())
    if bool((s - scale[:, None, None] * raw).abs().max() <= limit):
        return Law(scale)
    one = torch.ones(b, h, i, j, 1, dtype=torch.float64)
    asks = q.double()[:, :, :, None].expand(b, h, i, j, d)
    answers = k.double()[:, :, None].expand(b, h, i, j, d)
    for more in ([], [asks], [answers], [asks, answers]):
        parts = torch.cat([raw[..., None], one, *more], dim=-1)
        if parts.shape[-1] + 4 > b:
            return None
        design = parts.permute(1, 2, 3, 0, 4)  # (h, i, j, b, m)
        wanted = s.permute(1, 2, 3, 0)[..., None]
        found = torch.linalg.lstsq(design, wanted).solution
        gap = ((design @ found - wanted)[..., 0].abs().amax(-1) * seen).max()
        if bool(gap > limit):
            continue
        found = found[..., 0]
        times = found[..., 0]
        scale = (times * seen).sum((1, 2)) / seen.sum((1, 2))
        if bool(((times - scale[:, None, None]) * seen).abs().max() > ALIKE):
            return None
        rest = iter(found[..., 2:].split(d, dim=-1))
        asked = next(rest) if any(t is asks for t in more) else None
        answered = next(rest) if any(t is answers for t in more) else None
        return Law(scale, asked, answered, found[..., 1])
    return None


def unshifted(s: Tensor, raw: Tensor, seen: Tensor) -> Tensor:
    """Return scores whose largest was taken from all of a query as they were before, if they were.

    Args:
        s: the scores, (b, h, i, j).
        raw: products of queries and keys, (b, h, i, j).
        seen: which scores count, (h, i, j).
    """
    s = s.double().masked_fill(~seen, 0.0)
    if bool(s.amax(dim=-1).abs().max() > CLOSE):
        return s
    count = seen.sum(-1, keepdim=True)
    mean, middle = ((t * seen).sum(-1, keepdim=True) / count for t in (s, raw.double()))
    ours, theirs = (s - mean) * seen, (raw.double() - middle) * seen
    scale = (ours * theirs).sum((0, 2, 3)) / theirs.square().sum((0, 2, 3))
    return (s - mean + scale[:, None, None] * middle) * seen


def mixed_law(made: Tensor, weights: Tensor) -> Tensor | None:
    """Return the vectors that weights mix beside the values, (h, i, j, d), None where they do not.

    Args:
        made: what is more than the values mixed, (b, h, i, d).
        weights: (b, h, i, j).
    """
    b, j = weights.shape[0], weights.shape[-1]
    if j + 4 > b:
        return None
    design, wanted = weights.double().permute(1, 2, 0, 3), made.double().permute(1, 2, 0, 3)
    found = torch.linalg.lstsq(design, wanted).solution
    gap = (design @ found - wanted).abs().max()
    return found if bool(gap <= CLOSE * (1 + wanted.abs().max())) else None


def kind_of_places(table: Tensor, seen: Tensor, grid: tuple[int, int] | None) -> str | None:
    """Say on what a table of vectors depends: "offset", "axes" (of an image), "key", or two things.

    These are "offset and key"; what belongs to a query's place alone, no softmax sees.

    Args:
        table: (h, n, n, d).
        seen: (h, n, n), which pairs count.
        grid: rows and columns of the places, where something says them.
    """
    n = table.shape[1]
    if table.shape[2] != n or not bool((seen == seen[0]).all()):
        return None
    kept = seen[0].flatten()
    flat = table.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)[kept]
    limit = ALIKE * (1 + flat.abs().max())
    for places in layouts(n, grid):
        away = (places[None] - places[:, None]).flatten(0, 1)[kept]
        shown = away.isfinite().all(dim=1)
        if not bool(shown.all()):
            continue
        which = away.unique(dim=0, return_inverse=True)[1]
        if _fits(flat, [which], limit):
            image = bool(places[:, 0].any())
            parts = [away[:, axis].unique(return_inverse=True)[1] for axis in (0, 1)]
            if image and _fits(flat, parts, limit):
                return "axes"
            return "offset"
        keys = torch.arange(n).repeat(n)[kept]
        rows = torch.arange(n).repeat_interleave(n)[kept]
        if bool(places[:, 0].any()):
            continue
        if _fits(flat, [keys, rows], limit):
            return "key"
        if _fits(flat, [which, keys, rows], limit):
            return "offset and key"
    return None


def _fits(flat: Tensor, parts: list[Tensor], limit: Tensor) -> bool:
    """Say whether vectors (m, c) are sums of some that each depend on one thing alone."""
    design = torch.cat([torch.nn.functional.one_hot(p) for p in parts], dim=1).double()
    rank = int(torch.linalg.matrix_rank(design))
    if rank + 2 > len(flat):  # as many unknown as there are: that proves nothing
        return False
    found = torch.linalg.pinv(design) @ flat
    return bool((design @ found - flat).abs().max() <= limit)
