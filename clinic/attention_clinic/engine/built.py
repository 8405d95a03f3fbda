"""Layers that a module builds while it runs, held fast: each call gets those of the first one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from functools import wraps
from inspect import unwrap
from typing import Any

import torch
from torch import nn

KINDS = (
    *(nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.BatchNorm1d),
    *(nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.GroupNorm),
)


class _Hands(type):
    """A class that stands for one of torch.nn, and hands out what was built of it before."""

    kind: type
    make: Callable[..., nn.Module]

    def __call__(cls, *args: Any, **kwargs: Any) -> nn.Module:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.kind)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.kind)


@contextmanager
def handed(module: nn.Module, layers: MutableSequence[nn.Module]) -> Iterator[None]:
    """Let what runs get layers of torch.nn from a list in their order, which takes up more.

    Args:
        module: that runs.
        layers: what was built before.
    """
    count = 0

    def maker(kind: type) -> Callable[..., nn.Module]:
        def make(*args: Any, **kwargs: Any) -> nn.Module:
            nonlocal count
            if count == len(layers):
                layers.append(kind(*args, **kwargs))
            count += 1
            return layers[count - 1]

        return staticmethod(make)

    spaces = {id(vars(nn)): vars(nn)}
    for part in module.modules():
        space = getattr(unwrap(type(part).forward), "__globals__", {})
        if not type(part).__module__.startswith("torch."):
            spaces[id(space)] = space
    found = [(space, name, value) for space in spaces.values() for name, value in space.items()
             if isinstance(value, type) and value in KINDS]  # fmt: skip
    try:
        for space, name, kind in found:
            space[name] = _Hands(kind.__name__, (), {"kind": kind, "make": maker(kind)})
        yield
    finally:
        for space, name, kind in found:
            space[name] = kind


def holding(module: nn.Module, copied: nn.Module, run: Callable[[], object]) -> nn.Module | None:
    """Return a copy of a module that holds what its forward builds, None where that fails.

    Args:
        module: as it is.
        copied: another copy of it.
        run: calls that.
    """
    built: list[nn.Module] = []
    handle = copied.register_forward_pre_hook(lambda *_: built.clear())
    try:
        with handed(copied, built):
            run()
    finally:
        handle.remove()
    kind = type(module)

    @wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with handed(self, self.built_in_forward):
            return kind.forward(self, *args, **kwargs)

    made = copy.deepcopy(module)
    like = next((p for p in made.parameters() if p.is_floating_point()), torch.zeros(1))
    made.built_in_forward = nn.ModuleList(built).to(like)
    made.__class__ = type(
        kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__}
    )
    return made if built else None
