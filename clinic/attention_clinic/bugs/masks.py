"""Masks: who may attend, and what that does to the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


@RULE.wrong("mask-not-causal", applies=lambda state: state["must_be_causal"])
def rule_not_causal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return None if causal is None else mask


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


@RULE.wrong("mask-query-axis")
def rule_query_axis(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(mask.mT, causal) if mask is not None else causal.mT if causal is not None else None


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


# ------------------- use: what the rule does to the scores; `softmax` is the stage after it


def _used(form: Form, state: State) -> State | None:
    return None if state["allow"] is None and form.ids else {"use": form.run}


USE = Stage("use", _used)


@USE.right
def use(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    weights = softmax(scores.masked_fill(~allow, -torch.inf))
    return weights.masked_fill(~allow.any(dim=-1, keepdim=True), 0.0)


bug(
    "mask-multiply",
    "multiplies the scores by the mask: a masked score becomes 0, not -inf, and still gets weight",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax.",
    "05",
    "georg-wolflein/good-features#1",
)


@USE.wrong("mask-multiply")
def use_multiply(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores * allow)


bug(
    "mask-tiny",
    "fills masked scores with a tiny number such as 1e-9 or -1e-12, where -1e9 was meant",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax.",
    "05",
    "hyunwoongko/transformer#10",
    "awslabs/gluonts#1401",
    "Shujun-He/RibonanzaNet#5",
)


@USE.wrong("mask-tiny")
def use_tiny(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -1e-12))


bug(
    "mask-weak",
    "fills masked scores with a number such as -10, which leaves them some weight",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax.",
    "05",
    "karpathy/minGPT#75",
)
WEAK = (-1.0, -2.0, -3.0, -5.0, -8.0, -10.0, -15.0, -20.0)


def _uncapped(state: State) -> bool:
    """Say whether no soft cap is known: what is bent behind the mask is a mistake of its own."""
    return state.get("caps") is None


def _weak(value: float, added: bool) -> Callable[..., Tensor]:
    def use(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
        if added:
            return softmax(scores + value * (~allow))
        return softmax(scores.masked_fill(~allow, value))

    return use


for _value in WEAK:
    USE.wrong("mask-weak", f"it fills with {_value:g}", _uncapped)(_weak(_value, False))
    if _value != -1.0:  # to add 1 where nothing is blocked is the same, and a name of its own
        USE.wrong("mask-weak", f"it adds {_value:g}", _uncapped)(_weak(_value, True))

bug(
    "mask-positive",
    "fills masked scores with a large number above 0, such as 1e9 or plus infinity: the masked "
    "keys get all the weight, or the rows are NaN",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax: the minus matters.",
    "05",
    "Ishushan02/Transformer-Implementation, transformer.py",
)


@USE.wrong("mask-positive", "it fills with 1e+09", _uncapped)
def use_positive(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, 1e9))


@USE.wrong("mask-positive", "it fills with plus infinity: such rows are NaN", _uncapped)
def use_plus_infinity(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, torch.inf))


bug(
    "mask-added",
    "adds a mask of ones and zeros to the scores, which hardly changes them",
    "turn it into 0 and -inf first, or write scores.masked_fill(~mask, -torch.inf).",
    "05",
    "huggingface/transformers#41443",
    "huggingface/pytorch-image-models#2674",
)


@USE.wrong("mask-added")
def use_added(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores + allow)


@USE.wrong("mask-added", "it adds 1 to what should be blocked")
def use_added_to_blocked(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores + ~allow)


bug(
    "mask-after-softmax",
    "masks the weights after the softmax, so that rows no longer sum to 1",
    "mask the scores with -inf before the softmax.",
    "05",
    "lucidrains/memory-compressed-attention#2",
    "abisee/pointer-generator#88",
)


@USE.wrong("mask-after-softmax")
def use_after_softmax(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores) * allow


# These three are the right code for every row that may attend to something. Where only a mistaken
# mask leaves rows empty, no treatment of them is a bug; but to open them all is to have no mask.
bug(
    "mask-row-empty",
    "a row with nothing to attend to does not give 0",
    "set such rows to 0 after the softmax, as the fused kernel does.",
    "05",
    "pytorch/pytorch#41508",
    "pytorch/pytorch#103749",
    "pytorch/pytorch#131060",
    "tracel-ai/burn#4697",
    "robertknight/rten#1321",
)


def _has_empty_row(state: State) -> bool:
    return has_empty(state["allow"])


def _on_purpose(state: State) -> bool:
    return state["right_has_empty"]


def _keeps_a_mask(state: State) -> bool:
    allow = state["allow"]
    if not has_empty(allow):
        return False
    whole = bool((allow | ~allow.any(dim=-1, keepdim=True)).all())
    return state["right_has_empty"] or not whole


@USE.wrong(
    "mask-row-empty",
    "it gives NaN: softmax over nothing but -inf",
    _has_empty_row,
    lambda state: state["right_has_empty"] or state["of_pairs"],
)
def use_row_nan(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -torch.inf))


@USE.wrong(
    "mask-row-empty",
    "it attends evenly to all the keys that are masked",
    _has_empty_row,
    _on_purpose,
)
def use_row_even(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -1e9))


@USE.wrong(
    "mask-row-empty",
    "it attends to the masked keys as if there were no mask",
    _keeps_a_mask,
    _on_purpose,
)
def use_row_open(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    open_rows = allow | ~allow.any(dim=-1, keepdim=True)
    return softmax(scores.masked_fill(~open_rows, -torch.inf))


# Seen by running the module in half precision, not by its values.
bug(
    "mask-fp16",
    "fills masked scores with a number that does not fit in half precision, such as -1e9",
    "use -torch.inf, or torch.finfo(scores.dtype).min.",
    "05",
    "bentrevett/pytorch-seq2seq#191",
    "NVIDIA/apex#1052",
    "facebookresearch/fairseq#3575",
    seen="fails in half precision",
)
