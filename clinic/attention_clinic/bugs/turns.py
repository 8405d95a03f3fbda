"""By how much a module turned its queries, read off what it made on its way to the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from attention_clinic.bugs.models import HALVES, PAIRS
from attention_clinic.engine.forms import State
from attention_clinic.engine.waves import rule_of

CLOSE = 1e-4  # of two angles, for a module in single precision
ROUNDED = 5e-6  # an angle below it is not read well enough in single precision
SAMPLES = 2  # at least: one alone says little
MEANT = 10_000.0
MOST = 1e7  # a base above it is none
LEAST = 1000.0  # a base below it is none, unless somebody wrote it


def frequencies(width: int, base: float) -> Tensor:
    """Return the angle of each pair at place 1, (width / 2,)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def spread_wrongly(width: int, base: float, embed_dim: int) -> Iterator[tuple[str, Tensor]]:
    """Yield wrong frequencies, (width / 2,) each, with what they are."""
    steps = torch.arange(width // 2, dtype=torch.float64)
    right = frequencies(width, base)
    yield "base ** (-p / head_dim): half the exponent", base ** (-steps / width)
    yield "base ** (-4 p / head_dim): the factor 2 twice", base ** (-4 * steps / width)
    yield "the slowest pair comes first", right.flip(0)
    yield "base ** (-2 p / embed_dim)", base ** (-2 * steps / embed_dim)
    yield "base ** (2 p / head_dim): the angles grow", 1 / right
    yield "pairs are counted from 1", base ** (-2 * (steps + 1) / width)
    yield "pairs are counted from -1", base ** (-2 * (steps - 1) / width)
    yield "base ** (-(2 p + 1) / head_dim)", base ** (-(2 * steps + 1) / width)
    yield "all pairs turn alike", torch.ones_like(right)


def measured(state: State) -> Iterator[tuple[str, str, Tensor]]:
    """Yield what makes a pair, how its angles are laid out, and that of each at place 1, (d / 2,).

    Args:
        state: with the queries of each reading, (r, b, h, n, d), and what the module made.
    """
    seen, queries = state.get("seen"), state["q"]
    b, n, d = queries.shape[1], queries.shape[3], queries.shape[4]
    if seen is None or b < SAMPLES or n < 3 or d % 2:
        return
    said: list[tuple[str, str, Tensor]] = []
    for made in seen.steps.made.get(queries[0].numel(), ()):
        for q, t in _unturned(queries, made):
            for layout, table in product((HALVES, PAIRS), repeat=2):
                angles = turn_of(q, t, layout, table)
                if angles is None or any(
                    [layout, table] == other and torch.allclose(angles, known, atol=1e-6)
                    for *other, known in said
                ):
                    continue
                said.append((layout, table, angles))
                yield said[-1]


def _unturned(queries: Tensor, t: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield queries of a reading, and what they may have been turned into: not the first token."""
    limit = CLOSE * queries.abs().max()
    for way in laid_by_head(t, queries.shape[1:]):
        way = way.to(queries)
        begin = (queries[:, :, :, 0] - way[:, :, 0]).abs().amax(dim=(1, 2, 3)) <= limit
        for number in torch.nonzero(begin)[:, 0].tolist():
            if (queries[number] - way).abs().max() > limit:
                yield queries[number], way


def laid_by_head(t: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """Yield what may be numbers of all heads, (b, h, n, d), in each way that it may lie.

    Args:
        t: what a module made.
        shape: (b, h, n, d).
    """
    b, h, n, d = shape
    if t.shape == (b, n, h * d):
        yield t.reshape(b, n, h, d).transpose(1, 2)
    if t.shape == (b, h, n, d):
        yield t
    if t.shape == (b, n, h, d):
        yield t.transpose(1, 2)


def turn_of(q: Tensor, t: Tensor, layout: str, table: str) -> Tensor | None:
    """Return the angle of each pair at place 1, None where this is no turn by the places.

    Args:
        q: before it.
        t: behind it.
        layout: what makes a pair.
        table: how the angles lie; where not as the pairs, each number has one of its own.
    """
    before, made = as_pairs(q, layout), as_pairs(t, layout)
    if table == layout:
        turn = (made / before)[0, 0]
        if bool((turn * before - made).abs().max() > CLOSE * before.abs().max()):
            return None
        turns = [turn]
    else:
        turns = [_of_number(before, made.real), -1j * _of_number(before, made.imag)]
    if any(bool((turn.abs() - 1).abs().max() > CLOSE) for turn in turns):
        return None
    angles = [turn[1].angle() for turn in turns]
    for turn, found in zip(turns, angles, strict=True):
        places = torch.arange(len(turn), dtype=found.dtype)[:, None]
        again = torch.polar(torch.ones_like(places * found), places * found)
        if bool((again - turn).abs().max() > CLOSE):
            return None
    if table == layout:
        return angles[0]
    laid = torch.cat(angles) if layout == HALVES else torch.stack(angles, dim=-1).flatten()
    both = (laid[0::2], laid[1::2]) if table == PAIRS else laid.chunk(2)
    apart = not torch.allclose(*angles, atol=CLOSE)
    return both[0] if apart and torch.allclose(*both, atol=CLOSE) else None


def _of_number(pairs: Tensor, made: Tensor) -> Tensor:
    """Return, for each place, what times a pair has this real part, as nearly as it can be, (n, p).

    Args:
        pairs: (b, h, n, p), complex.
        made: (b, h, n, p).
    """
    given = torch.stack([pairs.real, -pairs.imag], dim=-1).flatten(0, 1).permute(1, 2, 0, 3)
    wanted = made.flatten(0, 1).permute(1, 2, 0)[..., None]
    return torch.view_as_complex(torch.linalg.lstsq(given, wanted).solution[..., 0].contiguous())


def as_pairs(t: Tensor, layout: str) -> Tensor:
    """Return the pairs as complex numbers, in double precision."""
    t = t.double()
    if layout == PAIRS:
        return torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
    return torch.complex(*(half.contiguous() for half in t.chunk(2, dim=-1)))


def base_of(angles: Tensor) -> float | None:
    """Return the base that angles are the right ones of, None where they are of none.

    Args:
        angles: at place 1, (d / 2,), all above 0.
    """
    pairs = len(angles)
    if pairs < 2 or abs(float(angles[0]) - 1) > CLOSE or not 0 < float(angles[1]) < 1:
        return None
    base = float(angles[1]) ** -pairs
    near = float(f"{base:.4g}")
    base = near if math.isclose(near, base, rel_tol=1e-3) else base
    right = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return base if torch.allclose(right, angles, rtol=1e-3, atol=1e-6) else None


def is_mistaken(base: float, told: frozenset[float]) -> bool:
    """Say whether a base is none: another was meant, and the exponent is wrong.

    Half the exponent is the root of a base, the exponent twice is its square, and that over the
    width of all heads is a root as well.

    Args:
        base: that angles are the right ones of.
        told: the numbers that the module and its code say.
    """
    if any(math.isclose(base, number, rel_tol=1e-3) for number in told):
        return False
    meant = {MEANT, *(number for number in told if MEANT < number <= MOST)}
    roots = [number**power for number in meant for power in (0.5, 2)]
    return base < LEAST or any(math.isclose(base, one, rel_tol=1e-3) for one in roots)


def stretched(speeds: Tensor, bases: set[float]) -> bool:
    """Say whether angles are those of a longer text: divided, all of them or the slow ones.

    Args:
        speeds: the angle of each pair from one place to the next, (d / 2,).
        bases: that are usual.
    """
    pairs, read = len(speeds), speeds[speeds > ROUNDED]
    if len(read) < 2 or bool((read.diff() >= 0).any()) or base_of(speeds) is not None:
        return False
    for usual in bases:
        ratio = usual ** (-torch.arange(len(read), dtype=torch.float64) / pairs) / read
        apart = (0.01 * ROUNDED / read).clamp(min=CLOSE)
        times = float(ratio[-1])
        whole = math.isclose(times, max(2, round(times)), rel_tol=float(apart[-1]))
        off = any(math.isclose(times, usual ** (k / pairs), rel_tol=1e-3) for k in (1, 2))
        first = min(abs(float(ratio[0]) - 1), abs(float(ratio[0]) - times)) < CLOSE
        if whole and not off and first and bool((ratio.diff() > -(apart * ratio)[1:]).all()):
            return True
    return False


def wrong_angles(
    angles: Tensor, mixed: str, told: frozenset[float], bases: tuple[float, ...]
) -> tuple[tuple[str, ...], str, float | None]:
    """Return the mistakes in angles with their words, and the base that right ones are of, or None.

    Args:
        angles: at place 1, (d / 2,).
        mixed: what is said where each number of a pair has another one; "" where they share one.
        told: the numbers that the module and its code say.
        bases: that it may have.
    """
    speeds = -angles if bool(angles.median() < 0) else angles
    base = base_of(speeds)
    base = None if base is None or is_mistaken(base, told) else base
    ids, said = ("rotary-mixed",) * bool(mixed), [mixed] * bool(mixed)
    if base is None and not stretched(speeds, {*bases}):
        ids, said = (*ids, "rotary-frequencies"), [*said, rule_words(angles, bases[0])]
    return ids, "; ".join(said), base


def rule_words(angles: Tensor, base: float) -> str:
    """Say what rule angles at place 1 follow.

    Args:
        angles: (d / 2,).
        base: of the powers.
    """
    read = [float(angle) if 1e-6 < angle < math.pi else None for angle in angles.abs()]
    rule = rule_of(read, base, 2 * len(angles))
    if rule is None:
        first = ", ".join(f"{float(angle):.3g}" for angle in angles[:3].abs())
        return f"at place 1 they turn by {first}, ..."
    step, start = rule
    if not step:
        return "all pairs turn alike"
    begun = f" {'-' if start < 0 else '+'} {abs(2 * start):g}" if start else ""
    return f"base ** (-({2 * step:.4g} p{begun}) / head_dim)"
