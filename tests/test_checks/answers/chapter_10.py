"""Answers to the exercises of chapter 10, right and wrong."""

from exercise_bank import Bank, code, swap


def across(*lines, says=""):
    """Cross-attention with the given lines after the projections."""
    return code(
        "def cross_attention(x, context, real, w_q, w_k, w_v, num_heads):\n"
        "    d = w_q.shape[1] // num_heads\n"
        "    q, k, v = x @ w_q, context @ w_k, context @ w_v\n"
        + "".join(f"    {line}\n" for line in lines),
        says=says,
    )


SPLIT = 'q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))'


def block(*lines, says=""):
    """The block with the right parts and another forward."""
    return code(
        "class Other(TwoSources):\n"
        "    def forward(self, x, text, image, attn_mask=None, text_mask=None):\n"
        + "".join(f"        {line}\n" for line in lines)
        + "\nTwoSources = Other\n",
        says=says,
    )


def loss(*lines, says=""):
    return code(
        "def smoothed_loss(scores, said, smoothing):\n"
        + "".join(f"    {line}\n" for line in lines),
        says=says,
    )


OWN = "x = x + self.attn(self.norm1(x), attn_mask=attn_mask)"
TEXT = "x = x + self.text_attn(self.norm2(x), text, text_mask)"
IMAGE = "x = x + self.image_attn(self.norm3(x), image)"
FEED = "return x + self.mlp(self.norm4(x))"

