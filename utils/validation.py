"""Check arguments: each function raises a `ValueError` that says the rule, the value and the fix.

`where` is the public name that the message begins with, `name` the name of the argument.
"""

from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import Any

import torch
from torch import Tensor

Size = int | tuple[int, int]
ID_TYPES = (torch.int64, torch.int32)


def check_shape(
    where: str, name: str, tensor: Tensor, axes: str, fix: str, **sizes: int | None
) -> None:
    """Raise unless `tensor` has the named axes with the given sizes.

    >>> check_shape("f", "x", torch.zeros(2, 3), "b n", "Cut it to 4 tokens.", n=4)
    Traceback (most recent call last):
    ValueError: f: x must have shape (b, n=4), got x.shape=(2, 3). Cut it to 4 tokens.

    Args:
        axes: letters of the axes, such as "b c H W".
        fix: one sentence that says what to do.
        sizes: the size that a letter must have; None or left out for any size.
    """
    letters = axes.split()
    wanted = [sizes.get(letter) for letter in letters]
    if tensor.ndim != len(letters) or any(
        want is not None and size != want for size, want in zip(tensor.shape, wanted, strict=True)
    ):
        pattern = ", ".join(
            letter if want is None else f"{letter}={want}"
            for letter, want in zip(letters, wanted, strict=True)
        )
        raise ValueError(
            f"{where}: {name} must have shape ({pattern}), "
            f"got {name}.shape={tuple(tensor.shape)}. {fix}"
        )


def check_positive(where: str, least: int = 1, **values: int) -> None:
    """Raise unless every value is an integer of at least 1, or of at least `least`."""
    for name, value in values.items():
        whole = isinstance(value, Integral | torch.SymInt) and not isinstance(value, bool)
        if not whole or value < least:
            raise ValueError(
                f"{where}: {name} must be an integer of at least {least}, got {name}={value!r}. "
                f"Pass a whole number such as {name}=4."
            )


def check_number(where: str, name: str, value: int, least: int, most: int, fix: str) -> None:
    """Raise unless a value is an integer from `least` to `most`; `fix` says what to do."""
    whole = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ValueError(
            f"{where}: {name} must be an integer from {least} to {most}, "
            f"got {name}={value!r}. {fix}"
        )


def check_mask(
    where: str, attn_mask: Tensor | None, shape: tuple[int, ...], name: str = "attn_mask"
) -> None:
    """Raise unless the mask is None, or boolean and broadcastable to `shape`, (..., i, j)."""
    if attn_mask is None:
        return
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype != torch.bool:
        got = attn_mask.dtype if isinstance(attn_mask, Tensor) else type(attn_mask).__name__
        tensor = name if isinstance(attn_mask, Tensor) else f"torch.tensor({name})"
        fix = f"If 1 means may attend, pass {tensor}.bool()"
        if isinstance(attn_mask, Tensor) and attn_mask.dtype.is_floating_point:
            fix += f"; if 0 does (a mask that is added), pass {name} == 0"
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
        fix = f"For one row of keys, pass {name}[None]."
    elif len(shape) == 4 and sizes == (shape[0], shape[3]):
        fix = f"For one row of keys per sequence, pass {name}[:, None, None, :]."
    elif len(shape) == 4 and sizes == (shape[0], *shape[2:]):
        fix = f"For one mask per sequence, pass {name}[:, None]."
    else:
        fix = "Its last two axes are queries i and keys j; each axis has this size or 1."
    raise ValueError(
        f"{where}: {name} must broadcast to the scores {tuple(shape)}, "
        f"got {name}.shape={sizes}. {fix}"
    )


def check_real(where: str, interval: str, fix: str, **values: float) -> None:
    """Raise unless every value is a number in an interval, such as "[0, 1)" or "(0, inf)"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    is_above, is_below = ge if interval[0] == "[" else gt, le if interval[-1] == "]" else lt
    for name, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not (number and is_above(value, low) and is_below(value, high)):
            raise ValueError(
                f"{where}: {name} must be a number in {interval}, got {name}={value!r}. {fix}"
            )


def check_ids(where: str, name: str, ids: Tensor, size: int, fix: str) -> None:
    """Raise unless ids are int64 or int32 from 0 to `size` - 1; {needed} in `fix` is a size."""
    if not isinstance(ids, Tensor) or ids.dtype not in ID_TYPES:
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(
            f"{where}: {name} must be a tensor of int64 or int32, got {got}. "
            f"Integers of another type become ids with {name}.long()."
        )
    if not ids.numel() or torch.compiler.is_compiling():  # then it cannot look at values
        return
    low, high = ids.min().item(), ids.max().item()
    if low < 0 or high >= size:
        raise ValueError(
            f"{where}: {name} must lie between 0 and {size - 1}, "
            f"got {low if low < 0 else high}. {fix.format(needed=max(high + 1, size))}"
        )


def check_floating(where: str, name: str, tensor: Tensor, fix: str) -> None:
    """Raise unless a tensor holds floating point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(
            f"{where}: {name} must hold floating point numbers, "
            f"got {name}.dtype={tensor.dtype}. {fix}"
        )


