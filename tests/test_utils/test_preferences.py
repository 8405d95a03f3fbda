"""The losses of chapter 20: equal to TRL's formulas, and with the optimum that theory promises."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.language_model import LanguageModel
from utils.preferences import (
    dpo_loss,
    group_advantages,
    grpo_loss,
    reward_loss,
    sequence_log_probs,
)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------- answers after a prompt


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "num_heads": 2, "mlp_dim": 12, "num_layers": 1}
    return LanguageModel(vocab_size=11, max_length=6, **sizes).double()


def answer_of(lengths: list[tuple[int, int]], n: int) -> Tensor:
    """Return the mask of answers from `start` to `end`, one pair for each row."""
    position = torch.arange(n)
    return torch.stack([(position >= start) & (position < end) for start, end in lengths])


def test_log_probs_are_those_of_the_tokens_one_by_one(model: nn.Module) -> None:
    ids = torch.tensor([[1, 5, 7, 4, 2], [1, 6, 2, 0, 0]])
    answer = answer_of([(2, 5), (1, 3)], 5)
    wanted = []
    for row, counts in zip(ids, answer, strict=True):
        total = 0.0
        for at in counts.nonzero()[:, 0].tolist():
            total += model(row[None, :at])[0, -1].log_softmax(dim=-1)[row[at]].item()
        wanted.append(total)
    result = sequence_log_probs(model, ids, answer)
    torch.testing.assert_close(result, torch.tensor(wanted, dtype=torch.float64))


def test_probabilities_of_all_answers_sum_to_one(model: nn.Module) -> None:
    pairs = torch.cartesian_prod(torch.arange(11), torch.arange(11))
    ids = torch.cat([torch.tensor([[1, 9]]).expand(121, -1), pairs], dim=1)
    total = sequence_log_probs(model, ids, answer_of([(2, 4)], 4).expand(121, -1)).exp().sum()
    torch.testing.assert_close(total.item(), 1.0)


def test_an_impossible_token_outside_the_answer_does_not_count() -> None:
    class Never(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            logits = torch.zeros(*ids.shape, 4)
            logits[..., 3] = -torch.inf
            return logits

    ids = torch.tensor([[0, 3, 1]])
    result = sequence_log_probs(Never(), ids, answer_of([(2, 3)], 3))
    torch.testing.assert_close(result, torch.tensor([-math.log(3)]))


@pytest.mark.parametrize(
    "ids, answer, words",
    [
        (torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.bool), "shape (b, n)"),
        (torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 4, dtype=torch.bool), "answer must"),
        (torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3), "boolean"),
        (torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool), "position 0"),
    ],
)
def test_bad_answers_are_refused(model: nn.Module, ids: Tensor, answer: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match="sequence_log_probs: ") as error:
        sequence_log_probs(model, ids, answer)
    assert words in str(error.value)


# ------------------------------------------------------------------- preferences of two answers


def test_reward_loss_is_trls() -> None:
    """TRL: trl/trainer/reward_trainer.py, compute_loss."""
    chosen, rejected = randn(7), randn(7, seed=1)
    theirs = -F.logsigmoid(chosen - rejected).mean()
    torch.testing.assert_close(reward_loss(chosen, rejected).mean(), theirs)


def test_dpo_loss_and_gradient_are_trls() -> None:
    """TRL: trl/trainer/dpo_trainer.py, loss type "sigmoid" of the reverse KL."""
    logps = [randn(7, seed=seed).requires_grad_() for seed in range(4)]
    chosen, rejected, ref_chosen, ref_rejected = logps
    delta_score = (chosen - ref_chosen) - (rejected - ref_rejected)
    theirs = -F.logsigmoid(0.3 * delta_score).mean()
    ours = dpo_loss(*logps, beta=0.3).mean()
    torch.testing.assert_close(ours, theirs)
    pairs = zip(torch.autograd.grad(ours, logps), torch.autograd.grad(theirs, logps), strict=True)
    for mine, wanted in pairs:
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_the_best_policy_has_no_gradient_under_dpo(beta: float) -> None:
    """Over all pairs with true preferences, only reference * exp(reward / beta) is at rest."""
    reference, reward = randn(6).log_softmax(dim=0), randn(6, seed=1)
    best = (reference + reward / beta).log_softmax(dim=0)
    a, b = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    preferred = torch.sigmoid(reward[a] - reward[b])

    def gradient(logits: Tensor) -> Tensor:
        logits = logits.clone().requires_grad_()
        policy = logits.log_softmax(dim=0)
        losses = dpo_loss(policy[a], policy[b], reference[a], reference[b], beta)
        return torch.autograd.grad((preferred * losses).sum(), logits)[0]

    assert gradient(best).abs().max() < 1e-12
    assert gradient(reference).abs().max() > 0.1


def test_bad_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="rejected must have shape"):
        reward_loss(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="reference_rejected must have shape"):
        dpo_loss(*[torch.zeros(3)] * 3, torch.zeros(3, 1), beta=1.0)
    with pytest.raises(ValueError, match="beta must be a number"):
        dpo_loss(*[torch.zeros(3)] * 4, beta=0.0)


# ------------------------------------------------------------------------- rewards of a group


def test_advantages_are_trls() -> None:
    """TRL: trl/trainer/grpo_trainer.py, scale_rewards="group", and "none"."""
    rewards, num_generations = randn(4, 5), 5
    grouped = rewards.flatten().view(-1, num_generations)
    mean = grouped.mean(dim=1).repeat_interleave(num_generations)
    std = grouped.std(dim=1).repeat_interleave(num_generations)
    centred = rewards.flatten() - mean
    torch.testing.assert_close(group_advantages(rewards).flatten(), centred / (std + 1e-4))
    torch.testing.assert_close(group_advantages(rewards, scale=False).flatten(), centred)


def test_an_easy_prompt_does_not_change_the_advantages_of_a_hard_one() -> None:
    rewards = randn(2, 5)
    easier = rewards + torch.tensor([[0.0], [7.0]])
    torch.testing.assert_close(group_advantages(easier), group_advantages(rewards))


def test_groups_of_one_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="answers=1"):
        group_advantages(torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"rewards must have shape \(b, s\)"):
        group_advantages(torch.zeros(4))


@pytest.mark.parametrize("unbiased", [False, True])
def test_grpo_loss_and_gradient_are_trls(unbiased: bool) -> None:
    """TRL: trl/trainer/grpo_trainer.py, _compute_loss, tokens; use_bias_correction_kl."""
    logps = 0.4 * randn(5, 6)
    logps.requires_grad_()
    old, ref, advantages = 0.4 * randn(5, 6, seed=1), 0.4 * randn(5, 6, seed=2), randn(5, seed=3)
    coef_1 = torch.exp(logps - old)
    per_token_kl = torch.exp(ref - logps) - (ref - logps) - 1
    if unbiased:
        per_token_kl = per_token_kl * coef_1
    coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.2)
    per_token_loss1 = coef_1 * advantages.unsqueeze(1)
    per_token_loss2 = coef_2 * advantages.unsqueeze(1)
    theirs = -torch.min(per_token_loss1, per_token_loss2) + 0.04 * per_token_kl
    ours = grpo_loss(logps, old, ref, advantages[:, None], unbiased=unbiased)
    torch.testing.assert_close(ours, theirs)
    mine, wanted = (torch.autograd.grad(loss.sum(), logps)[0] for loss in (ours, theirs))
    torch.testing.assert_close(mine, wanted)


def expected_gradient(unbiased: bool, policy_logits: Tensor, reference: Tensor) -> Tensor:
    """Return the gradient of the divergence term, over all answers as often as they occur."""
    logits = policy_logits.clone().requires_grad_()
    policy = logits.log_softmax(dim=0)
    old = policy.detach()
    losses = grpo_loss(policy, old, reference, torch.zeros(6), beta=1.0, unbiased=unbiased)
    return torch.autograd.grad((old.exp() * losses).sum(), logits)[0]


def test_the_expected_gradient_of_the_divergence() -> None:
    """Without the correction it is that of KL(reference || policy), the other direction."""
    start, reference = randn(6), randn(6, seed=1).log_softmax(dim=0)
    logits = start.clone().requires_grad_()
    policy = logits.log_softmax(dim=0)
    directions = {
        True: (policy.exp() * (policy - reference)).sum(),
        False: (reference.exp() * (reference - policy)).sum(),
    }
    for unbiased, divergence in directions.items():
        wanted = torch.autograd.grad(divergence, logits, retain_graph=True)[0]
        torch.testing.assert_close(expected_gradient(unbiased, start, reference), wanted)


def test_a_clipped_ratio_gets_no_gradient() -> None:
    policy = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    zeros = torch.zeros(4)
    grpo_loss(policy, zeros, zeros, advantages, beta=0.0).sum().backward()
    assert (policy.grad != 0).tolist() == [False, True, True, False]


def test_bad_samples_are_refused() -> None:
    zeros = torch.zeros(3)
    with pytest.raises(ValueError, match="old must have the shape of policy"):
        grpo_loss(zeros, torch.zeros(4), zeros, zeros)
    with pytest.raises(ValueError, match="reference must have the shape of policy"):
        grpo_loss(zeros, zeros, torch.zeros(3, 1), zeros)
    with pytest.raises(ValueError, match="clip must be a number"):
        grpo_loss(zeros, zeros, zeros, zeros, clip=0.0)
    with pytest.raises(ValueError, match="beta must be a number"):
        grpo_loss(zeros, zeros, zeros, zeros, beta=-1.0)


def test_rewards_that_are_integers_are_refused() -> None:
    """Rewards of right and wrong are often booleans."""
    right = torch.tensor([[True, False], [True, True]])
    for rewards in (right, right.long()):
        with pytest.raises(ValueError, match=r"Take rewards\.float\(\)"):
            group_advantages(rewards)
        with pytest.raises(ValueError, match=r"Take chosen\.float\(\)"):
            reward_loss(rewards[0], rewards[1])
