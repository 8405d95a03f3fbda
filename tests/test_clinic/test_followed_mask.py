"""Attention that is followed step by step, and what it does with a mask."""

from __future__ import annotations

import pytest
import torch
from patients.followed import PAST, LatentByHead
from torch import Tensor

from attention_clinic import diagnose

PADDED = (torch.arange(8) < torch.tensor([[6], [5]]))[:, None, None]


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


class First(LatentByHead):
    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(mask[:1] == 0, -torch.inf)


@pytest.mark.parametrize("kind", [LatentByHead, First])
def test_a_mask_that_differs_between_samples_is_that_of_each(kind):
    torch.manual_seed(0)
    mask = PAST.repeat(2, 1, 1)
    mask[1, 3, 2] = False
    assert diagnose(kind(24, 3), 3, mask=mask[:, None]).healthy == (kind is LatentByHead)


@pytest.mark.parametrize("mask", [PAST, PADDED])
@pytest.mark.parametrize(
    "kind, id", [(Dropped, "mask-dropped"), (Tiny, "mask-tiny"), (Flipped, "mask-inverted")]
)
def test_what_the_mask_of_a_followed_module_does_is_named(kind, id, mask):
    torch.manual_seed(0)
    assert diagnose(kind(24, 3), 3, mask=mask).ids == (id,)


def test_padding_of_a_followed_module_is_judged_by_its_effects():
    torch.manual_seed(0)
    report = diagnose(LatentByHead(24, 3), 3, mask=PADDED)
    assert report.healthy and [v.id for v in report.variants] == ["latent-attention"]
    assert "alone" in str(report)


def test_a_mask_of_what_is_hidden_anyway_is_no_dropped_one():
    class Past(LatentByHead):
        def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
            return scores

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            self.seen = lambda scores, mask: scores.masked_fill(PAST.to(scores) == 0, -torch.inf)
            return super().forward(x, PAST)

    torch.manual_seed(0)
    assert diagnose(Past(24, 3), 3, mask=PAST, size=(2, 8)).healthy


def test_a_mask_stays_as_it_is():
    class Changing(LatentByHead):
        def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
            mask[mask == 0] = -1e9
            mask[mask == 1] = 0
            return scores + mask

    torch.manual_seed(0)
    mask = PAST.double()
    assert diagnose(Changing(24, 3), 3, mask=mask).healthy
    assert torch.equal(mask, PAST.double())


def test_a_run_of_too_many_numbers_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    report = diagnose(LatentByHead(24, 3), 3)
    assert report and report.variants
    monkeypatch.setattr("attention_clinic.examine.followed.MOST", 1000)
    report = diagnose(LatentByHead(24, 3), 3)
    assert not report and not report.ids


class AsLongAsTheBatch(LatentByHead):
    """Its causal mask has as many rows as there are samples."""

    def forward(self, x: Tensor) -> Tensor:
        self.rows = len(x)
        return super().forward(x, torch.ones(1))

    def seen(self, scores: Tensor, mask: Tensor) -> Tensor:
        allow = torch.ones(scores.shape[-2:], dtype=torch.bool)
        allow[: self.rows, : self.rows].tril_()
        return scores.masked_fill(~allow, -torch.inf)


def test_what_holds_for_many_samples_alone_is_not_healthy():
    torch.manual_seed(0)
    report = diagnose(AsLongAsTheBatch(24, 3), 3, causal=True, effort=0.1)
    assert not report.healthy and not report.ids