def check_cache(where: str, cache: Any, length: int) -> None:
    """Raise unless a model's pass has left `length` tokens in its cache.

    It has not if the cache holds another model's tokens, or if one layer runs twice in a pass.
    """
    if cache is not None and cache.length != length:
        raise ValueError(
            f"{where}: after these tokens the cache must hold {length}, got {cache.length}. "
            "Begin with a new cache, and give the model no layer twice."
        )


def known_positions(where: str, positions: Tensor | None, x: Tensor, cache: Any) -> Tensor:
    """Return the positions of tokens (b, i, e): those that are given, without a cache from 0 on."""
    if positions is not None:
        return positions
    if cache is not None:  # its length is that of the layers before this one
        raise ValueError(
            f"{where}: with a cache the positions must be given, got positions=None. "
            "Before the first layer they are torch.arange(cache.length, cache.length + n)."
        )
    return torch.arange(x.shape[1], device=x.device)


def check_positions(where: str, positions: Tensor, b: int, n: int) -> None:
    """Raise unless positions are numbers of shape (n,) or (b, n)."""
    if tuple(positions.shape) not in [(n,), (b, n)] or positions.dtype == torch.bool:
        raise ValueError(
            f"{where}: positions must be numbers of shape ({n},) or ({b}, {n}), got "
            f"positions.shape={tuple(positions.shape)} of {positions.dtype}. "
            f"Of tokens from the first on they are torch.arange({n})."
        )


def check_images(
    where: str, images: Tensor, channels: int, sizes: tuple[int, int], fix: str
) -> None:
    """Raise unless images (b, c, H, W) have these channels and sizes, and are not integers."""
    height, width = sizes
    check_shape(where, "images", images, "b c H W", fix, c=channels, H=height, W=width)
    fix = "Bytes from 0 to 255 become numbers from 0 to 1 with images / 255."
    check_floating(where, "images", images, fix)


def check_multiple(where: str, **sizes: int) -> None:
    """Raise unless the first of two sizes is a multiple of the second."""
    (whole, size), (part, count) = sizes.items()
    if size % count:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        raise ValueError(
            f"{where}: {whole} must be a multiple of {part}, got {whole}={size} and "
            f"{part}={count}. Pick {part} from {divisors}, or change {whole}."
        )


def check_rotary(where: str, name: str, width: int, rope_theta: float) -> None:
    """Raise unless vectors of this width can be rotated in pairs, by angles of this rope_theta."""
    if width % 2:
        raise ValueError(
            f"{where}: {name} must be even, since rotary positions rotate pairs of numbers, "
            f"got {name}={width}. Take {width + 1}."
        )
    check_real(where, "(0, inf)", "Llama's is rope_theta=10_000.0.", rope_theta=rope_theta)


def as_pair(where: str, name: str, size: Size) -> tuple[int, int]:
    """Return a size, one integer of at least 1 or two, as (height, width)."""
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    check_positive(where, **{name: height})
    check_positive(where, **{name: width})
    return height, width


def patch_grid(
    where: str, image_size: tuple[int, int], patch_size: tuple[int, int]
) -> tuple[int, int]:
    """Return the number of patches down and across, if they tile the image."""
    if image_size[0] % patch_size[0] or image_size[1] % patch_size[1]:
        height, width = (
            [size for size in range(1, side + 1) if side % size == 0] for side in image_size
        )
        raise ValueError(
            f"{where}: patches must tile the image, got patch_size={patch_size} for an image of "
            f"{image_size[0]} x {image_size[1]} pixels. "
            f"Pick the patch height from {height} and the width from {width}, or crop the image."
        )
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]
