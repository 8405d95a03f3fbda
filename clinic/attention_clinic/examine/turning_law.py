"""By what queries and keys were turned, read off the numbers before and after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.bugs.turns import MOST, base_of, stretched
from attention_clinic.engine.origins import Origin, Pool
from attention_clinic.examine.offsets import layouts

CLOSE = 1e-4
UNSEEN = 1e-5  # an angle that turns a number into the same
ROUNDED = 2**-8  # of numbers about 1 in bfloat16
BASES = (10_000.0, 500_000.0, 1_000_000.0)


@dataclass(frozen=True)
class Turned:
    """Numbers of a head that were turned.

    Args:
        origins: of each number of each head, (h) lists of (w).
        turn: by what, for each token and pair, (n, w / 2), complex.
        layout: "halves" or "pairs": how the numbers that turn together lie in the layer that makes
            them, whatever is done with them before they turn.
        matrices: what each head was multiplied by at each place where that is no such turn,
            (h, n, w, w).
    """

    origins: list[list[Origin]]
    turn: Tensor
    layout: str
    matrices: Tensor | None = None


def pairings(width: int) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield which numbers of so many turn together."""
    half, quarter = width // 2, width // 4
    yield "halves", list(range(half)), list(range(half, width))
    yield "pairs", list(range(0, width, 2)), list(range(1, width, 2))
    if width % 4 == 0 and quarter > 1:  # halves of halves: one for each axis of an image
        first = [*range(quarter), *range(half, half + quarter)]
        yield "halves", first, [i + quarter for i in first]


