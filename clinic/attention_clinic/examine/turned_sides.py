"""Turns in an account of steps: what was multiplied by cosines and sines, whatever they turn."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.examine.account import Account
from attention_clinic.examine.judging import Said
from attention_clinic.examine.scoring import before
from attention_clinic.examine.written import Run, linked

CLOSE = 1e-5


def turned_sides(account: Account) -> Said:
    """Return what is wrong with which sides are turned, and along what.

    Args:
        account: of the steps.
    """
    run, said = account.run, []
    asking = [by for t in (account.q, account.k) if (by := _turns(run, t)) is not None]
    alike = all(bool((by - by[:, :, :1]).abs().max() <= CLOSE) for by in asking)
    tokens = run.token[before(run, account.q)[2]]  # heads of one token are in one place
    if asking and alike and bool((tokens != tokens[:, :1]).flatten(1).any(1).all()):
        said.append(("rotary-no-effect", "what is compared is turned alike, whatever its place"))
    if asking and _turns(run, account.v) is not None:
        said.append(("rotary-values", ""))
    return said


def _turns(run: Run, ids: Tensor) -> Tensor | None:
    """Return the cosine and sine of each number, (2, slots, i, d), in some order; or None.

    Args:
        run: what was written down.
        ids: of queries, keys or values, (slots, i, d).
    """
    ids = before(run, ids)[2]
    found = torch.full((2, run.tape.count), torch.nan, dtype=torch.float64)
    for event in linked(run, ids):
        sums = event.args[:2]
        if event.name not in ("add", "sub") or not all(isinstance(t, Tensor) for t in sums):
            return None
        for row, part in zip(found, sums, strict=True):
            factors = _factors(run, part.expand(event.out.shape))
            if factors is None:
                return None
            row[event.out] = factors
    by = found[:, ids]
    turns = not bool(((by.square().sum(0) - 1).abs() > CLOSE).any()) and not by.isnan().any()
    return by if turns and bool((by.abs().amax(0) < 1 - CLOSE).any()) else None


def _factors(run: Run, ids: Tensor) -> Tensor | None:
    """Return the number that no token reaches, by which each of these was multiplied; or None."""
    found = torch.full((run.tape.count,), torch.nan, dtype=torch.float64)
    for event in linked(run, ids):
        if event.name != "mul" or not all(isinstance(t, Tensor) for t in event.args[:2]):
            return None
        main, other = event.args[:2]
        if not run.depends(main):
            main, other = other, main
        if run.depends(other):
            return None
        found[event.out] = run.values[other.expand(event.out.shape)].double()
    return found[ids]
