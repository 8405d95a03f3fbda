"""Numbers that the code of a module says: constants, defaults, and what it reads outside of it."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

CALLS = ("LOAD_ATTR", "LOAD_METHOD")
SUBSCRIPTS = ("BINARY_SUBSCR", "BINARY_OP")  # the second since Python 3.14
MOST = 200  # functions that are looked at


def functions_of(module: nn.Module | Callable[..., Any]) -> Iterator[FunctionType]:
    """Yield the methods of a module and its parts, and the functions that these name.

    Args:
        module: or a function.
    """
    parts = module.modules() if isinstance(module, nn.Module) else ()
    kinds = dict.fromkeys(kind for part in parts for kind in type(part).__mro__)
    waiting = [one for kind in kinds for one in _functions_in(kind)]
    waiting += [module] if isinstance(module, FunctionType) else []
    known: dict[FunctionType, None] = {}
    while waiting and len(known) < MOST:
        one = waiting.pop(0)
        if one in known:
            continue
        known[one] = None
        yield one
        for code in codes_in(one.__code__):
            named = [one.__globals__.get(name) for name in code.co_names]
            for value in named:
                if isinstance(value, FunctionType) and _is_own(value):
                    waiting.append(inspect.unwrap(value))
                elif isinstance(value, type):
                    waiting += _functions_in(value)


def _functions_in(kind: type) -> list[FunctionType]:
    """Return the functions of a class that is not PyTorch's own."""
    if not _is_own(kind):
        return []
    held = [value.fget if isinstance(value, property) else value for value in vars(kind).values()]
    held = [getattr(value, "__func__", value) for value in held]
    return [inspect.unwrap(value) for value in held if isinstance(value, FunctionType)]


def _is_own(value: type | FunctionType) -> bool:
    """Say whether neither Python nor PyTorch wrote a class or a function."""
    return str(value.__module__).split(".")[0] not in ("torch", "builtins")


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_in(inner)


def is_number(value: Any) -> bool:
    """Say whether a value is one number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def written(module: nn.Module | Callable[..., Any]) -> set[float]:
    """Return the numbers that the code of a module writes: constants, and defaults."""
    found: set[float] = set()
    for function in functions_of(module):
        consts = [one for code in codes_in(function.__code__) for one in code.co_consts]
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        found |= {float(value) for value in (*consts, *defaults) if is_number(value)}
    return found


def read_outside(module: nn.Module) -> Iterator[tuple[str, float]]:
    """Yield the numbers outside of a module that its code reads, with their names.

    They are global, or held by an object, a class or a dictionary that is.
    """
    for function in functions_of(module):
        for code in codes_in(function.__code__):
            held: Any = None
            for one in dis.get_instructions(code):
                if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                    held = function.__globals__.get(one.argval)
                elif one.opname in CALLS and held is not None:
                    held = _held(held, one.argval)
                elif one.opname == "LOAD_CONST" and isinstance(held, dict):
                    held = held.get(one.argval)
                elif one.opname not in SUBSCRIPTS:
                    held = None
                if is_number(held) and isinstance(one.argval, str):
                    yield one.argval, float(held)


def _held(holder: Any, name: str) -> Any:
    """Return what an object holds under a name, and nothing that is made to be asked."""
    if isinstance(holder, dict | nn.Module):
        return None
    for place in (holder, *getattr(type(holder), "__mro__", ()), *getattr(holder, "__mro__", ())):
        held = getattr(place, "__dict__", {})
        if name in held:
            return held[name]
    return None
