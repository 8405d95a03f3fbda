"""Answers to the exercises of chapter 11, right and wrong."""

from exercise_bank import Bank, code, swap


def drawn(*lines, says=""):
    """A function `right_by_drawing` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def right_by_drawing(texts, answers):\n" + body, says=says)


def step(*lines, says=""):
    """A function `beam_step` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def beam_step(scores, step, width):\n" + body, says=says)


LOSS = """    source, target = batch
    scores = model(source, target[:, :-1], padding_mask_of_ids(source))
    rows = rearrange(scores, "b i v -> (b i) v")
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
            swap("(7, 19, 40)", "(7, 12, 40)", says="look at j"),
            swap("(7, 19, 40)", "(7, 40, 19)", says="right sizes in another order"),
            swap("(7, 5, 11, 19)", "(7, 5, 12, 19)", says="look at i"),
            swap("(7, 5, 11, 19)", "(7, 5, 19, 11)", says="right sizes in another order"),
            swap("(7, 5, 11, 19)", "(7, 5, 11, 11)", says="look at j"),
            swap("(7, 11, 13)", "(7, 12, 13)", says="look at i"),
            swap("(7, 11, 13)", "(7, 13)", says="needs 3 axes"),
            swap("(3, 13)", "(3, 3)", says="look at v"),
            swap("(3, 13)", "(39,)", says="needs 2 axes"),
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
                says="goes on writing; it should get PADDING",
            ),
            swap("~done, PADDING", "~done, END", says="gets END again and again"),
            swap(
                "        if done.all():\n            break\n",
                "",
                says="it goes on although all rows are done",
            ),
            swap("done.all()", "done.any()", says="it stops when one row is done"),
            swap(
                "following = following.where(~done, PADDING)",
                "done = done | (following == END)\n"
                "        following = following.where(~done, PADDING)",
                says="END itself is written over",
            ),
            swap("(b, 1), BEGIN", "(b, 1), PADDING", says="begin with BEGIN, not with PADDING"),
            swap("return ids", "return ids[:, 1:]", says="the rows should begin with BEGIN, as"),
            swap("argmax", "argmin", says="it takes the smallest score"),
            swap(
                "        if done.all():\n            break\n    return ids",
                "    return ids\n",
                says="it goes on although all rows are done",
            ),
            swap("return ids", "return ids.float()", says="dtype"),
            code("def greedy(next_scores, b, steps):\n    ids = 1", says="None"),
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
            swap("scores[:, None] + step", "step", says="is not added"),
            swap("scores[:, None] + step", "scores[:, None] * step", says="logarithms are multi"),
            swap(
                "best.indices // v, best.indices % v",
                "best.indices % v, best.indices // v",
                says="have changed places",
            ),
            swap("v = step.shape[1]", "v = step.shape[0]", says="is divided by w"),
            swap("best.values\n", "best.values.exp()\n", says="scores are probabilities"),
            swap(
                ".topk(min(width, len(longer)))",
                ".topk(min(width, len(longer)), largest=False)",
                says="the smallest sums",
            ),
            swap(".topk(min(width, len(longer)))", ".topk(width)", says="it raises RuntimeError"),
            step(
                "values, tokens = (scores[:, None] + step).max(dim=1)",
                "best = values.topk(min(width, len(values)))",
                "return best.indices, tokens[best.indices], best.values",
                says="each beginning gives its best continuation only",
            ),
            step(
                "longer = (scores[:, None] + step).flatten()",
                "best = longer.topk(min(width, len(longer)))",
                "parents, tokens = best.indices // step.shape[1], best.indices % step.shape[1]",
                "return parents, tokens, step[parents, tokens]",
                says="those of the last step; the sums",
            ),
            step(
                "longer = (scores[:, None] + step).flatten()",
                "order = longer.argsort()[-width:]",
                "v = step.shape[1]",
                "return order // v, order % v, longer[order]",
                says="but worst first",
            ),
            step(
                "longer = (scores[:, None] + step).T.flatten()",
                "best = longer.topk(min(width, len(longer)))",
                "w = len(step)",
                "return best.indices // w, best.indices % w, best.values",
                says="have changed places",
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
                says="loop",
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
            swap("count**2 / of_text[text]", "count", says="every answer counts as right"),
            swap("count**2 / of_text[text]", "count**2", says="are not divided by how often"),
            swap("return right / len(texts)", "return right", says="not their share"),
            swap("return right / len(texts)", "return 100 * right / len(texts)", says="percentage"),
            swap("return right / len(texts)", "return 1 - right / len(texts)", says="is wrong"),
            drawn(
                "counts = {}",
                "for text, answer in zip(texts, answers):",
                "    of_text = counts.setdefault(text, {})",
                "    of_text[answer] = of_text.get(answer, 0) + 1",
                "return sum(max(c.values()) for c in counts.values()) / len(texts)",
                says="nothing is drawn",
            ),
            drawn(
                "counts = {}",
                "for text, answer in zip(texts, answers):",
                "    counts.setdefault(text, set()).add(answer)",
                "return sum(1 / len(counts[text]) for text in texts) / len(texts)",
                says="drawn equally often",
            ),
            drawn(
                "shares = [answers.count(answer) / len(answers) for answer in answers]",
                "return sum(shares) / len(shares)",
                says="whatever the text is",
            ),
            drawn(
                "right = []",
                "for text in sorted(set(texts)):",
                "    given = [a for t, a in zip(texts, answers) if t == text]",
                "    right.append(sum(given.count(a) for a in given) / len(given) ** 2)",
                "return sum(right) / len(right)",
                says="each different text counts once",
            ),
            drawn(
                "pairs = list(zip(texts, answers))",
                "sure = [t for t in texts if len({a for u, a in pairs if u == t}) == 1]",
                "return len(sure) / len(texts)",
                says="only texts with one answer count",
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
            code("share_right = sick_share", says="still reads the right beginning"),
            swap(
                FORCED,
                "model.decode(target[:, : ids.shape[1]], memory, mask)",
                says="still reads the right beginning",
            ),
            swap(
                "mask = padding_mask_of_ids(source)",
                "mask = None",
                says="the padding of the source is read",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids == target).double()",
                says="BEGIN is counted",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids == target).all(dim=1).double()",
                says="whole answers are counted",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids[:, -1] == target[:, -1]).double()",
                says="only the last token",
            ),
            swap(
                "(ids[:, 1:] == target[:, 1:]).double()",
                "(ids[:, :-1] == target[:, 1:]).double()",
                says="one place further to the right",
            ),
            swap(".mean().item()", ".sum().item()", says="the number of right tokens"),
            swap("ids[:, 1:] == target", "ids[:, 1:] != target", says="tokens that are wrong"),
        ],
        right=[
            code(
                """
                @torch.no_grad()
                def share_right(model, source, target):
                    ids = continued(model, source, target[:, :1], target.shape[1] - 1)
                    return (ids == target)[:, 1:].double().mean().item()
                """
            ),
            code(
                """
                @torch.no_grad()
                def share_right(model, source, target):
                    b, i = target.shape
                    ids = torch.full((b, 1), BEGIN)
                    while ids.shape[1] < i:
                        scores = model(source, ids, padding_mask_of_ids(source))
                        ids = torch.cat([ids, scores.argmax(dim=-1)[:, -1:]], dim=1)
                    return (ids == target)[:, 1:].sum().item() / (b * (i - 1))
                """
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
            swap(TRAINING, "", says="says nearly the same to every text"),
            swap("steps=300", "steps=30", says="has not learned enough"),
            swap(
                TRAINING,
                'reader = "text"\n',
                says="reader should be a model",
            ),
            swap(
                "scores = model(source, target[:, :-1], padding_mask_of_ids(source))\n"
                '    rows = rearrange(scores, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target[:, 1:].flatten(), "
                "ignore_index=PADDING)",
                "scores = model(source, target, padding_mask_of_ids(source))\n"
                '    rows = rearrange(scores, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target.flatten(), ignore_index=PADDING)",
                says="the target was not shifted",
            ),
            swap("range(5)", "range(3)", says="read takes fewer steps"),
            swap("row[: row.index(END)]", "row", says="keeps what a model writes after END"),
            swap(
                '"".join(figures.decode(row[: row.index(END)]))',
                '"".join(figures.decode(row[: row.index(END)]))[::-1]',
                says="in the wrong order",
            ),
            code(
                """
                def read(model, texts, letters, figures):
                    return [str(words.index(text)) for text in texts]
                """,
                says="read reads as well with random weights",
            ),
            swap(
                'return ["".join(figures.decode(row[: row.index(END)])) for row in rows]',
                "return [figures.decode(row[: row.index(END)]) for row in rows]",
                says="a list of strings",
            ),
            swap("for row in rows]", "for row in rows[1:]]", says="one string for each text"),
        ],
        right=[
            swap(
                "ids = torch.full((len(texts), 1), BEGIN)\n    for _ in range(5):",
                "model.eval()\n"
                "    ids = torch.tensor([[BEGIN]] * len(texts))\n"
                "    while ids.shape[1] < 6:",
            ),
            swap(
                'rows = rearrange(scores, "b i v -> (b i) v")\n'
                "    return F.cross_entropy(rows, target[:, 1:].flatten(), ignore_index=PADDING)",
                "return F.cross_entropy(scores.mT, target[:, 1:], ignore_index=PADDING)",
            ),
        ],
        equivalent={
            "for _ in range(5): => for _ in range(6):": "a step more, after END",
            "for _ in range(5): => for _ in range(4):": "four figures; END is added anyway",
            "ids = torch.cat([ids, scores.argmax(dim=-1, keepdim=True)], dim=1) => ids = "
            "torch.cat([ids, scores.argmax(dim=(1), keepdim=True)], dim=1)": (
                "the last axis of (b, v) is axis 1"
            ),
        },
        kept=(LOSS, MODEL + TRAINING),
    ),
}
