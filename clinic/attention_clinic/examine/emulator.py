"""A model's own run on a whole text, with the plan of a cache carried out in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.engine.decoding import Decoder
from attention_clinic.engine.kernels import Kernels, Plan, right_call

LENGTHS = (17, 19, 13, 11, 23, 10, 9, 8)  # of the texts
BATCHES = (13, 11, 17, 19, 23, 29, 31, 37, 41, 43)


@dataclass(frozen=True)
class Schedule:
    """One way to give a text in several calls, and what the model said.

    Args:
        words: what it is called in a report.
        plan: what a right cache does.
        observed: the scores of each call, (b, rows, vocabulary).
    """

    words: str
    plan: Plan
    observed: tuple[Tensor, ...]


def plan_of(ends: list[int]) -> Plan:
    """Return what a right cache does in calls that end after so many tokens."""
    return tuple(right_call(a, b) for a, b in zip([0, *ends], ends, strict=False))


class Emulator:
    """Give the scores that a model would give if its cache did what a plan says.

    Args:
        decoder: the model.
        ids: the text, (b, n).
        right: a plan of several calls with a right cache.
        is_right: says whether scores (b, n, vocabulary) are those of the model itself.
    """

    def __init__(
        self, decoder: Decoder, ids: Tensor, right: Plan, is_right: Callable[[Tensor], bool]
    ) -> None:
        self.decoder, self.ids = decoder, ids
        sizes = {size for p in decoder.module.parameters() for size in p.shape}
        self.sizes = sizes | {size // 2 for size in sizes}
        self.length = 0
        for length in LENGTHS:
            if length in self.sizes or length <= ids.shape[1]:
                continue
            self.length = length
            rows = self.rows(right, apart=True)
            if rows is not None and is_right(rows):
                return
        self.length = 0

    @property
    def trusted(self) -> bool:
        """Whether a right plan, from copies of the tokens, gives the scores of the model."""
        return self.length > 0

    def rows(self, plan: Plan, apart: bool = False) -> Tensor | None:
        """Return the scores of each token, (b, n, vocabulary), None if it cannot be carried out.

        Args:
            plan: of the calls.
            apart: whether new tokens ask from a copy of their own even at their own places.
        """
        try:
            kernels = Kernels(plan, len(self.ids), self.length, apart)
            taken = self.sizes | {self.length}
            wide = [size for size in BATCHES if size >= kernels.batch and size not in taken]
            kernels.batch = wide[0]
            ids = kernels.ids(self.ids, self.decoder.ids(kernels.batch, self.length, seed=11))
            with kernels, torch.no_grad():
                made = self.decoder.whole(ids)
        except Exception:
            return None  # a place beyond the model's own, or an attention that is built otherwise
        if made.ndim != 3 or made.shape[:2] != ids.shape or 0 in kernels.uses[::2]:
            return None
        return kernels.rows(made)
