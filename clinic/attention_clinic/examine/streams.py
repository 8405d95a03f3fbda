"""The stream of a block: what each part read, and what became of its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attention_clinic.examine.leaves import equal_tensors, is_norm
from attention_clinic.examine.unit import Unit

Sum = dict[str, Tensor]  # what is added up, and by what it is multiplied: (1,) or (e,)
START, CONTEXT, ONE, CODE = "x", "context", "1", "code"
AROUND, BARE = (True, True, False), (False, False, False)  # norms before, inside, behind
PRE, BOTH = (True, False, False), (True, False, True)  # BOTH: also a last part, a norm behind all
BEHIND = (False, False, True)
EXACT = 1e-8  # of sums, relative


class Sums:
    """Finds tensors as sums of what the parts returned.

    Args:
        x: the tokens that the block got.
        context: the context, or None.
        limit: the largest difference that counts as equal, relative.
    """

    def __init__(self, x: Tensor, context: Tensor | None, limit: float) -> None:
        self.atoms: dict[str, Tensor] = {START: x}
        self.same: dict[str, str] = {}
        self.context, self.limit = context, max(limit, EXACT)
        if context is not None and context.shape == x.shape:
            self.atoms[CONTEXT] = context
        self.by_factor: dict[str, Tensor] = {}

    def start_from(self, t: Tensor) -> bool:
        """Take tokens with something added by their places for what enters, and say whether so."""
        x = self.atoms[START]
        if t.shape != x.shape or len(t) < 2:
            return False
        apart, wanted = ((one[1:] - one[:1]).flatten() for one in (x, t))
        added = t - x * (apart @ wanted / (apart @ apart))
        alike = self._near(added, added[:1].expand_as(added))
        self.atoms[START] = t if alike else x
        return alike

    def add(self, name: str, out: Tensor) -> None:
        """Enter what a part returned."""
        for other, t in self.atoms.items():
            if t.shape == out.shape and torch.equal(t, out):
                self.same[name] = other
                return
        self.atoms[name] = out

    def of(self, t: Tensor) -> Sum | None:
        """Return what adds up to a tensor, None when nothing does."""
        if self.context is not None and t.shape == self.context.shape and torch.equal(
            t, self.context
        ):  # fmt: skip
            return {CONTEXT: torch.ones(1, dtype=t.dtype)}
        names = [name for name, atom in self.atoms.items() if atom.shape == t.shape]
        if not names:
            return None
        columns = torch.stack([self.atoms[name].flatten() for name in names], dim=1)
        factors = torch.linalg.lstsq(columns, t.flatten()[:, None]).solution
        if self._near((columns @ factors)[:, 0], t.flatten()):
            return self._told(names, factors.T.expand(1, -1))
        b, n, e = t.shape
        if len(names) + 2 > b * n:
            return None
        columns = torch.stack([self.atoms[name].reshape(b * n, e).T for name in names], dim=2)
        wanted = t.reshape(b * n, e).T[..., None]  # a system for each number of a token
        factors = torch.linalg.lstsq(columns, wanted).solution
        if self._near(columns @ factors, wanted):
            return self._told(names, factors[..., 0])
        columns = torch.cat([columns, torch.ones_like(columns[..., :1])], dim=2)
        factors = torch.linalg.lstsq(columns, wanted).solution
        if len(names) + 3 <= b * n and self._near(columns @ factors, wanted):
            return self._told([*names, ONE], factors[..., 0])
        return self._coded(names, t)

    def _coded(self, names: list[str], t: Tensor) -> Sum | None:
        """Return what adds up to a tensor with codes of places: numbers alike in all samples."""
        if len(t) < 2:
            return None
        held = [self.atoms[name] for name in names]
        columns = torch.stack([(one - one.mean(0)).flatten() for one in held], dim=1)
        means = torch.stack([one.mean(0).flatten() for one in held], dim=1)
        wanted = (t - t.mean(0)).flatten()[:, None]
        factors = torch.linalg.lstsq(columns, wanted).solution
        code = t.mean(0).flatten()[:, None] - means @ factors
        made = means @ torch.linalg.lstsq(means, code).solution  # the mean of a batch is no code
        if not self._near(columns @ factors, wanted) or self._near(made, code):
            return None
        found = self._told(names, factors.T.expand(1, -1))
        return {**found, CODE: code[:, 0]} if found else None

    def _near(self, made: Tensor, t: Tensor) -> bool:
        return bool((made - t).abs().max() <= self.limit * (1 + t.abs().max()))

    def _told(self, names: list[str], factors: Tensor) -> Sum:
        """Return the factors by name, without those that are 0."""
        found = {}
        for name, factor in zip(names, factors.unbind(1), strict=True):
            if bool(factor.abs().max() > 1e-5):
                flat = (factor - factor[0]).abs().max() < 1e-5
                found[name] = factor[:1] if flat else factor
        return found


def equal(first: Sum, second: Sum) -> bool:
    """Say whether two sums are the same."""
    return first.keys() == second.keys() and all(close(f, second[n]) for n, f in first.items())


def close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() < 1e-4)


def minus(whole: Sum, part: Sum) -> Sum | None:
    """Take a sum out of another one, None when that does not hold it."""
    if not part.keys() <= whole.keys():
        return None
    rest = {n: f - part[n] if n in part else f for n, f in whole.items()}
    return {name: factor for name, factor in rest.items() if bool(factor.abs().max() > 1e-4)}


def plus(*sums: Sum) -> Sum:
    """Add sums."""
    found: Sum = {}
    for one in sums:
        for name, factor in one.items():
            found[name] = found[name] + factor if name in found else factor
    return found


@dataclass(frozen=True)
class Half:
    """How one part of a block joins the stream.

    Args:
        unit: the part.
        before: the norms that made what it reads, the last one first.
        inside: the norm of what it returned, or None.
        join: "keep", "missing", "doubled", "from-norm", "from-input", or, of a way that no known
            block has, "in-place", "from-context", "dropped", "other".
        behind: the norm of the sum, or None.
        start: whether it reads what entered the block.
        now: the stream before it, of such a way.
        base: what its result is added to, of "other".
        source: what it reads, before its norms, where that is not the stream.
        again: what is added once more behind that.
        between: whether a norm stands between these two sums.
        later: the norms behind all that.
    """

    unit: Unit
    before: tuple[Unit, ...] = ()
    inside: Unit | None = None
    join: str = "keep"
    behind: Unit | None = None
    start: bool = False
    now: Sum | None = None
    base: Sum | None = None
    source: Sum | None = None
    again: Sum | None = None
    between: bool = False
    later: tuple[Unit, ...] = ()

    @property
    def places(self) -> tuple[bool, bool, bool]:
        """Where its norms stand: before, inside, behind."""
        return bool(self.before), self.inside is not None, self.behind is not None

    @property
    def norms(self) -> Iterator[Unit]:
        """The norms around it."""
        yield from self.before
        yield from (norm for norm in (self.inside, self.behind, *self.later) if norm is not None)

    @property
    def cost(self) -> int:
        """How far it is from a right one."""
        wrong = (self.join != "keep") + (len(self.before) > 1) + self.start
        both = bool(self.before) and self.behind is not None
        return 2 * wrong + 3 * both + (not any(self.places))


@dataclass
class Stream:
    """The stream of a block.

    Args:
        parts: attentions and feed-forwards, as they ran.
        norms: the norms, by the names of what they returned.
        reads: what each of them read, by name.
        ends: what the block returned.
        factors: by what the parts' results are multiplied, by name.
        conditioned: the norms whose results are multiplied and shifted before they are read.
        changes: what was changed in its place, by the name of what it is then.
        keys: what attentions ask, where that is not what they read themselves.
        placed: whether something is added to the tokens first, by their places.
        bent: activations that are no part of a part: each with what it bends, and whether that
            goes on as the stream.
        layerless: activations that are added to the stream as a part is, with what they bend.
        added: what was added to what, and the sum.
        gates: what stands in the place of a sum.
        coded: parts to whose tokens numbers are added that no token made.
        adapters: parts that read what another part returned, and are added to that.
        times: by what the stream is multiplied behind each part, [] where it is not.
    """

    parts: list[tuple[str, Unit]]
    norms: dict[str, Unit]
    reads: dict[str, Sum]
    ends: Sum
    factors: dict[str, Tensor] = field(default_factory=dict)
    conditioned: set[str] = field(default_factory=set)
    changes: dict[str, Sum] = field(default_factory=dict)
    keys: dict[str, Sum] = field(default_factory=dict)
    placed: bool = False
    bent: list[tuple[Unit, Sum, bool]] = field(default_factory=list)
    layerless: list[tuple[Unit, Sum]] = field(default_factory=list)
    added: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    gates: list[Unit] = field(default_factory=list)
    coded: list[Unit] = field(default_factory=list)
    adapters: list[Unit] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def ways(self) -> list[tuple[Half, ...]]:
        """Return how the parts may follow each other, the likeliest first."""
        one = torch.ones(1, dtype=next(iter(self.ends.values())).dtype)
        start = {START: one}
        found = list(self._from(0, start, ()))

        def cost(way: tuple[Half, ...]) -> int:
            orders = {half.places for half in way}
            ended = len(way) > 1 and has_last_norm(way)
            orders -= {BOTH} if ended else set()
            uneven = {AROUND, BARE} <= orders  # its second norm may be that of the bare part
            cost = sum(half.cost for half in way) - 2 * ended
            return cost + 2 * max(uneven, len(orders - {BARE}) - 1)

        return sorted(found, key=cost)

    def _from(self, place: int, now: Sum, way: tuple[Half, ...]) -> Iterator[tuple[Half, ...]]:
        if place == len(self.parts):
            if equal(now, self.ends):
                yield way
            return
        name, unit = self.parts[place]
        one = torch.ones(1, dtype=unit.read.dtype)
        start, out = {START: one}, {name: one}
        for before, from_start in self._befores(self.reads[name], now, start):
            half = Half(unit, before, start=from_start, now=now)
            read = self.reads[name]
            bases = [("keep", now), ("missing", {}), ("doubled", out)]
            bases += [("from-norm", read)] if before else []
            bases += [("from-input", start)] if place and not equal(now, start) else []
            for inside, returned in ((None, out), *self.behind(out)):
                for join, base in bases:
                    joined = plus(base, returned)
                    chosen = replace(half, inside=inside, join=join)
                    yield from self._from(place + 1, joined, (*way, chosen))
                    for norm, behind in self.behind(joined):
                        ended = replace(chosen, behind=norm)
                        yield from self._from(place + 1, behind, (*way, ended))

    def _befores(self, read: Sum, now: Sum, start: Sum) -> Iterator[tuple[tuple[Unit, ...], bool]]:
        """Yield the norms between the stream and what a part reads."""
        norms: tuple[Unit, ...] = ()
        while True:
            if equal(read, now):
                yield norms, False
            elif equal(read, start):
                yield norms, True
            name = next(iter(read), "")
            alone = len(read) == 1 and name in self.norms
            if not alone or len(norms) > 2 or not close(read[name], torch.ones_like(read[name])):
                return
            norms, read = (*norms, self.norms[name]), self.reads[name]

    def behind(self, now: Sum) -> Iterator[tuple[Unit, Sum]]:
        """Yield the norms that read the stream as it is, with what they return."""
        for name, norm in self.norms.items():
            if equal(self.reads[name], now):
                yield norm, {name: torch.ones(1, dtype=norm.read.dtype)}


def has_last_norm(way: tuple[Half, ...]) -> bool:
    """Say whether a norm stands behind all parts, which have theirs in front.

    Where every part adds what its norm returned, it may be a norm before all, and one behind each.
    """
    in_front = all(half.places == PRE for half in way[:-1]) and way[-1].places == BOTH
    return in_front and any(half.join != "from-norm" for half in way)


def in_turns(way: tuple[Half, ...]) -> tuple[Half, ...] | None:
    """Return the parts that run first, where all others are these once more; None where not."""
    ended = replace(way[-1], behind=None) if has_last_norm(way) else way[-1]
    known = [_known(half) for half in (*way[:-1], ended)]
    for count in range(2, len(way) // 2 + 1):
        if known == known[:count] * (len(way) // count):
            return way[:count]
    return None


def _known(half: Half) -> tuple[object, ...]:
    """Return which part and which norms run, and how these are connected."""
    norms = [[norm.name for norm in norms] for norms in (half.before, half.norms)]
    return half.unit.name, half.join, half.places, *norms, half.source is None, half.again is None


def without_first_norm(way: tuple[Half, ...]) -> tuple[Half, ...]:
    """Return a way without the norm of all that enters, where norms stand behind the parts.

    What that norm returned is the stream: nothing else reads what entered.
    """
    first, *rest = way
    behind = rest and all(half.places == BEHIND and half.join == "keep" for half in rest)
    if not behind or first.join != "from-norm" or first.places != (True, False, True):
        return way
    if len({id(norm.run) for half in way for norm in half.norms}) <= len(way):
        return way  # it stands in another place, too
    return (replace(first, before=(), join="keep"), *rest)


def with_own_norm(half: Half) -> Half:
    """Return a part with the norm that it begins with itself, such as one in each head."""
    for step in (inner for outer in half.unit.steps for inner in outer.all()):
        given = next(iter(step.given.values()), None)
        if given is None or step.result is None or not is_norm(step):
            continue
        if equal_tensors(given, half.unit.read):
            norm = Unit("norm", step.path, given, step.result, run=step.again or step.module)
            return replace(half, before=(norm, *half.before))
    return half
