"""Random inputs whose axes all have different sizes."""

from __future__ import annotations

import random
import re
from hashlib import sha256
from math import prod

import torch
from torch import Tensor

from checks.engine.conditions import conditions

SIZES = range(2, 10)
LARGE = range(21, 40)  # for counting calls: a loop over any axis makes many more


def _salted(seed: int) -> int:
    """Return a seed that cannot be guessed without the salt."""
    salt = conditions().salt
    if not salt:
        return seed
    return int.from_bytes(sha256(f"{salt} {seed}".encode()).digest()[:7])


class Case:
    """One set of sizes, drawn when a letter is first used; no two letters get the same.

    >>> case = Case(seed=0)
    >>> q, k = case.randn("b h i d"), case.randn("b h j d")
    >>> case["h"]  # the size of that axis

    Args:
        seed: decides the sizes and the numbers.
        dtype: of the numbers.
        large: draws sizes of 21 and more instead of 2 to 9.
        values: a different seed for the numbers; the sizes stay.
        ones: gives every axis the size 1.
    """

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype = torch.float64,
        large: bool = False,
        values: int | None = None,
        ones: bool = False,
    ):
        self.dtype, self.ones = dtype, ones
        self.random = random.Random(_salted(seed))  # for whatever else a case needs
        numbers = _salted(seed if values is None else values)
        self.generator = torch.Generator().manual_seed(numbers)
        self._sizes: dict[str, int] = {}
        self._left = list(LARGE if large else SIZES)
        self.random.shuffle(self._left)

    def __getitem__(self, letter: str) -> int:
        """Return the size of an axis."""
        if letter not in self._sizes:
            self._sizes[letter] = 1 if self.ones else self._left.pop()
        return self._sizes[letter]

    def shape(self, axes: str) -> tuple[int, ...]:
        """Return the sizes of axes such as "b n (h d)", where (h d) is one axis of size h * d."""
        groups = re.findall(r"\(([^)]*)\)|(\S+)", axes)
        return tuple(
            prod(int(a) if a.isdigit() else self[a] for a in (joined or single).split())
            for joined, single in groups
        )

    def randn(self, axes: str) -> Tensor:
        """Return normally distributed numbers of the given axes."""
        return torch.randn(self.shape(axes), generator=self.generator, dtype=self.dtype)

    def bools(self, axes: str, share: float = 0.5) -> Tensor:
        """Return True in about the given fraction of elements."""
        return torch.rand(self.shape(axes), generator=self.generator) < share

    def integers(self, axes: str, low: int, high: int) -> Tensor:
        """Return integers from low up to, not including, high."""
        return torch.randint(low, high, self.shape(axes), generator=self.generator)
