"""An output without numbers: where NaN begins, and that it proves no name."""

from __future__ import annotations

import math

import pytest
import torch
from patients.attention import Views
from patients.blocks import PreNorm
from torch import nn

from attention_clinic import diagnose, diagnose_block

PAST = torch.ones(6, 6).tril()


class Penalised(Views):
    """0 * -inf is NaN: at every place that may attend."""

    def weigh(self, scores, mask):
        if mask is not None:
            scores = scores + torch.logical_not(mask).to(scores) * -math.inf
        return scores.softmax(dim=-1)


class PenalisedBlock(PreNorm):
    def __init__(self):
        super().__init__(24, 4)
        self.attention = Penalised(24, 4)

    def forward(self, x, mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.ffn(self.ln_2(x))


@pytest.mark.parametrize("mask", [PAST, PAST.bool()])
def test_nothing_but_nan_proves_no_name(mask):
    report = diagnose(Penalised(24, 4), 4, mask=mask)
    assert not report.ids and not report.healthy
    (said,) = report.failing
    assert (
        "with the mask it has nothing but NaN, first in what mul returns (0 * -inf is NaN)" in said
    )
    assert "in weigh, line" in said
    assert "every known mistake" not in str(report) and "No known mistake" not in str(report)


def test_nothing_but_nan_proves_no_name_of_a_block():
    block = PenalisedBlock()
    assert diagnose_block(block, 4).healthy
    report = diagnose_block(block, 4, mask=PAST.bool())
    assert not report.ids and not report.healthy
    assert "first in what mul returns (0 * -inf is NaN) in weigh of attention" in report.failing[0]


def test_no_layer_that_was_handed_nan_is_said_to_make_it():
    class Logs(Views):
        def weigh(self, scores, mask):
            return (scores.clamp(max=0.0) - 1.0).log().softmax(dim=-1)

    (said,) = diagnose(Logs(24, 4), 4).failing
    assert "first in what log returns in weigh, line" in said and "proj" not in said


def test_nan_that_is_taken_out_again_is_not_where_it_begins():
    class Later(Views):
        def weigh(self, scores, mask):
            return (scores * 0 / 0).nan_to_num(0.0).sub(1.0).sqrt()

    (said,) = diagnose(Later(24, 4), 4).failing
    assert "first in what sqrt returns in weigh" in said


def test_nan_of_a_layer_of_torch_is_said_to_be_of_that_layer():
    class Normed(Views):
        def __init__(self, e: int, h: int):
            super().__init__(e, h)
            self.last = nn.LayerNorm(e, eps=-1e9)

        def forward(self, x, mask=None):
            return self.last(super().forward(x, mask))

    assert "first in what last returns" in diagnose(Normed(24, 4), 4).failing[0]
