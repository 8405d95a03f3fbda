"""Checks of the exercises of chapter 14: parts of scores, rollouts, ablated heads."""

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
from checks.engine.modules import randomize
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, record_attention
from utils.seeing import attention_rollout, class_token_attention
from utils.vision_transformer import VisionTransformer


@exercise("14.1", "Weights, queries, patches")
def weights_queries_patches(weights_shape, queries_shape, patches_shape) -> Message:
    written(weights_shape, queries_shape, patches_shape)
    model = VisionTransformer(
        image_size=32, patch_size=4, in_channels=1, num_classes=10, embed_dim=48, num_heads=6,
        mlp_dim=20, num_layers=2,
    )  # fmt: skip
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.zeros(5, 1, 32, 32))
    same_shape(weights_shape, maps[0].shape, "b h i j")
    same_shape(queries_shape, maps.queries[0].shape, "b h i d")
    same_shape(patches_shape, class_token_attention(attention_rollout(maps)).shape, "b n")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------ parts of a score


def score_parts(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    root = math.sqrt(q.shape[-1])
    return q[..., i, :] * k[..., j, :] / root


def some_tokens(case: Case) -> tuple[Tensor, Tensor, int, int]:
    q, k = case.randn("b h i d"), case.randn("b h j d")
    # two different positions that both sides have
    most = min(case["i"], case["j"])
    return q, k, most - 1, (most - 1) // 2


PRODUCT = "q[..., i, :] * k[..., j, :]"
PARTS_MISTAKES = patches(
    score_parts,
    {
        "parts-not-divided": (" / root", ""),
        "parts-divided-by-d": ("math.sqrt(q.shape[-1])", "q.shape[-1]"),
        "parts-divided-by-whole-width": ("q.shape[-1]", "q.shape[-1] * q.shape[1]"),
        "parts-divided-by-tokens": [("shape[-1]", "shape[-2]"), ("q.shape[-1]", "k.shape[-2]")],
        "parts-summed": (PRODUCT, f"({PRODUCT}).sum(dim=-1)"),
        "parts-summed-with-axis": (PRODUCT, f"({PRODUCT}).sum(dim=-1, keepdim=True)"),
        "parts-sides-exchanged": (PRODUCT, "q[..., j, :] * k[..., i, :]"),
        "parts-of-query-with-query": ("* k", "* q"),
        "parts-of-key-with-key": ("return q", "return k"),
        "parts-key-of-i": ("k[..., j, :]", "k[..., i, :]"),
        "parts-query-of-j": ("q[..., i, :]", "q[..., j, :]"),
        "parts-softmax": (f"{PRODUCT} / root", f"({PRODUCT} / root).softmax(dim=-1)"),
        "parts-added": (PRODUCT, "(q[..., i, :] + k[..., j, :])"),
        "parts-multiplied-by-root": ("/ root", "* root"),
        "parts-mean-of-heads": (PRODUCT, f"({PRODUCT}).mean(dim=1)"),
    },
)


@exercise("14.2", "What a score is made of")
def what_a_score_is_made_of(answer) -> Message:
    return same_function(answer, score_parts, some_tokens, mistakes=PARTS_MISTAKES)


# ------------------------------------------------------------------------------- entropy of a head


def entropy(weights: Tensor) -> Tensor:
    bits = -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(2)
    return bits.mean(dim=(0, 2))


def causal_weights(case: Case) -> tuple[Tensor]:
    """Causal weights: they certainly contain zeros."""
    scores = case.randn("b h n n") * 2
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(dim=-1),)


XLOGY, LOGS = "torch.special.xlogy(weights, weights)", "weights.log() * weights"
MEAN = "weights = weights.mean(dim={}, keepdim=True)"
ENTROPY_MISTAKES = patches(
    entropy,
    {
        "spread-zeros-not-safe": (XLOGY, f"({LOGS})"),
        "spread-rows-lost": (f"{XLOGY}.sum(dim=-1)", f"({LOGS}).sum(dim=-1).nan_to_num()"),
        "given-in-nats": (" / math.log(2)", ""),
        "sign-missing": ("-torch", "torch"),
        "spread-of-the-mean-map": ("    bits", f"    {MEAN.format(0)}\n    bits"),
        "spread-of-the-mean-row": ("    bits", f"    {MEAN.format(2)}\n    bits"),
        "spread-one-number": ("dim=(0, 2)", ""),
        "heads-averaged-texts-left": ("(0, 2)", "(1, 2)"),
        "spread-heads-and-texts-averaged": ("(0, 2)", "(0, 1)"),
        "spread-summed-over-rows": ("mean(dim=(0, 2))", "sum(dim=2).mean(dim=0)"),
        "spread-summed": ("mean(", "sum("),
        "importance-summed-over-texts": ("mean(dim=(0, 2))", "mean(dim=2).sum(dim=0)"),
        "each-text-has-a-number": ("(0, 2)", "2"),
        "spread-mean-over-keys": ("sum(", "mean("),
        "spread-as-a-count": ("return ", "return 2 ** "),
    },
)


