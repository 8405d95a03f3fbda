"""Linformer by its steps: the places of keys and values are mixed by numbers that no token made."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.examine.account import account_of
from attention_clinic.examine.judging import judged
from attention_clinic.examine.scoring import scored
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.told import merged, origins, split
from attention_clinic.examine.walks import FACTORS, Told, around, end_of, walk
from attention_clinic.examine.written import PRODUCTS, Run


def narrowed_seen(subject: Subject, run: Run, x: Tensor) -> Told | None:
    """Return what a Linformer does, None where it is none.

    Args:
        subject: the module.
        run: what was written down.
        x: tokens, (b, n, e).
    """
    account = account_of(run, subject.h)
    if account is None:
        return None
    k, v = (_unmixed(run, t) for t in (account.k, account.v))
    end = end_of(run, account.mixed)
    if k is None or v is None or end is None:
        return None
    q = walk(run, account.q, FACTORS).ids
    own = end.account(run, subject.h, (q, k, v), account.scores, account.steps)
    said, placed = split(own)
    columns = torch.arange(account.k.shape[1]).expand(len(account.k), -1)
    placed = replace(placed, columns=columns)
    whole = replace(own, q=account.q, k=account.k)
    steps = scored(whole, placed)
    if steps.allow is not None and subject.options.causal is True and subject.sees_future:
        # each place holds tokens that stand behind: whoever it is hidden from sees others of these
        steps.allow, steps.fills = None, []
        said.append(("mask-not-causal", "it hides places that hold tokens of many places"))
    known = {**subject.known, "embed_dim": subject.e}
    said += judged(whole, steps, placed.split, None, known)
    said += [*merged(own, placed), *origins(own)]
    return Told(("linformer",), said, around(subject, run, x, end, [q, k, v]), end.layer)


def _unmixed(run: Run, ids: Tensor) -> Tensor | None:
    """Return ids of the tokens (slots, n, d) that were mixed into fewer (slots, r, d).

    None where they were not, or not the same ones into all.
    """
    ids = walk(run, ids, FACTORS).ids
    vectors: list[Tensor] = []
    which = torch.full((run.tape.count,), -1)
    for number in run.makers(ids):
        event = run.tape.events[number] if number >= 0 else None
        if event is None or event.name not in PRODUCTS:
            return None
        place = PRODUCTS[event.name]
        a, b, out = (
            t if t.ndim == 3 else t[None] for t in (*event.args[place : place + 2], event.out)
        )
        held = [run.depends(t) for t in (a, b)]
        if held == [True, False]:
            rows = a.flatten(0, 1)
            label = torch.arange(len(rows)).view(*a.shape[:2], 1)
        elif held == [False, True]:
            rows = b.mT.flatten(0, 1)
            label = torch.arange(len(rows)).view(b.shape[0], 1, b.shape[2])
        else:
            return None
        which[out] = (label + sum(map(len, vectors))).expand(out.shape)
        vectors.append(rows)
    if len({rows.shape[1] for rows in vectors}) != 1:
        return None
    rows = which[ids]
    if bool((rows != rows[:, :1]).any()):
        return None
    return torch.cat(vectors)[rows[:, 0]].mT
