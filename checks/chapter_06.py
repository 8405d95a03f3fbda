"""Checks of the exercises of chapter 06: feed-forward, norm and residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from checks.engine.answer import Wrong, written
from checks.engine.calls import naming, run
from checks.engine.cases import Case
from checks.engine.compare import difference, kind
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.measures import RANDOM, same_measure
from checks.engine.modules import same_module
from checks.engine.verdict import exercise, open_exercise
from checks.engine.watch import Watch
from utils import encoder


@exercise("06.1", "Which shape?")
def which_shape(inner_shape, first_weight_shape, norm_weight_shape) -> str:
    written(inner_shape, first_weight_shape, norm_weight_shape)
    layer, norm = encoder.FeedForward(embed_dim=10, mlp_dim=24), nn.LayerNorm(10)
    same_shape(inner_shape, layer.fc1(norm(torch.zeros(3, 7, 10))).shape, "b n m")
    same_shape(first_weight_shape, layer.fc1.weight.shape, "m e")
    same_shape(norm_weight_shape, norm.weight.shape, "e")
    return "the code gives all three shapes"


# ------------------------------------------------------------------------------ the feed-forward


def feeding(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A feed-forward with another way through its parts."""
    return type("Feeding", (encoder.FeedForward,), {"forward": forward})


