"""Losses."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug

# ------------- shift: scores (b, n, k) and tokens (b, n) -> those that belong together


def _shifted(form: Form, state: State) -> State:
    if not state["next_token"]:
        return {}
    scores, classes = form.run(state["scores"], state["classes"])
    return {"scores": scores, "classes": classes}


SHIFT = Stage("shift", _shifted)


@SHIFT.right
def shift(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, :-1], tokens[:, 1:]


bug(
    "target-not-shifted",
    "asks position t for the token that it is given, not for the next one",
    "compare scores[:, :-1] with tokens[:, 1:].",
    "05",
    "IpsumDominum/Pytorch-Simple-Transformer#3",
)


def _language(state: State) -> bool:
    return state["next_token"]


@SHIFT.wrong("target-not-shifted", applies=_language)
def shift_nothing(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores, tokens


@SHIFT.wrong("target-not-shifted", applies=_language)
def shift_both_ends(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, :-1], tokens[:, :-1]


@SHIFT.wrong("target-not-shifted", applies=_language)
def shift_both_starts(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, 1:], tokens[:, 1:]


# ------------------------------------------------------------- given: scores (..., k)


def _given(form: Form, state: State) -> State:
    return {"scores": form.run(state["scores"])}


GIVEN = Stage("given", _given)


@GIVEN.right
def given(scores: Tensor) -> Tensor:
    return scores


bug(
    "double-softmax",
    "applies softmax before a cross-entropy that applies it again",
    "hand the scores themselves to F.cross_entropy.",
    "07",
    "lansinuote/Huggingface_Toturials#6",
    "nishnik/Deep-Semantic-Similarity-Model-PyTorch#2",
)


@GIVEN.wrong("double-softmax")
def given_softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


# --------------------------------------------------------- reduce: every reduction is right


def _reduced(form: Form, state: State) -> State:
    scores, classes = state["scores"], state["classes"]
    flat = scores.reshape(-1, scores.shape[-1]), classes.reshape(-1)
    return {"made": form.run(*flat, state["smoothing"])}


REDUCE = Stage("reduce", _reduced)


@REDUCE.right
def mean(scores: Tensor, classes: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(scores, classes, label_smoothing=smoothing)


@REDUCE.right
def total(scores: Tensor, classes: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(scores, classes, reduction="sum", label_smoothing=smoothing)


@REDUCE.right
def each(scores: Tensor, classes: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(scores, classes, reduction="none", label_smoothing=smoothing)


LOSS = (SHIFT, GIVEN, REDUCE)
