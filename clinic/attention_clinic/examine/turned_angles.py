"""By which angles an account of steps turned queries and keys, and whether these are right."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from attention_clinic.bugs.models import HALVES, PAIRS
from attention_clinic.bugs.rotary import Turning
from attention_clinic.bugs.turned import mixed_words
from attention_clinic.bugs.turns import turn_of, wrong_angles
from attention_clinic.examine.account import Account
from attention_clinic.examine.judging import Said
from attention_clinic.examine.scoring import Unknown, before
from attention_clinic.examine.told import flat_of, right_of
from attention_clinic.examine.written import PLAIN, Run, linked, made_by_layers

CLOSE = 1e-5


def wrongly_turned(account: Account, turning: Turning | None) -> Said:
    """Return what is wrong with the angles that queries and keys are turned by.

    Args:
        account: of the steps.
        turning: what is known of the module.

    Raises:
        Unknown: how they are turned is not understood.
    """
    sides = [before(account.run, t)[1:] for t in (account.q, account.k)]
    if turning is None or all(kind != "turned" for kind, _ in sides):
        return []
    if any(kind != "turned" for kind, _ in sides):
        raise Unknown
    asked, answered = (
        _both(account, ids, name) for (_, ids), name in zip(sides, "qk", strict=True)
    )
    for layout, table in product((HALVES, PAIRS), repeat=2):
        angles, others = (turn_of(*side, layout, table) for side in (asked, answered))
        if angles is None or others is None or not torch.allclose(angles, others, atol=CLOSE):
            continue
        if not bool(angles.all()):
            raise Unknown  # which are turned, and which are not
        mixed = mixed_words(layout) if table != layout else ""
        ids, words, _ = wrong_angles(angles, mixed, turning.told, turning.bases)
        return [(id, words) for id in ids]
    raise Unknown


def _both(account: Account, ids: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return queries or keys before and after their turn, (1, slots, n, d), where they are turned.

    Args:
        account: of the steps.
        ids: of what was turned.
        name: of the side, "q" or "k".
    """
    run, layers = account.run, made_by_layers(account.run, ids)
    placed = right_of(account, ids, flat_of(account, ids, name), name)
    if layers is None or placed is None:
        raise Unknown
    sample, token = placed
    made = run.values[flat_of(account, layers, name)].double()[sample]  # (slots, n, f)
    ids = ids.gather(1, token.argsort(1)[..., None].expand_as(ids))
    heads = run.values[ids].double()
    # the first token is not turned: its numbers say which columns of a layer a head has
    gaps = (heads[:, 0, :, None] - made[:, 0, None]).abs()  # (slots, d, f)
    near = gaps.min(dim=-1)
    if bool(near.values.max() > CLOSE * heads.abs().max()):
        raise Unknown
    first = made.gather(2, near.indices[:, None].expand_as(heads))
    still = _by_layers(run, ids).all(dim=1).all(dim=0)
    return first[None, ..., ~still], heads[None, ..., ~still]


def _by_layers(run: Run, ids: Tensor) -> Tensor:
    """Return which of these numbers a layer made, and nothing turned."""
    found = torch.zeros(run.tape.count, dtype=torch.bool)
    for event in linked(run, ids):
        found[event.out] = event.name in PLAIN
    return found[ids]
