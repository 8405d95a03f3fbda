"""Weights that are zero, tiny or no numbers: what stands behind them gets no name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from einops import einsum, rearrange
from patients.attention import Views
from torch import Tensor

from attention_clinic import diagnose

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
