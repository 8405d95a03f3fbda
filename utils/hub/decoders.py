"""Decoders whose layers differ: experts, latents, windows and sinks (chapter 19)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.cache import KeyValueCache
from utils.experts import MixtureOfExperts
from utils.hub.checkpoints import DECODERS, Config
from utils.hub.configs import MISSING, demand, grown, open_config, rotary_of, value_of
from utils.hub.filling import Changed, Table, fill
from utils.hub.pretrained import LLAMA
from utils.latent_attention import LatentAttention
from utils.masking import Mask
from utils.modern_decoder import GatedFeedForward, GroupedQueryAttention, ModernBlock, ModernDecoder

WHERE = "load_decoder"


def load_decoder(name: str | Path, *, dtype: torch.dtype = torch.float32) -> ModernDecoder:
    """Load a Mixtral, Qwen3-MoE, Gemma 3 (text), gpt-oss or DeepSeek-V3.

    It is a `ModernDecoder` with other parts in its layers.

    Args:
        name: a folder with config.json and safetensors, or a name on HuggingFace's hub.
        dtype: what the weights become, whatever they are in the file.

    Shape:
        ids        (b, n)
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n); causal comes on top
        result     (b, n, vocab_size)

    Raises: as `load_vit`; quantized weights, capped logits and other forms of rotary are refused.
    Source: Jiang et al. 2024; Yang et al. 2025; Gemma Team 2025; OpenAI 2025; DeepSeek-AI 2024
        (DeepSeek-V3); chapter 19.
    """
    folder, config = open_config(WHERE, name, dtype, DECODERS)
    if config.get("quantization_config") is not None:
        raise ValueError(
            f"{WHERE}: weights must be floating point numbers of 16 bits or more, got "
            f"quantization_config={config['quantization_config']!r}. "
            "Take the checkpoint that it was made from."
        )
    builders = (_mixtral, _qwen3_moe, _gemma3, _gpt_oss, _deepseek_v3)
    build, table = dict(zip(DECODERS, builders, strict=True))[config["model_type"]](config)
    return fill(WHERE, folder, build, table, "model.", dtype)


# --- what only one of them has


class ClampedFeedForward(nn.Module):
    """Gate as gpt-oss does: clamped, with biases, a steeper SiLU, and 1 added to what is gated.

    Args:
        embed_dim, mlp_dim: see `GatedFeedForward`.
        alpha: how steep the SiLU is.
        limit: the gate is at most that, the other from -limit to limit.

    Shape: as `FeedForward`.
    Raises: as `GatedFeedForward`.
    Source: OpenAI 2025 (gpt-oss), section 2.2.
    """

    def __init__(self, embed_dim: int, mlp_dim: int, alpha: float, limit: float):
        super().__init__()
        self.alpha, self.limit = alpha, limit
        self.gate_proj = nn.Linear(embed_dim, mlp_dim)
        self.up_proj = nn.Linear(embed_dim, mlp_dim)
        self.down_proj = nn.Linear(mlp_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x).clamp(max=self.limit)
        up = self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(gate * torch.sigmoid(self.alpha * gate) * (up + 1))


class SandwichBlock(nn.Module):
    """Normalise also what attention and feed-forward add, as Gemma 3 does.

    Args:
        block: whose parts it takes.

    Shape: as `ModernBlock`.
    Source: Gemma Team 2025, section 2.
    """

    def __init__(self, block: ModernBlock):
        super().__init__()
        width, eps = block.attn.embed_dim, block.norm1.eps
        self.norm1, self.attn = block.norm1, block.attn
        self.norm_of_attn = type(block.norm1)(width, eps)
        self.norm2, self.mlp = block.norm2, block.mlp
        self.norm_of_mlp = type(block.norm1)(width, eps)

    def forward(
        self,
        x: Tensor,
        attn_mask: Mask = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        x = x + self.norm_of_attn(self.attn(self.norm1(x), attn_mask, positions, cache))
        return x + self.norm_of_mlp(self.mlp(self.norm2(x)))


# --- the tables

MLP = "layers.*.mlp."
EXPERT = MLP + "experts.*."
PARTS = ("gate_proj", "up_proj", "down_proj")
MIXTRAL: Table = {
    **{theirs: ours for theirs, ours in LLAMA.items() if ".mlp." not in theirs},
    "layers.*.block_sparse_moe.gate": MLP + "router",
    "layers.*.block_sparse_moe.experts.*.w1": EXPERT + "gate_proj",
    "layers.*.block_sparse_moe.experts.*.w3": EXPERT + "up_proj",
    "layers.*.block_sparse_moe.experts.*.w2": EXPERT + "down_proj",
}
QWEN3_MOE: Table = {
    **LLAMA,
    MLP + "gate": MLP + "router",
    **{EXPERT + part: EXPERT + part for part in PARTS},
}


def gemma3_table(factor: float) -> Table:
    """Return the table of Gemma 3, whose norms multiply by 1 + weight.

    Args:
        factor: multiplies the queries, so that their scores have the scale of the config.
    """

    def from_one(name: str, factor: float = 1.0) -> Changed:
        return Changed((name,), lambda tensor: [(1 + tensor.float()) * factor])

    norms = {name: from_one(ours) for name, ours in LLAMA.items() if "norm" in name}
    return {
        **LLAMA,
        **norms,
        "layers.*.self_attn.q_norm": from_one("layers.*.attn.q_norm", factor),
        "layers.*.post_attention_layernorm": from_one("layers.*.norm_of_attn"),
        "layers.*.pre_feedforward_layernorm": from_one("layers.*.norm2"),
        "layers.*.post_feedforward_layernorm": from_one("layers.*.norm_of_mlp"),
    }


def gpt_oss_table(num_experts: int) -> Table:
    """Return the table of gpt-oss, whose experts are stacked, transposed, and woven in pairs.

    Args:
        num_experts: number of experts, x.
    """

    def names(*endings: str) -> tuple[str, ...]:
        numbers = range(num_experts)
        return tuple(f"{MLP}experts.{n}.{ending}" for n in numbers for ending in endings)

    def woven(stack: Tensor) -> list[Tensor]:  # (x, ..., 2 m)
        return [each[..., first::2].t() for each in stack.unbind() for first in (0, 1)]

    return {
        **MIXTRAL,
        "layers.*.self_attn.sinks": "layers.*.attn.sinks",
        MLP + "router": MLP + "router",
        MLP + "experts.gate_up_proj": Changed(names("gate_proj.weight", "up_proj.weight"), woven),
        MLP + "experts.gate_up_proj_bias": Changed(names("gate_proj.bias", "up_proj.bias"), woven),
        MLP + "experts.down_proj": Changed(
            names("down_proj.weight"), lambda stack: [each.t() for each in stack.unbind()]
        ),
        MLP + "experts.down_proj_bias": Changed(names("down_proj.bias"), torch.unbind),
    }


def deepseek_v3_table(num_heads: int, rotary_dim: int, woven: bool, factor: float) -> Table:
    """Return the table of DeepSeek-V3, whose pairs of rotary numbers are neighbours.

    Args:
        num_heads: number of heads, h.
        rotary_dim: rotary numbers of a head, r.
        woven: whether they are neighbours; else they are halves, as ours.
        factor: multiplies the queries, as YaRN wants.
    """

    def halves(name: str, heads: int, factor: float = 1.0) -> Changed:
        """Sort the last r rows of each head."""

        def change(weight: Tensor) -> list[Tensor]:
            each = weight.unflatten(0, (heads, -1))  # (h, d + r, in)
            plain, rotary = each[:, :-rotary_dim], each[:, -rotary_dim:]
            if woven:
                rotary = torch.cat([rotary[:, 0::2], rotary[:, 1::2]], dim=1)
            return [torch.cat([plain, rotary], dim=1).flatten(0, 1) * factor]

        return Changed((f"layers.*.attn.{name}.weight",), change)

    attn = "layers.*.self_attn."
    return {
        **QWEN3_MOE,
        attn + "q_proj.weight": halves("q_proj", num_heads, factor),
        attn + "q_a_proj": "layers.*.attn.q_proj.0",
        attn + "q_a_layernorm": "layers.*.attn.q_proj.1",
        attn + "q_b_proj.weight": halves("q_proj.2", num_heads, factor),
        attn + "kv_a_proj_with_mqa.weight": halves("kv_down", 1),
        attn + "kv_a_layernorm": "layers.*.attn.kv_norm",
        attn + "kv_b_proj": "layers.*.attn.kv_up",
        MLP + "gate.e_score_correction_bias": MLP + "balance_bias",
        **{f"{MLP}shared_experts.{part}": f"{MLP}shared.{part}" for part in PARTS},
    }


# --- from a config to a function that builds the model, and a table

Family = tuple[Callable[[], ModernDecoder], Table]


def _of(config: Config, key: str, kind: type = int, default: Any = MISSING) -> Any:
    """Return what the config says under a key."""
    return value_of(config, WHERE, key, kind, default)


def _sizes(config: Config) -> dict[str, Any]:
    """Return the arguments of `ModernDecoder` that all call by the same names."""
    heads = _of(config, "num_attention_heads")
    return {
        "vocab_size": _of(config, "vocab_size"),
        "embed_dim": _of(config, "hidden_size"),
        "num_heads": heads,
        "num_kv_heads": _of(config, "num_key_value_heads", int, heads),
        "mlp_dim": _of(config, "intermediate_size"),
        "num_layers": _of(config, "num_hidden_layers"),
        "head_dim": _of(config, "head_dim", int, None),
        "tie_weights": _of(config, "tie_word_embeddings", bool, False),
        "norm_eps": _of(config, "rms_norm_eps", float),
    }


def _is_local(config: Config, every: int) -> list[bool]:
    """Return for each layer whether it has a window; without a list, each `every`-th has none."""
    count, kinds = _of(config, "num_hidden_layers"), ["full_attention", "sliding_attention"]
    usual = [kinds[(number + 1) % every > 0] for number in range(count)]
    given = _of(config, "layer_types", list, usual)
    if len(given) != count or any(kind not in kinds for kind in given):
        raise ValueError(
            f"{WHERE}: layer_types must be {' or '.join(kinds)} for each of {count} layers, "
            f"got {given}. Take the config.json that was saved with these weights."
        )
    return [kind == kinds[1] for kind in given]


def _mixtral(config: Config) -> Family:
    demand(WHERE, config, "hidden_act", "silu", default="silu")
    window = _of(config, "sliding_window", int, None)
    sizes = {**_sizes(config), **rotary_of(WHERE, config), "window": window}
    count, chosen = _of(config, "num_local_experts"), _of(config, "num_experts_per_tok")

    def build() -> ModernDecoder:
        model = ModernDecoder(**sizes)
        for block in model.layers:
            block.mlp = MixtureOfExperts(sizes["embed_dim"], sizes["mlp_dim"], count, chosen)
        return model

    return build, MIXTRAL


def _qwen3_moe(config: Config) -> Family:
    demand(WHERE, config, "hidden_act", "silu", default="silu")
    demand(WHERE, config, "attention_bias", False, default=False)
    slides = _of(config, "use_sliding_window", bool, False)
    window = _of(config, "sliding_window", int, None) if slides else None
    sizes = {**_sizes(config), **rotary_of(WHERE, config), "window": window}
    dense, step = _of(config, "mlp_only_layers", list, []), _of(config, "decoder_sparse_step")
    width = _of(config, "moe_intermediate_size")
    count = _of(config, "num_experts", int, config.get("num_local_experts"))  # the old name first
    chosen = _of(config, "num_experts_per_tok")
    normalize = _of(config, "norm_topk_prob", bool, False)

    def build() -> ModernDecoder:
        model = ModernDecoder(**sizes, qk_norm=True)
        for number, block in enumerate(model.layers):
            if number not in dense and (number + 1) % step == 0:
                block.mlp = MixtureOfExperts(
                    sizes["embed_dim"], width, count, chosen, normalize=normalize
                )
        return model

    return build, QWEN3_MOE


def _gemma3(config: Config) -> Family:
    demand(WHERE, config, "hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    for key in ("attention_bias", "use_bidirectional_attention"):
        demand(WHERE, config, key, False, default=False)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        demand(WHERE, config, key, None, default=None)
    head_dim = _of(config, "head_dim", int, 256)
    sizes = {**_sizes(config), "head_dim": head_dim}
    sizes["tie_weights"] = _of(config, "tie_word_embeddings", bool, True)
    local = _is_local(config, _of(config, "sliding_window_pattern", int, 6))
    window = _of(config, "sliding_window", int, None)
    both = _of(config, "rope_parameters", dict, {})
    rotary = [
        rotary_of(WHERE, {"rope_theta": theta, **_of(both, kind, dict, {}), "rope_scaling": rope})
        for kind, theta, rope in (
            ("full_attention", _of(config, "rope_theta", float, 1e6), config.get("rope_scaling")),
            ("sliding_attention", _of(config, "rope_local_base_freq", float, 1e4), None),
        )
    ]

    def build() -> ModernDecoder:
        model = ModernDecoder(**sizes, qk_norm=True)
        model.embedding.factor = sizes["embed_dim"] ** 0.5
        for number, is_local in enumerate(local):
            block = model.layers[number]
            block.attn = GroupedQueryAttention(
                *(sizes[name] for name in ("embed_dim", "num_heads", "num_kv_heads", "head_dim")),
                qk_norm=True,
                norm_eps=sizes["norm_eps"],
                window=window if is_local else None,
                **rotary[is_local],
            )
            block.mlp.act = nn.GELU("tanh")
            model.layers[number] = SandwichBlock(block)
        return model

    scalar = _of(config, "query_pre_attn_scalar", float, 256)
    if not scalar:
        demand(WHERE, config, "query_pre_attn_scalar", head_dim, default=256)
    return build, gemma3_table((head_dim / scalar) ** 0.5)


def _gpt_oss(config: Config) -> Family:
    demand(WHERE, config, "attention_bias", True, default=True)
    sizes = {**_sizes(config), "head_dim": _of(config, "head_dim", int, 64)}
    rotary = rotary_of(WHERE, config, yarn=True)
    local, window = _is_local(config, 2), _of(config, "sliding_window", int, None)
    count, chosen = _of(config, "num_local_experts"), _of(config, "num_experts_per_tok")
    alpha = _of(config, "swiglu_alpha", float, 1.702)
    limit = _of(config, "swiglu_limit", float, 7.0)

    def build() -> ModernDecoder:
        model = ModernDecoder(**sizes)
        width, heads = sizes["embed_dim"], sizes["num_heads"]
        for block, is_local in zip(model.layers, local, strict=True):
            block.attn = GroupedQueryAttention(
                *(width, heads, sizes["num_kv_heads"], sizes["head_dim"]),
                bias=True,
                window=window if is_local else None,
                sinks=True,
                **rotary,
            )
            block.attn.out_proj = nn.Linear(heads * sizes["head_dim"], width)
            block.mlp = MixtureOfExperts(width, sizes["mlp_dim"], count, chosen)
            block.mlp.router = nn.Linear(width, count)
            block.mlp.experts = nn.ModuleList(
                ClampedFeedForward(width, sizes["mlp_dim"], alpha, limit) for _ in range(count)
            )
        return model

    return build, gpt_oss_table(count)


def _deepseek_v3(config: Config) -> Family:
    only = {"hidden_act": "silu", "attention_bias": False, "scoring_func": "sigmoid"}
    for key, value in {**only, "topk_method": "noaux_tc", "moe_layer_freq": 1}.items():
        demand(WHERE, config, key, value, default=value)
    rotary = rotary_of(WHERE, config, yarn=True)
    sizes = {**_sizes(config), "head_dim": 2}  # of an attention that is replaced
    latent = {
        "head_dim": _of(config, "qk_nope_head_dim"),
        "rotary_dim": _of(config, "qk_rope_head_dim"),
        "value_dim": _of(config, "v_head_dim"),
        "latent_dim": _of(config, "kv_lora_rank"),
        "query_latent_dim": _of(config, "q_lora_rank", int, None),
        **rotary,
    }
    experts = {
        "mlp_dim": _of(config, "moe_intermediate_size"),
        "num_experts": _of(config, "n_routed_experts"),
        "experts_per_token": _of(config, "num_experts_per_tok"),
        "num_shared": _of(config, "n_shared_experts"),
        "scoring": "sigmoid",
        "normalize": _of(config, "norm_topk_prob", bool, True),
        "scale": _of(config, "routed_scaling_factor", float),
        "num_groups": _of(config, "n_group"),
        "groups_per_token": _of(config, "topk_group"),
    }
    first = _of(config, "first_k_dense_replace", float, 3)  # it may be 0

    def build() -> ModernDecoder:
        model = ModernDecoder(**sizes)
        for number, block in enumerate(model.layers):
            block.attn = LatentAttention(sizes["embed_dim"], sizes["num_heads"], **latent)
            if number >= first:
                block.mlp = MixtureOfExperts(sizes["embed_dim"], **experts)
        return model

    factor = 1.0
    if "rope_scaling" in rotary:
        rope = config.get("rope_parameters") or config["rope_scaling"]
        far = _of(rope, "mscale_all_dim", float, 0)
        factor = grown(rotary["rope_scaling"].factor, far) ** 2
    woven = _of(config, "rope_interleave", bool, True)
    return build, deepseek_v3_table(sizes["num_heads"], latent["rotary_dim"], woven, factor)
