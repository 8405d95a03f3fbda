"""Train the policies of chapter 20 with several betas and seeds, and measure each exactly.

`.venv/bin/python resources/make_preference_study.py` writes `preference_study.json`. The reference
is the shipped model of the grammar's sentences; a prompt is the first two words of a sentence. For
each prompt, the best policy for a reward and a beta is known: it is proportional to
reference * exp(reward / beta), over all sentences and one entry for everything else. Measured is
the divergence KL(trained || best), in bits, as a mean over the prompts:

- DPO with the share of votes for each pair, for three betas; and with one vote for each pair.
- REINFORCE, GRPO, and GRPO with both corrections (no scale, unbiased divergence), for beta = 1.

For GRPO without corrections it also measures the divergence from the policy where its own expected
gradient is zero. The settings were chosen with seed 0 and beta = 1. It takes about three minutes
on one core that is free; on another processor the last digits differ. Chapter 20 reads the file.
"""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from utils.data import load_grammar, load_shipped
from utils.generation import generate
from utils.preferences import dpo_loss, group_advantages, grpo_loss, sequence_log_probs
from utils.text import END, PADDING
from utils.training import fit_batches

TARGET = Path(__file__).with_name("preference_study.json")
SEEDS = (0, 1)
BETAS = (0.5, 1.0, 2.0)
TASTE = {"small": 1.0, "likes": 1.0, "chases": -1.0, "hungry": -1.0}
NOT_A_SENTENCE = -1.0
PAIRS, DPO_STEPS, DPO_RATE = 1000, 400, 3e-3  # pairs for each prompt
GROUP, RL_STEPS, RL_RATE = 16, 150, 2e-3

grammar, reference = load_grammar(), load_shipped("sentence").requires_grad_(False)
prompts = torch.unique(grammar.ids[:, :3], dim=0)  # (b, 3)
taste = torch.zeros(len(grammar.vocabulary))
taste[grammar.vocabulary.encode(TASTE)] = torch.tensor(list(TASTE.values()))
known = {tuple(row): at for at, row in enumerate(grammar.ids.tolist())}
rows = [torch.nonzero((grammar.ids[:, :3] == prompt).all(dim=1))[:, 0] for prompt in prompts]
rows = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)  # (b, s)


def answer_mask(ids: Tensor) -> Tensor:
    """Return which ids (b, n) are an answer to a prompt of three."""
    return (ids != PADDING) & (torch.arange(ids.shape[1]) >= 3)


def judge(ids: Tensor) -> Tensor:
    """Return the reward of each sequence (b, n): (b,)."""
    listed = torch.tensor([tuple(row) in known for row in ids.tolist()])
    return torch.where(listed, taste[ids[:, 3:]].sum(dim=1), NOT_A_SENTENCE)


@torch.no_grad()
def policy_table(model: nn.Module) -> Tensor:
    """Return the log-probability of each sentence after its prompt, and of the rest: (b, s + 1)."""
    of_all = sequence_log_probs(model, grammar.ids, answer_mask(grammar.ids)).double()
    table = of_all[rows].masked_fill(rows < 0, -torch.inf)
    rest = (1 - table.exp().sum(dim=1, keepdim=True)).clamp(min=1e-12).log()
    return torch.cat([table, rest], dim=1)


rewards = judge(grammar.ids)[rows].masked_fill(rows < 0, 0.0)
rewards = torch.cat([rewards, torch.full((len(rows), 1), NOT_A_SENTENCE)], dim=1).double()
log_reference = policy_table(reference)


def best_policy(beta: float) -> Tensor:
    return (log_reference + rewards / beta).log_softmax(dim=1)


def best_of_grpo(beta: float) -> Tensor:
    """Return where the expected gradient of GRPO is zero: beta std reference / (c - reward).

    The constant c makes the probabilities sum to 1; the std is that of the rewards there.
    """
    std = torch.ones(len(rows), 1, dtype=torch.float64)
    for _ in range(100):
        weight = beta * std * log_reference.exp()
        low, high = rewards.amax(dim=1, keepdim=True), rewards.amax(dim=1, keepdim=True) + 50
        for _ in range(100):
            middle = (low + high) / 2
            above = (weight / (middle - rewards)).sum(dim=1, keepdim=True) > 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        policy = weight / (high - rewards)
        mean = (policy * rewards).sum(dim=1, keepdim=True)
        variance = (policy * (rewards - mean).square()).sum(dim=1, keepdim=True)
        std = (std + variance.sqrt()) / 2
    return policy.log()


