"""Layers that a module keeps where PyTorch does not look: in a plain list, tuple or dict."""

from __future__ import annotations

from torch import nn


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
            if any(True for layer in layers for _ in layer.parameters()):
                part.add_module(f"{key}_registered", nn.ModuleList(layers))
                found.append(f"{name}.{key}".lstrip("."))
    return tuple(found)
