"""`diagnose_model`: examine the attentions, blocks, patches, positions and loss of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.attention.tool import diagnose
from attention_clinic.blocks.tool import diagnose_block
from attention_clinic.capture import module
from attention_clinic.capture.calling import parameters_of
from attention_clinic.capture.module import CallFailed, first_line, place
from attention_clinic.capture.tape import tensors_in
from attention_clinic.catalogue.forms import BUGS
from attention_clinic.embedding import diagnose_embedding
from attention_clinic.losses import diagnose_loss
from attention_clinic.models import find
from attention_clinic.models.find import Call, Recording, Replay, Site, above, is_inside
from attention_clinic.models.report import ModelReport, Row
from attention_clinic.positions import diagnose_positions
from attention_clinic.report import Report, explain

WHERE = "diagnose_model"
LABELS = ("labels", "targets", "target", "label", "lm_labels", "y", "tgt_labels")
MANY = 512  # tokens: with more of them, an examination takes minutes
SHARED = 0.25  # of the numbers of a layer: a smaller part may be shared on purpose
SHOWN = 6  # parts that nothing examined, by name
NOT_CALLED = "the clinic can call it: try num_heads=..., or diagnose(part, call=...)"
HIDDEN = "an attention was found in it, as in the others of its list"
MIXING = "samples stay apart: changing one changes what the model says of another"
AHEAD = "the future is hidden: the loss predicts the next token; {} sees it"
AS_GIVEN = "whether the targets are the next tokens: the model takes them as they are"
Inputs = Tensor | Sequence[Any] | Mapping[str, Any] | None


def diagnose_model(
    model: nn.Module,
    inputs: Inputs = None,
    *,
    num_heads: int | None = None,
    causal: bool | None = None,
) -> ModelReport:
    """Examine every attention, block, patch embedding, table of sines and the loss of a model.

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
        report: ModelReport | ValueError
        try:
            report = Examination(made, inputs, num_heads, causal).report()
            if any(row.places != ("",) or row.verdict != "unexplained" for row in report.rows):
                return report
        except ValueError as error:
            if inputs is not None:
                raise
            report = error
        for kind, tool in (("attention", diagnose), ("block", diagnose_block)):
            alone = found_by(tool, plain, num_heads, causal=causal)
            if alone is not None and alone.kind != "unexplained":
                return ModelReport(type(plain).__name__, (Row(kind, ("",), alone),))
        if isinstance(report, ValueError):
            raise report
        return report


