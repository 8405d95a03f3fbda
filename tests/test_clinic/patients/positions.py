"""Tables of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attention_clinic import (
    Report,
    diagnose_positions,
)
from patients.bank import CASES, Case


def positions(*ids: str) -> Callable:
    """Enter a function that makes a table of positions."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            return diagnose_positions(make, e)

        CASES.append(Case(make.__name__, ids, examine, sizes=((16, 1), (10, 1))))
        return make

    return enter


@positions()
def interleaved(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(0, e, 2) * (-math.log(10000.0) / e))
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : e // 2]
    return table


@positions()
def interleaved_loop(n, e):
    rows = [[p / 10000 ** ((i - i % 2) / e) for i in range(e)] for p in range(n)]
    return torch.tensor(
        [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in rows]
    )[None]


@positions("sincos-halves", "sincos-odd")
def halves(n, e):
    angle = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e // 2) / (e // 2)))
    table = torch.empty(n, e)
    table[:] = torch.cat([angle.sin(), angle.cos()], dim=1)
    return table


@positions("sincos-halves")
def halves_padded(n, e):
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) / e)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


@positions("sincos-halves")
def halves_cosine_first(n, e):
    place = torch.arange(n).view(-1, 1)
    columns = [
        torch.cos(place / 10000 ** (2 * (i % ((e + 1) // 2)) / e) - (i * 2 >= e) * math.pi / 2)
        for i in range(e)
    ]
    return torch.cat(columns, dim=1).unsqueeze(0)


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
