"""A run written down number by number: which numbers each operation read, and which it made.

Every number that is made gets a number of its own, its id. What only moves numbers (views,
transposes, copies) makes none: an id goes wherever its number goes. So what was made of what can
be followed through any reshape, however it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attention_clinic.engine.modes import Aside

MOST = 1_500_000  # numbers of a run that is written down
OPERATIONS = 800  # of it: loops over single numbers are not written down
# operations that make new tensors of numbers that were there before
MOVES = {
    *("clone", "cat", "stack", "index", "index_select", "gather", "repeat", "roll", "flip"),
    *("_to_copy", "contiguous", "repeat_interleave", "_unsafe_view", "lift_fresh_copy", "take"),
    *("_unsafe_index", "pixel_shuffle", "pixel_unshuffle", "rot90", "_reshape_copy"),
}
OTHER_NAMES = {"_safe_softmax": "_softmax"}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a call got, or returned, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors_in(one)


class TooLong(Exception):
    """A run made more numbers, or took more operations, than are written down."""


@dataclass(frozen=True)
class Event:
    """One operation.

    Args:
        name: such as "bmm".
        args: as they were given, a tensor replaced by the ids of its numbers.
        out: ids of what it made.
    """

    name: str
    args: tuple[Any, ...]
    out: Tensor

    def read(self) -> list[Tensor]:
        """Return the ids of what it read, a tensor for each."""
        return list(tensors_in(self.args))


class Tape(TorchDispatchMode):
    """Write down every operation on tensors.

    Args:
        names: what tensors that are there before are called.

    Attributes:
        events: the operations, in their order.
        made: the numbers, by id, in parts; `values` joins them.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Run as it is: what PyTorch would wrap around it imports its compiler, for seconds."""
        return False

    def __init__(self, names: Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.made: list[Tensor] = []
        self.count = self.operations = 0
        self.given: list[tuple[str, int, int]] = []  # name, first id, one past the last
        self._shadows: dict[tuple[int, int], Tensor] = {}  # ids as they lie in a storage
        self._kept: list[Any] = []  # no storage is used again
        for name, t in names:
            self._fresh_storage(t, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if Aside.running:
            return func(*args, **(kwargs or {}))
        self.operations += 1
        if self.operations > OPERATIONS:
            raise TooLong
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        name = OTHER_NAMES.get(name, name)
        if name == "baddbmm":
            return self._in_two(types, args, kwargs)
        every = [*args, *kwargs.values()]
        before = [self._read(value) for value in every]
        result = func(*args, **kwargs)
        self._kept.append((every, result))
        writes = func._schema.is_mutable
        for out in tensors_in(result):
            if not out.numel():
                continue
            if not writes and self._key(out) in self._shadows:
                continue  # a view
            moved = self._moved(name, func, args, kwargs, before, out)
            if moved is None:
                moved = self._new(out)
                event = Event(name.rstrip("_"), tuple(before), moved)
                self.events.append(_layer(event) if name == "convolution" else event)
            self._lay(out, moved)
        return result

    def _in_two(self, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Write down a product to which something is added as a product and a sum."""
        added, first, second = args
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        run, ops = self.__torch_dispatch__, torch.ops.aten
        made = run(ops.bmm.default, types, (first, second))
        if alpha != 1:
            made = run(ops.mul.Scalar, types, (made, alpha))
        return run(ops.add.Tensor, types, (made, added), {"alpha": beta}) if beta else made

    @property
    def values(self) -> Tensor:
        """The numbers, by id."""
        return torch.cat(self.made)

    def ids(self, t: Tensor) -> Tensor:
        """Return the ids of the numbers of a tensor that the run made or read."""
        key = self._key(t)
        if key not in self._shadows:
            self._fresh_storage(t, "")
        return self._shadows[key].as_strided(t.shape, t.stride(), t.storage_offset()).clone()

    # ------------------------------------------------------------------------- how ids are laid

    def _read(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [self._read(one) for one in value]
        return self.ids(value) if isinstance(value, Tensor) and value.numel() else value

    def _key(self, t: Tensor) -> tuple[int, int]:
        return t.untyped_storage().data_ptr(), t.element_size()

    def _fresh_storage(self, t: Tensor, name: str) -> None:
        """Give ids to all numbers of a storage that nobody has seen before."""
        whole = t.detach().as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
        start = self.count
        self._shadows[self._key(t)] = self._new(whole)
        self._kept.append(t)
        self.given.append((name, start, self.count))

    def _new(self, t: Tensor) -> Tensor:
        """Return new ids for the numbers of a tensor."""
        start, self.count = self.count, self.count + t.numel()
        if self.count > MOST:
            raise TooLong
        if t.is_complex():
            t = t.real + torch.pi * t.imag
        self.made.append(t.detach().reshape(-1).double().clone())
        return torch.arange(start, self.count).view(t.shape)

    def _lay(self, out: Tensor, ids: Tensor) -> None:
        key = self._key(out)
        if key not in self._shadows:
            size = out.untyped_storage().nbytes() // out.element_size()
            self._shadows[key] = torch.full((size,), -1)
        view = self._shadows[key].as_strided(out.shape, out.stride(), out.storage_offset())
        view.copy_(ids)

    def _moved(
        self, name: str, func: Any, args: tuple, kwargs: dict, before: list, out: Tensor
    ) -> Tensor | None:
        """Return the ids of what only moved numbers, None for what made new ones."""
        if name == "copy_":
            return before[1].expand(out.shape) if isinstance(before[1], Tensor) else None
        if name == "constant_pad_nd":
            moved = func(before[0] + 1, *args[1:2], 0) - 1
            return torch.where(moved < 0, self._new(out), moved)
        if name not in MOVES:
            return None
        if name in ("_to_copy", "clone", "contiguous", "lift_fresh_copy"):
            return before[0]
        if name in ("index", "_unsafe_index", "index_select", "gather", "take"):
            return func(before[0], *args[1:], **kwargs)  # the places are as they were given
        return func(*before[: len(args)], **kwargs)


def _layer(event: Event) -> Event:
    """Return a convolution of single places as the layer of their channels that it is."""
    t, weight, bias, stride, padding, _, transposed, _, groups = event.args
    plain = not transposed and groups == 1 and set(stride) == {1} and set(padding) == {0}
    if not plain or weight[0, 0].numel() > 1:
        return event
    rows, out = (ids.movedim(1, -1).flatten(0, -2) for ids in (t, event.out))
    factors = (rows, weight.flatten(1).T)
    return Event("mm", factors, out) if bias is None else Event("addmm", (bias, *factors), out)


def taped(
    run: Callable[[], Tensor], names: Iterable[tuple[str, Tensor]] = ()
) -> tuple[Tape, Tensor]:
    """Call a module and return what was written down, and the ids of its result.

    Args:
        run: calls it.
        names: what tensors that are there before are called.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Tape(names) as tape:
            y = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return tape, tape.ids(y)
