"""Patients of `diagnose_positions`: tables of sines and cosines, and modules that add positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from attention_clinic import Report, diagnose_positions
from patients.bank import CASES, Entry
from utils.positions import sinusoidal_positions


def positions(
    *ids: str, variants: tuple[str, ...] = (), n: int | None = None, name: str = "", **options
) -> Callable:
    """Add a patient to the bank, its table with n rows; n=None passes the function itself."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            given = make(e) if isinstance(make, type) else make if n is None else make(n, e)
            report = diagnose_positions(given, e, **options)
            assert report.kind == "unexplained" or tuple(v.id for v in report.variants) == variants
            return report

        sizes = ((16, 1), (24, 1)) if n else ((16, 1), (10, 1))
        CASES.append(Entry(name or make.__name__, ids, examine, sizes, variants=None))
        return make

    return enter


def made(base: type, **changes: object) -> type:
    """Return a class that differs from another one in these methods and values."""
    return type(f"{base.__name__}With{''.join(changes).title()}", (base,), changes)


def angles(n: int, e: int, power: float = 1.0, base: float = 1e4) -> torch.Tensor:
    """Return the angles (n, (e + 1) / 2) in single precision."""
    return torch.outer(torch.arange(n), base ** (-power * torch.arange(0, e, 2) / e))


def in_turn(sines: torch.Tensor, cosines: torch.Tensor, e: int) -> torch.Tensor:
    """Return columns in turn, (n, e)."""
    return torch.stack([sines, cosines], dim=2).flatten(1)[:, :e]


def paired(angle: torch.Tensor, e: int) -> torch.Tensor:
    """Return the sines and cosines of the same angles in turn, (n, e)."""
    return in_turn(angle.sin(), angle.cos(), e)


def halved(angle: torch.Tensor, e: int) -> torch.Tensor:
    """Return all sines, then all cosines, (n, e)."""
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


def by_column(n: int, e: int, exponent: Callable[[int], float], base: float = 1e4) -> torch.Tensor:
    """Return a table in a loop: column c has the angle position / base ** (exponent(c) / e)."""
    rows = [[p / base ** (exponent(c) / e) for c in range(e)] for p in range(n)]
    rows = [[math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(row)] for row in rows]
    return torch.tensor(rows, dtype=torch.float64)


@positions()
def interleaved(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(0, e, 2) * (-math.log(10000.0) / e))
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : e // 2]
    return table


@positions()
def refuses_odd(n, e):
    if e % 2:
        raise ValueError("even widths only")
    return interleaved(n, e)


@positions(variants=("sincos-spaced", "sincos-halves"))
def as_tensor2tensor(n, e):
    half = e // 2
    step = -math.log(1e4) / (half - 1) * torch.arange(half + e % 2)
    return halved(torch.arange(n)[:, None] * torch.exp(step), e)


