"""`diagnose_block`: residuals, norms and activation of a block, with the attention in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attention_clinic.bugs import ATTENTION, BLOCK, BUGS, VARIANTS, Built, Setting
from attention_clinic.bugs.blocks import Meant, Parts
from attention_clinic.bugs.feeds import ACTIVATIONS, Feed
from attention_clinic.bugs.masks import has_empty
from attention_clinic.engine.begins import no_numbers
from attention_clinic.engine.budget import Spent
from attention_clinic.engine.forms import Found, State, replay, simplest, walk
from attention_clinic.engine.grouped import grouped_readers
from attention_clinic.engine.modes import Listen, NoDropout
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import NO_NUMBERS, Report, explain
from attention_clinic.engine.weights import (
    Silent,
    Source,
    apart_from_gates,
    joined_heads,
    sources_of,
)
from attention_clinic.examine.biases import bias_of
from attention_clinic.examine.declared import known_of
from attention_clinic.examine.held import feed_of, scales_of
from attention_clinic.examine.leaves import RMS
from attention_clinic.examine.matching import UNKNOWN, Probe
from attention_clinic.examine.modern import turning
from attention_clinic.examine.norm_kinds import weight_first
from attention_clinic.examine.shared_keys import unless_unshared


class Block:
    """The examination of one block.

    Args:
        patient: its copy.
        x: tokens that it takes.
        num_heads: h.
        meant: what it is meant to be.
        causal: as in `diagnose`.
    """

    def __init__(
        self, patient: Patient, x: Tensor, num_heads: int, meant: Meant, causal: bool | None
    ) -> None:
        self.patient, self.x, self.h, self.meant, self.causal = patient, x, num_heads, meant, causal
        self.e = x.shape[-1]
        self.extra: list[str] = []
        self.quiet = False
        self.bias_names: tuple[str, ...] = ()  # of the variants that are added to the scores
        self.keys: int | None = None  # tokens of a context, where there is one

    def run(self, x: Tensor) -> Tensor:
        """Call the copy, without its dropout if that does not rest."""
        if self.quiet:
            with NoDropout():
                return self.patient.run(x)
        return self.patient.run(x)

    def report(self) -> Report:
        name = self.patient.name
        with Built() as built:
            self.y = self.run(self.x)
        if built.kinds:
            detail = f"forward builds {' and '.join(dict.fromkeys(built.kinds))}"
            return Report(name, False, (explain([BUGS["layers-in-forward"]], detail=detail),))
        if not self.y.isfinite().any():
            said = no_numbers(self.patient.module, lambda: self.run(self.x), self.y)
            failing = (f"{NO_NUMBERS}{said}",)
            return Report(name, False, failing=failing, untried=self.patient.untried(mask=False))
        if not same(self.y, self.run(self.x)):
            self.quiet = True
            self.y = self.run(self.x)
            if not same(self.y, self.run(self.x)):
                failing = ("two calls in eval mode give the same output",)
                return Report(name, False, failing=failing)
            self.extra.append("dropout-eval")
        other = self.patient.tokens(*self.x.shape, seed=7)
        if same(self.run(other), self.y):
            return Report(name, False, (explain([BUGS["ignores-input"]]),))
        self.other = (other, self.run(other))
        later = self.x.clone()
        later[:, -1] += torch.arange(self.e).to(later)
        change = (self.run(later) - self.y)[:, :-1].abs()
        self.hides_future = change.numel() > 0 and bool(
            change.max() <= 1e3 * self.patient.tolerance
        )
        with Listen() as listen:
            self.run(self.x)
        stopped = 0
        try:
            parts = self.parts(listen.heard)
            if isinstance(parts, str):
                return Report(name, False, checked=(f"no {parts} that could be those of a block",))
            found, masked = self.with_masks(self.search(parts))
        except Spent as spent:
            found, masked, stopped = {}, (), spent.steps
        untried, limit = self.patient.untried(mask=self.takes_masks), self.patient.tolerance
        if not found:
            said = "residuals, norms, activation and attention, alone and in pairs"
            said += " with the masks" if masked else ""
            failing = tuple(self.failing())
            given = (name, False, (), failing, (said,), untried)
            return Report(*given, stopped=stopped, tolerance=limit)
        explanations = []
        for ids, way in found.items():
            bugs = [BUGS[id] for id in dict.fromkeys((*ids, *self.extra))]
            if bugs:
                explanations.append(explain(bugs, way.difference, way.path.detail))
        said = self.what(next(iter(found.values())).state)
        named = (*next(iter(found.values())).path.variants, *self.bias_names)
        report = Report(
            name,
            not explanations,
            tuple(explanations),
            checked=(said, *masked),
            untried=untried,
            variants=tuple(VARIANTS[id] for id in named),
            tolerance=limit,
        )
        return unless_unshared(report, self.patient.module, self.h, self.meant.num_kv_heads)

    takes_masks = False
    fed: Feed | None = None
    least, most = 0, 2  # mistakes to look for

    def with_masks(
        self, found: dict[tuple[str, ...], Found]
    ) -> tuple[dict[tuple[str, ...], Found], tuple[str, ...]]:
        """Keep what explains the block with masks too, and say what was tried."""
        return found, ()

    def what(self, state: State) -> str:
        """Say what was compared."""
        order = "pre-norm" if state["first"] else "post-norm"
        heads = f"attention with {self.h} head{'s' * (self.h > 1)}"
        causal = ", causal" if state["causal"] is not None else ""
        return f"residuals; {order}; eps {state['eps']:g}; {state['activation']}; {heads}{causal}"

    def parts(self, heard: set[str]) -> Parts | str:
        """Find feed-forward, norms and projections; return the name of what is missing."""
        sources = sources_of(self.patient.module)
        fed = feed_of(sources, self.e)
        if fed is None:
            return "feed-forward"
        self.fed = fed
        read = self.reader([s for s in sources if all(s is not own for own in fed.sources)])
        if read is None:
            self.check_heads()
            return "projections"
        norms = self.norms()
        if len(norms) != 2:
            return "two norms"
        known = [name for name in ACTIVATIONS if name in heard] or list(ACTIVATIONS)
        return Parts(
            norms,
            *read,
            fed,
            known,
            self.norm_kind,
            self.known(),
            scales_of(self.patient.module, self.e),
        )

    def reader(
        self, sources: list[Source], context_dim: int | None = None
    ) -> tuple[Reader, list[Reading]] | None:
        """Read the weights of an attention; where several widths of a head fit, by their names."""
        joined, shared = joined_heads(sources, self.h, self.e), self.meant.num_kv_heads
        joined += apart_from_gates(joined, self.h)[0]
        sizes = sorted({size for source in joined for size in source.weight.shape})
        widths = [f for f in dict.fromkeys((self.e, *sizes)) if f and f % self.h == 0]
        readers: list[Reader] = [
            Reader(joined, self.e, self.h, inner, self.e, context_dim=context_dim)
            for inner in widths
            if shared in (None, self.h)
        ]
        if context_dim in (None, self.e):
            readers += grouped_readers(joined, self.e, self.h, shared, self.e, True)
        found = None
        for reader in readers:
            readings = reader.readings()
            if readings and readings[0].rank == 0 and not readings[0].ids:
                return reader, readings
            found = found or ((reader, readings) if readings else None)
        return found

    def known(self) -> State:
        """Return what the stages of attention may know beside its projections."""
        order = torch.arange(self.x.shape[1])
        order[:-1] = order[:-1].roll(1)
        change = (self.run(self.x[:, order])[:, -1] - self.y[:, -1]).abs().max()
        sees = len(order) < 3 or bool(change > 1e-6 * (1 + self.y.abs().max()))
        module, model = self.patient.module, self.meant.model
        turns = turning(module, self.patient.tables, sees, model is not None)
        if turns is not None and turns.declared and not sees:
            self.extra.append("rotary-no-effect")
        known = known_of(module, self.run, self.x, self.h, self.keys)
        bias = bias_of(self.patient, *self.x.shape, self.h, turns is not None)
        if bias is not None and bias.found:
            self.bias_names = bias.names
            self.extra += bias.ids
            known["bias"] = bias.added
        return {**UNKNOWN, **known, "turning": turns, "model": model}

    def check_heads(self) -> None:
        """Raise unless the heads divide the width of a token."""
        if self.e % self.h:
            raise ValueError(
                f"diagnose_block: num_heads must divide the width of a token, got "
                f"num_heads={self.h} and embed_dim={self.e}. "
                f"Pick num_heads from {[h for h in range(1, self.e + 1) if self.e % h == 0]}."
            )

    def norms(self, called_only: bool = False) -> list[tuple[Tensor, Tensor | None, float | None]]:
        """Return weight, bias and eps of the norms, in the order in which they are called.

        Args:
            called_only: leave out those that are never called, unless none is.
        """
        found: dict[nn.Module, tuple[Tensor, Tensor | None, float | None]] = {}
        kinds: list[str] = []
        for path, part in self.patient.module.named_modules():
            shapes = ((self.e,), (1,))
            own = [p for p in part.parameters(recurse=False) if p.shape in shapes]
            kind = type(part).__name__.lower()
            alone = len(own) == 1 and re.search(r"norm|rms", f"{kind} {path.rpartition('.')[2]}")
            if any(part.children()) and not alone:  # factors of its parts
                continue
            if (len(own) != 2 and not alone) or re.search(r"(q|k|query|key)_?(layer)?norm", path):
                continue
            if not isinstance(part, nn.Linear | nn.MultiheadAttention):
                eps = [getattr(part, name, None) for name in ("eps", "variance_epsilon", "epsilon")]
                eps = next((value for value in eps if isinstance(value, float)), None)
                own = [p.expand(self.e) for p in weight_first(part, own, self.e)]
                bias = own[1] if len(own) == 2 else None
                found[part] = (own[0], bias, eps)
                kinds.append("rms" if RMS.search(kind) else "")
        self.norm_kind = "rms" if kinds and all(kinds) else ""
        called: list[nn.Module] = []
        handles = [
            part.register_forward_pre_hook(lambda part, _: called.append(part)) for part in found
        ]
        self.run(self.x)
        for handle in handles:
            handle.remove()
        order = [*dict.fromkeys(called), *found]
        if called_only and called:
            order = called
        return [found[part] for part in dict.fromkeys(order)]

    def unfed(self) -> Tensor:
        """Run the copy with a feed-forward that returns 0."""
        down = self.fed.down
        parts = [down.weight] + ([] if down.bias is None else [down.bias])
        before = [part.clone() for part in parts]
        for part in parts:
            part.zero_()
        try:
            return self.run(self.x)
        finally:
            for part, values in zip(parts, before, strict=True):
                part.copy_(values)

    def deaf(self) -> Tensor:
        """Run the copy with an attention that returns 0."""
        fed = self.fed.sources
        held = sources_of(self.patient.module)
        with Silent.of([source for source in held if all(source.name != own.name for own in fed)]):
            return self.run(self.x)

    def search(self, parts: Parts) -> dict[tuple[str, ...], Found]:
        """Return the ways with the fewest mistakes that give the output."""
        unfed, deaf, reader = self.unfed(), self.deaf(), parts.reader
        setting = Setting(self.h, self.e, reader.d, getattr(reader, "g", None))

        def state(x: Tensor, silent: Tensor | None, deaf: Tensor | None = None) -> State:
            causal = self.hides_future if self.causal is None else self.causal
            rule = Probe(x, x, causal=causal).causal_rule()
            return {
                **UNKNOWN,
                **parts.known,
                **{"x": x, "parts": parts, "meant": self.meant, "stages": ATTENTION},
                **{"setting": setting, "causal": rule},
                **{"right": rule, "right_has_empty": has_empty(rule)},
                **{"must_be_causal": self.causal is True, "near": self.near, "unfed": silent},
                "deaf": deaf,
            }

        def difference(made: State) -> float | None:
            if not self.near(made["made"], self.y):
                return None
            again = {**state(self.other[0], None), "total": made["total"]}
            other = replay(BLOCK, made["forms"], again)
            if other is None or not self.near(other["made"], self.other[1]):
                return None
            return gap_between(made["made"], self.y)

        begin = state(self.x, unfed, deaf)
        if self.most > 2 and any(True for _ in walk(BLOCK[:4], {**begin, "total": 0}, 0)):
            return {}
        # else something is wrong around the attention: two more may be wrong inside
        return simplest(BLOCK, begin, difference, self.most, self.least)

    def near(self, made: Tensor, y: Tensor) -> bool:
        """Say whether two outputs are the same, NaN included."""
        size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
        return gap_between(made, y) <= self.patient.tolerance * (1 + size)

    def failing(self) -> Iterator[str]:
        """Yield the properties that do not hold."""
        b, n, _ = self.x.shape
        if not self.y.isfinite().all():
            said = no_numbers(self.patient.module, lambda: self.run(self.x), self.y)
            yield f"{NO_NUMBERS}{said}"
            return
        limit = 1e3 * self.patient.tolerance * (1 + self.y.abs().max().item())
        changed = self.x.clone()
        changed[0] = self.patient.tokens(*self.x.shape[1:], seed=21)
        if b > 1 and (self.run(changed)[1:] - self.y[1:]).abs().max() > limit:
            yield "samples stay apart: changing one changes another"
        order = torch.arange(n).roll(2)
        if self.causal is not True and (
            (self.run(self.x[:, order]) - self.y[:, order]).abs().max() > limit
        ):
            yield "order does not matter: permuted tokens do not give permuted outputs"


def gap_between(made: Tensor, y: Tensor) -> float:
    """Return the largest difference, 0 where both are NaN."""
    gap = (made - y).abs()
    both = made.isnan() & y.isnan()
    return torch.where(both, 0.0, gap).nan_to_num(nan=torch.inf, posinf=torch.inf).max().item()
