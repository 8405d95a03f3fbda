"""Checks of the exercises of chapter 19: experts, their router, and sinks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise


def routed(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best, chosen = logits.topk(k, dim=-1)
    gates = best.softmax(dim=-1)
    return gates, chosen


TRIALS = Trials(6)
GATES, RESULT = "best.softmax(dim=-1)", "return gates, chosen"
OF_ALL = "logits.softmax(dim=-1).gather(1, chosen)"
OF_CHOSEN = "logits.gather(1, chosen).softmax(dim=-1)"
BY_TOKENS = ("logits.topk", "logits.softmax(dim=0).topk")
SUM = ".sum(dim=-1, keepdim=True)"
ROUTE_MISTAKES = patches(
    routed,
    {
        "gates-not-normalized": (GATES, OF_ALL),
        "softmax-of-softmax": (GATES, f"{OF_ALL}.softmax(dim=-1)"),
        "gates-are-logits": (GATES, "best"),
        "gates-are-exp": (GATES, "best.exp()"),
        "gates-without-exp": (GATES, f"best / best{SUM}"),
        "gates-over-tokens": [
            (GATES, "best.softmax(dim=0)"),
            (GATES, f"{OF_ALL} / {OF_ALL}.sum(dim=0)"),
            (GATES, f"{OF_ALL} / {OF_ALL}.sum()"),
        ],
        "gates-from-sigmoid": [
            (GATES, f"best.sigmoid(){then}")
            for then in ("", ".softmax(dim=-1)", f" / best.sigmoid(){SUM}")
        ],
        "gates-of-length-one": (GATES, f"F.normalize({OF_ALL}, dim=-1)"),
        "gates-are-equal": (GATES, "torch.full_like(best, 1 / k)"),
        "smallest-are-chosen": ("(k, dim=-1)", "(k, dim=-1, largest=False)"),
        "chosen-by-size": ("logits.topk", "logits.abs().topk", GATES, OF_CHOSEN),
        "chosen-after-softmax-over-tokens": [
            BY_TOKENS,
            (*BY_TOKENS, GATES, f"best / best{SUM}"),
            (*BY_TOKENS, GATES, OF_CHOSEN),
        ],
        "not-in-falling-order": [
            (RESULT, "return gates.flip(-1), chosen.flip(-1)"),
            (RESULT, "return gates.gather(1, chosen.argsort()), chosen.sort().values"),
        ],
        "gates-of-other-experts": [
            (RESULT, "return gates.flip(-1), chosen"),
            (RESULT, "return gates, chosen.sort().values"),
            (RESULT, "return gates.gather(1, chosen.argsort()), chosen"),
        ],
        "gates-of-first-k": (GATES, "logits[:, :k].softmax(dim=-1)"),
        "experts-counted-from-one": (RESULT, f"{RESULT} + 1"),
        "gates-and-chosen-swapped": (RESULT, "return chosen, gates"),
    },
)


@exercise("19.1", "Which shape, and how many bytes?")
def which_shape(logits_shape, gates_shape, expert_input_shape, cache_bytes) -> Message:
    written(logits_shape, gates_shape, expert_input_shape, cache_bytes)
    tokens = torch.zeros(3, 5, 40).flatten(0, 1)
    logits = nn.Linear(40, 6, bias=False)(tokens)
    gates, chosen = routed(logits, 4)
    same_shape(logits_shape, logits.shape, "t x")
    same_shape(gates_shape, gates.shape, "t k")
    same_shape(expert_input_shape, (chosen.numel() // logits.shape[1], 40), "r e")
    of_token, places = 20 + 8, 3 * 5 * 7
    kept = 4 * of_token * places
    known: dict[float, Message | str] = {
        kept // 4: "latent-cache-in-bytes",
        kept // 2: "latent-cache-of-float32",
        kept * 8: "latent-cache-in-bits",
        4 * 20 * places: "rotary-key-is-kept",
        4 * 8 * places: "latent-is-kept",
        4 * (20 + 10 * 8) * places: "one-rotary-key-for-all-heads",
        4 * 10 * of_token * places: "one-latent-for-all-heads",
        2 * kept: "latent-makes-both",
        4 * (2 * 20 + 8) * places: "latent-makes-both",
        4 * 10 * (16 + 16) * places: "heads-are-not-kept",
        4 * 10 * (16 + 8 + 16) * places: "heads-are-not-kept",
        kept // 7: "latent-cache-of-one-layer",
        kept // 3: "latent-cache-of-one-sequence",
        kept // 15: "latent-cache-of-one-token",
    }
    same_number(cache_bytes, kept, 0.5, "bytes-of-latent-cache", known)
    return message("expert-shapes-and-bytes-right")


@exercise("19.2", "Choose k experts")
def choose_k_experts(route) -> Message:
    def inputs(case: Case) -> tuple:
        logits = case.randn("t (x 2)")
        return logits, case.random.randint(2, logits.shape[1] - 1)

    return same_function(route, routed, inputs, mistakes=ROUTE_MISTAKES, trials=TRIALS)


class Expert:
    """Change each row by itself, and count the rows; zeros do not stay zeros."""

    def __init__(self, weight: Tensor):
        self.weight, self.rows = weight, 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.rows += rows.shape[:-1].numel()
        return (rows @ self.weight.to(rows.dtype) + 0.3).tanh()


def combined(tokens: Tensor, experts: list[Expert], gates: Tensor, chosen: Tensor) -> Tensor:
    result = torch.zeros_like(tokens)
    for number, expert in enumerate(experts):
        rows, slots = (chosen == number).nonzero(as_tuple=True)
        weights = gates[rows, slots, None]
        result = result.index_add(0, rows, weights * expert(tokens[rows]))
    return result


CHOSEN, WEIGHTS = "(chosen == number)", "gates[rows, slots, None]"
EXPERT = "weights * expert(tokens[rows])"
COMBINE_MISTAKES = patches(
    combined,
    {
        "outputs-not-weighted": (WEIGHTS, "1"),
        "mean-of-outputs": (WEIGHTS, "1 / chosen.shape[1]"),
        "weighted-sum-divided": ("return result", "return result / chosen.shape[1]"),
        "last-output-stays": [
            ("index_add", "index_copy"),
            (CHOSEN, "(chosen[:, -1:] == number)", "gates[rows", "gates[:, -1:][rows"),
        ],
        "only-first-choice": (CHOSEN, "(chosen[:, :1] == number)"),
        "gate-of-first-choice": (WEIGHTS, "gates[rows, 0, None]"),
        "gates-are-summed": (WEIGHTS, "gates[rows].sum(dim=1, keepdim=True)"),
        "gates-before-experts": (EXPERT, "expert(weights * tokens[rows])"),
        "gates-normalized-again": [
            (WEIGHTS, "(gates / gates.sum(dim=1, keepdim=True))[rows, slots, None]"),
            (WEIGHTS, "gates.softmax(dim=1)[rows, slots, None]"),
        ],
        "experts-by-slot": (CHOSEN, "(torch.arange(chosen.shape[1]).expand_as(chosen) == number)"),
        "first-expert-for-all": ("expert(tokens", "experts[0](tokens"),
        "experts-counted-from-one": [
            (CHOSEN, "(chosen == number + 1)"),
            ("enumerate(experts)", "enumerate(experts[1:])"),
        ],
        "token-is-added": ("return result", "return tokens + result"),
    },
)


@exercise("19.3", "Send tokens to experts")
def send_tokens(combine) -> Message:
    def inputs(case: Case) -> tuple:
        tokens = case.randn("t e")
        x = case["x"] + 2
        experts = [Expert(case.randn("e e")) for _ in range(x)]
        k = case.random.randint(2, x - 2)
        order = torch.rand(case["t"], x - 1, generator=case.generator).argsort(dim=1)
        idle = case.random.randrange(x)  # an expert that no token chose
        chosen = (order + (order >= idle))[:, :k]
        gates = torch.rand(*chosen.shape, generator=case.generator, dtype=case.dtype)
        return tokens, experts, gates, chosen

    said = same_function(combine, combined, inputs, mistakes=COMBINE_MISTAKES, trials=TRIALS)
    tokens, experts, gates, chosen = inputs(Case(5))
    run(combine, (tokens, experts, gates, chosen))
    rows = sum(expert.rows for expert in experts)
    if rows > chosen.numel():
        noticed(Wrong(message("experts-compute-too-much", rows=rows, needed=chosen.numel())))
    return said


def balance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    t, x = probabilities.shape
    counts = F.one_hot(chosen, x).sum(dim=(0, 1)).to(probabilities)
    fractions = counts / t
    means = probabilities.mean(dim=0)
    return x * (fractions * means).sum()


PRODUCTS, MEANS = "(fractions * means).sum()", "probabilities.mean(dim=0)"
MASK = "F.one_hot(chosen, x).sum(dim=1)"
BALANCE_MISTAKES = patches(
    balance,
    {
        "number-of-experts-missing": (f"x * {PRODUCTS}", PRODUCTS),
        "mean-over-experts": (f"x * {PRODUCTS}", "(fractions * means).mean()"),
        "fractions-of-all-choices": (" / t", " / chosen.numel()"),
        "one-sum-not-divided": (" / t", ""),
        "tokens-and-experts-mixed": (" / t", " / x"),
        "sums-not-divided": (" / t", "", MEANS, "probabilities.sum(dim=0)"),
        "averaged-over-experts": (MEANS, "probabilities.mean()"),
        "softmax-on-probabilities": (MEANS, "probabilities.softmax(dim=-1).mean(dim=0)"),
        "counts-first-choice": (
            "F.one_hot(chosen, x).sum(dim=(0, 1))",
            "F.one_hot(chosen[:, 0], x).sum(dim=0)",
        ),
        "probabilities-of-chosen-only": (MEANS, f"(probabilities * {MASK}).mean(dim=0)"),
        "multiplied-token-by-token": [
            (PRODUCTS, f"(probabilities * {MASK}).mean(dim=0).sum()"),
            (f"x * {PRODUCTS}", f"(probabilities * {MASK}).mean(dim=0).sum()"),
        ],
        "only-fractions": ("* means", "* fractions"),
        "only-probabilities": ("(fractions *", "(means *"),
        "summed-before-product": [(PRODUCTS, "fractions.sum()"), (PRODUCTS, "means.sum()")],
        "balance-is-rewarded": ("return x", "return -x"),
        "k-for-number-of-experts": ("return x", "return chosen.shape[1]"),
    },
)


@exercise("19.4", "The load-balancing loss")
def load_balancing(balancing_loss) -> Message:
    def inputs(case: Case) -> tuple:  # float32: a count divided by a count has no other dtype
        logits = case.randn("t (x 2)").float() * 2
        if case.random.random() < 0.5:
            logits[:, -1] -= 20  # no token chooses the last expert
        k = case.random.randint(2, logits.shape[1] - 2)
        return logits.softmax(dim=-1), logits.topk(k, dim=-1).indices

    return same_function(balancing_loss, balance, inputs, mistakes=BALANCE_MISTAKES, trials=TRIALS)


def routed_with_bias(logits: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    scores = logits.sigmoid()
    chosen = (scores + bias).topk(k, dim=-1).indices
    gates = scores.gather(1, chosen)
    gates = gates / gates.sum(dim=-1, keepdim=True)
    return gates, chosen


BIASED, GATHERED = "(scores + bias)", "scores.gather(1, chosen)"
NORMALIZED = "gates / gates.sum(dim=-1, keepdim=True)"
BIAS_MISTAKES = patches(
    routed_with_bias,
    {
        "gates-still-biased": (GATHERED, f"{BIASED}.gather(1, chosen)"),
        "sum-still-biased": (NORMALIZED, f"gates / {BIASED}.gather(1, chosen){SUM}"),
        "bias-removed-after-sum": (
            *(GATHERED, f"{BIASED}.gather(1, chosen)"),
            *(NORMALIZED, f"{NORMALIZED} - bias[chosen]"),
        ),
        "bias-does-not-choose": (BIASED, "scores"),
        "bias-is-subtracted": (BIASED, "(scores - bias)"),
        "bias-before-sigmoid": [
            (BIASED, "(logits + bias)"),
            ("logits.sigmoid()", "(logits + bias).sigmoid()", BIASED, "scores"),
        ],
        "biased-gates-not-normalized": (NORMALIZED, "gates"),
        "normalized-by-all-scores": (NORMALIZED, f"gates / scores{SUM}"),
        "normalized-over-tokens": (NORMALIZED, "gates / gates.sum(dim=0)"),
        "softmax-for-sigmoid": [
            ("logits.sigmoid()", "logits.softmax(dim=-1)"),
            (NORMALIZED, "logits.gather(1, chosen).softmax(dim=-1)"),
        ],
        "gates-divided-by-k": (NORMALIZED, "gates / k"),
        "gates-of-first-k": (GATHERED, "scores[:, :k]"),
        "gates-of-unbiased-choice": (GATHERED, "scores.topk(k, dim=-1).values"),
        "smallest-are-chosen": ("(k, dim=-1)", "(k, dim=-1, largest=False)"),
        "softmax-of-scores": (NORMALIZED, "gates.softmax(dim=-1)"),
        "gates-from-logits": (GATHERED, "logits.gather(1, chosen)"),
        "sorted-by-gates": (
            RESULT,
            "order = gates.argsort(descending=True)\n"
            "    return gates.gather(1, order), chosen.gather(1, order)",
        ),
        "gates-sorted-alone": (RESULT, "return gates.sort(descending=True).values, chosen"),
        "gates-and-chosen-swapped": (RESULT, "return chosen, gates"),
    },
)


@exercise("19.5", "Find the bug")
def find_the_bug(healthy_route) -> Message:
    def inputs(case: Case) -> tuple:
        logits, bias = case.randn("t (x 2)"), case.randn("(x 2)") * 0.5
        return logits, bias, case.random.randint(2, logits.shape[1] - 1)

    return same_function(
        healthy_route, routed_with_bias, inputs, mistakes=BIAS_MISTAKES, trials=TRIALS
    )


def attended(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, attn_mask: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~attn_mask, -torch.inf)
    sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    return weights @ v


SINK, JOINED = "sinks[:, None, None]", "torch.cat([scores, sink], dim=-1)"
SINK_WEIGHTS = f"{JOINED}.softmax(dim=-1)[..., :-1]"
MASKED = "scores.masked_fill(~attn_mask, -torch.inf)"
SINK_MISTAKES = patches(
    attended,
    {
        "weights-still-sum-to-one": [
            (SINK_WEIGHTS, "scores.softmax(dim=-1)"),
            (SINK_WEIGHTS, "scores.softmax(dim=-1).nan_to_num()"),
        ],
        "sink-logit-always-zero": (SINK, f"torch.zeros_like({SINK})"),
        "sink-without-exp": (SINK_WEIGHTS, f"scores.exp() / (scores.exp(){SUM} + sink)"),
        "sink-exp-twice": ("scores, sink]", "scores, sink.exp()]"),
        "sink-is-divided": (SINK, f"({SINK} / q.shape[-1] ** 0.5)"),
        "sink-sign-changed": (SINK, f"-{SINK}"),
        "wrong-column-dropped": [("[..., :-1]", "[..., 1:]"), ("[scores, sink]", "[sink, scores]")],
        "one-sink-for-all-heads": [
            (SINK, f"sinks{of}") for of in ("[0]", ".mean()", ".sum()", ".logsumexp(dim=0)")
        ],
        "scores-not-divided": (" / q.shape[-1] ** 0.5", ""),
        "scores-multiplied": (" / q.shape", " * q.shape"),
        "sink-mask-inverted": ("~attn_mask", "attn_mask"),
        "sink-mask-not-used": (MASKED, "scores"),
        "sink-mask-after-softmax": (MASKED, "scores", "weights @ v", "(weights * attn_mask) @ v"),
        "sink-masked-scores-zero": ("-torch.inf", "0.0"),
        "masked-row-is-nan": ("weights @ v", "(weights / attn_mask.any(dim=-1, keepdim=True)) @ v"),
        "softmax-over-queries": [
            (SINK_WEIGHTS, f"{JOINED}.softmax(dim=-2)[..., :-1]"),
            (SINK_WEIGHTS, f"{JOINED}.softmax(dim=-2)[..., :-1].nan_to_num()"),
        ],
    },
)


@exercise("19.6", "Attention with a sink")
def attention_with_a_sink(attend_with_sinks) -> Message:
    def inputs(case: Case) -> tuple:
        q, k, v = case.randn("b h i d"), case.randn("b h j d"), case.randn("b h j d")
        attn_mask = case.bools("i j", 0.6)
        attn_mask[case.random.randrange(case["i"])] = False  # attends to no key at all
        return q, k, v, case.randn("h"), attn_mask

    return same_function(attend_with_sinks, attended, inputs, mistakes=SINK_MISTAKES, trials=TRIALS)


open_exercise("19.7", "Read a configuration")
