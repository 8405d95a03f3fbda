"""Whatever a function of chapters 09 to 19 is given, it is right or says in words what is wrong.

Each argument of each public function is replaced by integers, booleans, NaN and half precision.
"""

import copy
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import CLOSE, random, randomize
from utils import boxes, detection, generation, text
from utils.boxes import Found, Targets, average_precision
from utils.cache import KeyValueCache
from utils.decoder import Decoder, DecoderBlock, Transformer
from utils.detection import DetectionTransformer
from utils.experts import MixtureOfExperts, expert_load, load_balancing_loss, route
from utils.language_model import LanguageModel, TextEncoder
from utils.latent_attention import LatentAttention
from utils.linear_attention import gated_delta_rule, linear_attention
from utils.modern_decoder import (
    GatedFeedForward,
    GroupedQueryAttention,
    ModernBlock,
    ModernDecoder,
    RMSNorm,
)
from utils.rotary import apply_rotary

MODULES = ["boxes", "cache", "decoder", "detection", "generation", "text"]
MODULES += ["language_model", "modern_decoder", "rotary"]
MODULES += ["experts", "latent_attention", "linear_attention"]
V = 11
BLOCK = {"embed_dim": 8, "num_heads": 2, "mlp_dim": 12}
SHALLOW = {**BLOCK, "vocab_size": V, "num_layers": 1}
NORMS = {"dropout": 0.0, "norm_eps": 1e-5}
GROUPED = {
    **BLOCK,
    "num_kv_heads": 1,
    "rope_theta": 100.0,
    "norm_eps": 1e-6,
    "head_dim": 4,
    "qk_norm": True,
}
IDS = torch.tensor([[3, 4, 5, 6], [7, 2, 9, 10]])
MASK = torch.tensor([[[[True, True, False, True]]], [[[True, False, True, True]]]])
POSITIONS = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5]])
X = random(2, 4, 8)
LOGITS, BOXES = random(2, 3, 5, seed=1), random(2, 3, 4, seed=2).sigmoid()
LABELS, OBJECTS = torch.tensor([3, 2]), random(2, 4, seed=3).sigmoid()

# class -> the arguments that build it, and those of its forward
MODELS = {
    RMSNorm: ({"width": 8, "eps": 1e-6}, {"x": X}),
    GatedFeedForward: ({"embed_dim": 8, "mlp_dim": 12}, {"x": X}),
    GroupedQueryAttention: (
        {name: value for name, value in {**GROUPED, "window": 3}.items() if name != "mlp_dim"},
        {"x": X, "attn_mask": MASK, "positions": POSITIONS},
    ),
    ModernBlock: (GROUPED, {"x": X, "attn_mask": MASK, "positions": POSITIONS}),
    ModernDecoder: (
        {**GROUPED, "vocab_size": V, "num_layers": 1, "window": 3},
        {"ids": IDS, "attn_mask": MASK, "positions": POSITIONS},
    ),
    MixtureOfExperts: (
        {
            "embed_dim": 8,
            "mlp_dim": 12,
            "num_experts": 4,
            "experts_per_token": 2,
            "num_shared": 1,
            "scoring": "sigmoid",
            "scale": 1.5,
            "num_groups": 2,
            "groups_per_token": 1,
        },
        {"x": X},
    ),
    LatentAttention: (
        {
            "embed_dim": 8,
            "num_heads": 2,
            "head_dim": 3,
            "rotary_dim": 2,
            "value_dim": 5,
            "latent_dim": 6,
            "query_latent_dim": 7,
            "rope_theta": 100.0,
            "norm_eps": 1e-6,
        },
        {"x": X, "attn_mask": MASK, "positions": POSITIONS},
    ),
    LanguageModel: (
        {**SHALLOW, **NORMS, "max_length": 9},
        {"ids": IDS, "attn_mask": MASK, "positions": POSITIONS},
    ),
    TextEncoder: (
        {**SHALLOW, **NORMS, "max_length": 9, "num_types": 3},
        {"ids": IDS, "attn_mask": MASK, "types": IDS % 3},
    ),
    DecoderBlock: (
        {**BLOCK, **NORMS},
        {"x": X, "context": X + 1, "attn_mask": MASK, "context_mask": MASK},
    ),
    Decoder: (
        {**BLOCK, **NORMS, "num_layers": 1},
        {"x": X, "context": X + 1, "attn_mask": MASK, "context_mask": MASK},
    ),
    Transformer: (
        {
            **BLOCK,
            "source_size": V,
            "target_size": V,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "max_length": 9,
            "dropout": 0.0,
        },
        {"source": IDS, "target": IDS, "source_mask": MASK, "target_mask": MASK},
    ),
    DetectionTransformer: (
        {
            **BLOCK,
            "image_size": 8,
            "in_channels": 2,
            "num_classes": 4,
            "num_queries": 3,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout": 0.0,
        },
        {"images": random(2, 2, 8, 8)},
    ),
}