BANK = {
    "10.1": Bank(
        wrong=[
            swap("(3, 4, 8, 6)", "(3, 4, 5, 6)", says="look at j"),
            swap("(3, 4, 8, 6)", "(3, 8, 4, 6)", says="right sizes in another order"),
            swap("(3, 4, 8, 6)", "(3, 8, 24)", says="needs 4 axes"),
            swap("(3, 4, 5, 8)", "(3, 4, 8, 5)", says="right sizes in another order"),
            swap("(3, 4, 5, 8)", "(3, 4, 6, 8)", says="look at i"),
            swap("(3, 4, 5, 8)", "(3, 4, 5, 5)", says="look at j"),
            swap("(3, 5, 50)", "(3, 5, 70)", says="look at v"),
            swap("(3, 5, 50)", "(3, 6, 50)", says="look at i"),
            swap("(3, 5, 50)", "(3, 50)", says="needs 3 axes"),
            swap("(3, 5)", "(3,)", says="needs 2 axes"),
            swap("losses_shape = (3, 5)", "losses_shape = (3, 6)", says="look at i"),
        ],
        right=[
            swap("(3, 4, 8, 6)", "[3, 4, 8, 6]"),
            swap("(3, 5, 50)", "torch.Size([3, 5, 50])"),
        ],
    ),
    "10.2": Bank(
        wrong=[
            swap(" / q.shape[-1] ** 0.5", "", says="not divided by the square root of d"),
            swap("q.shape[-1] ** 0.5", "w_q.shape[1] ** 0.5", says="the square root of h * d"),
            swap("q.shape[-1] ** 0.5", "q.shape[-1]", says="without its square root"),
            swap("softmax(dim=-1)", "softmax(dim=-2)", says="over the queries"),
            swap(
                "scores = scores.masked_fill(~real[:, None, None, :], -torch.inf)",
                "pass",
                says="the padding of the context is open",
            ),
            swap("~real[", "real[", says="upside down"),
            swap("-torch.inf", "0.0", says="a masked score becomes 0"),
            swap("-torch.inf", "-10.0", says="some low number, such as -10"),
            swap("softmax(dim=-1)", "sigmoid()", says="each score becomes its sigmoid"),
            swap("context @ w_k", "context @ w_v", says="the numbers in w_k change nothing"),
            swap("(h d) -> b h i d", "(d h) -> b h i d", says="split into heads otherwise"),
            swap("b h i d -> b i (h d)", "b h i d -> b i (d h)", says="shuffled into each other"),
            swap("x @ w_q", "context @ w_q", says="raises"),
            across(
                "scores = q @ k.mT / (q.shape[-1] / num_heads) ** 0.5",
                "weights = scores.masked_fill(~real[:, None], -torch.inf).softmax(-1)",
                "return weights @ v",
                says="only one head",
            ),
            across(
                SPLIT,
                "weights = (q @ k.mT / d**0.5).softmax(-1) * real[:, None, None]",
                'return rearrange(weights @ v, "b h i d -> b i (h d)")',
                says="the rows no longer sum to 1",
            ),
            across(
                "b, n = x.shape[:2]",
                "q, k, v = (t.reshape(b, num_heads, -1, d) for t in (q, k, v))",
                "weights = (q @ k.mT / d**0.5).masked_fill(~real[:, None, None], -torch.inf)",
                'return rearrange(weights.softmax(-1) @ v, "b h i d -> b i (h d)")',
                says="cut as the numbers lie in memory",
            ),
            across(
                SPLIT,
                "mixed = torch.nn.functional.scaled_dot_product_attention(",
                "    q, k, v, real[:, None, None])",
                'return rearrange(mixed, "b h i d -> b i (h d)")',
                says="it calls scaled_dot_product_attention",
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
            swap("= real_source[", "= real_target[", says="still masked by the target"),
            swap(
                "real_source[:, None, None, :]",
                "(real_source & real_target)[:, None, None, :]",
                says="masked by both tables",
            ),
            swap("attn_mask, context_mask", "attn_mask", says="is open to cross-attention"),
            swap(
                "real_source[:, None, None, :]",
                "real_source[:, None, :, None]",
                says="over the queries",
            ),
            swap("context_mask = real", "context_mask = ~real", says="upside down"),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = attn_mask",
                says="cross-attention has the mask of the self-attention",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = real_source[:, None, None, :] & causal_mask(x.shape[1])",
                says="cross-attention is causal, too",
            ),
            swap(
                "causal_mask(x.shape[1])",
                "causal_mask(x.shape[1]).tril(-1)",
                says="attend to itself",
            ),
            swap("causal_mask(x.shape[1])", "causal_mask(x.shape[1]).mT", says="is transposed"),
            swap(
                "real_target[:, None, None, :]",
                "real_target[:, None, :, None]",
                says="over the queries",
            ),
            swap("real_source[:, None", "real_source[:1, None", says="have the first one's mask"),
            swap(
                "attn_mask, context_mask)",
                "context_mask, attn_mask)",
                says="two masks are exchanged",
            ),
            swap(
                "x, memory, attn_mask, context_mask)",
                "x, memory * real_source[..., None], attn_mask)",
                says="made 0 by a product",
            ),
            swap(
                "attn_mask, context_mask)",
                "attn_mask, context_mask) * real_target[..., None]",
                says="made 0 by a product",
            ),
            swap(" & real_target[:, None, None, :]", "", says="the padding of the target is open"),
            swap("causal_mask(x.shape[1]) & ", "", says="the self-attention is not causal"),
            swap("(x.shape[1]) &", "(x.shape[1]) |", says="& and not |"),
            swap("attn_mask, context_mask", "None, context_mask", says="has no mask at all"),
            swap(
                "(decoder, x, memory, real_target, real_source)",
                "(decoder, x, memory, real_source, real_target)",
                says="the two tables are exchanged",
            ),
            swap(
                "context_mask = real_source[:, None, None, :]",
                "context_mask = (real_source[:, None, :] & real_target[:, :, None])[:, None]",
                says="queries of the target's padding are blocked",
            ),
            code(
                """
                def healthy(decoder, x, memory, real_target, real_source):
                    n = x.shape[1]
                    target, source = real_target[:, None, None, :n], real_source[:, None, None, :n]
                    return decoder(x, memory, causal_mask(n) & target, source)
                """,
                says="raises",
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
            swap("[*ids, END]", "[BEGIN, *ids]", says="the answer lies before the model's eyes"),
            swap("[*ids, END]", "[*ids[1:], END, PADDING]", says="two steps ahead"),
            swap("[*ids, END]", "ids", says="END is missing"),
            swap("[*ids, END]", "[*ids[:-1], END]", says="never said"),
            swap("[*ids, END]", "[*ids[:-1], END, PADDING]", says="never said"),
            swap("BEGIN, ", "END, ", says="BEGIN and END are exchanged"),
            code(
                """
                def read_and_said(targets):
                    said = pad([[*ids, END] for ids in targets], padding_id=-100)
                    return pad([[BEGIN, *ids] for ids in targets]), said
                """,
                says="filled up with -100",
            ),
            code(
                """
                def read_and_said(targets):
                    targets = sorted(targets, key=len)
                    read = pad([[BEGIN, *ids] for ids in targets])
                    return read, pad([[*ids, END] for ids in targets])
                """,
                says="sorted by length",
            ),
            code(
                """
                def read_and_said(targets):
                    said = torch.nn.functional.pad(pad(targets), (0, 1), value=END)
                    return pad([[BEGIN, *ids] for ids in targets]), said
                """,
                says="in the last column",
            ),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return pad([[BEGIN, *ids] for ids in targets]), rows[:, :-1]
                """,
                says="the answer lies before the model's eyes",
            ),
            swap("[*ids, END]", "[*ids, END, PADDING]", says="shape"),
            swap("return read, said", "return said, read", says="exchanged"),
            swap("return read, said", "return read", says="2 results in a tuple"),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows[:, :-1], rows[:, 1:]
                """,
                says="END is read in the shorter rows",
            ),
            code(
                """
                def read_and_said(targets):
                    rows = pad([[BEGIN, *ids, END] for ids in targets])
                    return rows, rows
                """,
                says="the answer lies before the model's eyes",
            ),
            code(
                """
                def read_and_said(targets):
                    return pad(targets), pad([[*ids[1:], END] for ids in targets])
                """,
                says="BEGIN is missing",
            ),
            code(
                """
                def read_and_said(targets):
                    n = max(map(len, targets)) + 1
                    read = [[0] * (n - 1 - len(ids)) + [BEGIN, *ids] for ids in targets]
                    said = [[0] * (n - 1 - len(ids)) + [*ids, END] for ids in targets]
                    return torch.tensor(read), torch.tensor(said)
                """,
                says="the padding stands in front",
            ),
            code(
                """
                def read_and_said(targets):
                    read = pad([[BEGIN, *ids] for ids in targets], padding_id=END)
                    return read, pad([[*ids, END] for ids in targets], padding_id=END)
                """,
                says="filled up with END",
            ),
            swap("[*ids, END]", "[*ids[::-1], END]", says="runs backwards"),
            code(
                """
                def read_and_said(targets):
                    for ids in targets:
                        ids.insert(0, BEGIN)
                    read = pad(targets)
                    return read, pad([[*ids[1:], END] for ids in targets])
                """,
                says="targets",
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
            block(OWN, TEXT, IMAGE, "return x", says="norm4 and mlp are missing"),
            block(
                OWN,
                TEXT,
                IMAGE,
                "return self.norm4(x + self.mlp(self.norm4(x)))",
                says="behind the last part",
            ),
            swap(
                "attn_mask=attn_mask",
                "attn_mask=causal_mask(x.shape[1])",
                says="a causal mask of its own",
            ),
            block(OWN, IMAGE, TEXT, FEED, says="the image is asked before the text"),
            swap("self.norm2(x), text, text_mask", "self.norm2(x), image", says="text"),
            swap("self.norm3(x), image", "self.norm3(x), text", says="image_attn asks the text"),
            swap("self.norm3(x), image", "self.norm3(x)", says="the stream asks itself"),
            swap("self.norm2(x), text, text_mask", "self.norm2(x), text", says="text_mask is not"),
            swap(", attn_mask=attn_mask", "", says="attn_mask is not handed on"),
            swap(
                "self.text_attn(self.norm2(x), text, text_mask)",
                "self.text_attn(self.norm2(x), self.norm2(text), text_mask)",
                says="text and image are normalised, too",
            ),
            block(
                OWN,
                "x = x + self.text_attn(self.norm2(x), self.norm2(text), text_mask)",
                "x = x + self.image_attn(self.norm3(x), self.norm3(image))",
                FEED,
                says="text and image are normalised, too",
            ),
            swap("self.norm2(x)", "self.norm1(x)", says="norm2"),
            block(
                "x = self.norm1(x + self.attn(x, attn_mask=attn_mask))",
                "x = self.norm2(x + self.text_attn(x, text, text_mask))",
                "x = self.norm3(x + self.image_attn(x, image))",
                "return self.norm4(x + self.mlp(x))",
                says="post-norm",
            ),
            block(
                OWN,
                "told = self.text_attn(self.norm2(x), text, text_mask)",
                "seen = self.image_attn(self.norm3(x), image)",
                "x = x + told + seen",
                FEED,
                says="both sources are asked from the same stream",
            ),
            swap("x = x + self.image_attn", "x = self.image_attn", says="stream"),
            swap(
                "self.image_attn = MultiHeadAttention(embed_dim, num_heads)",
                "self.image_attn = self.text_attn",
                says="one and the same",
            ),
            swap(
                "self.norm4 = nn.LayerNorm(embed_dim)",
                "norm4 = nn.LayerNorm(embed_dim)",
                says="self.",
            ),
            swap("self.mlp(self.norm4(x))", "self.mlp(x)", says="norm4"),
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
            swap("losses[said != PADDING].mean()", "losses.mean()", says="are counted, too"),
            swap("said != PADDING", "said > 3", says="ids 1 to 3"),
            swap("said != PADDING", "(said != PADDING) & (said != END)", says="when it is done"),
            swap(
                "-(1 - smoothing) *",
                "-(1 - smoothing + smoothing / scores.shape[-1]) *",
                says="counted twice",
            ),
            swap(
                "losses[said != PADDING].mean()",
                "losses[said != PADDING].sum() / len(said)",
                says="the number of sentences",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "losses = -0.9 * right - 0.1 * logs.mean(-1)",
                "return losses[said != PADDING].mean()",
                says="is always 0.1",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "share = smoothing / scores.shape[-1]",
                "losses = -(1 - smoothing) * right - share * logs[..., 1:].sum(-1)",
                "return losses[said != PADDING].mean()",
                says="gets no share",
            ),
            swap(
                "losses[said != PADDING].mean()",
                "(losses * (said != PADDING)).mean()",
                says="by the number of all places",
            ),
            swap(".mean()\n", ".sum()\n", says="it is the sum over the real places"),
            swap("!= PADDING", "== PADDING", says="only the places of the padding"),
            swap("-(1 - smoothing) * right", "-right", says="keep"),
            swap("-(1 - smoothing) * right", "-smoothing * right", says="keeps smoothing, and"),
            swap(" - smoothing * logs.mean(dim=-1)", "", says="nobody gets it"),
            swap("- smoothing * logs", "+ smoothing * logs", says="has the wrong sign"),
            swap("logs.mean(dim=-1)", "logs.sum(dim=-1)", says="the whole of smoothing"),
            swap("scores.log_softmax(dim=-1)", "scores.log_softmax(dim=1)", says="over the places"),
            swap("scores.log_softmax(dim=-1)", "scores", says="taken for logarithms"),
            swap("scores.log_softmax(dim=-1)", "scores.softmax(dim=-1)", says="no logarithm"),
            swap(
                "scores.log_softmax(dim=-1)",
                "scores.softmax(dim=-1).log_softmax(dim=-1)",
                says="softmax is taken twice",
            ),
            swap("scores.log_softmax(dim=-1)", "scores.softmax(dim=-1).log2()", says="of base 2"),
            swap("scores.log_softmax(dim=-1)", "scores.softmax(dim=-1).log10()", says="of base 10"),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "share = smoothing / (scores.shape[-1] - 1)",
                "losses = -(1 - smoothing) * right - share * (logs.sum(-1) - right)",
                "return losses[said != PADDING].mean()",
                says="shared among the wrong ids only",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "losses = -(1 - smoothing) * right - smoothing * logs.mean(-1)",
                "real = said != PADDING",
                "return ((losses * real).sum(1) / real.sum(1)).mean()",
                says="the mean of the sentences' means",
            ),
            loss(
                "return torch.nn.functional.cross_entropy(",
                "    scores.flatten(0, 1), said.flatten(), ignore_index=PADDING,",
                "    label_smoothing=smoothing)",
                says="write it with log_softmax",
            ),
            loss(
                "logs = scores.log_softmax(-1)",
                "right = logs.gather(-1, said[..., None])[..., 0]",
                "return -right[said != PADDING].mean()",
                says="there is no smoothing",
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
            swap(".log_softmax(dim=-1)", "", says="these are the scores"),
            swap("source[None]", "source.flip(0)[None]", says="read from its end"),
            swap("log_softmax", "softmax", says="these are the probabilities"),
            swap("log_softmax(dim=-1)", "log_softmax(dim=0)", says="over the beginnings"),
            swap("log_softmax(dim=-1)", "log()", says="the logarithm of the scores themselves"),
            swap("scores[:, -1]", "scores[:, 0]", says="what follows the first token"),
            swap("scores[:, -1]", "scores[:, -2]", says="the token before the last one"),
            swap("scores[:, -1]", "scores.mean(dim=1)", says="all places are averaged"),
            swap("scores[:, -1]", "scores", says="shape"),
            swap("decode(beginnings,", "decode(beginnings[:, -1:],", says="only the last token"),
            swap("decode(beginnings,", "decode(beginnings[:, 1:],", says="BEGIN is cut off"),
            swap(
                "scores[:, -1].log_softmax(dim=-1)",
                "scores.log_softmax(dim=1)[:, -1]",
                says="over the places",
            ),
            swap(
                "scores[:, -1].log",
                "scores[:, -1].index_fill(-1, torch.tensor([PADDING]), -torch.inf).log",
                says="PADDING is ruled out",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source[None]).expand(len(beginnings), -1, -1)
                    logs = model.decode(beginnings, memory).log_softmax(dim=-1)
                    own = logs[:, :-1].gather(-1, beginnings[:, 1:, None])[..., 0]
                    return logs[:, -1] + own.sum(dim=1, keepdim=True)
                """,
                says="the beginning's own tokens",
            ),
            swap("[:, -1]", "[-1]", says="shape"),
            swap(".expand(len(beginnings), -1, -1)", "", says="raises"),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    sources = source.expand(len(beginnings), -1)
                    return model(sources, beginnings)[:, -1].log_softmax(dim=-1)
                """,
                says="went through the encoder, and there is one",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    rows = [model(source[None], ids[None])[0, -1] for ids in beginnings]
                    return torch.stack(rows).log_softmax(dim=-1)
                """,
                says="went through the encoder, and there is one",
            ),
            code(
                """
                def next_log_probabilities(model, source, beginnings):
                    memory = model.encode(source[None]).expand(len(beginnings), -1, -1)
                    begun = torch.cat([torch.full_like(beginnings[:, :1], BEGIN), beginnings], 1)
                    return model.decode(begun, memory)[:, -1].log_softmax(dim=-1)
                """,
                says="the beginnings have it already",
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
