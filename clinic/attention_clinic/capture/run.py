"""A recorded run of a module, and which token and which sample each number depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attention_clinic.capture.module import CallFailed
from attention_clinic.capture.tape import Event, Tape, TooLong, recorded

FACTORS = {"bmm": 0, "mm": 0, "addmm": 1}  # the index of the first factor of a product
LAYERS = (*FACTORS, "convolution")
ACTIVATIONS = {"relu", "gelu", "silu", "elu", "tanh", "sigmoid", "leaky_relu", "softplus"}
KEEPS_ZERO = {"relu", "clamp", "clamp_min", "hardtanh", "mul", "div", "threshold"}
NONE, SEVERAL = -1, -2  # tokens that a number depends on


@dataclass
class Run:
    """One recorded call; tokens of a context are counted after the others."""

    tape: Tape
    y: Tensor  # ids of the result
    token: Tensor  # the one that each number depends on, NONE or SEVERAL
    sample: Tensor
    context: tuple[int, int] | None = None  # its first token and their number
    events: list[Event] = field(init=False)  # the operations, in order
    values: Tensor = field(init=False)
    producer: Tensor = field(init=False)  # the event that made each number, -1 for none

    def __post_init__(self) -> None:
        self.events, self.values = self.tape.events, self.tape.values
        self.producer = torch.full((self.tape.count,), -1)
        for number, event in enumerate(self.events):
            self.producer[event.out.flatten()] = number

    @cached_property
    def given(self) -> Tensor:
        """For each number, which tensor from before the call holds it; -1 for none."""
        found = torch.full((self.tape.count,), -1)
        for number, (_, start, end) in enumerate(self.tape.given):
            found[start:end] = number
        return found

    def name(self, ids: Tensor) -> str:
        """Return the name of the tensor from before the call that holds the first number."""
        number = int(self.given[ids.flatten()[0]])
        return self.tape.given[number][0] if number >= 0 else ""

    def depends(self, ids: Tensor) -> bool:
        """Return whether any of these numbers depends on a token."""
        return bool((self.token[ids.flatten()] != NONE).any())

    def number(self, value: object) -> float | None:
        """Return a constant number; None for tensors of several numbers or of tokens."""
        if isinstance(value, Tensor) and not self.depends(value):
            values = self.values[value.flatten()]
            return float(values[0]) if bool((values == values[0]).all()) else None
        return float(value) if isinstance(value, bool | int | float) else None

    def is_binary(self, ids: object) -> bool:
        """Return whether constants are zeros and ones, zeros among them."""
        if not isinstance(ids, Tensor) or self.depends(ids):
            return False
        values = self.values[ids]
        return bool(((values == 0) | (values == 1)).all() and (values == 0).any())

    def makers(self, ids: Tensor) -> list[int]:
        """Return the events that made these numbers, -1 for none."""
        return self.producer[ids.flatten()].unique().tolist()

    @cached_property
    def used(self) -> Tensor:
        """For each event, whether the result depends on it."""
        return self.ancestors(self.y)

    def ancestors(self, ids: Tensor) -> Tensor:
        """Return for each event whether these numbers are made from it."""
        found = torch.zeros(len(self.events), dtype=torch.bool)
        todo = self.makers(ids)
        while todo:
            number = todo.pop()
            if number >= 0 and not found[number]:
                found[number] = True
                for t in self.events[number].read():
                    todo += self.makers(t)
        return found

    def descendants(self, ids: Tensor) -> Tensor:
        """Return for each number whether it is made from any of these."""
        found = torch.zeros(self.tape.count, dtype=torch.bool)
        found[ids.flatten()] = True
        for event in self.events:
            if any(bool(found[t].any()) for t in event.read()):
                found[event.out] = True
        return found

    def learned(self, ids: Tensor) -> bool:
        """Return whether these numbers are made from parameters."""
        read = [ids]
        for number in self.ancestors(ids).nonzero().flatten().tolist():
            read += self.events[number].read()
        numbers = {g for t in read for g in self.given[t.flatten()].unique().tolist() if g >= 0}
        return any(self.tape.given[g][0] not in ("", "x", "context") for g in numbers)

    def products(self) -> list[tuple[int, Tensor, Tensor]]:
        """Return the products of two matrices that both depend on tokens: event and factors."""
        found = []
        for number, event in enumerate(self.events):
            place = FACTORS.get(event.name)
            if place is None or not self.used[number]:
                continue
            first, second = event.args[place], event.args[place + 1]
            if self.depends(first) and self.depends(second):
                found.append((number, *(t if t.ndim == 3 else t[None] for t in (first, second))))
        return found

    def again(self, changes: Iterable[tuple[Tensor, Tensor]], wanted: Tensor) -> Tensor:
        """Run the recorded operations on changed numbers and return the wanted ones.

        The changes are ids and their new values; the operations that made them are not run.
        """
        values = self.values.clone()
        fixed = torch.zeros(self.tape.count, dtype=torch.bool)
        for ids, new in changes:
            values[ids] = new.to(values.dtype)
            fixed[ids] = True
        changed, needed = fixed.clone(), self.ancestors(wanted)
        for number, event in enumerate(self.events):
            if needed[number] and any(bool(changed[t].any()) for t in event.read()):
                keep = fixed[event.out]
                values[event.out] = torch.where(keep, values[event.out], event.again(values))
                changed[event.out] = True
        return values[wanted]


def capture(
    call: Callable[..., Tensor], tokens: list[Tensor], others: list[Tensor], names: Iterable
) -> Run | None:
    """Record a call, and change each token and each sample in turn; None if it is too long.

    `call` takes the tokens: x (b, n, e), and a context (b, j, c) if there is one. `others` have the
    same shapes and other numbers; `names` are those of parameters, with their tensors.
    """
    named = list(names)

    def record(given: list[Tensor]) -> tuple[Tape, Tensor]:
        begins = zip(("x", "context"), given, strict=False)
        return recorded(lambda: call(*given), [*begins, *named])

    def changed(sides: Iterable[int], axis: int, number: int) -> list[Tensor]:
        made = [t.clone() for t in tokens]
        for i in sides:
            made[i].select(axis, number).copy_(others[i].select(axis, number))
        return made

    each_token = [changed([i], 1, k) for i, t in enumerate(tokens) for k in range(t.shape[1])]
    each_sample = [changed(range(len(tokens)), 0, k) for k in range(len(tokens[0]))]
    try:
        tape, y = record(tokens)
        values = tape.values.nan_to_num(7e77)
        found = []
        for changes in (each_token, each_sample):
            depends = torch.full((tape.count,), NONE)
            for number, given in enumerate(changes):
                other = record(given)[0]
                if other.count != tape.count:
                    return None
                moved = other.values.nan_to_num(7e77) != values
                depends[moved] = torch.where(depends[moved] == NONE, number, SEVERAL)
            found.append(_with_zeros(tape, depends))
    except (CallFailed, TooLong) as failed:
        if isinstance(failed, TooLong) or isinstance(failed.error, TooLong):
            return None
        raise
    context = (tokens[0].shape[1], tokens[1].shape[1]) if len(tokens) > 1 else None
    run = Run(tape, y, *found, context=context)
    canonical(run)
    return run


def _with_zeros(tape: Tape, depends: Tensor) -> Tensor:
    """Let a number that an activation keeps at 0 depend on what the activation read."""
    for event in tape.events:
        first = next(iter(event.read()), None)
        if event.name in KEEPS_ZERO and first is not None and first.shape == event.out.shape:
            still = depends[event.out] == NONE
            depends[event.out] = torch.where(still, depends[first], depends[event.out])
    return depends


def canonical(run: Run) -> None:
    """Write a product with one matrix for all samples as a layer."""
    for number, event in enumerate(run.events):
        if event.name == "bmm" and len(event.args[0]) == 1:
            first, second = event.args[:2]
            if run.depends(first) != run.depends(second):
                again = lambda values, event=event: event.again(values)[0]  # noqa: E731
                run.events[number] = Event("mm", (first[0], second[0]), event.out[0], again)


def varies(t: Tensor, axis: int) -> bool:
    """Return whether the numbers differ along an axis."""
    return bool((t != t.narrow(axis, 0, 1)).any())
