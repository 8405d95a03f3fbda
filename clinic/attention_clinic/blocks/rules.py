"""Rules over the halves of a block: residuals, and where norms are."""

from __future__ import annotations

from dataclasses import dataclass, field

from attention_clinic.attention.program import Lost
from attention_clinic.attention.rules import Finding
from attention_clinic.blocks.stream import Node, Stream

WORDS = {"self": "self-attention", "cross": "cross-attention", "feed": "feed-forward"}
PATTERNS = (("self", "feed"), ("self", "cross", "feed"), ("cross", "feed"))


@dataclass(eq=False)
class Half:
    """A part and how its result joins the residual stream."""

    part: Node
    chain: list[Node]  # from what it reads, through norms, to the stream before these
    skip: str  # "at" for a residual from the chain, or the bug that it is
    place: int = 0  # of the residual in the chain
    inner: list[Node] = field(default_factory=list)  # norms of what the part returned
    side: bool = False  # whether it runs in parallel with the half before
    kind: str = ""  # "self", "cross" or "feed"
    weights: frozenset[str] = frozenset()  # names of the parameters of the part

    @property
    def norms(self) -> list[Node]:
        """The norms between the residual stream and the part, the last one first."""
        return self.chain[:-1]


@dataclass
class Wiring:
    """A block as its halves, in running order, and the norms of its result, the last one first."""

    halves: list[Half]
    final: list[Node]

    @property
    def norms(self) -> list[Node]:
        """All norms of the residual stream, in running order."""
        found: list[Node] = []
        for half in self.halves:
            found += [*half.norms[::-1], *half.inner[::-1]]
            for read in half.part.reads[1:]:
                found += _through_norms(read)[0]
        return list(dict.fromkeys([*found, *self.final[::-1]]))


def wired(stream: Stream, top: Node) -> Wiring:
    """Return a block, given the node of its result, as its halves."""
    halves: list[Half] = []
    final, node = _through_norms(top)
    while not stream.begins(node):
        if len(halves) > 64 or node.kind not in ("sum", "part", "scale"):
            raise Lost("the stream does not come from the tokens")
        stage = _stage(stream, node)
        halves += stage
        node = stage[-1].chain[-1]
        if node.kind == "norm":
            raise Lost("norms in a row")
    return Wiring(halves[::-1], final)


def _through_norms(node: Node) -> tuple[list[Node], Node]:
    """Return the norms that a node went through, the last one first, and what entered them."""
    if node.kind != "norm":
        return [], node
    norms, base = _through_norms(node.source)
    return [node, *norms], base


def _part_of(term: Node) -> tuple[Node, list[Node]] | None:
    """Return the part that a term of a sum is, and the norms of what it returns."""
    inner, base = _through_norms(term)
    return (base, inner) if base.kind == "part" else None


def _parts_in(terms: list[Node]) -> list[Node]:
    """Return the parts that some terms, or sums in them, are made from."""
    found: list[Node] = []
    for term in terms:
        part = _part_of(term)
        found += [part[0]] if part is not None else []
        found += _parts_in(term.reads) if term.kind == "sum" else []
    return found


def _chain(stream: Stream, part: Node) -> list[Node]:
    """Return what a part reads, and what it was made from by norms."""
    if not stream.is_own(part.source):
        raise Lost("a part that reads the context alone")
    norms, base = _through_norms(part.source)
    return [*norms, base]


def _stage(stream: Stream, node: Node) -> list[Half]:
    """Return the half that ends in a node, or two that run in parallel."""
    terms = list(node.reads) if node.kind == "sum" else [node]
    chains = [one for part in _parts_in(terms) for one in _chain(stream, part)]
    for _ in range(8):
        parts = [(t, _part_of(t)) for t in terms]
        wide = [t for t in terms if t.kind == "sum" and all(t is not one for one in chains)]
        if not wide:
            break
        terms = [t for t in terms if t is not wide[0]] + list(wide[0].reads)
    own = [p for t, p in parts if p is not None and all(t is not one for one in chains)]
    skips = [t for t, p in parts if p is None or any(t is one for one in chains)]
    side = len(own) == 2 and len(skips) == 1
    if len(own) != 1 and not side:
        raise Lost(f"a sum of {len(own)} parts")
    made = []
    for part, inner in own:
        chain = _chain(stream, part)
        skip, place = _skip(stream, chain, skips)
        if side and (skip, place) != ("at", len(chain) - 1):
            raise Lost("two parts in parallel that read different streams")
        made.append(Half(part, chain, skip, place, inner, side))
    return made


def _skip(stream: Stream, chain: list[Node], skips: list[Node]) -> tuple[str, int]:
    """Return which residual a half has, and where it leaves the chain."""
    places = [next((k for k, c in enumerate(chain) if c is t), -1) for t in skips]
    if not skips:
        return "residual-missing", 0
    if len(skips) == 1:
        if places[0] >= 0:
            return "at", places[0]
        if stream.begins(skips[0]):
            return "residual-from-input", 0
    if len(skips) == 2 and min(places) >= 0:
        return "residual-again", 0
    raise Lost("a residual from another place")