def build(kind: type, **changed: Any) -> nn.Module:
    return randomize(kind(**{**MODELS[kind][0], **changed})).eval()


def of_targets(function: Callable) -> Callable:
    """Let a function of two pictures take the parts of its targets one by one."""

    def call(logits, boxes, labels, objects, **options):
        targets = [Targets(labels, objects), Targets(labels[:1], objects[:1])]
        return function(logits, boxes, targets, **options)

    return call


def cached(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    held, layer = KeyValueCache(), nn.Identity()
    held.update(layer, X[:, None], X[:, None])
    return held.update(layer, k, v)


def cached_model(rows: Tensor, length: int) -> Tensor:
    held, model = KeyValueCache(), build(ModernDecoder)
    model(IDS, cache=held)
    held.reorder(rows)
    held.crop(length)
    return model(IDS[:, length:], cache=held)


def precision(labels: Tensor, boxes: Tensor, score: Tensor, **options: float) -> float:
    targets = [Targets(LABELS, OBJECTS)]
    return average_precision([Found(labels, boxes, score)], targets, **options)


PAIR = {"first": BOXES[0], "second": BOXES[1]}
SET = {"logits": LOGITS, "boxes": BOXES, "labels": LABELS, "objects": OBJECTS}
CHOICE = {"temperature": 0.7, "top_k": 3, "top_p": 0.9}


def model() -> nn.Module:
    return build(LanguageModel)


# name -> function, and arguments that it takes
FUNCTIONS: dict[str, tuple[Callable, dict[str, Any]]] = {
    "apply_rotary": (
        apply_rotary,
        {"x": X[:, None], "positions": POSITIONS, "rope_theta": 100.0},
    ),
    "route": (
        route,
        {
            "logits": X[0],
            "experts_per_token": 2,
            "scoring": "sigmoid",
            "scale": 1.5,
            "num_groups": 4,
            "groups_per_token": 2,
            "balance_bias": X[1, 0],
        },
    ),
    "expert_load": (expert_load, {"chosen": IDS, "num_experts": V}),
    "load_balancing_loss": (
        load_balancing_loss,
        {"probabilities": X[0].softmax(dim=-1)[:2], "chosen": IDS % 8},
    ),
    "linear_attention": (linear_attention, {name: X[:, None] + i for i, name in enumerate("qkv")}),
    "gated_delta_rule": (
        gated_delta_rule,
        {
            **{name: X[:, None] / 4 for name in "qkv"},
            "decay": X[:, None, :, 0].sigmoid(),
            "beta": X[:, None, :, 1].sigmoid(),
        },
    ),
    "KeyValueCache": (cached, {"k": X[:, None], "v": X[:, None] + 1}),
    "KeyValueCache.reorder": (cached_model, {"rows": torch.tensor([1, 0]), "length": 2}),
    "beam_search": (
        lambda **options: generation.beam_search(
            lambda ids: torch.linspace(-5, -1, V).expand(len(ids), V), **options
        ),
        {"start_id": 2, "end_id": 3, "width": 2, "max_length": 3, "length_penalty": 0.5},
    ),
    "next_probabilities": (generation.next_probabilities, {"logits": LOGITS, **CHOICE}),
    "guided_logits": (
        generation.guided_logits,
        {"logits": LOGITS[0], "null_logits": LOGITS[1], "guidance": 2.0},
    ),
    "generate": (
        lambda **options: generation.generate(model(), **options),
        {"ids": IDS, "steps": 3, "end_id": 1, "padding_id": 0, "seed": 0, **CHOICE},
    ),
    "speculative_generate": (
        lambda **options: generation.speculative_generate(model(), model(), **options),
        {"ids": IDS, "steps": 3, "ahead": 2, "seed": 0, **CHOICE},
    ),
    "grid_positions": (
        detection.grid_positions,
        {"gh": 2, "gw": 3, "embed_dim": 4, "base": 10.0},
    ),
    "match_costs": (
        lambda labels, objects, **said: detection.match_costs(
            **said, target=Targets(labels, objects)
        ),
        {**SET, "logits": LOGITS[0], "boxes": BOXES[0]},
    ),
    "hungarian_match": (of_targets(detection.hungarian_match), SET),
    "set_loss": (of_targets(detection.set_loss), {**SET}),
    "set_loss, no objects": (
        lambda logits, boxes: detection.set_loss(
            logits, boxes, 2 * [Targets(LABELS[:0], OBJECTS[:0])]
        ),
        {"logits": LOGITS, "boxes": BOXES},
    ),
    "detection_loss": (
        of_targets(detection.detection_loss),
        {**SET, "logits": LOGITS[None], "boxes": BOXES[None]},
    ),
    "detections": (detection.detections, {"logits": LOGITS, "boxes": BOXES}),
    "box_cxcywh_to_xyxy": (boxes.box_cxcywh_to_xyxy, {"boxes": BOXES}),
    "box_iou": (boxes.box_iou, PAIR),
    "generalized_box_iou": (boxes.generalized_box_iou, PAIR),
    "average_precision": (
        precision,
        {"labels": LABELS, "boxes": OBJECTS, "score": torch.tensor([0.5, 0.9]), "threshold": 0.5},
    ),
    "Vocabulary": (lambda ids: text.Vocabulary("abcdefg").decode(ids), {"ids": IDS[0]}),
    "pad": (
        lambda sequence, **options: text.pad([sequence, [8]], **options),
        {"sequence": IDS[0], "padding_id": 0, "length": 6},
    ),
    "padding_mask_of_ids": (text.padding_mask_of_ids, {"ids": IDS}),
    "train_bpe": (
        lambda vocab_size: text.train_bpe(["low lower lowest"], vocab_size).encode("low"),
        {"vocab_size": 275},
    ),
}
for kind, (sizes, inputs) in MODELS.items():
    FUNCTIONS[kind.__name__] = (functools.partial(build, kind), sizes)
    FUNCTIONS[f"{kind.__name__}.forward"] = (
        lambda kind=kind, **inputs: build(kind)(**inputs),
        inputs,
    )
ALL = [(name, argument) for name, (_, given) in FUNCTIONS.items() for argument in given]
UNTRIED = {
    "RopeScaling",
    "Routing",
    "record_routing",
    "Targets",
    "Found",
    "check_cache",
}  # what the others take, and no function

INTEGERS = (True, 1.5, float("nan"), "2", -1)
NUMBERS = (True, float("nan"), "0.5", float("inf"), -1.0)
OPTIONAL = {"seed": (), "padding_id": (True, 1.5, float("nan"), "2")}


def run(name: str, **changed: Any) -> Any:
    function, given = FUNCTIONS[name]
    torch.manual_seed(0)
    with torch.no_grad():
        return function(**{**given, **changed})


def numbers(result: Any) -> list[Tensor]:
    """Return every number of a result as a list of tensors."""
    if isinstance(result, nn.Module):
        return []
    if isinstance(result, Tensor):
        return [result.double()]
    if isinstance(result, int | float):
        return [torch.tensor(float(result))]
    if isinstance(result, str):
        return [torch.tensor([float(ord(letter)) for letter in result])]
    return [number for part in result for number in numbers(part)]


def refused(name: str, **changed: Any) -> str | None:
    """Return the words in which a call is refused, or None if it is not."""
    try:
        run(name, **changed)
    except ValueError as error:
        where, rest = str(error).split(": ", 1)
        assert where.isidentifier() and ", got " in rest and rest.endswith("."), error
        return str(error)
    except RuntimeError as error:  # PyTorch's own words for two types that do not go together
        assert "dtype" in str(error) or "same type" in str(error), error
        return str(error)
    return None


def same(name: str, tolerance: dict[str, float], meant: dict | None = None, **changed: Any) -> None:
    """Check that a call gives what it gives with the arguments that were meant."""
    parts = numbers(run(name, **changed)), numbers(run(name, **(meant or {})))
    for one, other in zip(*parts, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_no_public_name_is_forgotten():
    public = set()
    for module in MODULES:
        module = importlib.import_module(f"utils.{module}")
        public |= {
            name
            for name, value in inspect.getmembers(module, callable)
            if value.__module__ == module.__name__ and not name.startswith("_")
        }
    assert public - UNTRIED == {name.split(".")[0].split(",")[0] for name in FUNCTIONS}


@pytest.mark.parametrize("name, argument", ALL, ids=["-".join(one) for one in ALL])
def test_whole_numbers_booleans_and_nan(name, argument):
    value = FUNCTIONS[name][1][argument]
    if isinstance(value, bool):
        return
    if not isinstance(value, Tensor):
        wrong = OPTIONAL.get(argument, INTEGERS if isinstance(value, int) else NUMBERS)
        for bad in wrong:
            assert refused(name, **{argument: bad}), bad
    elif value.dtype == torch.bool:
        for other in (value.long(), value.float(), value.int()):
            assert refused(name, **{argument: other}), other.dtype
    elif value.is_floating_point():
        if not refused(name, **{argument: torch.full_like(value, torch.nan)}):
            result = numbers(run(name, **{argument: torch.full_like(value, torch.nan)}))
            assert any(part.isnan().any() for part in result), "a NaN is lost"
        for other in ((value * 3).long(), value > 0):
            if not refused(name, **{argument: other}):
                same(name, CLOSE, {argument: other.to(value)}, **{argument: other})
    else:
        for other in (value.int(), value.to(torch.uint8), value.double(), value.bool()):
            if not refused(name, **{argument: other}):
                same(name, CLOSE, **{argument: other})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_and_double_precision(name, dtype):
    halves = {
        argument: value.to(dtype)
        for argument, value in FUNCTIONS[name][1].items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    if not halves or name == "KeyValueCache":
        return
    tolerance = {"rtol": 0.1, "atol": 0.1} if dtype != torch.float64 else CLOSE
    kind = next((kind for kind in MODELS if name == f"{kind.__name__}.forward"), None)
    if kind is None:
        same(name, tolerance, **halves)
        return
    with torch.no_grad():
        given = {**MODELS[kind][1], **halves}
        result = build(kind).to(dtype)(**given)
    parts = zip(numbers(result), numbers(run(name)), strict=True)
    for one, other in parts:
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_a_copy_of_a_model_is_the_same(kind, copied):
    original = build(kind)
    other = copied(original)
    with torch.no_grad():
        pairs = zip(
            numbers(original(**MODELS[kind][1])), numbers(other(**MODELS[kind][1])), strict=True
        )
        assert all(torch.equal(one, two) for one, two in pairs)


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [LanguageModel, ModernDecoder])
def test_a_copy_of_a_cache_is_independent_and_goes_on(kind, copied):
    model, held = build(kind), KeyValueCache()
    model(IDS[:, :2], cache=held)
    other = copied(held)
    late = model(IDS[:, 2:], cache=held)
    assert (held.length, other.length) == (4, 2)
    torch.testing.assert_close(model(IDS[:, 2:], cache=other), late, **CLOSE)
    torch.testing.assert_close(late, model(IDS)[:, 2:], **CLOSE)
    other.crop(0)
    assert (held.length, other.length, other.nbytes) == (4, 0, 0)


@torch.no_grad()
@pytest.mark.parametrize("kind", [LanguageModel, ModernDecoder])
@pytest.mark.parametrize("first, second", [(1, 1), (3, 1), (2, 2), (1, 3)])
def test_a_cache_of_unknown_layers_is_refused(kind, first, second):
    model, held = build(kind, num_layers=2), KeyValueCache()
    model(IDS[:, :first], cache=held)
    with pytest.raises(ValueError):
        copy.deepcopy(model)(IDS[:, :second], cache=held)

    layers = model.layers if kind is ModernDecoder else model.encoder.layers
    layers[1] = layers[0]
    with pytest.raises(ValueError):
        model(IDS[:, :first], cache=KeyValueCache())
