"""Decoder block, decoder and Transformer: equal to PyTorch's, every mask on, both norm orders."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers import (
    CLOSE,
    attention_grads,
    child_names,
    error_of,
    random,
    randomize,
    torch_decoder,
    torch_transformer,
)
from utils.attention import record_attention
from utils.decoder import Decoder, DecoderBlock, Transformer
from utils.masking import causal_mask, padding_mask

B, I, J, E, H, M = 2, 5, 7, 12, 3, 20  # noqa: E741 - the letters of the course
LENGTHS, SOURCE_LENGTHS = torch.tensor([3, I]), torch.tensor([J, 4])
MASKS = ["none", "causal", "target padding", "source padding", "all"]

orders = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
modes = pytest.mark.parametrize("training, activation", [(True, "gelu"), (False, "relu")])


def masks(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return masks for us and the same for PyTorch's decoder, where True means the opposite."""
    causal = causal_mask(I)
    target, source = padding_mask(LENGTHS, I), padding_mask(SOURCE_LENGTHS, J)
    ours, theirs = {}, {}
    if name in ("causal", "all"):
        ours["attn_mask"], theirs["tgt_mask"] = causal, ~causal
    if name in ("target padding", "all"):
        ours["attn_mask"] = target & ours.get("attn_mask", torch.ones(I, I, dtype=torch.bool))
        theirs["tgt_key_padding_mask"] = ~target[:, 0, 0]
    if name in ("source padding", "all"):
        ours["context_mask"] = source
        theirs["memory_key_padding_mask"] = ~source[:, 0, 0]
    return ours, theirs


def tried(module: nn.Module, x: Tensor, context: Tensor, **options) -> tuple[Tensor, ...]:
    """Return the result and the gradients of stream and context; parameters keep theirs."""
    module.zero_grad()
    x, context = x.clone().requires_grad_(), context.clone().requires_grad_()
    result = module(x, context, **options)
    (result * random(*result.shape, seed=5)).sum().backward()
    return result.detach(), x.grad, context.grad


def grads_by_their_names(block: DecoderBlock) -> dict[str, Tensor]:
    """Return all gradients of our block under the names of PyTorch's layer."""
    found = {f"self_attn.{key}": grad for key, grad in attention_grads(block.attn).items()}
    for key, grad in attention_grads(block.cross_attn).items():
        found[f"multihead_attn.{key}"] = grad
    for ours, theirs in {
        "norm1": "norm1", "norm2": "norm2", "norm3": "norm3",
        "mlp.fc1": "linear1", "mlp.fc2": "linear2",
    }.items():  # fmt: skip
        for key, parameter in block.get_submodule(ours).named_parameters():
            found[f"{theirs}.{key}"] = parameter.grad
    return found


@modes
@orders
@pytest.mark.parametrize("name", MASKS)
def test_decoder_equals_pytorch(name, norm_first, training, activation):
    ours = randomize(
        Decoder(3, E, H, M, norm_first=norm_first, activation=activation, norm_eps=1e-3)
    ).train(training)
    theirs = torch_decoder(ours)
    x, context = random(B, I, E), random(B, J, E, seed=1)
    our_masks, their_masks = masks(name)
    values = tried(ours, x, context, **our_masks)
    for mine, expected in zip(values, tried(theirs, x, context, **their_masks), strict=True):
        torch.testing.assert_close(mine, expected, rtol=2e-4, atol=2e-4)
    for block, layer in zip(ours.layers, theirs.layers, strict=True):
        wanted = {key: p.grad for key, p in layer.named_parameters()}
        grads = grads_by_their_names(block)
        assert grads.keys() == wanted.keys(), "every parameter is compared"
        for key, grad in grads.items():
            torch.testing.assert_close(grad, wanted[key], rtol=1e-3, atol=5e-4)


# --- the whole model

SIZES = {
    "source_size": 23,
    "target_size": 19,
    "embed_dim": E,
    "num_heads": H,
    "mlp_dim": M,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "max_length": 9,
}


def transformer(seed: int = 0, **changes) -> Transformer:
    return randomize(Transformer(**{**SIZES, **changes}), seed).eval()


def ids(size: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(seed))


SOURCE, TARGET = ids(23, B, J), ids(19, B, I, seed=1)
REAL_SOURCE, REAL_TARGET = padding_mask(SOURCE_LENGTHS, J), padding_mask(LENGTHS, I)


