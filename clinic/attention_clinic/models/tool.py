"""`diagnose_model`: examine the attentions, blocks, patches and positions of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.attention.tool import diagnose
from attention_clinic.blocks.tool import diagnose_block
from attention_clinic.capture import module
from attention_clinic.capture.module import CallFailed
from attention_clinic.catalogue import BUGS
from attention_clinic.embedding import diagnose_embedding
from attention_clinic.models import find
from attention_clinic.models.find import Inputs, Replay, Site, above, is_inside
from attention_clinic.positions import diagnose_positions
from attention_clinic.report import ASKED, Report, explain, wrapped

WHERE = "diagnose_model"
COLUMNS = 46  # of the paths in a report
SHOWN = 6  # parts that nothing examined, by name
NOT_CALLED = "the clinic can call it: try num_heads=..., or diagnose(part, call=...)"
HIDDEN = "an attention was found in it, as in others of its class"


def diagnose_model(
    model: nn.Module,
    inputs: Inputs = None,
    *,
    num_heads: int | None = None,
    causal: bool | None = None,
) -> ModelReport:
    """Examine every attention, block, patch embedding and table of sines of a model.

    A copy of the model runs once. A module that computes token-by-token weights during that run
    counts as attention; one that wraps it together with a feed-forward counts as a block. Each
    part is called again as the model called it, with random weights and tokens. Parts that give
    the same numbers for the same weights are one row.

    >>> print(diagnose_model(my_model))
    >>> assert diagnose_model(my_model)  # in your tests

    Args:
        model: any model; it stays as it is.
        inputs: a tensor, several in a tuple, or a dictionary by the names of forward's arguments;
            None makes ids, images or vectors as the first layers take them.
        num_heads: number of heads, h, of all attentions; None reads it off each of them.
        causal: whether every self-attention must be causal; None accepts both.

    Shape:
        inputs  as the model takes them: ids (b, n), images (b, c, H, W), tokens (b, n, e)

    Returns:
        A `ModelReport`: print it, or use `healthy`, `rows` and `ids`.

    Raises:
        ValueError: not a module, or inputs that the model does not take.
    """
    if isinstance(model, type) or not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        advice = "Build it first and pass the object."
        raise ValueError(f"{WHERE}: model must be an nn.Module, got {got}. {advice}")
    if num_heads is not None:
        module.check_positive(WHERE, num_heads=num_heads)
    with module.undisturbed():
        plain = module.unwrapped(WHERE, model)
        made = module.copied(WHERE, plain)
        for ours, theirs in zip(made.parameters(), plain.parameters(), strict=True):
            ours.requires_grad_(theirs.requires_grad)  # whether gradients arrive is examined
        return Examination(made, inputs, num_heads, causal).report()


@dataclass(frozen=True)
class Row:
    """Parts at some paths, in order, that compute the same, and the report of the first."""

    kind: str
    places: tuple[str, ...]
    report: Report

    @property
    def where(self) -> str:
        """The paths in short: layers.0.attn, layers.1.attn are layers.0-1.attn."""
        split = [path.split(".") for path in self.places]
        apart = [n for n, names in enumerate(zip(*split, strict=False)) if len({*names}) > 1]
        numbers = [names[apart[0]] for names in split] if len(apart) == 1 else [""]
        if not all(map(str.isdigit, numbers)) or len({*map(len, split)}) > 1:
            return ", ".join(self.places) or "(the model itself)"
        runs: list[list[int]] = []
        for n in sorted(map(int, numbers)):
            if runs and runs[-1][-1] == n - 1:
                runs[-1].append(n)
            else:
                runs.append([n])
        ranges = ",".join("-".join(map(str, sorted({run[0], run[-1]}))) for run in runs)
        return ".".join([*split[0][: apart[0]], ranges, *split[0][apart[0] + 1 :]])

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        named = ", ".join(variant.id for variant in self.report.variants)
        if self.report.healthy:
            return f"variant: {named}" if named else "healthy"
        if self.report.explanations:
            return "buggy: " + "; or ".join(" + ".join(e.ids) for e in self.report.explanations)
        return "unexplained"


@dataclass(frozen=True, repr=False)
class ModelReport:
    """What `diagnose_model` found; true in a condition when everything examined is healthy.

    Args:
        name: of the model.
        rows: the parts that were examined.
        untried: parts and inputs that nothing examined.
    """

    name: str
    rows: tuple[Row, ...]
    untried: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether something was examined, and all of it is healthy."""
        return bool(self.rows) and not self.unhealthy

    @property
    def unhealthy(self) -> tuple[Row, ...]:
        """The rows that are not healthy."""
        return tuple(row for row in self.rows if not row.report.healthy)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all bugs that were found."""
        return tuple(dict.fromkeys(id for row in self.rows for id in row.report.ids))

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        kinds = [row.report.kind for row in self.rows for _ in row.places]
        if not kinds:
            return f"{self.name}: nothing was found that could be examined"
        count = f"{len(kinds)} part{'s' * (len(kinds) > 1)} examined"
        said = [f"{kinds.count(k)} {k}" for k in ("buggy", "unexplained") if k in kinds]
        found = f"{' and '.join(said)} of " if said else "healthy, "
        return f"{self.name}: {found}{count}"

    def data(self) -> dict[str, Any]:
        """Return the report as plain dictionaries, lists and strings, for `json.dumps`."""
        rows = [
            {"part": r.kind, "where": r.where, "places": list(r.places), **r.report.data()}
            for r in self.rows
        ]
        found = {"name": self.name, "healthy": self.healthy, "rows": rows}
        return {**found, "untried": list(self.untried)}

    def __bool__(self) -> bool:
        if not self.healthy:
            ASKED.append(self)
        return self.healthy

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        kinds = max((len(row.kind) for row in self.rows), default=0)
        wide = min(COLUMNS, max((len(row.where) for row in self.rows), default=0))
        rows = [f"  {row.kind:{kinds}}  {row.where:{wide}}  {row.verdict}" for row in self.rows]
        notes = [f"  Not tried: {words}" for words in self.untried]
        lines = [part for line in (*rows, *notes) for part in wrapped(line)]
        found = [line for row in self.unhealthy for line in ("", row.where, str(row.report))]
        return "\n".join([self.verdict, *lines, *found])


@dataclass(frozen=True)
class Group:
    """Parts that give the same numbers for the same weights and tokens."""

    path: str  # of the first of them: a block, or an attention without one
    sites: list[Site]  # the attentions inside it
    numbers: Tensor  # what it gives
    places: list[str] = field(default_factory=list)  # the paths of all


class Examination:
    """One examination of a copy of a model, with the arguments of `diagnose_model`."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, num_heads: int | None, causal: bool | None
    ) -> None:
        self.model, self.num_heads, self.causal = model, num_heads, causal
        self.recording = find.recorded(model, inputs)
        self.parts, self.calls = self.recording.parts, self.recording.calls
        self.sites = find.sites_of(self.recording)

    def report(self) -> ModelReport:
        """Examine all parts."""
        rows = [*self.patches(), *self.tables()]
        for group in self.groups():
            rows += self.rows(group)
        rows += self.hidden()
        return ModelReport(type(self.model).__name__, tuple(rows), tuple(self.untried(rows)))

    def groups(self) -> list[Group]:
        """Return the blocks, and the attentions without one."""
        held: dict[str, list[Site]] = {}
        for site in self.sites:
            held.setdefault(site.levels[-1] if site.block is None else site.block, []).append(site)
        groups: list[Group] = []
        for path, sites in held.items():
            new = Group(path, sites, self.numbers(path, sites))
            alike = (group for group in groups if module.same(group.numbers, new.numbers))
            group = next(alike, new)
            groups += [new] * (group is new)
            group.places.append(path)
        return groups

    def numbers(self, path: str, sites: list[Site]) -> Tensor:
        """Return what a part gives."""
        own = torch.tensor([float(list(self.parts).index(path))])  # of one that cannot be called
        replay = find.replay_of(self.recording, path, sites)
        if replay is None:
            return own
        patient = module.Patient(WHERE, self.parts[path], replay)
        x = patient.tokens(*replay.sizes(replay.tokens[0]))
        sizes = [replay.sizes(name) for name in replay.context[:1]]
        context = patient.tokens(*sizes[0], seed=9) if sizes else None
        try:
            return patient.run(x, context=context)
        except CallFailed:
            return own

    def rows(self, group: Group) -> Iterator[Row]:
        """Yield the row of a block, or rows of its attentions and of the rest."""
        path, places = group.path, tuple(group.places)
        row = Row("block", places, Report("", False))
        block = None
        if group.sites[0].block is not None:
            block = self.examined(diagnose_block, path, group.sites)
        if block is not None and block.healthy:
            yield replace(row, report=block)
            return
        inner = [self.attention(site, row) for site in group.sites]
        wrong = [one.report.kind for one in inner if not one.report.healthy]
        if block is None or (block.kind == "unexplained" and wrong):
            yield from inner
        elif not wrong or "unexplained" in wrong:
            yield replace(row, report=block)
        else:
            own = {id for one in inner for id in one.report.ids}
            left = [BUGS[id] for id in block.ids if id not in own]
            found = (explain(left, detail=block.explanations[0].detail),) if left else ()
            rest = replace(block, healthy=not left, explanations=found, untried=())
            yield from (*inner, replace(row, kind="rest of block", report=rest))

    def attention(self, site: Site, block: Row) -> Row:
        """Return the row of an attention in a block: at the outermost level that is understood.

        If a level inside has the same bugs, that level is reported.
        """
        level = site.levels[0]
        best = Report(type(self.parts[level]).__name__, False, failing=(NOT_CALLED,))
        for one in site.levels[::-1]:
            report = self.examined(diagnose, one, [site])
            if report is not None and (best.kind == "unexplained" or report.ids == best.ids != ()):
                best, level = report, one
            if best.healthy:
                break
        replay = find.replay_of(self.recording, level, [site])
        kind = "cross-attention" if replay is not None and replay.context else "attention"
        first = block.places[0]
        moved = tuple(f"{other}{level[len(first) :]}".lstrip(".") for other in block.places)
        places = moved if is_inside(level, first) else block.places
        return Row(kind, places, best)

    def examined(
        self, tool: Callable[..., Report], path: str, sites: Sequence[Site]
    ) -> Report | None:
        """Return the report on a part, called as the model called it; None if it cannot be."""
        replay = find.replay_of(self.recording, path, sites)
        if replay is None:
            return None
        b, n, _ = replay.sizes(replay.tokens[0])
        contexts = [replay.sizes(name)[1:] for name in replay.context[:1]]
        options = {"context": contexts[0]} if contexts else {"causal": self.causal}
        # other arguments, such as a mask, may fix the number of samples and tokens
        scores = sites[0].scores
        observed = self.num_heads or (scores[1] if len(scores) == 4 else None)
        counts = dict.fromkeys((self.num_heads, observed))
        for size, heads in product((None, (3, n), (b, n)), counts):
            report = found_by(tool, self.parts[path], heads, call=replay, size=size, **options)
            if report is not None:
                masks = tuple(words for words in report.untried if "mask" in words)
                added = tuple(f"what comes from outside as {name}" for name in replay.zeroed)
                return replace(report, untried=(*masks, *added))
        return None

    def patches(self) -> Iterator[Row]:
        """Yield the parts that cut images into patches, the largest one that is explained."""
        rows: dict[nn.Module, Row] = {}
        for path, call in self.calls.items():
            if any(is_inside(site.levels[0], path) for site in self.sites):
                continue
            for layer, image, side, c in find.cutting(self.parts[path], call):
                if layer not in rows or rows[layer].verdict == "unexplained":
                    given = Replay(call, (image,))
                    size = tuple(call.given[image].shape[2:])
                    report = found_by(
                        diagnose_embedding, self.parts[path], size, side, c, call=given
                    )
                    if report is not None:
                        rows[layer] = Row("patches", (path,), report)
        yield from rows.values()

    def tables(self) -> Iterator[Row]:
        """Yield the tables of sines and cosines that are as wide as tokens."""
        streams = [t for s in self.sites for t in self.calls[s.levels[0]].streams.values()]
        widths = {t.shape[2] for t in streams if t.ndim == 3}
        for name, table in find.tables_of(self.model, widths):
            plain, grid = (diagnose_positions(table, base=base) for base in (10_000.0, 100.0))
            report = grid if grid.healthy and grid.variants else plain  # as images have them
            if report.kind != "unexplained" or 0 < int(table[0].sum()) < table.shape[1]:
                yield Row("positions", (name,), report)

    def hidden(self) -> Iterator[Row]:
        """Yield the parts without an attention whose class is that of a block with one."""
        holding = {p for site in self.sites for p in (site.levels[0], *above(site.levels[0]))}
        blocks = {type(self.parts[site.block]) for site in self.sites if site.block}
        for path in self.calls:
            kind = type(self.parts[path])
            if kind in blocks - {nn.Sequential} and path not in holding:
                yield Row("block", (path,), Report(kind.__name__, False, failing=(HIDDEN,)))

    def untried(self, rows: list[Row]) -> Iterator[str]:
        """Yield what was not examined."""
        notes = {words: row for row in rows[::-1] for words in row.report.untried}
        for row in [row for words, row in notes.items() if "mask" in words][-1:]:
            tool = "diagnose_block" if row.kind == "block" else "diagnose"
            yield f"masks: {tool}(model.get_submodule({row.places[0]!r}), mask=...)"
        yield from (words for words in notes if "comes from outside" in words)
        covered = [place for row in rows for place in row.places]
        holding = [path for path, part in self.parts.items() if [*part.parameters(recurse=False)]]
        open_ = [path for path in holding if not any(is_inside(path, place) for place in covered)]
        left = [path or "the model's own parameters" for path in open_]
        if left:
            more = [f"{len(left) - SHOWN} more"] * (len(left) > SHOWN)
            yield f"other parts: {', '.join([*left[:SHOWN], *more])}"


def found_by(tool: Callable[..., Report], *args: Any, **options: Any) -> Report | None:
    """Return the report of a tool, None where it refuses the part."""
    try:
        return tool(*args, **options)
    except (ValueError, CallFailed, StopIteration):
        return None