def bent_by(bend: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    return feeding(lambda self, x: self.fc2(bend(self.fc1(x))))


FEED_MISTAKES = {
    "the bend is missing, so two Linears are one": bent_by(lambda inner: inner),
    "it bends with ReLU, GELU is asked for": bent_by(torch.relu),
    "it bends with tanh, GELU is asked for": bent_by(torch.tanh),
    "it bends with SiLU, GELU is asked for": bent_by(F.silu),
    "this is the GELU that only comes close, with tanh: leave approximate out": bent_by(
        lambda inner: F.gelu(inner, approximate="tanh")
    ),
    "it normalises the inner values with a softmax, GELU is asked for": bent_by(
        lambda inner: inner.softmax(dim=-1)
    ),
    "it bends after fc2, the bend belongs between fc1 and fc2": feeding(
        lambda self, x: F.gelu(self.fc2(self.fc1(x)))
    ),
    "it bends once more after fc2": feeding(lambda self, x: F.gelu(self.fc2(F.gelu(self.fc1(x))))),
    "it bends before fc1, the bend belongs between fc1 and fc2": feeding(
        lambda self, x: self.fc2(self.fc1(F.gelu(x)))
    ),
    "it returns x as it came": feeding(lambda self, x: x),
    "it adds x: the residual belongs into the block, not in here": feeding(
        lambda self, x: x + self.fc2(F.gelu(self.fc1(x)))
    ),
}


@exercise("06.2", "The feed-forward as a class")
def feed_forward_as_a_class(FeedForward) -> str:
    return same_module(
        FeedForward,
        encoder.FeedForward,
        lambda case: {"embed_dim": case["e"], "mlp_dim": case["m"]},
        lambda case: (case.randn("b n e"),),
        mistakes=FEED_MISTAKES,
        forbidden={"FeedForward.forward": "write its three steps yourself"},
    )


# ------------------------------------------------------------------------------- the convolution


@naming
def same_convolution(as_convolution: Callable) -> None:
    """Compare a convolution with the Linear that it is made from, for random widths."""
    for seed in range(3):
        case = Case(seed, torch.float32)
        linear = nn.Linear(case["e"], case["m"])
        with torch.no_grad():
            linear.weight.copy_(case.randn("m e"))
            linear.bias.copy_(case.randn("m"))
        before = {name: part.detach().clone() for name, part in linear.named_parameters()}
        said = f"a Linear from {case['e']} to {case['m']}"
        conv = run(as_convolution, (linear,), ["linear"])
        conv_like(conv, linear, said)
        x = case.randn("b n e")
        want = F.linear(x, before["weight"], before["bias"]).mT
        got = run(conv, (x.mT,), ["x"])
        if wrong := difference(got, want, "the result of the convolution"):
            raise Wrong(wrong, lambda conv=conv, was=before: not_copied(conv, was), said)
        for name, part in linear.named_parameters():
            if not torch.equal(part, before[name]):
                raise Wrong(f"the convolution is right, but the {name} of the Linear was changed")
        alone(conv, linear)


def conv_like(conv: Any, linear: nn.Linear, said: str) -> None:
    """Look at the kind and the parameters of a convolution."""
    if not isinstance(conv, nn.Conv1d):
        raise Wrong(f"as_convolution returns {kind(conv)}, an nn.Conv1d is asked for", inputs=said)
    for name, own in linear.named_parameters():
        part, shape = getattr(conv, name), (*own.shape, 1)[: own.ndim + (name == "weight")]
        if part is None:
            raise Wrong(f"the convolution has no {name}, and the Linear has one", inputs=said)
        if tuple(part.shape) != shape:
            raise Wrong(
                f"the {name} of the convolution has shape {tuple(part.shape)}, asked for is "
                f"{shape}: outputs, inputs, a window one token wide",
                inputs=said,
            )
        if not part.requires_grad or name not in dict(conv.named_parameters()):
            raise Wrong(f"the {name} of the convolution cannot learn: keep it an nn.Parameter")


def not_copied(conv: nn.Conv1d, was: Mapping[str, Tensor]) -> str | None:
    """Say which parameter of a convolution is not that of the Linear."""
    wrong = [
        name
        for name, part in (("weight", conv.weight[..., 0]), ("bias", conv.bias))
        if not torch.allclose(part, was[name])
    ]
    if len(wrong) == 2:
        return "its weight and bias are not those of the Linear"
    return f"its {wrong[0]} is not that of the Linear" if wrong else None


def alone(conv: nn.Conv1d, linear: nn.Linear) -> None:
    """Train the convolution a little; the Linear must not notice, nor the other way round."""
    for changed, other in ((conv, linear), (linear, conv)):
        before = [part.detach().clone() for part in other.parameters()]
        with torch.no_grad():
            for part in changed.parameters():
                part.add_(1)
        for one, then in zip(other.parameters(), before, strict=True):
            if not torch.equal(one, then):
                raise Wrong(
                    "the values are right, but convolution and Linear share their numbers: "
                    "training the one changes the other. Copy them, with clone or load_state_dict"
                )


def changed_by_windows(width: int, changed: int = 9, tokens: int = 37) -> int:
    """Count the tokens that change behind two convolutions with windows of the given width."""
    first = nn.Conv1d(4, 5, width, padding=width // 2).double()
    second = nn.Conv1d(5, 4, width, padding=width // 2).double()
    x = torch.zeros(1, 4, tokens, dtype=torch.float64)
    moved = x.clone()
    moved[..., changed] += 1
    one, other = (second(F.gelu(first(values))) for values in (x, moved))
    return int((one != other).any(dim=1).sum())


@exercise("06.3", "A convolution, one token wide")
def convolution_one_wide(as_convolution, changed_tokens) -> str:
    written(as_convolution, changed_tokens)
    same_convolution(as_convolution)
    same_number(
        changed_tokens,
        changed_by_windows(3),
        0.1,
        "the number of tokens that change",
        {
            1: "that is so for windows one wide; a window of three sees a neighbour on each side",
            2: "count to both sides, and token 9 itself",
            3: "that is after one convolution; the second carries it one token further",
            4: "count token 9 itself, too",
            6: "two windows of three overlap in the middle",
            9: "two windows of three, one after the other, reach two tokens to each side",
            36: "only attention reaches every token",
            37: "only attention reaches every token",
        },
    )
    return "values, copies and the number of tokens agree; with windows wider than 1 tokens mix"


# ------------------------------------------------------------------------------------- the norms

BY_HAND = "write its steps yourself"
NORMS = {
    name: BY_HAND
    for name in (
        "layer_norm",
        "native_layer_norm",
        "rms_norm",
        "batch_norm",
        "native_batch_norm",
        "group_norm",
        "native_group_norm",
        "instance_norm",
        "LayerNorm.forward",
        "RMSNorm.forward",
    )
}


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dim: int | tuple[int, ...] = -1,
    correction: int = 0,
) -> Tensor:
    """The right one; other arguments make it a wrong one."""
    variance = x.var(dim=dim, correction=correction, keepdim=True)
    return (x - x.mean(dim=dim, keepdim=True)) / (variance + eps).sqrt() * weight + bias


def outside(x: Tensor, weight: Tensor, bias: Tensor, eps: float, correction: int = 0) -> Tensor:
    """A LayerNorm with eps beside the root."""
    spread = x.std(dim=-1, correction=correction, keepdim=True)
    return (x - x.mean(dim=-1, keepdim=True)) / (spread + eps) * weight + bias


def over(*dims: int) -> Callable:
    return lambda x, weight, bias, eps: layer_norm(x, weight, bias, eps, dim=dims)


LAYER_MISTAKES = {
    "the variance divides by e - 1, and by e it should: correction=0": (
        lambda x, w, c, eps: layer_norm(x, w, c, eps, correction=1)
    ),
    "eps is added outside the root, it belongs under it": outside,
    "the variance divides by e - 1, and eps is added outside the root": (
        lambda x, w, c, eps: outside(x, w, c, eps, correction=1)
    ),
    "eps is missing": lambda x, w, c, eps: layer_norm(x, w, c, 0.0),
    "eps is 1e-5, whatever was given": lambda x, w, c, eps: layer_norm(x, w, c, 1e-5),
    "it divides by the variance, not by its root": lambda x, w, c, eps: (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps) * w + c
    ),
    "it normalises over the tokens; the numbers of one token lie along the last axis": over(-2),
    "it normalises over tokens and numbers together, not each token by itself": over(-2, -1),
    "it normalises over the batch, not each token by itself": over(0),
    "it normalises over the whole tensor at once, not each token by itself": (
        lambda x, w, c, eps: over(*range(x.ndim))(x, w, c, eps)
    ),
    "the mean is not subtracted": lambda x, w, c, eps: (
        x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * w + c
    ),
    "the mean is subtracted, the spread not divided by": lambda x, w, c, eps: (
        (x - x.mean(-1, keepdim=True)) * w + c
    ),
    "this is the RMSNorm with a bias: subtract the mean": lambda x, w, c, eps: (
        rms_norm(x, w, eps) + c
    ),
    "weight and bias are not used": lambda x, w, c, eps: layer_norm(
        x, torch.ones_like(w), torch.zeros_like(c), eps
    ),
    "the weight is not used": lambda x, w, c, eps: layer_norm(x, torch.ones_like(w), c, eps),
    "the bias is not used": lambda x, w, c, eps: layer_norm(x, w, torch.zeros_like(c), eps),
    "the bias is added before the weight multiplies": lambda x, w, c, eps: layer_norm(
        x, w, c * w, eps
    ),
    "the bias is subtracted": lambda x, w, c, eps: layer_norm(x, w, -c, eps),
    "weight and bias are exchanged": lambda x, w, c, eps: layer_norm(x, c, w, eps),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, dim: int | tuple[int, ...] = -1) -> Tensor:
    """The right one; another dim makes it a wrong one."""
    return x / (x.square().mean(dim=dim, keepdim=True) + eps).sqrt() * weight


RMS_MISTAKES = {
    "the mean is subtracted, as LayerNorm does": lambda x, w, eps: layer_norm(
        x, w, torch.zeros_like(w), eps
    ),
    "it divides by the spread around the mean; take the squares of x itself": lambda x, w, eps: (
        x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * w
    ),
    "the squares are summed, their mean is asked for": lambda x, w, eps: (
        x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * w
    ),
    "it divides by the mean of the squares, not by its root": lambda x, w, eps: (
        x / (x.square().mean(-1, keepdim=True) + eps) * w
    ),
    "it divides by the mean size of the numbers, not by the root of their mean square": (
        lambda x, w, eps: x / (x.abs().mean(-1, keepdim=True) + eps) * w
    ),
    "eps is added outside the root, it belongs under it": lambda x, w, eps: (
        x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * w
    ),
    "eps is missing": lambda x, w, eps: rms_norm(x, w, 0.0),
    "the weight is not used": lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps),
    "it divides by the weight, and multiplies it should": lambda x, w, eps: rms_norm(x, 1 / w, eps),
    "it normalises over the tokens; the numbers of one token lie along the last axis": (
        lambda x, w, eps: rms_norm(x, w, eps, dim=-2)
    ),
    "it normalises over tokens and numbers together, not each token by itself": (
        lambda x, w, eps: rms_norm(x, w, eps, dim=(-2, -1))
    ),
    "it normalises over the whole tensor at once, not each token by itself": (
        lambda x, w, eps: rms_norm(x, w, eps, dim=tuple(range(x.ndim)))
    ),
}


