"""A call that was written down, and what of it each token reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attention_clinic.engine.sums import with_products
from attention_clinic.engine.tape import Event, Tape, TooLong, taped
from attention_clinic.examine.subject import Subject

PRODUCTS = {"bmm": 0, "mm": 0, "addmm": 1}  # the place of their first factor
BENDING = {"relu", "clamp", "clamp_min", "hardtanh", "mul", "div"}  # they may keep a number at 0
BENDS = {  # activations, and whether what they bend may be multiplied before or behind
    **dict.fromkeys(("relu", "leaky_relu"), True),
    **dict.fromkeys(("gelu", "silu", "elu", "softplus", "tanh", "sigmoid"), False),
}
PLAIN = {"mm", "addmm", "bmm"}  # they make queries and keys as long as they are
TURNS = {"mul", "add", "sub", "neg", "view_as_complex", "view_as_real", "stack"}
COMPLEX = abs(complex(1, torch.pi))  # the most that a tape writes for a complex number of length 1
NONE, SEVERAL = -1, -2  # tokens that reach a number


@dataclass
class Run:
    """One call, and what of it each token and each sample reaches.

    Args:
        tape: what was written down.
        y: ids of the result.
        token, sample: the one that reaches each number, NONE or SEVERAL; the tokens of a context
            are counted on behind the others.
        asked: the first token of the context, and how many there are; None for no context.
    """

    tape: Tape
    y: Tensor
    token: Tensor
    sample: Tensor
    asked: tuple[int, int] | None = None
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

    def number(self, value: object) -> float | None:
        """Return a number that no token reaches, None where a tensor holds several."""
        if isinstance(value, bool | int | float):
            return float(value)
        if isinstance(value, Tensor):
            values = self.values[value.flatten()]
            if not self.depends(value) and bool((values == values[0]).all()):
                return float(values[0])
        return None

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
        return {self.tape.given[int(number)][0] for number in held if number >= 0} - {
            "",
            "x",
            "context",
        }

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


def runs(subject: Subject, b: int, n: int, j: int, masked: bool = False) -> Run | None:
    """Call a module, with each token and each sample changed in turn; None if it is too long.

    Args:
        subject: the module.
        b, n, j: samples, tokens, and those of a context.
        masked: whether it gets its mask.
    """
    held: dict = vars(subject).setdefault("runs", {})
    key = b, n, j, subject.mode, masked
    if key not in held:
        held[key] = _written(subject, b, n, j, masked)
    return held[key]


def _written(subject: Subject, b: int, n: int, j: int, masked: bool) -> Run | None:
    """Call a module and write down its run; see `runs`."""
    sizes = [(n, subject.e), *[(j, subject.c)] * subject.crossed]
    mine, others = (
        [subject.patient.tokens(b, *size, seed=seed + 100 * i) for i, size in enumerate(sizes)]
        for seed in (51, 52)
    )
    named = list(subject.patient.module.named_parameters())

    def called(given: list[Tensor]) -> tuple[Tape, Tensor]:
        names = zip(("x", "context"), given, strict=False)
        return taped(lambda: _called(subject, masked, *given), [*names, *named])

    def changed(side: int | None, axis: int, number: int) -> list[Tensor]:
        made = [t.clone() for t in mine]
        for i, (t, other) in enumerate(zip(made, others, strict=True)):
            if side in (i, None):
                t.select(axis, number).copy_(other.select(axis, number))
        return made

    tokens = [
        changed(i, 1, number) for i, (count, _) in enumerate(sizes) for number in range(count)
    ]
    samples = [changed(None, 0, number) for number in range(b)]
    try:
        tape, y = called(mine)
        values = tape.values.nan_to_num(7e77)
        reached = []
        for ways in (tokens, samples):
            found = torch.full((tape.count,), NONE)
            for number, given in enumerate(ways):
                again, _ = called(given)
                if again.count != tape.count:
                    return None
                moved = again.values.nan_to_num(7e77) != values
                found = torch.where(moved, torch.where(found == NONE, number, SEVERAL), found)
            reached.append(_kept(tape, found))
    except TooLong:
        return None
    with_products(tape)
    run = Run(tape, y, *reached, asked=(n, j) if subject.crossed else None)
    tape.events[:] = [_layer(run, event) for event in tape.events]
    return run


def _layer(run: Run, event: Event) -> Event:
    """Return a product of one matrix of tokens and one of weights as the layer that it is."""
    if event.name != "bmm" or len(event.args[0]) > 1:
        return event
    first, second = event.args[:2]
    if run.depends(first) == run.depends(second):
        return event
    return Event("mm", (first[0], second[0]), event.out[0])


def _kept(tape: Tape, found: Tensor) -> Tensor:
    """Return what reaches each number, those that stay 0 included, since they were bent so.

    Args:
        tape: of a run.
        found: what moves each number.
    """
    for event in tape.events:
        first = next(iter(event.read()), None)
        if event.name in BENDING and first is not None and first.shape == event.out.shape:
            still = found[event.out] == NONE
            found[event.out] = torch.where(still, found[first], found[event.out])
    return found


def _called(subject: Subject, masked: bool, x: Tensor, context: Tensor | None = None) -> Tensor:
    """Call a module on tokens, and on a context."""
    if context is None and not masked:
        return subject.open_run(x)
    with subject.repaired():
        return subject.patient.run(x, subject.mask if masked else None, context)


def linked(run: Run, ids: Tensor) -> Iterator[Event]:
    """Yield the events that made these numbers."""
    for number in run.makers(ids):
        if number >= 0:
            yield run.tape.events[number]


def made_by_layers(run: Run, ids: Tensor) -> Tensor | None:
    """Return ids of what layers made that was turned into these numbers; None for anything else."""
    todo, layers, steps = [ids], [ids.new_empty(0)], 0
    while todo and (steps := steps + 1) <= 60:
        made = todo.pop()
        for event in linked(run, made):
            if event.name in PLAIN:
                layers.append(made[torch.isin(made, event.out)])
                continue
            if event.name not in TURNS:
                return None
            numbers = (a for a in event.args if isinstance(a, int | float))
            if event.name == "mul" and any(abs(a) != 1 for a in numbers):
                return None
            for t in event.read():
                if run.depends(t):
                    todo.append(t)
                elif event.name == "mul" and bool(
                    (run.values[t].abs() > _longest(run, event)).any()
                ):
                    return None
    return None if todo else torch.cat(layers)


def _longest(run: Run, event: Event) -> float:
    """Return how large a number is at most that something is turned by, as it is written down."""
    turned = [one.name for t in event.read() if run.depends(t) for one in linked(run, t)]
    return (COMPLEX if "view_as_complex" in turned else 1) + 1e-6
