"""What enters the first block of a model: tokens with their places, made by the model itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attention_clinic.engine.modes import wanting_gradients
from attention_clinic.engine.recording import Call, Recording
from attention_clinic.engine.sites import Site
from attention_clinic.engine.tape import tensors_in


class _Reached(Exception):
    """The run arrived.

    Args:
        tokens: (b, n, e), what arrived.
    """

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.tokens = tokens


def _stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _Reached(_tokens_in((args, kwargs)))


class _Stop(nn.Module):
    """Stands in the place of the first block, and ends the run."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Raise what came in."""
        _stop(self, args, kwargs)


class Front(nn.Module):
    """What a model does before its first block, without the layers that it needs later.

    Args:
        model: the copy, which stays as it is.
        path: of the first block.
        given: what the model is called with.

    Attributes:
        used: paths of the parts whose parameters reach the first block.
        is_alone: whether it runs without all others.
    """

    def __init__(self, model: nn.Module, path: str, given: dict[str, Any]) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        stop = self._ended_at(path)
        held = dict(self.model.named_parameters())
        with torch.enable_grad(), wanting_gradients(held.values()):
            total = self(**given).double().square().sum()
            grads = torch.autograd.grad(total, [*held.values()], allow_unused=True)
        used = {id(p) for p, grad in zip(held.values(), grads, strict=True) if grad is not None}
        self.used: list[str] = []
        later: list[str] = []
        for name, part in self.model.named_modules():
            own = {id(p) for p in part.parameters(recurse=False)}
            if own & used:
                self.used.append(name)
            elif name and own:
                later.append(name)
        stop.remove()
        whole = self.model
        self.model = copy.deepcopy(whole)
        for name in later:
            self.model.set_submodule(name, nn.Identity())
        self.model.set_submodule(path, _Stop())
        try:
            self(**given)
            self.is_alone = True
        except Exception:  # it asks the others for something else than numbers, such as their type
            self.model, self.is_alone = whole, False
            self._ended_at(path)

    def _ended_at(self, path: str) -> RemovableHandle:
        """Let the run end where a part begins."""
        part = self.model.get_submodule(path)
        return part.register_forward_pre_hook(_stop, with_kwargs=True)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return what enters the first block."""
        try:
            self.model(*args, **kwargs)
        except _Reached as reached:
            return reached.tokens
        raise ValueError("the first block was not reached")


def front_of(
    model: nn.Module, recording: Recording, sites: Sequence[Site]
) -> tuple[Front, Call] | None:
    """Return what a model does before its first block, and its call; None where there is none.

    Args:
        model: the copy.
        recording: of its run.
        sites: its attentions.
    """
    blocks = {site.block for site in sites if site.block}
    path = next((path for path in recording.calls if path in blocks), None)
    whole = recording.calls.get("")
    if path is None or whole is None:
        return None
    try:
        front = Front(model, path, whole.given)
        with torch.no_grad():
            return front, Call(whole.given, whole.order, front(**whole.given))
    except Exception:  # what else the model does with its blocks is not followed
        return None


def _tokens_in(given: Any) -> Tensor:
    return next(t for t in tensors_in(given) if t.ndim == 3 and t.is_floating_point())
