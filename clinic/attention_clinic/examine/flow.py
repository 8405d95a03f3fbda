"""The stream of a block as its run shows it: sums, and what stands between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from attention_clinic.examine.leaves import Unclear, equal_tensors
from attention_clinic.examine.part_kinds import BATCH
from attention_clinic.examine.streams import CODE, ONE, START, Stream, Sum, Sums, close, equal, plus
from attention_clinic.examine.unit import Unit

BETWEEN = ("bend", "gate")


def stream_of(
    units: list[Unit],
    x: Tensor,
    context: Tensor | None,
    y: Tensor,
    limit: float,
    rooted: bool = False,
) -> tuple[Stream, list[Unit]]:
    """Return the stream, and the norms whose result nothing uses.

    Args:
        units: the parts as they ran.
        x: the tokens that the block got.
        context: the context, or None.
        y: what it returned.
        limit: the largest difference that counts as equal.
        rooted: whether what is added by places may belong to what enters.

    Raises:
        Unclear: some tensor is no sum of what the parts returned.
    """
    sums = Sums(x, context, limit)
    reads: dict[str, Sum | None] = {}
    norms: dict[str, Unit] = {}
    parts: list[tuple[str, Unit]] = []
    changes: dict[str, Sum] = {}
    keys: dict[str, Sum] = {}
    between: dict[str, tuple[Unit, Sum]] = {}  # with the sum that would stand there
    placed = False
    for number, unit in enumerate(units):
        name = f"{number} {unit.name}"
        reads[name] = sums.of(unit.read)
        is_code = reads[name] is None or (rooted and CODE in reads[name])
        if number == 0 and is_code and sums.start_from(unit.read):
            reads[name], placed = sums.of(unit.read), True
        if unit.kind in BETWEEN:
            others = [] if unit.asked is None else [sums.of(unit.asked)]
            terms = [term for term in (reads[name], *others) if term is not None]
            if len(terms) > len(others):
                between[name] = unit, plus(*terms)
                sums.add(name, unit.out)
            continue
        asked = None if unit.asked is None else sums.of(unit.asked)
        if unit.asked is not None and not _of_context(asked, reads):
            if asked is None:
                raise Unclear
            if _of_context(reads[name], reads):
                asked, reads[name] = reads[name], asked
                unit.turn()
            else:
                keys[name] = asked
                unit.alone()
        if unit.kind == "mix" and unit.asked is None and _of_context(reads[name], reads):
            raise Unclear  # the context asks itself: the tokens ask nothing
        sums.add(name, unit.out)
        if unit.kind == "norm":
            if name not in sums.same:
                norms[name] = unit
        elif unit.kind == "change":
            changes[name] = reads[name] or {}
        elif unit.kind != "inner" and not any(_again(unit, other) for _, other in parts):
            parts.append((name, unit))
    ends = sums.of(y)
    if ends is None:
        raise Unclear
    used = {name for read in (*reads.values(), ends) if read is not None for name in read}
    used |= {name for _, terms in between.values() for name in terms}
    asked = [unit.asked for _, unit in parts if unit.asked is not None]
    asked = [sums.of(t) or {} for t in asked]
    used |= {name for one in (*asked, *keys.values()) for name in one}
    unused = [norms[name] for name in norms if name not in used]
    kept = {name: norm for name, norm in norms.items() if name in used}
    going = {*kept, *(name for name, _ in parts)}  # what norms read in vain shows no sum
    found = {name: read for name, read in reads.items() if name in going and read is not None}
    if found.keys() != going:
        raise Unclear
    goes_on = any(CODE in one for one in (ends, *(found[name] for name in kept)))
    if goes_on and not (rooted or keys):  # the stream itself holds it, not what one part reads
        return stream_of(units, x, context, y, limit, rooted=True)
    stream = Stream(parts, kept, found, ends, changes=changes, keys=keys, placed=placed)
    _without(stream, between)
    _adapt(stream)
    _condition(stream)
    _code(stream)
    _weigh(stream)
    _scale(stream)
    return stream, unused


def _again(unit: Unit, other: Unit) -> bool:
    """Say whether a part is called once more on the same tokens, such as to look at a shape."""
    pairs = ((unit.read, other.read), (unit.asked, other.asked), (unit.out, other.out))
    same = (a is b or (a is not None and b is not None and equal_tensors(a, b)) for a, b in pairs)
    return unit.paths == other.paths and all(same)


def _of_context(asked: Sum | None, reads: dict[str, Sum | None]) -> bool:
    """Say whether what is asked is the context, or what norms made of it."""
    while asked is not None and len(asked) == 1:
        name, factor = next(iter(asked.items()))
        if not close(factor, torch.ones_like(factor)):
            return False
        if name == "context":
            return True
        asked = reads.get(name)
    return False


def _sums(stream: Stream) -> Iterator[Sum]:
    """Yield all that is read or returned."""
    yield from (*stream.reads.values(), *stream.keys.values(), *stream.changes.values())
    yield stream.ends


def _without(stream: Stream, between: dict[str, tuple[Unit, Sum]]) -> None:
    """Put the sums in the place of activations that bend them, and of gates that weigh them."""
    parts = dict(stream.parts)
    meant: dict[str, Sum] = {}
    for name, (unit, terms) in between.items():
        meant[name] = _put(terms, meant)
        if unit.kind == "gate":
            stream.gates.append(unit)
            for own in terms:  # GTrXL bends what a part returned before the gate
                if own in parts:
                    parts[own].after = None
        elif _is_beside(name, meant[name], stream):
            stream.layerless.append((unit, meant[name]))
        elif any(name in one for one in _sums(stream)):
            stream.bent.append((unit, meant[name], _goes_on(name, stream)))
    for one in _sums(stream):
        changed = _put(one, meant)
        one.clear()
        one.update(changed)


def _put(sum_: Sum, meant: dict[str, Sum]) -> Sum:
    """Return a sum with other sums in the place of some terms."""
    terms = ({name: factor} if name not in meant
             else {own: factor * other for own, other in meant[name].items()}
             for name, factor in sum_.items())  # fmt: skip
    return plus(*terms)


def _is_beside(name: str, bent: Sum, stream: Stream) -> bool:
    """Say whether what an activation returned is added to the stream that it was made of."""
    only = next(iter(bent))
    streams = [bent, *([stream.reads[only]] if [*bent] == [only] and only in stream.norms else [])]
    sums = [one for one in _sums(stream) if name in one]
    return any(terms.keys() < one.keys() for terms in streams for one in sums)


def _goes_on(name: str, stream: Stream) -> bool:
    """Say whether something is added to what an activation returned, or the block returns it."""
    if name in stream.ends or any(name in one and len(one) > 1 for one in _sums(stream)):
        return True
    return any(_goes_on(norm, stream) for norm in stream.norms if name in stream.reads[norm])


def _adapt(stream: Stream) -> None:
    """Take adapters out: parts that read what another returned, and are added to that."""
    parts = dict(stream.parts)
    for name, unit in stream.parts:
        read = stream.reads[name]
        other = next(iter(read), "")
        alone = (
            len(read) == 1 and other in parts and close(read[other], torch.ones(1).to(unit.read))
        )
        held = [one for one in _sums(stream) if name in one]
        beside = all(other in one and close(one[other], one[name]) for one in held)
        others = [u for n, u in stream.parts if n != name and u.kind == unit.kind == "feed"]
        if not (alone and held and beside and len(others) > len(stream.adapters)):
            continue
        for one in held:
            del one[name]
        del stream.reads[name]
        stream.adapters.append(unit)
    stream.parts[:] = [(n, u) for n, u in stream.parts if all(u is not a for a in stream.adapters)]


def _condition(stream: Stream) -> None:
    """Take what scales and shifts the results of norms out of the sums, as DiT's conditions do."""
    sums = [*stream.reads.values(), stream.ends]
    for name in stream.norms:
        ways = [(s[name], s[ONE]) for s in sums if name in s and ONE in s]
        bare = any(name in s and ONE not in s for s in sums)
        if not ways or bare:
            continue
        factor, shift = ways[0]
        for one in sums:
            if name in one and ONE in one and close(one[name], factor) and close(one[ONE], shift):
                one[name] = torch.ones(1, dtype=factor.dtype)
                del one[ONE]
        stream.conditioned.add(name)


