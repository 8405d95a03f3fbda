"""Judge what the scores of an attention go through."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from attention_clinic.bugs import Setting
from attention_clinic.bugs.scores import all_scales, scales_by_size
from attention_clinic.bugs.softmax import TOO_MANY
from attention_clinic.engine.forms import State
from attention_clinic.examine.account import Account
from attention_clinic.examine.attending import Said, attending
from attention_clinic.examine.relating import related
from attention_clinic.examine.scoring import Scored, Unknown

AXES = {(4,): "", (3,): "softmax-query", (2,): "softmax-heads", (1,): "softmax-batch"}


def judged(
    account: Account, found: Scored, split: Setting, causal: bool | None, known: State
) -> Said:
    """Return what is wrong between the scores and the weights.

    Args:
        account: of the steps.
        found: what the scores go through.
        split: how the heads are split.
        causal: True when the attention must be causal, False when it must not, None for either.
        known: what is known of the module beside.
    """
    asked = questions(account, found, split, causal, known).values()
    return [one for question in asked for one in question()]


def questions(
    account: Account, found: Scored, split: Setting, causal: bool | None, known: State
) -> dict[str, Callable[[], Said]]:
    """Return what judges each step, by what it is about; see `judged`."""
    return {
        "over what the softmax is taken": partial(_axes, found),
        "by what the scores are multiplied": partial(_scale, account, found, split, known),
        "who may attend": partial(attending, account, found, causal, known),
        "what is added to the scores": partial(_bias, found),
        "what queries are multiplied with beside": partial(related, account, found),
    }


def _axes(found: Scored) -> Said:
    axes = found.axes
    if axes in AXES:
        return [(AXES[axes], "")] if AXES[axes] else []
    if axes == (1, 2):
        return [("softmax-batch", "over batch and heads at once, which share axis 0")]
    if axes == (2, 4):
        return [("softmax-joint", "")]
    if axes in TOO_MANY:
        return [("softmax-axes", TOO_MANY[axes])]
    raise Unknown


def _scale(account: Account, found: Scored, split: Setting, known: State) -> Said:
    t = torch.ones(1, account.b, account.h, *account.scores.shape[1:])
    setting = Setting(split.num_heads, known["embed_dim"], account.q.shape[-1])
    usual = setting.head_dim**-0.5
    if math.isclose(found.after, 1.0, rel_tol=1e-6):
        if math.isclose(found.factor, usual, rel_tol=1e-6):
            return []
        if known.get("unscaled") and math.isclose(found.factor, 1.0):
            return []
        if any(math.isclose(found.factor, by, rel_tol=1e-6) for by in known.get("factors", ())):
            return []
        whole = split.head_dim == split.embed_dim and account.h > 1  # no heads: see the split
        narrow = (split.head_dim / account.h) ** -0.5
        if whole and math.isclose(found.factor, narrow, rel_tol=1e-6):
            return []
    bare = math.isclose(found.factor, 1.0) and found.learned  # as in T5: queries start smaller
    if not found.sure or bare:
        raise Unknown
    state = {**known, "setting": setting, "cosine": False}
    for form in (*all_scales(state, True), *scales_by_size()):
        if not form.ids or not form.applies(state):
            continue
        made = form.run(t, setting)
        made, after = made if isinstance(made, tuple) else (made, 1.0)
        factor = float(made.flatten()[0])
        if form.ids != ("scores-rounded",) and all(
            math.isclose(a, b, rel_tol=1e-6)
            for a, b in ((factor, found.factor), (float(after), found.after))
        ):
            return [(id, form.detail) for id in form.ids]
    said: Said = []
    if not math.isclose(found.factor, usual, rel_tol=1e-6):
        said.append(("scale-other", f"it multiplies by {found.factor:.4g}"))
    if not math.isclose(found.after, 1.0, rel_tol=1e-6):
        twice = "" if said else ", though the scores are scaled"
        words = f"it multiplies the weights by {found.after:.4g}{twice}"
        said.append(("scale-after-softmax", words))
    return said


def _bias(found: Scored) -> Said:
    """Judge what is added to the scores."""
    if found.bias is None or found.learned:
        return []
    bias = found.bias * found.factor
    if not bool((bias == bias[:1]).all()) or bias.shape[-1] != bias.shape[-2]:
        raise Unknown
    bias = bias[0]
    seen = (
        torch.ones(bias.shape[-2:], dtype=torch.bool) if found.allow is None else found.allow[0, 0]
    )
    n = bias.shape[-1]
    ahead = (torch.arange(n)[None, :] - torch.arange(n)[:, None]).to(bias)
    flat = (bias - bias.diagonal(dim1=1, dim2=2)[..., None]) * seen
    for distance, right in ((ahead.abs(), False), (-ahead, False), (-ahead.abs(), True)):
        away = distance * seen
        slopes = (flat * away).sum((1, 2)) / away.square().sum().clamp(min=1e-30)
        if bool((flat - slopes[:, None, None] * away).abs().max() <= 1e-6):
            if right or bool((slopes < 0).all()):
                return []
            if bool((slopes > 0).all()):
                return [("alibi-inverted", "")]
    raise Unknown
