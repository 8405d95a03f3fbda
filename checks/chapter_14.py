"""Checks of the exercises of chapter 14: what scores are made of, rollouts, heads taken away."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from checks.engine.answer import written
from checks.engine.calls import naming
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomise
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, record_attention
from utils.seeing import attention_rollout, class_token_attention
from utils.vision_transformer import VisionTransformer


@exercise("14.1", "Weights, queries, shares")
def weights_queries_shares(weights_shape, queries_shape, shares_shape) -> Message:
    written(weights_shape, queries_shape, shares_shape)
    model = VisionTransformer(
        image_size=32, patch_size=4, in_channels=1, num_classes=10, embed_dim=48, num_heads=6,
        mlp_dim=20, num_layers=2,
    )  # fmt: skip
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.zeros(5, 1, 32, 32))
    same_shape(weights_shape, maps[0].shape, "b h i j")
    same_shape(queries_shape, maps.queries[0].shape, "b h i d")
    same_shape(shares_shape, class_token_attention(attention_rollout(maps)).shape, "b n")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------ parts of a score


def score_parts(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return (q[..., i, :] / math.sqrt(q.shape[-1])).mul(k[..., j, :])


def some_tokens(case: Case) -> tuple[Tensor, Tensor, int, int]:
    q, k = case.randn("b h i d"), case.randn("b h j d")
    # two places that both sides have, not the same
    most = min(case["i"], case["j"])
    return q, k, most - 1, (most - 1) // 2


PARTS_MISTAKES: dict[str, Callable] = {
    "parts-not-divided": lambda q, k, i, j: q[:, :, i] * k[:, :, j],
    "parts-divided-by-d": lambda q, k, i, j: q[:, :, i] * k[:, :, j] / q.shape[-1],
    "parts-divided-by-whole-width": lambda q, k, i, j: (
        q[:, :, i] * k[:, :, j] / math.sqrt(q.shape[-1] * q.shape[1])
    ),
    "parts-divided-by-tokens": lambda q, k, i, j: q[:, :, i] * k[:, :, j] / math.sqrt(q.shape[-2]),
    "parts-summed": lambda q, k, i, j: score_parts(q, k, i, j).sum(dim=-1),
    "parts-summed-with-axis": lambda q, k, i, j: score_parts(q, k, i, j).sum(dim=-1, keepdim=True),
    "parts-sides-exchanged": lambda q, k, i, j: score_parts(q, k, j, i),
    "parts-of-query-with-query": lambda q, k, i, j: score_parts(q, q, i, j),
    "parts-of-key-with-key": lambda q, k, i, j: score_parts(k, k, i, j),
    "parts-softmax": lambda q, k, i, j: score_parts(q, k, i, j).softmax(dim=-1),
    "parts-added": lambda q, k, i, j: (q[:, :, i] + k[:, :, j]) / math.sqrt(q.shape[-1]),
    "parts-multiplied-by-root": lambda q, k, i, j: q[:, :, i] * k[:, :, j] * q.shape[-1] ** 0.5,
    "parts-mean-of-heads": lambda q, k, i, j: score_parts(q, k, i, j).mean(dim=1),
}


@exercise("14.2", "What a score is made of")
def what_a_score_is_made_of(answer) -> Message:
    return same_function(answer, score_parts, some_tokens, mistakes=PARTS_MISTAKES)


# ------------------------------------------------------------------------------- spread of a head


def row_bits(weights: Tensor) -> Tensor:
    """The entropy of each row in bits: (b, h, i)."""
    return -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(2)


def spread(weights: Tensor) -> Tensor:
    return row_bits(weights).mean(dim=(0, 2))


def causal_weights(case: Case) -> tuple[Tensor]:
    """Weights in which every row hides what comes after it: zeros are certain to be there."""
    scores = case.randn("b h n n") * 2
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(dim=-1),)


def open_bits(weights: Tensor) -> Tensor:
    return -(weights * weights.log()).sum(dim=-1) / math.log(2)


SPREAD_MISTAKES: dict[str, Callable] = {
    "spread-zeros-not-safe": lambda w: open_bits(w).mean(dim=(0, 2)),
    "given-in-nats": lambda w: spread(w) * math.log(2),
    "sign-missing": lambda w: -spread(w),
    "spread-of-the-mean-map": lambda w: row_bits(w.mean(dim=0, keepdim=True)).mean(dim=(0, 2)),
    "spread-of-the-mean-row": lambda w: row_bits(w.mean(dim=2, keepdim=True)).mean(dim=(0, 2)),
    "spread-one-number": lambda w: row_bits(w).mean(),
    "heads-averaged-texts-left": lambda w: row_bits(w).mean(dim=(1, 2)),
    "spread-heads-and-texts-averaged": lambda w: row_bits(w).mean(dim=(0, 1)),
    "spread-summed-over-rows": lambda w: row_bits(w).sum(dim=2).mean(dim=0),
    "spread-summed": lambda w: row_bits(w).sum(dim=(0, 2)),
    "each-text-has-a-number": lambda w: row_bits(w).mean(dim=2),
    "spread-mean-over-keys": lambda w: spread(w) / w.shape[-1],
    "spread-as-a-count": lambda w: 2 ** spread(w),
}


@exercise("14.3", "How wide a head looks")
def how_wide_a_head_looks(answer) -> Message:
    return same_function(answer, spread, causal_weights, mistakes=SPREAD_MISTAKES, gradients=False)


# -------------------------------------------------------------------------- rollout by the maximum


def fused(weights: Tensor) -> Tensor:
    """The largest weight of all heads, and the token's own half; rows sum to 1."""
    most = weights.amax(dim=1)
    return _rows(most + torch.eye(most.shape[-1], dtype=most.dtype))


