"""Correct and wrong answers to the exercises of chapter 19."""

from exercise_bank import Bank, code, swap

BYTES = "7 * 3 * 5 * (20 + 8) * 4"
GATES = "top.softmax(dim=1)"
GROUPS = "by_group.amax(dim=2)"
SENT = "result[rows] += weights[:, None] * expert(tokens[rows])"
KEPT_ROWS = "weights.argsort(descending=True)[:capacity]"
LOSS = "x * (fractions * probabilities.mean(dim=0)).sum()"
REAL = "probabilities[real], chosen[real]"
HEALTHY = "gates / gates.sum(dim=-1, keepdim=True), chosen"
KEPT = "(lse - total).exp()"
SAME_AXIS = "there are two axes, so 1 is the last"


def gated(gates, *, cause=""):
    """The function of 19.2 with other gates."""
    return swap(GATES, gates, cause=cause)


def biased(line, *, cause=""):
    """The function of 19.5 with other gates."""
    return swap("scores.gather(-1, chosen)", line, cause=cause)


def sunk(factor, *, cause=""):
    """The function of 19.6 with another factor."""
    return swap(KEPT, factor, cause=cause)


BANK = {
    "19.1": Bank(
        wrong=[
            swap("(15, 6)", "(6, 15)", cause="sizes-in-another-order"),
            swap("(15, 6)", "(3, 5, 6)", cause="number-of-axes"),
            swap("(15, 4)", "(15, 6)", cause="look-at-axes k"),
            swap("(10, 40)", "(15, 40)", cause="look-at-axes r"),
            swap("(10, 40)", "(60, 40)", cause="look-at-axes r"),
            swap(BYTES, "7 * 3 * 5 * (20 + 8)", cause="latent-cache-in-bytes"),
            swap(BYTES, "7 * 3 * 5 * (20 + 8) * 2", cause="latent-cache-of-float32"),
            swap(BYTES, "7 * 3 * 5 * 20 * 4", cause="rotary-key-is-kept"),
            swap(BYTES, "7 * 3 * 5 * 8 * 4", cause="latent-is-kept"),
            swap(BYTES, "7 * 3 * 5 * (20 + 10 * 8) * 4", cause="one-rotary-key-for-all-heads"),
            swap(BYTES, "7 * 3 * 5 * 10 * (20 + 8) * 4", cause="one-latent-for-all-heads"),
            swap(BYTES, "2 * 7 * 3 * 5 * (20 + 8) * 4", cause="latent-makes-both"),
            swap(BYTES, "7 * 3 * 5 * 10 * (16 + 8 + 16) * 4", cause="heads-are-not-kept"),
            swap(BYTES, "3 * 5 * (20 + 8) * 4", cause="latent-cache-of-one-layer"),
            swap(BYTES, "7 * 5 * (20 + 8) * 4", cause="latent-cache-of-one-sequence"),
            swap(BYTES, "7 * (20 + 8) * 4", cause="latent-cache-of-one-token"),
        ],
        right=[
            swap("(15, 6)", "[3 * 5, 6]"),
            swap(BYTES, "torch.tensor(11760.0)"),
        ],
    ),
    "19.2": Bank(
        wrong=[
            swap("by_group.reshape(t, x).topk", "logits.topk", cause="groups-not-used"),
            swap(GROUPS, "by_group.mean(dim=2)", cause="groups-by-mean"),
            swap(GROUPS, "by_group.sum(dim=2)", cause="groups-by-mean"),
            swap(GROUPS, "by_group.topk(2).values.sum(dim=2)", cause="groups-by-two-largest"),
            swap("topk(kept)", "topk(kept, largest=False)", cause="smallest-groups"),
            swap("~usable", "usable", cause="best-groups-masked"),
            swap("topk(kept)", "topk(1)", cause="kept-not-used"),
            code(
                """
                def route(logits, k, groups, kept):
                    by_group = logits.unflatten(1, (groups, -1))
                    best = by_group.amax(dim=2).topk(kept).indices
                    best = best[:, :, None].expand(-1, -1, by_group.shape[2])
                    top, chosen = by_group.gather(1, best).flatten(1).topk(k)
                    return top.softmax(dim=1), chosen
                """,
                cause="positions-not-numbers",
            ),
            swap("-torch.inf", "0.0", cause="other-groups-zero"),
            code(
                """
                def route(logits, k, groups, kept):
                    best = logits.unflatten(1, (-1, groups)).amax(dim=1).topk(kept).indices
                    of = torch.arange(logits.shape[1]) % groups
                    usable = (of[None, :, None] == best[:, None, :]).any(dim=2)
                    top, chosen = logits.masked_fill(~usable, -torch.inf).topk(k)
                    return top.softmax(dim=1), chosen
                """,
                cause="groups-take-turns",
            ),
            gated("logits.softmax(dim=1).gather(1, chosen)", cause="gates-not-normalized"),
            gated("by_group.flatten(1).softmax(1).topk(k).values", cause="gates-not-normalized"),
            gated(
                "by_group.flatten(1).softmax(1).topk(k)[0].softmax(1)", cause="softmax-of-softmax"
            ),
            gated("top", cause="gates-are-logits"),
            gated("top.exp()", cause="gates-are-exp"),
            gated("top / top.sum(dim=1, keepdim=True)", cause="gates-without-exp"),
            gated("top.softmax(dim=0)", cause="gates-over-tokens"),
            gated("top.sigmoid()", cause="gates-from-sigmoid"),
            swap(
                f"{GATES}, chosen", f"{GATES}.flip(1), chosen.flip(1)", cause="not-in-falling-order"
            ),
            swap(f"{GATES}, chosen", f"{GATES}, chosen.sort()[0]", cause="gates-of-other-experts"),
            swap(f"{GATES}, chosen", f"{GATES}, chosen + 1", cause="experts-counted-from-one"),
            swap(f"{GATES}, chosen", f"chosen, {GATES}", cause="gates-and-chosen-swapped"),
            gated("top.detach().softmax(dim=1)", cause="no-gradient"),
        ],
        right=[
            code(
                """
                def route(logits, k, groups, kept):
                    size = logits.shape[1] // groups
                    gates, chosen = [], []
                    for row in logits:
                        parts = sorted(range(groups), key=lambda g: -row[g * size :][:size].max())
                        numbers = [g * size + a for g in parts[:kept] for a in range(size)]
                        numbers = sorted(numbers, key=lambda a: -row[a])[:k]
                        chosen.append(torch.tensor(numbers))
                        gates.append(row[numbers].softmax(dim=0))
                    return torch.stack(gates), torch.stack(chosen)
                """
            ),
            code(
                """
                def route(logits, k, groups, kept):
                    size = logits.shape[1] // groups
                    largest = torch.stack([g.max(dim=1).values for g in logits.split(size, 1)], 1)
                    limit = largest.sort(dim=1, descending=True).values[:, kept - 1, None]
                    usable = (largest >= limit).repeat_interleave(size, dim=1)
                    p = logits.softmax(dim=1) * usable
                    chosen = p.argsort(dim=1, descending=True)[:, :k]
                    p = p.gather(1, chosen)
                    return p / p.sum(dim=1, keepdim=True), chosen
                """
            ),
            code(
                """
                def route(logits, k, groups, kept):
                    size = logits.shape[1] // groups
                    best = logits.unflatten(1, (groups, size)).amax(dim=2).topk(kept).indices
                    numbers = (best[:, :, None] * size + torch.arange(size)).flatten(1)
                    top, places = logits.gather(1, numbers).topk(k)
                    powers = (top - top[:, :1]).exp()
                    return powers / powers.sum(dim=1, keepdim=True), numbers.gather(1, places)
                """
            ),
        ],
    ),
    "19.3": Bank(
        wrong=[
            swap("[:capacity]", "", cause="capacity-not-used"),
            swap(KEPT_ROWS, "torch.arange(len(rows))[:capacity]", cause="first-tokens-kept"),
            swap("descending=True", "descending=False", cause="smallest-gates-kept"),
            swap(
                "weights.argsort(descending=True)", "weights.argsort()", cause="smallest-gates-kept"
            ),
            swap("[:capacity]", "[: capacity - 1]", cause="one-token-too-few"),
            swap("weights[best]\n", "weights[:capacity]\n", cause="gates-of-other-tokens"),
            swap("rows[best], w", "rows[:capacity], w", cause="gates-of-other-tokens"),
            swap("tokens[rows]", "tokens[best]", cause="order-used-as-rows"),
            swap("result[rows]", "result[best]", cause="order-used-as-rows"),
            swap("= weights.arg", "= gates[rows].amax(dim=1).arg", cause="sorted-by-best-gate"),
            swap("weights[:, None] * ", "", cause="outputs-not-weighted"),
            swap("weights[:, None]", "1 / chosen.shape[1]", cause="mean-of-outputs"),
            swap("return result", "return result / chosen.shape[1]", cause="weighted-sum-divided"),
            swap("result[rows] +=", "result[rows] =", cause="last-output-stays"),
            swap("chosen == number", "chosen[:, :1] == number", cause="only-first-choice"),
            swap(SENT, SENT.replace("weights", "gates[rows, 0]"), cause="gate-of-first-choice"),
            swap(
                SENT,
                "result[rows] += expert(weights[:, None] * tokens[rows])",
                cause="gates-before-experts",
            ),
            swap(
                SENT,
                SENT.replace("weights", "(weights / gates[rows].sum(1))"),
                cause="gates-normalized-again",
            ),
            swap("expert(tokens[rows])", "experts[0](tokens[rows])", cause="first-expert-for-all"),
            swap("chosen == number", "chosen == number + 1", cause="experts-counted-from-one"),
            swap("torch.zeros_like(tokens)", "tokens.clone()", cause="token-is-added"),
            swap("expert(tokens[rows])", "expert(tokens)[rows]", cause="experts-compute-too-much"),
            swap(
                "expert(tokens[rows])", "expert(tokens[rows]).detach()", cause="no-gradient tokens"
            ),
        ],
        right=[
            code(
                """
                def combine(tokens, experts, gates, chosen, capacity):
                    result = [torch.zeros_like(token) for token in tokens]
                    for number, expert in enumerate(experts):
                        pairs = [(i, c) for i, c in torch.argwhere(chosen == number).tolist()]
                        pairs.sort(key=lambda pair: -gates[pair])
                        for i, c in pairs[:capacity]:
                            result[i] = result[i] + gates[i, c] * expert(tokens[i])
                    return torch.stack(result)
                """
            ),
            code(
                """
                def combine(tokens, experts, gates, chosen, capacity):
                    spread = torch.zeros(len(tokens), len(experts)).scatter(1, chosen, gates)
                    best, rows = spread.topk(min(capacity, len(tokens)), dim=0)
                    result = torch.zeros(tokens.shape)
                    for weight, row, expert in zip(best.T, rows.T, experts):
                        row, weight = row[weight > 0], weight[weight > 0]
                        result = result.index_add(0, row, weight[:, None] * expert(tokens[row]))
                    return result
                """
            ),
            code(
                """
                def combine(tokens, experts, gates, chosen, capacity):
                    outputs = torch.zeros(*chosen.shape, tokens.shape[1], dtype=tokens.dtype)
                    for number in chosen.unique().tolist():
                        mask = chosen == number
                        if mask.sum() > capacity:
                            mask = mask & (gates >= gates[mask].topk(capacity).values[-1])
                        outputs[mask] = experts[number](tokens[mask.any(dim=1)])
                    return torch.einsum("tk,tke->te", gates, outputs)
                """
            ),
        ],
    ),
    "19.4": Bank(
        wrong=[
            swap(f"    probabilities, chosen = {REAL}\n", "", cause="padding-counts"),
            swap(REAL, "probabilities[real], chosen", cause="padding-chooses"),
            swap("chosen.flatten()", "chosen[~real].flatten()", cause="raises"),
            swap("[real]", "[~real]", cause="only-padding-counts"),
            swap(" / t", " / len(real)", cause="padding-divides"),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    x = probabilities.shape[1]
                    f = torch.bincount(chosen[real].flatten(), minlength=x) / real.sum()
                    return x * (f * probabilities.mean(dim=0)).sum()
                """,
                cause="padding-has-probability",
            ),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    t, x = probabilities.shape
                    f = torch.bincount(chosen.flatten(), minlength=x) / t
                    return x * (f * probabilities[real].mean(dim=0)).sum()
                """,
                cause="padding-chooses",
            ),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    t, x = probabilities.shape
                    mask = torch.nn.functional.one_hot(chosen, x).sum(dim=1) * real[:, None]
                    means = (probabilities * real[:, None]).mean(dim=0)
                    return x * (mask.to(means).mean(dim=0) * means).sum()
                """,
                cause="padding-divides",
            ),
            swap("return x * ", "return ", cause="number-of-experts-missing"),
            swap(LOSS, "(fractions * probabilities.mean(dim=0)).mean()", cause="mean-over-experts"),
            swap(" / t", " / chosen.numel()", cause="fractions-of-all-choices"),
            swap(" / t", "", cause="one-sum-not-divided"),
            swap(" / t", " / x", cause="tokens-and-experts-mixed"),
            swap(".mean(dim=0)", ".sum(dim=0)", cause="one-sum-not-divided"),
            swap(".mean(dim=0)", ".mean()", cause="averaged-over-experts"),
            swap(".mean(dim=0)", ".softmax(dim=-1).mean(dim=0)", cause="softmax-on-probabilities"),
            swap("chosen.flatten()", "chosen[:, 0]", cause="counts-first-choice"),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    probabilities, chosen = probabilities[real], chosen[real]
                    t, x = probabilities.shape
                    best = probabilities.gather(1, chosen)
                    means = torch.zeros(x).index_add(0, chosen.flatten(), best.flatten()) / t
                    return x * (torch.bincount(chosen.flatten(), minlength=x) / t * means).sum()
                """,
                cause="probabilities-of-chosen-only",
            ),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    probabilities, chosen = probabilities[real], chosen[real]
                    x = probabilities.shape[1]
                    return x * probabilities.gather(1, chosen).sum(dim=1).mean()
                """,
                cause="multiplied-token-by-token",
            ),
            swap("probabilities.mean(dim=0)", "fractions", cause="only-fractions"),
            swap("(fractions *", "(probabilities.mean(dim=0) *", cause="only-probabilities"),
            swap("return x", "return -x", cause="balance-is-rewarded"),
            swap(LOSS, "x * fractions.sum()", cause="summed-before-product"),
            swap("return x", "return chosen.shape[1]", cause="k-for-number-of-experts"),
            swap(", minlength=x", "", cause="raises"),
            swap("probabilities.mean", "probabilities.detach().mean", cause="no-gradient"),
        ],
        right=[
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    probabilities, chosen = probabilities[real], chosen[real]
                    x = probabilities.shape[1]
                    mask = torch.nn.functional.one_hot(chosen, x).sum(dim=1)
                    f = mask.to(probabilities).mean(dim=0)
                    return x * f @ probabilities.mean(dim=0)
                """
            ),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    probabilities, chosen = probabilities[real], chosen[real]
                    t, x = probabilities.shape
                    loss = torch.zeros(())
                    for a in range(x):
                        f = (chosen == a).any(dim=1).sum() / t
                        loss = loss + f * probabilities[:, a].mean()
                    return x * loss
                """
            ),
            code(
                """
                def balancing_loss(probabilities, chosen, real):
                    probabilities, chosen = probabilities[real], chosen[real]
                    t, x = probabilities.shape
                    counts = torch.bincount(chosen.flatten(), minlength=x).float()
                    return x * (counts @ probabilities.sum(dim=0)) / t**2
                """
            ),
        ],
    ),
    "19.5": Bank(
        wrong=[
            biased("(scores + bias).gather(-1, chosen)", cause="gates-still-biased"),
            swap(
                "gates.sum(dim=-1, keepdim=True)",
                "(scores + bias).gather(-1, chosen).sum(dim=-1, keepdim=True)",
                cause="sum-still-biased",
            ),
            code(
                """
                def healthy_route(logits, bias, k):
                    best, chosen = (logits.sigmoid() + bias).topk(k, dim=-1)
                    return best / best.sum(dim=-1, keepdim=True) - bias[chosen], chosen
                """,
                cause="bias-removed-after-sum",
            ),
            swap("(scores + bias)", "scores", cause="bias-does-not-choose"),
            swap("(scores + bias)", "(scores - bias)", cause="bias-is-subtracted"),
            swap("(scores + bias)", "(logits + bias)", cause="bias-before-sigmoid"),
            swap(HEALTHY, "gates, chosen", cause="biased-gates-not-normalized"),
            swap("/ gates.sum", "/ scores.sum", cause="normalized-by-all-scores"),
            swap("gates.sum(dim=-1", "gates.sum(dim=0", cause="normalized-over-tokens"),
            swap("logits.sigmoid()", "logits.softmax(dim=-1)", cause="softmax-for-sigmoid"),
            swap(HEALTHY, "gates.softmax(dim=-1), chosen", cause="softmax-of-scores"),
            biased("logits.gather(-1, chosen)", cause="gates-from-logits"),
            biased("scores[:, :k]", cause="gates-of-first-k"),
            biased("scores.topk(k).values", cause="gates-of-unbiased-choice"),
            swap(HEALTHY, "gates / k, chosen", cause="gates-divided-by-k"),
            swap("topk(k)", "topk(k, largest=False)", cause="smallest-are-chosen"),
            swap(HEALTHY, "chosen, gates / gates.sum(dim=-1)", cause="raises"),
            biased(
                "scores.gather(-1, chosen).sort(descending=True).values", cause="gates-sorted-alone"
            ),
        ],
        right=[
            code(
                """
                def healthy_route(logits, bias, k):
                    best, chosen = (torch.sigmoid(logits) + bias).topk(k, dim=-1)
                    gates = best - bias[chosen]
                    return gates / gates.sum(dim=-1, keepdim=True), chosen
                """
            ),
            code(
                """
                def healthy_route(logits, bias, k):
                    scores = 1 / (1 + (-logits).exp())
                    chosen = (scores + bias).argsort(dim=-1, descending=True)[:, :k]
                    gates = torch.stack([row[c] for row, c in zip(scores, chosen)])
                    return gates / gates.sum(dim=-1)[:, None], chosen
                """
            ),
            code(
                """
                def healthy_route(logits, bias, k):
                    scores = logits.sigmoid()
                    chosen = torch.topk(scores + bias[None], k)[1]
                    gates = torch.take_along_dim(scores, chosen, dim=1)
                    return torch.nn.functional.normalize(gates, p=1, dim=1), chosen
                """
            ),
        ],
        equivalent={
            "gates = scores.gather(-1, chosen) => gates = scores.gather((1), chosen)": SAME_AXIS,
            f"return {HEALTHY} => return {HEALTHY.replace('-1', '(1)')}": SAME_AXIS,
        },
    ),
    "19.6": Bank(
        wrong=[
            sunk("lse.exp() / (lse.exp() + sinks[:, None].exp())", cause="exp-overflows"),
            sunk("lse.exp() / (lse.exp() + sinks[:, None])", cause="sink-without-exp"),
            sunk("lse / (lse + sinks[:, None])", cause="lse-without-exp"),
            sunk("(sinks[:, None] - total).exp()", cause="sink-gets-the-rest"),
            sunk("1 - (lse - total).exp()", cause="sink-gets-the-rest"),
            sunk("torch.sigmoid(lse + sinks[:, None])", cause="sink-added-to-lse"),
            sunk("torch.sigmoid(lse)", cause="sink-logit-always-zero"),
            sunk("1 - sinks[:, None].sigmoid().expand_as(lse)", cause="lse-not-used"),
            sunk("1 - (sinks[:, None] - lse).exp()", cause="sink-not-in-sum"),
            sunk("(lse - sinks[:, None]).exp()", cause="sink-not-in-sum"),
            sunk("(total - lse).exp()", cause="output-is-divided"),
            sunk("lse - sinks[:, None]", cause="factor-is-difference"),
            sunk("lse - total", cause="factor-is-difference"),
            swap("sinks[:, None]", "sinks.mean()", cause="one-sink-for-all-heads"),
            swap(
                "output * kept[..., None]",
                "output * kept[..., None] + (1 - kept[..., None])",
                cause="sink-has-a-value",
            ),
            swap("output * kept[..., None]", "output", cause="returns-argument"),
            swap("sinks[:, None]", "sinks", cause="raises"),
            swap("kept[..., None]", "kept[..., None].detach()", cause="no-gradient lse"),
        ],
        right=[
            sunk("(lse - sinks[:, None]).sigmoid()"),
            sunk("1 / (1 + (sinks[:, None] - lse).exp())"),
            code(
                """
                def add_sinks(output, lse, sinks):
                    both = torch.stack([lse, sinks[:, None].expand_as(lse)])
                    return torch.einsum("bhi,bhid->bhid", both.softmax(dim=0)[0], output)
                """
            ),
            code(
                """
                def add_sinks(output, lse, sinks):
                    heads = []
                    for head, sink in enumerate(sinks):
                        top = torch.maximum(lse[:, head], sink)
                        one, other = (lse[:, head] - top).exp(), (sink - top).exp()
                        heads.append(output[:, head] * (one / (one + other))[:, :, None])
                    return torch.stack(heads, dim=1)
                """
            ),
        ],
        equivalent={
            "total = torch.logaddexp(lse, sinks[:, None])  # (b, h, i) => "
            "total = torch.logaddexp(sinks[:, None], lse)  # (b, h, i)": "a sum has no order",
        },
    ),
}
