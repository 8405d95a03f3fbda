"""Where NaN begins: the function that makes it of numbers, and the line that calls it."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attention_clinic.engine.modes import Mode, Visits
from attention_clinic.engine.patient import NO_SOURCE
from attention_clinic.engine.tape import tensors_in

CLEARS = {"nan_to_num", "nan_to_num_", "where", "masked_fill", "masked_fill_", "nansum", "nanmean"}


class Begins(Mode):
    """Write down each function that returns NaN and was handed none.

    Args:
        parts: who knows which part of the module runs.
    """

    listens = True

    def __init__(self, parts: Running | None) -> None:
        super().__init__()
        self.parts = parts
        self.said: list[str] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        handed = [*tensors_in((args, kwargs))]
        before = any(map(_has_nan, handed))  # now: it may be changed in its place
        why = "" if before else _why(name, handed, args)
        result = func(*args, **kwargs)
        after = any(map(_has_nan, tensors_in(result)))
        if before and not after and name in CLEARS:
            self.said.clear()
        elif after and not before and "empty" not in name:
            self.said.append(self._words(name, why))
        return result

    def _words(self, name: str, why: str) -> str:
        path, part = self.parts.running[-1] if self.parts and self.parts.running else ("", None)
        if path and type(part).__module__.startswith("torch."):
            return f"what {path} returns{why}"
        return f"what {name} returns{why}{_line(path)}"


class Running(Visits):
    """Know which part of a module runs, the innermost last."""

    listens = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.running: list[tuple[str, nn.Module]] = []

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.running.append((path, part))

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        self.running.pop()


def no_numbers(module: object, run: Callable[[], Tensor], y: Tensor) -> str:
    """Say what an output holds that are no numbers, and where in the module they begin.

    Args:
        module: the copy, or a function.
        run: calls it.
        y: the output.
    """
    many = "nothing but" if not y.isfinite().any() else "some"
    if not y.isnan().any():
        first = _first_infinite(module, run)
        return f"it has {many} infinity" + (f", first in what {first} returns" if first else "")
    parts = Running(module) if isinstance(module, nn.Module) else None
    with nullcontext() if parts is None else parts, Begins(parts) as begins:
        run()
    return f"it has {many} NaN" + (f", first in {begins.said[0]}" if begins.said else "")


def _first_infinite(module: object, run: Callable[[], Tensor]) -> str:
    """Return the first part that makes infinity of numbers, "" where none does."""
    if not isinstance(module, nn.Module):
        return ""
    found: list[str] = []

    def listen(name: str) -> Callable[..., None]:
        def hear(part: nn.Module, given: object, result: object) -> None:
            ended = all(t.isfinite().all() for t in tensors_in(given))
            if ended and any(not t.isfinite().all() for t in tensors_in(result)):
                found.append(name)

        return hear

    handles = [p.register_forward_hook(listen(name)) for name, p in module.named_modules() if name]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


def _has_nan(t: Tensor) -> bool:
    return (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any())


def _why(name: str, handed: list[Tensor], args: tuple[Any, ...]) -> str:
    """Return what the numbers themselves say of NaN that a function will return, "" for nothing."""
    floats = [t for t in handed if t.is_floating_point()]
    if name == "softmax" and floats and bool(floats[0].isneginf().all(dim=-1).any()):
        return " (a row has nothing but -inf)"
    ends = [float(a) for a in args if isinstance(a, float)] + [t.min().item() for t in floats]
    ends += [t.max().item() for t in floats]
    if name in ("mul", "rmul", "imul", "multiply") and any(
        abs(end) == float("inf") for end in ends
    ):
        return f" (0 * {'-' * (float('-inf') in ends)}inf is NaN)"
    return ""


def _line(path: str) -> str:
    """Return " in forward of attention, line 12 of file.py: code" for the user's own line."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not no_numbers.__code__:
        code = frame.f_code
        if not any(part in code.co_filename for part in NO_SOURCE):
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            file = "" if "ipykernel" in code.co_filename else f" of {Path(code.co_filename).name}"
            where = f" in {code.co_name}{f' of {path}' if path else ''}"
            return f"{where}, line {frame.f_lineno}{file}: {text}".rstrip(": ").rstrip(".")
        frame = frame.f_back
    return f" in {path}" if path else ""
