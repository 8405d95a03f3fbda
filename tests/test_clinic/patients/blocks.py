"""Blocks and stacks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from attention_clinic import (
    Report,
    diagnose_block,
)
from patients.attention import Loops, Views, ViewsMerge, ViewsScaledByEmbed, ViewsSoftmaxQuery
from patients.bank import CASES, Entry
from utils.encoder import Encoder, EncoderBlock

# ---------------------------------------------------------------------------------------- blocks

BLOCK_SIZES = ((24, 4), (15, 3), (7, 1))


def block(
    *ids: str, sizes: tuple = BLOCK_SIZES, also: tuple = (), remark: bool = False, **options
) -> Callable:
    """Enter a block or a stack, built with (e, h)."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_block(make(e, h), h, **options)

        CASES.append(Entry(make.__name__, ids, examine, also, sizes, remark))
        return make

    return enter


@block()
class PreNorm(nn.Module):
    """Every part written out, other names."""

    def __init__(self, e, h):
        super().__init__()
        self.ln_1, self.ln_2 = self.norm(e), self.norm(e)
        self.attention = Views(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e + 1), self.bend(), nn.Linear(2 * e + 1, e))

    def norm(self, e):
        return nn.LayerNorm(e, eps=1e-6)

    def bend(self):
        return nn.GELU()

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        x = x + self.ffn(self.ln_2(x))
        return x


@block()
class PostNorm(nn.Module):
    """Two more modules inside, as in the annotated Transformer."""

    def __init__(self, e, h):
        super().__init__()
        self.self_attn = Loops(e, h)
        self.w_1, self.w_2 = nn.Linear(e, e + 5), nn.Linear(e + 5, e)
        self.norms = nn.ModuleList([nn.LayerNorm(e), nn.LayerNorm(e)])

    def feed(self, x):
        return self.w_2(self.w_1(x).relu())

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.feed(x))


def _block_course(e, h):
    return EncoderBlock(e, h, 2 * e)


def _block_course_post(e, h):
    return EncoderBlock(e, h, 2 * e, dropout=0.1, norm_first=False, activation="relu")


def _block_torch(e, h):
    return nn.TransformerEncoderLayer(e, h, 3 * e, batch_first=True, norm_first=True)


def _block_torch_post(e, h):
    return nn.TransformerEncoderLayer(e, h, e + 3, batch_first=True, activation="gelu")


def _block_torch_time_first(e, h):
    return nn.TransformerEncoderLayer(e, h, e + 3)


def _stack_course(e, h):
    return Encoder(3, e, h, 2 * e)


for _make in (
    _block_course,
    _block_course_post,
    _block_torch,
    _block_torch_post,
    _block_torch_time_first,
    _stack_course,
):
    block()(_make)
block(norm_first=False, activation="relu", norm_eps=1e-5)(_block_course_post)


def _layer_vit(e, h):
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTLayer

    return ViTLayer(ViTConfig(hidden_size=e, num_attention_heads=h, intermediate_size=e + 7))


def _layer_bert(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    return BertLayer(BertConfig(hidden_size=e, num_attention_heads=h, intermediate_size=2 * e))


block()(_layer_vit)
block()(_layer_bert)


@block("residual-from-norm")
class AddsNorm(PreNorm):
    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        x = self.ln_2(x)
        return x + self.ffn(x)


@block("residual-from-norm")
class CourseAddsNorm(EncoderBlock):
    def __init__(self, e, h):
        super().__init__(e, h, 2 * e)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return self.mlp(y := self.norm2(x)) + y


@block("residual-missing")
class NoResidual(PreNorm):
    def forward(self, x):
        x = self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("residual-missing")
class PostNormDoubled(PostNorm):
    def forward(self, x):
        x = self.self_attn(x)
        x = self.norms[0](x + x)
        return self.norms[1](x + self.feed(x))


@block("residual-from-input")
class FromInput(PostNorm):
    def forward(self, x):
        y = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.feed(y))


@block("residual-from-input")
class PreFromInput(PreNorm):
    def forward(self, x):
        return x + self.ffn(self.ln_2(x + self.attention(self.ln_1(x))))


block("norm-order", norm_first=False)(PreNorm)
block("norm-order", norm_first=True)(_block_torch_post)
block("norm-eps", norm_eps=1e-5)(PreNorm)
block("norm-eps", norm_eps=1e-12)(_block_torch)
block("activation-other", activation="gelu")(PostNorm)
block("activation-other", activation="relu")(_block_course)
block("gelu-tanh", activation="gelu-tanh")(_block_course)


