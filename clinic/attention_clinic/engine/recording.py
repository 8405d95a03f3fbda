"""One run of a whole model, written down: what each part gets and returns, who weighs tokens."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine import fused
from attention_clinic.engine.modes import Visits
from attention_clinic.engine.severed import ASKS

BEYOND = "*"  # what begins the names of values that forward gives none
SOFTMAXES = ("softmax", "log_softmax", "_softmax")


@dataclass
class Call:
    """The first call of a part.

    Args:
        given: what forward got, by the names of its arguments; what stands beyond the named
            arguments is called *1, *2, ...
        order: the names that were given by their place alone.
        result: what it returned, None while it runs.
        count: how often it was called in all.
    """

    given: dict[str, Any]
    order: tuple[str, ...]
    result: Any = None
    count: int = 1


@dataclass(frozen=True)
class Weighing:
    """One softmax over scores.

    Args:
        path: of the innermost part that ran.
        shape: of the scores: (..., i, j), mostly (b, h, i, j).
        certain: True when torch's own attention ran, whose scores are certainly those.
    """

    path: str
    shape: tuple[int, ...]
    certain: bool


class Recording(Visits):
    """Listens to a model while it runs in this context.

    Args:
        model: the copy that will run.

    Attributes:
        calls: the first call of each part.
        weighings: where tokens are weighed by tokens.
        closed: whether some of them weighed all alike, as a mask makes them that blocks all.
        asked: paths of the parts whose code may go on as its data say.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calls: dict[str, Call] = {}
        self.weighings: list[Weighing] = []
        self.running: list[str] = []
        self.closed = False
        self.asked: set[str] = set()

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        """Write down the first call of a part."""
        self.running.append(path)
        if path in self.calls:
            self.calls[path].count += 1
            return
        self.calls[path] = call_of(part, args, kwargs)

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Write down what the first call of a part gave."""
        if self.running and self.running[-1] == path:
            self.running.pop()
        if self.calls[path].result is None:
            self.calls[path].result = result

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self.running:
            self._heard(func, args, kwargs, result)
        return result

    def _heard(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name, path = getattr(func, "__name__", ""), self.running[-1]
        if name in ASKS:
            self.asked.add(path)
        if func is F.scaled_dot_product_attention:
            q, k = args[:2] if len(args) > 1 else (kwargs["query"], kwargs["key"])
            self.weighings.append(Weighing(path, (*q.shape[:-1], k.shape[-2]), True))
            mask = fused.given(args, kwargs).get("attn_mask")
            self.closed |= mask is not None and mask.dtype == torch.bool and not bool(mask.any())
        elif func is F.multi_head_attention_forward:
            q, k = args[:2]
            i, b = q.shape[:2] if q.ndim == 3 else (q.shape[0], 1)
            h = args[4] if len(args) > 4 else kwargs["num_heads"]
            self.weighings.append(Weighing(path, (b, h, i, k.shape[0]), True))
        elif name in SOFTMAXES:
            scores = args[0] if args else kwargs.get("input")
            if isinstance(scores, Tensor) and scores.ndim > 2:
                self.weighings.append(Weighing(path, tuple(scores.shape), False))
                self.closed |= not bool((result != result[..., :1]).any())


def call_of(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return a call by the names that forward gives its arguments.

    Args:
        part: what is called.
        args: what it gets by place.
        kwargs: what it gets by name.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(part.forward).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    names += [f"{BEYOND}{n}" for n in range(1, len(args) - len(names) + 1)]
    order = tuple(names[: len(args)])
    return Call(dict(zip(order, args, strict=True)) | dict(kwargs), order)
