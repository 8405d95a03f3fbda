"""Answers to the exercises of chapter 10, right and wrong."""

from exercise_bank import Bank, code, swap


def across(*lines, cause=""):
    """Cross-attention with the given lines after the projections."""
    return code(
        "def cross_attention(x, context, real, w_q, w_k, w_v, num_heads):\n"
        "    d = w_q.shape[1] // num_heads\n"
        "    q, k, v = x @ w_q, context @ w_k, context @ w_v\n"
        + "".join(f"    {line}\n" for line in lines),
        cause=cause,
    )


SPLIT = 'q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))'


def block(*lines, cause=""):
    """The block with the right parts and another forward."""
    return code(
        "class Other(TwoSources):\n"
        "    def forward(self, x, text, image, attn_mask=None, text_mask=None):\n"
        + "".join(f"        {line}\n" for line in lines)
        + "\nTwoSources = Other\n",
        cause=cause,
    )


def loss(*lines, cause=""):
    return code(
        "def smoothed_loss(logits, expected, smoothing):\n"
        + "".join(f"    {line}\n" for line in lines),
        cause=cause,
    )


OWN = "x = x + self.attn(self.norm1(x), attn_mask=attn_mask)"
TEXT = "x = x + self.text_attn(self.norm2(x), text, text_mask)"
IMAGE = "x = x + self.image_attn(self.norm3(x), image)"
FEED = "return x + self.mlp(self.norm4(x))"

