"""What a mask says, in the convention of its caller."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import mask_argument
from attention_clinic.engine.modes import moved
from attention_clinic.engine.patient import Patient, same


def adds(mask: Tensor) -> bool:
    """Say whether a mask is to be added: floats, but not a table of ones and zeros."""
    return mask.is_floating_point() and not bool(((mask == 0) | (mask == 1)).all() and mask.any())


def closed(y: Tensor) -> bool:
    """Say whether a mask seems to block every place: there is only NaN, or all tokens are alike."""
    alike = y.ndim == 3 and y.shape[1] > 1 and same(y[:, :1].expand_as(y), y)
    return alike or bool(y.isnan().all())


def is_deaf(patient: Patient, x: Tensor, context: Tensor | None) -> bool:
    """Say whether a mask seems to block every place of a block: two matrices change nothing.

    Those of queries and keys are idle where all weights are alike.

    Args:
        patient: holds the copy and the mask.
        x: its tokens.
        context: what its cross-attention asks, if any.
    """
    y, idle = patient.run(x, context=context), 0
    for matrix in [p for p in patient.module.parameters() if p.ndim == 2]:
        with moved([matrix]):
            idle += same(patient.run(x, context=context), y)
        if idle == 2:
            return True
    return False


def is_turned(
    module: nn.Module | Callable[..., Any], call: Callable[..., Any] | None, mask: Tensor | None
) -> bool:
    """Say whether a mask is turned over on its way, as nn.MultiheadAttention takes it."""
    own = isinstance(module, nn.MultiheadAttention) and call is None
    return own and mask is not None and mask.dtype == torch.bool


def names_what_it_blocks(module: nn.Module | Callable[..., Any]) -> bool:
    """Say whether the mask's argument is named after what is blocked: key_padding_mask."""
    name = mask_argument(module, handed=True) or ""
    return bool(re.search(r"pad|block|ignore|exclude|masked", name.lower()))


def allowed(mask: Tensor, b: int, n: int, blocks: bool = False, keys: int | None = None) -> Tensor:
    """Return who may attend to whom, (1 or b, 1 or h, 1 or n, n), from a mask of any convention.

    Args:
        mask: bool, integers or floats of 0 and 1 (1 = may attend), other floats to be added
            (0 = may attend).
        blocks: True when True, or 1, means blocked; a mask to be added says it by itself.
        b: number of samples.
        n: number of tokens.
        keys: number of tokens of a context, j; None when the tokens themselves are asked.

    Shape:
        mask    (n, n), (b, n), (b, n, n), or four axes; the last is j beside a context
        result  (1 or b, 1 or h, 1 or n, n), bool; the last is j beside a context

    Raises:
        ValueError: another shape.
    """
    allow = mask == 0 if adds(mask) else mask > 0
    if blocks and not adds(mask):
        allow = ~allow
    shape = tuple(allow.shape)
    j = n if keys is None else keys
    if len(shape) == 2 and shape == (n, j) and (keys is None or n != b):
        return allow[None, None]
    if len(shape) == 2 and shape == (b, j):
        return allow[:, None, None, :]
    if len(shape) == 3 and shape[0] in (1, b) and shape[1] in (1, n) and shape[2] == j:
        return allow[:, None]
    if len(shape) == 4 and shape[3] == j and shape[2] in (1, n):
        return allow
    wanted = "(n, n), (b, n), (b, n, n) or (b, 1, n, n)"
    sizes, more = f"b={b} and n={n}", ""
    if keys is not None:
        wanted = "(i, j), (b, j), (b, i, j) or (b, 1, i, j)"
        sizes, more = f"b={b}, i={n} and j={j}", "; context=(j, width) sets the last axis"
    raise ValueError(
        f"diagnose: mask must have shape {wanted}, got mask.shape={shape} for {sizes}. "
        f"Make it for one call: size=(b, n) sets both{more}."
    )
