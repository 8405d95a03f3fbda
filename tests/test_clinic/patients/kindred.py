"""Relatives whose products stand in another order: linear attention, Linformer, agents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from patients.followed import WIDE
from patients.variants import variant


class Packed(nn.Module):
    """One layer for queries, keys and values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def heads_of(self, x: Tensor) -> list[Tensor]:
        made = self.to_qkv(x).chunk(3, dim=-1)
        return [rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in made]

    def joined(self, mixed: Tensor) -> Tensor:
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


# ------------------------------------------------------------------------------ linear attention


@variant("linear-attention", sizes=WIDE)
class Favor(Packed):
    """Positive random features; the largest number is taken from each, cut off its gradient."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.register_buffer("rows", torch.randn(20, dim // heads))

    def features(self, t: Tensor, queries: bool) -> Tensor:
        made = t * t.shape[-1] ** -0.25
        seen = made @ self.rows.T
        top = seen.amax(dim=-1 if queries else (-1, -2), keepdim=True).detach()
        less = made.square().sum(dim=-1, keepdim=True) / 2
        return 20**-0.5 * (torch.exp(seen - less - top) + 1e-4)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = self.features(q, True), self.features(k, False)
        over = 1 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))
        context = torch.einsum("...nd,...ne->...de", k, v)
        return self.joined(torch.einsum("...de,...nd,...n->...ne", context, q, over))


class OfImages(nn.Module):
    """Layers of single places, heads one after the other, the image added."""

    def __init__(self, e, h):
        super().__init__()
        self.head_count = h
        self.keys, self.queries, self.values = (nn.Conv2d(e, e, 1) for _ in range(3))
        self.reprojection = nn.Conv2d(e, e, 1)

    def forward(self, x):
        b, n, e = x.shape
        image = x.mT.reshape(b, e, 1, n)
        q, k, v = (layer(image).flatten(2) for layer in (self.queries, self.keys, self.values))
        wide, mixed = e // self.head_count, []
        for i in range(self.head_count):
            own = slice(i * wide, (i + 1) * wide)
            context = k[:, own].softmax(dim=2) @ v[:, own].mT
            mixed.append(context.mT @ q[:, own].softmax(dim=1))
        made = self.reprojection(torch.cat(mixed, dim=1).view(b, e, 1, n))
        return (made + image).flatten(2).mT


variant("linear-attention", sizes=WIDE)(OfImages)


class OverFirst(nn.Module):
    """A root mean square of the channels, wherever its weight has to be seen."""

    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        weight = self.g.view(-1, *[1] * (x.ndim - 2))
        return F.normalize(x, dim=1) * len(self.g) ** 0.5 * weight


@variant("linear-attention", sizes=WIDE)
class BetweenNorms(nn.Module):
    """A norm before and one behind the output layer, and the image added, as in diffusion."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.norm, self.to_qkv = OverFirst(e), nn.Conv2d(e, 3 * e, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(e, e, 1), OverFirst(e))

    def forward(self, x):
        image = x.mT.unsqueeze(2)
        made = self.to_qkv(self.norm(image)).chunk(3, dim=1)
        q, k, v = (rearrange(t, "b (h c) x y -> b h c (x y)", h=self.heads) for t in made)
        context = torch.einsum("bhdn,bhen->bhde", k.softmax(dim=-1), v)
        mixed = torch.einsum("bhde,bhdn->bhen", context, q.softmax(dim=-2))
        made = self.to_out(rearrange(mixed, "b h c n -> b (h c) 1 n"))
        return (made + image).squeeze(2).mT


@variant("linear-attention", sizes=WIDE)
class NormedAndAdded(Packed):
    """A LayerNorm of what the output layer returns, then the tokens."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        context = k.softmax(dim=-2).mT @ v
        return x + self.norm(self.joined(q.softmax(dim=-1) @ context))


@variant("linear-attention", sizes=WIDE)
class OnesBesideValues(Packed):
    """A column of ones beside the values makes the divisor."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k, v = F.relu(q), F.relu(k), F.pad(v, (0, 1), value=1.0)
        made = q @ (k.mT @ v)
        return self.joined(made[..., :-1] / (made[..., -1:] + 1e-15))


@variant("linear-attention", ids=("split-no-transpose",), sizes=WIDE)
class LinearViewed(Packed):
    def heads_of(self, x):
        b, n = x.shape[:2]
        return [t.reshape(b, self.heads, n, -1) for t in self.to_qkv(x).chunk(3, dim=-1)]

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q, k = q.sigmoid(), k.exp()
        return self.joined(q @ (k.mT @ v) / (q @ k.sum(dim=2)[..., None]))


