"""Losses after pretraining: answers, preferences and rewards (chapter 20)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.validation import check_floating, check_positive, check_real, check_shape


def sequence_log_probs(model: nn.Module, ids: Tensor, answer: Tensor) -> Tensor:
    """Return the log-probability, in nats, that a model gives to each answer after its prompt.

    Logits at a position are for the next token, so ids and mask are both shifted by one. Prompt
    and padding do not count, but the tokens of the prompt are attended to.

    Args:
        model: a causal model, `model(ids)` -> logits (b, n, v).
        ids: prompts with their answers, padded on the right.
        answer: True for each token of an answer, its end included.

    Shape:
        ids     (b, n), integers
        answer  (b, n), bool; False at position 0, which nothing predicts
        result  (b,)

    Raises: ValueError for a mask of another shape or type, or one that is True at position 0.
    Source: Ouyang et al. 2022; chapter 20.
    """
    where = "sequence_log_probs"
    check_shape(where, "ids", ids, "b n", "One sequence alone is ids[None].")
    b, n = ids.shape
    check_shape(where, "answer", answer, "b n", "Say for each token whether it counts.", b=b, n=n)
    if answer.dtype != torch.bool:
        raise ValueError(
            f"{where}: answer must be a boolean tensor, True = counts, got {answer.dtype}. "
            "If they are ones and zeros, pass answer.bool()."
        )
    if answer[:, 0].any():
        raise ValueError(
            f"{where}: answer must be False at position 0, which no token predicts, got True. "
            "Begin each sequence with a token of the prompt, such as BEGIN."
        )
    logits = model(ids[:, :-1])  # (b, n - 1, v), each for the token after it
    log_probs = -F.cross_entropy(logits.mT, ids[:, 1:], reduction="none")  # (b, n - 1)
    return log_probs.masked_fill(~answer[:, 1:], 0.0).sum(dim=1)


def reward_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return the negative log-likelihood, in nats, of preferences under Bradley and Terry.

    The model of preferences: P(chosen is preferred) = sigmoid(its reward - the other reward).

    >>> reward_loss(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 0.0]))
    tensor([0.0486, 0.6931])

    Args:
        chosen: rewards of the preferred answers.
        rejected: rewards of the other ones.

    Shape:
        chosen, rejected  (b,)
        result            (b,)

    Raises: ValueError for two shapes, or rewards that are integers.
    Source: Bradley and Terry 1952; Ouyang et al. 2022, equation 1; chapter 20.
    """
    check_shape("reward_loss", "chosen", chosen, "b", "Give one reward for each answer.")
    check_floating("reward_loss", "chosen", chosen, "Take chosen.float().")
    fix = "Give one rejected answer for each chosen one."
    check_shape("reward_loss", "rejected", rejected, "b", fix, b=len(chosen))
    return -F.logsigmoid(chosen - rejected)


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    beta: float,
) -> Tensor:
    """Return the loss of direct preference optimization, in nats, for each pair of answers.

    It is `reward_loss` for the reward beta * log(policy / reference), which the policy implies.

    >>> zeros = torch.zeros(1)
    >>> dpo_loss(zeros, zeros - 3, zeros, zeros, beta=1.0)
    tensor([0.0486])

    Args:
        policy_chosen, policy_rejected: log-probabilities of the answers under the trained model.
        reference_chosen, reference_rejected: the same under the model before the training.
        beta: how much a nat of divergence from the reference costs, in units of the reward.

    Shape:
        all log-probabilities  (b,), sums over the tokens of an answer
        result                 (b,)

    Raises: ValueError for different shapes, or beta not above 0.
    Source: Rafailov et al. 2023, equation 7; chapter 20.
    """
    check_real("dpo_loss", "(0, inf)", "Take for example beta=0.1.", beta=beta)
    fix = "Give the log-probability of each answer under both models."
    check_shape("dpo_loss", "policy_chosen", policy_chosen, "b", fix)
    names = ("policy_rejected", "reference_chosen", "reference_rejected")
    others = (policy_rejected, reference_chosen, reference_rejected)
    for name, values in zip(names, others, strict=True):
        check_shape("dpo_loss", name, values, "b", fix, b=len(policy_chosen))
    return reward_loss(
        beta * (policy_chosen - reference_chosen), beta * (policy_rejected - reference_rejected)
    )


def group_advantages(rewards: Tensor, scale: bool = True) -> Tensor:
    """Return how much better each answer is than the others to the same prompt.

    >>> group_advantages(torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]))
    tensor([[-0.9999,  0.0000,  0.9999],
            [ 0.0000,  0.0000,  0.0000]])

    Args:
        rewards: of s sampled answers to each of b prompts.
        scale: also divide by the standard deviation of the group, as GRPO does. False only
            subtracts the mean of the group.

    Shape:
        rewards  (b, s)
        result   (b, s)

    Raises: ValueError for another rank, integers, or groups of one answer.
    Source: Shao et al. 2024, section 4.1; Liu et al. 2025 (without the scale); chapter 20.
    """
    fix = "One group alone is rewards[None]."
    check_shape("group_advantages", "rewards", rewards, "b s", fix)
    check_floating("group_advantages", "rewards", rewards, "Take rewards.float().")
    check_positive("group_advantages", least=2, answers=rewards.shape[1])
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not scale:
        return centred
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-4)  # a group of equals gets 0


def grpo_loss(
    policy: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    *,
    clip: float = 0.2,
    beta: float = 0.04,
    unbiased: bool = False,
) -> Tensor:
    """Return the loss of group relative policy optimization, elementwise; the caller averages.

    The ratio policy / old lets one batch of samples serve for several steps. A ratio that has left
    [1 - clip, 1 + clip] in the direction of the advantage gets no further gradient.

    >>> zeros = torch.zeros(3)
    >>> grpo_loss(zeros, zeros, zeros, torch.tensor([1.0, 0.5, -2.0]))
    tensor([-1.0000, -0.5000,  2.0000])

    Args:
        policy: log-probabilities of the samples under the trained model.
        old: the same when they were sampled.
        reference: the same under the model before the training.
        advantages: of the samples, from `group_advantages`.
        clip: how far the ratio may move.
        beta: weight of the divergence from the reference, estimated as r - log r - 1 with
            r = reference / policy.
        unbiased: multiply that estimate by the ratio, so that its gradient is the gradient of
            KL(policy || reference). Without it, the expected gradient is that of
            KL(reference || policy).

    Shape:
        policy, old, reference  (...), of whole answers or of single tokens
        advantages              broadcastable to (...)
        result                  (...)

    Raises: ValueError for different shapes, clip outside (0, 1), or beta below 0.
    Source: Shao et al. 2024, equations 3 and 4; DeepSeek-AI 2025 (unbiased); chapter 20.
    """
    where, fix = "grpo_loss", "Give one log-probability for each sample under all three."
    check_real(where, "(0, 1)", "The usual one is clip=0.2.", clip=clip)
    check_real(where, "[0, inf)", "Take 0 for no divergence term.", beta=beta)
    for name, values in {"old": old, "reference": reference}.items():
        if values.shape != policy.shape:
            raise ValueError(
                f"{where}: {name} must have the shape of policy, {tuple(policy.shape)}, "
                f"got {name}.shape={tuple(values.shape)}. {fix}"
            )
    ratio = (policy - old).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    away = reference - policy
    divergence = away.exp() - away - 1
    if unbiased:
        divergence = divergence * ratio
    return beta * divergence - gain
