"""Attention that no search knows: right step by step, or with one mistake beside what it is."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from patients.attention import Views
from patients.bank import attention
from patients.blocks import PreNorm, block
from patients.variants import distances, variant

WIDE = ((24, 3), (64, 4))  # heads of 8 and of 16


def turned(t: Tensor, angles: Tensor, halves: bool) -> Tensor:
    """Turn (b, h, n, d) by angles (n, d / 2), halves or neighbours together."""
    first, second = t.chunk(2, dim=-1) if halves else (t[..., 0::2], t[..., 1::2])
    cos, sin = angles.cos().to(t), angles.sin().to(t)
    made = first * cos - second * sin, first * sin + second * cos
    return torch.cat(made, -1) if halves else torch.stack(made, -1).flatten(-2)


def angles_of(places: Tensor, width: int) -> Tensor:
    """Return places times 10000 ** (-2 p / width)."""
    return places[:, None].double() * 10000 ** (-torch.arange(0, width, 2).double() / width)


# ------------------------------------------------------- vectors for rows and columns, as in SAM


class OfImage(nn.Module):
    """Sixteen places are four rows of four; vectors for their offsets meet the queries."""

    before = False  # whether the queries that they meet are scaled

    def __init__(self, e, h):
        super().__init__()
        self.h, self.scale = h, (e // h) ** -0.5
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)
        self.rel_pos_h = nn.Parameter(torch.zeros(7, e // h))
        self.rel_pos_w = nn.Parameter(torch.zeros(7, e // h))

    def forward(self, x):
        qkv = rearrange(self.qkv(x), "b n (k h d) -> k b h n d", k=3, h=self.h)
        q, k, v = qkv
        scores = (q * self.scale) @ k.mT
        asks = q * self.scale if self.before else q
        away = distances(4) + 3
        rows, columns = self.rel_pos_h[away], self.rel_pos_w[away]
        asks = rearrange(asks, "b h (r c) d -> b h r c d", r=4)
        by_row = torch.einsum("bhrcd,rkd->bhrck", asks, rows)
        by_column = torch.einsum("bhrcd,ckd->bhrck", asks, columns)
        added = by_row[..., :, None] + by_column[..., None, :]
        weights = (scores + added.reshape(scores.shape)).softmax(dim=-1)
        return self.proj(rearrange(weights @ v, "b h n d -> b n (h d)"))


variant("decomposed-positions", sizes=WIDE, size=(2, 16))(OfImage)


@variant("decomposed-positions", sizes=WIDE, size=(2, 16))
class OfImageScaled(OfImage):
    before = True


@variant("decomposed-positions", ids=("scale-other",), sizes=WIDE[1:], size=(2, 16))
class OfImageTimesRoot(OfImage):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = (e // h) ** 0.5


# ---------------------------------------------------------- latent keys and values, as in DeepSeek


class Latent(nn.Module):
    """Queries by way of a latent, too; a turned part that all heads share; norms of both."""

    halves, masked = False, False

    def __init__(self, e, h):
        super().__init__()
        self.h, self.plain, self.turn, self.wide = h, 6, 4, 5
        self.q_a, self.q_norm = nn.Linear(e, 9, bias=False), nn.RMSNorm(9, eps=1e-6)
        self.q_b = nn.Linear(9, h * 10, bias=False)
        self.kv_a, self.kv_norm = nn.Linear(e, 11 + 4, bias=False), nn.RMSNorm(11, eps=1e-6)
        self.kv_b = nn.Linear(11, h * (6 + 5), bias=False)
        self.o_proj = nn.Linear(h * 5, e, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).view(b, n, self.h, 10).transpose(1, 2)
        latent, shared = self.kv_a(x).split([11, 4], dim=-1)
        k, v = (
            self.kv_b(self.kv_norm(latent)).view(b, n, self.h, 11).transpose(1, 2).split([6, 5], -1)
        )
        angles = angles_of(torch.arange(n), 4)
        asks = turned(self.split(q[..., 6:]), angles, self.halves)
        shared = turned(self.split(shared[:, None]), angles, self.halves).expand(-1, self.h, -1, -1)
        q, k = torch.cat([q[..., :6], asks], -1), torch.cat([k, shared], -1)
        scores = q @ k.mT / math.sqrt(10)
        if self.masked:
            scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))

    def split(self, t):
        return t


DEEPSEEK = ("rotary-pairs", "rotary-partial", "latent-attention", "latent-queries")
variant(*DEEPSEEK, sizes=WIDE)(Latent)


@variant(*DEEPSEEK, sizes=((64, 4),))
class LatentOfOtherWidths(nn.Module):
    """Heads ask by more numbers than they answer with: no layer is as wide as a plain one."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q_a, self.q_norm = nn.Linear(e, 24, bias=False), nn.RMSNorm(24, eps=1e-6)
        self.q_b = nn.Linear(24, h * 24, bias=False)
        self.kv_a, self.kv_norm = nn.Linear(e, 20 + 8, bias=False), nn.RMSNorm(20, eps=1e-6)
        self.kv_b = nn.Linear(20, h * 32, bias=False)
        self.o = nn.Linear(h * 16, e, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).unflatten(-1, (self.h, 24)).transpose(1, 2)
        latent, shared = self.kv_a(x).split([20, 8], dim=-1)
        kv = self.kv_b(self.kv_norm(latent)).unflatten(-1, (self.h, 32)).transpose(1, 2)
        angles = angles_of(torch.arange(n), 8)
        asks, shared = (turned(t, angles, False) for t in (q[..., 16:], shared[:, None]))
        q = torch.cat([q[..., :16], asks], dim=-1)
        k = torch.cat([kv[..., :16], shared.expand(b, self.h, n, 8)], dim=-1)
        weights = (q @ k.mT / math.sqrt(24)).softmax(-1)
        return self.o((weights @ kv[..., 16:]).transpose(1, 2).flatten(2))


