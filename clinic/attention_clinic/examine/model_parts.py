"""The parts of a model around its blocks: patches, tables of positions, the loss."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import ROTARY
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.recording import Call, Recording
from attention_clinic.engine.replay import cast
from attention_clinic.engine.report import Report, likelier
from attention_clinic.engine.sites import Site
from attention_clinic.examine.embedding import diagnose_embedding
from attention_clinic.examine.entering import front_of
from attention_clinic.examine.loss import diagnose_loss
from attention_clinic.examine.model_places import places_of
from attention_clinic.examine.positions import diagnose_positions

PLACES = re.compile(  # what a table of sines is called
    r"_?(w?pe|(\w+_)?pos(ition)?(al|s)?(_?(enc(oding)?|emb(ed(ding)?)?)s?)?|sinusoid\w*)(_?table)?"
)
OWN = "the model's own parameters"
LABELS = ("labels", "targets", "target", "label", "lm_labels", "y", "tgt_labels")


def patches_of(
    model: nn.Module, recording: Recording, sites: Sequence[Site], covered: set[str]
) -> Iterator[tuple[str, Report]]:
    """Yield the parts that cut images into patches, with what was found.

    Where no part does, it is what the model does before its first block, if that is understood.

    Args:
        model: the copy.
        recording: of its run.
        sites: its attentions.
        covered: gets the parts that a model uses before its first block, where these are examined.
    """
    parts = dict(model.named_modules())
    paths = {site.levels[0] for site in sites}
    found: dict[str, list[tuple[str, str, tuple[int, int]]]] = {}
    for path, part in parts.items():
        inside = any(not path or site == path or site.startswith(f"{path}.") for site in paths)
        cut = None if inside else _cut(part, recording.calls.get(path))
        if cut is not None:
            name, patch, cutter = cut
            found.setdefault(cutter, []).append((path, name, patch))
    for levels in found.values():
        best: tuple[str, Report] | None = None
        for path, name, patch in levels:  # the largest first, with class token and positions
            call = recording.calls[path]
            images = call.given[name]
            report = _patched(parts[path], call, name, images, patch)
            if report is not None:
                best = path, report
                if report.healthy or report.explanations:
                    break
        if best is not None:
            yield best
    if found or not _images(recording.calls.get("")):
        return
    front, call = front_of(model, recording, sites) or (None, None)
    cut = _cut(front, call)
    if front is not None and front.is_alone and call is not None and cut is not None:
        name, patch, _ = cut
        report = _patched(front, call, name, call.given[name], patch)
        if report is not None and (report.healthy or report.explanations):
            covered |= {path or OWN for path in front.used}
            yield "", replace(report, name=type(model).__name__)


def _images(call: Call | None) -> dict[str, Tensor]:
    """Return the arguments of a call that hold images."""
    given = {} if call is None else call.given
    return {n: t for n, t in given.items() if isinstance(t, Tensor) and t.ndim == 4}


def _cut(part: nn.Module | None, call: Call | None) -> tuple[str, tuple[int, int], str] | None:
    """Return the argument with the images, the size of a patch, and the layer that cuts."""
    if part is None or call is None or call.result is None:
        return None
    images = _images(call)
    try:
        y = first_tensor(call.result)
    except TypeError:
        return None
    if y.ndim != 3 or len(images) != 1:
        return None
    name, image = next(iter(images.items()))
    c, height, width = image.shape[1:]
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride != (1, 1):
            ph, pw = layer.kernel_size
            if layer.in_channels == c and (height // ph) * (width // pw) in _counts(y):
                return name, (ph, pw), f"{id(layer)}"
        if isinstance(layer, nn.Linear) and c and layer.in_features % c == 0:
            side = math.isqrt(layer.in_features // c)
            square = side > 1 and side * side * c == layer.in_features
            if square and (height // side) * (width // side) in _counts(y):
                return name, (side, side), f"{id(layer)}"
    return None


def _counts(y: Tensor) -> tuple[int, int]:
    """Return how many patches there may be: all tokens, or all but a class token."""
    return y.shape[1], y.shape[1] - 1


def _patched(
    part: nn.Module, call: Call, name: str, images: Tensor, patch: tuple[int, int]
) -> Report | None:
    def again(module: nn.Module, x: Tensor) -> Tensor:
        given = {n: x if n == name else cast(v, x.dtype) for n, v in call.given.items()}
        placed = [given.pop(n) for n in call.order]
        return first_tensor(module(*placed, **given))

    height, width = images.shape[2:]
    try:
        return diagnose_embedding(part, (height, width), patch, images.shape[1], call=again)
    except ValueError:
        return None


def tables_of(
    model: nn.Module, recording: Recording, sites: Sequence[Site]
) -> Iterator[tuple[str, Report]]:
    """Yield the tables of sines and cosines that a model holds, with what was found.

    A table that is none by its numbers and one by its name is yielded where a mistake is found,
    and so is one, learned or not, that a model adds to all its tokens alike.

    Args:
        model: the copy.
        recording: of its run.
        sites: its attentions.
    """
    held = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    named = [name for name in held if any(map(_is_of_places, name.lower().split(".")))]
    wrong = dict(places_of(model, recording, sites, named))
    yield from wrong.items()
    for name, table in _tables(model):
        if name in wrong:
            continue
        if _waves(name, table):
            yield name, diagnose_positions(table)
        elif _says_places(name, table) and bool(table.any()):
            report = diagnose_positions(table)
            if report.explanations:
                yield name, report


def _tables(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tables that a model holds and does not learn, with their names."""
    seen: set[int] = set()
    fixed = [(n, p) for n, p in model.named_parameters() if not p.requires_grad]
    named = [(n, t) for path, part in model.named_modules() for n, t in _own(path, part)]
    for name, table in [*named, *fixed]:
        if not isinstance(table, Tensor) or not table.is_floating_point() or id(table) in seen:
            continue
        seen.add(id(table))
        flat = table.squeeze()
        if flat.ndim == 2:
            yield name, flat


