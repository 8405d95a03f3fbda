"""Weights that others trained, in the classes of the course (chapter 15)."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from utils.hub.checkpoints import Config
from utils.hub.configs import demand, open_config, rotary_of, value_of
from utils.hub.filling import Table, fill, flattened, transposed, unpacked
from utils.language_model import LanguageModel, TextEncoder
from utils.modern_decoder import ModernDecoder
from utils.vision_transformer import VisionTransformer

# --- the tables: their names -> ours, see Table in filling.py

ATTENTION = "encoder.layers.*.attn."
MLP = "encoder.layers.*.mlp."

VIT: Table = {
    "embeddings.cls_token": "embedding.class_token",
    "embeddings.position_embeddings": "embedding.positions",
    "embeddings.patch_embeddings.projection.weight": flattened("embedding.proj.weight"),
    "embeddings.patch_embeddings.projection.bias": "embedding.proj.bias",
    "encoder.layer.*.layernorm_before": "encoder.layers.*.norm1",
    "encoder.layer.*.attention.attention.query": ATTENTION + "q_proj",
    "encoder.layer.*.attention.attention.key": ATTENTION + "k_proj",
    "encoder.layer.*.attention.attention.value": ATTENTION + "v_proj",
    "encoder.layer.*.attention.output.dense": ATTENTION + "out_proj",
    "encoder.layer.*.layernorm_after": "encoder.layers.*.norm2",
    "encoder.layer.*.intermediate.dense": MLP + "fc1",
    "encoder.layer.*.output.dense": MLP + "fc2",
    "layernorm": "encoder.norm",
    "classifier": "head",
    "pooler.dense": None,
}

BERT: Table = {
    "embeddings.word_embeddings": "embedding.tokens",
    "embeddings.position_embeddings.weight": "embedding.positions",
    "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "norm",
    "embeddings.position_ids": None,  # the numbers 0, 1, 2, ...
    "encoder.layer.*.attention.self.query": ATTENTION + "q_proj",
    "encoder.layer.*.attention.self.key": ATTENTION + "k_proj",
    "encoder.layer.*.attention.self.value": ATTENTION + "v_proj",
    "encoder.layer.*.attention.output.dense": ATTENTION + "out_proj",
    "encoder.layer.*.attention.output.LayerNorm": "encoder.layers.*.norm1",
    "encoder.layer.*.intermediate.dense": MLP + "fc1",
    "encoder.layer.*.output.dense": MLP + "fc2",
    "encoder.layer.*.output.LayerNorm": "encoder.layers.*.norm2",
    # what stands on top of the hidden states, for this task or that
    "pooler.dense": None,
    "cls.predictions.bias": None,
    "cls.predictions.transform.dense": None,
    "cls.predictions.transform.LayerNorm": None,
    "cls.predictions.decoder": None,
    "cls.seq_relationship": None,
    "classifier": None,
    "qa_outputs": None,
}

GPT2: Table = {
    "wte": "embedding.tokens",
    "wpe.weight": "embedding.positions",
    "h.*.ln_1": "encoder.layers.*.norm1",
    "h.*.attn.c_attn": unpacked(ATTENTION + "q_proj", ATTENTION + "k_proj", ATTENTION + "v_proj"),
    "h.*.attn.c_proj": transposed(ATTENTION + "out_proj"),
    "h.*.attn.bias": None,  # a causal mask, stored as if it had been learned
    "h.*.attn.masked_bias": None,  # what the mask writes
    "h.*.ln_2": "encoder.layers.*.norm2",
    "h.*.mlp.c_fc": transposed(MLP + "fc1"),
    "h.*.mlp.c_proj": transposed(MLP + "fc2"),
    "ln_f": "encoder.norm",
    "lm_head": "head",
}

# llama, mistral, qwen2 and qwen3: the last two rows but one of a block are Qwen3's
LLAMA: Table = {
    "embed_tokens": "embedding.tokens",
    "layers.*.input_layernorm": "layers.*.norm1",
    "layers.*.self_attn.q_proj": "layers.*.attn.q_proj",
    "layers.*.self_attn.k_proj": "layers.*.attn.k_proj",
    "layers.*.self_attn.v_proj": "layers.*.attn.v_proj",
    "layers.*.self_attn.o_proj": "layers.*.attn.out_proj",
    "layers.*.self_attn.q_norm": "layers.*.attn.q_norm",
    "layers.*.self_attn.k_norm": "layers.*.attn.k_norm",
    "layers.*.self_attn.rotary_emb.inv_freq": None,  # the speeds, which the base gives
    "layers.*.post_attention_layernorm": "layers.*.norm2",
    "layers.*.mlp.gate_proj": "layers.*.mlp.gate_proj",
    "layers.*.mlp.up_proj": "layers.*.mlp.up_proj",
    "layers.*.mlp.down_proj": "layers.*.mlp.down_proj",
    "norm": "norm",
    "lm_head": "head",
}

# their names of activation functions -> ours
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


# --- the four loaders


def load_vit(name: str | Path, *, dtype: torch.dtype = torch.float32) -> VisionTransformer:
    """Load a Vision Transformer with its classifier, such as "google/vit-base-patch16-224".

    Args:
        name: a folder with config.json and safetensors, or a name on HuggingFace's hub.
        dtype: what the weights become, whatever they are in the file.

    Shape:
        images  (b, c, H, W)    each channel as the checkpoint wants it, often from -1 to 1
        result  (b, k)

    Raises: ValueError for no checkpoint there, another kind of model, one that `VisionTransformer`
        cannot be, files that are damaged, or tensors that are missing, extra or misshapen.
    Source: Dosovitskiy et al. 2021; chapter 15.
    """
    where = "load_vit"
    folder, config = open_config(where, name, dtype, ["vit"])
    demand(where, config, "qkv_bias", True, default=True)
    demand(where, config, "pooler_act", "tanh", default="tanh")
    options = {
        "image_size": _size(config, where, "image_size"),
        "patch_size": _size(config, where, "patch_size"),
        "in_channels": value_of(config, where, "num_channels"),
        "num_classes": _classes(config, where),
        **_encoder_sizes(config, where),
    }
    return fill(where, folder, partial(VisionTransformer, **options), VIT, "vit.", dtype)


def load_bert(name: str | Path, *, dtype: torch.dtype = torch.float32) -> TextEncoder:
    """Load the body of a BERT, such as "bert-base-uncased".

    What stands on top, for a task, is left aside: the pooler, the scores for blanks, a classifier.

    Args:
        name: a folder with config.json and safetensors, or a name on HuggingFace's hub.
        dtype: what the weights become, whatever they are in the file.

    Shape:
        ids        (b, n)
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n)
        result     (b, n, e), hidden states

    Raises: as `load_vit`.
    Source: Devlin et al. 2019; chapter 15.
    """
    where = "load_bert"
    folder, config = open_config(where, name, dtype, ["bert"])
    demand(where, config, "is_decoder", False, default=False)
    demand(where, config, "add_cross_attention", False, default=False)
    demand(where, config, "position_embedding_type", "absolute", default="absolute")
    options = {
        "vocab_size": value_of(config, where, "vocab_size"),
        "max_length": value_of(config, where, "max_position_embeddings"),
        "num_types": value_of(config, where, "type_vocab_size"),
        **_encoder_sizes(config, where),
    }
    return fill(where, folder, partial(TextEncoder, **options), BERT, "bert.", dtype)


def load_gpt2(name: str | Path, *, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Load a GPT-2, such as "gpt2".

    Args:
        name: a folder with config.json and safetensors, or a name on HuggingFace's hub.
        dtype: what the weights become, whatever they are in the file.

    Shape:
        ids        (b, n)
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n); causal comes on top
        result     (b, n, vocab_size)

    Raises: as `load_vit`.
    Source: Radford et al. 2019; chapter 15.
    """
    where = "load_gpt2"
    folder, config = open_config(where, name, dtype, ["gpt2"])
    demand(where, config, "scale_attn_weights", True, default=True)
    demand(where, config, "scale_attn_by_inverse_layer_idx", False, default=False)
    demand(where, config, "add_cross_attention", False, default=False)
    width = value_of(config, where, "n_embd")
    options = {
        "vocab_size": value_of(config, where, "vocab_size"),
        "embed_dim": width,
        "num_heads": value_of(config, where, "n_head"),
        "mlp_dim": value_of(config, where, "n_inner", int, 4 * width),
        "num_layers": value_of(config, where, "n_layer"),
        "max_length": value_of(config, where, "n_positions"),
        "tie_weights": value_of(config, where, "tie_word_embeddings", bool, True),
        "activation": _activation(where, config, "activation_function"),
        "norm_eps": value_of(config, where, "layer_norm_epsilon", float),
    }
    return fill(where, folder, partial(LanguageModel, **options), GPT2, "transformer.", dtype)


