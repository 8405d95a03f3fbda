"""The feed-forward: its activation, and the gate that it may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine.forms import Form, State, bug, variant
from attention_clinic.engine.weights import Source

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick-gelu": lambda t: t * torch.sigmoid(1.702 * t),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True)
class Gate:
    """The gate of a feed-forward.

    Args:
        source: its weights; None when the first half of the first layer is the gate.
        sure: whether the names say which is the gate.
    """

    source: Source | None
    sure: bool


@dataclass(frozen=True)
class Feed:
    """The weights of a feed-forward.

    Args:
        up: the first layer, or its part that is not the gate.
        down: the second.
        form: their orientation.
        gate: the gate, None when there is none.
    """

    up: Source
    down: Source
    form: str
    gate: Gate | None = None

    @property
    def sources(self) -> list[Source]:
        """All its weights."""
        gate = [self.gate.source] if self.gate and self.gate.source else []
        return [self.up, *gate, self.down]


bug(
    "activation-other",
    "bends with another activation than announced",
    "use the activation that the weights were trained with.",
    "06",
    "PaddlePaddle/PaddleNLP#1048",
    "timeseriesAI/tsai#361",
)
bug(
    "gelu-tanh",
    "uses the tanh approximation of GELU where the exact one was announced, or the reverse",
    'nn.GELU() is exact, nn.GELU(approximate="tanh") is not.',
    "06",
    "kornia/kornia#2786",
    "keras-team/keras-hub#642",
)
variant(
    "gated",
    "multiplies one projection by the activation of another",
    "SwiGLU of Llama, GEGLU of T5 v1.1",
    "13",
)
variant(
    "gate-second",
    "bends the second of the two projections, not the first",
    "GLU of PyTorch, GEGLU of diffusers",
    "13",
)
bug(
    "gate-swapped",
    "exchanges gate and value: the activation bends the value",
    "down(activation(gate(x)) * up(x)): the gate is what is bent.",
    "13",
    "nntrainer/nntrainer#4194",
    "sgl-project/sglang#34940",
    "sgl-project/sglang#32430",
)
bug(
    "gate-product",
    "bends the product of gate and value, not the gate",
    "close the bracket earlier: activation(gate(x)) * up(x).",
    "13",
    "Nijikadesu/breakdown-minimind#3",
    "devvrit/matformer#4",
)

variant(
    "conv-feed",
    "mixes neighbouring tokens in its feed-forward, by a convolution",
    "FastSpeech, SegFormer, PVT v2, Uformer",
    "13",
)
variant(
    "experts",
    "sends each token to some of several feed-forwards, and weighs their results by a router",
    "Mixtral, Switch Transformer, DeepSeek",
    "13",
)
variant(
    "quick-gelu",
    "bends by x * sigmoid(1.702 x), which is nearly GELU",
    "CLIP",
    "06",
)

VALUE, PRODUCT = " of the value", " of the product"


def _affine(t: Tensor, source: Source, form: str) -> Tensor:
    made = t @ (source.weight.T if form == "oi" else source.weight)
    return made if source.bias is None else made + source.bias


def feed(t: Tensor, fed: Feed, how: str) -> Tensor:
    """Return what a feed-forward makes of t.

    Args:
        t: tokens, (b, n, e).
        fed: its weights.
        how: the activation, and behind it what it bends where that is not the gate.
    """
    value, place = _affine(t, fed.up, fed.form), ""
    for wrong in (VALUE, PRODUCT):
        how, place = (how.removesuffix(wrong), wrong) if how.endswith(wrong) else (how, place)
    bend = ACTIVATIONS[how]
    if fed.gate is None:
        return _affine(bend(value), fed.down, fed.form)
    if fed.gate.source is None:
        gate, value = value.chunk(2, dim=-1)
    else:
        gate = _affine(t, fed.gate.source, fed.form)
    if place == PRODUCT:
        inner = bend(gate * value)
    else:
        inner = gate * bend(value) if place == VALUE else bend(gate) * value
    return _affine(inner, fed.down, fed.form)


def feeds(state: State) -> Iterator[Form]:
    """Find the activations that were heard, or else all, and what they may bend."""
    wanted, fed = state["meant"].activation, state["parts"].fed
    for name in state["parts"].heard or ACTIVATIONS:
        gelus = {wanted, name} == {"gelu", "gelu-tanh"}
        other = ("gelu-tanh" if gelus else "activation-other",)
        ids = () if wanted in (None, name) else other
        quick = ("quick-gelu",) * (name == "quick-gelu")
        if fed.gate is None:
            yield Form(name, ids, variants=quick)
            continue
        yield Form(name, ids, variants=("gated", *quick))
        if fed.gate.sure and state["meant"].model is not None:
            yield Form(name + VALUE, ("gate-swapped", *ids))
        else:
            yield Form(name + VALUE, ids, variants=("gated", "gate-second", *quick))
        yield Form(name + PRODUCT, ("gate-product", *ids))