@orders
@pytest.mark.parametrize("masked, activation", [(True, "gelu"), (False, "relu")])
def test_transformer_equals_pytorch(masked, norm_first, activation):
    ours = transformer(norm_first=norm_first, activation=activation)
    theirs = torch_transformer(ours)
    options = {"tgt_mask": ~causal_mask(I)}
    if masked:
        options["src_key_padding_mask"] = ~REAL_SOURCE[:, 0, 0]
        options["memory_key_padding_mask"] = ~REAL_SOURCE[:, 0, 0]
        options["tgt_key_padding_mask"] = ~REAL_TARGET[:, 0, 0]
    scores = ours(SOURCE, TARGET, *([REAL_SOURCE, REAL_TARGET] if masked else []))
    assert scores.shape == (B, I, 19)
    tables = ours.source_embedding.tokens.weight, ours.target_embedding.tokens.weight
    weight = random(*scores.shape, seed=5)
    grads = torch.autograd.grad((scores * weight).sum(), tables)
    got = ours.head(theirs(ours.source_embedding(SOURCE), ours.target_embedding(TARGET), **options))
    torch.testing.assert_close(scores, got, rtol=1e-4, atol=1e-4)
    for mine, expected in zip(
        grads, torch.autograd.grad((got * weight).sum(), tables), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=5e-4)


def test_transformer_has_as_many_parameters_as_pytorchs_and_its_paper_says():
    """PyTorch's defaults are the base model; it puts two more norms behind post-norm."""
    sizes = {"embed_dim": 512, "num_heads": 8, "mlp_dim": 2048}
    with torch.device("meta"):
        theirs = nn.Transformer(batch_first=True)
        ours = Transformer(
            **{**SIZES, **sizes, "num_encoder_layers": 6, "num_decoder_layers": 6},
            norm_first=False,
            activation="relu",
        )
    count = sum(p.numel() for part in (ours.encoder, ours.decoder) for p in part.parameters())
    assert count + 2 * 1024 == sum(p.numel() for p in theirs.parameters())


def test_encode_and_decode_are_the_halves_of_forward():
    model = transformer()
    memory = model.encode(SOURCE, REAL_SOURCE)
    assert memory.shape == (B, J, E)
    scores = model.decode(TARGET, memory, REAL_SOURCE, REAL_TARGET)
    assert torch.equal(scores, model(SOURCE, TARGET, REAL_SOURCE, REAL_TARGET))


@orders
def test_no_score_hears_of_a_later_token_and_each_of_every_earlier_one(norm_first):
    """By gradient: scores of place t depend on the target's tokens 0 to t, and on all sources."""
    model = transformer(norm_first=norm_first)
    seen = {}

    def keep(name):
        def hook(_module, _inputs, output):
            seen[name] = output.detach().requires_grad_()
            return seen[name]

        return hook

    model.source_embedding.register_forward_hook(keep("source"))
    model.target_embedding.register_forward_hook(keep("target"))
    scores = model(SOURCE, TARGET, REAL_SOURCE)
    for t in range(I):
        one = (scores[:, t] * random(B, 19, seed=t)).sum()
        source, target = torch.autograd.grad(
            one, [seen["source"], seen["target"]], retain_graph=True
        )
        assert (target[:, t + 1 :] == 0).all(), "exactly nothing flows back from the future"
        assert (target[:, : t + 1].abs().sum(dim=-1) > 0).all()
        real = REAL_SOURCE[:, 0, 0]
        assert (source[~real] == 0).all() and (source[real].abs().sum(dim=-1) > 0).all()


def test_padding_before_the_target_is_hidden_by_its_mask():
    """A row that may attend to nothing stays finite; nobody hears what the padding holds."""
    model = transformer(positions=None)
    real = torch.tensor([[False, False, True, True, True], [True] * 5])
    mask = real[:, None, None, :]
    changed = torch.where(real, TARGET, (TARGET + 3) % 19)
    before = model(SOURCE, TARGET, None, mask)
    assert before.isfinite().all()
    torch.testing.assert_close(model(SOURCE, changed, None, mask)[real], before[real], **CLOSE)
    assert (model(SOURCE, changed) - model(SOURCE, TARGET))[0, 2:].abs().max() > 1e-3


def test_without_positions_the_order_of_the_source_does_not_matter():
    order = torch.randperm(J, generator=torch.Generator().manual_seed(0))
    for positions, same in [(None, True), ("sinusoidal", False), ("learned", False)]:
        model = transformer(positions=positions)
        difference = (model(SOURCE, TARGET) - model(SOURCE[:, order], TARGET)).abs().max()
        assert (difference < 1e-4) == same, positions


def test_scale_and_positions_reach_both_embeddings():
    model = Transformer(**SIZES)
    for embedding in (model.source_embedding, model.target_embedding):
        assert embedding.factor == E**0.5 and not list(embedding.parameters())[1:]
    model = Transformer(**SIZES, positions="learned", scale=False)
    for embedding in (model.source_embedding, model.target_embedding):
        assert embedding.factor == 1 and isinstance(embedding.positions, nn.Parameter)


