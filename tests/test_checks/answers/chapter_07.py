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


def stack(*lines, says=""):
    """The right stack, with other lines that build its blocks."""
    return code(STACK.replace("BUILD", ("\n" + " " * 12).join(lines)), says=says)


STEPS = {
    "pre": "x = x + attend(self.norm1(x)); return x + self.mlp(self.norm2(x))",
    "out": "x = x + self.norm1(attend(x)); return x + self.norm2(self.mlp(x))",
    "side": "return x + attend(self.norm1(x)) + self.mlp(self.norm2(x))",
}
POST = "x = self.norm1(x + attend(x)); return self.norm2(x + self.mlp(x))"


def block(says="", **steps):
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
        says=says,
    )


def sources(*lines, says=""):
    """A function `sources` of these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    return code("def sources(maps, own, token):\n" + body, says=says)


ROW = (
    "b, _, n, _ = maps[0].shape",
    "row = torch.zeros(b, n, dtype=maps[0].dtype)",
    "row[:, token] = 1",
)
GATHERED = 'gathered = einsum(row, weights.mean(dim=1), "b i, b i j -> b j")'


def shift(*lines, says=""):
    return code(
        "def shifted(images, columns):\n" + "".join(f"    {line}\n" for line in lines), says=says
    )


def accuracy(*lines, says=""):
    return code(
        "def accuracy_of(model, images, labels):\n" + "".join(f"    {line}\n" for line in lines),
        says=says,
    )


BANK = {
    "07.1": Bank(
        wrong=[
            swap("(5, 13, 36)", "(5, 12, 36)", says="look at n"),
            swap("(5, 13, 36)", "(5, 36, 13)", says="right sizes in another order"),
            swap("(5, 6, 13, 13)", "(5, 6, 13, 6)", says="look at j"),
            swap("(5, 6, 13, 13)", "(5, 13, 13)", says="needs 4 axes"),
            swap("(5, 6, 13, 13)", "(5, 6, 12, 12)", says="look at i, j"),
            swap("(5, 7)", "(5, 13, 7)", says="needs 2 axes"),
            swap("(5, 7)", "(7,)", says="needs 2 axes"),
            swap("(5, 7)", "(5, 36)", says="look at k"),
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
                says="the biases of its attention, or",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "2 * embed_dim * mlp_dim",
                says="the biases of the feed-forward",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    matrices = 4 * embed_dim**2 + 2 * embed_dim * mlp_dim
                    return num_layers * (matrices + 4 * embed_dim) + 2 * embed_dim
                """,
                says="the biases of the Linears are missing",
            ),
            swap(" + norm\n", "\n", says="the norm after the last block is missing"),
            swap("2 * norm) + norm", "3 * norm)", says="stands once after all blocks"),
            swap("2 * norm)", "norm)", says="two norms, not one"),
            swap("norm = 2 * embed_dim", "norm = embed_dim", says="a norm has a bias"),
            swap("attention = 4", "attention = 3", says="four Linears"),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "embed_dim * mlp_dim + mlp_dim",
                says="two Linears, one widens",
            ),
            swap("num_layers * (", "(", says="one block, not all"),
            swap("attention = 4", "attention = 4 * num_heads", says="share those of width e"),
            swap(
                "attention = 4", "attention = (3 * num_heads + 1)", says="heads together is e x e"
            ),
            swap("norm = 2 * embed_dim", "norm = 2.0 * embed_dim", says="a float, an int"),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
                    return sum(parameter.numel() for parameter in encoder.parameters())
                """,
                says="it calls Encoder",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    layer = nn.TransformerEncoderLayer(embed_dim, num_heads, mlp_dim)
                    block = sum(parameter.numel() for parameter in layer.parameters())
                    return num_layers * block + 2 * embed_dim
                """,
                says="build nothing",
            ),
            code(
                """
                def parameters(num_layers, embed_dim, num_heads, mlp_dim):
                    return 85_056_000
                """,
                says="whatever the sizes",
            ),
            swap(
                "mlp_dim * embed_dim + embed_dim",
                "mlp_dim * embed_dim + mlp_dim",
                says="the second Linear of the feed-forward writes embed_dim numbers,",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "4 * embed_dim * embed_dim + embed_dim",
                says="each of the four Linears of the attention has",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "num_heads * 4 * (embed_dim * embed_dim // num_heads + embed_dim)",
                says="a bias was counted for every head; the four",
            ),
            swap(
                "4 * (embed_dim * embed_dim + embed_dim)",
                "4 * (embed_dim * (embed_dim // num_heads) + embed_dim // num_heads)",
                says="the four Linears are e x e; what they",
            ),
            swap(
                "num_layers * (attention + feed_forward + 2 * norm) + norm",
                "num_layers * (attention + feed_forward) + 2 * norm + norm",
                says="the two norms of a block are counted once",
            ),
            swap(
                "num_layers * (attention + feed_forward + 2 * norm) + norm",
                "num_layers * (attention + feed_forward + 2 * norm) + 2 * norm",
                says="after the last block there is one norm, not",
            ),
            swap(
                "+ mlp_dim * embed_dim + embed_dim",
                "+ mlp_dim * embed_dim",
                says="the bias of the second Linear of the feed-forward",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim +",
                "embed_dim * mlp_dim +",
                says="the bias of the first Linear of the feed-forward",
            ),
            swap(
                "embed_dim * mlp_dim + mlp_dim + mlp_dim * embed_dim + embed_dim",
                "2 * (embed_dim * mlp_dim + embed_dim)",
                says="the first Linear of the feed-forward writes mlp_dim numbers,",
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
            block(pre=POST, says="this is post-norm"),
            block(pre=STEPS["out"], says='these are the steps of order="out"'),
            block(out=STEPS["pre"], says='these are the steps of order="pre"'),
            block(side=STEPS["pre"], says='these are the steps of order="pre"'),
            block(
                side="x = x + attend(self.norm1(x)) + self.mlp(self.norm1(x)); return x",
                says="norm1 stands in both halves",
            ),
            block(side="return x + attend(x) + self.mlp(x)", says="without their norms"),
            block(
                side="return (x + attend(self.norm1(x))) + (x + self.mlp(self.norm2(x)))",
                says="the stream is added twice",
            ),
            block(
                out="return x + self.norm1(attend(x)) + self.norm2(self.mlp(x))",
                says="the feed-forward reads the stream as it came into the block",
            ),
            block(
                pre="x = self.norm1(x); x = x + attend(x); "
                "x = self.norm2(x); return x + self.mlp(x)",
                says="both sums add to a normalised x",
            ),
            block(
                pre="x = attend(self.norm1(x)); return self.mlp(self.norm2(x))",
                says="is not added to the stream",
            ),
            block(
                pre="start = x; x = x + attend(self.norm1(x)); "
                "return start + self.mlp(self.norm2(x))",
                says="residual-from-input",
            ),
            block(
                pre="x = x + self.mlp(self.norm2(x)); return x + attend(self.norm1(x))",
                says="the feed-forward runs first",
            ),
            block(
                out="x = x + self.norm2(self.mlp(x)); return x + self.norm1(attend(x))",
                says="the feed-forward runs first",
            ),
            block(
                pre="x = x + self.attn(self.norm1(x)); return x + self.mlp(self.norm2(x))",
                says="the mask is not handed on",
            ),
            block(
                pre="blocked = None if attn_mask is None else ~attn_mask; "
                "x = x + self.attn(self.norm1(x), attn_mask=blocked); "
                "return x + self.mlp(self.norm2(x))",
                says="the mask is inverted",
            ),
            block(
                pre="x = x + attend(self.norm2(x)); return x + self.mlp(self.norm1(x))",
                says="norm1 and norm2 have changed places",
            ),
            block(
                out="x = x + self.norm1(attend(x)); return x + self.norm1(self.mlp(x))",
                says="norm1 stands in both halves",
            ),
            block(
                pre="x += attend(self.norm1(x)); return x + self.mlp(self.norm2(x))",
                says="x was changed in place",
            ),
            block(out="x = x + self.norm1(attend(x)); x + self.norm2(self.mlp(x))", says="None"),
            swap(
                "nn.LayerNorm(embed_dim)", "nn.LayerNorm(embed_dim, eps=1e-3)", says="another eps"
            ),
            swap(
                "FeedForward(embed_dim, mlp_dim)",
                'FeedForward(embed_dim, mlp_dim, activation="relu")',
                says="it bends with ReLU",
            ),
            swap("self.norm2 = nn.LayerNorm(embed_dim)", "self.norm2 = self.norm1", says="the two"),
            swap("self.mlp", "self.feed_forward", says="keep the names that the card gives"),
            code(
                """
                class Block(EncoderBlock):
                    def __init__(self, embed_dim, num_heads, mlp_dim, order):
                        super().__init__(embed_dim, num_heads, mlp_dim)
                """,
                says="it calls EncoderBlock",
            ),
            swap(
                "return x + gathered + self.mlp(self.norm2(x))",
                "return x + self.mlp(self.norm2(gathered))",
                says="the feed-forward reads what the attention returns, instead of",
            ),
            swap(
                "return x + self.norm2(self.mlp(x))",
                "return x + self.norm2(self.mlp(self.norm2(x)))",
                says="norm2 is used twice, before the feed-forward and behind",
            ),
            swap(
                "x = x + gathered",
                "x = self.norm1(x) + gathered",
                says="the first sum adds to norm1(x), not to the",
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
            code("Healthy = Sick", says="layers-same-init"),
            stack(
                "block = EncoderBlock(embed_dim, num_heads, mlp_dim)",
                "self.layers = nn.ModuleList(block for _ in range(num_layers))",
                says="are one and the same",
            ),
            stack(
                "from copy import deepcopy",
                "block = EncoderBlock(embed_dim, num_heads, mlp_dim)",
                "self.layers = nn.ModuleList(deepcopy(block) for _ in range(num_layers))",
                says="layers-same-init",
            ),
            stack(
                "blocks = [EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)]",
                "for block in blocks:",
                "    block.mlp = blocks[0].mlp",
                "self.layers = nn.ModuleList(blocks)",
                says="layers.0.mlp.fc1.weight and layers.1.mlp.fc1.weight are one",
            ),
            stack(
                "self.layers = [",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers)",
                "]",
                says="a list of Python",
            ),
            stack(
                "self.layers = nn.ModuleList(",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim) for _ in range(num_layers - 1)",
                ")",
                says="layers holds 1 block with num_layers=2",
            ),
            stack(
                "self.layers = nn.ModuleList(",
                "    EncoderBlock(embed_dim, num_heads, mlp_dim, norm_first=False)",
                "    for _ in range(num_layers)",
                ")",
                says="the blocks are post-norm",
            ),
            swap("return self.norm(x)", "return x", says="the last norm is missing"),
            swap("x = layer(x)", "x = self.norm(layer(x))", says="runs after every block, too"),
            swap(
                "x = layer(x)\n        return self.norm(x)",
                "x = self.norm(layer(x))\n        return x",
                says="runs after every block; it belongs",
            ),
            swap(
                "for layer in self.layers:\n            x = layer(x)\n        return self.norm(x)",
                "x = self.norm(x)\n        for layer in self.layers:\n            x = layer(x)\n"
                "        return x",
                says="runs before the blocks",
            ),
            swap(
                "x = layer(x)\n        return self.norm(x)",
                "result = layer(x)\n        return self.norm(result)",
                says="only the last block counts",
            ),
            swap("x = layer(x)", "x = x + layer(x)", says="adds to the stream itself"),
            swap("in self.layers:", "in reversed(self.layers):", says="in the wrong order"),
            swap(
                "    x = layer(x)\n        return",
                "    x = layer(x)\n            break\n        return",
                says="only the first block runs",
            ),
            code(
                """
                class Healthy(Encoder):
                    pass
                """,
                says="it calls Encoder",
            ),
            stack(
                "self.layers = Encoder(num_layers, embed_dim, num_heads, mlp_dim).layers",
                says="it calls Encoder",
            ),
            swap(
                "return self.norm(x)",
                "return self.norm(x) + x",
                says="the stream is added behind the last norm",
            ),
            swap(
                "            x = layer(x)\n",
                "            x = self.norm(x + layer(x))\n",
                says="a block adds to the stream itself, and the",
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
            swap("tokens[:, 0]", "tokens[:, -1]", says="it reads the last token"),
            swap("tokens[:, 0]", "tokens[:, 1]", says="the class token is token 0"),
            swap("tokens[:, 0]", "tokens[0]", says="asked for is"),
            swap("tokens[:, 1:]", "tokens", says="the class token is in the mean"),
            swap("tokens[:, 1:]", "tokens[:, :-1]", says="the last patch is missing"),
            swap("tokens[:, 1:]", "tokens[:, 2:]", says="the first patch is missing"),
            swap(".mean(dim=1)", ".sum(dim=1)", says="the sum, not the mean"),
            swap(".mean(dim=1)", ".amax(dim=1)", says="the largest numbers"),
            swap('== "class"', '!= "class"', says="which is pool='mean'"),
            swap("self.pool ==", '"class" ==', says="which is pool='class'"),
            swap(".mean(dim=1)", ".mean(dim=0)", says="asked for is"),
            swap("self.head(tokens[:, 0])", "tokens[:, 0]", says="asked for is"),
            swap(
                "self.encoder(self.embedding(images))",
                "self.embedding(images)",
                says="before the encoder",
            ),
            swap(
                "self.head(tokens[:, 0])",
                "self.head(tokens[:, 0]).softmax(-1)",
                says="a softmax too many",
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
                says="PatchEmbedding",
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
                says="it calls VisionTransformer",
            ),
            swap(
                "self.head(tokens[:, 1:].mean(dim=1))",
                "self.head(tokens[:, 1:]).max(dim=1).values",
                says="it takes the largest score of all patches, not",
            ),
            swap(
                "tokens[:, 1:].mean(dim=1)",
                "tokens[:, 1:].median(dim=1).values",
                says="it reads the median, not the mean",
            ),
            swap(
                "self.embedding(images)",
                "self.embedding(images)[:, 1:]",
                says="the class token is cut off before the encoder",
            ),
            swap(
                "self.encoder(self.embedding(images))",
                "self.encoder(self.encoder(self.embedding(images)))",
                says="the tokens go through the encoder twice",
            ),
            swap(
                "tokens[:, 1:].mean(dim=1)",
                "(tokens[:, 1:].sum(dim=1) / tokens.shape[1])",
                says="the sum of the patches is divided by the",
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
            swap("reversed(maps)", "maps", says="from the first to the last"),
            swap("own * row + (1 - own) *", "(1 - own) * row + own *", says="are exchanged"),
            swap(
                "own * row + (1 - own) * gathered", "(row + gathered) / 2", says="own is not used"
            ),
            swap("own * row + ", "", says="add own times the row"),
            swap("own * row + (1 - own) * gathered", "gathered", says="without the token's own"),
            swap("(1 - own) *", "", says="not multiplied by 1 - own"),
            swap("own * row", "row", says="the own part is not multiplied by own"),
            swap("own * row + (1 - own) *", "row +", says="own and 1 - own are missing"),
            swap("weights.mean(dim=1)", "weights.sum(dim=1)", says="summed, not averaged"),
            swap("weights.mean(dim=1)", "weights.amax(dim=1)", says="the largest weight"),
            swap("weights.mean(dim=1)", "weights[:, 0]", says="the first head alone"),
            swap(
                "b i, b i j -> b j", "b j, b i j -> b i", says="follows where the token's numbers"
            ),
            sources(
                *ROW,
                "for weights in maps:",
                "    row = own * row + (1 - own) * (weights.mean(dim=1) @ row[..., None])[..., 0]",
                "return row",
                says="follows where the numbers of an input token go",
            ),
            swap("reversed(maps)", "maps[-1:]", says="the last layer alone"),
            swap("reversed(maps)", "maps[:1]", says="the first layer alone"),
            swap("reversed(maps)", "reversed(maps[1:])", says="the first layer is missing"),
            swap("reversed(maps)", "reversed(maps[:-1])", says="the last layer is missing"),
            swap("row[:, token] = 1", "row[:, 0] = 1", says="whatever token was asked for"),
            swap("own * row", "own", says="own is added everywhere"),
            sources(
                *ROW,
                "total = torch.zeros_like(row)",
                "for weights in maps:",
                f"    {GATHERED}",
                "    total = total + own * row + (1 - own) * gathered",
                "return total",
                says="the layers are added",
            ),
            sources(
                *ROW,
                "while maps:",
                "    row = own * row + (1 - own) * (row[:, None] @ maps.pop().mean(dim=1))[:, 0]",
                "return row",
                says="maps is shorter or longer afterwards",
            ),
            swap(", dtype=maps[0].dtype", "", says="expected scalar type"),
            swap("weights.mean(dim=1)", "weights.mean(dim=0)", says="raises"),
            sources(
                *ROW,
                "for weights in maps:",
                "    weights *= 1 - own",
                "for weights in reversed(maps):",
                f"    {GATHERED}",
                "    row = own * row + gathered",
                "return row",
                says="maps was changed in place",
            ),
            sources(
                "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)",
                "path = itself",
                "for weights in maps:",
                "    path = (own * itself + (1 - own) * weights.mean(dim=1)) @ path",
                "return path[:, token]",
                says="two tables (n, n) are multiplied",
            ),
            sources(
                "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)",
                "path = itself",
                "for weights in maps:",
                "    path = (own * itself + (1 - own) * weights.mean(dim=1)) @ path",
                "return path",
                says="one token was asked for",
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
                says="raises IndexError",
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
                says="the row starts as 1 in sample number token",
            ),
            code(
                """
                def sources(maps, own, token):
                    row = maps[-1].mean(1)[:, token]
                    for w in reversed(maps[:-1]):
                        row = own * row + (1 - own) * einsum(row, w.mean(1), 'b i, b i j -> b j')
                    return row
                """,
                says="the own part of the last layer is missing",
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
                says="every layer keeps own of the first row",
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
                says="each layer is asked for the row of the",
            ),
        ],
        right=[
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
            "b, _, n, _ = maps[0].shape => b, _, n, _ = maps[-1].shape": "all layers have the same "
            "tokens",
            "row = torch.zeros(b, n, dtype=maps[0].dtype) => "
            "row = torch.zeros(b, n, dtype=maps[-1].dtype)": "all maps have one dtype",
        },
    ),
    "07.7": Bank(
        wrong=[
            shift("return torch.roll(images, columns, dims=-1)", says="comes back at the other"),
            shift(
                "moved = torch.zeros_like(images)",
                "if columns > 0:",
                "    moved[..., :-columns] = images[..., columns:]",
                "else:",
                "    moved[..., -columns:] = images[..., : images.shape[-1] + columns]",
                "return moved",
                says="it moves to the left",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "height = images.shape[2]",
                "if columns >= 0:",
                "    moved[:, :, columns:] = images[:, :, : max(height - columns, 0)]",
                "else:",
                "    moved[:, :, :columns] = images[:, :, -columns:]",
                "return moved",
                says="it moves down",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "if columns > 0:",
                "    moved[..., columns:] = images[..., :-columns]",
                "else:",
                "    moved[..., :columns] = images[..., -columns:]",
                "return moved",
                says="columns=0",
            ),
            shift(
                "moved = torch.zeros_like(images)",
                "moved[..., columns:] = images[..., : images.shape[-1] - columns]",
                "return moved",
                says="it raises RuntimeError",
            ),
            shift(
                "images[..., columns:] = images[..., : images.shape[-1] - columns].clone()",
                "images[..., :columns] = 0",
                "return images",
                says="images was changed in place",
            ),
            shift(
                "moved = torch.roll(images, columns, dims=-1)",
                "moved[..., :columns] = 0",
                "return moved",
                says="a negative number should move to the left",
            ),
            shift(
                "moved = torch.zeros(images.shape)",
                "width = images.shape[-1]",
                "for column in range(width):",
                "    if 0 <= column - columns < width:",
                "        moved[..., column] = images[..., column - columns]",
                "return moved",
                says="dtype",
            ),
            shift(
                "rolled = torch.roll(images, columns, dims=-1)",
                "images.zero_()",
                "if columns >= 0:",
                "    images[..., columns:] = rolled[..., columns:]",
                "else:",
                "    images[..., :columns] = rolled[..., :columns]",
                "return images",
                says="images was changed in place",
            ),
            shift(
                "places = torch.arange(images.shape[-1]) - columns",
                "return images[..., places.clamp(0, images.shape[-1] - 1)]",
                says="the edge is repeated",
            ),
            swap("    model.eval()\n", "", says="in training mode"),
            swap("torch.zeros_like(images)", "torch.ones_like(images)", says="comes in is 1"),
            swap("model.eval()", "model.train()", says="in training mode"),
            swap("argmax", "argmin", says="the smallest score"),
            swap("== labels", "!= labels", says="the share that is read wrongly"),
            swap(".mean().item()", ".sum().item()", says="the number of right answers"),
            swap(".mean().item()", ".mean().item() * 100", says="a percentage"),
            swap(".mean().item()", "", says="a float is asked for"),
            swap(
                "with torch.no_grad():\n        scores",
                "if True:\n        scores",
                says="gradients",
            ),
            accuracy(
                "from utils.training import accuracy",
                "return accuracy(model, (images, labels))",
                says="it calls accuracy",
            ),
            accuracy(
                "from utils import training",
                "guesses = training.predict(model, images).argmax(dim=-1)",
                "return (guesses == labels).double().mean().item()",
                says="it calls predict",
            ),
            accuracy("return 0.625", says="the same for every input"),
            swap("shifted(digits, 1)", "digits", says="that nobody moved"),
            swap("shifted(digits, 1)", "shifted(digits, -1)", says="moved to the left"),
            swap("shifted(digits, 1)", "shifted(digits.mT, 1).mT", says="moved down"),
            swap("shifted(digits, 2)", "shifted(digits, 1)", says="they were moved by 1"),
            code("one_pixel = 100 * one_pixel", says="a share from 0 to 1"),
            code("two_pixels = 1 - two_pixels", says="read wrongly"),
            code("one_pixel = 0.99 - one_pixel", says="what it loses"),
            code("two_pixels = 0.9", says="too large"),
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
                says="it moves one pixel further to the right than",
            ),
            code(
                """
                def shifted(images, columns):
                    return torch.roll(images, columns)
                """,
                says="torch.roll without dims rolls all numbers in one line,",
            ),
            code(
                """
                def shifted(images, columns):
                    return torch.roll(images, columns, dims=-2)
                """,
                says="the rows are rolled, along H; columns lie along",
            ),
            code(
                """
                def shifted(images, columns):
                    moved = torch.zeros_like(images)
                    moved[..., abs(columns):] = images[..., : images.shape[-1] - abs(columns)]
                    return moved
                """,
                says="a negative number moves to the right as well;",
            ),
            code(
                """
                def accuracy_of(model, images, labels):
                    model.eval()
                    with torch.no_grad():
                        scores = model(images).softmax(-1)
                    return scores[torch.arange(len(labels)), labels].double().mean().item()
                """,
                says="it is the mean chance that the model gives",
            ),
            code(
                """
                def accuracy_of(model, images, labels):
                    model.eval()
                    with torch.no_grad():
                        scores = model(images)
                    return round((scores.argmax(dim=-1) == labels).double().mean().item(), 2)
                """,
                says="the share is rounded",
            ),
        ],
        right=[
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
