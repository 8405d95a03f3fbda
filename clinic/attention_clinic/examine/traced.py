"""The run of an attention as its numbers show it: from its tokens to queries, keys, values and out.

Every step that is made is followed, and none is assumed: which columns of which layer queries, keys
and values are, by what they were turned, what a score is made of, what the softmax gave, what the
output layer read. What is not understood ends the examination without a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attention_clinic.engine.origins import (
    Hits,
    Origin,
    Pool,
    after_norm,
    features,
    normed,
    of_tokens,
    outside,
    scaled,
    weighted,
)
from attention_clinic.engine.products import Event, Products, by_heads, constants, repeated
from attention_clinic.examine.score_law import Law
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.turning_law import Turned, turned_of
from attention_clinic.examine.wrong_turns import crooked_of

PRIMES = (41, 53, 67, 83, 101, 151)
CLOSE = 1e-7
WEIGHTED = ("layer_norm", "rms_norm")
WIDEST = 1024  # numbers of a token that norms are tried of


class Lost(Exception):
    """A step is not understood."""


@dataclass
class Side:
    """Queries, keys or values of all heads.

    Args:
        heads: (b, h, n, d).
        origins: of each number of each head; None where it is turned.
        turned: what is turned, with the numbers of a head that are.
        factor: how often its numbers are larger than those that layers made.
        offset: what is added to them, (h, d).
        kept: the rows that no token made, such as learned keys.
    """

    heads: Tensor
    origins: list[list[Origin]]
    turned: tuple[Turned, list[int]] | None = None
    factor: float = 1.0
    offset: Tensor | None = None
    kept: tuple[int, ...] = ()


@dataclass
class Run:
    """One call, as far as it is understood.

    Args:
        x, y: tokens, and the output.
        pool: the columns that are known, of the tokens.
        asked: the same of a context, or those of the tokens where there is none.
        both: what layers made of context and tokens, one after the other.
        events: what was called.
        b, n, j, h: samples, tokens, those of the context, and heads.
        widths: how much a layer made, by its number.
        reads: where it comes from what a layer read.
        grown: whether a layer reads what another one made, times a number.
    """

    x: Tensor
    y: Tensor
    pool: Pool
    asked: Pool
    both: Pool
    events: list[Event]
    b: int
    n: int
    j: int
    h: int
    widths: dict[int, int] = field(default_factory=dict)
    reads: dict[int, list[Origin]] = field(default_factory=dict)
    grown: bool = False

    def sides(self) -> list[tuple[Pool, int]]:
        """Return what is known of each side, and how many tokens it has."""
        return [(self.pool, self.n), (self.asked, self.j)][: 1 + (self.asked is not self.pool)]


@dataclass(frozen=True)
class Seen:
    """What was seen of one call.

    Args:
        variants: the names of what is another thing on purpose.
        ids: the mistakes.
        detail: what the scores are multiplied by, where that is a mistake.
        causal: whether no token sees later ones.
        words: what stands around.
        alone: whether no output layer reads the joined heads.
        beyond: whether it is something that no form of the search makes.
        law: of the scores.
    """

    variants: tuple[str, ...]
    ids: tuple[str, ...] = ()
    detail: str = ""
    causal: bool = False
    words: tuple[str, ...] = ()
    alone: bool = False
    beyond: bool = False
    law: Law = field(default_factory=lambda: Law(torch.ones(())), compare=False)


def run_of(
    subject: Subject, b: int, number: int, times: float = 1.0, mask: Tensor | None = None
) -> Run:
    """Call a module and enter what its layers made of tokens.

    Args:
        subject: the module.
        b: number of samples, of which there are more than of anything else.
        number, times: of the call, which says how many tokens there are, and how long they are.
        mask: what the module is called with.
    """
    n, j = (subject.n, subject.j) if number == 0 else (subject.sizes(1)[1], subject.keys(1))
    patient = subject.patient
    x = times * patient.tokens(b, n, subject.e, seed=number)
    other = patient.tokens(b, j, subject.c, seed=100 + number) if subject.crossed else None
    runs = []
    for turned in (False, True):
        given = [t.flip(0) if turned and t is not None else t for t in (x, other)]
        with subject.repaired(), Products() as products:
            y = patient.run(given[0], mask, given[1])
        runs.append((products.events, y))
    (events, y), (others, _) = runs[0], runs[1]
    if len(events) != len(others) or y.shape[:2] != (b, n):
        raise Lost
    close = max(CLOSE, patient.tolerance)
    pools = []
    for t in (x,) if other is None else (x, other):
        pools.append(Pool(close))
        pools[-1].add(t, [Origin(-1, column) for column in range(t.shape[2])])
    run = Run(x, runs[0][1], pools[0], pools[-1], Pool(close), events, b, n, j, subject.h)
    _entered(run, [constants(a, c) for a, c in zip(events, others, strict=True)])
    return run


def _entered(run: Run, constants: list[list[bool]]) -> None:
    """Enter what layers made of what is known, and norms of that, in the order of the calls."""
    last: Tensor | None = None
    for number, (event, constant) in enumerate(zip(run.events, constants, strict=True)):
        given, made = event.given[0], event.made
        if event.kind == "product":
            if constant == [False, False] or all(constant):
                continue
            if event.said[:1] == ("einsum",):
                if event.said[1]:  # a matrix for each head
                    continue
                made = event.said[2]
            given = event.given[1].mT if constant[0] else given
            made = made.mT if constant[0] and event.said[:1] != ("einsum",) else made
        if event.kind == "norm":
            same = last is not None and last.shape == given.shape and torch.equal(last, given)
            if same and event.said[0] not in WEIGHTED:
                continue
            last = given
            _norm(run, given, made, event.said[0] in WEIGHTED)
        elif event.kind in ("layer", "product") and not repeated(run.events, number):
            _layer(run, number, given, made)
        elif event.kind == "fixed":
            for pool, count in run.sides():
                pool.replace(features(given, run.b, count), features(made, run.b, count))


def _layer(run: Run, number: int, given: Tensor, made: Tensor) -> None:
    """Enter what a layer made of what is known."""
    for pool, count in run.sides():
        read, out = (features(t, run.b, count) for t in of_tokens(given, made, run.b, count))
        if read is None or out is None or read.shape[2] != given.shape[-1]:
            continue  # a layer that several heads share is no projection of the whole token
        hits = pool.find(read)
        if hits.all() or hits.grown():
            run.grown |= not hits.all()
            run.reads[number], run.widths[number] = [o for o in hits.origins if o], out.shape[2]
            pool.add(out, [Origin(number, column) for column in range(out.shape[2])])
            return
    if run.asked is not run.pool:
        _of_both(run, number, given, made)


def _of_both(run: Run, number: int, given: Tensor, made: Tensor) -> None:
    """Enter what a layer made of context and tokens, one after the other."""
    count = run.n + run.j
    read, out = features(given, run.b, count), features(made, run.b, count)
    if read is None or out is None or read.shape[2] != given.shape[-1]:
        return
    for sides in ((run.asked, run.pool), (run.pool, run.asked)):
        split = run.j if sides[0] is run.asked else run.n
        halves = zip(sides, (read[:, :split], read[:, split:]), strict=True)
        first, second = (pool.find(half) for pool, half in halves)
        columns = [[o and (o.column, o.norm) for o in hits.origins] for hits in (first, second)]
        if first.all() and second.all() and columns[0] == columns[1]:
            run.reads[number], run.widths[number] = [o for o in first.origins if o], out.shape[2]
            run.both.add(out, [Origin(number, column) for column in range(out.shape[2])])
            return


def _norm(run: Run, t: Tensor, result: Tensor, weights: bool) -> None:
    """Enter the norms of what is known, and what a norm's own weights make of them."""
    every = t, result
    for pool, count in run.sides():
        t, result = of_tokens(*every, run.b, count)
        known = features(t, run.b, count)
        if known is None or t.shape[-1] in (run.b, count) or known.shape[2] > WIDEST:
            continue
        hits = pool.find(known)
        if not hits.all() or t.shape[-1] < 2:
            continue
        again = all(o is not None and o.norm for o in hits.origins)
        own = features(result, run.b, count) if result.shape == t.shape else None
        if again and own is not None and weighted(result.double(), t.double(), pool.close):
            if not scaled(result.double(), t.double(), pool.close):
                pool.add(own, [o for o in hits.origins if o is not None])
            return
        exact = outside(t.double()) if pool.close <= CLOSE else ()  # else they look alike
        for kind, made in (*normed(t.double()), *exact):
            laid = features(made, run.b, count)
            assert laid is not None, "as what it is made of"
            names = [after_norm(o, kind) for o in hits.origins if o is not None]
            pool.add(laid, names)
            if weights and own is not None and weighted(result.double(), made, pool.close):
                pool.add(own, names)
                return
        return


