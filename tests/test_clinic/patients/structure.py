"""Layers that are shared, unused, built in forward, or read the wrong part; packed views."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.nn import LayerNorm

from patients.attention import Loops, LoopsScaledByEmbed, LoopsSoftmaxQuery, Views, ViewsMerge
from patients.bank import SIZES, attention

SEVERAL = SIZES[:4]
TWO = SIZES[:2]


# --------------------------------------------------------------- each head and its own slice


@attention("head-own-slice", sizes=SEVERAL)
class OwnSlices(nn.Module):
    """Three lists of layers, sample by sample and head by head."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        self.d = d
        self.q_mappings, self.k_mappings, self.v_mappings = (
            nn.ModuleList([nn.Linear(d, d) for _ in range(h)]) for _ in range(3)
        )
        self.out = nn.Linear(e, e)

    def forward(self, sequences):
        result = []
        for sequence in sequences:
            heads = []
            for a, (q, k, v) in enumerate(
                zip(self.q_mappings, self.k_mappings, self.v_mappings, strict=True)
            ):
                own = sequence[:, a * self.d : (a + 1) * self.d]
                scores = q(own) @ k(own).T / self.d**0.5
                heads.append(scores.softmax(-1) @ v(own))
            result.append(torch.hstack(heads))
        return self.out(torch.stack(result))


class OwnSliceHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, part):
        q, k, v = self.query(part), self.key(part), self.value(part)
        return F.scaled_dot_product_attention(q, k, v)


