"""Turns that are none: the same at all places, or by two angles for the two numbers of a pair.

What was done to a head is solved for, as a matrix for each place: of many samples, the numbers
before and after it give it, however it was written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.bugs.turned import mixed_words
from attention_clinic.bugs.turns import MEANT, base_of, is_mistaken, rule_words, stretched
from attention_clinic.engine.origins import Pool
from attention_clinic.examine.turning_law import CLOSE, Turned, pairings

MORE = 4  # samples than numbers of a head: else any matrix fits
SAME = 1e-5
Wrong = tuple[tuple[str, ...], str]  # ids, and what was seen


def crooked_of(pool: Pool, heads: Tensor) -> Turned | None:
    """Return what was done to whole heads by a matrix for each place, None where nothing fits.

    Args:
        pool: what layers made.
        heads: (b, h, n, w).
    """
    width = heads.shape[-1]
    if width % 2 or width < 4 or len(heads) < width + MORE:
        return None
    found = [_of_head(pool, head.double()) for head in heads.unbind(1)]
    if any(one is None for one in found):
        return None
    origins = [pool.origins[first : first + width] for first, _ in found]
    matrices = torch.stack([made for _, made in found])
    weights = _weights(matrices)
    normed = all(origin.norm for row in origins for origin in row)
    if weights is None or not (normed or bool((weights - 1).abs().max() <= SAME)):
        return None
    unturned = torch.ones(heads.shape[2], width // 2, dtype=torch.complex128)
    return Turned(origins, unturned, "", matrices / weights[:, None, :, None])


def _of_head(pool: Pool, head: Tensor) -> tuple[int, Tensor] | None:
    """Return the number of the first column of a head (b, n, w), and its matrices, (n, w, w)."""
    width = head.shape[-1]
    wanted, limit = head.transpose(0, 1), 10 * pool.close * head.abs().max()
    for whole, start in zip(pool.whole, pool.starts, strict=True):
        for place in range(0, whole.shape[2] - width + 1, width):
            before = whole[..., place : place + width].transpose(0, 1)
            for tokens in (slice(1), slice(None)):  # the first one says whether it may be
                made = torch.linalg.lstsq(before[tokens], wanted[tokens]).solution
                gap = (before[tokens] @ made - wanted[tokens]).abs().max()
                if bool(gap > limit):
                    break
            else:
                return start + place, made
    return None


def _weights(matrices: Tensor) -> Tensor | None:
    """Return what the numbers of heads are multiplied by before they are turned, (h, w).

    Args:
        matrices: (h, n, w, w); the first token is turned by nothing, or as all others are.
    """
    first = matrices[:, 0]
    if bool((matrices - matrices[:, :1]).abs().max() <= SAME):
        return first.norm(dim=-1)
    own = first.diagonal(dim1=1, dim2=2)
    return None if bool((first - own.diag_embed()).abs().max() > SAME) else own


def wrong_turn(
    one: Turned | None, other: Turned | None, told: frozenset[float] = frozenset()
) -> Wrong | None:
    """Return what is wrong with how queries and keys are turned, None where that is not known.

    Args:
        one: the turn of the queries, None where they are not turned.
        other: that of the keys.
        told: the numbers that the module and its code say, of which the base may be one.
    """
    sides = [side for side in (one, other) if side is not None]
    if all(_still(side) for side in sides):
        heads = any(side.matrices is not None for side in sides)
        who = "each head is turned by its own number" if heads else "all tokens are turned alike"
        return ("rotary-no-effect",), f"{who}, whatever the place"
    if one is None or other is None or one.matrices is None or other.matrices is None:
        return None
    first = one.matrices[0]
    if any(bool((side.matrices - first).abs().max() > SAME) for side in sides):
        return None
    return _mixed(first, told)


def _still(side: Turned) -> bool:
    """Say whether all places are turned alike, and something is."""
    if side.matrices is None:
        return bool((side.turn - side.turn[:1]).abs().max() <= SAME) and not bool(
            ((side.turn.abs() - 1).abs() > CLOSE).any()
        )
    matrices = side.matrices
    if bool((matrices - matrices[:, :1]).abs().max() > SAME):
        return False
    one = matrices[:, 0]
    straight = torch.eye(one.shape[-1], dtype=one.dtype)
    apart = one @ one.mT - straight
    paired = ((one.abs() > SAME).sum(1) <= 2).all()  # each number is made of two at most
    return bool(apart.abs().max() <= CLOSE) and bool(paired)


def _mixed(matrices: Tensor, told: frozenset[float]) -> Wrong | None:
    """Return the name where two numbers turn together, each by the angle of another pair.

    Args:
        matrices: (n, w, w), rows are the numbers before.
        told: see `wrong_turn`.
    """
    n, width, _ = matrices.shape
    place = torch.arange(n, dtype=torch.float64)[:, None]
    for layout, first, second in list(pairings(width))[:2]:
        turns, speeds = [], torch.zeros(width, dtype=torch.float64)
        rest = matrices.clone()
        for own, beside, sign in ((first, second, -1), (second, first, 1)):
            turn = torch.complex(matrices[:, own, own], sign * matrices[:, beside, own])
            rest[:, own, own] = rest[:, beside, own] = 0
            speeds[own] = turn[1].angle()
            turns.append((turn - torch.polar(torch.ones(()).double(), place * speeds[own])).abs())
        if bool(rest.abs().max() > CLOSE) or any(bool(gap.max() > CLOSE) for gap in turns):
            continue
        sign = -1 if bool(speeds.median() < 0) else 1
        neighbours = (speeds[0::2], speeds[1::2])
        laid, again = neighbours if layout == "halves" else speeds.chunk(2)
        if not torch.allclose(laid, again, atol=CLOSE):
            continue
        if torch.allclose(speeds[first], speeds[second], atol=CLOSE):
            return None
        base, said = base_of(sign * laid), mixed_words(layout)
        if base is not None and not is_mistaken(base, told):
            return ("rotary-mixed",), said
        if stretched(sign * laid, {MEANT, *told}):
            return ("rotary-mixed",), said
        return ("rotary-mixed", "rotary-frequencies"), f"{said}; {rule_words(laid, MEANT)}"
    return None
