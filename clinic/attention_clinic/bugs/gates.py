"""Gates: what a head mixed is multiplied by numbers that are made of the token itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, variant
from attention_clinic.engine.weights import Source

BENDS: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "silu": F.silu}


@dataclass(frozen=True)
class Opener:
    """A layer that may make a gate.

    Args:
        source: its weights, (f, e) or (h, e).
        bend: the name of what bends its result.
    """

    source: Source
    bend: str

    def opened(self, tokens: Tensor) -> Tensor:
        """Return how far the gate is open, (b, n, f) or (b, n, h)."""
        weight = self.source.weight
        made = tokens @ (weight.T if "oi" in self.source.forms else weight)
        made = made if self.source.bias is None else made + self.source.bias
        return BENDS[self.bend](made)


variant(
    "gated-attention",
    "multiplies what each head mixed by a gate that is made of the token itself",
    "AlphaFold, Qwen3-Next",
    "13",
)

# ----------------------------- gate: joined (r, b, n, h * d), before the output projection


def _gated(form: Form, state: State) -> State | None:
    if form.run is None:
        return {}
    joined, heads = state["joined"], state["setting"].num_heads
    opened = form.run.opened(state["inside"])
    if opened.shape[1] != joined.shape[2]:
        return None
    if opened.shape[-1] == heads and joined.shape[-1] != heads:
        opened = opened.repeat_interleave(joined.shape[-1] // heads, dim=-1)
    return {"joined": joined * opened} if opened.shape[-1] == joined.shape[-1] else None


def _openers(state: State) -> Iterator[Form]:
    for opener in state.get("openers", ()):
        yield Form(opener, variants=("gated-attention",))


GATE = Stage("gate", _gated, _openers, [Form(None)])
