"""What a norm and a feed-forward of a block are, by the numbers that they give."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from attention_clinic.bugs.blocks import Meant
from attention_clinic.bugs.feeds import ACTIVATIONS, Feed, Gate, feed, feeds
from attention_clinic.bugs.norms import mean_square
from attention_clinic.bugs.wirings import FEED_FORMS, NORM_FORMS
from attention_clinic.engine.report import Report
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.held import feed_of
from attention_clinic.examine.leaves import RMS

EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-4, 1e-10, 0.0)
BATCH = (nn.BatchNorm1d, nn.BatchNorm2d)
ROUGH = 1e-7  # a limit above it does not tell where eps is added, but to short tokens
LAYER_NORM = re.compile("layer_?norm", re.IGNORECASE)
LENGTHS = (1.0, 0.1, 0.01, 1.5, 0.003, 0.5, 0.03)


@dataclass(frozen=True)
class Kind:
    """What a part is.

    Args:
        ids: its mistakes.
        detail: what they are, in words.
        variants: what it does in another way on purpose.
        words: what it is, in words.
        number: of a norm, its eps; of a feed-forward, its activation's name in `words`.
        odd: what is neither known as right nor as wrong, in words.
    """

    ids: tuple[str, ...] = ()
    detail: str = ""
    variants: tuple[str, ...] = ()
    words: str = ""
    number: float = 0.0
    odd: str = ""


def norm_kind(
    run: Callable[[Tensor], Tensor], x: Tensor, limit: float, turned: bool = False
) -> Kind | None:
    """Return what a norm is, None when it is none of those that are known.

    Args:
        run: calls it.
        x: tokens that it takes.
        limit: the largest difference that counts as equal.
        turned: whether it is handed (n, b, e).
    """
    if limit > ROUGH:
        x = x * torch.tensor(LENGTHS).to(x)[torch.arange(x.shape[1]) % len(LENGTHS), None]
    y = run(x.transpose(0, 1).clone()).transpose(0, 1) if turned else run(x.clone())
    if y.shape != x.shape or not y.isfinite().all():
        return None
    module = run if isinstance(run, nn.Module) else None
    inner = getattr(run, "run", run)  # of a norm that gets channels first, or a sum
    said = eps_held(inner) if isinstance(inner, nn.Module) else []
    laid = inner is not run
    if laid and isinstance(inner, BATCH) and inner.running_mean is not None:
        return Kind(variants=("batch-norm",))
    if laid and isinstance(inner, nn.GroupNorm):
        return Kind()  # as it is meant for images
    rms = bool(RMS.search(type(inner).__name__.lower()))
    factors = [p.detach() for p in module.parameters()] if module is not None else None
    for form in NORM_FORMS:
        if form.called_rms not in (None, rms):
            continue
        for eps in dict.fromkeys((*said, *EPS)):
            weight = norm_weight(form.run(x, eps), y, limit, form.free)
            if weight is None:
                continue
            if factors is None or _held(weight, factors):
                return Kind(form.ids, form.detail, form.variants, number=eps)
            if not form.ids and _held(weight - 1, factors):
                return Kind(variants=(*form.variants, "norm-plus-one"), number=eps)
    found = _over_others(run, x, turned) or _times_too_large(run, x, factors, limit)
    found = found or _bias_below(y, x, factors, limit)
    return found or _other_numbers(run, y, x, factors, limit, type(inner).__name__)


def eps_held(module: nn.Module) -> list[float]:
    """Return the numbers that a norm holds and that may be its eps: a whole one by its name."""
    held = vars(module).items()
    return [
        v for name, v in held if isinstance(v, float) or ("eps" in name and type(v) is int and v)
    ]


def _times_too_large(
    run: Callable[[Tensor], Tensor], x: Tensor, factors: list[Tensor] | None, limit: float
) -> Kind | None:
    """Return the RMSNorm that gives a multiple of what one gives, None for another norm.

    That of sqrt(e), or of its inverse, may be meant so: ScaleNorm, or a length of 1.
    """
    made = run(x.clone()) * mean_square(x).sqrt() / x  # (b, n, e): the weights, times one number
    rows = made.flatten(0, -2)
    even = bool((rows - rows[0]).abs().max() <= 1e3 * limit * (1 + rows[0].abs().max()))
    weights = [p for p in factors or () if p.numel() == x.shape[-1]]
    if not even or len(weights) != 1 or len(factors or ()) > 1:
        return None
    ratio = rows[0] / weights[0].flatten()
    times, length = float(ratio.mean()), x.shape[-1] ** 0.5
    plain = any(abs(times / other - 1) < 1e-2 for other in (1, length, 1 / length))
    if plain or bool((ratio - times).abs().max() > 1e-3 * abs(times)):
        return None
    return Kind(("norm-formula",), f"it gives {times:.4g} times what an RMSNorm gives")


def _bias_below(y: Tensor, x: Tensor, factors: list[Tensor] | None, limit: float) -> Kind | None:
    """Return the LayerNorm that divides by its bias, too, None for another norm."""
    own = [p.flatten() for p in factors or () if p.numel() == x.shape[-1]]
    if len(own) != 2 or len(factors or ()) != 2:
        return None
    for (weight, bias), unbiased, eps in product((own, own[::-1]), (True, False), EPS):
        root = x.var(dim=-1, keepdim=True, unbiased=unbiased).sqrt() + eps + bias
        made = weight * (x - x.mean(dim=-1, keepdim=True)) / root
        if bool(((made - y).abs() <= limit * (1 + y.abs())).all()):
            return Kind(("norm-formula",), "its bias is added to what it divides by")
    return None


def _other_numbers(
    run: Callable[[Tensor], Tensor],
    y: Tensor,
    x: Tensor,
    factors: list[Tensor] | None,
    limit: float,
    called: str,
) -> Kind | None:
    """Return what is called a norm and is none by its numbers, None for another.

    Of each token it is weight * (s * x + t) + bias, where s and t are one number each, and s falls
    as the token grows.
    """
    own = [p.flatten() for p in factors or () if p.numel() in (1, x.shape[-1])]
    if factors is None or len(own) != len(factors) or len(own) > 2 or x.shape[-1] < 4:
        return None
    layer, rms = LAYER_NORM.search(called), RMS.search(called.lower())
    if not layer and not rms:
        return None
    none, one = x.new_zeros(1), x.new_ones(1)
    ways = [(w, b) for w in own for b in (*own, none) if b is not w] or [(one, none)]
    for weight, bias in ways:
        found = _line(x, (y - bias) / weight, limit / weight.abs().min().clamp(max=1))
        if found is not None:
            break
    else:
        return _number_by_number(run, y, x, limit)
    times, more = found
    mean = x.mean(dim=-1, keepdim=True)
    if bool(((times * (x - mean)).abs() <= 10 * limit * (1 + more.abs())).all()):
        return Kind(("norm-formula",), "the numbers of a token are not in it")
    longer = _line(100 * x, (run(100 * x) - bias) / weight, limit)
    if longer is None:
        return None
    if bool(((100 * longer[0] / times - 1).abs() > 0.1).all()):
        return Kind(("norm-formula",), "it does not divide by how long a token is")
    size = 1e3 * limit * (1 + times.abs())
    root = x.var(dim=-1, keepdim=True, unbiased=False) if layer else mean_square(x)
    ratio = 100 * longer[0] * root.sqrt()  # of long tokens, whatever its eps is
    even = 1 if layer else ratio.mean()  # a multiple may be meant so
    apart = times * mean + more if layer else more
    right = bool(((ratio / even - 1).abs() < 1e-3).all())
    if right or bool((apart.abs() > size).any()) or (rms and not _reads_all(run, y, x)):
        return None
    words = "variance" if layer else "mean square"
    return Kind(("norm-formula",), f"what it divides by is not the root of the {words}")


def _number_by_number(
    run: Callable[[Tensor], Tensor], y: Tensor, x: Tensor, limit: float
) -> Kind | None:
    """Return the norm of which each number changes with itself alone, None for another."""
    other = x.clone()
    other[..., 0] *= 3
    if bool(((run(other) - y)[..., 1:].abs() <= limit * (1 + y[..., 1:].abs())).all()):
        return Kind(("norm-formula",), "no number of a token changes with another")
    return None


def _reads_all(run: Callable[[Tensor], Tensor], y: Tensor, x: Tensor) -> bool:
    """Say whether what a norm divides by changes with each number: with some, it is meant so."""
    changed = []
    for place in range(x.shape[-1]):
        other, kept = x.clone(), place - 1
        other[..., place] *= 3
        changed.append(bool(((run(other) / y)[..., kept] - 1).abs().max() > 1e-4))
    return all(changed)


def _line(x: Tensor, y: Tensor, limit: float | Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the s and t of each token with which s * x + t is y, None where there are none."""
    centred, mean = x - x.mean(dim=-1, keepdim=True), y.mean(dim=-1, keepdim=True)
    times = (centred * (y - mean)).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    more = mean - times * x.mean(dim=-1, keepdim=True)
    near = ((times * x + more - y).abs() <= limit * (1 + y.abs())).all()
    return (times, more) if bool(near) else None


