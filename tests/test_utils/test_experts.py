"""Mixture of experts: equal to the blocks of transformers; choice, load and gates by hand."""

import pytest
import torch
from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from helpers import CLOSE, child_names, error_of, random, randomize, same_and_backward
from utils.experts import (
    MixtureOfExperts,
    expert_load,
    load_balancing_loss,
    record_routing,
    route,
)
from utils.modern_decoder import ModernDecoder

# batch, tokens, width, inner width, experts, experts of a token
B, N, E, M, X, K = 2, 7, 6, 5, 8, 3
QWEN = {"hidden_size": E, "moe_intermediate_size": M, "num_experts": X, "num_experts_per_tok": K}
MIXTRAL = {
    "hidden_size": E,
    "intermediate_size": M,
    "num_local_experts": X,
    "num_experts_per_tok": K,
}
DEEPSEEK = {**QWEN, "n_routed_experts": X, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
del DEEPSEEK["num_experts"]
GROUPS = {"scoring": "sigmoid", "num_groups": 4, "groups_per_token": 2, "num_shared": 2}

# their block, their configuration, our options
CASES = {
    "mixtral": (MixtralSparseMoeBlock, MixtralConfig(**MIXTRAL), {}),
    "qwen3": (Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**QWEN), {"normalize": False}),
    "qwen3, normalized": (
        Qwen3MoeSparseMoeBlock,
        Qwen3MoeConfig(**QWEN, norm_topk_prob=True),
        {"normalize": True},
    ),
    "deepseek": (
        DeepseekV3MoE,
        DeepseekV3Config(**DEEPSEEK, routed_scaling_factor=2.5),
        {**GROUPS, "scale": 2.5},
    ),
    "deepseek, other form": (
        DeepseekV3MoE,
        DeepseekV3Config(**{**DEEPSEEK, "n_group": 1, "topk_group": 1}, norm_topk_prob=False),
        {"scoring": "sigmoid", "num_shared": 2, "scale": 2.5, "normalize": False},
    ),
}


def mixture(**options):
    return randomize(MixtureOfExperts(E, M, X, K, **options))


def stacked(ours):
    """Return pairs of our parameters and where transformers keep them."""
    pairs = {"gate.weight": [ours.router.weight]}
    parts = [(e.gate_proj.weight, e.up_proj.weight, e.down_proj.weight) for e in ours.experts]
    pairs["experts.gate_up_proj"] = [torch.cat([gate, up]) for gate, up, _ in parts]
    pairs["experts.down_proj"] = [down for _, _, down in parts]
    if ours.shared is not None:
        for name, value in ours.shared.named_parameters():
            pairs[f"shared_experts.{name}"] = [value]
    return pairs


def grads(ours):
    """Return our gradients under the names of transformers."""
    for parameter in ours.parameters():
        parameter.data = parameter.grad
    return stacked(ours)


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers_in_values_and_gradients(name):
    kind, config, options = CASES[name]
    ours, theirs = mixture(**options), kind(config)
    state = dict(theirs.named_parameters())
    for key, values in stacked(ours).items():
        values = torch.stack(values) if "experts." in key and "shared" not in key else values[0]
        state[key].data = values.detach().clone()
    if ours.balance_bias is not None:
        ours.balance_bias += random(X, seed=5) / 4
        theirs.gate.e_score_correction_bias.copy_(ours.balance_bias)
    x = random(B, N, E, seed=1).requires_grad_()
    other = x.detach().clone().requires_grad_()
    result, expected = ours(x), theirs(other)
    same_and_backward(result, expected, x, other)
    for key, values in grads(ours).items():
        values = torch.stack(values) if "experts." in key and "shared" not in key else values[0]
        torch.testing.assert_close(values, state[key].grad, **CLOSE)


def test_by_hand():
    """One token at a time, and one expert at a time."""
    ours, x = mixture(num_shared=1), random(B, N, E)
    result = ours(x)
    for b in range(B):
        for n in range(N):
            token = x[b, n]
            probabilities = (ours.router.weight @ token).softmax(dim=0)
            best = sorted(range(X), key=lambda number: -probabilities[number])[:K]
            total = sum(probabilities[number] for number in best)
            parts = [probabilities[n] / total * ours.experts[n](token[None, None]) for n in best]
            expected = sum(parts) + ours.shared(token[None, None])
            torch.testing.assert_close(result[b, n], expected[0, 0], **CLOSE)


def test_experts_that_were_not_chosen_compute_nothing():
    ours, seen = mixture(), []
    for expert in ours.experts:
        expert.register_forward_hook(lambda _, given, out: seen.append(given[0].shape[1]))
    with record_routing(ours) as routings:
        ours(random(B, N, E))
    assert sum(seen) == B * N * K
    load = expert_load(routings[0].chosen, X)
    assert seen == (load * B * N).round().int().tolist()


