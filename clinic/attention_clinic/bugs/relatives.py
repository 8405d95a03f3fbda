"""Relatives of the attention of 2017: heads that talk, sinks, attention that is linear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.forms import Form, Stage, State, bug, variant


@dataclass(frozen=True)
class Mixer:
    """A layer that mixes heads.

    Args:
        weight: (h, h), from the second axis to the first.
        bias: (h,), or None.
        norm: what stands behind it, a LayerNorm or a BatchNorm2d of h numbers, or None.
    """

    weight: Tensor
    bias: Tensor | None
    norm: nn.Module | None = None

    def run(self, t: Tensor) -> Tensor:
        """Mix the heads of scores or weights, (r, b, h, i, j)."""
        mixed = torch.einsum("rbhij,gh->rbgij", t, self.weight)
        mixed = mixed if self.bias is None else mixed + self.bias[:, None, None]
        if isinstance(self.norm, nn.LayerNorm):
            return self.norm(mixed.movedim(2, -1)).movedim(-1, 2)
        if self.norm is not None:
            return self.norm(mixed.flatten(0, 1)).view_as(mixed)
        return mixed

    @property
    def name(self) -> str:
        """The name of the variant that it is."""
        return "talking-heads" if self.norm is None else "re-attention"


variant(
    "talking-heads",
    "mixes the scores, or the weights, of its heads with each other",
    "CaiT, talking-heads attention",
    "04",
)
variant(
    "re-attention",
    "mixes the weights of its heads with each other, and norms what comes of it",
    "DeepViT",
    "04",
)
variant(
    "attention-sink",
    "gives each softmax one more key, without a value: what nobody shall get goes there",
    "gpt-oss, StreamingLLM",
    "16",
)
variant(
    "linear-attention",
    "multiplies keys with values first: weights are products of what queries and keys are made "
    "into one by one, without a softmax over the keys",
    "linear Transformers, Efficient Attention",
    "16",
)

variant(
    "spatial-reduction",
    "makes keys and values of fewer tokens: those of the image made smaller",
    "PVT, SegFormer, Twins",
    "16",
)

variant(
    "conv-projection",
    "makes queries, keys or values by convolutions, which look at neighbours, too",
    "CvT, CMT, CoAtNet",
    "16",
)

variant(
    "places-inside",
    "adds codes of places to its tokens before it projects them, where others do so once, before "
    "the first block",
    "attention pooling of CLIP",
    "05",
)

# ----------------------- talking heads: scores (r, b, h, i, j) before, weights after the softmax


def _talking(name: str) -> Stage:
    def apply(form: Form, state: State) -> State:
        return {} if form.run is None else {name: form.run(state[name])}

    def found(state: State) -> Iterator[Form]:
        for mixer in state.get("mixers", ()):
            yield Form(mixer.run, variants=(mixer.name,))

    return Stage(f"heads that mix {name}", apply, found, [Form(None)])


TALK_BEFORE, TALK_AFTER = _talking("scores"), _talking("weights")

# ----------------------------------------------------------- sinks: a softmax with one more column


def sinking(sink: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the softmax that has a sink in each head.

    Args:
        sink: one number for each head, (h,).
    """

    def run(scores: Tensor) -> Tensor:
        column = sink.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]

    return run


def sinks(state: State) -> Iterator[Form]:
    """Find the sinks that the module holds."""
    for sink in state.get("sinks", ()):
        yield Form(sinking(sink), variants=("attention-sink",))


# ----- linear: q, k (r, b, h, n, d) -> weights (r, b, h, i, j), in the place of scale and softmax

SMALL = (0.0, 1e-6, 1e-15, 1e-8, 1e-5)


bug(
    "linear-operands",
    "multiplies queries with keys over the tokens, where linear attention multiplies keys with "
    "values: a token gets the numbers of its own value, and none of another's",
    'multiply keys with values first, then queries with that: "b n d, b n e -> b d e" of k and v.',
    "16",
    "kyegomez/MambaTransformer, mamba_transformer/blocks.py",
)


