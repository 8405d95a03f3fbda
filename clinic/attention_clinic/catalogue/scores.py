"""Attention: scale of the scores, softmax, weighted sum.

Rules (`applies`) and forms are those of a program p; see `catalogue/projections.py`.
"""

from __future__ import annotations

import math

from einops import rearrange
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug


def close(a: float, b: float) -> bool:
    """Return whether two constants are equal up to single precision."""
    return math.isclose(a, b, rel_tol=1e-5)


bug("""
scale-embed, chapter 03
divides by sqrt(embed_dim) instead of sqrt(head_dim)
Fix: divide by head_dim ** 0.5, the width of one head.
Seen: FrancescoSaverioZuppichini/ViT#1; karpathy/ng-video-lecture#6;
aladdinpersson/Machine-Learning-Collection#65; aladdinpersson/Machine-Learning-Collection#159;
Graylab/DL4Proteins-notebooks#12; FareedKhan-dev/train-llm-from-scratch#3; rezazad68/TMUnet#13;
omihub777/ViT-CIFAR#12

scale-after-softmax, chapter 03
scales the weights after the softmax: rows do not sum to 1
Fix: scale the scores alone, inside: softmax(scores / head_dim ** 0.5).
Seen: FrancescoSaverioZuppichini/ViT#2; FrancescoSaverioZuppichini/ViT#5;
FrancescoSaverioZuppichini/ViT#6

scale-unused, chapter 03
prepares the factor of the scores and does not use it
Fix: multiply the scores by it before the softmax.
Seen: fla-org/flash-linear-attention#395

scale-missing, chapter 03
does not scale the scores
Fix: divide the scores by head_dim ** 0.5.
Seen: PAIR-code/tiny-transformers#71; ethen8181/machine-learning#13;
Project-MONAI/GenerativeModels#146; mlc-ai/mlc-llm#3426

scale-other, chapter 03
multiplies the scores by a number other than 1 / sqrt(head_dim)
Fix: compute the factor from the width of one head: head_dim ** -0.5.
Seen: paul-hyun/transformer-evolution, tutorial/transformer-01.ipynb
""")
SCALE = Step("scale")


@SCALE.correct
def scale(scores: Tensor, p) -> Tensor:
    return scores / p.own_dim**0.5


@SCALE.wrong("scale-embed", lambda p: close(p.factor, p.e**-0.5) and p.h > 1)
def scale_by_embed_dim(scores: Tensor, p) -> Tensor:
    return scores / p.e**0.5


@SCALE.wrong("scale-after-softmax", lambda p: not close(p.after, 1))
def scale_later(scores: Tensor, p) -> Tensor:
    return scores * p.factor


@SCALE.wrong("scale-missing", lambda p: close(p.factor, 1))
@SCALE.wrong("scale-unused", lambda p: close(p.factor, 1) and p.holds_scale)
def scale_nothing(scores: Tensor, p) -> Tensor:
    return scores


@SCALE.wrong("scale-other", lambda p: p.factor > 0)
def scale_by_another_number(scores: Tensor, p) -> Tensor:
    return scores * p.factor


bug("""
softmax-query, chapter 03
takes the softmax over the queries: columns sum to 1, rows do not
Fix: take the softmax over the keys, dim=-1.
Seen: labmlai/annotated_deep_learning_paper_implementations#146;
labmlai/annotated_deep_learning_paper_implementations#282; nerminnuraydogan/vision-transformer#1

softmax-heads, chapter 03
takes the softmax over the heads (dim=1 of (b, h, i, j))
Fix: take the softmax over the keys, dim=-1.
Seen: CAMMA-public/rendezvous-in-time#3

softmax-batch, chapter 03
takes the softmax over the batch axis: a batch of one gives weights of exactly 1
Fix: take the softmax over the keys, dim=-1.
Seen: PetrochukM/PyTorch-NLP#2

softmax-joint, chapter 04
takes one softmax over the keys of all heads together
Fix: take the softmax over the keys of each head separately, dim=-1 of (b, h, i, j).
Seen: facebookresearch/detr#247

softmax-missing, chapter 03
weights the values with the bare scores: there is no softmax
Fix: weights = scores.softmax(dim=-1), whether there is a mask or not.
Seen: lluisg/Transformer-Implementation-Project; RvuvuzelaM/self-attention-ppo-pytorch

mix-transposed, chapter 03
takes the weighted sum with transposed weights: columns in place of rows
Fix: multiply weights (i, j) with values (j, d): weights @ v.
Seen: heykeetae/Self-Attention-GAN#11
""")
SOFTMAX = Step("softmax")


@SOFTMAX.correct
def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


@SOFTMAX.wrong("softmax-query", lambda p: p.axes == (2,))
def softmax_over_queries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


@SOFTMAX.wrong("softmax-heads", lambda p: p.axes == (1,))
def softmax_over_heads(scores: Tensor) -> Tensor:
    return scores.softmax(dim=1)


@SOFTMAX.wrong("softmax-batch", lambda p: p.axes == (0,))
def softmax_over_samples(scores: Tensor) -> Tensor:
    return scores.softmax(dim=0)


@SOFTMAX.wrong("softmax-batch", lambda p: p.axes == (0, 1))
def softmax_over_samples_and_heads(scores: Tensor) -> Tensor:
    return scores.flatten(0, 1).softmax(dim=0).view(scores.shape)


@SOFTMAX.wrong("softmax-joint", lambda p: p.axes == (1, 3))
def softmax_over_heads_and_keys(scores: Tensor) -> Tensor:
    flat = rearrange(scores, "b h i j -> b i (h j)").softmax(dim=-1)
    return rearrange(flat, "b i (h j) -> b h i j", h=scores.shape[1])


@SOFTMAX.wrong("softmax-missing", lambda p: p.axes is None and p.scaled)
def no_softmax(scores: Tensor) -> Tensor:
    return scores


MIX = Step("weighted sum")


@MIX.correct
def weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v


@MIX.wrong("mix-transposed", lambda p: p.transposed)
def weighted_sum_of_columns(weights: Tensor, v: Tensor) -> Tensor:
    return weights.mT @ v
