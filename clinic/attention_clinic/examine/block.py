"""`diagnose_block`: residuals, norms and activation of a block, with the attention in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attention_clinic.bugs import ATTENTION, BLOCK, BUGS, VARIANTS, Setting
from attention_clinic.bugs.blocks import ACTIVATIONS, Meant, Parts
from attention_clinic.bugs.masks import has_empty
from attention_clinic.engine.forms import Found, State, replay, simplest
from attention_clinic.engine.modes import Listen, NoDropout
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.weights import Source, joined_heads, sources_of
from attention_clinic.examine.matching import UNKNOWN, Probe


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

    def run(self, x: Tensor) -> Tensor:
        """Call the copy, without its dropout if that does not rest."""
        if self.quiet:
            with NoDropout():
                return self.patient.run(x)
        return self.patient.run(x)

    def report(self) -> Report:
        name = self.patient.name
        self.y = self.run(self.x)
        if not self.y.isfinite().any():
            failing = ("the output holds numbers: it has nothing but NaN",)
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
        change = (self.run(later) - self.y)[:, :-1].abs().max()
        self.hides_future = bool(change <= 1e3 * self.patient.tolerance)
        with Listen() as listen:
            self.run(self.x)
        parts = self.parts(listen.heard)
        if isinstance(parts, str):
            return Report(name, False, checked=(f"no {parts} that could be those of a block",))
        found, masked = self.with_masks(self.search(parts))
        untried, limit = self.patient.untried(mask=self.takes_masks), self.patient.tolerance
        if not found:
            said = "residuals, norms, activation and attention, alone and in pairs"
            said += " with the masks" if masked else ""
            failing = tuple(self.failing())
            return Report(name, False, (), failing, (said,), untried, tolerance=limit)
        explanations = []
        for ids, way in found.items():
            bugs = [BUGS[id] for id in dict.fromkeys((*ids, *self.extra))]
            if bugs:
                explanations.append(explain(bugs, way.difference, way.path.detail))
        said = self.what(next(iter(found.values())).state)
        return Report(
            name,
            not explanations,
            tuple(explanations),
            checked=(said, *masked),
            untried=untried,
            variants=tuple(VARIANTS[id] for id in next(iter(found.values())).path.variants),
            tolerance=limit,
        )

    takes_masks = False

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
        e = self.e
        sources = sources_of(self.patient.module)
        fed = self.feed(sources)
        if fed is None:
            return "feed-forward"
        up, self.down, form = fed
        rest = [s for s in sources if s is not up and s is not self.down]
        self.check_heads()
        reader = Reader(joined_heads(rest, self.h), e, self.h, e, e)
        readings = reader.readings()
        if not readings:
            return "projections"
        norms = self.norms()
        if len(norms) != 2:
            return "two norms"
        known = [name for name in ACTIVATIONS if name in heard]
        return Parts(norms, reader, readings, up, self.down, form, known)

    def check_heads(self) -> None:
        """Raise unless the heads divide the width of a token."""
        if self.e % self.h:
            raise ValueError(
                f"diagnose_block: num_heads must divide the width of a token, got "
                f"num_heads={self.h} and embed_dim={self.e}. "
                f"Pick num_heads from {[h for h in range(1, self.e + 1) if self.e % h == 0]}."
            )

    def feed(self, sources: list[Source]) -> tuple[Source, Source, str] | None:
        """Find both layers of the feed-forward and their orientation."""
        e = self.e
        ups, downs = [], []
        for source in sources:
            for form in source.forms:
                if source.weight.ndim != 2 or form not in ("oi", "io"):
                    continue
                o, i = source.weight.shape if form == "oi" else source.weight.shape[::-1]
                if i == e:
                    ups.append((source, form, o))
                if o == e:
                    downs.append((source, form, i))
        feeds = []
        for up, form, m in ups:
            for down, other, inner in downs:
                if up is down or inner != m or form != other:
                    continue
                by_name = _feeds(up) and _feeds(down)
                if m != e or by_name:
                    beside = _beside(up, down, sources)
                    feeds.append(((not by_name, beside), up, down, form))
        feeds.sort(key=lambda feed: feed[0])
        return feeds[0][1:] if feeds else None

    def norms(self, called_only: bool = False) -> list[tuple[Tensor, Tensor, float | None]]:
        """Return weight, bias and eps of the norms, in the order in which they are called.

        Args:
            called_only: leave out those that are never called, unless none is.
        """
        found: dict[nn.Module, tuple[Tensor, Tensor, float | None]] = {}
        for part in self.patient.module.modules():
            own = [p for p in part.parameters(recurse=False) if p.shape == (self.e,)]
            if len(own) == 2 and not isinstance(part, nn.Linear | nn.MultiheadAttention):
                eps = getattr(part, "eps", getattr(part, "variance_epsilon", None))
                found[part] = (own[0], own[1], eps)
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
        parts = [self.down.weight] + ([] if self.down.bias is None else [self.down.bias])
        before = [part.clone() for part in parts]
        for part in parts:
            part.zero_()
        try:
            return self.run(self.x)
        finally:
            for part, values in zip(parts, before, strict=True):
                part.copy_(values)

    def search(self, parts: Parts) -> dict[tuple[str, ...], Found]:
        """Return the ways with the fewest mistakes that give the output."""
        unfed = self.unfed()

        def state(x: Tensor, silent: Tensor | None) -> State:
            causal = self.hides_future if self.causal is None else self.causal
            rule = Probe(x, x, causal=causal).causal_rule()
            return {
                **UNKNOWN,
                **{"x": x, "parts": parts, "meant": self.meant, "stages": ATTENTION},
                **{"setting": Setting(self.h, self.e, self.e // self.h), "causal": rule},
                **{"right": rule, "right_has_empty": has_empty(rule)},
                **{"must_be_causal": self.causal is True, "near": self.near, "unfed": silent},
            }

        def difference(made: State) -> float | None:
            if not self.near(made["made"], self.y):
                return None
            again = {**state(self.other[0], None), "total": made["total"]}
            other = replay(BLOCK, made["forms"], again)
            if other is None or not self.near(other["made"], self.other[1]):
                return None
            return gap_between(made["made"], self.y)

        return simplest(BLOCK, state(self.x, unfed), difference)

    def near(self, made: Tensor, y: Tensor) -> bool:
        """Say whether two outputs are the same, NaN included."""
        size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
        return gap_between(made, y) <= self.patient.tolerance * (1 + size)

    def failing(self) -> Iterator[str]:
        """Yield the properties that do not hold."""
        b, n, _ = self.x.shape
        if not self.y.isfinite().all():
            yield "the output holds numbers: it has some NaN or infinity"
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


def _beside(up: Source, down: Source, sources: list[Source]) -> int:
    """Return how many more matrices stand where the first one does: an attention has some."""
    where = up.name.rpartition(".")[0].rpartition(".")[0]
    return sum(
        source.name.rpartition(".")[0].rpartition(".")[0] == where
        for source in sources
        if source is not up and source is not down
    )


def _feeds(source: Source) -> bool:
    """Say whether a name speaks of a feed-forward."""
    name = source.name.lower()
    words = ("mlp", "ff", "feed", "fc1", "fc2", "linear1", "linear2", "pw", "intermediate")
    return (
        bool(re.search(r"w_?[12]\b", name))
        or any(word in name for word in words)
        or (name.endswith("output.dense.weight") and "attention" not in name)
    )
