"""Checks of the exercises of chapter 20: losses on answers, DPO, its optimum, GRPO."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import Patch, patches
from checks.engine.verdict import exercise, open_exercise
from utils.text import PADDING


def each(old: str, *new: str) -> list[Patch]:
    """Patches that replace one text, each by a different one."""
    return [(old, one) for one in new]


@exercise("20.1", "Which shape, and which targets?")
def which_shape(logits_shape, kept_shape, first_position, counted_targets) -> Message:
    written(logits_shape, kept_shape, first_position, counted_targets)
    prompts, answers = torch.tensor([[4], [6], [7]]), torch.tensor([[3], [8], [5]])
    positions = torch.arange(int((prompts + answers).max()))
    targets = ((positions >= prompts) & (positions < prompts + answers))[:, 1:]
    logits = torch.zeros(3, len(positions), 40)
    same_shape(logits_shape, logits.shape, "b n v")
    same_shape(kept_shape, logits[:, :-1].shape, "b n v")
    first, counted = int(targets[1].int().argmax()), int(targets.sum())
    known: dict[float, str] = {3: "first-of-another-chat", 4: "last-of-prompt-predicts"}
    known |= dict.fromkeys((6.0, 7.0), "its-own-position") | {19: "each-chat-has-positions"}
    same_number(first_position, first, 0.5, "position-of-first", known=known)
    known = {8: "that-is-one-chat", 13: "first-or-end-is-missing", 19: "one-target-too-many"}
    known |= dict.fromkeys((14.0, 17.0), "prompts-counted-instead")
    known |= dict.fromkeys((22.0, 24.0, 25.0), "padding-is-no-target")
    known |= dict.fromkeys((30.0, 33.0, 39.0, 42.0), "prompts-are-no-targets")
    same_number(counted_targets, counted, 0.5, "number-of-targets", known=known)
    return message("targets-right")


# ------------------------------------------------------------------------------------ the answer


def answer_loss(logits: Tensor, ids: Tensor, user: int, assistant: int) -> Tensor:
    users, assistants = (ids == user).cumsum(dim=1), (ids == assistant).cumsum(dim=1)
    answer = (users == assistants) & (assistants > 0) & (ids != assistant) & (ids != PADDING)
    logs = logits[:, :-1].log_softmax(dim=-1)
    losses = -logs.gather(2, ids[:, 1:, None])[..., 0]
    counted = answer[:, 1:]
    return losses[counted].mean()


def some_chats(case: Case) -> tuple[Tensor, Tensor, int, int]:
    """Logits and ids of chats of several lengths, padded at the end; marks begin their turns."""
    logits, (b, n) = case.randn("b (n 3) (v 3)") * 2, case.shape("b (n 3)")
    user, assistant = case.random.choice([(2, 3), (3, 2)])
    gaps = case.integers("b (n 3)", 2, 4)  # of the marks: the first one comes after the begin
    marks = (1 + gaps.cumsum(dim=1) - gaps[:, :1]).clamp(max=n)
    ids = torch.randint(4, 3 * case["v"], (b, n + 1), generator=case.generator)
    ids = ids.scatter(1, marks[:, ::2], user).scatter(1, marks[:, 1::2], assistant)[:, :n]
    padded = torch.arange(n) >= n - torch.arange(b)[:, None] % (n - 5)
    return logits, ids.masked_fill(padded, PADDING), user, assistant


EARLY = ("= answer[:, 1:]", "= answer[:, :-1]")
LATER, NOW = "ids[:, 1:, None]", "ids[:, :-1, None]"
COUNTED, ALTERNATE = "= answer[:, 1:]", "(users == assistants) & (assistants > 0)"
WHOLE = f"{ALTERNATE} & (ids != assistant)"
ANSWER_MISTAKES = patches(
    answer_loss,
    {
        "prompt-is-learned": [("[counted]", ""), (COUNTED, "= ids[:, 1:] != PADDING")],
        "prompt-instead": each("[counted]", "[~counted]", "[~counted & (ids[:, 1:] > 0)]"),
        "user-counts": each(ALTERNATE, "(users > assistants)", "(ids != user) & (users > 0)"),
        "all-after-first": [(ALTERNATE, "(assistants > 0)"), (WHOLE, "(assistants.cumsum(1) > 1)")],
        "only-first-answer": ("(assistants > 0)", "(assistants == 1)"),
        "only-last-answer": ("(assistants > 0)", "(assistants == assistants[:, -1:])"),
        "mark-is-counted": (" & (ids != assistant)", ""),
        "padding-in-answer": (" & (ids != PADDING)", ""),
        "mask-is-one-late": [EARLY, (COUNTED, "= F.pad(answer[:, 1:-1], (1, 0), value=True)")],
        "first-of-answer-left-out": (COUNTED, "= answer[:, 1:] & answer[:, :-1]"),
        "last-of-answer-left-out": (COUNTED, "= answer[:, 1:] & answer.roll(-1, 1)[:, 1:]"),
        "not-mean": each(".mean()", ".sum() / counted.numel()", ".sum() / answer[:, :-1].sum()"),
        "mean-of-chat-means": ("losses[counted]", "((losses * counted).sum(1) / counted.sum(1))"),
        "blanks-summed": (".mean()", ".sum()"),
        "divided-by-chats": (".mean()", ".sum() / len(logits)"),
        "target-at-same-place": [
            ("[:, :-1].log", ".log", LATER, "ids[..., None]", COUNTED, "= answer"),
            *[(LATER, NOW), (LATER, NOW, *EARLY), ("[:, :-1].log", "[:, 1:].log")],
        ],
        "target-before-instead": ("[:, :-1].log", "[:, 1:].log", LATER, NOW, *EARLY),
        "others-set-to-0": ("gather(2, ids", "gather(2, (ids * answer)", "[counted]", ""),
        "sign-missing": ("-logs", "logs"),
        "scores-not-normalized": (".log_softmax(dim=-1)", ""),
        "softmax-over-places": ("dim=-1", "dim=1"),
    },
)


@exercise("20.2", "A loss on the answers")
def loss_on_the_answers(answer_loss_answer) -> Message:
    return same_function(answer_loss_answer, answer_loss, some_chats, mistakes=ANSWER_MISTAKES)


# ------------------------------------------------------------------------------------ preferences


def dpo(policy: Tensor, reference: Tensor, answer: Tensor, beta: float) -> Tensor:
    gained = policy - reference.detach()
    sums = (gained * answer).sum(dim=1)
    chosen, rejected = sums.chunk(2)
    margins = beta * (chosen - rejected)
    return -F.logsigmoid(margins).mean()


def some_pairs(case: Case) -> tuple[Tensor, Tensor, Tensor, float]:
    """Log-probabilities of both models, answers of several lengths, and beta."""
    policy, reference = -case.randn("(b 2) (n 2)").abs(), -case.randn("(b 2) (n 2)").abs()
    rows, n = policy.shape
    order = torch.rand(rows, n, generator=case.generator).argsort(dim=1)
    answer = order < (1 + torch.randperm(rows, generator=case.generator) % (n - 1))[:, None]
    return policy, reference, answer, round(0.1 + 0.5 * case.random.random(), 2)


GAINED, SUMS = "policy - reference.detach()", "(gained * answer).sum(dim=1)"
DPO_MISTAKES = patches(
    dpo,
    {
        "rows-in-turn": ("sums.chunk(2)", "sums[::2], sums[1::2]"),
        "margin-has-wrong-sign": ("chosen - rejected", "rejected - chosen"),
        "rejected-is-missing": ("chosen - rejected", "chosen"),
        "all-pairs-of-rows": ("chosen - rejected", "chosen[:, None] - rejected"),
        "pair-is-added": ("chosen - rejected", "chosen + rejected"),
        "dpo-sign-missing": ("-F.log", "F.log"),
        "dpo-log-missing": each("-F.logsigmoid", "-torch.sigmoid", "1 - torch.sigmoid"),
        "sigmoid-missing": ("F.logsigmoid(margins)", "margins"),
        "reference-is-missing": (GAINED, "policy"),
        "reference-is-added": (GAINED, "policy + reference"),
        "probabilities-subtracted": (GAINED, "policy.exp() - reference.exp()"),
        "beta-is-missing-in-dpo": ("beta * (chosen - rejected)", "chosen - rejected"),
        "beta-outside": ("= beta * ", "= ", "-F.log", "-beta * F.log"),
        "divided-by-beta": ("beta * (chosen - rejected)", "(chosen - rejected) / beta"),
        "beta-on-a-part": [
            ("(chosen - rejected)", "chosen - rejected"),
            (GAINED, "beta * policy - reference", "beta * (chosen", "(chosen"),
        ],
        "tokens-averaged": (SUMS, f"{SUMS} / answer.sum(dim=1)"),
        "tokens-averaged-over-all": ("sum(", "mean("),
        "all-tokens-of-pair-count": (SUMS, "gained.sum(dim=1)"),
        "only-prompt-of-pair-counts": (SUMS, "(gained * ~answer).sum(dim=1)"),
        "losses-of-pairs-summed": (".mean()", ".sum()"),
        "pairs-averaged-first": each("s).mean()", "s.mean())", "s).exp().mean().log()"),
        "summed-over-rows": ("sum(dim=1)", "sum(dim=0)"),
        "shifted-again": (SUMS, "(gained[:, :-1] * answer[:, 1:]).sum(dim=1)"),
    },
)


@exercise("20.3", "DPO from one batch")
def dpo_from_one_batch(dpo_answer) -> Message:
    return same_function(dpo_answer, dpo, some_pairs, mistakes=DPO_MISTAKES)


# ------------------------------------------------------------------------------------ the optimum


def optimum(log_ref: Tensor, reward: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    tilted = log_ref + reward / beta
    log_best = tilted - tilted.logsumexp(dim=0)
    weights, gained = log_best.exp(), log_best - log_ref
    nats = (weights * gained).sum()
    return log_best, nats / math.log(2)


def some_rewards(case: Case) -> tuple[Tensor, Tensor, float]:
    """Log-probabilities and rewards; in double precision, exp(reward / beta) often overflows."""
    log_ref, reward = (case.randn("(s 2)") * 1.5).log_softmax(dim=0), case.randn("(s 2)")
    large = case.random.random() < 0.6 and case.dtype == torch.float64
    return log_ref, 900 * reward + 3000 if large else reward, case.random.choice([0.4, 0.7, 1.5])


TILTED, BEST = "log_ref + reward / beta", "tilted - tilted.logsumexp(dim=0)"
WEIGHTED, BOTH = "(weights * gained).sum()", "log_best.exp(), log_best"
OPTIMUM_MISTAKES = patches(
    optimum,
    {
        "exp-of-rewards-overflows": each(
            *(BEST, "(tilted.exp() / tilted.exp().sum()).log()"),
            *("tilted - tilted.exp().sum().log()", "tilted.softmax(dim=0).log()"),
        ),
        "reward-times-beta": ("reward / beta", "reward * beta"),
        "beta-is-missing": ("reward / beta", "reward"),
        "reference-divided-by-beta": (TILTED, "(log_ref + reward) / beta"),
        "reward-subtracted": (TILTED, "log_ref - reward / beta"),
        "reward-alone": (TILTED, "reward / beta"),
        "reward-times-logarithm": (TILTED, "log_ref * reward / beta"),
        "reference-not-as-logarithm": (TILTED, "log_ref.exp() + reward / beta"),
        "not-normalized": each(BEST, "tilted", "tilted - tilted.max()", "tilted / tilted.sum()"),
        "kl-not-normalized": each(BOTH, "log_best.exp(), tilted", "tilted.exp(), tilted"),
        "best-returned-as-probabilities": ("return log_best", "return weights"),
        "best-in-bits": ("return log_best", "return log_best / math.log(2)"),
        "kl-in-nats": (" / math.log(2)", ""),
        "kl-the-other-way": (WEIGHTED, "(log_ref.exp() * -gained).sum()"),
        "logarithm-of-kl": ("nats / math.log(2)", "nats.log2()"),
        "kl-has-wrong-sign": ("log_best - log_ref", "log_ref - log_best"),
        "kl-not-weighted": each(WEIGHTED, "gained.sum()", "gained.mean()"),
        "kl-is-averaged": (WEIGHTED, "(weights * gained).mean()"),
        "entropy-for-kl": ("log_best - log_ref", "-log_best"),
    },
)


@exercise("20.4", "The best possible policy")
def the_best_possible_policy(optimum_answer) -> Message:
    options = {"mistakes": OPTIMUM_MISTAKES, "gradients": False, "trials": Trials(6)}
    return same_function(optimum_answer, optimum, some_rewards, **options)


# ------------------------------------------------------------------------------------------- GRPO


def grpo(policy: Tensor, old: Tensor, answer: Tensor, rewards: Tensor, clip: float) -> Tensor:
    rewards = rewards.detach()
    mean, std = rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True)
    advantages = ((rewards - mean) / (std + 1e-4))[..., None]
    ratio = (policy - old.detach()).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gains = torch.minimum(ratio * advantages, clipped * advantages)
    means = (gains * answer).sum(dim=2) / answer.sum(dim=2)
    return -means.mean()


def some_groups(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Sampled answers; those to the first prompt all have the same reward."""
    policy, noise = -case.randn("b s (n 2)").abs(), case.randn("b s (n 2)")
    b, s, n = policy.shape
    order = torch.rand(b, s, n, generator=case.generator).argsort(dim=2)
    lengths = 1 + torch.randperm(b * s, generator=case.generator).view(b, s, 1) % (n - 1)
    rewards = case.randn("b s")
    rewards[0] = 1.0
    return policy, policy + 0.3 * noise, order < lengths, rewards, case.random.choice([0.1, 0.2])