@variant(*DEEPSEEK, sizes=WIDE)
class LatentLaidApart(Latent):
    """As DeepSeek writes it: neighbours are laid as halves first, and turn then."""

    halves = True

    def split(self, t):
        return rearrange(t, "... (p two) -> ... (two p)", two=2)


@variant(
    *DEEPSEEK,
    ids=("mask-not-causal",),
    sizes=WIDE[1:],
    causal=True,
)
class LatentMaskNotKept(Latent):
    masked = True


class EpsOutside(nn.Module):
    """Divides by the root of the mean square plus eps."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)


class RMSNorm(EpsOutside):
    """The same, and called as it is meant."""


@variant(*DEEPSEEK, ids=("rms-eps",), sizes=WIDE)
class LatentNormed(Latent):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.kv_norm = RMSNorm(11)


@variant(*DEEPSEEK, ids=("rms-eps", "mask-not-causal"), sizes=WIDE[1:], causal=True)
class LatentNormedNotCausal(LatentNormed):
    pass


class RMSNormThatAdds(RMSNorm):
    """A sum stands where the product belongs."""

    def forward(self, x):
        return self.weight * (x + x.square().mean(-1, keepdim=True).add(1e-6).rsqrt())


@variant(*DEEPSEEK, ids=("norm-formula",), sizes=WIDE)
class LatentNormsAdd(Latent):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.kv_norm, self.q_norm = RMSNormThatAdds(11), RMSNormThatAdds(9)


class LayerNormBySquares(nn.Module):
    """The root is forgotten."""

    def __init__(self, e):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(e)), nn.Parameter(torch.zeros(e))

    def forward(self, x):
        away = x - x.mean(-1, keepdim=True)
        return away / (away.square().mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


@variant(*DEEPSEEK, ids=("norm-formula", "mask-not-causal"), sizes=WIDE[1:], causal=True)
class LatentNormedBySquares(Latent):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.kv_norm = LayerNormBySquares(11)


@variant(ids=("rms-eps",), sizes=WIDE)
class NormedBefore(Views):
    """A plain attention behind such a norm of its own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = RMSNorm(e)

    def forward(self, x):
        return super().forward(self.norm(x))


