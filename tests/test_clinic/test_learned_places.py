"""Tables of places that are learned, as modules that add them to tokens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attention_clinic import diagnose_positions


class Learned(nn.Module):
    """Adds a learned row to each token."""

    def __init__(self, begin=torch.zeros):
        super().__init__()
        self.rows = nn.Parameter(begin(1, 30, 64))

    def forward(self, x):
        return x * 8 + self.rows[:, : x.shape[1]]


class Embedded(nn.Module):
    """Looks the rows up."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(40, 64)

    def forward(self, x):
        return x + self.rows(torch.arange(x.shape[1], device=x.device))


class OneRow(Learned):
    """Adds the first row to all tokens."""

    def forward(self, x):
        return x + self.rows[:, :1]


class BySample(Learned):
    """Counts samples where it should count tokens."""

    def forward(self, x):
        return x + self.rows[0, : len(x), None]


class Mixing(Learned):
    """Adds nothing: what it returns is no multiple of a token."""

    def forward(self, x):
        return (x + self.rows[:, :1]).relu()


@pytest.mark.parametrize("make", [Learned, lambda: Learned(torch.randn), Embedded])
def test_each_place_has_a_row_of_its_own(make):
    report = diagnose_positions(make())
    assert report.healthy
    assert report.checked[0].startswith("learned positions")


@pytest.mark.parametrize("begin", [torch.zeros, torch.randn])
@pytest.mark.parametrize(("kind", "id"), [(OneRow, "pos-one-row"), (BySample, "pos-batch-axis")])
def test_rows_that_places_share(kind, id, begin):
    assert diagnose_positions(kind(begin)).ids == (id,)


def test_what_adds_no_places_gets_no_name():
    report = diagnose_positions(Mixing())
    assert not report.healthy
    assert not report.ids