# ------------------------------------------------------------------------------------- Linformer


class Narrowed(Packed):
    """Each head mixes the places of its keys and values by matrices of its own."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.e, self.f = (nn.Parameter(torch.randn(heads, 4, 16)) for _ in range(2))

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        n, d = q.shape[2:]
        k, v = self.e[..., :n] @ k, self.f[..., :n] @ v
        return self.joined(self.weigh(q @ k.mT / d**0.5) @ v)


variant("linformer", sizes=WIDE)(Narrowed)


@variant("linformer", ids=("softmax-query",), sizes=WIDE)
class NarrowedWrongly(Narrowed):
    def weigh(self, scores):
        return scores.softmax(dim=-2)


# --------------------------------------------------------------------------------------- agents


class Agents(Packed):
    """Learned agents of each head ask the keys, and the queries ask them."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.agents = nn.Parameter(torch.randn(heads, 5, dim // heads))

    def forward(self, x):
        q, k, v = self.heads_of(x)
        root = q.shape[-1] ** -0.5
        found = (self.agents * root @ k.mT).softmax(dim=-1) @ v
        return self.joined((q @ self.agents.mT * root).softmax(dim=-1) @ found)


variant("agent-attention", sizes=WIDE)(Agents)


@variant("agent-attention", sizes=WIDE)
class AgentsInRows(nn.Module):
    """The same agents for all heads, which are folded into the batch."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.scale = h, (e // h) ** -0.5
        self.agents = nn.Parameter(torch.randn(6, e // h))
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            layer(x).view(b, n, self.h, -1).transpose(1, 2).flatten(0, 1)
            for layer in (self.q, self.k, self.v)
        )
        asked = torch.einsum("ad,bnd->ban", self.agents, k) * self.scale
        asking = torch.einsum("bnd,ad->bna", q, self.agents) * self.scale
        mixed = torch.bmm(asking.softmax(dim=-1), torch.bmm(asked.softmax(dim=-1), v))
        return self.o(mixed.view(b, self.h, n, -1).transpose(1, 2).reshape(b, n, -1))


# ------------------------------------------------- in pieces: two kinds of tokens, templates, keys


def in_two(module: nn.Module, x: Tensor) -> Tensor:
    """Call a module on the first three tokens and on the others."""
    return torch.cat(module(x[:, :3], x[:, 3:]), dim=1)


@variant("joint-attention", sizes=WIDE, call=in_two)
class TextAndImage(nn.Module):
    """Layers for each, and torch's kernel over both."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.text, self.image = (nn.Linear(e, 3 * e) for _ in range(2))
        self.text_out, self.image_out = (nn.Linear(e, e) for _ in range(2))

    def heads_of(self, t: Tensor, layer: nn.Module) -> Tensor:
        return rearrange(layer(t), "b n (k h d) -> k b h n d", k=3, h=self.h)

    def joined(self, text: Tensor, image: Tensor) -> Tensor:
        q, k, v = torch.cat([text, image], dim=-2)
        return rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")

    def forward(self, text, image):
        made = self.heads_of(text, self.text), self.heads_of(image, self.image)
        mixed = self.joined(*made)
        n = text.shape[1]
        return self.text_out(mixed[:, :n]), self.image_out(mixed[:, n:])


@variant("qk-norm", "joint-attention", sizes=WIDE, call=in_two)
class NormedTextAndImage(TextAndImage):
    """A norm of queries and one of keys for each side, as Stable Diffusion 3.5 has them."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList(nn.RMSNorm(e // h, eps=1e-6) for _ in range(4))

    def joined(self, text, image):
        sides = zip((text, image), (self.norms[:2], self.norms[2:]), strict=True)
        text, image = (torch.stack([a(t[0]), c(t[1]), t[2]]) for t, (a, c) in sides)
        return super().joined(text, image)


class Templates(Packed):
    """The first three tokens see each other, the others see all."""

    root = 1.0

    def forward(self, x):
        q, k, v = self.heads_of(x)
        q = q / (self.root * q.shape[-1]) ** 0.5
        first = (q[:, :, :3] @ k[:, :, :3].mT).softmax(dim=-1) @ v[:, :, :3]
        rest = (q[:, :, 3:] @ k.mT).softmax(dim=-1) @ v
        return self.joined(torch.cat([first, rest], dim=2))


variant("mixed-attention", sizes=WIDE)(Templates)


@variant("mixed-attention", ids=("scale-embed",), sizes=WIDE)
class TemplatesScaled(Templates):
    """By the width of all heads."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.root = heads