def _rows(steps: Tensor) -> Tensor:
    return steps / steps.sum(dim=-1, keepdim=True)


def walk(step: Callable[[Tensor], Tensor]) -> Callable:
    """A rollout that takes one such step for each layer."""

    def follow(maps: list[Tensor]) -> Tensor:
        path = step(maps[0])
        for weights in maps[1:]:
            path = torch.einsum("bij,bjk->bik", step(weights), path)
        return path

    return follow


def _eye(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=weights.dtype)


def backwards(maps: list[Tensor]) -> Tensor:
    return max_rollout(maps[::-1])


def normed_at_the_end(maps: list[Tensor]) -> Tensor:
    return _rows(walk(lambda w: w.amax(dim=1) + _eye(w))(maps))


def own_first(maps: list[Tensor]) -> Tensor:
    """The identity counts 1 beside rows that were divided before."""
    return walk(lambda w: (_rows(w.amax(dim=1)) + _eye(w)) / 2)(maps)


max_rollout = walk(fused)

ROLLOUT_MISTAKES: dict[str, Callable] = {
    "rollout-of-the-mean": walk(lambda w: _rows(w.mean(dim=1) + _eye(w))),
    "rollout-of-the-least": walk(lambda w: _rows(w.amin(dim=1) + _eye(w))),
    "rollout-without-residual": walk(lambda w: _rows(w.amax(dim=1))),
    "rollout-rows-not-divided": walk(lambda w: w.amax(dim=1) + _eye(w)),
    "rollout-halved-only": walk(lambda w: (w.amax(dim=1) + _eye(w)) / 2),
    "rollout-divided-at-the-end": normed_at_the_end,
    "rollout-divided-first": own_first,
    "rollout-columns-divided": walk(
        lambda w: (w.amax(dim=1) + _eye(w)) / (w.amax(dim=1) + _eye(w)).sum(dim=1, keepdim=True)
    ),
    "rollout-keepdim-missing": walk(
        lambda w: (w.amax(dim=1) + _eye(w)) / (w.amax(dim=1) + _eye(w)).sum(dim=-1)[:, None, :]
    ),
    "rollout-backwards": backwards,
    "rollout-last-layer-only": lambda maps: fused(maps[-1]),
    "rollout-first-layer-only": lambda maps: fused(maps[0]),
    "rollout-layers-averaged": lambda maps: torch.stack([fused(w) for w in maps]).mean(dim=0),
    "rollout-number-by-number": lambda maps: torch.stack([fused(w) for w in maps]).prod(dim=0),
    "rollout-turned": lambda maps: max_rollout(maps).mT,
    "rollout-of-texts": walk(lambda w: _rows(w.amax(dim=0) + _eye(w))),
}


