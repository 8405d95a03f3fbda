"""Other devices that a module names: its copy is examined on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from attention_clinic.engine.constants import codes_in, functions_of
from attention_clinic.engine.modes import Mode

ELSEWHERE = re.compile(r"(cuda|mps|xpu)(:\d+)?")


class AtHome(Mode):
    """Let a module stay on the CPU, whatever device it names while it runs."""

    running = 0

    def __enter__(self) -> Self:
        AtHome.running += 1
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        AtHome.running -= 1
        super().__exit__(*error)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") in ("cuda", "xpu") and isinstance(args[0], Tensor):
            return args[0]
        kwargs = {key: _home(value) for key, value in kwargs.items()}
        return func(*(_home(value) for value in args), **kwargs)


def at_home(module: nn.Module | Callable[..., Any] | None) -> AbstractContextManager[Any]:
    """Run what names another device on the CPU, for a while; anything else runs as it is.

    Args:
        module: the module or function, None where there is none.
    """
    if module is None or AtHome.running or not names_device(module):
        return nullcontext()
    return AtHome()


def names_device(module: nn.Module | Callable[..., Any]) -> bool:
    """Say whether a module lies on another device than the CPU, holds its name, or its code does.

    Args:
        module: or a function.
    """
    if isinstance(module, nn.Module):
        if any(t.device.type not in ("cpu", "meta") for t in module.parameters()):
            return True
        if any(map(_is_elsewhere, _held(module))):
            return True
    for function in functions_of(module):
        said = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if any(map(_is_elsewhere, said)):
            return True
        for code in codes_in(function.__code__):
            read = (function.__globals__.get(name) for name in code.co_names)
            if "cuda" in code.co_names or any(map(_is_elsewhere, (*code.co_consts, *read))):
                return True
    return False


def _held(module: nn.Module) -> Iterator[Any]:
    """Yield what the parts of a module hold, themselves and in a config."""
    for part in module.modules():
        for value in list(vars(part).values()):
            yield value
            if not isinstance(value, nn.Module | Tensor | type):
                held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
                yield from list(held.values())


def _is_elsewhere(value: Any) -> bool:
    """Say whether a value is another device than the CPU, or its name."""
    if isinstance(value, str):
        return bool(ELSEWHERE.fullmatch(value))
    return isinstance(value, torch.device) and value.type not in ("cpu", "meta")


def _home(value: Any) -> Any:
    return torch.device("cpu") if _is_elsewhere(value) else value
