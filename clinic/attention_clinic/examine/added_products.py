"""Scores that are the sum of two products of queries and keys: one product of wider ones."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event
from attention_clinic.examine.written import Run

Factors = tuple[Tensor, Tensor, Tensor]  # rows, columns, and what is made of them


def with_wide_products(run: Run) -> None:
    """Replace each sum of two products of tokens by one product.

    Args:
        run: what was written down.
    """
    laid = {number: _laid(run.tape.events[number], a, b) for number, a, b in run.products()}
    for number, event in enumerate(run.tape.events):
        terms = [t for t in event.args if isinstance(t, Tensor)]
        makers = [run.makers(t) for t in terms]
        if event.name != "add" or len(event.args) != 2 or len(terms) != 2:
            continue
        if any(len(own) != 1 or own[0] not in laid for own in makers):
            continue
        first, second = (laid[own[0]] for own in makers)
        wide = _together(run, (first, second), terms, event.out)
        if wide is not None:
            run.tape.events[number] = Event("bmm", (wide[0], wide[1].mT), wide[2])
            laid[number] = wide
    vars(run).pop("used", None)


def _laid(event: Event, a: Tensor, b: Tensor) -> Factors:
    """Return the rows and columns that a product is made of, and that, (s, i, j)."""
    return a, b.mT, event.out if event.out.ndim == 3 else event.out[None]


def _together(
    run: Run, products: tuple[Factors, Factors], terms: list[Tensor], out: Tensor
) -> Factors | None:
    """Return two products whose results are added as one, None where these lie otherwise.

    Args:
        run: what was written down.
        products: laid as each of them was made.
        terms: ids of what is added, in the order of `out`.
        out: ids of the sum.
    """
    (q, k, made), (rows, columns, other) = products
    if any(t.shape != out.shape or t.numel() != made.numel() for t in terms):
        return None
    added = torch.full((2, run.tape.count), -1)  # by the id of the first: the sum, the second
    added[0][terms[0].flatten()], added[1][terms[0].flatten()] = out.flatten(), terms[1].flatten()
    sums, partner = added[0][made], added[1][made]
    place = torch.full((run.tape.count,), -1)
    place[other.flatten()] = torch.arange(other.numel())
    at = place[partner]
    if bool((sums < 0).any() or (at < 0).any()):
        return None
    count, width = other.shape[1:]
    slot, row, column = at // (count * width), at // width % count, at % width
    if bool((row != row[..., :1]).any()):
        rows, columns, row, column = columns, rows, column, row
    if bool((slot != slot[:, :1, :1]).any() or (row != row[..., :1]).any()):
        return None
    if bool((column != column[:, :1]).any()):
        return None
    asks, answers = rows[slot[:, :, 0], row[:, :, 0]], columns[slot[:, 0], column[:, 0]]
    return torch.cat([q, asks], -1), torch.cat([k, answers], -1), sums