def turned_of(pool: Pool, heads: Tensor) -> Turned | None:
    """Return what was turned, None where these numbers are no turned columns of a layer.

    Args:
        pool: what layers made.
        heads: (b, h, n, w).
    """
    width = heads.shape[-1]
    if width % 2 or width < 4:
        return None
    for _, first, second in pairings(width):
        for apart in dict.fromkeys((width // 2, 1, width // 4)):
            found = [_of_head(pool, head, first, second, apart) for head in heads.unbind(1)]
            if any(one is None for one in found):
                continue
            turn = found[0][1]
            if all(bool((one[1] - turn).abs().max() <= 1e-6) for one in found):
                lying = "pairs" if apart == 1 else "halves"
                return Turned([one[0] for one in found], turn, lying)
    return None


def _of_head(
    pool: Pool, head: Tensor, first: list[int], second: list[int], apart: int
) -> tuple[list[Origin], Tensor] | None:
    """Return the origins of the numbers of one head (b, n, w), and by what they are turned."""
    one, other = head[..., first], head[..., second]
    made = torch.complex(one.double(), other.double())
    for number, columns in pool.pairs(one, other, apart):
        if len({*columns, *(c + apart for c in columns)}) < 2 * len(columns):
            continue
        whole, start = pool.whole[number], pool.starts[number]
        before = torch.complex(whole[..., columns], whole[..., [c + apart for c in columns]])
        turn = (made * before.conj()).sum(0) / before.abs().square().sum(0)
        if bool((made - turn * before).abs().max() > 10 * pool.close * made.abs().max()):
            continue
        origins = [pool.origins[start + c] for c in columns]
        origins += [pool.origins[start + c + apart] for c in columns]
        return origins, turn
    return None


def names_of_turn(
    turned: Turned, width: int, grid: tuple[int, int] | None, bases: tuple[float, ...]
) -> tuple[str, ...] | None:
    """Return the names of a turn by the places, None where it follows no rule of these.

    Args:
        turned: what was turned, of the queries.
        width: of a head, of which the last pairs may be turned too little to be seen.
        grid: rows and columns of the tokens, where something says them.
        bases: of its angles, where the module says them.
    """
    turn = _slowest(turned.turn, width // 2)
    partial = ("rotary-partial",) * (turn.shape[1] < width // 2)
    if bool((turn.abs() - 1).abs().max() > 0.01):
        return None
    if is_rounded(turned):
        return _rounded(turned, bases, partial)
    for places in layouts(len(turn), grid):
        read = _frequencies(turn, places)
        if read is None:
            continue
        found, axes = read
        flat = not bool(places.nan_to_num(0.0)[:, 0].any())
        back = ("rotary-backwards",) * bool(found.median() < 0)
        found = -found if back else found
        name = f"rotary-{turned.layout}"
        if flat:
            base = base_of(found)
            known = base is not None and any(math.isclose(base, b, rel_tol=1e-3) for b in bases)
            free = bases == BASES  # the module says none
            known = known or (free and base is not None and min(BASES) < base <= MOST)
            if not known and not stretched(found, {*bases, *BASES}):
                return None
            return (name, *partial, *back, *("rotary-scaled",) * (not known))
        sides = [found[axes == axis] for axis in (0, 1)]
        if all(_follows(side) for side in sides):
            return ("rotary-axes", *partial)
    return None


def _slowest(turn: Tensor, pairs: int) -> Tensor:
    """Return a turn with that of all pairs, (n, pairs), where those that are left are too slow.

    Args:
        turn: (n, p), by what the first pairs turn.
    """
    speeds = turn[1].angle().abs()
    if not 2 <= len(speeds) < pairs or not bool((speeds > 0).all()):
        return turn
    step = speeds[-1] / speeds[-2]
    rest = speeds[-1] * step ** torch.arange(1, pairs - len(speeds) + 1)
    if bool(rest[:1] * len(turn) > UNSEEN):
        return turn
    place = torch.arange(len(turn), dtype=speeds.dtype)[:, None]
    return torch.cat([turn, torch.polar(torch.ones_like(place * rest), place * rest)], dim=1)


def is_rounded(turned: Turned) -> bool:
    """Say whether cosines and sines were rounded before they were used."""
    return bool((turned.turn.abs() - 1).abs().max() > CLOSE)


def _frequencies(turn: Tensor, places: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the angle of each pair from one place to the next, and by which axis; or None."""
    shown = places.isfinite().all(dim=1)
    if not bool((turn[~shown] - 1).abs().max() <= CLOSE if (~shown).any() else True):
        return None
    seen, rest = places[shown].double(), turn[shown]
    begin = rest[(seen == 0).all(dim=1)][0]
    found = torch.zeros(turn.shape[1], dtype=torch.float64)
    axes = torch.full((turn.shape[1],), -1)
    for axis in (1, 0):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = 1
        unit = (seen == step).all(dim=1)
        if not unit.any():
            continue
        angles = (rest[unit][0] * begin.conj()).angle()
        again = begin * torch.polar(torch.ones_like(angles), seen[:, axis, None] * angles)
        fits = ((again - rest).abs().amax(0) <= CLOSE) & (axes < 0)
        found[fits], axes[fits] = angles[fits], axis
    return None if bool((axes < 0).any()) else (found, axes)


def _follows(speeds: Tensor) -> bool:
    """Say whether angles are powers of one number, or equally far from each other."""
    if len(speeds) < 2 or bool((speeds <= 0).any()) or len(speeds.unique()) < len(speeds):
        return False
    steps, ratios = speeds.diff(), speeds[1:] / speeds[:-1]
    return bool((steps - steps[0]).abs().max() < CLOSE or (ratios - ratios[0]).abs().max() < CLOSE)


def _rounded(
    turned: Turned, bases: tuple[float, ...], partial: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the names where cosines and sines were rounded to bfloat16 before they were used."""
    turn = turned.turn
    n, pairs = turn.shape
    parts = torch.view_as_real(turn)
    if bool((parts.bfloat16().double() - parts).abs().max() > 1e-6):
        return None
    place = torch.arange(n, dtype=torch.float64)[:, None]
    steps = torch.arange(pairs, dtype=torch.float64) / pairs
    for base in bases:
        for sign in (1, -1):
            angles = sign * place * math.e ** (-math.log(base) * steps)
            right = torch.polar(torch.ones_like(angles), angles)
            if bool((right - turn).abs().max() < 2 * ROUNDED):
                back = ("rotary-backwards",) * (sign < 0)
                return (f"rotary-{turned.layout}", *partial, *back)
    return None