def load_llama(name: str | Path, *, dtype: torch.dtype = torch.float32) -> ModernDecoder:
    """Load a Llama (also 3.1 and later), Mistral, Qwen2 or Qwen3, such as "Qwen/Qwen3-0.6B".

    Args:
        name: a folder with config.json and safetensors, or a name on HuggingFace's hub.
        dtype: what the weights become, whatever they are in the file.

    Shape:
        ids        (b, n)
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n); causal comes on top
        result     (b, n, vocab_size)

    Raises: as `load_vit`; rotary that is neither plain nor that of Llama 3.1, and windows in only
        some layers, are what `ModernDecoder` cannot be.
    Source: Touvron et al. 2023, Jiang et al. 2023, Yang et al. 2024 and 2025; chapter 15.
    """
    where = "load_llama"
    folder, config = open_config(where, name, dtype, ["llama", "mistral", "qwen2", "qwen3"])
    kind = config["model_type"]
    demand(where, config, "hidden_act", "silu", default="silu")
    demand(where, config, "attention_bias", False, default=False)
    demand(where, config, "mlp_bias", False, default=False)
    width, heads = (
        value_of(config, where, "hidden_size"),
        value_of(config, where, "num_attention_heads"),
    )
    options = {
        "vocab_size": value_of(config, where, "vocab_size"),
        "embed_dim": width,
        "num_heads": heads,
        "num_kv_heads": value_of(config, where, "num_key_value_heads", int, heads),
        "mlp_dim": value_of(config, where, "intermediate_size"),
        "num_layers": value_of(config, where, "num_hidden_layers"),
        "head_dim": value_of(config, where, "head_dim", int, 128 if kind == "qwen3" else None),
        "bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
        "tie_weights": value_of(config, where, "tie_word_embeddings", bool, False),
        "norm_eps": value_of(config, where, "rms_norm_eps", float),
        "window": _window(where, config),
        **rotary_of(where, config),
    }
    return fill(where, folder, partial(ModernDecoder, **options), LLAMA, "model.", dtype)