def of_image(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the codes of the positions of an image, row by row."""
    return torch.cat([rows.repeat_interleave(len(columns), 0), columns.repeat(len(rows), 1)], 1)


@positions(n=5, variants=("sincos-halves", "sincos-2d"))
def as_mae(side, e):
    """Put columns before rows, and zeros for the class token."""
    codes = halved(angles(side, e // 2), e // 2)
    return torch.cat([torch.zeros(1, e), of_image(codes, codes).roll(e // 2, dims=1)])


def as_detr(side: int, e: int, base: float = 1e4) -> torch.Tensor:
    """Count from 1, and once around for the last one, over an image that is not square."""
    position = [torch.arange(1, n + 1) / (n + 1e-6) * 2 * math.pi for n in (side, side + 2)]
    waves = base ** (-torch.arange(0, e // 2, 2) / (e // 2))
    return of_image(*(paired(torch.outer(one, waves), e // 2) for one in position))


positions()(sinusoidal_positions)
positions(n=5000, name="long")(interleaved)
positions(n=4, variants=("sincos-start", "sincos-2d"))(as_detr)
positions(base=1000.0, name="base_as_given")(lambda n, e: paired(angles(n, e, base=1e3), e))
for _named, _make in {
    "": lambda n, e: by_column(n, e, lambda c: c - c % 2)[None],
    "sincos-halves": lambda n, e: halved(angles(n, e), e),
    "sincos-exchanged": lambda n, e: in_turn(angles(n, e).cos(), angles(n, e).sin(), e),
    "sincos-halves sincos-exchanged": lambda n, e: halved(angles(n, e), e).roll(e // 2, dims=1),
    "sincos-start sincos-spaced sincos-halves": lambda n, e: as_tensor2tensor(n + 2, e)[2:],
    "sincos-start": lambda n, e: interleaved(n + 1, e)[1:],
    "sincos-padding": lambda n, e: interleaved(n, e) * (torch.arange(n) > 0)[:, None],
    " sincos-padding": lambda n, e: torch.cat([torch.zeros(1, e), interleaved(n, e)]),
}.items():
    positions(variants=tuple(_named.split()), name=f"as_{_named}")(_make)


@positions("sincos-base")
def base_of_a_thousand(n, e):
    return paired(angles(n, e, base=1000.0), e)


@positions("sincos-exponent")
def doubled(n, e):
    return paired(torch.outer(torch.arange(n), 10000 ** (-2 * torch.arange(0, e, 2) / e)), e)


@positions("sincos-pairs")
def each_column_its_own(n, e):
    table = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e) / e))
    return torch.where(torch.arange(e) % 2 == 0, table.sin(), table.cos())


BASE, EXPONENT, PAIRS = "sincos-base", "sincos-exponent", "sincos-pairs"
positions(BASE, n=40, name="not_round")(lambda n, e: paired(angles(n, e, base=math.exp(4)), e))
positions(BASE, base=500_000.0, name="base_not_as_given")(interleaved)
positions(BASE, PAIRS)(lambda n, e: by_column(n, e, lambda c: c, base=1000))
positions(BASE, EXPONENT, n=40)(lambda n, e: by_column(n, e, lambda c: 2 * (c | 1), base=500))
positions(EXPONENT, name="multiplied")(lambda n, e: by_column(n, e, lambda c: c % 2 - c))
positions(EXPONENT, n=70, name="one_less")(lambda n, e: paired(angles(n, e, e / (e - 1)), e))
for _ids, _exponents in (  # times 1 / e, of column c; c - c % 2 is the correct one
    ([EXPONENT], [lambda c: 0, lambda c: 2, lambda c: c | 1, lambda c: c - c % 2 + 2]),
    ([EXPONENT], [lambda c: 2 * (c | 1), lambda c: 2 * (c % 2 - c), lambda c: (c - c % 2) / 2]),
    ([PAIRS], [lambda c: c + c % 2, lambda c: c - 2 * (c % 2), lambda c: c + 2 - 3 * (c % 2)]),
    ([EXPONENT, PAIRS], [lambda c: 2 * c, lambda c: 2 * c - c % 2, lambda c: -c]),
    ([EXPONENT, PAIRS], [lambda c: -c - c % 2, lambda c: -2 * c, lambda c: c % 2 - 2 * c]),
):
    for _one in _exponents:
        positions(*_ids, name="by_column")(partial(by_column, exponent=_one))


@positions("sincos-cosine")
def sine_twice(n, e):
    return in_turn(angles(n, e).sin(), angles(n, e).sin(), e)


@positions("sincos-odd")
def breaks_on_odd(n, e):
    table, angle = torch.zeros(n, e), angles(n, e)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


for _id, _make in (
    ("sincos-cosine", lambda a, n, e: a.sin().repeat(1, 2)[:, :e]),
    ("sincos-cosine", lambda a, n, e: in_turn(a.sin(), 0 * a, e)),
    ("sincos-cosine", lambda a, n, e: F.pad(a.sin(), (0, e // 2))),
    ("sincos-odd", lambda a, n, e: paired(a, 2 * e).view(n, e)),
):
    positions(_id, name=f"of_angles_{_id}")(lambda n, e, of=_make: of(angles(n, e), n, e))


@positions()
class Adds(nn.Module):
    """Adds a table in a buffer to the tokens."""

    def __init__(self, e):
        super().__init__()
        self.register_buffer("pe", interleaved(50, e)[None])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(x * x.shape[-1] ** 0.5 + self.pe[:, : x.shape[1]])


@positions()
class TokensFirst(Adds):
    """x: [seq_len, batch_size, embedding_dim]."""

    def forward(self, x):
        return x + self.pe.transpose(0, 1)[: x.size(0)]


@positions()
class Learned(nn.Module):
    """Adds a learned row to each token."""

    def __init__(self, e):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(1, 30, e))

    def forward(self, x):
        return x + self.rows[:, : x.shape[1]]


for _ids, _base, _forward in (
    ("pos-batch-axis", Adds, lambda m, x: x + m.pe.transpose(0, 1)[: x.size(0)]),
    ("pos-one-row", Learned, lambda m, x: x + m.rows[:, :1]),
    ("pos-one-row dropout-eval", Adds, lambda m, x: F.dropout(x + m.pe[:, 5], 0.1)),
):
    positions(*_ids.split())(made(_base, forward=_forward))
