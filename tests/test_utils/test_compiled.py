"""Every module of `utils` compiles without a break, and is exported for sequences of any length."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from helpers import CLOSE, random, randomize
from utils import (
    attention,
    decoder,
    detection,
    embedding,
    encoder,
    experts,
    language_model,
    latent_attention,
    modern_decoder,
)
from utils.modern_decoder import RopeScaling
from utils.vision_transformer import VisionTransformer

E, H, M, V, N = 8, 2, 12, 11, 5
BLOCK = {"embed_dim": E, "num_heads": H, "mlp_dim": M}
GROUPED = {**BLOCK, "num_kv_heads": 1}
TEXT = {**BLOCK, "vocab_size": V, "num_layers": 1, "max_length": 9}
IMAGES = {**BLOCK, "image_size": 8, "in_channels": 2, "num_classes": 3}
MODERN = {**GROUPED, "vocab_size": V, "num_layers": 1}
SLOW = {"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 64), "qk_norm": True, "window": 3}
YARN = RopeScaling(4.0, 1.0, 32.0, 1024, by_number=True, attention_factor=1.1)
GROUPS = {"scoring": "sigmoid", "num_shared": 1, "num_groups": 2, "groups_per_token": 1}
LATENT = {"head_dim": 4, "rotary_dim": 4, "value_dim": 3, "latent_dim": 6}


def of_2026():
    """Build a decoder of a layer with a window, sinks and experts, and one with latents."""
    model = modern_decoder.ModernDecoder(**{**MODERN, "num_layers": 2})
    window, latent = model.layers
    window.attn = modern_decoder.GroupedQueryAttention(E, H, 1, window=2, sinks=True)
    window.mlp = experts.MixtureOfExperts(E, M, 4, 2)
    latent.attn = latent_attention.LatentAttention(E, H, **LATENT, rope_scaling=YARN)
    latent.mlp = experts.MixtureOfExperts(E, M, 4, 2, **GROUPS)
    return model


def absorbed():
    return latent_attention.LatentAttention(E, H, **LATENT, query_latent_dim=5, absorbed=True)


def tokens(b=2, n=N):
    return random(b, n, E)


def ids(b=2, n=N):
    return torch.arange(b * n).view(b, n) % V


def images(b=2, _n=N):
    return random(b, 2, 8, 8)


def both(make):
    return lambda b=2, n=N: (make(b, n), make(b, n + 2))


# class -> what builds it, and its inputs for b sequences of n tokens
CASES = {
    "RMSNorm": (lambda: modern_decoder.RMSNorm(E), tokens),
    "FeedForward": (lambda: encoder.FeedForward(E, M), tokens),
    "GatedFeedForward": (lambda: modern_decoder.GatedFeedForward(E, M), tokens),
    "MultiHeadAttention": (lambda: attention.MultiHeadAttention(E, H), both(tokens)),
    "GroupedQueryAttention": (lambda: modern_decoder.GroupedQueryAttention(E, H, 1), tokens),
    "EncoderBlock": (lambda: encoder.EncoderBlock(**BLOCK), tokens),
    "Encoder": (lambda: encoder.Encoder(1, **BLOCK), tokens),
    "DecoderBlock": (lambda: decoder.DecoderBlock(**BLOCK), both(tokens)),
    "Decoder": (lambda: decoder.Decoder(1, **BLOCK), both(tokens)),
    "ModernBlock": (lambda: modern_decoder.ModernBlock(**GROUPED), tokens),
    "PatchEmbedding": (lambda: embedding.PatchEmbedding(8, 4, 2, E), images),
    "TokenEmbedding": (lambda: embedding.TokenEmbedding(V, E, 9), ids),
    "VisionTransformer": (lambda: VisionTransformer(**IMAGES, patch_size=4, num_layers=1), images),
    "LanguageModel": (lambda: language_model.LanguageModel(**TEXT), ids),
    "LanguageModel, bidirectional": (
        lambda: language_model.LanguageModel(**TEXT, causal=False),
        ids,
    ),
    "TextEncoder": (lambda: language_model.TextEncoder(**TEXT), ids),
    "ModernDecoder": (lambda: modern_decoder.ModernDecoder(**MODERN), ids),
    "MixtureOfExperts": (lambda: experts.MixtureOfExperts(E, M, 4, 2, **GROUPS), tokens),
    "LatentAttention": (absorbed, tokens),
    "ModernDecoder, of 2026": (of_2026, ids),
    "ModernDecoder, Llama 3.1": (lambda: modern_decoder.ModernDecoder(**MODERN, **SLOW), ids),
    "Transformer": (
        lambda: decoder.Transformer(
            **BLOCK,
            source_size=V,
            target_size=V,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_length=9,
        ),
        both(ids),
    ),
    "DetectionTransformer": (
        lambda: detection.DetectionTransformer(
            **IMAGES, num_queries=3, num_encoder_layers=1, num_decoder_layers=1
        ),
        images,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)
# all others are parts of these, and are compiled with them
WHOLE = [name for name in CASES if "Model" in name or name.endswith(("former", "TextEncoder"))]
WHOLE += [name for name in CASES if name.startswith("ModernDecoder")]


def built(name):
    build, inputs = CASES[name]

    def some(*sizes):
        made = inputs(*sizes)
        return made if isinstance(made, tuple) else (made,)

    return randomize(build()).eval(), some


def test_every_part_is_compiled_with_a_whole():
    parts = {type(part).__name__ for name in WHOLE for part in built(name)[0].modules()}
    assert {name.split(",")[0] for name in CASES} <= parts


def test_no_module_is_forgotten():
    found = set()
    for path in Path(attention.__file__).parent.glob("*.py"):
        if path.stem not in ("__init__", "renamed"):
            module = importlib.import_module(f"utils.{path.stem}")
            found |= {
                name
                for name, value in inspect.getmembers(module, inspect.isclass)
                if issubclass(value, nn.Module) and value.__module__ == module.__name__
            }
    assert found == {name.split(",")[0] for name in CASES}


@pytest.mark.parametrize("name", WHOLE)
@torch.no_grad()
def test_compiles_without_a_break_in_the_graph(name):
    torch.compiler.reset()
    model, some = built(name)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*some()), model(*some()), **CLOSE)


@every_case
@torch.no_grad()
def test_is_exported_for_any_batch_and_any_length(name):
    model, some = built(name)
    inputs = some()
    axes = {0: Dim.AUTO} if inputs[0].ndim == 4 else {0: Dim.AUTO, 1: Dim.AUTO}
    program = torch.export.export(model, inputs, dynamic_shapes=tuple(axes for _ in inputs))
    for sizes in ((2, N), (3, N + 1), (4, 3)):
        torch.testing.assert_close(program.module()(*some(*sizes)), model(*some(*sizes)), **CLOSE)