@attention("head-own-slice", sizes=SEVERAL)
class OwnSliceModules(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(OwnSliceHead(e // h) for _ in range(h))
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        parts = x.chunk(len(self.heads), dim=-1)
        made = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return self.proj(torch.cat(made, dim=-1))


# ------------------------------------------------------------------- one head, several times


class Head(nn.Module):
    def __init__(self, e, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(e, d), nn.Linear(e, d), nn.Linear(e, d)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


@attention("heads-same", sizes=SEVERAL)
class OneHeadRepeated(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([Head(e, e // h)] * h)
        self.linear = nn.Linear(e, e)

    def forward(self, x):
        return self.linear(torch.cat([head(x) for head in self.heads], dim=-1))


@attention("heads-same", sizes=SEVERAL)
class OnePackedHead(nn.Module):
    """The three projections of the one head are packed, and it is called in a loop."""

    def __init__(self, e, h):
        super().__init__()
        self.times, self.d = h, e // h
        self.to_qkv = nn.Linear(e, 3 * self.d, bias=False)
        self.to_out = nn.Linear(e, e)

    def head(self, x):
        return F.scaled_dot_product_attention(*self.to_qkv(x).split(self.d, dim=-1))

    def forward(self, x):
        return self.to_out(torch.cat([self.head(x) for _ in range(self.times)], dim=2))


# ------------------------------------------------------------------ built and never called


@attention("out-unused", sizes=SEVERAL)
class LoopsOutUnused(Loops):
    def forward(self, tokens):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.num_heads) for t in
                   self.projected(tokens))  # fmt: skip
        return rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")


@attention("out-unused", sizes=SEVERAL)
class ViewsOutUnused(Views):
    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        self.proj.eval()
        return self.join(self.weigh(q @ k.mT * self.factor(x.shape[-1]), mask) @ v)


@attention("scale-unused")
class ScaleUnused(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = (e // h) ** -0.5

    def factor(self, e):
        return 1.0


@attention("scale-unused")
class RootUnused(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("sqrt_dim", torch.tensor(float(e // h)).sqrt())

    def score(self, q, k):
        return torch.einsum("bid,bjd->bij", q, k)


@attention()
class ScaleUsed(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = (e // h) ** -0.5

    def factor(self, e):
        return self.scale


# ---------------------------------------------------------------------- built in every call


@attention("layers-in-forward")
class OutBuiltInForward(Views):
    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        mixed = self.join(self.weigh(q @ k.mT * self.factor(x.shape[-1]), mask) @ v)
        return nn.Linear(x.shape[-1], x.shape[-1]).to(x)(mixed)


@attention("layers-in-forward", sizes=TWO)
class AllBuiltInForward(nn.Module):
    """It holds numbers, and nothing that could learn."""

    def __init__(self, e, h):
        super().__init__()
        self.sizes, self.count, self.length = (e, h), h, e

    def forward(self, x):
        pack = nn.Linear(self.length, 3 * self.length)
        packed = pack(x).unflatten(-1, (3, self.count, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return weights.matmul(v).transpose(1, 2).flatten(2)


@attention("layers-in-forward", "scale-missing", sizes=TWO)
class BuiltInsteadOfCalled(OutBuiltInForward):
    def factor(self, e):
        return 1


@attention("layers-in-forward", "merge-no-transpose", sizes=TWO)
class NormBuiltBehindAMerge(Views):
    """It gets the class by its own name."""

    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.reshape(b, n, h * d)

    def forward(self, x, mask=None):
        return LayerNorm(x.shape[-1]).to(x)(super().forward(x, mask) + x)


@attention("layers-in-forward", sizes=TWO)
class WeightMadeInForward(Views):
    """A parameter of no layer, which nobody holds."""

    def join(self, mixed):
        joined = super().join(mixed)
        e = joined.shape[-1]
        return joined @ nn.Parameter(torch.randn(e, e).to(joined) * e**-0.5)


@attention("layers-in-forward")
class NormBuiltInForward(Loops):
    def forward(self, tokens, allow_mask=None):
        made = super().forward(tokens, allow_mask)
        return nn.LayerNorm(tokens.shape[-1], dtype=tokens.dtype)(made + tokens)


@attention()
class BuiltOnce(Loops):
    """Lazy: the first call builds the output layer, the others use it."""

    def forward(self, tokens, allow_mask=None):
        if not hasattr(self, "dropping"):
            self.dropping = nn.Dropout(0.0)
        return self.dropping(super().forward(tokens, allow_mask))


# ------------------------------------------------------------------------- views of packed ones


@attention("packed-no-transpose", sizes=SEVERAL)
class PackedInFront(Views):
    def heads(self, x):
        b, n, e = x.shape
        return tuple(self.qkv(x).reshape(b, 3, self.h, n, e // self.h).transpose(0, 1))


@attention("packed-no-transpose", sizes=SEVERAL)
class PackedBeforeBatch(Views):
    def heads(self, x):
        b, n, e = x.shape
        return self.qkv(x).view(3, b, n, self.h, e // self.h).transpose(2, 3).unbind(0)


@attention("packed-no-transpose", sizes=SEVERAL)
class PackedHeadsFirst(Views):
    def heads(self, x):
        b, n, e = x.shape
        return self.qkv(x).view(b, self.h, n, 3 * e // self.h).chunk(3, dim=-1)


@attention("heads-as-tokens", sizes=SEVERAL)
class HeadsMeet(Views):
    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, e // self.h).unbind(2)
        return self.proj(F.scaled_dot_product_attention(q, k, v).reshape(b, n, e))


@attention("heads-as-tokens", sizes=SEVERAL)
class HeadsMeetByEinsum(Loops):
    def forward(self, tokens):
        q, k, v = (t.unflatten(2, (self.num_heads, -1)) for t in self.projected(tokens))
        weights = (torch.einsum("bngd,bnhd->bngh", q, k) / self.width**0.5).softmax(-1)
        return self.unifyheads(torch.einsum("bngh,bnhd->bngd", weights, v).flatten(2))


@attention("heads-not-split", sizes=SEVERAL)
class NeverSplit(Views):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * self.factor(x.shape[-1])
        return self.proj(scores.softmax(-1) @ v)


@attention("heads-not-split", sizes=SEVERAL)
class NeverCut(Loops):
    def cut(self, t):
        return [t]


@attention("split-tokens", sizes=TWO, size=(3, 8))
class TokensChunked(Views):
    def forward(self, x):
        q, k, v = (torch.stack(t.chunk(self.h, dim=1), 1) for t in self.qkv(x).chunk(3, dim=-1))
        weights = (q @ k.mT * self.factor(x.shape[-1])).softmax(-1)
        return self.proj(torch.cat((weights @ v).unbind(1), dim=1))


@attention("split-tokens", sizes=TWO, size=(3, 8))
class TokensViewed(Loops):
    def forward(self, tokens):
        b, n, e = tokens.shape
        q, k, v = (t.view(b * self.num_heads, -1, e) for t in self.projected(tokens))
        weights = (torch.bmm(q, k.mT) / self.width**0.5).softmax(2)
        return self.unifyheads(torch.bmm(weights, v).view(b, n, e))


# --------------------------------------------------------------- residuals and norms in one module


class WithNorm(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.layer_norm = nn.LayerNorm(e)


@attention("residual-from-query", sizes=SEVERAL)
class AddsQueries(WithNorm):
    def forward(self, tokens):
        return self.layer_norm(super().forward(tokens) + self.toqueries(tokens))


@attention("residual-from-query", sizes=SEVERAL)
class AddsOwnQueries(Views):
    def forward(self, x):
        q, k, v = self.heads(x)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.join(q) + self.proj(self.join(mixed))


@attention("residual-from-norm")
class AddsItsNorm(WithNorm):
    def forward(self, tokens):
        tokens = self.layer_norm(tokens)
        return tokens + super().forward(tokens)


@attention("scale-embed", "softmax-query", sizes=TWO)
class PairInAResidual(LoopsScaledByEmbed, LoopsSoftmaxQuery, WithNorm):
    def forward(self, tokens):
        return tokens + super().forward(self.layer_norm(tokens))


@attention("merge-no-transpose", "residual-from-query", sizes=TWO)
class MergedAndQueries(ViewsMerge):
    def forward(self, x):
        q, k, v = self.heads(x)
        joined = self.join(F.scaled_dot_product_attention(q, k, v))
        return self.proj(joined) + q.transpose(1, 2).flatten(2)


@attention(sizes=((24, 4), (15, 3)))
class WideHeads(nn.Module):
    """Every head is as wide as a token."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(Head(e, e) for _ in range(h))
        self.projection = nn.Linear(h * e, e)

    def forward(self, x):
        return self.projection(torch.cat([head(x) for head in self.heads], dim=2))


class EveryHth(nn.Module):
    """A head has every h-th number, before it attends and behind; its output layer is elsewhere."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.w_query, self.w_key, self.w_value = (nn.Parameter(torch.randn(e, e)) for _ in range(3))

    def softened(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        made = (x @ w for w in (self.w_query, self.w_key, self.w_value))
        q, k, v = (t.unflatten(2, (-1, self.h)).permute(0, 3, 1, 2) for t in made)
        mixed = self.softened(q @ k.mT / q.shape[3] ** 0.5) @ v
        return mixed.permute(0, 2, 3, 1).flatten(2)


attention(out_proj=False)(EveryHth)


@attention("softmax-query", also=(("mix-transposed",),), out_proj=False)
class EveryHthColumns(EveryHth):
    def softened(self, scores):
        return scores.softmax(-2)
