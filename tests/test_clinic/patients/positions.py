"""Tables of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from attention_clinic import (
    Report,
    diagnose_positions,
)
from patients.bank import CASES, Entry
from utils.positions import sinusoidal_positions


def positions(*ids: str, variants: tuple[str, ...] = (), **options) -> Callable:
    """Enter a function that makes a table of positions."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            report = diagnose_positions(make, e, **options)
            assert tuple(variant.id for variant in report.variants) == variants
            return report

        CASES.append(Entry(make.__name__, ids, examine, sizes=((16, 1), (10, 1))))
        return make

    return enter


@positions()
def interleaved(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(0, e, 2) * (-math.log(10000.0) / e))
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : e // 2]
    return table


positions()(sinusoidal_positions)


@positions()
def interleaved_loop(n, e):
    rows = [[p / 10000 ** ((i - i % 2) / e) for i in range(e)] for p in range(n)]
    return torch.tensor(
        [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in rows]
    )[None]


def angles(n, e, power=1.0, base=10000.0):
    return torch.outer(torch.arange(n), base ** (-power * torch.arange(0, e, 2) / e))


def laid(sines, cosines, e):
    return torch.stack([sines, cosines], dim=2).flatten(1)[:, :e]


# ------------------------------------------------------------------- variants, which are right


@positions("sincos-odd", variants=("sincos-halves",))
def halves(n, e):
    angle = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e // 2) / (e // 2)))
    table = torch.empty(n, e)
    table[:] = torch.cat([angle.sin(), angle.cos()], dim=1)
    return table


@positions(variants=("sincos-halves",))
def halves_padded(n, e):
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) / e)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