# --- the parts


def test_maps_are_rectangular_where_the_decoder_looks_at_the_encoder():
    model = transformer()
    with record_attention(model) as maps:
        opened = model(SOURCE, TARGET, REAL_SOURCE, REAL_TARGET)
    own, across = (B, H, I, I), (B, H, I, J)
    assert [tuple(m.shape) for m in maps] == 2 * [(B, H, J, J)] + 3 * [own, across]
    plain = model(SOURCE, TARGET, REAL_SOURCE, REAL_TARGET)
    torch.testing.assert_close(opened, plain, rtol=1e-4, atol=1e-4)


def test_defaults_and_arguments_reach_every_part():
    block = DecoderBlock(E, H, M)
    assert block.norm_first and isinstance(block.mlp.act, nn.GELU)
    assert block.norm1.eps == block.norm2.eps == block.norm3.eps == 1e-5
    decoder = Decoder(2, E, H, M, 0.3, False, "relu", norm_eps=1e-7)
    for block in decoder.layers:
        assert not block.norm_first and isinstance(block.mlp.act, nn.ReLU)
        dropouts = block.dropout.p, block.attn.dropout, block.cross_attn.dropout
        assert dropouts == (0.3, 0.3, 0.3) and block.mlp.dropout.p == 0.3
        assert block.norm1.eps == block.norm2.eps == block.norm3.eps == 1e-7
    model = Transformer(**SIZES, dropout=0.3, norm_first=False, activation="relu")
    assert model.dropout.p == model.encoder.layers[0].dropout.p == 0.3
    assert model.decoder.layers[2].dropout.p == 0.3
    for stack, layers in ((model.encoder, 2), (model.decoder, 3)):
        assert len(stack.layers) == layers and isinstance(stack.norm, nn.Identity)
        assert isinstance(stack.layers[0].mlp.act, nn.ReLU)
    assert (model.head.in_features, model.head.out_features) == (E, 19)


def test_registered_in_the_order_they_run():
    assert child_names(DecoderBlock(E, H, M)) == [
        "norm1", "attn", "norm2", "cross_attn", "norm3", "mlp", "dropout",
    ]  # fmt: skip
    assert child_names(Decoder(1, E, H, M)) == ["layers", "norm"]
    assert child_names(Transformer(**SIZES)) == [
        "source_embedding", "encoder", "target_embedding", "decoder", "head", "dropout",
    ]  # fmt: skip


def test_dropout_works_at_each_place_and_is_off_in_eval():
    x, context = random(B, I, E), random(B, J, E, seed=1)
    for place in ["attn", "cross_attn", "mlp.dropout", "dropout"]:
        block = randomize(DecoderBlock(E, H, M)).train()
        if place.endswith("attn"):
            block.get_submodule(place).dropout = 0.5
        else:
            block.get_submodule(place).p = 0.5
        torch.manual_seed(0)
        assert (block(x, context) - block(x, context)).abs().max() > 1e-3, place
        assert torch.equal(block.eval()(x, context), block(x, context)), place
    model = randomize(Transformer(**SIZES)).train()
    model.dropout.p = 0.5
    assert (model(SOURCE, TARGET) - model(SOURCE, TARGET)).abs().max() > 1e-3
    memory = model.eval().encode(SOURCE)
    model.train()
    assert not torch.equal(model.encode(SOURCE), memory)
    assert not torch.equal(model.decode(TARGET, memory), model.decode(TARGET, memory))


@orders
@pytest.mark.parametrize("part", ["attn", "cross_attn", "mlp"])
def test_what_each_part_adds_is_dropped(part, norm_first):
    """Without norms, the other parts silent, p = 0.5: half of what a part adds is exactly 0."""
    block = randomize(DecoderBlock(64, H + 1, M, norm_first=norm_first)).train()
    block.norm1 = block.norm2 = block.norm3 = nn.Identity()
    last = {
        "attn": block.attn.out_proj,
        "cross_attn": block.cross_attn.out_proj,
        "mlp": block.mlp.fc2,
    }
    for name, layer in last.items():
        if name != part:
            nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    x, context = random(8, 16, 64), random(8, 5, 64, seed=1)
    full = (block(x, context) - x).detach()
    block.dropout.p = 0.5
    torch.manual_seed(0)
    added = (block(x, context) - x).detach()
    kept = added != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.03)
    torch.testing.assert_close(added[kept], 2 * full[kept], rtol=1e-3, atol=1e-3)


# --- sizes, types, errors


