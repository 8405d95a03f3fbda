"""Latent attention: equal to transformers', both forms equal, and a cache of latents only."""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from helpers import CLOSE, error_of, random, randomize, same_and_backward
from utils.attention import record_attention
from utils.cache import KeyValueCache
from utils.latent_attention import LatentAttention
from utils.masking import causal_mask

# batch, tokens, width, heads, plain and rotary numbers, values, latent, latent of queries
B, N, E, H, D, R, DV, L, Q = 2, 7, 12, 3, 6, 4, 5, 8, 10
SIZES = {"head_dim": D, "rotary_dim": R, "value_dim": DV, "latent_dim": L, "rope_theta": 50.0}
# ours -> theirs, without and with a latent of the queries
BOTH = {
    "kv_down": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "kv_up": "kv_b_proj",
    "out_proj": "o_proj",
}
NAMES = {
    None: {**BOTH, "q_proj": "q_proj"},
    Q: {**BOTH, "q_proj.0": "q_a_proj", "q_proj.1": "q_a_layernorm", "q_proj.2": "q_b_proj"},
}
latents = pytest.mark.parametrize("latent", NAMES)
forms = pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])


def attention(latent=Q, **changed):
    options = {**SIZES, "query_latent_dim": latent, **changed}
    return randomize(LatentAttention(E, H, **options))


def theirs_of(ours, latent):
    """Build the attention of transformers with our weights, and its rotary angles."""
    config = DeepseekV3Config(
        hidden_size=E,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=latent,
        kv_lora_rank=L,
        qk_nope_head_dim=D,
        qk_rope_head_dim=R,
        v_head_dim=DV,
        rope_interleave=False,
        rope_parameters={"rope_type": "default", "rope_theta": SIZES["rope_theta"]},
        attn_implementation="eager",
    )
    theirs = DeepseekV3Attention(config, 0)
    pairs = {f"{other}.weight": f"{mine}.weight" for mine, other in NAMES[latent].items()}
    state = ours.state_dict()
    theirs.load_state_dict({other: state[mine] for other, mine in pairs.items()})
    return theirs, DeepseekV3RotaryEmbedding(config), pairs


@latents
@forms
def test_equals_transformers_in_values_and_gradients(latent, absorbed):
    ours = attention(latent, absorbed=absorbed)
    theirs, rotary, pairs = theirs_of(ours, latent)
    x = random(B, N, E, seed=1).requires_grad_()
    other = x.detach().clone().requires_grad_()
    mask = causal_mask(N)
    added = torch.zeros(1, 1, N, N).masked_fill(~mask, -torch.inf)
    result = ours(x, mask)
    expected, _ = theirs(other, rotary(other, torch.arange(N)[None]), added)
    same_and_backward(result, expected, x, other)
    mine, found = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for name, ours_name in pairs.items():
        scale = float(found[name].grad.abs().max()) + 1
        torch.testing.assert_close(mine[ours_name].grad / scale, found[name].grad / scale, **CLOSE)


@torch.no_grad()
@latents
@forms
def test_the_cache_holds_latents_and_rotary_keys_and_changes_nothing(latent, absorbed):
    ours, x, cache = attention(latent, absorbed=absorbed), random(B, N, E), KeyValueCache()
    mask, parts = causal_mask(N), []
    for start, end in ((0, 4), (4, 5), (5, 7)):
        positions = torch.arange(start, end)
        parts.append(ours(x[:, start:end], mask[start:end, :end], positions, cache))
    torch.testing.assert_close(torch.cat(parts, dim=1), ours(x, mask), **CLOSE)
    assert cache.nbytes == B * N * (L + R) * 4
    # what heads of keys and values would take
    assert cache.nbytes < B * N * H * (D + R + DV) * 4 / 3


@torch.no_grad()
def test_both_forms_agree_with_masks_and_positions_of_each_row():
    ours, x = attention(), random(B, N, E)
    mask = random(B, H, N, N, seed=3) > 0
    mask[..., 0] = True
    positions = torch.stack([torch.arange(N), 2 * torch.arange(N) + 5])
    plain = ours(x, mask, positions)
    ours.absorbed = True
    torch.testing.assert_close(ours(x, mask, positions), plain, **CLOSE)
    assert not torch.allclose(ours(x, mask), plain, atol=1e-3)
    # only distances count
    torch.testing.assert_close(ours(x, mask, positions + 3), plain, rtol=1e-4, atol=1e-4)


def test_the_absorbed_form_computes_no_keys_of_heads(monkeypatch):
    ours, x = attention(absorbed=True), random(B, N, E)
    expected = ours(x)
    monkeypatch.setattr(ours.kv_up, "forward", None)
    torch.testing.assert_close(ours(x), expected)
    ours.absorbed = False
    with pytest.raises(TypeError):
        ours(x)


@torch.no_grad()
@forms
def test_attention_can_be_recorded(absorbed):
    ours, x, mask = attention(absorbed=absorbed), random(B, N, E), causal_mask(N)
    expected = ours(x, mask)
    with record_attention(ours) as maps:
        torch.testing.assert_close(ours(x, mask), expected, **CLOSE)
    assert maps[0].shape == (B, H, N, N)
    torch.testing.assert_close(maps[0].sum(dim=-1), torch.ones(B, H, N))


BAD = [
    ({"head_dim": 0}, "head_dim=0"),
    ({"rotary_dim": 3}, "rotary_dim must be even"),
    ({"value_dim": 1.5}, "value_dim=1.5"),
    ({"latent_dim": 0}, "latent_dim=0"),
    ({"query_latent_dim": 0}, "query_latent_dim=0"),
    ({"rope_theta": 0.0}, "rope_theta"),
]


@pytest.mark.parametrize("changed, said", BAD, ids=str)
def test_bad_sizes(changed, said):
    assert said in error_of(lambda: LatentAttention(E, H, **{**SIZES, **changed}))


def test_bad_calls():
    ours = attention()
    assert "e=12" in error_of(lambda: ours(torch.zeros(B, N, E + 1)))
    assert "positions must be given" in error_of(
        lambda: ours(torch.zeros(B, N, E), cache=KeyValueCache())
    )
    assert "attn_mask" in error_of(lambda: ours(torch.zeros(B, N, E), torch.ones(N, N)))
