"""What stands between a caller and a module: compiled, scripted, parallel and lazy ones."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

# attributes that hold what is wrapped: torch.compile's module and function
WRAPPED = ("_orig_mod", "_torchdynamo_orig_callable")
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(where: str, module: Any) -> Any:
    """Return the plain module, or function, behind what its caller built around it.

    Args:
        where: the public name that an error begins with.
        module: what the caller gave.

    Raises:
        ValueError: a scripted module, or one whose layers have no sizes yet.
    """
    refuse_scripted(where, module)
    held = getattr(module, "__dict__", {})
    while True:
        inner = next((held[name] for name in WRAPPED if name in held), None)
        if isinstance(module, nn.Module):
            inner = getattr(module, "_orig_mod", inner)
            inner = module.module if isinstance(module, PARALLEL) else inner
        if inner is None:
            break
        module, held = inner, getattr(inner, "__dict__", {})
        refuse_scripted(where, module)
    if isinstance(module, nn.Module):
        lazy = [name for name, p in module.named_parameters() if is_lazy(p)]
        if lazy:
            raise ValueError(
                f"{where}: the layers must have their sizes, got {type(module).__name__} with "
                f"{lazy[0]} still lazy. Call it once first: module(torch.randn(2, 5, width))."
            )
    return module


def refuse_scripted(where: str, module: Any) -> None:
    """Raise for what torch.jit has made: its operations cannot be listened to."""
    # the classes live in torch.jit, whose old tracer torch itself gives up: by name
    kinds = {kind.__name__ for kind in type(module).__mro__}
    if kinds & {"ScriptModule", "ScriptFunction"}:
        name = getattr(module, "original_name", getattr(module, "name", "it"))
        raise ValueError(
            f"{where}: module must be the Python module itself, got {name} as torch.jit made it, "
            "whose operations cannot be listened to. Pass the module from before torch.jit."
        )


def eager() -> AbstractContextManager[Any]:
    """Run what torch.compile has decorated as plain Python, for a while."""
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled
        return nullcontext()
    from torch.compiler import set_stance  # takes seconds to import

    return set_stance("force_eager")


def evaluated(module: nn.Module) -> None:
    """Put a copy into evaluation; who keeps something for that makes it anew.

    Args:
        module: a copy that may be changed.
    """
    if any(type(part).train is not nn.Module.train for part in module.modules()):
        module.train()
    module.eval()  # some return nothing