# ------------------------------------------------------------------- queries, keys and values


def products_of(run: Run) -> tuple[list[Event], Event, Event]:
    """Return the products that make scores, what weighs them, and the product with the values."""
    events, n = by_heads(_together(run), run.b, run.n, run.h), run.n
    weighs = [
        i
        for i, e in enumerate(events)
        if e.kind == "weigh" and e.made.ndim > 2 and e.made.shape[-2] == n
        and e.made.numel() == run.b * run.h * n * e.made.shape[-1]
    ]  # fmt: skip
    if len(weighs) != 1:
        raise Lost
    weigh = events[weighs[0]]
    size = weigh.made.numel()
    sizes = (size, size - run.b * run.h * n)  # a sink is one more key, without a value
    before = [e for e in events[: weighs[0]] if e.kind == "product" and e.made.numel() in sizes]
    after = [
        e
        for e in events[weighs[0] :]
        if e.kind == "product" and any(t.numel() in sizes for t in e.given)
    ]
    if not before or not after:
        raise Lost
    return before, weigh, after[0]


def _together(run: Run) -> list[Event]:
    """Return the events of a run; those of heads that run one after the other are put together."""
    small = [
        i
        for i, e in enumerate(run.events)
        if e.kind == "weigh" and e.made.ndim == 3 and e.made.shape[:2] == (run.b, run.n)
    ]
    if len(small) != run.h or run.h == 1:
        return run.events
    step = small[1] - small[0]
    starts = [run.events[i - k : i + step - k] for i in small for k in (_begin(run, small),)]
    if any([e.kind for e in part] != [e.kind for e in starts[0]] for part in starts):
        return run.events
    found = []
    for same in zip(*starts, strict=True):
        if any(e.made.shape != same[0].made.shape for e in same):
            return run.events
        given = zip(*(e.given for e in same), strict=True)
        letters = same[0].said[:1] == ("einsum",) and not same[0].said[1]  # of one matrix for all
        if same[0].kind in ("weigh", "product") and not letters:
            stacked = tuple(torch.stack(ts, dim=1) for ts in given)
            made = torch.stack([e.made for e in same], dim=1)
            found.append(Event(same[0].kind, stacked, made, same[0].said))
    return found


