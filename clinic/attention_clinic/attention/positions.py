"""Positions inside an attention: what rotates queries and keys, and what biases the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_clinic.attention.program import Lost, Operand, Program, Rotation, Turn
from attention_clinic.capture.run import Run

CLOSE = 1e-4  # of two angles, for tables in single precision


def read_turn(run: Run, p: Program) -> Turn | None:
    """Return the rotary positions of a program, None if nothing is rotated."""
    rotated = "".join(name for name in "qkv" if p.sides[name].rotation is not None)
    if not rotated:
        return None
    if rotated not in ("qk", "qkv"):
        raise Lost("only some of queries and keys are rotated")
    (turn, start), (other, begin), *more = (_turn(run, p.sides[name]) for name in rotated)
    both_flat = turn.flat and other.flat
    fields = ("layout", "flat") if both_flat else ("layout", "flat", "width", "mixed")
    alike = all(getattr(turn, name) == getattr(other, name) for name in fields)
    for one, _ in [*more, *([] if both_flat else [(other, begin)])]:
        alike = alike and torch.allclose(one.frequencies, turn.frequencies, atol=CLOSE)
    if not alike:
        raise Lost("queries, keys or values are rotated differently")
    if not turn.still and not turn.flat and not _zero(start - begin):
        raise Lost("queries and keys start at different angles")
    turn.values = bool(more)
    return turn


def starts_at_zero(run: Run, side: Operand) -> bool:
    """Return whether the first token of rotated queries has position 0; or raise Lost."""
    return _zero(_turn(run, side)[1])


def _zero(angles: Tensor) -> bool:
    return bool((_wrapped(angles).abs() < CLOSE).all())


def _turn(run: Run, side: Operand) -> tuple[Turn, Tensor]:
    """Return the rotation of one side, and its angles at the first token, (width / 2,)."""
    partner, matrix = _table(run, side.rotation)
    count, d = len(partner), side.ids.shape[-1]
    rotated = (partner != torch.arange(count)).nonzero()[:, 0]
    if not bool(((matrix.square().sum(-1) - 1).abs() < CLOSE).all()):
        raise Lost("a rotation that changes lengths")
    within = bool((partner // d == torch.arange(count) // d).all())
    if within and len(rotated) % (count // d):
        raise Lost("heads with different numbers of rotated numbers")
    groups = [rotated] if not within else list(rotated.view(count // d, -1))
    turns = [_angles(partner, matrix, group) for group in groups]
    layout, mixed, speeds, start = turns[0]
    if any(other[:2] != (layout, mixed) for other in turns):
        raise Lost("heads are rotated differently")
    still = all(bool((one[2].abs() < 1e-9).all()) for one in turns)
    alike = all(torch.allclose(one[2], speeds, atol=1e-9) for one in turns)
    flat = not still and (not within or not alike)
    if flat and within:
        speeds = torch.cat([one[2] for one in turns])
        start = torch.cat([one[3] for one in turns])
    sign = -1 if float(speeds.median()) < 0 else 1
    return Turn(layout, 2 * len(speeds), d, sign, sign * speeds, mixed, still, flat), start


def _table(run: Run, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """Return partner (f,) and coefficients (n, f, 2) of the numbers of a token, in their order."""
    assert rotation is not None
    token, sample = run.token[rotation.own], run.sample[rotation.own]
    order = rotation.own.argsort()
    for key in (token, sample):
        order = order[key[order].argsort(stable=True)]
    b, n = int(sample.max()) + 1, len(token.unique())
    if len(order) % (b * n):
        raise Lost("tokens with different numbers of rotated numbers")
    own, other = (t[order].view(b, n, -1) for t in (rotation.own, rotation.other))
    matrix = rotation.matrix[order].view(b, n, -1, 2)
    where = torch.full((run.tape.count,), -1)
    where[own] = torch.arange(own.shape[-1]).expand_as(own)
    partner = where[other]
    if not bool((partner == partner[:1, :1]).all()) or bool((partner < 0).any()):
        raise Lost("tokens are paired differently")
    if not torch.allclose(matrix, matrix[:1].expand_as(matrix), atol=1e-6):
        raise Lost("samples are rotated differently")
    return partner[0, 0], matrix[0]


def _angles(partner: Tensor, matrix: Tensor, rotated: Tensor) -> tuple[str, bool, Tensor, Tensor]:
    """Return layout, whether pairs are mixed, and angles: a position further, and the first."""
    width = len(rotated)
    if width == 0 or width % 2:
        raise Lost("a rotation of an odd number of numbers")
    mates = partner[rotated]
    half = width // 2
    pairs = torch.equal(mates[0::2], rotated[1::2])
    halves = torch.equal(mates[:half], rotated[half:])
    if not pairs and not halves:
        raise Lost("a rotation of unusual pairs")
    layout = "halves" if halves and (half > 1 or rotated[-1] + 1 == width) else "pairs"
    layout = "pairs" if pairs and not halves else layout
    first = rotated[:half] if layout == "halves" else rotated[0::2]
    second = partner[first]
    a = torch.atan2(-matrix[:, first, 1], matrix[:, first, 0])
    b = torch.atan2(matrix[:, second, 1], matrix[:, second, 0])
    mixed = not _zero(a - b)
    if mixed:
        wide = torch.cat([a, b], 1) if layout == "halves" else torch.stack([a, b], -1).flatten(1)
        both = (wide[:, 0::2], wide[:, 1::2]) if layout == "halves" else wide.chunk(2, dim=1)
        if not _zero(both[0] - both[1]):
            raise Lost("the numbers of a pair are rotated by unknown angles")
        a = both[0]
    speeds = _wrapped(a[1] - a[0]) if len(a) > 1 else torch.zeros_like(a[0])
    places = torch.arange(len(a), dtype=a.dtype)[:, None]
    if not _zero(a[0] + places * speeds - a):
        raise Lost("angles that do not grow with the position")
    return layout, mixed, speeds, a[0]


def _wrapped(angles: Tensor) -> Tensor:
    """Return angles between -pi and pi."""
    return torch.remainder(angles + math.pi, 2 * math.pi) - math.pi


def bias_variant(p: Program) -> str:
    """Return the id of the variant that a bias of the scores is, "" for no bias."""
    bias = p.bias
    if bias is None:
        return ""
    shown = torch.ones_like(bias, dtype=torch.bool) if p.allow is None else p.allow
    if not torch.allclose(bias * shown, bias[:1].expand_as(bias) * shown, atol=1e-9):
        raise Lost("a bias that differs between samples")
    own = bias.diagonal(dim1=2, dim2=3)[..., None]
    if p.allow is None and p.square and bool((torch.isclose(bias, own) | p.past).all()):
        raise Lost("a bias that is the same for a token and all later ones")
    if p.bias_learned and _by_offset(bias[0], shown[0]):
        return "relative-bias"
    raise Lost("an unknown bias")


def _by_offset(bias: Tensor, shown: Tensor) -> bool:
    """Return whether a bias (h, i, j) depends on an offset of positions, in a row or in a grid."""
    _, i, j = bias.shape
    if i != j:
        return False
    side = math.isqrt(i)
    place = torch.arange(i)
    keys = [place[:, None] - place[None]]
    if side * side == i:
        y, x = place // side, place % side
        keys.append((y[:, None] - y[None]) * 2 * side + x[:, None] - x[None])
    for key in keys:
        groups = [bias[:, (key == one) & shown[0]] for one in key.unique()]
        if all(bool(((t - t[:, :1]).abs() < 1e-6).all()) for t in groups):
            return True
    return False