MEAN, STD = "rewards.mean(dim=1, keepdim=True)", "rewards.std(dim=1, keepdim=True)"
RATIO, CLIPPED = "(policy - old.detach()).exp()", "ratio.clamp(1 - clip, 1 + clip)"
GAINS = "torch.minimum(ratio * advantages, clipped * advantages)"
MEANS = "(gains * answer).sum(dim=2) / answer.sum(dim=2)"
GRPO_MISTAKES = patches(
    grpo,
    {
        "one-group-for-all": (MEAN, "rewards.mean()", STD, "rewards.std()"),
        "mean-of-whole-batch": (MEAN, "rewards.mean()"),
        "std-of-whole-batch": (STD, "rewards.std()"),
        "groups-over-prompts": ("mean(dim=1", "mean(dim=0", "std(dim=1", "std(dim=0"),
        "group-mean-not-subtracted": ("(rewards - mean)", "rewards"),
        "std-not-divided": (" / (std + 1e-4)", ""),
        "variance-for-std": ("rewards.std(", "rewards.var("),
        "std-with-all-samples": ("keepdim=True)\n    adv", "keepdim=True, correction=0)\n    adv"),
        "std-may-be-0": (" + 1e-4", ""),
        "another-small-number": each("1e-4", "1e-8", "1e-6", "1e-5"),
        "added-to-the-variance": ("(std + 1e-4)", "(std**2 + 1e-4).sqrt()"),
        "grpo-sign-missing": ("-means", "means"),
        "advantages-have-wrong-sign": ("rewards - mean", "mean - rewards"),
        "maximum-for-minimum": ("minimum", "maximum"),
        "never-clipped": (GAINS, "ratio * advantages"),
        "always-clipped": (GAINS, "clipped * advantages"),
        "clipped-without-advantage": (GAINS, "torch.minimum(ratio * advantages, clipped)"),
        "smaller-ratio-first": (GAINS, "torch.minimum(ratio, clipped) * advantages"),
        "clipped-around-0": (CLIPPED, "ratio.clamp(-clip, clip)"),
        "clipped-above-only": (CLIPPED, "ratio.clamp(max=1 + clip)"),
        "ratio-is-a-difference": (RATIO, "policy - old"),
        "ratio-inverted-in-grpo": (RATIO, "(old - policy).exp()"),
        "ratio-of-logarithms": each(RATIO, "policy / old", "policy.exp() - old.exp()"),
        "old-is-missing": [(RATIO, "policy.exp()"), (GAINS, "policy * advantages")],
        "ratio-of-whole-answer": (RATIO, "((policy - old) * answer).sum(2, True).exp()"),
        "every-token-counts-the-same": ("-means.mean()", "-gains[answer].mean()"),
        "gains-divided-by-all-tokens": (MEANS, "(gains * answer).mean(dim=2)"),
        "prompt-earns-reward": each(MEANS, "gains.mean(2)", "gains.sum(2) / answer.sum(2)"),
        "prompt-earns": [
            ("s * answer", "s * ~answer"),
            ("    ratio", "    answer = ~answer\n    ratio"),
        ],
        "gains-of-tokens-summed": (" / answer.sum(dim=2)", ""),
        "gains-of-answers-summed": ("-means.mean()", "-means.sum()"),
    },
)


