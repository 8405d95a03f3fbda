"""Read norms, PyTorch's own or written by hand, and feed-forwards: what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.attention.operands import arguments
from attention_clinic.attention.program import Lost
from attention_clinic.capture.run import ACTIVATIONS as BENDS
from attention_clinic.capture.run import FACTORS, LAYERS, Run, varies
from attention_clinic.catalogue.blocks import ACTIVATIONS
from attention_clinic.catalogue.norms import AXES, NORM, fitting

STEPS = 24
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


def by_event(run: Run, ids: Tensor, makers: list[int]) -> tuple[Tensor, Norm] | None:
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
    if size != ids.shape[2] or varies(seen, 2):
        axes = tuple(a for a in range(3) if ids.shape[a] > 1 and not varies(seen, a))
        norm = replace(norm, ids=("norm-axis",), detail=AXES.get(axes, ""))
    return lookup[ids], norm


@dataclass
class _Trail:
    """The steps from a result back to a source: result = times * norm + plus."""

    times: Tensor
    plus: Tensor
    normed: bool = False  # whether a statistic of the numbers was met
    names: frozenset[str] = frozenset()


def by_hand(run: Run, ids: Tensor, tolerance: float) -> tuple[Tensor, Norm] | None:
    """Return the source of a norm written by hand with this result (b, n, e), and what it does."""
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
        fit = fitting(run.values[source], result, list(dict.fromkeys(eps)), weigh, tolerance)
        if fit is None:
            continue
        form, one = fit
        layer = form is NORM.reference
        return source, Norm(form.ids, form.detail, form.variants, one, found.names, layer)
    return None


def _back(run: Run, at: Tensor, trail: _Trail, eps: list[float]) -> Tensor | None:
    """Return the numbers before one elementwise step of a norm; None where it begins."""
    makers = run.makers(at)
    names = {run.events[m].name for m in makers if m >= 0}
    if -1 in makers or len(names) != 1 or not names <= {"add", "mul", "div", "sub", "alias"}:
        return None
    name = names.pop()
    args = arguments(run, at, makers)
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
        trail.times = trail.times * (value if name == "mul" else 1 / (value or 1))
        return name in ("mul", "div") and bool(value)
    if not isinstance(other, Tensor):
        return False
    values = run.values[other]
    trail.names |= names
    if name == "mul":
        trail.times = trail.times * values
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


@dataclass
class Feed:
    """What a feed-forward does."""

    activation: str  # "" for a function without a name, "none" for none
    gated: str  # "", "gated" or "gate-second"
    last: bool  # whether an activation comes after the last layer
    width: int  # between its layers


def read_feed(run: Run, ids: Tensor, source: Tensor) -> Feed:
    """Read a feed-forward of two layers, the first of which may be gated."""
    how, _, layers = _function(run, ids, source)
    if len(layers) != 1:
        raise Lost("the result of a feed-forward is not that of one layer")
    below = _entry(run, layers[0])
    name, gated, layers = _function(run, below, source)
    for entry in (_entry(run, layer) for layer in layers):
        if entry.shape != source.shape or not torch.equal(entry, source):
            raise Lost("a feed-forward of more than two layers")
    return Feed(name, gated, how != "none", below.shape[-1])


def _function(run: Run, ids: Tensor, source: Tensor) -> tuple[str, str, list[Tensor]]:
    """Return an activation, how it is gated, and the products in the layers that it is taken of."""
    leaves, bends = _leaves(run, ids, source)
    made, given = run.values[ids], [run.values[at] for at, _ in leaves]
    products = [product for _, product in leaves]
    seen = made.isfinite()

    def equal(t: Tensor) -> bool:
        return torch.allclose(t[seen], made[seen], rtol=1e-6, atol=1e-7)

    if not bool(seen.any()):
        raise Lost("a feed-forward of numbers that are NaN or infinite")
    if len(given) == 1:
        functions = {"none": lambda t: t, **ACTIVATIONS}
        known = [name for name, function in functions.items() if equal(function(given[0]))]
        if known or bends == 1:
            return (*known, "")[0], "", products
    if len(given) == 2:
        first = int(leaves[0][0].min()) > int(leaves[1][0].min())
        up, other = given[::-1] if first else given
        packed = run.makers(products[0]) == run.makers(products[1])  # one layer makes both
        for name, function in ACTIVATIONS.items():
            if equal(function(up) * other):
                return name, "gated", products
            if equal(up * function(other)):
                return name, "gate-second" if packed else "gated", products
    raise Lost("a feed-forward with an unknown activation")


def _leaves(run: Run, ids: Tensor, source: Tensor) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """Return the results of layers that numbers are made from, and the number of activations.

    A result is its ids with the bias, (b, n, f), and those of the product itself.
    """
    leaves: list[tuple[Tensor, Tensor]] = []
    bent = 0
    todo = [ids]
    for _ in range(STEPS):
        if not todo:
            return leaves, bent
        at = todo.pop()
        if any(torch.equal(at, known) for known, _ in leaves):
            continue
        if torch.equal(at, source):
            raise Lost("a feed-forward of one layer")
        layer = _layer(run, at)
        if layer is not None:
            leaves.append((at, layer))
            continue
        makers = run.makers(at)
        found = {run.events[m].name for m in makers if m >= 0}
        if -1 in makers or len(found) != 1:
            raise Lost("a feed-forward in pieces")
        bent += len(found & BENDS)
        args = arguments(run, at, makers)
        todo += [a for a in args if isinstance(a, Tensor) and run.depends(a)]
    raise Lost("too many steps in a feed-forward")


def _layer(run: Run, ids: Tensor) -> Tensor | None:
    """Return the ids of the product in a layer's result, which may add a bias; None for others."""
    makers = run.makers(ids)
    names = {run.events[m].name if m >= 0 else "" for m in makers}
    if names <= {*FACTORS}:
        return ids
    if names != {"add"}:
        return None
    args = arguments(run, ids, makers)
    held = [a for a in args if isinstance(a, Tensor) and run.depends(a)]
    others = [a for a in args if isinstance(a, Tensor) and not run.depends(a)]
    if len(held) != 1 or len(others) != 1 or not run.learned(others[0]):
        return None
    made = {run.events[m].name for m in run.makers(held[0]) if m >= 0}
    return held[0] if made and made <= {*FACTORS} else None


def _entry(run: Run, ids: Tensor) -> Tensor:
    """Return what a layer reads, laid out like its result."""
    rows: list[Tensor] = []
    row = torch.full((run.tape.count,), -1)
    past, weights = 0, set()
    for m in run.makers(ids):
        event = run.events[m]
        first, second = event.args[FACTORS[event.name] :][:2]
        if not isinstance(first, Tensor) or run.depends(second):
            raise Lost("a product of tokens in a feed-forward")
        weights |= made_from(run, second)
        rows.append(first.reshape(-1, first.shape[-1]))
        out = event.out.reshape(len(rows[-1]), -1)
        row[out] = torch.arange(past, past + len(out))[:, None].expand_as(out)
        past += len(out)
    if len({one.shape[1] for one in rows}) > 1 or len(weights) != 1:
        raise Lost("a feed-forward of several layers side by side")
    return torch.cat(rows)[row[ids][..., 0]]
