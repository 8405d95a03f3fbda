"""Queries, keys or values that are the tokens themselves, beside a layer that nothing calls.

That layer makes nothing of what the module returns. Made to return what it reads, it is read as any
other, and all else that is wrong is found as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.modes import Visits
from attention_clinic.engine.patient import same
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.weights import role
from attention_clinic.examine.subject import Subject

CALLED = ("q", "k", "v", "qkv")  # the last of queries alone, where it is as wide as the tokens
PRODUCTS = ("matmul", "bmm", "einsum")


class Operands(Visits):
    """Hear which layers are called, and what is multiplied with each other.

    Args:
        module: the copy that will run.
        given: the tokens, and the context.
    """

    def __init__(self, module: nn.Module, given: Sequence[Tensor]) -> None:
        super().__init__(module)
        self.numbers = [_in_order(t) for t in given]
        self.met: set[nn.Module] = set()
        self.multiplied: list[Tensor] = []

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.met.add(part)
        if role(f"{path}.weight") in CALLED:  # what queries are made of may be normed before
            self.numbers += [_in_order(t) for t in tensors_in([*args, *kwargs.values()])]

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith(PRODUCTS) or func is F.scaled_dot_product_attention:
            read = tensors_in([*args, *kwargs.values()])
            given = [t for t in read if not isinstance(t, nn.Parameter)]
            self.multiplied += [_in_order(t) for t in given] if len(given) > 1 else []
        return func(*args, **kwargs)

    @property
    def raw(self) -> int:
        """How often what a layer would read is multiplied as it is."""
        return sum(any(_alike(t, own) for own in self.numbers) for t in self.multiplied)


def _in_order(t: Tensor) -> Tensor:
    """Return the numbers of a tensor, which no moved axes change."""
    return t.detach().flatten().sort().values


def _alike(t: Tensor, own: Tensor) -> bool:
    """Say whether these are the same numbers, times a factor, or turned: then they are as long."""
    if t.shape != own.shape or t.dtype != own.dtype or not t.is_floating_point():
        return False
    long, wanted = t.norm(), own.norm()
    return torch.isclose(long, wanted, rtol=1e-6).item() or same(t / long, own / wanted)


def idle_outputs(subject: Subject) -> list[str]:
    """Return the layers whose names say that they are output layers, and which nothing calls."""
    module = subject.patient.module
    if not subject.patient.is_module or subject.mode is not None:
        return []
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    with Operands(module, [x]) as heard:
        subject.open_run(x)
    return [
        path
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and part not in heard.met
        if role(f"{path}.weight") == "o" and part.out_features == subject.e
    ]


def unprojected(subject: Subject) -> None:
    """Let the layers that nothing calls, where tokens stand in their place, return what they read.

    Args:
        subject: the module; gets the id where there is such a layer.
    """
    module, e = subject.patient.module, subject.e
    if not subject.patient.is_module or subject.own_weights or subject.mode is not None:
        return
    layers = {
        path: part
        for path, part in module.named_modules()
        if isinstance(held := getattr(part, "weight", None), nn.Parameter)
        if held.ndim > 1 and held.shape == (e, e, *[1] * (held.ndim - 2))
        if role(f"{path}.weight") in CALLED
    }
    if not layers:
        return
    x, context = subject.patient.tokens(subject.b, subject.n, e), subject.context_of(0)
    with Operands(module, [x] if context is None else [x, context]) as heard:
        subject.open_run(x)
    idle = {path: part for path, part in layers.items() if part not in heard.met}
    if not idle or len(idle) != heard.raw:
        return
    for part in idle.values():
        part.weight.data.copy_(torch.eye(e).view_as(part.weight))
        if getattr(part, "bias", None) is not None:
            part.bias.data.zero_()
    subject.extra.append("projection-unused")