def tokens_and(*vectors: str) -> Callable[[Case], tuple]:
    """Tokens with none to three axes in front, the given vectors, and an eps that matters."""

    def inputs(case: Case) -> tuple:
        front = case.random.choice(["b n ", "b n ", "n ", "a b n ", ""])
        x = 0.7 * case.randn(front + "e") + 0.4
        return (
            x,
            *(case.randn(vector) for vector in vectors),
            round(case.random.uniform(0.1, 0.9), 2),
        )

    return inputs


@naming
def survives(norm: Callable, reference: Callable, number: float, *vectors: Tensor) -> None:
    """Try a token of equal numbers: values and gradient must be finite."""
    x = torch.full((2, 3, 5), number, dtype=torch.float64)
    args = (*vectors, 1e-5)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = run(norm, (ours, *args)), reference(theirs, *args)
    said = f"a token whose numbers are all {number:g}"
    if wrong := difference(got, want):
        raise Wrong(f"right for random tokens; for {said}, {wrong}")
    gradient = torch.autograd.grad(got.sum(), ours)[0]
    if not gradient.isfinite().all():
        raise Wrong(
            f"the values are right, but for {said} the gradient is NaN: the root of 0 has no "
            "slope. Take one root only, after eps is added"
        )


@exercise("06.4", "Two norms by hand")
def two_norms_by_hand(layer_norm, rms_norm) -> str:
    written(layer_norm, rms_norm)
    weight, bias = (torch.arange(5, dtype=torch.float64) + start for start in (0.5, -1.0))
    for answer, right, vectors, mistakes, number in (
        (layer_norm, RIGHT_LAYER_NORM, (weight, bias), LAYER_MISTAKES, 3.0),
        (rms_norm, RIGHT_RMS_NORM, (weight,), RMS_MISTAKES, 0.0),
    ):
        same_function(
            answer,
            right,
            tokens_and(*["e"] * len(vectors)),
            mistakes=mistakes,
            forbidden=NORMS,
            trials=Trials(6),
        )
        survives(answer, right, number, *vectors)
    return "both norms agree on 6 random sizes each, gradients too; tokens of equal numbers survive"


