"""What becomes of the scores, or weights, of those who may not attend."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_clinic.bugs.masks import has_empty
from attention_clinic.engine.forms import Form, Stage, State, bug

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


@USE.wrong("mask-positive", "it adds 1e+09", _uncapped)
def use_added_great(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores + 1e9 * (~allow))


@USE.wrong("mask-positive", "it fills with plus infinity: such rows are NaN", _uncapped)
def use_plus_infinity(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, torch.inf))


ADDED_TO_BLOCKED = "it adds 1 to what should be blocked"
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


@USE.wrong("mask-added", ADDED_TO_BLOCKED)
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


def _filled(value: float, added: bool) -> Callable[..., Tensor]:
    def use(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
        weights = softmax(scores)
        return weights + value * (~allow) if added else weights.masked_fill(~allow, value)

    return use


for _value in (-1e9, -1e4):
    USE.wrong("mask-after-softmax", f"it fills with {_value:g}")(_filled(_value, False))
    USE.wrong("mask-after-softmax", f"it adds {_value:g}")(_filled(_value, True))


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
