"""Record a run: which numbers each operation read, and which numbers it made.

Every number that an operation makes gets its own id. Views, transposes and copies make no new
numbers: the id moves with its number. This way the origin of each number is known, whatever
reshapes it went through. A complex number is two ids, of its real and its imaginary part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

MOST = 1_500_000  # numbers of a run
COPIES = {"_to_copy", "clone", "contiguous", "lift_fresh_copy"}
INDEXED = {"index", "_unsafe_index", "index_select", "gather", "take"}
MOVES = {"cat", "stack", "repeat", "roll", "flip", "repeat_interleave", "_unsafe_view"}


class TooLong(Exception):
    """A run makes more numbers than are recorded."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def _real(t: Tensor) -> Tensor:
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


@dataclass(frozen=True)
class Event:
    """One operation."""

    name: str  # such as "bmm"
    args: tuple[Any, ...]  # a tensor is replaced by the ids of its numbers
    out: Tensor  # ids of the numbers that it made
    again: Callable[[Tensor], Tensor]  # run it on other values, by id; return those of `out`
    complex: bool = False  # ids of complex numbers have a last axis of 2

    def read(self) -> list[Tensor]:
        """Return the ids of each tensor that it read."""
        return list(tensors_in(self.args))


class Tape(TorchDispatchMode):
    """Record every operation on tensors as `events`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: PyTorch's wrapper would import its compiler, which takes seconds."""
        return False

    def __init__(self, names: Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.made: list[Tensor] = []
        self.count = 0
        self.given: list[tuple[str, int, int]] = []  # tensors from before: name, first id, end
        self._shadows: dict[tuple[int, int], Tensor] = {}  # ids of the elements of a storage
        self._kept: list[Any] = []  # so that no storage is freed and used again
        for name, t in names:
            self.ids(t.detach(), name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name == "baddbmm":
            return self._in_two(types, *args, **kwargs)
        made_new = name.endswith("_like") or name.startswith("new_")  # only the shape is read
        before = [None if made_new else self._read(v) for v in (*args, *kwargs.values())]
        result = func(*args, **kwargs)
        self._kept.append((args, kwargs, result))
        for number, out in enumerate(tensors_in(result)):
            if not out.numel() or (not func._schema.is_mutable and self._key(out) in self._shadows):
                continue  # nothing, or a view
            ids = self._moved(name, func, args, kwargs, before, out)
            if ids is None:
                ids = self._new(out)
                again = _again(func, args, kwargs, before, number)
                pairs = any(t.is_complex() for t in tensors_in((args, kwargs, out)))
                usual = {"_safe_softmax": "_softmax"}.get(name, name.rstrip("_"))
                event = Event(usual, tuple(before), ids, again, pairs)
                self.events.append(_pointwise(event) if name == "convolution" else event)
            self._view(out).copy_(ids)
        return result

    def _in_two(
        self, types: Any, added: Tensor, first: Tensor, second: Tensor, beta=1, alpha=1
    ) -> Tensor:
        """Record a product with an addend as a product and a sum."""
        run, ops = self.__torch_dispatch__, torch.ops.aten
        made = run(ops.bmm.default, types, (first, second))
        made = made if alpha == 1 else run(ops.mul.Scalar, types, (made, alpha))
        return run(ops.add.Tensor, types, (made, added), {"alpha": beta}) if beta else made

    @property
    def values(self) -> Tensor:
        """The numbers, by id."""
        return torch.cat(self.made)

    def ids(self, t: Tensor, name: str = "") -> Tensor:
        """Return the ids of the numbers of a tensor; new ones for a tensor from before the run."""
        t = _real(t)
        view = self._view(t)
        if bool((view < 0).any()):
            shadow, new = self._shadows[self._key(t)], self._new(t)
            self.given.append((name, int(new.min()), int(new.max()) + 1))
            places = torch.arange(len(shadow)).as_strided(t.shape, t.stride(), t.storage_offset())
            shadow[places[view < 0]] = new[view < 0]  # a broadcast tensor has fewer of them
        return view.clone()

    def _read(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [self._read(one) for one in value]
        return self.ids(value) if isinstance(value, Tensor) and value.numel() else value

    def _key(self, t: Tensor) -> tuple[int, int]:
        return t.untyped_storage().data_ptr(), t.element_size() // (2 if t.is_complex() else 1)

    def _view(self, t: Tensor) -> Tensor:
        """Return the ids of the elements of a tensor, -1 for numbers that have none yet."""
        t = _real(t)
        key = self._key(t)
        if key not in self._shadows:
            size = t.untyped_storage().nbytes() // t.element_size()
            self._shadows[key] = torch.full((size,), -1)
            self._kept.append(t)
        return self._shadows[key].as_strided(t.shape, t.stride(), t.storage_offset())

    def _new(self, t: Tensor) -> Tensor:
        """Return new ids for the numbers of a tensor."""
        t = _real(t)
        start, self.count = self.count, self.count + t.numel()
        if self.count > MOST:
            raise TooLong
        self.made.append(t.detach().reshape(-1).double().clone())
        return torch.arange(start, self.count).view(t.shape)

    def _moved(
        self, name: str, func: Any, args: tuple, kwargs: dict, before: list, out: Tensor
    ) -> Tensor | None:
        """Return the ids of an operation that only moved numbers, None for any other."""
        if out.is_complex() or any(isinstance(t, Tensor) and t.is_complex() for t in args):
            return None
        if name == "copy_":
            return before[1].expand(out.shape) if isinstance(before[1], Tensor) else None
        if name == "constant_pad_nd":
            moved = func(before[0] + 1, *args[1:2], 0) - 1
            return torch.where(moved < 0, self._new(out), moved)
        if name in COPIES:
            return before[0]
        if name in INDEXED:
            return func(before[0], *args[1:], **kwargs)
        return func(*before[: len(args)], **kwargs) if name in MOVES else None


def _again(
    func: Any, args: tuple, kwargs: dict, before: list, number: int
) -> Callable[[Tensor], Tensor]:
    """Return a function that runs an operation on other values."""

    def filled(value: Any, ids: Any, values: Tensor) -> Any:
        if isinstance(value, tuple | list):
            return [filled(one, own, values) for one, own in zip(value, ids, strict=True)]
        if not isinstance(value, Tensor) or not isinstance(ids, Tensor):
            return value
        taken = values[ids]
        taken = torch.view_as_complex(taken.contiguous()) if value.is_complex() else taken
        return taken.to(value.dtype)

    def run(values: Tensor) -> Tensor:
        given = filled([*args, *kwargs.values()], before, values)
        named = zip(kwargs, given[len(args) :], strict=True)
        result = func(*given[: len(args)], **dict(named))
        return _real(list(tensors_in(result))[number]).double()

    return run


def _pointwise(event: Event) -> Event:
    """Return a 1 x 1 convolution as the Linear over channels that it is."""
    t, weight, bias, stride, padding, _, transposed, _, groups = event.args
    plain = not transposed and groups == 1 and set(stride) == {1} and set(padding) == {0}
    if not plain or weight[0, 0].numel() > 1:
        return event
    rows, out = (ids.movedim(1, -1).flatten(0, -2) for ids in (t, event.out))
    factors = (rows, weight.flatten(1).T)
    name, args = ("mm", factors) if bias is None else ("addmm", (bias, *factors))
    return Event(name, args, out, lambda v: event.again(v).movedim(1, -1).flatten(0, -2))


def recorded(
    run: Callable[[], Tensor], names: Iterable[tuple[str, Tensor]] = ()
) -> tuple[Tape, Tensor]:
    """Run a module and return the tape and the ids of its result, or raise `TooLong`.

    The names are those of tensors that exist before the run.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Tape(names) as tape:
            y = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return tape, tape.ids(y)