RIGHT_LAYER_NORM, RIGHT_RMS_NORM = layer_norm, rms_norm


# ---------------------------------------------------------------------------------- the residual


def block(**given: int) -> nn.Module:
    return encoder.EncoderBlock(**given)


def block_with(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with another way through its parts."""
    return type("Block", (encoder.EncoderBlock,), {"forward": forward})


def sick(self: Any, x: Tensor) -> Tensor:
    x = self.norm2(x + self.attn(self.norm1(x)))
    return x + self.mlp(x)


def second_from_norm1(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return x + self.mlp(self.norm1(x))


def both_from_norm(self: Any, x: Tensor) -> Tensor:
    x = self.norm1(x)
    x = self.norm2(x + self.attn(x))
    return x + self.mlp(x)


def first_from_norm(self: Any, x: Tensor) -> Tensor:
    x = self.norm1(x)
    x = x + self.attn(x)
    return x + self.mlp(self.norm2(x))


def not_normed(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return x + self.mlp(x)


def not_added(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return self.mlp(self.norm2(x))


def attention_not_added(self: Any, x: Tensor) -> Tensor:
    x = self.attn(self.norm1(x))
    return x + self.mlp(self.norm2(x))


def post_norm(self: Any, x: Tensor) -> Tensor:
    x = self.norm1(x + self.attn(x))
    return self.norm2(x + self.mlp(x))


def second_post_norm(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return self.norm2(x + self.mlp(x))


def side_by_side(self: Any, x: Tensor) -> Tensor:
    return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))


def added_to_the_start(self: Any, x: Tensor) -> Tensor:
    return x + self.mlp(self.norm2(x + self.attn(self.norm1(x))))


def feed_first(self: Any, x: Tensor) -> Tensor:
    x = x + self.mlp(self.norm2(x))
    return x + self.attn(self.norm1(x))


def norm_of_part(self: Any, x: Tensor) -> Tensor:
    x = x + self.norm1(self.attn(x))
    return x + self.norm2(self.mlp(x))


BLOCK_MISTAKES = {
    "this is Sick: the second sum adds to norm2(x), not to the stream as it came": sick,
    "now both sums add to a normalised x, not to the stream as it came": both_from_norm,
    "the first sum adds to norm1(x), not to the stream as it came": first_from_norm,
    "the feed-forward reads the stream without a norm": not_normed,
    "the feed-forward reads norm1, norm2 is meant for it": second_from_norm1,
    "the feed-forward is not added to the stream, it replaces it": not_added,
    "the attention is not added to the stream, it replaces it": attention_not_added,
    "this is post-norm: the sums are normalised": post_norm,
    "the second sum is normalised, as in post-norm": second_post_norm,
    "the feed-forward reads the stream as it was before attention added to it": side_by_side,
    "what attention added is lost: the second sum adds to the stream from before": (
        added_to_the_start
    ),
    "the feed-forward runs before the attention, it belongs after it": feed_first,
    "the norm stands behind the part: it belongs before it, on what the part reads": norm_of_part,
}


def block_clinic(module: nn.Module, built: dict[str, Any]) -> Report:
    return diagnose_block(module, num_heads=built["num_heads"], norm_first=True)


@exercise("06.5", "Find the bug")
def find_the_bug(Healthy) -> str:
    return same_module(
        Healthy,
        block,
        lambda case: {
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"],
        },
        lambda case: (case.randn("b n (h d)") * 3 + 1,),
        mistakes={words: block_with(forward) for words, forward in BLOCK_MISTAKES.items()},
        forbidden={"EncoderBlock.forward": "write the order of its parts yourself"},
        clinic=block_clinic,
    )


# -------------------------------------------------------------------------------- the experiment


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def spread(
    step: Callable[[Tensor, Tensor], Tensor], one_matrix: bool = False
) -> Callable[[int, float], float]:
    """A wrong experiment: the spread after depth layers of another kind."""

    def after(depth: int, gain: float) -> float:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(64, 256, generator=generator)
        matrix = torch.randn(256, 256, generator=generator) * gain / 16
        for _ in range(depth):
            x = step(x, matrix)
            if not one_matrix:
                matrix = torch.randn(256, 256, generator=generator) * gain / 16
        return x.std().item()

    return after


def theory(depth: int, gain: float) -> float:
    return (1 + depth * gain**2) ** 0.5


@exercise("06.6", "How a stream grows, measured")
def how_a_stream_grows(measure, growth) -> str:
    written(measure, growth)
    measured = same_measure(
        measure,
        theory,
        [(4, 1.5), (9, 0.5), (1, 2.5), (16, 2.0)],
        what="the spread of such a stream",
        within=0.05,
        mistakes={
            "nothing is normalised before the matrix": spread(lambda x, m: x + x @ m),
            "the sum is normalised, as in post-norm": spread(lambda x, m: normed(x + x @ m)),
            "nothing is added, each layer replaces the stream": spread(lambda x, m: normed(x) @ m),
            "nothing is added and nothing normalised": spread(lambda x, m: x @ m),
            "the normalised stream is added, not the stream as it came": spread(
                lambda x, m: normed(x) + normed(x) @ m
            ),
            "all layers have the same matrix, each needs its own": spread(
                lambda x, m: x + normed(x) @ m, one_matrix=True
            ),
            "the matrix is not divided by the root of 256": spread(
                lambda x, m: x + normed(x) @ m * 16
            ),
            "the matrix is divided by 256, not by its root": spread(
                lambda x, m: x + normed(x) @ m / 16
            ),
            "the gain has no effect: it is not used, or what is added is normalised, too": (
                lambda depth, gain: (1 + depth) ** 0.5
            ),
            "this is the variance, the spread is its root": lambda depth, gain: 1 + depth * gain**2,
            "it ran one layer too many": lambda depth, gain: theory(depth + 1, gain),
            "it ran one layer too few": lambda depth, gain: theory(depth - 1, gain),
        },
    )
    with Watch() as watch:
        run(growth, (4, 1.5), ["depth", "gain"])
    if any(watch.called[name] for name in RANDOM):
        raise Wrong("growth draws random numbers: a formula of depth and gain is asked for")
    same_function(
        growth,
        theory,
        lambda case: (case["depth"], case["gain"] / 4),
        mistakes={
            "this is the variance, the spread is its root": lambda depth, gain: 1 + depth * gain**2,
            "the gain needs its square: variances add up, spreads do not": lambda depth, gain: (
                (1 + depth * gain) ** 0.5
            ),
            "the spreads are added; variances add up, spreads do not": lambda depth, gain: (
                1 + depth * gain
            ),
            "the stream starts with variance 1, which is missing": lambda depth, gain: (
                depth**0.5 * gain
            ),
            "that would be so without the norm, when each layer multiplies the variance": (
                lambda depth, gain: (1 + gain**2) ** (depth / 2)
            ),
            "the gain has no effect": lambda depth, gain: (1 + depth) ** 0.5,
        },
    )
    return f"{measured}, and the formula agrees"


open_exercise("06.7", "Another place for the norm")
