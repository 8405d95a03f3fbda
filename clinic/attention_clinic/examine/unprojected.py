"""Queries, keys or values that are the tokens themselves, beside a layer that nothing calls.

That layer makes nothing of what the module returns. Made to return what it reads, it is read as any
other, and all else that is wrong is found as usual.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.modes import Visits
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.weights import role
from attention_clinic.examine.subject import Subject

CALLED = ("q", "k", "v")
PRODUCTS = ("matmul", "bmm", "einsum")


class Operands(Visits):
    """Hear which layers are called, and whether the tokens themselves are multiplied.

    Args:
        module: the copy that will run.
        x: the tokens.
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        super().__init__(module)
        self.numbers = x.flatten().sort().values
        self.met: set[nn.Module] = set()
        self.raw = 0

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.met.add(part)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith(PRODUCTS) or func is F.scaled_dot_product_attention:
            read = tensors_in([*args, *kwargs.values()])
            given = [t for t in read if not isinstance(t, nn.Parameter)]
            self.raw += sum(map(self._is_raw, given)) if len(given) > 1 else 0
        return func(*args, **kwargs)

    def _is_raw(self, t: Tensor) -> bool:
        if t.numel() != self.numbers.numel() or t.dtype != self.numbers.dtype:
            return False
        return bool(torch.equal(t.detach().flatten().sort().values, self.numbers))


def idle_outputs(subject: Subject) -> list[str]:
    """Return the layers whose names say that they are output layers, and which nothing calls."""
    module = subject.patient.module
    if not subject.patient.is_module or subject.mode is not None:
        return []
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    with Operands(module, x) as heard:
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
        if isinstance(part, nn.Linear) and tuple(part.weight.shape) == (e, e)
        if role(f"{path}.weight") in CALLED
    }
    if not layers or subject.crossed:
        return
    x = subject.patient.tokens(subject.b, subject.n, e)
    with Operands(module, x) as heard:
        subject.open_run(x)
    idle = {path: part for path, part in layers.items() if part not in heard.met}
    if not idle or len(idle) != heard.raw:
        return
    for part in idle.values():
        part.weight.data.copy_(torch.eye(e))
        if part.bias is not None:
            part.bias.data.zero_()
    subject.extra.append("projection-unused")
