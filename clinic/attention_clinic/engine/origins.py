"""Where numbers come from: columns of tokens that layers made, found again in other tensors.

A column is one number of each token, of all samples: (b * n). It is known again whatever the order
of axes is, times a factor, plus a constant. So nobody has to guess which weight is which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = (1e-6, 1e-5, 1e-8, 1e-12, 0.0, 1e-3)
NEAREST = 4  # columns that are compared number by number


@dataclass(frozen=True)
class Origin:
    """Where a column comes from.

    Args:
        layer: the number of the event that made it, -1 for the tokens themselves.
        column: its number there.
        norm: what norm was taken of it, "" for none.
    """

    layer: int
    column: int
    norm: str = ""


@dataclass(frozen=True)
class Hits:
    """Columns that were found again.

    Args:
        origins: of each, None where there is none.
        factor: of each, (c,).
        offset: of each, (c,).
    """

    origins: list[Origin | None]
    factor: Tensor
    offset: Tensor

    def all(self, plain: bool = True) -> bool:
        """Say whether all were found; `plain` wants them as they are, but for norms."""
        if any(origin is None for origin in self.origins):
            return False
        free = torch.tensor([bool(o and o.norm) for o in self.origins])
        same = ((self.factor - 1).abs() < 1e-5) & (self.offset.abs() < 1e-6)
        return not plain or bool((same | free).all())

    def grown(self) -> bool:
        """Say whether all are what one layer made, times one number: the next one may undo it."""
        layers = {origin and origin.layer for origin in self.origins}
        one = len(layers) == 1 and min(layers, key=bool) not in (None, -1)
        alike = (self.factor - self.factor[0]).abs() < 1e-6 * self.factor[0].abs()
        return one and bool((alike & (self.offset.abs() < 1e-6)).all())


def features(t: Tensor, b: int, n: int) -> Tensor | None:
    """Return a tensor as (b, n, m), whatever the order of its axes; None where it has no tokens.

    Args:
        t: any tensor.
        b: number of samples, which no other axis has.
        n: number of tokens.
    """
    if t.is_complex():
        return None
    shape = list(t.shape)
    if b in shape:
        t = t.movedim(shape.index(b), 0)
        rest = list(t.shape[1:])
        if n in rest:
            return t.movedim(1 + rest.index(n), 1).flatten(2) if t.ndim > 2 else None
        for i in range(len(rest) - 1):
            if rest[i] * rest[i + 1] == n:
                return t.flatten(1 + i, 2 + i).movedim(1 + i, 1).flatten(2)
        for i in range(len(rest) - 2):
            if rest[i] * rest[i + 1] * rest[i + 2] == n:
                return t.flatten(1 + i, 3 + i).movedim(1 + i, 1).flatten(2)
        return None
    for axis, size in enumerate(shape):
        if size == b * n:
            return t.movedim(axis, 0).flatten(1).unflatten(0, (b, n)) if t.ndim > 1 else None
    return None


class Pool:
    """The columns that are known.

    Args:
        close: the largest difference, relative to the numbers, that counts as equal.
    """

    def __init__(self, close: float) -> None:
        self.close = close
        self.origins: list[Origin] = []
        self.whole: list[Tensor] = []  # (b, n, m) each
        self.starts: list[int] = []
        self._made: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, t: Tensor, origins: list[Origin]) -> None:
        """Enter columns (b, n, m)."""
        self.starts.append(len(self.origins))
        self.whole.append(t.double())
        self.origins += origins
        self._made = None

    def replace(self, old: Tensor | None, new: Tensor | None) -> None:
        """Put other columns (b, n, m) in the place of some that were entered together."""
        if old is None or new is None or old.shape != new.shape:
            return
        for place, whole in enumerate(self.whole):
            if torch.equal(whole, old.double()):
                self.whole[place], self._made = new.double(), None

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return all columns (b * n, m), less their mean, and these of length 1."""
        if self._made is None:
            raw = torch.cat([t.flatten(0, 1) for t in self.whole], dim=1)
            centred = raw - raw.mean(dim=0)
            self._made = raw, centred, centred / centred.norm(dim=0).clamp(min=1e-300)
        return self._made

    def find(self, t: Tensor) -> Hits:
        """Find columns (b, n, c) again."""
        raw, centred, unit = self._columns()
        wanted = t.double().flatten(0, 1)
        mean = wanted.mean(dim=0)
        own = wanted - mean
        length = own.norm(dim=0)
        alike = (own / length.clamp(min=1e-300)).T @ unit
        near = alike.abs().topk(min(NEAREST, alike.shape[1]), dim=1).indices
        best = torch.full((len(near),), torch.inf, dtype=torch.float64)
        which = near[:, 0].clone()
        factor, offset = torch.ones_like(best), torch.zeros_like(best)
        for place in range(near.shape[1]):
            index = near[:, place]
            times = (own * centred[:, index]).sum(0) / centred[:, index].square().sum(0)
            more = mean - times * raw[:, index].mean(0)
            gap = (wanted - times * raw[:, index] - more).abs().amax(0)
            better = gap < best
            best = torch.where(better, gap, best)
            which = torch.where(better, index, which)
            factor, offset = torch.where(better, times, factor), torch.where(better, more, offset)
        size = wanted.abs().amax(0)
        fits = (best <= self.close * (1e-3 + size)) & (length > 1e-9)
        both = zip(which.tolist(), fits.tolist(), strict=True)
        found = [self.origins[i] if ok else None for i, ok in both]
        return Hits(found, factor, offset)

    def pairs(self, q: Tensor, t: Tensor, apart: int) -> Iterator[tuple[int, list[int]]]:
        """Yield where the turned pairs of a head may come from: numbers `apart` from each other.

        Args:
            q: the first numbers of the pairs, (b, n, p).
            t: the second ones.
            apart: the distance of both in the layer.

        Yields:
            The number of a tensor of the pool and the column of each pair there.
        """
        wanted = (q.double().square() + t.double().square()).flatten(0, 1)
        for number, whole in enumerate(self.whole):
            if whole.shape[2] <= apart:
                continue
            flat = whole.flatten(0, 1)
            size = flat[:, :-apart].square() + flat[:, apart:].square()
            alike = F.normalize(wanted, dim=0).T @ F.normalize(size, dim=0)
            top = alike.max(dim=1)
            if bool((top.values > 1 - 1e-4).all()):  # tables may be rounded
                yield number, top.indices.tolist()


