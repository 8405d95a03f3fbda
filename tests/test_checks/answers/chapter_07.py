"""Answers to the exercises of chapter 07, right and wrong."""

from exercise_bank import Bank, code, swap

STACK = """
    class Healthy(nn.Module):
        def __init__(self, num_layers, embed_dim, num_heads, mlp_dim):
            super().__init__()
            BUILD
            self.norm = nn.LayerNorm(embed_dim)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)
"""


def stack(*lines, cause=""):
    """The right stack, with other lines that build its blocks."""
    return code(STACK.replace("BUILD", ("\n" + " " * 12).join(lines)), cause=cause)


STEPS = {
    "pre": "x = x + attend(self.norm1(x)); return x + self.mlp(self.norm2(x))",
    "out": "x = x + self.norm1(attend(x)); return x + self.norm2(self.mlp(x))",
    "side": "return x + attend(self.norm1(x)) + self.mlp(self.norm2(x))",
}
POST = "x = self.norm1(x + attend(x)); return self.norm2(x + self.mlp(x))"


def block(cause="", **steps):
    """A block with the right parts and the given steps, each a text with one line after another."""
    branches = "".join(
        f"        if self.order == {order!r}:\n"
        + "".join(f"            {line}\n" for line in lines.split("; "))
        for order, lines in (STEPS | steps).items()
    )
    return code(
        "class Block(nn.Module):\n"
        "    def __init__(self, embed_dim, num_heads, mlp_dim, order='pre'):\n"
        "        super().__init__()\n"
        "        self.order = order\n"
        "        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)\n"
        "        self.attn = MultiHeadAttention(embed_dim, num_heads)\n"
        "        self.mlp = FeedForward(embed_dim, mlp_dim)\n\n"
        "    def forward(self, x, attn_mask=None):\n"
        "        def attend(x):\n"
        "            return self.attn(x, attn_mask=attn_mask)\n\n"
        f"{branches}",
        cause=cause,
    )


