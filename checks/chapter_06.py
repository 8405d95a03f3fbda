"""Checks of the exercises of chapter 06: feed-forward, norm and residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import naming, run
from checks.engine.cases import Case
from checks.engine.compare import aloud, difference, kind
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.measures import RANDOM, same_measure
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.results import Results
from checks.engine.verdict import exercise, open_exercise
from utils import encoder


@exercise("06.1", "Which shape?")
def which_shape(inner_shape, first_weight_shape, norm_weight_shape) -> Message:
    written(inner_shape, first_weight_shape, norm_weight_shape)
    layer, norm = encoder.FeedForward(embed_dim=10, mlp_dim=24), nn.LayerNorm(10)
    same_shape(inner_shape, layer.fc1(norm(torch.zeros(3, 7, 10))).shape, "b n m")
    same_shape(first_weight_shape, layer.fc1.weight.shape, "m e")
    same_shape(norm_weight_shape, norm.weight.shape, "e")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------ the feed-forward


class Pieces(encoder.FeedForward):
    """The feed-forward of `utils`; a few tokens at a time give the same as all at once."""

    def __init__(self, embed_dim: int, mlp_dim: int, tokens_at_once: int):
        super().__init__(embed_dim, mlp_dim)
        self.tokens_at_once = tokens_at_once

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def feeding(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A feed-forward with another way through its parts."""
    return type("Feeding", (Pieces,), {"forward": forward})


