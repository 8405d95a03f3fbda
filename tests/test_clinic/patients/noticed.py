"""Attention that is right in its numbers, and wrong beside them: copies, plain tensors, masks."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Loops, Views
from patients.bank import attention
from patients.blocks import PreNorm, block

TWO = ((24, 4), (36, 6))


class Layers(nn.Module):
    """Four layers, and torch's kernel."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q_fc, self.k_fc, self.v_fc, self.out_fc = (nn.Linear(e, e) for _ in range(4))

    def weighed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def heads(self, x):
        return (
            layer(x).unflatten(2, (self.h, -1)).transpose(1, 2)
            for layer in (self.q_fc, self.k_fc, self.v_fc)
        )

    def forward(self, x):
        return self.out_fc(self.weighed(*self.heads(x)).transpose(1, 2).flatten(2))


@attention("projection-shared", sizes=TWO)
class ShallowCopies(Layers):
    """copy.copy of a layer holds the parameters of that layer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        layer = nn.Linear(e, e)
        self.q_fc, self.k_fc, self.v_fc = (copy.copy(layer) for _ in range(3))


@attention("value-from-key", sizes=TWO)
class OneParameter(Layers):
    """Two layers, and one weight and bias."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.v_fc.weight, self.v_fc.bias = self.k_fc.weight, self.k_fc.bias


@attention("value-from-key", sizes=TWO)
class MatricesWithoutValues(nn.Module):
    """A matrix of each head, which is no layer, and that of the values is not read."""

    def __init__(self, e, h):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(h, e, e // h)) for _ in range(3))
        self.out = nn.Linear(e, e)

    def forward(self, x):
        q, k, v = (torch.einsum("bne,hed->bhnd", x, w) for w in (self.wq, self.wk, self.wk))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@attention("mask-dropped", sizes=TWO)
class FillsACopy(Layers):
    """Keeps a query's highest scores, and forgets that masked_fill gives a new tensor."""

    def weighed(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        least = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
        scores.masked_fill(scores < least, -torch.inf)
        return scores.softmax(dim=-1) @ v


@attention("mask-dropped", "dropout-unused", "part-unused", sizes=TWO)
class FillsACopyBesideIdleParts(FillsACopy):
    """No layer and no dropout stands idle because of a mask."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.w_0, self.drop = nn.Linear(e, e), nn.Dropout(0.1)


@attention(sizes=TWO)
class FillsAndUses(FillsACopy):
    """Fills what is blocked by a mask that blocks nothing."""

    def weighed(self, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.zeros_like(scores).bool(), -torch.inf)
        return scores.softmax(dim=-1) @ v


@attention("param-plain-tensor", sizes=TWO)
class PlainDistances(Layers):
    """Vectors for distances that no optimizer sees."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.table = torch.randn(64, e // h, requires_grad=False)

    def weighed(self, q, k, v):
        n, d = q.shape[2:]
        place = torch.arange(n)
        near = self.table[place[:, None] - place + 32].to(q)
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, near)
        return (scores / d**0.5).softmax(-1) @ v


@attention("param-plain-tensor", sizes=TWO)
class PlainOutput(Views):
    """A matrix that asks for gradients, and that no optimizer gets."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.matrix = (torch.randn(e, e) / e**0.5).requires_grad_()
        self.proj = nn.Identity()

    def forward(self, x, mask=None):
        return super().forward(x, mask) @ self.matrix.to(x)


@attention("mask-dropped", sizes=TWO)
class CommentedMask(Layers):
    """The mask is made ready, and its line in the call of the kernel is a comment."""

    def forward(self, x, mask=None):
        if mask is not None:
            mask = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
            mask = mask[None, None] if mask.dim() == 2 else mask
        return super().forward(x)


@attention("mask-dropped", sizes=TWO)
class ForgottenMask(Loops):
    """Takes a mask, as its callers have one."""

    def forward(self, tokens, allow_mask=None):
        return super().forward(tokens)


@attention(sizes=TWO)
class MaskWhenAsked(Views):
    """A flag turns the mask on."""

    def forward(self, x, mask=None, hides=False):
        return super().forward(x, mask if hides else None)


@attention("dropout-unused", remark=True, sizes=TWO)
class DropsBehindAlone(Layers):
    """One dropout behind the output layer; the other may be one too many."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_dropout, self.out_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        return self.out_dropout(super().forward(x))


@attention(sizes=TWO)
class DropsInTheKernel(Layers):
    """The kernel is told the share of the one that nobody calls."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_dropout = nn.Dropout(0.1)

    def weighed(self, q, k, v):
        share = self.attn_dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=share)


@attention("part-unused", sizes=TWO)
class ForgetsTheFeedForward(Layers):
    """SASRec, once more: two layers and a bend that nothing calls; one layer may be left over."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.pointwise = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))


class HeadWithNorm(nn.Module):
    """One head, whose norm stands in front of its three layers."""

    def __init__(self, e, d):
        super().__init__()
        self.ln = nn.LayerNorm(e)
        self.key, self.query, self.value = (nn.Linear(e, d) for _ in range(3))

    def forward(self, x):
        x = self.ln(x)
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))


