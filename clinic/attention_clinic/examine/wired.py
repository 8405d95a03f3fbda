"""A block by what its run shows: who read what, where the results went, each part by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, VARIANTS
from attention_clinic.bugs.blocks import Meant
from attention_clinic.bugs.decoder import RIGHT
from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.bugs.orders import WORDS
from attention_clinic.engine.arguments import ROTARY, tensors
from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.calls import standard_call, takes
from attention_clinic.engine.modes import Listen, NoDropout
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.weights import sources_of
from attention_clinic.engine.wiring import Whole, Wires
from attention_clinic.examine.around import Around, called
from attention_clinic.examine.held import feed_of
from attention_clinic.examine.part_kinds import Kind, feed_kind, kinds_of_attention, norm_kind
from attention_clinic.examine.streams import Half, Stream, stream_of
from attention_clinic.examine.units import Unclear, Unit, looks_like_a_norm, units_of

# `diagnose` enters itself: it hands blocks on to this, so that this cannot import it
EXAMINERS: dict[str, Callable[..., Report]] = {}
SHARE = 0.3  # of the steps that are left, for one attention
ALTERNATIVES = 4
PRE, POST = (True, False, False), (False, False, True)
INSIDE, AROUND, BARE = (False, True, False), (True, True, False), (False, False, False)
ORDERS = {PRE: "pre-norm", POST: "post-norm", INSIDE: "norms of the parts",
          AROUND: "norms before and behind the parts", BARE: "no norms"}  # fmt: skip
JOINS = {
    "missing": ("residual-missing", "around the {}"),
    "doubled": ("residual-missing", "what the {} returned is added to itself"),
    "from-norm": ("residual-from-norm", "around the {}"),
    "from-input": ("residual-from-input", "after the {}"),
}


class Unexplained(Exception):
    """Nothing explains an attention, which is a module of its own.

    Args:
        name: of the attention.
        report: on it.
    """

    def __init__(self, name: str, report: Report) -> None:
        super().__init__(name)
        self.name, self.failing, self.stopped = name, report.failing, report.stopped


class Wired:
    """The examination of a block by its wiring.

    Args:
        patient: its copy.
        x: tokens that it takes.
        around: what it gets beside them.
        num_heads: h.
        meant: what it is meant to be.
        causal: as in `diagnose`.
    """

    def __init__(
        self,
        patient: Patient,
        x: Tensor,
        around: Around,
        num_heads: int,
        meant: Meant,
        causal: bool | None,
    ) -> None:
        self.patient, self.x, self.context = patient, x, around.context
        self.h, self.meant, self.causal = num_heads, meant, causal
        self.free = around.mask is None and around.context_mask is None
        self.found: list[tuple[str, str]] = []  # mistakes, with what is said of each
        self.variants: list[str] = []
        self.said: list[str] = []

    def report(self) -> Report | None:
        """Return what was found, None when something is not understood."""
        if not self.free or self.patient.time_first or self.meant.model is not None:
            return None
        try:
            return self._report()
        except Unexplained as part:
            words = f"{part.name} is what nothing explains"
            return Report(
                self.patient.name,
                False,
                failing=(f"each part is right by itself: {words}", *part.failing),
                checked=("residuals, norms, activation, and each attention by itself",),
                untried=self.patient.untried(mask=True),
                stopped=part.stopped,
                tolerance=self.patient.tolerance,
            )
        except (Unclear, Spent, ValueError, RuntimeError, LookupError, TypeError, StopIteration):
            return None

    @torch.no_grad()
    def _report(self) -> Report | None:
        block = self.patient.module
        whole = Whole(block, self._runner(), self.context)
        wires = Wires(block)
        with Listen() as listen, NoDropout(), wires:
            y = whole.run(block, self.x.clone(), self.context)
        del y
        root = wires.root
        if root is None or root.result is None or root.result.shape != self.x.shape:
            return None
        if not root.result.isfinite().all():
            return None
        units = units_of(root, block, self.x, self.context)
        limit = self.patient.tolerance
        stream, unused = stream_of(units, self.x, self.context, root.result, limit)
        ways = stream.ways()
        if not ways:
            return None
        self._wiring(stream, ways[0], unused)
        heard = [name for name in ACTIVATIONS if name in listen.heard]
        alternatives = [list(self._kinds(half, whole, heard)) for half in ways[0]]
        norms = {id(norm.run): norm for norm in stream.norms.values()}
        for norm in norms.values():
            self._norm(norm)
        return self._told(list(islice(product(*alternatives), ALTERNATIVES)))

    def _runner(self) -> Callable[[nn.Module, Tensor, Tensor | None], object]:
        patient = self.patient
        call, tables, opening, sides = patient.call, patient.tables, patient.opening, patient.sides

        def run(module: nn.Module, x: Tensor, context: Tensor | None) -> object:
            if call is not None and context is not None:
                return call(module, x, context)
            if call is not None:
                return call(module, x) if takes(call) == 2 else call(module, x, None)
            if context is not None:
                return called(module, x, Around(context), sides, tables, opening)
            return standard_call(module, x, None, tables, opening=opening)

        return run

    def _wiring(self, stream: Stream, way: tuple[Half, ...], unused: list[Unit]) -> None:
        """Name what is wrong between the parts."""
        kinds = [self._kind(half.unit) for half in way]
        parallel = sorted(kinds) == sorted(RIGHT[2]) and way[1].start
        parallel = parallel and [half.places for half in way] == [PRE, PRE]
        if not parallel:  # there what runs first is free
            self._parts(kinds, way)
        if any(half.start for half in way) and not parallel:
            raise Unclear
        for half, kind in zip(way, kinds, strict=True):
            if half.join != "keep":
                id, words = JOINS[half.join]
                self.found.append((id, words.format(WORDS[kind])))
            if len(half.before) > 1:
                self.found.append(("norm-doubled", f"before the {WORDS[kind]}"))
        order = self._order(way, kinds)
        if parallel:
            self.variants.append("parallel")
            self.said.append("parts side by side")
        wanted = self.meant.norm_first
        against = {PRE: (False,), POST: (True,), INSIDE: (True, False), AROUND: (False,)}
        if order is not None and wanted in against[order]:
            self.found.append(("norm-order", ""))
        self._shared(way)
        missing = any(id == "norm-missing" for id, _ in self.found)
        for norm in unused * (not missing):
            self.found.append(("part-unused", f"what {norm.name} returns is thrown away"))
        self._factors(stream)

    def _kind(self, unit: Unit) -> str:
        if unit.kind == "feed":
            return "feed"
        return "self" if unit.asked is None else "cross"

    def _parts(self, kinds: list[str], way: tuple[Half, ...]) -> None:
        """Compare the parts with those of a right block."""
        right = list(RIGHT[2] if self.context is None else RIGHT[3])
        if kinds == right:
            return
        if sorted(kinds) == sorted(right):
            words = f"it runs {', '.join(WORDS[kind] for kind in kinds)}"
            self.found.append(("parts-order", words))
            return
        if kinds == ["cross", "feed"] and not self._resting(way):
            return  # it only asks a context: Perceiver, Flamingo
        lost = [kind for kind in right if kind not in kinds]
        names = [half.unit.name for half in way]
        again = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        rest = self._resting(way)
        if len(lost) != 1 or len(rest) != 1 or len(set(names)) != len(right) - 1:
            raise Unclear
        layers = [source for source in sources_of(self.patient.module)
                  if source.name.startswith(tuple(rest[0].split(" and ")))]  # fmt: skip
        if lost == ["feed"] and feed_of(layers, self.x.shape[-1]) is None:
            raise Unclear
        words = f"{rest[0]} is never called"
        words += f"; {again[0]} runs in its place, a second time" if again else ""
        self.found.append(("part-unused", words))

    def _resting(self, way: tuple[Half, ...]) -> list[str]:
        """Return the parts of several layers that were never called."""
        held = {id(p) for half in way for path in half.unit.paths
                for p in self.patient.module.get_submodule(path).parameters()}  # fmt: skip
        found: list[str] = []
        layers: list[str] = []
        for path, part in self.patient.module.named_modules():
            own = [p for p in part.parameters() if p.ndim > 1]
            inside = any(path.startswith(f"{other}.") for other in found)
            if not path or not own or inside or any(id(p) in held for p in own):
                continue
            (found if len(own) > 1 else layers).append(path)
        return [*found, " and ".join(layers)] if len(layers) > 1 else found

    def _order(self, way: tuple[Half, ...], kinds: list[str]) -> tuple[bool, ...] | None:
        """Return where the norms stand, after naming those that stand elsewhere."""
        places = [half.places for half in way]
        orders = list(dict.fromkeys(place for place in places if place != BARE))
        if any(order not in ORDERS for order in orders):
            raise Unclear
        resting = self._resting_norms(way)
        if not orders:
            self.found.append(("norm-missing", "there is none at all"))
            self.said.append(ORDERS[BARE])
            return None
        if len(orders) > 1:
            if set(orders) != {PRE, POST}:
                raise Unclear
            words = ", ".join(
                f"{'before' if place == PRE else 'behind'} the {WORDS[kind]}"
                for place, kind in zip(places, kinds, strict=True)
                if place != BARE
            )
            self.found.append(("norm-mixed", words))
        for place, kind in zip(places, kinds, strict=True):
            if place == BARE:
                words = f"{'after' if orders[0] == POST else 'before'} the {WORDS[kind]}"
                words += f"; {resting[0]} is never called" if resting else ""
                self.found.append(("norm-missing", words))
        if len(orders) == 1:
            self.said.append(ORDERS[orders[0]])
            right = all(half.join != "doubled" for half in way)
            variants = {INSIDE: ["norm-of-part"], AROUND: ["sandwich-norm"]}
            self.variants += variants.get(orders[0], []) * right
        return orders[0] if len(orders) == 1 else None

    def _resting_norms(self, way: tuple[Half, ...]) -> list[str]:
        """Return the norms that were never called."""
        used = {norm.name for half in way for norm in _norms(half)}
        return [
            path
            for path, part in self.patient.module.named_modules()
            if path not in used and looks_like_a_norm(path, part)
        ]

    def _shared(self, way: tuple[Half, ...]) -> None:
        """Name norms that stand in several places."""
        seen: dict[str, set[int]] = {}
        for half in way:
            for norm in _norms(half):
                if isinstance(norm.run, nn.Module) and any(True for _ in norm.run.parameters()):
                    seen.setdefault(norm.name, set()).add(id(norm))
        shared = [name for name, calls in seen.items() if len(calls) > 1]
        if shared:
            resting = self._resting_norms(way)
            words = f"{shared[0]} stands in {len(seen[shared[0]])} places"
            words += f", {' and '.join(resting)} is never called" if resting else ""
            self.found.append(("norm-shared", words))

    def _factors(self, stream: Stream) -> None:
        """Find the factors of the parts among the parameters."""
        held = [p.detach().flatten() for p in self.patient.module.parameters() if p.ndim < 4]
        for factor in stream.factors.values():
            near = [p for p in held if p.numel() == factor.numel()]
            if any((p - factor).abs().max() < 1e-5 for p in near):
                self.variants.append("layer-scale")
            elif any((p.tanh() - factor).abs().max() < 1e-5 for p in near):
                self.variants.append("tanh-gate")
            else:
                raise Unclear

    def _norm(self, norm: Unit) -> None:
        """Name what a norm is."""
        assert norm.run is not None
        b, n, e = norm.read.shape
        x = self.patient.tokens(max(b, 4), n, e, seed=31)
        kind = norm_kind(norm.run, x, self.patient.tolerance)
        if kind is None:
            raise Unclear
        self.found += [(id, kind.detail) for id in kind.ids]
        self.variants += kind.variants
        wanted = self.meant.norm_eps
        if wanted is not None and not kind.ids and not kind.variants and kind.number != wanted:
            self.found.append(("norm-eps", ""))

    def _kinds(self, half: Half, whole: Whole, heard: list[str]) -> Iterator[Kind]:
        """Yield what a part may be."""
        diagnose = EXAMINERS["attention"]
        unit = half.unit
        part = unit.cut(whole)
        if unit.kind == "feed":
            x = self.patient.tokens(*self.x.shape, seed=31)
            kind = feed_kind(part, x, self.patient.tolerance, heard, self.meant, unit.after)
            if kind is None:
                raise Unclear
            self.said.append(kind.words)
            yield kind
            return
        crossed = unit.asked is not None
        given = {"context": tuple(unit.asked.shape[1:])} if unit.asked is not None else {}
        if not crossed:
            given["causal"] = self.causal
        try:
            with reserved(SHARE):
                report = diagnose(part, self.h, embed_dim=self.x.shape[2], **given)
        except ValueError:
            with reserved(SHARE):
                size = tuple(self.x.shape[:2])
                report = diagnose(part, self.h, embed_dim=self.x.shape[2], size=size, **given)
        if _uniform(part, self.patient.tokens(*self.x.shape, seed=33), given):
            raise Unclear  # queries and keys do not reach its result: nothing is shown
        kinds = list(kinds_of_attention(report))
        alone = unit.paths == [unit.end[0]] and self.patient.tables is None
        if not kinds and alone and not self._turns():
            raise Unexplained(unit.name, report)
        if not kinds or any("of its own" in said or "residual" in said for said in report.checked):
            raise Unclear
        causal = any("causal" in said for said in report.checked)
        kind = "cross-attention" if crossed else "attention"
        self.said.append(f"{kind} with {self.h} head{'s' * (self.h > 1)}{', causal' * causal}")
        yield from kinds

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
            details = "; ".join(dict.fromkeys(words for _, words in named if words))
            if ids:
                explanations[tuple(ids)] = explain([BUGS[id] for id in ids], 0.0, details)
        variants = [*self.variants, *(v for kind in combined[0] for v in kind.variants)]
        words = ["residuals", *dict.fromkeys(self.said), "each part by itself"]
        return Report(
            self.patient.name,
            not explanations,
            tuple(sorted(explanations.values(), key=lambda one: len(one.ids))),
            checked=("; ".join(words),),
            untried=self.patient.untried(mask=True),
            variants=tuple(VARIANTS[id] for id in dict.fromkeys(variants)),
            tolerance=self.patient.tolerance,
        )


def _uniform(part: nn.Module, x: Tensor, given: dict) -> bool:
    """Say whether an attention returns the same for every token."""
    if "context" in given:
        context = x.new_ones(len(x), *given["context"]).cumsum(1).cumsum(2).sin()
        y = part(x, context)
    else:
        y = part(x)
    return bool((y - y[:, :1]).abs().max() <= 1e-6 * y.abs().max())


def _norms(half: Half) -> Iterator[Unit]:
    """Yield the norms around a part."""
    yield from half.before
    yield from (norm for norm in (half.inside, half.behind) if norm is not None)
