"""Rotary positions: queries and keys rotated by the position of their token.

Rules (`applies`) are conditions on `p.turn`, the rotation that was read off a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug, variant

USUAL = 10_000.0
LEAST, MOST = 1_000.0, 1e7  # a base outside is the result of a wrong exponent


def frequencies(width: int, base: float = USUAL) -> Tensor:
    """Return the angle of each pair from one position to the next, (width / 2,)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def base_of(angles: Tensor) -> float | None:
    """Return the base of the correct frequencies, None for other ones."""
    pairs = len(angles)
    if abs(float(angles[0]) - 1) > 1e-4:
        return None
    if pairs == 1:
        return USUAL
    if not 0 < float(angles[1]) < 1:
        return None
    base = float(angles[1]) ** -pairs
    near = float(f"{base:.4g}")
    base = near if math.isclose(near, base, rel_tol=1e-3) else base
    right = frequencies(2 * pairs, base)
    return base if torch.allclose(right, angles, rtol=1e-3, atol=1e-6) else None


def is_base(base: float, numbers: frozenset[float]) -> bool:
    """Return whether a base may be meant, given the numbers in the code of the module."""
    if any(math.isclose(base, number, rel_tol=1e-3) for number in numbers):
        return True
    meant = {USUAL, *(number for number in numbers if USUAL < number <= MOST)}
    powers = [number**power for number in meant for power in (0.5, 2)]
    wrong = any(math.isclose(base, one, rel_tol=1e-3) for one in powers)
    return base >= LEAST and not wrong


