"""Masks that a model makes itself and that block everything, where their opposite is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_clinic.bugs import BUGS
from attention_clinic.engine.replay import BLOCKED, Replay
from attention_clinic.engine.report import Report, explain
from attention_clinic.examine.model_rows import first_of

SEEN = "with the opposite of that mask, it is the reference"


def with_opened_mask(
    tool: Callable[..., Report],
    replay: Replay,
    sizes: Sequence[tuple[int, int] | None],
    given: Mapping[str, Any] | None,
) -> Report | None:
    """Return the report on a part, or mask-inverted where what it got blocks all of a whole text.

    Args:
        tool: examines the part by a call and a size.
        replay: how the model called it.
        sizes: the first that it takes is examined.
        given: what the model got: who hands it a mask says what that means.
    """
    report = first_of(lambda size: tool(call=replay, size=size), sizes)
    if report is None or report.healthy or any("mask" in name for name in given or ()):
        return report
    turned = {name: _turned(t) for name, t in replay.call.given.items() if _is_level(name, t)}
    if not turned:
        return report
    call = replace(replay.call, given=replay.call.given | turned)
    opened = replace(replay, call=call)
    other = first_of(lambda size: tool(call=opened, size=size), sizes)
    if other is None or not other.healthy:
        return report
    words = f"{' and '.join(turned)}: the model blocks all tokens, and none of them is padding"
    found = replace(explain([BUGS["mask-inverted"]], detail=words), evidence=SEEN)
    return replace(other, healthy=False, explanations=(found,))


def _is_level(name: str, value: Any) -> bool:
    """Say whether an argument is a mask that says the same of all tokens."""
    is_mask = "mask" in name.lower() and isinstance(value, Tensor) and value.numel() > 1
    return is_mask and bool((value == value.flatten()[0]).all())


def _turned(mask: Tensor) -> Tensor:
    """Return the opposite of a mask."""
    if mask.dtype == torch.bool:
        return ~mask
    return torch.zeros_like(mask) if float(mask.flatten()[0]) < BLOCKED else 1 - mask
