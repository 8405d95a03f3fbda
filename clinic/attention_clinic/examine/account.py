"""What an attention did, step by step, read off a run that was written down number by number.

No weight is read and no form is guessed: which tokens reach a number is seen by changing them one
by one, and where a number goes is known by its id. So it does not matter how queries, keys and
values are made, and how axes are moved. What does not follow the steps of an attention has no
account.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.engine.tape import Event
from attention_clinic.examine.added_products import with_wide_products
from attention_clinic.examine.behind import Ends, ends_of
from attention_clinic.examine.written import Run

ONE_BY_ONE = {
    *("mul", "div", "add", "sub", "rsub", "masked_fill", "where", "neg", "exp", "tanh", "relu"),
    *("sigmoid", "clamp", "clamp_min", "nan_to_num", "floor", "round", "pow", "abs", "alias"),
    *("gelu", "silu", "softplus", "elu", "leaky_relu", "hardtanh", "log", "sqrt", "log1p", "erf"),
    *("native_dropout", "maximum", "minimum", "square", "clamp_max", "exp2", "rsqrt"),
    *("tril", "triu"),
}


@dataclass(frozen=True)
class Step:
    """One operation on all scores, or weights.

    Args:
        name: of the operation.
        read: ids of what it read, in the order of `out`.
        out: ids of what it made.
        given: what else it got: numbers, or ids in the order of `out`.
        groups: for a softmax, the same number for all that share one, in the order of `out`.
    """

    name: str
    read: Tensor
    out: Tensor
    given: tuple = ()
    groups: Tensor | None = None


@dataclass
class Account:
    """The steps of an attention.

    Args:
        run: what was written down.
        b, n, h: samples, tokens, heads.
        asked: the first token that may be asked, and how many.
        q, k, v: ids, (slots, i, d), (slots, j, d) and (slots, j, d).
        scores: ids, (slots, i, j).
        steps: from the scores to the weights.
        mixed: ids, (slots, i, d).
        ends: what is done with it.
    """

    run: Run
    b: int
    n: int
    h: int
    asked: tuple[int, int]
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    steps: list[Step]
    mixed: Tensor
    ends: Ends

    def turned(self) -> Account:
        """Return the account in which samples are tokens, and tokens samples."""
        run = copy(self.run)
        run.token, run.sample = run.sample, run.token
        ends = replace(self.ends, joined=self.ends.joined.transpose(0, 1))
        return replace(self, run=run, b=self.n, n=self.b, asked=(0, self.b), ends=ends)


def account_of(run: Run, h: int) -> Account | None:
    """Return what an attention did, None where it is none or does something else as well.

    Args:
        run: what was written down.
        h: heads.
    """
    with_wide_products(run)
    products = run.products()
    first, second = _layers(run, products)
    if not first or len(first) != len(second) or len(products) != len(first) + len(second):
        return None
    events = run.tape.events
    apart = [_apart(*_laid(run, product), run.token) for product in first]
    made = [out for _, _, out in apart]
    if len({t.shape for t in made}) > 1 or len({a.shape for a, _, _ in apart}) > 1:
        return None
    scores = torch.cat(made)
    q = torch.cat([a for a, _, _ in apart])
    k = torch.cat([b for _, b, _ in apart])
    run.where.fill_(-1)
    run.where[scores.flatten()] = torch.arange(scores.numel())
    steps = _follow(run)
    weights, v, mixed = [], [], []
    for number, a, b in second:
        out = events[number].out
        out = out if out.ndim == 3 else out[None]
        if bool((run.where[b] >= 0).all()):
            a, b, out = b.mT, a.mT, out.mT
        elif not bool((run.where[a] >= 0).all()):
            return None
        a, b, out = _by_slot(run.where[a] // scores[0].numel(), a, b, out)
        weights.append(a), v.append(b), mixed.append(out)
    if len({t.shape for t in weights}) > 1 or len({t.shape for t in v}) > 1:
        return None
    w, v, mixed = torch.cat(weights), torch.cat(v), torch.cat(mixed)
    places = run.where[w]
    if places.numel() != scores.numel() or len(places.unique()) != scores.numel():
        return None
    slot, row, column = _unravel(places, scores.shape)
    along, across = _varies(column, 2), _varies(row, 2)
    if not along and across:  # the keys are the first factor
        known = run.where >= 0
        run.where[known] = _turned(run.where[known], scores.shape)
        scores, q, k, row, column = scores.mT, k, q, column, row
    elif not along or across:
        return None
    if _varies(slot, 2) or _varies(slot, 1):
        return None
    # everything in the order of the slots of the scores
    order = slot[:, 0, 0].argsort()
    v, mixed, row, column = v[order], mixed[order], row[order], column[order]
    v = v.gather(1, column[:, 0].argsort(dim=1)[..., None].expand_as(v))
    mixed = mixed.gather(1, row[:, :, 0].argsort(dim=1)[..., None].expand_as(mixed))
    path = _path(run, w, scores, steps)
    ends = ends_of(run, mixed)
    if path is None:
        return None
    asked = run.asked or (0, run.y.shape[1])
    return Account(run, *run.y.shape[:2], h, asked, q, k, v, scores, path, mixed, ends)


def _laid(run: Run, product: tuple[int, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of a product's factors, and what it makes of them, (s, i, j)."""
    number, a, b = product
    out = run.tape.events[number].out
    return a, b.mT, out if out.ndim == 3 else out[None]


