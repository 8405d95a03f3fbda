"""What a module may be meant to be: the conventions that weights of well-known models need."""

from __future__ import annotations

from dataclasses import dataclass

HALVES, PAIRS = "halves", "pairs"


@dataclass(frozen=True)
class Model:
    """The conventions of one model, where several are right.

    Args:
        rotary: which two numbers of a head turn together.
        qk_norm: whether queries and keys are normalised head by head, before or after they
            turn, or all heads at once; "" for not at all.
        plus_one: whether norms multiply by 1 + weight.
    """

    rotary: str = HALVES
    qk_norm: str = ""
    plus_one: bool = False


MODELS = {
    "llama": Model(),
    "mistral": Model(),
    "qwen2": Model(),
    "qwen3": Model(qk_norm="before"),
    "gemma": Model(plus_one=True),
    "gemma3": Model(qk_norm="before", plus_one=True),
    "hunyuan": Model(qk_norm="after"),
    "olmo2": Model(qk_norm="flat"),
    "gpt-neox": Model(),
    "gpt-j": Model(rotary=PAIRS),
}