class Examination:
    """One examination of a copy of a model, with the arguments of `diagnose_model`."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, num_heads: int | None, causal: bool | None
    ) -> None:
        self.model, self.num_heads, self.causal = model, num_heads, causal
        self.recording, self.given = recorded(model, inputs)
        self.parts, self.calls = self.recording.parts, self.recording.calls
        self.sites = find.sites_of(self.recording)
        self.hiding: set[str] = set()  # paths of parts whose tokens do not depend on later ones

    def report(self) -> ModelReport:
        """Examine all parts."""
        rows = [*self.patches(), *self.tables()]
        for path, places, sites, _ in self.groups():
            rows += self.rows(path, tuple(places), sites)
        rows += [*self.stacks(), *self.loss()]
        failing = [MIXING] * self.mixes()
        for loss in [row for row in rows if row.kind == "loss" and row.report.healthy]:
            if "next token" in " ".join(loss.report.checked):
                open_ = (row for row in rows if not row.is_causal)
                kinds = ("block", "attention")
                failing += [AHEAD.format(row.where) for row in open_ if row.kind in kinds]
        name, untried = type(self.model).__name__, tuple(self.untried(rows))
        return ModelReport(name, tuple(rows), tuple(failing), (), untried)

    def groups(self) -> list[tuple[str, list[str], list[Site], Tensor]]:
        """Return blocks, and attentions without one: path, paths of all alike, attentions inside.

        Alike are parts that give the same numbers for the same weights and tokens.
        """
        held: dict[str, list[Site]] = {}
        for site in self.sites:
            held.setdefault(site.levels[-1] if site.block is None else site.block, []).append(site)
        groups: list[tuple[str, list[str], list[Site], Tensor]] = []
        for number, (path, sites) in enumerate(held.items()):
            numbers = torch.tensor([float(number)])  # of a part that cannot be called
            if (replay := find.replay_of(self.recording, path, sites)) is not None:
                patient = module.Patient(WHERE, self.parts[path], replay)
                x = patient.tokens(*replay.sizes(replay.tokens[0]))
                sizes = [replay.sizes(name) for name in replay.context[:1]]
                context = patient.tokens(*sizes[0], seed=9) if sizes else None
                try:
                    numbers = patient.run(x, context=context)
                    x[:, -1] = x[:, -1].flip(-1)
                    later = patient.run(x, context=context)
                    if numbers.shape == x.shape and module.same(numbers[:, :-1], later[:, :-1]):
                        self.hiding.add(path)
                except CallFailed:
                    pass
            alike = [group for group in groups if module.same(group[3], numbers)]
            if alike:
                alike[0][1].append(path)
            else:
                groups.append((path, [path], sites, numbers))
        return groups

    def rows(self, path: str, places: tuple[str, ...], sites: list[Site]) -> Iterator[Row]:
        """Yield the row of a block, or rows of its attentions and of the rest."""
        alone = sites[0].block is None
        block = None if alone else self.examined(diagnose_block, path, sites)
        if block is not None and block.healthy:
            yield Row("block", places, block)
            return
        inner = [self.attention(site, path, places) for site in sites]
        kinds = {row.report.kind for row in inner}
        buggy, unknown = kinds & {"buggy", "unexplained"}, "unexplained" in kinds
        if alone and unknown:
            block = self.examined(diagnose_block, path, sites)
        if block is None or (block.kind == "unexplained" and (alone or buggy)):
            yield from inner
        elif unknown or not buggy:
            yield Row("block", places, block)
        else:
            own = {id for row in inner for one in row.report.explanations for id in one.ids}
            left = [BUGS[id] for id in block.ids if id not in own]
            found = (explain(left, detail=block.explanations[0].detail),) if left else ()
            rest = replace(block, healthy=not left, explanations=found, untried=())
            yield from (*inner, Row("rest of block", places, rest))

    def attention(self, site: Site, path: str, places: tuple[str, ...]) -> Row:
        """Return the row of an attention, at the level that is healthy or explained.

        Inside a block this is the first such level from the inside. Alone, it is the outermost
        one, or the innermost one with the same bugs.
        """
        alone, level = site.block is None, site.levels[0]
        best = Report(type(self.parts[level]).__name__, False, failing=(NOT_CALLED,))
        for one in site.levels[::-1] if alone else site.levels:
            report = self.examined(diagnose, one, [site])
            if report is None or (best.explanations and report.ids != best.ids):
                continue
            if best.failing == (NOT_CALLED,) or report.kind != "unexplained":
                best, level = report, one
            if report.healthy or (report.explanations and not alone):
                break
        replay = find.replay_of(self.recording, level, [site])
        kind = "cross-attention" if replay is not None and replay.context else "attention"
        moved = tuple(f"{other}{level[len(path) :]}".lstrip(".") for other in places)
        return Row(kind, moved if is_inside(level, path) else places, best)

    def examined(
        self, tool: Callable[..., Report], path: str, sites: Sequence[Site]
    ) -> Report | None:
        """Return the report on a part, called as the model called it; None if it cannot be."""
        replay, scores = find.replay_of(self.recording, path, sites), sites[0].scores
        if replay is None:
            return None
        b, n, _ = replay.sizes(replay.tokens[0])
        contexts = [replay.sizes(name)[1:] for name in replay.context[:1]]
        options = {"context": contexts[0]} if contexts else {"causal": self.causal}
        ways: list[dict[str, Any]] = [{"call": replay}, {"call": replay, "size": (3, n)}]
        if replay.is_sized:  # with many tokens it is called as its signature says, with few
            ways = [{"call": replay, "size": (b, n)} if n <= MANY else {}]
        heads = (self.num_heads, self.num_heads or (scores[1] if len(scores) == 4 else None))
        for way, h in product(ways, dict.fromkeys(heads)):
            report = found_by(tool, self.parts[path], h, **options, **way)
            if report is not None:
                masks = tuple(words for words in report.untried if "mask" in words)
                added = tuple(f"what comes from outside as {name}" for name in replay.zeroed)
                checked = dict.fromkeys((*report.checked, *["causal"] * (path in self.hiding)))
                return replace(report, checked=tuple(checked), untried=(*masks, *added))
        return None

    def patches(self) -> Iterator[Row]:
        """Yield the parts that cut images into patches, the largest one that is explained."""
        rows: dict[nn.Module, Row] = {}
        for path, call in self.calls.items():
            images = [name for name, t in call.streams.items() if t.ndim == 4]
            inside = any(is_inside(site.levels[0], path) for site in self.sites)
            if len(images) != 1 or call.output is None or call.output.ndim != 3 or inside:
                continue
            c, *size = call.given[images[0]].shape[1:]
            for layer in self.parts[path].modules():
                side = math.isqrt(layer.in_features // c) if isinstance(layer, nn.Linear) else 0
                if isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride:
                    side = layer.stride[0]
                if side < 2 or call.output.shape[1] - math.prod(s // side for s in size) not in (
                    0,
                    1,
                ):
                    continue
                given, known = Replay(call, (images[0],)), rows.get(layer)
                report = found_by(
                    diagnose_embedding, self.parts[path], tuple(size), side, c, call=given
                )
                if report is not None and (known is None or known.verdict == "unexplained"):
                    rows[layer] = Row("patches", (path,), report)
        yield from rows.values()

    def tables(self) -> Iterator[Row]:
        """Yield the tables of sines and cosines that are as wide as tokens."""
        held = [*self.model.named_parameters(), *self.model.named_buffers()]
        for path, part in self.parts.items():
            held += [(f"{path}.{name}".lstrip("."), value) for name, value in vars(part).items()]
        streams = [t for s in self.sites for t in self.calls[s.levels[0]].streams.values()]
        widths = {t.shape[2] for t in streams if t.ndim == 3}
        for name, value in held:
            table = value.detach().squeeze() if isinstance(value, Tensor) else torch.zeros(1)
            if table.ndim != 2 or table.shape[1] not in widths or table.unique().numel() < 5:
                continue
            at_zero = (table[0].abs() < 1e-6) | ((table[0] - 1).abs() < 1e-6)
            if not bool(at_zero.all()) or float(table.abs().max()) > 1 + 1e-6:
                continue
            plain, grid = (diagnose_positions(table, base=base) for base in (10_000.0, 100.0))
            report = grid if grid.healthy and grid.variants else plain  # as images have them
            if report.kind != "unexplained" or 0 < int((table[0] > 0.5).sum()) < table.shape[1]:
                yield Row("positions", (name,), report)

    def stacks(self) -> Iterator[Row]:
        """Yield what is wrong in lists of layers."""
        names = {id(part): path for path, part in self.parts.items()}
        outer = {site.block or site.levels[-1] for site in self.sites}
        holding = {p for site in self.sites for p in (site.levels[0], *above(site.levels[0]))}
        blocks = {type(self.parts[site.block]) for site in self.sites if site.block}
        for path, part in self.parts.items():
            layers = list(part) if isinstance(part, nn.ModuleList | nn.Sequential) else []
            own = [names[id(layer)] for layer in layers]
            if len(layers) < 2 or not outer & {*own}:
                continue
            for name, layer in zip(own, layers, strict=True):
                if name in self.calls and name not in holding and type(layer) in blocks:
                    yield Row("block", (name,), Report(type(layer).__name__, False, (), (HIDDEN,)))
            id_ = mistake_of(layers)
            if id_:
                name = f"{type(part).__name__} of {type(layers[0]).__name__}"
                found = explain([BUGS[id_]])
                yield Row("stack", (path,), Report(name, False, (found,)))

    def loss(self) -> Iterator[Row]:
        """Yield the row of the loss that a model computes from its own logits.

        A hook on the layer that makes the logits replaces them, so that the loss gets other ones.
        """
        (first, ids), returned = next(iter(self.given.items())), self.calls[""].output
        made = {p: c.output for p, c in self.calls.items() if isinstance(self.parts[p], nn.Linear)}
        heads = [self.parts[path] for path, y in made.items() if y is returned is not None]
        labels = [name for name in LABELS if name in parameters_of(self.model)]
        is_ids = isinstance(ids, Tensor) and not ids.is_floating_point()
        if not labels or not heads or returned.ndim != 3 or not is_ids:
            return

        def loss(logits: Tensor, classes: Tensor) -> Tensor:
            if logits.ndim == 2:
                logits, classes = logits[None], classes[None]
            with heads[-1].register_forward_hook(lambda *_: logits):
                result = find.run(self.model, {first: classes % 3, labels[0]: classes})
            return next(t for t in tensors_in(result) if t.ndim == 0)

        reports: list[Report] = []
        for next_token, untried in ((False, (AS_GIVEN,)), (True, ())):
            report = found_by(diagnose_loss, loss, heads[-1].out_features, next_token=next_token)
            if report is not None and report.kind != "unexplained":
                reports.append(replace(report, name="loss", untried=untried))
        if reports:
            yield Row("loss", (labels[0],), min(reports, key=lambda report: len(report.ids)))

    def mixes(self) -> bool:
        """Return whether changing the first image changes what the model says of another."""
        images = {n: t for n, t in self.given.items() if isinstance(t, Tensor) and t.ndim == 4}
        changed = {name: torch.cat([t[:1].flip(-1), t[1:]]) for name, t in images.items()}
        results = [find.run(self.model, self.given | more) for more in ({}, {}, changed) if images]
        y, again, other = [Call({}, (), one).output for one in results] or [None] * 3
        if y is None or not module.same(y, again):
            return False
        difference = (y - other).abs() > 1e-4 + 1e-3 * y.abs()
        axes = [axis for axis, size in enumerate(y.shape) if {size} == {*map(len, images.values())}]
        return bool(axes) and all(bool(difference.movedim(axis, 0)[1:].any()) for axis in axes)

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
        more = [f"{len(left) - SHOWN} more"] * (len(left) > SHOWN)
        if left:
            yield f"other parts: {', '.join([*left[:SHOWN], *more])}"


def found_by(tool: Callable[..., Report], *args: Any, **options: Any) -> Report | None:
    """Return the report of a tool, None where it refuses the part."""
    try:
        return tool(*args, **options)
    except (ValueError, CallFailed, StopIteration):
        return None


def mistake_of(layers: list[nn.Module]) -> str:
    """Return the mistake that the weights of layers show, "" for none."""
    held = [[p for p in layer.parameters() if p.ndim > 1] for layer in layers]
    for mine, before in zip(held[1:], held, strict=False):
        known = sum(p.numel() for p in mine if any(p is other for other in before))
        if known > SHARED * sum(p.numel() for p in mine):
            return "layers-shared"
    shapes = [[p.shape for p in mine] for mine in held]
    random = [n for n, p in enumerate(held[0]) if p.unique().numel() > 2]
    if not random or any(other != shapes[0] for other in shapes):
        return ""
    alike = all(torch.equal(mine[n], held[0][n]) for mine in held for n in random)
    return "layers-same-init" if alike else ""


def recorded(model: nn.Module, inputs: Inputs) -> tuple[Recording, dict[str, Any]]:
    """Return a run of a model on inputs that it takes, and these inputs."""
    names = parameters_of(model)
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    named = inputs if isinstance(inputs, Mapping) else dict(zip(names, values, strict=False))
    best, why = None, ""
    for given in find.inputs_of(model) if inputs is None else [dict(named)]:
        try:
            with Recording(model) as recording:
                output = Call({}, (), find.run(model, given)).output
        except CallFailed as failed:
            error = failed.error
            why = why or f"{type(error).__name__}: {first_line(error)}{place(error)}"
            continue
        usable = not recording.uniform and (output is None or bool(output.isfinite().all()))
        best = (recording, given) if best is None or usable else best
        if usable:
            break
    if best is None:
        raise ValueError(
            f"{WHERE}: {type(model).__name__} must run on its inputs, got {why or 'none'}. Pass "
            f"what you call it with: diagnose_model(model, inputs=({', '.join(names)},))."
        )
    return best