def _apart(q: Tensor, k: Tensor, made: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a product whose rows hold several vectors of each token as one for each of these.

    So are the heads written that share one head of keys: they all ask it, one below the other.

    Args:
        q, k: ids of its rows and columns, (s, i, d) and (s, j, d).
        made: ids of what it made, (s, i, j).
        token: that reaches each number.
    """
    orders = [_order(token[rows]) for rows in (q, k)]
    if (orders[0] is None) == (orders[1] is None):
        return q, k, made
    order = orders[0] if orders[1] is None else orders[1]
    times = len(order)
    if orders[1] is None:
        k = k.repeat_interleave(times, dim=0)
        return q[:, order].flatten(0, 1), k, made[:, order].flatten(0, 1)
    q = q.repeat_interleave(times, dim=0)
    return q, k[:, order].flatten(0, 1), made.mT[:, order].flatten(0, 1).mT


def _order(token: Tensor) -> Tensor | None:
    """Return the rows of each vector of a token, (times, n), None where a token has one.

    Args:
        token: that reaches each number, (s, r, d).
    """
    places = token[:, :, 0]
    if not bool((token == places[..., None]).all() and (places == places[:1]).all()):
        return None
    counts = places[0].unique(return_counts=True)[1]
    times = int(counts[0])
    if times == 1 or len(counts) == 1 or bool((counts != times).any()):
        return None
    return places[0].argsort(stable=True).view(len(counts), times).T


def _by_slot(slot: Tensor, w: Tensor, v: Tensor, made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a product of weights and values as one for each slot of the scores.

    Args:
        slot: of each weight, (s, i, j).
        w, v, made: ids of the product, (s, i, j), (s, j, d) and (s, i, d).
    """
    whole = slot[:, :, 0]
    times = len(whole[0].unique())
    if times == 1 or whole.shape[1] % times or bool((slot != whole[..., None]).any()):
        return w, v, made
    order = whole.argsort(dim=1, stable=True)
    w, made = (t.gather(1, order[..., None].expand_as(t)) for t in (w, made))
    shape = (times, whole.shape[1] // times)
    w, made = (t.unflatten(1, shape).flatten(0, 1) for t in (w, made))
    return w, v.repeat_interleave(times, dim=0), made


def _turned(places: Tensor, shape: torch.Size) -> Tensor:
    slot, row, column = _unravel(places, shape)
    return (slot * shape[2] + column) * shape[1] + row


def _unravel(places: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    _, rows, columns = shape
    return places // (rows * columns), places // columns % rows, places % columns


def _varies(t: Tensor, axis: int) -> bool:
    return bool((t != t.narrow(axis, 0, 1)).any())


def _layers(run: Run, products: list[tuple[int, Tensor, Tensor]]) -> tuple[list, list]:
    """Return the products that no other one is made of, and those that are."""
    numbers = {number for number, _, _ in products}
    above: list[bool] = []  # whether an event comes after a product
    for event in run.tape.events:
        makers = {m for t in event.read() for m in run.makers(t) if m >= 0}
        above.append(any(m in numbers or above[m] for m in makers if m < len(above)))
    first = [product for product in products if not above[product[0]]]
    return first, [product for product in products if above[product[0]]]


def _follow(run: Run) -> dict[int, Step]:
    """Follow the scores through every operation that changes them one by one, by event."""
    steps: dict[int, Step] = {}
    for number, event in enumerate(run.tape.events):
        tensors = [t for t in event.args if isinstance(t, Tensor)]
        held = [t for t in tensors if bool((run.where[t] >= 0).any())]
        if not held or bool((run.where[event.out] >= 0).any()):
            continue
        main = held[0]
        if event.name in ("_softmax", "_log_softmax") and main.shape == event.out.shape:
            axis = event.args[1]
            groups = torch.arange(event.out.select(axis, 0).numel())
            groups = groups.view(event.out.select(axis, 0).shape).unsqueeze(axis)
            steps[number] = Step(
                *(event.name, main.flatten(), event.out.flatten(), ()),
                groups.expand(event.out.shape).flatten(),
            )
        elif event.name == "div" and main is event.args[0] and _sums(run, event, main) is not None:
            steps[number] = Step(
                *("ratio", main.flatten(), event.out.flatten(), ()), _sums(run, event, main)
            )
        elif (
            event.name not in ONE_BY_ONE
            or main.shape != event.out.shape
            or any(not torch.equal(run.where[t], run.where[main]) for t in held[1:])
        ):
            continue
        else:
            given = tuple(
                a.expand(event.out.shape).flatten() if isinstance(a, Tensor) else a
                for a in event.args
                if a is not main
            )
            place = next(i for i, a in enumerate(event.args) if a is main)
            steps[number] = Step(event.name, main.flatten(), event.out.flatten(), (place, *given))
        step = steps[number]
        run.where[step.out] = run.where[step.read]
    return steps


def _sums(run: Run, event: Event, main: Tensor) -> Tensor | None:
    """Return the id of the sum that each number is divided by, where it is one of its own sum."""
    by = event.args[1]
    if not isinstance(by, Tensor) or not run.depends(by) or main.shape != event.out.shape:
        return None
    makers = run.makers(by)
    if len(makers) != 1 or makers[0] < 0 or run.tape.events[makers[0]].name != "sum":
        return None
    read, *axes = run.tape.events[makers[0]].args
    sums = run.tape.events[makers[0]].out
    axes = axes[0] if axes and isinstance(axes[0], list | tuple) else list(range(read.ndim))
    if sums.ndim < read.ndim:
        for axis in sorted(axis % read.ndim for axis in axes):
            sums = sums.unsqueeze(axis)
    parts = torch.full((run.tape.count,), -1)
    parts[read.flatten()] = sums.expand(read.shape).flatten()
    own = by.expand(main.shape)
    whole = main.numel() == read.numel()
    return own.flatten() if whole and torch.equal(parts[main], own) else None


def _path(run: Run, weights: Tensor, scores: Tensor, steps: dict[int, Step]) -> list[Step] | None:
    """Return the steps from the scores to the weights."""
    begun = set(run.makers(scores))
    path: list[Step] = []
    ids = weights
    while set(makers := run.makers(ids)) != begun:
        if not set(makers) <= set(steps):
            return None
        level = [steps[number] for number in makers]
        if len({step.name for step in level}) > 1 or len(path) > 40:
            return None
        path.append(_together(level))
        ids = path[-1].read
    return path[::-1]


def _together(level: list[Step]) -> Step:
    """Return the same step of several heads as one."""
    first = level[0]
    given = []
    for number, value in enumerate(first.given):
        every = [step.given[number] for step in level]
        given.append(torch.cat(every) if isinstance(value, Tensor) else value)
    groups = None
    if first.groups is not None:
        groups, past = [], 0
        for step in level:
            groups.append(step.groups + past)
            past += int(step.groups.max()) + 1
        groups = torch.cat(groups)
    read, out = (torch.cat([getattr(step, side) for step in level]) for side in ("read", "out"))
    return Step(first.name, read, out, tuple(given), groups)
