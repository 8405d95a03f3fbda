"""Norms, and what bends, that get tokens in another order than (b, n, e)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Turned(nn.Module):
    """A norm, or what bends, that gets its tokens turned over, (b, e, n)."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.mT).mT


class InOneRow(nn.Module):
    """A norm that gets the tokens of all samples in one row, (b n, e)."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.flatten(0, 1)).view(x.shape)


class Imaged(nn.Module):
    """A norm that gets its tokens as an image, (b, e, rows, columns)."""

    def __init__(self, run: Callable[[Tensor], Tensor], image: tuple[int, int]) -> None:
        super().__init__()
        self.run, self.image = run, image

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.mT.unflatten(2, self.image)).flatten(2).mT
