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
from checks.engine.patches import Patch, patches
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
        inner = self.fc1(x)
        return self.fc2(F.gelu(inner))


def only(some: str) -> Patch:
    """Only these tokens are read, k at once."""
    return "inner = self.fc1(x)", f"k = self.tokens_at_once\n        inner = self.fc1({some})"


BENDS = {
    "ReLU": "torch.relu",
    "tanh": "torch.tanh",
    "SiLU": "F.silu",
    "the sigmoid": "torch.sigmoid",
    "Leaky ReLU": "F.leaky_relu",
    "ELU": "F.elu",
}
FEED_MISTAKES = patches(
    Pieces,
    {
        "bend-missing": ("F.gelu(inner)", "inner"),
        **{message("bends-with", name=name): ("F.gelu", bend) for name, bend in BENDS.items()},
        "gelu-with-tanh": ("F.gelu(inner)", 'F.gelu(inner, approximate="tanh")'),
        "softmax-for-a-bend": ("F.gelu(inner)", "inner.softmax(dim=-1)"),
        "bends-after-fc2": ("self.fc2(F.gelu(inner))", "F.gelu(self.fc2(inner))"),
        "bends-after-fc2-too": ("self.fc2(F.gelu(inner))", "F.gelu(self.fc2(F.gelu(inner)))"),
        "bends-before-fc1": ("F.gelu(inner)", "inner", "self.fc1(x)", "self.fc1(F.gelu(x))"),
        "returns-x-as-it-came": ("self.fc2(F.gelu(inner))", "x"),
        "feed-forward-adds-x": ("return", "return x +"),
        "last-piece-missing": only("x[:, : x.shape[1] // k * k]"),
        "only-first-piece": only("x[:, :k]"),
        "only-last-piece": only("x.split(k, dim=1)[-1]"),
        "only-last-piece-of-as-many": only("x.chunk(k, dim=1)[-1]"),
        "pieces-reversed": only("torch.cat(x.split(k, dim=1)[::-1], dim=1)"),
        "pieces-joined-as-samples": only("torch.cat(x.split(k, dim=1)[:-1])"),
    },
)


def few_at_once(FeedForward: type[nn.Module]) -> None:
    """Raise `Wrong` when the wide tensor holds more tokens than it may."""
    for k in (2, 3, 4):
        b, n, m = k + 1, k * (k + 1) + 1, 100  # so that each mistake has a different size
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
    """Tokens for more than two groups; the last group is shorter."""
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
    """Check the kind and the parameters of a convolution."""
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
    """Say why a parameter of a convolution has a different shape."""
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
    """Train the convolution a little; the Linear must not change, and vice versa."""
    for changed, other in ((conv, linear), (linear, conv)):
        before = [part.detach().clone() for part in other.parameters()]
        with torch.no_grad():
            for part in changed.parameters():
                part.add_(1)
        for one, then in zip(other.parameters(), before, strict=True):
            if not torch.equal(one, then):
                raise Wrong("numbers-are-shared")


def changed_by_windows(width: int, changed: int = 9, tokens: int = 37) -> int:
    """Count the tokens that change after two convolutions with windows of the given width."""
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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    away = x - x.mean(dim=-1, keepdim=True)
    variance = away.square().mean(dim=-1, keepdim=True)
    return away / (variance + eps).sqrt() * weight + bias


