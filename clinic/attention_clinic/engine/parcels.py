"""Tokens that a part of a block gets in another order: in parcels, or before the samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Parcels:
    """Which token of a sample lies where in which parcel, as windows of an image that are samples.

    Args:
        index: (w, m), tokens of a sample by parcel.
    """

    index: Tensor

    def cut(self, t: Tensor) -> Tensor:
        """Return the tokens of a sample (b, n, e) as those of its parcels, (b * w, m, e)."""
        return t[:, self.index].flatten(0, 1)

    def joined(self, t: Tensor) -> Tensor:
        """Return the tokens of parcels as those of their samples."""
        b = len(t) // len(self.index)
        order = self.index.flatten().argsort()
        return t.reshape(b, -1, t.shape[-1])[:, order]


@dataclass(frozen=True)
class TokensFirst:
    """Tokens first, samples second, (n, b, e)."""

    def cut(self, t: Tensor) -> Tensor:
        """Return tokens (b, n, e) as (n, b, e)."""
        return t.transpose(0, 1)

    def joined(self, t: Tensor) -> Tensor:
        """Return tokens (n, b, e) as (b, n, e)."""
        return t.transpose(0, 1)


@dataclass(frozen=True)
class ChannelsFirst:
    """The numbers of a token before the tokens, (b, e, n)."""

    def cut(self, t: Tensor) -> Tensor:
        """Return tokens (b, n, e) as (b, e, n)."""
        return t.mT

    def joined(self, t: Tensor) -> Tensor:
        """Return tokens (b, e, n) as (b, n, e)."""
        return t.mT


Order = Parcels | TokensFirst | ChannelsFirst


def parcels_of(t: Tensor, tokens: Tensor) -> Parcels | None:
    """Return how tokens were cut into parcels, None where these hold others, or not all of them.

    Args:
        t: the parcels, (b * w, m, e).
        tokens: (b, n, e).
    """
    b, n, e = tokens.shape
    if t.ndim != 3 or t.numel() != tokens.numel() or t.shape[2] != e or len(t) % b or len(t) == b:
        return None
    laid = t.reshape(b, n, e)
    same = (laid[0, :, None] == tokens[0, None]).all(dim=2)  # (place, token)
    if not bool((same.sum(dim=0) == 1).all() and (same.sum(dim=1) == 1).all()):
        return None
    order = same.int().argmax(dim=1)
    return Parcels(order.view(-1, t.shape[1])) if torch.equal(tokens[:, order], laid) else None