def _own(path: str, part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    held = dict(part.named_buffers(recurse=False))
    held |= {n: t for n, t in vars(part).items() if isinstance(t, Tensor)}
    yield from ((f"{path}.{name}".lstrip("."), tensor) for name, tensor in held.items())


def _waves(name: str, table: Tensor) -> bool:
    """Say whether a table is one of sines and cosines: it begins with zeros and ones."""
    n, e = table.shape
    if ROTARY.search(name.rpartition(".")[2]) or n < 3 or e < 4 or not table.isfinite().all():
        return False
    table = table.double()
    ends = (table[0].abs() < 1e-6) | ((table[0] - 1).abs() < 1e-6)
    moves = bool((table[1:] - table[:-1]).abs().max() > 0.1)
    mixed = 0 < int((table[0] > 0.5).sum()) < e
    varied = table[1].unique().numel() > 3
    return bool(ends.all()) and mixed and moves and varied and bool(table.abs().max() < 1 + 1e-6)


def _is_of_places(name: str) -> bool:
    """Say whether a part, or a table, has the name of places."""
    return PLACES.fullmatch(name) is not None


def _says_places(name: str, table: Tensor) -> bool:
    """Say whether a table has the name of places, and numbers that sines may be."""
    if not _is_of_places(name.rpartition(".")[2].lower()) or min(table.shape) < 4:
        return False
    return bool(table.isfinite().all()) and bool(table.abs().max() < 1 + 1e-6)


def loss_of(model: nn.Module, recording: Recording) -> tuple[str, Report] | None:
    """Return the loss that a model takes of its own scores, with what was found; None for none.

    The layer that makes the scores is made to return other ones, so that the loss gets them.

    Args:
        model: the copy.
        recording: of its run.
    """
    for path, part in model.named_modules():
        kind = type(part).__name__.lower()
        own = not any(True for _ in part.parameters())
        if path and own and re.search(r"loss|criterion|crossentropy", kind):
            return _of_module(path, part)
    try:
        names = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return None
    label = next((name for name in LABELS if name in names), None)
    call = recording.calls.get("")
    ids = None if call is None else next(iter(call.given.values()), None)
    if label is None or not isinstance(ids, Tensor) or ids.is_floating_point():
        return None
    head, count = _head(model, recording)
    if head is None:
        return None
    first = next(iter(call.given))

    def taken(scores: Tensor, classes: Tensor) -> Tensor:
        hook = head.register_forward_hook(lambda *_: scores)
        try:
            result = model(**{first: classes % 3, label: classes})
        finally:
            hook.remove()
        values = list(result.values()) if isinstance(result, dict) else list(result)
        losses = [t for t in values if isinstance(t, Tensor) and t.ndim == 0]
        return losses[0]

    def of_rows(scores: Tensor, classes: Tensor) -> Tensor:
        return taken(scores[None], classes[None])

    reports = []
    for function, shifts in ((of_rows, False), (taken, True)):
        try:
            with torch.no_grad():
                report = diagnose_loss(function, count, next_token=shifts)
        except (ValueError, IndexError, RuntimeError):
            continue
        if report.healthy:
            return label, _told(report, shifts)
        reports.append(report)
    named = [report for report in reports if report.explanations]
    if not named:
        return None
    return label, _told(named[0] if len(named) == 1 else likelier(*named), True)


def _told(report: Report, shifts: bool) -> Report:
    """Return a report of the loss under its name, and say who shifts."""
    untried = report.untried
    if not shifts:
        untried = ("whether the targets are the next tokens: the model takes them as they are",)
    return Report(
        "loss", report.healthy, report.explanations, report.failing, report.checked, untried,
        report.remarks, report.variants,
    )  # fmt: skip


def _of_module(path: str, part: nn.Module) -> tuple[str, Report] | None:
    try:
        with torch.no_grad():
            report = diagnose_loss(part)
    except Exception:
        return None
    return (path, report) if report.healthy or report.explanations else None


def _head(model: nn.Module, recording: Recording) -> tuple[nn.Module | None, int]:
    """Return the layer whose result the model returns as its scores, (b, n, k), and k."""
    result: Any = recording.calls[""].result
    try:
        scores = first_tensor(result)
    except TypeError:
        return None, 0
    parts = dict(model.named_modules())
    for path, call in reversed(recording.calls.items()):
        layer = parts[path]
        if not isinstance(layer, nn.Linear) or not isinstance(call.result, Tensor):
            continue
        if scores.ndim == 3 and call.result.shape == scores.shape:
            same = torch.equal(call.result, scores)
            return (layer, scores.shape[-1]) if same else (None, 0)
    return None, 0


def untold(model: nn.Module, covered: set[str], recording: Recording) -> list[str]:
    """Return the parts with parameters, and the tables, that nothing examined, in this order.

    Args:
        model: the copy.
        covered: paths of what was examined.
        recording: of its run.
    """
    left: list[str] = []
    for path, part in model.named_modules():
        own, name = any(True for _ in part.parameters(recurse=False)), path or OWN
        under = any(name == c or path.startswith(f"{c}.") or not c for c in covered)
        if own and not under:
            left.append(name)
    tables = [name for name, table in _tables(model) if _says_places(name, table)]
    under = tuple(f"{c}." for c in covered if c)
    left += [n for n in tables if n not in covered and not n.startswith(under)]
    return list(dict.fromkeys(left))