def _begin(run: Run, small: list[int]) -> int:
    """Return how many events of a head come before its weighing."""
    step = small[1] - small[0]
    return min(small[0], next(k for k in range(step) if k + 1 == step or _is_mix(run, small, k)))


def _is_mix(run: Run, small: list[int], k: int) -> bool:
    """Say whether the event that lies k before the second weighing ended the first head."""
    event, weigh = run.events[small[1] - k - 1], run.events[small[0]]
    return event.kind == "product" and any(t.shape == weigh.made.shape for t in event.given)


def by_head(t: Tensor, lead: torch.Size, b: int, h: int) -> Iterator[Tensor]:
    """Yield an operand as (b, h, ., .), in each way that its first axes may be meant.

    Args:
        t: (*lead, ., .) or something that expands to it.
        lead: of what the product made.
        b, h: samples and heads.
    """
    t = t.expand(*lead, *t.shape[-2:])
    sizes = [size for size in lead if size != 1]
    flat = t.reshape(-1, *t.shape[-2:])
    if len(flat) != b * h:
        raise Lost
    if sizes[:1] == [b] or len(sizes) == 1:
        yield flat.unflatten(0, (b, h))
    if sizes[-1:] == [b] or len(sizes) == 1:
        yield flat.unflatten(0, (h, b)).transpose(0, 1)


