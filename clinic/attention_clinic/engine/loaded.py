"""Two models that should hold the same weights: what is where, and what mine gives with others."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.modes import Mode

EPS = re.compile(r"(\w*_)?(eps|epsilon)")
HEADS = re.compile(r"(num_|n_?)?((attention|attn|kv|key_value|query)_?)?heads?(_kv)?|n_kv_heads?")
BENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}

Values = Mapping[str, Tensor]


def kind(name: str) -> str:
    """Return the name of a tensor without the number of its layer: layers.*.attn.q_proj.weight."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def kinds(values: Values) -> dict[str, list[str]]:
    """Return the tensors of every kind, layer by layer."""
    found: dict[str, list[str]] = {}
    for name in values:
        found.setdefault(kind(name), []).append(name)
    return found


def parts(values: Values) -> dict[str, dict[str, list[str]]]:
    """Return the kinds of tensors of every part: layers.*.attn.q_proj -> weight, bias -> names."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, names in kinds(values).items():
        part, _, leaf = name.rpartition(".")
        found.setdefault(part, {})[leaf] = names
    return found


class Bend(Mode):
    """Use another activation wherever one is called.

    Args:
        name: of the other one.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.bend = BENDS[name]

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") in ("gelu", "relu", "silu") and args:
            return self.bend(args[0])
        return func(*args, **kwargs)


@dataclass
class Loaded:
    """My model with the weights that it holds, as a copy that may be given others.

    Args:
        model: the copy.
        call: call(model, inputs) -> result.
        inputs: what it is tried on.
    """

    model: nn.Module
    call: Callable[[Any, Any], Any]
    inputs: Any
    values: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {name: p.data for name, p in self.model.named_parameters()}

    @torch.no_grad()
    def run(self, values: Values, eps: float | None = None, bend: str | None = None) -> Tensor:
        """Return what the model gives with other values, another eps, another activation."""
        own = dict(self.model.named_parameters())
        held = []
        try:
            for name, value in values.items():
                own[name].data = value
            for part in self.model.modules() if eps is not None else ():
                for name, value in list(vars(part).items()):
                    if EPS.fullmatch(name) and isinstance(value, float):
                        held.append((part, name, value))
                        setattr(part, name, eps)
            if bend is None:
                return ran(self.call, self.model, self.inputs)
            with Bend(bend):
                return ran(self.call, self.model, self.inputs)
        finally:
            for part, name, value in held:
                setattr(part, name, value)
            for name, value in self.values.items():
                own[name].data = value


def ran(call: Callable[[Any, Any], Any], model: Any, inputs: Any) -> Tensor:
    """Return the first tensor of what a model gives, in double precision."""
    given = copy.deepcopy(inputs)
    with torch.no_grad():
        return first_tensor(call(model, given)).cpu().double()


def numbers(module: Any, pattern: re.Pattern[str]) -> list[Any]:
    """Return the numbers, or pairs of them, that a pattern names in a module and its configs."""
    found: dict[Any, None] = {}
    for part in module.modules() if isinstance(module, nn.Module) else ():
        holders = [part, *(getattr(part, n, None) for n in ("config", "cfg", "args", "params"))]
        for holder in holders:
            if holder is None or isinstance(holder, Tensor):
                continue
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if not pattern.fullmatch(name.lstrip("_")) or isinstance(value, bool):
                    continue
                if isinstance(value, list | tuple):
                    found[tuple(value)] = None
                elif isinstance(value, int | float) and value > 0:
                    found[value] = None
    return list(found)


# --------------------------------------------------------- whose values they are


def pieces(values: Values) -> dict[str, Tensor]:
    """Return the tensors, and the thirds of those that may be packed."""
    found = dict(values)
    for name, value in values.items():
        for axis in range(min(value.ndim, 2)):
            rest = value.shape[1 - axis] if value.ndim == 2 else 1
            if (
                value.ndim < 3
                and value.shape[axis] % 3 == 0
                and (value.ndim == 1 or value.shape[axis] == 3 * rest)
            ):
                for number, part in enumerate(value.chunk(3, dim=axis)):
                    found[f"{name}[{number}]"] = part
    return found


def fitted(value: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Yield the ways in which a tensor may lie in the shape of another."""
    if value.shape == like.shape:
        yield value
    if value.ndim == 2 and value.shape[::-1] == like.shape:
        yield value.T
    if value.ndim != like.ndim and value.numel() == like.numel():
        yield value.reshape(like.shape)
        if value.ndim == 4:
            yield value.permute(0, 2, 3, 1).reshape(like.shape)


def owners(mine: Values, theirs: Values) -> dict[str, list[str]]:
    """Return for every tensor of mine those of theirs, or thirds of them, with the same values."""
    sums: dict[int, list[tuple[str, Tensor, float]]] = {}
    for name, value in pieces(theirs).items():
        sums.setdefault(value.numel(), []).append((name, value, float(value.sum())))
    found = {}
    for name, value in mine.items():
        total = float(value.sum())
        limit = 1e-6 * (1 + float(value.abs().sum()))
        found[name] = [
            other
            for other, theirs_value, their_total in sums.get(value.numel(), ())
            if abs(total - their_total) <= limit
            and any(torch.allclose(way, value, 1e-6, 1e-9) for way in fitted(theirs_value, value))
        ]
    return found


def one_number(value: Tensor) -> bool:
    """Say whether all numbers of a tensor are the same."""
    return value.numel() > 1 and bool((value == value.flatten()[0]).all())


def rearranged(value: Tensor, other: Tensor) -> bool:
    """Say whether a tensor was made of another: reordered, shifted, scaled or rounded."""
    if value.numel() != other.numel() or value.numel() < 2 or one_number(value):
        return False
    ordered, wanted = (t.flatten().sort().values for t in (value, other))
    for made in (ordered, ordered + 1, ordered - 1):
        if torch.allclose(made, wanted, 1e-2, 1e-3 * float(wanted.std())):
            return True
    return any(like(value, way) > 0.9 for way in fitted(other, value))


def like(value: Tensor, other: Tensor) -> float:
    """Return how much two tensors of one shape vary alike, at most 1."""
    one, two = (t.flatten() - t.mean() for t in (value, other))
    return float(one @ two / (one.norm() * two.norm() + 1e-30))
