"""Attention that is followed step by step, and what it does with a mask."""

from __future__ import annotations

import pytest
import torch
from patients.followed import PAST, LatentByHead
from torch import Tensor

from attention_clinic import diagnose


class Dropped(LatentByHead):
    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores.masked_fill(mask == 0, -torch.inf)
        return scores


class Tiny(LatentByHead):
    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 0, 1e-9)


class Flipped(LatentByHead):
    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask == 1, -1e9)


class Needed(LatentByHead):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask.bool())


@pytest.mark.parametrize("kind", [Dropped, Tiny, Flipped])
def test_a_wrong_mask_is_not_healthy(kind):
    torch.manual_seed(0)
    assert not diagnose(kind(24, 3), 3, mask=PAST).healthy


def test_what_needs_a_mask_is_examined_without_an_error():
    torch.manual_seed(0)
    assert diagnose(Needed(24, 3), 3, mask=PAST).name == "Needed"


def test_a_mask_that_differs_between_samples_is_not_followed():
    torch.manual_seed(0)
    mask = PAST.repeat(2, 1, 1)
    mask[1, 3, 2] = False
    assert not diagnose(LatentByHead(24, 3), 3, mask=mask[:, None]).healthy
