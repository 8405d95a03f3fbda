"""Weights that einsum sums by themselves: nobody is weighed, whatever else a module does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_clinic.engine.modes import Mode
from attention_clinic.examine.subject import Subject


class Sums(Mode):
    """Hear whether einsum sums the results of a softmax along its axis, and nothing else with them.

    Attributes:
        equations: those that do; what they sum is 1 each time.
    """

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[tuple[Tensor, int]] = []
        self.equations: list[str] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "softmax" and isinstance(result, Tensor):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            self.weights.append((result, (-1 if axis is None else axis) % result.ndim))
        elif name == "einsum" and isinstance(args[0], str):
            given = args[1] if isinstance(args[1], list | tuple) else args[1:]
            self._einsum("".join(args[0].split()), given)
        return result

    def _einsum(self, equation: str, given: Any) -> None:
        """Note an equation in which the letter of a softmax stands nowhere else."""
        if "->" not in equation or "." in equation:
            return
        terms = equation.split("->")[0].split(",")
        for term, t in zip(terms, given, strict=False):
            axes = [axis for made, axis in self.weights if _same(made, t)]
            lone = bool(axes) and equation.count(term[axes[-1]]) == 1
            self.equations += [equation] * (lone and len(terms) > 1)


def _same(made: Tensor, t: Tensor) -> bool:
    return made.shape == t.shape and torch.equal(made.to(t), t)


def summed_apart(subject: Subject) -> str:
    """Return the equation in which a module sums its weights by themselves, "" for none.

    Args:
        subject: the module.
    """
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    with Sums() as sums:
        subject.open_run(x)
    return sums.equations[0] if sums.equations else ""
