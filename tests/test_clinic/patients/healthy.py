"""Healthy attention in many styles, strangers' own among them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from attention_clinic import (
    Report,
    diagnose,
)
from patients.attention import Views
from patients.bank import CASES, SIZES, Entry, attention
from patients.masks import empty_row, padding, ragged
from utils.attention import MultiHeadAttention, scaled_dot_product_attention

# --------------------------------------------------------------------------------------- healthy


def by_sizes(make: Callable, name: str, sizes: tuple = SIZES, **options) -> None:
    make.__name__ = name
    attention(sizes=sizes, **options)(make)


by_sizes(lambda e, h: MultiHeadAttention(e, h), "course")
by_sizes(lambda e, h: MultiHeadAttention(e, h, dropout=0.2), "course with dropout")
by_sizes(lambda e, h: MultiHeadAttention(e, h), "course, padding", mask=padding)
by_sizes(lambda e, h: MultiHeadAttention(e, h), "course, empty row", mask=empty_row)
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), "torch")
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, dropout=0.1, bias=False), "torch, batch second")
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), "torch, mask", mask=ragged)


@attention()
class EinsumParameters(nn.Module):
    """Bare parameters with an axis for the heads, as in Flax."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(e, h, d)) for _ in range(3))
        self.w_o = nn.Parameter(torch.randn(h, d, e))

    def forward(self, x):
        q, k, v = (einsum(x, w, "b n e, e h d -> b h n d") for w in (self.w_q, self.w_k, self.w_v))
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
        return einsum(scores.softmax(-1), v, self.w_o, "b h i j, b h j d, h d e -> b i e")


@attention()
class MatricesOnTheRight(nn.Module):
    """x @ w with names that say nothing, all biases apart."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.m1, self.m2, self.m3, self.m4 = (nn.Parameter(torch.randn(e, e)) for _ in range(4))

    def forward(self, x):
        q, k, v = (rearrange(x @ m, "b n (h d) -> b h n d", h=self.h) for m in
                   (self.m3, self.m1, self.m4))  # fmt: skip
        return rearrange(scaled_dot_product_attention(q, k, v)[0], "b h n d -> b n (h d)") @ self.m2


@attention()
class InterleavedByHead(nn.Module):
    """(h, 3, d) packed, as in Megatron."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.query_key_value = nn.Linear(e, 3 * e)
        self.dense = nn.Linear(e, e)

    def forward(self, hidden):
        packed = rearrange(self.query_key_value(hidden), "b n (h k d) -> k b h n d", h=self.h, k=3)
        mixed = F.scaled_dot_product_attention(*packed)
        return self.dense(rearrange(mixed, "b h n d -> b n (h d)"))


@attention()
class InterleavedByFeature(nn.Module):
    """(h, d, 3) and (d, h) packed: odd, and right."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.lin, self.out = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x):
        q, k, v = rearrange(self.lin(x), "b n (h d k) -> k b h n d", h=self.h, k=3)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(rearrange(mixed, "b h n d -> b n (d h)"))


@attention()
class KeysAndValuesPacked(nn.Module):
    """to_q and to_kv, a norm of its own, a Sequential at the end."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (
            rearrange(t, "b n (h d) -> b h n d", h=self.heads)
            for t in (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        )
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return self.to_out(rearrange(dots.softmax(dim=-1) @ v, "b h n d -> b n (h d)"))


class OneHead(nn.Module):
    def __init__(self, e, d):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(e, d, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)))

    def forward(self, x):
        n = x.shape[1]
        q, k = self.query(x), self.key(x)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ self.value(x)


@attention()
@attention(causal=True)
class ModulesByHead(nn.Module):
    """A module for each head, as in lectures."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(e, e // h) for _ in range(h)])
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class OneHeadScaledByEmbed(OneHead):
    def forward(self, x):
        _, n, c = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * c**-0.5
        wei = wei.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@attention("scale-embed")
class ModulesByHeadScaledByEmbed(ModulesByHead):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.heads = nn.ModuleList([OneHeadScaledByEmbed(e, e // h) for _ in range(h)])


@attention()
class FourClones(nn.Module):
    """self.linears, as in the annotated Transformer."""

    def __init__(self, d_model, h):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=0.1)

    def forward(self, query, key, value):
        b = query.size(0)
        query, key, value = (
            lin(t).view(b, -1, self.h, self.d_k).transpose(1, 2)
            for lin, t in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        mixed = torch.matmul(self.dropout(scores.softmax(dim=-1)), value)
        return self.linears[-1](mixed.transpose(1, 2).contiguous().view(b, -1, self.h * self.d_k))


@attention()
class PointwiseConvolutions(nn.Module):
    """1-wide convolutions for the projections."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Conv1d(e, 3 * e, 1), nn.Conv1d(e, e, 1)

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x.mT), "b (k h d) n -> k b h n d", k=3, h=self.h)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.o(rearrange(mixed, "b h n d -> b (h d) n")).mT


