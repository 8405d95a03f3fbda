"""Queries and keys that are compared otherwise: by distance, by scores that no softmax shares."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from patients.attention import Loops, Views, ViewsScaledByEmbed
from patients.bank import attention
from patients.followed import WIDE, Recurrent, angles_of
from patients.masks import triangle
from patients.variants import variant

TWO = ((24, 4), (15, 3))

# --------------------------------------------------------------------------- bent one by one


class BySigmoid(Views):
    """As many keys, as much less each."""

    def weigh(self, scores, mask):
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        return torch.sigmoid(scores - math.log(scores.shape[-1]))


variant("pointwise-attention", sizes=TWO)(BySigmoid)
variant("pointwise-attention", sizes=TWO, mask=triangle(0))(BySigmoid)


@variant("pointwise-attention", sizes=TWO)
class BySigmoidOfHeads(Views):
    """One number for each head says how much."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.score_bias = nn.Parameter(torch.full((h,), -2.0))

    def weigh(self, scores, mask):
        return F.sigmoid(scores + self.score_bias[:, None, None])


@variant("pointwise-attention", sizes=TWO)
class ByReLU(Loops):
    def normalise(self, all_scores, allow):
        return [s.relu() / s.shape[2] for s in all_scores]


@variant("pointwise-attention", ids=("scale-embed",), sizes=TWO[:1])
class BySigmoidScaledByEmbed(BySigmoid, ViewsScaledByEmbed):
    pass


@variant("pointwise-attention", ids=("scale-missing", "merge-no-transpose"), sizes=TWO[:1])
class BySigmoidTwice(BySigmoid):
    def factor(self, e):
        return 1.0

    def join(self, mixed):
        return mixed.reshape(len(mixed), mixed.shape[2], -1)


# ------------------------------------------------------------------------------- by distance


class ByDistance(Views):
    """The nearer the more: squares of what lies between, in one product."""

    def between(self, q, k):
        lengths = q.square().sum(-1)[..., None] + k.square().sum(-1)[..., None, :]
        return lengths - 2 * q @ k.mT

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        return self.proj(
            self.join(self.weigh(-self.between(q, k) * self.factor(x.shape[-1]), mask) @ v)
        )


variant("distance-scores", sizes=TWO)(ByDistance)


@variant("distance-scores", sizes=TWO)
class ByDifference(ByDistance):
    """A Gaussian: half of the squares."""

    def between(self, q, k):
        return (q[:, :, :, None] - k[:, :, None]).pow(2).sum(-1) / 2


@variant("distance-scores", sizes=TWO)
class ByLength(ByDistance):
    """What does not grow with the width needs no scale."""

    def between(self, q, k):
        return torch.cdist(q, k)

    def factor(self, e):
        return 1.0


@variant("distance-scores", ids=("scale-missing",), sizes=TWO[:1])
class ByDistanceUnscaled(ByDistance):
    def factor(self, e):
        return 1.0


@variant("distance-scores", ids=("merge-no-transpose",), sizes=TWO[:1])
class ByLengthMixed(ByLength):
    def join(self, mixed):
        return mixed.reshape(len(mixed), mixed.shape[2], -1)


# ------------------------------------------------------- beside products with codes of places


@variant("content-bias", "relative-keys", ids=("scale-missing",), sizes=WIDE)
class RecurrentUnscaled(Recurrent):
    """The keys are scaled, and the codes are not."""

    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k / q.shape[-1] ** 0.5, v

    def scale(self, q):
        return 1.0


@variant("content-bias", "relative-keys", ids=("scale-other",), sizes=WIDE[1:])
class RecurrentByEmbed(RecurrentUnscaled):
    """By the width of all heads."""

    def coded(self, x):
        return super().coded(x) / x.shape[-1] ** 0.5


# -------------------------------------------------------------------- two softmaxes, subtracted