@block(sizes=TWO)
class HeadsWithNorms(nn.Module):
    """Heads in a list, all of which read the same tokens, are no layers of a stack."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(HeadWithNorm(e, e // h) for _ in range(h))
        self.proj, self.ln2 = nn.Linear(e, e), nn.LayerNorm(e)
        self.ff = nn.Sequential(nn.Linear(e, 3 * e), nn.GELU(), nn.Linear(3 * e, e))

    def forward(self, x):
        x = x + self.proj(torch.cat([head(x) for head in self.heads], dim=-1))
        return x + self.ff(self.ln2(x))


@attention(sizes=TWO)
class DropsByTheNumber(Layers):
    """nanoGPT: the kernel gets the number that the part, which only the long way calls, has too."""

    def __init__(self, e, h, dropout=0.1):
        super().__init__(e, h)
        self.share, self.weights_dropout = dropout, nn.Dropout(dropout)

    def weighed(self, q, k, v):
        share = self.share if self.training else 0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=share)


@attention("dropout-unused", remark=True, sizes=TWO)
class DropsWeightsAlone(DropsByTheNumber):
    """The kernel drops weights by the same number; what stands behind the layers does not."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.behind = nn.Dropout(self.share)


@attention(sizes=TWO)
class DropsNoNumbers(Layers):
    """What its constructor leaves aside is no dropout of weights."""

    def __init__(self, e, h, drop_last=True, *, drop_path_rate=0.1, dropout=None, attn_drop=False):
        super().__init__(e, h)
        self.drop_path = 0.2


@attention("dropout-unused", sizes=TWO)
class DropsNothingByANumber(Layers):
    """Nobody reads the share; the other argument is another thing."""

    def __init__(self, e, h, drop_last=False, *, attn_drop=0.0):
        super().__init__(e, h)


@attention("dropout-eval", sizes=TWO)
class DropsForGradients(DropsByTheNumber):
    """A stranger's kernel drops wherever gradients are wanted."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_dropout, self.weights_dropout = 0.1, nn.Identity()

    def weighed(self, q, k, v):
        share = self.attn_dropout if q.requires_grad else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=share)


@attention(sizes=TWO)
class LayerWithoutNumbers(Layers):
    """A layer beside the others is as wide as what is joined: here, nothing."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.joined = nn.Linear(0, 0)


class HeadWithoutDropout(HeadWithNorm):
    """Its weights were to be dropped."""

    def __init__(self, e, d):
        super().__init__(e, d)
        self.ln, self.weights_drop = nn.Identity(), nn.Dropout(0.1)


@attention("dropout-unused", sizes=TWO)
class HeadsWithoutDropout(nn.Module):
    """What stands behind the heads drops, and the heads do not."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(HeadWithoutDropout(e, e // h) for _ in range(h))
        self.proj, self.drop = nn.Linear(e, e), nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.proj(torch.cat([head(x) for head in self.heads], dim=-1)))


@attention(sizes=TWO)
class MaskedWhereAsked(Layers):
    """A flag says whether the mask is added: with the flag, there must be one."""

    def forward(self, x, use_mask=False, mask=None):
        q, k, v = self.heads(x)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.flatten(0, 1)  # (b * h, i, j): no mask of four axes fits
        scores = scores + mask if use_mask else scores
        weights = scores.softmax(dim=-1).view(*q.shape[:2], *scores.shape[1:])
        return self.out_fc((weights @ v).transpose(1, 2).flatten(2))


@attention("dropout-scores", sizes=TWO)
class DropsScores(Views):
    """A dropped score is 0, and weighs."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_dropout = nn.Dropout(0.1)

    def weigh(self, scores, mask):
        return super().weigh(self.attn_dropout(scores), mask)


@attention("dropout-scores", sizes=TWO)
class DropsThenScales(Loops):
    """The factor comes behind the dropout; another dropout is right."""

    def score(self, q, k):
        return F.dropout(q @ k.mT, 0.2, self.training) / self.width**0.5

    def normalise(self, all_scores, allow):
        weights = super().normalise(all_scores, allow)
        return [F.dropout(w, 0.2, self.training) for w in weights]


@attention(sizes=TWO)
class DropsWeights(Views):
    """Dropout of the tokens that come in, and of the weights."""

    def weigh(self, scores, mask):
        return F.dropout(super().weigh(scores, mask), 0.2, self.training)

    def forward(self, x, mask=None):
        return super().forward(F.dropout(x, 0.2, self.training), mask)


@attention("part-shared", sizes=TWO)
class OutIsQuery(Layers):
    """The layer of the queries reads what the heads mixed, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.out_fc = self.q_fc


@block(sizes=TWO)
class LeavesOutSamples(PreNorm):
    """Stochastic depth: seldom, and then a whole sample."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop_path = 0.05

    def kept(self, t):
        share = torch.full((len(t), 1, 1), 1 - self.drop_path * self.training)
        return t * torch.bernoulli(share.to(t))

    def forward(self, x):
        x = x + self.kept(self.attention(self.ln_1(x)))
        return x + self.kept(self.ffn(self.ln_2(x)))
