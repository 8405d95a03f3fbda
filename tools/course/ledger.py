"""The ledgers: each step of the running examples, its shape and its number of parameters.

All numbers come from running the code of `utils`. `make readme` writes the rows into
docs/ledger.md; drawings and tests read them there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from utils.attention import record_attention, scaled_dot_product_attention
from utils.data import load_photos, load_sentences
from utils.decoder import DecoderBlock, Transformer
from utils.embedding import PatchEmbedding, patchify
from utils.encoder import Encoder
from utils.masking import causal_mask
from utils.text import BEGIN, pad, padding_mask_of_ids, train_bpe

PATCH_SIZE, EMBED_DIM, NUM_HEADS, MLP_DIM, NUM_LAYERS = 16, 768, 8, 3072, 12
QUERIES, CLASSES = 100, 10  # queries as in the first detector with object queries

# The base model of the original Transformer; the vocabulary is that of chapter 09.
PAIRS, VOCAB_SIZE = 3, 2000
BASE = {
    "embed_dim": 512,
    "num_heads": 8,
    "mlp_dim": 2048,
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "norm_first": False,
    "activation": "relu",
}

Row = tuple[str, str, str]  # step, shape, parameters


def _sizes(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _count(part: nn.Module | nn.Parameter) -> str:
    parameters = [part] if isinstance(part, nn.Parameter) else part.parameters()
    return f"{sum(parameter.numel() for parameter in parameters):,}"


def _watch(*models: nn.Module) -> dict[nn.Module, str]:
    """Return a dictionary to which every later run adds the shape of each module's result."""
    seen: dict[nn.Module, str] = {}

    def note(module: nn.Module, _inputs: object, result: Tensor) -> None:
        seen[module] = _sizes(result)

    for model in models:
        for module in model.modules():
            module.register_forward_hook(note)
    return seen


def photographs() -> list[Row]:
    """Return the rows of the first half: from six photographs to the encoder."""
    photos = load_photos()
    embedding = PatchEmbedding(photos.shape[-1], PATCH_SIZE, photos.shape[1], EMBED_DIM)
    with torch.device("meta"):  # shapes without numbers
        encoder = Encoder(NUM_LAYERS, EMBED_DIM, NUM_HEADS, MLP_DIM).eval()
    block = encoder.layers[0]
    attention, mlp = block.attn, block.mlp
    seen = _watch(embedding, encoder)
    with torch.no_grad(), record_attention(block) as maps:
        tokens = embedding(photos).to("meta")
        encoder(tokens)
        block(tokens, causal_mask(tokens.shape[1]).to("meta"))
    (weights, masked), q, k = maps, maps.queries[0], maps.keys[0]
    added = f"{_count(embedding.class_token)} and {_count(embedding.positions)}"
    joined = f"{_count(attention.out_proj)} ({_count(attention)} for the whole layer)"
    return [
        ("photographs, channels first", _sizes(photos), ""),
        (f"patches of {PATCH_SIZE} x {PATCH_SIZE}", _sizes(patchify(photos, PATCH_SIZE)), ""),
        ("projected", seen[embedding.proj], _count(embedding.proj)),
        ("class token first, positions added", seen[embedding], added),
        (
            f"queries, keys, values, {NUM_HEADS} heads",
            f"{_sizes(q)} each",
            f"3 x {_count(attention.q_proj)}",
        ),
        ("scores, weights", _sizes(weights), ""),
        ("scores, masked", _sizes(masked), ""),
        ("attention output", _sizes(scaled_dot_product_attention(q, k, k)[0]), ""),
        ("heads joined, projected", seen[attention.out_proj], joined),
        (f"feed-forward, mlp_dim {MLP_DIM}", f"{seen[mlp.fc1]} -> {seen[mlp]}", _count(mlp)),
        ("encoder block", seen[block], _count(block)),
        (f"encoder of {NUM_LAYERS} blocks", seen[encoder], _count(encoder)),
    ]


def _ids() -> tuple[Tensor, Tensor]:
    """Return the first sentences of the course, in Korean and in English, as chapter 09 does."""
    pairs = load_sentences()
    tokenizer = train_bpe([text for pair in pairs for text in pair], vocab_size=VOCAB_SIZE)
    sources = pad([tokenizer.encode(korean) for _, korean in pairs[:PAIRS]])
    targets = pad([[BEGIN, *tokenizer.encode(english)] for english, _ in pairs[:PAIRS]])
    return sources, targets


def sentences() -> list[Row]:
    """Return the rows of the second half: from ids to logits over the vocabulary."""
    sources, targets = _ids()
    model = Transformer(source_size=VOCAB_SIZE, target_size=VOCAB_SIZE, max_length=64, **BASE)
    seen = _watch(model.eval())
    with torch.no_grad(), record_attention(model) as maps:
        model(sources, targets, padding_mask_of_ids(sources), padding_mask_of_ids(targets))
    encoder, decoder = model.encoder, model.decoder
    block, own = decoder.layers[0], len(encoder.layers)  # self-attention, then cross-attention
    cross, across, q, k = block.cross_attn, maps[own + 1], maps.queries[own + 1], maps.keys[own + 1]
    matrices = f"2 x {_count(model.source_embedding)}"
    each, heads = _count(cross.q_proj), f"{BASE['num_heads']} heads"
    embedded = [seen[part] for part in (model.source_embedding, model.target_embedding)]
    return [
        ("sources, as ids", _sizes(sources), ""),
        ("targets, as ids", _sizes(targets), ""),
        ("embedded, positions added", " and ".join(embedded), matrices),
        (f"encoder of {len(encoder.layers)} blocks", seen[encoder], _count(encoder)),
        ("scores among targets, causal", _sizes(maps[own]), ""),
        (f"queries of the targets, {heads}", _sizes(q), each),
        (f"keys, values of the sources, {heads}", f"{_sizes(k)} each", f"2 x {each}"),
        ("scores across, weights", _sizes(across), ""),
        ("output across", _sizes(scaled_dot_product_attention(q, k, k)[0]), ""),
        ("joined, projected", seen[cross], f"{each} ({_count(cross)} for the whole layer)"),
        ("decoder block", seen[block], _count(block)),
        (f"decoder of {len(decoder.layers)} blocks", seen[decoder], _count(decoder)),
        ("logits over the vocabulary", seen[model.head], _count(model.head)),
    ]


def detection() -> list[Row]:
    """Return the rows that a detector adds to those of the photographs, after the encoder."""
    photos = load_photos()
    encoded = PatchEmbedding(photos.shape[-1], PATCH_SIZE, photos.shape[1], EMBED_DIM)(photos)
    queries = nn.Parameter(torch.zeros(QUERIES, EMBED_DIM))
    block = DecoderBlock(EMBED_DIM, NUM_HEADS, MLP_DIM).eval()
    label, box = nn.Linear(EMBED_DIM, CLASSES + 1), nn.Linear(EMBED_DIM, 4)
    asked = queries.expand(len(photos), -1, -1)
    with torch.no_grad(), record_attention(block) as maps:
        answered = block(asked, encoded)
    return [
        (f"{QUERIES} object queries", _sizes(asked), _count(queries)),
        ("scores of queries across", _sizes(maps[1]), ""),
        (f'logits of {CLASSES} classes and "no object"', _sizes(label(answered)), _count(label)),
        ("a box for each query", _sizes(box(answered)), _count(box)),
    ]


LEDGERS = {"photographs": photographs, "sentences": sentences, "detection": detection}
