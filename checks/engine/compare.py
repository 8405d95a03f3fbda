"""Compare two results: kind, shape, dtype, values, in this order, and never by broadcasting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from checks.engine.answer import ADDRESS

# In double precision another order of the same steps differs by about 1e-15 per step.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}


def difference(got: Any, want: Any, name: str = "the result") -> str | None:
    """Say how a result differs from the right one; None when it does not.

    Args:
        got: the result of an answer.
        want: the right one: a tensor, a number, a truth value, a text, or a tuple of those.
        name: how to call it.
    """
    if isinstance(want, Tensor):
        return _tensors(got, want, name)
    if isinstance(want, tuple | list):
        if not isinstance(got, tuple | list):
            return f"{name} is {kind(got)}, {len(want)} results in a tuple are asked for"
        if len(got) != len(want):
            return f"{name} has {len(got)} parts, {len(want)} are asked for"
        pairs = enumerate(zip(got, want, strict=True), start=1)
        parts = (difference(g, w, f"part {n} of {name}") for n, (g, w) in pairs)
        return next(filter(None, parts), None)
    if isinstance(want, bool | int | float):
        got = bare(got)
    if isinstance(want, float) and number(got) is not None:
        return None if abs(got - want) <= 1e-8 * max(1.0, abs(want)) else f"{name} is {got:.6g}"
    if type(got) is not type(want):
        return f"{name} is {kind(got)}, {kind(want)} is asked for"
    return None if got == want else f"{name} is {shown(got)}"


def _tensors(got: Any, want: Tensor, name: str) -> str | None:
    if type(got) not in (Tensor, nn.Parameter):  # not isinstance: a subclass may lie
        return f"{name} is {kind(got)}, a tensor of shape {tuple(want.shape)} is asked for"
    if got.is_nested or got.layout != want.layout:
        return f"{name} is a nested or sparse tensor, an ordinary one is asked for"
    shape = tuple(got.shape)
    if shape != tuple(want.shape):
        return f"{name} has shape {shape}, asked for is {tuple(want.shape)}"
    right = f"shape {shape} is right, "
    if name != "the result":
        right = f"{name}: {right}"
    if got.dtype != want.dtype:
        return f"{right}the dtype is not: {got.dtype} instead of {want.dtype}"
    if got.device != want.device:
        return f"{right}but it lies on another device"
    if got.isnan().any() and not want.isnan().any():
        return f"{right}but it holds NaN"
    if not same_values(got, want):
        return f"{right}the values are not"
    return None


def same_values(got: Tensor, want: Tensor) -> bool:
    """Say whether two tensors of one shape and dtype hold the same numbers, NaN included."""
    if not want.is_floating_point():
        return torch.equal(got, want)
    tolerance = TOLERANCE.get(want.dtype, 1e-2)
    return torch.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def kind(value: Any) -> str:
    """Say what kind of thing a value is, with its article."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def shown(value: Any) -> str:
    """Show a value as it was written; only its kind where that is long, or differs by machine."""
    try:
        text = repr(value)
    except Exception:
        return kind(value)
    return kind(value) if len(text) > 60 or "\n" in text or ADDRESS.search(text) else text


def bare(value: Any) -> Any:
    """Take the number out of a tensor or array of one number; everything else stays what it is."""
    one = isinstance(value, Tensor | np.ndarray | np.generic) and np.prod(value.shape) == 1
    return value.item() if one else value


def number(value: Any) -> float | None:
    """Return a number, also that of a tensor or array of one; None for anything else."""
    value = bare(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return value if isinstance(value, float) or abs(value) < 1e300 else float("inf")


def tensors(values: Any) -> Iterator[Tensor]:
    """Give the tensors in nested tuples, lists and dicts, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors(list(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors(value)


def copied(values: Any, requires_grad: bool = False) -> Any:
    """Copy the tensors in nested tuples, lists and dicts; everything else stays what it is."""
    if isinstance(values, Tensor):
        copy = values.detach().clone()
        return copy.requires_grad_(requires_grad and copy.is_floating_point())
    if isinstance(values, dict):
        return {key: copied(value, requires_grad) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(copied(value, requires_grad) for value in values)
    return values


def aloud(names: Sequence[str], values: Sequence[Any]) -> str:
    """Say inputs aloud: tensors by shape, modules by class, numbers and the like by value."""
    said = [_aloud(name, value) for name, value in zip(names, values, strict=True)]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _aloud(name: str, value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{name} {tuple(value.shape)}"
    if isinstance(value, nn.Module):
        return f"{name} {type(value).__name__}"
    if isinstance(value, tuple | list) and value and all(isinstance(v, Tensor) for v in value):
        return f"{name} [{', '.join(str(tuple(v.shape)) for v in value)}]"
    if callable(value):
        return f"{name}, a function"
    return f"{name}={value!r}"
