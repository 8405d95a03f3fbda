"""The connections of a block by their names: joins, the places of norms, parts too many or few."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.bugs.decoder import RIGHT
from attention_clinic.bugs.orders import WORDS
from attention_clinic.engine.crossing import role
from attention_clinic.engine.mentions import is_mentioned, reads_in_a_branch
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.factors import kinds_of_factors
from attention_clinic.examine.held import feed_of
from attention_clinic.examine.joins import JOINS, once_normed, without_last_norm, words
from attention_clinic.examine.leaves import (
    Unclear,
    equal_tensors,
    hold_in_common,
    idle_parts,
    is_no_norm,
    looks_like_a_norm,
)
from attention_clinic.examine.streams import (
    AROUND,
    BARE,
    CONTEXT,
    START,
    Half,
    Stream,
    Sum,
    equal,
    with_own_norm,
    without_first_norm,
)
from attention_clinic.examine.units import Unit

Places = list[tuple[bool, bool, bool]]
PRE, POST, INSIDE = (True, False, False), (False, False, True), (False, True, False)
ORDERS = {PRE: "pre-norm", POST: "post-norm", INSIDE: "norms of the parts",
          AROUND: "norms before and behind the parts", BARE: "no norms"}  # fmt: skip


class Connections:
    """What is said of the wiring of a block.

    Args:
        patient: its copy.
        x: tokens that it takes.
        context: the context, or None.
        meant: what it is meant to be.

    Attributes:
        found: mistakes, with what is said of each.
        variants: what is otherwise on purpose.
        said: what was seen.
        odd: connections that are neither, in words.
        norms: the names of what norms returned.
        called: the paths of all that was called.
        beside: the paths of what makes other results of the block.
        untried: what is left out.
        deaf: whether what every attention returned is thrown away.
    """

    def __init__(self, patient: Patient, x: Tensor, context: Tensor | None, meant: Meant) -> None:
        self.patient, self.x, self.context, self.meant = patient, x, context, meant
        self.found: list[tuple[str, str]] = []
        self.variants: list[str] = []
        self.said: list[str] = []
        self.odd: list[str] = []
        self.norms: set[str] = set()
        self.called: set[str] = set()
        self.beside: set[str] = set()
        self.untried: list[str] = []
        self.deaf = False
        self.fed = ""  # the part that reads what it returned itself

    def name(self, stream: Stream, way: tuple[Half, ...], unused: list[Unit]) -> None:
        """Name what is wrong between the parts."""
        self.norms = {*stream.norms}
        self.untried += ["what it adds to its tokens first, by their places"] * stream.placed
        way = tuple(with_own_norm(half) for half in way)
        way = without_last_norm(without_first_norm(way))
        way = tuple(map(self._once_normed, way))
        self.deaf = all(half.join == "dropped" for half in way if half.unit.kind == "mix")
        kinds = [self._kind(half.unit) for half in way]
        places = [half.places for half in way]
        parallel = sorted(kinds) == sorted(RIGHT[2]) and way[1].start and places == [PRE, PRE]
        if not parallel:  # there what runs first is free
            self._parts(kinds, way)
        for half, kind in zip(way, kinds, strict=True):
            self._joined(half, WORDS[kind])
            if not parallel:
                self._reads(half, WORDS[kind], stream)
        strange = [half.join == "other" for half in way] + [half.source is not None for half in way]
        if sum(strange) > 2:  # so much is unusual that it may be a block of another kind
            self.odd += [said for _, said in self.found]
            self.found.clear()
        scaled = len(stream.factors) == len(way)  # ReZero: its factors stand for the norms
        order = self._order(way, kinds, scaled)
        if self.fed:  # between its two runs nothing is added or normalised
            self.found[:] = [(id, said) for id, said in self.found
                             if id == "part-shared" or self.fed not in said]  # fmt: skip
        if parallel:
            self.variants.append("parallel")
            self.said.append("parts side by side")
        wanted = self.meant.norm_first
        against = {PRE: (False,), POST: (True,), INSIDE: (True, False), AROUND: (False,)}
        if order is not None and wanted in against[order]:
            self.found.append(("norm-order", ""))
        self._shared(way, stream)
        missing = any(id == "norm-missing" for id, _ in self.found)
        dropped = any(half.join == "dropped" for half in way)  # and with it what was made of it
        for norm in unused * (not missing and not dropped):
            self.found.append(("part-unused", f"what {norm.name} returns is thrown away"))
        self.variants += kinds_of_factors(self.patient.module, stream.factors, stream.conditioned)
        if stream.conditioned:
            self.odd.append("a condition scales and shifts its norms; who makes it is not tried")
        for name, asked in stream.keys.items():
            own = words(stream.reads[name])
            said = f"the self-attention asks {words(asked)}, with queries of {own}"
            half = next(half for half in way if half.unit is dict(stream.parts)[name])
            normed = half.before and half.now is not None and equal(asked, half.now)
            # SASRec adds its normed queries, and compares them with the bare stream
            if normed and half.source is None and half.join != "from-norm":
                self.found.append(("norm-missing", said))
            else:
                self.odd.append(said)

    def _once_normed(self, half: Half) -> Half:
        """Name what norms the result of a norm, and leave it out."""
        made, said = once_normed(half, self.norms, WORDS[self._kind(half.unit)])
        self.found += [("norm-doubled", said)] * bool(said)
        return made

    def _joined(self, half: Half, part: str) -> None:
        """Name what the result of a part is added to."""
        if half.unit.adds and half.join == "from-norm" and half.again is not None:
            half = replace(half, join="keep")  # the part adds what it reads, the block the stream
        if half.join in JOINS:
            id, said = JOINS[half.join]
            id = "attention-unused" if self.deaf and half.unit.kind == "mix" else id
            self.found.append((id, said.format(part)))
        if half.join == "other":
            self._other(half, part)
        if len(half.before) > 1:
            self.found.append(("norm-doubled", f"before the {part}"))
        if half.later and half.again is None:
            self.found.append(("norm-doubled", f"behind the {part}"))
        if half.again is None or half.now is None:
            return
        once_more = f"behind the {part}, {words(half.again)} is added once more"
        sure = half.between or half.behind is None or half.unit.adds
        beside = half.start and [*half.again] == [START]  # side by side, one stream too many
        if (equal(half.again, half.now) or beside) and sure:
            self.found.append(("residual-again", once_more))
        else:  # norm(2 x + part(x)) may be DeepNorm, whose factor is 2 for eight layers
            self.odd.append(once_more)

    def _other(self, half: Half, part: str) -> None:
        """Name a join that has no name of its own."""
        base, now = half.base or {}, half.now or {}
        said = f"behind the {part}, {words(base)} is added, where {words(now)} was expected"
        lost = {*now} - {*base}
        stream = next((name for name in now if name == START or name in self.norms), None)
        if CONTEXT in base:
            self.found.append(("residual-from-context", said))
        elif self.norms >= base.keys() and len(base) == 1 and (stream in lost or self._lost(now)):
            self.found.append(("residual-from-norm", said))
        elif stream in lost:
            self.found.append(("residual-missing", said))
        elif lost:
            self.found.append(("wiring-other", said))
        else:
            self.odd.append(said)

    def _lost(self, now: Sum) -> bool:
        """Say whether the stream was lost before, so that a part alone is what is left."""
        return len(now) == 1 and any(id == "residual-missing" for id, _ in self.found)

    def _reads(self, half: Half, part: str, stream: Stream) -> None:
        """Name what a part reads, where that is not the stream."""
        source = {START: half.unit.read.new_ones(1)} if half.start else half.source
        if source is None or half.now is None:
            return
        if any(name in stream.changes for name in source):
            return  # it is said where that is added
        said = f"the {part} reads {words(source)}, where {words(half.now)} was expected"
        if half.before:
            said = said.replace(" reads ", f" reads {half.before[0].name} of ")
        kept = {name for name in half.now if name == START or name in self.norms}
        post = half.behind is not None
        if post or not kept & {*source}:
            self.found.append(("wiring-other", said))
        else:
            self.odd.append(said)

    def _kind(self, unit: Unit) -> str:
        if unit.kind == "feed":
            return "feed"
        return "self" if unit.asked is None else "cross"

    def _parts(self, kinds: list[str], way: tuple[Half, ...]) -> None:
        """Compare the parts with those of a right block."""
        right = list(RIGHT[2] if self.context is None else RIGHT[3])
        names = [half.unit.name for half in way]
        again = [name for name in dict.fromkeys(names) if self._is_shared(name, way)]
        if kinds == right and not again:
            return
        strange = any(half.join == "other" or half.start or half.source for half in way)
        several = kinds == right * (len(kinds) // len(right)) and not again and not strange
        if several and not self._resting(way):
            self.said.append(f"{len(kinds) // len(right)} times in a row")
            return
        runs = f"it runs {', '.join(WORDS[kind] for kind in kinds)}"
        rest = self._resting(way)
        if kinds == right:
            runs = [WORDS[kind] for kind, name in zip(kinds, names, strict=True)
                    if name == again[0]]  # fmt: skip
            self.found.append(("part-shared", f"{again[0]} is the {' and the '.join(runs)}"))
            if len(rest) == 1:
                self.found.append(("part-unused", f"{rest[0]} is never called"))
            return
        if sorted(kinds) == sorted(right):
            self.found.append(("parts-order", runs))
            return
        feeds = [kind == "feed" for kind in kinds]
        fed = "cross" in kinds and feeds == [False, True] * (len(kinds) // 2)
        if fed and not rest and (len(kinds) == 2 or not (again or strange)):
            return  # it asks a context alone, or before its own tokens: Perceiver, Flamingo
        for place in range(1, len(kinds)):  # once more, directly behind itself
            if names[place] == names[place - 1] and kinds[:place] + kinds[place + 1 :] == right:
                said = f"{names[place]} runs twice in a row, "
                fed = equal_tensors(way[place].unit.read, way[place - 1].unit.out)
                said += "on its own result" if fed else "and adds what it returns both times"
                self.found.append(("part-shared", said))
                self.fed = WORDS[kinds[place]] if fed else ""
                return
        lost = [kind for kind in right if kind not in kinds]
        beside = [half.unit.name for half in way if half.unit.beside]
        if beside:  # a context beside the own tokens, or a cache
            self.odd.append(f"{beside[0]} asks tokens that no part returned")
            raise Unclear
        if kinds == ["self", "self", "feed"] and lost == ["cross"] and not rest and not again:
            self.found.append(("cross-ignored", f"{names[1]} asks its own tokens"))
            return
        if kinds == ["self", "feed"] and lost == ["cross"] and not rest and self._unheard():
            self.found.append(
                ("cross-ignored", "it has one attention, and nothing reads the context")
            )
            return
        whole = all(half.places != BARE and half.join == "keep" for half in way)  # none is bare
        if kinds == right[:-1] and whole and not rest and not again:  # it may be meant so, or not
            self.odd.append(f"{runs}, and holds no feed-forward")
            resting = [name for name in self._resting_norms(way)
                       if not is_mentioned(name, self.patient.module)]  # fmt: skip
            self.found += [("part-unused", f"{name} is never called") for name in resting]
            return
        if len(lost) != 1 or len(rest) != 1 or len(set(names)) != len(right) - 1:
            self.odd.append(runs)
            raise Unclear
        layers = [source for source in sources_of(self.patient.module)
                  if source.name.startswith(tuple(rest[0].split(" and ")))]  # fmt: skip
        if lost == ["feed"] and feed_of(layers, self.x.shape[-1]) is None:
            raise Unclear
        self.found.append(("part-unused", _in_the_place(rest[0], again)))

    def _unheard(self) -> bool:
        """Say whether another context changes no number of what the block returns."""
        assert self.context is not None
        sides = self.patient.sides
        if sides is not None and sides.guessed and all(role(n) != "asked" for n in sides.asked):
            raise Unclear  # nothing says that it takes a context: it may be ids, or a mask
        if sides is not None and reads_in_a_branch(self.patient.module, sides.asked):
            raise Unclear  # an option reads it
        contexts = (self.context, 1 - 2 * self.context.flip(1))
        first, second = (self.patient.run(self.x, context=context) for context in contexts)
        return equal_tensors(first, second)

    def _is_shared(self, name: str, way: tuple[Half, ...]) -> bool:
        """Say whether a part stands in several places, with weights: others may stand anywhere."""
        held = [{name, *half.unit.paths} for half in way if half.unit.name == name]
        return len(held) > 1 and hold_in_common(self.patient.module, held)

    def _resting(self, way: tuple[Half, ...]) -> list[str]:
        """Return the parts of several layers that were never called."""
        own = {path for half in way for path in half.unit.paths}
        return idle_parts(self.patient.module, own | self.beside)

    def _order(
        self, way: tuple[Half, ...], kinds: list[str], scaled: bool
    ) -> tuple[bool, ...] | None:
        """Return where the norms stand, after naming those that stand elsewhere."""
        kept = [at for at, half in enumerate(way) if half.join != "dropped" or half.behind]
        if kept:  # a norm whose result is thrown away, too, says nothing of the others
            way, kinds = tuple(way[at] for at in kept), [kinds[at] for at in kept]
        places = [half.places for half in way]
        orders = list(dict.fromkeys(place for place in places if place != BARE))
        for place, kind in zip(places, kinds, strict=True):
            if place not in ORDERS:
                sides = ("before it", "behind it, inside of the sum", "behind the sum")
                at = " and ".join(
                    side for side, is_there in zip(sides, place, strict=True) if is_there
                )
                self.odd.append(f"the {WORDS[kind]} has norms {at}")
        if any(order not in ORDERS for order in orders):
            return None
        resting = self._resting_norms(way)
        held = self.patient.module.named_modules()
        chosen = [path for path, part in held if path in self.called and is_no_norm(path, part)]
        if not orders:
            if not scaled and not any(self._has_norms(half.unit) for half in way):
                self.found.append(("norm-missing", "there is none at all"))
            self.said.append(ORDERS[BARE])
            return None
        if AROUND in orders and {*orders} <= {AROUND, PRE, INSIDE} and resting:
            orders, places = [AROUND], self._halved(places, kinds, resting[0])
        if len(orders) > 1:
            named = {PRE: "before", POST: "behind", INSIDE: "on what it returns of",
                     AROUND: "around"}  # fmt: skip
            said = ", ".join(
                f"{named[place]} the {WORDS[kind]}"
                for place, kind in zip(places, kinds, strict=True)
                if place != BARE
            )
            if set(orders) in ({PRE, POST}, {PRE, INSIDE}, {POST, INSIDE}):
                self.found.append(("norm-mixed", said))
            else:
                self.odd.append(f"norms stand {said}")
        for half, place, kind in zip(way, places, kinds, strict=True):
            if place == BARE and half.join != "dropped" and not self._has_norms(half.unit):
                said = f"{'after' if orders[0] == POST else 'before'} the {WORDS[kind]}"
                if chosen:  # ModernBERT's first layer, whose tokens were normalised before it
                    self.said.append(f"no norm {said}: {chosen.pop(0)} is nn.Identity")
                    continue
                said += f"; {resting[0]} is never called" if resting else ""
                self.found.append(("norm-missing", said))
        if len(orders) == 1:
            self.said.append(ORDERS[orders[0]])
            right = all(half.join != "doubled" for half in way)
            variants = {INSIDE: ["norm-of-part"], AROUND: ["sandwich-norm"]}
            self.variants += variants.get(orders[0], []) * right
        return orders[0] if len(orders) == 1 else None

    def _halved(self, places: Places, kinds: list[str], resting: str) -> Places:
        """Name the norms that a part lacks where others have both, and return whole places."""
        for place, kind in zip(places, kinds, strict=True):
            if place in (PRE, INSIDE):
                side = "before" if place == INSIDE else "behind"
                said = f"{side} the {WORDS[kind]}; {resting} is never called"
                self.found.append(("norm-missing", said))
        return [AROUND if place in (PRE, INSIDE) else place for place in places]

    def _has_norms(self, unit: Unit) -> bool:
        """Say whether norms as wide as the stream are called inside of a part."""
        width = self.x.shape[-1]
        return any(
            path in self.called
            and path not in self.norms
            and any(path.startswith(f"{own}.") for own in unit.paths)
            and looks_like_a_norm(path, part)
            and any(p.numel() == width for p in part.parameters())
            for path, part in self.patient.module.named_modules()
        )

    def _resting_norms(self, way: tuple[Half, ...]) -> list[str]:
        """Return the norms that were never called."""
        used = {norm.name for half in way for norm in half.norms}
        return [
            path
            for path, part in self.patient.module.named_modules()
            if path not in used | self.called and looks_like_a_norm(path, part)
        ]

    def _shared(self, way: tuple[Half, ...], stream: Stream) -> None:
        """Name norms that stand in several places."""
        seen: dict[str, set[int]] = {}
        asked = [stream.norms[name] for name, read in stream.reads.items()
                 if name in stream.norms and CONTEXT in read]  # fmt: skip
        for norms in (*(half.norms for half in way), asked):
            for norm in norms:
                if isinstance(norm.run, nn.Module) and any(True for _ in norm.run.parameters()):
                    seen.setdefault(norm.name, set()).add(id(norm))
        shared = [name for name, calls in seen.items() if len(calls) > 1]
        if shared:
            resting = self._resting_norms(way)
            said = f"{shared[0]} stands in {len(seen[shared[0]])} places"
            said += f", {' and '.join(resting)} is never called" if resting else ""
            self.found.append(("norm-shared", said))


def _in_the_place(rest: str, again: list[str]) -> str:
    words = f"{rest} is never called"
    return words + (f"; {again[0]} runs in its place, a second time" if again else "")
