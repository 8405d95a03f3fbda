"""The modern decoder: equal to Llama, Qwen2 and Qwen3 of transformers, and so is each part."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from checks.chapter_13 import long_speeds
from helpers import CLOSE, child_names, error_of, random, randomize
from utils.cache import KeyValueCache
from utils.modern_decoder import (
    GatedFeedForward,
    GroupedQueryAttention,
    ModernBlock,
    ModernDecoder,
    RMSNorm,
    RopeScaling,
    apply_rotary,
)

# batch, tokens, width, heads of queries and of keys, width of a head, inner width, vocabulary
B, N, E, H, G, D, M, V = 2, 7, 24, 6, 3, 8, 9, 13
KINDS = {"llama": {}, "qwen2": {"bias": True}, "qwen3": {"qk_norm": True}}
CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
}
kinds = pytest.mark.parametrize("kind", KINDS)
NAMES = {
    "embedding.tokens.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attn": "self_attn",
    "out_proj": "o_proj",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def decoder(kind="llama", seed=0, **changed):
    """Build a decoder with random weights."""
    sizes = {
        "vocab_size": V,
        "embed_dim": E,
        "num_heads": H,
        "num_kv_heads": G,
        "mlp_dim": M,
        "num_layers": 2,
        "head_dim": D,
        "rope_theta": 500.0,
        **KINDS[kind],
        **changed,
    }
    return randomize(ModernDecoder(**sizes), seed).eval()


def theirs_of(ours, kind):
    """Build the model of transformers that has our sizes and our weights."""
    first = ours.layers[0].attn
    config, model = (getattr(transformers, name) for name in CLASSES[kind])
    tied = ours.head.weight is ours.embedding.tokens.weight
    theirs = model(
        config(
            vocab_size=ours.embedding.vocab_size,
            hidden_size=first.embed_dim,
            num_attention_heads=first.num_heads,
            num_key_value_heads=first.num_kv_heads,
            head_dim=first.q_proj.out_features // first.num_heads,
            intermediate_size=ours.layers[0].mlp.gate_proj.out_features,
            num_hidden_layers=len(ours.layers),
            rms_norm_eps=ours.norm.eps,
            rope_parameters={"rope_type": "default", "rope_theta": first.rope_theta},
            tie_word_embeddings=tied,
            max_position_embeddings=512,
        )
    ).eval()
    theirs.load_state_dict({their_name(name): value for name, value in ours.state_dict().items()})
    return theirs


def their_name(name):
    """Translate the name of a parameter, part by part."""
    if name in ("norm.weight", "head.weight"):
        return NAMES[name]
    for old in ("embedding.tokens.", "layers.", "norm1", "norm2", "attn", "out_proj"):
        name = name.replace(old, NAMES[old])
    return name


def ids_of(b=B, n=N, vocabulary=V, seed=0):
    return torch.randint(vocabulary, (b, n), generator=torch.Generator().manual_seed(seed))


# --- the whole equals transformers


@kinds
@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_equals_transformers_in_values_and_gradients(kind, padding, tied):
    ours = decoder(kind, tie_weights=tied)
    theirs = theirs_of(ours, kind)
    ids = ids_of()
    real = torch.ones(B, N, dtype=torch.bool)
    if padding != "none":
        real[0, -3:] = False
    if padding == "left":
        real = real.flip(1)
    mask = None if padding == "none" else real[:, None, None, :]
    result, expected = ours(ids, mask), theirs(ids, attention_mask=real.long()).logits
    torch.testing.assert_close(result[real], expected[real], **CLOSE)
    weights = random(B, N, V, seed=3) * real[..., None]
    (result * weights).sum().backward()
    (expected * weights).sum().backward()
    found = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        scale = float(found[their_name(name)].grad.abs().max()) + 1
        torch.testing.assert_close(
            parameter.grad / scale, found[their_name(name)].grad / scale, **CLOSE
        )


@kinds
@pytest.mark.parametrize("steps", [(4, 3), (3, 1, 1, 2)], ids=str)
def test_a_cache_changes_nothing_and_equals_theirs(kind, steps):
    ours = decoder(kind)
    theirs = theirs_of(ours, kind)
    ids = ids_of()
    with torch.no_grad():
        whole = ours(ids)
        ours_kept, theirs_kept = KeyValueCache(), transformers.DynamicCache()
        for part in ids.split(steps, dim=1):
            begin = ours_kept.length
            result = ours(part, cache=ours_kept)
            expected = theirs(part, past_key_values=theirs_kept, use_cache=True).logits
            torch.testing.assert_close(result, expected, **CLOSE)
            torch.testing.assert_close(result, whole[:, begin : ours_kept.length], **CLOSE)
    for layer, kept in zip(ours.layers, theirs_kept.layers, strict=True):
        none = torch.empty(B, G, 0, D)
        k, v = ours_kept.update(layer.attn, none, none)
        assert k.shape == (B, G, N, D), "what is kept are the heads of keys, not those of queries"
        torch.testing.assert_close(k, kept.keys, **CLOSE)
        torch.testing.assert_close(v, kept.values, **CLOSE)


# --- its parts


def test_rms_norm_equals_pytorch_in_values_and_gradients():
    ours, theirs = randomize(RMSNorm(E, eps=1e-3)), nn.RMSNorm(E, eps=1e-3)
    theirs.load_state_dict(ours.state_dict())
    for shape in [(B, N, E), (E,), (B, H, N, E), (0, E)]:
        x, y = (random(*shape).requires_grad_() for _ in range(2))
        torch.testing.assert_close(ours(x), theirs(y), **CLOSE)
        (ours(x) ** 2).sum().backward()
        (theirs(y) ** 2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_of_half_precision_does_not_overflow(dtype):
    x = (1000 * random(3, E)).to(dtype)
    torch.testing.assert_close(RMSNorm(E)(x).float(), RMSNorm(E)(x.float()), rtol=0.02, atol=0.02)
    assert RMSNorm(E).to(dtype)(x).dtype == dtype


def test_gated_feed_forward_by_hand():
    layer, x = randomize(GatedFeedForward(E, M)), random(B, N, E)
    gate, value = x @ layer.gate_proj.weight.T, x @ layer.up_proj.weight.T
    by_hand = (gate * torch.sigmoid(gate) * value) @ layer.down_proj.weight.T
    torch.testing.assert_close(layer(x), by_hand, **CLOSE)
    assert sum(p.numel() for p in layer.parameters()) == 3 * E * M


def test_rotate_is_one_2_by_2_rotation_for_each_pair():
    """In double precision, as exact as that."""
    x = random(B, H, N, D, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 4, 1, 0, 7, 7, 2]])
    for given_positions in (positions, positions[1]):
        turned = apply_rotary(x, given_positions, rope_theta=50.0)
        for b, h, n in [(0, 0, 0), (0, 5, 6), (1, 2, 0), (1, 0, 5)]:
            place = float(given_positions.expand(B, N)[b, n])
            for pair in range(D // 2):
                angle = torch.tensor(place * 50.0 ** (-2 * pair / D), dtype=torch.float64)
                matrix = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()])
                pair_of = [pair, pair + D // 2]
                torch.testing.assert_close(
                    turned[b, h, n, pair_of], matrix.view(2, 2) @ x[b, h, n, pair_of]
                )


def test_rotary_at_position_0_does_nothing_and_half_precision_knows_far_positions():
    x = random(B, H, N, D)
    assert torch.equal(apply_rotary(x, torch.zeros(N, dtype=torch.long)), x)
    far = torch.arange(4000, 4000 + N)
    coarse = apply_rotary(x.bfloat16(), far)
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), apply_rotary(x, far), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("n, base", [(1_024, 10_000.0), (40_960, 500_000.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_is_that_of_transformers_to_the_bit(n, base, dtype):
    rope = {"rope_type": "default", "rope_theta": base}
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(head_dim=16, rope_parameters=rope))
    q, k = random(1, 2, n, 16).to(dtype), random(1, 1, n, 16, seed=1).to(dtype)
    cos, sin = theirs(q, torch.arange(n)[None])
    for mine, other in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(apply_rotary(mine, torch.arange(n), base), other)


def test_scaled_rotary_and_the_speeds_of_exercise_6_are_those_of_transformers():
    rope = {"rope_type": "llama3", "rope_theta": 10_000.0, "original_max_position_embeddings": 512}
    rope |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(head_dim=64, rope_parameters=rope))
    q = random(1, 2, 300, 64)
    expected, _ = apply_rotary_pos_emb(q, q, *theirs(q, torch.arange(300)[None]))
    scaled = apply_rotary(q, torch.arange(300), rope_scaling=RopeScaling(8.0, 1.0, 4.0, 512))
    torch.testing.assert_close(scaled, expected, rtol=1e-4, atol=1e-4)
    assert (apply_rotary(q, torch.arange(300)) - expected).abs().max() > 0.1
    speeds = 10_000.0 ** (-torch.arange(0, 64, 2) / 64)
    ours = long_speeds(speeds, 8.0, 1.0, 4.0, 512)
    torch.testing.assert_close(ours, theirs.inv_freq, **CLOSE)
    assert 0 < int((ours == speeds).sum()) < 32 and (ours[-1] == speeds[-1] / 8).all()


# --- properties of the whole


def test_registered_in_the_order_they_run_and_what_is_untied():
    model = decoder()
    assert child_names(model) == ["embedding", "layers", "norm", "head"]
    block = model.layers[0]
    assert child_names(block) == ["norm1", "attn", "norm2", "mlp"]
    attention = ["q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "out_proj"]
    assert child_names(block.attn) == attention
    assert child_names(block.mlp) == ["gate_proj", "act", "up_proj", "down_proj"]
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert model.head.weight is not model.embedding.tokens.weight
    tied, untied = (
        sum(p.numel() for p in decoder(tie_weights=tied).parameters()) for tied in (True, False)
    )
    assert untied - tied == V * E
    biased = [name for name, _ in decoder("qwen2").named_parameters() if "bias" in name]
    assert len(biased) == 2 * 3 and not any("out_proj" in name for name in biased)


def test_half_precision_and_state_dict():
    ours, ids = decoder("qwen3"), ids_of()
    again = decoder("qwen3", seed=5)
    again.load_state_dict(ours.state_dict())
    torch.testing.assert_close(again(ids), ours(ids), rtol=0, atol=0)
    coarse = ours(ids)
    result = again.bfloat16()(ids)
    assert result.dtype == torch.bfloat16
    assert F.cosine_similarity(result.float().flatten(), coarse.flatten(), dim=0) > 0.99


# --- errors


@pytest.mark.parametrize(
    "build, said",
    [
        (lambda: RMSNorm(0), "RMSNorm: width must be"),
        (lambda: GatedFeedForward(4, 0), "GatedFeedForward: mlp_dim must be"),
        (lambda: GroupedQueryAttention(12, 6, 4), "Pick num_kv_heads from [1, 2, 3, 6]"),
        (lambda: GroupedQueryAttention(12, 2, 4), "num_heads=2 and num_kv_heads=4"),
        (lambda: GroupedQueryAttention(12, 4, 4), "head_dim must be even"),
        (lambda: GroupedQueryAttention(12, 4, 4), "got head_dim=3. Take 4."),
        (lambda: GroupedQueryAttention(12, 4, 2, head_dim=5), "got head_dim=5"),
        (lambda: GroupedQueryAttention(12, 5, 5), "embed_dim=12 and num_heads=5"),
        (lambda: GroupedQueryAttention(12, 2, 1, head_dim=0), "head_dim must be an integer"),
        (
            lambda: GroupedQueryAttention(12, 2, 1, rope_theta=0),
            "rope_theta must be a number in (0, inf)",
        ),
        (lambda: GroupedQueryAttention(12, 2, 0), "num_kv_heads must be an integer"),
        (lambda: ModernBlock(0, 2, 1, 8), "ModernBlock: embed_dim must be"),
        (lambda: decoder(num_layers=0), "ModernDecoder: num_layers must be"),
        (lambda: decoder(vocab_size=0), "ModernDecoder: vocab_size must be"),
        (lambda: decoder(head_dim=7), "got head_dim=7"),
        (lambda: RMSNorm(4, eps=-1e-6), "eps must be a number in [0, inf), got eps=-1e-06"),
        (lambda: decoder(num_kv_heads=4), "Pick num_kv_heads from [1, 2, 3, 6]"),
    ],
)
def test_bad_arguments(build, said):
    assert said in error_of(build)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: apply_rotary(random(B, H, N, 5), torch.arange(N)), "apply_rotary: d must be even"),
        (lambda: apply_rotary(random(B, N, D), torch.arange(N)), "Split into heads first"),
        (lambda: apply_rotary(random(B, H, N, D), torch.arange(N - 1)), "torch.arange(7)"),
        (lambda: apply_rotary(random(B, H, N, D), torch.zeros(B + 1, N)), "(7,) or (2, 7)"),
        (
            lambda: apply_rotary(random(B, H, N, D), torch.arange(N), rope_theta=-1),
            "got rope_theta=-1",
        ),
        (lambda: RMSNorm(4)(random(2, 5)), "RMSNorm: x must have shape (..., 4)"),
        (lambda: GatedFeedForward(4, 8)(random(2, 4)), "(b, n, e=4)"),
        (lambda: GroupedQueryAttention(12, 2, 1)(random(2, 12)), "tokens[None]"),
        (
            lambda: GroupedQueryAttention(12, 2, 1)(random(2, 3, 12), torch.ones(2, 3)),
            "attn_mask must be a boolean tensor",
        ),
        (
            lambda: ModernBlock(E, H, G, M)(random(B, N, E), cache=KeyValueCache()),
            "with a cache the positions must be given",
        ),
        (lambda: decoder()(ids_of()[0]), "ids[None]"),
        (lambda: decoder()(ids_of().float()), "ids.long()"),
        (lambda: decoder()(ids_of() + 1), "ids must lie between 0 and 12, got 13"),
        (lambda: decoder()(ids_of() - 2), "between 0 and 12, got -1"),
        (lambda: decoder()(ids_of(), positions=torch.arange(N) - 1), "0 and 16777215, got -1"),
        (lambda: decoder()(ids_of(), positions=torch.ones(N)), "positions.long()"),
        (lambda: decoder()(ids_of()[:, :0]), "at least one token, got ids.shape=(2, 0)"),
        (lambda: decoder()(ids_of(), torch.ones(B, N) > 0), "attn_mask[:, None, None, :]"),
    ],
)
def test_inputs_that_do_not_fit(call, said):
    assert said in error_of(call)
