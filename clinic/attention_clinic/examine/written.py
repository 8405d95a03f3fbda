"""A call that was written down, and what of it each token reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event, Tape, TooLong, taped
from attention_clinic.examine.subject import Subject

PRODUCTS = {"bmm": 0, "mm": 0, "addmm": 1}  # the place of their first factor
NONE, SEVERAL = -1, -2  # tokens that reach a number


@dataclass
class Run:
    """One call, and what of it each token and each sample reaches.

    Args:
        tape: what was written down.
        y: ids of the result.
        token, sample: the one that reaches each number, NONE or SEVERAL.
    """

    tape: Tape
    y: Tensor
    token: Tensor
    sample: Tensor
    where: Tensor = field(init=False)
    values: Tensor = field(init=False)
    producer: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.tape.values
        self.where = torch.full((self.tape.count,), -1)
        self.producer = torch.full((self.tape.count,), -1)
        for number, event in enumerate(self.tape.events):
            self.producer[event.out.flatten()] = number

    @cached_property
    def given(self) -> Tensor:
        """For each number that of the tensor it stood in before the call, -1 if it was made."""
        found = torch.full((self.tape.count,), -1)
        for number, (_, start, end) in enumerate(self.tape.given):
            found[start:end] = number
        return found

    def depends(self, ids: Tensor) -> bool:
        """Say whether any token reaches any of these numbers."""
        return bool((self.token[ids.flatten()] != NONE).any())

    def makers(self, ids: Tensor) -> list[int]:
        """Return the numbers of the events that made these numbers, -1 for none."""
        return self.producer[ids.flatten()].unique().tolist()

    @cached_property
    def used(self) -> Tensor:
        """Whether the result is made of it, for each event."""
        found = torch.zeros(len(self.tape.events), dtype=torch.bool)
        todo = self.makers(self.y)
        while todo:
            number = todo.pop()
            if number >= 0 and not found[number]:
                found[number] = True
                for t in self.tape.events[number].read():
                    todo += self.makers(t)
        return found

    @property
    def idle(self) -> set[str]:
        """The weights of layers that make something of the tokens that reaches no result."""
        events = zip(self.tape.events, self.used, strict=True)
        return {name for event, used in events if not used for name in self._weights(event)}

    @property
    def unread(self) -> dict[str, int]:
        """The weights that no operation reads, with how many numbers they have."""
        read = torch.zeros(self.tape.count, dtype=torch.bool)
        for event in self.tape.events:
            for t in event.read():
                read[t.flatten()] = True
        return {
            name: end - start
            for name, start, end in self.tape.given
            if name and not bool(read[start:end].any())
        }

    def layers(self, ids: Tensor) -> set[str]:
        """Return the weights of the layers that made these numbers."""
        return {name for event in linked(self, ids) for name in self._weights(event)}

    def _weights(self, event: Event) -> set[str]:
        """Return the names of the weights that an event multiplies tokens by."""
        place = PRODUCTS.get(event.name)
        if place is None or not self.depends(event.out):
            return set()
        held = [self.given[t.flatten()[0]] for t in event.args[place : place + 2]]
        return {self.tape.given[int(number)][0] for number in held if number >= 0} - {"", "x"}

    def products(self) -> list[tuple[int, Tensor, Tensor]]:
        """Return the products of two matrices that both depend on tokens, with their factors."""
        found = []
        for number, event in enumerate(self.tape.events):
            place = PRODUCTS.get(event.name)
            if place is None or not self.used[number]:
                continue
            first, second = event.args[place], event.args[place + 1]
            if self.depends(first) and self.depends(second):
                found.append((number, *(t if t.ndim == 3 else t[None] for t in (first, second))))
        return found


def runs(subject: Subject, b: int, n: int) -> Run | None:
    """Call a module, with each token and each sample changed in turn; None if it is too long.

    Args:
        subject: the module.
        b, n: samples and tokens.
    """
    module = subject.patient.module
    x, other = (subject.patient.tokens(b, n, subject.e, seed=seed) for seed in (51, 52))
    named = list(module.named_parameters())

    def called(x: Tensor) -> tuple[Tape, Tensor]:
        return taped(lambda: subject.open_run(x), [("x", x), *named])

    try:
        tape, y = called(x)
        values = tape.values.nan_to_num(7e77)
        reached = []
        for axis, count in ((1, n), (0, b)):
            found = torch.full((tape.count,), NONE)
            for number in range(count):
                changed = x.clone()
                changed.select(axis, number).copy_(other.select(axis, number))
                again, _ = called(changed)
                if again.count != tape.count:
                    return None
                moved = again.values.nan_to_num(7e77) != values
                found = torch.where(moved, torch.where(found == NONE, number, SEVERAL), found)
            reached.append(found)
    except TooLong:
        return None
    return Run(_with_layers(tape), y, *reached)


def _with_layers(tape: Tape) -> Tape:
    """Return a tape on which convolutions of single places are layers of their channels."""
    for number, event in enumerate(tape.events):
        if event.name != "convolution":
            continue
        t, weight, bias, _, padding, _, _, _, groups = event.args
        single = weight[0, 0].numel() == 1 and groups == 1 and not any(padding)
        if not single or t.shape[2:] != event.out.shape[2:]:
            continue
        read, made = (one.movedim(1, -1).flatten(0, -2) for one in (t, event.out))
        args = (read, weight.flatten(1).T)
        biased = isinstance(bias, Tensor)
        args = (bias, *args) if biased else args
        tape.events[number] = Event("addmm" if biased else "mm", args, made)
    return tape


def linked(run: Run, ids: Tensor) -> Iterator[Event]:
    """Yield the events that made these numbers."""
    for number in run.makers(ids):
        if number >= 0:
            yield run.tape.events[number]