class RoundedRMSNorm(RMSNorm):
    """In single precision, where only short tokens show it."""

    def forward(self, x):
        return super().forward(x.float()).type_as(x)


@block("rms-eps")
class BlockNormed(PreNorm):
    def norm(self, e):
        return RoundedRMSNorm(e)


@variant(ids=("rms-eps", "scale-embed"), sizes=WIDE[:1])
class NormedBeforeScaledByEmbed(NormedBefore):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = RoundedRMSNorm(e)

    def factor(self, e):
        return e**-0.5


@variant("latent-attention", sizes=WIDE)
class LatentPlain(nn.Module):
    """No norm, no turn, the past alone; layers of their own for keys and for values."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.W_dkv, self.W_q = nn.Linear(e, 10), nn.Linear(e, e)
        self.W_uk, self.W_uv, self.W_o = nn.Linear(10, e), nn.Linear(10, e), nn.Linear(e, e)

    def forward(self, x):
        latent = self.W_dkv(x)
        made = self.W_q(x), self.W_uk(latent), self.W_uv(latent)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(rearrange(mixed, "b h n d -> b n (h d)"))


class LatentByHead(nn.Module):
    """A layer of its own for each head, behind the narrow one, and a mask from outside."""

    def __init__(self, e, h):
        super().__init__()
        self.W_q, self.W_down_kv, self.W_o = nn.Linear(e, e), nn.Linear(e, 10), nn.Linear(e, e)
        self.W_up_k, self.W_up_v = (
            nn.ModuleList(nn.Linear(10, e // h) for _ in range(h)) for _ in range(2)
        )

    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, -torch.inf)

    def forward(self, x, mask=None):
        latent = self.W_down_kv(x)
        k, v = (torch.stack([m(latent) for m in ms], 1) for ms in (self.W_up_k, self.W_up_v))
        q = rearrange(self.W_q(x), "b n (h d) -> b h n d", h=len(self.W_up_k))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else self.seen(scores, mask)
        return self.W_o(rearrange(scores.softmax(dim=-1) @ v, "b h n d -> b n (h d)"))


PAST = torch.ones(8, 8).tril().bool()
variant("latent-attention", sizes=WIDE, mask=PAST)(LatentByHead)


@variant("latent-queries", sizes=WIDE)
class NarrowQueries(nn.Module):
    """The queries alone come by way of a narrow vector."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.down, self.norm, self.up = nn.Linear(e, 9), nn.LayerNorm(9), nn.Linear(9, e)
        self.kv, self.proj = nn.Linear(e, 2 * e), nn.Linear(e, e)

    def forward(self, x):
        q = rearrange(self.asked(x), "b n (h d) -> b h n d", h=self.h)
        k, v = rearrange(self.kv(x), "b n (k h d) -> k b h n d", k=2, h=self.h)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.proj(rearrange(weights @ v, "b h n d -> b n (h d)"))

    def asked(self, x):
        return self.up(self.norm(self.down(x)))


@variant("latent-queries", sizes=WIDE)
class NarrowQueriesPlain(NarrowQueries):
    def asked(self, x):
        return self.up(self.down(x))


# ------------------------------------------------------------------ turned by rows and by columns


class ByAxes(nn.Module):
    """Half of a head turns by the row, the other half by the column."""

    first, halves = 0, True

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (k h d) -> k b h n d", k=3, h=self.h)
        q, k = self.turn(q), self.turn(k)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(rearrange(mixed, "b h n d -> b n (h d)"))

    def turn(self, t):
        kept, t = t[:, :, : self.first], t[:, :, self.first :]
        half = t.shape[-1] // 2
        rows, columns = torch.arange(16) // 4, torch.arange(16) % 4
        first = turned(t[..., :half], angles_of(rows, half), self.halves)
        second = turned(t[..., half:], angles_of(columns, half), self.halves)
        return torch.cat([kept, torch.cat([first, second], -1)], dim=2)