def _operands(state: State) -> Iterator[Form]:
    """Find the linear attention of efficient attention with two of its factors exchanged."""
    width = state["q"].shape[-1]
    if not state["q"].shape == state["k"].shape == state["v"].shape:
        return
    root = width**-0.5
    for before, after in ((1.0, 1.0), (1.0, root), (root, 1.0)):

        def run(q: Tensor, k: Tensor, before: float = before, after: float = after) -> Tensor:
            return k.softmax(dim=-2).mT @ (after * (before * q).softmax(dim=-1))

        yield Form(("channels", run), ("linear-operands",))


BENT: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "elu": (lambda t: F.elu(t) + 1,),
    "relu": (torch.relu, lambda t: F.relu(t).square()),
    "softplus": (F.softplus,),
}


def _linear(state: State) -> Iterator[Form]:
    heard = state.get("is_linear", ())
    if not heard or state.get("total", 0) > 1:
        return
    root = state["q"].shape[-1] ** -0.5
    soft = "softmax" in heard
    for before, after in product((1.0, root**0.5, root), (1.0, root)) if soft else ():

        def softmaxes(q: Tensor, k: Tensor, by: float = before, after: float = after) -> Tensor:
            return after * (by * q).softmax(dim=-1) @ (by * k).softmax(dim=-2).mT

        yield Form(softmaxes, variants=("linear-attention",))
    for after in (1.0, root) if soft else ():

        def keys_alone(q: Tensor, k: Tensor, after: float = after) -> Tensor:
            return after * q @ k.softmax(dim=-2).mT

        yield Form(keys_alone, variants=("linear-attention",))
    yield from _operands(state) if soft else ()
    for name in heard:
        for bent, eps, each in product(BENT.get(name, ()), SMALL, (False, True)):
            if each and not eps:
                continue

            def ratios(
                q: Tensor, k: Tensor, bent: Callable = bent, eps: float = eps, each: bool = each
            ) -> tuple[Tensor, Tensor | float]:
                q, k = bent(q), bent(k)
                more = eps * q.sum(dim=-1, keepdim=True) if each else eps
                return q @ k.mT, more

            yield Form(ratios, variants=("linear-attention",))


# channels: q, k (r, b, h, n, d) -> weights (r, b, h, d, d), which mix the numbers of a head

variant(
    "cross-covariance",
    "lets the channels of a head attend to each other, over all tokens, instead of the tokens",
    "XCiT, Restormer, DaViT",
    "16",
)


def _channels(state: State) -> Iterator[Form]:
    if not state.get("by_channels") or not state["q"].shape == state["k"].shape == state["v"].shape:
        return
    for factor in (*state.get("temperatures", ()), 1.0):

        def run(q: Tensor, k: Tensor, by: float | Tensor = factor) -> Tensor:
            q, k = (F.normalize(t, dim=-2) for t in (q, k))
            return (q.mT @ k * by).softmax(dim=-1)

        yield Form(("channels", run), variants=("cross-covariance",))
    # without unit lengths it may be the wrong axis by mistake, unless a name says that it is meant
    for axis in (-1, -2, None) if state.get("means_channels") else ():

        def plain(q: Tensor, k: Tensor, axis: int | None = axis) -> Tensor:
            return (q.mT @ k * (1.0 if axis is None else q.shape[axis] ** -0.5)).softmax(dim=-1)

        yield Form(("channels", plain), variants=("cross-covariance",))


def _both(state: State) -> Iterator[Form]:
    yield from _linear(state)
    yield from _channels(state)


def _weighed(form: Form, state: State) -> State:
    if isinstance(form.run, tuple):
        return {"linear": form.run[1](state["q"], state["k"]), "v": state["v"].mT, "turned": True}
    if form.run is None:
        return {"linear": None}
    made = form.run(state["q"], state["k"])
    made, more = made if isinstance(made, tuple) else (made, None)
    return {"linear": made, "over": more}


LINEAR = Stage("linear", _weighed, _both, [Form(None)])
