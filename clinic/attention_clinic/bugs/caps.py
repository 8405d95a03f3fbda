"""Soft caps: scores that are bent, so that none exceeds a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant


@dataclass(frozen=True)
class Caps:
    """What is known of the soft cap of a module.

    Args:
        values: what the cap may be.
        said: whether its configuration says that there is one.
    """

    values: tuple[float, ...]
    said: bool


# ---------------- cap: scores (r, b, h, i, j), before anything is added to them or masked

variant(
    "soft-cap",
    "bends the scores, cap * tanh(scores / cap): none exceeds the cap",
    "Gemma 2, Grok",
    "13",
)

bug(
    "cap-missing",
    "has a soft cap in its configuration, and does not bend the scores",
    "write scores = cap * torch.tanh(scores / cap) before the mask; a fused kernel that takes no "
    "cap leaves it out.",
    "13",
    "kekzl/imp#688",
    "sgl-project/sgl-kernel-xpu#491",
    "EricLBuehler/mistral.rs#1928",
)
bug(
    "cap-after-mask",
    "bends the scores after they are masked: a masked score becomes -cap, and still gets weight",
    "bend first, then mask.",
    "13",
    "onnx/onnx#7865",
    "emmtrix/emx-onnx-cgen#731",
    "Dao-AILab/flash-attention#1025",
)


def _capped(form: Form, state: State) -> State:
    if form.run is None:
        return {"late": None}
    if form.ids:
        return {"late": form.run}
    return {"scores": form.run(state["scores"]), "late": None}


def _said(state: State) -> bool:
    caps: Caps | None = state.get("caps")
    return caps is not None and caps.said


def _found(state: State) -> Iterator[Form]:
    caps: Caps | None = state.get("caps")
    for cap in caps.values if caps is not None else ():
        yield Form(_bent(cap), variants=("soft-cap",))
        if state.get("right") is not None:  # with nothing masked, both orders are one
            yield Form(_bent(cap), ("cap-after-mask",))


def _bent(cap: float) -> Callable[[Tensor], Tensor]:
    return lambda scores: cap * torch.tanh(scores / cap)


CAP = Stage("cap", _capped, found=_found)
CAP.forms.append(Form(None, applies=lambda state: not _said(state)))
CAP.forms.append(Form(None, ("cap-missing",), applies=_said))
