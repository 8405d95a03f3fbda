"""Rollout and relevance against loops, what they mean, and heads that are really gone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import CLOSE, error_of, random, randomize
from utils.attention import record_attention
from utils.decoder import Transformer
from utils.encoder import Encoder
from utils.modern_decoder import ModernDecoder
from utils.seeing import ablate_heads, attention_rollout, class_token_attention, relevance

tried = settings(max_examples=30, deadline=None, derandomize=True, database=None)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))


def some_maps(b=2, h=3, n=5, layers=3, seed=0):
    return [random(b, h, n, n, seed=seed + k).double().softmax(dim=-1) for k in range(layers)]


# --- rollout, relevance


@tried
@given(sizes, st.integers(0, 99))
def test_rollout_is_a_walk(size, seed):
    """Sum over all ways from i to j: stay or look, layer by layer."""
    b, h, n, layers = size
    maps = some_maps(b, h, n, layers, seed)
    path = attention_rollout(maps)
    for picture in range(b):
        chances = [[float(i == j) for j in range(n)] for i in range(n)]
        for weights in maps:
            look = weights[picture].mean(dim=0).tolist()
            chances = [
                [
                    chances[i][j] / 2 + sum(look[i][m] * chances[m][j] for m in range(n)) / 2
                    for j in range(n)
                ]
                for i in range(n)
            ]
        torch.testing.assert_close(path[picture], torch.tensor(chances, dtype=torch.float64))
    torch.testing.assert_close(path.sum(dim=-1), torch.ones(b, n, dtype=torch.float64))


def test_relevance_by_a_loop():
    maps, gradients = some_maps(), [random(2, 3, 5, 5, seed=9 + k).double() for k in range(3)]
    path = torch.eye(5, dtype=torch.float64).repeat(2, 1, 1)
    for weights, gradient in zip(maps, gradients, strict=True):
        gained = torch.zeros(2, 5, 5, dtype=torch.float64)
        for head in range(3):
            gained += (weights[:, head] * gradient[:, head]).clamp(min=0) / 3
        path = torch.stack([p + g @ p for p, g in zip(path, gained, strict=True)])
    torch.testing.assert_close(relevance(maps, gradients), path)


def test_a_score_that_gains_from_nothing_leaves_every_token_itself():
    maps = some_maps()
    path = relevance(maps, [-torch.ones_like(weights) for weights in maps])
    torch.testing.assert_close(path, torch.eye(5, dtype=torch.float64).expand(2, 5, 5))
    assert not class_token_attention(path).any(), "0, and no division by 0"


def test_weight_times_gradient_is_what_a_linear_score_loses():
    """One layer, its result read linearly: gradient times weight sums to the score."""
    layer = randomize(Encoder(1, 12, 3, 8)).layers[0].attn
    x, reader = random(2, 5, 12), random(12, seed=4)
    torch.nn.init.zeros_(layer.out_proj.bias)
    with record_attention(layer, gradients=True) as maps:
        score = (layer(x)[:, 0] @ reader).sum()
    (gradient,) = torch.autograd.grad(score, list(maps))
    torch.testing.assert_close((maps[0] * gradient).sum(), score, **CLOSE)


def test_shares_of_the_class_token():
    path = torch.tensor([[[0.5, 0.125, 0.375], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    torch.testing.assert_close(class_token_attention(path), torch.tensor([[0.25, 0.75]]))


# --- recording more than weights


def models():
    yield randomize(Encoder(2, 12, 3, 8)), (random(2, 5, 12),), 3
    decoder = ModernDecoder(
        vocab_size=9, embed_dim=12, num_heads=6, num_kv_heads=2, mlp_dim=8, num_layers=2, head_dim=4
    )
    yield randomize(decoder), (torch.arange(10).reshape(2, 5) % 9,), 6
    both = Transformer(
        source_size=7, target_size=9, embed_dim=12, num_heads=3, mlp_dim=8, num_encoder_layers=1,
        num_decoder_layers=2, max_length=8,
    )  # fmt: skip
    yield (
        randomize(both),
        (torch.ones(2, 6, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)),
        3,
    )


@pytest.mark.parametrize("place", range(3), ids=["encoder", "grouped", "both sides"])
def test_queries_and_keys_give_the_recorded_weights(place):
    model, inputs, heads = list(models())[place]
    plain = model(*inputs)
    with record_attention(model.eval()) as maps:
        torch.testing.assert_close(model(*inputs), plain, **CLOSE)
    assert len(maps) == len(maps.queries) == len(maps.keys) > 1
    for weights, q, k in zip(maps, maps.queries, maps.keys, strict=True):
        assert q.shape[1] == k.shape[1] == weights.shape[1] == heads
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if weights.shape[2] == weights.shape[3] and (weights[0, 0].triu(1) == 0).all():
            scores = scores.masked_fill(weights == 0, -torch.inf)  # causal
        torch.testing.assert_close(scores.softmax(dim=-1), weights, **CLOSE)
        assert not (q.requires_grad or k.requires_grad or weights.requires_grad)


def test_gradients_reach_the_maps():
    model, inputs, _ = next(models())
    with record_attention(model, gradients=True) as maps:
        score = model(*inputs)[:, 0].square().sum()
    gradients = torch.autograd.grad(score, list(maps))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


# --- heads taken away


@pytest.mark.parametrize("place", range(2), ids=["encoder", "grouped"])
def test_a_head_that_is_taken_away_is_one_whose_output_columns_are_0(place):
    model, inputs, heads = list(models())[place]
    plain = model(*inputs)
    with ablate_heads(model, [(0, 1), (1, 0), (1, 2)]):
        changed = model(*inputs)
    assert not torch.allclose(changed, plain, atol=1e-3)
    torch.testing.assert_close(model(*inputs), plain, rtol=0, atol=0)
    with torch.no_grad():
        for layer, gone in enumerate([[1], [0, 2]]):
            columns = model.layers[layer].attn.out_proj.weight.unflatten(1, (heads, -1))
            columns[:, gone] = 0
    torch.testing.assert_close(model(*inputs), changed, **CLOSE)


def test_hooks_go_after_an_exception_and_nobody_gone_changes_nothing():
    model, inputs, _ = next(models())
    plain = model(*inputs)
    with pytest.raises(RuntimeError), ablate_heads(model, [(0, 0)]):
        raise RuntimeError("stop")
    torch.testing.assert_close(model(*inputs), plain, rtol=0, atol=0)
    with ablate_heads(model, []):
        torch.testing.assert_close(model(*inputs), plain, rtol=0, atol=0)


# --- bad input


def test_bad_input():
    maps = some_maps()
    for call, said in [
        (lambda: attention_rollout([]), "attention_rollout: maps must be one"),
        (lambda: attention_rollout([maps[0], maps[1][:, :2]]), "all alike"),
        (lambda: attention_rollout([maps[0][:, :, :2]]), "self-attention"),
        (lambda: attention_rollout([maps[0].mean(dim=1)]), "(b, h, n, n)"),
        (lambda: relevance(maps, maps[:2]), "gradients=True"),
        (lambda: relevance([], []), "relevance: maps"),
        (lambda: class_token_attention(maps[0]), "class_token_attention: paths"),
        (
            lambda: ablate_heads(Encoder(2, 8, 2, 8), [(2, 0)]).__enter__(),
            "(2, 0) of 2 layers",
        ),
        (lambda: ablate_heads(Encoder(2, 8, 2, 8), [(0, 2)]).__enter__(), "Count both from 0"),
        (lambda: ablate_heads(torch.nn.Linear(2, 2), [(0, 0)]).__enter__(), "of 0 layers"),
    ]:
        assert said in error_of(call)
