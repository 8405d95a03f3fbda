"""Read the program of an attention off a recorded run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.attention.heads import Arrange, arrangement, read_join
from attention_clinic.attention.operands import arguments, read_operand, read_sources
from attention_clinic.attention.program import Lost, Program
from attention_clinic.capture.run import Run, varies

HIDDEN = -1e3  # a masked score is at most this
ELEMENTWISE = {
    *("mul", "div", "add", "sub", "rsub", "masked_fill", "where", "neg", "exp", "clamp"),
    *("clamp_min", "clamp_max", "nan_to_num", "alias", "tril"),
    *("maximum", "minimum", "triu", "native_dropout", "scatter"),
}
PLAIN = ("alias", "nan_to_num", "native_dropout")
STEPS = 60
Product = tuple[Tensor, Tensor, Tensor]  # what it made, (s, rows, columns), and its factors


@dataclass
class Op:
    """One elementwise operation between scores and weights."""

    name: str
    main: int  # the index of the scores among its arguments
    args: list[object]  # numbers, and ids laid out like the weights; None for the scores


def read_program(run: Run, p: Program) -> Program:
    """Fill a program from a run and return it."""
    first, second = _products(run)
    scores, q, k = (torch.cat(parts) for parts in zip(*first, strict=True))
    k = k.mT
    w, v, mixed = _weighted(second, run.descendants(scores))
    ops, start = _back(run, w, run.descendants(scores), set(run.makers(scores)))
    if _is_turned(scores, start, ops):
        q, k, scores = k, q, scores.mT
    place = torch.full((run.tape.count,), -1)
    place[scores] = torch.arange(scores.numel()).view(scores.shape)
    spot = place[start]
    if not torch.equal(spot.flatten().sort().values, torch.arange(scores.numel())):
        raise Lost("not every score becomes one weight")
    rows, columns = scores.shape[1:]
    slot, row, column = spot // (rows * columns), spot // columns % rows, spot % columns
    if varies(slot, 1) or varies(slot, 2) or varies(row, 2) == varies(column, 2):
        raise Lost("weights in an unknown order")
    p.transposed = varies(row, 2)
    order = slot[:, 0, 0].argsort()
    v, mixed, row, column = v[order], mixed[order], row[order], column[order]
    keys, queries = (row, column) if p.transposed else (column, row)
    v = v.gather(1, keys[:, 0].argsort(1)[..., None].expand_as(v))
    asks = queries[:, :, 0]
    mixed = mixed.gather(1, asks.argsort(1)[..., None].expand_as(mixed))
    p.sides = {name: read_operand(run, t) for name, t in zip("qkv", (q, k, v), strict=True)}
    b = run.y.shape[0]
    p.d, p.sizes = q.shape[-1], (b, p.h, rows, columns)
    arrange = arrangement(run, p, {name: side.ids for name, side in p.sides.items()})
    back_to_scores = torch.argsort(spot.flatten())

    def arranged(t: Tensor) -> Tensor:
        return arrange(t.flatten()[back_to_scores].view(scores.shape))

    p.factors = tuple(f for f in (p.sides["q"].factor, p.sides["k"].factor) if f != 1)
    if _fold(run, p, ops, arranged):
        p.sums = torch.zeros(run.tape.count, dtype=torch.float64)
        sums = run.values[w].sum(-1)[order].gather(1, asks.argsort(1))
        p.sums[mixed] = sums[..., None].expand_as(mixed)
    p.factor = math.prod(p.factors)
    read_sources(run, p)
    _arrange_numbers(p, arrange)
    read_join(run, p, arrange(mixed))
    return p


def _is_turned(scores: Tensor, start: Tensor, ops: list[Op]) -> bool:
    """Return whether scores are laid out by key and query, and weights of a query sum to 1."""
    columns = scores.shape[2]
    lookup = torch.full((int(scores.max()) + 1,), -1)
    lookup[scores] = torch.arange(scores.numel()).view(scores.shape) // columns
    if bool((start > scores.max()).any()) or not varies(lookup[start], 2):
        return False
    softmax = next((op for op in ops if op.name == "_softmax"), None)
    return softmax is not None and not varies(softmax.args[1], 2)  # type: ignore[arg-type]


def weighted_products(run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, values and weighted sums of an attention, (s, i, j), (s, j, d), (s, i, d)."""
    first, second = _products(run)
    scores = torch.cat([out for out, _, _ in first])
    return _weighted(second, run.descendants(scores))