BANK = {
    "10.1": Bank(
        wrong=[
            swap("(3, 4, 8, 6)", "(3, 4, 5, 6)", cause="look-at-axes j"),
            swap("(3, 4, 8, 6)", "(3, 8, 4, 6)", cause="sizes-in-another-order"),
            swap("(3, 4, 8, 6)", "(3, 8, 24)", cause="number-of-axes"),
            swap("(3, 4, 5, 8)", "(3, 4, 8, 5)", cause="sizes-in-another-order"),
            swap("(3, 4, 5, 8)", "(3, 4, 6, 8)", cause="look-at-axes i"),
            swap("(3, 4, 5, 8)", "(3, 4, 5, 5)", cause="look-at-axes j"),
            swap("(3, 5, 50)", "(3, 5, 70)", cause="look-at-axes v"),
            swap("(3, 5, 50)", "(3, 6, 50)", cause="look-at-axes i"),
            swap("(3, 5, 50)", "(3, 50)", cause="number-of-axes"),
            swap("(3, 5)", "(3,)", cause="number-of-axes"),
            swap("losses_shape = (3, 5)", "losses_shape = (3, 6)", cause="look-at-axes i"),
        ],
        right=[
            swap("(3, 4, 8, 6)", "[3, 4, 8, 6]"),
            swap("(3, 5, 50)", "torch.Size([3, 5, 50])"),
        ],
    ),
    "10.2": Bank(
        wrong=[
            swap(" / q.shape[-1] ** 0.5", "", cause="scores-not-divided"),
            swap("q.shape[-1] ** 0.5", "w_q.shape[1] ** 0.5", cause="scaled-by-token-width"),
            swap("q.shape[-1] ** 0.5", "q.shape[-1]", cause="scaled-without-root"),
            swap("softmax(dim=-1)", "softmax(dim=-2)", cause="softmax-over-queries"),
            swap(
                "scores = scores.masked_fill(~real[:, None, None, :], -torch.inf)",
                "pass",
                cause="source-not-masked",
            ),
            swap("~real[", "real[", cause="mask-upside-down"),
            swap("-torch.inf", "0.0", cause="masked-score-is-zero"),
            swap("-torch.inf", "-10.0", cause="masked-score-is-only-low"),
            swap("softmax(dim=-1)", "sigmoid()", cause="sigmoid-not-softmax"),
            swap("context @ w_k", "context @ w_v", cause="changes-nothing w_k"),
            swap("(h d) -> b h i d", "(d h) -> b h i d", cause="queries-split-otherwise"),
            swap("b h i d -> b i (h d)", "b h i d -> b i (d h)", cause="joined-interleaved"),
            swap("x @ w_q", "context @ w_q", cause="raises"),
            swap(
                'rearrange(heads, "b h i d -> b i (h d)")',
                "heads.reshape(*x.shape[:2], -1)",
                cause="joined-as-in-memory",
            ),
            across(
                "scores = q @ k.mT / (q.shape[-1] / num_heads) ** 0.5",
                "weights = scores.masked_fill(~real[:, None], -torch.inf).softmax(-1)",
                "return weights @ v",
                cause="only-one-head",
            ),
            across(
                SPLIT,
                "weights = (q @ k.mT / d**0.5).softmax(-1) * real[:, None, None]",
                'return rearrange(weights @ v, "b h i d -> b i (h d)")',
                cause="masked-after-softmax",
            ),
            across(
                "b, n = x.shape[:2]",
                "q, k, v = (t.reshape(b, num_heads, -1, d) for t in (q, k, v))",
                "weights = (q @ k.mT / d**0.5).masked_fill(~real[:, None, None], -torch.inf)",
                'return rearrange(weights.softmax(-1) @ v, "b h i d -> b i (h d)")',
                cause="heads-cut-from-memory",
            ),
            across(
                SPLIT,
                "mixed = torch.nn.functional.scaled_dot_product_attention(",
                "    q, k, v, real[:, None, None])",
                'return rearrange(mixed, "b h i d -> b i (h d)")',
                cause="calls-shortcut scaled_dot_product_attention",
            ),
        ],
        right=[
            across(
                SPLIT,
                "scores = einsum(q, k, 'b h i d, b h j d -> b h i j') * d**-0.5",
                "powers = (scores - scores.amax(-1, keepdim=True)).exp() * real[:, None, None]",
                "weights = powers / powers.sum(-1, keepdim=True)",
                'return rearrange(weights @ v, "b h i d -> b i (h d)")',
            ),
            across(
                "heads = []",
                "for h in range(num_heads):",
                "    part = slice(h * d, (h + 1) * d)",
                "    scores = q[..., part] @ k[..., part].mT / d**0.5",
                "    scores = torch.where(real[:, None], scores, -torch.inf)",
                "    heads.append(scores.softmax(dim=-1) @ v[..., part])",
                "return torch.cat(heads, dim=-1)",
            ),
        ],
    ),
    "10.3": Bank(
        wrong=[
            swap("= real_source[", "= real_target[", cause="source-masked-by-target"),
            swap(
                "real_source[:, None, None, :]",
                "(real_source & real_target)[:, None, None, :]",
                cause="source-masked-by-both",
            ),
            swap("attn_mask, context_mask", "attn_mask", cause="source-padding-open"),
            swap(
                "real_source[:, None, None, :]",
                "real_source[:, None, :, None]",
                cause="source-over-queries",
            ),
            swap("context_mask = real", "context_mask = ~real", cause="source-upside-down"),
            swap(
                "attn_mask, context_mask)",
                "~attn_mask, ~context_mask)",
                cause="both-masks-inverted",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = real_source[:, None, None] & attn_mask.any(-1, keepdim=True)",
                cause="queries-of-padding-blocked",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = attn_mask",
                cause="source-masked-as-target",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = real_source[:, None, None, :] & causal_mask(x.shape[1])",
                cause="source-also-causal",
            ),
            swap(
                "causal_mask(x.shape[1])",
                "causal_mask(x.shape[1]).tril(-1)",
                cause="own-place-blocked",
            ),
            swap(
                "causal_mask(x.shape[1])", "causal_mask(x.shape[1]).mT", cause="only-future-is-open"
            ),
            swap(
                "real_target[:, None, None, :]",
                "real_target[:, None, :, None]",
                cause="own-mask-over-queries",
            ),
            swap("real_source[:, None", "real_source[:1, None", cause="mask-of-first-pair"),
            swap(
                "attn_mask, context_mask)",
                "context_mask, attn_mask)",
                cause="both-masks-exchanged",
            ),
            swap(
                "x, memory, attn_mask, context_mask)",
                "x, memory * real_source[..., None], attn_mask)",
                cause="padding-made-zero",
            ),
            swap(
                "attn_mask, context_mask)",
                "attn_mask, context_mask) * real_target[..., None]",
                cause="padding-made-zero",
            ),
            swap(" & real_target[:, None, None, :]", "", cause="target-padding-open"),
            swap("causal_mask(x.shape[1]) & ", "", cause="future-is-open"),
            swap("(x.shape[1]) &", "(x.shape[1]) |", cause="past-or-real"),
            swap("attn_mask, context_mask", "None, context_mask", cause="target-mask-is-missing"),
            swap(
                "(decoder, x, memory, real_target, real_source)",
                "(decoder, x, memory, real_source, real_target)",
                cause="both-tables-exchanged",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = (real_source[:, None, :] & real_target[:, :, None])[:, None]",
                cause="queries-of-padding-blocked",
            ),
            code(
                """
                def healthy(decoder, x, memory, real_target, real_source):
                    n = x.shape[1]
                    target, source = real_target[:, None, None, :n], real_source[:, None, None, :n]
                    return decoder(x, memory, causal_mask(n) & target, source)
                """,
                cause="raises",
            ),
        ],
        right=[
            code(
                """
                def healthy(decoder, x, memory, real_target, real_source):
                    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
                    own = past & rearrange(real_target, "b i -> b 1 1 i")
                    across = rearrange(real_source, "b j -> b 1 1 j")
                    return decoder(x, memory, attn_mask=own, context_mask=across)
                """
            ),
            code(
                """
                def healthy(decoder, x, memory, real_target, real_source):
                    i = x.shape[1]
                    own = causal_mask(i).expand(len(x), 1, i, i) * real_target[:, None, None]
                    stream = x
                    for layer in decoder.layers:
                        stream = layer(stream, memory, own, real_source[:, None, None])
                    return decoder.norm(stream)
                """
            ),
        ],
    ),
    "10.4": Bank(
        wrong=[
            swap("[*ids, END]", "[BEGIN, *ids]", cause="not-shifted"),
            swap("[*ids, END]", "[*ids[1:], END, PADDING]", cause="shifted-twice"),
            swap(
                "decoder_input, expected",
                "decoder_input, decoder_input.roll(-1, 1)",
                cause="end-is-missing",
            ),
            swap("[*ids, END]", "ids", cause="end-is-missing"),
            swap("[*ids, END]", "[*ids[:-1], END]", cause="last-id-is-missing"),
            swap("[*ids, END]", "[*ids[:-1], END, PADDING]", cause="last-id-is-missing"),
            swap("BEGIN, ", "END, ", cause="begin-and-end-swapped"),
            code(
                """
                def input_and_expected(targets):
                    expected = pad([[*ids, END] for ids in targets], padding_id=-100)
                    return pad([[BEGIN, *ids] for ids in targets]), expected
                """,
                cause="filled-with-minus-100",
            ),
            code(
                """
                def input_and_expected(targets):
                    targets = sorted(targets, key=len)
                    given = pad([[BEGIN, *ids] for ids in targets])
                    return given, pad([[*ids, END] for ids in targets])
                """,
                cause="targets-are-sorted",
            ),
            code(
                """
                def input_and_expected(targets):
                    expected = torch.nn.functional.pad(pad(targets), (0, 1), value=END)
                    return pad([[BEGIN, *ids] for ids in targets]), expected
                """,
                cause="end-at-the-last-place",
            ),
            code(
                """
                def input_and_expected(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return pad([[BEGIN, *ids] for ids in targets]), rows[:, :-1]
                """,
                cause="not-shifted",
            ),
            swap("[*ids, END]", "[*ids, END, PADDING]", cause="shape-differs"),
            swap(
                "return decoder_input, expected",
                "return expected, decoder_input",
                cause="input-and-expected-swapped",
            ),
            swap("return decoder_input, expected", "return decoder_input", cause="is-no-sequence"),
            code(
                """
                def input_and_expected(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows[:, :-1], rows[:, 1:]
                """,
                cause="end-in-input",
            ),
            code(
                """
                def input_and_expected(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows, rows
                """,
                cause="not-shifted",
            ),
            code(
                """
                def input_and_expected(targets):
                    return pad(targets), pad([[*ids[1:], END] for ids in targets])
                """,
                cause="begin-is-missing",
            ),
            code(
                """
                def input_and_expected(targets):
                    n = max(map(len, targets)) + 1
                    given = [[0] * (n - 1 - len(ids)) + [BEGIN, *ids] for ids in targets]
                    expected = [[0] * (n - 1 - len(ids)) + [*ids, END] for ids in targets]
                    return torch.tensor(given), torch.tensor(expected)
                """,
                cause="padding-in-front",
            ),
            code(
                """
                def input_and_expected(targets):
                    given = pad([[BEGIN, *ids] for ids in targets], padding_id=END)
                    return given, pad([[*ids, END] for ids in targets], padding_id=END)
                """,
                cause="rows-filled-with-end",
            ),
            swap("[*ids, END]", "[*ids[::-1], END]", cause="expected-is-reversed"),
            code(
                """
                def input_and_expected(targets):
                    for ids in targets:
                        ids.insert(0, BEGIN)
                    given = pad(targets)
                    return given, pad([[*ids[1:], END] for ids in targets])
                """,
                cause="list-was-changed",
            ),
        ],
        right=[
            code(
                """
                def input_and_expected(targets):
                    n = max(len(ids) for ids in targets) + 1
                    given = torch.full((len(targets), n), PADDING)
                    expected = torch.full((len(targets), n), PADDING)
                    for row, ids in enumerate(targets):
                        given[row, 0] = BEGIN
                        given[row, 1 : len(ids) + 1] = torch.tensor(ids)
                        expected[row, : len(ids)] = torch.tensor(ids)
                        expected[row, len(ids)] = END
                    return given, expected
                """
            ),
            code(
                """
                def input_and_expected(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    given = rows.masked_fill(rows == END, PADDING)[:, :-1]
                    return given, rows[:, 1:]
                """
            ),
        ],
    ),
    "10.5": Bank(
        wrong=[
            block(OWN, TEXT, IMAGE, "return x", cause="feed-forward-is-missing"),
            block(
                OWN,
                TEXT,
                IMAGE,
                "return self.norm4(x + self.mlp(self.norm4(x)))",
                cause="norm-at-the-end",
            ),
            swap(
                "attn_mask=attn_mask",
                "attn_mask=causal_mask(x.shape[1])",
                cause="always-causal",
            ),
            block(OWN, IMAGE, TEXT, FEED, cause="image-before-text"),
            swap(
                "self.norm2(x), text, text_mask", "self.norm2(x), image", cause="image-asked-twice"
            ),
            swap("self.norm3(x), image", "self.norm3(x), text", cause="text-asked-twice"),
            swap("self.norm3(x), image", "self.norm3(x)", cause="sources-never-asked"),
            swap(
                "self.norm2(x), text, text_mask", "self.norm2(x), text", cause="text-mask-not-used"
            ),
            swap(", attn_mask=attn_mask", "", cause="own-mask-not-used"),
            swap(
                "self.text_attn(self.norm2(x), text, text_mask)",
                "self.text_attn(self.norm2(x), self.norm2(text), text_mask)",
                cause="sources-are-normed",
            ),
            block(
                OWN,
                "x = x + self.text_attn(self.norm2(x), self.norm2(text), text_mask)",
                "x = x + self.image_attn(self.norm3(x), self.norm3(image))",
                FEED,
                cause="sources-are-normed",
            ),
            swap("self.norm2(x)", "self.norm1(x)", cause="changes-nothing"),
            block(
                "x = self.norm1(x + self.attn(x, attn_mask=attn_mask))",
                "x = self.norm2(x + self.text_attn(x, text, text_mask))",
                "x = self.norm3(x + self.image_attn(x, image))",
                "return self.norm4(x + self.mlp(x))",
                cause="post-norm-not-pre",
            ),
            block(
                OWN,
                "told = self.text_attn(self.norm2(x), text, text_mask)",
                "seen = self.image_attn(self.norm3(x), image)",
                "x = x + told + seen",
                FEED,
                cause="sources-side-by-side",
            ),
            block(
                "x = x + self.norm1(self.attn(x, attn_mask=attn_mask))",
                "x = x + self.norm2(self.text_attn(x, text, text_mask))",
                "x = x + self.norm3(self.image_attn(x, image))",
                "return x + self.norm4(self.mlp(x))",
                cause="norm-after-the-part",
            ),
            swap("x = x + self.image_attn", "x = self.image_attn", cause="part-not-added"),
            swap(
                "self.image_attn = MultiHeadAttention(embed_dim, num_heads)",
                "self.image_attn = self.text_attn",
                cause="parameters-are-one",
            ),
            swap(
                "self.norm4 = nn.LayerNorm(embed_dim)",
                "norm4 = nn.LayerNorm(embed_dim)",
                cause="parameter-without-self",
            ),
            swap("self.mlp(self.norm4(x))", "self.mlp(x)", cause="changes-nothing"),
        ],
        right=[
            block(
                "parts = [",
                "    lambda x: self.attn(self.norm1(x), attn_mask=attn_mask),",
                "    lambda x: self.text_attn(self.norm2(x), text, text_mask),",
                "    lambda x: self.image_attn(self.norm3(x), image),",
                "    lambda x: self.mlp(self.norm4(x)),",
                "]",
                "for part in parts:",
                "    x = x + part(x)",
                "return x",
            ),
            code(
                """
                class TwoSources(nn.Module):
                    def __init__(self, embed_dim, num_heads, mlp_dim):
                        super().__init__()
                        for name in ("attn", "text_attn", "image_attn"):
                            setattr(self, name, MultiHeadAttention(embed_dim, num_heads))
                        for n in range(1, 5):
                            setattr(self, f"norm{n}", nn.LayerNorm(embed_dim))
                        self.mlp = FeedForward(embed_dim, mlp_dim)

                    def forward(self, x, text, image, attn_mask=None, text_mask=None):
                        normed = self.norm1(x)
                        x = self.attn(normed, normed, attn_mask) + x
                        x = self.text_attn(self.norm2(x), context=text, attn_mask=text_mask) + x
                        x = self.image_attn(self.norm3(x), context=image) + x
                        return self.mlp(self.norm4(x)) + x
                """
            ),
        ],
    ),
    "10.6": Bank(
        wrong=[
            swap("losses[expected != PADDING].mean()", "losses.mean()", cause="padding-is-counted"),
            swap(
                "losses[expected != PADDING].mean()",
                "losses.sum() / (expected != PADDING).sum()",
                cause="padding-is-counted",
            ),
            loss(
                "correct = logits.softmax(-1).gather(-1, expected[..., None])[..., 0]",
                "losses = -((1 - smoothing) * correct + smoothing / logits.shape[-1]).log()",
                "return losses[expected != PADDING].mean()",
                cause="probabilities-added-first",
            ),
            loss(
                "wanted = torch.full_like(logits, smoothing / (logits.shape[-1] - 2))",
                "wanted = wanted.scatter(-1, expected[..., None], 1 - smoothing)",
                "wanted[..., PADDING] = 0",
                "losses = -(wanted * logits.log_softmax(-1)).sum(-1)",
                "return losses[expected != PADDING].mean()",
                cause="smoothing-over-the-others",
            ),
            swap("expected != PADDING", "expected > 3", cause="special-ids-not-counted"),
            swap(
                "expected != PADDING",
                "(expected != PADDING) & (expected != END)",
                cause="end-not-counted",
            ),
            swap(
                "-(1 - smoothing) *",
                "-(1 - smoothing + smoothing / logits.shape[-1]) *",
                cause="correct-id-counted-twice",
            ),
            swap(
                "losses[expected != PADDING].mean()",
                "losses[expected != PADDING].sum() / len(expected)",
                cause="loss-by-number-of-pairs",
            ),
            loss(
                "logs = logits.log_softmax(-1)",
                "correct = logs.gather(-1, expected[..., None])[..., 0]",
                "losses = -0.9 * correct - 0.1 * logs.mean(-1)",
                "return losses[expected != PADDING].mean()",
                cause="smoothing-is-fixed",
            ),
            loss(
                "logs = logits.log_softmax(-1)",
                "correct = logs.gather(-1, expected[..., None])[..., 0]",
                "part = smoothing / logits.shape[-1]",
                "losses = -(1 - smoothing) * correct - part * logs[..., 1:].sum(-1)",
                "return losses[expected != PADDING].mean()",
                cause="smoothing-without-padding-id",
            ),
            swap(
                "losses[expected != PADDING].mean()",
                "(losses * (expected != PADDING)).mean()",
                cause="divided-by-padding-too",
            ),
            swap(".mean()\n", ".sum()\n", cause="losses-are-summed"),
            swap("!= PADDING", "== PADDING", cause="only-padding-counted"),
            swap("-(1 - smoothing) * correct", "-correct", cause="smoothing-is-added"),
            swap(
                "-(1 - smoothing) * correct",
                "-smoothing * correct",
                cause="correct-id-keeps-smoothing",
            ),
            swap(" - smoothing * logs.mean(dim=-1)", "", cause="smoothing-is-missing"),
            swap("- smoothing * logs", "+ smoothing * logs", cause="smoothing-has-wrong-sign"),
            swap("logs.mean(dim=-1)", "logs.sum(dim=-1)", cause="smoothing-not-divided"),
            swap(
                "logits.log_softmax(dim=-1)",
                "logits.log_softmax(dim=1)",
                cause="loss-softmax-over-positions",
            ),
            swap("logits.log_softmax(dim=-1)", "logits", cause="logits-as-logarithms"),
            swap("logits.log_softmax(dim=-1)", "logits.softmax(dim=-1)", cause="no-logarithm"),
            swap(
                "logits.log_softmax(dim=-1)",
                "logits.softmax(dim=-1).log_softmax(dim=-1)",
                cause="smoothed-softmax-twice",
            ),
            swap(
                "logits.log_softmax(dim=-1)",
                "logits.softmax(dim=-1).log2()",
                cause="logarithm-of-base-2",
            ),
            swap(
                "logits.log_softmax(dim=-1)",
                "logits.softmax(dim=-1).log10()",
                cause="logarithm-of-base-10",
            ),
            loss(
                "logs = logits.log_softmax(-1)",
                "correct = logs.gather(-1, expected[..., None])[..., 0]",
                "part = smoothing / (logits.shape[-1] - 1)",
                "losses = -(1 - smoothing) * correct - part * (logs.sum(-1) - correct)",
                "return losses[expected != PADDING].mean()",
                cause="smoothing-over-the-others",
            ),
            loss(
                "logs = logits.log_softmax(-1)",
                "correct = logs.gather(-1, expected[..., None])[..., 0]",
                "losses = -(1 - smoothing) * correct - smoothing * logs.mean(-1)",
                "real = expected != PADDING",
                "return ((losses * real).sum(1) / real.sum(1)).mean()",
                cause="mean-by-sentence",
            ),
            loss(
                "return torch.nn.functional.cross_entropy(",
                "    logits.flatten(0, 1), expected.flatten(), ignore_index=PADDING,",
                "    label_smoothing=smoothing)",
                cause="calls-shortcut",
            ),
            loss(
                "logs = logits.log_softmax(-1)",
                "correct = logs.gather(-1, expected[..., None])[..., 0]",
                "return -correct[expected != PADDING].mean()",
                cause="no-smoothing",
            ),
        ],
        right=[
            loss(
                "v = logits.shape[-1]",
                "wanted = torch.full_like(logits, smoothing / v)",
                "wanted = wanted.scatter_add(",
                "    -1, expected[..., None], torch.full_like(logits[..., :1], 1 - smoothing))",
                "losses = -(wanted * torch.log_softmax(logits, dim=-1)).sum(dim=-1)",
                "real = (expected != PADDING).to(logits.dtype)",
                "return (losses * real).sum() / real.sum()",
            ),
            loss(
                "real = expected != PADDING",
                "logits, expected = logits[real], expected[real]",
                "logs = logits - logits.logsumexp(dim=-1, keepdim=True)",
                "correct = logs[torch.arange(len(expected)), expected]",
                "return -((1 - smoothing) * correct + smoothing * logs.mean(dim=1)).mean()",
            ),
        ],
        equivalent={
            "correct = logs.gather(-1, expected[..., None])[..., 0] => correct = "
            "logs.gather(-1, expected[..., None])[..., -1]": "the axis has size 1",
        },
    ),
    "10.7": Bank(
        wrong=[
            swap(".log_softmax(dim=-1)", "", cause="logits-not-logarithms"),
            swap("source[None]", "source.flip(0)[None]", cause="source-is-reversed"),
            swap("log_softmax", "softmax", cause="probabilities-not-logarithms"),
            swap("log_softmax(dim=-1)", "log_softmax(dim=0)", cause="softmax-over-prefixes"),
            swap("log_softmax(dim=-1)", "log()", cause="log-of-bare-logits"),
            swap("log_softmax(dim=-1)", "softmax(dim=-1).log2()", cause="logarithm-of-base-2"),
            swap("return logits", "return -logits", cause="log-probabilities-negative"),
            swap(
                "model.decode(prefixes, memory)",
                "model.head(model.decoder(model.target_embedding(prefixes), memory))",
                cause="prefix-not-causal",
            ),
            swap(
                "source[None]",
                "torch.tensor([[*source, END]])",
                cause="source-with-begin-or-end",
            ),
            swap(
                "model.encode(source[None])",
                "model.encoder(model.source_embedding(source.expand(len(prefixes), -1)))",
                cause="source-encoded-again",
            ),
            swap("logits[:, -1]", "logits[:, 0]", cause="position-is-first"),
            swap("logits[:, -1]", "logits[:, -2]", cause="position-before-last"),
            swap("logits[:, -1]", "logits.mean(dim=1)", cause="mean-over-positions"),
            swap("logits[:, -1]", "logits", cause="shape-differs"),
            swap("decode(prefixes,", "decode(prefixes[:, -1:],", cause="only-last-token-read"),
            swap("decode(prefixes,", "decode(prefixes[:, 1:],", cause="begin-is-cut-off"),
            swap(
                "logits[:, -1].log_softmax(dim=-1)",
                "logits.log_softmax(dim=1)[:, -1]",
                cause="softmax-over-positions",
            ),
            swap(
                "logits[:, -1].log",
                "logits[:, -1].index_fill(-1, torch.tensor([PADDING]), -torch.inf).log",
                cause="padding-forbidden",
            ),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    memory = model.encode(source[None]).expand(len(prefixes), -1, -1)
                    logs = model.decode(prefixes, memory).log_softmax(dim=-1)
                    own = logs[:, :-1].gather(-1, prefixes[:, 1:, None])[..., 0]
                    return logs[:, -1] + own.sum(dim=1, keepdim=True)
                """,
                cause="whole-prefix-scored",
            ),
            swap("[:, -1]", "[-1]", cause="shape-differs"),
            swap(".expand(len(prefixes), -1, -1)", "", cause="raises"),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    sources = source.expand(len(prefixes), -1)
                    return model(sources, prefixes)[:, -1].log_softmax(dim=-1)
                """,
                cause="source-encoded-again",
            ),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    rows = [model(source[None], ids[None])[0, -1] for ids in prefixes]
                    return torch.stack(rows).log_softmax(dim=-1)
                """,
                cause="source-encoded-again",
            ),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    memory = model.encode(source[None]).expand(len(prefixes), -1, -1)
                    begun = torch.cat([torch.full_like(prefixes[:, :1], BEGIN), prefixes], 1)
                    return model.decode(begun, memory)[:, -1].log_softmax(dim=-1)
                """,
                cause="begin-added-again",
            ),
        ],
        right=[
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    memory = model.encoder(model.source_embedding(source[None]))
                    memory = memory.expand(len(prefixes), -1, -1)
                    mask = causal_mask(prefixes.shape[1])
                    x = model.decoder(model.target_embedding(prefixes), memory, mask)
                    return model.head(x)[:, -1].log_softmax(dim=-1)
                """
            ),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    memory = model.encode(source.unsqueeze(0))
                    rows = [model.decode(ids[None], memory)[0, -1] for ids in prefixes]
                    return torch.log_softmax(torch.stack(rows), dim=1)
                """
            ),
            code(
                """
                def next_log_probabilities(model, source, prefixes):
                    memory = model.encode(source[None]).repeat(prefixes.shape[0], 1, 1)
                    last = model.decode(prefixes, memory)[:, prefixes.shape[1] - 1]
                    return last - last.logsumexp(dim=-1, keepdim=True)
                """
            ),
        ],
        equivalent={
            "return logits[:, -1].log_softmax(dim=-1) => return logits[:, "
            "-1].log_softmax(dim=(1))": "axis 1 is the last",
        },
    ),
}
