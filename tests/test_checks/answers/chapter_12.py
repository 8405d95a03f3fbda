"""Answers to the exercises of chapter 12, right and wrong."""

from exercise_bank import Bank, code, swap


def blank(line, says=""):
    return code(f"def blank_loss(scores, ids, hidden):\n    {line}\n", says=says)


def text(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def text_bits(scores, ids):\n" + body, says=says)


def choose(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def min_p(scores, share):\n" + body, says=says)


def step(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def step(model, ids, cache):\n" + body, says=says)


def reader(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def digit_bits(model, pixels):\n" + body, says=says)


SURPRISE = 'cost = F.cross_entropy(scores[:, :-1].mT, ids[:, 1:], reduction="none")'
RUN = "return model.head(model.encoder(tokens, mask, cache))"

BANK = {
    "12.1": Bank(
        wrong=[
            swap("(5, 7, 50)", "(5, 7, 24)", says="look at v"),
            swap("(5, 7, 50)", "(5, 50)", says="needs 3 axes"),
            swap("(5, 7, 50)", "(5, 50, 7)", says="right sizes in another order"),
            swap("(5, 4, 9, 6)", "(5, 4, 7, 6)", says="look at j"),
            swap("(5, 4, 9, 6)", "(5, 4, 2, 6)", says="look at j"),
            swap("(5, 4, 9, 6)", "(5, 9, 24)", says="needs 4 axes"),
            swap("(5, 4, 9, 6)", "(5, 4, 9, 24)", says="look at d"),
            swap("(5, 4, 9, 6)", "(5, 9, 4, 6)", says="right sizes in another order"),
            swap("(5, 15)", "(5, 8)", says="look at n"),
            swap("(5, 15)", "(5, 17)", says="look at n"),
            swap("(5, 15)", "(5, 15, 50)", says="needs 2 axes"),
        ],
        right=[
            swap("(5, 7, 50)", "[5, 7, 50]"),
            swap("(5, 4, 9, 6)", "torch.Size([5, 4, 7 + 2, 24 // 4])"),
        ],
    ),
    "12.2": Bank(
        wrong=[
            blank("return F.cross_entropy(scores.mT, ids)", says="all places are counted"),
            blank(
                'return (F.cross_entropy(scores.mT, ids, reduction="none") * hidden).mean()',
                says="divided by the number of all places",
            ),
            swap("hidden]", "~hidden]", says="visible places are counted"),
            blank(
                "return F.cross_entropy(scores[:, :-1][hidden[:, 1:]], ids[:, 1:][hidden[:, 1:]])",
                says="targets are shifted",
            ),
            blank(
                "return F.cross_entropy(scores[:, :-1][hidden[:, :-1]], "
                "ids[:, 1:][hidden[:, :-1]])",
                says="shifted by one place against the blanks",
            ),
            code(
                """
                def blank_loss(scores, ids, hidden):
                    cost = F.cross_entropy(scores.mT, ids, reduction="none") * hidden
                    return (cost.sum(dim=1) / hidden.sum(dim=1)).mean()
                """,
                says="each text is averaged first",
            ),
            swap("ids[hidden])", 'ids[hidden], reduction="sum")', says="the mean is asked for"),
            blank(
                'return F.cross_entropy(scores[hidden], ids[hidden], reduction="sum") / len(ids)',
                says="divided by the number of texts",
            ),
            swap("ids[hidden])", "ids[hidden]) / math.log(2)", says="nats are asked for"),
            swap("scores[hidden]", "scores.softmax(dim=-1)[hidden]", says="applies it again"),
            swap("return F", "return -F", says="the sign is wrong"),
            blank("return F.nll_loss(scores[hidden], ids[hidden])", says="log_softmax is missing"),
            blank(
                "return F.nll_loss(scores.log_softmax(dim=1)[hidden], ids[hidden])",
                says="over the places",
            ),
            blank(
                "return F.cross_entropy((scores * hidden[..., None]).mT, ids)",
                says="set to 0, and these places still count",
            ),
            blank(
                "return F.cross_entropy(scores.mT, ids.masked_fill(hidden, -100))",
                says="visible places are counted",
            ),
        ],
        right=[
            blank("return F.cross_entropy(scores.mT, ids.masked_fill(~hidden, -100))"),
            code(
                """
                def blank_loss(scores, ids, hidden):
                    log = scores.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]
                    return -(log * hidden).sum() / hidden.sum()
                """
            ),
        ],
    ),
    "12.3": Bank(
        wrong=[
            swap(" / math.log(2)", "", says="these are nats"),
            swap(" * (later != PADDING)", "", says="padding is paid for"),
            swap("later != PADDING", "ids[:, :-1] != PADDING", says="first padding after each"),
            text(
                'cost = F.cross_entropy(scores.mT, ids, reduction="none") / math.log(2)',
                "return (cost * (ids != PADDING)).sum(dim=1)",
                says="that the model was given there",
            ),
            text(
                'cost = F.cross_entropy(scores[:, :-2].mT, ids[:, 2:], reduction="none")',
                "return (cost * (ids[:, 2:] != PADDING)).sum(dim=1) / math.log(2)",
                says="two places further",
            ),
            text(
                SURPRISE,
                "real = ids[:, 1:] != PADDING",
                "return (cost * real).sum(dim=1) / real.sum(dim=1) / math.log(2)",
                says="the mean of a token",
            ),
            swap(".sum(dim=1)", ".mean(dim=1)", says="divided by the number of places"),
            swap("bits = -log", "bits = log", says="the sign is wrong"),
            swap(".sum(dim=1)", ".sum()", says="all texts are added up"),
            swap(".sum(dim=1)", ".sum(dim=1).mean()", says="the mean of all texts"),
            swap(".sum(dim=1)", ".sum(dim=0)", says="runs over the texts"),
            swap("[:, :-1].log_softmax(dim=-1)", "[:, :-1]", says="log_softmax is missing"),
            text(
                "log = scores.log_softmax(dim=-1)",
                "each = -(log.exp() * log).sum(dim=-1)[:, :-1] / math.log(2)",
                "return (each * (ids[:, 1:] != PADDING)).sum(dim=1)",
                says="this is the entropy",
            ),
        ],
        right=[
            text(
                SURPRISE,
                "return cost.masked_fill(ids[:, 1:] == PADDING, 0).sum(dim=1) / math.log(2)",
            ),
            text(
                "target = ids[:, 1:].masked_fill(ids[:, 1:] == PADDING, -100)",
                'cost = F.cross_entropy(scores[:, :-1].mT, target, reduction="none")',
                "return cost.sum(dim=1) / math.log(2)",
            ),
        ],
        equivalent={
            "log = scores[:, :-1].log_softmax(dim=-1) => "
            "log = (scores).log_softmax(dim=-1)": "gather takes as many places as there are ids",
            "bits = -log.gather(2, later[..., None])[..., 0] / math.log(2) => "
            "bits = -log.gather(2, later[..., None])[..., -1] / math.log(2)": "an axis of one",
        },
    ),
    "12.4": Bank(
        wrong=[
            swap("return kept / kept.sum(dim=-1, keepdim=True)", "return kept", says="sum to 1"),
            swap(
                "share * probabilities.amax(dim=-1, keepdim=True)",
                "share",
                says="a share of the largest",
            ),
            choose(
                "ranked, order = scores.softmax(dim=-1).sort(dim=-1, descending=True)",
                "ranked = ranked.masked_fill(ranked.cumsum(dim=-1) - ranked >= share, 0)",
                "ranked = ranked / ranked.sum(dim=-1, keepdim=True)",
                "return torch.zeros_like(scores).scatter(-1, order, ranked)",
                says="this is top-p",
            ),
            choose(
                "p = scores.softmax(dim=-1)",
                "p = p.masked_fill(scores < share * scores.amax(dim=-1, keepdim=True), 0)",
                "return p / p.sum(dim=-1, keepdim=True)",
                says="compare probabilities",
            ),
            swap("amax(dim=-1, keepdim=True)", "max()", says="all rows together"),
            swap("amax(dim=-1", "amax(dim=0", says="over the texts"),
            swap("amax(dim=-1", "amax(dim=1", says="over the places"),
            swap("probabilities < enough", "probabilities > enough", says="keeps the unlikely"),
            swap(
                "return kept / kept.sum(dim=-1, keepdim=True)",
                "return kept.softmax(dim=-1)",
                says="applied to probabilities",
            ),
            choose(
                "p = scores.softmax(dim=-1)",
                "small = p < share * p.amax(dim=-1, keepdim=True)",
                "return scores.masked_fill(small, 0.0).softmax(dim=-1)",
                says="exp(0) is 1",
            ),
            choose("return scores.softmax(dim=-1)", says="nothing is cut"),
            swap("kept.sum(dim=-1, keepdim=True)", "kept.sum()", says="its own sum"),
            swap(
                "kept / kept.sum(dim=-1, keepdim=True)",
                "kept / kept.amax(dim=-1, keepdim=True)",
                says="divided by the largest",
            ),
        ],
        right=[
            choose(
                "log = scores - scores.amax(dim=-1, keepdim=True)",
                "return scores.masked_fill(log.exp() < share, -torch.inf).softmax(dim=-1)",
            ),
            choose(
                "p = scores.softmax(dim=-1)",
                "p = torch.where(p >= share * p.max(dim=-1, keepdim=True).values, p, 0.0)",
                "return F.normalize(p, p=1, dim=-1)",
            ),
        ],
    ),
    "12.5": Bank(
        wrong=[
            swap("model.embedding(ids, before)", "model.embedding(ids)", says="start at 0 again"),
            swap("(ids, before)", "(ids, before + (before > 0))", says="one place too far"),
            swap("(ids, before)", "(ids, max(before - 1, 0))", says="one place too early"),
            swap(
                "(ids, before)",
                "(ids, before + ids.shape[1] if before else 0)",
                says="begin behind the new tokens",
            ),
            step(
                "tokens = model.embedding(ids, cache.length)",
                "return model.head(model.encoder(tokens, cache=cache))",
                says="there is no mask",
            ),
            swap("tokens, mask, cache", "tokens, mask[:, before:]", says="not handed on"),
            swap("[before:]", "[: ids.shape[1]]", says="the last ones"),
            step(
                "return model(ids, cache=cache)",
                says="write the steps yourself",
            ),
            swap(
                "return model.head(model.encoder(tokens, mask, cache))",
                "return model.encoder(tokens, mask, cache)",
                says="what the encoder returns",
            ),
            step(
                "before = cache.length",
                "x = model.embedding(ids, before)",
                "mask = causal_mask(before + ids.shape[1])[before:]",
                "for layer in model.encoder.layers:",
                "    x = layer(x, mask, cache)",
                "return model.head(x)",
                says="the norm after the last block",
            ),
        ],
        right=[
            step(
                "n, start = ids.shape[1], cache.length",
                "tokens = model.embedding(ids, start=start)",
                "mask = torch.ones(n, start + n, dtype=torch.bool).tril(start)",
                RUN,
            ),
            step(
                "before = cache.length",
                "x = model.embedding(ids, before)",
                "mask = causal_mask(before + ids.shape[1])[before:]",
                "for layer in model.encoder.layers:",
                "    x = layer(x, mask, cache)",
                "return model.head(model.encoder.norm(x))",
            ),
        ],
    ),
    "12.6": Bank(
        wrong=[
            swap("INK_LEVELS + digit", "digit", says="ids below 17"),
            swap("INK_LEVELS + digit", "INK_LEVELS + digit + 1", says="one too far"),
            swap("INK_LEVELS + digit", "INK_LEVELS + digit - 1", says="one too early"),
            swap("INK_LEVELS + digit", "27", says="word for any digit"),
            swap(" / math.log(2)", "", says="these are nats"),
            swap("surprise.sum(dim=1)", "surprise.mean(dim=1)", says="bits a pixel"),
            swap("surprise.sum(dim=1)", "surprise[:, 1:].sum(dim=1)", says="first pixel"),
            swap(
                "scores = model(torch.cat([words, pixels[:, :-1]], dim=1))",
                "scores = model(torch.cat([words, pixels], dim=1))[:, 1:]",
                says="the place before it",
            ),
            swap("columns.append(", "columns.append(-", says="the sign is wrong"),
            swap("torch.stack(columns, dim=1)", "torch.stack(columns)", says="should be the other"),
            swap("columns, dim=1)", "columns, dim=1).argmin(dim=1)", says="bits of all ten"),
            swap("columns, dim=1)", "columns, dim=1).argmax(dim=1)", says="cost most"),
            swap("columns, dim=1)", "columns, dim=1).sum(dim=0)", says="each has its own row"),
            swap("range(10)", "range(9, -1, -1)", says="from 9 to 0"),
        ],
        right=[
            reader(
                "words = INK_LEVELS + torch.arange(10).repeat(len(pixels))",
                "drawn = pixels.repeat_interleave(10, dim=0)",
                "with torch.no_grad():",
                "    scores = model(torch.cat([words[:, None], drawn], dim=1)[:, :-1])",
                'cost = F.cross_entropy(scores.mT, drawn, reduction="none").sum(dim=1)',
                "return cost.reshape(-1, 10) / math.log(2)",
            ),
            reader(
                "def cost(digit):",
                "    ids = torch.cat([torch.full_like(pixels[:, :1], 17 + digit), pixels], dim=1)",
                "    with torch.no_grad():",
                "        log = model(ids)[:, :-1].log_softmax(dim=-1)",
                "    return -log.gather(2, pixels[..., None]).sum(dim=(1, 2)) / math.log(2)",
                "return torch.stack([cost(digit) for digit in range(10)], dim=-1)",
            ),
        ],
    ),
}