variant("rotary-axes", sizes=WIDE, size=(2, 16))(ByAxes)


@variant("rotary-axes", sizes=WIDE, size=(2, 17))
class ByAxesWithClass(ByAxes):
    """The class token does not turn; neighbours are turned together."""

    first, halves = 1, False


# ------------------------------------------------------- what is compared beside query and key


class Recurrent(Views):
    """Transformer-XL: u and v, and sines of the distance with a layer of their own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.r_net = nn.Linear(e, e, bias=False)
        self.u, self.v_bias = (nn.Parameter(torch.zeros(h, e // h)) for _ in range(2))

    def coded(self, x):
        n, e = x.shape[1:]
        angles = angles_of(torch.arange(n - 1, -n, -1), e + e % 2).to(x)
        sines = torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :e]
        return rearrange(self.r_net(sines), "m (h d) -> h m d", h=self.h)

    def scale(self, q):
        return q.shape[-1] ** -0.5

    def forward(self, x):
        q, k, v = self.heads(x)
        n = x.shape[1]
        asked = (q + self.u[:, None]) @ k.mT
        placed = (q + self.v_bias[:, None]) @ self.coded(x).mT
        placed = placed.gather(3, (n - 1 - distances(n)).expand(*q.shape[:2], n, n))
        weights = ((asked + placed) * self.scale(q)).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


variant("content-bias", "relative-keys", sizes=WIDE)(Recurrent)


@variant("content-bias", "relative-keys", sizes=WIDE)
class RecurrentTwice(Recurrent):
    """Who makes the places asks for the queries first, to see how many there are."""

    def heads(self, x):
        assert super().heads(x)[0].shape[2] == x.shape[1]
        return super().heads(x)


@variant("content-bias", sizes=WIDE)
class Sought(Views):
    """A learned vector is added to the queries after they are made."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.u = nn.Parameter(torch.zeros(h, 1, e // h))

    def heads(self, x):
        q, k, v = super().heads(x)
        return q + self.u, k, v


class Disentangled(Views):
    """DeBERTa: vectors of distances meet the queries, others of them meet the keys."""

    count = 1

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Parameter(torch.zeros(31, e))
        self.pos_q, self.pos_k = nn.Linear(e, e), nn.Linear(e, e)

    def forward(self, x):
        q, k, v = self.heads(x)
        away = distances(x.shape[1]) + 15
        pos_q, pos_k = (
            rearrange(f(self.places), "m (h d) -> h m d", h=self.h)[:, away]
            for f in (self.pos_q, self.pos_k)
        )
        scores = q @ k.mT + einsum(q, pos_k, "b h i d, h i j d -> b h i j")
        scores = scores + einsum(k, pos_q, "b h j d, h i j d -> b h i j")
        weights = (scores / (self.count * q.shape[-1]) ** 0.5).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


variant("relative-keys", "relative-queries", sizes=WIDE)(Disentangled)


@variant("relative-keys", "relative-queries", sizes=WIDE)
class DisentangledByThree(Disentangled):
    """Three products are added, and their root divides."""

    count = 3


@variant("relative-keys", "relative-queries", sizes=WIDE, ids=("scale-other",))
class DisentangledByFive(Disentangled):
    count = 5


# ----------------------------------------------------------------- what asked, beside what is mixed


