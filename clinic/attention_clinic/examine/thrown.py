"""Layers and dropouts that are called, and whose result nothing uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.modes import InOrder, Visits, keeping_history, moved, wanting_gradients
from attention_clinic.engine.patient import same
from attention_clinic.engine.tape import tensors_in


def thrown_away(module: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Return the paths of the layers that are called and reach nothing that is returned or kept.

    Args:
        module: the copy.
        run: calls it.
    """
    own = {path: list(part.parameters(recurse=False)) for path, part in module.named_modules()}
    called: list[nn.Module] = []
    handles = [
        part.register_forward_pre_hook(lambda part, _: called.append(part))
        for part in module.modules()
    ]
    held = [p for p in module.parameters() if p.is_floating_point()]
    try:
        unreached = _unreached(module, run, lambda: held)
    finally:
        for handle in handles:
            handle.remove()
    parts = dict(module.named_modules())
    idle = [
        path
        for path, values in own.items()
        if path and values and any(parts[path] is part for part in called)
        if all(id(p) in unreached for p in values)
    ]
    return [path for path in idle if not _matters(own[path], run)]


def _unreached(
    module: nn.Module, run: Callable[[], Any], held: Callable[[], Sequence[Tensor]]
) -> set[int]:
    """Return the ids of the tensors from which no gradient reaches what is returned or kept.

    Args:
        module: the copy.
        run: calls it.
        held: returns the tensors, when it has run.
    """
    results: list[Any] = []
    handles = [
        keeping_history(module),
        module.register_forward_hook(lambda part, _, result: results.append(result)),
    ]
    own = [p for p in module.parameters() if p.is_floating_point()]
    try:
        with wanting_gradients(own), InOrder():
            run()
            kept = [value for part in module.modules() for value in vars(part).values()]
            made = [t for t in tensors_in([results, kept]) if t.requires_grad and t.grad_fn]
            total = sum(t.abs().double().sum() for t in made)
            asked = held()
            if not isinstance(total, Tensor) or not asked:
                return set()
            grads = torch.autograd.grad(total, asked, allow_unused=True)
    except Exception:  # what cannot be differentiated says nothing
        return set()
    finally:
        for handle in handles:
            handle.remove()
    return {id(t) for t, grad in zip(asked, grads, strict=True) if grad is None}


class Marks(Visits):
    """Multiply what every dropout returns by a 1 of its own: its gradient says whether it is used.

    Args:
        module: the copy that will run in this context.

    Attributes:
        marks: the ones, by the part that drops, or by the path of the part that calls a function
            and how many it called before.
        got: what each was given.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.running: list[tuple[str, nn.Module]] = []
        self.calls: list[int] = []
        self.marks: dict[nn.Module | tuple[str, int], Tensor] = {}
        self.got: dict[nn.Module | tuple[str, int], list[Tensor]] = {}

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.running.append((path, part))
        self.calls.append(0)

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        self.running.pop()
        self.calls.pop()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func is not F.dropout or not self.running:
            return result
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        if not given.get("p", 0.5) or given.get("inplace"):
            return result
        path, part = self.running[-1]
        self.calls[-1] += 1
        key = part if isinstance(part, nn.Dropout) else (path, self.calls[-1])
        one = torch.ones((), dtype=result.dtype, device=result.device, requires_grad=True)
        self.got.setdefault(key, []).extend([given["input"]] * given["input"].requires_grad)
        return result * self.marks.setdefault(key, one)


def thrown_dropouts(
    module: nn.Module, run: Callable[[], Any]
) -> tuple[set[nn.Module], dict[str, None]]:
    """Return the dropouts that are called in vain: what they get is used, what they return is not.

    Where what they get reaches nothing either, more is thrown away than a dropout.

    Args:
        module: the copy.
        run: calls it.

    Returns:
        The parts that drop, and the paths of those that call a function which drops.
    """
    marked = Marks(module)

    def in_view() -> Any:
        with marked:
            return run()

    marks, got = marked.marks, marked.got
    unreached = _unreached(module, in_view, lambda: [*marks.values(), *chain(*got.values())])
    lost = [key for key, mark in marks.items() if id(mark) in unreached]
    vain = [k for k in lost if not got[k] or any(id(t) not in unreached for t in got[k])]
    vain = [key for key in vain if not _matters([marks[key]], in_view)]  # though cut off
    parts = {key for key in vain if isinstance(key, nn.Module)}
    return parts, dict.fromkeys(key[0] for key in vain if not isinstance(key, nn.Module))


def _matters(values: Sequence[Tensor], run: Callable[[], Any]) -> bool:
    """Say whether what a module returns changes with some numbers, though no gradient says so."""
    first = list(tensors_in(run()))
    with moved(values):
        again = list(tensors_in(run()))
    return not all(same(one, other) for one, other in zip(first, again, strict=True))
