"""The connections of a block by their names: joins, the places of norms, parts too many or few."""

from __future__ import annotations

from dataclasses import replace

import torch

from attention_clinic.bugs.decoder import RIGHT
from attention_clinic.engine.crossing import role
from attention_clinic.engine.mentions import is_mentioned, reads_in_a_branch
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.around import CROSS
from attention_clinic.examine.between import (
    PARTS,
    bends_between,
    gates_between,
    half_steps,
    kinds_of_parts,
)
from attention_clinic.examine.factors import kinds_of_factors
from attention_clinic.examine.held import feed_of
from attention_clinic.examine.joins import JOINS, once_normed, words
from attention_clinic.examine.leaves import (
    Unclear,
    equal_tensors,
    hold_in_common,
    idle_parts,
)
from attention_clinic.examine.norm_places import INSIDE, POST, NormPlaces
from attention_clinic.examine.placing import parts_in_words
from attention_clinic.examine.streams import (
    AROUND,
    BARE,
    CONTEXT,
    PRE,
    START,
    Half,
    Stream,
    Sum,
    equal,
    has_last_norm,
    in_turns,
    with_own_norm,
    without_first_norm,
)
from attention_clinic.examine.unit import Unit


class Connections(NormPlaces):
    """What is said of the wiring of a block."""

    def name(self, stream: Stream, way: tuple[Half, ...], unused: list[Unit]) -> None:
        """Name what is wrong between the parts."""
        self.norms = {*stream.norms}
        self.untried += ["what it adds to its tokens first, by their places"] * stream.placed
        way = tuple(with_own_norm(half) for half in way)
        way = without_first_norm(way)
        way = tuple(map(self._once_normed, way, kinds_of_parts(way)))
        whole, way = way, self._without_last_norm(way)
        self.deaf = all(half.join == "dropped" for half in way if half.unit.kind == "mix")
        kinds = kinds_of_parts(way)
        self.convolutions = [half.unit for half, kind in zip(way, kinds, strict=True)
                             if kind == "conv"]  # fmt: skip
        places = [half.places for half in way]
        parallel = sorted(kinds) == sorted(RIGHT[2]) and way[1].start and places == [PRE, PRE]
        if not parallel:  # there what runs first is free
            usual = [half for half, kind in zip(way, kinds, strict=True) if kind != "conv"]
            self._parts([kind for kind in kinds if kind != "conv"], tuple(usual), stream)
        self.passed: list[Sum] = []  # the stream before the parts so far
        for half, part in zip(way, parts_in_words(way, kinds), strict=True):
            self._joined(half, part, stream)
            self.passed += [] if half.now is None else [half.now]
            if not parallel:
                self._reads(half, part, stream)
        strange = [half.join == "other" for half in way] + [half.source is not None for half in way]
        if sum(strange) > 2:  # so much is unusual that it may be a block of another kind
            self.odd += [said for _, said in self.found]
            self.found.clear()
        scaled = len(stream.factors) == len(way)  # ReZero: its factors stand for the norms
        order = self.order(way, kinds, scaled)
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
        self.name_shared(whole, stream)
        self._between(stream, kinds)
        missing = any(id == "norm-missing" for id, _ in self.found)
        dropped = any(half.join == "dropped" for half in way)  # and with it what was made of it
        for norm in unused * (not missing and not dropped):
            self.found.append(("part-unused", f"what {norm.name} returns is thrown away"))
        given = self.patient.module, stream.factors, stream.conditioned, len(way)
        for said, more in zip((self.variants, self.odd), kinds_of_factors(*given), strict=True):
            said += more
        if stream.times:
            self.variants.append("scaled-residual")
            if max(stream.times) - min(stream.times) > 1e-4:
                said = " and ".join(f"{number:.4g}" for number in stream.times)
                self.odd.append(f"behind its parts, the stream is multiplied by {said}")
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

    def once(self, stream: Stream, way: tuple[Half, ...]) -> tuple[Half, ...]:
        """Leave out the further turns of parts that a list holds several times, and name that."""
        turn = None if stream.factors or stream.times or stream.gates else in_turns(way)
        if turn is None or not all(self._is_listed_again(half.unit) for half in turn):
            return way
        names = [half.unit.name for half in turn]
        self._name_listed(names, len(way) // len(turn))
        return turn

    def _name_listed(self, names: list[str], times: int) -> None:
        runs = f"{' and '.join(names)} run{'s' * (len(names) == 1)} {times} times in turn"
        self.found.append(("layers-shared", runs))

    def _is_listed_again(self, unit: Unit) -> bool:
        """Say whether several paths of the block lead to a part."""
        part = self.patient.module.get_submodule(unit.paths[0]) if unit.paths else None
        held = self.patient.module.named_modules(remove_duplicate=False)
        return sum(one is part for _, one in held) > 1

    def _once_normed(self, half: Half, kind: str) -> Half:
        """Name what norms the result of a norm, and leave it out."""
        made, said = once_normed(half, self.norms, PARTS[kind])
        self.found += [("norm-doubled", said)] * bool(said)
        return made

    def _without_last_norm(self, way: tuple[Half, ...]) -> tuple[Half, ...]:
        """Leave out the norm behind all parts, where these have their norms in front."""
        if not has_last_norm(way):
            return way
        self.said.append("a norm behind all")
        return (*way[:-1], replace(way[-1], behind=None))

    def _joined(self, half: Half, part: str, stream: Stream) -> None:
        """Name what the result of a part is added to."""
        if half.join == "from-norm" and half.again is not None:
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
        sure = half.between or half.behind is None or half.unit.adds or _adds_twice(half, stream)
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
            early = any(equal(base, one) for one in self.passed)  # the stream of an earlier part
            id = "residual-from-input" if early else "residual-from-norm"
            self.found.append((id, said))
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

    def _between(self, stream: Stream, kinds: list[str]) -> None:
        """Name what stands between the parts, and say which parts stand beside the usual ones."""
        found, odd = bends_between(stream, self.convolutions)
        self.found += [*found, *gates_between(stream)]
        self.odd += odd
        for unit in dict.fromkeys(unit.name for unit in stream.coded):
            self.said.append(f"a code of places is added to what {unit} reads")
        self.variants += ["gated-residual"] * bool(stream.gates)
        self.variants += ["conv-part"] * ("conv" in kinds) + ["adapter"] * bool(stream.adapters)

    def _parts(self, kinds: list[str], way: tuple[Half, ...], stream: Stream) -> None:
        """Compare the parts with those of a right block."""
        right = list(RIGHT[2] if self.context is None else RIGHT[3])
        names = [half.unit.name for half in way]
        again = [name for name in dict.fromkeys(names) if self._is_shared(name, way)]
        self.again = again
        if kinds == right and not again:
            return
        strange = any(half.join == "other" or half.start or half.source for half in way)
        if kinds == ["feed", *right] and not strange:
            self.variants.append("macaron")
            self.found += half_steps(stream, way)
            self.found += [("part-shared", f"{name} runs in two places") for name in again]
            return
        times = len(kinds) // len(right)
        several = kinds == right * times and not strange
        listed = (
            times > 1
            and again
            and all(self._is_listed_again(h.unit) for h in way if h.unit.name in again)
        )
        if several and listed:
            self._name_listed(again, names.count(again[0]))
            return
        if several and not again and not self._resting(way):
            self.said.append(f"{times} times in a row")
            return
        runs = f"it runs {', '.join(PARTS[kind] for kind in kinds)}"
        rest = self._resting(way)
        if self._is_longer(kinds, names, way) and not (rest or again or strange):
            self.said.append(runs)
            return
        if kinds == right:
            runs = [PARTS[kind] for kind, name in zip(kinds, names, strict=True)
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
                self.fed = PARTS[kinds[place]] if fed else ""
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
            resting = [name for name in self.resting_norms(way)
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

    def _is_longer(self, kinds: list[str], names: list[str], way: tuple[Half, ...]) -> bool:
        """Say whether attentions, and then feed-forwards, follow each other, each with its norm.

        What its name calls a cross-attention may have been meant to ask a context.
        """
        count = kinds.count("self")
        usual = count > 0 and kinds == ["self"] * count + ["feed"] * (len(kinds) - count)
        joined = all(half.places != BARE and half.join == "keep" for half in way)
        named = any(CROSS.search(name) for name in names)
        return usual and count < len(kinds) and joined and not named and self.context is None

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
        units = [*(half.unit for half in way), *self.convolutions]
        own = {path for unit in units for path in unit.paths}
        return idle_parts(self.patient.module, own | self.beside)


def _in_the_place(rest: str, again: list[str]) -> str:
    words = f"{rest} is never called"
    return words + (f"; {again[0]} runs in its place, a second time" if again else "")


def _adds_twice(half: Half, stream: Stream) -> bool:
    """Say whether a sum of the stream and a part's result was added to the stream once more."""
    assert half.behind is not None
    read, out = half.behind.read, half.unit.out
    sums = [(a, b) for a, b, whole in stream.added if equal_tensors(whole, read)]
    return any(torch.allclose((a - b).abs(), out.abs()) for a, b in sums if a.shape == out.shape)
