"""Blocks that no search knows, and what a mask does in them."""

from __future__ import annotations

import pytest
import torch
from patients.masked_blocks import Crossing, Layered, RootedNorm, Weighs
from torch import Tensor, nn

from attention_clinic import diagnose_block
from attention_clinic.examine.mask_law import law_of_mask

CAUSAL = torch.ones(8, 8).tril().bool()


class Weighing(nn.Module):
    """An attention that says which places it hides: those of True."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def hide(self, scores, blocked):
        return scores.masked_fill(blocked[:, None], float("-inf"))

    def forward(self, x, blocked):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * (e // self.h) ** -0.5
        mixed = self.hide(scores, blocked).softmax(dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(b, n, e))


class Forgetting(Weighing):
    def hide(self, scores, blocked):
        scores.masked_fill(blocked[:, None], float("-inf"))
        return scores


class Convolving(nn.Module):
    """Pre-norm, and neighbours meet in the feed-forward; a mask is needed."""

    def __init__(self, kind=Weighing, e=64, h=4, wide=1):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.attention = kind(e, h)
        self.wide = nn.Conv1d(e, 2 * e, wide, padding=wide // 2)
        self.narrow = nn.Conv1d(2 * e, e, 1)

    def forward(self, x, blocked):
        x = x + self.attention(self.norm_1(x), blocked.expand(len(x), -1, -1))
        fed = self.narrow(self.wide(self.norm_2(x).mT).relu())
        return x + fed.mT


def call(block: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return block(x, ~mask)


def test_a_call_that_needs_a_mask_gets_one_that_blocks_nothing():
    report = diagnose_block(Convolving(), 4, mask=CAUSAL, call=call)
    assert report.healthy, str(report)


def test_a_mask_that_changes_nothing():
    report = diagnose_block(Convolving(Forgetting, wide=3), 4, mask=CAUSAL, call=call)
    assert report.ids == ("mask-dropped",), str(report)


@pytest.mark.parametrize(("sign", "law"), [(1, "right"), (-1, "inverted"), (0, "dropped")])
def test_the_law_of_a_mask(sign, law):
    torch.manual_seed(0)
    attention, x = Weighing(64, 4).double(), torch.randn(2, 8, 64).double()
    allow = CAUSAL | (torch.eye(8).bool() if sign > 0 else False)
    blocked = {1: ~allow, -1: allow & ~torch.eye(8).bool(), 0: torch.zeros(8, 8).bool()}[sign]

    def free(x: Tensor) -> Tensor:
        return attention(x, torch.zeros(1, x.shape[1], x.shape[1]).bool())

    def masked(x: Tensor) -> Tensor:
        return attention(x, blocked[None])

    assert law_of_mask(free, masked, x, allow[None, None]) == law


def test_weights_that_are_not_made_anew_obey_no_law():
    torch.manual_seed(0)
    attention, x = Weighing(64, 4).double(), torch.randn(2, 8, 64).double()

    def free(x: Tensor) -> Tensor:
        return attention(x, torch.zeros(1, x.shape[1], x.shape[1]).bool())

    def halved(x: Tensor) -> Tensor:
        return attention(x, ~CAUSAL[None]) * torch.linspace(0.5, 1, 8)[:, None]

    assert law_of_mask(free, halved, x, CAUSAL[None, None]) == ""


class Exchanging(Crossing):
    """Hands each mask to the other attention, and normalises in another way."""

    norm = RootedNorm

    def forward(self, x, context, mask=None, context_mask=None):
        return super().forward(x, context, context_mask, mask)


def test_a_mask_that_reaches_another_part_is_not_said_to_be_dropped():
    torch.manual_seed(0)
    own, other = CAUSAL[None, None], (torch.arange(8) < 5)[None, None, None]
    report = diagnose_block(Exchanging(24, 4), 4, mask=own, context=(8, 24), context_mask=other)
    assert not report.healthy and not {"mask-dropped", "context-mask-dropped"} & {*report.ids}


class WrongRoot(Weighs):
    """Divides by the root of all heads together."""

    def forward(self, x, other, mask):
        q, k, v = (
            t.unflatten(-1, (self.h, -1)).transpose(1, 2)
            for t in (self.ask(x), *self.offer(other).chunk(2, dim=-1))
        )
        scores = q @ k.mT / x.shape[-1] ** 0.5
        scores = scores if mask is None else self.hide(scores, mask)
        return self.last((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("norm", [nn.LayerNorm, RootedNorm])
@pytest.mark.parametrize("place", ["self", "cross"])
def test_a_block_with_two_attentions_says_which_is_wrong(place, norm, masked):
    torch.manual_seed(0)
    block = type("Two", (Crossing,), {"norm": norm})(24, 4)
    setattr(block, {"self": "attention", "cross": "cross"}[place], WrongRoot(24, 4))
    given = {"mask": CAUSAL[:6, :6]} if masked else {}
    report = diagnose_block(block, 4, context=(9, 24), **given)
    shared = ("norm-bessel",) * (norm is RootedNorm)
    assert sorted(report.ids) == sorted(("scale-embed", *shared)), str(report)
    where = f"in the {place}-attention"
    detail = report.explanations[0].detail
    assert (f"scale-embed {where}" if shared else where) in detail
    assert detail.count("-attention") == 1
    layered = Layered(24, 4)
    layered.attention = WrongRoot(24, 4)
    assert "attention" not in diagnose_block(layered, 4).explanations[0].detail
