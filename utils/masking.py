"""Which token may attend to which: boolean masks, True means "may attend" (chapter 05)."""

import torch
from torch import Tensor

from utils.validation import check_number, check_positive, check_shape

Mask = Tensor | None  # boolean, True = may attend; None: everything may be attended to


def causal_mask(n: int, device: torch.device | str | None = None, start: int = 0) -> Tensor:
    """Let each token attend to itself and to the tokens before it.

    To `nn.MultiheadAttention` give the mask alone: with need_weights=False, is_causal=True replaces
    whatever mask it gets, except in eval mode without gradients.

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)

    Args:
        n: number of tokens.
        device: where the mask is made; by default PyTorch's.
        start: the first query; with a cache, only the rows of the new tokens are needed.

    Shape:
        result  (n - start, n), bool, True = query i (row) may attend to key j (column)

    Raises: ValueError for an n below 1, or a start outside 0 to n.
    Source: Vaswani et al. 2017, section 3.2.3; chapter 05.
    """
    check_positive("causal_mask", n=n)
    check_number("causal_mask", "start", start, 0, n, "It is the position of the first query.")
    return torch.ones(n - start, n, dtype=torch.bool, device=device).tril(start)


def padding_mask(lengths: Tensor, n: int) -> Tensor:
    """Let every token of a sequence attend to its first `length` tokens, not to the padding.

    >>> padding_mask(torch.tensor([2]), 3)
    tensor([[[[ True,  True, False]]]])

    Args:
        lengths: how many real tokens each sequence has, 0 to n.
        n: number of tokens, padding included.

    Shape:
        lengths  (b,), integers
        result   (b, 1, 1, n), bool, True = may be attended to; the same for all heads and queries

    Raises: ValueError for lengths that are not integers from 0 to n, or have another rank.
    """
    check_positive("padding_mask", n=n)
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(lengths, Tensor) or lengths.dtype not in integers:
        got = lengths.dtype if isinstance(lengths, Tensor) else type(lengths).__name__
        raise ValueError(
            f"padding_mask: lengths must be a tensor of integers, got {got}. "
            "Write torch.tensor([4, 6]), or lengths.long(); "
            "from a mask of real tokens (b, n) it is mask.sum(dim=1)."
        )
    check_shape("padding_mask", "lengths", lengths, "b", "Give one length for each sequence.")
    listed = lengths.tolist()  # as Python integers: n may be more than a uint8 can hold
    if listed and not 0 <= min(listed) <= max(listed) <= n:
        longer = f", or pass n={max(listed)}" if min(listed) >= 0 else ""
        raise ValueError(
            f"padding_mask: lengths must lie between 0 and n, got lengths={listed} and n={n}. "
            f"Cut them with lengths.clamp(0, {n}){longer}."
        )
    keys = torch.arange(n, device=lengths.device)
    return (keys < lengths[:, None])[:, None, None, :]
