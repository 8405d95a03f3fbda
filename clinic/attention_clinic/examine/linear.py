"""Linear attention by its steps: keys with values first, however they are bent and divided."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.examine.scoring import Unknown
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.told import merged, origins, split
from attention_clinic.examine.walks import (
    CLOSE,
    FACTORS,
    Told,
    Walk,
    around,
    end_of,
    made_of_layers,
    token_axis,
    walk,
)
from attention_clinic.examine.written import PRODUCTS, Run

EPS = 1e-3  # that a divisor may have beside its sum, relative to it


@dataclass
class Linear:
    """The products of linear attention, laid out alike.

    Args:
        q, k, v: ids, (slots, i, c), (slots, j, c) and (slots, j, d): what was multiplied.
        mixed: ids, (slots, i, d).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mixed: Tensor


def linear_of(run: Run) -> Linear | None:
    """Return the products of keys with values, and of queries with that; None where there are none.

    Args:
        run: what was written down.
    """
    products = run.products()
    slots: dict[int, tuple[Tensor, Tensor, bool]] = {}  # by the first id: keys, values, exchanged
    for number, a, b in products:
        if a.shape[2] > 1 and _over_tokens(run, a, b):
            out = run.tape.events[number].out
            out = out if out.ndim == 3 else out[None]
            for slot, ids in enumerate(out):
                slots[int(ids[0, 0])] = a[slot].T, b[slot], ids
    if not slots:
        return None
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for number, a, b in products:
        out = run.tape.events[number].out
        out = out if out.ndim == 3 else out[None]
        for kv, q, made in ((b, a, out), (a.mT, b.mT, out.mT)):
            back = walk(run, kv, FACTORS)
            if not back.own or any(int(ids.min()) not in slots for ids in back.ids):
                continue
            for slot, ids in enumerate(back.ids):
                k, v, whole = slots[int(ids.min())]
                if torch.equal(ids, whole):
                    found.append((q[slot], k, v, made[slot]))
                elif torch.equal(ids, whole.T):
                    found.append((q[slot], v, k, made[slot]))
                else:
                    return None
            break
    if not found or any(len({t.shape for t in each}) > 1 for each in zip(*found, strict=True)):
        return None
    return Linear(*(torch.stack(each) for each in zip(*found, strict=True)))


def _over_tokens(run: Run, a: Tensor, b: Tensor) -> bool:
    """Say whether a product sums over tokens; where a split went wrong its size says so."""
    a, b = walk(run, a).ids, walk(run, b).ids
    axes = token_axis(run, a), token_axis(run, b)
    if None not in axes or a.shape[2] != run.y.shape[1]:
        return axes == (2, 1)
    return all(bool((t >= 0).all()) for t in (run.token[a], run.token[b]))


def linear_seen(subject: Subject, run: Run, x: Tensor) -> Told | None:
    """Return what linear attention does, None where it is none.

    Args:
        subject: the module.
        run: what was written down.
        x: tokens, (b, n, e).
    """
    found = linear_of(run)
    if found is None:
        return None
    back = [walk(run, t) for t in (found.q, found.k, found.v)]
    end = end_of(run, found.mixed)
    if end is None or not back[2].own or not back[2].names <= FACTORS:
        return None
    _divided(run, found, end.mixed, back)
    q, k, v = sides = [w.ids for w in back]
    account = end.account(run, subject.h, (q, k, v), found.mixed, [])
    said, placed = split(account)
    said += [*merged(account, placed), *origins(account)]
    name = "agent-attention" if _asks_agents(run, back) else "linear-attention"
    return Told((name,), said, around(subject, run, x, end, sides), end.layer)


def _asks_agents(run: Run, back: list[Walk]) -> bool:
    """Say whether keys answer a few learned vectors, and queries ask these, by a softmax each."""
    if any("_softmax" not in side.names for side in back[:2]):
        return False
    asked = []
    for side in back[:2]:
        constant = []
        for number in run.makers(side.ids):
            event = run.tape.events[number]
            place = PRODUCTS.get(event.name)
            tensors = [] if place is None else event.args[place : place + 2]
            if not any(run.depends(t) and made_of_layers(run, t) for t in tensors):
                return False
            constant += [run.values[t].flatten() for t in tensors if not run.depends(t)]
        values = torch.cat(constant).unique()
        asked.append(values / values.abs().max())
    return asked[0].shape == asked[1].shape and torch.allclose(*asked)


def _divided(run: Run, found: Linear, ended: Tensor, back: list[Walk]) -> None:
    """Raise `Unknown` where rows of weights do not sum to one number, and should.

    That is so where queries, or keys, depend on other tokens in another way than by a softmax of
    the keys over all tokens. Weights below zero may sum to nothing: nobody can divide by that.
    """
    q, k = (run.values[t] for t in (found.q, found.k))
    made, last = run.values[found.mixed], run.values[ended]
    times = (last * made).sum(-1) / made.square().sum(-1)
    limit = CLOSE * (1 + last.abs().max())
    if bool((last - times[..., None] * made).abs().max() > limit):
        raise Unknown
    local = [bool((run.token[t] >= 0).all()) for t in (found.q, found.k)]
    over = back[1].softmax
    tokens = over is not None and bool((over == over[:, :1]).all())  # of keys, over all tokens
    tokens = tokens and len(over[0, 0].unique()) == over.shape[2]
    free = bool((times - times[:1, :1]).abs().max() <= CLOSE * times.abs().max())
    if free and local[0] and ((local[1] and over is None) or tokens):
        return
    rows = times * (q * k.sum(1, keepdim=True)).sum(-1)
    if bool((rows - rows.mean()).abs().max() > EPS * rows.mean().abs()):
        raise Unknown
    weights = rows.mean().sign() * times[..., None] * (q @ k.mT)
    if bool(weights.min() < -CLOSE * weights.max()):
        raise Unknown
