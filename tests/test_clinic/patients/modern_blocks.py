"""Blocks of today's decoders: RMSNorm, gated feed-forward, and the attention of `modern` inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patients.blocks import block
from patients.modern import Llama, LlamaMixed, LlamaNormed, LlamaTiled, Meta, Norm
from utils.modern_decoder import ModernBlock

SIZES = ((24, 4), (36, 6))


def modern_block(*ids: str, sizes: tuple = SIZES, **options):
    """Enter a block of a modern decoder; what is sick is searched long, in one size."""
    return block(*ids, sizes=sizes[:1] if ids else sizes, **options)


class RMSNorm(Norm):
    pass


@modern_block()
class LlamaBlock(nn.Module):
    """Names as transformers has them."""

    attention: type = Llama

    def __init__(self, e: int, h: int):
        super().__init__()
        self.self_attn = self.attention(e, h)
        m = 2 * e + 2
        self.gate_proj = nn.Linear(e, m, bias=False)
        self.up_proj = nn.Linear(e, m, bias=False)
        self.down_proj = nn.Linear(m, e, bias=False)
        self.input_layernorm, self.post_attention_layernorm = self.norm(e), self.norm(e)

    def norm(self, e: int) -> nn.Module:
        return RMSNorm(e)

    def feed(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.feed(self.post_attention_layernorm(x))


@modern_block()
class MetaBlock(nn.Module):
    """Meta's names, its own norm, complex numbers from outside."""

    def __init__(self, e: int, h: int):
        super().__init__()
        m = e + 6
        self.attention = Meta(e, h)
        self.w1, self.w3 = nn.Linear(e, m, bias=False), nn.Linear(e, m, bias=False)
        self.w2 = nn.Linear(m, e, bias=False)
        self.attention_norm, self.ffn_norm = self.norm(e), self.norm(e)

    def norm(self, e: int) -> nn.Module:
        return nn.RMSNorm(e, eps=1e-5)

    def bend(self, gate: Tensor, value: Tensor) -> Tensor:
        return gate * gate.sigmoid() * value

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        read = self.ffn_norm(h)
        return h + self.w2(self.bend(self.w1(read), self.w3(read)))


@modern_block()
class FusedBlock(nn.Module):
    """One layer for gate and value, as in Phi-3 and ModernBERT; attention without positions."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)
        self.gate_up_proj = nn.Linear(e, 2 * (e + 2))
        self.down_proj = nn.Linear(e + 2, e)
        self.norm1, self.norm2 = nn.RMSNorm(e), nn.RMSNorm(e)

    def bend(self, t: Tensor) -> Tensor:
        gate, value = t.chunk(2, dim=-1)
        return F.gelu(gate) * value

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down_proj(self.bend(self.gate_up_proj(self.norm2(x))))


@modern_block()
class GegluBlock(FusedBlock):
    """diffusers: the second half is the gate."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.mlp_in, self.mlp_out = self.gate_up_proj, self.down_proj
        del self.gate_up_proj, self.down_proj

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        value, gate = self.mlp_in(self.norm2(x)).chunk(2, dim=-1)
        return x + self.mlp_out(value * F.gelu(gate))


@modern_block()
class PlusOneBlock(LlamaBlock):
    """Gemma."""

    def norm(self, e):
        class PlusOne(Norm):
            def forward(self, t):
                mean_square = t.pow(2).mean(-1, keepdim=True)
                return (1 + self.weight) * t * torch.rsqrt(mean_square + self.variance_epsilon)

        return PlusOne(e)


@modern_block()
class NormedQueriesBlock(LlamaBlock):
    attention = LlamaNormed


