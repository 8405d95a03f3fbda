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


def routed(logits: Tensor, k: int, groups: int, kept: int) -> tuple[Tensor, Tensor]:
    size = logits.shape[1] // groups
    largest = logits.unflatten(1, (groups, size)).amax(dim=-1)
    best_groups = largest.topk(kept, dim=-1).indices
    usable = torch.zeros_like(largest).scatter(1, best_groups, 1) > 0
    usable = usable.repeat_interleave(size, dim=1)
    allowed = logits.masked_fill(~usable, -torch.inf)
    best, chosen = allowed.topk(k, dim=-1)
    gates = best.softmax(dim=-1)
    return gates, chosen


TRIALS = Trials(6)
GATES, RESULT = "best.softmax(dim=-1)", "return gates, chosen"
OF_ALL = "logits.softmax(dim=-1).gather(1, chosen)"
OF_USABLE = "allowed.softmax(dim=-1).gather(1, chosen)"
SUM, LARGEST = ".sum(dim=-1, keepdim=True)", ".amax(dim=-1)"
TURNS = ("repeat_interleave(size, dim=1)", "repeat(1, size)")
ROUTE_MISTAKES = patches(
    routed,
    {
        "groups-not-used": ("allowed.topk", "logits.topk"),
        "groups-take-turns": [TURNS, (*TURNS, "(1, (groups, size))", "(1, (size, groups)).mT")],
        "best-groups-masked": ("~usable", "usable"),
        "kept-not-used": ("topk(kept", "topk(1"),
        "positions-not-numbers": (
            "best, chosen = allowed",
            "numbers = (best_groups[:, :, None] * size + torch.arange(size)).flatten(1)\n"
            "    best, chosen = logits.gather(1, numbers)",
        ),
        "groups-by-mean": (LARGEST, ".mean(dim=-1)"),
        "groups-by-two-largest": (LARGEST, ".topk(2).values.sum(dim=-1)"),
        "smallest-groups": ("(kept, dim=-1)", "(kept, dim=-1, largest=False)"),
        "other-groups-zero": ("-torch.inf", "0.0"),
        "gates-not-normalized": [(GATES, OF_ALL), (GATES, OF_USABLE)],
        "softmax-of-softmax": [(GATES, f"{p}.softmax(dim=-1)") for p in (OF_ALL, OF_USABLE)],
        "gates-are-logits": (GATES, "best"),
        "gates-are-exp": (GATES, "best.exp()"),
        "gates-without-exp": (GATES, f"best / best{SUM}"),
        "gates-over-tokens": (GATES, "best.softmax(dim=0)"),
        "gates-from-sigmoid": [
            (GATES, f"best.sigmoid(){x}") for x in ("", f" / best.sigmoid(){SUM}")
        ],
        "not-in-falling-order": [
            (RESULT, "return gates.flip(-1), chosen.flip(-1)"),
            (RESULT, "return gates.gather(1, chosen.argsort()), chosen.sort().values"),
        ],
        "gates-of-other-experts": (RESULT, "return gates, chosen.sort().values"),
        "experts-counted-from-one": (RESULT, f"{RESULT} + 1"),
        "gates-and-chosen-swapped": (RESULT, "return chosen, gates"),
    },
)


