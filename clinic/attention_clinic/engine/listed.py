"""Layers that a module keeps where PyTorch does not look: in a plain list, tuple or dict."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

HOLDERS = (dict, list, tuple)
OWN = frozenset(vars(nn.Module()))  # what every module keeps for itself


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
            if key in OWN or not isinstance(value, HOLDERS):
                continue
            layers = [one for one in _modules(value) if id(one) not in known]
            if key.startswith("_") and len(layers) < 2:
                continue  # who holds another's layer on purpose hides it so
            parts = [inner for layer in layers for inner in layer.modules()]
            plain = any(_learns(one) for inner in parts for one in vars(inner).values())
            if plain or any(True for layer in layers for _ in layer.parameters()):
                part.add_module(f"{key}_registered", nn.ModuleList(layers))
                found.append(f"{name}.{key}".lstrip("."))
    return tuple(found)


def _modules(value: object) -> Iterator[nn.Module]:
    """Yield the modules in a list, a tuple or a dictionary, or in those in it."""
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, HOLDERS):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _modules(one)


def register_plain(module: nn.Module) -> tuple[str, ...]:
    """Make parameters of the tensors of a copy that ask for gradients, and return their names.

    Args:
        module: a copy that may be changed.
    """
    found = []
    for path, part in list(module.named_modules()):
        for key, value in list(vars(part).items()):
            if key in OWN:
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