def sources(*lines, cause=""):
    """A function `sources` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def sources(maps, own, token):\n" + body, cause=cause)


ROW = (
    "b, _, n, _ = maps[0].shape",
    "row = torch.zeros(b, n, dtype=maps[0].dtype)",
    "row[:, token] = 1",
)
GATHERED = 'gathered = einsum(row, weights.mean(dim=1), "b i, b i j -> b j")'


def shift(*lines, cause=""):
    return code(
        "def shifted(images, columns):\n" + "".join(f"    {line}\n" for line in lines), cause=cause
    )


def accuracy(*lines, cause=""):
    return code(
        "def accuracy_of(model, images, labels):\n" + "".join(f"    {line}\n" for line in lines),
        cause=cause,
    )


BANK = {
    "07.1": Bank(
        wrong=[
            swap("(5, 13, 36)", "(5, 12, 36)", cause="look-at-axes n"),
            swap("(5, 13, 36)", "(5, 36, 13)", cause="sizes-in-another-order"),
            swap("(5, 6, 13, 13)", "(5, 6, 13, 6)", cause="look-at-axes j"),
            swap("(5, 6, 13, 13)", "(5, 13, 13)", cause="number-of-axes"),
            swap("(5, 6, 13, 13)", "(5, 6, 12, 12)", cause="look-at-axes i j"),
            swap("(5, 7)", "(5, 13, 7)", cause="number-of-axes"),
            swap("(5, 7)", "(7,)", cause="number-of-axes"),
            swap("(5, 7)", "(5, 36)", cause="look-at-axes k"),
        ],
        right=[
            swap("(5, 13, 36)", "[5, 3 * 4 + 1, 36]"),
            swap("(5, 6, 13, 13)", "torch.Size([5, 6, 13, 13])"),
        ],
    ),
    "07.2": Bank(
        wrong=[
            swap(
                "(embed_dim * embed_dim + embed_dim)",
                "embed_dim**2",
                cause="four-widths-missing",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "2 * embed_dim * mlp_dim",
                cause="feed-biases-missing",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    matrices = 4 * embed_dim**2 + 2 * embed_dim * mlp_dim
                    return num_layers * (matrices + 4 * embed_dim) + 2 * embed_dim
                """,
                cause="linear-biases-missing",
            ),
            swap(" + norm\n", "\n", cause="last-norm-missing"),
            swap("2 * norm) + norm", "3 * norm)", cause="last-norm-in-each-block"),
            swap("2 * norm)", "norm)", cause="one-norm-a-block"),
            swap("norm = 2 * embed_dim", "norm = embed_dim", cause="norm-bias-missing"),
            swap("attention = 4", "attention = 3", cause="three-projections"),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "embed_dim * mlp_dim + mlp_dim",
                cause="fc2-missing",
            ),
            swap("num_layers * (", "(", cause="one-block"),
            swap("attention = 4", "attention = 4 * num_heads", cause="linears-for-each-head"),
            swap(
                "attention = 4",
                "attention = (3 * num_heads + 1)",
                cause="three-linears-for-each-head",
            ),
            swap(
                "norm = 2 * embed_dim", "norm = 2.0 * embed_dim", cause="is-another-kind float int"
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
                    return sum(parameter.numel() for parameter in encoder.parameters())
                """,
                cause="calls-shortcut Encoder",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    layer = nn.TransformerEncoderLayer(embed_dim, num_heads, mlp_dim)
                    block = sum(parameter.numel() for parameter in layer.parameters())
                    return num_layers * block + 2 * embed_dim
                """,
                cause="calls-shortcut",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    return 85_056_000
                """,
                cause="number-of-the-chapter",
            ),
            swap(
                "mlp_dim * embed_dim + embed_dim",
                "mlp_dim * embed_dim + mlp_dim",
                cause="fc2-bias-is-m",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "4 * embed_dim * embed_dim + embed_dim",
                cause="one-bias-for-the-attention",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "num_heads * 4 * (embed_dim * embed_dim // num_heads + embed_dim)",
                cause="biases-for-each-head",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "4 * (embed_dim * (embed_dim // num_heads) + embed_dim // num_heads)",
                cause="projections-to-one-head",
            ),
            swap(
                "num_layers * (attention + feed_forward + 2 * norm) + norm",
                "num_layers * (attention + feed_forward) + 2 * norm + norm",
                cause="block-norms-once",
            ),
            swap(
                "num_layers * (attention + feed_forward + 2 * norm) + norm",
                "num_layers * (attention + feed_forward + 2 * norm) + 2 * norm",
                cause="last-norm-twice",
            ),
            swap(
                "+ mlp_dim * embed_dim + embed_dim",
                "+ mlp_dim * embed_dim",
                cause="fc2-bias-missing",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim +",
                "embed_dim * mlp_dim +",
                cause="fc1-bias-missing",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "2 * (embed_dim * mlp_dim + embed_dim)",
                cause="fc1-bias-is-e",
            ),
        ],
        right=[
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    def linear(before, after):
                        return (before + 1) * after

                    e, m = embed_dim, mlp_dim
                    block = 4 * linear(e, e) + linear(e, m) + linear(m, e) + 4 * e
                    return sum(block for _ in range(num_layers)) + 2 * e
                """
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    block = 4 * embed_dim**2 + 2 * embed_dim * mlp_dim + 9 * embed_dim + mlp_dim
                    return num_layers * block + 2 * embed_dim
                """
            ),
        ],
    ),
    "07.3": Bank(
        wrong=[
            block(pre=POST, cause="post-norm-instead"),
            block(pre=STEPS["out"], cause="order-instead out"),
            block(out=STEPS["pre"], cause="order-instead pre"),
            block(side=STEPS["pre"], cause="order-instead pre"),
            block(
                side="x = x + attend(self.norm1(x)) + self.mlp(self.norm1(x)); return x",
                cause="norm1-in-both-halves",
            ),
            block(side="return x + attend(x) + self.mlp(x)", cause="no-norm-before-the-parts"),
            block(
                side="return (x + attend(self.norm1(x))) + (x + self.mlp(self.norm2(x)))",
                cause="stream-added-twice",
            ),
            block(
                out="return x + self.norm1(attend(x)) + self.norm2(self.mlp(x))",
                cause="out-beside",
            ),
            block(
                pre="x = self.norm1(x); x = x + attend(x); "
                "x = self.norm2(x); return x + self.mlp(x)",
                cause="sums-from-norm",
            ),
            block(
                pre="x = attend(self.norm1(x)); return self.mlp(self.norm2(x))",
                cause="stream-not-added",
            ),
            block(
                pre="start = x; x = x + attend(self.norm1(x)); "
                "return start + self.mlp(self.norm2(x))",
                cause="clinic-found/residual-from-input",
            ),
            block(
                pre="x = x + self.mlp(self.norm2(x)); return x + attend(self.norm1(x))",
                cause="feed-forward-first",
            ),
            block(
                out="x = x + self.norm2(self.mlp(x)); return x + self.norm1(attend(x))",
                cause="feed-forward-first",
            ),
            block(
                pre="x = x + self.attn(self.norm1(x)); return x + self.mlp(self.norm2(x))",
                cause="mask-not-handed-on",
            ),
            block(
                pre="blocked = None if attn_mask is None else ~attn_mask; "
                "x = x + self.attn(self.norm1(x), attn_mask=blocked); "
                "return x + self.mlp(self.norm2(x))",
                cause="mask-is-inverted",
            ),
            block(
                pre="x = x + attend(self.norm2(x)); return x + self.mlp(self.norm1(x))",
                cause="norms-changed-places",
            ),
            block(
                out="x = x + self.norm1(attend(x)); return x + self.norm1(self.mlp(x))",
                cause="norm1-in-both-halves",
            ),
            block(
                pre="x += attend(self.norm1(x)); return x + self.mlp(self.norm2(x))",
                cause="changed-in-place x",
            ),
            block(
                out="x = x + self.norm1(attend(x)); x + self.norm2(self.mlp(x))",
                cause="returns-none",
            ),
            swap(
                "nn.LayerNorm(embed_dim)",
                "nn.LayerNorm(embed_dim, eps=1e-3)",
                cause="norms-add-eps",
            ),
            swap(
                "FeedForward(embed_dim, mlp_dim)",
                'FeedForward(embed_dim, mlp_dim, activation="relu")',
                cause="bends-with ReLU",
            ),
            swap(
                "self.norm2 = nn.LayerNorm(embed_dim)",
                "self.norm2 = self.norm1",
                cause="parameters-are-one",
            ),
            swap("self.mlp", "self.feed_forward", cause="parameter-missing"),
            code(
                """
                class Block(EncoderBlock):
                    def __init__(self, embed_dim, num_heads, mlp_dim, order):
                        super().__init__(embed_dim, num_heads, mlp_dim)
                """,
                cause="calls-shortcut EncoderBlock",
            ),
            swap(
                "return x + gathered + self.mlp(self.norm2(x))",
                "return x + self.mlp(self.norm2(gathered))",
                cause="one-part-inside-the-other",
            ),
            swap(
                "return x + self.norm2(self.mlp(x))",
                "return x + self.norm2(self.mlp(self.norm2(x)))",
                cause="norm-before-and-behind-second",
            ),
            swap(
                "x = x + gathered",
                "x = self.norm1(x) + gathered",
                cause="first-sum-from-norm",
            ),
        ],
        right=[
            block(),
            code(
                """
                class Block(nn.Module):
                    def __init__(self, embed_dim, num_heads, mlp_dim, order="pre"):
                        super().__init__()
                        self.order = order
                        self.mlp = FeedForward(embed_dim=embed_dim, mlp_dim=mlp_dim)
                        self.attn = MultiHeadAttention(embed_dim=embed_dim, num_heads=num_heads)
                        for name in ("norm1", "norm2"):
                            self.add_module(name, nn.LayerNorm([embed_dim]))

                    def said(self, norm, part, x):
                        return norm(part(x)) if self.order == "out" else part(norm(x))

                    def forward(self, x, attn_mask=None):
                        def attend(y):
                            return self.attn(y, attn_mask=attn_mask)

                        first = self.said(self.norm1, attend, x)
                        read = x if self.order == "side" else x + first
                        return x + first + self.said(self.norm2, self.mlp, read)
                """
            ),
        ],
    ),
    "07.4": Bank(
        wrong=[
            code("Healthy = Buggy", cause="clinic-found/layers-same-init"),
            stack(
                "block = EncoderBlock(embed_dim, num_heads, mlp_dim)",
                "self.layers = nn.ModuleList(block for _ in range(num_layers))",
                cause="parameters-are-one",
            ),
            stack(
                "from copy import deepcopy",
                "block = EncoderBlock(embed_dim, num_heads, mlp_dim)",
                "self.layers = nn.ModuleList(deepcopy(block) for _ in range(num_layers))",
                cause="clinic-found/layers-same-init",
            ),
            stack(
                "blocks = [EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)]",
                "for block in blocks:",
                "    block.mlp = blocks[0].mlp",
                "self.layers = nn.ModuleList(blocks)",
                cause="parameters-are-one",
            ),
            stack(
                "self.layers = [",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)",
                "]",
                cause="parameter-in-list list",
            ),
            stack(
                "self.layers = nn.ModuleList(",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers - 1)",
                ")",
                cause="number-of-blocks",
            ),
            stack(
                "self.layers = nn.ModuleList(",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim, norm_first=False)",
                "    for _ in range(num_layers)",
                ")",
                cause="blocks-are-post-norm",
            ),
            swap("return self.norm(x)", "return x", cause="stack-norm-missing"),
            swap(
                "x = layer(x)", "x = self.norm(layer(x))", cause="stack-norm-after-every-block-too"
            ),
            swap(
                "x = layer(x)\n        return self.norm(x)",
                "x = self.norm(layer(x))\n        return x",
                cause="stack-norm-after-every-block",
            ),
            swap(
                "for layer in self.layers:\n            x = layer(x)\n        return self.norm(x)",
                "x = self.norm(x)\n        for layer in self.layers:\n            x = layer(x)\n"
                "        return x",
                cause="stack-norm-first",
            ),
            swap(
                "x = layer(x)\n        return self.norm(x)",
                "result = layer(x)\n        return self.norm(result)",
                cause="every-block-reads-x",
            ),
            swap("x = layer(x)", "x = x + layer(x)", cause="block-added-again"),
            swap("in self.layers:", "in reversed(self.layers):", cause="blocks-backwards"),
            swap(
                "    x = layer(x)\n        return",
                "    x = layer(x)\n            break\n        return",
                cause="first-block-alone",
            ),
            code(
                """
                class Healthy(Encoder):
                    pass
                """,
                cause="calls-shortcut Encoder",
            ),
            stack(
                "self.layers = Encoder(num_layers, embed_dim, num_heads, mlp_dim).layers",
                cause="calls-shortcut Encoder",
            ),
            swap(
                "return self.norm(x)",
                "return self.norm(x) + x",
                cause="stream-added-to-normed",
            ),
            swap(
                "            x = layer(x)\n",
                "            x = self.norm(x + layer(x))\n",
                cause="block-added-and-normed",
            ),
        ],
        right=[
            stack(
                "self.layers = nn.ModuleList()",
                "for _ in range(num_layers):",
                "    self.layers.append(EncoderBlock(embed_dim, num_heads, mlp_dim))",
            ),
            stack(
                "block = EncoderBlock(embed_dim, num_heads, mlp_dim)",
                "self.layers = nn.ModuleList(deepcopy(block) for _ in range(num_layers))",
                "for part in self.layers.modules():",
                "    if hasattr(part, 'reset_parameters'):",
                "        part.reset_parameters()",
            ),
            stack(
                "layers = [EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)]",
                "self.layers = nn.Sequential(*layers)",
            ),
            swap(
                "for layer in self.layers:\n            x = layer(x)\n        return self.norm(x)",
                "return nn.Sequential(*self.layers, self.norm)(x)",
            ),
            stack(
                "self.register_buffer('steps', torch.arange(num_layers))",
                "blocks = [EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in self.steps]",
                "self.blocks = nn.Sequential(*blocks)",
                "self.layers = self.blocks",
            ),
        ],
    ),
    "07.5": Bank(
        wrong=[
            swap("tokens[:, 0]", "tokens[:, -1]", cause="reads-last-token"),
            swap("tokens[:, 0]", "tokens[:, 1]", cause="reads-first-patch"),
            swap("tokens[:, 0]", "tokens[0]", cause="shape-differs"),
            swap("tokens[:, 1:]", "tokens", cause="class-token-in-mean"),
            swap("tokens[:, 1:]", "tokens[:, :-1]", cause="last-patch-missing"),
            swap("tokens[:, 1:]", "tokens[:, 2:]", cause="first-patch-missing"),
            swap(".mean(dim=1)", ".sum(dim=1)", cause="reads-sum-of-patches"),
            swap(".mean(dim=1)", ".amax(dim=1)", cause="largest-not-mean"),
            swap('== "class"', '!= "class"', cause="reads-mean-of-patches"),
            swap("self.pool ==", '"class" ==', cause="reads-class-token"),
            swap(".mean(dim=1)", ".mean(dim=0)", cause="shape-differs"),
            swap("self.head(tokens[:, 0])", "tokens[:, 0]", cause="changes-nothing"),
            swap(
                "self.encoder(self.embedding(images))",
                "self.embedding(images)",
                cause="reads-before-encoder",
            ),
            swap(
                "self.head(tokens[:, 0])",
                "self.head(tokens[:, 0]).softmax(-1)",
                cause="softmax-too-many",
            ),
            code(
                """
                class Classifier(nn.Module):
                    def __init__(
                        self, image_size, patch_size, in_channels, num_classes,
                        embed_dim, num_heads, mlp_dim, num_layers, pool,
                    ):
                        super().__init__()
                        self.embedding = PatchEmbedding(
                            image_size, patch_size[::-1], in_channels, embed_dim
                        )
                        self.encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
                        self.head = nn.Linear(embed_dim, num_classes)
                """,
                cause="raises",
            ),
            code(
                """
                from utils.vision_transformer import VisionTransformer


                class Classifier(VisionTransformer):
                    def __init__(self, *, pool, **sizes):
                        super().__init__(**sizes)
                        self.pool = pool

                    def forward(self, images):
                        if self.pool == "class":
                            return super().forward(images)
                        return self.head(self.encoder(self.embedding(images))[:, 1:].mean(dim=1))
                """,
                cause="calls-shortcut VisionTransformer",
            ),
            swap(
                "self.head(tokens[:, 1:].mean(dim=1))",
                "self.head(tokens[:, 1:]).max(dim=1).values",
                cause="largest-score-of-patches",
            ),
            swap(
                "tokens[:, 1:].mean(dim=1)",
                "tokens[:, 1:].median(dim=1).values",
                cause="median-not-mean",
            ),
            swap(
                "self.embedding(images)",
                "self.embedding(images)[:, 1:]",
                cause="class-token-cut-off",
            ),
            swap(
                "self.encoder(self.embedding(images))",
                "self.encoder(self.encoder(self.embedding(images)))",
                cause="encoded-twice",
            ),
            swap(
                "tokens[:, 1:].mean(dim=1)",
                "(tokens[:, 1:].sum(dim=1) / tokens.shape[1])",
                cause="divided-by-all-tokens",
            ),
        ],
        right=[
            code(
                """
                from utils.vision_transformer import VisionTransformer


                class Classifier(VisionTransformer):
                    def __init__(self, *, pool, **sizes):
                        super().__init__(**sizes)
                        self.pool = pool

                    def forward(self, images):
                        scores = self.head(self.encoder(self.embedding(images)))
                        return scores[:, 0] if self.pool == "class" else scores[:, 1:].mean(1)
                """
            ),
            swap(
                "return self.head(tokens[:, 1:].mean(dim=1))",
                "first, *patches = tokens.unbind(dim=1)\n"
                "        return self.head(torch.stack(patches).mean(dim=0))",
            ),
            swap("tokens[:, 0]", "tokens.select(1, 0)"),
        ],
    ),
    "07.6": Bank(
        wrong=[
            swap("reversed(maps)", "maps", cause="layers-from-the-first"),
            swap(
                "own * row + (1 - own) *", "(1 - own) * row + own *", cause="own-and-rest-exchanged"
            ),
            swap("own * row + (1 - own) * gathered", "(row + gathered) / 2", cause="own-not-used"),
            swap("own * row + ", "", cause="own-part-missing"),
            swap("own * row + (1 - own) * gathered", "gathered", cause="gathered-alone"),
            swap("(1 - own) *", "", cause="rest-not-multiplied"),
            swap("own * row", "row", cause="own-not-multiplied"),
            swap("own * row + (1 - own) *", "row +", cause="both-not-multiplied"),
            swap("weights.mean(dim=1)", "weights.sum(dim=1)", cause="heads-summed"),
            swap("weights.mean(dim=1)", "weights.amax(dim=1)", cause="largest-of-heads"),
            swap("weights.mean(dim=1)", "weights[:, 0]", cause="first-head-alone"),
            swap("b i, b i j -> b j", "b j, b i j -> b i", cause="column-instead-of-row"),
            sources(
                *ROW,
                "for weights in maps:",
                "    row = own * row + (1 - own) * (weights.mean(dim=1) @ row[..., None])[..., 0]",
                "return row",
                cause="column-from-the-first",
            ),
            swap("reversed(maps)", "maps[-1:]", cause="last-layer-alone"),
            swap("reversed(maps)", "maps[:1]", cause="first-layer-alone"),
            swap("reversed(maps)", "reversed(maps[1:])", cause="first-layer-missing"),
            swap("reversed(maps)", "reversed(maps[:-1])", cause="last-layer-missing"),
            swap("row[:, token] = 1", "row[:, 0] = 1", cause="always-class-token"),
            swap("own * row", "own", cause="own-share-of-all"),
            sources(
                *ROW,
                "total = torch.zeros_like(row)",
                "for weights in maps:",
                f"    {GATHERED}",
                "    total = total + own * row + (1 - own) * gathered",
                "return total",
                cause="layers-added",
            ),
            sources(
                *ROW,
                "while maps:",
                "    row = own * row + (1 - own) * (row[:, None] @ maps.pop().mean(dim=1))[:, 0]",
                "return row",
                cause="list-was-changed maps",
            ),
            swap("weights.mean(dim=1)", "weights.mean(dim=0)", cause="raises"),
            sources(
                *ROW,
                "for weights in maps:",
                "    weights *= 1 - own",
                "for weights in reversed(maps):",
                f"    {GATHERED}",
                "    row = own * row + gathered",
                "return row",
                cause="changed-in-place maps",
            ),
            sources(
                "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)",
                "path = itself",
                "for weights in maps:",
                "    path = (own * itself + (1 - own) * weights.mean(dim=1)) @ path",
                "return path[:, token]",
                cause="whole-tables-multiplied",
            ),
            sources(
                "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)",
                "path = itself",
                "for weights in maps:",
                "    path = (own * itself + (1 - own) * weights.mean(dim=1)) @ path",
                "return path",
                cause="whole-table-returned",
            ),
            sources(
                "*others, last = maps",
                "row = (1 - own) * last.mean(dim=1)[:, token]",
                "row[:, token] += own",
                "second = others.pop()",
                "row = own * row + (1 - own) * (row[:, None] @ second.mean(dim=1))[:, 0]",
                "for weights in reversed(others):",
                f"    {GATHERED}",
                "    row = own * row + (1 - own) * gathered",
                "return row",
                cause="raises IndexError",
            ),
            code(
                """
                def sources(maps, own, token):
                    row = torch.zeros(maps[0].shape[0], maps[0].shape[-1], dtype=maps[0].dtype)
                    row[token] = 1
                    for w in reversed(maps):
                        row = own * row + (1 - own) * einsum(row, w.mean(1), 'b i, b i j -> b j')
                    return row
                """,
                cause="sample-instead-of-token",
            ),
            code(
                """
                def sources(maps, own, token):
                    row = maps[-1].mean(1)[:, token]
                    for w in reversed(maps[:-1]):
                        row = own * row + (1 - own) * einsum(row, w.mean(1), 'b i, b i j -> b j')
                    return row
                """,
                cause="own-missing-in-last-layer",
            ),
            code(
                """
                def sources(maps, own, token):
                    row = torch.zeros(maps[0].shape[0], maps[0].shape[-1], dtype=maps[0].dtype)
                    row[:, token] = 1
                    start = row
                    for w in reversed(maps):
                        row = own * start + (1 - own) * einsum(row, w.mean(1), 'b i, b i j -> b j')
                    return row
                """,
                cause="own-share-of-the-start",
            ),
            code(
                """
                def sources(maps, own, token):
                    row = torch.zeros(maps[0].shape[0], maps[0].shape[-1], dtype=maps[0].dtype)
                    row[:, token] = 1
                    for w in reversed(maps):
                        row = own * row + (1 - own) * w.mean(1)[:, token]
                    return row
                """,
                cause="row-of-token-each-time",
            ),
        ],
        right=[
            swap(", dtype=maps[0].dtype", ""),
            sources(
                "row = own * torch.eye(maps[-1].shape[-1], dtype=maps[-1].dtype)[token]",
                "row = row + (1 - own) * maps[-1].mean(dim=1)[:, token]",
                "for weights in maps[-2::-1]:",
                "    gathered = torch.bmm(row[:, None], weights.mean(dim=1))[:, 0]",
                "    row = torch.lerp(gathered, row, own)",
                "return row",
            ),
            sources(
                "table = [w.mean(dim=1) * (1 - own) for w in maps]",
                "for one in table:",
                "    one.diagonal(dim1=-2, dim2=-1).add_(own)",
                "    one /= one.sum(dim=-1, keepdim=True)",
                "row = table.pop()[:, token]",
                "while table:",
                "    row = (row[..., None] * table.pop()).sum(dim=1)",
                "return row",
            ),
            sources(
                *ROW,
                "for weights in maps[::-1]:",
                "    row = own * row + (1 - own) * (row[:, None] @ weights.detach().mean(1))[:, 0]",
                "return row",
            ),
        ],
        equivalent={
            "row = torch.zeros(b, n, dtype=maps[0].dtype) => "
            "row = torch.zeros(b, n)": "the check judges it in double "
            "precision, the notebook in single",
            "b, _, n, _ = maps[0].shape => b, _, n, _ = maps[-1].shape": "all layers have the same "
            "tokens",
            "row = torch.zeros(b, n, dtype=maps[0].dtype) => "
            "row = torch.zeros(b, n, dtype=maps[-1].dtype)": "all maps have one dtype",
        },
    ),
    "07.7": Bank(
        wrong=[
            shift("return torch.roll(images, columns, dims=-1)", cause="comes-back-at-other-side"),
            shift(
                "moved = torch.zeros_like(images)",
                "if columns > 0:",
                "    moved[..., :-columns] = images[..., columns:]",
                "else:",
                "    moved[..., -columns:] = images[..., : images.shape[-1] + columns]",
                "return moved",
                cause="moves-to-the-left",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "height = images.shape[2]",
                "if columns >= 0:",
                "    moved[:, :, columns:] = images[:, :, : max(height - columns, 0)]",
                "else:",
                "    moved[:, :, :columns] = images[:, :, -columns:]",
                "return moved",
                cause="moves-down",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "if columns > 0:",
                "    moved[..., columns:] = images[..., :-columns]",
                "else:",
                "    moved[..., :columns] = images[..., -columns:]",
                "return moved",
                cause="raises",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "moved[..., columns:] = images[..., : images.shape[-1] - columns]",
                "return moved",
                cause="raises RuntimeError",
            ),
            shift(
                "images[..., columns:] = images[..., : images.shape[-1] - columns].clone()",
                "images[..., :columns] = 0",
                "return images",
                cause="changed-in-place images",
            ),
            shift(
                "moved = torch.roll(images, columns, dims=-1)",
                "moved[..., :columns] = 0",
                "return moved",
                cause="negative-needs-paper",
            ),
            shift(
                "rolled = torch.roll(images, columns, dims=-1)",
                "images.zero_()",
                "if columns >= 0:",
                "    images[..., columns:] = rolled[..., columns:]",
                "else:",
                "    images[..., :columns] = rolled[..., :columns]",
                "return images",
                cause="changed-in-place images",
            ),
            shift(
                "places = torch.arange(images.shape[-1]) - columns",
                "return images[..., places.clamp(0, images.shape[-1] - 1)]",
                cause="edge-is-repeated",
            ),
            swap("    model.eval()\n", "", cause="training-mode"),
            swap("torch.zeros_like(images)", "torch.ones_like(images)", cause="paper-is-zero"),
            swap("model.eval()", "model.train()", cause="training-mode"),
            swap("argmax", "argmin", cause="smallest-score"),
            swap("== labels", "!= labels", cause="share-read-wrongly"),
            swap(".mean().item()", ".sum().item()", cause="number-not-share"),
            swap(".mean().item()", ".mean().item() * 100", cause="percentage-not-share"),
            swap(".mean().item()", "", cause="is-another-kind float"),
            swap(
                "with torch.no_grad():\n        logits",
                "if True:\n        logits",
                cause="records-gradients",
            ),
            accuracy(
                "from utils.training import accuracy",
                "return accuracy(model, (images, labels))",
                cause="calls-shortcut accuracy",
            ),
            accuracy(
                "from utils import training",
                "guesses = training.predict(model, images).argmax(dim=-1)",
                "return (guesses == labels).double().mean().item()",
                cause="calls-shortcut predict",
            ),
            accuracy("return 0.625", cause="same-for-every-input"),
            swap("shifted(digits, 1)", "digits", cause="accuracy-unmoved"),
            swap("shifted(digits, 1)", "shifted(digits, -1)", cause="moved-to-the-left"),
            swap("shifted(digits, 1)", "shifted(digits.mT, 1).mT", cause="moved-down"),
            swap("shifted(digits, 2)", "shifted(digits, 1)", cause="moved-by"),
            code("one_pixel = 100 * one_pixel", cause="accuracy-is-percentage"),
            code("two_pixels = 1 - two_pixels", cause="accuracy-is-error"),
            code("one_pixel = 0.99 - one_pixel", cause="accuracy-is-loss"),
            code("two_pixels = 0.9", cause="too-large"),
            code(
                """
                def shifted(images, columns):
                    moved = torch.zeros_like(images)
                    if columns >= 0:
                        moved[..., columns + 1:] = images[..., : images.shape[-1] - columns - 1]
                    else:
                        moved[..., :columns] = images[..., -columns:]
                    return moved
                """,
                cause="one-column-more",
            ),
            code(
                """
                def shifted(images, columns):
                    return torch.roll(images, columns)
                """,
                cause="rolls-all-numbers",
            ),
            code(
                """
                def shifted(images, columns):
                    return torch.roll(images, columns, dims=-2)
                """,
                cause="rolls-rows",
            ),
            code(
                """
                def shifted(images, columns):
                    moved = torch.zeros_like(images)
                    moved[..., abs(columns):] = images[..., : images.shape[-1] - abs(columns)]
                    return moved
                """,
                cause="negative-moves-right-too",
            ),
            code(
                """
                def accuracy_of(model, images, labels):
                    model.eval()
                    with torch.no_grad():
                        logits = model(images).softmax(-1)
                    return logits[torch.arange(len(labels)), labels].double().mean().item()
                """,
                cause="chance-not-hit",
            ),
            code(
                """
                def accuracy_of(model, images, labels):
                    model.eval()
                    with torch.no_grad():
                        logits = model(images)
                    return round((logits.argmax(dim=-1) == labels).double().mean().item(), 2)
                """,
                cause="rounded",
            ),
        ],
        right=[
            shift(
                "moved = torch.zeros(images.shape)",
                "width = images.shape[-1]",
                "for column in range(width):",
                "    if 0 <= column - columns < width:",
                "        moved[..., column] = images[..., column - columns]",
                "return moved",
            ),
            shift(
                "b, c, height, width = images.shape",
                "paper = images.new_zeros(b, c, height, abs(columns))",
                "if columns < 0:",
                "    return torch.cat([images[..., -columns:], paper], dim=-1)",
                "return torch.cat([paper, images[..., : width - columns]], dim=-1)",
            ),
            shift("return nn.functional.pad(images, (columns, -columns))"),
            accuracy(
                "before = model.training",
                "model.train(False)",
                "with torch.inference_mode():",
                "    right = model(images).max(dim=1).indices.eq(labels)",
                "model.train(before)",
                "return right.sum().item() / len(labels)",
            ),
            code(
                """
                @torch.no_grad()
                def accuracy_of(model, images, labels):
                    pairs = zip(model.eval()(images).argmax(-1).tolist(), labels.tolist())
                    return sum(guess == label for guess, label in pairs) / len(labels)
                """
            ),
            code("one_pixel = torch.tensor(one_pixel)"),
            swap(".item()", ""),
            shift(
                "moved = images.numpy() * 0",
                "for column in range(images.shape[-1]):",
                "    if 0 <= column - columns < images.shape[-1]:",
                "        moved[..., column] = images[..., column - columns]",
                "return torch.from_numpy(moved)",
            ),
        ],
    ),
}
