"""A block by what its run shows: who read what, where the results went, each part by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, VARIANTS
from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.engine.arguments import ROTARY, tensors
from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.calls import standard_call, takes
from attention_clinic.engine.finite import first_broken, mended
from attention_clinic.engine.modes import Called, Listen, NoDropout, Widened
from attention_clinic.engine.parcels import Parcels
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.wiring import Place, Step, Whole, Wires
from attention_clinic.examine.around import Around, Question, called
from attention_clinic.examine.bare_parts import lent_projections, without_lent
from attention_clinic.examine.between import PARTS, kinds_of_parts
from attention_clinic.examine.connections import Connections
from attention_clinic.examine.cuts import Cut
from attention_clinic.examine.doubts import doubt_of, may_be_denied
from attention_clinic.examine.experts import experts_of
from attention_clinic.examine.fed import is_plain, kind_of_feed, of_one
from attention_clinic.examine.fitted import fitted
from attention_clinic.examine.flow import stream_of
from attention_clinic.examine.joins import Joins
from attention_clinic.examine.laid_norms import take_sum
from attention_clinic.examine.leaves import (
    Unclear,
    has_convolution,
    maps,
    matrices,
    some_part_rests,
)
from attention_clinic.examine.made_context import context_makers, making
from attention_clinic.examine.masked_parts import Masks
from attention_clinic.examine.norm_places import ORDERS
from attention_clinic.examine.observing import NOT_JUDGED
from attention_clinic.examine.other_results import calls_of_others, other_results, without
from attention_clinic.examine.part_kinds import Kind, kinds_of_attention, norm_kind
from attention_clinic.examine.part_trials import sees_later, uniform
from attention_clinic.examine.placing import placed
from attention_clinic.examine.sides import sides_taken, usual
from attention_clinic.examine.streams import BARE, Half
from attention_clinic.examine.unit import Unit
from attention_clinic.examine.units import units_of

# `diagnose` enters itself: it hands blocks on to this, so that this cannot import it
EXAMINERS: dict[str, Callable[..., Report]] = {}
SHARE = {True: 0.6, False: 0.3}  # of the steps that are left, for one attention: the only one
ALTERNATIVES = 4
BROKEN = 3  # calls that make NaN, at most
USUAL = (5, 7)  # numbers of tokens that a block takes that takes any
EVIDENCE = "each connection, and each part, gives exactly your numbers"
PARTLY = "each connection, and each other part, gives exactly your numbers"
UNSAID = Report("", False)  # of a part that may still be explained with the whole block


class Wired:
    """The examination of a block by its wiring.

    Args:
        asked: what is asked of it.
        masked: whether it runs with its masks, and each attention is examined with its own.
    """

    def __init__(self, asked: Question, masked: bool = False) -> None:
        around = asked.around
        self.masks = Masks(asked) if masked else None
        self.patient, self.x, self.context = asked.patient, asked.x, around.context
        self.h, self.meant, self.causal = asked.num_heads, asked.meant, asked.causal
        self.free = masked or (around.mask is None and around.context_mask is None)
        self.wiring = Connections(asked.patient, asked.x, around.context, asked.meant)
        self.found, self.variants = self.wiring.found, self.wiring.variants
        self.said, self.odd = self.wiring.said, self.wiring.odd
        self.unknown: dict[str, Report] = {}  # parts that nothing explains, with what is said
        self.single = True  # whether it has one attention
        self.broken: list[Place] = []  # calls that return NaN or infinity
        self.partly: Report | None = None  # what is said if nothing explains the whole

    def report(self) -> Report | None:
        """Return what was found, None when something is not understood."""
        guessed = self.patient.time_first and not self.patient.was_time_first
        if not self.free or guessed or self.meant.model is not None:
            return None
        try:
            return self._report()
        except (Unclear, Spent, ValueError, RuntimeError, LookupError, TypeError, StopIteration):
            return None

    @torch.no_grad()
    def _report(self) -> Report | None:
        block = self.patient.module
        whole = Whole(block, self._runner(), self.context)
        root, heard = self._ran(whole)
        if root.result is None or not root.result.isfinite().all():
            return None
        x, context = self.x, self.context
        if self._turned(root):
            whole.turned = True
            x, context = (t if t is None else t.transpose(0, 1) for t in (x, context))
        if root.result.shape != x.shape:
            return None
        others = calls_of_others(whole, lambda: whole.run(block, self.x, self.context), root, x)
        makers = context_makers(root, None if whole.turned else context)
        context = makers[0].result if makers else context
        units = units_of(without(root, [*others, *makers]), block, x, context)
        self._tell_apart(units, whole)
        stream, unused = stream_of(units, x, context, root.result, self.patient.tolerance)
        if others and unused:
            raise Unclear  # who reads it is not known: it may be another stream
        stream.added = [one for step in root.all() for one in step.sums]
        rests = some_part_rests(block, root)
        joins = Joins(stream, rests)
        way = None if joins.unused or rests else next(iter(stream.ways()), None)
        way = joins.way() if way is None else way
        if way is None:
            return None
        way = self.wiring.once(stream, way)
        self.wiring.untried += [*other_results(others), *making(makers)]
        self.wiring.beside = {step.path for step in (*others, *makers)}
        self.wiring.called = {step.path for step in root.all()}
        self.wiring.name(stream, way, unused)
        going = [half for half in way if half.join != "dropped"]
        self.single = sum(half.unit.kind == "mix" for half in going) < 2
        going += [Half(unit) for unit in stream.adapters]
        alternatives = [list(self._kinds(half, whole, heard)) for half in going]
        norms = {id(norm.run): norm for norm in stream.norms.values()}
        for norm in norms.values():
            self._norm(norm, whole.turned)
        combined = list(islice(product(*alternatives), ALTERNATIVES))
        self._doubt(going, alternatives, whole)
        report = self._told([placed(kinds, going, len(self.found)) for kinds in combined])
        if any(said is UNSAID for said in self.unknown.values()):
            self.partly = report  # others may explain it as a whole
            return None
        return report

    def _doubt(self, going: list[Half], alternatives: list[list[Kind]], whole: Whole) -> None:
        """Leave out names that a part which nothing explains, or not whole, may make wrong."""
        if not any(may_be_denied(id) for id, _ in self.found):
            return
        parts = zip(going, kinds_of_parts(tuple(going)), alternatives, strict=True)
        for half, kind, explained in parts:
            some = any(NOT_JUDGED in one.detail for one in explained)
            if half.unit.name not in self.unknown and not some:
                continue
            given = [half.unit.read, *(() if half.unit.asked is None else (half.unit.asked,))]
            given = [t.transpose(0, 1) if whole.turned else t for t in given]
            doubt = doubt_of(PARTS[kind], half.unit.cut(whole), *given)
            self.found[:] = [(id, said) for id, said in self.found if not doubt.denies(id, said)]
            self.said[:] = [
                said for said in self.said if not (doubt.norms and said == ORDERS[BARE])
            ]

    def _ran(self, whole: Whole) -> tuple[Step, list[str]]:
        """Return the run of the block, and the activations that were heard in it."""
        block = whole.block
        while True:
            wires, mends = Wires(block, self.x, self.context), mended(block, self.broken)
            with Listen() as listen, NoDropout(), Called(block) as heard_all, mends, wires:
                y = whole.run(block, self.x.clone(), self.context)
            whole.straight, root = heard_all.straight, wires.root(y)
            for step in root.all():
                take_sum(step)
            place = first_broken(root)
            if place is None or len(self.broken) == BROKEN:
                return root, [name for name in ACTIVATIONS if name in listen.heard]
            self.broken.append(place)

    def _tell_apart(self, units: list[Unit], whole: Whole) -> None:
        """Take experts for a feed-forward, and for an attention what mixes tokens if none does."""
        for unit in units:
            unit.experts = experts_of(unit) if unit.kind in ("mix", "feed") else []
            unit.kind = "feed" if unit.experts else unit.kind
        if any(unit.kind == "mix" for unit in units) or whole.turned:
            return
        for unit in units:
            alone = unit.kind == "feed" and unit.after is None and len(unit.paths) == 1
            if alone and unit.asked is None and not has_convolution(unit.steps):
                part, x = unit.cut(whole), self.patient.tokens(*self.x.shape, seed=35)
                unit.kind = "mix" if sees_later(part, x) or sees_later(part, x, True) else "feed"

    def _turned(self, root: Step) -> bool:
        """Say whether the caller hands (n, b, e) over."""
        turned = self.x.transpose(0, 1)
        return any(t.shape == turned.shape and torch.equal(t, turned) for t in root.given.values())

    def _runner(self) -> Callable[..., object]:
        patient = self.patient
        call, tables, opening, sides = patient.call, patient.tables, patient.opening, patient.sides

        def run(module: nn.Module, x: Tensor, context: Tensor | None, **tried: Any) -> object:
            with self._wide():
                return straight(module, x, context, **tried)

        def straight(module: nn.Module, x: Tensor, context: Tensor | None, **tried: Any) -> object:
            if self.masks is not None:
                return self.masks.run(module, x, context, **tried)
            if patient.time_first:
                x, context = (t if t is None else t.transpose(0, 1) for t in (x, context))
            if call is not None and context is not None:
                return call(module, x, context)
            if call is not None:
                return call(module, x) if takes(call) == 2 else call(module, x, None)
            if context is not None:
                return called(module, x, Around(context), sides, tables, opening)
            return standard_call(module, x, None, tables, opening=opening)

        return run

    def _wide(self) -> AbstractContextManager:
        """Let what is cast to single precision stay as wide as it is, where calls need that."""
        return Widened() if self.patient.wide else nullcontext()

    def _norm(self, norm: Unit, turned: bool) -> None:
        """Name what a norm is."""
        run = norm.run
        assert run is not None
        b, n, e = norm.read.transpose(0, 1).shape if turned else norm.read.shape
        x = self.patient.tokens(max(b, 4), n, e, seed=31)
        with self._wide():
            kind = norm_kind(run, x, self.patient.tolerance, turned)
        if kind is None:
            self.unknown[norm.name] = UNSAID
            return
        self.found += [(id, kind.detail) for id in kind.ids]
        self.variants += kind.variants
        wanted = self.meant.norm_eps
        if wanted is not None and not kind.ids and not kind.variants and kind.number != wanted:
            self.found.append(("norm-eps", ""))

    def _kinds(self, half: Half, whole: Whole, heard: list[str]) -> Iterator[Kind]:
        """Yield what a part may be."""
        diagnose = EXAMINERS["attention"]
        unit = half.unit
        bent = unit.after if unit.kind == "mix" else None
        unit.after = None if bent is not None else unit.after
        part = unit.cut(whole)
        if unit.kind == "feed":
            x, limit = self.patient.tokens(*self.x.shape, seed=31), self.patient.tolerance
            beside = any(unit is one for one in self.wiring.convolutions)
            with self._wide():
                kind = kind_of_feed(unit, part, x, limit, heard, self.meant, beside)
            if kind is None and not whole.turned and is_plain(unit):
                kind = fitted(part, x)
            kind = of_one(unit, beside) if kind is None else kind
            if kind is None:
                self.unknown[unit.name] = UNSAID
                yield Kind()
                return
            self.said.append(kind.words)
            self.odd += [kind.odd] * bool(kind.odd)
            if "conv-feed" in kind.variants:
                self._convolved(part, x)
            yield replace(kind, variants=() if beside else kind.variants)
            return
        asked = unit.asked
        if asked is None:
            given = {"causal": self.causal}
        else:
            given = {"context": (asked.shape[0 if whole.turned else 1], asked.shape[2])}
        given["num_kv_heads"] = self.meant.num_kv_heads
        sides = sides_taken(unit)
        mask = None if self.masks is None else self.masks.of(unit)
        if sides or mask is not None:
            part = unit.cut(whole, usual(unit) if sides else None, mask is not None)
        given |= {} if mask is None else {"mask": mask}
        bare = lent_projections(part, self.x.shape[2])
        fixed = asked is None and (mask is not None or not self._free(part))
        if isinstance(unit.parcels, Parcels) or fixed or self.x.shape[1] not in USUAL:
            given["size"] = tuple(self.x.shape[:2])
        try:
            with reserved(SHARE[self.single]):
                report = diagnose(part, self.h, embed_dim=self.x.shape[2], **given)
        except ValueError:
            with reserved(SHARE[self.single]):
                given["size"] = tuple(self.x.shape[:2])
                report = diagnose(part, self.h, embed_dim=self.x.shape[2], **given)
        weighs = not any("sum-apart" in one.ids for one in report.explanations)
        if weighs and uniform(part, self.patient.tokens(*self.x.shape, seed=33), given):
            raise Unclear  # queries and keys do not reach its result: nothing is shown
        kinds = list(kinds_of_attention(report))
        kinds = [without_lent(kind, unit.name) for kind in kinds] if bare else kinds
        if self.masks is not None:
            kinds = [self.masks.named(unit, one) for one in kinds]
            self.said += [said for said in report.checked if said.startswith("with the mask")]
        elif not kinds:
            kinds = self._core(unit, whole, given)
        called = {step.place for outer in unit.steps for step in outer.all()}
        if called & {*self.broken} and any(not one.ids for one in kinds):
            raise Unclear  # alone it gives numbers
        shells = ("Norm of its own", "norms of its own", *(("residual",) * (not unit.adds)))
        if any(shell in said for said in report.checked for shell in shells):
            raise Unclear
        if not kinds:
            alone = unit.paths == [unit.end[0]] and self.patient.tables is None
            self.unknown[unit.name] = report if alone and not self._turns() else UNSAID
            yield Kind()
            return
        causal = any("causal" in said for said in report.checked)
        kind = "attention" if asked is None else "cross-attention"
        self.said.append(f"{kind} with {self.h} head{'s' * (self.h > 1)}{', causal' * causal}")
        ids = (*sides, *("out-bent",) * (bent is not None))
        yield from (replace(one, ids=(*one.ids, *ids)) for one in kinds)

    def _convolved(self, part: nn.Module, x: Tensor) -> None:
        """Say which tokens the convolutions of a feed-forward see, where that is one side."""
        later, earlier = sees_later(part, x), sees_later(part, x, True)
        if later and (self.causal or not earlier):
            only = "" if earlier else ", and no earlier ones"
            self.odd.append(f"a convolution of the feed-forward sees later tokens{only}")
        elif earlier and not later:
            self.said[-1] += ", a convolution over earlier tokens alone"

    def _core(self, unit: Unit, whole: Whole, given: dict) -> list[Kind]:
        """Return what an attention is that has more layers in front or behind, without these."""
        core = _core_of(unit)
        if core is None or unit.asked is not None or unit.parcels is not None:
            return []
        slots = {slot: False for slot, t in core.given.items() if t.shape == self.x.shape}
        part = Cut(whole, [core.path], {core.place: slots}, core.place)
        with reserved(SHARE[self.single]):
            kinds = list(kinds_of_attention(EXAMINERS["attention"](part, self.h, **given)))
        said = f"more layers stand around {core.path}: two in a row, and nothing between"
        self.odd += [said] * bool(kinds)
        return kinds

    def _free(self, part: nn.Module) -> bool:
        """Say whether a part takes another number of tokens than the block got."""
        b, n, e = self.x.shape
        try:
            return part(self.patient.tokens(b, n + 1, e, seed=35)).shape[1] == n + 1
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return False

    def _turns(self) -> bool:
        """Say whether the block holds angles, which a part alone may not show."""
        return any(ROTARY.search(name) for name, _ in tensors(self.patient.module))

    def _told(self, combined: list[tuple[Kind, ...]]) -> Report:
        """Return the report."""
        order = list(BUGS)
        explanations = {}
        for kinds in combined:
            named = [*self.found, *((id, kind.detail) for kind in kinds for id in kind.ids)]
            ids = sorted({id for id, _ in named}, key=order.index)
            said = [*(words for _, words in named if words), *self.odd]
            details = "; ".join(dict.fromkeys(said))
            if ids:
                found = explain([BUGS[id] for id in ids], 0.0, details)
                compared = "exactly" in found.evidence  # and nothing that was only seen
                said = PARTLY if self.unknown else EVIDENCE
                found = replace(found, evidence=said) if compared else found
                explanations[tuple(ids)] = found
        variants = [*self.variants, *(v for kind in combined[0] for v in kind.variants)]
        words = ["residuals", *dict.fromkeys(self.said), "each part by itself"]
        failing = [f"connected as usual: {said}" for said in self.odd] * (not explanations)
        for name, said in self.unknown.items():
            failing += [f"each part is right by itself: {name} is what nothing explains"]
            failing += said.failing
        return Report(
            self.patient.name,
            not explanations and not self.odd and not self.unknown,
            tuple(sorted(explanations.values(), key=lambda one: len(one.ids))),
            tuple(failing),
            checked=("; ".join(words),),
            untried=(*self.wiring.untried, *self.patient.untried(mask=True)),
            variants=tuple(VARIANTS[id] for id in dict.fromkeys(variants)),
            stopped=max((said.stopped for said in self.unknown.values()), default=0),
            tolerance=self.patient.tolerance,
        )


def _core_of(unit: Unit) -> Step | None:
    """Return the whole attention in a part that has more layers than that, None for another."""
    own = matrices(unit.steps)
    for step in (one for outer in unit.steps for one in outer.all()):
        whole = step.module is not None and step.mixes and maps(step, unit.read.shape[-1])
        if whole and len(matrices([step])) > 1 and matrices([step]) < own:
            return step
    return None