def some_maps(case: Case) -> tuple[list[Tensor]]:
    return ([(case.randn("b h n n") * 2).softmax(dim=-1) for _ in range(3)],)


@exercise("14.4", "Rollout by the strongest head")
def rollout_by_the_strongest_head(answer) -> Message:
    return same_function(answer, max_rollout, some_maps, mistakes=ROLLOUT_MISTAKES)


# ---------------------------------------------------------------------------------- the taken head


def attend_without(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    """What the layer returns when one head brings nothing."""
    return _project(layer, _mixed(layer, x).index_fill(1, torch.tensor([head]), 0.0))


def _project(layer: MultiHeadAttention, mixed: Tensor) -> Tensor:
    return layer.out_proj(mixed.transpose(1, 2).flatten(2))


def _mixed(layer: MultiHeadAttention, x: Tensor, change: Callable | None = None) -> Tensor:
    """What all heads gather: (b, h, n, d)."""
    q, k, v = (
        part(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for part in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
    return (change(weights) if change else weights) @ v


def after_the_projection(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    result = layer(x).unflatten(-1, (layer.num_heads, -1)).clone()
    result[:, :, head] = 0
    return result.flatten(2)


def interleaved(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    joined = _mixed(layer, x).transpose(1, 2).flatten(2)
    joined[..., head :: layer.num_heads] = 0
    return layer.out_proj(joined)


def bias_gone(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    return attend_without(layer, x, head) - layer.out_proj.bias


def averaged(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    mixed = _mixed(layer, x).clone()
    mixed[:, head] = mixed[:, head].mean(dim=1, keepdim=True)
    return _project(layer, mixed)


def even_head(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    def change(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[:, head] = 1 / weights.shape[-1]
        return weights

    return _project(layer, _mixed(layer, x, change))


def alone(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    mixed = _mixed(layer, x)
    only = torch.zeros_like(mixed)
    only[:, head] = mixed[:, head]
    return _project(layer, only)


def scaled_up(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    h = layer.num_heads
    return (attend_without(layer, x, head) - layer.out_proj.bias) * h / (h - 1) + (
        layer.out_proj.bias
    )


HEAD_MISTAKES: dict[str, Callable] = {
    "head-after-the-projection": after_the_projection,
    "head-interleaved": interleaved,
    "head-and-bias-gone": bias_gone,
    "head-averaged": averaged,
    "head-looks-evenly": even_head,
    "head-alone-is-left": alone,
    "head-others-scaled-up": scaled_up,
    "head-next-one-gone": lambda layer, x, head: attend_without(
        layer, x, (head + 1) % layer.num_heads
    ),
    "head-counted-from-the-end": lambda layer, x, head: attend_without(
        layer, x, layer.num_heads - 1 - head
    ),
    "head-nothing-gone": lambda layer, x, head: layer(x),
    "head-not-projected": lambda layer, x, head: (
        _mixed(layer, x).index_fill(1, torch.tensor([head]), 0.0).transpose(1, 2).flatten(2)
    ),
}


def some_layer(case: Case) -> tuple[MultiHeadAttention, Tensor, int]:
    layer = randomise(MultiHeadAttention(case["h"] * case["d"], case["h"]), seed=case["n"])
    head = int(torch.randint(case["h"], (), generator=case.generator))
    return layer.to(case.dtype).eval(), case.randn("b n (h d)"), head


def and_then_whole(version: Callable) -> Callable:
    """A version's result, and after it what the layer gives with all of its heads."""

    def run_both(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
        layer = copy.deepcopy(layer)  # a hook that stays must not reach the right version
        with torch.no_grad():
            result = version(layer, x, head)
            whole = layer(x)
        if not isinstance(result, Tensor) or result.shape != whole.shape:
            return result
        return torch.stack([result, whole])

    return run_both


def stays_gone(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    return torch.stack(2 * [attend_without(layer, x, head)])


@naming
def _same_without(answer: Callable) -> Message:
    wrong = {cause: and_then_whole(version) for cause, version in HEAD_MISTAKES.items()}
    return same_function(
        and_then_whole(answer),
        and_then_whole(attend_without),
        some_layer,
        mistakes={**wrong, "head-stays-gone": stays_gone},
        gradients=False,
        trials=Trials(number=5),
    )


@exercise("14.5", "Find the bug")
def find_the_bug(answer) -> Message:
    written(answer)
    _same_without(answer)
    return message("head-is-gone-and-back")


# ------------------------------------------------------------------------------ importance of heads


def gains(maps: list[Tensor], gradients: list[Tensor]) -> Tensor:
    """Weight times gradient, all weights of a head added up: (l, b, h)."""
    return torch.stack(
        [torch.einsum("bhij,bhij->bh", w, g) for w, g in zip(maps, gradients, strict=True)]
    )


def importance(maps: list[Tensor], gradients: list[Tensor]) -> Tensor:
    return gains(maps, gradients).abs().mean(dim=1)


def _each(maps: list[Tensor], gradients: list[Tensor]) -> Tensor:
    return torch.stack([w * g for w, g in zip(maps, gradients, strict=True)])  # (l, b, h, i, j)


IMPORTANCE_MISTAKES: dict[str, Callable] = {
    "importance-absolute-too-early": lambda m, g: _each(m, g).abs().sum(dim=(3, 4)).mean(dim=1),
    "importance-absolute-too-late": lambda m, g: gains(m, g).mean(dim=1).abs(),
    "importance-keeps-its-sign": lambda m, g: gains(m, g).mean(dim=1),
    "importance-of-what-helps": lambda m, g: _each(m, g).clamp(min=0).sum(dim=(3, 4)).mean(dim=1),
    "importance-clamped": lambda m, g: gains(m, g).clamp(min=0).mean(dim=1),
    "importance-without-weights": lambda m, g: (
        torch.stack(list(g)).sum(dim=(3, 4)).abs().mean(dim=1)
    ),
    "importance-without-gradients": lambda m, g: torch.stack(list(m)).sum(dim=(3, 4)).mean(dim=1),
    "importance-summed-over-texts": lambda m, g: gains(m, g).abs().sum(dim=1),
    "importance-mean-of-weights": lambda m, g: _each(m, g).mean(dim=(3, 4)).abs().mean(dim=1),
    "heads-averaged-texts-left": lambda m, g: gains(m, g).abs().mean(dim=2),
    "importance-turned": lambda m, g: importance(m, g).mT,
    "importance-of-layers": lambda m, g: importance(m, g).mean(dim=1),
    "importance-layers-averaged": lambda m, g: importance(m, g).mean(dim=0),
    "importance-of-rows": lambda m, g: _each(m, g).sum(dim=4).abs().sum(dim=3).mean(dim=1),
    "each-text-has-a-number": lambda m, g: gains(m, g).abs(),
}


def maps_and_gradients(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    (maps,) = some_maps(case)
    return maps, [case.randn("b h n n") for _ in maps]


@exercise("14.6", "Which heads matter")
def which_heads_matter(answer) -> Message:
    return same_function(
        answer, importance, maps_and_gradients, mistakes=IMPORTANCE_MISTAKES, gradients=False
    )


open_exercise("14.7", "Another map, the same result")
