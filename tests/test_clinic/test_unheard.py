"""Masks, flags and dropouts that exist: tried, or said not to be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from patients.attention import Views
from patients.blocks import PreNorm
from torch import nn

from attention_clinic import diagnose, diagnose_block

ALL = "every token sees all tokens"


class Asked(Views):
    """Causal once it is asked to be."""

    diagonal = 1

    def forward(self, x, causal=False):
        n = x.shape[1]
        past = ~torch.ones(n, n, dtype=torch.bool).triu(self.diagonal)
        return super().forward(x, past if causal else None)


class AskedTooFar(Asked):
    diagonal = 2


class OutOfKeywords(Views):
    def forward(self, x, **options):
        return super().forward(x, options.get("attn_mask"))


class Held(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.key_mask = None

    def forward(self, x):
        return super().forward(x, self.key_mask)


class HidesInTraining(Views):
    def forward(self, x):
        n = x.shape[1]
        return super().forward(x, torch.eye(n, dtype=torch.bool) if self.training else None)


class Lengths(Views):
    def forward(self, x, valid_lens=None):
        if valid_lens is None:
            return super().forward(x)
        known = torch.arange(x.shape[1]) < valid_lens[:, None]
        return super().forward(x, known[:, None, None])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Asked, "a causal mask (the argument causal, which was False): causal=True tries it"),
        (OutOfKeywords, "a mask (the keyword attn_mask): mask=..."),
        (Held, "a mask (the attribute key_mask, which is None)"),
        (HidesInTraining, "what it does in training only"),
        (Lengths, "the argument valid_lens"),
    ],
)
def test_a_mask_that_may_come_is_said_to_be_untried(make, said):
    report = diagnose(make(24, 4), 4)
    assert report.healthy and any(words.startswith(said) for words in report.untried)
    assert ALL not in str(report) and "without a mask" in report.checked[0]


def test_the_line_to_paste_works():
    past = torch.ones(5, 5).tril().bool()
    call = lambda module, x, mask: module(x, attn_mask=mask)  # noqa: E731
    report = diagnose(OutOfKeywords(24, 4), 4, mask=past, call=call)
    assert report.healthy and not report.untried


def test_a_function_that_drops_is_said_to_rest():
    class Drops(Views):
        def __init__(self, e, h):
            super().__init__(e, h)
            self.rate = 0.2

        def forward(self, x):
            return F.dropout(super().forward(x), self.rate, self.training)

    report = diagnose(Drops(24, 4), 4)
    assert report.healthy and any(words.startswith("dropout") for words in report.untried)


def test_who_is_asked_to_be_causal_is_told_so():
    report = diagnose(Asked(24, 4), 4, causal=True)
    assert report.healthy and "called with causal=True" in report.checked[0] and not report.untried
    assert diagnose(AskedTooFar(24, 4), 4, causal=True).ids == ("mask-off-by-one",)

    class Block(PreNorm):
        def __init__(self):
            super().__init__(24, 4)
            self.attention = Asked(24, 4)

        def forward(self, x, causal=False):
            x = x + self.attention(self.ln_1(x), causal)
            return x + self.ffn(self.ln_2(x))

    assert diagnose_block(Block(), 4).untried[0].startswith("a causal mask")
    report = diagnose_block(Block(), 4, causal=True)
    assert report.healthy and "called with causal=True" in report.checked


def test_a_flag_that_wants_a_mask_beside_it_is_left_alone():
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(24, 4, batch_first=True)

        def forward(self, x, attn_mask=None, is_causal=False):
            given = {"attn_mask": attn_mask, "is_causal": is_causal, "need_weights": False}
            return self.inner(x, x, x, **given)[0]

    report = diagnose(Wraps(), 4, causal=True)
    assert report.ids == ("mask-not-causal",) and "is_causal=True" not in str(report)
    assert any("mask=torch.ones(5, 5).tril().bool()" in words for words in report.untried)


def test_masks_that_were_tried_in_vain_were_tried():
    class Idle(Views):
        def weigh(self, scores, mask):
            return scores.softmax(dim=-1)

    report = diagnose(Idle(24, 4), 4)
    assert report.ids == ("mask-dropped",) and not report.untried
