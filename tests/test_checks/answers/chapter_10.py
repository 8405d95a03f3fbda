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
        "def smoothed_loss(scores, said, smoothing):\n"
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
            swap("[*ids, END]", "[BEGIN, *ids]", cause="said-not-shifted"),
            swap("[*ids, END]", "[*ids[1:], END, PADDING]", cause="said-shifted-twice"),
            swap("[*ids, END]", "ids", cause="end-is-missing"),
            swap("[*ids, END]", "[*ids[:-1], END]", cause="last-id-is-missing"),
            swap("[*ids, END]", "[*ids[:-1], END, PADDING]", cause="last-id-is-missing"),
            swap("BEGIN, ", "END, ", cause="begin-and-end-exchanged"),
            code(
                """
                def read_and_said(targets):
                    said = pad([[*ids, END] for ids in targets], padding_id=-100)
                    return pad([[BEGIN, *ids] for ids in targets]), said
                """,
                cause="said-filled-with-minus-100",
            ),
            code(
                """
                def read_and_said(targets):
                    targets = sorted(targets, key=len)
                    read = pad([[BEGIN, *ids] for ids in targets])
                    return read, pad([[*ids, END] for ids in targets])
                """,
                cause="targets-are-sorted",
            ),
            code(
                """
                def read_and_said(targets):
                    said = torch.nn.functional.pad(pad(targets), (0, 1), value=END)
                    return pad([[BEGIN, *ids] for ids in targets]), said
                """,
                cause="end-at-the-last-place",
            ),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return pad([[BEGIN, *ids] for ids in targets]), rows[:, :-1]
                """,
                cause="said-not-shifted",
            ),
            swap("[*ids, END]", "[*ids, END, PADDING]", cause="shape-differs"),
            swap("return read, said", "return said, read", cause="read-and-said-exchanged"),
            swap("return read, said", "return read", cause="is-no-sequence"),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows[:, :-1], rows[:, 1:]
                """,
                cause="end-is-read",
            ),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows, rows
                """,
                cause="said-not-shifted",
            ),
            code(
                """
                def read_and_said(targets):
                    return pad(targets), pad([[*ids[1:], END] for ids in targets])
                """,
                cause="begin-is-missing",
            ),
            code(
                """
                def read_and_said(targets):
                    n = max(map(len, targets)) + 1
                    read = [[0] * (n - 1 - len(ids)) + [BEGIN, *ids] for ids in targets]
                    said = [[0] * (n - 1 - len(ids)) + [*ids, END] for ids in targets]
                    return torch.tensor(read), torch.tensor(said)
                """,
                cause="padding-in-front",
            ),
            code(
                """
                def read_and_said(targets):
                    read = pad([[BEGIN, *ids] for ids in targets], padding_id=END)
                    return read, pad([[*ids, END] for ids in targets], padding_id=END)
                """,
                cause="rows-filled-with-end",
            ),
            swap("[*ids, END]", "[*ids[::-1], END]", cause="said-is-turned"),
            code(
                """
                def read_and_said(targets):
                    for ids in targets:
                        ids.insert(0, BEGIN)
                    read = pad(targets)
                    return read, pad([[*ids[1:], END] for ids in targets])
                """,
                cause="list-was-changed",
            ),
        ],
        right=[
            code(
                """
                def read_and_said(targets):
                    n = max(len(ids) for ids in targets) + 1
                    read = torch.full((len(targets), n), PADDING)
                    said = torch.full((len(targets), n), PADDING)
                    for row, ids in enumerate(targets):
                        read[row, 0] = BEGIN
                        read[row, 1 : len(ids) + 1] = torch.tensor(ids)
                        said[row, : len(ids)] = torch.tensor(ids)
                        said[row, len(ids)] = END
                    return read, said
                """
            ),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    read = rows.masked_fill(rows == END, PADDING)[:, :-1]
                    return read, rows[:, 1:]
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
                cause="post-norm-instead",
            ),
            block(
                OWN,
                "told = self.text_attn(self.norm2(x), text, text_mask)",
                "seen = self.image_attn(self.norm3(x), image)",
                "x = x + told + seen",
                FEED,
                cause="sources-side-by-side",
            ),
            swap("x = x + self.image_attn", "x = self.image_attn", cause="stream-not-added"),
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
            swap("losses[said != PADDING].mean()", "losses.mean()", cause="padding-is-counted"),
            swap("said != PADDING", "said > 3", cause="special-ids-not-counted"),
            swap("said != PADDING", "(said != PADDING) & (said != END)", cause="end-not-counted"),
            swap(
                "-(1 - smoothing) *",
                "-(1 - smoothing + smoothing / scores.shape[-1]) *",
                cause="right-id-counted-twice",
            ),
            swap(
                "losses[said != PADDING].mean()",
                "losses[said != PADDING].sum() / len(said)",
                cause="loss-by-number-of-pairs",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "losses = -0.9 * right - 0.1 * logs.mean(-1)",
                "return losses[said != PADDING].mean()",
                cause="smoothing-is-fixed",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "share = smoothing / scores.shape[-1]",
                "losses = -(1 - smoothing) * right - share * logs[..., 1:].sum(-1)",
                "return losses[said != PADDING].mean()",
                cause="spread-without-padding-id",
            ),
            swap(
                "losses[said != PADDING].mean()",
                "(losses * (said != PADDING)).mean()",
                cause="divided-by-padding-too",
            ),
            swap(".mean()\n", ".sum()\n", cause="losses-are-summed"),
            swap("!= PADDING", "== PADDING", cause="only-padding-counted"),
            swap("-(1 - smoothing) * right", "-right", cause="spread-is-added"),
            swap(
                "-(1 - smoothing) * right", "-smoothing * right", cause="both-shares-are-smoothing"
            ),
            swap(" - smoothing * logs.mean(dim=-1)", "", cause="spread-is-missing"),
            swap("- smoothing * logs", "+ smoothing * logs", cause="spread-has-wrong-sign"),
            swap("logs.mean(dim=-1)", "logs.sum(dim=-1)", cause="smoothing-not-divided"),
            swap(
                "scores.log_softmax(dim=-1)",
                "scores.log_softmax(dim=1)",
                cause="loss-softmax-over-places",
            ),
            swap("scores.log_softmax(dim=-1)", "scores", cause="scores-as-logarithms"),
            swap("scores.log_softmax(dim=-1)", "scores.softmax(dim=-1)", cause="no-logarithm"),
            swap(
                "scores.log_softmax(dim=-1)",
                "scores.softmax(dim=-1).log_softmax(dim=-1)",
                cause="smoothed-softmax-twice",
            ),
            swap(
                "scores.log_softmax(dim=-1)",
                "scores.softmax(dim=-1).log2()",
                cause="logarithm-of-base-2",
            ),
            swap(
                "scores.log_softmax(dim=-1)",
                "scores.softmax(dim=-1).log10()",
                cause="logarithm-of-base-10",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "share = smoothing / (scores.shape[-1] - 1)",
                "losses = -(1 - smoothing) * right - share * (logs.sum(-1) - right)",
                "return losses[said != PADDING].mean()",
                cause="spread-over-the-others",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "losses = -(1 - smoothing) * right - smoothing * logs.mean(-1)",
                "real = said != PADDING",
                "return ((losses * real).sum(1) / real.sum(1)).mean()",
                cause="mean-by-sentence",
            ),
            loss(
                "return torch.nn.functional.cross_entropy(",
                "    scores.flatten(0, 1), said.flatten(), ignore_index=PADDING,",
                "    label_smoothing=smoothing)",
                cause="calls-shortcut",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "return -right[said != PADDING].mean()",
                cause="no-smoothing",
            ),
        ],
        right=[
            loss(
                "v = scores.shape[-1]",
                "wanted = torch.full_like(scores, smoothing / v)",
                "wanted = wanted.scatter_add(",
                "    -1, said[..., None], torch.full_like(scores[..., :1], 1 - smoothing))",
                "losses = -(wanted * torch.log_softmax(scores, dim=-1)).sum(dim=-1)",
                "real = (said != PADDING).to(scores.dtype)",
                "return (losses * real).sum() / real.sum()",
            ),
            loss(
                "real = said != PADDING",
                "scores, said = scores[real], said[real]",
                "logs = scores - scores.logsumexp(dim=-1, keepdim=True)",
                "right = logs[torch.arange(len(said)), said]",
                "return -((1 - smoothing) * right + smoothing * logs.mean(dim=1)).mean()",
            ),
        ],
        equivalent={
            "right = logs.gather(-1, said[..., None])[..., 0] => right = "
            "logs.gather(-1, said[..., None])[..., -1]": "the axis has size 1",
        },
    ),
    "10.7": Bank(
        wrong=[
            swap(".log_softmax(dim=-1)", "", cause="scores-not-logarithms"),
            swap("source[None]", "source.flip(0)[None]", cause="source-is-turned"),
            swap("log_softmax", "softmax", cause="probabilities-not-logarithms"),
            swap("log_softmax(dim=-1)", "log_softmax(dim=0)", cause="softmax-over-beginnings"),
            swap("log_softmax(dim=-1)", "log()", cause="log-of-bare-scores"),
            swap("scores[:, -1]", "scores[:, 0]", cause="place-is-first"),
            swap("scores[:, -1]", "scores[:, -2]", cause="place-before-last"),
            swap("scores[:, -1]", "scores.mean(dim=1)", cause="mean-over-places"),
            swap("scores[:, -1]", "scores", cause="shape-differs"),
            swap("decode(beginnings,", "decode(beginnings[:, -1:],", cause="only-last-token-read"),
            swap("decode(beginnings,", "decode(beginnings[:, 1:],", cause="begin-is-cut-off"),
            swap(
                "scores[:, -1].log_softmax(dim=-1)",
                "scores.log_softmax(dim=1)[:, -1]",
                cause="softmax-over-the-places",
            ),
            swap(
                "scores[:, -1].log",
                "scores[:, -1].index_fill(-1, torch.tensor([PADDING]), -torch.inf).log",
                cause="padding-forbidden",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source[None]).expand(len(beginnings), -1, -1)
                    logs = model.decode(beginnings, memory).log_softmax(dim=-1)
                    own = logs[:, :-1].gather(-1, beginnings[:, 1:, None])[..., 0]
                    return logs[:, -1] + own.sum(dim=1, keepdim=True)
                """,
                cause="whole-beginning-scored",
            ),
            swap("[:, -1]", "[-1]", cause="shape-differs"),
            swap(".expand(len(beginnings), -1, -1)", "", cause="raises"),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    sources = source.expand(len(beginnings), -1)
                    return model(sources, beginnings)[:, -1].log_softmax(dim=-1)
                """,
                cause="source-encoded-again",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    rows = [model(source[None], ids[None])[0, -1] for ids in beginnings]
                    return torch.stack(rows).log_softmax(dim=-1)
                """,
                cause="source-encoded-again",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source[None]).expand(len(beginnings), -1, -1)
                    begun = torch.cat([torch.full_like(beginnings[:, :1], BEGIN), beginnings], 1)
                    return model.decode(begun, memory)[:, -1].log_softmax(dim=-1)
                """,
                cause="begin-put-in-front",
            ),
        ],
        right=[
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source.unsqueeze(0))
                    rows = [model.decode(ids[None], memory)[0, -1] for ids in beginnings]
                    return torch.log_softmax(torch.stack(rows), dim=1)
                """
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source[None]).repeat(beginnings.shape[0], 1, 1)
                    last = model.decode(beginnings, memory)[:, beginnings.shape[1] - 1]
                    return last - last.logsumexp(dim=-1, keepdim=True)
                """
            ),
        ],
        equivalent={
            "return scores[:, -1].log_softmax(dim=-1) => return scores[:, "
            "-1].log_softmax(dim=(1))": "axis 1 is the last",
        },
    ),
}
