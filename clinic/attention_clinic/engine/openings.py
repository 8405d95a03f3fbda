"""Masks that block nothing, for modules that do not run without a mask."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SHAPES = ("b 1 1 j", "b 1 j", "b i j", "i j", "b 1 i j", "b j")
VALUES: tuple[bool | float, ...] = (False, True, 1.0, 0.0)
FACTORS = re.compile(r"non_?pad")  # a mask that the result is multiplied by, (b, n, 1)
NO_MASK = "forward takes no mask: hand it over yourself, call=lambda module, x, mask: ..."
LIKE_MASKS = re.compile(  # where a mask goes that somebody hands over, if no name says mask
    r"(^|_)(msk|m|blocked|blocks?|allow(ed)?|visib(le|ility)|valid|pad(s|ded|ding)?|ignored?"
    r"|excluded?|keep|hidden_keys|att(ention|n)_bias)$"
)


@dataclass(frozen=True)
class Opening:
    """One mask that may block nothing.

    Args:
        shape: by the letters b (samples), i (tokens that ask), j (tokens that are asked) and 1.
        value: what it is filled with.
    """

    shape: str
    value: bool | float

    def made(self, name: str, x: Tensor, keys: int | None = None) -> Tensor:
        """Return the mask for an argument of this name.

        Args:
            name: of the argument.
            x: tokens (b, n, e) that the module is called with.
            keys: number of tokens of a context; None when the tokens themselves are asked.
        """
        b, n = x.shape[:2]
        if FACTORS.search(name):
            return x.new_ones(b, n, 1)
        dtype = torch.bool if isinstance(self.value, bool) else x.dtype
        return torch.full(self._sizes(b, n, n if keys is None else keys), self.value, dtype=dtype)

    def blocking(self, mask: Tensor, x: Tensor) -> Tensor:
        """Return a mask of this form that blocks something.

        Args:
            mask: (i, j), True = may attend.
            x: tokens (b, n, e) that the module is called with.
        """
        return self._filled(mask, x).expand(self._sizes(len(x), *mask.shape))

    def hiding(self, blocked: Tensor, x: Tensor) -> Tensor:
        """Return a mask of this form that hides keys from all who ask.

        Args:
            blocked: (b, j), or (1, j) where the form has no samples.
            x: tokens (b, n, e) that the module is called with.
        """
        letters = self.shape.split()
        rows = [len(blocked) if letter == "b" else 1 for letter in letters[:-1]]
        sizes = self._sizes(len(x), x.shape[1], blocked.shape[1])
        return self._filled(~blocked, x).reshape(*rows, -1).expand(sizes).clone()

    def _filled(self, mask: Tensor, x: Tensor) -> Tensor:
        if isinstance(self.value, bool):
            return mask if self.value else ~mask
        if self.value:
            return mask.to(x.dtype)
        return x.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)

    def _sizes(self, b: int, i: int, j: int) -> list[int]:
        sizes = {"b": b, "i": i, "j": j, "1": 1}
        return [sizes[letter] for letter in self.shape.split()]

    @property
    def is_added(self) -> bool:
        """Whether it is added to the scores."""
        return not isinstance(self.value, bool) and not self.value

    @property
    def means(self) -> str:
        """What its numbers say."""
        if isinstance(self.value, bool):
            return f"True means {'may attend' if self.value else 'blocked'}"
        return "1 means may attend" if self.value else "-inf is added to what is blocked"

    @property
    def words(self) -> str:
        """What it is, for a report."""
        return f"with a mask ({', '.join(self.shape.split())}) of {self.value}"


def mask_takers(names: Iterable[str]) -> list[str]:
    """Return the arguments that a mask may be handed to: those named so, or else named like one."""
    names = list(names)
    named = [name for name in names if "mask" in name.lower()]
    return named or [name for name in names if LIKE_MASKS.search(name.lower())]


def mask_names(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the arguments that a mask may be needed for: those without a default first."""
    function = module.forward if isinstance(module, nn.Module) else module
    names = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(function).parameters.items()
        if "mask" in name.lower() and parameter.default in (inspect.Parameter.empty, None)
    }
    needed = [name for name, required in names.items() if required or FACTORS.search(name)]
    return needed or list(names)[:1]


def wants_mask(module: nn.Module | Callable[..., Any], attempt: Callable[[], object]) -> bool:
    """Say whether a module that was refused may only want a mask.

    Args:
        module: takes one, or does not.
        attempt: runs it without; who runs then has another trouble.
    """
    if not isinstance(module, nn.Module) or not mask_names(module):
        return False
    try:
        attempt()
    except ValueError:
        return True
    return False


def openings() -> Iterator[Opening]:
    """Yield the masks to try, the usual ones first."""
    for value in VALUES:
        for shape in SHAPES:
            yield Opening(shape, value)


def unlike_openings() -> list[Opening]:
    """Return one mask of each shape, of every value: who takes none of them takes none at all."""
    return [Opening(shape, VALUES[n % len(VALUES)]) for n, shape in enumerate(SHAPES)]