def _products(run: Run) -> tuple[list[Product], list[Product]]:
    """Return the products of queries with keys, and those of weights with values."""
    every = run.products()
    numbers, above = {n for n, _, _ in every}, []
    for event in run.events:
        makers = {m for t in event.read() for m in run.makers(t) if 0 <= m < len(above)}
        above.append(any(m in numbers or above[m] for m in makers))
    first: list[Product] = []
    second: list[Product] = []
    for number, a, b in every:
        out = run.events[number].out
        kind = second if above[number] else first
        kind.append((out if out.ndim == 3 else out[None], a, b))
    if not first or not second:
        raise Lost("no two products of tokens with tokens")
    if len({(a.shape, b.shape) for _, a, b in first}) > 1:
        raise Lost("products of different shapes")
    return first, second


def _weighted(second: list[Product], reach: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, values and weighted sums of the second products."""
    found = []
    for out, a, b in second:
        found.append((a, b, out) if bool(reach[a].any()) else (b.mT, a.mT, out.mT))
        if bool(reach[found[-1][1]].any()):
            raise Lost("weights meet weights")
    if len({(w.shape, v.shape) for w, v, _ in found}) > 1:
        raise Lost("weighted sums of different shapes")
    w, v, mixed = (torch.cat(parts) for parts in zip(*found, strict=True))
    return w, v, mixed


def _back(run: Run, ids: Tensor, reach: Tensor, begin: set[int]) -> tuple[list[Op], Tensor]:
    """Follow weights back to the scores, made by `begin`, through elementwise operations."""
    ops: list[Op] = []
    for _ in range(STEPS):
        makers = run.makers(ids)
        if set(makers) <= begin:
            return ops, ids
        names = {run.events[m].name for m in makers if m >= 0}
        if -1 in makers or len(names) != 1:
            raise Lost("weights of different heads are made differently")
        name = names.pop()
        if name in ("_softmax", "_log_softmax"):
            ids, groups = _softmax(run, ids, makers)
            ops.append(Op(name, 0, [None, groups]))
            continue
        if name not in ELEMENTWISE:
            raise Lost(f"between scores and weights: {name}")
        args = arguments(run, ids, makers)
        held = [k for k, a in enumerate(args) if isinstance(a, Tensor) and bool(reach[a].any())]
        if not held or (name not in ("div", "sub") and len(held) > 1):
            raise Lost(f"between scores and weights: {name} of two")
        ids, args[held[0]] = args[held[0]], None  # type: ignore[assignment]
        ops.append(Op(name, held[0], args))
    raise Lost("too many steps between scores and weights")


def _softmax(run: Run, ids: Tensor, makers: list[int]) -> tuple[Tensor, Tensor]:
    """Return the numbers before a softmax, and the number of the sum that each belongs to."""
    before, groups = torch.full((2, run.tape.count), -1)
    past = 0
    for event in (run.events[m] for m in makers):
        size = list(event.out.shape)
        size[event.args[1]] = 1
        before[event.out] = event.args[0]
        groups[event.out] = (
            torch.arange(past, past + math.prod(size)).view(size).expand_as(event.out)
        )
        past += math.prod(size)
    return before[ids], groups[ids]


def _fold(run: Run, p: Program, ops: list[Op], arranged: Arrange) -> bool:
    """Fill the fields from scores to weights; return whether the sums of a softmax are missing."""
    exponent = False
    for op in reversed(ops):
        other = next((a for k, a in enumerate(op.args) if k != op.main and a is not None), None)
        value = run.number(other) if other is not None else None
        fixed = isinstance(other, Tensor) and not run.depends(other)
        if op.name in ("_softmax", "_log_softmax"):
            if p.axes is not None or exponent:
                raise Lost("two softmaxes")
            p.axes = _axes(arranged(other))  # type: ignore[arg-type]
        elif op.name == "exp":
            exponent = p.axes is None  # exp after log_softmax gives the weights
        elif op.name == "div" and isinstance(other, Tensor) and not fixed and exponent:
            p.axes, exponent = _axes(arranged(other)), False
        elif op.name == "sub" and isinstance(other, Tensor) and not fixed and p.axes is None:
            continue  # the maximum, before exp
        elif op.name == "mul" and fixed and run.is_binary(other):
            _hide(p, arranged(run.values[other] == 1), 0.0, "multiply")
        elif op.name in ("mul", "div") and value:
            if fixed and run.learned(other) and len(other.unique()) > 1:
                raise Lost("a learned factor of the scores")
            _multiply(p, value if op.name == "mul" else 1 / value)
        elif op.name in ("add", "sub") and fixed and p.axes is None:
            sign = -1 if op.name == "sub" else 1
            _add(run, p, other, arranged(run.values[other]) * sign)  # type: ignore[index]
        elif op.name in ("masked_fill", "where"):
            _fill(run, p, op, arranged)
        elif op.name not in PLAIN and (op.name not in ("add", "sub") or isinstance(other, Tensor)):
            raise Lost(f"between scores and weights: {op.name}")
    return exponent


def _multiply(p: Program, by: float) -> None:
    """Multiply the weights, or the scores and a mask or a bias that was added before."""
    if p.axes is not None:
        p.after *= by
        return
    p.factors = (*p.factors, by)
    p.fills = [(number * by, how) for number, how in p.fills]
    p.bias = None if p.bias is None else p.bias * by


def _axes(groups: Tensor) -> tuple[int, ...]:
    """Return the axes of (b, h, i, j) along which numbers share a sum."""
    return tuple(a for a in range(4) if groups.shape[a] > 1 and not varies(groups, a))


def _add(run: Run, p: Program, ids: Tensor, values: Tensor) -> None:
    """Read an addend of the scores: a mask, a bias, or both."""
    kinds, learned = values.unique().tolist(), run.learned(ids)
    if len(kinds) == 2 and 0.0 in kinds and not learned and kinds[0] > HIDDEN:
        # a table of 0 and one other number: a mask that is added
        one = kinds[0] + kinds[1]
        ones = 0 < one < -HIDDEN  # for what may be seen, unless the zeros are what may be seen
        fits = any(torch.equal(values == 0, rule.expand(values.shape)) for rule in p.rules)
        _hide(p, values == one if ones and not fits else values == 0, one, "add")
        return
    hidden = values <= HIDDEN
    if bool(hidden.any()):
        _hide(p, ~hidden, float(values[hidden].max()), "add")
    rest = values.masked_fill(hidden, 0.0)
    if bool(rest.any()):
        p.bias = rest if p.bias is None else p.bias + rest
        p.bias_learned |= learned


def _fill(run: Run, p: Program, op: Op, arranged: Arrange) -> None:
    """Read masked_fill(scores, where, number) or where(condition, scores, number)."""
    where, number = (a for k, a in enumerate(op.args) if k != op.main)
    value = run.number(number)
    if value is None or not isinstance(where, Tensor) or run.depends(where):
        raise Lost("a fill that depends on tokens")
    chosen = arranged(run.values[where] != 0)
    _hide(p, chosen if op.name == "where" and op.main == 1 else ~chosen, value, "fill")


def _hide(p: Program, allow: Tensor, value: float, how: str) -> None:
    """Add a mask to the program."""
    if bool(allow.all()):
        return
    if p.axes is not None:
        if value != 0:
            raise Lost("weights are filled with a number")
        if p.allow is not None and bool((allow | ~p.allow).all()):
            return  # a fully masked row
        p.fills.append((value, "weights"))
    else:
        same = p.allow is not None and torch.equal(p.allow, allow.expand_as(p.allow))
        if same and value <= HIDDEN:  # a product with the mask before is harmless
            p.fills = [one for one in p.fills if one[1] != "multiply"]
        p.fills.append((value, how))
    p.allow = allow if p.allow is None else p.allow & allow


def _arrange_numbers(p: Program, arrange: Arrange) -> None:
    """Lay the operands out as (b, h, n, d)."""
    for name, side in p.sides.items():
        t = side.values
        if t.shape[1] == p.sides["q"].values.shape[1] or p.split:
            p.numbers[name] = arrange(t)
        else:
            order = arrange(torch.arange(len(t))[:, None, None].expand(-1, p.sizes[2], 1))
            p.numbers[name] = t[order[:, :, 0, 0]]
