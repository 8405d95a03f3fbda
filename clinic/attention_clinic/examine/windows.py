"""Windows that a module cuts an image into: which token reaches which says where they lie.

Inside of its windows such a module is an attention like any other: tokens and results are cut in
the same way, and each window is examined as a sample of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import isqrt, prod

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import Scores
from attention_clinic.engine.parcels import Parcels

MOST = 256  # tokens, each of which is changed once
REACHED = 1e-9  # of the largest number of an output
SPREAD = re.compile(r"grid|dilat|long|global|spars|stride")  # windows over the whole image


@dataclass(frozen=True)
class Windows(Parcels):
    """The tokens of each window.

    Args:
        index: (w, m), tokens of an image by window, in the module's own order.
        sides: rows and columns of a window.
        near: (w, m, m), whether two tokens of a window are neighbours in the image: where windows
            are shifted around its edge, not all are.
    """

    sides: tuple[int, int]
    near: Tensor

    def by_head(self, scores: Tensor, b: int, h: int) -> list[Tensor]:
        """Return what a softmax got for the windows of b equal images, as it may lie.

        Args:
            scores: (..., m, m).
            b: number of images.
            h: number of heads.

        Returns:
            Tensors (w, h, m, m), what is alike in all windows first.
        """
        found = stacked(scores, b, len(self.index), h)
        return sorted(found, key=lambda t: not torch.allclose(t[:1].expand_as(t), t))


def stacked(scores: Tensor, b: int, w: int, h: int) -> list[Tensor]:
    """Return scores of b equal samples as (w, h, i, j), in every order of axes that fits.

    Args:
        scores: (..., i, j).
        b: number of samples.
        w: number of windows.
        h: number of heads.
    """
    sizes = {"b": b, "w": w, "h": h}
    found: list[Tensor] = []
    for order in permutations("bwh"):
        ordered = [sizes[letter] for letter in order]
        if not _merges(ordered, tuple(scores.shape[:-2])):
            continue
        axes = [order.index(letter) for letter in "bwh"]
        t = scores.reshape(*ordered, *scores.shape[-2:]).permute(*axes, 3, 4).double()
        if torch.allclose(t[:1].expand_as(t), t, equal_nan=True):
            found += [t[0]] * all(not torch.equal(t[0], other) for other in found)
    return found


def _merges(sizes: list[int], lead: tuple[int, ...]) -> bool:
    """Say whether axes of these sizes are those of a shape, neighbours merged on either side."""
    if prod(sizes) != prod(lead):
        return False
    ours, theirs = ([size for size in axes if size > 1] for axes in (sizes, lead))
    while ours and theirs:
        one, other = [ours.pop(0)], [theirs.pop(0)]
        while prod(one) != prod(other):
            less, rest = (one, ours) if prod(one) < prod(other) else (other, theirs)
            less.append(rest.pop(0))
        if len(one) > 1 and len(other) > 1:
            return False
    return True


@torch.no_grad()
def windows_of(
    module: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    h: int,
    grid: tuple[int, int] | None,
) -> Windows | None:
    """Return the windows that a module cuts its tokens into, None when it cuts none.

    Args:
        module: the copy, whose words say whether its windows may be spread over the image.
        run: calls it.
        x: tokens, (b, n, e).
        h: number of heads.
        grid: rows and columns of the tokens, None where nothing says them.
    """
    b, n, _ = x.shape
    parcels = getattr(module, "parcels", None)
    if isinstance(parcels, Parcels):  # the block around it was heard to cut them
        return _of_parcels(parcels)
    with Scores() as scores:
        run(x)
    sizes = [t.shape[-1] for t in scores.heard if t.ndim > 2 and t.shape[-1] == t.shape[-2]]
    sizes = [m for m in sizes if 1 < m < n and n % m == 0]
    if not sizes or n > MOST:
        return None
    m = sizes[0]
    if all(t.numel() != b * h * n * m for t in scores.heard if t.shape[-1] == m):
        return None
    try:
        reach = _reach(run, x)
    except Exception:
        return None
    for windows in _ways(module, n, m, grid):
        place = torch.empty(n, dtype=torch.long)
        place[windows.index] = torch.arange(len(windows.index))[:, None]
        if not bool((reach & (place[:, None] != place)).any()):
            return windows
    return None


def is_in_quarters(runs: Callable[[], bool], n: int) -> bool:
    """Say whether a module weighs tokens in four windows; of a quarter of them it makes one.

    Nothing shows in that one that it cuts any.

    Args:
        runs: calls it on n tokens, and says whether it takes them.
        n: how many there are.
    """
    if n > MOST:
        return False
    with Scores() as scores:
        if not runs():
            return False
    sizes = [t.shape[-1] for t in scores.heard if t.ndim > 2 and t.shape[-1] == t.shape[-2]]
    return bool(sizes) and all(4 * size == n for size in sizes)


def _of_parcels(parcels: Parcels) -> Windows | None:
    """Return the windows of an image that parcels are, None where they are none."""
    first, n = parcels.index[0], parcels.index.numel()
    m, steps = len(first), parcels.index[0].diff()
    across = int(steps[0])
    wide = 1 + int((steps == across).int().cumprod(0).sum())
    columns = n if wide == m else int(first[wide] - first[0]) if across == 1 else across * wide
    if m % wide or columns < 1 or n % columns:
        return None
    rows, high = n // columns, m // wide
    if rows % high or columns % wide:
        return None
    for spread, down, right in product((False, True), range(high), range(wide)):
        windows = _cut(rows, columns, (high, wide), (down, right), spread)
        if torch.equal(windows.index, parcels.index):
            return windows
    return None


def _reach(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return which token's result changes with which token, (n, n)."""
    n = x.shape[1]
    blank = x[:1]
    changed = blank.repeat(n, 1, 1)
    changed[torch.arange(n), torch.arange(n)] += 1.0
    y = run(blank)
    parts = [run(part) for part in changed.split(64)]
    gap = (torch.cat(parts) - y).abs().amax(dim=2)  # (j, i)
    limit = REACHED * y.abs().max()
    return limit < gap.T


