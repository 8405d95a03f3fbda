"""What a run of a block shows: parts that rest, norms of other formulas, activations too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_clinic.bugs.feeds import ACTIVATIONS, Feed, feed
from attention_clinic.bugs.norms import RMS_FORMS, ROOTS, mean_square
from attention_clinic.engine.forms import bug

bug(
    "part-unused",
    "builds a part and never calls it",
    "call each part once, in its place: x = x + attention(norm1(x)), x = x + mlp(norm2(x)).",
    "06",
    "rwtarpit/ViT-from-Scratch",
    seen="a run calls it nowhere, and the block is what is left without it",
)
bug(
    "part-shared",
    "runs one part in two places, where each place needs weights of its own",
    "build one attention for the tokens themselves, and another for the context.",
    "10",
    "snsd0805/Simple-Transformer-Translator",
)
bug(
    "norm-doubled",
    "normalises twice in a row: what a norm returned goes through another one",
    "one norm for each part is enough, in the block or in what stands around the part.",
    "06",
    "rwtarpit/ViT-from-Scratch",
)
bug(
    "norm-mixed",
    "normalises before one part and behind another",
    "decide for one order: x + part(norm(x)) for all parts, or norm(x + part(x)) for all.",
    "06",
    "found in a published copy of a ViT block",
)
bug(
    "norm-formula",
    "normalises by another formula than (x - mean) / sqrt(var + eps)",
    "use nn.LayerNorm, or (x - mean) / (var + eps).sqrt(), over the numbers of each token.",
    "06",
    "shah0nawaz/Transformer-implementation-from-scratch",
)
bug(
    "activation-missing",
    "bends nothing in the feed-forward: two linear layers in a row are one",
    "put the activation between the layers: down(activation(up(x))).",
    "06",
    "found in a published copy of a ViT block",
)
bug(
    "activation-last",
    "bends what the feed-forward returns, too: nothing below zero, or little, joins the stream",
    "let the feed-forward end with its second linear layer.",
    "06",
    "vjhawar12/Vision-Transformer-Implementation",
)
bug(
    "residual-again",
    "adds the stream twice: the part adds it, and what stands around the part does so again",
    "one residual for each part: in the part, or around it.",
    "06",
    "Mayukhdeb/tiny-transformer",
)
bug(
    "residual-from-context",
    "adds the context where the block's own tokens belong: its stream is lost",
    "the residual of a cross-attention is the stream that asks: x + attention(norm(x), context).",
    "10",
    "ZhengkunTian/Speech-Tranformer-Pytorch",
)
bug(
    "residual-in-place",
    "changes the stream in its place, such as by nn.ReLU(inplace=True), before it is added",
    "no inplace=True where a part begins: what it reads is still needed for the residual.",
    "06",
    "sunjie97/detr-pytorch",
)
bug(
    "stream-bent",
    "bends the stream with an activation function: what was summed goes on without its numbers "
    "below zero, or with little of them",
    "an activation stands inside of the feed-forward alone: x = x + part(norm(x)), and nothing "
    "around the sum.",
    "06",
    "found in none of the blocks that were read; written down for those to come",
)
bug(
    "activation-twice",
    "bends twice in a row in the feed-forward, with no layer between: the second activation bends "
    "what the first one left",
    "one activation between the layers is enough: down(activation(up(x))).",
    "06",
    "found in none of the blocks that were read; written down for those to come",
)
bug(
    "half-step",
    "adds half of one of the two feed-forwards around its attention, and the whole of the other",
    "halve both: x = x + 0.5 * first(x), then attention, then x = x + 0.5 * second(x).",
    "06",
    "found in none of the blocks that were read; written down for those to come",
)
bug(
    "wiring-other",
    "connects its parts as no known block does: one reads something else than the stream",
    "keep one stream, x = x + part(norm(x)) or x = norm(x + part(x)), for each part in turn.",
    "06",
    "found in none of the blocks that were read; written down for those to come",
)


# ----------------------------------------------------- norms, without their weights and biases


@dataclass(frozen=True)
class NormForm:
    """One way to normalise tokens (b, n, e).

    Args:
        run: the code, of the tokens and eps.
        ids: the mistakes that it is.
        detail: what it says beyond the words of its bugs.
        variants: what a right form is called.
        called_rms: True for norms called RMSNorm only, False for others only, None for both.
        free: whether its weights may differ by token, too.
    """

    run: Callable[[Tensor, float], Tensor]
    ids: tuple[str, ...] = ()
    detail: str = ""
    variants: tuple[str, ...] = ()
    called_rms: bool | None = None
    free: bool = False


def _layer(dim: tuple[int, ...] = (-1,), unbiased: bool = False, outside: bool = False) -> Callable:
    def run(x: Tensor, eps: float) -> Tensor:
        variance = x.var(dim=dim, keepdim=True, unbiased=unbiased)
        root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        return (x - x.mean(dim=dim, keepdim=True)) / root

    return run


def _mean(x: Tensor) -> Tensor:
    return x.mean(dim=-1, keepdim=True)


def _var(x: Tensor, unbiased: bool = False) -> Tensor:
    return x.var(dim=-1, keepdim=True, unbiased=unbiased)


AXES = {
    (-2,): "over the tokens",
    (-2, -1): "over the tokens and their numbers",
    (0,): "over the samples",
    (0, 1): "over the samples and the tokens",
    (0, 1, 2): "over all numbers of all samples",
}


def _forms() -> Iterator[NormForm]:
    yield NormForm(_layer(), called_rms=False)
    yield NormForm(lambda x, eps: x * torch.rsqrt(mean_square(x) + eps), variants=("rms-norm",))
    for (unbiased, outside), words in ROOTS.items():
        made = _layer(unbiased=unbiased, outside=outside)
        yield NormForm(made, ("norm-bessel",), words, called_rms=False)
    for form in RMS_FORMS:
        if set(form.ids) <= {"rms-mean", "rms-eps", "rms-inverted"}:
            yield NormForm(_unweighted(form.run), form.ids, form.detail, called_rms=True)
    for dim, words in AXES.items():
        for unbiased in (False, True):
            for outside in (False, True):
                made = _layer(dim, unbiased, outside)
                yield NormForm(made, ("norm-axis",), words, called_rms=False)
        yield NormForm(_layer(dim), ("norm-axis",), words, called_rms=False, free=True)
    for unbiased in (False, True):
        for words, run in _others(unbiased):
            yield NormForm(run, ("norm-formula",), words, called_rms=False)


def _unweighted(run: Callable[..., Tensor]) -> Callable[[Tensor, float], Tensor]:
    return lambda x, eps: run(x, x.new_ones(()), None, eps)


def _others(unbiased: bool) -> Iterator[tuple[str, Callable[[Tensor, float], Tensor]]]:
    """Yield formulas that are mistaken for LayerNorm."""

    def var(x: Tensor) -> Tensor:
        return _var(x, unbiased)

    yield "it divides by the variance, not its root", lambda x, eps: (x - _mean(x)) / (var(x) + eps)
    yield "no mean is subtracted", lambda x, eps: x / (var(x) + eps).sqrt()
    yield "no mean is subtracted", lambda x, eps: x / (var(x).sqrt() + eps)
    yield "it multiplies by the root", lambda x, eps: (x - _mean(x)) * (var(x) + eps).sqrt()
    yield "it divides by nothing", lambda x, eps: x - _mean(x)
    yield "it divides by the mean", lambda x, eps: (x - _mean(x)) / (_mean(x) + eps)
    for root in (lambda x, eps: (var(x).sqrt() + eps).sqrt(), lambda x, eps: var(x) ** 0.25 + eps):
        yield (
            "it divides by the root of the deviation",
            lambda x, eps, root=root: (x - _mean(x)) / root(x, eps),
        )
    yield (
        "it divides by the length",
        lambda x, eps: (
            (x - _mean(x)) / ((x - _mean(x)).square().sum(-1, keepdim=True) + eps).sqrt()
        ),
    )
    yield (
        "it takes x - mean / root for (x - mean) / root",
        lambda x, eps: x - _mean(x) / (var(x) + eps).sqrt(),
    )
    for words, top in (
        ("(mean - var) / root: the numbers of a token are not in it", lambda x: _mean(x) - var(x)),
        ("mean / root: the numbers of a token are not in it", _mean),
    ):
        for root in (
            lambda x, eps: (var(x) + eps).sqrt(),
            lambda x, eps: var(x).sqrt() + eps,
        ):
            yield words, lambda x, eps, top=top, root=root: (top(x) / root(x, eps)).expand_as(x)


NORM_FORMS = tuple(_forms())


# ------------------------------------------------------------------------------- feed-forwards


@dataclass(frozen=True)
class FeedForm:
    """One wrong way to write a feed-forward.

    Args:
        run: the code, of tokens, weights and the name of the activation.
        ids: the mistakes that it is.
        detail: what it says beyond the words of its bugs.
    """

    run: Callable[[Tensor, Feed, str], Tensor]
    ids: tuple[str, ...]
    detail: str = ""


def _straight(x: Tensor, fed: Feed, how: str) -> Tensor:
    """Two layers, and nothing between them."""
    made = x
    for source in (fed.up, fed.down):
        made = made @ (source.weight.T if fed.form == "oi" else source.weight)
        made = made if source.bias is None else made + source.bias
    return made


FEED_FORMS = (
    FeedForm(
        lambda x, fed, how: ACTIVATIONS[how](feed(x, fed, how)),
        ("activation-last",),
    ),
    FeedForm(_straight, ("activation-missing",)),
    FeedForm(
        lambda x, fed, how: ACTIVATIONS[how](_straight(x, fed, how)),
        ("activation-last", "activation-missing"),
        "it stands behind both layers",
    ),
)
