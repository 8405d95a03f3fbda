"""Relatives that are right in ways beside the usual ones: what is added, grouped, left to sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from patients.attention import Views
from patients.followed import WIDE
from patients.relatives import TWO, LinearByElu, LinearBySoftmax
from patients.variants import variant

# ---------------------------------------------------- values behind the output layer: T2T-ViT


@variant("values-added", sizes=WIDE)
class TokensToToken(Views):
    """The values are the residual."""

    def forward(self, x):
        q, k, v = self.heads(x)
        mixed = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1) @ v
        return self.join(v) + self.proj(self.join(mixed))


@variant("values-added", sizes=WIDE)
class ValuesByKernel(nn.Module):
    """The same with layers of their own, and torch's kernel; the past alone is seen."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))

    def forward(self, x):
        v = self.v(x)
        split = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in (self.q(x), self.k(x), v))
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        return v + self.o(rearrange(mixed, "b h n d -> b n (h d)"))


# --------------------------------------------------------- biases in places where none was sought


@variant("grouped-queries", "alibi", sizes=((64, 4), (48, 4)))
class GroupsByDistance(nn.Module):
    """Queries as (groups, members), slopes for all of them; the past alone is seen."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h
        self.groups = max(1, h // 2)
        self.q, self.o = nn.Linear(e, e), nn.Linear(e, e)
        self.kv = nn.Linear(e, 2 * self.groups * self.d)
        self.register_buffer("slopes", 2.0 ** (-8 / h * torch.arange(1, h + 1)))

    def forward(self, x):
        n = x.shape[1]
        q = rearrange(self.q(x), "b n (g m d) -> b g m n d", g=self.groups, d=self.d)
        k, v = rearrange(self.kv(x), "b n (k g d) -> k b g () n d", k=2, g=self.groups)
        away = torch.arange(n)[None] - torch.arange(n)[:, None]
        bias = (self.slopes[:, None, None] * away).unflatten(0, (self.groups, -1))
        scores = q / self.d**0.5 @ k.mT + bias
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return self.o(rearrange(scores.softmax(-1) @ v, "b g m n d -> b n (g m d)"))


variant("multi-query", "alibi", sizes=((24, 2), (16, 2)))(GroupsByDistance)


@variant("memory-keys", "relative-bias", sizes=WIDE)
class MemoryInWindow(Views):
    """Learned keys and values, which no bias is added to; a number for each offset and head."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.memory = nn.Parameter(torch.randn(2, h, 2, e // h))
        self.table = nn.Embedding(65, h)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.heads(x)
        k, v = (
            torch.cat([m.expand(len(x), -1, -1, -1), t], dim=2)
            for m, t in zip(self.memory, (k, v), strict=True)
        )
        away = torch.arange(n)[None] - torch.arange(n)[:, None] + 32
        bias = F.pad(self.table(away), (0, 0, 2, 0)).permute(2, 0, 1)
        return self.proj(self.join((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v))


# ------------------------------------------------------------------------ linear, the past alone


@variant("linear-attention", sizes=TWO)
class LinearOfPast(LinearBySoftmax):
    """Sums of keys and of their products with values, up to each token."""

    def mapped(self, t: Tensor) -> Tensor:
        return F.elu(t) + 1

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = self.mapped(q), self.mapped(k)
        products = (k[..., None] * v[..., None, :]).cumsum(dim=2)
        mixed = einsum(q, products, "b h n d, b h n d m -> b h n m")
        mixed = mixed / (q * (k.cumsum(dim=2) + 1e-6)).sum(-1, keepdim=True)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@variant("linear-attention", sizes=TWO)
class LinearOfSoftplus(LinearOfPast):
    def mapped(self, t):
        return F.softplus(t)


@variant("linear-attention", sizes=TWO)
class LinearByRoots(LinearBySoftmax):
    """Both sides divided by the fourth root of their width before their softmax."""

    def forward(self, x):
        q, k, v = (
            t / t.shape[-1] ** (p / 4) for p, t in zip((1, 1, 0), self.heads_of(x), strict=True)
        )
        mixed = q.softmax(dim=-1) @ (k.softmax(dim=-2).mT @ v)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


variant("linear-attention", ids=("mask-not-causal",), sizes=TWO[:1], causal=True)(LinearByElu)


class LinearOfImage(nn.Module):
    """DDPM: an image of as many places as a head is wide; a GroupNorm of the result."""

    def __init__(self, e, h):
        super().__init__()
        self.heads, self.scale = h, (e // h) ** -0.5
        self.to_qkv = nn.Conv2d(e, 3 * e, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(e, e, 1), nn.GroupNorm(1, e))

    def forward(self, image):
        made = self.to_qkv(image).chunk(3, dim=1)
        q, k, v = (rearrange(t, "b (h d) y x -> b h d (y x)", h=self.heads) for t in made)
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        mixed = torch.einsum("bhde,bhdn->bhen", torch.einsum("bhdn,bhen->bhde", k, v), q)
        high = image.shape[2]
        return self.to_out(rearrange(mixed, "b h e (y x) -> b (h e) y x", y=high))


def as_image(module, x):
    return module(rearrange(x, "b (y x) e -> b e y x", y=4)).flatten(2).mT


variant("linear-attention", sizes=((64, 4),), size=(2, 16), call=as_image)(LinearOfImage)
variant("linear-attention", sizes=((24, 3),))(LinearOfImage)


# --------------------------------------------------- channels, keys and values of other places


@variant("cross-covariance", "conv-projection", sizes=((24, 3), (64, 4)))
class ChannelsOfImage(nn.Module):
    """Restormer: a layer makes all three, and a convolution of each channel follows it."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.temperature = h, nn.Parameter(torch.ones(h, 1, 1))
        self.qkv = nn.Conv2d(e, 3 * e, 1, bias=False)
        self.qkv_dwconv = nn.Conv2d(3 * e, 3 * e, 3, padding=1, groups=3 * e, bias=False)
        self.project_out = nn.Conv2d(e, e, 1, bias=False)

    def behind(self, t: Tensor) -> Tensor:
        return self.qkv_dwconv(t)

    def forward(self, x):
        made = self.behind(self.qkv(x)).unflatten(1, (3, self.h, -1)).flatten(4)
        q, k, v = made.unbind(1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        mixed = (q @ k.mT * self.temperature).softmax(dim=-1) @ v
        return self.project_out(mixed.flatten(1, 2).unflatten(2, x.shape[2:]))


@variant("cross-covariance", "conv-projection", sizes=((24, 3),))
class ChannelsTwice(ChannelsOfImage):
    """Two convolutions, one after the other."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.qkv_conv2 = nn.Conv2d(3 * e, 3 * e, 3, padding=1, groups=3 * e, bias=False)

    def behind(self, t):
        return self.qkv_conv2(self.qkv_dwconv(t))


@variant("cross-covariance", "conv-projection", sizes=((24, 3),))
class ChannelsByAnyName(ChannelsOfImage):
    """The name of the convolution does not say what it makes: who calls it does."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.near = self.__dict__["_modules"].pop("qkv_dwconv")

    def behind(self, t):
        return self.near(t)


@variant("cross-covariance", "conv-projection", sizes=((24, 3),), size=(2, 16), call=as_image)
class ChannelsOfNoName(nn.Module):
    """No name says what the convolutions make, and no temperature is learned."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.near = nn.Conv2d(3 * e, 3 * e, 3, padding=1, groups=3 * e, bias=False)
        self.wide, self.last = (nn.Conv2d(e, c, 1, bias=False) for c in (3 * e, e))

    def forward(self, x):
        made = self.near(self.wide(x)).reshape(len(x), 3, self.h, -1, x.shape[2] * x.shape[3])
        q, k, v = made.unbind(1)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(dim=-1)
        return self.last((weights @ v).reshape(x.shape))


class Laid(nn.Module):
    """A layer without weights, which may be called after what it returns."""

    def __init__(self, h):
        super().__init__()
        self.h = h

    def forward(self, t):
        return t.unflatten(1, (self.h, -1)).flatten(3)


@variant("cross-covariance", "conv-projection", sizes=((24, 3),))
class ChannelsLaidByName(ChannelsOfImage):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.Q, self.K, self.V = Laid(h), Laid(h), Laid(h)

    def forward(self, x):
        q, k, v = self.qkv_dwconv(self.qkv(x)).chunk(3, dim=1)
        q, k = F.normalize(self.Q(q), dim=-1), F.normalize(self.K(k), dim=-1)
        mixed = (q @ k.mT * self.temperature).softmax(dim=-1) @ self.V(v)
        return self.project_out(mixed.flatten(1, 2).unflatten(2, x.shape[2:]))


class NarrowHead(nn.Module):
    """One head of Linformer, with two matrices of its own."""

    def __init__(self, e, d, m, n):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(e, d) for _ in range(3))
        self.E, self.F = nn.Parameter(torch.randn(m, n)), nn.Parameter(torch.randn(m, n))

    def forward(self, x):
        k, v = self.E @ self.k(x), torch.einsum("mn,bnd->bmd", self.F, self.v(x))
        return (self.q(x) @ k.mT * v.shape[-1] ** -0.5).softmax(dim=-1) @ v


@variant("linformer", sizes=((24, 3), (64, 4)), size=(2, 10))
class HeadsOfFewerPlaces(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList(NarrowHead(e, e // h, 4, 10) for _ in range(h))
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


@variant("memory-keys", sizes=((24, 4), (64, 8)))
class MemoryTokens(Views):
    """Learned tokens stand before the others, and one layer makes keys and values of all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.memory = nn.Parameter(torch.randn(1, 3, e))
        self.q, self.kv = nn.Linear(e, e), nn.Linear(e, 2 * e)
        del self.qkv

    def forward(self, x):
        n = x.shape[1]
        every = torch.cat([self.memory.expand(len(x), -1, -1), x], dim=1)
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=self.h)
        k, v = rearrange(self.kv(every), "b n (k h d) -> k b h n d", k=2, h=self.h)
        hidden = torch.ones(n, n + 3).triu(4).bool()
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        return self.proj(self.join(scores.softmax(dim=-1) @ v))


@variant("memory-keys", sizes=((24, 4), (64, 8)))
class MemoryTokensByPlace(MemoryTokens):
    """Transformer-XL's order: scores are (i, j, b, h), and the softmax is taken over dim 1."""

    def forward(self, x):
        every = torch.cat([self.memory.expand(len(x), -1, -1), x], dim=1)
        q = rearrange(self.q(x), "b i (h d) -> i b h d", h=self.h)
        k, v = rearrange(self.kv(every), "b j (k h d) -> k j b h d", k=2, h=self.h)
        scores = torch.einsum("ibnd,jbnd->ijbn", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("ijbn,jbnd->ibnd", scores.softmax(dim=1), v)
        return self.proj(rearrange(mixed, "i b h d -> b i (h d)"))


class EpsByPrecision(nn.Module):
    """A LayerNorm without a bias, whose eps is another where numbers are not single."""

    def __init__(self, e):
        super().__init__()
        self.g = nn.Parameter(torch.ones(e))

    def forward(self, x):
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        var, mean = torch.var_mean(x, dim=-1, unbiased=False, keepdim=True)
        return (x - mean) * (var + eps).rsqrt() * self.g


@variant(sizes=((24, 4), (64, 8)))
class NormedBehind(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj = nn.Sequential(nn.Linear(e, e, bias=False), EpsByPrecision(e))


@variant("memory-keys", "cosine", "multi-query", sizes=((64, 4), (64, 8)))
class SharedBesideNull(nn.Module):
    """Imagen: one head of keys, a learned one beside it, all divided by their length."""

    def __init__(self, e, h):
        super().__init__()
        self.h, d = h, e // h
        self.norm, self.to_q = EpsByPrecision(e), nn.Linear(e, e, bias=False)
        self.to_kv, self.null_kv = nn.Linear(e, 2 * d, bias=False), nn.Parameter(torch.randn(2, d))
        self.q_scale, self.k_scale = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.to_out = nn.Sequential(nn.Linear(e, e, bias=False), EpsByPrecision(e))

    def forward(self, x):
        x = self.norm(x)
        return self.attend(x, x)

    def attend(self, x, context):
        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=self.h)
        both = zip(self.null_kv, self.to_kv(context).chunk(2, dim=-1), strict=True)
        k, v = (torch.cat([null.expand(len(x), 1, -1), t], dim=1) for null, t in both)
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        weights = (einsum(q, k, "b h i d, b j d -> b h i j") * 8).softmax(dim=-1)
        mixed = einsum(weights, v, "b h i j, b j d -> b h i d")
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@variant("memory-keys", "cosine", "multi-query", sizes=((64, 4),))
class SharedOfContext(SharedBesideNull):
    """A context must be given, and no norm of this module's own is for that."""

    def forward(self, x, context):
        return self.attend(self.norm(x), context)


# ------------------------------------------------------- who asks is asked, too: Flamingo's latents


@variant("context-and-self", sizes=WIDE, context=True)
class Resampler(nn.Module):
    """A norm for each side; the largest score of each query is taken from all of its scores."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.scale = h, (e // h) ** -0.5
        self.norm_media, self.norm_latents = nn.LayerNorm(e), nn.LayerNorm(e)
        self.to_q, self.to_out = (nn.Linear(e, e, bias=False) for _ in range(2))
        self.to_kv = nn.Linear(e, 2 * e, bias=False)

    def weigh(self, sim: Tensor) -> Tensor:
        return (sim - sim.amax(dim=-1, keepdim=True).detach()).softmax(dim=-1)

    def forward(self, x, context):
        x, context = self.norm_latents(x), self.norm_media(context)
        q = rearrange(self.to_q(x), "b n (h d) -> b h n d", h=self.h) * self.scale
        made = self.to_kv(torch.cat([context, x], dim=1))
        k, v = rearrange(made, "b n (k h d) -> k b h n d", k=2, h=self.h)
        return self.to_out(rearrange(self.weigh(q @ k.mT) @ v, "b h n d -> b n (h d)"))


@variant("context-and-self", sizes=WIDE, context=True)
class TextBesidePictures(nn.Module):
    """Those who ask come first; torch's kernel, layers of their own."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))

    def forward(self, x, context):
        whole = torch.cat([x, context], dim=1)
        split = (self.q(x), self.k(whole), self.v(whole))
        split = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in split)
        return self.o(rearrange(F.scaled_dot_product_attention(*split), "b h n d -> b n (h d)"))
