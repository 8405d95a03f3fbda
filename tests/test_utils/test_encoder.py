"""Feed-forward, block and encoder: equal to PyTorch's, with both orders of the norm."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import CLOSE, child_names, error_of, random, randomize, torch_encoder
from utils.attention import record_attention
from utils.encoder import Encoder, EncoderBlock, FeedForward
from utils.masking import causal_mask, padding_mask

B, N, E, H, M = 2, 5, 12, 3, 20
MASKS = ["none", "causal", "padding", "both"]

orders = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
activations = pytest.mark.parametrize("activation", ["gelu", "relu"])
modes = pytest.mark.parametrize("training, activation", [(True, "relu"), (False, "gelu")])


def masks(name):
    """Return a mask for us and the same for PyTorch, where True means the opposite."""
    causal, padding = causal_mask(N), padding_mask(torch.tensor([3, N]), N)
    ours = {"none": None, "causal": causal, "padding": padding, "both": causal & padding}[name]
    theirs = {}
    if name in ("causal", "both"):
        theirs["mask"] = ~causal
    if name in ("padding", "both"):
        theirs["src_key_padding_mask"] = ~padding[:, 0, 0]
    return ours, theirs


def gradients(module, *inputs, **options):
    """Return the result, and the gradients of the first input and of every parameter."""
    module.zero_grad()
    x = inputs[0].clone().requires_grad_()
    result = module(x, *inputs[1:], **options)
    (result * random(*result.shape, seed=5)).sum().backward()
    return result.detach(), x.grad, {key: p.grad for key, p in module.named_parameters()}


@modes
@orders
@pytest.mark.parametrize("name", MASKS)
def test_encoder_equals_pytorch(name, norm_first, training, activation):
    ours = randomize(
        Encoder(3, E, H, M, norm_first=norm_first, activation=activation, norm_eps=1e-3)
    ).train(training)
    theirs = torch_encoder(ours)
    x = random(B, N, E)
    our_mask, their_mask = masks(name)
    result, x_grad, grads = gradients(ours, x, our_mask)
    expected, expected_x_grad, their_grads = gradients(theirs, x, **their_mask)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(x_grad, expected_x_grad, rtol=1e-4, atol=1e-4)
    for layer in ("layers.0.", "layers.1.", "layers.2."):
        for our_name, their_name in [
            ("mlp.fc1.weight", "linear1.weight"),
            ("mlp.fc2.weight", "linear2.weight"),
            ("norm1.weight", "norm1.weight"),
            ("norm2.bias", "norm2.bias"),
            ("attn.out_proj.weight", "self_attn.out_proj.weight"),
        ]:
            torch.testing.assert_close(
                grads[layer + our_name], their_grads[layer + their_name], rtol=1e-3, atol=5e-4
            )
    with torch.no_grad():  # PyTorch's own fast path, in eval
        torch.testing.assert_close(ours(x, our_mask), theirs(x, **their_mask), rtol=1e-5, atol=2e-5)


def test_defaults_are_those_of_the_design():
    block = EncoderBlock(E, H, M)
    assert block.norm_first and isinstance(block.mlp.act, nn.GELU)
    assert block.norm1.eps == block.norm2.eps == 1e-5
    assert block.dropout.p == block.attn.dropout == block.mlp.dropout.p == 0
    encoder = Encoder(2, E, H, M)
    assert isinstance(encoder.norm, nn.LayerNorm) and encoder.norm.eps == 1e-5
    assert isinstance(FeedForward(E, M).act, nn.GELU)


@orders
def test_arguments_reach_every_part(norm_first):
    encoder = Encoder(2, E, H, M, 0.3, norm_first, "relu", norm_eps=1e-7)
    assert encoder.norm.eps == 1e-7 if norm_first else not encoder.norm.state_dict()
    for block in encoder.layers:
        assert block.norm_first == norm_first
        assert block.dropout.p == block.attn.dropout == block.mlp.dropout.p == 0.3
        assert isinstance(block.mlp.act, nn.ReLU)
        assert block.norm1.eps == block.norm2.eps == 1e-7
        assert block.attn.num_heads == H and block.mlp.fc1.out_features == M


def test_registered_in_the_order_they_run():
    assert child_names(EncoderBlock(E, H, M)) == ["norm1", "attn", "norm2", "mlp", "dropout"]
    assert child_names(FeedForward(E, M)) == ["fc1", "act", "dropout", "fc2"]
    assert child_names(Encoder(1, E, H, M)) == ["layers", "norm"]


@activations
def test_feed_forward_is_two_linears_and_two_convolutions_of_width_1(activation):
    layer = randomize(FeedForward(E, M, activation=activation))
    x = random(B, N, E)
    bend = {"gelu": F.gelu, "relu": F.relu}[activation]
    by_hand = bend(x @ layer.fc1.weight.T + layer.fc1.bias) @ layer.fc2.weight.T + layer.fc2.bias
    torch.testing.assert_close(layer(x), by_hand, **CLOSE)
    inside = bend(F.conv1d(x.mT, layer.fc1.weight[..., None], layer.fc1.bias))
    by_conv = F.conv1d(inside, layer.fc2.weight[..., None], layer.fc2.bias).mT
    torch.testing.assert_close(layer(x), by_conv, **CLOSE)


# --- dropout


def test_dropout_works_at_all_three_places():
    """Make one place after another the only wet one: each alone must change the result."""
    x = random(B, N, E)
    for place in ["attn", "mlp.dropout", "dropout"]:
        block = randomize(EncoderBlock(E, H, M)).train()
        if place == "attn":
            block.attn.dropout = 0.5
        else:
            block.get_submodule(place).p = 0.5
        torch.manual_seed(0)
        assert (block(x) - block(x)).abs().max() > 1e-3, place
        assert torch.equal(block.eval()(x), block(x)), place


@orders
@pytest.mark.parametrize("part", ["attn", "mlp"])
def test_what_each_part_adds_is_dropped(part, norm_first):
    """Without norms, the other part silent, p = 0.5: half of what a part adds is exactly 0."""
    block = randomize(EncoderBlock(64, H + 1, M, norm_first=norm_first)).train()
    block.norm1 = block.norm2 = nn.Identity()
    silent = block.mlp.fc2 if part == "attn" else block.attn.out_proj
    nn.init.zeros_(silent.weight), nn.init.zeros_(silent.bias)
    x = random(8, 16, 64)
    full = (block(x) - x).detach()
    block.dropout.p = 0.5
    torch.manual_seed(0)
    added = (block(x) - x).detach()
    kept = added != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.03)
    torch.testing.assert_close(added[kept], 2 * full[kept], rtol=1e-4, atol=1e-4)


def test_feed_forward_drops_inner_values_after_the_bend():
    layer = FeedForward(1, 1000, dropout=0.25).train()
    nn.init.zeros_(layer.fc1.weight), nn.init.ones_(layer.fc1.bias)
    nn.init.constant_(layer.fc2.weight, 1 / 1000), nn.init.zeros_(layer.fc2.bias)
    bent = F.gelu(torch.tensor(1.0)).item()  # 0.84; dropped before the bend the mean would be 0.91
    torch.manual_seed(0)
    means = layer(torch.zeros(4, 50, 1)).detach()  # each is the mean of 1000 kept and scaled ones
    assert means.mean().item() == pytest.approx(bent, abs=0.01)
    assert 0.01 < means.std().item() < 0.021  # 0.84 * sqrt(0.25 / 0.75 / 1000) = 0.015
    assert layer.eval()(torch.zeros(1, 1, 1)).item() == pytest.approx(bent)


# --- sizes and errors


@orders
@pytest.mark.parametrize(
    "b, n, e, h, m", [(0, 3, 4, 2, 6), (1, 1, 1, 1, 1), (1, 9, 6, 1, 3), (2, 2, 6, 6, 5)]
)
def test_odd_sizes(b, n, e, h, m, norm_first):
    encoder = randomize(Encoder(2, e, h, m, norm_first=norm_first))
    x = random(b, n, e)
    result = encoder(x)
    result.sum().backward()
    assert result.shape == (b, n, e)
    with record_attention(encoder) as maps:
        torch.testing.assert_close(encoder(x), result, **CLOSE)
    assert [tuple(m.shape) for m in maps] == 2 * [(b, h, n, n)]


@orders
def test_any_memory_layout_and_nothing_in_place(norm_first):
    encoder = randomize(Encoder(2, E, H, M, norm_first=norm_first))
    x = random(N, B, E).transpose(0, 1)
    kept = x.clone()
    assert not x.is_contiguous()
    torch.testing.assert_close(encoder(x), encoder(x.contiguous()), **CLOSE)
    with torch.no_grad():
        encoder(x).zero_()
    assert torch.equal(x, kept)


@orders
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_types(dtype, norm_first):
    encoder = randomize(Encoder(2, E, H, M, norm_first=norm_first))
    x = random(B, N, E)
    expected = encoder(x, causal_mask(N))
    result = encoder.to(dtype)(x.to(dtype), causal_mask(N))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), expected, rtol=0.15, atol=0.15)


@pytest.mark.parametrize(
    "build, said",
    [
        (lambda: FeedForward(0, 4), "FeedForward: embed_dim must be"),
        (lambda: FeedForward(4, 0), "FeedForward: mlp_dim must be"),
        (lambda: FeedForward(4, 8, dropout=1.0), "FeedForward: dropout must be"),
        (
            lambda: FeedForward(4, 8, activation="swish"),
            "one of ['gelu', 'gelu_tanh',",
        ),
        (lambda: FeedForward(4, 8, activation=nn.GELU()), "Pass activation='gelu'"),
        (lambda: EncoderBlock(-4, 2, 8), "EncoderBlock: embed_dim must be"),
        (lambda: EncoderBlock(6, 4, 8), "Pick num_heads from [1, 2, 3, 6]"),
        (lambda: EncoderBlock(4, 2, 8.5), "FeedForward: mlp_dim must be"),
        (lambda: EncoderBlock(4, 2, 8, dropout=-1), "dropout must be a number in [0, 1)"),
        (lambda: Encoder(0, 4, 2, 8), "Encoder: num_layers must be"),
        (lambda: Encoder(2, 4, 3, 8), "Pick num_heads from [1, 2, 4]"),
    ],
)
def test_bad_arguments(build, said):
    assert said in error_of(build)


def test_tokens_and_masks_that_do_not_fit():
    encoder = Encoder(1, E, H, M)
    assert "x.shape=(5, 12)" in error_of(lambda: encoder(torch.zeros(N, E)))
    assert "x.shape=(2, 5, 7)" in error_of(lambda: FeedForward(E, M)(torch.zeros(B, N, 7)))
    x, attn_mask = random(B, N, E), padding_mask(torch.tensor([3, 5]), N)[:, 0, 0]
    text = error_of(lambda: encoder(x, attn_mask))
    assert "attn_mask[:, None, None, :]" in text
    encoder(x, attn_mask[:, None, None, :])
    assert "attn_mask.bool()" in error_of(lambda: encoder(x, attn_mask.float()))


def test_an_attention_and_a_block_of_ones_own_need_not_know_of_a_cache() -> None:
    class OwnAttention(nn.Module):
        def forward(self, x, context=None, attn_mask=None):
            return 2 * x

    class OwnBlock(nn.Module):
        def forward(self, x, attn_mask=None):
            return 3 * x

    x = random(2, 5, 12)
    for norm_first in (True, False):
        block = EncoderBlock(12, 3, 20, norm_first=norm_first)
        block.attn = OwnAttention()
        assert block(x).shape == x.shape
    encoder = Encoder(2, 12, 3, 20, norm_first=False)
    encoder.layers = nn.ModuleList([OwnBlock(), OwnBlock()])
    assert torch.allclose(encoder(x), 9 * x)