def _code(stream: Stream) -> None:
    """Take codes of places out of what parts read: numbers that are added, and of no token."""
    for name, unit in stream.parts:
        for one in (stream.reads[name], stream.keys.get(name, {})):
            for code in (ONE, CODE):
                if code in one and len(one) > 1:
                    del one[code]
                    stream.coded.append(unit)
        if name in stream.keys and equal(stream.keys[name], stream.reads[name]):
            del stream.keys[name]


def _weigh(stream: Stream) -> None:
    """Divide sums that norms read by the factor of the stream, which a norm takes away (DeepNorm).

    A factor of 2 stays: it may as well be a stream that was added twice.
    """
    parts = {name for name, _ in stream.parts}
    scales: dict[str, Tensor] = {}  # of the stream, where a norm read it
    for name, norm in stream.norms.items():
        read = stream.reads[name]
        factor = next(
            (f for term, f in read.items() if term == START or term in stream.norms), None
        )
        inner = getattr(norm.run, "run", norm.run)
        if factor is None or not parts & {*read} or isinstance(inner, BATCH):
            continue
        if _scales(factor):
            scales[name] = factor
            for term in read:
                read[term] = read[term] / factor
    base = next((term for term in stream.ends if term == START or term in stream.norms), "")
    if parts & {*stream.ends} and base and _scales(stream.ends[base]):
        held = {name: one for name, one in scales.items() if base in stream.reads[name]}
        _lift(stream, held, stream.ends[base])


def _scales(factor: Tensor) -> bool:
    """Say whether a factor of the stream is a number of its own."""
    plain = factor.numel() > 1 or min(abs(float(factor) - one) for one in (1, 2)) < 1e-4
    return not plain and bool(factor > 0)


def _lift(stream: Stream, scales: dict[str, Tensor], total: Tensor) -> None:
    """Take out of the sums by what the whole stream is multiplied behind each part.

    Args:
        stream: of the block.
        scales: by how much it was multiplied until a norm read it, where that was at all.
        total: by how much at the end.
    """
    for term in stream.ends:
        stream.ends[term] = stream.ends[term] / total
    sizes = []
    for name, _ in stream.parts:
        read = next(iter(stream.reads[name]), "")
        sizes.append(scales.get(read, torch.ones_like(total)))
        for one in _sums(stream):
            if name in one:
                one[name] = one[name] * sizes[-1]
    stream.times = [float(b / a) for a, b in pairwise([*sizes, total])]


def _scale(stream: Stream) -> None:
    """Take the factors of the parts out of the sums: what a part returned is multiplied by one."""
    ones = {name for name, _ in stream.parts}
    for sum_ in (*stream.reads.values(), stream.ends):
        for name, factor in sum_.items():
            one, two = torch.ones_like(factor), torch.full_like(factor, 2.0)
            if name in ones and not close(factor, one) and not close(factor, two):
                stream.factors.setdefault(name, factor)
    for sum_ in (*stream.reads.values(), stream.ends):
        for name, factor in stream.factors.items():
            if name in sum_:
                sum_[name] = sum_[name] / factor
