"""`diagnose_model`: find the attentions, blocks, patches, positions and loss of a whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attention_clinic.engine.doors import entered
from attention_clinic.engine.model_report import ModelReport, Row
from attention_clinic.engine.operands import operands_of
from attention_clinic.engine.patient import (
    Patient,
    check_positive,
    copied,
    possible_widths,
    undisturbed,
)
from attention_clinic.engine.replay import Replay, keys_of, replay_of
from attention_clinic.engine.report import Report
from attention_clinic.engine.sites import Site, sites_of, unseen
from attention_clinic.engine.unforwarded import with_forward
from attention_clinic.engine.untried import odd_weights
from attention_clinic.engine.unwrapping import unwrapped
from attention_clinic.examine.attention import diagnose
from attention_clinic.examine.closed_mask import with_opened_mask
from attention_clinic.examine.model_parts import loss_of, patches_of, tables_of, untold
from attention_clinic.examine.model_rows import (
    first_of,
    grouped,
    has_shell,
    is_open,
    lost_in,
    merged,
    moved,
    outer,
    said,
    tells,
    without_heads,
)
from attention_clinic.examine.model_run import Inputs, Run, tries_of
from attention_clinic.examine.model_shells import shells_of, with_shell
from attention_clinic.examine.model_stacks import stacks_of
from attention_clinic.examine.standin import may_be_left_out, with_stand_ins
from attention_clinic.examine.whole_block import diagnose_block

SHOWN = 6  # parts that nothing examined, by name
HIDDEN = "an attention was found in it, as in the others of its list"
FEW = 200  # tokens that a whole search may have
MANY = 512  # tokens: more of them are no small call, and no plain attention stands for theirs


def diagnose_model(
    model: nn.Module,
    inputs: Inputs = None,
    *,
    num_heads: int | None = None,
    causal: bool | None = None,
) -> ModelReport:
    """Examine every attention, block, patch embedding, sine table and the loss of a model.

    A copy of the model runs once, on inputs of its own kind. Who weighs tokens by tokens while it
    runs is an attention; what stands around that with a feed-forward is a block. Each is then
    called again as the model called it, with random weights and tokens, and compared with the
    reference. Parts that give the same numbers for the same weights are one row.

    >>> print(diagnose_model(my_model))
    >>> assert diagnose_model(my_model)  # in your tests

    Args:
        model: any model; stays as it is.
        inputs: what to call it with: a tensor, several in a tuple, or a dictionary by the names
            of forward's arguments. None makes ids, images or vectors as its first layers take them.
        num_heads: number of heads, h, of all attentions; None reads it off each of them.
        causal: True when token i must see tokens 0 to i only in every self-attention, False when
            it must see all; None accepts both.

    Shape:
        inputs  as the model takes them: ids (b, n), images (b, c, H, W), tokens (b, n, e)

    Returns:
        A `ModelReport`: print it, or ask for `healthy`, `rows` and `ids`.

    Raises:
        ValueError: not a module, a scripted or a lazy one, or inputs that the model does not take.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ValueError(
            f"diagnose_model: model must be an nn.Module, got {got}. "
            "Build it first and pass the object."
        )
    if num_heads is not None:
        check_positive("diagnose_model", num_heads=num_heads)
    with undisturbed(model), entered():
        plain = unwrapped("diagnose_model", model, lambda one: tries_of(one, inputs))
        return Walk(with_forward(plain), inputs, num_heads, causal).report()