@exercise("20.5", "The loss of GRPO")
def the_loss_of_grpo(grpo_answer) -> Message:
    return same_function(grpo_answer, grpo, some_groups, mistakes=GRPO_MISTAKES)


# --------------------------------------------------------------------------------- the last token


def last_rewards(rewards: Tensor, ids: Tensor, padding: int) -> Tensor:
    n, real = ids.shape[1], ids != padding
    last = (torch.arange(n) * real).argmax(dim=1)
    return rewards[torch.arange(len(ids)), last]


def some_texts(case: Case) -> tuple[Tensor, Tensor, int]:
    """Texts with padding at the end, first, inside, inside and at the end, and without any."""
    rewards = case.randn("(b 4) (n 3)")
    rows, n = rewards.shape
    padding, shift = case.random.choice([0, 3, 11]), int(case.integers("", 0, 5))
    ids = torch.randint(11, (rows, n), generator=case.generator)
    ids += ids >= padding  # so that it occurs only where it is put
    for row in range(rows):
        count = int(case.integers("", 1, n - 2))
        at_end, first, inside = range(n - count, n), range(count), [count]
        ids[row, [*(at_end, first, inside, [count, n - 1], [])[(row + shift) % 5]]] = padding
    return rewards, ids, padding


LAST, FOUND = "(torch.arange(n) * real).argmax(dim=1)", "rewards[torch.arange(len(ids)), last]"
BEFORE, PADDED = "(~real).int().argmax(dim=1) - 1", "(torch.arange(n) * ~real).argmax(dim=1)"
UNLESS_REAL = f"torch.where(real[:, -1], n - 1, {BEFORE})"
LAST_MISTAKES = patches(
    last_rewards,
    {
        "before-first-padding": each(LAST, BEFORE, f"({BEFORE}).clamp(min=0)", UNLESS_REAL),
        "real-tokens-counted": (LAST, "real.sum(dim=1) - 1"),
        "last-position-taken": [(LAST, "-1"), (FOUND, "(rewards * real)[:, -1]")],
        "first-real-token": (LAST, "real.int().argmax(dim=1)"),
        "token-before-the-last": (LAST, f"({LAST} - 1).clamp(min=0)"),
        "last-padding-taken": each(LAST, PADDED, "n - 1 - (~real).flip(1).int().argmax(dim=1)"),
        "counted-from-the-end": (LAST, "real.flip(1).int().argmax(dim=1)"),
        "padding-is-always-0": ("ids != padding", "ids != 0"),
        "positions-returned": (FOUND, "last"),
        "rewards-averaged": (FOUND, "(rewards * real).sum(dim=1) / real.sum(dim=1)"),
        "rewards-summed": (FOUND, "(rewards * real).sum(dim=1)"),
        "largest-reward-taken": (FOUND, "rewards.masked_fill(~real, -torch.inf).amax(dim=1)"),
    },
)


@exercise("20.6", "Find the bug")
def find_the_bug(last_rewards_answer) -> Message:
    return same_function(last_rewards_answer, last_rewards, some_texts, mistakes=LAST_MISTAKES)


open_exercise("20.7", "A reward of your own")
