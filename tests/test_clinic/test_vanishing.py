"""What does not show: behind weights that are zero, tiny or no numbers, and in small scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from patients.attention import Loops, Views
from patients.blocks import PreNorm
from patients.healthy import SingleSoftmax
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_block, diagnose_model

E, H = 24, 4


def handed(std: float = 0.2, dtype: torch.dtype = torch.float64, **changed: float) -> dict:
    generator = torch.Generator().manual_seed(3)
    drawn = {name: torch.randn(E, E, generator=generator) for name in ("wq", "wk", "wv", "wo")}
    return {n: (w * std * changed.get(n, 1.0)).to(dtype) for n, w in drawn.items()}


def function_of(weights: dict[str, Tensor], power: float = -0.5) -> Callable[[Tensor], Tensor]:
    def attend(tokens):
        tokens = tokens.to(weights["wq"].dtype)
        q, k, v = (
            rearrange(tokens @ weights[n], "b n (h d) -> b h n d", h=H) for n in ("wq", "wk", "wv")
        )
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** power
        mixed = rearrange(scores.softmax(dim=-1) @ v, "b h n d -> b n (h d)")
        return mixed @ weights["wo"]

    return attend


@pytest.mark.parametrize("power", [-0.5, -1.0])
@pytest.mark.parametrize("name", ["wq", "wk", "wv", "wo"])
def test_behind_a_weight_of_zeros_nothing_gets_a_name(name: str, power: float) -> None:
    weights = handed(**{name: 0.0})
    report = diagnose(function_of(weights, power), H, weights=weights)
    assert not report.healthy and not report.explanations and not report.stopped
    assert f"{name} is zero, so nothing behind it could be tried" in report.failing[0]
    assert "No mistake was looked for" in str(report)


def test_weights_that_nothing_depends_on_and_those_that_are_no_numbers() -> None:
    weights = handed(wq=1e-7, wk=1e-7)
    report = diagnose(function_of(weights), H, weights=weights)
    assert not report.healthy and not report.explanations
    assert "wq and wk are too small, so nothing" in report.failing[0]
    weights = handed(wv=float("nan"))
    report = diagnose(function_of(weights), H, weights=weights)
    assert not report.explanations and "NaN or infinity is in wv" in report.failing[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", [0.004, 0.02, 0.2])
def test_small_weights_of_a_function_are_as_good_as_large_ones(std, dtype) -> None:
    weights = handed(std, dtype)
    assert diagnose(function_of(weights), H, weights=weights).healthy
    assert diagnose(function_of(weights, -1.0), H, weights=weights).ids == ("scale-other",)


class PlainZeros(Views):
    """The weights of one projection wait in a plain tensor, or a buffer, for those of a file."""

    def __init__(self, number: int, buffer: bool) -> None:
        super().__init__(E, H)
        self.number = number
        if buffer:
            self.register_buffer("loaded", torch.zeros(E, E))
        else:
            self.loaded = torch.zeros(E, E)

    def heads(self, x):
        made = list(super().heads(x))
        waiting = x.matmul(self.loaded.to(x))
        made[self.number] = waiting.view(*x.shape[:2], H, -1).transpose(1, 2)
        return made


@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_plain_tensor_of_zeros_is_said(number: int, buffer: bool) -> None:
    report = diagnose(PlainZeros(number, buffer), H)
    assert not report.healthy and not report.explanations
    assert "loaded is zero, and no parameter" in report.failing[0]


def spoiled(how: str) -> nn.Module:
    module = Loops(E, H)
    with torch.no_grad():
        if how == "not a number":
            module.tokeys.weight[2, 3] = math.nan
        elif how == "infinite":
            module.tovalues.weight[0] = math.inf
        else:
            module.toqueries.weight.zero_().requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "not a number",
            "its own numbers in tokeys.weight, which are NaN or infinity: random ones stood",
        ),
        (
            "infinite",
            "its own numbers in tovalues.weight, which are NaN or infinity: random ones stood",
        ),
        (
            "zero",
            "its own numbers in toqueries.weight, which are zero, and frozen: random ones stood",
        ),
    ],
)
def test_own_weights_that_let_nothing_show_are_said(how: str, words: str) -> None:
    report = diagnose(spoiled(how), H)
    assert report.healthy and any(said.startswith(words) for said in report.untried)
    block = PreNorm(E, H)
    block.attention = spoiled(how)
    inside = words.replace("in to", "in attention.to")
    assert any(said.startswith(inside) for said in diagnose_block(block, H).untried)
    model = nn.Sequential(nn.Embedding(9, E), spoiled(how))
    inside = words.replace("in to", "in 1.to")
    assert any(said.startswith(inside) for said in diagnose_model(model).untried)


def test_own_weights_that_begin_at_zero_and_learn_are_no_matter() -> None:
    module = Loops(E, H)
    nn.init.zeros_(module.tovalues.weight)
    module.note = torch.zeros(E, E, requires_grad=True)
    assert not any("own numbers" in said for said in diagnose(module, H).untried)


# ------------------------------------------------------------------- what holds for small scores


class Weighed(Views):
    def weigh(self, scores, mask):
        return super().weigh(self.changed(scores), mask)


class Cut(Weighed):
    """No score that usual tokens make is so large."""

    def changed(self, scores):
        return torch.minimum(scores, torch.full_like(scores, 7.0))


class Flattened(Weighed):
    def changed(self, scores):
        return scores + 0.5 * F.relu(-6 - scores)


class Hidden(Weighed):
    """A triangle of -100, which is far enough."""

    def changed(self, scores):
        n = scores.shape[-1]
        return scores + torch.full((n, n), -100.0).triu(1).to(scores)


class CutFar(Weighed):
    def changed(self, scores):
        return scores.clamp(-1e4, 1e4)


@pytest.mark.parametrize("make", [Cut, Flattened])
@pytest.mark.parametrize("size", [(24, 4), (64, 8), (30, 10)])
def test_what_cuts_or_bends_larger_scores_is_not_healthy(make, size) -> None:
    report = diagnose(make(*size), size[1])
    assert not report.healthy and not report.explanations
    assert report.failing[0].startswith("larger scores are weighed as they are")
    assert "with which it is right" in report.checked[0]


@pytest.mark.parametrize("make", [Hidden, CutFar, SingleSoftmax])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_far_away_or_rounded_is_right(make, dtype) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        module = make(E, H).to(dtype)
        assert diagnose(module, H).healthy