@exercise("19.1", "Which shape, and how many bytes?")
def which_shape(logits_shape, gates_shape, expert_input_shape, cache_bytes) -> Message:
    written(logits_shape, gates_shape, expert_input_shape, cache_bytes)
    tokens = torch.zeros(3, 5, 40).flatten(0, 1)
    logits = nn.Linear(40, 6, bias=False)(tokens)
    gates, chosen = routed(logits, 4, 1, 1)
    same_shape(logits_shape, logits.shape, "t x")
    same_shape(gates_shape, gates.shape, "t k")
    same_shape(expert_input_shape, (chosen.numel() // logits.shape[1], 40), "r e")
    of_token, places = 20 + 8, 3 * 5 * 7
    kept = 4 * of_token * places
    known: dict[float, Message | str] = {
        kept // 4: "latent-cache-in-bytes",
        kept // 2: "latent-cache-of-float32",
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


@exercise("19.2", "Choose experts from few groups")
def choose_experts(route) -> Message:
    def inputs(case: Case) -> tuple:
        logits, groups = case.randn("t (g s)") - 2, case["g"]  # below 0: a mask of 0 shows
        kept = case.random.randint(1, groups - 1)
        return logits, case.random.randint(2, min(6, kept * case["s"])), groups, kept

    return same_function(route, routed, inputs, mistakes=ROUTE_MISTAKES, trials=TRIALS)


class Expert:
    """Change each row by itself, and count the rows; zeros do not stay zeros."""

    def __init__(self, weight: Tensor):
        self.weight, self.rows = weight, 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.rows += rows.shape[:-1].numel()
        return (rows @ self.weight.to(rows.dtype) + 0.3).tanh()


def combined(tokens: Tensor, experts: list, gates: Tensor, chosen: Tensor, capacity: int) -> Tensor:
    result = torch.zeros_like(tokens)
    for number, expert in enumerate(experts):
        rows, slots = (chosen == number).nonzero(as_tuple=True)
        order = gates[rows, slots].argsort(descending=True)[:capacity]
        rows, slots = rows[order], slots[order]
        weights = gates[rows, slots, None]
        result = result.index_add(0, rows, weights * expert(tokens[rows]))
    return result


CHOSEN, WEIGHTS = "(chosen == number)", "gates[rows, slots, None]"
ORDER = "gates[rows, slots].argsort(descending=True)[:capacity]"
MOVED = "rows, slots = rows[order], slots[order]"
COMBINE_MISTAKES = patches(
    combined,
    {
        "capacity-not-used": ("[:capacity]", ""),
        "first-tokens-kept": (ORDER, "torch.arange(len(rows))[:capacity]"),
        "smallest-gates-kept": ("descending=True", "descending=False"),
        "one-token-too-few": ("[:capacity]", "[: capacity - 1]"),
        "gates-of-other-tokens": [
            ("slots[order]", "slots[: len(order)]"),
            (WEIGHTS, "gates[chosen == number][: len(rows), None]"),
            (
                *("        weights = gates[rows, slots, None]\n", ""),
                *(MOVED, "weights, rows = gates[rows, slots, None][order], rows[: len(order)]"),
            ),
        ],
        "order-used-as-rows": [("(tokens[rows]", "(tokens[order]"), ("(0, rows", "(0, order")],
        "sorted-by-best-gate": (ORDER, ORDER.replace("[rows, slots]", "[rows].amax(dim=1)")),
        "outputs-not-weighted": (WEIGHTS, "1"),
        "mean-of-outputs": (WEIGHTS, "1 / chosen.shape[1]"),
        "weighted-sum-divided": ("return result", "return result / chosen.shape[1]"),
        "last-output-stays": ("index_add", "index_copy"),
        "only-first-choice": (CHOSEN, "(chosen[:, :1] == number)"),
        "gate-of-first-choice": (WEIGHTS, "gates[rows, 0, None]"),
        "gates-before-experts": (
            "weights * expert(tokens[rows])",
            "expert(weights * tokens[rows])",
        ),
        "gates-normalized-again": (WEIGHTS, f"({WEIGHTS} / gates[rows].sum(dim=1, keepdim=True))"),
        "first-expert-for-all": ("expert(tokens", "experts[0](tokens"),
        "experts-counted-from-one": (CHOSEN, "(chosen == number + 1)"),
        "token-is-added": ("return result", "return tokens + result"),
    },
)


@exercise("19.3", "Send tokens to experts")
def send_tokens(combine) -> Message:
    def inputs(case: Case) -> tuple:
        tokens, x = case.randn("(t 2) e"), case["x"] + 2
        experts = [Expert(case.randn("e e")) for _ in range(x)]
        k = case.random.randint(2, x - 2)
        order = torch.rand(len(tokens), x - 1, generator=case.generator).argsort(dim=1)
        idle = case.random.randrange(x)  # an expert that no token chose
        chosen = (order + (order >= idle))[:, :k]
        gates = torch.rand(*chosen.shape, generator=case.generator, dtype=case.dtype)
        return tokens, experts, gates, chosen, max(1, chosen.numel() // x)

    said = same_function(combine, combined, inputs, mistakes=COMBINE_MISTAKES, trials=TRIALS)
    args = inputs(Case(5))
    run(combine, args)
    _, experts, _, chosen, capacity = args
    rows = sum(expert.rows for expert in experts)
    needed = int(torch.bincount(chosen.flatten()).clamp(max=capacity).sum())
    if rows > needed:
        noticed(Wrong(message("experts-compute-too-much", rows=rows, needed=needed)))
    return said


def balance(probabilities: Tensor, chosen: Tensor, real: Tensor) -> Tensor:
    probabilities, chosen = probabilities[real], chosen[real]
    t, x = len(chosen), probabilities.shape[1]
    counts = F.one_hot(chosen, x).sum(dim=(0, 1)).to(probabilities)
    fractions = counts / t
    means = probabilities.mean(dim=0)
    return x * (fractions * means).sum()


PRODUCTS, MEANS = "(fractions * means).sum()", "probabilities.mean(dim=0)"
MASK = "F.one_hot(chosen, x).sum(dim=1)"
REAL, ALL = "probabilities[real], chosen[real]", "len(real)"
BALANCE_MISTAKES = patches(
    balance,
    {
        "padding-counts": (REAL, "probabilities, chosen"),
        "padding-chooses": [
            (REAL, "probabilities[real], chosen"),
            (REAL, "probabilities[real], chosen", " / t", " / real.sum()"),
        ],
        "padding-has-probability": (REAL, "probabilities, chosen[real]"),
        "padding-divides": [
            (" / t", f" / {ALL}"),
            (MEANS, f"probabilities.sum(dim=0) / {ALL}"),
            (" / t", f" / {ALL}", MEANS, f"probabilities.sum(dim=0) / {ALL}"),
        ],
        "only-padding-counts": ("[real]", "[~real]"),
        "number-of-experts-missing": (f"x * {PRODUCTS}", PRODUCTS),
        "mean-over-experts": (f"x * {PRODUCTS}", "(fractions * means).mean()"),
        "fractions-of-all-choices": (" / t", " / chosen.numel()"),
        "one-sum-not-divided": (" / t", ""),
        "tokens-and-experts-mixed": (" / t", " / x"),
        "averaged-over-experts": (MEANS, "probabilities.mean()"),
        "softmax-on-probabilities": (MEANS, "probabilities.softmax(dim=-1).mean(dim=0)"),
        "counts-first-choice": ("F.one_hot(chosen, x)", "F.one_hot(chosen[:, :1], x)"),
        "probabilities-of-chosen-only": (MEANS, f"(probabilities * {MASK}).mean(dim=0)"),
        "multiplied-token-by-token": (PRODUCTS, f"(probabilities * {MASK}).mean(dim=0).sum()"),
        "only-fractions": ("* means", "* fractions"),
        "only-probabilities": ("(fractions *", "(means *"),
        "summed-before-product": [(PRODUCTS, "fractions.sum()"), (PRODUCTS, "means.sum()")],
        "balance-is-rewarded": ("return x", "return -x"),
        "k-for-number-of-experts": ("return x", "return chosen.shape[1]"),
    },
)


@exercise("19.4", "Balance without padding")
def balance_without_padding(balancing_loss) -> Message:
    def inputs(case: Case) -> tuple:  # float32: a count divided by a count has no other dtype
        logits = case.randn("t (x 2)").float() * 2
        if case.random.random() < 0.5:
            logits[:, -1] -= 20  # no token chooses the last expert
        k = case.random.randint(2, logits.shape[1] - 2)
        real = case.bools("t", 0.7)
        real[:2] = torch.tensor([True, False])
        return logits.softmax(dim=-1), logits.topk(k, dim=-1).indices, real

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


def sunk(output: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    kept = (lse - sinks[:, None]).sigmoid()
    return output * kept[..., None]


KEPT, DIFFERENCE = "(lse - sinks[:, None]).sigmoid()", "lse - sinks[:, None]"
LOST = "(sinks[:, None] - lse).exp()"
SINK_MISTAKES = patches(
    sunk,
    {
        "exp-overflows": (KEPT, "lse.exp() / (lse.exp() + sinks[:, None].exp())"),
        "sink-without-exp": (KEPT, "lse.exp() / (lse.exp() + sinks[:, None])"),
        "lse-without-exp": (KEPT, "lse / (lse + sinks[:, None])"),
        "sink-gets-the-rest": (DIFFERENCE, "sinks[:, None] - lse"),
        "sink-added-to-lse": (DIFFERENCE, "lse + sinks[:, None]"),
        "sink-logit-always-zero": (DIFFERENCE, "lse"),
        "lse-not-used": [(DIFFERENCE, "-sinks[:, None]"), (DIFFERENCE, "sinks[:, None]")],
        "sink-not-in-sum": [(KEPT, f"{x} {LOST}") for x in ("1 -", "1 /")],
        "output-is-divided": ("output *", "output /"),
        "factor-is-difference": [(KEPT, DIFFERENCE), (KEPT, f"{KEPT}.log()")],
        "one-sink-for-all-heads": [("sinks[:, None]", f"sinks{x}") for x in ("[0]", ".mean()")],
        "sink-has-a-value": ("kept[..., None]", "kept[..., None] + (1 - kept)[..., None]"),
    },
)


@exercise("19.6", "A sink after the kernel")
def a_sink_after_the_kernel(add_sinks) -> Message:
    def inputs(case: Case) -> tuple:
        scores, sinks = case.randn("b h i j"), case.randn("h")
        for head, shift in ((0, 1000), (1, -1000)):  # exp gives inf and 0
            scores[:, head] += shift
            sinks[head] += shift
        output = scores.softmax(dim=-1) @ case.randn("b h j d")
        return output, scores.logsumexp(dim=-1), sinks

    return same_function(add_sinks, sunk, inputs, mistakes=SINK_MISTAKES, trials=TRIALS)


open_exercise("19.7", "Read a configuration")