@exercise("14.3", "The entropy of a head")
def the_entropy_of_a_head(answer) -> Message:
    return same_function(
        answer, entropy, causal_weights, mistakes=ENTROPY_MISTAKES, gradients=False
    )


# -------------------------------------------------------------------------- rollout by the maximum


def max_rollout(maps: list[Tensor]) -> Tensor:
    own = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    path = own
    for weights in maps:
        step = weights.amax(dim=1) + own
        step = step / step.sum(dim=-1, keepdim=True)
        path = step @ path
    return path


DIVIDED, AT_END = (f"{x} / {x}.sum(dim=-1, keepdim=True)" for x in ("step", "path"))
ROLLOUT_MISTAKES = patches(
    max_rollout,
    {
        "rollout-of-the-mean": ("amax(", "mean("),
        "rollout-of-the-least": ("amax(", "amin("),
        "rollout-without-residual": (" + own", ""),
        "rollout-rows-not-divided": (DIVIDED, "step"),
        "rollout-halved-only": (DIVIDED, "step / 2"),
        "rollout-divided-at-the-end": (DIVIDED, "step", "return path", f"return {AT_END}"),
        "rollout-divided-first": [
            (" + own", "", DIVIDED, f"({DIVIDED} + own) / 2"),
            (" + own", "", DIVIDED, f"{DIVIDED} + own"),
        ],
        "rollout-columns-divided": ("sum(dim=-1,", "sum(dim=-2,"),
        "rollout-keepdim-missing": ("sum(dim=-1, keepdim=True)", "sum(dim=-1)[:, None, :]"),
        "rollout-backwards": ("step @ path", "path @ step"),
        "rollout-first-layer-bare": ("= own", "= maps[0].amax(dim=1)", "in maps", "in maps[1:]"),
        "rollout-last-layer-only": ("in maps", "in maps[-1:]"),
        "rollout-first-layer-only": ("in maps", "in maps[:1]"),
        "rollout-layers-averaged": ("path = own", "path = 0", "step @", "step / len(maps) +"),
        "rollout-number-by-number": ("path = own", "path = 1", "step @ path", "step * path"),
        "rollout-turned": ("return path", "return path.mT"),
        "rollout-of-texts": ("amax(dim=1)", "amax(dim=0)"),
    },
)


def some_maps(case: Case) -> tuple[list[Tensor]]:
    return ([(case.randn("b h n n") * 2).softmax(dim=-1) for _ in range(3)],)


@exercise("14.4", "Rollout by the strongest head")
def rollout_by_the_strongest_head(answer) -> Message:
    return same_function(answer, max_rollout, some_maps, mistakes=ROLLOUT_MISTAKES)


# ----------------------------------------------------------------------------- the ablated head


