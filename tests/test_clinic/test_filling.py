"""Fills of masked scores that half precision cannot hold."""

from __future__ import annotations

import pytest
import torch
from patients.attention import Loops, Views
from patients.blocks import PreNorm

from attention_clinic import diagnose, diagnose_block

PAST = torch.ones(6, 6).tril()


class HidesLater(Views):
    """It is causal by itself."""

    fill = -1e9

    def forward(self, x):
        return super().forward(x)

    def weigh(self, scores, mask):
        n = scores.shape[-1]
        later = torch.arange(n)[:, None] < torch.arange(n)
        return scores.masked_fill(later, self.fill).softmax(dim=-1)


class Least(HidesLater):
    def weigh(self, scores, mask):
        self.fill = torch.finfo(scores.dtype).min
        return super().weigh(scores, mask)


class Fills(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e20)).softmax(-1)


class Subtracts(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores - 1e9 * (1 - self.flat(allow).to(scores))


class Floats(Views):
    def weigh(self, scores, mask):
        scores = scores.float()
        return (
            (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(-1).double()
        )


class Filling(PreNorm):
    def __init__(self, kind: type = Fills):
        super().__init__(24, 4)
        self.attention = kind(24, 4)

    def forward(self, x, mask=None):
        x = x + self.attention(self.ln_1(x), *[mask] * (mask is not None))
        return x + self.ffn(self.ln_2(x))


def said(report):
    return [remark.ids for remark in report.remarks]


@pytest.mark.parametrize(
    ("make", "mask"),
    [(HidesLater, None), (Fills, PAST), (Fills, PAST.bool()), (Fills, PAST.long())],
)
def test_what_does_not_fit_is_a_remark_unless_half_precision_is_asked_for(make, mask):
    module = make(24, 4)
    report = diagnose(module, 4, mask=mask)
    assert report.healthy and said(report) == [("mask-fp16",)]
    assert diagnose(module.half(), 4, mask=mask).ids == ("mask-fp16",)
    assert diagnose(module.bfloat16(), 4, mask=mask).healthy


@pytest.mark.parametrize("half", [False, True])
def test_what_is_added_is_minus_infinity_there_and_right(half):
    module = Subtracts(24, 4)
    report = diagnose(module.half() if half else module, 4, mask=PAST.bool())
    assert report.healthy and said(report) == [("mask-fp16",)]
    assert "in half precision it is -inf" in report.remarks[0].detail


def test_what_fits_is_not_remarked():
    assert not diagnose(Least(24, 4), 4).remarks and diagnose(Least(24, 4).half(), 4).healthy
    # the user's own numbers are no matter of the module
    added = torch.zeros(6, 6).masked_fill(PAST == 0, -1e9)

    class Adds(Views):
        def weigh(self, scores, mask):
            return (scores if mask is None else scores + mask).softmax(-1)

    report = diagnose(Adds(24, 4).half(), 4, mask=added)
    assert report.healthy and not report.remarks


def test_a_block_says_it_too():
    block = Filling()
    report = diagnose_block(block, 4, mask=PAST.bool())
    assert report.healthy and said(report) == [("mask-fp16",)]
    assert not diagnose_block(block, 4).remarks
    assert diagnose_block(block.half(), 4, mask=PAST.bool()).ids == ("mask-fp16",)
    own = diagnose_block(Filling(HidesLater), 4)
    assert own.healthy and said(own) == [("mask-fp16",)]
