"""Correct attention in many styles: the families of the bank, and other people's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from einops import einsum
from torch import Tensor, nn

from patients.bank import SIZES, attention
from utils.attention import MultiHeadAttention
from utils.masking import padding_mask

# ------------------------------------------------------------------- two families, all healthy


@attention()
class Views(nn.Module):
    """Packed projections, all heads at once."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(e, 3 * e)
        self.proj = nn.Linear(e, e)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        b, n, e = x.shape
        packed = self.qkv(x).reshape(b, n, 3, self.h, e // self.h)
        return packed.permute(2, 0, 3, 1, 4).unbind(0)

    def factor(self, e: int) -> float:
        return (e // self.h) ** -0.5

    def hide(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, float("-inf"))

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores if mask is None else self.hide(scores, mask)).softmax(dim=-1)

    def join(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads(x)
        weights = self.weigh(q @ k.transpose(-2, -1) * self.factor(x.shape[-1]), mask)
        return self.proj(self.join(weights @ v))


@attention()
class Loops(nn.Module):
    """Four layers with other names, head after head; every step is a method."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.num_heads, self.width = h, e // h
        layers = (nn.Linear(e, e, bias=name == "o") for name in "qkvo")
        self.toqueries, self.tokeys, self.tovalues, self.unifyheads = layers

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.toqueries(x), self.tokeys(x), self.tovalues(x)

    def cut(self, t: Tensor) -> list[Tensor]:
        return list(t.split(self.width, dim=2))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bid,bjd->bij", q, k) / math.sqrt(self.width)

    def block(self, scores: Tensor, allow: Tensor) -> Tensor:
        return torch.where(allow, scores, -math.inf)  # (b, i, j)

    def normalize(self, all_scores: list[Tensor]) -> list[Tensor]:
        return [F.softmax(scores, dim=2) for scores in all_scores]

    def weigh(self, all_scores: list[Tensor], allow: Tensor | None) -> list[Tensor]:
        if allow is not None:
            all_scores = [self.block(scores, allow[:, 0]) for scores in all_scores]
        return self.normalize(all_scores)

    def concatenate(self, mixed: list[Tensor]) -> Tensor:
        return torch.cat(mixed, dim=2)

    def finish(self, joined: Tensor, x: Tensor) -> Tensor:
        return self.unifyheads(joined)

    def forward(self, tokens: Tensor, allow_mask: Tensor | None = None) -> Tensor:
        queries, keys, values = (self.cut(t) for t in self.projected(tokens))
        scores = [self.score(q, k) for q, k in zip(queries, keys, strict=True)]
        weights = self.weigh(scores, allow_mask)
        mixed = [torch.bmm(w, v) for w, v in zip(weights, values, strict=True)]
        return self.finish(self.concatenate(mixed), tokens)


# ---------------------------------------------------------------------- classes of other libraries


def named(name: str, make: Callable[[int, int], nn.Module], **options: Any) -> None:
    """Add a correct module that a function builds."""
    make.__name__ = name
    attention(**{"sizes": SIZES[:2], **options})(make)


def _transformers(kind: str, sizes: tuple[str, str], *more: int, **options: Any) -> Callable:
    """Return a function that builds an attention of transformers; sizes are names of e and h."""

    def make(e: int, h: int) -> nn.Module:
        given = dict(zip(sizes, (e, h), strict=True)) | options
        config = getattr(transformers, f"{kind}Config")(**given)
        config._attn_implementation = "eager"
        model = kind.lower()
        code = import_module(f"transformers.models.{model}.modeling_{model}")
        return getattr(code, f"{kind}Attention")(config, *more)

    return make


def _padding(seed: int) -> Tensor:
    return padding_mask(torch.tensor([2, 5]), 5)


named("course", lambda e, h: MultiHeadAttention(e, h), sizes=SIZES)
named("course with dropout", lambda e, h: MultiHeadAttention(e, h, dropout=0.2))
named("course with a mask", lambda e, h: MultiHeadAttention(e, h), mask=_padding)
named("torch", lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), sizes=SIZES)
named("torch, tokens first", lambda e, h: nn.MultiheadAttention(e, h, dropout=0.1, bias=False))
named("torch, mask", lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), mask=_padding)
names = ("hidden_size", "num_attention_heads")
named("transformers, GPT-2", _transformers("GPT2", ("n_embd", "n_head"), 0, n_positions=32))
named("transformers, BERT", _transformers("Bert", names))
named("transformers, ViT", _transformers("ViT", names))
llama = _transformers("Llama", names, 0, num_key_value_heads=2)
rotary = ("grouped-queries", "rotary-halves")
named("transformers, Llama", llama, sizes=SIZES[:1], variants=rotary)

# ------------------------------------------------------------------------------- other styles


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
