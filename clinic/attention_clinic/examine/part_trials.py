"""What a part of a block shows when it is called with other tokens."""

from __future__ import annotations

from torch import Tensor, nn


def uniform(part: nn.Module, x: Tensor, given: dict) -> bool:
    """Say whether an attention returns the same for every token."""
    masked = [given["mask"]] if "mask" in given else []
    if "context" in given:
        context = x.new_ones(len(x), *given["context"]).cumsum(1).cumsum(2).sin()
        y = part(x, context, *masked)
    else:
        y = part(x, *masked)
    return bool((y - y[:, :1]).abs().max() <= 1e-6 * y.abs().max())


def sees_later(part: nn.Module, x: Tensor, earlier: bool = False) -> bool:
    """Say whether a part lets later tokens reach earlier ones, or the first one the others."""
    other, place = x.clone(), 0 if earlier else -1
    other[:, place] += x[:, place]
    change = (part(x) - part(other)).abs().nan_to_num(1.0)  # no feed-forward makes NaN of numbers
    return bool((change[:, 1:] if earlier else change[:, :-1]).max() > 1e-6)
