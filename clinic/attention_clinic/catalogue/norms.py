"""Norms: LayerNorm, RMSNorm, and what is mistaken for them.

A norm is read off a run as its source, its weight and its bias. A form of `NORM` is what it did in
between: it is reported only if weight * form(source) + bias gives the module's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from attention_clinic.catalogue.forms import Form, Step, bug, variant

NORM = Step("norm")


def mean(x: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    return x.mean(dim, keepdim=True)


def variance(x: Tensor, dim: int | tuple[int, ...] = -1, unbiased: bool = False) -> Tensor:
    return x.var(dim, unbiased=unbiased, keepdim=True)


def over(
    x: Tensor,
    eps: float,
    dim: tuple[int, ...] = (-1,),
    unbiased: bool = False,
    outside: bool = False,
    rms: bool = False,
) -> Tensor:
    spread = mean(x.square(), dim) if rms else variance(x, dim, unbiased)
    root = spread.sqrt() + eps if outside else (spread + eps).sqrt()
    return (x if rms else x - mean(x, dim)) / root


NORM.correct(lambda x, eps: (x - mean(x)) / (variance(x) + eps).sqrt())

variant("""
rms-norm, chapter 13
divides by the root mean square; no mean is subtracted
In: T5, Llama, Qwen, Mistral
""")
NORM.variant("rms-norm")(lambda x, eps: x * torch.rsqrt(mean(x.square()) + eps))

bug("""
norm-bessel, chapter 06
divides by a different root than sqrt(var + eps): that of n - 1 values, or with eps outside
Fix: use nn.LayerNorm, or x.var(unbiased=False) and (var + eps).sqrt().
Seen: harvardnlp/annotated-transformer#122
""")


for _words, _unbiased, _outside in (
    ("it is that of n - 1 values, and eps is outside", True, True),
    ("it is that of n - 1 values", True, False),
    ("it is that of n values, as it should be, and eps is outside", False, True),
):
    NORM.wrong("norm-bessel", detail=_words)(
        partial(over, dim=(-1,), unbiased=_unbiased, outside=_outside)
    )

bug("""
rms-eps, chapter 13
adds eps to the root of the mean square, not under the root
Fix: write x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps).
Seen: allenai/OLMo#281
""")


NORM.wrong("rms-eps")(lambda x, eps: x / (mean(x.square()).sqrt() + eps))

bug("""
norm-axis, chapter 13
normalizes over other axes than the numbers of each token
Fix: take the mean over the last axis alone: dim=-1, keepdim=True.
Seen: bkitano/llama-from-scratch#4; kyegomez/zeta#180
""")
AXES: dict[tuple[int, ...], str] = {
    (1,): "over the tokens",
    (1, 2): "over the tokens and their numbers",
    (0,): "over the samples",
    (0, 1): "over the samples and the tokens",
    (0, 1, 2): "over all numbers of all samples",
}


for _axes, _words in AXES.items():
    for _rms, _unbiased, _outside in product((False, True), repeat=3):
        if not (_rms and _unbiased):
            NORM.wrong("norm-axis", detail=_words)(
                partial(over, dim=_axes, unbiased=_unbiased, outside=_outside, rms=_rms)
            )

bug("""
norm-formula, chapter 06
normalizes by a different formula than (x - mean) / sqrt(var + eps)
Fix: use nn.LayerNorm, or (x - mean) / (var + eps).sqrt(), over the numbers of each token.
Seen: shah0nawaz/Transformer-implementation-from-scratch

norm-eps, chapter 06
uses a different eps in LayerNorm than announced
Fix: pass eps to nn.LayerNorm: 1e-5 is PyTorch's, 1e-6 ViT's, 1e-12 BERT's.
Seen: lucidrains/x-transformers#37; kornia/kornia#2786; keras-team/keras-hub#642
""")


for _words, _run in (
    ("it divides by the variance, not by its root", lambda x, v, eps: (x - mean(x)) / (v + eps)),
    ("no mean is subtracted", lambda x, v, eps: x / (v + eps).sqrt()),
    ("no mean is subtracted", lambda x, v, eps: x / (v.sqrt() + eps)),
    ("it multiplies by the root", lambda x, v, eps: (x - mean(x)) * (v + eps).sqrt()),
    ("it divides by nothing", lambda x, v, eps: x - mean(x)),
    (
        "it computes x - mean / root, not (x - mean) / root",
        lambda x, v, eps: x - mean(x) / (v + eps).sqrt(),
    ),
):
    for _unbiased in (False, True):
        NORM.wrong("norm-formula", detail=_words)(
            lambda x, eps, run=_run, unbiased=_unbiased: run(x, variance(x, unbiased=unbiased), eps)
        )


def fitting(
    source: Tensor,
    result: Tensor,
    eps: list[float],
    weigh: Callable[[Tensor], Tensor],
    tolerance: float,
) -> tuple[Form, float] | None:
    """Return the form that turns a source (b, n, e) into a result, and its eps; None without one.

    A form counts if weigh(form(source)) gives the result.
    """
    limit = tolerance * max(1.0, float(result.abs().max()))
    for form in NORM.forms:
        for one in eps:
            made = weigh(form.run(source, one))
            if bool(((made - result).abs() <= limit).all()):
                return form, one
    return None
