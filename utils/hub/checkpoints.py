"""Read a checkpoint: a folder or a name on the hub, in one file or in several (chapter 15)."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

Config = dict[str, Any]

INDEX = "model.safetensors.index.json"

# model_type -> the function that loads it
LOADERS = {"vit": "load_vit", "bert": "load_bert", "gpt2": "load_gpt2"}
LOADERS |= dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), "load_llama")
DECODERS = ("mixtral", "qwen3_moe", "gemma3_text", "gpt_oss", "deepseek_v3")
LOADERS |= dict.fromkeys(DECODERS, "load_decoder")


def open_checkpoint(where: str, name: str | Path, *kinds: str) -> tuple[Path, Config]:
    """Return the folder of a checkpoint, and what its config.json says.

    Args:
        where: the public name that an error begins with.
        name: a folder, or a name on HuggingFace's hub; without a network, its cache is read.
        kinds: the families that are welcome, as the config calls them.

    Raises: ValueError for no folder and no such name, no config.json or a damaged one, or the
        checkpoint of another family.
    Source: chapter 15.
    """
    folder = _folder(where, name)
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{where}: the folder must hold config.json, got {_listed(folder)}. "
            "A checkpoint is the folder that save_pretrained wrote, not a file in it."
        )
    config = _json(where, path)
    kind = config.get("model_type")
    if kind not in kinds:
        known = isinstance(kind, str) and kind in LOADERS
        fix = f"Take {LOADERS[kind]}" if known else "Take AutoModel of transformers: none here can"
        raise ValueError(
            f"{where}: model_type must be {' or '.join(kinds)}, got model_type={kind!r}. {fix}."
        )
    return folder, config


def read_tensors(where: str, folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, from one file or from the shards of an index.

    Pickle is never read: it can run code.

    Args:
        where: the public name that an error begins with.
        folder: of the checkpoint.

    Shape:
        result  name -> tensor (...), as it is in the file

    Raises: ValueError for no safetensors, a file that is damaged or cut off, an index that is
        damaged, or shards that are not what it promises.
    Source: chapter 15.
    """
    if (folder / "model.safetensors").is_file():
        return _read_file(where, folder / "model.safetensors")
    if not (folder / INDEX).is_file():
        fix = "Save it again with save_pretrained, which writes safetensors."
        if any(path.suffix in (".bin", ".pt", ".pth") for path in folder.iterdir()):
            fix = f"Pickle can run code when it is read, so it is not read here. {fix}"
        raise ValueError(
            f"{where}: the folder must hold model.safetensors or {INDEX}, "
            f"got {_listed(folder)}. {fix}"
        )
    places = _json(where, folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise ValueError(
            f"{where}: {INDEX} must have a weight_map from tensors to files, got none. "
            "It is damaged: fetch it again."
        )
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        path = folder / file
        if path.parent != folder or not path.is_file():
            raise ValueError(
                f"{where}: every file that {INDEX} names must lie beside it, got none called "
                f"{file!r}. Fetch the checkpoint again, all of it."
            )
        part = _read_file(where, path)
        promised = {name for name, place in places.items() if place == file}
        if part.keys() != promised:
            raise ValueError(
                f"{where}: {file} must hold the tensors that {INDEX} promises, got a difference "
                f"in {list_some(sorted(part.keys() ^ promised))}. "
                "The files belong to two checkpoints."
            )
        tensors |= part
    return tensors


def list_some(names: Sequence[str]) -> str:
    """List the first three names, and say how many more there are.

    >>> list_some(["a", "b", "c", "d"])
    'a, b, c and 1 more'

    Args:
        names: what is to be listed.

    Source: chapter 15.
    """
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _folder(where: str, name: str | Path) -> Path:
    """Return a folder as it is, and of a name on the hub the folder in the cache."""
    if isinstance(name, str | Path) and name != "" and Path(name).is_dir():
        return Path(name)
    if not isinstance(name, str | Path) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(name)):
        raise ValueError(
            f"{where}: name must be a folder that exists, or a name on the hub such as "
            f"someone/model, got {name!r}. Check the spelling."
        )
    from huggingface_hub import snapshot_download  # here, since it takes a while

    wanted = ["config.json", "model.safetensors", "model-*.safetensors", INDEX]
    try:
        return Path(snapshot_download(str(name), allow_patterns=wanted))
    except (OSError, ValueError) as error:  # the hub's own errors are one or the other
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error) else "no reason"
        raise ValueError(
            f"{where}: name must be a folder, or a name on the hub that is in the cache or can be "
            f"fetched, got {str(name)!r} ({type(error).__name__}: {reason}). "
            "Check the spelling, and the network if it is a name."
        ) from error


def _json(where: str, path: Path) -> Config:
    """Read a JSON file that holds names and values."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of bytes that are no text
        raise ValueError(
            f"{where}: {path.name} must be JSON, got a file that is not ({error}). "
            "It is damaged: fetch it again."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{where}: {path.name} must hold names and values, got a {type(content).__name__}. "
            "It is damaged: fetch it again."
        )
    return content


def _read_file(where: str, path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file."""
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{where}: {path.name} must be a whole safetensors file, got one that is damaged or "
            f"cut off ({error}). Fetch it again."
        ) from error


def _listed(folder: Path) -> str:
    """Say which files a folder holds."""
    return list_some(sorted(path.name for path in folder.iterdir())) or "an empty folder"
