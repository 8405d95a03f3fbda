"""Attention: the join of the heads, the output layer, and which side asks which.

Rules (`applies`) and forms are those of a program p; see `catalogue/projections.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from einops import rearrange
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug

bug("""
merge-no-transpose, chapter 04
reshapes (b, h, n, d) to (b, n, e) without moving h: numbers of several tokens are mixed
Fix: move the heads next to d first: rearrange(t, "b h n d -> b n (h d)").
Seen: jsbaan/transformer-from-scratch#6; ajhalthor/Transformer-Neural-Network#4;
ajhalthor/Transformer-Neural-Network#8

merge-batch-head, chapter 04
swaps heads and batch when it joins the heads: samples get each other's heads
Fix: undo the split in its own order: b before h, then h next to d.
Seen: gazelle93/Transformer-Various-Positional-Encoding#1

merge-axes, chapter 04
joins the heads with axes in a wrong order: numbers of different tokens, or samples, meet
Fix: move the axes before the join: rearrange(t, "b h n d -> b n (h d)"); a reshape moves no
number.
Seen: UdbhavPrasad072300/Transformer-Implementations, transformer_package/models/transformer.py
""")
MERGE = Step("merge")


@MERGE.correct
def merge(mixed: Tensor) -> Tensor:
    return rearrange(mixed, "b h n d -> b n (h d)")


@MERGE.wrong("merge-no-transpose", lambda p: p.joined == "merge-no-transpose")
def merge_by_view(mixed: Tensor) -> Tensor:
    return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


@MERGE.wrong("merge-batch-head", lambda p: p.joined == "merge-batch-head")
def merge_heads_as_samples(mixed: Tensor) -> Tensor:
    swapped = rearrange(mixed, "b h n d -> h b n d").reshape(mixed.shape)
    return rearrange(swapped, "b h n d -> b n (h d)")


def _read_as(pattern: str) -> Callable[[Tensor], Tensor]:
    """Return a join that reads the numbers in another order of axes, without moving them back."""

    def merge(mixed: Tensor) -> Tensor:
        b, h, n, d = mixed.shape
        return rearrange(mixed, f"b h n d -> {pattern}").reshape(b, n, h * d)

    return merge


for _id, _patterns in (
    ("merge-no-transpose", ("b h d n", "b d h n", "b d n h")),
    ("merge-batch-head", ("h b n d", "n b h d")),
    ("merge-axes", ("d n h b",)),
):
    for _pattern in _patterns:
        MERGE.wrong(_id, lambda p, id=_id: p.joined == id)(_read_as(_pattern))


@MERGE.wrong("merge-batch-head", lambda p: p.joined == "merge-batch-head")
def merge_samples_as_heads(mixed: Tensor) -> Tensor:
    b, h, n, d = mixed.shape
    return rearrange(mixed.reshape(h, b, n, d), "h b n d -> b n (h d)")


bug("""
out-unused, chapter 04
has an output layer and never calls it
Fix: return self.out_proj(joined): forward must call what __init__ builds.
Seen: sooftware/attentions#1; dome272/VQGAN-pytorch#13

out-missing, chapter 04
has no output layer
Fix: pass the joined heads through one more nn.Linear(embed_dim, embed_dim).
Seen: Kyubyong/transformer#17; stevezheng23/sequence_labeling_tf#83; dome272/VQGAN-pytorch#23;
ethen8181/machine-learning#13

out-bent, chapter 04
applies an activation function to the result of the output layer: nothing or little below zero
joins the residual stream
Fix: project linearly: return self.proj(joined), without nn.ReLU or nn.GELU after it.
Seen: rrrsj/Transformer-decoder
Evidence: an activation function comes between the output layer and the result

attention-unused, chapter 04
computes attention weights and does not use the result: each output depends on its own token alone
Fix: pass the joined heads to the output layer, not the input tokens.
Seen: mukherjeesrijit/Vision-Transformer-ViT-from-scratch, the tutorial's notebook
Evidence: the weights do not reach the result, and no token reaches another
""")
OUTPUT = Step("output layer")


@OUTPUT.correct
def output(joined: Tensor, w: Tensor) -> Tensor:
    return joined @ w.mT


@OUTPUT.wrong("out-missing", lambda p: p.out == "none" and p.asked.get("out_proj") is True)
@OUTPUT.wrong("out-unused", lambda p: p.out == "none" and p.idle_output)
def no_output(joined: Tensor, w: Tensor) -> Tensor:
    return joined


@OUTPUT.wrong("out-bent", lambda p: bool(p.out_activation))
def activated_output(joined: Tensor, w: Tensor) -> Tensor:
    return (joined @ w.mT).relu()


bug("""
cross-ignored, chapter 10
takes keys and values from its own tokens: the result does not depend on the context
Fix: q = q_proj(x), k = k_proj(context), v = v_proj(context).
Seen: keitakurita/Practical_NLP_in_PyTorch#1; bentrevett/pytorch-seq2seq#143
""")
CONTEXT = Step("context")


@CONTEXT.correct
def sides(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, context, context


@CONTEXT.wrong("cross-ignored", lambda p: p.made_from == "xxx")
def context_ignored(x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, x, x
