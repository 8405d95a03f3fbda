"""Windows, sinks and rolling caches: equal to transformers', and decoding changes nothing."""

import copy

import pytest
import torch
from transformers import Gemma3TextConfig, GptOssConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3Attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from helpers import CLOSE, error_of, random, randomize, same_and_backward
from utils.attention import record_attention
from utils.cache import KeyValueCache
from utils.masking import causal_mask
from utils.modern_decoder import GroupedQueryAttention, ModernBlock, ModernDecoder, RopeScaling
from utils.rotary import apply_rotary

# batch, tokens, width, heads of queries and of keys, width of a head, window
B, N, E, H, G, D, W = 2, 9, 12, 4, 2, 6, 3
SIZES = {"embed_dim": E, "num_heads": H, "num_kv_heads": G, "head_dim": D, "rope_theta": 50.0}
THEIRS = {
    "hidden_size": E,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": W,
    "attn_implementation": "eager",
}


def window_mask(n=N, window=W):
    """Return by hand which key each query may attend to."""
    return torch.tensor([[0 <= i - j < window for j in range(n)] for i in range(n)])


def rotary(config, x):
    """Return their angles, from Llama's module: all of them have the same."""
    config = copy.deepcopy(config)
    config.rope_parameters = {"rope_type": "default", "rope_theta": SIZES["rope_theta"]}
    return LlamaRotaryEmbedding(config)(x, torch.arange(N)[None])


