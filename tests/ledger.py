"""The shape ledgers, computed: what the code of `utils` gives for the running examples.

Six photographs go through the first half of the course, three sentences and their translations
through the second; at the end a detector asks what stands in the photographs. README and chapters
print the rows as tables; the tests compare them with these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import torch
from torch import Tensor, nn

from utils import attention as attention_file
from utils.attention import MultiHeadAttention, record_attention
from utils.data import load_photos, load_sentences
from utils.decoder import DecoderBlock, Transformer
from utils.embedding import PatchEmbedding, patchify
from utils.encoder import Encoder, EncoderBlock, FeedForward
from utils.masking import causal_mask
from utils.text import BEGIN, pad, padding_mask_of_ids, train_bpe

EMBED_DIM, NUM_HEADS, MLP_DIM, NUM_LAYERS = 768, 8, 3072, 12

# As many as the first detector with object queries has.
QUERIES = 100

# The base model of the paper of 2017, with the pieces of the course's own sentences.
PAIRS, PIECES = 3, 2000
BASE = {
    "embed_dim": 512,
    "num_heads": 8,
    "mlp_dim": 2048,
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "norm_first": False,
    "activation": "relu",
}

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


def _note(seen: dict[str, tuple[int, ...]], name: str, module: nn.Module) -> None:
    """Keeps the shape of what a module returns."""

    def remember(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        seen[name] = tuple(output.shape)

    module.register_forward_hook(remember)


@contextmanager
def _watched() -> Iterator[list[dict[str, tuple[int, ...]]]]:
    """Lists the shapes inside each call of the open form of attention, which recording uses."""
    open_form = attention_file.scaled_dot_product_attention
    calls = []

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mixed, weights = open_form(q, k, v, mask)
        tensors = {"q": q, "k": k, "v": v, "mixed": mixed, "weights": weights}
        calls.append({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        return mixed, weights

    with mock.patch.object(attention_file, "scaled_dot_product_attention", watched):
        yield calls


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
    photos = load_photos()
    embedding = PatchEmbedding(96, 16, 3, EMBED_DIM)
    attention = MultiHeadAttention(EMBED_DIM, NUM_HEADS).eval()
    feed_forward = FeedForward(EMBED_DIM, MLP_DIM)
    encoder = _encoder()
    _note(seen, "patches", embedding.proj)
    _note(seen, "joined", attention.out_proj)
    _note(seen, "inner", feed_forward.fc1)
    with torch.no_grad():
        tokens = embedding(photos)
        with _watched() as calls, record_attention(attention):
            attention(tokens, attn_mask=causal_mask(tokens.shape[1]))
            attended = attention(tokens)
        fed = feed_forward(attended)
        encoded = encoder(attended.to("meta"))
    masked, plain = calls
    (heads,) = {plain[name] for name in ("q", "k", "v")}
    (each,) = {_count(layer) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)}
    added = [_count(embedding.class_token), _count(embedding.positions)]
    return {
        "photographs, channels first": ([tuple(photos.shape)], []),
        "patches of 16 x 16": ([tuple(patchify(photos, 16).shape)], []),
        "projected": ([seen["patches"]], [_count(embedding.proj)]),
        "class token in front, positions added": ([tuple(tokens.shape)], added),
        "queries, keys, values, 8 heads": ([heads], [3, each]),
        "scores, weights": ([plain["weights"]], []),
        "scores, masked": ([masked["weights"]], []),
        "mixed values": ([plain["mixed"]], []),
        "heads joined, projected": (
            [seen["joined"]],
            [_count(attention.out_proj), _count(attention)],
        ),
        "feed-forward, mlp_dim 3072": ([seen["inner"], tuple(fed.shape)], [_count(feed_forward)]),
        "encoder of 12 blocks": ([tuple(encoded.shape)], [_count(encoder)]),
    }


def _ids() -> tuple[Tensor, Tensor]:
    """Returns the ids of the first sentences: Korean sources, and English targets as they are read.

    A target begins with BEGIN; what must be said after its last piece is END, which nobody reads.
    """
    pairs = load_sentences()
    cut = train_bpe([sentence for pair in pairs for sentence in pair], vocab_size=PIECES)
    sources = pad([cut.encode(korean) for _, korean in pairs[:PAIRS]])
    targets = pad([[BEGIN, *cut.encode(english)] for english, _ in pairs[:PAIRS]])
    return sources, targets


def _base() -> Transformer:
    """Returns the base model of 2017, in eval mode; 64 positions are enough for these sentences."""
    return Transformer(source_size=PIECES, target_size=PIECES, max_length=64, **BASE).eval()


def counts_inside_the_transformer() -> set[int]:
    """Returns how many parameters the parts of the base model have."""
    with torch.device("meta"):
        model = _base()
    return {_count(module) for module in model.modules()}


@cache
def text_ledger() -> dict[str, Row]:
    """Returns the rows of the second ledger, from ids to scores over the vocabulary."""
    seen: dict[str, tuple[int, ...]] = {}
    sources, targets = _ids()
    model = _base()
    _note(seen, "sources embedded", model.source_embedding)
    _note(seen, "targets embedded", model.target_embedding)
    _note(seen, "encoded", model.encoder)
    _note(seen, "attended", model.decoder.layers[0].cross_attn)
    _note(seen, "block", model.decoder.layers[0])
    _note(seen, "decoded", model.decoder)
    real = padding_mask_of_ids(sources), padding_mask_of_ids(targets)
    with torch.no_grad(), _watched() as calls, record_attention(model):
        scores = model(sources, targets, *real)
    own, across = calls[len(model.encoder.layers) :][:2]
    block = model.decoder.layers[0]
    (table,) = {_count(part) for part in (model.source_embedding, model.target_embedding)}
    (heads,) = {across[name] for name in ("k", "v")}
    return {
        "sources, as ids": ([tuple(sources.shape)], []),
        "targets, as ids": ([tuple(targets.shape)], []),
        "embedded, positions added": (
            [seen["sources embedded"], seen["targets embedded"]],
            [2, table],
        ),
        "encoder of 6 blocks": ([seen["encoded"]], [_count(model.encoder)]),
        "scores among targets, causal": ([own["weights"]], []),
        "queries of the targets, 8 heads": ([across["q"]], [_count(block.cross_attn.q_proj)]),
        "keys, values of the sources, 8 heads": (
            [heads],
            [2, _count(block.cross_attn.k_proj)],
        ),
        "scores across, weights": ([across["weights"]], []),
        "mixed across": ([across["mixed"]], []),
        "joined, projected": (
            [seen["attended"]],
            [_count(block.cross_attn.out_proj), _count(block.cross_attn)],
        ),
        "decoder block": ([seen["block"]], [_count(block)]),
        "decoder of 6 blocks": ([seen["decoded"]], [_count(model.decoder)]),
        "scores over the vocabulary": ([tuple(scores.shape)], [_count(model.head)]),
    }


@cache
def detection_ledger() -> dict[str, Row]:
    """Returns the rows that a detector adds to the first ledger, behind its encoder."""
    (encoded,), _ = ledger()[f"encoder of {NUM_LAYERS} blocks"]
    queries = nn.Parameter(torch.zeros(QUERIES, EMBED_DIM))
    block = DecoderBlock(EMBED_DIM, NUM_HEADS, MLP_DIM).eval()
    label, box = nn.Linear(EMBED_DIM, 10 + 1), nn.Linear(EMBED_DIM, 4)
    asking = queries.expand(encoded[0], -1, -1)
    with torch.no_grad(), _watched() as calls, record_attention(block):
        answered = block(asking, torch.zeros(encoded))
        scores, boxes = label(answered), box(answered)
    _, across = calls
    return {
        "100 object queries": ([tuple(asking.shape)], [_count(queries)]),
        "scores of queries across": ([across["weights"]], []),
        'scores of 10 classes and "nothing"': ([tuple(scores.shape)], [_count(label)]),
        "a box for each query": ([tuple(boxes.shape)], [_count(box)]),
    }


@cache
def ledgers() -> dict[str, Row]:
    """Returns the rows of all ledgers; no step has the name of another."""
    each = ledger(), text_ledger(), detection_ledger()
    rows = each[0] | each[1] | each[2]
    assert len(rows) == sum(map(len, each))
    return rows
