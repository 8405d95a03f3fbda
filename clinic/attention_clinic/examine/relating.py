"""What is added to scores by products of queries, or keys, with codes of places.

Each number that is added is known by the token that it is made of, and by the code: so it shows
whether a query meets the codes of its own distances, however rows are shifted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.examine.account import Account
from attention_clinic.examine.scoring import Scored, Unknown, before
from attention_clinic.examine.written import NONE, PRODUCTS, Run, linked

SHIFTED = "relative-shift"


def related(account: Account, found: Scored) -> list[tuple[str, str]]:
    """Judge what is added to the scores by products with codes.

    Args:
        account: of the steps.
        found: what the scores go through.
    """
    said = []
    for ids in found.beside:
        i, j = ids.shape[-2:]
        if i != j or i != account.n:
            raise Unknown
        seen = torch.ones(ids.shape, dtype=torch.bool) if found.allow is None else found.allow
        said += _of_one(account, ids, seen)
    return list(dict.fromkeys(said))


def _of_one(account: Account, ids: Tensor, seen: Tensor) -> list[tuple[str, str]]:
    """Judge one thing that is added.

    Args:
        account: of the steps.
        ids: (b, h, n, n).
        seen: which scores count, the same.
    """
    run, n = account.run, account.n
    token = run.token[ids]
    shown = seen & (token != NONE)
    rows, columns = torch.arange(n)[:, None].expand(n, n), torch.arange(n).expand(n, n)
    who = _who(account, ids[shown])
    if who == "k" and bool((token == columns)[shown].all()):
        return []
    if who != "q":
        raise Unknown
    if bool((token == rows)[shown].all()):
        if _by(run, ids, shown, (columns - rows).expand_as(ids)):
            return []
        raise Unknown
    past = shown & (columns <= rows)
    if bool((token == rows)[past].all()) and bool((token == rows + 1)[shown & ~past].all()):
        return []  # what later keys get from Transformer-XL's shift of as many codes as tokens
    other = (token != rows) & shown
    place = tuple(int(k) for k in torch.nonzero(other)[0])
    said = f"the score of query {place[2]} and key {place[3]} gets numbers of query "
    return [(SHIFTED, f"{said}{int(token[place])}")]


def _who(account: Account, ids: Tensor) -> str:
    """Return "q" or "k" for what was made of queries, or of keys; "" for another thing."""
    run, made = account.run, []
    for event in linked(run, ids):
        place = PRODUCTS[event.name]
        held = [t for t in event.args[place : place + 2] if run.depends(t)]
        if len(held) != 1:
            return ""
        made.append(before(run, held[0])[2].flatten())
    for name, t in (("q", account.q), ("k", account.k)):
        own = run.values[before(run, t)[2].flatten()]  # a layer may be called twice
        if made and bool(torch.isin(run.values[torch.cat(made)], own).all()):
            return name
    return ""


def _by(run: Run, ids: Tensor, shown: Tensor, places: Tensor) -> bool:
    """Say whether the code that a number is made with depends on these places alone.

    Args:
        run: what was written down.
        ids: (b, h, n, n).
        shown: which count, the same.
        places: numbers of the places, the same.
    """
    code = torch.full((run.tape.count,), -1)
    for event in linked(run, ids[shown]):
        place = PRODUCTS[event.name]
        first, second = event.args[place : place + 2]
        if run.depends(first):
            code[event.out] = second[..., :1, :].expand(event.out.shape)
        else:
            code[event.out] = first[..., :1].expand(event.out.shape)
    codes = code[ids]
    for head in range(ids.shape[1]):
        kept = shown[:, head]
        values = run.values[codes[:, head][kept]]
        which = places[:, head][kept]
        for place in which.unique():
            own = values[which == place]
            if bool((own - own[0]).abs().max() > 1e-9):
                return False
    return True
