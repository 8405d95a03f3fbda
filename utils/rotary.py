"""Rotary positions, and how they stretch to longer sequences (chapter 13; YaRN chapter 19)."""

from math import ceil, floor, log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from utils.validation import check_floating, check_positions, check_rotary, check_shape


class RopeScaling(NamedTuple):
    """Slow rotary down for sequences longer than the first training runs had, as Llama 3.1 does.

    Args:
        factor: the slow pairs rotate this many times slower.
        low_freq_factor: slow is a pair that rotates at most this often in `original_length` tokens.
        high_freq_factor: one that rotates at least this often stays as fast; in between, the speed
            changes gradually.
        original_length: the longest sequence of the first training runs, in tokens.
        by_number: it changes with the number of the pair, as in YaRN.
        truncate: with `by_number`, round the numbers of the first and last pair outwards.
        attention_factor: multiplies rotated queries and keys.

    Source: Grattafiori et al. 2024 (Llama 3), section 3.4.3; exercise 13.6. Peng et al. 2023
        (YaRN), section 3.2; chapter 19.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int
    by_number: bool = False
    truncate: bool = False
    attention_factor: float = 1.0

    def slow_down(self, speeds: Tensor, rope_theta: float) -> Tensor:
        """Return the speed of each pair (d/2,)."""
        turns = speeds * self.original_length / (2 * pi)
        low, high, number = self.low_freq_factor, self.high_freq_factor, turns
        if self.by_number:  # counted from the last pair down, so that low comes first again
            count = speeds.shape[0]
            low, high = (
                count * log(2 * pi * often / self.original_length) / log(rope_theta)
                for often in (low, high)
            )
            if self.truncate:
                low, high = floor(low), ceil(high)
            low, high = max(low, 1 - 2 * count), min(high, 0)
            number = -torch.arange(count, device=speeds.device, dtype=speeds.dtype)
        kept = ((number - low) / max(high - low, 1e-3)).clamp(0, 1)
        return speeds * (kept + (1 - kept) / self.factor)


def apply_rotary(
    x: Tensor,
    positions: Tensor,
    rope_theta: float = 10_000.0,
    rope_scaling: RopeScaling | None = None,
) -> Tensor:
    """Rotate each pair of numbers of a query or key by an angle that grows with its position.

    Pair p consists of numbers p and p + d/2, the halves of Llama; at position t its angle is
    t / rope_theta ** (2p / d). A dot product of rotated vectors depends only on their distance.

    >>> apply_rotary(torch.ones(1, 1, 2, 2), torch.arange(2))[0, 0]  # position 0 stays as it is
    tensor([[ 1.0000,  1.0000],
            [-0.3012,  1.3818]])

    Args:
        x: queries or keys, split into heads.
        positions: of the tokens in their sequence, from 0.
        rope_theta: the base of the angles: the larger, the slower the last pairs rotate.
        rope_scaling: see `RopeScaling`; None leaves the speeds as they are.

    Shape:
        x          (b, h, n, d)      d even
        positions  (n,) or (b, n)
        result     (b, h, n, d)

    Raises: ValueError for an odd d, a rope_theta of 0 or less, or positions that do not fit.
    Source: Su et al. 2021 (RoFormer), section 3.2.2; chapter 13.
    """
    fix = "Split into heads first: 'b n (h d) -> b h n d'."
    check_shape("apply_rotary", "x", x, "b h n d", fix)
    check_rotary("apply_rotary", "d", x.shape[-1], rope_theta)
    b, _, n, d = x.shape
    check_positions("apply_rotary", positions, b, n)
    check_floating("apply_rotary", "x", x, "Take x.float().")
    # in half precision neighbours far from 0 have one position
    exact = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, d, 2, device=x.device, dtype=exact)
    speeds = 1.0 / rope_theta ** (pairs / d)  # in this form they equal HuggingFace's to the bit
    factor = 1.0
    if rope_scaling is not None:
        speeds = rope_scaling.slow_down(speeds, rope_theta)
        factor = rope_scaling.attention_factor
    angles = positions[..., None].to(exact) * speeds  # (n, d/2) or (b, n, d/2)
    if angles.ndim == 3:
        angles = angles[:, None]  # (b, 1, n, d/2): the same for every head
    cos, sin = (factor * angles.cos()).to(x.dtype), (factor * angles.sin()).to(x.dtype)
    first, second = x.chunk(2, dim=-1)  # (b, h, n, d/2) each
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