def divergence(policy: Tensor, other: Tensor) -> float:
    """Return KL(policy || other) in bits, as a mean over the prompts."""
    gaps = torch.where(policy > -torch.inf, policy.exp() * (policy - other), 0.0)
    return gaps.sum(dim=1).mean().item() / math.log(2)


def sample(model: nn.Module, count: int, generator: torch.Generator) -> Tensor:
    """Sample answers to each prompt, padded after their end: (b * count, n)."""
    seed = int(torch.randint(2**31, (1,), generator=generator))
    asked = prompts.repeat_interleave(count, dim=0)
    ids = generate(model, asked, 7, end_id=END, seed=seed)
    return ids.masked_fill((ids == END).cumsum(dim=1) > 1, PADDING)


def train_dpo(beta: float, seed: int, one_vote: bool) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    pairs = sample(reference, 2 * PAIRS, generator)  # both answers of a pair to one prompt
    ours = sequence_log_probs(reference, pairs, answer_mask(pairs)).view(-1, 2)
    votes = torch.sigmoid(judge(pairs).view(-1, 2) @ torch.tensor([1.0, -1.0]))
    if one_vote:
        votes = torch.bernoulli(votes, generator=generator)
    pairs = pairs.view(-1, 2, pairs.shape[1])

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        chosen = torch.randint(len(pairs), (64,), generator=generator)
        return pairs[chosen].flatten(0, 1), ours[chosen], votes[chosen]

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        ids, before, share = batch
        now = sequence_log_probs(model, ids, answer_mask(ids)).view(-1, 2)
        first = dpo_loss(*now.T, *before.T, beta)
        second = dpo_loss(*now.flip(1).T, *before.flip(1).T, beta)
        return (share * first + (1 - share) * second).mean()

    policy = copy.deepcopy(reference).requires_grad_(True)
    recipe = {"steps": DPO_STEPS, "learning_rate": DPO_RATE, "weight_decay": 0.0, "seed": seed}
    fit_batches(policy, draw, loss, **recipe)
    return policy


def groups(
    policy: nn.Module, kind: str, beta: float, generator: torch.Generator
) -> Iterator[tuple[Tensor, ...]]:
    while True:
        ids = sample(policy, GROUP, generator)
        answer = answer_mask(ids)
        with torch.no_grad():
            models = (policy, reference)
            old, before = (sequence_log_probs(m, ids, answer).view(-1, GROUP) for m in models)
        reward = judge(ids).view(-1, GROUP)
        if kind == "REINFORCE":
            reward = reward - beta * (old - before)
        yield ids, answer, old, before, group_advantages(reward, scale=kind == "GRPO")


def train_on_rewards(kind: str, beta: float, seed: int) -> nn.Module:
    policy = copy.deepcopy(reference).requires_grad_(True)
    batches = groups(policy, kind, beta, torch.Generator().manual_seed(seed))
    options = {"beta": 0.0 if kind == "REINFORCE" else beta, "unbiased": kind == "corrected"}

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        ids, answer, old, before, advantages = batch
        now = sequence_log_probs(model, ids, answer).view(-1, GROUP)
        return grpo_loss(now, old, before, advantages, **options).mean()

    recipe = {"steps": RL_STEPS, "learning_rate": RL_RATE, "weight_decay": 0.0}
    fit_batches(policy, lambda generator: next(batches), loss, **recipe)
    return policy


def main() -> None:
    study: dict[str, list[float]] = {}

    def note(name: str, seed: int, policy: nn.Module, best: Tensor) -> None:
        study.setdefault(name, []).append(round(divergence(policy_table(policy), best), 5))
        print(name, seed, study[name][-1], flush=True)

    for seed in SEEDS:
        for beta in BETAS:
            policy = train_dpo(beta, seed, one_vote=False)
            note(f"DPO, beta {beta:g}", seed, policy, best_policy(beta))
        note("DPO, one vote, beta 1", seed, train_dpo(1.0, seed, True), best_policy(1.0))
        for kind in ("REINFORCE", "GRPO", "corrected"):
            policy = train_on_rewards(kind, 1.0, seed)
            note(f"{kind}, beta 1", seed, policy, best_policy(1.0))
            if kind == "GRPO":
                note("GRPO, beta 1, from its own", seed, policy, best_of_grpo(1.0))
    TARGET.write_text(json.dumps(study, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