def of_tokens(given: Tensor, made: Tensor, b: int, count: int) -> tuple[Tensor, Tensor]:
    """Return what a layer read and made without the rows that no token made, such as memories."""
    more = given.ndim == made.ndim in (3, 4) and given.shape[:-1] == made.shape[:-1]
    if not more or given.shape[0] != b or given.shape[-2] <= count:
        return given, made
    own = (given != given[:1]).transpose(0, -2).flatten(1).any(dim=1)
    fits = int(own.sum()) == count
    return (given[..., own, :], made[..., own, :]) if fits else (given, made)


def normed(t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what norms make of the last axis of a tensor, with their names."""
    square = t.square().mean(dim=-1, keepdim=True)
    away = t - t.mean(dim=-1, keepdim=True)
    spread = away.square().mean(dim=-1, keepdim=True)
    for eps in EPS:
        yield "rms", t * (square + eps).rsqrt()
        yield "layer", away * (spread + eps).rsqrt()
    yield "length", F.normalize(t, dim=-1)


def outside(t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what norms make whose eps stands outside of the root, with the id of that mistake."""
    root = t.square().mean(dim=-1, keepdim=True).sqrt()
    for eps in EPS[:3]:
        yield "rms-eps", t / (root + eps)


def after_norm(origin: Origin, kind: str) -> Origin:
    """Return the origin of a column that was normed."""
    return replace(origin, norm=kind)


def weighted(t: Tensor, norm: Tensor, close: float) -> bool:
    """Say whether each number of the last axis is one of a norm, times a factor, plus a number."""
    made, base = (one.flatten(0, -2) for one in (t, norm))
    made, base = (one - one.mean(dim=0) for one in (made, base))
    times = (made * base).sum(0) / base.square().sum(0).clamp(min=1e-300)
    return bool((made - times * base).abs().max() <= close * (1e-3 + made.abs().max()))


def scaled(t: Tensor, norm: Tensor, close: float) -> bool:
    """Say whether all numbers are those of a norm times one factor, which is no learned weight."""
    factor = (t * norm).sum() / norm.square().sum().clamp(min=1e-300)
    return bool((t - factor * norm).abs().max() <= close * (1e-3 + t.abs().max()))
