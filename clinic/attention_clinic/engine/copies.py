"""What a deep copy of a module leaves as it was, or cannot copy."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, FunctionType

import torch
from torch import Tensor, nn


def in_type(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Make the numbers of a module double or single, and leave complex ones as they are.

    `module.to(dtype)` would keep the real parts of these alone.
    """
    return module.double() if dtype == torch.float64 else module.float()


def held_in(value: object, deep: int = 6) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples, dictionaries and plain objects, such as caches."""
    if isinstance(value, Tensor):
        yield value
    elif deep and not isinstance(value, nn.Module | type):
        plain = isinstance(value, list | tuple | set)
        inner = value if plain else getattr(value, "__dict__", {}).values()
        for one in value.values() if isinstance(value, dict) else inner:
            yield from held_in(one, deep - 1)


def remember(module: nn.Module, memo: dict[int, object]) -> None:
    """Let each parameter of a copy say of which parameter of its user it is one: `origin_of`.

    Args:
        module: what was copied: its user's, or a copy of that.
        memo: what was copied, by the id of the original.
    """
    for parameter in module.parameters():
        made = memo.get(id(parameter))
        if isinstance(made, nn.Parameter):
            vars(made)["copy_of"] = origin_of(parameter)


def origin_of(parameter: Tensor) -> Tensor:
    """Return the parameter of a user's module that this one is a copy of, or itself."""
    return getattr(parameter, "copy_of", parameter)


def rebind(part: nn.Module, memo: dict[int, object]) -> None:
    """Let the functions that a copied part keeps see the copy: deepcopy leaves them as they were.

    Args:
        part: of the copy, such as a block with self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x))).
        memo: what was copied, by the id of the original.
    """
    for name, value in list(vars(part).items()):
        cells = getattr(value, "__closure__", None)
        if isinstance(value, FunctionType) and cells:
            seen = [memo.get(id(cell.cell_contents), cell.cell_contents) for cell in cells]
            vars(part)[name] = FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                value.__defaults__,
                tuple(CellType(content) for content in seen),
            )


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Give every parameter random values, so that no zero, one or equal start hides a mistake.

    A parameter of one number keeps it, unless that is 0 or none: it is mostly the factor of the
    scores, and only the module's own factor says something about the module. One that holds -inf
    is a mask, which no module learns.

    Args:
        module: a copy that may be changed.
        seed: of the values.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or is_factor(parameter):
            continue
        if parameter.numel() > 1 and bool(parameter.isneginf().any()):
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if parameter.ndim > 1:
            # Linear weights (out, in): about 1 in, about 1 out
            noise *= max(1, *parameter.shape[-2:]) ** -0.5
        else:
            one = name.rsplit(".", 1)[-1] in ("weight", "gamma", "a_2", "scale", "g", "alpha")
            noise = noise * 0.3 + one
        parameter.data.copy_(noise)


def is_factor(parameter: Tensor) -> bool:
    """Say whether a parameter is one number other than 0."""
    return parameter.numel() == 1 and bool(parameter.isfinite().all() and (parameter != 0).all())
