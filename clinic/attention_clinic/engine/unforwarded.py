"""Models without `forward`, which their user encodes and decodes with."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

from torch import nn

MEMORY = re.compile(r"mem|enc|context|hidden|cond|^z$|latent")


def with_forward(model: nn.Module) -> nn.Module:
    """Return a model whose forward decodes what it encodes, where it has both and no forward.

    Any other model is returned as it is. The two share all parts.

    Args:
        model: of the user.
    """
    kind = type(model)
    if kind.forward is not nn.Module.forward or "forward" in vars(model):
        return model
    steps = [getattr(kind, name, None) for name in ("encode", "decode")]
    if not all(map(inspect.isfunction, steps)):
        return model
    first, second = (list(inspect.signature(step).parameters.values())[1:] for step in steps)
    names = {p.name for p in first}
    memory = next((p.name for p in second if _is_memory(p, names)), None)
    beside = [p for p in second if p.name != memory and p.name not in names]
    every = [*first, *beside]
    if memory is None or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in every):
        return model

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self.forward).bind(*args, **kwargs)
        given.apply_defaults()
        said = given.arguments
        made = self.encode(**{p.name: said[p.name] for p in first})
        made = made[0] if isinstance(made, tuple) else made
        return self.decode(**{p.name: made if p.name == memory else said[p.name] for p in second})

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    order = sorted(every, key=lambda p: p.default is not p.empty)
    forward.__signature__ = inspect.Signature([this, *order])
    made = copy.copy(model)
    space = {"forward": forward, "__module__": kind.__module__}
    made.__class__ = type(kind.__name__, (kind,), space)
    return made


def _is_memory(parameter: inspect.Parameter, names: set[str]) -> bool:
    """Say whether an argument of decode is what encode returned, not what encode gets, too."""
    name = parameter.name.lower()
    return parameter.name not in names and "mask" not in name and bool(MEMORY.search(name))