@attention()
class WiderInside(nn.Module):
    """Heads that together are wider than a token."""

    def __init__(self, e, h):
        super().__init__()
        self.h, inner = h, h * (e // h + 2)
        self.to_qkv, self.to_out = nn.Linear(e, 3 * inner, bias=False), nn.Linear(inner, e)

    def forward(self, x):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h)
                   for t in self.to_qkv(x).chunk(3, dim=-1))  # fmt: skip
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@attention()
class QueriesAndKeysPacked(nn.Module):
    """TNT, EfficientFormer: qk together, v apart."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.qk, self.v, self.proj = (
            nn.Linear(e, 2 * e, bias=False),
            nn.Linear(e, e),
            nn.Linear(e, e),
        )

    def forward(self, x):
        q, k = rearrange(self.qk(x), "b n (k h d) -> k b h n d", k=2, h=self.h)
        v = rearrange(self.v(x), "b n (h d) -> b h n d", h=self.h)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(rearrange(mixed, "b h n d -> b n (h d)"))


@attention()
class WiderValues(nn.Module):
    """Values two numbers wider than keys: d_k and d_v, as in many a first Transformer."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d_k, self.d_v = h, e // h, e // h + 2
        self.w_qs, self.w_ks = (nn.Linear(e, h * self.d_k, bias=False) for _ in range(2))
        self.w_vs, self.fc = nn.Linear(e, h * self.d_v, bias=False), nn.Linear(h * self.d_v, e)

    def factor(self):
        return self.d_k**-0.5

    def joined(self, mixed):
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, q, k, v):
        b = len(q)
        q, k, v = (
            layer(t).view(b, t.shape[1], self.h, width).transpose(1, 2)
            for layer, t, width in (
                (self.w_qs, q, self.d_k),
                (self.w_ks, k, self.d_k),
                (self.w_vs, v, self.d_v),
            )
        )
        weights = (q @ k.transpose(2, 3) * self.factor()).softmax(-1)
        return self.fc(self.joined(weights @ v)), weights


attention(context=True, sizes=SIZES[:2])(type("WiderValuesCrossed", (WiderValues,), {}))


@attention("scale-other", sizes=SIZES[:2])
class WiderValuesScaledByThem(WiderValues):
    """Divided by the root of the values' width."""

    def factor(self):
        return self.d_v**-0.5


@attention("merge-no-transpose", sizes=SIZES[:2])
class WiderValuesMerged(WiderValues):
    def joined(self, mixed):
        return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


class HeadAsWideAsItsMask(nn.Module):
    """One narrow head: its mask has as many rows as that has numbers, and is no layer."""

    def __init__(self, e, h):
        super().__init__()
        d = e // 2
        self.key, self.query, self.value = (nn.Linear(e, d, bias=False) for _ in range(3))
        self.register_buffer("tril", self.triangle(d))

    def triangle(self, n: int) -> Tensor:
        return torch.tril(torch.ones(n, n))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(self.tril[:n, :n] != 1, -torch.inf).softmax(dim=-1) @ v


attention(sizes=((24, 1), (64, 1)))(HeadAsWideAsItsMask)


@attention(sizes=((24, 1),))
class HeadAsWideAsItsInfinities(HeadAsWideAsItsMask):
    def triangle(self, n):
        return torch.full((n, n), -torch.inf).triu(1) + torch.ones(n, n)