class Walk:
    """One examination of a model.

    Args:
        model: as in `diagnose_model`.
        inputs: as there.
        num_heads: as there.
        causal: as there.
    """

    def __init__(
        self, model: nn.Module, inputs: Inputs, num_heads: int | None, causal: bool | None
    ) -> None:
        self.model = copied("diagnose_model", model)
        self.num_heads, self.causal = num_heads, causal
        self.rows: list[Row] = []
        self.covered: set[str] = set()
        self.large: list[str] = []  # what has too many tokens
        self.is_alone = False  # whether it is an attention that takes queries, keys and values
        self.run = Run(self.model, inputs)
        self.recording = self.run.recording
        self.parts = dict(self.model.named_modules())
        self.sites = sites_of(self.model, self.recording)

    def report(self) -> ModelReport:
        """Examine all parts."""
        patches = patches_of(self.model, self.recording, self.sites, self.covered)
        tables = tables_of(self.model, self.recording, () if self.run.mixed else self.sites)
        for kind, found in (("patches", patches), ("positions", tables)):
            for path, report in found:
                self.rows.append(Row(kind, (path,), report))
                self.covered |= {path} - {""}
        self.blocks()
        for path in unseen(self.model, self.sites):
            report = Report(type(self.parts[path]).__name__, False, failing=(HIDDEN,))
            self.rows.append(Row("block", (path,), report))
            self.covered.add(path)
        checked: list[str] = []
        for path, report, words in stacks_of(
            self.model, self.sites, self.recording, self.run.again
        ):
            checked += [words] * bool(words)
            if report is not None:
                self.rows.append(Row("stack", (path,), report))
        if found := loss_of(self.model, self.recording) if self.run.given else None:
            self.rows.append(Row("loss", (found[0],), found[1]))
        if not self.rows:
            self.rows += self.alone()
        if not (self.is_alone or any(map(tells, self.rows))):
            self.run.ask()
        return ModelReport(
            type(self.model).__name__,
            tuple(self.rows),
            tuple(self.whole(found)),
            tuple(checked),
            tuple(self.untried()),
        )

    def alone(self) -> Iterator[Row]:
        """Yield the row of a model that is an attention on queries, keys and values alone."""
        if operands_of(self.model) is not None:
            with suppress(ValueError):
                report = diagnose(self.model, self.num_heads, causal=self.causal)
                self.is_alone = True
                yield Row("attention", ("",), report)

    # ------------------------------------------------------------------------------- the blocks

    def blocks(self) -> None:
        """Examine the blocks, and the attentions that no block explains."""
        by_block: dict[str, list[Site]] = {}
        for site in self.sites:
            place = site.levels[0] if site.block is None else site.block
            by_block.setdefault(place, []).append(site)
        for path, places, sites in grouped(by_block, self.parts, self.fingerprint):
            if sites[0].block is None:
                site = sites[0]
                levels = [[outer(p, path, level) for p in places] for level in site.levels]
                order = reversed(range(len(levels)))
                self.rows.append(self.attention_row(levels, site, order))
                self.covered |= {*places, *self.rows[-1].places}
            else:
                self.rows += (rows := list(self.block_rows(path, places, sites)))
                self.covered |= {place for row in rows for place in row.places}
        shells = shells_of(self.sites, self.parts, self.recording)
        for path, places, sites in grouped(shells, self.parts, self.fingerprint):
            replay, heads = self.replay(path, sites), self.num_heads or sites[0].num_heads
            if replay is not None and heads is not None and replay.shape[1] <= MANY:
                found = self.examined(diagnose_block, path, replay, heads)
                if (rows := with_shell(self.rows, places, found)) is not None:
                    self.rows, self.covered = rows, self.covered | set(places)

    def replay(self, path: str, sites: list[Site]) -> Replay | None:
        """Return how to call a part as the model did, None where it did not."""
        call = self.recording.calls.get(path)
        if call is None or call.result is None:
            return None
        keys = keys_of(self.recording.calls.get(site.levels[0]) for site in sites)
        scores = sites[0].scores if len(sites) == 1 else None
        return replay_of(self.parts[path], call, scores, keys)

    def fingerprint(self, path: str, sites: list[Site]) -> Tensor | None:
        """Return what a part gives with the random weights that all parts get."""
        replay = self.replay(path, sites)
        patient = Patient("diagnose_model", self.parts[path], replay and replace(replay, still=()))
        if replay is not None:
            shapes = [replay.shape]
        else:
            widths = possible_widths(patient.module, dict(patient.module.named_parameters()))
            shapes = [(2, 7, width) for width in widths[:3]]
        for shape in shapes:
            context = None if replay is None else replay.context
            beside = None if context is None else patient.tokens(shape[0], *context, seed=9)
            try:
                return patient.run(patient.tokens(*shape), context=beside)
            except Exception:
                continue
        return None

    def block_rows(self, path: str, places: list[str], sites: list[Site]) -> Iterator[Row]:
        """Yield the row of a block, with rows of its attentions where they are not healthy.

        Each attention is examined by itself, and the block with plain ones in their places.
        """
        heads = self.num_heads or sites[0].num_heads
        if heads is None:
            yield Row("block", tuple(places), without_heads(self.parts[path]))
            return
        inner: list[Row] = []
        for site in sites:
            levels = [[moved(level, path, other) for other in places] for level in site.levels]
            inner.append(self.attention_row(levels, site, range(len(levels))))
        reports = [row.report for row in inner]
        shell = any(has_shell(report) for report in reports)
        found = None if shell else self.around(path, sites, heads, reports)
        if found is None and not path and self.large:
            yield from inner  # what stands around is no block
            return
        if found is None:
            found = self.examined(diagnose_block, path, self.replay(path, sites), heads)
            if found is not None and (found.healthy or found.explanations):
                right = found.healthy and all(report.healthy for report in reports)
                yield Row("block", tuple(places), merged(found, reports) if right else found)
                return
        elif found.healthy and all(report.healthy for report in reports):
            yield Row("block", tuple(places), merged(found, reports))
            return
        yield from inner
        if found is not None and not (lost_in(found) and any(map(is_open, reports))):
            yield Row("rest of block", tuple(places), found)

    def attention_row(self, levels: list[list[str]], site: Site, order: Iterable[int]) -> Row:
        """Return the row of an attention.

        Args:
            levels: the places of each of its levels.
            site: the first of those places.
            order: in which the levels are tried, until one is explained.
        """
        kind = "attention"
        heads = self.num_heads or site.num_heads
        if heads is None:
            return Row(kind, tuple(levels[0]), without_heads(self.parts[levels[0][0]]))
        best: tuple[Report, int] | None = None
        for number in order:
            path = site.levels[number]
            replay = self.replay(path, [site])
            report = self.examined(diagnose, path, replay, heads, self.is_window(site, replay))
            kind = "cross-attention" if replay and replay.context else kind
            if report is None:
                continue
            if best is None or report.healthy or report.explanations:
                best = report, number
            if report.healthy or report.explanations:
                break
        if best is None:
            name = type(self.parts[site.levels[0]]).__name__
            best = Report(name, False, failing=("it can be called: no way was found",)), 0
        return Row(kind, tuple(levels[best[1]]), best[0])

    def examined(
        self,
        tool: Callable[..., Report],
        path: str,
        replay: Replay | None,
        heads: int,
        free: bool = False,
    ) -> Report | None:
        """Examine a part as the model called it, and then as its own signature suggests.

        What is right only without what the model hands it is not, but where that is `free`."""
        part, best = self.parts[path], None
        if path and next(part.parameters(), None) is None and operands_of(part) is not None:
            return None  # what makes its queries, keys and values stands around it
        crossed = replay is not None and replay.context is not None
        options: dict[str, Any] = {} if crossed else {"causal": self.causal}
        if replay and not crossed and tool is diagnose and replay.shape[1] >= MANY:
            with suppress(ValueError):
                if (few := tool(part, heads, **options)).healthy or few.explanations:
                    return few  # few tokens show as much, and take no minute
        if replay is not None:
            options["effort"] = min(1.0, FEW / replay.shape[1])  # each step takes longer
            options |= {"context": replay.context} if crossed else {}
            sizes = [size for size in replay.sizes if size is None or size[1] < MANY]
            tried = partial(tool, part, heads, **options)
            best = with_opened_mask(tried, replay, sizes, self.run.given)
            if best is not None and replay.still:
                words = f"what comes from outside as {', '.join(replay.still)}"
                best = replace(best, untried=(*best.untried, words))
            if best is not None and (best.healthy or best.explanations):
                return said(best)
        if best is not None and replay is not None and len(replay.sizes) > 1:
            return best  # it got nothing but tokens: its own signature says the same
        options |= {"effort": 1.0} | ({"context": True} if crossed else {})
        try:
            plain = tool(part, heads, **options)
        except ValueError:
            return best
        named = plain.explanations and "mask-not-causal" not in plain.ids
        return plain if best is None or named or (free and plain.healthy) else best

    def is_window(self, site: Site, replay: Replay | None) -> bool:
        """Say whether an attention gets windows of its block: that tells what their mask does."""
        block = site.block is not None and self.replay(site.block, [site])
        return bool(block and replay) and replay.shape[1] != block.shape[1]

    def around(
        self, path: str, sites: list[Site], heads: int, inner: list[Report]
    ) -> Report | None:
        """Examine a block with plain attentions in the places of its own; None where none fit."""
        replay = self.replay(path, sites)
        replays = {}
        for site in sites if replay is not None else ():
            own = self.replay(site.levels[0], [site])
            if own is not None and may_be_left_out(self.parts[site.levels[0]], own, replay):
                replays[site.levels[0][len(path) :].lstrip(".")] = own
        if replay is None or len(replays) < len(sites) or "" in replays:
            return None
        if replay.shape[1] > MANY:
            words = f"the rest of {path or 'the model'}, which gets {replay.shape[1]} tokens"
            self.large.append(f"{words}: diagnose_model(model, inputs=...) takes smaller images")
            return None
        options = {"context": replay.context} if replay.context is not None else {}
        outside = any("out-missing" in e.ids for report in inner for e in report.remarks)
        best: Report | None = None
        for out in (not outside, outside):
            try:
                changed = with_stand_ins(self.parts[path], replays, heads, out)
            except Exception:
                continue
            one = partial(diagnose_block, changed, heads if replay.shape[2] % heads == 0 else 1)
            found = first_of(
                lambda size, one=one: one(call=replay, size=size, **options), replay.sizes
            )
            if found is None:
                continue
            name = type(self.parts[path]).__name__
            words = "with a plain attention in the place of its own"
            found = replace(found, name=name, checked=(*found.checked, words), untried=())
            if found.healthy or found.explanations:
                return found
            best = best or found
        return best

    # -------------------------------------------------------------------------------- the whole

    def whole(self, loss: tuple[str, Report] | None) -> Iterator[str]:
        """Yield the properties of the whole model that do not hold."""
        if self.run.mixed:
            yield f"samples stay apart: changing one changes {self.run.mixed} of another"
        shifts = loss is not None and loss[1].healthy and "next token" in " ".join(loss[1].checked)
        if shifts:
            for row in self.rows:
                sees = row.kind in ("block", "attention")
                if sees and not any("causal" in words for words in row.report.checked):
                    yield (
                        f"the future is hidden: the loss is that of the next token, and {row.where}"
                        " sees it"
                    )

    def untried(self) -> Iterator[str]:
        """Yield what was not examined."""
        if self.run.given is None and not self.is_alone:
            why = f" ({self.run.refused})" if self.run.refused else ""
            whole = f"the model as a whole, which did not run on inputs made for it{why}"
            yield f"{whole}: diagnose_model(model, inputs=...) takes yours"
        masked = next(
            (row for row in self.rows if any("mask" in words for words in row.report.untried)), None
        )
        if masked is not None:
            tool = "diagnose_block" if masked.kind == "block" else "diagnose"
            yield f"masks: {tool}(model.get_submodule({masked.places[0]!r}), mask=...)"
        added = [w for row in self.rows for w in row.report.untried if "comes from outside" in w]
        yield from dict.fromkeys((*added, *self.large[:1], *odd_weights(self.model)))
        if left := untold(self.model, self.covered, self.recording):
            shown = left if len(left) <= SHOWN else [*left[:SHOWN], f"{len(left) - SHOWN} more"]
            yield f"other parts: {', '.join(shown)}"
