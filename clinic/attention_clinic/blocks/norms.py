"""Read a norm of the stream: PyTorch's own, or one that is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.attention.operands import arguments
from attention_clinic.attention.program import Lost
from attention_clinic.capture.run import LAYERS, Run, varies
from attention_clinic.catalogue.norms import AXES, LENGTH, NORM, fitting

STEPS = 16
STATISTICS = {"mean", "var", "std", "sum", "var_mean", "std_mean", "linalg_vector_norm", "norm"}


@dataclass(frozen=True)
class Norm:
    """What a norm does: its bugs, the eps under its root, the names of its parameters."""

    ids: tuple[str, ...] = ()
    detail: str = ""
    variants: tuple[str, ...] = ()
    eps: float = 0.0
    weights: frozenset[str] = frozenset()
    layer: bool = True  # whether it is a LayerNorm


def by_event(
    run: Run, ids: Tensor, makers: list[int], classes: dict[str, str]
) -> tuple[Tensor, Norm] | None:
    """Return the source of PyTorch's layer norm with this result (b, n, e), and what it does."""
    event = run.events[makers[0]]
    if len(makers) != 1 or event.out.shape != event.args[0].shape:
        return None
    lookup, group = torch.full((2, run.tape.count), -1)
    lookup[event.out] = event.args[0]
    size = event.out[(0,) * (event.out.ndim - len(event.args[1]))].numel()
    group[event.out.flatten()] = torch.arange(event.out.numel()) // size
    seen = group[ids]
    weights = frozenset(run.name(t) for t in event.args[2:4] if isinstance(t, Tensor))
    norm = Norm(eps=float(event.args[4]), weights=weights)
    if any("rms" in classes.get(name, "").lower() for name in weights):
        norm = replace(norm, ids=("rms-mean",), detail="it is LayerNorm")
    elif size != ids.shape[2] or varies(seen, 2):
        axes = tuple(a for a in range(3) if ids.shape[a] > 1 and not varies(seen, a))
        norm = replace(norm, ids=("norm-axis",), detail=AXES.get(axes, ""))
    return lookup[ids], norm


@dataclass
class _Trail:
    """The steps from a result back to a source: result = times * norm + plus."""

    times: Tensor
    plus: Tensor
    scalar: float = 1.0
    normed: bool = False  # whether a statistic of the numbers was met
    plus_one: bool = False
    names: frozenset[str] = frozenset()


def by_hand(
    run: Run, ids: Tensor, tolerance: float, classes: dict[str, str]
) -> tuple[Tensor, Norm] | None:
    """Return the source of a norm written by hand with this result (b, n, e), and what it does.

    It is None for other numbers; `classes` has the class of the part that holds each parameter.
    """
    result = run.values[ids]
    trail = _Trail(torch.ones_like(result), torch.zeros_like(result))
    eps, at, sources = [0.0], ids, []
    for _ in range(STEPS):
        before = _back(run, at, trail, eps)
        if before is None:
            break
        at = before
        if trail.normed:
            sources.append((at, replace(trail)))
    for source, found in reversed(sources):
        weigh: Callable[[Tensor], Tensor] = lambda t, w=found: w.times * t + w.plus  # noqa: E731
        called = next((classes[name] for name in sorted(found.names) if name in classes), "")
        tried = list(dict.fromkeys(eps))
        fit = fitting(run.values[source], result, tried, weigh, called, tolerance)
        if fit is None:
            continue
        form, one = fit
        variants, bugs, detail = form.variants, form.ids, form.detail
        if found.scalar != 1.0:
            if detail != LENGTH or abs(found.scalar - ids.shape[2] ** 0.5) > 1e-5:
                return None
            variants, bugs = ("rms-norm",), ()
        if form is NORM.reference and "rms" in called.lower():
            bugs, detail = ("rms-mean",), "it is LayerNorm"
        if found.plus_one and not bugs:
            variants = (*variants, "norm-plus-one")
        detail = detail if bugs and detail != LENGTH else ""
        layer = not bugs and "rms-norm" not in variants
        return source, Norm(bugs, detail, variants, one, found.names, layer)
    return None


def _back(run: Run, at: Tensor, trail: _Trail, eps: list[float]) -> Tensor | None:
    """Return the numbers before one elementwise step of a norm; None where it begins."""
    makers = run.makers(at)
    names = {run.events[m].name for m in makers if m >= 0}
    if -1 in makers or len(names) != 1 or not names <= {"add", "mul", "div", "sub", "alias"}:
        return None
    name = names.pop()
    try:
        args = arguments(run, at, makers)
    except Lost:
        return None
    held = [k for k, a in enumerate(args) if isinstance(a, Tensor) and run.depends(a)]
    spread = [k for k in held if all(varies(args[k], a) for a in range(3) if at.shape[a] > 1)]
    if len(spread) != 1 or (name in ("div", "sub") and spread != [0]):
        return None
    statistics = [args[k] for k in held if k not in spread]
    if statistics:
        if not all(_reduces(run, t, eps) for t in statistics) or name == "add":
            return None
        trail.normed = True
    elif name != "alias":
        others = [a for k, a in enumerate(args) if k not in held]
        others = [a for a in others if isinstance(a, Tensor) or a != 1] or [1]
        if len(others) != 1 or not _constant(run, name, others[0], trail):
            return None
    return args[spread[0]]


def _constant(run: Run, name: str, other: Tensor | float, trail: _Trail) -> bool:
    """Add a constant factor or addend to the trail; return whether it is understood."""
    names = made_from(run, other) if isinstance(other, Tensor) else frozenset()
    value = None if names else run.number(other)
    if value is not None:
        factor = value if name == "mul" else 1 / (value or 1)
        trail.times, trail.scalar = trail.times * factor, trail.scalar * factor
        return name in ("mul", "div") and bool(value)
    if not isinstance(other, Tensor):
        return False
    values = run.values[other]
    trail.names |= names
    if name == "mul":
        trail.times = trail.times * values
        events = [run.events[m] for m in run.makers(other) if names and m >= 0]
        ones = (e.name == "add" and any(run.number(a) == 1 for a in e.args) for e in events)
        trail.plus_one |= any(ones)
    else:
        trail.plus = trail.plus + trail.times * (values if name == "add" else -values)
    return name == "mul" or (name in ("add", "sub") and not trail.normed)


def made_from(run: Run, ids: Tensor) -> frozenset[str]:
    """Return the names of the parameters that some numbers are made from."""
    todo, done, names = [ids], set(), set()
    while todo:
        t = todo.pop()
        places = run.given[t.flatten()].unique().tolist()
        names |= {run.tape.given[number][0] for number in places if number >= 0}
        for m in run.makers(t):
            if m >= 0 and m not in done:
                done.add(m)
                todo += run.events[m].read()
    return frozenset(names - {"", "x", "context"})


def _reduces(run: Run, ids: Tensor, eps: list[float]) -> bool:
    """Return whether numbers are statistics; collect the constants that are added to them."""
    todo, done, found = [ids], set(), False
    while todo and len(done) < 60:
        for m in run.makers(todo.pop()):
            event = run.events[m] if m >= 0 else None
            if event is None or m in done or event.name in LAYERS:
                continue
            done.add(m)
            if event.name in STATISTICS:
                found = True
                continue
            numbers = [run.number(a) for a in event.args if not isinstance(a, list | None)]
            if event.name in ("add", "clamp_min", "clamp"):
                eps += [value for value in numbers if value is not None]
            todo += [t for t in event.read() if run.depends(t)]
    return found