def bent_by(bend: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    return feeding(lambda self, x: self.fc2(bend(self.fc1(x))))


def only(some: Callable[[Tensor, int], Tensor]) -> Callable[..., nn.Module]:
    """A feed-forward that works on some tokens only: of (x, tokens at once)."""
    return feeding(lambda self, x: Pieces.forward(self, some(x, self.tokens_at_once)))


FEED_MISTAKES = {
    "bend-missing": bent_by(lambda inner: inner),
    **{
        message("bends-with", name=name): bent_by(bend)
        for name, bend in (
            ("ReLU", torch.relu),
            ("tanh", torch.tanh),
            ("SiLU", F.silu),
            ("the sigmoid", torch.sigmoid),
            ("Leaky ReLU", F.leaky_relu),
            ("ELU", F.elu),
        )
    },
    "gelu-with-tanh": bent_by(lambda inner: F.gelu(inner, approximate="tanh")),
    "softmax-for-a-bend": bent_by(lambda inner: inner.softmax(dim=-1)),
    "bends-after-fc2": feeding(lambda self, x: F.gelu(self.fc2(self.fc1(x)))),
    "bends-after-fc2-too": feeding(lambda self, x: F.gelu(self.fc2(F.gelu(self.fc1(x))))),
    "bends-before-fc1": feeding(lambda self, x: self.fc2(self.fc1(F.gelu(x)))),
    "returns-x-as-it-came": feeding(lambda self, x: x),
    "feed-forward-adds-x": feeding(lambda self, x: x + Pieces.forward(self, x)),
    "last-piece-missing": only(lambda x, k: x[:, : x.shape[1] // k * k]),
    "only-first-piece": only(lambda x, k: x[:, :k]),
    "only-last-piece": only(lambda x, k: x.split(k, dim=1)[-1]),
    "only-last-piece-of-as-many": only(lambda x, k: x.chunk(k, dim=1)[-1]),
    "pieces-reversed": only(lambda x, k: torch.cat(x.split(k, dim=1)[::-1], dim=1)),
    "pieces-joined-as-samples": feeding(
        lambda self, x: torch.cat(Pieces.forward(self, x).split(self.tokens_at_once, 1)[:-1])
    ),
}


def few_at_once(FeedForward: type[nn.Module]) -> None:
    """Raise `Wrong` when the wide tensor holds more tokens than it may."""
    for k in (2, 3, 4):
        b, n, m = k + 1, k * (k + 1) + 1, 100  # so that each mistake is as wide as no other
        x = torch.randn(b, n, 5, dtype=torch.float64)
        module = FeedForward(embed_dim=5, mlp_dim=m, tokens_at_once=k).double()
        with torch.no_grad(), Results(module.parameters()) as results:
            module(x)
        if results.largest <= b * k * m:
            continue
        known = {
            b * n * m: "all-tokens-at-once",
            b * -(-n // k) * m: "as-many-pieces",
            k * n * m: "cut-along-batch",
        }
        wrong = message("too-wide", tokens=k, largest=results.largest, allowed=b * k * m)
        noticed(Wrong(wrong, partial(known.get, results.largest), aloud(["x"], [x])))


def sizes_of_pieces(case: Case) -> dict[str, int]:
    return {"embed_dim": case["e"], "mlp_dim": case["m"], "tokens_at_once": case["k"]}


def sequence(case: Case) -> Tensor:
    """Tokens of which more than two pieces can be cut; the last piece is shorter."""
    return case.randn("b (n 10) e")[:, : 2 * case["k"] + 1]


@exercise("06.2", "The feed-forward, a few tokens at a time")
def feed_forward_in_pieces(FeedForward) -> Message:
    same_module(
        FeedForward,
        Pieces,
        sizes_of_pieces,
        lambda case: (sequence(case),),
        mistakes=FEED_MISTAKES,
        forbidden={"FeedForward.forward": "write-its-three-steps"},
    )
    few_at_once(FeedForward)
    return message("never-wider")


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
        said = message("a-linear", e=case["e"], m=case["m"])
        conv = run(as_convolution, (linear,), ["linear"])
        conv_like(conv, linear, said)
        x = case.randn("b n e")
        want = F.linear(x, before["weight"], before["bias"]).mT
        got = run(conv, (x.mT,), ["x"])
        if wrong := difference(got, want, message("conv-result")):
            raise Wrong(wrong, partial(not_copied, conv, before), [said])
        for name, part in linear.named_parameters():
            if not torch.equal(part, before[name]):
                noticed(Wrong(message("linear-was-changed", name=name)))
        alone(conv, linear)


def conv_like(conv: Any, linear: nn.Linear, said: Message) -> None:
    """Look at the kind and the parameters of a convolution."""
    if not isinstance(conv, nn.Conv1d):
        raise Wrong(message("conv-is-asked", got=kind(conv)), inputs=[said])
    for name, own in linear.named_parameters():
        part, shape = getattr(conv, name), (*own.shape, 1)[: own.ndim + (name == "weight")]
        if part is None:
            raise Wrong(message("conv-has-no", name=name), inputs=[said])
        if tuple(part.shape) != shape:
            wrong = message("conv-shape-differs", name=name, got=tuple(part.shape), want=shape)
            raise Wrong(wrong, partial(conv_mistake, tuple(part.shape), shape), [said])
        if not part.requires_grad or name not in dict(conv.named_parameters()):
            raise Wrong(message("conv-cannot-learn", name=name))


def conv_mistake(got: tuple[int, ...], want: tuple[int, ...]) -> str | None:
    """Say why a parameter of a convolution has another shape."""
    if got == want[:2]:
        return "window-axis-missing"
    if got == (want[1], want[0], *want[2:]):
        return "inputs-and-outputs-exchanged"
    return "window-is-wider" if got[:2] == want[:2] and len(got) == 3 else None


def not_copied(conv: nn.Conv1d, was: Mapping[str, Tensor]) -> Message | None:
    """Say which parameter of a convolution is not that of the Linear."""
    parts = (("weight", conv.weight[..., 0]), ("bias", conv.bias))
    wrong = [name for name, part in parts if not torch.allclose(part, was[name])]
    return message("not-those-of-linear", names=wrong) if wrong else None


def alone(conv: nn.Conv1d, linear: nn.Linear) -> None:
    """Train the convolution a little; the Linear must not notice, nor the other way round."""
    for changed, other in ((conv, linear), (linear, conv)):
        before = [part.detach().clone() for part in other.parameters()]
        with torch.no_grad():
            for part in changed.parameters():
                part.add_(1)
        for one, then in zip(other.parameters(), before, strict=True):
            if not torch.equal(one, then):
                raise Wrong("numbers-are-shared")


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
def convolution_one_wide(as_convolution, changed_tokens) -> Message:
    written(as_convolution, changed_tokens)
    same_convolution(as_convolution)
    same_number(
        changed_tokens,
        changed_by_windows(3),
        0.1,
        "tokens-that-change",
        {
            1: "one-wide-changes-one",
            2: "both-sides-and-itself",
            3: "after-one-convolution",
            4: "and-itself",
            6: "windows-overlap",
            7: "three-to-each-side",
            9: "windows-follow",
            36: "only-attention-reaches-all",
            37: "only-attention-reaches-all",
        },
    )
    return message("convolution-right")


# ------------------------------------------------------------------------------------- the norms

NORMS = dict.fromkeys(
    (
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
    ),
    "write-norm-steps",
)


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


def with_variance(
    variance: Callable[[Tensor], Tensor], centre: bool = True
) -> Callable[..., Tensor]:
    """A LayerNorm with another variance."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        top = x - x.mean(dim=-1, keepdim=True) if centre else x
        return top / (variance(x) + eps).sqrt() * weight + bias

    return norm


def centred(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


LAYER_MISTAKES = {
    "divides-by-e-minus-one": lambda x, w, c, eps: layer_norm(x, w, c, eps, correction=1),
    "eps-outside-root": outside,
    "e-minus-one-and-eps-outside": lambda x, w, c, eps: outside(x, w, c, eps, correction=1),
    "eps-missing": lambda x, w, c, eps: layer_norm(x, w, c, 0.0),
    "eps-squared": lambda x, w, c, eps: layer_norm(x, w, c, eps**2),
    "eps-fixed": lambda x, w, c, eps: layer_norm(x, w, c, 1e-5),
    "divides-by-variance": lambda x, w, c, eps: (
        centred(x) / (x.var(-1, correction=0, keepdim=True) + eps) * w + c
    ),
    "spread-under-root": with_variance(lambda x: x.std(-1, correction=0, keepdim=True)),
    "spread-under-root-minus-one": with_variance(lambda x: x.std(-1, keepdim=True)),
    "squares-of-x": with_variance(lambda x: x.square().mean(-1, keepdim=True)),
    "squares-summed": with_variance(lambda x: centred(x).square().sum(-1, keepdim=True)),
    "sizes-for-squares": with_variance(lambda x: centred(x).abs().mean(-1, keepdim=True)),
    "norms-over-tokens": over(-2),
    "norms-over-tokens-and-numbers": over(-2, -1),
    "norms-over-batch": over(0),
    "norms-over-everything": lambda x, w, c, eps: over(*range(x.ndim))(x, w, c, eps),
    "mean-of-everything": lambda x, w, c, eps: (
        (x - x.mean()) / (centred(x).square().mean(-1, keepdim=True) + eps).sqrt() * w + c
    ),
    "mean-of-everything-in-both": lambda x, w, c, eps: (
        (x - x.mean()) / ((x - x.mean()).square().mean(-1, keepdim=True) + eps).sqrt() * w + c
    ),
    "mean-not-subtracted": with_variance(
        lambda x: x.var(-1, correction=0, keepdim=True), centre=False
    ),
    "spread-not-divided": lambda x, w, c, eps: centred(x) * w + c,
    "rms-with-bias": lambda x, w, c, eps: rms_norm(x, w, eps) + c,
    "weight-and-bias-not-used": lambda x, w, c, eps: layer_norm(
        x, torch.ones_like(w), torch.zeros_like(c), eps
    ),
    "weight-not-used": lambda x, w, c, eps: layer_norm(x, torch.ones_like(w), c, eps),
    "bias-not-used": lambda x, w, c, eps: layer_norm(x, w, torch.zeros_like(c), eps),
    "bias-before-weight": lambda x, w, c, eps: layer_norm(x, w, c * w, eps),
    "bias-subtracted": lambda x, w, c, eps: layer_norm(x, w, -c, eps),
    "weight-and-bias-exchanged": lambda x, w, c, eps: layer_norm(x, c, w, eps),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, dim: int | tuple[int, ...] = -1) -> Tensor:
    """The right one; another dim makes it a wrong one."""
    return x / (x.square().mean(dim=dim, keepdim=True) + eps).sqrt() * weight


RMS_MISTAKES = {
    "rms-subtracts-mean": lambda x, w, eps: layer_norm(x, w, torch.zeros_like(w), eps),
    "rms-of-spread": lambda x, w, eps: x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * w,
    "rms-of-sum": lambda x, w, eps: x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * w,
    "rms-of-length": lambda x, w, eps: x / (x.norm(dim=-1, keepdim=True) + eps) * w,
    "square-of-mean": lambda x, w, eps: x / (x.mean(-1, keepdim=True).square() + eps).sqrt() * w,
    "rms-without-root": lambda x, w, eps: x / (x.square().mean(-1, keepdim=True) + eps) * w,
    "mean-size": lambda x, w, eps: x / (x.abs().mean(-1, keepdim=True) + eps) * w,
    "eps-outside-root": lambda x, w, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * w,
    "eps-is-added-to-result": lambda x, w, eps: rms_norm(x, torch.ones_like(w), 0.0) + eps * w,
    "eps-missing": lambda x, w, eps: rms_norm(x, w, 0.0),
    "eps-squared": lambda x, w, eps: rms_norm(x, w, eps**2),
    "eps-fixed": lambda x, w, eps: rms_norm(x, w, 1e-5),
    "weight-not-used": lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps),
    "divides-by-weight": lambda x, w, eps: rms_norm(x, 1 / w, eps),
    "multiplies-by-root": lambda x, w, eps: (
        x * (x.square().mean(-1, keepdim=True) + eps).sqrt() * w
    ),
    "norms-over-tokens": lambda x, w, eps: rms_norm(x, w, eps, dim=-2),
    "norms-over-tokens-and-numbers": lambda x, w, eps: rms_norm(x, w, eps, dim=(-2, -1)),
    "norms-over-everything": lambda x, w, eps: rms_norm(x, w, eps, dim=tuple(range(x.ndim))),
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
    if wrong := difference(got, want):
        raise Wrong(message("wrong-for-equal-numbers", number=number, what=wrong))
    gradient = torch.autograd.grad(got.sum(), ours)[0]
    if not gradient.isfinite().all():
        raise Wrong(message("root-of-zero", number=number))


@exercise("06.4", "Two norms by hand")
def two_norms_by_hand(layer_norm, rms_norm) -> Message:
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
    return message("both-norms-agree")


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


def attention_not_normed(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(x)
    return x + self.mlp(self.norm2(x))


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


def norm_of_both(self: Any, x: Tensor) -> Tensor:
    x = x + self.norm1(self.attn(self.norm1(x)))
    return x + self.norm2(self.mlp(self.norm2(x)))


def norm_at_the_end(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return self.norm2(x + self.mlp(self.norm2(x)))


def attention_lost(self: Any, x: Tensor) -> Tensor:
    return x + self.mlp(self.norm2(self.attn(self.norm1(x))))


def feeds_on_attention(self: Any, x: Tensor) -> Tensor:
    gathered = self.attn(self.norm1(x))
    return x + gathered + self.mlp(self.norm2(gathered))


def norms_exchanged(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm2(x))
    return x + self.mlp(self.norm1(x))


def no_norms(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(x)
    return x + self.mlp(x)


def doubled(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return x + x + self.mlp(self.norm2(x))


def norm_added(self: Any, x: Tensor) -> Tensor:
    x = x + self.norm1(x) + self.attn(self.norm1(x))
    return x + self.mlp(self.norm2(x))


def norms_added(self: Any, x: Tensor) -> Tensor:
    x = x + self.norm1(x) + self.attn(self.norm1(x))
    return x + self.norm2(x) + self.mlp(self.norm2(x))


BLOCK_MISTAKES = {
    "block-is-sick": sick,
    "both-sums-from-norm": both_from_norm,
    "first-sum-from-norm": first_from_norm,
    "feed-forward-not-normed": not_normed,
    "attention-not-normed": attention_not_normed,
    "feed-forward-reads-norm1": second_from_norm1,
    "feed-forward-not-added": not_added,
    "attention-not-added": attention_not_added,
    "block-is-post-norm": post_norm,
    "second-sum-normalised": second_post_norm,
    "normalised-at-the-end": norm_at_the_end,
    "feed-forward-reads-start": side_by_side,
    "added-to-the-start": added_to_the_start,
    "attention-lost": attention_lost,
    "feeds-on-attention-alone": feeds_on_attention,
    "feed-forward-runs-first": feed_first,
    "norm-behind-the-part": norm_of_part,
    "norm-before-and-behind": norm_of_both,
    "norms-changed-places": norms_exchanged,
    "no-norm-at-all": no_norms,
    "stream-added-twice": doubled,
    "norm-added-as-well": norm_added,
    "norms-added-as-well": norms_added,
}


def block_clinic(module: nn.Module, built: dict[str, Any]) -> Report:
    return diagnose_block(module, num_heads=built["num_heads"], norm_first=True)


@exercise("06.5", "Find the bug")
def find_the_bug(Healthy) -> Message:
    return same_module(
        Healthy,
        block,
        lambda case: {
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"],
        },
        lambda case: (case.randn("b n (h d)") * 3 + 1,),
        mistakes={cause: block_with(forward) for cause, forward in BLOCK_MISTAKES.items()},
        forbidden={"EncoderBlock.forward": "write-order-of-parts"},
        clinic=block_clinic,
    )


# -------------------------------------------------------------------------------- the experiment


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def stream(draw: Callable = torch.randn) -> Tensor:
    """Tokens of a wrong experiment."""
    return draw(64, 256, generator=torch.Generator().manual_seed(0))


def spread(
    step: Callable[[Tensor, Tensor], Tensor],
    one_matrix: bool = False,
    tokens: Callable = torch.randn,
    numbers: Callable = torch.randn,
    scale: Callable[[float], float] = lambda gain: gain / 16,
    read: Callable[[Tensor], Tensor] = torch.std,
) -> Callable[[int, float], float]:
    """A wrong experiment: the spread after depth layers of another kind."""

    def after(depth: int, gain: float) -> float:
        x, generator = stream(tokens), torch.Generator().manual_seed(1)
        for layer in range(depth):
            if layer == 0 or not one_matrix:
                matrix = numbers(256, 256, generator=generator) * scale(gain)
            x = step(x, matrix)
        return read(x).item()

    return after


def pre_norm(x: Tensor, matrix: Tensor) -> Tensor:
    """The right step."""
    return x + normed(x) @ matrix


def grown(step: Callable[[float, float], float]) -> Callable[[int, float], float]:
    """What theory expects of an experiment whose layers change the variance otherwise."""

    def after(depth: int, gain: float) -> float:
        variance = 1.0
        for _ in range(depth):
            variance = step(variance, gain)
        return variance**0.5

    return after


def theory(depth: int, gain: float) -> float:
    return (1 + depth * gain**2) ** 0.5


@exercise("06.6", "How a stream grows, measured")
def how_a_stream_grows(measure, growth) -> Message:
    written(measure, growth)
    measured = same_measure(
        measure,
        theory,
        [(4, 1.5), (9, 0.5), (1, 2.5), (8, 2.0)],
        what="spread-of-stream",
        within=0.05,
        mistakes={
            "nothing-normalised": grown(lambda variance, gain: variance * (1 + gain**2)),
            "sum-normalised": spread(lambda x, m: normed(x + x @ m)),
            "sum-of-normed-normalised": spread(lambda x, m: normed(x + normed(x) @ m)),
            "stream-replaced": spread(lambda x, m: normed(x) @ m),
            "stream-replaced-unnormed": grown(lambda variance, gain: variance * gain**2),
            "normalised-stream-added": spread(lambda x, m: normed(x) + normed(x) @ m),
            "normalised-stream-and-raw-matrix": grown(
                lambda variance, gain: 1 + variance * gain**2
            ),
            "one-matrix-for-all": spread(pre_norm, one_matrix=True),
            "matrix-not-divided": spread(pre_norm, scale=lambda gain: gain),
            "matrix-divided-by-256": spread(pre_norm, scale=lambda gain: gain / 256),
            "root-of-gain": spread(pre_norm, scale=lambda gain: gain**0.5 / 16),
            "square-of-gain": spread(pre_norm, scale=lambda gain: gain**2 / 16),
            "tokens-between-0-and-1": spread(pre_norm, tokens=torch.rand),
            "matrix-between-0-and-1": spread(pre_norm, numbers=torch.rand),
            "gain-without-effect": lambda depth, gain: (1 + depth) ** 0.5,
            "variance-not-spread": spread(pre_norm, read=torch.var),
            "mean-not-spread": spread(pre_norm, read=torch.mean),
            "one-layer-too-many": lambda depth, gain: theory(depth + 1, gain),
            "one-layer-too-few": lambda depth, gain: theory(depth - 1, gain),
        },
    )
    with CallTracer() as tracer:
        run(growth, (4, 1.5), ["depth", "gain"])
    if any(tracer.called[name] for name in RANDOM):
        noticed(Wrong("growth-draws"))
    same_function(
        growth,
        theory,
        lambda case: (case["depth"], case["gain"] / 4),
        mistakes={
            "variance-not-spread": lambda depth, gain: 1 + depth * gain**2,
            "gain-needs-square": lambda depth, gain: (1 + depth * gain) ** 0.5,
            "spreads-added": lambda depth, gain: 1 + depth * gain,
            "spreads-added-by-root": lambda depth, gain: 1 + depth**0.5 * gain,
            "start-missing": lambda depth, gain: depth**0.5 * gain,
            "start-times-gain": lambda depth, gain: (1 + depth) ** 0.5 * gain,
            "growth-without-norm": lambda depth, gain: (1 + gain**2) ** (depth / 2),
            "variance-without-norm": lambda depth, gain: (1 + gain**2) ** depth,
            "spreads-multiplied": lambda depth, gain: (1 + gain) ** depth,
            "gain-without-effect": lambda depth, gain: (1 + depth) ** 0.5,
            "depth-without-effect": lambda depth, gain: (1 + gain**2) ** 0.5,
            "depth-for-the-start": lambda depth, gain: (depth + gain**2) ** 0.5,
            "depth-squared": lambda depth, gain: (1 + (depth * gain) ** 2) ** 0.5,
        },
    )
    return message("and-formula-agrees", what=measured)


open_exercise("06.7", "Another place for the norm")