@modern_block()
class StackOfModern(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.layers = nn.ModuleList(LlamaBlock(e, h) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _course(e, h):
    return ModernBlock(e, h, h // 2, 2 * e)


def _llama_layer(e, h):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return LlamaDecoderLayer(_config(LlamaConfig, e, h), layer_idx=0)


def _qwen3_layer(e, h):
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    return Qwen3DecoderLayer(_config(Qwen3Config, e, h, head_dim=8), layer_idx=0)


def _mistral_layer(e, h):
    from transformers import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralDecoderLayer

    return MistralDecoderLayer(_config(MistralConfig, e, h), layer_idx=0)


def _config(make, e, h, **more):
    return make(
        hidden_size=e, num_attention_heads=h, num_key_value_heads=2, num_hidden_layers=2,
        intermediate_size=2 * e + 4, _attn_implementation="eager", **more,
    )  # fmt: skip


for _make in (_course, _llama_layer, _qwen3_layer, _mistral_layer):
    modern_block()(_make)
modern_block(like="llama")(_llama_layer)

# -------------------------------------------------------------------------------- sick blocks


@modern_block("gate-swapped", like="llama")
class LlamaSwapped(LlamaBlock):
    def feed(self, x):
        return self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))


@modern_block("gate-swapped", like="llama")
class LlamaFusedSwapped(LlamaBlock):
    """Gate and value in one layer, and the value is bent."""

    def __init__(self, e, h):
        super().__init__(e, h)
        del self.gate_proj, self.up_proj
        self.gate_up_proj = nn.Linear(e, 4 * e + 4, bias=False)

    def feed(self, x):
        gate, value = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(gate * F.silu(value))


@modern_block("gate-product")
class LlamaProduct(LlamaBlock):
    def feed(self, x):
        return self.down_proj(F.silu(self.gate_proj(x) * self.up_proj(x)))


@modern_block("gate-product")
class MetaProduct(MetaBlock):
    def bend(self, gate, value):
        return gate * value * torch.sigmoid(gate * value)


@modern_block("norm-axis")
class FusedNormTokens(FusedBlock):
    def __init__(self, e, h):
        super().__init__(e, h)

        class RMSNorm(Norm):
            def forward(self, t):
                square = t.pow(2).mean(-2, keepdim=True)
                return t * torch.rsqrt(square + self.variance_epsilon) * self.weight

        self.norm1, self.norm2 = RMSNorm(e), RMSNorm(e)


@modern_block("norm-axis")
class MetaNormBoth(MetaBlock):
    """The norm of a whole matrix, as a Frobenius norm is."""

    def norm(self, e):
        class RootMeanSquare(Norm):
            def forward(self, t):
                size = torch.linalg.norm(t, dim=(1, 2), keepdim=True) ** 2 / t[0].numel()
                return self.weight * t / (size + self.variance_epsilon).sqrt()

        return RootMeanSquare(e)


def _norm(change):
    class RMSNorm(Norm):
        def forward(self, t):
            return change(t, self.weight, self.variance_epsilon)

    return RMSNorm


@modern_block("rms-mean")
class LlamaCentred(LlamaBlock):
    def norm(self, e):
        return _norm(lambda t, w, eps: F.layer_norm(t, t.shape[-1:], w, None, eps))(e)


@modern_block("rms-eps")
class MetaOutside(MetaBlock):
    def norm(self, e):
        return _norm(lambda t, w, eps: t / (t.square().mean(-1, True).sqrt() + eps) * w)(e)


@modern_block("rms-inverted")
class LlamaInverted(LlamaBlock):
    def norm(self, e):
        return _norm(lambda t, w, eps: t / torch.rsqrt(t.square().mean(-1, True) + eps) * w)(e)


@modern_block("norm-offset", like="gemma")
class NoOffsetBlock(LlamaBlock):
    pass


@modern_block("rotary-mixed")
class MixedBlock(LlamaBlock):
    attention = LlamaMixed


@modern_block("groups-order")
class TiledBlock(LlamaBlock):
    attention = LlamaTiled


@modern_block("residual-from-norm")
class ModernFromNorm(LlamaBlock):
    def forward(self, x):
        read = self.input_layernorm(x)
        x = read + self.self_attn(read)
        return x + self.feed(self.post_attention_layernorm(x))
