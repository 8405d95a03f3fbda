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


# ---------------------------------------------------- a branch whose own dropout is never called


class Flat(nn.Module):
    """A block in one module, with a dropout for each of its two parts."""

    def __init__(self, e, h, share=0.1):
        super().__init__()
        self.h = h
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(e, e) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(e, 3 * e), nn.Linear(3 * e, e)
        self.ln_attn, self.ln_ffn = nn.LayerNorm(e), nn.LayerNorm(e)
        self.dropout_attn, self.dropout_ffn = nn.Dropout(share), nn.Dropout(share)

    def attend(self, x):
        layers = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (f(x).unflatten(2, (self.h, -1)).transpose(1, 2) for f in layers)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.o_proj((self.dropout_attn(weights) @ v).transpose(1, 2).flatten(2))

    def feed(self, x):
        return self.down_proj(self.up_proj(x).relu())

    def forward(self, x):
        x = self.ln_attn(x + self.attend(x))
        return self.ln_ffn(x + self.feed(x))


block("dropout-unused", sizes=TWO)(Flat)


@block("dropout-unused", "residual-from-norm", sizes=ONE)
class FlatFromNorm(Flat):
    """Before the parts, and named otherwise."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.mlp_drop = self.dropout_ffn
        del self.dropout_ffn

    def forward(self, x):
        x = self.ln_attn(x)
        x = x + self.attend(x)
        return x + self.feed(self.ln_ffn(x))


@block("dropout-unused", sizes=TWO)
class AttentionOfNone(PreNorm):
    """Only the feed-forward drops."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_dropout, self.ffn_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn_dropout(self.ffn(self.ln_2(x)))


@block(sizes=TWO)
class FlatDropsInside(Flat):
    """Another dropout of the feed-forward does the work of this one."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.dropout_inner = nn.Dropout(0.1)

    def feed(self, x):
        return self.down_proj(self.dropout_inner(self.up_proj(x).relu()))


@block(sizes=TWO)
class FlatDropsByOne(Flat):
    """One dropout stands behind both parts."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.ln_attn(x + self.drop(self.attend(x)))
        return self.ln_ffn(x + self.drop(self.feed(x)))


@block(sizes=TWO)
class FlatDropsByAFunction(Flat):
    def feed(self, x):
        return F.dropout(super().feed(x), 0.1, self.training)


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


@block("dropout-unused", sizes=TWO)
class SecondOfTwo(PostNorm):
    """The second dropout is never called, and nothing drops what the feed-forward returns."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.dropout1, self.dropout2 = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        x = self.norms[0](x + self.dropout1(self.self_attn(x)))
        return self.norms[1](x + self.feed(x))


# -------------------------------------------------------------------- dropout of the whole stream


@block("dropout-stream", sizes=TWO, remark=True)
class DropsItsSums(PreNorm):
    """Both sums are dropped, the last one, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.dropout(x + self.attention(self.ln_1(x)))
        return self.dropout(x + self.ffn(self.ln_2(x)))


@block("dropout-stream", sizes=TWO, context=True, remark=True)
class DropsWhatNormsReturn(nn.Module):
    """What goes on as the stream is dropped, behind a norm; the queries are the stream."""

    def __init__(self, e, h):
        super().__init__()
        self.attention = nn.MultiheadAttention(e, h, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.feed = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))

    def forward(self, query, key, value):
        mixed = self.attention(query, key, value, need_weights=False)[0]
        x = F.dropout(self.norm1(mixed + query), 0.2, self.training)
        return F.dropout(self.norm2(self.feed(x) + x), 0.2, self.training)


@block(sizes=TWO, remark=True)
class DropsWhatEnters(PreNorm):
    """Tokens are dropped before all, and what parts return: nothing is to be remarked."""

    def forward(self, x):
        x = F.dropout(x, 0.1, self.training)
        x = x + F.dropout(self.attention(self.ln_1(x)), 0.1, self.training)
        return x + F.dropout(self.ffn(self.ln_2(x)), 0.1, self.training)


# --------------------------------------------------------- a function whose result is thrown away


@attention("dropout-unused", sizes=TWO)
class DropsInVain(Layers):
    def forward(self, x):
        y = super().forward(x)
        F.dropout(y, p=0.1, training=self.training)
        return y


@block("dropout-unused", "norm-shared", sizes=ONE)
class DropsOneInVain(PreNorm):
    """What the attention returns is dropped; what the feed-forward returns is not."""

    def forward(self, x):
        x = x + F.dropout(self.attention(self.ln_1(x)), 0.2, self.training)
        y = self.ffn(self.ln_1(x))
        F.dropout(y, 0.2, self.training)
        return x + y


@attention(sizes=TWO)
class DropsInPlace(Layers):
    def forward(self, x):
        y = super().forward(x)
        F.dropout(y, 0.1, self.training, inplace=True)
        return y