def attend_without(layer: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    """What the layer returns when one head contributes nothing."""
    q, k, v = (
        part(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for part in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
    mixed = (weights @ v).transpose(1, 2)  # (b, n, h, d)
    mixed[:, :, head] = 0
    return layer.out_proj(mixed.flatten(2))


GONE, RESULT, H = "mixed[:, :, head] = 0", "layer.out_proj(mixed.flatten(2))", "layer.num_heads"
PROJECTED = f"mixed = {RESULT}.unflatten(-1, ({H}, -1))\n    {GONE}\n    return mixed.flatten(2)"
BIAS = f"= layer.out_proj.bias.view({H}, -1)[head]"
BLOCK = f"    x = x.unflatten(-1, ({H}, -1)).clone()\n    x[:, :, head] = 0\n    x = x.flatten(2)"
EVENLY = "    weights[:, head] = 1 / x.shape[1]\n    mixed ="
HEAD_MISTAKES = patches(
    attend_without,
    {
        "head-after-the-projection": (GONE, "", f"return {RESULT}", PROJECTED),
        "head-rows-of-projection": (GONE, "", f"return {RESULT}", PROJECTED.replace("= 0", BIAS)),
        "head-block-of-the-input": (GONE, "", "    q, k, v", f"{BLOCK}\n    q, k, v"),
        "head-bias-of-values": ("= 0", BIAS.replace("out", "v")),
        "head-interleaved": (GONE, f"mixed = mixed.flatten(2)\n    mixed[..., head::{H}] = 0"),
        "head-and-bias-gone": (RESULT, f"{RESULT} - layer.out_proj.bias"),
        "head-averaged": ("= 0", "= mixed[:, :, head].mean(dim=1, keepdim=True)"),
        "head-looks-evenly": (GONE, "", "    mixed =", EVENLY),
        "head-alone-is-left": (":, head]", ":, torch.arange(layer.num_heads) != head]"),
        "head-others-scaled-up": ("mixed.flatten(2)", f"mixed.flatten(2) * {H} / ({H} - 1)"),
        "head-next-one-gone": (":, head]", ":, (head + 1) % layer.num_heads]"),
        "head-counted-from-the-end": (":, head]", ":, -1 - head]"),
        "head-nothing-gone": (GONE, ""),
        "head-not-projected": (RESULT, "mixed.flatten(2)"),
    },
)


def some_layer(case: Case) -> tuple[MultiHeadAttention, Tensor, int]:
    layer = randomize(MultiHeadAttention(case["h"] * case["d"], case["h"]), seed=case["n"])
    head = int(torch.randint(case["h"], (), generator=case.generator))
    return layer.to(case.dtype).eval(), case.randn("b n (h d)"), head


def and_then_whole(version: Callable) -> Callable:
    """The result of a version, then that of the layer with all of its heads."""

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
    wrong = {cause: and_then_whole(version) for cause, (version,) in HEAD_MISTAKES.items()}
    return same_function(
        and_then_whole(answer),
        and_then_whole(attend_without),
        some_layer,
        mistakes={**wrong, "head-stays-gone": stays_gone},
        forbidden={"ablate_heads": "write-the-hook"},
        gradients=False,
        trials=Trials(number=5),
    )


@exercise("14.5", "Find the bug")
def find_the_bug(answer) -> Message:
    written(answer)
    _same_without(answer)
    return message("head-is-gone-and-back")


# ------------------------------------------------------------------------------ importance of heads


def importance(maps: list[Tensor], gradients: list[Tensor]) -> Tensor:
    parts = torch.stack(maps) * torch.stack(gradients)  # (l, b, h, i, j)
    gains = parts.sum(dim=(3, 4))
    return gains.abs().mean(dim=1)


IMPORTANCE_MISTAKES = patches(
    importance,
    {
        "importance-absolute-too-early": ("gains.abs()", "gains", "parts.sum", "parts.abs().sum"),
        "importance-absolute-too-late": [
            ("abs().mean(dim=1)", "mean(dim=1).abs()"),
            ("abs().mean(dim=1)", "sum(dim=1).abs()"),
        ],
        "importance-squared": ("abs()", "square()"),
        "importance-keeps-its-sign": (".abs()", ""),
        "importance-of-what-helps": (".abs()", "", "parts.sum", "parts.clamp(min=0).sum"),
        "importance-clamped": ("abs()", "clamp(min=0)"),
        "importance-without-weights": ("torch.stack(maps) * ", ""),
        "importance-without-gradients": (" * torch.stack(gradients)", ""),
        "importance-summed-over-texts": ("mean(", "sum("),
        "importance-mean-of-weights": ("sum(", "mean("),
        "heads-averaged-texts-left": ("mean(dim=1)", "mean(dim=2)"),
        "importance-turned": ("mean(dim=1)", "mean(dim=1).mT"),
        "importance-of-layers": ("mean(dim=1)", "mean(dim=(1, 2))"),
        "importance-layers-averaged": ("mean(dim=1)", "mean(dim=(0, 1))"),
        "importance-of-rows": ("sum(dim=(3, 4))", "sum(dim=4).abs().sum(dim=3)"),
        "each-text-has-a-number": (".mean(dim=1)", ""),
    },
)


def maps_and_gradients(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    (maps,) = some_maps(case)
    return maps, [case.randn("b h n n") for _ in maps]


@exercise("14.6", "Which heads matter")
def which_heads_matter(answer) -> Message:
    return same_function(
        answer, importance, maps_and_gradients, mistakes=IMPORTANCE_MISTAKES, gradients=False
    )


open_exercise("14.7", "Another map, the same result")