VARIANCE = "away.square().mean(dim=-1, keepdim=True)"
ROOT, BESIDE = "(variance + eps).sqrt()", "(variance.sqrt() + eps)"
LAYER_MISTAKES = patches(
    layer_norm,
    {
        "divides-by-e-minus-one": (VARIANCE, "x.var(dim=-1, keepdim=True)"),
        "eps-outside-root": (ROOT, BESIDE),
        "e-minus-one-and-eps-outside": (VARIANCE, "x.var(dim=-1, keepdim=True)", ROOT, BESIDE),
        "eps-missing": (" + eps", ""),
        "eps-squared": ("+ eps", "+ eps**2"),
        "eps-fixed": ("+ eps", "+ 1e-5"),
        "divides-by-variance": (".sqrt()", ""),
        "spread-under-root": (VARIANCE, f"{VARIANCE}.sqrt()"),
        "spread-under-root-minus-one": (VARIANCE, "x.std(dim=-1, keepdim=True)"),
        "squares-of-x": ("away.square()", "x.square()"),
        "squares-summed": ("square().mean", "square().sum"),
        "sizes-for-squares": ("square()", "abs()"),
        "norms-over-tokens": ("dim=-1", "dim=-2"),
        "norms-over-tokens-and-numbers": ("dim=-1", "dim=(-2, -1)"),
        "norms-over-batch": ("dim=-1", "dim=0"),
        "norms-over-everything": ("dim=-1, keepdim=True", ""),
        "mean-of-everything": ("return away", "return (x - x.mean())"),
        "mean-of-everything-in-both": ("x.mean(dim=-1, keepdim=True)", "x.mean()"),
        "mean-not-subtracted": ("return away", "return x"),
        "spread-not-divided": (f" / {ROOT}", ""),
        "rms-with-bias": (" - x.mean(dim=-1, keepdim=True)", ""),
        "weight-and-bias-not-used": (" * weight + bias", ""),
        "weight-not-used": (" * weight", ""),
        "bias-not-used": (" + bias", ""),
        "bias-before-weight": ("+ bias", "+ bias * weight"),
        "bias-subtracted": ("+ bias", "- bias"),
        "weight-and-bias-exchanged": ("* weight + bias", "* bias + weight"),
    },
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    square = x.square().mean(dim=-1, keepdim=True)
    return x / (square + eps).sqrt() * weight


SQUARE = "x.square().mean(dim=-1, keepdim=True)"
RMS, RMS_BESIDE = "(square + eps).sqrt()", "(square.sqrt() + eps)"
RMS_MISTAKES = patches(
    rms_norm,
    {
        "rms-subtracts-mean": (
            "    square",
            "    x = x - x.mean(dim=-1, keepdim=True)\n    square",
        ),
        "rms-of-spread": (SQUARE, "x.var(dim=-1, correction=0, keepdim=True)"),
        "rms-of-sum": ("mean(", "sum("),
        "rms-of-length": ("mean(", "sum(", RMS, RMS_BESIDE),
        "square-of-mean": (SQUARE, "x.mean(dim=-1, keepdim=True).square()"),
        "rms-without-root": (".sqrt()", ""),
        "mean-size": ("x.square()", "x.abs()", ".sqrt()", ""),
        "eps-outside-root": (RMS, RMS_BESIDE),
        "eps-is-added-to-result": ("(square + eps)", "square", "* weight", "+ eps * weight"),
        "eps-missing": (" + eps", ""),
        "eps-squared": ("+ eps", "+ eps**2"),
        "eps-fixed": ("+ eps", "+ 1e-5"),
        "weight-not-used": (" * weight", ""),
        "divides-by-weight": ("* weight", "/ weight"),
        "multiplies-by-root": ("x / ", "x * "),
        "norms-over-tokens": ("dim=-1", "dim=-2"),
        "norms-over-tokens-and-numbers": ("dim=-1", "dim=(-2, -1)"),
        "norms-over-everything": ("dim=-1, keepdim=True", ""),
    },
)


def tokens_and(*vectors: str) -> Callable[[Case], tuple]:
    """Tokens with none to three leading axes, the given vectors, and an eps that matters."""

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


class Block(encoder.EncoderBlock):
    def forward(self, x: Tensor) -> Tensor:
        attend, feed, first, second = self.attn, self.mlp, self.norm1, self.norm2
        half = x + attend(first(x))
        return half + feed(second(half))


HALF, END = "x + attend(first(x))", "half + feed(second(half))"
BLOCK_MISTAKES = patches(
    Block,
    {
        "block-is-sick": (HALF, "second(x + attend(first(x)))", END, "half + feed(half)"),
        "both-sums-from-norm": (
            HALF,
            "second(first(x) + attend(first(x)))",
            END,
            "half + feed(half)",
        ),
        "first-sum-from-norm": (HALF, "first(x) + attend(first(x))"),
        "feed-forward-not-normed": ("second(half)", "half"),
        "attention-not-normed": ("first(x)", "x"),
        "feed-forward-reads-norm1": ("second(half)", "first(half)"),
        "feed-forward-not-added": ("half + ", ""),
        "attention-not-added": ("x + ", ""),
        "block-is-post-norm": (HALF, "first(x + attend(x))", END, "second(half + feed(half))"),
        "second-sum-normalized": (END, "second(half + feed(half))"),
        "normalized-at-the-end": (END, "second(half + feed(second(half)))"),
        "feed-forward-reads-start": ("second(half)", "second(x)"),
        "added-to-the-start": ("return half", "return x"),
        "attention-lost": (HALF, "attend(first(x))", "return half", "return x"),
        "feeds-on-attention-alone": (HALF, "attend(first(x))", "return half", "return x + half"),
        "feed-forward-runs-first": (HALF, "x + feed(second(x))", END, "half + attend(first(half))"),
        "norm-behind-the-part": (HALF, "x + first(attend(x))", END, "half + second(feed(half))"),
        "norm-before-and-behind": (
            "attend(first(x))",
            "first(attend(first(x)))",
            "feed(second(half))",
            "second(feed(second(half)))",
        ),
        "norms-changed-places": ("first, second", "second, first"),
        "no-norm-at-all": ("first(x)", "x", "second(half)", "half"),
        "stream-added-twice": (END, f"half + {END}"),
        "norm-added-as-well": (HALF, f"first(x) + {HALF}"),
        "norms-added-as-well": (HALF, f"first(x) + {HALF}", END, f"second(half) + {END}"),
    },
)


def block_clinic(module: nn.Module, built: dict[str, Any]) -> Report:
    return diagnose_block(module, num_heads=built["num_heads"], norm_first=True)


@exercise("06.5", "Find the bug")
def find_the_bug(Healthy) -> Message:
    return same_module(
        Healthy,
        Block,
        lambda case: {
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"],
        },
        lambda case: (case.randn("b n (h d)") * 3 + 1,),
        mistakes=BLOCK_MISTAKES,
        forbidden={"EncoderBlock.forward": "write-order-of-parts"},
        clinic=block_clinic,
    )


# -------------------------------------------------------------------------------- the experiment


def stream_spread(depth: int, gain: float) -> float:
    generator, norm = torch.Generator().manual_seed(1), nn.LayerNorm(256)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    for _ in range(depth):
        matrix = torch.randn(256, 256, generator=generator) * (gain / 16)
        x = x + norm(x) @ matrix
    return x.std().item()


def theory(depth: int, gain: float) -> float:
    return (1 + depth * gain**2) ** 0.5


STEP = "x + norm(x) @ matrix"
SPREAD_MISTAKES = {
    "nothing-normalized": lambda depth, gain: (1 + gain**2) ** (depth / 2),
    "stream-replaced-unnormed": lambda depth, gain: gain**depth,
    "normalized-stream-and-raw-matrix": lambda depth, gain: (
        sum(gain ** (2 * layer) for layer in range(depth + 1)) ** 0.5
    ),
    **patches(
        stream_spread,
        {
            "sum-normalized": (STEP, "norm(x + x @ matrix)"),
            "sum-of-normed-normalized": (STEP, "norm(x + norm(x) @ matrix)"),
            "stream-replaced": (STEP, "norm(x) @ matrix"),
            "normalized-stream-added": (STEP, "norm(x) + norm(x) @ matrix"),
            "one-matrix-for-all": ("generator=generator", "generator=generator.manual_seed(1)"),
            "matrix-not-divided": ("gain / 16", "gain"),
            "matrix-divided-by-256": ("gain / 16", "gain / 256"),
            "root-of-gain": ("gain / 16", "gain**0.5 / 16"),
            "square-of-gain": ("gain / 16", "gain**2 / 16"),
            "tokens-between-0-and-1": ("torch.randn(64", "torch.rand(64"),
            "matrix-between-0-and-1": ("torch.randn(256", "torch.rand(256"),
            "variance-not-spread": ("std()", "var()"),
            "mean-not-spread": ("std()", "mean()"),
        },
    ),
    "gain-without-effect": lambda depth, gain: (1 + depth) ** 0.5,
    "one-layer-too-many": lambda depth, gain: theory(depth + 1, gain),
    "one-layer-too-few": lambda depth, gain: theory(depth - 1, gain),
}


@exercise("06.6", "How a stream grows, measured")
def how_a_stream_grows(measure, growth) -> Message:
    written(measure, growth)
    measured = same_measure(
        measure,
        theory,
        [(4, 1.5), (9, 0.5), (1, 2.5), (8, 2.0)],
        what="spread-of-stream",
        within=0.05,
        mistakes=SPREAD_MISTAKES,
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


open_exercise("06.7", "A third position for the norm")
