"""Masks: who may attend."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug

# ---------------------------------- rule: who may attend, (1 or b, 1 or h, i, j) or None
# A rule gets the mask that was given and the causal mask; either may be None.


def has_empty(allow: Tensor | None) -> bool:
    """Say whether some query may attend to nothing."""
    return allow is not None and not bool(allow.any(dim=-1).all())


def same_rule(first: Tensor | None, second: Tensor | None) -> bool:
    """Say whether two rules allow the same; None allows everything."""
    if first is None or second is None:
        return all(rule is None or bool(rule.all()) for rule in (first, second))
    return torch.equal(*torch.broadcast_tensors(first, second))


def _ruled(form: Form, state: State) -> State | None:
    allow = form.run(state["mask"], state["causal"])
    sizes = reversed(state["scores"].shape)
    if allow is not None and any(
        size not in (1, wanted) for size, wanted in zip(reversed(allow.shape), sizes, strict=False)
    ):
        return None
    if form.ids and same_rule(allow, state["right"]):
        return None
    return {"allow": allow, "of_pairs": form.run is rule_of_pairs}


def _other_samples(state: State) -> Iterator[Form]:
    """Find the masks of other samples, where heads are laid out among them in another order."""
    mask, (b, h) = state["mask"], state["scores"].shape[1:3]
    if mask is None or mask.shape[0] != b or mask.shape[1] != 1 or 1 in (b, h):
        return
    numbers = torch.arange(b * h)
    for said, picked in (
        ("it repeats the whole batch: samples 0, 1, 0, 1", (numbers % b).view(b, h)),
        ("it repeats each sample: 0, 0, 1, 1", (numbers // h).view(h, b).T),
    ):

        def run(mask: Tensor, causal: Tensor | None, picked: Tensor = picked) -> Tensor | None:
            return both(mask[picked, 0], causal)

        yield Form(run, ("mask-other-sample",), said)


RULE = Stage("rule", _ruled, found=_other_samples)


def both(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    """Join two masks of which either may be missing."""
    if mask is None or causal is None:
        return causal if mask is None else mask
    return mask & causal


@RULE.right
def rule(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(mask, causal)


def _of_tokens(state: State) -> bool:
    """Say whether the mask hides tokens, the same for all of them, and not all."""
    mask = state["mask"]
    if mask is None or mask.shape[1:3] != (1, 1) or mask.shape[3] != state["scores"].shape[3]:
        return False
    return not bool(mask.all())


def rule_of_pairs(mask: Tensor, causal: Tensor | None) -> Tensor | None:
    """Hide what is hidden from itself, too: what becomes of its rows, nobody reads."""
    return both(mask & mask.mT, causal)


RULE.forms.append(Form(rule_of_pairs, applies=_of_tokens))


bug(
    "mask-dropped",
    "takes a mask and does not use it",
    "pass the mask on to the function that computes the weights.",
    "05",
    "phlippe/uvadlc_notebooks, tutorial 6, get_attention_maps",
)


@RULE.wrong("mask-dropped")
def rule_dropped(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return causal


bug(
    "mask-not-causal",
    "lets a token attend to later tokens, though it should be causal",
    "combine the mask with causal_mask(n).",
    "05",
    "huggingface/transformers#48745",
    "alex-matton/causal-transformer-decoder#1",
)


def _has_both(state: State) -> bool:
    return state["mask"] is not None and state["causal"] is not None


@RULE.wrong("mask-not-causal", applies=lambda state: state["must_be_causal"])
def rule_not_causal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return None if causal is None else mask


@RULE.wrong("mask-not-causal", "it joins both masks by or", _has_both)
def rule_either(mask: Tensor, causal: Tensor) -> Tensor:
    return mask | causal


bug(
    "mask-inverted",
    "takes the mask upside down: attends exactly where it must not",
    'agree on what True means; here True = may attend (true_means="block" says that it blocks in '
    "your mask), so mask where it is False.",
    "05",
    "lucidrains/x-transformers#160",
    "lucidrains/x-transformers#164",
    "NVIDIA/TransformerEngine#614",
    "InseeFrLab/torchTextClassifiers#92",
    "cnzzx/GeMap#1",
    "rasbt/LLMs-from-scratch#1061",
)


@RULE.wrong("mask-inverted")
def rule_inverted(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(~mask, causal) if mask is not None else ~causal if causal is not None else None


bug(
    "mask-query-axis",
    "lays the mask over the queries instead of the keys",
    "keys are the last axis of the scores: a padding mask (b, n) is mask[:, None, None, :].",
    "05",
    "hyunwoongko/transformer#40",
)


@RULE.wrong("mask-query-axis", applies=lambda state: state["mask"] is not None)
def rule_query_axis(mask: Tensor, causal: Tensor | None) -> Tensor | None:
    return both(mask.mT, causal)


def _has_causal(state: State) -> bool:
    return state["mask"] is None and state["causal"] is not None


ITSELF = "a token sees itself and the later ones: triu, where tril is meant"


@RULE.wrong("mask-inverted", ITSELF, _has_causal)
def rule_of_the_later(mask: Tensor | None, causal: Tensor) -> Tensor:
    return causal.mT


bug(
    "mask-other-sample",
    "gives heads the masks of other samples: batch and heads share an axis, and the mask is "
    "repeated in another order",
    "where rows are b * h, write mask.repeat_interleave(num_heads, dim=0); where they are h * b, "
    "mask.repeat(num_heads, 1, 1).",
    "05",
    "ArrowLuo/CLIP4Clip#22",
    "line/lighthouse#77",
    "lsdefine/attention-is-all-you-need-keras#28",
    "lsdefine/attention-is-all-you-need-keras#36",
)
bug(
    "mask-off-by-one",
    "draws the causal mask without, or one past, the diagonal",
    "let token i attend to tokens 0 to i: torch.ones(n, n).tril().",
    "05",
    "RVC-Boss/GPT-SoVITS#965",
    "hkproj/pytorch-transformer#19",
)


def shifted(mask: Tensor | None, causal: Tensor | None, diagonal: int) -> Tensor | None:
    """Move the edge of the causal mask, wherever it came from."""
    given = (
        causal is None
        and mask is not None
        and mask.shape[-1] == mask.shape[-2]
        and torch.equal(mask, torch.ones_like(mask).tril())
    )
    triangle = mask if given else causal
    if triangle is None:
        return both(mask, causal)
    moved = torch.ones_like(triangle).tril(diagonal)
    return moved if given else both(mask, moved)


def is_strict(state: State) -> bool:
    """Say whether the module sees to it that a token with none before it gets nothing.

    Then it is meant so: who draws the mask wrong has no thought for an empty row.
    """
    return bool(state.get("strict")) and state["mask"] is None and state["causal"] is not None


@RULE.wrong("mask-off-by-one", "a token does not see itself", lambda state: not is_strict(state))
def rule_before_the_diagonal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return shifted(mask, causal, -1)


RULE.variant("no-self", is_strict)(rule_before_the_diagonal)


@RULE.wrong("mask-off-by-one", "a token sees the one after it")
def rule_past_the_diagonal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return shifted(mask, causal, 1)
