"""Answers to the exercises of chapter 18, correct and incorrect."""

from exercise_bank import Bank, code, swap

FORMULA = "unconditional + scale * (conditional - unconditional)"
MASK = "return logits.masked_fill(~allowed, -torch.inf).softmax(dim=-1)"
COST = 'cost = F.cross_entropy(logits[:, w - 1 : -1].mT, targets, reduction="none")'
PROMPTS, TWICE = "torch.cat([captions, silent])", "pixels.repeat(2, 1)"


def lean(line, *, cause=""):
    """Move a row x of length W by s with this line, row by row."""
    return code(
        f"""
        def lean(images, shifts):
            result = torch.zeros_like(images)
            for x, y, moves in zip(images[:, 0], result[:, 0], shifts):
                for i, s in enumerate(moves.tolist()):
                    y[i] = {line}
            return result
        """,
        cause=cause,
    )


def bits(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def pixel_bits(logits, ids, w):\n" + body, cause=cause)


def guided(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    start = "def guided(conditional, unconditional, scale, allowed):\n"
    return code(start + body, cause=cause)


def batch(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def training_batch(ids, w, any_word, chance, rate):\n" + body, cause=cause)


def sampler(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    start = "def next_logits(model, captions, pixels, any_word, scale):\n"
    return code(start + body, cause=cause)


BANK = {
    "18.1": Bank(
        wrong=[
            swap("(5, 67)", "(5, 63)", cause="look-at-axes n"),
            swap("(5, 67)", "(5, 4, 63)", cause="number-of-axes"),
            swap("(5, 67)", "(67, 5)", cause="sizes-in-another-order"),
            swap("(5, 66, 32)", "(5, 67, 32)", cause="look-at-axes n-1"),
            swap("(5, 66, 32)", "(5, 66, 31)", cause="look-at-axes v"),
            swap("(5, 66, 32)", "(5, 32, 66)", cause="sizes-in-another-order"),
            swap("(5, 63, 32)", "(5, 62, 32)", cause="look-at-axes HW"),
            swap("(5, 63, 32)", "(5, 63, 12)", cause="look-at-axes v"),
            swap("(5, 63, 32)", "(5, 7, 9, 32)", cause="number-of-axes"),
            swap("5 * 63", "5 * 62", cause="first-pixel-is-predicted-too"),
            swap("5 * 63", "5 * 66", cause="words-are-not-predicted"),
            swap("5 * 63", "5 * 67", cause="words-are-not-predicted"),
            swap("5 * 63", "5 * (63 - 4)", cause="words-come-on-top"),
            swap("5 * 63", "63", cause="one-picture-of-five"),
            swap("5 * 63", "5 * 63 * 32", cause="logits-are-not-predictions"),
        ],
        right=[
            swap("(5, 67)", "[5, 4 + 7 * 9]"),
            swap("(5, 66, 32)", "torch.Size([5, 66, 12 + 19 + 1])"),
            swap("5 * 63", "torch.tensor(315.0)"),
        ],
    ),
    "18.2": Bank(
        wrong=[
            lean("x[i].roll(s)", cause="rows-wrap-around"),
            swap(" * inside", "", cause="border-is-repeated"),
            swap("- shifts", "+ shifts", cause="moves-the-other-way"),
            swap("(columns >= 0)", "(columns > 0)", cause="border-pixel-is-lost"),
            swap("(columns < width)", "(columns < width - 1)", cause="border-pixel-is-lost"),
            code(
                """
                def lean(images, shifts):
                    result = torch.zeros_like(images)
                    for b in range(len(images)):
                        for i, s in enumerate(shifts[0].tolist()):
                            result[b, 0, i] = F.pad(images[b, 0, i], (s, -s))
                    return result
                """,
                cause="shifts-of-first-picture",
            ),
            swap("* inside", "* ~inside", cause="inside-is-inverted"),
            swap("shifts[:, None", "shifts.relu()[:, None", cause="only-one-direction"),
            swap(
                "* inside",
                "* inside * (shifts != 0)[:, None, :, None]",
                cause="unmoved-rows-are-empty",
            ),
            swap("shifts[:, None", "shifts.abs()[:, None", cause="sign-is-dropped"),
            swap("(width) -", "(width) - 1 -", cause="moves-one-too-far"),
            swap(
                "images.gather(-1, columns.clamp(0, width - 1)) * inside",
                "images.gather(-1, columns % width) * (columns >= 0)",
                cause="wraps-on-one-side",
            ),
            code(
                """
                def lean(images, shifts):
                    result, width = images.clone(), images.shape[-1]
                    for b in range(len(images)):
                        for i, s in enumerate(shifts[b].tolist()):
                            if s >= 0:
                                result[b, 0, i, s:] = images[b, 0, i, : width - s]
                            else:
                                result[b, 0, i, :s] = images[b, 0, i, -s:]
                    return result
                """,
                cause="old-row-stays",
            ),
            code(
                """
                def lean(images, shifts):
                    result = torch.zeros_like(images)
                    for b, moves in enumerate(shifts):
                        for i in range(images.shape[2]):
                            for j in range(images.shape[3]):
                                if j - int(moves[0]) in range(images.shape[3]):
                                    result[b, 0, i, j] = images[b, 0, i, j - int(moves[0])]
                    return result
                """,
                cause="shift-of-first-row",
            ),
            code(
                """
                def lean(images, shifts):
                    for b, moves in enumerate(shifts):
                        for i, s in enumerate(moves.tolist()):
                            row = F.pad(images[b, 0, i].clone(), (s, -s))
                            images[b, 0, i] = row
                    return images
                """,
                cause="changed-in-place",
            ),
        ],
        right=[
            lean("F.pad(x[i], (s, -s))"),
            code(
                """
                def lean(images, shifts):
                    result, width = torch.zeros_like(images), images.shape[-1]
                    for b in range(len(images)):
                        for i, s in enumerate(shifts[b].tolist()):
                            if s >= 0:
                                result[b, 0, i, s:] = images[b, 0, i, : width - s]
                            else:
                                result[b, 0, i, :s] = images[b, 0, i, -s:]
                    return result
                """
            ),
            code(
                """
                def lean(images, shifts):
                    width = images.shape[-1]
                    padded = F.pad(images, (width, width))
                    columns = torch.arange(width) + width - shifts[:, None, :, None]
                    return torch.take_along_dim(padded, columns, dim=-1)
                """
            ),
            code(
                """
                def lean(images, shifts):
                    old = torch.arange(images.shape[-1])
                    moved = (old[:, None] + shifts[..., None, None] == old).to(images.dtype)
                    return torch.einsum("bchj,bhjk->bchk", images, moved)
                """
            ),
        ],
    ),
    "18.3": Bank(
        wrong=[
            bits(
                'cost = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")',
                "return cost.mean(dim=1) / math.log(2)",
                cause="words-are-paid",
            ),
            swap(
                "cost.mean(dim=1)", "cost.sum(dim=1) / ids.shape[1]", cause="divided-by-words-too"
            ),
            bits(
                "cost = F.cross_entropy(logits[:, w - 2 : -1].mT, ids[:, w - 1 :], "
                'reduction="none")',
                "return cost.mean(dim=1) / math.log(2)",
                cause="last-word-is-paid",
            ),
            bits(
                'cost = F.cross_entropy(logits[:, w:-1].mT, ids[:, w + 1 :], reduction="none")',
                "return cost.mean(dim=1) / math.log(2)",
                cause="first-pixel-is-free",
            ),
            swap("logits[:, w - 1 : -1]", "logits[:, w:]", cause="pixel-asked-at-its-own-place"),
            swap("logits[:, w - 1 : -1]", "logits[:, w - 2 : -2]", cause="target-two-ahead"),
            swap(" / math.log(2)", "", cause="given-in-nats"),
            swap("/ math.log(2)", "* math.log(2)", cause="multiplied-by-log-2"),
            swap("math.log(2)", "math.log(10)", cause="base-is-not-2"),
            swap("math.log(2)", "math.log(2) ** 2", cause="converted-to-bits-twice"),
            swap("[:, w - 1 : -1]", "[:, :-w]", cause="shifted-by-all-words"),
            swap("cost.mean(dim=1)", "cost.sum(dim=1) / len(ids)", cause="divided-by-pictures"),
            swap("cost.mean", "cost.sum", cause="bits-of-all-pixels"),
            swap("cost.mean(dim=1) / math.log(2)", "cost.sum(dim=1)", cause="nats-of-all-pixels"),
            swap("return cost", "return -cost", cause="log-probability-has-a-sign"),
            swap("-1].mT", "-1].softmax(dim=-1).mT", cause="blanks-softmax-twice"),
            bits(
                "logs = logits.log_softmax(dim=1)[:, w - 1 : -1]",
                "taken = logs.gather(-1, ids[:, w:, None]).squeeze(-1)",
                "return -taken.mean(dim=1) / math.log(2)",
                cause="softmax-over-places",
            ),
            bits(
                "taken = logits[:, w - 1 : -1].gather(-1, ids[:, w:, None]).squeeze(-1)",
                "return -taken.mean(dim=1) / math.log(2)",
                cause="scores-not-normalized",
            ),
            bits(
                "p = logits[:, w - 1 : -1].softmax(dim=-1)",
                "return -p.gather(-1, ids[:, w:, None]).squeeze(-1).mean(dim=1).log2()",
                cause="mean-before-the-logarithm",
            ),
            bits(
                "p = logits[:, w - 1 : -1].softmax(dim=-1)",
                "return -(p * p.log2()).sum(dim=-1).mean(dim=1)",
                cause="changes-nothing ids",
            ),
            swap("return cost.mean(dim=1)", "return cost.mean()", cause="shape-differs"),
        ],
        right=[
            bits(
                "p = logits.softmax(dim=-1)[:, w - 1 : -1]",
                "taken = p.gather(-1, ids[:, w:].unsqueeze(-1)).squeeze(-1)",
                "return -taken.log2().mean(dim=1)",
            ),
            code(
                """
                def pixel_bits(logits, ids, w):
                    costs = []
                    for row, sequence in zip(logits, ids):
                        total = 0.0
                        for i in range(w, len(sequence)):
                            total = total - torch.log_softmax(row[i - 1], dim=0)[sequence[i]]
                        costs.append(total / (len(sequence) - w) / math.log(2))
                    return torch.stack(costs)
                """
            ),
            bits(
                "targets = ids.masked_fill(torch.arange(ids.shape[1]) < w, -100)[:, 1:]",
                'cost = F.cross_entropy(logits[:, :-1].mT, targets, reduction="none")',
                "return cost.sum(dim=1) / (ids.shape[1] - w) / math.log(2)",
            ),
            bits(
                "one = F.one_hot(ids[:, w:], logits.shape[-1]).to(logits.dtype)",
                "logs = logits[:, w - 1 : -1] - logits[:, w - 1 : -1].logsumexp(-1, keepdim=True)",
                'return -torch.einsum("bnv,bnv->b", one, logs) / one.shape[1] / math.log(2)',
            ),
        ],
    ),
    "18.4": Bank(
        wrong=[
            swap(
                FORMULA,
                "(1 + scale) * conditional - scale * unconditional",
                cause="scale-is-off-by-one",
            ),
            swap(
                FORMULA,
                "scale * unconditional + (1 - scale) * conditional",
                cause="guides-away-from-the-caption",
            ),
            guided(
                "c, u = conditional.softmax(dim=-1), unconditional.softmax(dim=-1)",
                "p = ((u + scale * (c - u)) * allowed).clamp(min=0)",
                "return p / p.sum(dim=-1, keepdim=True)",
                cause="probabilities-are-guided",
            ),
            guided(
                "conditional = conditional.masked_fill(~allowed, -torch.inf)",
                "unconditional = unconditional.masked_fill(~allowed, -torch.inf)",
                f"return ({FORMULA}).softmax(dim=-1)",
                cause="masked-before-the-guidance",
            ),
            swap("~allowed", "allowed", cause="allowed-is-inverted"),
            swap(MASK, "return logits.softmax(dim=-1)", cause="allowed-is-not-used"),
            swap(
                MASK,
                "return (logits * allowed).softmax(dim=-1)",
                cause="forbidden-logits-are-zero",
            ),
            swap(MASK, "return logits.softmax(dim=-1) * allowed", cause="rest-is-not-rescaled"),
            swap("softmax(dim=-1)", "softmax(dim=0)", cause="softmax-over-the-drawings"),
            swap(".softmax(dim=-1)", "", cause="logits-for-probabilities"),
            swap(".softmax", ".log_softmax", cause="log-probabilities-returned"),
            swap(FORMULA, "scale * conditional", cause="scale-is-a-temperature"),
            swap(FORMULA, "scale * (conditional - unconditional)", cause="difference-alone"),
            swap(FORMULA, "conditional - scale * unconditional", cause="too-much-is-subtracted"),
            swap(FORMULA, "unconditional + scale * conditional", cause="unconditional-is-added"),
            swap("+ scale", "- scale", cause="sign-of-the-difference"),
            swap(FORMULA, "conditional", cause="guidance-is-missing"),
        ],
        equivalent={
            f"{MASK} => {MASK.replace('-1', '(1)')}": "the last axis of two is axis 1",
        },
        right=[
            guided(
                "logits = (1 - scale) * unconditional + scale * conditional",
                "weights = (logits - logits.amax(dim=-1, keepdim=True)).exp() * allowed",
                "return weights / weights.sum(dim=-1, keepdim=True)",
            ),
            guided(
                "c, u = conditional.softmax(dim=-1), unconditional.softmax(dim=-1)",
                "p = torch.where(allowed, c**scale / u ** (scale - 1), 0.0)",
                "return p / p.sum(dim=-1, keepdim=True)",
            ),
            guided(
                "c, u = conditional.log_softmax(dim=-1), unconditional.log_softmax(dim=-1)",
                "logits = torch.lerp(u, c, scale)",
                "return F.softmax(torch.where(allowed, logits, float('-inf')), dim=-1)",
            ),
            guided(
                "result = torch.zeros_like(conditional)",
                "for i, (c, u) in enumerate(zip(conditional, unconditional)):",
                "    result[i, allowed] = (u + scale * (c - u))[allowed].softmax(dim=0)",
                "return result",
            ),
        ],
    ),
    "18.5": Bank(
        wrong=[
            swap("chance < rate", "chance > rate", cause="rest-is-dropped"),
            swap("(chance < rate)[:, None] & is_word", "is_word", cause="every-caption-is-dropped"),
            swap("ids.masked_fill(dropped, any_word)", "ids", cause="no-caption-is-dropped"),
            swap("(chance < rate)[:, None]", "(chance[0] < rate)", cause="first-row-decides"),
            swap(
                "dropped = (chance < rate)[:, None] & is_word",
                "dropped = (chance < rate)[:, None] & (torch.arange(ids.shape[1]) == 0)",
                cause="one-word-is-dropped",
            ),
            swap(
                "dropped = (chance < rate)[:, None] & is_word",
                "dropped = (chance < rate)[:, None] & (torch.arange(ids.shape[1]) <= w)",
                cause="a-pixel-is-dropped-too",
            ),
            swap("[:, None] & is_word", "[:, None] & ~is_word", cause="pixels-instead-of-words"),
            swap("chance < rate", "chance < 1 - rate", cause="rate-is-kept"),
            swap("(is_word, -100)", "(~is_word, -100)", cause="pixels-are-no-targets"),
            swap("(dropped, any_word)", "(dropped, 0)", cause="dropped-words-are-zero"),
            swap("[:, None] & is_word", "[:, None]", cause="whole-row-is-dropped"),
            swap(
                "ids.masked_fill(is_word, -100)[:, 1:]", "ids[:, 1:]", cause="words-are-targets-too"
            ),
            batch(
                "ids = ids.clone()",
                "ids[chance < rate, :w] = any_word",
                "return ids[:, :-1], ids[:, 1:]",
                cause="dropped-words-are-targets",
            ),
            batch(
                "inputs, targets = ids[:, :-1].clone(), ids[:, 1:].clone()",
                "inputs[chance < rate, :w] = any_word",
                "targets[:, :w] = -100",
                "return inputs, targets",
                cause="first-pixel-is-no-target",
            ),
            swap("-100", "any_word", cause="ignored-id-is-any-word"),
            swap("-100", "0", cause="ignored-id-is-zero"),
            swap("-100", "-1", cause="ignored-id-is-another"),
            swap(
                "ids.masked_fill(is_word, -100)",
                "ids.masked_fill(is_word | (chance < rate)[:, None], -100)",
                cause="dropped-rows-are-no-targets",
            ),
            swap(
                "ids.masked_fill(is_word, -100)",
                "ids.masked_fill(dropped, -100)",
                cause="only-dropped-rows-ignore-words",
            ),
            swap("-100)[:, 1:]", "-100)[:, :-1]", cause="targets-are-not-shifted"),
            swap(
                "return inputs, targets",
                "return targets, inputs",
                cause="inputs-and-targets-swapped",
            ),
            batch(
                "ids[chance < rate, :w] = any_word",
                "targets = ids[:, 1:].clone()",
                "targets[:, : w - 1] = -100",
                "return ids[:, :-1], targets",
                cause="changed-in-place",
            ),
        ],
        equivalent={
            "dropped = (chance < rate)[:, None] & is_word  # (b, n) => "
            "dropped = ((chance) <= (rate))[:, None] & is_word  # (b, n)": "never equal",
        },
        right=[
            batch(
                "inputs, targets = ids[:, :-1].clone(), ids[:, 1:].clone()",
                "inputs[chance < rate, :w] = any_word",
                "targets[:, : w - 1] = -100",
                "return inputs, targets",
            ),
            batch(
                "dropped = (chance < rate).unsqueeze(1)",
                "words = torch.where(dropped, torch.full_like(ids[:, :w], any_word), ids[:, :w])",
                "silence = torch.full((len(ids), w - 1), -100)",
                "inputs = torch.cat([words, ids[:, w:-1]], dim=1)",
                "return inputs, torch.cat([silence, ids[:, w:]], dim=1)",
            ),
            batch(
                "inputs, targets = [], []",
                "for row, c in zip(ids.tolist(), chance.tolist()):",
                "    words = [any_word] * w if c < rate else row[:w]",
                "    inputs.append(words + row[w:-1])",
                "    targets.append([-100] * (w - 1) + row[w:])",
                "return torch.tensor(inputs), torch.tensor(targets)",
            ),
        ],
    ),
    "18.6": Bank(
        wrong=[
            swap(TWICE, "pixels.repeat_interleave(2, dim=0)", cause="pixels-still-alternate"),
            swap("logits.chunk(2)", "logits[::2], logits[1::2]", cause="every-second-row-is-read"),
            swap(
                PROMPTS,
                "torch.stack([captions, silent], dim=1).flatten(0, 1)",
                cause="captions-alternate",
            ),
            sampler(
                "silent = torch.full_like(captions, any_word)",
                "prompts = torch.stack([captions, silent], dim=1).flatten(0, 1)",
                "both = torch.cat([prompts, pixels.repeat_interleave(2, dim=0)], dim=1)",
                "c, u = model(both)[:, -1].chunk(2)",
                "return u + scale * (c - u)",
                cause="rows-alternate-halves-are-read",
            ),
            swap(PROMPTS, "torch.cat([silent, captions])", cause="guides-away-from-the-caption"),
            swap(
                TWICE, "pixels[[0]].repeat(2 * len(pixels), 1)", cause="first-picture-for-all-rows"
            ),
            swap("[:, -1]", "[:, -1].log_softmax(dim=-1)", cause="log-probabilities-are-guided"),
            sampler(
                "c = model(torch.cat([captions, pixels], dim=1))[:, -1]",
                "u = model(torch.full_like(captions, any_word))[:, -1]",
                "return u + scale * (c - u)",
                cause="without-caption-without-pixels",
            ),
            swap(PROMPTS, "captions.repeat(2, 1)", cause="guidance-is-missing"),
            swap(f"prompts, {TWICE}", f"{TWICE}, prompts", cause="pixels-before-the-caption"),
            swap("(captions, any_word)", "(captions, 0)", cause="any-word-is-zero"),
            swap("return unconditional", "return conditional", cause="scale-is-off-by-one"),
            swap(
                "return unconditional + scale * (conditional - unconditional)",
                "return (unconditional + scale * (conditional - unconditional)).softmax(dim=-1)",
                cause="probabilities-for-logits",
            ),
            swap("[:, -1]", "[:, 0]", cause="other-logits-are-read"),
        ],
        right=[
            swap(TWICE, "torch.cat([pixels, pixels])"),
            sampler(
                "silent = torch.full_like(captions, any_word)",
                "c = model(torch.cat([captions, pixels], dim=1))[:, -1]",
                "u = model(torch.cat([silent, pixels], dim=1))[:, -1]",
                "return scale * c + (1 - scale) * u",
            ),
            sampler(
                "silent = torch.full_like(captions, any_word)",
                "prompts = torch.stack([captions, silent], dim=1).flatten(0, 1)",
                "both = torch.cat([prompts, pixels.repeat_interleave(2, dim=0)], dim=1)",
                "logits = model(both)[:, -1]",
                "return logits[1::2] + scale * (logits[::2] - logits[1::2])",
            ),
            sampler(
                "silent = torch.full_like(captions[:1], any_word)",
                "rows = []",
                "for i in range(len(captions)):",
                "    caption, drawn = captions[i : i + 1], pixels[i : i + 1]",
                "    c = model(torch.cat([caption, drawn], dim=1))[0, -1]",
                "    u = model(torch.cat([silent, drawn], dim=1))[0, -1]",
                "    rows.append(u + scale * (c - u))",
                "return torch.stack(rows)",
            ),
        ],
    ),
}