def _over_others(run: Callable[[Tensor], Tensor], x: Tensor, turned: bool) -> Kind | None:
    """Return the norm whose results change with other tokens than their own, None for another."""

    def first(t: Tensor) -> Tensor:
        y = run(t.transpose(0, 1).clone()).transpose(0, 1) if turned else run(t.clone())
        return y[0, 0]

    said = []
    for words, place in (("other tokens", (0, -1)), ("other samples", (-1,))):
        other = x.clone()
        other[place] *= 2
        if not torch.allclose(first(x), first(other), rtol=1e-6, atol=1e-6):
            said.append(words)
    return Kind(("norm-axis",), f"it changes with {' and '.join(said)}") if said else None


def _held(weight: Tensor, factors: list[Tensor]) -> bool:
    """Say whether a norm's weight is one, or a parameter of it."""
    held = [torch.ones(1, dtype=weight.dtype), *factors]
    near = dict(rtol=1e-5, atol=1e-5)  # the numbers themselves were compared more closely
    return any(
        p.numel() in (1, weight.numel())
        and torch.allclose(weight.flatten(), p.flatten().expand(weight.numel()), **near)
        for p in held
    )


def norm_weight(normed: Tensor, y: Tensor, limit: float, free: bool) -> Tensor | None:
    """Return the weight with which, and with a bias, a norm's numbers become y; None for none.

    Args:
        normed: (b, n, e).
        y: (b, n, e).
        limit: the largest difference.
        free: whether the weights may differ by token, too.
    """
    if not normed.isfinite().all():
        return None
    first, second = normed.flatten(0, -2), y.flatten(0, -2)
    if free:  # a weight for every place: three samples and more tell
        first, second = normed.flatten(1), y.flatten(1)
    size = 1 + second.abs().max()
    mean, other = first.mean(0), second.mean(0)
    spread = (first - mean).square().sum(0)
    if bool((spread < 1e-20 * (1 + mean.square())).any()):
        return None
    weight = ((first - mean) * (second - other)).sum(0) / spread
    rest = first * weight + other - mean * weight - second
    return weight if bool(rest.abs().max() <= limit * size) else None


