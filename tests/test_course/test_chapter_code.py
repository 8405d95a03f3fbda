"""What a chapter builds equals what `utils` holds: same weights in, same numbers out."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from notebook_rules import Chapter, source, utils_uses
from sentencepiece import SentencePieceProcessor
from torch import Tensor, nn

from tools.course.registry import course
from utils.boxes import Found, Targets

CHAPTERS = course().notebooks()
Inputs = Callable[[], tuple[Any, ...]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def table_model(ids: Tensor) -> Tensor:
    """Give logits that depend on the last token alone."""
    return normal(10, 11)[ids]


@dataclass(frozen=True)
class Pair:
    """A name that a chapter builds and `utils` holds, and inputs on which both must agree.

    A class is built with `arguments`, here and there alike, and called with `inputs`. One that the
    chapter keeps shorter takes other sizes there: `shorter`, in order.
    """

    chapter: int
    module: str
    name: str
    inputs: Inputs
    arguments: dict[str, Any] = field(default_factory=dict)
    shorter: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.chapter:02}-{self.name}"


WIDTHS = {"embed_dim": 30, "num_heads": 5}
BLOCK = {**WIDTHS, "mlp_dim": 44}
VIT = {
    **{"image_size": 12, "patch_size": 4, "in_channels": 3, "num_classes": 7},
    **{**BLOCK, "num_layers": 3},
}
PATCHES = {"image_size": 12, "patch_size": 4, "in_channels": 3, "embed_dim": 30}

TRANSFORMER = {
    **{**BLOCK, "source_size": 23, "target_size": 23, "max_length": 9},
    **{"num_encoder_layers": 3, "num_decoder_layers": 3},
}


def decoded() -> tuple[Tensor, ...]:
    """A stream of 6 tokens, a context of 7, and a mask for each attention."""
    past = torch.ones(6, 6, dtype=torch.bool).tril()
    real = torch.arange(7) < torch.tensor([7, 4])[:, None, None, None]
    return normal(2, 6, 30), normal(2, 7, 30), past, real


def translated() -> tuple[Tensor, ...]:
    """Ids of sources and targets, and which of them are real."""
    sources, targets = torch.arange(14).view(2, 7), torch.arange(12).view(2, 6) + 5
    lengths = torch.tensor([7, 4])[:, None, None, None]
    return sources, targets, torch.arange(7) < lengths, torch.arange(6) < lengths - 1


def weighed(seed: int) -> list[Tensor]:
    """Something like the maps of three layers with four heads."""
    return [normal(2, 4, 5, 5).roll(seed + layer, 1).softmax(dim=-1) for layer in range(3)]


GROUPED = {"embed_dim": 30, "num_heads": 6, "num_kv_heads": 3, "head_dim": 8}


def turned_tokens() -> tuple[Any, ...]:
    """Tokens, a causal mask and positions that do not begin at 0."""
    return normal(2, 7, 30), torch.ones(7, 7, dtype=torch.bool).tril(), torch.arange(3, 10)


DETECTOR = {
    **{"image_size": 32, "in_channels": 1, "num_classes": 7, "num_queries": 5},
    **{**BLOCK, "num_encoder_layers": 3, "num_decoder_layers": 3},
}


def two_boxes() -> tuple[Tensor, Tensor]:
    """Boxes of five answers and of three objects, each with an axis of its own."""
    return normal(5, 1, 4).sigmoid(), normal(3, 4).sigmoid()


def said() -> tuple[Tensor, Tensor]:
    """Scores of 7 classes and boxes of 5 queries, for two pictures."""
    return normal(2, 5, 8), normal(2, 5, 4).sigmoid()


def stands() -> list[Targets]:
    """What stands in the two pictures: three objects, and one."""
    return [
        Targets(torch.tensor([6, 0, 2]), normal(3, 4).sigmoid()),
        Targets(torch.tensor([3]), normal(1, 4).sigmoid()),
    ]


# Sizes are all different, so that swapped axes cannot agree by accident. Every name here must be
# defined by its chapter; when a chapter defines another name of utils, a test below says so.
PAIRS = [
    Pair(1, "embedding", "patchify", lambda: (normal(2, 3, 12, 12), 4)),
    Pair(1, "embedding", "unpatchify", lambda: (normal(2, 9, 48), 4, 12)),
    Pair(1, "embedding", "PatchEmbedding", lambda: (normal(2, 3, 12, 12),), PATCHES),
    Pair(
        3,
        "attention",
        "scaled_dot_product_attention",
        lambda: (normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6)),
    ),
    Pair(4, "attention", "MultiHeadAttention", lambda: (normal(2, 7, 30),), WIDTHS),
    Pair(5, "masking", "causal_mask", lambda: (7,)),
    Pair(5, "masking", "padding_mask", lambda: (torch.tensor([3, 0, 7]), 7)),
    Pair(
        5,
        "attention",
        "scaled_dot_product_attention",
        lambda: (*(normal(2, 3, 5, 4) for _ in range(3)), normal(2, 1, 5, 5) > 1),
    ),
    Pair(
        6,
        "encoder",
        "FeedForward",
        lambda: (normal(2, 7, 30),),
        {"embed_dim": 30, "mlp_dim": 44},
    ),
    Pair(7, "encoder", "EncoderBlock", lambda: (normal(2, 7, 30),), BLOCK),
    Pair(7, "encoder", "Encoder", lambda: (normal(2, 7, 30),), {**BLOCK, "num_layers": 3}),
    Pair(7, "vision_transformer", "VisionTransformer", lambda: (normal(2, 3, 12, 12),), VIT),
    Pair(9, "text", "train_bpe", lambda: (["low lower lowest"], 275)),
    Pair(9, "text", "pad", lambda: ([[5, 6, 7], [8], [4, 9]],)),
    Pair(9, "positions", "sinusoidal_positions", lambda: (11, 7)),
    *(
        Pair(
            9,
            "embedding",
            "TokenEmbedding",
            lambda: (torch.tensor([[3, 12, 0, 7], [5, 1, 1, 9]]), 2),
            {"vocab_size": 13, "embed_dim": 10, "max_length": 6, "positions": kind},
        )
        for kind in ("learned", "sinusoidal", None)
    ),
    Pair(10, "decoder", "DecoderBlock", decoded, BLOCK),
    Pair(10, "decoder", "Decoder", decoded, {**BLOCK, "num_layers": 3}),
    Pair(10, "decoder", "Transformer", translated, TRANSFORMER, (23, 3, 30, 5, 44)),
    Pair(
        11,
        "generation",
        "beam_search",
        lambda: (lambda ids: normal(5, 7).log_softmax(dim=-1)[ids[:, -1] % 5], 4, 2, 3, 6, 0.5),
    ),
    Pair(
        12,
        "language_model",
        "LanguageModel",
        lambda: (torch.arange(14).reshape(2, 7),),
        {**BLOCK, "num_layers": 3, "vocab_size": 17, "max_length": 9},
    ),
    Pair(12, "generation", "next_probabilities", lambda: (normal(3, 5, 9), 0.7, 4, 0.8)),
    Pair(13, "modern_decoder", "RMSNorm", lambda: (normal(2, 7, 30),), {"width": 30}),
    Pair(
        13,
        "modern_decoder",
        "GatedFeedForward",
        lambda: (normal(2, 7, 30),),
        {"embed_dim": 30, "mlp_dim": 44},
    ),
    Pair(13, "modern_decoder", "apply_rotary", lambda: (normal(2, 3, 7, 8), torch.arange(7), 50.0)),
    Pair(13, "modern_decoder", "GroupedQueryAttention", turned_tokens, GROUPED),
    Pair(
        13,
        "modern_decoder",
        "GroupedQueryAttention",
        turned_tokens,
        {**GROUPED, "bias": True, "qk_norm": True},
    ),
    Pair(13, "modern_decoder", "ModernBlock", turned_tokens, {**GROUPED, "mlp_dim": 44}),
    Pair(
        13,
        "modern_decoder",
        "ModernDecoder",
        lambda: (torch.arange(14).view(2, 7),),
        {**GROUPED, "mlp_dim": 44, "vocab_size": 17, "num_layers": 3, "qk_norm": True},
    ),
    Pair(14, "seeing", "relevance", lambda: (weighed(0), weighed(3))),
    Pair(14, "seeing", "class_token_attention", lambda: (normal(2, 5, 5).softmax(dim=-1),)),
    Pair(
        15,
        "language_model",
        "TextEncoder",
        lambda: (torch.arange(14).view(2, 7),),
        {
            **{**BLOCK, "num_layers": 2, "vocab_size": 23, "max_length": 9},
            **{"num_types": 3, "norm_eps": 1e-12},
        },
    ),
    Pair(17, "boxes", "box_cxcywh_to_xyxy", lambda: (normal(2, 3, 4),)),
    Pair(17, "boxes", "box_iou", two_boxes),
    Pair(17, "boxes", "generalized_box_iou", two_boxes),
    Pair(
        17,
        "boxes",
        "average_precision",
        lambda: ([Found(t.labels, t.boxes * 1.1, t.boxes[:, 0]) for t in stands()], stands()),
    ),
    Pair(17, "detection", "grid_positions", lambda: (3, 5, 12)),
    Pair(
        17,
        "detection",
        "DetectionTransformer",
        lambda: (normal(2, 1, 32, 32),),
        DETECTOR,
        (7, 5, 30, 5, 44, 3),
    ),
    Pair(
        17,
        "detection",
        "match_costs",
        lambda: (said()[0][0], said()[1][0], stands()[0]),
    ),
    Pair(17, "detection", "hungarian_match", lambda: (*said(), stands())),
    Pair(17, "detection", "set_loss", lambda: (*said(), stands())),
    Pair(
        17,
        "detection",
        "detection_loss",
        lambda: (torch.stack([said()[0]] * 3), torch.stack([said()[1]] * 3), stands()),
    ),
    Pair(17, "detection", "detections", said),
    Pair(18, "generation", "guided_logits", lambda: (normal(3, 9), normal(9, 3).T, 2.5)),
    Pair(
        19,
        "experts",
        "MixtureOfExperts",
        lambda: (normal(2, 9, 12),),
        {"embed_dim": 12, "mlp_dim": 10, "num_experts": 7, "experts_per_token": 3},
        (12, 10, 7, 3),
    ),
    Pair(
        19,
        "experts",
        "load_balancing_loss",
        lambda: (normal(9, 7).softmax(dim=-1), normal(9, 7).topk(3).indices),
    ),
    Pair(
        19,
        "latent_attention",
        "LatentAttention",
        lambda: (normal(2, 9, 12), torch.ones(9, 9, dtype=torch.bool).tril(), torch.arange(9)),
        {
            **{"embed_dim": 12, "num_heads": 3, "head_dim": 4, "rotary_dim": 8},
            **{"value_dim": 6, "latent_dim": 7, "query_latent_dim": 9},
        },
    ),
    Pair(
        19,
        "linear_attention",
        "gated_delta_rule",
        lambda: (
            normal(2, 3, 6, 4),
            nn.functional.normalize(normal(2, 3, 6, 4) + 1, dim=-1),
            normal(2, 3, 6, 5),
            *normal(2, 2, 3, 6).sigmoid(),
        ),
    ),
    Pair(
        20,
        "preferences",
        "sequence_log_probs",
        lambda: (table_model, torch.arange(10).view(2, 5), torch.arange(10).view(2, 5) % 5 > 2),
    ),
    Pair(20, "preferences", "reward_loss", lambda: (normal(7), normal(7) * 2)),
    Pair(20, "preferences", "dpo_loss", lambda: (*normal(4, 7), 0.3)),
    Pair(20, "preferences", "group_advantages", lambda: (normal(3, 5),)),
    Pair(20, "preferences", "grpo_loss", lambda: tuple(normal(4, 3, 5))),
]
# Training and pictures are tools; a chapter may write its own loop.
FILES = [name for group in course().utils for name in group if name not in ("training", "draw")]


@cache
def definitions(path: Path) -> dict[str, Any]:
    """Run the imports and the definitions of a chapter, nothing else, and return its names."""
    nodes = [node for tree in Chapter.read(path).trees for node in tree.body]
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    built = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    # Imports first: one that stands below a definition of the same name must not replace it.
    module = ast.fix_missing_locations(ast.Module([*imports, *built], []))
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(module, path.name, "exec"), names)
    return names


def own(path: Path) -> set[str]:
    return {
        node.name
        for tree in Chapter.read(path).trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def chapter_file(number: int) -> Path:
    found = [path for path in CHAPTERS if path.name.startswith(f"{number:02}_")]
    assert found, f"chapter {number:02} is not there"
    return found[0]


def assert_equal_results(ours: object, theirs: object) -> None:
    if isinstance(ours, tuple | list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal_results(one, other)
        return
    if isinstance(theirs, SentencePieceProcessor):
        assert ours.serialized_model_proto() == theirs.serialized_model_proto()
        return
    if isinstance(ours, int | float):
        assert ours == pytest.approx(theirs, abs=1e-5)
        return
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_chapter_equals_utils(pair: Pair) -> None:
    path = chapter_file(pair.chapter)
    assert pair.name in own(path), f"{path.name} does not define {pair.name}"
    ours = definitions(path)[pair.name]
    theirs = getattr(importlib.import_module(f"utils.{pair.module}"), pair.name)
    if isinstance(theirs, type):
        torch.manual_seed(0)
        given = {} if pair.shorter else pair.arguments
        ours, theirs = ours(*pair.shorter, **given).eval(), theirs(**pair.arguments).eval()
        assert isinstance(ours, nn.Module)
        # Spread out: zero biases and nearly equal positions would hide that one is left out.
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert_equal_results(ours(*pair.inputs()), theirs(*pair.inputs()))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_name_of_utils_is_built_without_being_compared(path: Path) -> None:
    number = int(path.name[:2])
    public = {
        name
        for file in FILES
        for name, value in vars(importlib.import_module(f"utils.{file}")).items()
        if getattr(value, "__module__", "") == f"utils.{file}" and not name.startswith("_")
    }
    compared = {pair.name for pair in PAIRS if pair.chapter == number}
    again = (own(path) & public) - compared
    assert not again, f"{path.name} builds {sorted(again)}; add it to PAIRS"


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_chapter_shows_the_proof(pair: Pair) -> None:
    """A cell compares what the name of utils gave, by value, and shows the result."""
    path = chapter_file(pair.chapter)
    chapter = Chapter.read(path)
    modules: dict[str, str] = {}
    gave: set[str] = set()
    for cell, tree in zip(chapter.code, chapter.trees, strict=True):
        taken = (pair.module, pair.name) in set(utils_uses(tree, modules))
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        taken |= any(name.id in gave for name in names if isinstance(name.ctx, ast.Load))
        if taken:
            gave |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
            gave |= {alias.asname for alias in ast.walk(tree) if isinstance(alias, ast.alias)}
        compares = re.search(r"\b(allclose|assert_close|torch\.equal)\(", source(cell))
        if taken and compares and cell["outputs"]:
            return
    pytest.fail(f"{path.name} shows no comparison with utils.{pair.module}.{pair.name}")


def test_tests_of_chapters_see_through_a_norm() -> None:
    """A layer that first takes the mean from each token is blind to a token that grew by 1."""

    def looks_everywhere(x: Tensor) -> Tensor:
        normed = nn.functional.layer_norm(x, x.shape[-1:])
        return x + normed.mean(dim=1, keepdim=True)

    clinic = definitions(chapter_file(8))
    assert not clinic["past_is_blind"](looks_everywhere)
    assert not clinic["padding_is_silent"](looks_everywhere)
    moves = definitions(chapter_file(6))["tokens_that_change"]
    assert moves(looks_everywhere, normal(2, 7, 30), 3).all()
