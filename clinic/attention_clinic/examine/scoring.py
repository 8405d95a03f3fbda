"""What the scores go through: factors, biases, masks, the softmax.

Each operation was seen on all scores at once, with all that it got: a factor is read off, and so
are the value that masked scores are filled with, and the scores that one softmax is taken over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attention_clinic.bugs import Setting
from attention_clinic.engine.forms import Form
from attention_clinic.engine.tape import Event
from attention_clinic.examine.account import Account, Step
from attention_clinic.examine.written import (
    BENDS,
    NONE,
    PLAIN,
    PRODUCTS,
    SEVERAL,
    Run,
    linked,
    made_by_layers,
)

TINY = 1e-5  # who adds no more to weights changes nothing that shows
FAR = -1e3  # who adds, or fills with, less than that hides a score


class Unknown(Exception):
    """A step does what nothing names."""


@dataclass(frozen=True)
class Placed:
    """Where the slots of the scores stand.

    Args:
        sizes: (samples, heads), or what stands in their place.
        order: the slots in that order.
        rows: for each slot its rows in the order of the tokens, or as they lie.
        columns: the same for its columns.
        form: the mistaken way to split, None for a right one.
        split: how the heads are split: its setting.
    """

    sizes: tuple[int, int]
    order: Tensor
    rows: Tensor
    columns: Tensor
    form: Form | None
    split: Setting

    def laid(self, t: Tensor, account: Account) -> Tensor:
        """Return what stands for each score (slots * i * j,) as (b, h, i, j)."""
        t = t.view(account.scores.shape)[self.order]
        t = t.gather(1, self.rows[..., None].expand_as(t))
        t = t.gather(2, self.columns[:, None].expand_as(t))
        return t.unflatten(0, self.sizes)


@dataclass
class Scored:
    """What the scores go through.

    Args:
        factor: they are multiplied by, before the softmax.
        sure: whether nothing else can change their size.
        after: the weights are multiplied by.
        allow: who may attend, (b, h, i, j), whatever the others are filled with.
        fills: what the others are filled with, and whether it is added.
        late: whether weights are masked after the softmax.
        plain: whether a layer makes queries, keys and values, and nothing else.
        bias: what is added, (b, h, i, j), or None.
        learned: whether parameters are added.
        beside: what is added of products of tokens and codes; ids, (b, h, i, j) each.
        powers: whether the softmax is written as powers over their sum.
        top: what is taken from the scores first, as their largest; ids, (b, h, i, j).
        axes: those that the softmax is taken over, of (r, b, h, i, j); None for no softmax.
        lost: the names of steps before the softmax that are not understood.
        lost_after: those after it.
    """

    factor: float = 1.0
    sure: bool = True
    after: float = 1.0
    allow: Tensor | None = None
    fills: list[tuple[float, bool]] = field(default_factory=list)
    late: bool = False
    plain: bool = True
    bias: Tensor | None = None
    learned: bool = False
    beside: list[Tensor] = field(default_factory=list)
    powers: bool = False
    top: Tensor | None = None
    axes: tuple[int, ...] | None = None
    lost: list[str] = field(default_factory=list)
    lost_after: list[str] = field(default_factory=list)


def scored(account: Account, placed: Placed, partly: bool = False) -> Scored:
    """Return what happens between the scores and the weights.

    Args:
        account: of the steps.
        placed: where the slots stand.
        partly: whether to go on behind a step that is not understood.
    """
    found = Scored(after=account.ends.factor)
    for t in (account.q, account.k):
        factor, kind, _ = before(account.run, t)
        found.factor *= factor
        found.sure = found.sure and kind != "other"
        found.plain = found.plain and kind == "layer"
    found.plain = found.plain and before(account.run, account.v)[:2] == (1.0, "layer")
    for step in account.steps:
        try:
            _note(account, placed, step, found)
        except Unknown:
            if not partly:
                raise
            (found.lost if found.axes is None else found.lost_after).append(step.name)
    if found.axes is None and not partly:
        raise Unknown
    return found


def before(run: Run, ids: Tensor) -> tuple[float, str, Tensor]:
    """Return the number that queries or keys are multiplied by, what else is done, and to what.

    That is "layer" for nothing but a layer, "turned" where they are as long as it made them,
    "bent" where an activation stands behind it.

    Args:
        run: what was written down.
        ids: of queries or keys.
    """
    factor, bends = 1.0, set[str]()
    for _ in range(4):
        events = list(linked(run, ids))
        names = {event.name for event in events}
        if not events or names <= PLAIN:
            return factor, "bent" if bends else "layer", ids
        ways = [_grown(run, event, ids.shape[-1]) for event in events]
        if names <= BENDS.keys() and not bends:
            bends, ways = names, [(1.0, event.args[0]) for event in events]
        if len(names) > 1 or None in ways or len({by for by, _ in ways}) > 1:
            break
        if ways[0][0] != 1 and not all(BENDS[name] for name in bends):
            break
        factor *= ways[0][0]
        read = torch.full((run.tape.count,), -1)
        for event, (_, main) in zip(events, ways, strict=True):
            read[event.out] = main.expand(event.out.shape)
        ids = read[ids]
    return factor, "turned" if not bends and _turned(run, ids) else "other", ids


def _grown(run: Run, event: Event, width: int) -> tuple[float, Tensor] | None:
    """Return by what an operation multiplies all numbers of queries or keys, and those; or None."""
    if event.name not in ("mul", "div", "add"):
        return None
    main, other = event.args[:2]
    if isinstance(main, Tensor) and not run.depends(main):
        main, other = other, main
    if not isinstance(main, Tensor) or (isinstance(other, Tensor) and run.depends(other)):
        return None
    value = run.number(other)
    if event.name == "add" or _of_each_number(run, other, width):
        learned = isinstance(other, Tensor) and bool((run.given[other] >= 0).all())
        return (1.0, main) if learned else None
    return ((value if event.name == "mul" else 1 / value), main) if value else None


def _of_each_number(run: Run, other: object, width: int) -> bool:
    """Say whether these are learned factors, one for each number of all heads: part of a layer."""
    if not isinstance(other, Tensor) or bool((run.given[other] < 0).any()):
        return False
    named = {run.tape.given[int(g)][0] for g in run.given[other].unique()}
    return "" not in named and len(other.unique()) > width


def _turned(run: Run, ids: Tensor) -> bool:
    """Say whether layers made these numbers, which were then turned at most."""
    layers = made_by_layers(run, ids)
    if layers is None:
        return False
    squares = [run.values[t.unique()].square().sum() for t in (ids, layers)]
    return torch.allclose(*squares, rtol=1e-5)


# ------------------------------------------------------------------------------------ one step


def _note(account: Account, placed: Placed, step: Step, found: Scored) -> None:
    """Write down what one operation does."""
    run = account.run

    def laid(values: Tensor) -> Tensor:
        flat = torch.empty(account.scores.numel(), dtype=values.dtype)
        flat[run.where[step.out]] = values
        return placed.laid(flat, account)

    softmax = found.axes is not None
    place, *others = step.given or (0,)
    if step.groups is None and _idle(run, step):
        return
    if softmax and step.name == "ratio" and over(laid(step.groups)) == found.axes:
        found.late = False
        return  # weights are divided by their sum
    if step.groups is not None:
        if softmax or step.name == "_log_softmax" or found.powers != (step.name == "ratio"):
            raise Unknown
        found.axes = over(laid(step.groups))
        top = found.top
        for axis in found.axes if top is not None else ():
            if bool((top != top.narrow(axis - 1, 0, 1)).any()):
                raise Unknown  # it is not the same for all that share a softmax
    elif step.name == "exp" and not softmax and not found.powers:
        found.powers = True
    elif found.powers and not softmax:
        raise Unknown
    elif step.name in ("mul", "div"):
        _times(run, step, others, found, laid)
    elif step.name in ("add", "sub") and not softmax:
        _plus(run, step, others, found, laid)
    elif step.name in ("tril", "triu"):
        _hide(found, laid((run.values[step.out] != 0) | (run.values[step.read] == 0)), 0.0, False)
    elif step.name in ("masked_fill", "where"):
        _filled(run, step, place, others, found, laid)
    elif step.name not in ("alias", "detach", "native_dropout"):
        raise Unknown


def _times(
    run: Run, step: Step, others: list, found: Scored, laid: Callable[[Tensor], Tensor]
) -> None:
    other = others[0]
    if isinstance(other, Tensor) and bool((run.given[other] >= 0).any()):
        named = {run.tape.given[int(g)][0] for g in run.given[other].unique() if g >= 0}
        found.sure = found.sure and named == {""}
    value = run.number(other)
    if value is not None and value:
        by = value if step.name == "mul" else 1 / value
        if found.axes is None:
            found.factor *= by
        else:
            found.after *= by
        return
    if not isinstance(other, Tensor) or run.depends(other) or step.name == "div":
        raise Unknown
    values = run.values[other]
    if not bool(((values == 0) | (values == 1)).all()):
        raise Unknown
    _hide(found, laid(values == 1), 0.0, False)


def _plus(
    run: Run, step: Step, others: list, found: Scored, laid: Callable[[Tensor], Tensor]
) -> None:
    other, *rest = others
    if not isinstance(other, Tensor):
        if isinstance(other, int | float):
            return  # the same for all
        raise Unknown
    tops = {run.tape.events[m].name for m in run.makers(other) if m >= 0}
    if step.name == "sub" and tops and tops <= {"amax", "max"} and found.top is None:
        found.top = laid(other)
        return
    if step.name == "add" and run.depends(other):
        if rest or not _of_one_token(run, other):
            raise Unknown
        found.beside.append(laid(other))
        return
    if run.depends(other) or (step.given[0] != 0 and step.name == "sub"):
        raise Unknown
    values = run.values[other] * (-1 if step.name == "sub" else 1) * (rest[0] if rest else 1)
    named = {run.tape.given[int(g)][0] for g in run.given[other].unique() if g >= 0}
    kinds = values.unique().tolist()
    ours = not named - {""} and _constant(run, other)
    if len(kinds) == 2 and 0.0 in kinds and kinds[0] > FAR and ours:
        seen, value = laid(values == kinds[1]), kinds[0] - kinds[1]
        if value == -1 and bool((seen == torch.ones_like(seen).triu(1)).all()):
            seen, value = ~seen, 1.0  # it marks what should be blocked
        _hide(found, seen, value, True)
        return
    hidden = values <= FAR
    if bool(hidden.any()):
        _hide(found, laid(~hidden), -math.inf, True)
    values = values.masked_fill(hidden, 0.0)
    if not bool(values.any()):
        return
    found.learned = found.learned or bool(named - {""}) or not _constant(run, other)
    added = laid(values) * (1 / found.factor)
    found.bias = added if found.bias is None else found.bias + added


def _of_one_token(run: Run, ids: Tensor) -> bool:
    """Say whether each number is made of one token of one sample at most, by products with codes.

    Args:
        run: what was written down.
        ids: of what is added.
    """
    if bool((run.token[ids] == SEVERAL).any() or (run.sample[ids] == SEVERAL).any()):
        return False
    made = ids[run.token[ids] != NONE]
    return {event.name for event in linked(run, made)} <= set(PRODUCTS)


def _idle(run: Run, step: Step) -> bool:
    """Say whether an operation leaves every number as it is, but for what no weight shows."""
    if step.name not in ("clamp", "clamp_min", "clamp_max", "nan_to_num", "add", "relu"):
        return False
    if step.name == "add" and not all(isinstance(other, int | float) for other in step.given):
        return False
    return bool((run.values[step.out] - run.values[step.read]).abs().max() <= TINY)


def _constant(run: Run, ids: Tensor) -> bool:
    """Say whether no parameter made these numbers."""
    todo, seen = [ids], set()
    while todo:
        for number in run.makers(todo.pop()):
            if number < 0 or number in seen:
                continue
            seen.add(number)
            for t in run.tape.events[number].read():
                held = run.given[t.flatten()].unique().tolist()
                if any(g >= 0 and run.tape.given[g][0] for g in held):
                    return False
                todo.append(t)
    return True


def _filled(
    run: Run,
    step: Step,
    place: int,
    others: list,
    found: Scored,
    laid: Callable[[Tensor], Tensor],
) -> None:
    if step.name == "masked_fill":
        (at, value), inside = others, False
    else:
        at, value = others
        inside = place == 1
    number = run.number(value)
    if number is None or not isinstance(at, Tensor) or run.depends(at):
        raise Unknown
    blocked = (run.values[at] != 0) != inside
    _hide(found, laid(~blocked), number, False)


def _hide(found: Scored, allow: Tensor, value: float, added: bool) -> None:
    """Write down that some scores are hidden, or weights."""
    if bool(allow.all()):
        return
    hidden = found.allow is not None and bool((allow | ~found.allow).all())
    if found.axes is not None:
        if hidden and value == 0:
            return
        if value != 0 or found.allow is not None:
            raise Unknown
        found.late = True
    else:
        own = found.allow is None or not bool((allow & ~found.allow).any())
        if own and (value <= FAR or not added) and found.allow is not None:
            found.fills.clear()  # what they were filled with before does not show
        found.fills.append((value, added))
    found.allow = allow if found.allow is None else found.allow & allow


def over(groups: Tensor) -> tuple[int, ...]:
    """Return the axes of (r, b, h, i, j) that those of a group differ in.

    Args:
        groups: (b, h, i, j), the same number for those of one group.
    """
    axes = []
    size = 1
    for axis in range(4):
        first = groups.narrow(axis, 0, 1)
        if groups.shape[axis] > 1 and bool((groups == first).all()):
            axes.append(axis + 1)
            size *= groups.shape[axis]
        elif groups.shape[axis] > 1 and bool(
            (groups.select(axis, 0) == groups.select(axis, 1)).any()
        ):
            raise Unknown
    if groups.unique().numel() * size != groups.numel():
        raise Unknown
    return tuple(axes)
