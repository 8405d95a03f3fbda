"""Answers to the exercises of chapter 12, right and wrong."""

from exercise_bank import Bank, code, swap


def blank(line, cause=""):
    return code(f"def blank_loss(logits, ids, hidden):\n    {line}\n", cause=cause)


def text(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def sequence_bits(logits, ids):\n" + body, cause=cause)


def choose(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def min_p(logits, fraction):\n" + body, cause=cause)


def step(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def step(model, ids, cache):\n" + body, cause=cause)


def reader(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def digit_bits(model, pixels):\n" + body, cause=cause)


COST = 'cost = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")'
RUN = "return model.head(model.encoder(tokens, mask, cache))"

BANK = {
    "12.1": Bank(
        wrong=[
            swap("(5, 7, 50)", "(5, 7, 24)", cause="look-at-axes v"),
            swap("(5, 7, 50)", "(5, 50)", cause="number-of-axes"),
            swap("(5, 7, 50)", "(5, 50, 7)", cause="sizes-in-another-order"),
            swap("(5, 4, 9, 6)", "(5, 4, 7, 6)", cause="look-at-axes j"),
            swap("(5, 4, 9, 6)", "(5, 4, 2, 6)", cause="look-at-axes j"),
            swap("(5, 4, 9, 6)", "(5, 9, 24)", cause="number-of-axes"),
            swap("(5, 4, 9, 6)", "(5, 4, 9, 24)", cause="look-at-axes d"),
            swap("(5, 4, 9, 6)", "(5, 9, 4, 6)", cause="sizes-in-another-order"),
            swap("(5, 15)", "(5, 8)", cause="look-at-axes n"),
            swap("(5, 15)", "(5, 17)", cause="look-at-axes n"),
            swap("(5, 15)", "(5, 15, 50)", cause="number-of-axes"),
        ],
        right=[
            swap("(5, 7, 50)", "[5, 7, 50]"),
            swap("(5, 4, 9, 6)", "torch.Size([5, 4, 7 + 2, 24 // 4])"),
        ],
    ),
    "12.2": Bank(
        wrong=[
            blank("return F.cross_entropy(logits.mT, ids)", cause="all-places-counted"),
            blank(
                'return (F.cross_entropy(logits.mT, ids, reduction="none") * hidden).mean()',
                cause="blanks-divided-by-all-places",
            ),
            swap("hidden]", "~hidden]", cause="visible-places-counted"),
            blank(
                "return F.cross_entropy(logits[:, :-1][hidden[:, 1:]], ids[:, 1:][hidden[:, 1:]])",
                cause="blanks-shifted",
            ),
            blank(
                "return F.cross_entropy(logits[:, :-1][hidden[:, :-1]], "
                "ids[:, 1:][hidden[:, :-1]])",
                cause="blanks-shifted-back",
            ),
            code(
                """
                def blank_loss(logits, ids, hidden):
                    cost = F.cross_entropy(logits.mT, ids, reduction="none") * hidden
                    return (cost.sum(dim=1) / hidden.sum(dim=1)).mean()
                """,
                cause="mean-of-text-means",
            ),
            swap("ids[hidden])", 'ids[hidden], reduction="sum")', cause="blanks-summed"),
            blank(
                'return F.cross_entropy(logits[hidden], ids[hidden], reduction="sum") / len(ids)',
                cause="divided-by-texts",
            ),
            swap("ids[hidden])", "ids[hidden]) / math.log(2)", cause="loss-in-bits"),
            swap("logits[hidden]", "logits.softmax(dim=-1)[hidden]", cause="blanks-softmax-twice"),
            swap("return F", "return -F", cause="sign-missing"),
            blank("return F.nll_loss(logits[hidden], ids[hidden])", cause="scores-not-normalized"),
            blank(
                "return F.nll_loss(logits.log_softmax(dim=1)[hidden], ids[hidden])",
                cause="softmax-over-places",
            ),
            blank(
                "return F.cross_entropy((logits * hidden[..., None]).mT, ids)",
                cause="masked-scores-as-zero",
            ),
            blank(
                "return F.cross_entropy(logits.mT, ids.masked_fill(hidden, -100))",
                cause="visible-places-counted",
            ),
        ],
        right=[
            blank("return F.cross_entropy(logits.mT, ids.masked_fill(~hidden, -100))"),
            code(
                """
                def blank_loss(logits, ids, hidden):
                    log = logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]
                    return -(log * hidden).sum() / hidden.sum()
                """
            ),
        ],
    ),
    "12.3": Bank(
        wrong=[
            swap(" / math.log(2)", "", cause="given-in-nats"),
            swap(" / math.log(2)", " * math.log(2)", cause="multiplied-by-log-2"),
            swap(" * (later != PADDING)", "", cause="padding-is-paid"),
            text(COST, "return cost.sum(dim=1)", cause="nats-and-padding-paid"),
            swap("log_softmax(dim=-1)", "log_softmax(dim=1)", cause="softmax-over-places"),
            text(
                "log = logits.log_softmax(dim=1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]",
                "return -(log * (ids[:, 1:] != PADDING)).sum(dim=1) / math.log(2)",
                cause="softmax-over-places",
            ),
            swap(
                "later != PADDING", "ids[:, :-1] != PADDING", cause="padding-after-the-end-is-paid"
            ),
            text(
                'cost = F.cross_entropy(logits.mT, ids, reduction="none") / math.log(2)',
                "return (cost * (ids != PADDING)).sum(dim=1)",
                cause="target-at-same-place",
            ),
            text(
                'cost = F.cross_entropy(logits.mT, ids, reduction="none")[:, 1:] / math.log(2)',
                "return (cost * (ids[:, 1:] != PADDING)).sum(dim=1)",
                cause="target-at-same-place",
            ),
            text(
                'cost = F.cross_entropy(logits[:, :-2].mT, ids[:, 2:], reduction="none")',
                "return (cost * (ids[:, 2:] != PADDING)).sum(dim=1) / math.log(2)",
                cause="target-two-ahead",
            ),
            text(
                COST,
                "real = ids[:, 1:] != PADDING",
                "return (cost * real).sum(dim=1) / real.sum(dim=1) / math.log(2)",
                cause="mean-instead-of-sum",
            ),
            swap(".sum(dim=1)", ".mean(dim=1)", cause="mean-over-all-places"),
            swap("bits = -log", "bits = log", cause="log-probability-has-a-sign"),
            swap(".sum(dim=1)", ".sum()", cause="all-texts-together"),
            swap(".sum(dim=1)", ".sum(dim=1).mean()", cause="mean-of-the-texts"),
            swap(".sum(dim=1)", ".sum(dim=0)", cause="sum-over-texts"),
            swap("[:, :-1].log_softmax(dim=-1)", "[:, :-1]", cause="scores-summed"),
            text(
                "log = logits.log_softmax(dim=-1)",
                "each = -(log.exp() * log).sum(dim=-1)[:, :-1] / math.log(2)",
                "return (each * (ids[:, 1:] != PADDING)).sum(dim=1)",
                cause="entropy-instead",
            ),
        ],
        right=[
            text(
                COST,
                "return cost.masked_fill(ids[:, 1:] == PADDING, 0).sum(dim=1) / math.log(2)",
            ),
            text(
                "target = ids[:, 1:].masked_fill(ids[:, 1:] == PADDING, -100)",
                'cost = F.cross_entropy(logits[:, :-1].mT, target, reduction="none")',
                "return cost.sum(dim=1) / math.log(2)",
            ),
        ],
        equivalent={
            "log = logits[:, :-1].log_softmax(dim=-1) => "
            "log = (logits).log_softmax(dim=-1)": "gather takes as many places as there are ids",
            "bits = -log.gather(2, later[..., None])[..., 0] / math.log(2) => "
            "bits = -log.gather(2, later[..., None])[..., -1] / math.log(2)": "an axis of one",
        },
    ),
    "12.4": Bank(
        wrong=[
            swap(
                "return kept / kept.sum(dim=-1, keepdim=True)",
                "return kept",
                cause="not-divided-by-what-is-left",
            ),
            swap(
                "fraction * probabilities.amax(dim=-1, keepdim=True)",
                "fraction",
                cause="share-is-of-the-largest",
            ),
            choose(
                "ranked, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)",
                "ranked = ranked.masked_fill(ranked.cumsum(dim=-1) - ranked >= fraction, 0)",
                "ranked = ranked / ranked.sum(dim=-1, keepdim=True)",
                "return torch.zeros_like(logits).scatter(-1, order, ranked)",
                cause="this-is-top-p",
            ),
            choose(
                "p = logits.softmax(dim=-1)",
                "p = p.masked_fill(logits < fraction * logits.amax(dim=-1, keepdim=True), 0)",
                "return p / p.sum(dim=-1, keepdim=True)",
                cause="scores-are-compared",
            ),
            swap("amax(dim=-1, keepdim=True)", "max()", cause="gpt-largest-of-all-rows"),
            swap("amax(dim=-1", "amax(dim=0", cause="largest-over-the-texts"),
            swap("amax(dim=-1", "amax(dim=1", cause="largest-over-the-places"),
            swap("probabilities < enough", "probabilities > enough", cause="keeps-the-unlikely"),
            swap("probabilities < enough", "probabilities <= enough", cause="threshold-left-out"),
            swap("dim=-1", "dim=1", cause="softmax-over-places"),
            swap(
                "return kept / kept.sum(dim=-1, keepdim=True)",
                "return kept.softmax(dim=-1)",
                cause="softmax-of-probabilities",
            ),
            choose(
                "p = logits.softmax(dim=-1)",
                "small = p < fraction * p.amax(dim=-1, keepdim=True)",
                "return logits.masked_fill(small, 0.0).softmax(dim=-1)",
                cause="cut-scores-set-to-zero",
            ),
            choose("return logits.softmax(dim=-1)", cause="nothing-cut"),
            swap("kept.sum(dim=-1, keepdim=True)", "kept.sum()", cause="divided-over-everything"),
            swap(
                "kept / kept.sum(dim=-1, keepdim=True)",
                "kept / kept.amax(dim=-1, keepdim=True)",
                cause="divided-by-the-largest",
            ),
        ],
        right=[
            choose(
                "log = logits - logits.amax(dim=-1, keepdim=True)",
                "return logits.masked_fill(log.exp() < fraction, -torch.inf).softmax(dim=-1)",
            ),
            choose(
                "p = logits.softmax(dim=-1)",
                "p = torch.where(p >= fraction * p.max(dim=-1, keepdim=True).values, p, 0.0)",
                "return F.normalize(p, p=1, dim=-1)",
            ),
        ],
    ),
    "12.5": Bank(
        wrong=[
            swap(
                "model.embedding(ids, before)",
                "model.embedding(ids)",
                cause="positions-start-again",
            ),
            swap("(ids, before)", "(ids, before + (before > 0))", cause="positions-one-too-far"),
            swap("(ids, before)", "(ids, before + 1)", cause="positions-one-too-far"),
            swap("tokens, mask, cache", "tokens, ~mask, cache", cause="mask-upside-down"),
            swap("(ids, before)", "(ids, max(before - 1, 0))", cause="positions-one-too-near"),
            swap(
                "(ids, before)",
                "(ids, before + ids.shape[1] if before else 0)",
                cause="positions-after-the-part",
            ),
            step(
                "tokens = model.embedding(ids, cache.length)",
                "return model.head(model.encoder(tokens, cache=cache))",
                cause="new-tokens-see-all",
            ),
            swap("tokens, mask, cache", "tokens, mask[:, before:]", cause="cache-is-not-used"),
            swap("[before:]", "[: ids.shape[1]]", cause="first-rows-of-the-mask"),
            step(
                "return model(ids, cache=cache)",
                cause="calls-shortcut",
            ),
            swap(
                "return model.head(model.encoder(tokens, mask, cache))",
                "return model.encoder(tokens, mask, cache)",
                cause="scores-are-asked",
            ),
            step(
                "before = cache.length",
                "x = model.embedding(ids, before)",
                "mask = causal_mask(before + ids.shape[1])[before:]",
                "for layer in model.encoder.layers:",
                "    x = layer(x, mask, cache)",
                "return model.head(x)",
                cause="last-norm-forgotten",
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
            swap("INK_LEVELS + digit", "digit", cause="words-begin-at-17"),
            swap("INK_LEVELS + digit", "INK_LEVELS + digit + 1", cause="words-one-further"),
            swap("INK_LEVELS + digit", "INK_LEVELS + digit - 1", cause="words-one-short"),
            swap("INK_LEVELS + digit", "27", cause="one-word-for-all"),
            swap("torch.cat([words, pixels[:, :-1]], dim=1)", "pixels", cause="word-is-not-fed"),
            swap(" / math.log(2)", "", cause="given-in-nats"),
            swap("losses.sum(dim=1)", "losses.mean(dim=1)", cause="bits-a-pixel"),
            swap("losses.sum(dim=1)", "losses[:, 1:].sum(dim=1)", cause="first-pixel-free"),
            swap(
                "logits = model(torch.cat([words, pixels[:, :-1]], dim=1))",
                "logits = model(torch.cat([words, pixels], dim=1))[:, :-1]",
                cause="raises",
            ),
            swap(
                "(logits.mT, pixels,",
                "(logits[:, 1:].mT, pixels[:, :-1],",
                cause="pixel-asked-at-its-own-place",
            ),
            swap(
                "(logits.mT, pixels,",
                "(logits[:, :-1].mT, pixels[:, 1:],",
                cause="pixels-shifted",
            ),
            swap(
                "losses.sum(dim=1)",
                "(losses * (pixels != PADDING)).sum(dim=1)",
                cause="blank-pixels-free",
            ),
            swap("columns.append(", "columns.append(-", cause="log-probability-has-a-sign"),
            swap("torch.stack(columns, dim=1)", "torch.stack(columns)", cause="digits-are-rows"),
            swap("columns, dim=1)", "columns, dim=1).argmin(dim=1)", cause="argmin-returned"),
            swap("columns, dim=1)", "columns, dim=1).argmax(dim=1)", cause="argmax-returned"),
            swap("columns, dim=1)", "columns, dim=1).sum(dim=0)", cause="drawings-added-up"),
            swap("range(10)", "range(9, -1, -1)", cause="digits-backwards"),
        ],
        right=[
            reader(
                "words = INK_LEVELS + torch.arange(10).repeat(len(pixels))",
                "drawn = pixels.repeat_interleave(10, dim=0)",
                "with torch.no_grad():",
                "    logits = model(torch.cat([words[:, None], drawn], dim=1)[:, :-1])",
                'cost = F.cross_entropy(logits.mT, drawn, reduction="none").sum(dim=1)',
                "return cost.reshape(-1, 10) / math.log(2)",
            ),
            reader(
                "def cost(digit):",
                "    ids = torch.full_like(pixels, 17 + digit)",
                "    ids[:, 1:] = pixels[:, :-1]",
                "    with torch.no_grad():",
                "        log = model(ids).log_softmax(dim=-1)",
                "    return -log.gather(2, pixels[..., None]).sum(dim=(1, 2)) / math.log(2)",
                "return torch.stack([cost(digit) for digit in range(10)], dim=-1)",
            ),
        ],
    ),
}
