"""Masks: which keys a query may attend to, and what becomes of the others.

Rules (`applies`) are those of a program p. A form of RULE changes a correct mask (b, h, i, j),
True = may attend; a form of FILL makes weights of scores and a mask, where masked scores get value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug, variant

FAR = -1e3  # a masked score must be at most this
bug("""
mask-off-by-one, chapter 05
draws the causal mask without the diagonal, or one past it
Fix: let token i attend to tokens 0 to i: torch.ones(n, n).tril().
Seen: RVC-Boss/GPT-SoVITS#965; hkproj/pytorch-transformer#19

mask-dropped, chapter 05
takes a mask and does not use it
Fix: pass the mask on to the function that computes the weights.
Seen: phlippe/uvadlc_notebooks, tutorial 6, get_attention_maps

mask-inverted, chapter 05
inverts the mask: attends exactly where it must not
Fix: agree on what True means; here True = may attend (true_means="block" says that it blocks in
your mask), so mask where it is False.
Seen: lucidrains/x-transformers#160; lucidrains/x-transformers#164; NVIDIA/TransformerEngine#614;
InseeFrLab/torchTextClassifiers#92; cnzzx/GeMap#1; rasbt/LLMs-from-scratch#1061

mask-query-axis, chapter 05
applies the mask to the queries instead of the keys
Fix: keys are the last axis of the scores: a padding mask (b, n) is mask[:, None, None, :].
Seen: hyunwoongko/transformer#40

mask-not-causal, chapter 05
lets a token attend to later tokens, though it should be causal
Fix: combine the mask with causal_mask(n).
Seen: huggingface/transformers#48745; alex-matton/causal-transformer-decoder#1
""")
variant("""
window, chapter 05
lets a token attend to a window only: its neighbours, or a part of the image
In: Longformer, Mistral, Swin
""")
RULE = Step("mask")


@RULE.correct
def rule(allow: Tensor) -> Tensor:
    return allow


def _shifted(p, diagonal: int) -> bool:
    """Return whether the mask is the causal one, drawn up to another diagonal."""
    if not p.square:
        return False
    moved = torch.ones_like(p.past).tril(diagonal)
    if p.meant and not any(m.shape[-2] > 1 and bool((m == p.past).all()) for m in p.meant):
        return any(p.allows(m & moved) for m in p.meant)
    return p.allows(moved)


@RULE.wrong("mask-off-by-one", lambda p: _shifted(p, -1), detail="a token does not see itself")
def rule_before_the_diagonal(allow: Tensor) -> Tensor:
    return allow.tril(-1)


@RULE.wrong("mask-off-by-one", lambda p: _shifted(p, 1), detail="a token sees the one after it")
def rule_past_the_diagonal(allow: Tensor) -> Tensor:
    return torch.ones_like(allow).tril(1)


def _drops(p) -> bool:
    past = p.square and p.causal is not False and p.allows(p.past)
    return bool(p.meant) and (past or p.allows(torch.ones(1, 1, 1, 1, dtype=torch.bool)))


@RULE.wrong("mask-dropped", _drops)
def rule_dropped(allow: Tensor) -> Tensor:
    return torch.ones_like(allow)


def _inverts(p) -> bool:
    if not p.meant:
        return p.square and p.allows(~p.past)
    past = [None, p.past] if p.square and p.causal is not False else [None]
    made = [~m if rule is None else ~m & rule for m in p.meant for rule in past]
    return any(p.allows(one) for one in made if not bool(one.all()))


@RULE.wrong("mask-inverted", _inverts)
def rule_inverted(allow: Tensor) -> Tensor:
    return ~allow


@RULE.wrong(
    "mask-inverted",
    lambda p: not p.meant and p.square and p.allows(p.past.mT),
    detail="a token sees itself and the later ones: triu in place of tril",
)
def rule_of_later_tokens(allow: Tensor) -> Tensor:
    return allow.mT


def _masks_queries(p) -> bool:
    return p.square and bool(p.meant) and any(p.allows(allow.mT) for allow in p.rules)


@RULE.wrong("mask-query-axis", _masks_queries)
def rule_of_queries(allow: Tensor) -> Tensor:
    return allow.mT


@RULE.wrong("mask-not-causal", lambda p: p.causal is True and p.square and p.sees_later)
def rule_not_causal(allow: Tensor) -> Tensor:
    return torch.ones_like(allow)


def _is_window(p) -> bool:
    """Return whether each token sees the same offsets, itself included, but not all."""
    if p.meant or not p.square or p.allow is None or (p.causal is True and p.sees_later):
        return False
    n = p.sizes[2]
    one = p.allow[0, 0]
    offset = torch.arange(n)[:, None] - torch.arange(n)
    same = all(len(one[offset == k].unique()) == 1 for k in range(1 - n, n))
    band = one.any(0).all() and bool(one.diagonal().all())
    return same and band and bool((p.allow == one).all()) and bool((p.past[0, 0] & ~one).any())


@RULE.variant("window", _is_window)
def rule_of_a_window(allow: Tensor) -> Tensor:
    return allow & torch.ones_like(allow).triu(-1).tril(1)


bug("""
mask-after-softmax, chapter 05
masks the weights after the softmax, so that rows no longer sum to 1
Fix: mask the scores with -inf before the softmax.
Seen: lucidrains/memory-compressed-attention#2; abisee/pointer-generator#88