def side_of(pool: Pool, heads: Tensor, count: int) -> Side | None:
    """Return what queries, keys or values are made of, None where that is not known.

    Args:
        pool: what is known of the tokens.
        heads: (b, h, n, d).
        count: how many tokens there are; what is more is the same for all samples.
    """
    whole, kept = heads, ()
    if heads.shape[2] != count:
        same = (heads == heads[:1]).all(dim=3).all(dim=1).all(dim=0)
        kept = tuple(torch.nonzero(same)[:, 0].tolist())
        heads = heads[:, :, ~same]
        if heads.shape[2] != count:
            return None
    h, d = heads.shape[1], heads.shape[3]
    hits = pool.find(heads.transpose(1, 2).flatten(2))
    rows = [hits.origins[i * d : (i + 1) * d] for i in range(h)]
    missing = sorted({c for row in rows for c, origin in enumerate(row) if origin is None})
    turned = None
    if missing:
        part = missing[-1] - missing[0] + 1
        found = turned_of(pool, heads[..., missing]) if part == len(missing) else None
        if found is None:
            found, missing = crooked_of(pool, heads), list(range(d))
        if found is None:
            return None
        turned = found, missing
        for row, origins in zip(rows, found.origins, strict=True):
            row[missing[0] : missing[-1] + 1] = origins
    plain = _plain(hits, d)
    return None if plain is None else Side(whole, rows, turned, *plain, kept)


def _plain(hits: Hits, d: int) -> tuple[float, Tensor | None] | None:
    """Return the factor of what was found without a norm, and what is added; None for several."""
    norms = [None if o is None else o.norm for o in hits.origins]
    free = torch.tensor([norm == "" for norm in norms])
    normed = torch.tensor([bool(norm) and "length" not in norms for norm in norms])
    factors = hits.factor[free if bool(free.any()) else normed]  # that of a cosine is free
    factor = float(factors[0]) if len(factors) else 1.0
    if len(factors) and bool((factors - factor).abs().max() > 1e-6 * abs(factor)):
        return None
    offset = torch.where(free, hits.offset, torch.zeros(()).double()).view(-1, d)
    return factor, offset if bool(offset.abs().max() > 1e-6) else None


def answering(run: Run, heads: Tensor) -> Side | None:
    """Return what keys or values are made of: the context, or that and the tokens."""
    if run.both.origins and heads.shape[2] == run.n + run.j:
        return side_of(run.both, heads, run.n + run.j)
    return side_of(run.asked, heads, run.j)


def sides_of_product(run: Run, event: Event) -> Iterator[tuple[Side, Side, Tensor]]:
    """Yield queries, keys, and the product by head, where layers made both."""
    lead = event.made.shape[:-2]
    ways = zip(
        by_head(event.given[0], lead, run.b, run.h),
        by_head(event.given[1].mT, lead, run.b, run.h),
        by_head(event.made, lead, run.b, run.h),
        strict=True,
    )
    for q, k, made in ways:
        asks, answers = side_of(run.pool, q, run.n), answering(run, k)
        if asks is not None and answers is not None:
            yield asks, answers, made
