"""Attention with its norm and its residual in one module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.arranged import ByHand, OneNumber
from patients.attention import Loops, Views, ViewsScaledByEmbed, ViewsSoftmaxQuery
from patients.bank import attention

TWO = ((24, 4), (15, 3))


def of_pixels(m, x):
    return m(x.mT.unflatten(2, (4, 4))).flatten(2).mT


@attention("norm-bessel", sizes=TWO)
class AfterNormByHand(Views):
    """x + attention(norm(x)), as in the annotated Transformer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.layer_norm = ByHand(e)

    def forward(self, x, mask=None):
        return x + super().forward(self.layer_norm(x), mask)


@attention("norm-bessel", sizes=TWO)
class NormedByOneNumber(Loops):
    """norm(x + attention(x)); nothing in the class of the norm says that it is one."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln = OneNumber()

    def forward(self, tokens, allow_mask=None):
        return self.ln(tokens + super().forward(tokens, allow_mask))


class NormByVariance(nn.Module):
    """The root is forgotten."""

    def __init__(self, e):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))

    def forward(self, x):
        away = x - x.mean(dim=-1, keepdim=True)
        return self.gain * away / (away.square().mean(dim=-1, keepdim=True) + 1e-5) + self.shift


class NormByShift(NormByVariance):
    """A parenthesis too far: what should be added at the end stands below the line."""

    def forward(self, x):
        away = x - x.mean(dim=-1, keepdim=True)
        return self.gain * away / (x.std(dim=-1, keepdim=True) + 1e-6 + self.shift)


@attention("norm-formula", sizes=TWO)
class BeforeNormByVariance(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.after = NormByVariance(e)

    def forward(self, x, mask=None):
        return self.after(x + super().forward(x, mask))


@attention("norm-formula", sizes=TWO)
class AfterNormByShift(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.before = NormByShift(e)

    def forward(self, tokens, allow_mask=None):
        return tokens + super().forward(self.before(tokens), allow_mask)


@attention("scale-embed", "norm-bessel", sizes=TWO[:1])
class AfterNormByHandScaledByEmbed(AfterNormByHand, ViewsScaledByEmbed):
    pass


@attention("norm-bessel", "residual-from-norm", sizes=TWO[:1])
class AfterNormByHandFromNorm(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.layer_norm = ByHand(e)

    def forward(self, x, mask=None):
        x = self.layer_norm(x)
        return x + super().forward(x, mask)


@attention(sizes=((24, 4), (64, 8)))
class OfAnImage(nn.Module):
    """Diffusion models: a GroupNorm of an image, 1 x 1 convolutions, a residual."""

    factor = -0.25

    def __init__(self, e, h):
        super().__init__()
        self.num_heads, self.channels = h, e
        self.norm = nn.GroupNorm(4, e)
        self.qkv, self.proj_out = nn.Conv1d(e, 3 * e, 1), nn.Conv1d(e, e, 1)

    def forward(self, x):
        b, c, *spatial = x.shape
        x = x.reshape(b, c, -1)
        qkv = self.qkv(self.norm(x)).reshape(b * self.num_heads, -1, x.shape[-1])
        q, k, v = qkv.chunk(3, dim=1)
        by = q.shape[1] ** self.factor
        weights = ((q * by).mT @ (k * by)).softmax(dim=-1)
        mixed = (v @ weights.mT).reshape(b, c, -1)
        return (x + self.proj_out(mixed)).reshape(b, c, *spatial)


class InSinglePrecision(nn.GroupNorm):
    """Guided diffusion's, which half precision is too narrow for."""

    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


@attention(sizes=((24, 4), (64, 8)))
class OfAnImageInSinglePrecision(OfAnImage):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = InSinglePrecision(4, e)


@attention("scale-missing", sizes=((24, 4),))
class OfAnImageUnscaled(OfAnImage):
    factor = 0.0


@attention(sizes=((24, 1),))
class OfAPicture(nn.Module):
    """The autoencoder's: one head, three convolutions."""

    dim = -1

    def __init__(self, e, h):
        super().__init__()
        self.norm = nn.GroupNorm(3, e)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(e, e, 1) for _ in range(4))

    def forward(self, x):
        read = self.norm(x)
        q, k, v = (layer(read).flatten(2) for layer in (self.q, self.k, self.v))
        weights = F.softmax(q.mT @ k * q.shape[1] ** -0.5, dim=self.dim)
        return x + self.proj_out((v @ weights.mT).view_as(x))


@attention("softmax-query", sizes=((24, 1),))
class OfAPictureOverQueries(OfAPicture):
    dim = -2


@attention(sizes=((48, 1),), size=(2, 16), call=of_pixels)
class OfPixels(OfAPicture):
    """Called with tokens that only look like an image: their channels lie last."""


@attention(sizes=((48, 1),), size=(2, 16), call=of_pixels)
class OfPixelsAndMore(OfAPicture):
    """The same, and one more norm, of what does not come in."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.more = nn.GroupNorm(2, e)
        self.shown = nn.Buffer(torch.randn(1, 4, 4, e).permute(0, 3, 1, 2), persistent=False)

    def forward(self, x):
        self.said = self.more(self.shown)
        return super().forward(x)


@attention("residual-from-norm", "softmax-query", sizes=TWO[:1])
class FromNormOverQueries(ViewsSoftmaxQuery):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def forward(self, x, mask=None):
        x = self.norm(x)
        return x + super().forward(x, mask)


@attention("norm-missing", sizes=TWO)
class NormedTooLate(Views):
    """The norm runs when nobody reads its result any more."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def forward(self, x, mask=None):
        y = super().forward(x, mask)
        x = self.norm(x)
        return y


@attention(sizes=TWO)
class NormedBeside(NormedTooLate):
    """The norm's result is handed out, too."""

    def forward(self, x, mask=None):
        return super().forward(x, mask), self.norm(x)
