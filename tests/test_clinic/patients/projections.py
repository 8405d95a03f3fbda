"""Bugs of the projections, of the layers of heads, and of the output layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import TWO, loops, views
from patients.bank import SEVERAL, attention
from patients.healthy import Loops, Views


@attention("projection-shared")
class ViewsKeysFromQueries(Views):
    def heads(self, x):
        q, _, v = super().heads(x)
        return q, q, v


@attention("value-from-key")
class ViewsValueFromKey(Views):
    def heads(self, x):
        q, k, _ = super().heads(x)
        return q, k, k


@attention("projection-unused", sizes=SEVERAL)
class LoopsOnTokens(Loops):
    def projected(self, x):
        super().projected(x)
        return x, x, x


@attention("projection-bent", sizes=SEVERAL)
class ViewsActivated(Views):
    def heads(self, x):
        return tuple(t.relu() for t in super().heads(x))


@attention("head-shared-projection", sizes=SEVERAL)
class OneLayerForAllHeads(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.h, d = h, e // h
        self.values, self.keys, self.queries = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(e, e)

    def forward(self, values, keys, query):
        split = [t.unflatten(2, (self.h, -1)) for t in (values, keys, query)]
        v, k, q = self.values(split[0]), self.keys(split[1]), self.queries(split[2])
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", energy.softmax(dim=3), v).flatten(2))


class Head(nn.Module):
    def __init__(self, e, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(e, d), nn.Linear(e, d), nn.Linear(e, d)

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


@attention("head-own-slice", sizes=SEVERAL)
class HeadsOfSlices(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(Head(e // h, e // h) for _ in range(h))
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        parts = x.chunk(len(self.heads), dim=-1)
        made = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return self.proj(torch.cat(made, dim=-1))


@attention("heads-same", sizes=SEVERAL)
class OneHeadRepeated(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([Head(e, e // h)] * h)
        self.linear = nn.Linear(e, e)

    def forward(self, x):
        return self.linear(torch.cat([head(x) for head in self.heads], dim=-1))


def _one_head_each(self, e, h):
    Loops.__init__(self, e, h)
    self.toqueries, self.tokeys, self.tovalues = (nn.Linear(e, self.width) for _ in "qkv")


def _repeated(self, x):
    return [torch.cat([t] * self.num_heads, 2) for t in Loops.projected(self, x)]


def _bare(self, x):
    return [x.unflatten(2, (self.h, -1)).transpose(1, 2)] * 3


def _matrices(own: bool):
    """Return a constructor with a matrix for each head, or one for all."""

    def __init__(self, e, h):
        Views.__init__(self, e, h)
        self.qkv = nn.Parameter(torch.randn(3, *[h] * own, e // h, e // h))

    return __init__


def _slices(self, x):
    slices = x.unflatten(2, (self.h, -1)).transpose(1, 2)  # (b, h, n, d)
    return tuple(slices @ one for one in self.qkv)


loops("projection-shared", projected=lambda self, x: (v := self.tovalues(x), self.tokeys(x), v))
loops("value-from-key", projected=lambda self, x: (self.toqueries(x), *[self.tokeys(x)] * 2))
views("projection-unused", sizes=SEVERAL, heads=_bare)
loops("projection-bent", projected=lambda self, x: [F.gelu(t) for t in Loops.projected(self, x)])
views("head-shared-projection", sizes=SEVERAL, __init__=_matrices(False), heads=_slices)
views("head-own-slice", sizes=SEVERAL, __init__=_matrices(True), heads=_slices)
loops("heads-same", sizes=SEVERAL, __init__=_one_head_each, projected=_repeated)

# --------------------------------------------------------------------------------- output layer


@attention("out-unused", sizes=SEVERAL)
class ViewsOutUnused(Views):
    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        return self.join(self.weigh(q @ k.mT * self.factor(x.shape[-1]), mask) @ v)


@attention("out-missing", sizes=SEVERAL, out_proj=True)
@attention("out-missing", sizes=SEVERAL, remark=True)
class ViewsNoOut(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj = nn.Identity()


@attention("out-bent", sizes=TWO)
class ViewsActivatedAtTheEnd(Views):
    def forward(self, x, mask=None):
        return super().forward(x, mask).relu()


@attention("attention-unused", sizes=SEVERAL)
class ViewsOfTokens(Views):
    def forward(self, x):
        super().forward(x)
        return self.proj(x)


def _without_layer(self, e, h):
    Loops.__init__(self, e, h)
    self.unifyheads = nn.Identity()


loops("out-unused", sizes=SEVERAL, finish=lambda self, joined, x: joined)
loops("out-missing", sizes=SEVERAL, out_proj=True, __init__=_without_layer)
loops("out-bent", sizes=TWO, finish=lambda self, joined, x: F.gelu(self.unifyheads(joined)))
loops("attention-unused", sizes=SEVERAL, finish=lambda self, joined, x: self.unifyheads(x))