mask-multiply, chapter 05
multiplies the scores by the mask: a masked score becomes 0, not -inf, and still gets weight
Fix: write scores.masked_fill(~mask, -torch.inf) before the softmax.
Seen: georg-wolflein/good-features#1

mask-added, chapter 05
adds a mask of ones and zeros to the scores, which hardly changes them
Fix: turn it into 0 and -inf first, or write scores.masked_fill(~mask, -torch.inf).
Seen: huggingface/transformers#41443; huggingface/pytorch-image-models#2674

mask-tiny, chapter 05
fills masked scores with a tiny number such as 1e-9 or -1e-12 in place of -1e9
Fix: write scores.masked_fill(~mask, -torch.inf) before the softmax.
Seen: hyunwoongko/transformer#10; awslabs/gluonts#1401; Shujun-He/RibonanzaNet#5

mask-row-empty, chapter 05
a fully masked row does not give 0
Fix: set such rows to 0 after the softmax, as the fused kernel does.
Seen: pytorch/pytorch#41508; pytorch/pytorch#103749; pytorch/pytorch#131060; tracel-ai/burn#4697;
robertknight/rten#1321
""")
FILL = Step("masked scores")
Weigh = Callable[[Tensor], Tensor]


def _some(how: str, holds: Callable[[float], bool]) -> Callable[..., bool]:
    """Return a rule: a masked score gets such a number, in this way."""
    return lambda p: any(kind == how and holds(value) for value, kind in p.fills)


@FILL.correct
def fill(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    weights = softmax(scores.masked_fill(~allow, -torch.inf))
    return weights.masked_fill(~allow.any(dim=-1, keepdim=True), 0.0)


@FILL.wrong("mask-after-softmax", _some("weights", lambda value: True))
def fill_weights(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores) * allow


@FILL.wrong("mask-multiply", _some("fill", lambda value: value == 0))
@FILL.wrong("mask-multiply", _some("multiply", lambda value: value == 0))
def fill_by_product(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores * allow)


@FILL.wrong("mask-added", _some("add", lambda value: value == 1))
def fill_by_sum(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores + value * allow)


def _tiny(value: float) -> bool:
    return 0 < abs(value) < 1e-3


@FILL.wrong("mask-tiny", _some("fill", _tiny))
def fill_with_a_number(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores.masked_fill(~allow, value))


@FILL.wrong("mask-tiny", _some("add", _tiny))
def add_a_number(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores + value * ~allow)


@FILL.wrong("mask-row-empty", lambda p: p.empty_rows_differ)
def fill_rows_too(scores: Tensor, allow: Tensor, softmax: Weigh, value: float) -> Tensor:
    return softmax(scores.masked_fill(~allow, -torch.inf))
