"""Every module of `utils` compiles without a break, and is exported for sequences of any length."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import utils
from helpers import CLOSE, random, randomize
from utils.attention import record_attention
from utils.decoder import Transformer
from utils.detection import DetectionTransformer
from utils.experts import MixtureOfExperts
from utils.language_model import LanguageModel, TextEncoder
from utils.latent_attention import LatentAttention
from utils.linear_attention import gated_delta_rule, linear_attention
from utils.modern_decoder import GroupedQueryAttention, ModernDecoder, RopeScaling
from utils.vision_transformer import VisionTransformer

E, H, M, V, N = 8, 2, 12, 11, 5
BLOCK = {"embed_dim": E, "num_heads": H, "mlp_dim": M}
TEXT = {**BLOCK, "vocab_size": V, "num_layers": 1, "max_length": 9}
IMAGES = {**BLOCK, "image_size": 8, "in_channels": 2, "num_classes": 3}
HALVES = {"num_encoder_layers": 1, "num_decoder_layers": 1}
MODERN = {**BLOCK, "vocab_size": V, "num_kv_heads": 1}
SLOW = {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 64), "qk_norm": True, "window": 3}
YARN = RopeScaling(4.0, 1.0, 32.0, 1024, by_number=True, attention_factor=1.1)
GROUPS = {"scoring": "sigmoid", "num_shared": 1, "num_groups": 2, "groups_per_token": 1}
LATENT = {"head_dim": 4, "rotary_dim": 4, "value_dim": 3, "latent_dim": 6}


def of_2026():
    """Build a decoder of a layer with a window, sinks and experts, and two with latents."""
    model = ModernDecoder(**MODERN, num_layers=3)
    window, latent, absorbed = model.layers
    window.attn = GroupedQueryAttention(E, H, 1, window=2, sinks=True)
    window.mlp = MixtureOfExperts(E, M, 2, 1)
    latent.attn = LatentAttention(E, H, **LATENT, rope_scaling=YARN)
    latent.mlp = MixtureOfExperts(E, M, 4, 2, **GROUPS)
    absorbed.attn = LatentAttention(E, H, **LATENT, query_latent_dim=5, absorbed=True)
    return model


def ids(b=2, n=N):
    return (torch.arange(b * n).view(b, n) % V,)


def two_ids(b=2, n=N):
    return *ids(b, n), *ids(b, n + 2)


def images(b=2, _n=N):
    return (random(b, 2, 8, 8),)


# what builds a model, and its inputs for b sequences of n tokens; all other modules are their parts
CASES = {
    "VisionTransformer": (lambda: VisionTransformer(**IMAGES, patch_size=4, num_layers=1), images),
    "LanguageModel": (lambda: LanguageModel(**TEXT), ids),
    "TextEncoder": (lambda: TextEncoder(**TEXT), ids),
    "ModernDecoder, Llama 3.1": (lambda: ModernDecoder(**MODERN, num_layers=1, **SLOW), ids),
    "ModernDecoder, of 2026": (of_2026, ids),
    "Transformer": (
        lambda: Transformer(**BLOCK, **HALVES, source_size=V, target_size=V, max_length=9),
        two_ids,
    ),
    "DetectionTransformer": (
        lambda: DetectionTransformer(**IMAGES, **HALVES, num_queries=3),
        images,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def built(name):
    build, some = CASES[name]
    return randomize(build()).eval(), some


def test_no_module_is_forgotten():
    parts = {type(part) for name in CASES for part in built(name)[0].modules()}
    for path in Path(utils.__file__).parent.glob("*.py"):
        if path.stem not in ("__init__", "renamed"):
            module = importlib.import_module(f"utils.{path.stem}")
            for name, value in inspect.getmembers(module, inspect.isclass):
                assert value in parts or not issubclass(value, nn.Module), name


@pytest.mark.parametrize("name", [name for name in CASES if name != "VisionTransformer"])
@torch.no_grad()
def test_compiles_without_a_break_in_the_graph(name):
    torch.compiler.reset()
    model, some = built(name)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*some()), model(*some()), **CLOSE)


def test_compiles_with_gradients_and_is_recorded_afterwards():
    torch.compiler.reset()
    model, some = built("VisionTransformer")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*some()), model(*some()), **CLOSE)
    with record_attention(model) as maps:
        torch.testing.assert_close(compiled(*some()), model(*some()), **CLOSE)
    assert len(maps) == 2, "once compiled and once not"
    compiled(*some()).sum().backward()
    compiled_grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(*some()).sum().backward()
    torch.testing.assert_close(compiled_grads, [p.grad for p in model.parameters()], **CLOSE)


def test_linear_attention_compiles():
    q, k = (F.normalize(random(2, 3, 9, 4, seed=seed), dim=-1) for seed in (0, 1))
    decay, beta = (random(2, 3, 9, seed=seed).sigmoid() for seed in (3, 4))
    for function, inputs in (
        (linear_attention, (q, k, k)),
        (gated_delta_rule, (q, k, k, decay, beta)),
    ):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*inputs), function(*inputs), **CLOSE)


@every_case
@torch.no_grad()
def test_is_exported_for_any_batch_and_any_length(name):
    model, some = built(name)
    inputs = some()
    axes = {0: Dim.AUTO} if inputs[0].ndim == 4 else {0: Dim.AUTO, 1: Dim.AUTO}
    program = torch.export.export(model, inputs, dynamic_shapes=tuple(axes for _ in inputs))
    for sizes in ((2, N), (1, N + 1), (4, 3)):
        torch.testing.assert_close(program.module()(*some(*sizes)), model(*some(*sizes)), **CLOSE)
