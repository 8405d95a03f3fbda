"""How wide a head is where a kernel has no layers that say it."""

from __future__ import annotations

from typing import Any

from torch import nn

from attention_clinic.engine.heads import NAMES
from attention_clinic.engine.patient import possible_widths
from attention_clinic.examine.declared import prepared

USUAL = 16  # the width of a head, where nothing says it
WAYS = 3  # widths that are tried
MOST = 1024  # a larger number is no width of a head
WIDTHS = ("d_k", "dk", "d_q", "head_dim", "dim_head", "d_head", "head_size", "depth", "dim", "d")


def widths_of(module: Any, h: int, embed_dim: int | None = None) -> list[int]:
    """Return how wide a head may be: what the module says, else what its own numbers are of.

    Args:
        module: the kernel, a module or a function.
        h: number of heads.
        embed_dim: width of a token, None when nobody says it.
    """
    if embed_dim or not isinstance(module, nn.Module):
        return [max(1, embed_dim // h) if embed_dim else USUAL]
    held, scales = widths_said(module)
    found = [held[name] for name in WIDTHS if held.get(name, 0) > 1]
    whole = possible_widths(module, dict(module.named_parameters()))
    whole = [w for w in whole if w not in found]
    found += [w for e in whole for w in dict.fromkeys((e // h * (e % h == 0), e)) if w > 1]
    for number in scales if not found else ():
        for width in (number**2, number**-2) if number > 0 else ():
            if 1 < round(width) <= MOST and abs(width - round(width)) < 1e-6 * width:
                found.append(round(width))
    if not found:  # a number of another name may be its width
        numbers = {v for n, v in vars(module).items() if type(v) is int and n not in NAMES}
        likely = sorted((v for v in numbers if 1 < v <= MOST), reverse=True)
        found = [*likely[: WAYS - 1], USUAL]
    return list(dict.fromkeys(found))[:WAYS]


def widths_said(module: Any) -> tuple[dict[str, int], list[float]]:
    """Return the whole numbers that a module holds as widths of heads, and those called scales."""
    if not isinstance(module, nn.Module):
        return {}, []
    held = {n: v for n, v in vars(module).items() if n in WIDTHS}
    whole = {n: v for n, v in held.items() if isinstance(v, int) and not isinstance(v, bool)}
    scales = [number for _, number in prepared(module)]
    scales += [float(p.detach()) for p in module.parameters() if p.numel() == 1]
    return whole, scales + [float(v) for v in held.values() if isinstance(v, float)]
