"""The steps that a search may take: counted, so that it ends alike on every machine."""

from __future__ import annotations

import pytest
import torch
from patients.attention import Views, ViewsMerge
from patients.blocks import PreNorm
from patients.unknown import Sines

from attention_clinic import diagnose, diagnose_block
from attention_clinic.engine.budget import (
    STEPS,
    Budget,
    Spent,
    beside,
    budget,
    is_spent,
    reserved,
    spend,
)
from attention_clinic.engine.weighing import Weighed
from attention_clinic.examine.biases import learned
from attention_clinic.examine.offsets import kind_of
from checks.engine.private import TorchDispatchMode
from helpers import error_of

LITTLE = 0.01


class Bent(PreNorm):
    """A block that nobody knows."""

    def forward(self, x: torch.Tensor, *given: object) -> torch.Tensor:
        return super().forward(x, *given).sin()


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """All steps that are taken."""
    taken = []
    take = Budget.take

    def noted(self: Budget, steps: float) -> None:
        taken.append(steps)
        take(self, steps)

    monkeypatch.setattr(Budget, "take", noted)
    return taken


def test_a_search_stops_and_says_so(counted: list[float]) -> None:
    module = Sines(24, 4)
    report = diagnose(module, 4, effort=LITTLE)
    assert report.kind == "unexplained" and report.stopped == LITTLE * STEPS
    said = " ".join(str(report).split())
    assert f"The search stopped after {LITTLE * STEPS:.0f} steps." in said
    assert "effort=10 tries more" in said and "alone or with a second one" not in said
    assert "every known mistake" not in said and report.data()["stopped"] == report.stopped
    assert any("rows sum to 1" in line for line in report.failing), "properties are still said"
    assert sum(counted) < 1.5 * LITTLE * STEPS, "other heads have steps of their own"
    assert str(diagnose(module, 4, effort=LITTLE)) == str(report)


def test_a_search_that_comes_to_its_end_did_not_stop() -> None:
    report = diagnose(Sines(24, 4), 4)
    assert report.stopped == 0 and "No known mistake, alone or with a second" in str(report)
    assert diagnose(Views(24, 4), 4, effort=LITTLE).healthy
    assert diagnose(ViewsMerge(24, 4), 4, effort=0.1).ids == ("merge-no-transpose",)


def test_a_block_stops_too() -> None:
    report = diagnose_block(Bent(24, 4), 4, effort=LITTLE)
    assert report.kind == "unexplained" and report.stopped == LITTLE * STEPS
    assert "effort=10 tries more" in " ".join(str(report).split())


@pytest.mark.parametrize("effort", [0, -1, True, "more", float("nan")])
def test_an_effort_is_a_number_above_0(effort: object) -> None:
    said = error_of(lambda: diagnose(Views(24, 4), 4, effort=effort))
    assert said.startswith("diagnose: effort must be a number above 0")
    assert "diagnose_block: effort" in error_of(lambda: diagnose_block(PreNorm(24, 4), 4, effort=0))


def test_what_runs_inside_takes_from_the_same_steps() -> None:
    with budget(10):
        with budget(1000):
            spend(4)
        with pytest.raises(Spent), reserved(0.5):
            spend(2)
            assert not is_spent()
            spend(2)
        with beside(0.5):
            spend(5)
        spend(3)
        assert is_spent()
        with pytest.raises(Spent) as caught:
            spend(1)
        assert caught.value.steps == 10, "the whole, not a part of it"
    spend(1e9)  # no budget is open


def test_rows_shifted_to_zero_cut_nothing() -> None:
    """A stable softmax gets other numbers than the scores: they rule no form out."""
    scores = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    stable = lambda: (scores - scores.amax(dim=-1, keepdim=True)).softmax(dim=-1)  # noqa: E731
    assert Weighed(stable, (5, 5), 1e-9).may_be(scores[None])
    assert not Weighed(lambda: scores.softmax(-1), (5, 5), 1e-9).may_be(scores[None] + 1)


def test_numbers_are_sought_in_a_table_without_comparing_each_with_each() -> None:
    table = torch.randn(1, 60, 60, generator=torch.Generator().manual_seed(0)).double()
    made = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.append(result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    seen = torch.ones(1, 60, 60, dtype=torch.bool)
    with Counted():
        assert learned(table + 3.0, seen, [table], lambda: True) == "position-bias"
        assert learned(table.square(), seen, [table], lambda: True) is None
    assert sum(made) < 100 * table.numel()


def test_a_table_with_fewer_numbers_than_pairs_holds_none_for_each_pair() -> None:
    table = torch.nn.Parameter(torch.randn(7, 4).double(), requires_grad=False)
    pairs = torch.nn.Parameter(torch.randn(4, 4, 4).double(), requires_grad=False)
    module = torch.nn.ParameterList([table])
    offsets = torch.arange(4)[:, None] - torch.arange(4) + 3
    viewed = lambda: table[offsets].reshape(4, 4, 4)  # noqa: E731, its heads were the last axis
    assert kind_of(viewed, module, viewed(), None) is None
    module = torch.nn.ParameterList([pairs])
    assert kind_of(lambda: pairs.clone(), module, pairs.clone(), None) == "position-bias"
