"""The softmax, and the mixing of the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from einops import rearrange
from torch import Tensor

from attention_clinic.bugs.bending import bendings
from attention_clinic.bugs.lengths import tops
from attention_clinic.bugs.relatives import sinks
from attention_clinic.engine.forms import Form, Stage, State, bug, observed

# -------------------------------------------------- softmax: scores (r, b, h, i, j)


def _linear(state: State) -> State | None:
    """Divide by the sums of what is seen; what looks at all tokens has no other way."""
    weights, allow, more = state["linear"], state["allow"], state.get("over")
    if more is None:
        return {"weights": weights} if allow is None or state.get("turned") else None
    weights = weights if allow is None else weights * allow[None]
    return {"weights": weights / (weights.sum(dim=-1, keepdim=True) + more)}


def _weighed(form: Form, state: State) -> State | None:
    if state.get("linear") is not None:
        return _linear(state)
    late = state.get("late")  # what bends scores that are masked already
    run = form.run if late is None else lambda scores: form.run(late(scores))
    if state["allow"] is None:
        weights = run(state["scores"])
    else:
        weights = state["use"](state["scores"], state["allow"][None], run)
    return {"weights": weights * state["factor"]}


def _found(state: State) -> Iterator[Form]:
    yield from sinks(state)
    yield from tops(state)
    yield from bendings(state)


SOFTMAX = Stage("softmax", _weighed, found=_found)


@SOFTMAX.right
def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


bug(
    "softmax-missing",
    "mixes the values with the bare scores: no softmax makes weights of them",
    "weights = scores.softmax(dim=-1), whether there is a mask or not.",
    "03",
    "lluisg/Transformer-Implementation-Project",
    "RvuvuzelaM/self-attention-ppo-pytorch",
)


def _bare(state: State) -> bool:
    """Say whether scores are made and go into no softmax; who scales them meant one."""
    return bool(state.get("bare_scores")) and state["scaled"]


@SOFTMAX.wrong("softmax-missing", applies=_bare)
def softmax_missing(scores: Tensor) -> Tensor:
    return scores


bug(
    "softmax-query",
    "takes the softmax over the queries: columns sum to 1, rows do not",
    "take the softmax over the keys, dim=-1.",
    "03",
    "labmlai/annotated_deep_learning_paper_implementations#146",
    "labmlai/annotated_deep_learning_paper_implementations#282",
    "nerminnuraydogan/vision-transformer#1",
)


@SOFTMAX.wrong("softmax-query")
def softmax_query(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


def _cleared(weights: Tensor) -> Tensor:
    """Return weights that are 0 where all scores are masked: who goes on with NaN is no match."""
    return weights.nan_to_num(0.0)


bug(
    "softmax-heads",
    "takes the softmax over the heads (dim=1 of (b, h, i, j))",
    "take the softmax over the keys, dim=-1.",
    "03",
    "CAMMA-public/rendezvous-in-time#3",
)


@SOFTMAX.wrong("softmax-heads")
def softmax_heads(scores: Tensor) -> Tensor:
    return _cleared(scores.softmax(dim=2))


bug(
    "softmax-batch",
    "takes the softmax over the batch axis: a batch of one gives weights of exactly 1",
    "take the softmax over the keys, dim=-1.",
    "03",
    "PetrochukM/PyTorch-NLP#2",
)


@SOFTMAX.wrong("softmax-batch")
def softmax_batch(scores: Tensor) -> Tensor:
    return _cleared(scores.softmax(dim=1))


@SOFTMAX.wrong("softmax-batch", "over batch and heads at once, which share axis 0")
def softmax_batch_and_heads(scores: Tensor) -> Tensor:
    return _cleared(scores.flatten(1, 2).softmax(dim=1).view_as(scores))


bug(
    "softmax-joint",
    "takes one softmax over the keys of all heads together",
    "take the softmax over the keys of each head by itself, dim=-1 of (b, h, i, j).",
    "04",
    "facebookresearch/detr#247",
)


@SOFTMAX.wrong("softmax-joint")
def softmax_joint(scores: Tensor) -> Tensor:
    h = scores.shape[2]
    joined = rearrange(scores, "r b h i j -> r b i (h j)").softmax(dim=-1)
    return rearrange(joined, "r b i (h j) -> r b h i j", h=h)


bug(
    "softmax-axes",
    "takes one softmax over more than the keys of one query: rows do not sum to 1",
    "take the softmax over the keys alone, dim=-1 of (b, h, i, j).",
    "03",
    "nntrainer/nntrainer#1602",
)
# the axes beside the keys, or without them, of (r, b, h, i, j)
TOO_MANY = {
    (3, 4): "over all pairs of tokens of a head",
    (2, 3): "over heads and queries",
    (2, 3, 4): "over all pairs of tokens, of all heads",
    (1, 4): "over the keys of all samples",
    (1, 3): "over the queries of all samples",
    (1, 2, 3): "over samples, heads and queries",
    (1, 2, 4): "over the keys of all heads and samples",
    (1, 3, 4): "over all pairs of tokens, of all samples",
    (1, 2, 3, 4): "over all scores at once",
}


def _over(axes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def run(scores: Tensor) -> Tensor:
        return (scores - scores.logsumexp(dim=axes, keepdim=True)).exp()

    return run


def _several(axes: tuple[int, ...]) -> Callable[[State], bool]:
    """Return whether there is more than one of each axis: else it is another softmax."""
    return lambda state: observed(state) and all(state["scores"].shape[a] > 1 for a in axes)


for _axes, _words in TOO_MANY.items():
    SOFTMAX.wrong("softmax-axes", _words, _several(_axes))(_over(_axes))

# ------------------------- mix: weights (r, b, h, i, j) and values (r, b, h, j, d)


def _mixed(form: Form, state: State) -> State:
    mixed = form.run(state["weights"], state["v"])
    return {"mixed": mixed.mT if state.get("turned") else mixed}


MIX = Stage("mix", _mixed)


@MIX.right
def mix(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v


bug(
    "mix-transposed",
    "mixes with the weights transposed: columns of the weights where rows belong",
    "multiply weights (i, j) with values (j, d): weights @ v.",
    "03",
    "heykeetae/Self-Attention-GAN#11",
)


def _square(state: State) -> bool:
    return state["weights"].shape[-1] == state["weights"].shape[-2]


@MIX.wrong("mix-transposed", applies=_square)
def mix_transposed(weights: Tensor, v: Tensor) -> Tensor:
    return weights.mT @ v


@MIX.wrong("sum-apart", "the weights of a query and the values", observed)
def mix_of_sums(weights: Tensor, v: Tensor) -> Tensor:
    return weights.sum(dim=-1, keepdim=True) * v.sum(dim=-2, keepdim=True)