def _ways(module: nn.Module, n: int, m: int, grid: tuple[int, int] | None) -> Iterator[Windows]:
    """Yield the ways to cut n tokens into windows of m, the plainest first.

    A window that is no square of neighbours is one only where the module says so: an image whose
    axes were mixed up is cut into such parts, too.
    """
    square = (isqrt(n), isqrt(n)) if isqrt(n) ** 2 == n else None
    module = getattr(module, "cut_from", module)
    own = vars(module).items()
    pairs = [tuple(v) for _, v in own if isinstance(v, tuple | list) and len(v) == 2]
    pairs = [pair for pair in pairs if all(isinstance(side, int) for side in pair)]
    words = " ".join([type(module).__name__, *(f"{k} {v}" for k, v in own if isinstance(v, str))])
    row = None if pairs or grid else (1, n)
    for rows, columns in dict.fromkeys(g for g in (grid, square, row) if g is not None):
        sides = [(a, m // a) for a in range(1, m + 1) if m % a == 0]
        sides = [s for s in sides if s[0] == s[1] or s in pairs or (rows == 1 and s[0] == 1)]
        for (high, wide), spread in product(sides, (False, True)):
            if rows % high or columns % wide or (spread and not SPREAD.search(words.lower())):
                continue
            shifts = ((0, 0), (high // 2, wide // 2)) if not spread else ((0, 0),)
            for down, right in dict.fromkeys(shifts):
                yield _cut(rows, columns, (high, wide), (down, right), spread)


def _cut(
    rows: int, columns: int, sides: tuple[int, int], shift: tuple[int, int], spread: bool
) -> Windows:
    """Cut an image into windows of neighbours, or of tokens spread over it."""
    high, wide = sides
    tokens = torch.arange(rows * columns).view(rows, columns)
    edge = (torch.arange(rows)[:, None] < shift[0]) * 2 + (torch.arange(columns) < shift[1]) * 1
    windows = []
    for t in (tokens, edge):
        t = t.roll((-shift[0], -shift[1]), (0, 1))
        if spread:
            t = t.view(high, rows // high, wide, columns // wide).permute(1, 3, 0, 2)
        else:
            t = t.view(rows // high, high, columns // wide, wide).permute(0, 2, 1, 3)
        windows.append(t.reshape(-1, high * wide))
    index, at_edge = windows
    near = torch.ones(*index.shape, index.shape[1], dtype=torch.bool)
    if any(shift):
        near = at_edge[:, :, None] == at_edge[:, None]
    return Windows(index, sides, near)