@pytest.mark.parametrize("layer, window", [(0, W), (1, None)], ids=["local", "global"])
@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss"])
def test_equals_transformers_in_values_and_gradients(kind, layer, window):
    if kind == "gemma3":
        config = Gemma3TextConfig(**THEIRS, query_pre_attn_scalar=D)
        ours = GroupedQueryAttention(**SIZES, qk_norm=True, window=window)
        theirs = randomize(Gemma3Attention(config, layer))
    else:
        config = GptOssConfig(**THEIRS, attention_bias=False)
        ours = GroupedQueryAttention(**SIZES, sinks=True, window=window)
        theirs = randomize(GptOssAttention(config, layer))
    pairs = {name: name.replace("o_proj", "out_proj") for name, _ in theirs.named_parameters()}
    state = {pairs[name]: value.clone() for name, value in theirs.state_dict().items()}
    if kind == "gemma3":  # its norms multiply by 1 + weight
        state |= {name: 1 + value for name, value in state.items() if "norm" in name}
    ours.load_state_dict(state)
    x = random(B, N, E, seed=1).requires_grad_()
    other = x.detach().clone().requires_grad_()
    mask = causal_mask(N) if window is None else window_mask()
    added = torch.zeros(1, 1, N, N).masked_fill(~mask, -torch.inf)
    angles = rotary(config, other)
    if kind == "gpt_oss":  # each angle once
        angles = tuple(part.chunk(2, dim=-1)[0] for part in angles)
    result, (expected, _) = ours(x, causal_mask(N)), theirs(other, angles, added)
    same_and_backward(result, expected, x, other)
    mine = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(mine[pairs[name]].grad, parameter.grad, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("sinks", [False, True])
def test_a_window_is_a_mask_and_is_recorded(sinks):
    local = randomize(GroupedQueryAttention(**SIZES, window=W, sinks=sinks))
    full = randomize(GroupedQueryAttention(**SIZES, sinks=sinks))
    x = random(B, N, E)
    torch.testing.assert_close(local(x, causal_mask(N)), full(x, window_mask()), **CLOSE)
    assert not torch.allclose(local(x, causal_mask(N)), full(x, causal_mask(N)), atol=0.01)
    with record_attention(local) as maps:
        torch.testing.assert_close(local(x, causal_mask(N)), full(x, window_mask()), **CLOSE)
    assert torch.equal(maps[0] > 0, window_mask().expand(B, H, N, N))


@torch.no_grad()
def test_sinks_by_hand_take_a_part_of_each_row():
    ours, x = randomize(GroupedQueryAttention(**SIZES, sinks=True)), random(B, N, E)
    ours.sinks.copy_(torch.tensor([-30.0, -1.0, 1.0, 30.0]))
    with record_attention(ours) as maps:
        result = ours(x, causal_mask(N))
    scores = torch.einsum("bhid,bhjd->bhij", maps.queries[0], maps.keys[0]) / D**0.5
    exps = scores.exp().tril()
    expected = exps / (exps.sum(dim=-1, keepdim=True) + ours.sinks.exp()[:, None, None])
    torch.testing.assert_close(maps[0], expected, **CLOSE)
    total = maps[0].sum(dim=-1)
    torch.testing.assert_close(total[:, 0], torch.ones(B, N), **CLOSE)
    assert total[:, 1].mean() > total[:, 2].mean() and (total[:, 3] < 1e-6).all()
    # without any sink the same weights sum to 1
    ours.sinks.fill_(-torch.inf)
    plain = GroupedQueryAttention(**SIZES)
    plain.load_state_dict({n: v for n, v in ours.state_dict().items() if n != "sinks"})
    torch.testing.assert_close(ours(x, causal_mask(N)), plain(x, causal_mask(N)), **CLOSE)
    assert result.isfinite().all()


def test_a_fully_masked_row_gives_0_with_a_finite_gradient():
    ours = randomize(GroupedQueryAttention(**SIZES, sinks=True, window=W))
    x, mask = random(B, N, E).requires_grad_(), causal_mask(N).clone()
    mask[4] = False
    result = ours(x, mask)
    assert (result[:, 4] == 0).all() and result.isfinite().all()
    result.sum().backward()
    assert x.grad.isfinite().all() and ours.sinks.grad.isfinite().all()


def mixed(windows=(W, None, 2)):
    """Build a decoder with local and global layers in turn."""
    sizes = {**SIZES, "vocab_size": 11, "mlp_dim": 8, "num_layers": len(windows)}
    model = ModernDecoder(**sizes)
    blocks = [ModernBlock(**SIZES, mlp_dim=8, window=window) for window in windows]
    model.layers = torch.nn.ModuleList(blocks)
    return randomize(model).eval()


def ids_of(n=N, seed=0):
    return torch.randint(11, (B, n), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("rolling, padded", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("steps", [(1,) * N, (5, 1, 1, 1, 1), (2, 4, 3)], ids=str)
def test_decoding_equals_one_pass(steps, rolling, padded):
    """Also parts that are longer than the window: their first token looks back into the cache."""
    model, ids, cache = mixed(), ids_of(), KeyValueCache(rolling=rolling)
    real = torch.ones(B, N, dtype=torch.bool)
    real[1, :2] = not padded
    parts, start = [], 0
    for part in ids.split(steps, dim=1):
        end = start + part.shape[1]
        parts.append(model(part, real[:, None, None, :end], cache=cache))
        assert cache.length == end
        start = end
    whole = model(ids, real[:, None, None])
    torch.testing.assert_close(torch.cat(parts, dim=1)[real], whole[real], **CLOSE)


@torch.no_grad()
def test_a_rolling_cache_returns_all_and_keeps_the_last():
    layer, cache = GroupedQueryAttention(**SIZES, window=W), KeyValueCache(rolling=True)
    k = torch.arange(8.0).reshape(1, 1, 8, 1)
    given = [cache.update(layer, part, -part) for part in k.split([4, 1, 3], dim=2)]
    assert [one.flatten().tolist() for one, _ in given] == [
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [2, 3, 4, 5, 6, 7],
    ]
    assert all(torch.equal(one, -other) for one, other in given)
    assert cache.length == 8 and cache.nbytes == 2 * W * 4


@torch.no_grad()
def test_reorder_copy_and_crop_of_a_rolling_cache():
    model, ids = mixed(), ids_of()
    cache = KeyValueCache(rolling=True)
    model(ids[:, :6], cache=cache)
    other = copy.copy(cache)
    cache.reorder(torch.tensor([1, 0]))
    assert cache.length == 6
    late = model(ids[[1, 0], 6:], cache=cache)
    torch.testing.assert_close(late, model(ids)[[1, 0], 6:], **CLOSE)
    torch.testing.assert_close(model(ids[:, 6:], cache=other), model(ids)[:, 6:], **CLOSE)
    other.crop(9)
    assert "rolling cache has dropped" in error_of(lambda: other.crop(7))
    other.crop(0)
    assert (other.length, other.nbytes) == (0, 0)
    short = KeyValueCache(rolling=True)
    model(ids[:, :2], cache=short)  # no layer has dropped anything
    short.crop(1)
    torch.testing.assert_close(model(ids[:, 1:], cache=short), model(ids)[:, 1:], **CLOSE)


def test_bad_windows():
    for bad in (0, -1, 1.5, True):
        assert "window" in error_of(lambda bad=bad: GroupedQueryAttention(**SIZES, window=bad))


def test_yarn_leaves_fast_pairs_and_slows_the_others_down():
    x, positions = random(1, 1, 5, 64), torch.arange(5)
    yarn = RopeScaling(8.0, 1.0, 32.0, 4096, by_number=True, attention_factor=1.5)
    ones = torch.ones(32)
    rates = yarn.slow_down(ones * 10_000.0 ** (-torch.arange(32) / 32), 10_000.0)
    rates = rates / 10_000.0 ** (-torch.arange(32) / 32)
    assert (rates[:8] == 1).all() and (rates[-8:] == 1 / 8).all()
    assert (rates.diff() <= 0).all()
    torch.testing.assert_close(
        apply_rotary(x, positions, rope_scaling=yarn).norm(), x.norm() * 1.5, **CLOSE
    )
