"""The attentions and blocks of a model that its run never reaches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attention_clinic.engine.mentions import has_options, is_mentioned
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.sites import Site, above
from attention_clinic.examine.unlearned import listed


def never_called(
    model: nn.Module,
    sites: list[Site],
    recording: Recording,
    again: Callable[[], Tensor | None],
) -> dict[str, tuple[list[str], str]]:
    """Return where parts that hold attentions never run: the ids of it, and what is said.

    What code asks for elsewhere, what an argument that got nothing may ask for, or the data of
    another run, is left out.

    Args:
        model: the copy, with the weights of the original.
        sites: its attentions.
        recording: of its run.
        again: runs it once more, None where it does not run.
    """
    idle = dict.fromkeys(_highest(site.levels[0], recording) for site in sites)
    parts = dict(model.named_modules())
    groups: dict[str, list[str]] = {}
    for path in filter(None, idle):
        around, _, name = path.rpartition(".")
        owner = around.rpartition(".")[0] if name.isdigit() else around
        if isinstance(parts[around], nn.ModuleDict):
            continue  # a name chooses
        free = _may_be_asked_for(model, ("", owner), recording) or _data_choose(owner, recording)
        if not (free or is_mentioned(path, model)):
            groups.setdefault(around if name.isdigit() else path, []).append(path)
    if not groups or _move(model, [path for paths in groups.values() for path in paths], again):
        return {}
    found = {}
    for place, paths in groups.items():
        words = f"{listed(paths)} {'is' if len(paths) == 1 else 'are'} never called"
        first = recording.calls.get(f"{place}.0")
        instead = first is not None and first.count == len(list(parts[place].children()))
        found[place] = ["layers-shared"] * instead + ["part-unused"], words
    return found


def _highest(path: str, recording: Recording) -> str:
    """Return the outermost part around an attention in which nothing ran, "" where it ran."""
    found = ""
    for place in (path, *above(path)):
        if not place or any(f"{ran}.".startswith(f"{place}.") for ran in recording.calls):
            break
        found = place
    return found


def _may_be_asked_for(model: nn.Module, paths: tuple[str, ...], recording: Recording) -> bool:
    """Say whether an argument that got nothing may ask for a part; a mask does not."""
    for path in paths:
        given = recording.calls[path].given if path in recording.calls else {}
        filled = {name for name, value in given.items() if value is not None}
        if has_options(model.get_submodule(path), filled, beside="mask"):
            return True
    return False


def _data_choose(owner: str, recording: Recording) -> bool:
    """Say whether code of a part, of one around it or in it, asked its data what comes next."""
    kin = {owner, *above(owner)} if owner else {""}
    return any(path in kin or not owner or path.startswith(f"{owner}.") for path in recording.asked)


@torch.no_grad()
def _move(model: nn.Module, paths: list[str], again: Callable[[], Tensor | None]) -> bool:
    """Say whether other numbers in some parts give the model another result, or may do so."""
    first = again()
    held = {p for path in paths for p in model.get_submodule(path).parameters()}
    before = {p: p.clone() for p in held if p.is_floating_point()}
    for p in before:
        p.copy_(torch.sin(torch.arange(p.numel(), device=p.device) + 1.0).view(p.shape))
    second = again()
    for p, numbers in before.items():
        p.copy_(numbers)
    return first is None or second is None or not torch.equal(first, second)
