"""Judge who may attend to whom, and what becomes of the other scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_clinic.bugs.hiding import ADDED_TO_BLOCKED
from attention_clinic.bugs.masks import ITSELF, RULE, both, has_empty, same_rule
from attention_clinic.engine.forms import State
from attention_clinic.examine.account import Account
from attention_clinic.examine.biases import window_of
from attention_clinic.examine.scoring import FAR, Scored, Unknown

Said = list[tuple[str, str]]  # ids, each with its detail


def attending(account: Account, found: Scored, causal: bool | None, known: State) -> Said:
    """Return what is wrong with a mask.

    Args:
        account: of the steps.
        found: what the scores go through.
        causal: True when the attention must be causal, False when it must not, None for either.
        known: what is known of the module beside, such as "masks", (1 or b, 1 or h, 1 or i, j)
            each: what the mask may mean that was handed over.
    """
    masks: Sequence[Tensor] = known.get("masks", ())
    if found.allow is None and found.lost:
        raise Unknown  # what is not understood may hide some
    if masks:
        said = [one for mask in masks if (one := _given(account, found, causal, mask)) is not None]
        if not said:
            raise Unknown
        return min(said, key=len)
    if found.allow is None:
        if causal is not True:
            return []
        return [("mask-not-causal", _lost(account))]
    allow = found.allow
    i, j = allow.shape[-2:]
    if i != j or causal is False or not bool((allow == allow[:1, :1]).all()):
        raise Unknown
    every = torch.ones(i, j, dtype=torch.bool)
    rule = allow[0, 0]
    rules: list[tuple[Tensor, Said]] = [
        (every.tril(), []),
        (every.tril(-1), [("mask-off-by-one", "a token does not see itself")]),
        (every.tril(1), [("mask-off-by-one", "a token sees the one after it")]),
        (every.triu(1), [("mask-inverted", "")]),
        (every.triu(), [("mask-inverted", ITSELF)]),
    ]
    for wanted, said in rules:
        if torch.equal(rule, wanted):
            meant = bool(known.get("strict")) and torch.equal(rule, every.tril(-1))
            return [*(() if meant else said), *_fill(found)]
    soft = any(added and value > FAR for value, added in found.fills)  # a bias, perhaps
    if soft or not window_of(allow[0]) or (causal is True and bool(rule.triu(1).any())):
        raise Unknown
    return _fill(found)


def _given(account: Account, found: Scored, causal: bool | None, mask: Tensor) -> Said | None:
    """Return what is wrong with a mask that was handed over, None where nothing says it.

    Args:
        account, found, causal: as in `attending`.
        mask: who may attend to whom, by what was handed over.
    """
    i, j = account.scores.shape[1:]
    past = torch.ones(i, j, dtype=torch.bool).tril()
    sizes = (account.b, account.h, i, j) if found.allow is None else found.allow.shape
    fits = all(a in (1, c) for a, c in zip(mask.shape, sizes, strict=True))
    for causally in (None, past) if fits and i == j and causal is not False else (None,) * fits:
        right = both(mask, causally)
        if has_empty(right):
            continue
        state = {"mask": mask, "causal": causally, "right": right, "must_be_causal": False}
        state["scores"] = torch.empty(1, *sizes)
        for form in (*RULE.forms, *RULE.found(state)):
            made = RULE.apply(form, state) if form.applies(state) else None
            if made is None or not same_rule(made["allow"], found.allow):
                continue
            lost = found.allow is None and form.ids and _lost(account)
            return [*((id, lost or form.detail) for id in form.ids), *_fill(found)]
    return None


def _fill(found: Scored) -> Said:
    """Judge what hidden scores become."""
    if found.late:
        return [("mask-after-softmax", "")]
    said = []
    for value, added in found.fills:
        if value == -1 and added:
            said.append(("mask-added", ""))
            continue
        if value == 1 and added:
            said.append(("mask-added", ADDED_TO_BLOCKED))
            continue
        how = f"it {'adds' if added else 'fills with'} {value:g}"
        if value <= FAR:
            continue
        if value == 0:
            said.append(("mask-multiply", how))
        elif abs(value) < 1e-3:
            said.append(("mask-tiny", how))
        elif value >= -FAR:
            said.append(("mask-positive", how))
        else:
            said.append(("mask-weak", how))
    return said


def _lost(account: Account) -> str:
    """Say whether a mask is laid over the scores, and nothing uses what comes of it."""
    run = account.run
    for event in run.tape.events:
        if event.name in ("masked_fill", "where") and bool((run.where[event.out] >= 0).all()):
            return "masked_fill returns other scores, and nothing uses them"
    return ""
