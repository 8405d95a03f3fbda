"""Call what a student wrote: only here may it raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from checks.engine.answer import NotYet, Wrong, raised
from checks.engine.compare import aloud, tensors
from checks.engine.message import Message, message


class Crashed(Exception):
    """What was called raised something.

    Args:
        error: what it raised.
    """

    def __init__(self, error: BaseException):
        super().__init__(error)
        self.said: Message = raised(error)


def attempt(call: Callable, *args: Any, **options: Any) -> Any:
    """Call code that a student wrote, or that runs it.

    Args:
        call: what is called.
        args: with these arguments.
        options: and these named arguments.

    Raises:
        Crashed: it raised something, or left the program.
        Wrong, NotYet: a check around the answer found it.
    """
    try:
        return call(*args, **options)
    except (Wrong, NotYet, Crashed):
        raise
    except (Exception, SystemExit) as error:
        raise Crashed(error) from None


def run(answer: Callable, args: Sequence[Any], names: Sequence[str] | None = None) -> Any:
    """Call an answer, and say what it raised, in one line.

    Args:
        answer: the function or module.
        args: what it is called with.
        names: what the arguments are called.

    Raises:
        Wrong: it raised something, or returned None.
    """
    said = aloud(names or [f"argument {n}" for n in range(1, len(args) + 1)], args)
    try:
        result = attempt(answer, *args)
    except Crashed as crash:
        raise Wrong(message("it-raises", what=crash.said), inputs=said) from None
    if result is None:
        name = (
            f"{type(answer).__name__}.forward" if isinstance(answer, nn.Module) else name_of(answer)
        )
        raise Wrong(message("returns-none", name=name))
    return result


def name_of(answer: Any) -> str:
    """Return the name of an answer.

    Args:
        answer: a function or a class.
    """
    return getattr(answer, "__name__", "the answer")


def parameters_of(function: Callable) -> list[str]:
    """Return the names of the arguments of a function or of a module's forward.

    Args:
        function: one or the other.
    """
    if isinstance(function, nn.Module):
        function = function.forward
    return list(inspect.signature(function).parameters)


def names_of(answer: Callable, reference: Callable) -> list[str]:
    """Return the names of the arguments: the answer's own, if their number is right.

    Args:
        answer: the student's function.
        reference: the right one.
    """
    right = parameters_of(reference)
    try:
        own = parameters_of(answer)
    except (TypeError, ValueError):
        return right
    return own if len(own) == len(right) else right


def naming(comparison: Callable) -> Callable:
    """Note which answer is wrong: a check may ask for several.

    Args:
        comparison: takes the answer first, raises `Wrong`.
    """

    @wraps(comparison)
    def named(answer: Any, *args: Any, **options: Any) -> Any:
        try:
            return comparison(answer, *args, **options)
        except Wrong as wrong:
            wrong.answer = name_of(answer)
            raise

    return named


class DoubleConstants(TorchFunctionMode):
    """Make tensors in double precision where an answer makes them in single precision.

    Checks compare in double precision, the notebook works in single: there torch.zeros(n), a
    constant such as torch.tensor(head_dim).sqrt(), and x.float() are right. Inside, they are
    double.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        if getattr(func, "__name__", "") == "float":
            return args[0].double()
        result = func(*args, **kwargs)
        given = list(tensors((args, kwargs)))
        if (
            type(result) is not Tensor
            or result.dtype != torch.float32
            or kwargs.get("dtype") is not None
            or getattr(func, "__name__", "") in ASKS_FOR_SINGLE
            or any(t.is_floating_point() for t in given)
        ):
            return result
        if not given:
            return func(*args, **{**kwargs, "dtype": torch.float64})
        wide = [a.double() if isinstance(a, Tensor) and a.dtype != torch.bool else a for a in args]
        again = func(*wide, **kwargs)
        return again if again.shape == result.shape else result


# Such calls take the precision of another tensor, or draw random numbers.
ASKS_FOR_SINGLE = {"type_as", "view", "half", "randn", "rand", "normal"}
ASKS_FOR_SINGLE |= {"from_numpy", "frombuffer", "embedding", "bernoulli", "multinomial"}
