"""The waves of a table of positions: how far the angle of a column moves from place to place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

PAIRS_READ = 6  # whose waves are read: the fastest ones
STEPS = (2.0, 1.0, 0.5, 4.0)  # of the exponents from pair to pair: 1 is right
MOST = 64  # places that are read; what is found must hold for all
FEW = 24  # places that the search begins with
FAST, SLOW = 3.0, 0.05  # angles between which a speed can be read: at one place, and over all
NEAR = 2e-3  # two numbers of a rule are the same


def speeds(columns: Tensor, places: Tensor, bend: Callable[[Tensor], Tensor]) -> list[float | None]:
    """Return the angle by which each column moves per place, None where it is no such wave.

    A search over all speeds, then Gauss-Newton on the logarithm of the nearest.

    Args:
        columns: of a table.
        places: their numbers.
        bend: sine or cosine.

    Shape:
        columns  (n, c)
        places   (n,)
    """
    columns, places = columns[:MOST], places[:MOST]
    grid = torch.logspace(-9, math.log10(math.pi), 600, dtype=torch.float64)
    waves = bend(places[:FEW, None] * grid)
    apart = (columns[:FEW, :, None] - waves[:, None]).square().sum(dim=0)
    log = grid[apart.argmin(dim=1)].log()
    for many in (FEW,) * 8 + (MOST,) * 8:
        place = places[:many, None]
        made = bend(place * log.exp())
        slope = (bend(place * (log + 1e-6).exp()) - made) / 1e-6
        step = ((columns[:many] - made) * slope).sum(0) / slope.square().sum(0).clamp(min=1e-30)
        log = log + step.clamp(-0.05, 0.05)
    found = log.exp()
    gap = (bend(places[:, None] * found) - columns).abs().amax(dim=0)
    sure = (gap <= 1e-6 * max(10, len(places))) & (found < FAST) & (found * len(places) > SLOW)
    return [
        speed if fits else None for speed, fits in zip(found.tolist(), sure.tolist(), strict=True)
    ]


def rule_of(found: list[float | None], base: float, e: int) -> tuple[float, float] | None:
    """Return (s, o) where the speeds of the pairs p are base ** (-2 (s p + o) / e), or None.

    Args:
        found: a speed for each pair, None where it could not be read.
        base: of the powers.
        e: the width.
    """
    read = [
        (pair, -math.log(speed) / math.log(base) * e / 2)
        for pair, speed in enumerate(found)
        if speed is not None
    ]
    if len(read) < 2:
        return None
    (first, low), (second, high) = read[:2]
    step = (high - low) / (second - first)
    start = low - step * first
    pairs = e // 2
    steps = [*STEPS, e / (e - 1), *([pairs / (pairs - 1)] if pairs > 1 else [])]
    if abs(step) < NEAR:
        return 0.0, round(2 * start) / 2 if abs(2 * start - round(2 * start)) < NEAR else start
    near = min(steps, key=lambda s: abs(s - step))
    half = round(2 * start) / 2
    sure = abs(near - step) < NEAR * near and abs(start - half) < NEAR and abs(half) <= 2
    return (near, half) if sure else None


def bases_of(found: list[float | None], e: int) -> Iterator[float]:
    """Yield the round numbers whose powers the speeds of the pairs may be, by a wrong rule.

    Args:
        found: a speed for each pair, None where it could not be read.
        e: the width.
    """
    read = [(pair, math.log(speed)) for pair, speed in enumerate(found) if speed is not None]
    if len(read) < 3:
        return
    (first, high), (second, low) = read[:2]
    slope = (high - low) / (second - first)
    for step in STEPS:
        power = slope * e / (2 * step)
        used = float(f"{math.exp(power):.1g}") if 0.5 < power < 50 else 1.0
        if used > 1 and math.isclose(math.exp(power), used, rel_tol=NEAR):
            yield used


def exponents_of(table: Tensor, places: Tensor, base: float) -> Iterator[Tensor]:
    """Yield the exponents of waves that follow no powers at all, one for each pair.

    Sine and cosine of a pair have the same wave, beside each other or in halves.

    Args:
        table: of an even width.
        places: the numbers of its rows.
        base: of the powers.

    Shape:
        table   (n, e)
        places  (n,)
        result  (e / 2,)
    """
    e = table.shape[1]
    for first, second in ((range(0, e, 2), range(1, e, 2)), (range(e // 2), range(e // 2, e))):
        if e % 2:
            continue
        found = turning(torch.complex(table[:, list(second)], table[:, list(first)]), places)
        if found is None or len({*found.tolist()}) < 3 or bool((found > math.pi).all()):
            continue
        made = -found.log() / math.log(base)  # infinity where nothing turns
        steps = made[made.isfinite()].diff()
        if bool((steps - steps.mean()).abs().max() > 1e-4):  # else powers of another base
            yield made


def turning(points: Tensor, places: Tensor) -> Tensor | None:
    """Return the angle, 0 to 2 pi, by which each column turns from place to place.

    A pair of a cosine and a sine is one complex number. None where a column is no such turn.

    Args:
        points: cosines, and sines as the imaginary part.
        places: their numbers, one after another.

    Shape:
        points  (n, c)
        places  (n,)
        result  (c,)
    """
    if bool((points.abs() - 1).abs().max() > 1e-4) or bool((places.diff() != 1).any()):
        return None
    angle = (points[1:] * points[:-1].conj()).sum(dim=0).angle()
    for _ in range(2):  # what is left is a small angle that grows with the place
        left = (points * torch.polar(torch.ones_like(angle), -angle * places[:, None])).angle()
        angle = angle + (left * places[:, None]).sum(dim=0) / places.square().sum()
    made = torch.polar(torch.ones_like(points.real), angle * places[:, None])
    if bool((made - points).abs().max() > 1e-6 * max(10, len(places))):
        return None
    angle = torch.where(angle.abs() < 1e-9, 0.0, angle)
    return torch.where(angle < 0, angle + 2 * math.pi, angle)
