"""The stacks of a model: which layers they hold, and what each of them reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.recording import Call, Recording
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.sites import Site
from attention_clinic.examine.never_called import never_called
from attention_clinic.examine.stack import share, start_alike


def stacks_of(
    model: nn.Module,
    sites: list[Site],
    recording: Recording,
    again: Callable[[], Tensor | None],
) -> Iterator[tuple[str, Report | None, str]]:
    """Yield each list of layers that attend: its path, its mistakes or None, what was checked.

    Then comes what holds attentions, stands in no list, and never runs.

    Args:
        model: the copy, with the weights of the original.
        sites: its attentions.
        recording: of its run.
        again: runs it once more.
    """
    names = {id(part): path for path, part in model.named_modules()}
    held = {site.block or site.levels[-1] for site in sites}
    idle = never_called(model, sites, recording, again)
    for path, part in model.named_modules():
        if not isinstance(part, nn.ModuleList | nn.Sequential) or len(part) < 2:
            continue
        layers = [layer for layer in part if isinstance(layer, nn.Module)]
        if not all(names.get(id(layer)) in held for layer in layers):
            continue
        ids, detail = idle.pop(path, ([], ""))
        if share(layers):
            ids.append("layers-shared")
        elif start_alike(layers):
            ids.append("layers-same-init")
        calls = [recording.calls.get(names[id(layer)]) for layer in layers]
        words = ""
        if all(call is not None and call.result is not None for call in calls):
            if all(_reads(after, before) for before, after in pairwise(calls)):
                words = f"{path}: {len(layers)} layers, each reads what the one before it returned"
            elif _all_read_the_same(calls) and _unheard(layers[0], again):
                ids.append("stack-last-only")
        name = f"{type(part).__name__} of {type(layers[0]).__name__}"
        yield path, _report(name, ids, detail) if ids else None, words
    for path, (ids, detail) in idle.items():
        yield path, _report(type(model.get_submodule(path)).__name__, ids, detail), ""


def _report(name: str, ids: list[str], detail: str) -> Report:
    return Report(name, False, (explain([BUGS[id] for id in ids], detail=detail),))


def _tensor(call: Call) -> Tensor | None:
    values = call.given.values()
    return next((v for v in values if isinstance(v, Tensor) and v.is_floating_point()), None)


def _reads(after: Call, before: Call) -> bool:
    given = _tensor(after)
    try:
        made = first_tensor(before.result)
    except TypeError:
        return False
    return given is not None and given.shape == made.shape and torch.equal(given, made)


def _all_read_the_same(calls: list[Call]) -> bool:
    given = [_tensor(call) for call in calls]
    return all(t is not None and t is given[0] for t in given)


def _unheard(layer: nn.Module, again: Callable[[], Tensor | None]) -> bool:
    """Say whether the model does not hear what a layer returns."""
    y = again()

    def noise(module: nn.Module, args: Any, result: Any) -> Any:
        if isinstance(result, Tensor):
            return result + 1
        return (result[0] + 1, *result[1:]) if isinstance(result, tuple) else result

    handle = layer.register_forward_hook(noise)
    try:
        other = again()
    finally:
        handle.remove()
    return y is not None and other is not None and torch.equal(y, other)
