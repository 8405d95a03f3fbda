"""Answers to the exercises of chapter 11, right and wrong."""

from exercise_bank import Bank, code, swap


def drawn(*lines, cause=""):
    """A function `accuracy_by_sampling` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def accuracy_by_sampling(texts, answers):\n" + body, cause=cause)


def step(*lines, cause=""):
    """A function `beam_step` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def beam_step(scores, step, width):\n" + body, cause=cause)


LOSS = """    source, target = batch
    logits = model(source, target[:, :-1], padding_mask_of_ids(source))
    rows = rearrange(logits, "b i v -> (b i) v")
    return F.cross_entropy(rows, target[:, 1:].flatten(), ignore_index=PADDING)
"""
FORCED = "model.decode(ids, memory, mask)"
TRAINING = "history = fit_batches(reader, draw, number_loss, steps=300, learning_rate=5e-3)\n"
MODEL = """reader = Transformer(
    source_size=len(letters),
    target_size=len(figures),
    embed_dim=32,
    num_heads=4,
    mlp_dim=64,
    num_encoder_layers=1,
    num_decoder_layers=1,
    max_length=10,
    positions="learned",
)
"""


BANK = {
    "11.1": Bank(
        wrong=[
            swap("(7, 19, 40)", "(7, 12, 40)", cause="look-at-axes j"),
            swap("(7, 19, 40)", "(7, 40, 19)", cause="sizes-in-another-order"),
            swap("(7, 5, 11, 19)", "(7, 5, 12, 19)", cause="look-at-axes i"),
            swap("(7, 5, 11, 19)", "(7, 5, 19, 11)", cause="sizes-in-another-order"),
            swap("(7, 5, 11, 19)", "(7, 5, 11, 11)", cause="look-at-axes j"),
            swap("(7, 11, 13)", "(7, 12, 13)", cause="look-at-axes i"),
            swap("(7, 11, 13)", "(7, 13)", cause="number-of-axes"),
            swap("(3, 13)", "(3, 3)", cause="look-at-axes v"),
            swap("(3, 13)", "(39,)", cause="number-of-axes"),
        ],
        right=[
            swap("(7, 11, 13)", "[7, 12 - 1, 13]"),
            swap("(3, 13)", "torch.Size([3, 13])"),
        ],
    ),
    "11.2": Bank(
        wrong=[
            swap(
                "        following = following.where(~done, PADDING)\n",
                "",
                cause="goes-on-after-the-end",
            ),
            swap("~done, PADDING", "~done, END", cause="filled-with-end"),
            swap(
                "        if done.all():\n            break\n",
                "",
                cause="does-not-stop",
            ),
            swap("done.all()", "done.any()", cause="stops-at-the-first-end"),
            swap(
                "following = following.where(~done, PADDING)",
                "done = done | (following == END)\n"
                "        following = following.where(~done, PADDING)",
                cause="end-becomes-padding",
            ),
            swap("(b, 1), BEGIN", "(b, 1), PADDING", cause="begins-with-padding"),
            swap("return ids", "return ids[:, 1:]", cause="begin-left-out"),
            swap("argmax", "argmin", cause="takes-the-smallest"),
            swap(
                "        if done.all():\n            break\n    return ids",
                "    return ids\n",
                cause="does-not-stop",
            ),
            swap("return ids", "return ids.float()", cause="dtype-differs"),
            code("def greedy(next_scores, b, steps):\n    ids = 1", cause="returns-none"),
            swap("done = done | (following", "done = (following", cause="done-is-forgotten"),
            swap("where(~done", "where(done", cause="done-is-inverted"),
            swap("for _ in range(steps)", "while not done.all()", cause="goes-past-steps"),
            swap("range(steps)", "range(100)", cause="goes-past-steps"),
            swap("range(steps)", "range(steps - 1)", cause="stops-one-step-early"),
        ],
        right=[
            code(
                """
                def greedy(next_scores, b, steps):
                    ids = torch.tensor([[BEGIN]] * b)
                    while ids.shape[1] <= steps:
                        done = (ids == END).any(dim=1)
                        if done.all():
                            break
                        best = next_scores(ids).max(dim=1).indices
                        best[done] = PADDING
                        ids = torch.cat([ids, best[:, None]], dim=-1)
                    return ids
                """
            ),
            code(
                """
                def greedy(next_scores, b, steps):
                    rows = [[BEGIN] for _ in range(b)]
                    for _ in range(steps):
                        if all(END in row for row in rows):
                            break
                        best = next_scores(torch.tensor(rows)).argmax(dim=-1).tolist()
                        rows = [
                            row + [PADDING if END in row else token]
                            for row, token in zip(rows, best)
                        ]
                    return torch.tensor(rows)
                """
            ),
        ],
        equivalent={
            "following = next_scores(ids).argmax(dim=-1)  # (b,) => following = "
            "next_scores(ids).argmax(dim=(1))  # (b,)": "the last axis of (b, v) is axis 1",
        },
    ),
    "11.3": Bank(
        wrong=[
            swap("scores[:, None] + step", "step", cause="last-step-alone"),
            swap("scores[:, None] + step", "scores[:, None] * step", cause="logs-multiplied"),
            swap(
                "best.indices // v, best.indices % v",
                "best.indices % v, best.indices // v",
                cause="parents-and-tokens-exchanged",
            ),
            swap("v = step.shape[1]", "v = step.shape[0]", cause="divided-by-w"),
            swap("best.values\n", "best.values.exp()\n", cause="probabilities-for-logs"),
            swap(
                ".topk(min(width, len(longer)))",
                ".topk(min(width, len(longer)), largest=False)",
                cause="worst-are-taken",
            ),
            swap(".topk(min(width, len(longer)))", ".topk(width)", cause="raises RuntimeError"),
            step(
                "values, tokens = (scores[:, None] + step).max(dim=1)",
                "best = values.topk(min(width, len(values)))",
                "return best.indices, tokens[best.indices], best.values",
                cause="best-of-each-row",
            ),
            step(
                "longer = (scores[:, None] + step).flatten()",
                "best = longer.topk(min(width, len(longer)))",
                "parents, tokens = best.indices // step.shape[1], best.indices % step.shape[1]",
                "return parents, tokens, step[parents, tokens]",
                cause="score-of-the-step",
            ),
            step(
                "longer = (scores[:, None] + step).flatten()",
                "order = longer.argsort()[-width:]",
                "v = step.shape[1]",
                "return order // v, order % v, longer[order]",
                cause="worst-first",
            ),
            step(
                "longer = (scores[:, None] + step).T.flatten()",
                "best = longer.topk(min(width, len(longer)))",
                "w = len(step)",
                "return best.indices // w, best.indices % w, best.values",
                cause="parents-and-tokens-exchanged",
            ),
            step(
                "pairs = [",
                "    (float(scores[w] + step[w, v]), w, v)",
                "    for w in range(len(step)) for v in range(step.shape[1])",
                "]",
                "pairs = sorted(pairs, reverse=True)[:width]",
                "values, parents, tokens = zip(*pairs)",
                "best = torch.tensor(values, dtype=step.dtype)",
                "return torch.tensor(parents), torch.tensor(tokens), best",
                cause="loops-and-may-not",
            ),
        ],
        right=[
            step(
                "longer = (scores.unsqueeze(1) + step).flatten()",
                "values, places = longer.sort(descending=True)",
                "parents = torch.div(places[:width], step.shape[1], rounding_mode='floor')",
                "return parents, places[:width].remainder(step.shape[1]), values[:width]",
            ),
            step(
                "longer = scores[:, None] + step",
                "places = longer.flatten().argsort(descending=True)[:width]",
                "parents, tokens = torch.unravel_index(places, longer.shape)",
                "return parents, tokens, longer[parents, tokens]",
            ),
        ],
        equivalent={
            "best = longer.topk(min(width, len(longer))) => best = "
            "longer.topk(min(len(longer), width))": "the smaller one of two, in any order",
        },
    ),
    "11.4": Bank(
        wrong=[
            swap("count**2 / of_text[text]", "count", cause="counts-not-squared"),
            swap("count**2 / of_text[text]", "count**2", cause="not-divided-by-text"),
            swap("return right / len(texts)", "return right", cause="number-not-share-of-texts"),
            swap(
                "return right / len(texts)",
                "return 100 * right / len(texts)",
                cause="percentage-of-texts",
            ),
            swap(
                "return right / len(texts)",
                "return 1 - right / len(texts)",
                cause="share-that-is-wrong",
            ),
            drawn(
                "counts = {}",
                "for text, answer in zip(texts, answers):",
                "    of_text = counts.setdefault(text, {})",
                "    of_text[answer] = of_text.get(answer, 0) + 1",
                "return sum(max(c.values()) for c in counts.values()) / len(texts)",
                cause="most-frequent-not-drawn",
            ),
            drawn(
                "counts = {}",
                "for text, answer in zip(texts, answers):",
                "    counts.setdefault(text, set()).add(answer)",
                "return sum(1 / len(counts[text]) for text in texts) / len(texts)",
                cause="drawn-uniformly",
            ),
            drawn(
                "shares = [answers.count(answer) / len(answers) for answer in answers]",
                "return sum(shares) / len(shares)",
                cause="text-is-ignored",
            ),
            drawn(
                "right = []",
                "for text in sorted(set(texts)):",
                "    given = [a for t, a in zip(texts, answers) if t == text]",
                "    right.append(sum(given.count(a) for a in given) / len(given) ** 2)",
                "return sum(right) / len(right)",
                cause="different-texts-once",
            ),
            drawn(
                "pairs = list(zip(texts, answers))",
                "sure = [t for t in texts if len({a for u, a in pairs if u == t}) == 1]",
                "return len(sure) / len(texts)",
                cause="sure-texts-only",
            ),
            swap(
                "right / len(texts)", "right / len(set(texts))", cause="divided-by-different-texts"
            ),
            drawn(
                "import random",
                "given = [[a for t, a in zip(texts, answers) if t == text] for text in texts]",
                "hits = [random.choices(g, k=500).count(a) for g, a in zip(given, answers)]",
                "return sum(hits) / 500 / len(texts)",
                cause="simulated-or-rounded",
            ),
            swap(
                "return right / len(texts)",
                "return round(right / len(texts), 2)",
                cause="simulated-or-rounded",
            ),
        ],
        right=[
            drawn(
                "pairs, total = list(zip(texts, answers)), 0.0",
                "for text, answer in pairs:",
                "    total += pairs.count((text, answer)) / texts.count(text)",
                "return total / len(pairs)",
            ),
            drawn(
                "from collections import Counter",
                "of_text, of_pair = Counter(texts), Counter(zip(texts, answers))",
                "chances = [of_pair[pair] / of_text[pair[0]] for pair in zip(texts, answers)]",
                "return sum(chances) / len(chances)",
            ),
        ],
        equivalent={
            "of_pair[text, answer] = of_pair.get((text, answer), 0) + 1 => of_pair[text, answer] "
            "= (of_pair.get((text, answer), 0)) - (1)": "only its square is used",
        },
    ),
    "11.5": Bank(
        wrong=[
            code("token_accuracy = buggy_accuracy", cause="right-beginning-is-handed-in"),
            swap(
                FORCED,
                "model.decode(target[:, : ids.shape[1]], memory, mask)",
                cause="right-beginning-is-handed-in",
            ),
            swap(
                "mask = padding_mask_of_ids(source)",
                "mask = None",
                cause="padding-is-read",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids == target).double()",
                cause="begin-is-counted",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids == target).all(dim=1).double()",
                cause="whole-answers-counted",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids[:, -1] == target[:, -1]).double()",
                cause="last-token-alone",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids[:, :-1] == target[:, 1:]).double()",
                cause="one-place-off",
            ),
            swap(".mean().item()", ".sum().item()", cause="number-of-tokens"),
            swap("(ids[:, 1:]", "100 * (ids[:, 1:]", cause="percentage-of-texts"),
            swap("decode(ids", "decode(ids[:, -1:]", cause="last-token-is-read-alone"),
            swap("[:, -1].argmax", "[:, 0].argmax", cause="first-row-is-read"),
            swap("encode(source, mask)", "encode(source)", cause="padding-is-read"),
            swap("ids[:, 1:] == target", "ids[:, 1:] != target", cause="tokens-that-are-wrong"),
            swap(
                "ids = target[:, :1]",
                "ids = torch.zeros(len(target), 1, dtype=torch.long)",
                cause="does-not-start-with-begin",
            ),
        ],
        right=[
            code(
                """
                @torch.no_grad()
                def token_accuracy(model, source, target):
                    ids = continued(model, source, target[:, :1], target.shape[1] - 1)
                    return (ids == target)[:, 1:].double().mean().item()
                """
            ),
            code(
                """
                @torch.no_grad()
                def token_accuracy(model, source, target):
                    b, i = target.shape
                    ids = torch.full((b, 1), BEGIN)
                    while ids.shape[1] < i:
                        scores = model(source, ids, padding_mask_of_ids(source))
                        ids = torch.cat([ids, scores.argmax(dim=-1)[:, -1:]], dim=1)
                    return (ids == target)[:, 1:].sum().item() / (b * (i - 1))
                """
            ),
            swap(".double().mean()", ".float().mean()"),
            swap(
                "following = model.decode(ids, memory, mask)[:, -1].argmax(dim=-1, keepdim=True)",
                "following = model.decode(ids, memory, mask)[:, -1].argmax(dim=-1, keepdim=True)\n"
                "        done = (ids == END).any(dim=1, keepdim=True)\n"
                "        following = following.where(~done, PADDING)",
            ),
        ],
        equivalent={
            "return (ids[:, 1:] == target[:, 1:]).double().mean().item() => return "
            "((ids[:, 1:] == target[:, 1:]).double().mean())": "a tensor of one number is one",
            "following = model.decode(ids, memory, mask)[:, -1].argmax(dim=-1, keepdim=True) => "
            "following = model.decode(ids, memory, mask)[:, -1].argmax(dim=(1), keepdim=True)": (
                "the last axis of (b, v) is axis 1"
            ),
        },
    ),
    "11.6": Bank(
        wrong=[
            swap(TRAINING, "", cause="model-says-the-same"),
            swap("steps=300", "steps=30", cause="model-has-not-learned"),
            swap(
                TRAINING,
                'reader = "text"\n',
                cause="reader-is-a-transformer",
            ),
            swap(
                "target[:, :-1], padding_mask_of_ids(source))\n"
                '    rows = rearrange(logits, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target[:, 1:].flatten()",
                "target, padding_mask_of_ids(source))\n"
                '    rows = rearrange(logits, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target.flatten()",
                cause="target-is-not-shifted",
            ),
            swap("1:].flatten", ":-1].flatten", cause="target-is-not-shifted"),
            swap(", ignore_index=PADDING", "", cause="padding-counts-in-the-loss"),
            swap("PADDING)", "PADDING, reduction='sum')", cause="loss-is-a-sum"),
            swap("target[:, :-1], pad", "target[:, 1:], pad", cause="loss-of-begin-left-out"),
            swap(
                "target[:, :-1], padding_mask_of_ids(source))",
                "target[:, :-1])",
                cause="padding-is-read",
            ),
            swap("range(5)", "range(3)", cause="read-stops-too-early"),
            swap(
                "(len(texts), 1), BEGIN",
                "(len(texts), 1), END",
                cause="model-reads-but-read-does-not",
            ),
            swap("row[: row.index(END)]", "row", cause="read-goes-on-after-the-end"),
            swap(
                '"".join(figures.decode(row[: row.index(END)]))',
                '"".join(figures.decode(row[: row.index(END)]))[::-1]',
                cause="read-is-turned-round",
            ),
            code(
                """
                def read(model, texts, letters, figures):
                    return [str(words.index(text)) for text in texts]
                """,
                cause="reads-without-the-model",
            ),
            swap(
                'return ["".join(figures.decode(row[: row.index(END)])) for row in rows]',
                "return [figures.decode(row[: row.index(END)]) for row in rows]",
                cause="read-returns-texts list",
            ),
            swap("for row in rows]", "for row in rows[1:]]", cause="read-returns-as-many"),
            swap(
                'return ["".join(figures.decode(row[: row.index(END)])) for row in rows]',
                "return [spoken for text in texts for spoken in [str(words.index(text))]]",
                cause="reads-without-the-model",
            ),
        ],
        right=[
            swap(
                "memory = model.encode(source, mask)",
                "memory = model.encoder(model.source_embedding(source), mask)\n"
                "    b, j, e = memory.shape",
            ),
            swap(
                "ids = torch.full((len(texts), 1), BEGIN)\n    for _ in range(5):",
                "model.eval()\n"
                "    ids = torch.tensor([[BEGIN]] * len(texts))\n"
                "    while ids.shape[1] < 6:",
            ),
            swap(
                'rows = rearrange(logits, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target[:, 1:].flatten(), ignore_index=PADDING)",
                "return F.cross_entropy(logits.mT, target[:, 1:], ignore_index=PADDING)",
            ),
        ],
        equivalent={
            "for _ in range(5): => for _ in range(6):": "a step more, after END",
            "for _ in range(5): => for _ in range(4):": "four figures; END is added anyway",
            "ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1) => ids = "
            "torch.cat([ids, logits.argmax(dim=(1), keepdim=True)], dim=1)": (
                "the last axis of (b, v) is axis 1"
            ),
        },
        kept=(LOSS, MODEL + TRAINING),
    ),
}