def feed_kind(
    part: nn.Module,
    x: Tensor,
    limit: float,
    heard: list[str],
    meant: Meant,
    adds: bool = False,
) -> Kind | None:
    """Return what a feed-forward is, None when it is none of those that are known.

    Args:
        part: as a module.
        x: tokens that it takes.
        limit: the largest difference that counts as equal.
        heard: the activations that were called in the block.
        meant: what the block is meant to be.
        adds: whether it adds what it reads to that.
    """
    sources = sources_of(part)
    fed = feed_of(sources, x.shape[-1])
    if fed is None and [source.weight.ndim for source in sources] == [2, 2]:
        up, down = (source.weight.shape for source in sources)
        fed = Feed(*sources, "oi", Gate(None, False) if up[0] == 2 * down[1] else None)
    if fed is None:
        return None
    y = part(x.clone())
    if y.shape != x.shape:
        return None
    y = y - x if adds else y

    names = [*heard, *(name for name in ACTIVATIONS if name not in heard)]

    def near(made: Tensor) -> bool:
        return bool((made - y).abs().max() <= limit * (1 + y.abs().max()))

    state = {"meant": meant, "parts": SimpleNamespace(fed=fed, heard=names)}
    for form in feeds(state):
        if near(feed(x, fed, form.run)):
            variants = () if form.ids else form.variants
            return Kind(form.ids, variants=variants, words=form.run.split(" ")[0])
    packed = fed.gate is not None and fed.gate.source is None
    for name in () if packed else names:
        for form in FEED_FORMS:
            if near(form.run(x, fed, name)):
                return Kind(form.ids, form.detail, words=name)
    return None


def kinds_of_attention(report: Report) -> Iterator[Kind]:
    """Yield what an attention in a block may be, by its own report: nothing when it is unexplained.

    What its heads mixed joins the stream: no output layer stands elsewhere.
    """
    variants = tuple(variant.id for variant in report.variants)
    missing = [id for one in report.remarks for id in one.ids if id == "out-missing"]
    if report.healthy:
        yield Kind(tuple(missing), variants=variants)
    for one in report.explanations:
        yield Kind((*one.ids, *missing), one.detail, variants)
