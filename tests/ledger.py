"""The shape ledger, computed: what the code of `utils` gives for the running example.

README and chapters print the ledger as tables; the tests compare those tables with these rows.
"""

from __future__ import annotations

from functools import cache
from unittest import mock

import torch
from torch import Tensor, nn

from utils import attention as attention_file
from utils.attention import MultiHeadAttention, record_attention
from utils.embedding import PatchEmbedding, patchify
from utils.encoder import Encoder, EncoderBlock, FeedForward
from utils.images import load_photos
from utils.masking import causal_mask

EMBED_DIM, NUM_HEADS, MLP_DIM, NUM_LAYERS = 768, 8, 3072, 12

COUNT_MAY_BE_LEFT_OUT = {"encoder of 12 blocks"}

Row = tuple[list[tuple[int, ...]], list[int]]


def _count(*modules: nn.Module | nn.Parameter) -> int:
    return sum(
        module.numel() if isinstance(module, nn.Parameter) else _count(*module.parameters())
        for module in modules
    )


def _encoder() -> Encoder:
    # On the meta device: 85 million numbers that nobody has to draw or to multiply.
    with torch.device("meta"):
        return Encoder(NUM_LAYERS, EMBED_DIM, NUM_HEADS, MLP_DIM)


def counts_inside_the_encoder() -> set[int]:
    """Returns how many parameters one LayerNorm of the encoder has, one block, and all of it."""
    encoder = _encoder()
    parts = (nn.LayerNorm, EncoderBlock, Encoder)
    return {_count(module) for module in encoder.modules() if isinstance(module, parts)}


@cache
def ledger() -> dict[str, Row]:
    """Returns for each step its shapes, in order, and its numbers of parameters.

    A row that says "3 x 590,592" has the numbers [3, 590592]: so many projections, so large each.
    """
    seen: dict[str, tuple[int, ...]] = {}

    def note(name: str, module: nn.Module) -> None:
        def remember(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            seen[name] = tuple(output.shape)

        module.register_forward_hook(remember)

    open_form = attention_file.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mixed, weights = open_form(q, k, v, mask)
        (seen["heads"],) = {tuple(t.shape) for t in (q, k, v)}
        seen["mixed"], seen["weights"] = tuple(mixed.shape), tuple(weights.shape)
        return mixed, weights

    photos = load_photos()
    embedding = PatchEmbedding(96, 16, 3, EMBED_DIM)
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS).eval()
    feed_forward = FeedForward(EMBED_DIM, MLP_DIM)
    encoder = _encoder()
    note("patches", embedding.proj)
    note("joined", attention.out_proj)
    note("inner", feed_forward.fc1)
    with torch.no_grad():
        tokens = embedding(photos)
        replaced = mock.patch.object(attention_file, "scaled_dot_product_attention", watched)
        with replaced, record_attention(attention):
            attention(tokens, attn_mask=causal_mask(tokens.shape[1]))
            seen["masked"] = seen["weights"]
            attended = attention(tokens)
        fed = feed_forward(attended)
        encoded = encoder(attended.to("meta"))
    (each,) = {_count(layer) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)}
    added = [_count(embedding.class_token), _count(embedding.positions)]
    return {
        "photographs, channels first": ([tuple(photos.shape)], []),
        "patches of 16 x 16": ([tuple(patchify(photos, 16).shape)], []),
        "projected": ([seen["patches"]], [_count(embedding.proj)]),
        "class token in front, positions added": ([tuple(tokens.shape)], added),
        "queries, keys, values, 8 heads": ([seen["heads"]], [3, each]),
        "scores, weights": ([seen["weights"]], []),
        "scores, masked": ([seen["masked"]], []),
        "mixed values": ([seen["mixed"]], []),
        "heads joined, projected": (
            [seen["joined"]],
            [_count(attention.out_proj), _count(attention)],
        ),
        "feed-forward, mlp_dim 3072": ([seen["inner"], tuple(fed.shape)], [_count(feed_forward)]),
        "encoder of 12 blocks": ([tuple(encoded.shape)], [_count(encoder)]),
    }
