"""Codes of positions: sines and cosines (chapter 09)."""

import torch
from torch import Tensor

from utils.validation import check_positive, check_real


def sinusoidal_positions(n: int, embed_dim: int, base: float = 10_000.0) -> Tensor:
    """Return a code for each position: sines and cosines of ever longer waves.

    Number 2k of row p is sin(p / base^(2k / e)), number 2k + 1 is the cosine of the same angle.
    An odd width ends in a sine without its cosine.

    Args:
        n: number of positions.
        embed_dim: width of a token, e.
        base: the longest wave is nearly 2π times as long.

    Shape:
        result  (n, e)

    Raises: ValueError for sizes that are no integers of at least 1, or a base that is not positive.
    Source: Vaswani et al. 2017, section 3.5; chapter 09.
    """
    check_positive("sinusoidal_positions", n=n, embed_dim=embed_dim)
    check_real("sinusoidal_positions", "(0, inf)", "The paper takes base=10000.", base=base)
    # In double precision: at position 10,000 single precision is off in the fourth decimal.
    even = torch.arange(0, embed_dim, 2, dtype=torch.float64)  # 2k
    angles = torch.arange(n, dtype=torch.float64)[:, None] / base ** (even / embed_dim)
    both = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (n, e or e + 1)
    return both[:, :embed_dim].to(torch.get_default_dtype())
