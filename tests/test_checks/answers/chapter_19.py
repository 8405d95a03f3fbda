"""Correct and wrong answers to the exercises of chapter 19."""

from exercise_bank import Bank, code, swap

BYTES = "7 * 3 * 5 * (20 + 8) * 4"
ROUTE = "best.softmax(dim=-1), chosen"
SENT = "result[rows] += gates[rows, slots][:, None] * output"
LOSS = "x * (fractions * probabilities.mean(dim=0)).sum()"
HEALTHY = "gates / gates.sum(dim=-1, keepdim=True), chosen"
SINK = "sinks[:, None, None].expand(b, h, i, 1)"
WEIGHTS = "torch.cat([scores, sink], dim=-1).softmax(dim=-1)"
SAME_AXIS = "there are two axes, so 1 is the last"


def of_all(gates, *, cause=""):
    """The function of 19.2 with gates from the probabilities p of the chosen experts."""
    text = f"""
        def route(logits, k):
            p, chosen = logits.softmax(dim=-1).topk(k, dim=-1)
            return {gates}, chosen
    """
    return code(text, cause=cause)


def biased(line, *, cause=""):
    """The function of 19.5 with other gates."""
    return swap("scores.gather(-1, chosen)", line, cause=cause)


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
            of_all("p", cause="gates-not-normalized"),
            of_all("p.softmax(dim=-1)", cause="softmax-of-softmax"),
            swap(ROUTE, "best, chosen", cause="gates-are-logits"),
            swap(ROUTE, "best / best.sum(dim=-1, keepdim=True), chosen", cause="gates-without-exp"),
            swap(ROUTE, "best.softmax(dim=0), chosen", cause="gates-over-tokens"),
            swap(ROUTE, "best.exp(), chosen", cause="gates-are-exp"),
            swap(ROUTE, "best.softmax(-1), chosen + 1", cause="experts-counted-from-one"),
            swap(ROUTE, "logits[:, :k].softmax(-1), chosen", cause="gates-of-first-k"),
            of_all("p / p.sum(dim=0)", cause="gates-over-tokens"),
            of_all("p / p.sum()", cause="gates-over-tokens"),
            swap(ROUTE, "best.sigmoid(), chosen", cause="gates-from-sigmoid"),
            of_all("torch.nn.functional.normalize(p, dim=1)", cause="gates-of-length-one"),
            swap(ROUTE, "torch.ones_like(best) / k, chosen", cause="gates-are-equal"),
            swap("topk(k)", "topk(k, largest=False)", cause="smallest-are-chosen"),
            swap("logits.topk", "logits.softmax(0).topk", cause="chosen-after-softmax-over-tokens"),
            code(
                """
                def route(logits, k):
                    chosen = logits.argsort(dim=-1)[:, -k:]
                    return logits.gather(1, chosen).softmax(dim=-1), chosen
                """,
                cause="not-in-falling-order",
            ),
            swap(
                ROUTE, "best.softmax(dim=-1), chosen.sort().values", cause="gates-of-other-experts"
            ),
            swap(ROUTE, "chosen, best.softmax(dim=-1)", cause="gates-and-chosen-swapped"),
            swap(ROUTE, "best.detach().softmax(dim=-1), chosen", cause="no-gradient"),
            swap("topk(k)", "topk(k, dim=0)", cause="raises"),
        ],
        right=[
            of_all("p / p.sum(dim=-1, keepdim=True)"),
            code(
                """
                def route(logits, k):
                    chosen = logits.argsort(dim=-1, descending=True)[:, :k]
                    kept = torch.full_like(logits, -torch.inf)
                    kept = kept.scatter(1, chosen, logits.gather(1, chosen))
                    return kept.softmax(dim=-1).gather(1, chosen), chosen
                """
            ),
            code(
                """
                def route(logits, k):
                    gates, chosen = [], []
                    for row in logits:
                        best = row.topk(k)
                        powers = (best.values - best.values[0]).exp()
                        gates.append(powers / powers.sum())
                        chosen.append(best.indices)
                    return torch.stack(gates), torch.stack(chosen)
                """
            ),
        ],
        equivalent={
            "return best.softmax(dim=-1), chosen => return best.softmax(dim=(1)), chosen": SAME_AXIS
        },
    ),
    "19.3": Bank(
        wrong=[
            swap(SENT, "result[rows] += output", cause="outputs-not-weighted"),
            swap(SENT, "result[rows] += output / chosen.shape[1]", cause="mean-of-outputs"),
            swap("return result", "return result / chosen.shape[1]", cause="weighted-sum-divided"),
            swap("] += gates", "] = gates", cause="last-output-stays"),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    rows = torch.arange(len(tokens)).repeat_interleave(chosen.shape[1])
                    outputs = [experts[a](tokens[i]) for i, a in zip(rows, chosen.flatten())]
                    result = torch.zeros_like(tokens)
                    result[rows] += gates.flatten()[:, None] * torch.stack(outputs)
                    return result
                """,
                cause="last-output-stays",
            ),
            swap("chosen == number", "chosen[:, :1] == number", cause="only-first-choice"),
            swap("[rows, slots]", "[rows, 0]", cause="gate-of-first-choice"),
            swap("gates[rows, slots]", "gates[rows].sum(dim=1)", cause="gates-are-summed"),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    result = torch.zeros_like(tokens)
                    for number, expert in enumerate(experts):
                        rows, slots = torch.where(chosen == number)
                        result[rows] += expert(gates[rows, slots][:, None] * tokens[rows])
                    return result
                """,
                cause="gates-before-experts",
            ),
            swap(
                "[:, None] * output",
                "[:, None] / gates[rows].sum(dim=1, keepdim=True) * output",
                cause="gates-normalized-again",
            ),
            swap("expert(tokens[rows])", "experts[0](tokens[rows])", cause="first-expert-for-all"),
            swap("chosen == number", "chosen == number + 1", cause="experts-counted-from-one"),
            swap("torch.zeros_like(tokens)", "tokens.clone()", cause="token-is-added"),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    result = torch.zeros_like(tokens)
                    for slot in range(chosen.shape[1]):
                        result += gates[:, slot, None] * experts[slot](tokens)
                    return result
                """,
                cause="experts-by-slot",
            ),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    result = torch.zeros_like(tokens)
                    for number, expert in enumerate(experts):
                        weight = (gates * (chosen == number)).sum(dim=1, keepdim=True)
                        result = result + weight * expert(tokens)
                    return result
                """,
                cause="experts-compute-too-much",
            ),
            swap("* output", "* output.detach()", cause="no-gradient tokens"),
        ],
        right=[
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    rows = []
                    for token, weights, numbers in zip(tokens, gates, chosen):
                        rows.append(sum(w * experts[a](token) for w, a in zip(weights, numbers)))
                    return torch.stack(rows)
                """
            ),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    k = chosen.shape[1]
                    numbers, order = chosen.flatten().sort()
                    counts = torch.bincount(numbers, minlength=len(experts)).tolist()
                    parts = tokens[order // k].split(counts)
                    outputs = torch.cat([f(part) for f, part in zip(experts, parts)])
                    outputs = outputs * gates.flatten()[order, None]
                    return torch.zeros(tokens.shape).index_add(0, order // k, outputs)
                """
            ),
            code(
                """
                def combine(tokens, experts, gates, chosen):
                    outputs = torch.zeros(*chosen.shape, tokens.shape[1], dtype=tokens.dtype)
                    for number in chosen.unique().tolist():
                        mask = chosen == number
                        outputs[mask] = experts[number](tokens[mask.any(dim=1)])
                    return torch.einsum("tk,tke->te", gates, outputs)
                """
            ),
        ],
    ),
    "19.4": Bank(
        wrong=[
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
                def balancing_loss(probabilities, chosen):
                    t, x = probabilities.shape
                    best = probabilities.gather(1, chosen)
                    means = torch.zeros(x).index_add(0, chosen.flatten(), best.flatten()) / t
                    return x * (torch.bincount(chosen.flatten(), minlength=x) / t * means).sum()
                """,
                cause="probabilities-of-chosen-only",
            ),
            code(
                """
                def balancing_loss(probabilities, chosen):
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
                def balancing_loss(probabilities, chosen):
                    x = probabilities.shape[1]
                    mask = torch.nn.functional.one_hot(chosen, x).sum(dim=1)
                    f = mask.to(probabilities).mean(dim=0)
                    return x * f @ probabilities.mean(dim=0)
                """
            ),
            code(
                """
                def balancing_loss(probabilities, chosen):
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
                def balancing_loss(probabilities, chosen):
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
            swap(
                "    return " + HEALTHY,
                "    gates, order = gates.sort(descending=True)\n"
                "    chosen = chosen.gather(-1, order)\n"
                "    return " + HEALTHY,
                cause="sorted-by-gates",
            ),
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
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = q @ k.mT / q.shape[-1] ** 0.5 + sinks[:, None, None]
                    scores = scores.masked_fill(~attn_mask, -torch.inf)
                    return scores.softmax(dim=-1).nan_to_num() @ v
                """,
                cause="weights-still-sum-to-one",
            ),
            swap(
                "weights[..., :-1] @ v",
                "(weights[..., :-1] / weights[..., :-1].sum(dim=-1, keepdim=True)) @ v",
                cause="weights-still-sum-to-one",
            ),
            swap(SINK, "torch.zeros(b, h, i, 1)", cause="sink-logit-always-zero"),
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    powers = scores.exp() * attn_mask
                    total = powers.sum(dim=-1, keepdim=True) + sinks[:, None, None]
                    return powers / total @ v
                """,
                cause="sink-without-exp",
            ),
            swap("[scores, sink]", "[scores, sink.exp()]", cause="sink-exp-twice"),
            swap("[scores, sink]", "[scores, sink / q.shape[-1] ** 0.5]", cause="sink-is-divided"),
            swap("[scores, sink]", "[scores, -sink]", cause="sink-sign-changed"),
            swap("weights[..., :-1]", "weights[..., 1:]", cause="wrong-column-dropped"),
            swap("sinks[:, None, None]", "sinks.mean()", cause="one-sink-for-all-heads"),
            swap(" / q.shape[-1] ** 0.5", "", cause="scores-not-divided"),
            swap("~attn_mask", "attn_mask", cause="sink-mask-inverted"),
            swap(
                "    scores = scores.masked_fill(~attn_mask, -torch.inf)\n",
                "",
                cause="sink-mask-not-used",
            ),
            swap("-torch.inf", "0.0", cause="sink-masked-scores-zero"),
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
                    weights = torch.cat([sink, scores], dim=-1).softmax(dim=-1)[..., 1:]
                    return weights * attn_mask @ v
                """,
                cause="sink-mask-after-softmax",
            ),
            swap("[scores, sink]", "[sink, scores]", cause="wrong-column-dropped"),
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    scores = scores.masked_fill(~attn_mask, -torch.inf)
                    top = scores.amax(dim=-1, keepdim=True)
                    powers, sink = (scores - top).exp(), (sinks[:, None, None] - top).exp()
                    return powers / (powers.sum(dim=-1, keepdim=True) + sink) @ v
                """,
                cause="masked-row-is-nan",
            ),
            swap(WEIGHTS, WEIGHTS.replace("(dim=-1)", "(dim=-2)"), cause="softmax-over-queries"),
            swap("weights[..., :-1] @ v", "weights @ v", cause="raises"),
            swap(SINK, f"{SINK}.detach()", cause="no-gradient sinks"),
        ],
        right=[
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    powers = scores.exp() * attn_mask
                    total = powers.sum(dim=-1, keepdim=True) + sinks.exp()[:, None, None]
                    return powers / total @ v
                """
            ),
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
                    scores = torch.where(attn_mask, scores, -torch.inf)
                    total = torch.logaddexp(scores.logsumexp(dim=-1), sinks[:, None])
                    return torch.einsum("bhij,bhjd->bhid", (scores - total[..., None]).exp(), v)
                """
            ),
            code(
                """
                def attend_with_sinks(q, k, v, sinks, attn_mask):
                    one_more = (0, 0, 0, 1)
                    k = torch.nn.functional.pad(k, one_more)
                    v = torch.nn.functional.pad(v, one_more)
                    allowed = torch.zeros(attn_mask.shape, dtype=q.dtype)
                    allowed = allowed.masked_fill(~attn_mask, -torch.inf)
                    (i, _), h = attn_mask.shape, len(sinks)
                    column = sinks[:, None, None].expand(h, i, 1)
                    mask = torch.cat([allowed.expand(h, i, -1), column], dim=-1)
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[None])
                """
            ),
        ],
    ),
}
