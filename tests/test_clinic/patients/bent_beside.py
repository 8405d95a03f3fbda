"""Activations behind layers, tokens that are weighed as they are, places that are hidden.

Something is done in each that no form has.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.bank import attention
from patients.partly import SOME, Apart


@attention("mix-transposed", sizes=SOME)
class TokensAreValues(Apart):
    """No layer makes values, as in the visual transformer of tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.v = nn.Identity()

    def weights(self, scores, e):
        return scores.softmax(-1).mT


@attention("softmax-query", sizes=((16, 1),))
class TokensAreValuesOfOneHead(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.theta, self.phi = (nn.Linear(e, e // (2 * h), bias=False) for _ in range(2))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x):
        scores = torch.einsum("bid,bjd->bij", self.theta(x), self.phi(x))
        return x + self.gamma * (scores / self.theta.out_features**0.5).softmax(dim=1) @ x


@attention("projection-bent", "scale-embed", "out-bent", sizes=SOME)
class AllBentBesideANorm(Apart):
    """What is added to the stream goes through a norm of the whole tensor."""

    def weights(self, scores, e):
        return (scores / e**0.5).softmax(-1)

    def forward(self, x):
        q, k, v = (self.cut(F.relu(layer(x))) for layer in (self.q, self.k, self.v))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ v
        y = x + F.relu(self.o(mixed.transpose(1, 2).flatten(2)))
        return (y - y.mean()) / (y.var() + 1e-5).sqrt()


@attention("projection-bent", sizes=SOME)
class BentValuesOfMatrices(nn.Module):
    """Matrices and a bias; GELU bends the values."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.packed, self.out = nn.Parameter(torch.randn(e, 3 * e)), nn.Parameter(torch.randn(e, e))
        self.bias = nn.Parameter(torch.randn(3 * e))

    def forward(self, x):
        made = (x @ self.packed + self.bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = made.permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ F.gelu(v)
        y = mixed.transpose(1, 2).flatten(2) @ self.out
        return y.sin() + y.cumsum(-1)


@attention("head-own-slice", sizes=SOME[:2])
class MatricesOfHeads(nn.Module):
    """A product with (h, d, d) takes heads of one number, too."""

    def __init__(self, e, h):
        super().__init__()
        d, self.heads = e // h, h
        self.q, self.k, self.v = (nn.Parameter(torch.randn(h, d, d)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(e, e))

    def forward(self, x):
        heads = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = (torch.einsum("bhnd,hdf->bhnf", heads, w) for w in (self.q, self.k, self.v))
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(2) @ self.out


class _Places(nn.Module):
    """A Linformer: keys and values of 8 places are mixed into 4."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.qkv, self.o = nn.Linear(e, 3 * e), nn.Linear(e, e)
        self.mixing = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = self.mixing(k.mT).mT, self.mixing(v.mT).mT
        mixed = self.hidden(q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


@attention("mask-not-causal", causal=True, size=(2, 8), sizes=SOME[1:2])
class PlacesHiddenByATriangle(_Places):
    def hidden(self, scores):
        seen = torch.ones(8, 8).tril()[:, :4]
        return scores.masked_fill(seen == 0, float("-inf"))


@attention("mask-not-causal", "scale-missing", causal=True, size=(2, 8), sizes=SOME[1:2])
class PlacesHiddenByASum(_Places):
    """Each head mixes by a matrix of its own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.few = nn.Parameter(torch.randn(2, h, 4, 8))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        k, v = (torch.einsum("hrn,bnhd->bhrd", w, t) for w, t in zip(self.few, (k, v), strict=True))
        scores = q.transpose(1, 2) @ k.mT + torch.full((8, 4), -1e9).triu(1)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@attention("scale-other", size=(2, 8), sizes=SOME[1:2])
class PlacesOfAllHeadsMixed(Apart):
    """A layer makes 8 tokens of what 8 tokens found in each head: whose they are is lost."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.o = nn.Conv1d(8 * h, 8, 1)

    def forward(self, x):
        heads = zip(
            *(layer(x).chunk(self.heads, -1) for layer in (self.q, self.k, self.v)), strict=True
        )
        made = [(q @ k.mT / 7**0.5).softmax(-1) @ v for q, k, v in heads]
        found = self.o(torch.cat(made, dim=1))
        return found.repeat(1, 1, self.heads)


@attention("softmax-query", size=(2, 8), sizes=SOME[1:2])
class PlacesMixedByALayer(Apart):
    """Nothing scales the scores: that is not judged."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.o = nn.Linear(8 * h, 8)

    def forward(self, x):
        q, k, v = (self.cut(layer(x)) for layer in (self.q, self.k, self.v))
        mixed = (q @ k.mT).softmax(-2) @ v
        return self.o(mixed.flatten(1, 2).mT).mT.repeat(1, 1, self.heads)
