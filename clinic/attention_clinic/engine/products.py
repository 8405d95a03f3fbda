"""What multiplies what while a module runs: layers, norms, products of two things that tokens made.

Nothing here knows what a tensor is for. Each event holds what went in and what came out, in the
order of the calls, so that an examination can follow the numbers from the tokens to the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine import fused
from attention_clinic.engine.modes import Mode

REDUCED = {
    *("pow", "__pow__", "square", "mul", "__mul__", "mean", "var", "std", "var_mean", "norm"),
    *("normalize", "linalg_vector_norm", "vector_norm", "linalg_norm", "rms_norm", "layer_norm"),
}
WEIGHING = ("softmax", "_softmax", "sigmoid", "relu")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
MOST = 4_000_000  # numbers of a tensor that is kept


@dataclass(frozen=True)
class Event:
    """One call.

    Args:
        kind: "layer", "product", "weigh", "norm", "conv", or "fixed": a norm by numbers that no
            token made, which is part of the layer before it.
        given: what went in: the operands of a product (*l, i, c) and (*l, c, j), else one tensor.
        made: what came out; of a product (*l, i, j).
        said: the name of the function, and the axis of a softmax.
        weight: of a layer; the mask of a fused kernel.
    """

    kind: str
    given: tuple[Tensor, ...]
    made: Tensor
    said: tuple[Any, ...] = ()
    weight: Tensor | None = None


def by_heads(events: list[Event], b: int, n: int, h: int) -> list[Event]:
    """Return events whose scores lie by heads: (b, n, h, j) is turned, (b, h * n, j) taken apart.

    The latter are products with keys or values that all heads share, as einsum makes them.

    Args:
        events: of a run.
        b, n, h: samples, tokens that ask, and heads.
    """
    events = [_keys_last(event, b, n, h) for event in events]
    last = [e.made.shape[:3] for e in events if e.kind == "weigh" and e.made.ndim == 4]
    turned = n != h and (b, n, h) in last and (b, h, n) not in last
    sizes = (n, h) if turned else (h, n)

    def apart(t: Tensor) -> Tensor:
        t = t.reshape(b, *sizes, t.shape[-1])
        return t.transpose(1, 2) if turned else t

    found = []
    for event in events:
        made, given = event.made, event.given
        if turned and event.kind == "weigh" and made.shape[:3] == (b, n, h) and made.ndim == 4:
            one = tuple(t.transpose(1, 2) for t in given)
            event = Event("weigh", one, made.transpose(1, 2), event.said)
        shared = event.kind == "product" and made.ndim == 3 and h > 1
        if shared and made.shape[:2] == (b, h * n) and given[1].shape[:1] == (b,):
            one = apart(given[0]), given[1][:, None].expand(-1, h, -1, -1)
            event = Event("product", one, apart(made))
        found.append(event)
    return found


def _keys_last(event: Event, b: int, n: int, h: int) -> Event:
    """Return a softmax over another axis than the last, as (i, j, b, h), by heads: (b, h, i, j)."""
    made, keys = event.made, event.said[1] if event.kind == "weigh" and event.said[1:] else None
    if made.ndim != 4 or not isinstance(keys, int) or keys % 4 == 3 or made.shape[:2] == (b, h):
        return event
    rest = [axis for axis in range(4) if axis != keys % 4]
    sizes = [made.shape[axis] for axis in rest]
    if sorted(sizes) != sorted((b, n, h)) or sizes.count(b) > 1:
        return event
    asks = sizes.index(n)
    heads = next(i for i in range(3) if i not in (asks, sizes.index(b)))
    order = (rest[sizes.index(b)], rest[heads], rest[asks], keys % 4)
    given = tuple(t.permute(order) for t in event.given)
    return Event("weigh", given, made.permute(order), (event.said[0], -1))


def repeated(events: list[Event], number: int) -> bool:
    """Say whether the layer of this event was called before, on the same, and made the same."""
    own = events[number]
    return own.weight is not None and any(
        event.kind == own.kind
        and event.weight is own.weight
        and event.made.shape == own.made.shape
        and torch.equal(event.given[0], own.given[0])
        and torch.equal(event.made, own.made)
        for event in events[:number]
    )


def constants(first: Event, second: Event) -> list[bool]:
    """Return which of its operands an event gets whatever the tokens are."""
    return [
        a.shape == c.shape and torch.equal(a, c)
        for a, c in zip(first.given, second.given, strict=True)
    ]


class Products(Mode):
    """Write down every layer, norm, weighing, and product of two tensors."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            self._fused(fused.given(args, kwargs))
        returned = func(*args, **kwargs)
        result = returned[0] if name in ("var_mean", "std_mean") else returned
        if not isinstance(result, Tensor) or not args or result.numel() > MOST:
            return returned
        given = [t for t in _flat(args) if isinstance(t, Tensor)]
        if func is F.linear and len(given) > 1:
            self._note("layer", given[:1], result, (name,), given[1])
        elif name in CONVOLUTIONS:
            self._convolution(name, given[0], given[1], result)
        elif name in ("matmul", "__matmul__", "bmm") and len(given) == 2:
            self._product(given[0], given[1], result)
        elif name in ("baddbmm", "addmm") and len(given) == 3:
            self._product(given[1], given[2], result)
        elif name == "einsum" and isinstance(args[0], str) and len(given) == 2:
            self._einsum(args[0], given[0], given[1], result)
        elif name in WEIGHING:
            dim = kwargs.get("dim", args[1] if len(args) > 1 and name != "sigmoid" else None)
            self._note("weigh", given[:1], result, (name, dim))
        elif name == "batch_norm" and given[0].ndim > 1 and not _of_batch(args, kwargs):
            self._note("fixed", given[:1], result, (name,))
        elif name in REDUCED and given and given[0].ndim > 1:
            self._note("norm", given[:1], result, (name,))
        return returned

    def _note(
        self, kind: str, given: Any, made: Tensor, said: tuple = (), weight: Tensor | None = None
    ) -> None:
        held = tuple(t.detach().clone() for t in given)
        self.events.append(Event(kind, held, made.detach().clone(), said, weight))

    def _convolution(self, name: str, t: Tensor, weight: Tensor, made: Tensor) -> None:
        """Note a convolution; one of single places is a layer of their channels."""
        single = weight[0, 0].numel() == 1 and weight.shape[1] == t.shape[1]
        if single and t.ndim == made.ndim == weight.ndim and t.shape[2:] == made.shape[2:]:
            last = made.movedim(1, -1)
            self._note("layer", (t.movedim(1, -1),), last, (name,), weight.flatten(1))
        else:
            self._note("conv", (t,), made, (name,), weight)

    def _product(self, a: Tensor, b: Tensor, made: Tensor) -> None:
        if a.ndim > 1 and b.ndim > 1:
            self._note("product", (a, b), made)

    def _einsum(self, equation: str, a: Tensor, b: Tensor, result: Tensor) -> None:
        """Note a product by the letters: c is summed, i is a's alone, j is b's, l are in both."""
        sides, arrow, made = equation.replace(" ", "").partition("->")
        first, comma, second = sides.partition(",")
        letters = (first, second, made)
        if not arrow or not comma or "." in equation or any(len(set(s)) != len(s) for s in letters):
            return
        summed = [c for c in first if c in second and c not in made]
        if not summed or any(c not in made and c not in second for c in first):
            return
        if any(c not in made and c not in first for c in second):
            return
        both = [c for c in made if c in first and c in second]
        only_a = [c for c in made if c not in second]
        only_b = [c for c in made if c not in first]
        # several letters of one side alone: all but the last but one axis lead
        left = _ordered(a, first, both, only_a, summed)
        right = _ordered(b, second, both, only_b, summed).mT
        out = _ordered(result, made, both, only_a, only_b)
        self._note("product", (left, right), out, ("einsum", len(both), result))

    def _fused(self, given: dict[str, Any]) -> None:
        """Note the steps of the fused kernel."""
        q, (k, v) = given["query"], fused.shared(given)
        raw = q @ k.mT
        scores = fused.masked(raw * fused.scale(given), given)
        weights = scores.softmax(dim=-1)
        self._note("product", (q, k.mT), raw)
        self._note("weigh", (scores,), weights, ("softmax", -1))
        self._note("product", (weights, v), weights @ v)


def _of_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Say whether a batch norm takes the statistics of what it gets."""
    return bool(kwargs.get("training", args[5] if len(args) > 5 else False))


def _flat(args: tuple[Any, ...]) -> list[Any]:
    return [t for value in args for t in (value if isinstance(value, tuple | list) else (value,))]


def _ordered(t: Tensor, letters: str, *groups: list[str]) -> Tensor:
    """Return a tensor with the axes of some letters merged, group by group; the first ones stay."""
    order = [letters.index(c) for group in groups for c in group]
    t = t.permute(order)
    start = len(groups[0])
    for group in groups[1:]:
        t = t.flatten(start, start + len(group) - 1) if group else t.unsqueeze(start)
        start += 1
    return t