def wrong_frequencies(width: int, base: float, e: int) -> list[Tensor]:
    """Return frequencies of known wrong formulas, (width / 2,) each."""
    pair = torch.arange(width // 2, dtype=torch.float64)
    exponents = (
        *(-pair / width, -4 * pair / width),  # the factor 2 is missing, or there twice
        *(-2 * pair / e, 2 * pair / width),  # of the whole width, or growing
        *(-2 * (pair + 1) / width, -2 * (pair - 1) / width, -(2 * pair + 1) / width),
        0 * pair,
    )
    return [*(base**exponent for exponent in exponents), frequencies(width, base).flip(0)]


def misspaced(turn, e: int, numbers: frozenset[float]) -> bool | None:
    """Return whether frequencies are known wrong ones, None for unknown ones."""
    speeds = turn.frequencies
    base = base_of(speeds)
    if base is not None and is_base(base, numbers):
        return False
    # an angle above pi shows as its remainder: compare on the circle
    for one in dict.fromkeys((USUAL, *sorted(n for n in numbers if LEAST <= n <= MOST))):
        for wrong in wrong_frequencies(turn.width, one, e):
            apart = torch.stack([wrong - turn.sign * speeds, wrong - speeds])
            apart = torch.remainder(apart + math.pi, 2 * math.pi) - math.pi
            gap = float(apart.abs().amax(dim=-1).min())
            if gap < 1e-5 and not torch.allclose(wrong, frequencies(turn.width, one)):
                return True
    return None


def _on(condition: Callable[..., bool]) -> Callable[..., bool]:
    return lambda p: p.turn is not None and condition(p.turn)


variant("""
rotary-halves, chapter 13
rotates queries and keys by position, number p together with p + d/2
In: Llama, Qwen, Mistral, GPT-NeoX

rotary-pairs, chapter 13
rotates queries and keys by position, neighbouring numbers together
In: the paper of 2021, GPT-J, Meta's own Llama

rotary-partial, chapter 13
rotates the first numbers of each head only
In: GPT-J, GPT-NeoX, Phi

rotary-backwards, chapter 13
rotates backwards: the sine has the other sign
In: nanochat
""")
bug("""
rotary-no-effect, chapter 13
should rotate queries and keys by position, but the order of the tokens changes nothing
Fix: rotate along the axis of the tokens, not along the heads, and use the result of the rotation.
Seen: facebookresearch/xformers#841; mlfoundations/open_lm#4; vukrosic/leo-optimizer#2
Evidence: permuted tokens give permuted outputs

rotary-mixed, chapter 13
lays out the angles for neighbours and rotates halves, or the reverse: the two numbers of a pair
are rotated by different angles
Fix: repeat the angles in the order of the pairs: torch.cat([angles, angles], dim=-1) for halves,
angles.repeat_interleave(2, dim=-1) for neighbours.
Seen: raiyanyahya/how-to-train-your-gpt#6; facebookresearch/vjepa2#15; Tongjilibo/bert4torch#1;
Dao-AILab/flash-attention#45

rotary-frequencies, chapter 13
rotates pair p by an angle other than position * base ** (-2 p / head_dim)
Fix: write base ** (-torch.arange(0, head_dim, 2) / head_dim) for the pairs.
Seen: bkitano/llama-from-scratch#8; stanford-cs336/assignment1-basics#22;
lucidrains/RETRO-pytorch#12

rotary-before-split, chapter 13
rotates queries and keys before they are split into heads: one head gets the fast angles, another
the slow ones
Fix: split into heads first, then rotate each head separately.
Seen: Lightricks/LTX-Video#224

rotary-values, chapter 13
rotates the values, too
Fix: rotate queries and keys only: values must not depend on the position of their token.
Seen: JunnYu/RoFormer_pytorch#34

rotary-convention, chapter 13
rotates in another way than its weights were made for (neighbours, halves, backwards)
Fix: rotate like the model that the weights come from, or permute the rows of its query and key
weights.
Seen: EleutherAI/gpt-neox#834; Dao-AILab/flash-attention#288; karpathy/llama2.c#286;
jzhang38/TinyLlama#24; ggml-org/llama.cpp#2376

cache-position, chapter 13
counts the positions of new tokens from 0 again, though a cache holds those before them
Fix: count from the end of the cache: torch.arange(start, start + n).
Seen: ml-explore/mlx-lm#93; skyzh/tiny-llm#46; lucidrains/x-transformers#219; RobertCsordas/moeut#6
""")
TURN = Step("rotation")


@TURN.correct
def unrotated(t: Tensor, angles: Tensor) -> Tensor:
    return t


@TURN.variant("rotary-halves", _on(lambda turn: turn.layout == "halves" and not turn.still))
def rotate_halves(t: Tensor, angles: Tensor) -> Tensor:
    first, second = t.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


@TURN.variant("rotary-pairs", _on(lambda turn: turn.layout == "pairs" and not turn.still))
def rotate_pairs(t: Tensor, angles: Tensor) -> Tensor:
    first, second = t[..., 0::2], t[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


@TURN.wrong("rotary-no-effect", lambda p: p.declares_rotation)
@TURN.wrong("rotary-no-effect", _on(lambda turn: turn.still))
def rotate_all_alike(t: Tensor, angles: Tensor) -> Tensor:
    return rotate_halves(t, angles[:1])


@TURN.wrong("rotary-mixed", _on(lambda turn: turn.mixed))
def rotate_halves_by_angles_of_pairs(t: Tensor, angles: Tensor) -> Tensor:
    first, second = t.chunk(2, dim=-1)
    wide = angles.repeat_interleave(2, dim=-1)
    return t * wide.cos() + torch.cat([-second, first], dim=-1) * wide.sin()


@TURN.wrong("rotary-frequencies", lambda p: p.turn is not None and p.misspaced)
def rotate_by_other_angles(t: Tensor, angles: Tensor) -> Tensor:
    return rotate_halves(t, angles**2)


@TURN.wrong("rotary-before-split", _on(lambda turn: turn.flat))
def rotate_all_heads_together(t: Tensor, angles: Tensor) -> Tensor:
    b, h, n, d = t.shape
    flat = rotate_halves(t.transpose(1, 2).flatten(2), angles)
    return flat.view(b, n, h, d).transpose(1, 2)


@TURN.wrong("rotary-values", _on(lambda turn: turn.values))
def rotate_values_too(t: Tensor, angles: Tensor) -> Tensor:
    return rotate_halves(t, angles)


variant("""
qk-norm, chapter 13
normalizes queries and keys, each head separately
In: Qwen3, Gemma 3, ViT-22B

qk-norm-layer, chapter 13
subtracts the mean of queries and keys, too: their norm is LayerNorm
In: ViT-22B, StableLM, Phi
""")

variant("""
relative-bias, chapter 05
adds a learned number to each score: one for every distance, or offset, and head
In: T5, Swin

latent-attention, chapter 13
makes keys and values from one narrow vector of each token, which is all that a cache holds
In: DeepSeek-V2, DeepSeek-V3, MiniCPM3

latent-queries, chapter 13
makes queries from a narrow vector of each token
In: DeepSeek-V2
""")