def order_of(wiring: Wiring, norm_first: bool | None) -> tuple[str, list[Finding]]:
    """Return the order of the norms, such as "pre-norm", and the bugs of residuals and norms."""
    variant = _variant(wiring)
    if variant:
        return variant, []
    single, first = len(wiring.halves) <= 3, wiring.halves[0]
    after_norm = first.norms and (first.skip, first.place) == ("at", 0)
    if single and wiring.final and after_norm and not _inside(first):
        raise Lost("a norm of the tokens, or residuals from norms")
    readings = [("pre-norm", _pre(wiring)), ("post-norm", _post(wiring, single))]
    if single and _mixed(wiring):
        readings = [("pre-norm", [("norm-mixed", "")])]
    usual = [(order, found) for order, found in readings if found is not None]
    if not usual:
        raise Lost("norms in an unknown order")
    wanted = "post-norm" if norm_first is False else "pre-norm"
    order, found = min(usual, key=lambda one: (len(one[1]), one[0] != wanted))
    if norm_first is not None and order != wanted and not found and wiring.norms:
        found = [("norm-order", f"it is {order}")]
    return order, found


def _variant(wiring: Wiring) -> str:
    """Return the order of a block that norms what its parts return, or runs them in parallel."""
    halves = wiring.halves
    if any(half.side for half in halves):
        if not all(half.side and half.place == 1 and not half.inner for half in halves):
            raise Lost("parts in parallel, with norms in unknown places")
        return "parallel"
    if not any(half.inner for half in halves):
        return ""
    usual = all(half.skip == "at" and half.place == len(half.norms) for half in halves)
    counts = {(len(half.inner), len(half.norms)) for half in halves}
    if not usual or counts not in ({(1, 0)}, {(1, 1)}):
        raise Lost("some parts return normalized numbers")
    return "norm-of-part" if counts == {(1, 0)} else "sandwich-norm"


def _residual(half: Half) -> list[Finding]:
    where = f"{'after' if half.skip == 'residual-from-input' else 'around'} the {WORDS[half.kind]}"
    return [] if half.skip == "at" else [(half.skip, where)]


def _pre(wiring: Wiring) -> list[Finding] | None:
    """Return the bugs of a pre-norm block; None for any other."""
    found: list[Finding] = []
    for half in wiring.halves:
        count, where = len(half.norms), WORDS[half.kind]
        found += _residual(half)
        if half.skip == "at" and 0 < half.place < count:
            return None
        if not count:
            found.append(("norm-missing", f"before the {where}"))
        elif half.skip == "at" and half.place == 0:
            found.append(("residual-from-norm", f"around the {where}"))
        if count > 1:
            found.append(("norm-doubled", f"before the {where}"))
    if len(wiring.final) > 1:
        found.append(("norm-doubled", "at the end"))
    return found


def _post(wiring: Wiring, single: bool) -> list[Finding] | None:
    """Return the bugs of a post-norm block; None for any other."""
    found: list[Finding] = []
    halves = wiring.halves
    entered = halves[0].norms and (single or _inside(halves[0]))
    if entered or any(half.skip == "at" and half.place > 0 for half in halves):
        return None
    after = [len(half.norms) for half in halves[1:]] + [len(wiring.final)]
    for number, (half, count) in enumerate(zip(halves, after, strict=True)):
        where = WORDS[half.kind]
        found += _residual(half)
        if not count:
            found.append(("norm-missing", f"after the {where}"))
        if count > (2 if number == len(halves) - 1 and not single else 1):
            found.append(("norm-doubled", f"after the {where}"))
    return found


def _inside(half: Half) -> bool:
    """Return whether the norm of the tokens belongs to the layer of the part after it."""
    norm = half.norms[0].norm
    weights = {name.split(".")[0] for name in (() if norm is None else norm.weights)}
    return not weights or bool(weights & {name.split(".")[0] for name in half.weights})


def _mixed(wiring: Wiring) -> bool:
    """Return whether each part has one norm, some before and some after it."""
    halves = wiring.halves
    pre = [half.place for half in halves]
    post = [len(half.norms) - half.place for half in halves[1:]] + [len(wiring.final)]
    whole = len(halves[0].norms) == pre[0] and all(half.skip == "at" for half in halves)
    each = all(a + b == 1 for a, b in zip(pre, post, strict=True))
    return whole and each and 0 < sum(pre) < len(halves)


def parts_of_layer(kinds: list[str]) -> int:
    """Return how many parts a layer has."""
    for pattern in PATTERNS:
        size = len(pattern)
        if kinds and tuple(kinds) == pattern * (len(kinds) // size):
            return size
    raise Lost(f"parts in an unknown order: {', '.join(WORDS[kind] for kind in kinds) or 'none'}")
