"""Correct and wrong answers to the exercises of chapter 20."""

from exercise_bank import Bank, code, swap

MEAN = "losses[answer[:, 1:]].mean()"
GAINED = "(policy - reference).masked_fill(~answer, 0.0)"
MARGIN = "beta * (chosen - rejected)"
BEST = "(log_ref + reward / beta).log_softmax(dim=0)"
NATS = "(log_best.exp() * (log_best - log_ref)).sum()"
ADVANTAGES = "((rewards - mean) / (std + 1e-4))"
GAINS = "torch.minimum(ratio * advantages, clipped * advantages)"
MEANS = "(gains * answer).sum(dim=2) / answer.sum(dim=2)"
LAST = "(positions * (ids != padding)).argmax(dim=1)"

BANK = {
    "20.1": Bank(
        wrong=[
            swap("(3, 14, 40)", "(3, 40, 14)", cause="sizes-in-another-order"),
            swap("(3, 14, 40)", "(3, 33, 40)", cause="look-at-axes n"),
            swap("(3, 14, 40)", "(3, 14)", cause="number-of-axes"),
            swap("(3, 13, 40)", "(3, 14, 40)", cause="look-at-axes n"),
            swap("(3, 13, 40)", "(3, 13)", cause="number-of-axes"),
            swap("6 - 1", "6", cause="its-own-position"),
            swap("6 - 1", "4", cause="last-of-prompt-predicts"),
            swap("6 - 1", "3", cause="first-of-another-chat"),
            swap("6 - 1", "14 + 6 - 1", cause="each-chat-has-positions"),
            swap("3 + 8 + 5", "4 + 6 + 7 + 3 + 8 + 5", cause="prompts-are-no-targets"),
            swap("3 + 8 + 5", "30", cause="prompts-are-no-targets"),
            swap("3 + 8 + 5", "3 * 13", cause="prompts-are-no-targets"),
            swap("3 + 8 + 5", "2 + 7 + 4", cause="first-or-end-is-missing"),
            swap("3 + 8 + 5", "4 + 6 + 7", cause="prompts-counted-instead"),
            swap("3 + 8 + 5", "8", cause="that-is-one-chat"),
        ],
        right=[
            swap("(3, 14, 40)", "torch.Size([3, 6 + 8, 40])"),
            swap("(3, 13, 40)", "[3, 13, 40]"),
            swap("3 + 8 + 5", "torch.tensor([3, 8, 5]).sum()"),
        ],
    ),
    "20.2": Bank(
        wrong=[
            swap(MEAN, "losses.mean()", cause="prompt-is-learned"),
            swap(MEAN, "losses[ids[:, 1:] != 0].mean()", cause="prompt-is-learned"),
            swap("(users == assistants)", "(ids != user)", cause="user-counts"),
            swap("(users == assistants)", "(assistants > 0)", cause="all-after-first"),
            swap("(ids != 0)", "(ids != 0) & (users == 1)", cause="only-first-answer"),
            swap(
                "(ids != 0)",
                "(ids != 0) & (assistants == assistants[:, -1:])",
                cause="only-last-answer",
            ),
            swap(" & (ids != assistant)", "", cause="mark-is-counted"),
            swap(" & (ids != 0)", "", cause="padding-in-answer"),
            swap(MEAN, "losses[~answer[:, 1:]].mean()", cause="prompt-instead"),
            swap("answer[:, 1:]", "answer[:, :-1]", cause="mask-is-one-late"),
            swap(
                "answer[:, 1:]",
                "answer[:, 1:] & answer[:, :-1]",
                cause="first-of-answer-left-out",
            ),
            swap(MEAN, "(losses * answer[:, 1:]).mean()", cause="not-mean"),
            swap(
                MEAN,
                "((losses * answer[:, 1:]).sum(dim=1) / answer[:, 1:].sum(dim=1)).mean()",
                cause="mean-of-chat-means",
            ),
            swap(".mean()", ".sum()", cause="blanks-summed"),
            swap(".mean()", ".sum() / len(ids)", cause="divided-by-chats"),
            swap("ids[:, 1:, None]", "ids[:, :-1, None]", cause="target-at-same-place"),
            code(
                """
                def answer_loss(logits, ids, user, assistant):
                    users, own = (ids == user).cumsum(1), (ids == assistant).cumsum(1)
                    answer = (users == own) & (own > 0) & (ids != assistant) & (ids != 0)
                    targets = ids.masked_fill(~answer, -100)
                    return F.cross_entropy(logits.mT, targets)
                """,
                cause="target-at-same-place",
            ),
            code(
                """
                def answer_loss(logits, ids, user, assistant):
                    users, own = (ids == user).cumsum(1), (ids == assistant).cumsum(1)
                    answer = (users == own) & (own > 0) & (ids != assistant) & (ids != 0)
                    targets = ids.masked_fill(~answer, 0)
                    return F.cross_entropy(logits[:, :-1].mT, targets[:, 1:])
                """,
                cause="others-set-to-0",
            ),
            swap("= -log", "= log", cause="sign-missing"),
            swap(".log_softmax(dim=-1)", "", cause="scores-not-normalized"),
            swap("[:, :-1].log", "[:, :-1].detach().log", cause="no-gradient"),
        ],
        right=[
            code(
                """
                def answer_loss(logits, ids, user, assistant):
                    users, own = (ids == user).cumsum(1), (ids == assistant).cumsum(1)
                    answer = (users == own) & (own > 0) & (ids != assistant) & (ids != 0)
                    targets = ids.masked_fill(~answer, -100)
                    return F.cross_entropy(logits[:, :-1].mT, targets[:, 1:])
                """
            ),
            code(
                """
                def answer_loss(logits, ids, user, assistant):
                    total, count = 0.0, 0
                    for row in range(len(ids)):
                        answers = False
                        for place, id in enumerate(ids[row].tolist()):
                            if id == user or id == 0:
                                answers = False
                            elif id == assistant:
                                answers = True
                            elif answers:
                                before = logits[row, place - 1]
                                total = total + before.logsumexp(0) - before[id]
                                count += 1
                    return total / count
                """
            ),
            code(
                """
                def answer_loss(logits, ids, user, assistant):
                    marks = (ids == user) | (ids == assistant)
                    last = (torch.arange(ids.shape[1]) * marks).cummax(dim=1).values
                    answer = (ids.gather(1, last) == assistant) & ~marks & (ids > 0)
                    chances = F.one_hot(ids, logits.shape[-1])[:, 1:] * logits.softmax(-1)[:, :-1]
                    counted = answer[:, 1:].float()
                    losses = chances.sum(dim=-1).log() * counted
                    return -losses.sum() / counted.sum()
                """
            ),
        ],
        equivalent={
            "losses = -log.gather(2, ids[:, 1:, None])[..., 0]  # (b, n - 1) => "
            "losses = -(log.gather(2, ids[:, 1:, None]))  # (b, n - 1)": "the same mask",
            "losses = -log.gather(2, ids[:, 1:, None])[..., 0]  # (b, n - 1) => "
            "losses = -log.gather(2, ids[:, 1:, None])[..., -1]  # (b, n - 1)": "an axis of size 1",
            "log = logits[:, :-1].log_softmax(dim=-1) => "
            "log = (logits).log_softmax(dim=-1)": "gather reads only the first n - 1 positions",
        },
    ),
    "20.3": Bank(
        wrong=[
            swap("gained.chunk(2)", "gained[::2], gained[1::2]", cause="rows-in-turn"),
            swap(MARGIN, "beta * (rejected - chosen)", cause="margin-has-wrong-sign"),
            swap("policy - reference", "reference - policy", cause="margin-has-wrong-sign"),
            swap("-F.logsigmoid", "F.logsigmoid", cause="dpo-sign-missing"),
            swap("F.logsigmoid", "torch.sigmoid", cause="dpo-log-missing"),
            swap("F.logsigmoid", "", cause="sigmoid-missing"),
            swap("(policy - reference)", "policy", cause="reference-is-missing"),
            swap("policy - reference", "policy + reference", cause="reference-is-added"),
            swap(
                "(policy - reference)",
                "(policy.exp() - reference.exp())",
                cause="probabilities-subtracted",
            ),
            swap(MARGIN, "chosen - rejected", cause="beta-is-missing-in-dpo"),
            swap(MARGIN, "(chosen - rejected) / beta", cause="divided-by-beta"),
            swap(MARGIN, "beta * chosen - rejected", cause="beta-on-a-part"),
            swap(".sum(dim=1)", ".sum(dim=1) / answer.sum(dim=1)", cause="tokens-averaged"),
            swap(".sum(dim=1)", ".mean(dim=1)", cause="tokens-averaged-over-all"),
            swap(GAINED, "(policy - reference)", cause="all-tokens-of-pair-count"),
            swap("~answer", "answer", cause="only-prompt-of-pair-counts"),
            swap(").mean()", ").sum()", cause="losses-of-pairs-summed"),
            swap("- rejected", "- rejected.detach()", cause="part-of-graph-cut"),
            code(
                """
                def dpo(policy, reference, answer, beta):
                    policy *= answer
                    reference *= answer
                    chosen, rejected = (policy - reference).sum(dim=1).chunk(2)
                    return -F.logsigmoid(beta * (chosen - rejected)).mean()
                """,
                cause="changed-in-place",
            ),
        ],
        right=[
            code(
                """
                def dpo(policy, reference, answer, beta):
                    own, other = (policy * answer).sum(dim=1), (reference * answer).sum(dim=1)
                    half = len(own) // 2
                    margin = (own[:half] - own[half:]) - (other[:half] - other[half:]).detach()
                    return F.softplus(-beta * margin).mean()
                """
            ),
            code(
                """
                def dpo(policy, reference, answer, beta):
                    losses = []
                    half = len(policy) // 2
                    for good, bad in zip(range(half), range(half, 2 * half)):
                        margin = 0.0
                        for row, sign in ((good, 1), (bad, -1)):
                            kept = answer[row]
                            margin += sign * (policy[row][kept] - reference[row][kept]).sum()
                        losses.append(-torch.log(torch.sigmoid(beta * margin)))
                    return sum(losses) / half
                """
            ),
            code(
                """
                def dpo(policy, reference, answer, beta):
                    sums = torch.einsum("rn,rn->r", policy - reference, answer.to(policy.dtype))
                    pairs = sums.reshape(2, -1)
                    return F.cross_entropy(beta * pairs.T, torch.zeros(len(sums) // 2).long())
                """
            ),
        ],
    ),
    "20.4": Bank(
        wrong=[
            swap("reward / beta", "reward * beta", cause="reward-times-beta"),
            swap("reward / beta", "reward", cause="beta-is-missing"),
            swap(
                "log_ref + reward / beta",
                "(log_ref + reward) / beta",
                cause="reference-divided-by-beta",
            ),
            swap("log_ref + reward", "log_ref - reward", cause="reward-subtracted"),
            swap(BEST, "(reward / beta).log_softmax(dim=0)", cause="reward-alone"),
            swap(BEST, "log_ref + reward / beta", cause="not-normalized"),
            swap(
                BEST,
                "(log_ref.exp() + reward / beta).log_softmax(dim=0)",
                cause="reference-not-as-logarithm",
            ),
            swap(
                "return log_best,", "return log_best.exp(),", cause="best-returned-as-probabilities"
            ),
            swap(" / math.log(2)", "", cause="kl-in-nats"),
            swap(NATS, "(log_ref.exp() * (log_ref - log_best)).sum()", cause="kl-the-other-way"),
            swap(
                NATS,
                "F.kl_div(log_best, log_ref, log_target=True, reduction='sum')",
                cause="kl-the-other-way",
            ),
            swap("(log_best - log_ref)", "(log_ref - log_best)", cause="kl-has-wrong-sign"),
            swap("log_best.exp() * ", "", cause="kl-not-weighted"),
            swap(")).sum()", ")).mean()", cause="kl-is-averaged"),
            swap("(log_best - log_ref)", "-log_best", cause="entropy-for-kl"),
            code(
                """
                def optimum(log_ref, reward, beta):
                    best = log_ref.exp() * (reward / beta).exp()
                    best = best / best.sum()
                    return best.log(), (best * (best.log() - log_ref)).sum() / math.log(2)
                """,
                cause="exp-of-rewards-overflows",
            ),
            swap(
                BEST,
                "(log_ref + reward / beta).softmax(dim=0).log()",
                cause="exp-of-rewards-overflows",
            ),
            swap("nats / math.log(2)", "nats.item() / math.log(2)", cause="is-no-tensor"),
        ],
        right=[
            code(
                """
                def optimum(log_ref, reward, beta):
                    best = log_ref + reward / beta
                    best = best - torch.logsumexp(best, dim=0)
                    bits = F.kl_div(log_ref, best, log_target=True, reduction="sum")
                    return best, bits / torch.tensor(2.0).log()
                """
            ),
            code(
                """
                def optimum(log_ref, reward, beta):
                    tilted = log_ref + reward / beta
                    top = tilted.max()
                    log_z = top + (tilted - top).exp().sum().log()
                    best = tilted - log_z
                    mean_reward = (best.exp() * reward).sum()
                    return best, (mean_reward / beta - log_z) / math.log(2)
                """
            ),
            code(
                """
                def optimum(log_ref, reward, beta):
                    best = F.log_softmax(log_ref + reward / beta, dim=-1)
                    bits = 0.0
                    for one, other in zip(best, log_ref):
                        bits = bits + one.exp() * (one - other) / math.log(2)
                    return best, bits
                """
            ),
        ],
        equivalent={
            "log_best = (log_ref + reward / beta).log_softmax(dim=0) => "
            "log_best = (log_ref + reward / beta).log_softmax(dim=-1)": "there is one axis",
        },
    ),
    "20.5": Bank(
        wrong=[
            swap(
                "torch.std_mean(rewards, dim=1, keepdim=True)",
                "torch.std_mean(rewards)",
                cause="one-group-for-all",
            ),
            swap(
                "torch.std_mean(rewards, dim=1",
                "torch.std_mean(rewards, dim=0",
                cause="groups-over-prompts",
            ),
            swap("(rewards - mean)", "rewards", cause="group-mean-not-subtracted"),
            swap(ADVANTAGES, "(rewards - mean)", cause="std-not-divided"),
            swap("torch.std_mean", "torch.var_mean", cause="variance-for-std"),
            swap("dim=1, keepdim", "dim=1, correction=0, keepdim", cause="std-with-all-samples"),
            swap(" + 1e-4", "", cause="std-may-be-0"),
            swap("1e-4", "1e-8", cause="another-small-number"),
            swap("return -means", "return means", cause="grpo-sign-missing"),
            swap("torch.minimum", "torch.maximum", cause="maximum-for-minimum"),
            swap(GAINS, "ratio * advantages", cause="never-clipped"),
            swap(GAINS, "clipped * advantages", cause="always-clipped"),
            swap(GAINS, "torch.minimum(ratio, clipped) * advantages", cause="smaller-ratio-first"),
            swap("1 - clip, 1 + clip", "max=1 + clip", cause="clipped-above-only"),
            swap("(policy - old).exp()", "policy - old", cause="ratio-is-a-difference"),
            swap("(policy - old)", "(old - policy)", cause="ratio-inverted-in-grpo"),
            swap(MEANS, "(gains * answer).mean(dim=2)", cause="gains-divided-by-all-tokens"),
            swap(MEANS, "gains.mean(dim=2)", cause="prompt-earns-reward"),
            swap(" / answer.sum(dim=2)", "", cause="gains-of-tokens-summed"),
            swap("-means.mean()", "-gains[answer].mean()", cause="every-token-counts-the-same"),
            swap("-means.mean()", "-means.sum()", cause="gains-of-answers-summed"),
            swap("[..., None]", "", cause="raises"),
        ],
        right=[
            code(
                """
                def grpo(policy, old, answer, rewards, clip):
                    better = rewards - rewards.mean(-1, keepdim=True)
                    better = better / (rewards.std(-1, keepdim=True) + 1e-4)
                    ratio = torch.exp(policy - old)
                    high = torch.where(better > 0, 1 + clip, torch.inf)[..., None]
                    low = torch.where(better < 0, 1 - clip, 0.0)[..., None]
                    gains = torch.clamp(ratio, low, high) * better.unsqueeze(-1)
                    mean = gains.masked_fill(~answer, 0.0).sum(-1) / answer.sum(-1)
                    return -mean.mean()
                """
            ),
            code(
                """
                def grpo(policy, old, answer, rewards, clip):
                    losses = []
                    for group in range(len(rewards)):
                        own = rewards[group]
                        for row in range(len(own)):
                            advantage = (own[row] - own.mean()) / (own.std() + 1e-4)
                            kept = answer[group, row]
                            ratio = (policy[group, row][kept] - old[group, row][kept]).exp()
                            one, two = -ratio, -ratio.clip(1 - clip, 1 + clip)
                            losses.append(torch.max(one * advantage, two * advantage).mean())
                    return torch.stack(losses).mean()
                """
            ),
            code(
                """
                def grpo(policy, old, answer, rewards, clip):
                    with torch.no_grad():
                        centred = rewards - rewards.mean(dim=1)[:, None]
                        var = centred.square().sum(dim=1) / (rewards.shape[1] - 1)
                        advantages = torch.einsum("bs,b->bs", centred, 1 / (var.sqrt() + 1e-4))
                    ratio = (policy - old).exp()
                    both = torch.stack([ratio, ratio.clamp(1 - clip, 1 + clip)])
                    gains = (both * advantages[None, :, :, None]).amin(dim=0)
                    shares = answer / answer.sum(dim=2, keepdim=True)
                    return -torch.einsum("bsn,bsn->", gains, shares.to(gains)) / rewards.numel()
                """
            ),
        ],
        equivalent={
            "gains = torch.minimum(ratio * advantages, clipped * advantages) => "
            "gains = torch.minimum(clipped * advantages, ratio * advantages)": "in any order",
        },
    ),
    "20.6": Bank(
        wrong=[
            code(
                """
                def last_rewards(rewards, ids, padding):
                    return buggy_last_rewards(rewards, ids, padding)
                """,
                cause="real-tokens-counted",
            ),
            code(
                """
                def last_rewards(rewards, ids, padding):
                    first = (ids == padding).int().argmax(dim=1)
                    return rewards[torch.arange(len(ids)), first - 1]
                """,
                cause="before-first-padding",
            ),
            swap(LAST, "(ids != padding).sum(dim=1) - 1", cause="real-tokens-counted"),
            swap(LAST, "(ids != padding).int().argmax(dim=1)", cause="first-real-token"),
            swap(
                "rewards.gather(1, last[:, None])[:, 0]",
                "rewards[:, -1]",
                cause="last-position-taken",
            ),
            swap(LAST, "(positions * (ids == padding)).argmax(dim=1)", cause="last-padding-taken"),
            swap("!= padding", "!= 0", cause="padding-is-always-0"),
            swap(
                "last[:, None]", "(last[:, None] - 1).clamp(min=0)", cause="token-before-the-last"
            ),
            swap(
                "rewards.gather(1, last[:, None])[:, 0]",
                "(rewards * (ids != padding)).sum(dim=1)",
                cause="rewards-summed",
            ),
            swap(
                "rewards.gather(1, last[:, None])[:, 0]",
                "rewards.masked_fill(ids == padding, -torch.inf).max(dim=1).values",
                cause="largest-reward-taken",
            ),
            swap(
                "rewards.gather(1, last[:, None])[:, 0]", "rewards[:, last]", cause="shape-differs"
            ),
        ],
        right=[
            code(
                """
                def last_rewards(rewards, ids, padding):
                    n = ids.shape[1]
                    last = n - 1 - (ids != padding).flip(1).int().argmax(dim=1)
                    return rewards[torch.arange(len(ids)), last]
                """
            ),
            code(
                """
                def last_rewards(rewards, ids, padding):
                    found = []
                    for numbers, row in zip(rewards, ids):
                        found.append(numbers[row != padding][-1])
                    return torch.stack(found)
                """
            ),
            code(
                """
                def last_rewards(rewards, ids, padding):
                    real = ids != padding
                    left = real.int().flip(1).cumsum(1).flip(1)  # real tokens from here on
                    return torch.einsum("bn,bn->b", rewards, (real & (left == 1)).to(rewards))
                """
            ),
        ],
        equivalent={
            "return rewards.gather(1, last[:, None])[:, 0] => "
            "return rewards.gather(1, last[:, None])[:, -1]": "an axis of size 1 has one index",
        },
    ),
}