@block("gelu-tanh", activation="gelu")
class TanhByHand(PostNorm):
    def feed(self, x):
        t = self.w_1(x)
        inner = math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)
        return self.w_2(0.5 * t * (1 + torch.tanh(inner)))


class HandNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class HandNormInside(HandNorm):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.a_2 + self.b_2


@block("norm-bessel")
class BesselOutside(PreNorm):
    def norm(self, e):
        return HandNorm(e)


@block("norm-bessel")
class BesselInside(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([HandNormInside(e), HandNormInside(e)])


@block("norm-bessel", sizes=BLOCK_SIZES[:2])
class EpsOnly(PreNorm):
    """The deviation is that of n values; eps is large enough to show where it stands."""

    class Norm(HandNorm):
        def forward(self, x):
            deviation = x.std(-1, correction=0, keepdim=True)
            return self.a_2 * (x - x.mean(-1, keepdim=True)) / (deviation + self.eps) + self.b_2

    def norm(self, e):
        return self.Norm(e, eps=1e-3)


@block("dropout-eval")
class BlockDropoutEval(PreNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1)


@block("scale-embed", sizes=BLOCK_SIZES[:2])
class BlockScaledByEmbed(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)


@block("merge-no-transpose", "residual-from-norm", sizes=BLOCK_SIZES[:2])
class BlockPair(AddsNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsMerge(e, h)


class ScaledAndTurned(ViewsScaledByEmbed, ViewsSoftmaxQuery):
    pass


@block("scale-embed", "softmax-query", sizes=BLOCK_SIZES[:1])
class PairInside(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ScaledAndTurned(e, h)


@block("scale-embed", "softmax-query", "residual-from-norm", sizes=BLOCK_SIZES[:1])
class PairInsideAddsNorm(AddsNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ScaledAndTurned(e, h)


@block(sizes=BLOCK_SIZES[:2])
class ScaledParts(PreNorm):
    """Two factors that begin small, one for each part."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gamma_1 = nn.Parameter(1e-4 * torch.ones(e))
        self.gamma_2 = nn.Parameter(1e-4 * torch.ones(e))

    def forward(self, x):
        x = x + self.gamma_1 * self.attention(self.ln_1(x))
        return x + self.gamma_2 * self.ffn(self.ln_2(x))


@block("layers-in-forward", sizes=BLOCK_SIZES[:1])
class NormBuiltInForwardOfBlock(PreNorm):
    def forward(self, x):
        return nn.LayerNorm(x.shape[-1]).to(x)(super().forward(x))


@block("layers-shared")
class OneLayerThrice(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.layer = PreNorm(e, h)

    def forward(self, x):
        for _ in range(3):
            x = self.layer(x)
        return x


@block("layers-shared")
def _listed_thrice(e, h):
    return nn.Sequential(*[PostNorm(e, h)] * 3)


@block("layers-same-init")
def _stack_torch(e, h):
    layer = nn.TransformerEncoderLayer(e, h, 2 * e, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@block("layers-same-init")
def _stack_copied(e, h):
    layer = PreNorm(e, h)
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(3)))


@block(call=lambda stack, x: stack(x.transpose(0, 1)).transpose(0, 1), sizes=BLOCK_SIZES[:2])
def _stack_of_places_first(e, h):
    layers = (nn.TransformerEncoderLayer(e, h, 2 * e) for _ in range(2))
    return nn.Sequential(*layers)


@block("layers-same-init", call=lambda stack, x: stack(x.transpose(0, 1)).transpose(0, 1))
def _copies_of_places_first(e, h):
    layer = nn.TransformerEncoderLayer(e, h, 2 * e)
    return nn.Sequential(layer, copy.deepcopy(layer))


@block("stack-last-only")
class LastOnly(Encoder):
    def __init__(self, e, h):
        super().__init__(3, e, h, 2 * e)

    def forward(self, x):
        for layer in self.layers:
            out = layer(x)
        return self.norm(out)


@block("stack-last-only")
class LastOfList(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.blocks = nn.ModuleList(PostNorm(e, h) for _ in range(2))

    def forward(self, src):
        return [block(src) for block in self.blocks][-1]


@block("stack-last-only", sizes=BLOCK_SIZES[:2])
class LastOfDropping(LastOfList):
    """The dropouts of the other layers are lost with all that these layers give."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.blocks = nn.ModuleList(EncoderBlock(e, h, 2 * e, dropout=0.1) for _ in range(2))
