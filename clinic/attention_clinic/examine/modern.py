"""What a module says of its rotary positions and of its norms of queries and keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import QueryNorms, Scale, Turning
from attention_clinic.bugs.turns import is_mistaken
from attention_clinic.engine.arguments import BASE, ROTARY, Tables, needed, tensors
from attention_clinic.engine.constants import is_number, written
from attention_clinic.examine.leaves import RMS

USUAL = (10_000.0, 500_000.0, 1_000_000.0, 100.0)
BASE_NAMES = re.compile(r"(rope_|rotary_)?(theta|base|theta_base|base_freq|freq_base)(_base)?")
WIDTH_NAMES = ("rotary_dim", "rotary_ndims", "rope_dim", "rope_n_elem", "rotary_emb_dim")


def turning(
    module: nn.Module | Callable[..., Any], tables: Tables | None, sees: bool, meant: bool
) -> Turning | None:
    """Say how a module may turn queries and keys, None when nothing says that it does.

    Args:
        module: the copy, or a function.
        tables: the cosines and sines that it is handed.
        sees: whether the order of the tokens matters to it.
        meant: whether it is meant to turn.
    """
    if not isinstance(module, nn.Module):
        return Turning(USUAL, sees=sees, declared=meant) if sees or meant else None
    told = tables is not None or not needed(module)  # else it may turn when it is given places
    tables = tables if tables is not None and tables.width else None
    declared = meant or tables is not None or (told and _declares(module))
    if not declared and not sees:
        return None
    if tables is not None:
        return Turning((BASE,), (tables.width,), tables.layout, sees, declared)
    numbers = numbers_of(module)
    held = [base for base in _table_bases(module) if not is_mistaken(base, numbers)]
    usual = [base for base in USUAL if not is_mistaken(base, numbers)]
    bases = tuple(dict.fromkeys(_said_bases(module) or held or usual))
    return Turning(bases, tuple(_widths(module)), "", sees, declared, told=numbers)


def numbers_of(module: nn.Module) -> frozenset[float]:
    """Return the numbers that a module, its configurations and its code say."""
    held = [value for holder in holders(module) for value in named(holder).values()]
    return frozenset({float(value) for value in held if is_number(value)} | written(module))


def configs(module: nn.Module) -> Iterator[Any]:
    """Yield the configurations that the parts of a module hold."""
    for part in module.modules():
        for name in ("config", "cfg", "args", "params"):
            held = getattr(part, name, None)
            if held is not None and not isinstance(held, Tensor | nn.Module):
                yield held
                parameters = getattr(held, "rope_parameters", None)
                if isinstance(parameters, dict):
                    yield parameters


def holders(module: nn.Module) -> Iterator[Any]:
    """Yield the parts of a module and their configurations."""
    yield from module.modules()
    yield from configs(module)


def named(holder: Any) -> dict[str, Any]:
    """Return what a part or a configuration holds, by name."""
    if isinstance(holder, dict):
        return holder
    held: dict[str, Any] = {}
    for kind in reversed(type(holder).__mro__):
        if not kind.__module__.startswith(("torch.", "builtins")):
            held |= vars(kind)
    return held | getattr(holder, "__dict__", {})


def _declares(module: nn.Module) -> bool:
    """Say whether a module holds rotary positions, and does not say that they are off."""
    for part in module.modules():
        for name, value in vars(part).items():
            off = isinstance(value, int | float) and value == 0
            if re.search(r"rope|rotary", name) and off:
                return False
    names = [name.rsplit(".", 1)[-1] for name, _ in module.named_modules()]
    return any(ROTARY.search(name) for name in (*names, *(name for name, _ in tensors(module))))


def _said_bases(module: nn.Module) -> list[float]:
    """Return what the base may be by the numbers that the module and its configs hold."""
    found = []
    for holder in holders(module):
        for name, value in named(holder).items():
            if is_number(value) and value > 1 and BASE_NAMES.fullmatch(name):
                found.append(float(value))
    return found


def _table_bases(module: nn.Module) -> list[float]:
    """Return what the base may be by the tables of angles that the module holds."""
    bases: list[float] = []
    rough: list[float] = []
    for name, value in tensors(module):
        found = _base_of(name, value)
        if found is not None:
            near = round(found)
            cosines = "cos" in name and not value.is_complex()
            (rough if cosines else bases).append(
                float(near) if abs(near - found) < 1e-4 * found else found
            )
    for found in rough:  # cosines of slow pairs are 1 but for the last digits
        close = (base for base in (*bases, *USUAL) if abs(math.log(base / found)) < 0.3)
        bases.append(next(close, found))
    return bases


def _base_of(name: str, value: Tensor) -> float | None:
    """Return the base that a table of frequencies, angles, cosines or sines was made with."""
    if not ROTARY.search(name) or value.numel() < 2:
        return None
    row = value.squeeze()
    if row.ndim == 2 and len(row) > 1:
        row = row[1]
        if row.is_complex():
            row = row.angle()
        elif "cos" in name:
            row = row.double().clamp(-1, 1).acos()
        elif "sin" in name:
            row = row.double().clamp(-1, 1).asin()
        elif "freq" not in name and "angle" not in name:
            return None
    if row.ndim != 1 or row.is_complex() or not row.is_floating_point():
        return None
    steps = torch.unique(row.double().flip(0))
    steps = steps[steps > 0]
    if len(steps) < 2 or abs(float(steps.max()) - 1) > 0.01:
        return None
    return float(steps.min()) ** (-len(steps) / (len(steps) - 1))


def _widths(module: nn.Module) -> Iterator[int]:
    """Yield how many numbers of a head may be turned, where fewer than all may be."""
    for holder in holders(module):
        held = named(holder)
        for name in WIDTH_NAMES:
            if isinstance(held.get(name), int) and held[name] > 0:
                yield held[name]
    for name, value in tensors(module):  # one frequency for each pair
        if value.squeeze().ndim == 1 and _base_of(name, value) is not None:
            yield 2 * len(value.unique())


def query_norms(module: nn.Module) -> QueryNorms | None:
    """Find the norms of queries and keys by their names.

    Args:
        module: the copy.
    """
    found: dict[str, nn.Module] = {}
    values: nn.Module | None = None
    for path, part in module.named_modules():
        name = path.rsplit(".", 1)[-1].lower()
        if isinstance(part, nn.Identity) or not re.search(r"norm|ln|rms", name):
            continue
        word = re.sub(r"layer_?norm|norms?|rms|ln|layer|_|states?", "", name)
        if word in ("q", "query", "queries", "qk"):
            found.setdefault("q", part)
        if word in ("k", "key", "keys", "qk"):
            found.setdefault("k", part)
        if word in ("v", "value", "values"):
            values = part
    if values is not None and len(found) == 1:  # meant for the other side, and put at the values
        found["q" if "k" in found else "k"] = values
    if set(found) != {"q", "k"}:
        return None
    scales = {name: _scale(part) for name, part in found.items()}
    part = found["q"]
    kind = type(part).__name__.lower()
    kind = "rms" if RMS.search(kind) else "layer" if isinstance(part, nn.LayerNorm) else ""
    eps = [getattr(part, name, None) for name in ("eps", "variance_epsilon", "epsilon")]
    known = tuple(float(value) for value in eps if isinstance(value, float))
    return QueryNorms(scales["q"], scales["k"], kind, known)


def _scale(part: nn.Module) -> Scale:
    """Return the weight and the bias of a norm."""
    held = {name.rsplit(".", 1)[-1]: p for name, p in part.named_parameters()}
    alike = [p for name, p in part.named_parameters() if name.endswith("weight")]
    if len(alike) > 1 and len({p.shape for p in alike}) == 1:  # a norm of its own for each head
        return Scale(torch.stack(alike), None) if set(held) == {"weight"} else Scale(None, None)
    bias = held.get("bias", held.get("beta"))
    weights = [p for p in held.values() if p is not bias and p.ndim in (1, 2)]
    return Scale(weights[0] if weights else None, bias)