@attention()
class WeightsAndBiasesByHead(nn.Module):
    """TransformerLens: an axis for the heads everywhere, (h, d) biases too."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(h, e, d)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(h, d)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.randn(h, d, e)), nn.Parameter(torch.zeros(e))

    def forward(self, x):
        q, k, v = (
            einsum(x, w, "b n e, h e d -> b n h d") + bias
            for w, bias in ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
        )
        scores = einsum(q, k, "b i h d, b j h d -> b h i j") * q.shape[-1] ** -0.5
        mixed = einsum(scores.softmax(-1), v, "b h i j, b j h d -> b i h d")
        return einsum(mixed, self.W_O, "b i h d, h d e -> b i e") + self.b_O


@attention()
class BiasesNamedInShort(nn.Module):
    """Wq (h, d, e) and bq (h, d), as papers write them."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        for name in "qkv":
            self.register_parameter(f"W{name}", nn.Parameter(torch.randn(h, d, e) * e**-0.5))
            self.register_parameter(f"b{name}", nn.Parameter(torch.zeros(h, d)))
        self.join = nn.Linear(e, e)

    def heads(self, x, weight, bias):
        return torch.einsum("bne,hde->bhnd", x, weight) + bias.unsqueeze(1)

    def forward(self, x):
        q = self.heads(x, self.Wq, self.bq)
        k = self.heads(x, self.Wk, self.bk)
        v = self.heads(x, self.Wv, self.bv)
        return self.join(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@attention("param-plain-tensor", sizes=SIZES[:2])
class MatricesInADictionary(nn.Module):
    """Nothing registers them, and they stay what they were at first."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.last = h, nn.Linear(e, e)
        self.of = {name: self.made(e) for name in ("query", "key", "value")}

    def made(self, e):
        return torch.randn(e, e) * e**-0.5

    def forward(self, x):
        q, k, v = (
            (x @ matrix.to(x)).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for matrix in self.of.values()
        )
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@attention("param-plain-tensor", sizes=SIZES[:2])
class MatricesThatWouldLearn(MatricesInADictionary):
    """They ask for gradients, and no optimizer sees them."""

    def made(self, e):
        return super().made(e).requires_grad_()


class BiasesBesideLayers(nn.Module):
    """Layers without biases; queries, keys and values get theirs head by head."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.query, self.key, self.value = (nn.Linear(e, e, bias=False) for _ in range(3))
        self.query_bias, self.key_bias, self.value_bias = (
            nn.Parameter(torch.zeros(h, e // h)) for _ in range(3)
        )
        self.out = nn.Linear(e, e)

    def factor(self, q):
        return q.shape[-1] ** -0.5

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = (
            (layer(x).view(b, n, self.h, -1) + bias).transpose(1, 2)
            for layer, bias in (
                (self.query, self.query_bias),
                (self.key, self.key_bias),
                (self.value, self.value_bias),
            )
        )
        weights = (q @ k.mT * self.factor(q)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, e))


attention()(BiasesBesideLayers)


@attention("scale-missing", sizes=((24, 4),))
class BiasesBesideLayersUnscaled(BiasesBesideLayers):
    def factor(self, q):
        return 1.0


@attention(sizes=SIZES[:3])
class WeightsWithAnAxisOfOne(nn.Module):
    """(h, 1, e, d), so that a batch fits beside."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(h, 1, e, d)) for _ in range(3))
        self.out = nn.Linear(e, e)

    def forward(self, x):
        q, k, v = (x @ w for w in (self.wq, self.wk, self.wv))  # (h, b, n, d)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out(rearrange(weights @ v, "h b n d -> b n (h d)"))


@attention()
class SeveralTensors(Views):
    """Returns weights too; scales both sides by the fourth root."""

    def forward(self, x, return_weights=True):
        q, k, v = self.heads(x)
        root = q.shape[-1] ** -0.25
        weights = ((q * root) @ (k * root).mT).softmax(-1)
        return self.proj(self.join(weights @ v)), weights


@attention()
class SingleSoftmax(Views):
    """Casts to single precision for the softmax."""

    def weigh(self, scores, mask):
        return super().weigh(scores.float(), mask).to(scores.dtype)


def function_case(name: str, ids: tuple[str, ...], scale: Callable, **weights_of) -> None:
    """Enter a plain function with its weights handed over."""

    def examine(seed: int, e: int, h: int) -> Report:
        generator = torch.Generator().manual_seed(seed)
        wq, wk, wv, wo = (
            torch.randn(e, e, generator=generator, dtype=torch.float64) / e**0.5 for _ in range(4)
        )
        bias = torch.randn(e, generator=generator, dtype=torch.float64)

        def attend(x: Tensor) -> Tensor:
            q, k, v = (rearrange(x @ w, "b n (h d) -> b h n d", h=h) for w in (wq, wk, wv))
            mixed = (q @ k.mT * scale(e, h)).softmax(-1) @ v
            return rearrange(mixed, "b h n d -> b n (h d)") @ wo + bias

        given = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bo": bias}
        return diagnose(attend, h, weights=given)

    CASES.append(Entry(name, ids, examine))


function_case("function", (), lambda e, h: (e // h) ** -0.5)
function_case("function scaled by embed", ("scale-embed",), lambda e, h: e**-0.5)


def _transformers(name: str, make: Callable, sizes: tuple = SIZES, **options) -> None:
    by_sizes(make, name, sizes, **options)


def _vit(e, h):
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTAttention

    config = ViTConfig(hidden_size=e, num_attention_heads=h, attn_implementation="eager")
    return ViTAttention(config)


def _bert(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    config = BertConfig(hidden_size=e, num_attention_heads=h, attn_implementation="eager")
    return BertAttention(config)


def _gpt2(e, h):
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention(
        GPT2Config(n_embd=e, n_head=h, n_positions=32, attn_implementation="sdpa"), layer_idx=0
    )


_transformers("HuggingFace ViT", _vit)
_transformers("HuggingFace BERT", _bert)
_transformers("HuggingFace GPT-2", _gpt2)


class OwnConvolution(nn.Module):
    """A convolution of one pixel that nobody derived from PyTorch's."""

    def __init__(self, e, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, e, 1) / e**0.5)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return F.conv1d(x.mT, self.weight, self.bias).mT


@attention()
class ByConvolutionsOfItsOwn(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.qkv, self.proj = OwnConvolution(e, 3 * e), OwnConvolution(e, e)


@attention("scale-embed")
class ScaledByEmbedByConvolutions(ByConvolutionsOfItsOwn):
    def factor(self, e):
        return e**-0.5
