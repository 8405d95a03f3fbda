"""What the config.json of a checkpoint says, checked (chapter 15)."""

from collections.abc import Callable, Sequence
from math import inf, log
from pathlib import Path
from typing import Any

import torch

from utils.hub.checkpoints import Config, open_checkpoint
from utils.modern_decoder import RopeScaling

# the types that a value can have: how a message calls one, and which values are of it
KINDS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    int: ("an integer of at least 1", lambda value: type(value) is int and value >= 1),
    float: (
        "a finite number of at least 0",
        lambda value: type(value) in (int, float) and 0 <= value < inf,
    ),
    bool: ("true or false", lambda value: type(value) is bool),
    dict: ("an object with names and values", lambda value: type(value) is dict),
    list: ("a list", lambda value: type(value) is list),
}
MISSING = object()
LOW_HIGH = ("low", "high")
BETAS = {"slow": 1.0, "fast": 32.0}  # of YaRN, which calls the two numbers of turns so


def open_config(
    where: str, name: str | Path, dtype: torch.dtype, kinds: Sequence[str]
) -> tuple[Path, Config]:
    """Return the folder of a checkpoint and its config, after checking what the weights become.

    Args:
        where: the public name that an error begins with.
        name: see `open_checkpoint`.
        dtype: what the weights become.
        kinds: the families that are welcome, as the config calls them.

    Raises: ValueError for another type of weights, or as `open_checkpoint`.
    """
    half_to_double = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if dtype not in half_to_double:
        raise ValueError(
            f"{where}: dtype must be one of {half_to_double}, got dtype={dtype!r}. "
            "Pass for example torch.bfloat16."
        )
    return open_checkpoint(where, name, *kinds)


def value_of(config: Config, where: str, key: str, kind: type = int, default: Any = MISSING) -> Any:
    """Return what the config says under a key; null and no entry mean the default, if any.

    Args:
        config: of the checkpoint.
        where: the public name that an error begins with.
        key: the name of the entry.
        kind: the type that the value must have, one of `KINDS`.
        default: what to return without a value; left out, there must be one.

    Raises: ValueError for no entry, or a value of another type.
    """
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


def demand(where: str, config: Config, key: str, value: object, default: object) -> None:
    """Refuse a model of a form that ours does not have.

    Args:
        where: the public name that an error begins with.
        config: of the checkpoint.
        key: the name of the entry.
        value: the only one that ours can be.
        default: what no entry means.

    Raises: ValueError for another value.
    """
    if config.get(key, default) != value:
        raise ValueError(
            f"{where}: config.json must say {key}={value!r}, got {key}={config[key]!r}. "
            "Our class has no such form; transformers' own can load this checkpoint."
        )


def rotary_of(where: str, config: Config, yarn: bool = False) -> dict[str, Any]:
    """Return rope_theta and rope_scaling, which old and new configs call differently.

    Args:
        where: the public name that an error begins with.
        config: of the checkpoint.
        yarn: whether its class has the form of YaRN, too.

    Raises: ValueError for another form, or for one that differs between the layers.
    """
    new = value_of(config, where, "rope_parameters", dict, {})
    layers = [kind for kind in new.values() if isinstance(kind, dict)]
    if layers:  # one entry for each type of layer
        new = layers[0]
    rope = new or value_of(config, where, "rope_scaling", dict, {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    parts = [rope.get(key, config.get(key)) for key in ("partial_rotary_factor", "rotary_pct")]
    known = ["default", "llama3", *["yarn"] * yarn]
    odd = kind not in known or any(part not in (None, 1, 1.0) for part in parts)
    if odd or any(layer != new for layer in layers):
        raise ValueError(
            f"{where}: rotary must be of the type {' or '.join(known)}, for whole heads and the "
            f"same in all layers, got {config.get('rope_parameters') or rope}. "
            "Our class has no other; transformers' own can load this checkpoint."
        )
    theta = float(value_of({**config, **new}, where, "rope_theta", float, 10_000.0))
    if kind == "default":
        return {"rope_theta": theta}
    factor = float(value_of(rope, where, "factor", float))
    if kind == "yarn":
        low, high = (float(value_of(rope, where, f"beta_{k}", float, d)) for k, d in BETAS.items())
    else:
        low, high = (float(value_of(rope, where, f"{k}_freq_factor", float)) for k in LOW_HIGH)
    if not 0 < low < high or not factor or (kind == "yarn" and theta <= 1):
        raise ValueError(
            f"{where}: factor and the two numbers of turns must be above 0 and rise from low to "
            f"high, and the base of YaRN above 1, got {[factor, low, high]} and {theta}. "
            "Llama 3.1 has 8.0, 1.0 and 4.0."
        )
    length = value_of(config, where, "max_position_embeddings", int, 8192)
    length = value_of(rope, where, "original_max_position_embeddings", int, length)
    scaling = RopeScaling(factor, low, high, length)
    if kind == "yarn":
        near, far = (value_of(rope, where, key, float, 0) for key in ("mscale", "mscale_all_dim"))
        usual = grown(factor, near) / grown(factor, far) if near and far else grown(factor, 1.0)
        scaling = scaling._replace(
            by_number=True,
            truncate=value_of(rope, where, "truncate", bool, True),
            attention_factor=float(value_of(rope, where, "attention_factor", float, usual)),
        )
    return {"rope_theta": theta, "rope_scaling": scaling}


def grown(factor: float, amount: float) -> float:
    """Return by how much YaRN multiplies queries and keys of sequences that are longer.

    Args:
        factor: how many times longer.
        amount: how much of it a config wants.
    """
    return 0.1 * amount * log(factor) + 1 if factor > 1 else 1.0
