"""Codes of places that an attention adds to its tokens by itself, before it projects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_clinic.engine.modes import Mode
from attention_clinic.engine.patient import same

CLOSE = 1e-9


class Inside:
    """What the first layer of a module reads, by the number of its tokens.

    Args:
        run: calls the module.
        like: tokens that it takes.
    """

    def __init__(self, run: Callable[[Tensor], Tensor], like: Tensor) -> None:
        self.run, self.like = run, like
        self.calls: dict[int, tuple[Tensor, Tensor | None]] = {}

    @torch.no_grad()
    def of(self, n: int) -> tuple[Tensor, Tensor | None]:
        """Return n tokens, and what the first layer read when the module got these."""
        if n not in self.calls:
            b, _, e = self.like.shape
            x = torch.randn(b, n, e, generator=torch.Generator().manual_seed(19)).to(self.like)
            with _Read(x.shape) as first:
                self.run(x)
            self.calls[n] = x, first.read
        return self.calls[n]


class PlacesInside:
    """Add to tokens what a module was heard to add.

    Args:
        inside: what its layers read.
        read: what it reads of its tokens first, such as a norm.
    """

    def __init__(self, inside: Inside, read: Callable[[Tensor], Tensor]) -> None:
        self.inside, self.read = inside, read
        self.tables: dict[int, Tensor | None] = {}

    def table(self, n: int) -> Tensor | None:
        """Return what is added to n tokens, (n, e), None where that is nothing, or no code."""
        if n not in self.tables:
            x, heard = self.inside.of(n)
            several = heard is not None and len(x) > 1
            self.tables[n] = _added(self.read(x), heard) if several else None
        return self.tables[n]

    def __call__(self, x: Tensor) -> Tensor:
        inside, table = self.read(x), self.table(x.shape[1])
        return inside if table is None else inside + table


def _added(tokens: Tensor, read: Tensor) -> Tensor | None:
    """Return the rows that are added to all samples alike, None where all rows are the same."""
    added = read - tokens
    alike = bool((added - added[:1]).abs().max() <= CLOSE * (1 + tokens.abs().max()))
    return added[0] if alike and not same(added[0], added[0, :1].expand_as(added[0])) else None


class _Read(Mode):
    """Write down what the first layer gets that gets tokens of a shape."""

    listens = True

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.read: Tensor | None = None

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.read is None and getattr(func, "__name__", "") == "linear" and args:
            self.read = args[0] if args[0].shape == self.shape else None
        return func(*args, **kwargs)
