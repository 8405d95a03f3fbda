"""PyTorch's fused kernel in steps that can be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what `scaled_dot_product_attention` was called with, by name."""
    return {**dict(zip(NAMES, args, strict=False)), **kwargs}


def shared(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return keys and values (..., h, j, d) with as many heads as the queries have."""
    heads = given["query"].shape[-3:-2]
    k, v = given["key"], given["value"]
    if heads == k.shape[-3:-2]:
        return k, v
    return tuple(t.repeat_interleave(heads[0] // t.shape[-3], dim=-3) for t in (k, v))


def scale(given: dict[str, Any]) -> float:
    """Return what the scores are multiplied by."""
    factor = given.get("scale")
    return given["query"].shape[-1] ** -0.5 if factor is None else factor


def masked(scores: Tensor, given: dict[str, Any]) -> Tensor:
    """Return scores (..., i, j) with what blocks them, or is added to them."""
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def steps(given: dict[str, Any]) -> Iterator[Tensor]:
    """Yield scores, scaled scores, weights (..., i, j) and what is mixed (..., i, d)."""
    k, v = shared(given)
    scores = given["query"] @ k.mT
    yield scores
    scores = scores * scale(given)
    yield scores
    weights = masked(scores, given).softmax(dim=-1)
    yield weights
    yield weights @ v
