"""Judge an account of an attention of which some steps are not understood.

What is proved of the other steps is named, and the steps that are not understood are said in words.
A name that such a step could make right is left out: queries that are normed need no scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attention_clinic.bugs import Setting
from attention_clinic.bugs.projections import SPLIT, Together
from attention_clinic.engine.forms import State
from attention_clinic.examine.account import Account
from attention_clinic.examine.judging import Said, questions
from attention_clinic.examine.scoring import Placed, Scored, Unknown, before, scored
from attention_clinic.examine.told import (
    USUAL,
    exchanged,
    flat_of,
    groups,
    laid_back,
    merged,
    order_of,
    origins,
    right_of,
    split,
)
from attention_clinic.examine.written import BENDS, PRODUCTS

SCALES = {"scale-missing", "scale-other", "scale-unused"}  # right beside what is not understood
AXES = {"softmax-query", "softmax-heads", "softmax-batch", "softmax-joint", "softmax-axes"}


def in_part(account: Account, causal: bool | None, known: State) -> tuple[Said, tuple[str, ...]]:
    """Return what is wrong in the steps that are understood, and the others in words.

    Args:
        account: of the steps.
        causal: True when the attention must be causal, False when it must not, None for either.
        known: what is known of the module beside.
    """
    gaps: list[str] = []
    hidden: set[str] = set()
    said, placed, lost = _placed(account)
    gaps += lost
    steps = scored(account, placed, partly=True)
    more: Said = []
    asked = questions(account, steps, placed.split, causal, known)
    thrown = steps.axes is None and not steps.lost and _thrown(account)
    if thrown:
        more, asked = [("softmax-missing", "what softmax returns is thrown away")], _last(asked)
    for words, question in asked.items():
        try:
            more += question()
        except Unknown:
            gaps.append(words)
    bare = steps.axes is None and not thrown
    if bare and _as_for_a_softmax(account, steps):
        more, gaps = [("softmax-missing", ""), *_ahead(account, steps, causal)], lost
    elif bare:
        more, gaps = [], [*lost, "what is weighed without a softmax"]
    more = laid_back(more) if exchanged(account) else more
    if steps.lost:
        gaps.append(f"what is done to the scores ({_listed(steps.lost)})")
    if steps.lost_after:
        gaps.append(f"what is done to the weights ({_listed(steps.lost_after)})")
        hidden |= AXES | SCALES | {"mix-transposed", "scale-after-softmax", "mask-after-softmax"}
    if steps.lost or lost:
        hidden |= SCALES
    if account.ends.before and account.ends.factor != 1:
        hidden.add("scale-after-softmax")
    if account.ends.lost:  # another kind of attention, perhaps
        said, hidden = [], {*hidden, "scale-missing"}
    if steps.lost or steps.lost_after or bare:
        said = [(id, detail) for id, detail in said if id != "heads-not-split"]
    if lost and placed.form is None:
        hidden |= {"softmax-heads", "softmax-batch", "softmax-joint", "softmax-axes"}
    said += [(id, detail) for id, detail in more if id not in hidden]
    ends = account.ends
    if ends.known and not lost:
        wanted = {"how heads are joined": merged, "which keys a head asks": groups}
        for words, ask in wanted.items():
            try:
                said += ask(account, placed)
            except Unknown:
                gaps.append(words)
    if not gaps:  # all but what stands around
        try:
            said += origins(account)
        except Unknown:
            gaps.append("of what queries, keys and values are made")
    if ends.before:
        gaps.append(f"what stands before the output layer ({_listed(ends.before)})")
    after = ends.after
    if after and after[0] in BENDS and after[1:2] in ((), ("add",)):  # the stream, at most
        said, after = [*said, ("out-bent", f"with {after[0]}")], after[1:]
    if ends.lost:
        gaps.append("what becomes of what heads mixed")
    elif not ends.known or not set(after) <= USUAL:
        behind = [name for name in after if name not in USUAL]
        listed = _listed(behind or after)
        gaps.append("what stands behind the output layer" + f" ({listed})" * bool(listed))
    return said, tuple(gaps)


def _as_for_a_softmax(account: Account, steps: Scored) -> bool:
    """Say whether scores are scaled for a softmax, biased or masked, and weigh as they are."""
    odd = steps.powers or steps.lost or steps.lost_after or steps.beside or not steps.sure
    factor = steps.factor * account.q.shape[-1] ** 0.5
    added = steps.bias is not None and not steps.learned
    return not (odd or added) and math.isclose(factor, 1) and math.isclose(steps.after, 1)


def _ahead(account: Account, steps: Scored, causal: bool | None) -> Said:
    """Judge whether scores that weigh as they are are those of the past alone, where they must."""
    if not causal or account.run.asked is not None:
        return []
    sees = steps.allow is None or bool(steps.allow.triu(1).any())
    return [("mask-not-causal", "")] * sees


def _thrown(account: Account) -> bool:
    """Say whether a softmax is taken of these scores, and nothing uses what it returns."""
    run = account.run
    return any(
        event.name == "_softmax" and not used and bool((run.where[event.args[0]] >= 0).all())
        for event, used in zip(run.tape.events, run.used, strict=True)
    )


def _last(asked: dict[str, Callable[[], Said]]) -> dict[str, Callable[[], Said]]:
    """Return all questions but the first, which is about the softmax."""
    return dict(list(asked.items())[1:])


def _placed(account: Account) -> tuple[Said, Placed, list[str]]:
    """Return what is wrong with the split, where the slots stand, and what is not understood."""
    try:
        return *split(account), []
    except Unknown:
        pass
    q = before(account.run, account.q)[2]
    slots, rows, d = account.q.shape
    keys = torch.arange(account.k.shape[1]).expand(slots, -1)
    lost = "what keys and values are made of"
    try:
        flat = flat_of(account, q, "q")
    except Unknown:
        flat = None
    setting = Setting(account.h, d * account.h if flat is None else flat.shape[-1], d)
    if flat is not None:
        found = right_of(account, q, flat, "q")
        if found is not None and slots % account.b == 0:
            sample, token = found
            heads = slots // account.b
            order = sample.argsort(stable=True)
            if bool((sample.bincount() == heads).all()):
                placed = Placed(
                    (account.b, heads), order, token.argsort(1)[order], keys, None, setting
                )
                return [("heads-not-split", "")] * (heads == 1 < account.h), placed, [lost]
        lying = torch.arange(rows).expand(slots, -1)
        for form in SPLIT.forms[1:]:
            state: State = {**dict.fromkeys("qkv", flat[None]), "setting": setting}
            state |= {"observed": True, "total": 2, "bias": None}
            if isinstance(form.run, Together) or not form.applies(state):
                continue
            if flat.shape[-1] != setting.num_heads * setting.head_dim:
                break
            made = SPLIT.apply(form, state)["q"]
            order = order_of(q, made)
            if order is not None:
                placed = Placed(tuple(made.shape[1:3]), order, lying, keys, form, setting)
                return [(id, form.detail) for id in form.ids], placed, [lost]
    sizes = (account.b, slots // account.b) if slots % account.b == 0 else (1, slots)
    lying = torch.arange(rows).expand(slots, -1)
    placed = Placed(sizes, torch.arange(slots), lying, keys, None, setting)
    return [], placed, ["what queries, keys and values are made of"]


def _listed(names: list[str] | tuple[str, ...]) -> str:
    """Return the names of operations as a list in words."""
    words = {"native_layer_norm": "norm", **dict.fromkeys(PRODUCTS, "another layer")}
    return ", ".join(dict.fromkeys(words.get(name, name) for name in names))
