"""A part that is cut out of a block and called by itself, wherever its code stands."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.parcels import Order
from attention_clinic.engine.patient import rebind
from attention_clinic.engine.wiring import Place, Slot, Whole


class Cut(nn.Module):
    """A part of a block, as a module: the block runs, and others' tokens enter the part.

    Args:
        whole: the block.
        paths: the modules that belong to the part.
        entries: the arguments that are exchanged, by the calls that get them.
        end: the call that returns what the part returns.
        parcels: the order in which the part gets its tokens, or None.
        after: what bends what that returns, or None.
    """

    def __init__(
        self,
        whole: Whole,
        paths: list[str],
        entries: dict[Place, dict[Slot, bool]],
        end: Place,
        parcels: Order | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.whole, self.paths = whole, paths  # an object: what it holds is not this module's
        self.bent = (after,)  # for the same reason
        self.entries, self.end, self.parcels = entries, end, parcels
        self.cut_grid: tuple[int, int] | None = None  # rows and columns of the tokens
        self.bare_width = 0
        self._register()

    @property
    def cut_from(self) -> nn.Module:
        """What says what it is: the module that it is, or that it begins with."""
        return self.whole.block.get_submodule(self.paths[0])

    def _register(self) -> None:
        for number, path in enumerate(self.paths):
            names = path.split(".")
            # the last names say what a layer is for: query.0, attention.qkv
            name = "_".join(names[-2:]) if names[-1].isdigit() else names[-1]
            name = name or "part"
            taken = hasattr(self, name)  # by a part, or by what every module has
            name = f"{name}_{number}" if taken else name
            self.add_module(name, self.whole.block.get_submodule(path))

    def project_by_ones(self, width: int) -> None:
        """Hold projections that change nothing, where the part has no weight at all."""
        self.bare_width = width
        for name in ("query", "key", "value"):
            self.register_buffer(f"{name}_weight", torch.eye(width))

    def __deepcopy__(self, memo: dict[int, Any]) -> Cut:
        block = copy.deepcopy(self.whole.block, memo)
        for part in block.modules():
            rebind(part, memo)
        whole = replace(self.whole, block=block)
        after = copy.deepcopy(self.bent[0], memo)
        made = type(self)(whole, self.paths, self.entries, self.end, self.parcels, after)
        made.cut_grid = self.cut_grid
        if self.bare_width:
            made.project_by_ones(self.bare_width)
        made.train(self.training)
        return made

    def between(self, x: Tensor, context: Tensor | None, whole: Whole | None = None) -> Tensor:
        """Return what the part makes of tokens, and of a context, or None."""
        whole = self.whole if whole is None else whole
        made = whole.between(x, context, self.entries, self.end, self.parcels)
        return made if self.bent[0] is None else self.bent[0](made)

    def forward(self, x: Tensor) -> Tensor:
        return self.between(x, None)


class CutAcross(Cut):
    """Such a part that reads a context, too."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.between(x, context)


class CutMasked(Cut):
    """An attention of a block, which takes the mask that the block hands on to it."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.between(x, None, _with_mask(self.whole, mask, False))


class CutMaskedAcross(Cut):
    """Such an attention that reads a context, too, and takes the mask of that."""

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.between(x, context, _with_mask(self.whole, mask, True))


def _with_mask(whole: Whole, mask: Tensor | None, crossed: bool) -> Whole:
    """Return a block that is called with another mask, of its tokens or of its context."""
    return replace(whole, run=partial(whole.run, tried=(mask, crossed)))


KINDS: dict[tuple[bool, bool], type[Cut]] = {  # by whether it reads a context, and takes a mask
    (False, False): Cut,
    (True, False): CutAcross,
    (False, True): CutMasked,
    (True, True): CutMaskedAcross,
}
