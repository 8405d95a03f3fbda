"""Who may attend to whom: boolean masks in which True means "may attend" (chapter 05)."""

import torch
from torch import Tensor

from utils.shapes import check_positive, check_shape


def causal_mask(n: int, device: torch.device | str | None = None, start: int = 0) -> Tensor:
    """Let each token attend to itself and to the tokens before it.

    Args:
        n: number of tokens.
        device: where the mask is made; by default PyTorch's.
        start: the first token that asks: with a cache, only the rows of the new tokens are needed.

    Shape:
        result  (n - start, n), bool, True = query i (row) may attend to key j (column)

    Raises:
        ValueError: n is not an integer of at least 1, or start is not one from 0 to n.

    Source: Vaswani et al. 2017, section 3.2.3; chapter 05.
    """
    check_positive("causal_mask", n=n)
    if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= n:
        raise ValueError(
            f"causal_mask: start must be an integer from 0 to n={n}, got start={start!r}. "
            "It is the place of the first token that asks."
        )
    return torch.ones(n - start, n, dtype=torch.bool, device=device).tril(start)


def padding_mask(lengths: Tensor, n: int) -> Tensor:
    """Let every token of a sequence attend to its first `length` tokens, not to the padding.

    Args:
        lengths: how many real tokens each sequence has, 0 to n.
        n: number of tokens, padding included.

    Shape:
        lengths  (b,), integers
        result   (b, 1, 1, n), bool, True = may be attended to; the same for all heads and queries

    Raises:
        ValueError: lengths that are no integers, have another rank or lie outside 0 to n.

    Source: chapter 05.
    """
    check_positive("padding_mask", n=n)
    if (
        not isinstance(lengths, Tensor)
        or lengths.dtype.is_floating_point
        or (lengths.dtype in (torch.bool, torch.complex64, torch.complex128))
    ):
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


def check_mask(
    where: str, attn_mask: Tensor | None, shape: tuple[int, ...], name: str = "attn_mask"
) -> None:
    """Raise a `ValueError` unless the mask is boolean and can be laid over the scores.

    Args:
        where: the public name that the error begins with.
        attn_mask: the mask, or None.
        shape: the shape of the scores, (..., i, j).
        name: the name of the argument.

    Raises:
        ValueError: a mask that is not boolean, or that does not broadcast to `shape`.

    Source: chapter 05.
    """
    if attn_mask is None:
        return
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype != torch.bool:
        got = attn_mask.dtype if isinstance(attn_mask, Tensor) else type(attn_mask).__name__
        fix = f"Of ones and zeros (1 = may attend) take {name}.bool()"
        if not isinstance(attn_mask, Tensor):
            fix = f"Of ones and zeros (1 = may attend) take torch.tensor({name}).bool()"
        elif attn_mask.dtype.is_floating_point:
            fix += f", of a mask that is to be added (0 = may attend) {name} == 0"
        raise ValueError(
            f"{where}: {name} must be a boolean tensor, True = may attend, got {got}. {fix}."
        )
    sizes = tuple(attn_mask.shape)
    if 2 <= len(sizes) <= len(shape) and all(
        size == 1 or size == want
        for size, want in zip(reversed(sizes), reversed(shape), strict=False)
    ):
        return
    if sizes == shape[-1:]:
        fix = f"One row of keys for all queries is {name}[None]."
    elif len(shape) == 4 and sizes == (shape[0], shape[3]):
        fix = f"One row of keys for each sequence is {name}[:, None, None, :]."
    elif len(shape) == 4 and sizes == (shape[0], *shape[2:]):
        fix = f"One mask for each sequence is {name}[:, None]."
    else:
        fix = "Its last two axes are queries i and keys j; each axis has this size or 1."
    raise ValueError(
        f"{where}: {name} must broadcast to the scores {tuple(shape)}, "
        f"got {name}.shape={sizes}. {fix}"
    )
