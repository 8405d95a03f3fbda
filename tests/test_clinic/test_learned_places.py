"""Tables of places that are learned, as modules that add them to tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from attention_clinic import diagnose_embedding, diagnose_positions


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


class Doubled(Learned):
    def forward(self, x):
        return x + x + self.rows[:, : x.shape[1]]


class DoubledSines(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.zeros(30, 64)
        angle = torch.arange(30)[:, None] / 10_000 ** (torch.arange(0, 64, 2) / 64)
        table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
        self.register_buffer("table", table)

    def forward(self, x):
        return 2 * x + self.table[: x.shape[1]]


@pytest.mark.parametrize("make", [Doubled, DoubledSines])
def test_tokens_that_grow_by_another_number_are_no_healthy_ones(make):
    report = diagnose_positions(make())
    assert not report.healthy and not report.ids
    assert "they are multiplied by 2" in report.failing[0]


class SineRows(DoubledSines):
    """Adds one row of a table that nobody learns."""

    def forward(self, x):
        return x + self.table[x.shape[1]]


class SineRowsInAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.width, self.codes = 64, nn.Embedding.from_pretrained(_sines(30, 64))

    def forward(self, x):
        return x + self.codes(torch.tensor([3]))


@pytest.mark.parametrize("make", [SineRows, SineRowsInAList])
def test_one_row_of_a_fixed_table_is_no_table_of_one_row(make):
    assert diagnose_positions(make()).ids == ("pos-one-row",)


class SinesForNothing(DoubledSines):
    def forward(self, x):
        return x


def test_a_table_that_nothing_adds_is_said():
    report = diagnose_positions(SinesForNothing())
    assert not report.healthy and not report.ids
    assert report.failing == ("what it holds of positions is added: nothing adds table",)


class DropsSines(DoubledSines):
    def forward(self, x):
        return functional.dropout(x + self.table[: x.shape[1]], 0.1)


class DropsLearned(Learned):
    def forward(self, x):
        return functional.dropout(x + self.rows[:, : x.shape[1]], 0.1, training=True)


class DropsOneRow(Learned):
    def forward(self, x):
        return functional.dropout(x + self.rows[:, :1], 0.1)


@pytest.mark.parametrize(
    ("make", "more"), [(DropsSines, ()), (DropsLearned, ()), (DropsOneRow, ("pos-one-row",))]
)
def test_dropout_that_never_rests_is_named_and_left_out(make, more):
    assert set(diagnose_positions(make()).ids) == {"dropout-eval", *more}


class RowsAndColumns(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(3, 1, 64))
        self.columns = nn.Parameter(torch.zeros(1, 5, 64))

    def forward(self, x):
        return x + (self.rows + self.columns).flatten(0, 1)


def test_a_grid_of_two_tables_says_how_many_tokens_it_takes():
    assert diagnose_positions(RowsAndColumns()).healthy


class OfImages(nn.Module):
    """Patches of 2 x 2, and places that are a number for each token alone."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 24, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 16, 1))

    def forward(self, images):
        return self.cut(images).flatten(2).mT + self.places


class OfImagesKept(OfImages):
    """A table in a buffer, which nothing adds."""

    def __init__(self):
        super().__init__()
        del self.places
        self.register_buffer("places", torch.randn(1, 16, 24))

    def forward(self, images):
        return self.cut(images).flatten(2).mT


@pytest.mark.parametrize("make", [OfImages, OfImagesKept])
def test_places_that_tell_a_token_nothing_are_no_healthy_ones(make):
    report = diagnose_embedding(make(), 8, 2)
    assert not report.healthy and not report.ids


def _sines(n: int, e: int, base: float = 1e4) -> torch.Tensor:
    angle = torch.outer(torch.arange(n), base ** (-torch.arange(0, e, 2) / e))
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


@pytest.mark.parametrize(("base", "ids"), [(1e4, ()), (500.0, ("sincos-base",))])
def test_rows_that_nobody_filled_are_said_beside_what_the_others_are(base: float, ids) -> None:
    table = _sines(30, 16, base)
    table[-2:] = 0.0
    report = diagnose_positions(table)
    assert not report.healthy and report.ids == ids
    assert report.failing == ("each place has a code: from row 28 on, all is 0",)
    assert all("but for what is 0" in one.evidence for one in report.explanations)


@pytest.mark.parametrize(("base", "ids"), [(1e4, ()), (500.0, ("sincos-base",))])
def test_cosines_written_over_sines_are_said_beside_what_they_are(base: float, ids) -> None:
    table = _sines(30, 16, base)
    for lying in ((slice(0, 16, 2), slice(1, 16, 2)), (slice(8), slice(8, 16))):
        lone = torch.zeros_like(table)
        lone[:, lying[0]] = table[:, 1::2]
        report = diagnose_positions(lone)
        assert not report.healthy and report.ids == ids
        assert len(report.failing) == 1 and "each pair has a sine" in report.failing[0]
