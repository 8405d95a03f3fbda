"""Decoders whose layers differ: experts, latents, windows and sinks (chapter 19)."""

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
from utils.modern_decoder import ModernBlock, ModernDecoder, RMSNorm

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
    with torch.device("meta"):
        model, table = FAMILIES[config["model_type"]](config)
    return fill(WHERE, folder, lambda: model, table, "model.", dtype)


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
    """Normalize also what attention and feed-forward add, as Gemma 3 does.

    Args:
        block: whose parts it takes.

    Shape: as `ModernBlock`.
    Source: Gemma Team 2025, section 2.
    """

    def __init__(self, block: ModernBlock):
        super().__init__()
        width, eps = block.attn.embed_dim, block.norm1.eps
        self.norm1, self.attn = block.norm1, block.attn
        self.norm_of_attn = RMSNorm(width, eps)
        self.norm2, self.mlp = block.norm2, block.mlp
        self.norm_of_mlp = RMSNorm(width, eps)

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
WITHOUT_MLP: Table = {theirs: ours for theirs, ours in LLAMA.items() if ".mlp." not in theirs}
MIXTRAL: Table = {
    **WITHOUT_MLP,
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


def _gemma3_table(factor: float) -> Table:
    """Return the table of Gemma 3: norms multiply by 1 + weight, and queries by a factor."""

    def from_one(name: str, factor: float = 1.0) -> Changed:
        return Changed((name,), lambda tensor: [(1 + tensor.float()) * factor])

    return {
        **LLAMA,
        **{theirs: from_one(str(ours)) for theirs, ours in LLAMA.items() if "norm" in theirs},
        "layers.*.self_attn.q_norm": from_one("layers.*.attn.q_norm", factor),
        "layers.*.post_attention_layernorm": from_one("layers.*.norm_of_attn"),
        "layers.*.pre_feedforward_layernorm": from_one("layers.*.norm2"),
        "layers.*.post_feedforward_layernorm": from_one("layers.*.norm_of_mlp"),
    }


def _gpt_oss_table(num_experts: int) -> Table:
    """Return the table of gpt-oss: experts are stacked (x, in, out), gate and up in turn."""

    def each(*endings: str, in_turn: bool = False) -> Changed:
        def change(stack: Tensor) -> list[Tensor]:
            last = stack.shape[-1]
            cuts = [slice(0, last, 2), slice(1, last, 2)] if in_turn else [slice(last)]
            return [one[..., cut].t() for one in stack.unbind() for cut in cuts]

        names = (f"{MLP}experts.{x}.{ending}" for x in range(num_experts) for ending in endings)
        return Changed(tuple(names), change)

    return {
        **WITHOUT_MLP,
        "layers.*.self_attn.sinks": "layers.*.attn.sinks",
        MLP + "router": MLP + "router",
        MLP + "experts.gate_up_proj": each("gate_proj.weight", "up_proj.weight", in_turn=True),
        MLP + "experts.gate_up_proj_bias": each("gate_proj.bias", "up_proj.bias", in_turn=True),
        MLP + "experts.down_proj": each("down_proj.weight"),
        MLP + "experts.down_proj_bias": each("down_proj.bias"),
    }


def _deepseek_v3_table(num_heads: int, rotary_dim: int, in_pairs: bool, factor: float) -> Table:
    """Return the table of DeepSeek-V3: rotary numbers are in pairs; queries times a factor."""

    def halves(name: str, heads: int, factor: float = 1.0) -> Changed:
        def change(weight: Tensor) -> list[Tensor]:
            rows = weight.unflatten(0, (heads, -1))  # (h, d + r, in)
            plain, rotary = rows[:, :-rotary_dim], rows[:, -rotary_dim:]
            if in_pairs:
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


# --- from a config to the model and a table


def _of(config: Config, key: str, kind: type = int, default: Any = MISSING) -> Any:
    """Return what the config says under a key."""
    return value_of(config, WHERE, key, kind, default)


def _demand(config: Config, only: dict[str, object]) -> None:
    """Refuse other forms than these, which are also the defaults."""
    for key, value in only.items():
        demand(WHERE, config, key, value, default=value)


def _sizes(config: Config, head_dim: int | None = None, tied: bool = False) -> dict[str, Any]:
    """Return the arguments of `ModernDecoder` that all call by the same names."""
    heads = _of(config, "num_attention_heads")
    return {
        "vocab_size": _of(config, "vocab_size"),
        "embed_dim": _of(config, "hidden_size"),
        "num_heads": heads,
        "num_kv_heads": _of(config, "num_key_value_heads", int, heads),
        "mlp_dim": _of(config, "intermediate_size"),
        "num_layers": _of(config, "num_hidden_layers"),
        "head_dim": _of(config, "head_dim", int, head_dim),
        "tie_weights": _of(config, "tie_word_embeddings", bool, tied),
        "norm_eps": _of(config, "rms_norm_eps", float),
    }


def _windows(config: Config, every: int) -> list[int | None]:
    """Return the window of each layer; without a list, each `every`-th has none."""
    count, kinds = _of(config, "num_hidden_layers"), ["full_attention", "sliding_attention"]
    usual = [kinds[(number + 1) % every > 0] for number in range(count)]
    given = _of(config, "layer_types", list, usual)
    if len(given) != count or any(kind not in kinds for kind in given):
        raise ValueError(
            f"{WHERE}: layer_types must be {' or '.join(kinds)} for each of {count} layers, "
            f"got {given}. Take the config.json that was saved with these weights."
        )
    return [_of(config, "sliding_window") if kind == kinds[1] else None for kind in given]


def _blocks(model: ModernDecoder) -> list[Any]:
    """Return the blocks, whose parts are replaced."""
    return list(model.layers)


def _mixtral(config: Config) -> tuple[ModernDecoder, Table]:
    _demand(config, {"hidden_act": "silu"})
    count, chosen = _of(config, "num_local_experts"), _of(config, "num_experts_per_tok")
    window = _of(config, "sliding_window", int, None)
    model = ModernDecoder(**_sizes(config), **rotary_of(WHERE, config), window=window)
    for block in _blocks(model):
        sizes = block.attn.embed_dim, block.mlp.gate_proj.out_features
        block.mlp = MixtureOfExperts(*sizes, count, chosen)
    return model, MIXTRAL


def _qwen3_moe(config: Config) -> tuple[ModernDecoder, Table]:
    _demand(config, {"hidden_act": "silu", "attention_bias": False})
    count = "num_experts" if "num_experts" in config else "num_local_experts"  # old and new name
    experts = {
        "mlp_dim": _of(config, "moe_intermediate_size"),
        "num_experts": _of(config, count),
        "experts_per_token": _of(config, "num_experts_per_tok"),
        "normalize": _of(config, "norm_topk_prob", bool, False),
    }
    dense, step = _of(config, "mlp_only_layers", list, []), _of(config, "decoder_sparse_step")
    slides = _of(config, "use_sliding_window", bool, False)
    window = _of(config, "sliding_window", int, None) if slides else None
    options = {**_sizes(config), **rotary_of(WHERE, config), "window": window}
    model = ModernDecoder(**options, qk_norm=True)
    for number, block in enumerate(_blocks(model)):
        if number not in dense and (number + 1) % step == 0:
            block.mlp = MixtureOfExperts(options["embed_dim"], **experts)
    return model, QWEN3_MOE


def _gemma3(config: Config) -> tuple[ModernDecoder, Table]:
    _demand(config, {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False})
    _demand(config, {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    _demand(config, {"use_bidirectional_attention": False})
    full = {"rope_theta": _of(config, "rope_theta", float, 1_000_000.0)}
    full["rope_scaling"] = config.get("rope_scaling")
    local = {"rope_theta": _of(config, "rope_local_base_freq", float, 10_000.0)}
    given = _of(config, "rope_parameters", dict, {})  # what old configs say in other entries
    full, local = (
        rotary_of(WHERE, {**old, "rope_parameters": given.get(kind)})
        for kind, old in (("full_attention", full), ("sliding_attention", local))
    )
    model = ModernDecoder(**_sizes(config, 256, tied=True), qk_norm=True)
    model.embedding.factor = _of(config, "hidden_size") ** 0.5
    windows = _windows(config, _of(config, "sliding_window_pattern", int, 6))
    for number, (block, window) in enumerate(zip(_blocks(model), windows, strict=True)):
        rotary = full if window is None else local
        block.attn.rope_theta = rotary["rope_theta"]
        block.attn.rope_scaling = rotary.get("rope_scaling")
        block.attn.window = window
        block.mlp.act = nn.GELU("tanh")
        model.layers[number] = SandwichBlock(block)
    scalar = _of(config, "query_pre_attn_scalar", int, 256)
    return model, _gemma3_table((_of(config, "head_dim", int, 256) / scalar) ** 0.5)


def _gpt_oss(config: Config) -> tuple[ModernDecoder, Table]:
    _demand(config, {"attention_bias": True})
    count, chosen = _of(config, "num_local_experts"), _of(config, "num_experts_per_tok")
    steepness = _of(config, "swiglu_alpha", float, 1.702)
    limit = _of(config, "swiglu_limit", float, 7.0)
    rotary = rotary_of(WHERE, config, yarn=True)
    model = ModernDecoder(**_sizes(config, 64), **rotary, bias=True)
    for block, window in zip(_blocks(model), _windows(config, 2), strict=True):
        heads, width = block.attn.num_heads, block.attn.embed_dim
        block.attn.window, block.attn.sinks = window, nn.Parameter(torch.zeros(heads))
        block.attn.out_proj = nn.Linear(block.attn.out_proj.in_features, width)
        inner = block.mlp.gate_proj.out_features
        block.mlp = MixtureOfExperts(width, inner, count, chosen)
        block.mlp.router = nn.Linear(width, count)
        experts = (ClampedFeedForward(width, inner, steepness, limit) for _ in range(count))
        block.mlp.experts = nn.ModuleList(experts)
    return model, _gpt_oss_table(count)


def _deepseek_v3(config: Config) -> tuple[ModernDecoder, Table]:
    _demand(config, {"hidden_act": "silu", "attention_bias": False, "scoring_func": "sigmoid"})
    _demand(config, {"topk_method": "noaux_tc", "moe_layer_freq": 1})
    rotary = rotary_of(WHERE, config, yarn=True)
    latent = {
        "head_dim": _of(config, "qk_nope_head_dim"),
        "rotary_dim": _of(config, "qk_rope_head_dim"),
        "value_dim": _of(config, "v_head_dim"),
        "latent_dim": _of(config, "kv_lora_rank"),
        "query_latent_dim": _of(config, "q_lora_rank", int, None),
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
    sizes = {**_sizes(config), "head_dim": 2}  # of an attention that is replaced
    model = ModernDecoder(**sizes)
    for number, block in enumerate(_blocks(model)):
        block.attn = LatentAttention(sizes["embed_dim"], sizes["num_heads"], **latent, **rotary)
        if number >= first:
            block.mlp = MixtureOfExperts(sizes["embed_dim"], **experts)
    factor = 1.0
    if "rope_scaling" in rotary:  # then scores are multiplied, too
        rope = config.get("rope_parameters") or config["rope_scaling"]
        factor = grown(rotary["rope_scaling"].factor, _of(rope, "mscale_all_dim", float, 0)) ** 2
    in_pairs = _of(config, "rope_interleave", bool, True)
    table = _deepseek_v3_table(sizes["num_heads"], latent["rotary_dim"], in_pairs, factor)
    return model, table


BUILDERS = (_mixtral, _qwen3_moe, _gemma3, _gpt_oss, _deepseek_v3)
# model_type -> what makes the model and the table from a config
FAMILIES = dict(zip(DECODERS, BUILDERS, strict=True))