def test_the_bias_and_the_groups_change_the_choice_and_not_the_gates():
    logits = random(50, X)
    bias = torch.zeros(X)
    bias[5] = 10.0
    gates, chosen = route(logits, K, scoring="sigmoid", normalize=False, balance_bias=bias)
    assert (chosen == 5).any(dim=1).all()
    torch.testing.assert_close(gates, logits.sigmoid().gather(1, chosen))
    _, chosen = route(logits, K, num_groups=4, groups_per_token=2)
    groups = chosen // 2
    assert all(len(set(row)) <= 2 for row in groups.tolist())
    # by hand: of two groups of four, the one whose two best are worth more together
    _, chosen = route(logits, 2, scoring="sigmoid", num_groups=2, groups_per_token=1)
    two = [sum(sorted(half.tolist())[-2:]) for half in logits.sigmoid().reshape(100, 4)]
    better = [int(two[2 * t] < two[2 * t + 1]) for t in range(50)]
    assert (chosen // 4).tolist() == [[group, group] for group in better]
    assert better != logits.reshape(50, 2, 4).amax(dim=-1).argmax(dim=-1).tolist(), (
        "not by the best"
    )
    _, free = route(logits, K)
    assert any(len(set(row)) == 3 for row in (free // 2).tolist()), "so that the groups do matter"


def test_the_loss_equals_transformers_in_values_and_gradients():
    logits = [random(40, X, seed=seed).requires_grad_() for seed in (0, 1)]
    expected = load_balancing_loss_func(tuple(logits), X, K)
    both = torch.cat(logits)
    _, chosen = route(both, K)
    found = load_balancing_loss(both.softmax(dim=-1), chosen)
    torch.testing.assert_close(found, expected)
    grads = torch.autograd.grad(found, logits)
    for grad, wanted in zip(grads, torch.autograd.grad(expected, logits), strict=True):
        torch.testing.assert_close(grad, wanted)
    # the bounds that its docstring states
    even = torch.full((X, X), 1 / X)
    ring = (torch.arange(X)[:, None] + torch.arange(K)) % X
    torch.testing.assert_close(load_balancing_loss(even, ring), torch.tensor(float(K)))
    one = torch.zeros(4, X).index_fill(1, torch.tensor([2]), 1.0)
    assert load_balancing_loss(one, torch.full((4, 1), 2)) == X


def test_the_bias_falls_for_crowded_experts_and_rises_for_the_others():
    ours = mixture(scoring="sigmoid")
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    chosen = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 4, 5], [0, 6, 7]])  # 1.5 each would be even
    ours.update_balance_bias(chosen, speed=0.25)
    ours.update_balance_bias(chosen, speed=0.5)
    after = ours.state_dict()
    assert after.pop("balance_bias").tolist() == [-0.75, -0.75, *[0.75] * 6]
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_routing_is_recorded_in_running_order_and_only_inside():
    model = ModernDecoder(
        vocab_size=9, embed_dim=E, num_heads=1, num_kv_heads=1, mlp_dim=M, num_layers=2
    )
    for block in model.layers:
        block.mlp = mixture(scoring="sigmoid")
    with record_routing(model) as routings:
        model(torch.arange(8)[None])
        assert len(routings) == 2
        for one, block in zip(routings, model.layers, strict=True):
            assert one.probabilities.shape == (8, X) and one.chosen.shape == (8, K)
            torch.testing.assert_close(one.probabilities.sum(dim=1), torch.ones(8))
            grad = torch.autograd.grad(
                load_balancing_loss(one.probabilities, one.chosen), block.mlp.router.weight
            )
            assert grad[0].abs().sum() > 0
    model(torch.arange(8)[None])
    assert len(routings) == 2
    assert "without one" in error_of(lambda: record_routing(torch.nn.Linear(2, 2)).__enter__())


def test_the_order_of_its_parts_and_an_empty_batch():
    assert child_names(mixture(num_shared=1)) == ["router", "experts", "shared"]
    for shape in ((0, N, E), (B, 0, E)):
        assert mixture(num_shared=1)(torch.zeros(shape)).shape == shape


BAD = [
    ({"num_experts": 0}, "num_experts"),
    ({"experts_per_token": 9}, "experts_per_token must be an integer from 1 to 8"),
    ({"experts_per_token": 5, "num_groups": 4, "groups_per_token": 2}, "from 1 to 4"),
    ({"num_groups": 3}, "num_experts must be a multiple of num_groups"),
    ({"num_groups": 2, "groups_per_token": 3}, "groups_per_token must be"),
    ({"scoring": "relu"}, "'softmax' or 'sigmoid'"),
    ({"scale": 0.0}, "scale"),
    ({"num_shared": -1}, "num_shared"),
]


@pytest.mark.parametrize("changed, said", BAD, ids=str)
def test_bad_sizes(changed, said):
    sizes = {"embed_dim": E, "mlp_dim": M, "num_experts": X, "experts_per_token": K}
    assert said in error_of(lambda: MixtureOfExperts(**{**sizes, **changed}))


def test_bad_calls():
    chosen = torch.zeros(4, K, dtype=torch.long)
    assert "(b n) x" in error_of(lambda: route(torch.zeros(B, N, X), K))
    assert "balance_bias must" in error_of(
        lambda: route(torch.zeros(4, X), K, balance_bias=torch.zeros(X - 1))
    )
    assert "e=6" in error_of(lambda: mixture()(torch.zeros(B, N, E + 1)))
    assert "t=3" in error_of(lambda: load_balancing_loss(torch.zeros(3, X), chosen))
    assert "int64 or int32" in error_of(lambda: expert_load(chosen.float(), X))
    assert "scoring='softmax'" in error_of(lambda: mixture().update_balance_bias(chosen))