@positions(variants=("sincos-halves", "sincos-exchanged"))
def halves_cosine_first(n, e):
    place = torch.arange(n).view(-1, 1)
    columns = [
        torch.cos(place / 10000 ** (2 * (i % ((e + 1) // 2)) / e) - (i * 2 >= e) * math.pi / 2)
        for i in range(e)
    ]
    return torch.cat(columns, dim=1).unsqueeze(0)


@positions(variants=("sincos-spaced", "sincos-halves"))
def as_tensor2tensor(n, e):
    half = e // 2
    angle = torch.arange(n)[:, None] * torch.exp(
        -math.log(1e4) / (half - 1) * torch.arange(half + e % 2)
    )
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


@positions(variants=("sincos-start", "sincos-spaced", "sincos-halves"))
def as_fairseq(n, e):
    return as_tensor2tensor(n + 2, e)[2:]


@positions(variants=("sincos-exchanged",))
def exchanged(n, e):
    return laid(angles(n, e).cos(), angles(n, e).sin(), e)


@positions(variants=("sincos-padding",))
def row_of_zeros(n, e):
    return torch.cat([torch.zeros(1, e), interleaved(n, e)[1:]])


@positions(variants=("sincos-padding",))
def row_of_zeros_in_front(n, e):
    return torch.cat([torch.zeros(1, e), interleaved(n, e)])[:n]


@positions(variants=("sincos-halves", "sincos-unit"))
def rows_of_one_length(n, e):
    return nn.functional.normalize(halves_padded(n, e), dim=1)


def of_image(first, second, side=4):
    """Lay out codes of rows and columns as those of the places of an image."""
    rows, columns = first.repeat_interleave(side, dim=0), second.repeat(side, 1)
    return torch.cat([rows, columns], dim=1)


def tables(*ids: str, variants: tuple[str, ...] = ()) -> Callable:
    """Enter a function of the width that makes a table for one number of places."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            report = diagnose_positions(make(e))
            assert tuple(variant.id for variant in report.variants) == variants
            return report

        CASES.append(Entry(make.__name__, ids, examine, sizes=((16, 1),)))
        return make

    return enter


@tables(variants=("sincos-2d",))
def image(e):
    return of_image(interleaved(4, e // 2), interleaved(4, e // 2))


@tables(variants=("sincos-halves", "sincos-2d"))
def as_mae(e):
    """Columns before rows, and zeros for the class token."""
    codes = halves_padded(5, e // 2)
    return torch.cat([torch.zeros(1, e), of_image(codes, codes, 5).roll(e // 2, dims=1)])


@tables("sincos-base", variants=("sincos-2d",))
def image_of_another_base(e):
    codes = laid(angles(4, e // 2, base=300.0).sin(), angles(4, e // 2, base=300.0).cos(), e // 2)
    return of_image(codes, codes)


def normalised(places: int, e: int, base=10000.0):
    """DETR: counted from 1, and once around for the last one."""
    place = torch.arange(1, places + 1) / (places + 1e-6) * 2 * math.pi
    angle = torch.outer(place, base ** (-torch.arange(0, e, 2) / e))
    return laid(angle.sin(), angle.cos(), e)


@tables(variants=("sincos-start", "sincos-2d"))
def as_detr(e):
    """Another number of rows than of columns."""
    rows, columns = normalised(4, e // 2), normalised(6, e // 2)
    return torch.cat([rows.repeat_interleave(6, dim=0), columns.repeat(4, 1)], dim=1)


@tables("sincos-base", variants=("sincos-start", "sincos-2d"))
def as_detr_of_another_base(e):
    codes = normalised(8, e // 2, base=500.0)
    return of_image(codes, codes, 8)


@tables(variants=("sincos-start", "sincos-2d"))
def as_loftr(e):
    """Two numbers of the column, two of the row, and so on."""
    codes = interleaved(6, e // 2)[1:].view(5, -1, 1, 2)
    rows, columns = codes.repeat_interleave(5, dim=0), codes.repeat(5, 1, 1, 1)
    return torch.cat([columns, rows], dim=2).flatten(1)


# ------------------------------------------------------------------------------- wrong exponents


@tables("sincos-base", "sincos-exponent")
def another_base_of_an_index_that_counts_two(e):
    angle = torch.outer(torch.arange(40), 1000 ** (-(2 * torch.arange(0, e, 2) + 2) / e))
    return laid(angle.sin(), angle.cos(), e)


@tables("sincos-base", "sincos-exponent")
def another_base_in_a_loop(e):
    """The exponent is that of the odd columns, twice."""
    table = torch.empty(30, e)
    for place in range(30):
        for column in range(e):
            angle = place / 500 ** (2 * (column | 1) / e)
            table[place, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


@positions("sincos-exponent")
def pairs_from_one(n, e):
    return laid((angles(n, e) / 10000 ** (2 / e)).sin(), (angles(n, e) / 10000 ** (2 / e)).cos(), e)


@positions("sincos-exponent")
def halfway(n, e):
    """The odd columns are counted: 2 i + 1."""
    angle = torch.arange(n)[:, None] / 10000 ** ((torch.arange(0, e, 2) + 1) / e)
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-exponent", "sincos-cosine")
def one_wave_for_all(n, e):
    return (torch.arange(n)[:, None] / 10000 ** (2 / e)).sin().expand(n, e)


@positions("sincos-exponent")
def divided_to_whole_numbers(n, e):
    angle = torch.arange(n)[:, None] / 10000 ** (2 * torch.arange(0, e, 2) // e)
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-exponent")
def shorter_and_shorter(n, e):
    angle = torch.arange(n)[:, None] * 10000 ** (torch.arange(0, e, 2).double() / e)
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-exponent", "sincos-pairs")
def shorter_and_apart(n, e):
    """A minus and a division; the sum of logarithms is in single precision."""
    step = torch.arange(0, e, 2) / e * -math.log(10000)
    more = (torch.arange(0, e, 2) + 1) / e * -math.log(10000)
    place = torch.arange(n)[:, None]
    return laid((place / step.exp()).sin(), (place / more.exp()).cos(), e)


@positions("sincos-exponent")
def shorter_and_doubled(n, e):
    angle = torch.arange(n)[:, None] * 10000 ** (2 * torch.arange(0, e, 2).double() / e)
    return laid(angle.sin(), angle.cos(), e)


@tables("sincos-exponent")
def divided_by_one_less(e):
    angle = torch.arange(70)[:, None] * 10000 ** (-torch.arange(0, e, 2) / (e - 1))
    return laid(angle.sin(), angle.cos(), e)


@tables("sincos-exponent")
def divided_by_one_less_in_a_loop(e):
    rows = [[p * 1e4 ** (-(c - c % 2) / (e - 1)) for c in range(e)] for p in range(30)]
    table = torch.tensor(rows)
    table[:, 0::2], table[:, 1::2] = table[:, 0::2].sin(), table[:, 1::2].cos()
    return table


@positions("sincos-exponent", "sincos-pairs")
def both_indices_doubled(n, e):
    """i counts two already, and the cosine takes i + 1."""
    table = torch.zeros(n, e + e % 2)
    for place in range(n):
        for i in range(0, e, 2):
            table[place, i] = math.sin(place / 10000 ** (2 * i / e))
            table[place, i + 1] = math.cos(place / 10000 ** (2 * (i + 1) / e))
    return table[:, :e]


@positions("sincos-exponent", "sincos-pairs")
def every_column_doubled(n, e):
    table = torch.tensor([[p / 10000 ** (2 * c / e) for c in range(e)] for p in range(n)])
    table[:, 0::2], table[:, 1::2] = table[:, 0::2].sin(), table[:, 1::2].cos()
    return table


@positions("sincos-exponent")
def pairs_doubled(n, e):
    return laid(angles(n, e, 2.0).sin(), angles(n, e, 2.0).cos(), e)


@positions("sincos-exponent", variants=("sincos-halves",))
def halved(n, e):
    angle = angles(n, e, 0.5)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


@positions("sincos-exponent")
def integers_divided(n, e):
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) // e)
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-pairs")
def each_column_its_own(n, e):
    table = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e) / e))
    return torch.where(torch.arange(e) % 2 == 0, table.sin(), table.cos())


@positions("sincos-pairs")
def cosine_one_later(n, e):
    later = torch.outer(torch.arange(n), 10000 ** (-torch.arange(2, e + 2, 2) / e))
    return laid(angles(n, e).sin(), later.cos(), e)


@positions("sincos-base")
def base_of_a_thousand(n, e):
    return laid(angles(n, e, base=1000).sin(), angles(n, e, base=1000).cos(), e)


@positions("sincos-base", variants=("sincos-halves",))
def division_before_its_bracket(n, e):
    """-log(10000) / e // 2 is -1 for every width."""
    angle = torch.arange(n)[:, None] * torch.exp(
        torch.arange((e + 1) // 2) * (-math.log(10000.0) / e // 2)
    )
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


positions(base=1000.0)(base_of_a_thousand)
positions("sincos-base", base=500_000.0)(interleaved_loop)


@positions("sincos-base", variants=("sincos-exchanged",))
def base_and_exchanged(n, e):
    return laid(angles(n, e, base=3e5).cos(), angles(n, e, base=3e5).sin(), e)


@positions("sincos-base", "sincos-pairs")
def base_and_columns(n, e):
    table = torch.outer(torch.arange(n), 1000 ** (-torch.arange(e) / e))
    return torch.where(torch.arange(e) % 2 == 0, table.sin(), table.cos())


@positions("sincos-cosine")
def sine_twice(n, e):
    table = torch.randn(n, e)
    table[:, ::2] = angles(n, e).sin()
    table[:, 1::2] = angles(n, e).sin()[:, : e // 2]
    return table


@positions("sincos-cosine")
def sine_overwritten(n, e):
    table = torch.zeros(n, e)
    table[:, : (e + 1) // 2] = angles(n, e).sin()
    return table


@positions("sincos-overwritten")
def cosine_of_the_sine(n, e):
    table = angles(n, e).repeat_interleave(2, dim=1)[:, :e]
    table[:, 0::2] = table[:, 0::2].sin()
    table[:, 1::2] = table[:, 0::2][:, : e // 2].cos()
    return table


@positions("sincos-overwritten")
def overwritten_halves(n, e):
    angle = angles(n, e)[:, : e // 2]
    first = angle.sin_()
    return torch.cat([first, angle.cos(), angle[:, : e % 2]], dim=1)


@positions("sincos-rows")
def rows_for_columns(n, e):
    table = angles(n, e).repeat_interleave(2, dim=1)[:, :e]
    table[0::2], table[1::2] = table[0::2].sin(), table[1::2].cos()
    return table


@positions("sincos-rows", "sincos-pairs")
def rows_and_columns(n, e):
    rows = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e) / e))
    return torch.stack([row.cos() if p % 2 else row.sin() for p, row in enumerate(rows)])


@positions("sincos-rows")
def rows_one_by_one(n, e):
    rows = [[p / 10000 ** ((i - i % 2) / e) for i in range(e)] for p in range(n)]
    return torch.tensor([[(math.sin, math.cos)[p % 2](a) for a in r] for p, r in enumerate(rows)])


@positions("sincos-normed")
def root_of_the_sum(n, e):
    table = interleaved(n, e)
    return table / table.sum(dim=1, keepdim=True).sqrt()


@positions("sincos-normed")
def root_of_the_sum_and_a_little(n, e):
    rows = [row / math.sqrt(row.sum() + 1e-5) for row in interleaved_loop(n, e)[0]]
    return torch.stack(rows)


@positions("sincos-same")
def same(n, e):
    i = torch.arange(e)
    row = torch.where(i % 2 == 0, (n / 10000 ** (i / e)).sin(), (n / 10000 ** ((i - 1) / e)).cos())
    return row.expand(n, e)


@positions("sincos-same")
def same_by_copy(n, e):
    return interleaved(n, e)[3].repeat(n, 1)


@positions("sincos-odd")
def breaks_on_odd(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) / e)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


@positions("sincos-odd")
def breaks_on_odd_columns(n, e):
    angle = torch.outer(torch.arange(n), 10000 ** (-torch.arange(0, e, 2) / e))
    return torch.stack([angle.sin(), angle.cos()], dim=2).view(n, e)


@positions()
def asserts_even(n, e):
    assert e % 2 == 0
    return interleaved_loop(n, e)


@positions()
def refuses_odd(n, e):
    if e % 2:
        raise ValueError("even widths only")
    return interleaved_loop(n, e)


# --------------------------------------------------------------------------- modules that add it


class Adds(nn.Module):
    """A table in a buffer, added to the tokens."""

    def __init__(self, e):
        super().__init__()
        self.register_buffer("pe", self.table(e))
        self.dropout = nn.Dropout(0.1)

    def table(self, e):
        return interleaved(50, e)[None]

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.shape[1]])


class AddsByColumn(Adds):
    def table(self, e):
        return both_indices_doubled(50, e)[None]

    def forward(self, x):
        return super().forward(x * x.shape[-1] ** 0.5)


class Returns(Adds):
    """The table alone, for as many tokens as there are."""

    def forward(self, x):
        return self.pe[0, : x.size(1)]


class OneLengthOnly(Adds):
    def forward(self, x):
        return x + self.pe


class TokensFirst(Adds):
    """x: [seq_len, batch_size, embedding_dim]."""

    def forward(self, x):
        return x + self.pe.transpose(0, 1)[: x.size(0)]


class CountsSamples(Adds):
    def forward(self, x):
        return x + self.pe.transpose(0, 1)[: x.size(0)]


def adds(*ids: str) -> Callable:
    """Enter a module that adds positions to tokens."""

    def enter(make: type) -> type:
        sizes = ((16, 1), (10, 1))
        CASES.append(
            Entry(make.__name__, ids, lambda s, e, h: diagnose_positions(make(e)), sizes=sizes)
        )
        return make

    return enter


for _make in (Adds, OneLengthOnly, Returns, TokensFirst):
    adds()(_make)
adds("sincos-exponent", "sincos-pairs")(AddsByColumn)
adds("pos-batch-axis")(CountsSamples)


@tables("sincos-exponent")
def waves_that_grow_by_steps(e):
    """Each wave is a bit faster than the one before: added, where a power was meant."""
    angle = torch.arange(40)[:, None] * torch.linspace(1.0, 0.1, e // 2)
    return laid(angle.sin(), angle.cos(), e)


@tables("sincos-base")
def base_that_is_no_round_number(e):
    """4 is the logarithm of 10000, of another base than exp takes."""
    angle = torch.arange(40)[:, None] * torch.exp(-torch.arange(0, e, 2) * (4 / e))
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-place")
def the_place_twice(n, e):
    """The angle is multiplied by the place a second time."""
    place = torch.arange(n).float()[:, None]
    angle = place / 10000 ** (torch.arange(0, e, 2).float() / e)
    return laid(torch.sin(place * angle), torch.cos(place * angle), e)


@positions("sincos-place")
def cosines_of_the_next_place(n, e):
    return laid(angles(n, e).sin(), angles(n + 1, e)[1:].cos(), e)


@positions("sincos-exponent")
def multiplied_in_single_precision(n, e):
    """Angles so large that single precision rounds them."""
    angle = torch.arange(n)[:, None] * torch.pow(10000.0, torch.arange(0, e, 2).float() / e)
    return laid(angle.sin(), angle.cos(), e)


@positions("sincos-exponent")
def waves_by_steps(n, e):
    """The power is not taken of the pair, which multiplies it: pair 0 stands still."""
    speed = torch.arange(0, e, 2) * math.exp(-2 * math.log(10000.0) / e)
    turned = torch.arange(n)[:, None] * speed
    return laid(turned.sin(), turned.cos(), e)


@positions()
def kept_in_bfloat16(n, e):
    return laid(angles(n, e).sin(), angles(n, e).cos(), e).bfloat16()


@positions("sincos-exponent")
def doubled_and_kept_in_half_precision(n, e):
    """The range steps by two, and the step is doubled again."""
    angle = angles(n, e, power=2.0)
    return laid(angle.sin(), angle.cos(), e).half().float()