@variant("window", sizes=WIDE, size=(2, 8), causal=True)
class Blocks(Packed):
    """A loop over segments of two, each of which sees the one before it, too."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        mixed = []
        for start in range(0, x.shape[1], 2):
            own, seen = slice(start, start + 2), slice(max(0, start - 2), start + 2)
            scores = q[:, :, own] @ k[:, :, seen].mT / q.shape[-1] ** 0.5
            i, j = scores.shape[-2:]
            ahead = torch.ones(i, j, dtype=torch.bool).triu(j - i + 1)
            mixed.append(scores.masked_fill(ahead, -1e9).softmax(dim=-1) @ v[:, :, seen])
        return self.joined(torch.cat(mixed, dim=2))


class Remembering(Packed):
    """Learned keys and values of each head, normed as the others are."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.memory = nn.Parameter(torch.randn(2, heads, 2, dim // heads))
        self.by = nn.Parameter(torch.ones(2, dim // heads))

    def factor(self, width: int) -> float:
        return 8.0

    def normed(self, t: Tensor, number: int) -> Tensor:
        return F.normalize(t, dim=-1) * self.by[number]

    def forward(self, x):
        q, k, v = self.heads_of(x)
        more = self.memory[:, None].expand(-1, len(x), -1, -1, -1)
        k, v = torch.cat([more[0], k], dim=-2), torch.cat([more[1], v], dim=-2)
        weights = self.factor(q.shape[-1]) * self.normed(q, 0) @ self.normed(k, 1).mT
        return self.joined(weights.softmax(dim=-1) @ v)


variant("memory-keys", "cosine", sizes=WIDE)(Remembering)


@variant("qk-norm", "memory-keys", sizes=WIDE)
class RememberingByRoot(Remembering):
    """The usual factor, and an RMSNorm."""

    def normed(self, t, number):
        return F.rms_norm(t, t.shape[-1:], eps=1e-6) * self.by[number]

    def factor(self, width):
        return width**-0.5


# ------------------------------------------------------------- turned: by other angles, after norms


class Turned(Packed):
    """Angles that are made in forward."""

    def angles(self, n: int, pairs: int) -> Tensor:
        place = torch.arange(n, dtype=torch.float64)
        return place[:, None] / 4 * self.speeds(pairs)

    def speeds(self, pairs: int) -> Tensor:
        return 10_000 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        angles = self.angles(x.shape[1], q.shape[-1] // 2).to(x)
        q, k = (self.turned(t, angles) for t in (q, k))
        return self.joined(F.scaled_dot_product_attention(q, k, v))

    def turned(self, t: Tensor, angles: Tensor) -> Tensor:
        first, second = t.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


variant("rotary-halves", "rotary-scaled", sizes=WIDE)(Turned)


@variant("rotary-halves", "rotary-scaled", sizes=WIDE)
class TurnedAsLlama(Turned):
    """Llama 3.1: slow pairs are eight times as slow, and some lie between."""

    def angles(self, n, pairs):
        return torch.arange(n, dtype=torch.float64)[:, None] * self.speeds(pairs)

    def speeds(self, pairs):
        plain = 500_000 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        share = ((8192 * plain / (2 * torch.pi) - 1) / 3).clamp(0, 1)
        return plain * (share + (1 - share) / 8)


@variant("rotary-halves", "rotary-scaled", sizes=WIDE)
class TurnedFarther(TurnedAsLlama):
    """Apertus: so, of a larger base, in single precision."""

    theta = 12_000_000.0

    def angles(self, n, pairs):
        return super().angles(n, pairs).float()

    def speeds(self, pairs):
        plain = self.theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        share = ((8192 * plain / (2 * torch.pi) - 1) / 3).clamp(0, 1)
        return plain * (share + (1 - share) / 8)


@variant("rotary-pairs", "qk-norm", sizes=WIDE)
class TurnedAfterNorms(Turned):
    """A LayerNorm of each side, named as nobody else does."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.calm = nn.ModuleList(nn.LayerNorm(dim // heads) for _ in range(2))

    def heads_of(self, x):
        q, k, v = super().heads_of(x)
        return self.calm[0](q), self.calm[1](k), v

    def angles(self, n, pairs):
        return torch.arange(n, dtype=torch.float64)[:, None] * self.speeds(pairs)

    def turned(self, t, angles):
        made = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(made * turns).flatten(-2)
