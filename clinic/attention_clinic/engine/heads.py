"""How many heads a module says that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

NAMES = (
    "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_head", "heads", "num_attention_heads",
    "n_attention_heads", "num_q_heads", "n_local_heads", "attention_heads", "head_num", "n_h",
    "num_query_heads", "head_count", "multihead", "head", "h", "H",
)  # fmt: skip
SHARED_NAMES = (
    "num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads", "kv_heads", "num_kv_head",
    "n_kv_h", "nkv_heads", "number_of_kv_heads",
)  # fmt: skip
CONFIGS = ("config", "cfg", "args", "params", "hparams", "conf")
HELD_LISTS = ("heads", "attention_heads", "attn_heads", "head_list", "self_attention_heads")


def said_heads(module: nn.Module | Callable[..., Any]) -> int | None:
    """Return the number of heads that a module says, None where it says none.

    The module's own words come before those of its parts, and these before its configuration's.

    Args:
        module: an attention, or a block.
    """
    if not isinstance(module, nn.Module):
        return None
    for holders in (_own(module), _of_parts(module), _of_configs(module)):
        for holder in holders:
            found = _said(holder)
            if found is not None:
                return found
    return None


def said_shared(module: nn.Module | Callable[..., Any]) -> int | None:
    """Return the number of heads of keys and values that a module itself says, None for none.

    Args:
        module: an attention; configurations speak of other layers, too.
    """
    parts = module.modules() if isinstance(module, nn.Module) else ()
    said = {found for part in parts if (found := _said(part, SHARED_NAMES)) is not None}
    return said.pop() if len(said) == 1 else None


def _own(module: nn.Module) -> Iterator[Any]:
    yield module


def _of_parts(module: nn.Module) -> Iterator[Any]:
    yield from (part for part in module.modules() if part is not module)


def _of_configs(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        for name in CONFIGS:
            held = getattr(part, name, None)
            if held is not None and not isinstance(held, nn.Module):
                yield held


def _said(holder: Any, names: tuple[str, ...] = NAMES) -> int | None:
    """Return the number that one holder says under one of these names."""
    for name in names:
        value = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if isinstance(holder, nn.Module) and names is NAMES:  # each head is a module of its own
        for name in HELD_LISTS:
            value = getattr(holder, name, None)
            if isinstance(value, nn.ModuleList) and len(value) > 0:
                return len(value)
    return None
