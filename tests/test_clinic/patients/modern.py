"""Attention of today's decoders: rotary positions, grouped queries, norms of queries and keys.

Three families, each written differently on purpose: `Llama` makes its own angles and turns halves,
`Meta` is handed complex numbers and turns neighbours, `Packed` has one layer for all and writes
head by head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from patients.bank import attention

MODERN_SIZES = ((24, 4), (64, 8), (36, 6), (8, 1))


def shared(h: int) -> int:
    """Return a number of heads of keys and values: about half as many."""
    return {4: 2, 8: 4, 6: 2}.get(h, h)


def modern(*ids: str, sizes: tuple = MODERN_SIZES, **options):
    """Enter an attention of a modern decoder; what is sick is searched long, in one size."""
    return attention(*ids, sizes=sizes[:1] if ids else sizes, **options)


class Norm(nn.Module):
    """A root mean square, written out."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

    def forward(self, t: Tensor) -> Tensor:
        return self.weight * t * (t.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) ** -0.5


class RMSNorm(Norm):
    pass


# ------------------------------------------------------------------- three families, all healthy


@modern()
class Llama(nn.Module):
    """Four layers, angles of its own, halves turned, keys and values repeated."""

    normed = False

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h, self.g, self.d = h, shared(h), e // h
        self.q_proj = nn.Linear(e, h * self.d, bias=False)
        self.k_proj = nn.Linear(e, self.g * self.d, bias=False)
        self.v_proj = nn.Linear(e, self.g * self.d, bias=False)
        self.o_proj = nn.Linear(h * self.d, e, bias=False)
        if self.normed:
            self.q_norm, self.k_norm = self.norm(h), self.norm(self.g)

    def norm(self, heads: int) -> nn.Module:
        return RMSNorm(self.d)

    def normalised(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (self.q_norm(q), self.k_norm(k), v) if self.normed else (q, k, v)

    def frequencies(self, x: Tensor) -> Tensor:
        return 10_000.0 ** -(torch.arange(0, self.d, 2).to(x) / self.d)

    def angles(self, x: Tensor, n: int, start: int = 0) -> Tensor:
        angles = torch.outer(torch.arange(start, start + n).to(x), self.frequencies(x))
        return torch.cat([angles, angles], dim=-1)

    def rotate_half(self, t: Tensor) -> Tensor:
        first, second = t.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    def turn(self, t: Tensor, angles: Tensor) -> Tensor:
        return t * angles.cos() + self.rotate_half(t) * angles.sin()

    def rotated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angles = self.angles(q, q.shape[2])
        return self.turn(q, angles), self.turn(k, angles), v

    def prepared(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.rotated(*self.normalised(q, k, v))

    def repeated(self, t: Tensor) -> Tensor:
        return t.repeat_interleave(self.h // self.g, dim=1)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, -1, self.d).transpose(1, 2) for t in self.project(x))
        q, k, v = self.prepared(q, k, v)
        k, v = self.repeated(k), self.repeated(v)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, n, -1))


@modern()
class Meta(nn.Module):
    """Other names, complex numbers from outside, heads last, no mask."""

    normed = False

    def __init__(self, e: int, h: int):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = h, shared(h), e // h
        self.wq = nn.Linear(e, e, bias=False)
        self.wk = nn.Linear(e, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(e, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(e, e, bias=False)
        if self.normed:
            self.norm_q, self.norm_k = self.norm(h), self.norm(self.n_kv_heads)

    def norm(self, heads: int) -> nn.Module:
        return nn.RMSNorm(self.head_dim, eps=1e-5)

    def turn(self, t: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)

    def prepared(self, xq, xk, xv, turns):
        if self.normed:
            xq, xk = self.norm_q(xq), self.norm_k(xk)
        return self.turn(xq, turns), self.turn(xk, turns), xv

    def repeat_kv(self, t: Tensor) -> Tensor:
        times = self.n_heads // self.n_kv_heads
        b, n, g, d = t.shape
        return t[:, :, :, None].expand(b, n, g, times, d).reshape(b, n, g * times, d)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        xq, xk, xv = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        xq, xk, xv = self.prepared(xq, xk, xv, freqs_cis)
        xk, xv = self.repeat_kv(xk), self.repeat_kv(xv)
        scores = torch.einsum("bihd,bjhd->bhij", xq, xk) / math.sqrt(self.head_dim)
        return self.wo(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), xv).flatten(2))


@modern()
class Packed(nn.Module):
    """One layer in groups (queries, key, value), head by head, neighbours turned one by one."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h, self.g, self.d = h, shared(h), e // h
        self.rope_base = 500.0
        self.attn = nn.Linear(e, (h + 2 * self.g) * self.d)
        self.proj = nn.Linear(e, e)

    def place(self, at: int, head: int, which: str) -> float:
        return at

    def angle(self, pair: int) -> float:
        return self.rope_base ** (-2 * pair / self.d)

    def turn(self, t: Tensor, head: int, which: str) -> Tensor:
        made = t.clone()
        for at in range(t.shape[1]):
            for pair in range(self.d // 2):
                angle = self.place(at, head, which) * self.angle(pair)
                first, second = t[:, at, 2 * pair], t[:, at, 2 * pair + 1]
                made[:, at, 2 * pair] = math.cos(angle) * first - math.sin(angle) * second
                made[:, at, 2 * pair + 1] = math.sin(angle) * first + math.cos(angle) * second
        return made

    def key_of(self, head: int) -> int:
        return head // (self.h // self.g)

    def forward(self, x: Tensor) -> Tensor:
        groups = rearrange(self.attn(x), "b n (g s d) -> g s b n d", g=self.g, d=self.d)
        queries = rearrange(groups[:, :-2], "g s b n d -> (g s) b n d")
        mixed = []
        for head, q in enumerate(queries):
            k, v = groups[self.key_of(head), -2:]
            q, k = self.turn(q, head, "q"), self.turn(k, self.key_of(head), "k")
            mixed.append((q @ k.mT * self.d**-0.5).softmax(-1) @ v)
        return self.proj(torch.cat(mixed, dim=-1))


@modern()
class LlamaNormed(Llama):
    normed = True


@modern()
class MetaNormed(Meta):
    normed = True


@modern()
class LlamaFlatNorm(Llama):
    """OLMo 2: one norm over all heads, before the split."""

    normed = True

    def norm(self, heads):
        return Norm(heads * self.d)

    def normalised(self, q, k, v):
        def flat(norm, t):
            b, h, n, d = t.shape
            wide = norm(t.transpose(1, 2).reshape(b, n, h * d))
            return wide.reshape(b, n, h, d).transpose(1, 2)

        return flat(self.q_norm, q), flat(self.k_norm, k), v


@modern()
class LlamaPlusOne(LlamaNormed):
    """Gemma 3: the weight starts at 0."""

    def norm(self, heads):
        class PlusOne(Norm):
            def forward(self, t):
                mean_square = t.pow(2).mean(-1, keepdim=True)
                return (1 + self.weight) * t * torch.rsqrt(mean_square + self.variance_epsilon)

        return PlusOne(self.d)


@modern()
class LlamaNormAfter(LlamaNormed):
    """Hunyuan: turned first."""

    def prepared(self, q, k, v):
        return self.normalised(*self.rotated(q, k, v))


@modern(sizes=((24, 4), (64, 8), (36, 6)))
class LlamaPartial(Llama):
    """GPT-J, Phi: the first numbers of a head only."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rotary_dim = self.d // 2 if self.d % 4 == 0 else self.d - 2

    def frequencies(self, x):
        return 10_000.0 ** -(torch.arange(0, self.rotary_dim, 2).to(x) / self.rotary_dim)

    def turn(self, t, angles):
        first, rest = t[..., : self.rotary_dim], t[..., self.rotary_dim :]
        return torch.cat([super().turn(first, angles), rest], dim=-1)


@modern()
class LlamaTables(Llama):
    """Angles in single precision in a buffer, made long before."""

    def __init__(self, e, h):
        super().__init__(e, h)
        inv_freq = 1.0 / 1_000_000 ** (torch.arange(0, self.d, 2).float() / self.d)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def frequencies(self, x):
        return self.inv_freq.to(x)


@modern()
class LlamaWithoutPlaces(LlamaTables):
    """Turns only when it is given the places."""

    def forward(self, x, token_positions=None):
        if token_positions is None:
            self.prepared = lambda q, k, v: (q, k, v)
        return super().forward(x)


@modern()
class LlamaBackwards(Llama):
    """nanochat: the sine has the other sign."""

    def rotate_half(self, t):
        return -super().rotate_half(t)


@modern()
class MetaOneHead(Meta):
    """Multi-query: one head of keys and values for all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.n_kv_heads = 1
        self.wk, self.wv = (nn.Linear(e, self.head_dim, bias=False) for _ in range(2))


# ---------------------------------------------------------------------------------------- rotary


@modern("rotary-convention", like="gpt-j")
class LlamaForGptJ(Llama):
    pass


@modern("rotary-convention", like="llama")
class MetaForLlama(Meta):
    pass


@modern("rotary-convention", like="qwen3")
class LlamaBackwardsForQwen(LlamaBackwards, LlamaNormed):
    pass


@modern("rotary-mixed", sizes=((24, 4), (64, 8), (36, 6), (8, 1)))
class LlamaMixed(Llama):
    def angles(self, x, n, start=0):
        angles = torch.outer(torch.arange(n).to(x), self.frequencies(x))
        return angles.repeat_interleave(2, dim=-1)


@modern("rotary-mixed")
class LlamaMixedPairs(Llama):
    def rotate_half(self, t):
        return torch.stack([-t[..., 1::2], t[..., 0::2]], dim=-1).flatten(-2)


@modern("rotary-across")
class LlamaFirstTwice(Llama):
    def rotate_half(self, t):
        first, _ = t.chunk(2, dim=-1)
        return torch.cat([-first, first], dim=-1)


@modern("rotary-across")
class LlamaWithoutMinus(Llama):
    def rotate_half(self, t):
        first, second = t.chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)


@modern("rotary-frequencies")
class LlamaByNumber(Llama):
    """No power of anything: 1, 1/2, 1/3, ..."""

    def frequencies(self, x):
        return 1 / (1 + torch.arange(self.d // 2).to(x))


@modern(sizes=((24, 4),))
class LlamaOfUnsaidBase(Llama):
    def frequencies(self, x):
        return 777.0 ** -(torch.arange(0, self.d, 2).to(x) / self.d)


@modern("rotary-frequencies")
class LlamaHalfExponent(Llama):
    rope_theta = 10_000.0

    def frequencies(self, x):
        return self.rope_theta ** -(torch.arange(self.d // 2).to(x) / self.d)


@modern("rotary-frequencies")
class LlamaReversed(Llama):
    def frequencies(self, x):
        return super().frequencies(x).flip(0)


@modern("rotary-frequencies")
class PackedCountedFromMinusOne(Packed):
    def angle(self, pair):
        return self.rope_base ** (-2 * (pair - 1) / self.d)


@modern("rotary-frequencies", sizes=((24, 4), (64, 8), (36, 6)))
class PackedByEmbed(Packed):
    def angle(self, pair):
        return self.rope_base ** (-2 * pair / (self.h * self.d))


@modern("rotary-values")
class LlamaValues(Llama):
    def rotated(self, q, k, v):
        q, k, v = super().rotated(q, k, v)
        return q, k, self.turn(v, self.angles(v, v.shape[2]))


@modern("rotary-values")
class MetaValues(Meta):
    def prepared(self, xq, xk, xv, turns):
        xq, xk, xv = super().prepared(xq, xk, xv, turns)
        return xq, xk, self.turn(xv, turns)


@modern("rotary-offset")
class LlamaOffset(Llama):
    def rotated(self, q, k, v):
        n = q.shape[2]
        return self.turn(q, self.angles(q, n, 1)), self.turn(k, self.angles(k, n)), v


@modern("rotary-offset")
class PackedOffset(Packed):
    def place(self, at, head, which):
        return at + 1 if which == "k" else at


@modern("rotary-before-split", sizes=((24, 4), (64, 8), (36, 6)))
class LlamaBeforeSplit(Llama):
    def project(self, x):
        q, k, v = super().project(x)
        return self.early(q), self.early(k), v

    def early(self, t):
        width = t.shape[-1]
        steps = 10_000.0 ** -(torch.arange(0, width, 2).to(t) / width)
        angles = torch.outer(torch.arange(t.shape[1]).to(t), steps)
        return self.turn(t, torch.cat([angles, angles], dim=-1))

    def rotated(self, q, k, v):
        return q, k, v


@modern("rotary-before-split", sizes=((24, 4), (64, 8), (36, 6)))
class PackedBeforeSplit(Packed):
    """Neighbours, and angles that go on from head to head."""

    def turn(self, t, head, which):
        heads = self.h if which == "q" else self.g
        base = self.rope_base
        made = t.clone()
        for pair in range(self.d // 2):
            angle = torch.arange(t.shape[1]).to(t)
            angle = angle * base ** (-2 * (head * self.d // 2 + pair) / (heads * self.d))
            first, second = t[..., 2 * pair], t[..., 2 * pair + 1]
            made[..., 2 * pair] = angle.cos() * first - angle.sin() * second
            made[..., 2 * pair + 1] = angle.sin() * first + angle.cos() * second
        return made


@modern("rotary-no-effect")
class LlamaAlongHeads(LlamaTables):
    """The axis of the heads is taken for that of the tokens."""

    def rotated(self, q, k, v):
        return *(self.turn(t.mT.mT, self.angles(t, t.shape[1])[:, None]) for t in (q, k)), v


@modern("rotary-no-effect")
class MetaUnused(Meta):
    """What the turn returns is thrown away."""

    def prepared(self, xq, xk, xv, turns):
        super().prepared(xq, xk, xv, turns)
        return xq, xk, xv


# ----------------------------------------------------------------------------------------- cache


class Held:
    """Keys and values of earlier tokens."""

    def __init__(self) -> None:
        self.pair: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        return 0 if self.pair is None else self.pair[0].shape[2]

    def extend(self, *pair: Tensor) -> tuple[Tensor, Tensor]:
        held = self.pair or tuple(t[:, :, :0] for t in pair)
        self.pair = tuple(torch.cat(both, dim=2) for both in zip(held, pair, strict=True))
        return self.pair


@modern(cache=lambda seed: Held)
class LlamaCached(Llama):
    """Turned before they are held."""

    def start(self, cache) -> int:
        return cache.length

    def forward(self, x, cache=None):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, -1, self.d).transpose(1, 2) for t in self.project(x))
        angles = self.angles(q, n, self.start(cache))
        k, v = cache.extend(self.turn(k, angles), v)
        mixed = F.scaled_dot_product_attention(
            self.turn(q, angles), self.repeated(k), self.repeated(v)
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(b, n, -1))


@modern(cache=lambda seed: Held)
class LlamaTurnsAll(LlamaCached):
    """Held as they are, and turned together."""

    def forward(self, x, past_key_values):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, -1, self.d).transpose(1, 2) for t in self.project(x))
        start = self.start(past_key_values)
        k, v = past_key_values.extend(k, v)
        j = k.shape[2]
        q, k = self.turn(q, self.angles(q, n, start)), self.turn(k, self.angles(k, j))
        seen = torch.ones(n, j, dtype=torch.bool).tril(j - n)
        scores = (q @ self.repeated(k).mT * self.d**-0.5).masked_fill(~seen, -math.inf)
        mixed = scores.softmax(-1) @ self.repeated(v)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, n, -1))


@modern("cache-position", cache=lambda seed: Held)
class LlamaStartsAnew(LlamaCached):
    def start(self, cache):
        return 0


@modern("cache-position", cache=lambda seed: Held)
class QueriesStartAnew(LlamaTurnsAll):
    def start(self, cache):
        return 0


# ---------------------------------------------------------------------------------------- groups

SEVERAL = ((24, 4), (64, 8), (36, 6))


@modern("groups-order", sizes=SEVERAL)
class LlamaTiled(Llama):
    def repeated(self, t):
        return t.repeat(1, self.h // self.g, 1, 1)


@modern("groups-order", sizes=SEVERAL)
class PackedModulo(Packed):
    def key_of(self, head):
        return head % self.g


@modern("groups-order", sizes=SEVERAL)
class MetaTiled(Meta):
    def repeat_kv(self, t):
        return repeat(t, "b n g d -> b n (r g) d", r=self.n_heads // self.n_kv_heads)


@modern("groups-first", sizes=((64, 8),))
class PackedFirst(Packed):
    def key_of(self, head):
        return head // self.g


@modern("groups-first", sizes=((64, 8),))
class LlamaFirst(Llama):
    def repeated(self, t):
        heads = torch.arange(self.g).repeat_interleave(self.g)[: self.h]
        return t[:, heads]


# --------------------------------------------------------------------- norms of queries and keys


@modern("qk-norm-missing")
class LlamaForgotNorms(LlamaNormed):
    def normalised(self, q, k, v):
        return q, k, v


@modern("qk-norm-missing")
class MetaForgotKeys(MetaNormed):
    def prepared(self, xq, xk, xv, turns):
        return self.turn(self.norm_q(xq), turns), self.turn(xk, turns), xv


@modern("qk-norm-exchanged")
class LlamaNormsKeysWithQueries(LlamaNormed):
    def normalised(self, q, k, v):
        return self.q_norm(q), self.q_norm(k), v


@modern("qk-norm-exchanged")
class MetaNormsExchanged(MetaNormed):
    def prepared(self, xq, xk, xv, turns):
        return self.turn(self.norm_k(xq), turns), self.turn(self.norm_q(xk), turns), xv


@modern("qk-norm-values")
class LlamaNormsValues(LlamaNormed):
    def normalised(self, q, k, v):
        return q, self.k_norm(k), self.q_norm(v)


@modern("qk-norm-values")
class MetaNormsValues(MetaNormed):
    def prepared(self, xq, xk, xv, turns):
        return self.turn(self.norm_q(xq), turns), self.turn(xk, turns), self.norm_k(xv)


@modern("qk-norm-axis", sizes=SEVERAL)
class LlamaNormsHeads(LlamaNormed):
    """All heads of a token together."""

    def normalised(self, q, k, v):
        def over(norm, t):
            square = t.pow(2).mean((1, 3), keepdim=True)
            return t * torch.rsqrt(square + norm.variance_epsilon) * norm.weight

        return over(self.q_norm, q), over(self.k_norm, k), v


@modern("qk-norm-axis")
class MetaNormsTokens(MetaNormed):
    """(b, n, h, d), and the mean over axis 1."""

    def prepared(self, xq, xk, xv, turns):
        def over(norm, t):
            return t / (t.square().mean(1, keepdim=True) + norm.eps).sqrt() * norm.weight

        xq, xk = over(self.norm_q, xq), over(self.norm_k, xk)
        return self.turn(xq, turns), self.turn(xk, turns), xv


@modern("qk-norm-axis", like="qwen3", sizes=SEVERAL)
class FlatNormForQwen(LlamaFlatNorm):
    pass


@modern("qk-norm-order", like="qwen3")
class NormAfterForQwen(LlamaNormAfter):
    pass


@modern("qk-norm-order", like="hunyuan")
class NormBeforeForHunyuan(LlamaNormed):
    pass


def _with_norm(base: type, name: str, change) -> type:
    """Return a family whose class RMSNorm is written in another way."""

    class RMSNorm(Norm):
        def forward(self, t):
            return change(t, self.weight, self.variance_epsilon)

    def norm(self, heads):
        return RMSNorm(self.q_proj.in_features // self.h if base is LlamaNormed else self.head_dim)

    return type(name, (base,), {"norm": norm})


def _centred(t, weight, eps):
    return F.layer_norm(t, t.shape[-1:], weight, None, eps)


def _deviation(t, weight, eps):
    return t / (t.var(-1, keepdim=True, correction=0) + eps).sqrt() * weight


def _outside(t, weight, eps):
    return weight * t / (t.norm(dim=-1, keepdim=True) / t.shape[-1] ** 0.5 + eps)


def _inverted(t, weight, eps):
    return t / torch.rsqrt(t.square().mean(-1, keepdim=True) + eps) * weight


def _length(t, weight, eps):
    return t / (t.square().sum(-1, keepdim=True) + eps).sqrt() * weight


for _id, _change in (
    ("rms-mean", _centred),
    ("rms-mean", _deviation),
    ("rms-eps", _outside),
    ("rms-inverted", _inverted),
    ("rms-length", _length),
):
    for _base in (LlamaNormed, MetaNormed):
        modern(_id)(_with_norm(_base, f"{_base.__name__}{_change.__name__}", _change))


@modern("norm-offset", like="gemma3")
class NoOffsetForGemma(LlamaNormed):
    pass


@modern("norm-offset", like="qwen3")
class OffsetForQwen(LlamaPlusOne):
    pass


# ----------------------------------------------------------------------------------------- pairs


@modern("groups-order", "scale-embed", sizes=SEVERAL)
class TiledAndEmbed(LlamaTiled):
    def forward(self, x, mask=None):
        self.q_proj.weight.data /= self.h**0.5
        y = super().forward(x, mask)
        self.q_proj.weight.data *= self.h**0.5
        return y


@modern("softmax-query")
class MetaSoftmaxQuery(Meta):
    def forward(self, x, freqs_cis):
        xq, xk, xv = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        xq, xk, xv = self.prepared(xq, xk, xv, freqs_cis)
        xk, xv = self.repeat_kv(xk), self.repeat_kv(xv)
        scores = torch.einsum("bihd,bjhd->bhij", xq, xk) / math.sqrt(self.head_dim)
        return self.wo(torch.einsum("bhij,bjhd->bihd", scores.softmax(-2), xv).flatten(2))


@modern("groups-order", "softmax-query", sizes=SEVERAL)
class MetaTiledSoftmaxQuery(MetaTiled, MetaSoftmaxQuery):
    pass
