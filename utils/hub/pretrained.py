"""Weights that others trained, in the classes of the course (chapter 15)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from utils.hub.checkpoints import Config, list_some, open_checkpoint, read_tensors
from utils.language_model import LanguageModel, TextEncoder
from utils.modern_decoder import ModernDecoder, RopeScaling
from utils.vision_transformer import VisionTransformer

Model = TypeVar("Model", bound=nn.Module)


# --- what happens to a tensor on the way: a row of a table holds one of these, or only a name


@dataclass(frozen=True)
class Changed:
    """Say which of our tensors one of theirs becomes, and how.

    Args:
        names: ours, in the order in which `change` returns them.
        change: what is done to their tensor on the way.

    Shape:
        change  theirs (...) -> one tensor (...) for each name

    Source: chapter 15.
    """

    names: tuple[str, ...]
    change: Callable[[Tensor], Sequence[Tensor]]


def transposed(name: str) -> Changed:
    """Turn a weight over, as the files of GPT-2 need it; a bias stays.

    Args:
        name: ours.

    Shape:
        weight  (in, out) -> (out, in)
        bias    (out,) -> (out,)

    Source: chapter 15.
    """
    return Changed((name,), lambda tensor: [tensor.t()])


def unpacked(*names: str) -> Changed:
    """Turn a weight over, and cut its rows into one part for each name: queries, keys, values.

    Args:
        names: ours, in the order of the rows.

    Shape:
        weight  (in, 3 * out) -> three of (out, in)
        bias    (3 * out,) -> three of (out,)

    Source: chapter 15.
    """
    # transposed as a whole first: PyTorch does that fast, and parts slowly
    return Changed(names, lambda tensor: tensor.t().contiguous().chunk(len(names)))


def flattened(name: str) -> Changed:
    """Lay the weight of a convolution out as that of a Linear, in the order of `patchify`.

    Args:
        name: ours.

    Shape:
        weight  (e, c, ph, pw) -> (e, c * ph * pw)

    Source: chapters 01 and 15.
    """
    return Changed((name,), lambda tensor: [tensor.flatten(1)])


# --- the tables: their names -> ours. A star is the number of a block. Without .weight or .bias a
# row means both. None: it is in the files, and no part of our model.

ATTENTION = "encoder.layers.*.attn."
MLP = "encoder.layers.*.mlp."

VIT = {
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

BERT = {
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

GPT2 = {
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
LLAMA = {
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

Table = Mapping[str, str | Changed | None]

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
    folder, config = _open(where, name, dtype, ["vit"])
    _demand(where, config, "qkv_bias", True, default=True)
    _demand(where, config, "pooler_act", "tanh", default="tanh")
    options = {
        "image_size": _size(config, where, "image_size"),
        "patch_size": _size(config, where, "patch_size"),
        "in_channels": _of(config, where, "num_channels"),
        "num_classes": _classes(config, where),
        **_encoder_sizes(config, where),
    }
    return _load(where, folder, VisionTransformer, options, VIT, "vit.", dtype)


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
    folder, config = _open(where, name, dtype, ["bert"])
    _demand(where, config, "is_decoder", False, default=False)
    _demand(where, config, "add_cross_attention", False, default=False)
    _demand(where, config, "position_embedding_type", "absolute", default="absolute")
    options = {
        "vocab_size": _of(config, where, "vocab_size"),
        "max_length": _of(config, where, "max_position_embeddings"),
        "num_types": _of(config, where, "type_vocab_size"),
        **_encoder_sizes(config, where),
    }
    return _load(where, folder, TextEncoder, options, BERT, "bert.", dtype)


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
    folder, config = _open(where, name, dtype, ["gpt2"])
    _demand(where, config, "scale_attn_weights", True, default=True)
    _demand(where, config, "scale_attn_by_inverse_layer_idx", False, default=False)
    _demand(where, config, "add_cross_attention", False, default=False)
    width = _of(config, where, "n_embd")
    options = {
        "vocab_size": _of(config, where, "vocab_size"),
        "embed_dim": width,
        "num_heads": _of(config, where, "n_head"),
        "mlp_dim": _of(config, where, "n_inner", int, 4 * width),
        "num_layers": _of(config, where, "n_layer"),
        "max_length": _of(config, where, "n_positions"),
        "tie_weights": _of(config, where, "tie_word_embeddings", bool, True),
        "activation": _activation(where, config, "activation_function"),
        "norm_eps": _of(config, where, "layer_norm_epsilon", float),
    }
    return _load(where, folder, LanguageModel, options, GPT2, "transformer.", dtype)


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
    folder, config = _open(where, name, dtype, ["llama", "mistral", "qwen2", "qwen3"])
    kind = config["model_type"]
    _demand(where, config, "hidden_act", "silu", default="silu")
    _demand(where, config, "attention_bias", False, default=False)
    _demand(where, config, "mlp_bias", False, default=False)
    width, heads = _of(config, where, "hidden_size"), _of(config, where, "num_attention_heads")
    options = {
        "vocab_size": _of(config, where, "vocab_size"),
        "embed_dim": width,
        "num_heads": heads,
        "num_kv_heads": _of(config, where, "num_key_value_heads", int, heads),
        "mlp_dim": _of(config, where, "intermediate_size"),
        "num_layers": _of(config, where, "num_hidden_layers"),
        "head_dim": _of(config, where, "head_dim", int, 128 if kind == "qwen3" else None),
        "bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
        "tie_weights": _of(config, where, "tie_word_embeddings", bool, False),
        "norm_eps": _of(config, where, "rms_norm_eps", float),
        "window": _window(where, config),
        **_rotary(where, config),
    }
    return _load(where, folder, ModernDecoder, options, LLAMA, "model.", dtype)


# --- what a config says

# the types that a value can have: how a message calls one, and which values are of it
KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    int: ("an integer of at least 1", lambda value: type(value) is int and value >= 1),
    float: (
        "a finite number of at least 0",
        lambda value: type(value) in (int, float) and 0 <= value < inf,
    ),
    bool: ("true or false", lambda value: type(value) is bool),
    dict: ("an object with names and values", lambda value: type(value) is dict),
}
MISSING = object()


def _open(
    where: str, name: str | Path, dtype: torch.dtype, kinds: Sequence[str]
) -> tuple[Path, Config]:
    """Return the folder of a checkpoint and its config, after checking what the weights become."""
    half_to_double = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if dtype not in half_to_double:
        raise ValueError(
            f"{where}: dtype must be one of {half_to_double}, got dtype={dtype!r}. "
            "Pass for example torch.bfloat16."
        )
    return open_checkpoint(where, name, *kinds)


def _of(config: Config, where: str, key: str, kind: type = int, default: Any = MISSING) -> Any:
    """Return what the config says under a key; null and no entry mean the default, if any."""
    if key not in config and default is MISSING:
        raise ValueError(
            f"{where}: config.json must say {key!r}, got {len(config)} other keys. "
            "Take the config.json that was saved with these weights."
        )
    value = config.get(key)
    if value is None and default is not MISSING:
        return default
    rule, fits = KINDS[kind]
    if not fits(value):
        raise ValueError(
            f"{where}: {key} in config.json must be {rule}, got {key}={value!r}. "
            "Take the config.json that was saved with these weights."
        )
    return value


def _demand(where: str, config: Config, key: str, value: object, default: object) -> None:
    """Refuse a model of a form that ours does not have."""
    if config.get(key, default) != value:
        raise ValueError(
            f"{where}: config.json must say {key}={value!r}, got {key}={config[key]!r}. "
            "Our class has no such form; transformers' own can load this checkpoint."
        )


def _size(config: Config, where: str, key: str) -> tuple[int, int]:
    """Return a side of an image or patch as (height, width)."""
    size = config.get(key)
    sides = size if isinstance(size, list) and len(size) == 2 else (size, size)
    height, width = (_of({**config, key: side}, where, key) for side in sides)
    return height, width


def _classes(config: Config, where: str) -> int:
    """Return the number of classes: that of their names, or what num_labels says, or 2."""
    names = _of(config, where, "id2label", dict, {})
    return len(names) or _of(config, where, "num_labels", int, 2)


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
        "embed_dim": _of(config, where, "hidden_size"),
        "num_heads": _of(config, where, "num_attention_heads"),
        "mlp_dim": _of(config, where, "intermediate_size"),
        "num_layers": _of(config, where, "num_hidden_layers"),
        "activation": _activation(where, config, "hidden_act"),
        "norm_eps": _of(config, where, "layer_norm_eps", float),
    }


def _rotary(where: str, config: Config) -> dict[str, Any]:
    """Return rope_theta and rope_scaling, which old and new configs call differently."""
    new = _of(config, where, "rope_parameters", dict, {})
    layers = [kind for kind in new.values() if isinstance(kind, dict)]
    if layers:  # one entry for each type of layer
        new = layers[0]
    rope = new or _of(config, where, "rope_scaling", dict, {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    parts = [rope.get(key, config.get(key)) for key in ("partial_rotary_factor", "rotary_pct")]
    odd = kind not in ("default", "llama3") or any(part not in (None, 1, 1.0) for part in parts)
    if odd or any(layer != new for layer in layers):
        raise ValueError(
            f"{where}: rotary must be of the type default or llama3, for whole heads and the same "
            f"in all layers, got {config.get('rope_parameters') or rope}. "
            "Our class has no other; transformers' own can load this checkpoint."
        )
    theta = _of({**config, **new}, where, "rope_theta", float, 10_000.0)
    if kind == "default":
        return {"rope_theta": float(theta)}
    names = ("factor", "low_freq_factor", "high_freq_factor")
    numbers = [float(_of(rope, where, name, float)) for name in names]
    if not 0 < numbers[1] < numbers[2] or not numbers[0]:
        raise ValueError(
            f"{where}: factor, low_freq_factor and high_freq_factor must be above 0 and rise from "
            f"low to high, got {numbers}. Llama 3.1 has 8.0, 1.0 and 4.0."
        )
    length = _of(config, where, "max_position_embeddings", int, 8192)
    length = _of(rope, where, "original_max_position_embeddings", int, length)
    return {"rope_theta": float(theta), "rope_scaling": RopeScaling(*numbers, length)}


def _window(where: str, config: Config) -> int | None:
    """Return how far back a token sees, or None."""
    window = _of(config, where, "sliding_window", int, None)
    if config["model_type"] == "mistral":
        return window
    slides = _of(config, where, "use_sliding_window", bool, False)
    if config["model_type"] == "llama" or window is None or not slides:
        return None
    kinds = config.get("layer_types")
    if kinds is None:  # an old config: the first layers have full attention
        full = _of(config, where, "max_window_layers", float, 28)
        layers = range(_of(config, where, "num_hidden_layers"))
        kinds = ["full_attention" if n < full else "sliding_attention" for n in layers]
    for kind, seen in (("full_attention", None), ("sliding_attention", window)):
        if isinstance(kinds, list) and kinds and all(layer == kind for layer in kinds):
            return seen
    raise ValueError(
        f"{where}: all layers must have full_attention or all sliding_attention, got {kinds}. "
        "Our class has no such form; transformers' own can load this checkpoint."
    )


# --- from their tensors to ours


def _load(
    where: str,
    folder: Path,
    kind: type[Model],
    options: dict[str, Any],
    table: Table,
    prefix: str,
    dtype: torch.dtype,
) -> Model:
    """Build a model and give it the tensors of a checkpoint: all of them, or raise."""
    with torch.device("meta"):  # shapes without numbers: nothing is drawn to be thrown away
        model = kind(**options)
    tied = options.get("tie_weights", False)
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    ours = _translate(where, read_tensors(where, folder), wanted, table, prefix)
    if tied:
        _check_tied(where, ours)
    if missing := sorted(wanted.keys() - ours.keys() - ({"head.weight"} if tied else set())):
        theirs = _their_names(table, missing)
        raise ValueError(
            f"{where}: the checkpoint must hold every tensor of the model, "
            f"got none for {list_some(theirs)}. The file is of another model, or was saved in part."
        )
    state = {name: _copy(value, dtype) for name, value in ours.items()}
    if tied:  # the state dict has the one table under both names
        state["head.weight"] = state["embedding.tokens.weight"]
    model.load_state_dict(state, assign=True)
    if tied:
        model.head.weight = model.embedding.tokens.weight
    return model.eval()


def _translate(
    where: str,
    theirs: dict[str, Tensor],
    wanted: dict[str, torch.Size],
    table: Table,
    prefix: str,
) -> dict[str, Tensor]:
    """Return their tensors under our names, after checking the shape of each."""
    ours: dict[str, Tensor] = {}
    extra = []
    for name, tensor in theirs.items():
        row = find_row(table, name.removeprefix(prefix))
        if row is None:
            continue
        if not row.names or not wanted.keys() >= set(row.names):
            extra.append(name)
            continue
        if twice := ours.keys() & set(row.names):
            raise ValueError(
                f"{where}: every tensor must come once, got {name} for {list_some(sorted(twice))}, "
                "which has one. The file holds two models."
            )
        ours |= _change(where, name, tensor, row, wanted)
    if extra:
        raise ValueError(
            f"{where}: the model must have a place for every tensor, "
            f"got {list_some(sorted(extra))}, for which it has none. "
            "The file is of another model, or its config.json is."
        )
    return ours


def find_row(table: Table, name: str) -> Changed | None:
    """Return where one of their tensors goes.

    Args:
        table: their names -> ours, such as `GPT2`.
        name: of their tensor, without the prefix of the model.

    Returns:
        A `Changed` with our names; without names if the table does not know theirs; None if it
        says that the tensor is no part of the model.

    Source: chapter 15.
    """
    number = next(iter(re.findall(r"\.(\d+)\.", name)), "")
    starred = re.sub(r"\.\d+\.", ".*.", name, count=1)
    stem, _, kind = starred.rpartition(".")
    # the first BERT called a norm's weight gamma and its bias beta
    ending = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    for key, suffix in ((starred, ""), (stem, f".{ending}")):
        if key not in table or (suffix and ending not in ("weight", "bias")):
            continue
        row = table[key]
        if row is None:
            return None
        if isinstance(row, str):
            row = Changed((row,), lambda tensor: [tensor])
        names = tuple(ours.replace("*", number) + suffix for ours in row.names)
        return Changed(names, row.change)
    return Changed((), lambda tensor: [])


def _change(
    where: str, name: str, tensor: Tensor, row: Changed, wanted: dict[str, torch.Size]
) -> dict[str, Tensor]:
    """Return the tensors that one of theirs becomes."""
    if not tensor.is_floating_point() or tensor.itemsize == 1:  # float8 needs its scales
        raise ValueError(
            f"{where}: weights must be floating point numbers of 16 bits or more, got {name} of "
            f"{tensor.dtype}. The checkpoint is quantized: take the one that it was made from."
        )
    try:
        parts = dict(zip(row.names, row.change(tensor), strict=True))
    except (
        RuntimeError,
        IndexError,
        ValueError,
    ):  # it has too many or too few axes, or cannot be cut
        parts = {}
    if not parts or any(part.shape != wanted[ours] for ours, part in parts.items()):
        shapes = " and ".join(f"{ours} {tuple(wanted[ours])}" for ours in row.names)
        raise ValueError(
            f"{where}: {name} must fit into {shapes}, got {name}.shape={tuple(tensor.shape)}. "
            "The file and its config.json do not belong together."
        )
    return parts


def _copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a tensor out of its file, so that the model outlives what becomes of the file."""
    if value.dtype == dtype:
        return value.clone(memory_format=torch.contiguous_format)
    return value.to(dtype, memory_format=torch.contiguous_format)


def _check_tied(where: str, ours: dict[str, Tensor]) -> None:
    """Take a second table for the head out, where one serves both ends; refuse another one."""
    head = ours.pop("head.weight", None)
    table = ours.get("embedding.tokens.weight", head)
    if head is not None and not torch.equal(table, head):
        raise ValueError(
            f"{where}: with tie_word_embeddings=true one table must serve both ends, "
            "got two different ones. Set tie_word_embeddings to false in config.json if the "
            "model was trained with two."
        )


def _their_names(table: Table, missing: list[str]) -> list[str]:
    """Return under which names the tensors that are missing would be in the file."""
    names: dict[str, str] = {}
    for theirs, row in table.items():
        targets = (row,) if isinstance(row, str) else row.names if row else ()
        names |= dict.fromkeys(targets, theirs)
    found = []
    for name in missing:
        starred = re.sub(r"\.\d+\.", ".*.", name, count=1)
        number = next(iter(re.findall(r"\.(\d+)\.", name)), "")
        stem, _, ending = starred.rpartition(".")
        theirs = names.get(starred) or f"{names[stem]}.{ending}"
        found.append(theirs.replace("*", number))
    return sorted(set(found))
