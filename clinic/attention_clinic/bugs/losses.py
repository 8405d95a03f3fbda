"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# ------------- shift: scores (b, n, k) and tokens (b, n) -> those that belong together


def _shifted(form: Form, state: State) -> State:
    tokens, keep = state["classes"], state["keep"]
    if tokens.ndim == 1:
        return {"inputs": keep}
    scores, classes = form.run(state["scores"], tokens)
    _, keep = form.run(state["scores"], keep)
    return {"scores": scores, "classes": classes, "keep": keep, "inputs": state["keep"]}


SHIFT = Stage("shift", _shifted)


def _language(state: State) -> bool:
    return state["next_token"]


def _aligned(state: State) -> bool:
    return not state["next_token"] and state["classes"].ndim == 2


def shift(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, :-1], tokens[:, 1:]


def leave(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores, tokens


SHIFT.forms.append(Form(shift, applies=_language))
SHIFT.forms.append(Form(leave, applies=lambda state: not state["next_token"]))

bug(
    "target-not-shifted",
    "asks position t for the token that it is given, not for the next one",
    "compare scores[:, :-1] with tokens[:, 1:].",
    "05",
    "IpsumDominum/Pytorch-Simple-Transformer#3",
)
SHIFT.wrong("target-not-shifted", applies=_language)(leave)


@SHIFT.wrong("target-not-shifted", applies=_language)
def shift_both_ends(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, :-1], tokens[:, :-1]


@SHIFT.wrong("target-not-shifted", applies=_language)
def shift_both_starts(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, 1:], tokens[:, 1:]


bug(
    "target-shifted-twice",
    "asks position t for the token after the next one: the targets are shifted twice",
    "shift once, either where the targets are made or in the loss.",
    "12",
    "huggingface/transformers#47394",
    "huggingface/transformers#46898",
    "huggingface/transformers#35066",
)
SHIFT.wrong("target-shifted-twice", "they come shifted, and it shifts them again", _aligned)(shift)


@SHIFT.wrong("target-shifted-twice", applies=_language)
def shift_by_two(scores: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return scores[:, :-2], tokens[:, 2:]


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


# --------- keep: which targets count, (b, n); padding does not, and the padding of the targets
# stands one place before that of the tokens that were the input

KEEP = Stage("keep", lambda form, state: form.run(state))


def _padded(state: State) -> bool:
    return not bool(state["keep"].all())


@KEEP.right
def keep_targets(state: State) -> State | None:
    return {"counted": state["keep"]}


bug(
    "padding-counted",
    "counts padding: the model is asked to predict it, and is paid for that",
    "F.cross_entropy(scores, targets, ignore_index=padding_id).",
    "10",
    "lukas-blecher/LaTeX-OCR#305",
    "lucidrains/DALLE-pytorch#57",
    "EleutherAI/gpt-neo#45",
)


@KEEP.wrong("padding-counted", applies=lambda s: _padded(s) and bool((s["classes"] >= 0).all()))
def keep_all(state: State) -> State | None:
    return {"counted": torch.ones_like(state["keep"])}


bug(
    "padding-not-shifted",
    "leaves out the padding of the input, not that of the targets, which stands one place earlier",
    "shift the mask with the targets: targets = tokens[:, 1:], mask = targets != padding_id.",
    "12",
    "chengchingwen/Transformers.jl#4",
    "SafeAILab/EAGLE#317",
)


@KEEP.wrong("padding-not-shifted", applies=lambda state: _language(state) and _padded(state))
def keep_inputs(state: State) -> State | None:
    n = state["classes"].shape[1]
    counted = state["inputs"][:, :n]
    fits = bool((state["classes"][counted] >= 0).all())
    return {"counted": counted} if fits else None


# --------------------------------------------------------- reduce: every reduction is right


def _reduced(form: Form, state: State) -> State:
    scores, classes = state["scores"], state["classes"].clamp(min=0)
    each = F.cross_entropy(
        scores.flatten(0, -2),
        classes.flatten(),
        reduction="none",
        label_smoothing=state["smoothing"],
    )
    return {"made": form.run(each.view_as(classes), state["counted"])}


REDUCE = Stage("reduce", _reduced)


@REDUCE.right
def mean(each: Tensor, counted: Tensor) -> Tensor:
    return each[counted].mean()


@REDUCE.right
def total(each: Tensor, counted: Tensor) -> Tensor:
    return each[counted].sum()


@REDUCE.right
def apart(each: Tensor, counted: Tensor) -> Tensor:
    return each * counted


@REDUCE.right
def apart_without_padding(each: Tensor, counted: Tensor) -> Tensor:
    return each[counted]


@REDUCE.right
def total_by_sample(each: Tensor, counted: Tensor) -> Tensor:
    return (each * counted).flatten(1).sum(1) if each.ndim > 1 else each


variant(
    "mean-by-sample",
    "takes the mean of each sample, then that of the samples: a token of a short one counts more",
    "losses that weigh sentences alike",
    "10",
)


def _sequences(state: State) -> bool:
    return state["classes"].ndim == 2 and bool(state["counted"].any(dim=1).all())


@REDUCE.variant("mean-by-sample", applies=_sequences)
def mean_by_sample(each: Tensor, counted: Tensor) -> Tensor:
    return ((each * counted).sum(1) / counted.sum(1)).mean()


@REDUCE.variant("mean-by-sample", applies=_sequences)
def means_of_samples(each: Tensor, counted: Tensor) -> Tensor:
    return (each * counted).sum(1) / counted.sum(1)


bug(
    "padding-averaged",
    "leaves padding out of the sum, and divides by all places: more padding, less loss",
    "divide by the number of targets that count: (losses * mask).sum() / mask.sum().",
    "10",
    "d2l-ai/d2l-en#2076",
    "IBM/pytorch-seq2seq#125",
    "NovaSky-AI/SkyRL#462",
    "tensorflow/docs#1460",
)


def _some_left_out(state: State) -> bool:
    return not bool(state["counted"].all())


@REDUCE.wrong("padding-averaged", applies=_some_left_out)
def mean_of_all(each: Tensor, counted: Tensor) -> Tensor:
    return (each * counted).mean()


@REDUCE.wrong("padding-averaged", "sample by sample", applies=_some_left_out)
def means_of_all(each: Tensor, counted: Tensor) -> Tensor:
    return (each * counted).flatten(1).mean(1) if each.ndim > 1 else each * counted


LOSS = (SHIFT, GIVEN, KEEP, REDUCE)
