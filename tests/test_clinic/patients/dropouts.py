"""Blocks of which one part takes a dropout and never drops, while others do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Views, ViewsScaledByEmbed
from patients.bank import attention
from patients.blocks import PostNorm, PreNorm, block
from patients.noticed import Layers
from patients.wirings import ONE, TWO, Connected


class Keeps(Views):
    """Keeps a share, and nothing reads it."""

    def __init__(self, e, h, dropout_rate=0.1):
        super().__init__(e, h)
        self.dropout_rate = dropout_rate


class Takes(Layers):
    """Takes a share, and forgets it."""

    def __init__(self, e, h, dropout):
        super().__init__(e, h)


class Drops(Layers):
    """Takes a share, and the kernel drops by it."""

    def __init__(self, e, h, dropout=0.1):
        super().__init__(e, h)
        self.dropout = dropout

    def weighed(self, q, k, v):
        share = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=share)


class DropsAlways(Drops):
    def weighed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)


@block("dropout-unused", sizes=TWO)
class OneKeepsItsShare(Connected):
    """The connections drop what the parts return."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn = Keeps(e, h)


@block("dropout-unused", "norm-mixed", sizes=ONE)
class OneForgetsItsShare(PreNorm):
    def __init__(self, e, h, dropout=0.1):
        super().__init__(e, h)
        self.attention, self.drop = Takes(e, h, dropout), nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.attention(self.ln_1(x)))
        return self.ln_2(x + self.drop(self.ffn(x)))


@block("dropout-unused", "residual-from-norm", "dropout-eval", sizes=TWO)
class NeverDropsBesideAKernel(PreNorm):
    """Only weights are dropped, and always; what is to drop the parts' results is never called."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention, self.dropout = DropsAlways(e, h), nn.Dropout(0.1)

    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


@block(sizes=ONE)
class EachDrops(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn, self.drop = Drops(e, h), nn.Dropout(0.2)

    def feed(self, x):
        return self.drop(super().feed(x))


# ---------------------------------------------------------------------------- dropout by hand


@attention("scale-embed", "dropout-eval", sizes=TWO)
class DropsByHand(ViewsScaledByEmbed):
    def weigh(self, scores, mask):
        weights = super().weigh(scores, mask)
        return weights * (torch.rand(weights.shape) > 0.1).float() / (1 - 0.1)


@attention("dropout-eval", sizes=TWO)
class DropsWhereLess(Views):
    def weigh(self, scores, mask):
        weights = super().weigh(scores, mask)
        drawn = torch.rand_like(weights) < 0.2
        return torch.where(drawn, torch.zeros_like(weights), weights / 0.8)


@attention("dropout-eval", sizes=TWO)
class DropsByFloors(Views):
    """As drop path was written before there was a function for it."""

    def forward(self, x, mask=None):
        kept = (0.9 + torch.rand(len(x), 1, 1)).floor_()
        return super().forward(x, mask).div(0.9) * kept
