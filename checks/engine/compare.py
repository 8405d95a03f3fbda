"""Compare two results: kind, shape, dtype, values, in this order, and never by broadcasting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from checks.engine.answer import ADDRESS
from checks.engine.message import Message, message

RESULT = Message("the-result")
# In double precision a different order of the same steps differs by about 1e-15 per step.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
INTEGERS = (torch.int8, torch.int16, torch.int32)  # as good as int64, where integers are expected


def difference(got: Any, want: Any, name: Message | str = RESULT) -> Message | None:
    """Say how a result differs from the right one; None when it does not.

    Args:
        got: the result of an answer.
        want: the right one: a tensor, a number, a boolean, a string, or a tuple of those.
        name: how to call it: a message, or a name of the code.
    """
    if _held_alone(got, want):
        return message("right-in-container", name=name, got=kind(got))
    if isinstance(want, Tensor):
        return _tensors(got, want, name)
    if isinstance(want, tuple | list):
        if not isinstance(got, tuple | list):
            wanted = type(want).__name__
            return message("is-no-sequence", name=name, got=kind(got), kind=wanted, want=len(want))
        if len(got) != len(want):
            return message("has-parts", name=name, got=len(got), want=len(want))
        pairs = enumerate(zip(got, want, strict=True), start=1)
        parts = (difference(g, w, message("part", number=n, of=name)) for n, (g, w) in pairs)
        return next(filter(None, parts), None)
    if isinstance(want, bool | int | float):
        got = bare(got)
    if isinstance(want, float) and number(got) is not None:
        if abs(got - want) <= 1e-8 * max(1.0, abs(want)):
            return None
        return message("result-is", name=name, got=float(got))
    if type(got) is not type(want):
        return message("is-another-kind", name=name, got=kind(got), want=kind(want))
    return None if got == want else message("result-is", name=name, got=shown(got))


def _held_alone(got: Any, want: Any) -> bool:
    """Say whether a container holds the right result and nothing else, as `return x,` makes it."""
    if isinstance(want, tuple | list | dict | set) or not isinstance(
        got, tuple | list | dict | set
    ):
        return False
    held = list(got.values() if isinstance(got, dict) else got)
    return len(held) == 1 and difference(held[0], want) is None


def _tensors(got: Any, want: Tensor, name: Message | str) -> Message | None:
    shape = tuple(want.shape)
    if type(got) not in (Tensor, nn.Parameter):  # not isinstance: a subclass may pretend
        return message("is-no-tensor", name=name, got=kind(got), shape=shape)
    if got.is_nested or got.layout != want.layout:
        return message("is-sparse", name=name)
    if tuple(got.shape) != shape:
        return message("shape-differs", name=name, got=tuple(got.shape), want=shape)
    said = None
    if want.dtype == torch.int64 and got.dtype in INTEGERS:
        got = got.long()
    if got.dtype != want.dtype:
        said = message("dtype-differs", shape=shape, got=str(got.dtype), want=str(want.dtype))
    elif got.device != want.device:
        said = message("device-differs", shape=shape)
    elif got.isnan().any() and not want.isnan().any():
        said = message("holds-nan", shape=shape)
    elif not same_values(got, want):
        said = message("values-differ", shape=shape)
    return said if said is None or name == RESULT else message("of-part", name=name, what=said)


def same_values(got: Tensor, want: Tensor) -> bool:
    """Say whether two tensors of one shape and dtype hold the same numbers, NaN included."""
    if not want.is_floating_point():
        return torch.equal(got, want)
    tolerance = TOLERANCE.get(want.dtype, 1e-2)
    return torch.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def kind(value: Any) -> Message:
    """Say what kind of thing a value is."""
    return message("nothing") if value is None else message("kind", name=type(value).__name__)


def shown(value: Any) -> Message | str:
    """Show a value as it was written; only its kind where that is long, or differs by machine."""
    try:
        if any(tensor.numel() > 60 for tensor in tensors((value,))):
            return kind(value)  # long, and torch takes milliseconds to write it
        text = repr(value)
    except Exception:
        return kind(value)
    return kind(value) if len(text) > 60 or "\n" in text or ADDRESS.search(text) else text


def bare(value: Any) -> Any:
    """Take the number out of a tensor or array of one number; everything else stays unchanged."""
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
    """Copy the tensors in nested tuples, lists and dicts, and sets; the rest stays unchanged."""
    if isinstance(values, Tensor):
        copy = values.detach().clone()
        return copy.requires_grad_(requires_grad and copy.is_floating_point())
    if isinstance(values, dict):
        return {key: copied(value, requires_grad) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(copied(value, requires_grad) for value in values)
    return set(values) if isinstance(values, set) else values


def same_plain(one: Any, other: Any) -> bool:
    """Say whether nested containers hold the same numbers and texts; tensors are not compared.

    Args:
        one: any value.
        other: any value; anything but a container, number or text counts as the same.
    """
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same_plain, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_plain(one[key], other[key]) for key in one)
    plain = (set, str, bytes, int, float, complex, type(None))
    return not isinstance(one, plain) or (type(one) is type(other) and (one == other or one != one))


def aloud(names: Sequence[str], values: Sequence[Any]) -> list[Message]:
    """Say inputs aloud: tensors by shape, modules by class, numbers and the like by value."""
    return [_aloud(name, value) for name, value in zip(names, values, strict=True)]


def _aloud(name: str, value: Any) -> Message:
    if isinstance(value, Tensor):
        return message("input-tensor", name=name, shape=tuple(value.shape))
    if isinstance(value, nn.Module):
        # The check's own modules describe themselves: students do not know their classes.
        said = getattr(type(value), "said", None)
        kind = message(said) if isinstance(said, str) else type(value).__name__
        return message("input-module", name=name, kind=kind)
    if isinstance(value, tuple | list) and value and all(isinstance(v, Tensor) for v in value):
        return message("input-tensors", name=name, shapes=[tuple(v.shape) for v in value])
    if callable(value):
        return message("input-function", name=name)
    return message("input-value", name=name, value=shown(value))
