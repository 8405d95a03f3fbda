"""A kernel that its user's own call hands tokens as queries, keys and values: layers come between.

What the call hands over is found again in the tokens, number by number, however they were cut and
turned; the layers' numbers then take their places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor, takes
from attention_clinic.engine.operands import Operands, role_of
from attention_clinic.examine.bare import Projecting, WithLayers
from attention_clinic.examine.refusing import name_of

Slot = int | str  # of an argument: its place, or its name
Found = tuple[Tensor, bool, str]  # where its numbers stood, whether in the context, its role


class Handed(WithLayers):
    """What makes queries, keys and values of tokens where the call of a user hands over tokens.

    Args:
        kernel: a module, or a function, that projects nothing.
        operands: h and d.
        call: of the user.
        context: whether it hands over a context, too.
    """

    def __init__(
        self, kernel: Any, operands: Operands, call: Callable[..., Any], context: bool, ends: bool
    ) -> None:
        super().__init__(kernel, operands, context, ends)
        self.call = call
        self.places: dict[Any, list[dict[Slot, Found]]] = {}

    @property
    def examined(self) -> str:
        joins = "" if isinstance(self.out, nn.Linear) else ", output layer"
        return f"all that the call does, and in it scale, softmax, mixing{joins}"

    @property
    def words(self) -> str:
        return "handed in: projections"

    def called(self, x: Tensor, *further: Any, **named: Any) -> Tensor:
        names = list(inspect.signature(self.forward).parameters)[1:]
        named = dict(zip(names, further, strict=False)) | named
        context, mask = named.get("context"), named.get("mask")
        given = [t for t in (x, context if self.crossed else None) if t is not None]
        asked = given[-1]
        made = [self.queries(x), self.keys(asked), self.values(asked)]
        masks = () if mask is None and takes(self.call) == 1 + len(given) else (mask,)
        key = tuple(t.shape for t in given), None if mask is None else mask.shape
        if key not in self.places:
            self.places[key] = self.looked_up(given, masks)
        known, self.number = self.places[key], 0

        def exchanged(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            slots = known[min(self.number, len(known) - 1)] if known else {}
            self.number += 1
            roles = dict(zip("qkv", made, strict=True))

            def one(slot: Slot, value: Any) -> Any:
                if slot not in slots:
                    return value
                where, _, role = slots[slot]
                return roles[role].flatten()[where]

            return tuple(one(*pair) for pair in enumerate(args)), {
                name: one(name, value) for name, value in kwargs.items()
            }

        return self.out(first_of(self.through(exchanged, given, masks)))

    def through(self, exchange: Callable, given: list[Tensor], masks: tuple) -> Any:
        """Make the user's call, in which the kernel gets what `exchange` returns."""
        if not isinstance(self.kernel, nn.Module):
            kernel = self.kernel

            def stands(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = exchange(args, kwargs)
                return kernel(*args, **kwargs)

            return self.call(stands, *given, *masks)

        def enters(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return exchange(args, kwargs)

        handle = self.kernel.register_forward_pre_hook(enters, with_kwargs=True)
        try:
            return self.call(self.kernel, *given, *masks)
        finally:
            handle.remove()

    def looked_up(self, given: list[Tensor], masks: tuple) -> list[dict[Slot, Found]]:
        """Return where the numbers of each argument stand in the tokens, for each call."""
        sizes = [t.numel() for t in given]
        ramps = torch.arange(sum(sizes), dtype=given[0].dtype).div(sum(sizes)).add(2.0)
        marked = [part.view_as(t) for part, t in zip(ramps.split(sizes), given, strict=True)]
        calls: list[dict[Slot, Found]] = []

        def noted(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            calls.append(self.slots(ramps, sizes[0], args, kwargs))
            return args, kwargs

        with torch.no_grad():
            self.through(noted, marked, masks)
        return calls

    def slots(self, ramps: Tensor, own: int, args: tuple, kwargs: dict) -> dict[Slot, Found]:
        """Return which arguments of one call hold numbers of the tokens."""
        found: dict[Slot, tuple[Tensor, bool]] = {}
        for slot, value in [*enumerate(args), *kwargs.items()]:
            if not isinstance(value, Tensor) or value.dtype != ramps.dtype or value.ndim < 2:
                continue
            where = torch.searchsorted(ramps, value.detach().contiguous()).clamp(max=len(ramps) - 1)
            if torch.equal(ramps[where], value):
                crossed = bool((where >= own).any())
                found[slot] = where - own * crossed, crossed
        called = self.kernel.forward if isinstance(self.kernel, nn.Module) else self.kernel
        names = list(inspect.signature(called).parameters)
        said = [
            role_of(names[s] if isinstance(s, int) and s < len(names) else str(s)) for s in found
        ]
        if sorted(said) != ["k", "q", "v"]:
            said = list("qkv")
        return {s: (*held, r) for (s, held), r in zip(found.items(), said, strict=False)}


def first_of(made: Any) -> Tensor:
    """Return the first tensor of what a call returned, with its history."""
    if isinstance(made, Tensor):
        return made
    first = first_tensor(made)
    values = made.values() if isinstance(made, dict) else made
    return next(t for t in values if isinstance(t, Tensor) and t.shape == first.shape)


def handed(
    module: Any, way: Operands, call: Callable[..., Any], context: bool, ends: bool
) -> Handed | None:
    """Return a kernel with layers, None where the call hands it no queries, keys and values.

    Args:
        module: what the caller gave.
        way: h and d.
        call: of the caller.
        context: whether it hands over a context, too.
        ends: whether the module may have an output layer of its own.
    """
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    tokens = [inspect.Parameter(n, place) for n in ("self", "x", *["context"] * context)]
    if takes(call) > 2 + context:
        tokens.append(inspect.Parameter("mask", place, default=None))

    def forward(self: Handed, x: Tensor, *further: Any, **named: Any) -> Tensor:
        return self.called(x, *further, **named)

    forward.__signature__ = inspect.Signature(tokens)  # type: ignore[attr-defined]
    return type(name_of(module), (Handed,), {"forward": forward})(module, way, call, context, ends)


def runs(one: Handed, copy: Handed, x: Tensor, mask: Tensor | None) -> bool | None:
    """Say whether a kernel runs and projects nothing; None where it projects.

    Args:
        one: a kernel with layers.
        copy: of it, which may be changed.
        x: tokens.
        mask: that it is called with.
    """
    context = x[:, :-1].flip(0) if one.crossed else x
    noticed = Projecting(copy.kernel)
    exchange = copy.through

    def watched(swap: Callable, given: list[Tensor], masks: tuple) -> Any:
        def kept(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            made = swap(args, kwargs)
            held = [*made[0], *made[1].values()]
            noticed.handed += [t for t in held if isinstance(t, Tensor) and t.is_floating_point()]
            return made

        return exchange(kept, given, masks)

    vars(copy)["through"] = watched
    named = {"mask": mask} if "mask" in inspect.signature(one.forward).parameters else {}
    named |= {"context": context} if one.crossed else {}
    try:
        with torch.no_grad(), noticed:
            y = copy.called(x, **named)
    except Exception:
        return None if noticed.found else False
    known = list(copy.places.values())
    whole = known and known[0] and all(len(slots) == 3 for slots in known[0])
    if noticed.found:
        return None
    return bool(whole) and y.shape[:2] == x.shape[:2]
