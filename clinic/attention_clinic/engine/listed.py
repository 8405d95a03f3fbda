"""Layers that a module keeps where PyTorch does not look: in a plain list, tuple or dict."""

from __future__ import annotations

from torch import Tensor, nn


def register_listed(module: nn.Module) -> tuple[str, ...]:
    """Register such layers of a copy, and return the names of the attributes that hold them.

    Without it no weight of theirs can be read or made random, as no optimizer sees one.

    Args:
        module: a copy that may be changed.
    """
    known = {id(part) for part in module.modules()}
    found = []
    for name, part in list(module.named_modules()):
        for key, value in list(vars(part).items()):
            held = value.values() if isinstance(value, dict) else value
            if key.startswith("_") or not isinstance(value, dict | list | tuple):
                continue
            layers = [one for one in held if isinstance(one, nn.Module) and id(one) not in known]
            parts = [inner for layer in layers for inner in layer.modules()]
            plain = any(_learns(one) for inner in parts for one in vars(inner).values())
            if plain or any(True for layer in layers for _ in layer.parameters()):
                part.add_module(f"{key}_registered", nn.ModuleList(layers))
                found.append(f"{name}.{key}".lstrip("."))
    return tuple(found)


def register_plain(module: nn.Module) -> tuple[str, ...]:
    """Make parameters of the tensors of a copy that ask for gradients, and return their names.

    Args:
        module: a copy that may be changed.
    """
    found = []
    for path, part in list(module.named_modules()):
        for key, value in list(vars(part).items()):
            if key.startswith("_"):
                continue
            if _learns(value):
                del vars(part)[key]
                part.register_parameter(key, nn.Parameter(value.detach()))
            elif isinstance(value, list) and value and all(map(_learns, value)):
                value[:] = [nn.Parameter(one.detach()) for one in value]
                part.add_module(f"{key}_registered", nn.ParameterList(value))
            elif isinstance(value, dict) and value and all(map(_learns, value.values())):
                value.update({name: nn.Parameter(one.detach()) for name, one in value.items()})
                held = {str(name).replace(".", "_"): one for name, one in value.items()}
                part.add_module(f"{key}_registered", nn.ParameterDict(held))
            else:
                continue
            found.append(f"{path}.{key}".lstrip("."))
    return tuple(found)


def _learns(value: object) -> bool:
    """Say whether this is a tensor that its user wants to learn, and no parameter."""
    plain = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    return plain and value.is_leaf and value.requires_grad and value.is_floating_point()
