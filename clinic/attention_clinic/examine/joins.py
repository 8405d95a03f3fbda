"""How the parts of a block are connected where no known block has it so: the least unusual way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attention_clinic.examine.streams import (
    BOTH,
    CODE,
    CONTEXT,
    ONE,
    START,
    Half,
    Stream,
    Sum,
    equal,
    minus,
    plus,
)
from attention_clinic.examine.unit import Unit

MOST = 20_000  # states of one search
AGAIN, ELSEWHERE, OTHER, DROPPED, DOUBLED, START_READ, LEFT = 3, 5, 5, 7, 2, 2, 2

JOINS = {
    "missing": ("residual-missing", "around the {}"),
    "doubled": ("residual-missing", "what the {} returned is added to itself"),
    "from-norm": ("residual-from-norm", "around the {}"),
    "from-input": ("residual-from-input", "after the {}"),
    "in-place": ("residual-in-place", "around the {}"),
    "from-context": ("residual-from-context", "behind the {}"),
    "dropped": ("part-unused", "what the {} returns is thrown away"),
}


class Joins:
    """The search: what was read and what was returned says what was added where.

    Args:
        stream: of the block.
        rests: whether it holds a part that is never called.
    """

    def __init__(self, stream: Stream, rests: bool) -> None:
        self.stream = stream
        kinds = [unit.kind for _, unit in stream.parts]
        self.rests = rests or "mix" not in kinds or "feed" not in kinds
        self.one = torch.ones(1, dtype=next(iter(stream.ends.values())).dtype)
        self.start: Sum = {START: self.one}
        self.seen: list[Sum] = []
        for read in (*stream.reads.values(), stream.ends):
            if not any(equal(read, other) for other in self.seen):
                self.seen.append(read)
        used = [name for read in (*self.seen, *stream.keys.values()) for name in read]
        self.unused = {name for name, _ in stream.parts if name not in used}
        self.cost, self.left = 10**6, MOST
        self.best: tuple[Half, ...] | None = None

    def way(self) -> tuple[Half, ...] | None:
        """Return the way that has the fewest unusual connections, None when there is none."""
        self._walk(0, self.start, (), 0, self.rests)
        return self.best

    def _walk(
        self, place: int, now: Sum, way: tuple[Half, ...], cost: int, rests: bool = False
    ) -> None:
        self.left -= 1
        if cost >= self.cost or self.left < 0:
            return
        if place == len(self.stream.parts) and equal(now, self.stream.ends):
            orders = {half.places for half in way if any(half.places)}
            cost += 2 * max(0, len(orders) - 1)
            if cost < self.cost:
                self.best, self.cost = way, cost
            return
        asks = place == 0 and any(unit.kind == "mix" for _, unit in self.stream.parts[:1])
        asks &= all(unit.asked is None for _, unit in self.stream.parts[:1])
        for then in self._without(now) if rests and not asks else ():  # what rests is another part
            self._walk(place, then, way, cost + LEFT)
        if place == len(self.stream.parts):
            return
        name, unit = self.stream.parts[place]
        for first, paid in self._befores(name, unit, now):
            half = replace(first, now=now)
            for made, then, more in self._joined(name, half, now):
                plain = not any(made.places)
                both = bool(made.before) and made.behind is not None
                paid_for = cost + paid + more + plain + 3 * both
                self._walk(place + 1, then, (*way, made), paid_for, rests)

    def _without(self, now: Sum) -> Iterator[Sum]:
        """Yield what is left of a part that is never called: its sum, and the norm of its place."""
        twice = plus(now, now)
        left = [twice, *(behind for sum_ in (now, twice) for _, behind in self.stream.behind(sum_))]
        for _, behind in self.stream.behind(now):  # with a norm before that part, or another behind
            inside = [last for _, last in self.stream.behind(behind)]
            left += [plus(now, one) for one in (behind, *inside)]
        yield from (then for then in left if any(equal(then, read) for read in self.seen))

    def _befores(self, name: str, unit: Unit, now: Sum) -> Iterator[tuple[Half, int]]:
        """Yield what a part may read: the stream, what entered, or anything else."""
        norms: tuple[Unit, ...] = ()
        read = self.stream.reads[name]
        while True:
            cost = DOUBLED * max(0, len(norms) - 1)
            if equal(read, now):
                yield Half(unit, norms), cost
            elif equal(read, self.start):
                yield Half(unit, norms, start=True), cost + START_READ
            else:
                yield Half(unit, norms, source=read), cost + ELSEWHERE
            inner = next(iter(read), "")
            if len(read) != 1 or inner not in self.stream.norms or len(norms) > 2:
                return
            if bool((read[inner] - 1).abs().max() > 1e-4):
                return
            norms, read = (*norms, self.stream.norms[inner]), self.stream.reads[inner]

    def _joined(self, name: str, half: Half, now: Sum) -> Iterator[tuple[Half, Sum, int]]:
        """Yield how what a part returned may go on, and the stream behind that."""
        if name in self.unused:
            dropped = replace(half, join="dropped")
            yield dropped, now, DROPPED
            for sum_ in (now, plus(now, now)):  # a norm does not see the factor
                for norm, behind in self.stream.behind(sum_):
                    yield replace(dropped, behind=norm), behind, DROPPED
            return
        out = {name: self.one}
        for inside, returned in ((None, out), *self.stream.behind(out)):
            for join, base, cost in self._bases(name, half, now, returned):
                joined = plus(base, returned)
                made = replace(half, inside=inside, join=join, base=base)
                yield from self._behind(made, now, joined, cost)

    def _bases(
        self, name: str, half: Half, now: Sum, returned: Sum
    ) -> Iterator[tuple[str, Sum, int]]:
        read = self.stream.reads[name]
        named: list[tuple[str, Sum, int]] = [("keep", now, 0), ("missing", {}, 2)]
        named.append(("doubled", returned, 2))
        if half.before:
            named.append(("from-norm", read, 2))
        if not equal(now, self.start):
            named.append(("from-input", self.start, 2))
        for changed, before in self.stream.changes.items():
            if equal(before, now):
                named.append(("in-place", {changed: self.one}, 2))
        named.append(("from-context", {CONTEXT: self.one}, 3))
        yield from named
        for whole in self.seen:
            base = minus(whole, returned)
            if not base or any(_number(other) > _number(name) for other in base):
                continue  # what is made later cannot be added here
            if not any(equal(base, other) for _, other, _ in named):
                yield "other", base, OTHER

    def _behind(
        self, half: Half, now: Sum, joined: Sum, cost: int
    ) -> Iterator[tuple[Half, Sum, int]]:
        """Yield the norms behind a sum, and sums behind these."""
        ways = [(half, joined, cost)]
        for norm, behind in self.stream.behind(joined):
            ways.append((replace(half, behind=norm), behind, cost))
            for other, last in self.stream.behind(behind):
                ways.append((replace(half, behind=norm, later=(other,)), last, cost + DOUBLED))
        yield from ways
        for made, then, paid in ways:
            for whole in self.seen:
                base = minus(whole, then)
                if not base or not (equal(base, now) or equal(base, self.start)):
                    continue
                twice = replace(made, again=base, between=made.behind is not None)
                yield twice, whole, paid + AGAIN
                for norm, behind in self.stream.behind(whole):
                    if made.behind is None:
                        yield replace(twice, behind=norm), behind, paid + AGAIN
                    else:
                        later = (*made.later, norm)
                        yield replace(twice, later=later), behind, paid + AGAIN


def once_normed(half: Half, norms: set[str], part: str) -> tuple[Half, str]:
    """Leave out the norm before a part that has one behind and reads what a norm returned.

    Args:
        half: the part.
        norms: the names of what norms returned.
        part: what it is.

    Returns:
        The part, and what is said of that norm, "" where none is left out.
    """
    now = half.now or {}
    if half.places != BOTH or len(now) != 1 or not now.keys() <= norms:
        return half, ""
    return replace(half, before=()), f"before the {part}: {half.before[0].name} norms {words(now)}"


def _number(name: str) -> int:
    """Return when a call ended, by its name: 0 for what came in."""
    first = name.partition(" ")[0]
    return int(first) if first.isdigit() else 0


def words(sum_: Sum) -> str:
    """Say what a sum adds up."""
    terms = []
    for name, factor in sum_.items():
        said = {START: "x", CONTEXT: "the context"}.get(name)
        said = "numbers of no token" if name in (ONE, CODE) else said
        said = said or f"what {name.partition(' ')[2]} returned"
        if factor.numel() > 1 and name not in (ONE, CODE):
            said = f"{said} times factors"
        elif name not in (ONE, CODE) and abs(float(factor) - 1) > 1e-4:
            said = f"{float(factor):.4g} times {said}"
        terms.append(said)
    return " + ".join(terms) or "nothing"