@orders
@pytest.mark.parametrize(
    "b, i, j, e, h", [(0, 3, 2, 4, 2), (1, 1, 1, 1, 1), (1, 9, 1, 6, 1), (2, 1, 8, 6, 6)]
)
def test_odd_sizes(b, i, j, e, h, norm_first):
    model = transformer(embed_dim=e, num_heads=h, norm_first=norm_first)
    source, target = ids(23, b, j), ids(19, b, i)
    scores = model(source, target)
    scores.sum().backward()
    assert scores.shape == (b, i, 19) and scores.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_nothing_is_changed_in_place():
    block = randomize(DecoderBlock(E, H, M))
    x, context = random(I, B, E).transpose(0, 1), random(J, B, E, seed=1).transpose(0, 1)
    kept = x.clone(), context.clone()
    both = block(x, context), block(x.contiguous(), context.contiguous())
    torch.testing.assert_close(*both, **CLOSE)
    with torch.no_grad():
        block(x, context).zero_()
    assert torch.equal(x, kept[0]) and torch.equal(context, kept[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_types(dtype):
    decoder = randomize(Decoder(2, E, H, M))
    x, context = random(B, I, E), random(B, J, E, seed=1)
    expected = decoder(x, context, causal_mask(I), REAL_SOURCE)
    result = decoder.to(dtype)(x.to(dtype), context.to(dtype), causal_mask(I), REAL_SOURCE)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), expected, rtol=0.15, atol=0.15)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: DecoderBlock(0, 2, 8), "DecoderBlock: embed_dim must be"),
    (lambda: DecoderBlock(6, 4, 8), "Pick num_heads from [1, 2, 3, 6]"),
    (lambda: DecoderBlock(4, 2, 0), "FeedForward: mlp_dim must be"),
    (lambda: DecoderBlock(4, 2, 8, activation="swish"), "Pass activation='gelu'"),
    (lambda: DecoderBlock(4, 2, 8, dropout=1.0), "dropout must be a number in [0, 1)"),
    (lambda: Decoder(0, 4, 2, 8), "Decoder: num_layers must be"),
    (lambda: DecoderBlock(E, H, M)(random(B, I, E), None), "DecoderBlock: context must be"),
    (lambda: DecoderBlock(E, H, M)(random(I, E), random(J, E)), "x.shape=(5, 12)"),
    (lambda: DecoderBlock(E, H, M)(random(B, I, E), random(3, J, E)), "context.shape=(3, 7, 12)"),
    (lambda: DecoderBlock(E, H, M)(random(B, I, E), random(B, J, 8)), "context.shape=(2, 7, 8)"),
    (
        lambda: DecoderBlock(E, H, M)(random(B, I, E), random(B, J, E), None, causal_mask(I)),
        "must broadcast to the scores (2, 3, 5, 7), got attn_mask.shape=(5, 5)",
    ),
    (lambda: Transformer(**{**SIZES, "source_size": 0}), "Transformer: source_size must be"),
    (lambda: Transformer(**{**SIZES, "target_size": 1.5}), "Transformer: target_size must be"),
    (lambda: Transformer(**{**SIZES, "num_decoder_layers": 0}), "Decoder: num_layers must be"),
    (lambda: Transformer(**SIZES, positions="rotary"), "TokenEmbedding: positions must be"),
    (lambda: transformer()(SOURCE[0], TARGET[0]), "ids[None]"),
    (lambda: transformer()(SOURCE + 9, TARGET), "TokenEmbedding: ids must lie between 0 and 22"),
    (lambda: transformer()(SOURCE, ids(19, B, 10)), "positions for 9 tokens, got 10"),
    (lambda: transformer()(SOURCE, TARGET[:1]), "got context.shape=(2, 7, 12)"),
    (
        lambda: transformer()(SOURCE, TARGET, REAL_SOURCE.float()),
        "Transformer: source_mask must be a boolean tensor, True = may attend, got torch.float32",
    ),
    (
        lambda: transformer()(SOURCE, TARGET, REAL_SOURCE[:, 0, 0]),
        "pass source_mask[:, None, None, :]",
    ),
    (
        lambda: transformer()(SOURCE, TARGET, causal_mask(J)),
        "source_mask must broadcast to the scores (2, 3, 1, 7)",
    ),
    (
        lambda: transformer()(SOURCE, TARGET, None, REAL_TARGET[:, 0, 0]),
        "Transformer: target_mask must broadcast to the scores (2, 3, 5, 5)",
    ),
    (lambda: transformer()(SOURCE, TARGET, None, REAL_TARGET.int()), "target_mask.bool()"),
]


@pytest.mark.parametrize("call, said", BAD, ids=[said for _, said in BAD])
def test_bad_input(call, said):
    assert said in error_of(call)