class Differential(Views):
    """Each head is cut in two; a norm of what it mixed stands before the output layer."""

    first = 0.8

    def __init__(self, e, h):
        super().__init__(e, h)
        self.factors = nn.ParameterList(torch.randn(e // h // 2) * 0.1 for _ in range(4))
        self.subln = nn.RMSNorm(e // h, eps=1e-5)

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        q, k = (rearrange(t, "b h n (t d) -> b (h t) n d", t=2) for t in (q, k))
        weights = self.weigh(q @ k.mT * self.factor(x.shape[-1]), mask)
        weights = weights.unflatten(1, (self.h, 2))
        one, two = ((a * b).sum().exp() for a, b in zip(*[iter(self.factors)] * 2, strict=True))
        mixed = (weights[:, :, 0] - (one - two + self.first) * weights[:, :, 1]) @ v
        return self.proj(self.join(self.subln(mixed) * (1 - self.first)))

    def factor(self, e):
        return (e // self.h // 2) ** -0.5


HALVES = ((24, 3), (64, 4))
variant("differential-attention", "sub-norm", sizes=HALVES)(Differential)
variant("differential-attention", "sub-norm", sizes=HALVES[:1], mask=triangle(0))(Differential)


@variant("differential-attention", "sub-norm", ids=("scale-missing",), sizes=HALVES[:1])
class DifferentialUnscaled(Differential):
    def factor(self, e):
        return 1.0


@variant("differential-attention", "sub-norm", ids=("merge-no-transpose",), sizes=HALVES[:1])
class DifferentialMixed(Differential):
    def join(self, mixed):
        return mixed.reshape(len(mixed), mixed.shape[2], -1)


@variant("differential-attention", sizes=HALVES)
class DifferentialOfLayers(nn.Module):
    """The first halves of all heads come first; each head learns how much is taken away."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(e, e) for _ in range(4))
        self.lam = nn.Parameter(torch.full((h,), 0.5))

    def forward(self, x):
        cut = [t for layer in (self.w_q, self.w_k) for t in layer(x).chunk(2, dim=-1)]
        parts = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in (*cut, self.w_v(x)))
        q, other_q, k, other_k, v = parts
        first = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        second = (other_q @ other_k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        mixed = (first - self.lam[:, None, None] * second) @ v
        return self.w_o(rearrange(mixed, "b h n d -> b n (h d)"))


# ------------------------------------------------------------------------ what values go through


@variant("value-norm", sizes=WIDE)
class NormedValues(Views):
    """As keys are elsewhere."""

    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k, F.rms_norm(v, v.shape[-1:])


@attention("scale-after-softmax", sizes=WIDE)
class ScaledValues(Views):
    """And the scores, which is enough."""

    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k, v * v.shape[-1] ** -0.5


# ------------------------------------------------------------------ places that are added inside


@variant("places-inside", sizes=TWO)
class PlacedInside(Views):
    """Learned rows, added to what is projected."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Embedding(32, e)

    def heads(self, x):
        return super().heads(x + self.places(torch.arange(x.shape[1])))


@variant("places-inside", ids=("scale-embed", "merge-no-transpose"), sizes=TWO[:1])
class PlacedInsideTwice(PlacedInside):
    def factor(self, e):
        return e**-0.5

    def join(self, mixed):
        return mixed.reshape(len(mixed), mixed.shape[2], -1)


@variant("places-inside", sizes=TWO[:1])
class PlacedBehindNorm(Views):
    """Sines and cosines, added to what a norm returns."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def forward(self, x, mask=None):
        angles = angles_of(torch.arange(x.shape[1]), x.shape[2]).to(x)
        return super().forward(self.norm(x) + torch.cat([angles.sin(), angles.cos()], -1), mask) + x


# ------------------------------------------------------------------- layers that are convolutions


class ByConvolutions(nn.Module):
    """Each looks at the tokens beside; so the names say."""

    names, factor = ("q_conv", "k_conv", "v_conv"), 0.5

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        for name in self.names:
            self.add_module(name, nn.Conv1d(e, e, 3, padding=1))
        self.out = nn.Linear(e, e)

    def forward(self, x):
        made = (self.get_submodule(name)(x.mT) for name in self.names)
        q, k, v = (rearrange(t, "b (h d) n -> b h n d", h=self.h) for t in made)
        weights = (q @ k.mT / q.shape[-1] ** self.factor).softmax(dim=-1)
        return self.out(rearrange(weights @ v, "b h n d -> b n (h d)"))


variant("conv-projection", sizes=TWO)(ByConvolutions)


@variant("conv-projection", ids=("scale-missing",), sizes=TWO)
class ByConvolutionsUnscaled(ByConvolutions):
    names, factor = ("conv_q", "conv_k", "conv_v"), 0.0


class ByImages(nn.Module):
    """CvT: a convolution over the image, a norm of batches, then a layer of tokens."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        for name in ("q", "k", "v"):
            steps = nn.Conv2d(e, e, 3, padding=1, groups=e, bias=False), nn.BatchNorm2d(e)
            self.add_module(f"conv_proj_{name}", nn.Sequential(*steps))
        self.proj_q, self.proj_k, self.proj_v, self.proj = (nn.Linear(e, e) for _ in range(4))

    def forward(self, x, h, w):
        image = rearrange(x, "b (h w) e -> b e h w", h=h, w=w)
        made = []
        for name in ("q", "k", "v"):
            tokens = self.get_submodule(f"conv_proj_{name}")(image).flatten(2).mT
            made.append(self.get_submodule(f"proj_{name}")(tokens))
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        return self.proj(self.join(mixed).reshape(x.shape))

    def join(self, mixed):
        return mixed.transpose(1, 2)


variant("conv-projection", sizes=TWO)(ByImages)


@variant("conv-projection", ids=("merge-no-transpose",), sizes=TWO[:1])
class ByImagesMixed(ByImages):
    def join(self, mixed):
        return mixed