# --- what only some configs say


def _size(config: Config, where: str, key: str) -> tuple[int, int]:
    """Return a side of an image or patch as (height, width)."""
    size = config.get(key)
    sides = size if isinstance(size, list) and len(size) == 2 else (size, size)
    height, width = (value_of({**config, key: side}, where, key) for side in sides)
    return height, width


def _classes(config: Config, where: str) -> int:
    """Return the number of classes: that of their names, or what num_labels says, or 2."""
    names = value_of(config, where, "id2label", dict, {})
    return len(names) or value_of(config, where, "num_labels", int, 2)


def _activation(where: str, config: Config, key: str) -> str:
    """Return our name of the activation function."""
    theirs = config.get(key)
    if not isinstance(theirs, str) or theirs not in ACTIVATIONS:
        raise ValueError(
            f"{where}: {key} must be one of {sorted(ACTIVATIONS)}, got {key}={theirs!r}. "
            "Our feed-forward has no other activation function; transformers' own has."
        )
    return ACTIVATIONS[theirs]


def _encoder_sizes(config: Config, where: str) -> dict[str, Any]:
    """Return the sizes that ViT and BERT call by the same names."""
    return {
        "embed_dim": value_of(config, where, "hidden_size"),
        "num_heads": value_of(config, where, "num_attention_heads"),
        "mlp_dim": value_of(config, where, "intermediate_size"),
        "num_layers": value_of(config, where, "num_hidden_layers"),
        "activation": _activation(where, config, "hidden_act"),
        "norm_eps": value_of(config, where, "layer_norm_eps", float),
    }


def _window(where: str, config: Config) -> int | None:
    """Return how far back a token sees, or None."""
    window = value_of(config, where, "sliding_window", int, None)
    if config["model_type"] == "mistral":
        return window
    slides = value_of(config, where, "use_sliding_window", bool, False)
    if config["model_type"] == "llama" or window is None or not slides:
        return None
    kinds = config.get("layer_types")
    if kinds is None:  # an old config: the first layers have full attention
        full = value_of(config, where, "max_window_layers", float, 28)
        layers = range(value_of(config, where, "num_hidden_layers"))
        kinds = ["full_attention" if n < full else "sliding_attention" for n in layers]
    for kind, seen in (("full_attention", None), ("sliding_attention", window)):
        if isinstance(kinds, list) and kinds and all(layer == kind for layer in kinds):
            return seen
    raise ValueError(
        f"{where}: all layers must have full_attention or all sliding_attention, got {kinds}. "
        "Our class has no such form; transformers' own can load this checkpoint."
    )
