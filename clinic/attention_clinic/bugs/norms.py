"""Norms without a mean: RMSNorm, and what it is mistaken for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, State, bug, variant

RMS_EPS = (1e-6, 1e-5, 1e-8, 0.0)
ROOTS = {  # of a LayerNorm: whether it is that of n - 1 values, whether eps stands outside
    (True, True): "that of n - 1 values, and eps stands outside",
    (True, False): "that of n - 1 values",
    (False, True): "that of n values, as it should be, and eps stands outside",
}

# --------------------------------------- a norm: x (..., d), weight (..., d) -> (..., d)
# A norm of the blocks and one of queries and keys have the same forms: `norm_forms` gives them.

variant(
    "rms-norm",
    "divides by the root mean square; no mean is subtracted",
    "T5, Llama, Qwen, Mistral",
    "13",
)
variant(
    "norm-plus-one",
    "multiplies what a norm returns by 1 + weight",
    "Gemma, Qwen3-Next",
    "13",
)

bug(
    "rms-mean",
    "is called RMSNorm and takes the mean away, from the numbers or from what they are divided by",
    "divide by (x.square().mean(-1, keepdim=True) + eps).sqrt() and subtract nothing.",
    "13",
    "huggingface/pytorch-image-models#2380",
    "mit-han-lab/omniserve#32",
    "keras-team/keras#22393",
)
bug(
    "rms-eps",
    "adds eps to the root of the mean square, not under the root",
    "write x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps).",
    "13",
    "allenai/OLMo#281",
)
bug(
    "rms-inverted",
    "multiplies by the root mean square where it should divide",
    "multiply by torch.rsqrt(...), or divide by torch.sqrt(...).",
    "13",
    "mosaicml/llm-foundry#371",
)
bug(
    "rms-length",
    "divides by the length of the vector, not by its root mean square",
    "take the mean of the squares, not their sum.",
    "13",
    "kyegomez/zeta#180",
)
bug(
    "norm-offset",
    "multiplies by the weight where 1 + weight was meant, or the reverse",
    "store the weight as the model does that it comes from: Gemma's starts at 0, Llama's at 1.",
    "13",
    "linkedin/Liger-Kernel#74",
    "vllm-project/vllm#3653",
    "ml-explore/mlx-lm#1623",
)


def scaled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weight a normalised vector number by number."""
    return x * weight if bias is None else x * weight + bias


def mean_square(x: Tensor, dim: int = -1) -> Tensor:
    """Return the mean of the squares."""
    return x.square().mean(dim, keepdim=True)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dim: int = -1) -> Tensor:
    """Divide by the root mean square."""
    return scaled(x * torch.rsqrt(mean_square(x, dim) + eps), weight, bias)


def centred(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise as LayerNorm does."""
    variance = x.var(dim=-1, keepdim=True, unbiased=False)
    return scaled((x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + eps), weight, bias)


def _called_rms(state: State) -> bool:
    return state["norm_kind"] == "rms"


def _offset(plus_one: bool) -> Callable[[State], bool]:
    def counts(state: State) -> bool:
        model = state.get("model")
        return model is not None and model.plus_one is not plus_one

    return counts


def _by_deviation(unbiased: bool) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        variance = x.var(dim=-1, keepdim=True, unbiased=unbiased)
        return scaled(x * torch.rsqrt(variance + eps), weight, bias)

    return run


def _plus_one(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return rms_norm(x, 1 + weight, bias, eps)


def _outside(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return scaled(x / (mean_square(x).sqrt() + eps), weight, bias)


def _inverted(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return scaled(x * (mean_square(x) + eps).sqrt(), weight, bias)


def _by_length(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return scaled(x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps), weight, bias)


RMS_FORMS = [
    Form(rms_norm, ("norm-offset",), "Gemma's norms multiply by 1 + weight",
         counts=_offset(False), variants=("rms-norm",)),
    Form(_plus_one, ("norm-offset",), "only Gemma's norms multiply by 1 + weight",
         counts=_offset(True), variants=("rms-norm", "norm-plus-one")),
    Form(centred, ("rms-mean",), "it is LayerNorm", applies=_called_rms),
    Form(_by_deviation(False), ("rms-mean",), "it divides by the standard deviation"),
    Form(_by_deviation(True), ("rms-mean",), "it divides by the standard deviation of n - 1"),
    Form(_outside, ("rms-eps",)),
    Form(_inverted, ("rms-inverted",)),
    Form(_by_length, ("rms-length",)),
]  # fmt: skip
