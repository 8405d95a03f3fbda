"""What stands between a caller and a module: compiled, scripted, parallel and lazy ones."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from attention_clinic.engine.layouts import needed_names

# attributes that hold what is wrapped: torch.compile's module and function
WRAPPED = ("_orig_mod", "_torchdynamo_orig_callable")
FREE = 64  # the width of tokens, where no layer has one
UNSAID = re.compile(r"mask|valid|len")  # arguments that may be None
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


Tries = Callable[[nn.Module], Iterable[Mapping[str, Any]]]


def unwrapped(where: str, module: Any, tries: Tries | None = None) -> Any:
    """Return the plain module, or function, behind what its caller built around it.

    Args:
        where: the public name that an error begins with.
        module: what the caller gave.
        tries: what a module whose layers have no sizes may be called with, by the names of
            forward's arguments; None for tokens.

    Raises:
        ValueError: a scripted module, one whose layers have no sizes or no values yet, a function
            without a signature, or nothing that can be called.
    """
    refuse_scripted(where, module)
    refuse_unsigned(where, module)
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
    refuse_unsigned(where, module)
    if isinstance(module, nn.Module):
        lazy = [name for name, p in module.named_parameters() if is_lazy(p)]
        made = sized(module, tries) if lazy else module
        module = module if made is None else made
        if made is None:
            once = "module(torch.randn(2, 5, width))" if tries is None else "model(inputs)"
            raise ValueError(
                f"{where}: the layers must have their sizes, got {type(module).__name__} with "
                f"{lazy[0]} still lazy. Call it once first: {once}."
            )
    return module


def refuse_unsigned(where: str, module: Any) -> None:
    """Raise for what cannot be called, a built-in function, and a module without values."""
    if isinstance(module, nn.Module):
        held = (*module.named_parameters(), *module.named_buffers())
        empty = [name for name, value in held if value.is_meta]
        if empty:
            raise ValueError(
                f"{where}: the layers must have values, got {type(module).__name__} with "
                f"{empty[0]} on the device meta. Build it where it has some: "
                f'with torch.device("cpu"): module = {type(module).__name__}(...).'
            )
    elif not callable(module):
        raise ValueError(
            f"{where}: module must be an nn.Module or a function, got {module!r}. "
            f"Build it first and pass the object: {where}(Attention(512, 8), num_heads=8)."
        )
    elif not isinstance(module, type):
        try:
            inspect.signature(module)
        except (TypeError, ValueError) as error:
            name = getattr(module, "__name__", "attend")
            if name == "scaled_dot_product_attention":
                name = f"F.{name}"
            raise ValueError(
                f"{where}: a function must say what it takes, got the built-in {name}. Say it: "
                f"{where}(lambda q, k, v: {name}(q, k, v))."
            ) from error


def sized(module: nn.Module, tries: Tries | None = None) -> nn.Module | None:
    """Return a copy whose lazy layers have sizes, as a first call gives them; or None.

    Args:
        module: that has lazy layers.
        tries: as in `unwrapped`.
    """
    for given in (_of_tokens if tries is None else tries)(module):
        copied = copy.deepcopy(module).eval()
        try:
            with torch.no_grad():
                copied(**given)
        except Exception:
            continue
        if not any(is_lazy(p) for p in copied.parameters()):
            return copied.train(module.training)
    return None


def _of_tokens(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield tokens of a width that the other layers have; where none has any, it is free."""
    known = [p.shape[-1] for p in module.parameters() if not is_lazy(p) and p.ndim > 0]
    for width in dict.fromkeys((*known, FREE)):
        x = torch.zeros(2, 5, width)
        yield {n: None if UNSAID.search(n.lower()) else x for n in needed_names(module)}


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