class Beside(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj = nn.Linear(2 * e, e)

    def join(self, t):
        return torch.cat([self.kept, super().join(t)], dim=-1)

    def forward(self, x, mask=None):
        self.kept = x
        return super().forward(x, mask)


variant("query-beside", sizes=WIDE)(Beside)


@variant("query-beside", sizes=WIDE)
class Behind(Beside):
    """The other way round, with a residual and a norm around."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def join(self, t):
        return super().join(t).roll(self.kept.shape[-1], dims=-1)

    def forward(self, x, mask=None):
        return self.norm(x + super().forward(x))


# ------------------------------------------------- keys that no token made, and slots that compete


@variant("memory-keys", sizes=WIDE)
class Persistent(Views):
    """Three learned keys and values of each head stand before those of the tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.memory = nn.Parameter(torch.randn(2, h, 3, e // h))

    def forward(self, x):
        q, k, v = self.heads(x)
        k, v = (
            torch.cat([m.expand(len(x), -1, -1, -1), t], dim=2)
            for m, t in zip(self.memory, (k, v), strict=True)
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj(self.join(weights @ v))


@variant("memory-keys", sizes=WIDE)
class NullKey(NarrowQueries):
    """One key and value for all heads, behind the others; the past alone, and the null, is seen."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.q = nn.Linear(e, e)
        self.null = nn.Parameter(torch.randn(2, e // h))
        del self.down, self.norm, self.up

    def asked(self, x):
        return self.q(x)

    def forward(self, x):
        n = x.shape[1]
        q = rearrange(self.asked(x), "b n (h d) -> b h n d", h=self.h)
        kv = rearrange(self.kv(x), "b n (k h d) -> k b h n d", k=2, h=self.h)
        k, v = (
            torch.cat([t, null.expand(*t.shape[:2], 1, -1)], dim=2)
            for null, t in zip(self.null, kv, strict=True)
        )
        seen = torch.cat([torch.ones(n, n).tril(), torch.ones(n, 1)], dim=1).bool()
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.proj(rearrange(mixed, "b h n d -> b n (h d)"))


class Slots(nn.Module):
    """Slots ask, and compete for the tokens of the context; norms of both sides inside."""

    def __init__(self, e, h):
        super().__init__()
        self.norm_slots, self.norm_input = nn.LayerNorm(e), nn.LayerNorm(e)
        self.to_q, self.to_k, self.to_v = (nn.Linear(e, e, bias=False) for _ in range(3))

    def forward(self, x, context):
        x, context = self.norm_slots(x), self.norm_input(context)
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        return self.mixed(q @ k.mT * x.shape[-1] ** -0.5, v)

    def mixed(self, scores, v):
        attn = scores.softmax(dim=1) + 1e-8
        return (attn / attn.sum(dim=-1, keepdim=True)) @ v


variant("slot-attention", sizes=((24, 1), (16, 1)), context=True)(Slots)


@variant("slot-attention", sizes=((24, 1), (16, 1)), context=True)
class SlotsByEinsum(Slots):
    def mixed(self, scores, v):
        attn = F.softmax(scores, dim=-2)
        attn = attn / attn.sum(-1, keepdim=True)
        return torch.einsum("bij,bjd->bid", attn, v)


# ---------------------------------------------------------------------- nearly one of these


@attention("value-from-key", sizes=WIDE)
class LatentTwice(LatentPlain):
    """Values are made of the latent by the layer of the keys."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.W_uv = self.W_uk


class ScaledApart(nn.Module):
    """Products of latents and of turned numbers are scaled by their own widths, then added."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h
        self.q, self.q_turned = nn.Linear(e, e, bias=False), nn.Linear(e, 4 * h, bias=False)
        self.down, self.k_turned = nn.Linear(e, 12, bias=False), nn.Linear(e, 4, bias=False)
        self.up_k, self.up_v = nn.Linear(12, e, bias=False), nn.Linear(12, e, bias=False)
        self.out = nn.Linear(e, e, bias=False)

    def turn(self, t):
        return turned(t, angles_of(torch.arange(t.shape[-2]), 4), halves=True)

    def forward(self, x):
        latent = self.down(x)
        made = self.q(x), self.up_k(latent), self.up_v(latent), self.q_turned(x)
        q, k, v, q_turned = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        places = self.turn(q_turned) @ self.turn(self.k_turned(x)[:, None]).mT
        scores = q @ k.mT / self.d**0.5 + places / self.places
        return self.out(rearrange(scores.softmax(-1) @ v, "b h n d -> b n (h d)"))

    places = 4**0.5


variant("rotary-halves", "rotary-partial", "latent-attention", sizes=WIDE)(ScaledApart)
