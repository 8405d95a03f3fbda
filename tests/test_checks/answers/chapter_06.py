"""Answers to the exercises of chapter 06, right and wrong."""

from exercise_bank import Bank, code, swap

# The layer_norm of the solution, in parts that other answers replace.
CENTRED = "centred = x - x.mean(dim=-1, keepdim=True)"
ROOT = "(variance + eps).sqrt()"
LAYER = "centred / (variance + eps).sqrt() * weight + bias"
RMS = "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight"
RMS_MEAN = "x.square().mean(dim=-1, keepdim=True) + eps"


def fed(line, *, cause=""):
    """The class of 06.2 that makes something else of a chunk."""
    return swap("self.fc2(F.gelu(self.fc1(chunk)))", line, cause=cause)


def chunks(*lines, cause=""):
    """The class of 06.2 with another forward."""
    solution = (
        "chunks = x.split(self.tokens_at_once, dim=1)\n"
        "        return torch.cat([self.fc2(F.gelu(self.fc1(chunk))) for chunk in chunks], dim=1)"
    )
    return swap(solution, ("\n" + " " * 8).join(lines), cause=cause)


def healthy(*lines, cause=""):
    """The class of 06.5 with another forward."""
    body = "\n        ".join(lines)
    return code(f"class Healthy(Buggy):\n    def forward(self, x):\n        {body}", cause=cause)


def measured(line, *, cause=""):
    """The experiment of 06.6 with another step."""
    return swap("x = x + F.layer_norm(x, (256,)) @ matrix", line, cause=cause)


BANK = {
    "06.1": Bank(
        wrong=[
            swap("(3, 7, 24)", "(3, 7, 10)", cause="look-at-axes m"),
            swap("(3, 7, 24)", "(3, 24, 7)", cause="sizes-in-another-order"),
            swap("(24, 10)", "(10, 24)", cause="sizes-in-another-order"),
            swap("(24, 10)", "(7, 24, 10)", cause="number-of-axes"),
            swap("(10,)", "(7, 10)", cause="number-of-axes e"),
            swap("(10,)", "(7,)", cause="look-at-axes e"),
            swap("(10,)", "10", cause="no-shape"),
        ],
        right=[
            swap("(3, 7, 24)", "torch.Size([3, 7, 24])"),
            swap("(24, 10)", "[24, 10]"),
            swap("(10,)", "nn.LayerNorm(10).weight.shape"),
        ],
    ),
    "06.2": Bank(
        wrong=[
            fed("self.fc2(self.fc1(chunk))", cause="bend-missing"),
            fed("self.fc2(F.relu(self.fc1(chunk)))", cause="bends-with ReLU"),
            fed("self.fc2(F.silu(self.fc1(chunk)))", cause="bends-with SiLU"),
            fed("self.fc2(F.gelu(self.fc1(chunk), approximate='tanh'))", cause="gelu-with-tanh"),
            fed("F.gelu(self.fc2(self.fc1(chunk)))", cause="bends-after-fc2"),
            fed("chunk + self.fc2(F.gelu(self.fc1(chunk)))", cause="feed-forward-adds-x"),
            fed("self.fc2(F.gelu(self.fc1(chunk.detach())))", cause="no-gradient x"),
            fed("self.fc2(F.gelu(self.fc1(chunk.float()).double()))", cause="raises RuntimeError"),
            fed("chunk", cause="returns-x-as-it-came"),
            chunks("return self.fc2(F.gelu(self.fc1(x)))", cause="all-tokens-at-once"),
            swap("x.split(self", "x.chunk(self", cause="as-many-pieces"),
            chunks(
                "chunks = x.split(self.tokens_at_once)",
                "return torch.cat([self.fc2(F.gelu(self.fc1(chunk))) for chunk in chunks])",
                cause="cut-along-batch",
            ),
            chunks(
                "chunks = []",
                "for start in range(0, x.shape[1] - self.tokens_at_once, self.tokens_at_once):",
                "    chunk = x[:, start : start + self.tokens_at_once]",
                "    chunks.append(self.fc2(F.gelu(self.fc1(chunk))))",
                "return torch.cat(chunks, dim=1)",
                cause="last-piece-missing",
            ),
            chunks(
                "for chunk in x.split(self.tokens_at_once, dim=1):",
                "    result = self.fc2(F.gelu(self.fc1(chunk)))",
                "return result",
                cause="only-last-piece",
            ),
            chunks(
                "for chunk in x.split(self.tokens_at_once, dim=1):",
                "    return self.fc2(F.gelu(self.fc1(chunk)))",
                cause="only-first-piece",
            ),
            chunks(
                "inner = F.gelu(self.fc1(x))",
                "chunks = inner.split(self.tokens_at_once, dim=1)",
                "return torch.cat([self.fc2(chunk) for chunk in chunks], dim=1)",
                cause="all-tokens-at-once",
            ),
            chunks(
                "for start in range(0, x.shape[1], self.tokens_at_once):",
                "    chunk = slice(start, start + self.tokens_at_once)",
                "    x[:, chunk] = self.fc2(F.gelu(self.fc1(x[:, chunk].clone())))",
                "return x",
                cause="changed-in-place x",
            ),
            swap(", dim=1)\n", ")\n", cause="cut-along-batch"),
            swap("mlp_dim)\n", "embed_dim)\n", cause="shape-differs"),
            swap("embed_dim, mlp_dim)\n", "embed_dim, 4 * embed_dim)\n", cause="shape-differs"),
            swap("self.fc1", "self.linear1", cause="parameter-missing"),
            swap("self.fc1 =", "fc1 =", cause="parameter-without-self fc1"),
            swap(
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)",
                "self.fc2 = nn.Linear(mlp_dim, embed_dim, bias=False)",
                cause="bias-missing",
            ),
            swap(
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)",
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)\n"
                "        self.norm = nn.LayerNorm(embed_dim)",
                cause="parameter-too-many",
            ),
            code(
                """
                class FeedForward(encoder.FeedForward):
                    def __init__(self, embed_dim, mlp_dim, tokens_at_once):
                        super().__init__(embed_dim, mlp_dim)
                        self.tokens_at_once = tokens_at_once

                    def forward(self, x):
                        chunks = x.split(self.tokens_at_once, dim=1)
                        return torch.cat([super(FeedForward, self).forward(p) for p in chunks], 1)
                """,
                cause="calls-shortcut FeedForward",
            ),
        ],
        right=[
            fed(
                "self.fc2((t := self.fc1(chunk)) * (1 + torch.erf(t / torch.tensor(2.0).sqrt()))"
                " / 2)",
            ),
            code(
                """
                class FeedForward(nn.Module):
                    def __init__(self, embed_dim, mlp_dim, tokens_at_once):
                        super().__init__()
                        self.size = tokens_at_once
                        self.fc1 = nn.Linear(embed_dim, mlp_dim)
                        self.act = nn.GELU()
                        self.fc2 = nn.Linear(mlp_dim, embed_dim)

                    def forward(self, x):
                        result = torch.empty_like(x)
                        for start in range(0, x.shape[1], self.size):
                            here = slice(start, start + self.size)
                            result[:, here] = self.fc2(self.act(self.fc1(x[:, here])))
                        return result
                """
            ),
            code(
                """
                class FeedForward(nn.Module):
                    def __init__(self, embed_dim, mlp_dim, tokens_at_once):
                        super().__init__()
                        self.fc2 = nn.LazyLinear(embed_dim)
                        self.fc1 = nn.Linear(embed_dim, mlp_dim)
                        self.fc2(torch.zeros(1, mlp_dim))

                    def one(self, token):
                        inner = token @ self.fc1.weight.T + self.fc1.bias
                        inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
                        return inner @ self.fc2.weight.T + self.fc2.bias

                    def forward(self, tokens):
                        return torch.stack([self.one(t) for t in tokens.unbind(1)], dim=1)
                """
            ),
        ],
    ),
    "06.3": Bank(
        wrong=[
            swap(
                '"weight": linear.weight[:, :, None], ',
                '"weight": conv.weight, ',
                cause="not-those-of-linear weight",
            ),
            swap('"bias": linear.bias', '"bias": conv.bias', cause="not-those-of-linear bias"),
            swap(
                '    conv.load_state_dict({"weight": linear.weight[:, :, None], '
                '"bias": linear.bias})\n',
                "",
                cause="not-those-of-linear weight bias",
            ),
            swap("linear.weight[:, :, None]", "linear.weight", cause="raises RuntimeError"),
            swap("return conv\n", "return linear\n", cause="conv-is-asked Linear"),
            swap(
                "kernel_size=1)\n",
                "kernel_size=3, padding=1)\n    return conv\n",
                cause="window-is-wider",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.out_features, linear.in_features, 1)
                    return conv
                """,
                cause="inputs-and-outputs-exchanged",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1, bias=False)
                    conv.weight.data = linear.weight.data[:, :, None].clone()
                    return conv
                """,
                cause="conv-has-no bias",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight = nn.Parameter(linear.weight[:, :, None])
                    conv.bias = nn.Parameter(linear.bias.clone())
                    return conv
                """,
                cause="numbers-are-shared",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight.data = linear.weight.data[:, :, None].clone()
                    conv.bias = linear.bias
                    return conv
                """,
                cause="numbers-are-shared",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
                    return conv.requires_grad_(False)
                """,
                cause="conv-cannot-learn",
            ),
            code(
                """
                def as_convolution(linear):
                    def conv(x):
                        return linear(x.mT).mT

                    return conv
                """,
                cause="conv-is-asked",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
                    nn.init.zeros_(linear.bias)
                    return conv
                """,
                cause="linear-was-changed bias",
            ),
            code(
                """
                def as_convolution(linear):
                    weight = linear.weight.detach().flatten()
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    weight = weight.view(linear.in_features, -1).T.contiguous()
                    conv.load_state_dict({"weight": weight[:, :, None], "bias": linear.bias})
                    return conv
                """,
                cause="not-those-of-linear weight",
            ),
            swap("= 5", "= 3", cause="after-one-convolution"),
            swap("= 5", "= 1", cause="one-wide-changes-one"),
            swap("= 5", "= 37", cause="only-attention-reaches-all"),
            swap("= 5", "= [7, 8, 9, 10, 11]", cause="number-is-asked"),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight = nn.Parameter(linear.weight.clone())
                    conv.bias = nn.Parameter(linear.bias.clone())
                    return conv
                """,
                cause="window-axis-missing",
            ),
            swap("= 5", "= 7", cause="three-to-each-side"),
            swap("= 5", "= 6", cause="windows-overlap"),
            swap("= 5", "= 2", cause="both-sides-and-itself"),
            swap("= 5", "= 9", cause="windows-follow"),
        ],
        right=[
            code(
                """
                def as_convolution(linear):
                    e, m = linear.in_features, linear.out_features
                    conv = nn.Conv1d(in_channels=e, out_channels=m, kernel_size=1)
                    with torch.no_grad():
                        conv.weight.copy_(linear.weight.unsqueeze(-1))
                        conv.bias.copy_(linear.bias)
                    return conv
                """
            ),
            code(
                """
                from copy import deepcopy

                def as_convolution(layer):
                    m, e = layer.weight.shape
                    conv = nn.Conv1d(e, m, 1)
                    conv.weight = nn.Parameter(layer.weight.detach().clone().view(m, e, 1))
                    conv.bias = deepcopy(layer.bias)
                    return conv


                changed_tokens = torch.tensor(5)
                """
            ),
        ],
    ),
    "06.4": Bank(
        wrong=[
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.var(dim=-1, keepdim=True)",
                cause="divides-by-e-minus-one",
            ),
            swap(ROOT, "(variance.sqrt() + eps)", cause="eps-outside-root"),
            swap(
                LAYER,
                "centred / (x.std(dim=-1, keepdim=True) + eps) * weight + bias",
                cause="e-minus-one-and-eps-outside",
            ),
            swap(ROOT, "variance.sqrt()", cause="eps-missing"),
            swap(ROOT, "(variance + 1e-5).sqrt()", cause="eps-fixed"),
            swap(ROOT, "(variance + eps)", cause="divides-by-variance"),
            swap(
                LAYER,
                "(x - x.mean(-2, keepdim=True)) / (x.var(-2, correction=0, keepdim=True) + eps)"
                ".sqrt() * weight + bias",
                cause="norms-over-tokens",
            ),
            swap(
                LAYER,
                "(x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias",
                cause="norms-over-everything",
            ),
            swap(LAYER, "x / (variance + eps).sqrt() * weight + bias", cause="mean-not-subtracted"),
            swap(LAYER, "centred / (variance + eps).sqrt()", cause="weight-and-bias-not-used"),
            swap(LAYER, "centred / (variance + eps).sqrt() * weight", cause="bias-not-used"),
            swap(LAYER, "centred / (variance + eps).sqrt() + bias", cause="weight-not-used"),
            swap(
                LAYER,
                "(centred / (variance + eps).sqrt() + bias) * weight",
                cause="bias-before-weight",
            ),
            swap(
                CENTRED,
                "x -= x.mean(dim=-1, keepdim=True)\n    centred = x",
                cause="changed-in-place",
            ),
            swap(
                LAYER,
                "centred / (variance.sqrt() ** 2 + eps).sqrt() * weight + bias",
                cause="root-of-zero",
            ),
            swap(
                "variance = centred.square()",
                "variance = centred.detach().square()",
                cause="part-of-graph-cut",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    return F.layer_norm(x, weight.shape, weight, bias, eps)
                """,
                cause="calls-shortcut layer_norm",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    norm = nn.LayerNorm(x.shape[-1], eps, elementwise_affine=False)
                    return norm(x) * weight + bias
                """,
                cause="calls-shortcut layer_norm",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    centred = x - x.mean(2, True)
                    return centred / (centred**2).mean(2, True).add(eps).sqrt() * weight + bias
                """,
                cause="norms-over-tokens",
            ),
            swap(
                RMS_MEAN,
                "x.square().mean(dim=-1) + eps",
                cause="raises RuntimeError",
            ),
            swap(
                RMS,
                "(x - x.mean(-1, keepdim=True)) / "
                "(x.var(-1, correction=0, keepdim=True) + eps).sqrt() * weight",
                cause="rms-subtracts-mean",
            ),
            swap(
                RMS,
                "x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * weight",
                cause="rms-of-spread",
            ),
            swap(
                RMS_MEAN,
                "x.square().sum(dim=-1, keepdim=True) + eps",
                cause="rms-of-sum",
            ),
            swap(
                RMS,
                "x / (x.square().mean(dim=-1, keepdim=True).sqrt() + eps) * weight",
                cause="eps-outside-root",
            ),
            swap(RMS, RMS.removesuffix(" * weight"), cause="weight-not-used"),
            swap(
                RMS_MEAN, "x.square().mean(dim=-2, keepdim=True) + eps", cause="norms-over-tokens"
            ),
            swap(RMS_MEAN, "x.square().mean() + eps", cause="norms-over-everything"),
            swap(
                RMS,
                "x / (x.square().mean(dim=-1, keepdim=True) + eps) * weight",
                cause="rms-without-root",
            ),
            swap(RMS, "F.rms_norm(x, weight.shape, weight, eps)", cause="calls-shortcut rms_norm"),
            swap(RMS, "x", cause="returns-argument x"),
            swap(
                "centred / (variance + eps).sqrt() * weight + bias",
                "centred / (variance + eps**2).sqrt() * weight + bias",
                cause="eps-squared",
            ),
            swap(
                "x - x.mean(dim=-1, keepdim=True)",
                "x - x.mean()",
                cause="mean-of-everything-in-both",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.square().mean(dim=-1, keepdim=True)",
                cause="squares-of-x",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "centred.abs().mean(dim=-1, keepdim=True)",
                cause="sizes-for-squares",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "centred.square().sum(dim=-1, keepdim=True)",
                cause="squares-summed",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.std(dim=-1, keepdim=True)",
                cause="spread-under-root-minus-one",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.mean(dim=-1, keepdim=True).square() + eps).sqrt() * weight",
                cause="square-of-mean",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.norm(dim=-1, keepdim=True) + eps) * weight",
                cause="rms-of-length",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x * (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                cause="multiplies-by-root",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.square().mean(dim=-1, keepdim=True)).sqrt() + eps * weight",
                cause="eps-is-added-to-result",
            ),
        ],
        right=[
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
                    return torch.addcmul(bias, x - mean, weight / torch.sqrt(variance + eps))
                """
            ),
            code(
                """
                def layer_norm(tokens, scale, shift, small):
                    width = tokens.shape[-1]
                    mean = tokens.sum(-1)[..., None] / width
                    square = (tokens**2).sum(-1)[..., None] / width
                    return scale * (tokens - mean) * (square - mean**2 + small) ** -0.5 + shift


                def rms_norm(x, weight, eps):
                    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
                """
            ),
            code(
                """
                def rms_norm(x, weight, eps):
                    mean_square = torch.linalg.vector_norm(x, dim=-1) ** 2 / len(weight)
                    root = (mean_square + eps)[..., None] ** 0.5
                    return torch.einsum("...e,e->...e", x / root, weight)
                """
            ),
        ],
    ),
    "06.5": Bank(
        wrong=[
            healthy("return super().forward(x)", cause="block-is-sick"),
            healthy(
                "x = self.norm1(x)",
                "x = x + self.attn(x)",
                "x = self.norm2(x)",
                "return x + self.mlp(x)",
                cause="both-sums-from-norm",
            ),
            healthy(
                "x = self.norm1(x + self.attn(x))",
                "return self.norm2(x + self.mlp(x))",
                cause="block-is-post-norm",
            ),
            healthy(
                "x = x + self.attn(self.norm1(x))",
                "return self.norm2(x + self.mlp(x))",
                cause="second-sum-normalized",
            ),
            swap("self.mlp(self.norm2(x))", "self.mlp(x)", cause="feed-forward-not-normed"),
            swap("self.norm2(x)", "self.norm1(x)", cause="feed-forward-reads-norm1"),
            swap("x + self.mlp", "self.mlp", cause="feed-forward-not-added"),
            swap("x = x + self.attn", "x = self.attn", cause="attention-not-added"),
            healthy(
                "return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))",
                cause="feed-forward-reads-start",
            ),
            healthy(
                "after = x + self.attn(self.norm1(x))",
                "return x + self.mlp(self.norm2(after))",
                cause="added-to-the-start",
            ),
            healthy(
                "x = x + self.norm1(self.attn(x))",
                "return x + self.norm2(self.mlp(x))",
                cause="norm-behind-the-part",
            ),
            healthy(
                "x = x + self.mlp(self.norm2(x))",
                "return x + self.attn(self.norm1(x))",
                cause="feed-forward-runs-first",
            ),
            swap("x = x + self.attn", "x += self.attn", cause="changed-in-place x"),
            healthy(
                "x = x + self.attn(self.norm1(x.detach()))",
                "return x + self.mlp(self.norm2(x))",
                cause="part-of-graph-cut",
            ),
            code(
                """
                class Healthy(encoder.EncoderBlock):
                    pass
                """,
                cause="calls-shortcut EncoderBlock",
            ),
            code("Healthy = Buggy", cause="block-is-sick"),
            code("Healthy = Buggy(48, 4, 192)", cause="class-is-asked"),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm1(x))\n"
                "        x += self.mlp(self.norm2(x))\n"
                "        return self.norm2(x)",
                cause="normalized-at-the-end",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "return x + self.mlp(self.norm2(self.attn(self.norm1(x))))",
                cause="attention-lost",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "y = self.attn(self.norm1(x))\n        return x + y + self.mlp(self.norm2(y))",
                cause="feeds-on-attention-alone",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm2(x))\n        return x + self.mlp(self.norm1(x))",
                cause="norms-changed-places",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(x)\n        return x + self.mlp(x)",
                cause="no-norm-at-all",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.norm1(x) + self.attn(self.norm1(x))\n"
                "        return x + self.mlp(self.norm2(x))",
                cause="norm-added-as-well",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = self.norm1(x)\n"
                "        x = x + self.attn(x)\n"
                "        return x + self.mlp(self.norm2(x))",
                cause="first-sum-from-norm",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm1(x))\n        return 2 * x + self.mlp(self.norm2(x))",
                cause="stream-added-twice",
            ),
        ],
        right=[
            healthy(
                "read = self.norm1(x)",
                "x = x + self.attn(read)",
                "read = self.norm2(x)",
                "x = self.mlp(read) + x",
                "return x",
            ),
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads, mlp_dim):
                        super().__init__()
                        self.attn = MultiHeadAttention(embed_dim, num_heads)
                        self.mlp = encoder.FeedForward(embed_dim, mlp_dim)
                        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)

                    def forward(self, stream):
                        for part, norm in ((self.attn, self.norm1), (self.mlp, self.norm2)):
                            stream = stream + part(norm(stream))
                        return stream
                """
            ),
        ],
    ),
    "06.6": Bank(
        wrong=[
            measured("x = x + x @ matrix", cause="nothing-normalized"),
            measured("x = F.layer_norm(x + x @ matrix, (256,))", cause="sum-normalized"),
            measured("x = F.layer_norm(x, (256,)) @ matrix", cause="stream-replaced"),
            measured("x = x @ matrix", cause="stream-replaced-unnormed"),
            measured(
                "x = F.layer_norm(x, (256,))\n        x = x + x @ matrix",
                cause="normalized-stream-added",
            ),
            measured("x = x + F.layer_norm(x @ matrix, (256,))", cause="gain-without-effect"),
            swap("* gain / 256**0.5", "* gain", cause="matrix-not-divided"),
            swap("256**0.5", "256", cause="matrix-divided-by-256"),
            swap(" * gain / 256**0.5", " / 256**0.5", cause="gain-without-effect"),
            swap("x.std()", "x.var()", cause="variance-not-spread"),
            swap("range(depth)", "range(depth + 1)", cause="one-layer-too-many"),
            swap("range(depth)", "range(1, depth)", cause="one-layer-too-few"),
            swap("return x.std().item()", "return x.std(dim=-1)", cause="measure-is-no-number"),
            code(
                """
                def measure(depth, gain):
                    generator = torch.Generator().manual_seed(0)
                    x = torch.randn(64, 256, generator=generator)
                    matrix = torch.randn(256, 256, generator=generator) * gain / 16
                    for _ in range(depth):
                        x = x + F.layer_norm(x, (256,)) @ matrix
                    return x.std().item()
                """,
                cause="one-matrix-for-all",
            ),
            code(
                """
                def measure(depth, gain):
                    return (1 + depth * gain**2) ** 0.5
                """,
                cause="nothing-measured",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5", "1 + depth * gain**2", cause="variance-not-spread"
            ),
            swap("(1 + depth * gain**2)", "(1 + depth * gain)", cause="gain-needs-square"),
            swap("(1 + depth * gain**2)", "(depth * gain**2)", cause="start-missing"),
            swap("(1 + depth * gain**2) ** 0.5", "1 + depth * gain", cause="spreads-added"),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** (depth / 2)",
                cause="growth-without-norm",
            ),
            swap("(1 + depth * gain**2) ** 0.5", "measure(depth, gain)", cause="growth-draws"),
            swap(
                "* gain / 256**0.5",
                "* (gain / 256)**0.5",
                cause="root-of-gain",
            ),
            swap(
                "x = x + F.layer_norm(x, (256,)) @ matrix",
                "x = F.layer_norm(x, (256,)) + x @ matrix",
                cause="normalized-stream-and-raw-matrix",
            ),
            swap(
                "torch.randn(64, 256, generator=generator)",
                "torch.rand(64, 256, generator=generator)",
                cause="tokens-between-0-and-1",
            ),
            swap(
                "matrix = torch.randn(256, 256, generator=generator)",
                "matrix = torch.rand(256, 256, generator=generator)",
                cause="matrix-between-0-and-1",
            ),
            swap("* gain / 256**0.5", "* gain**2 / 256**0.5", cause="square-of-gain"),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** 0.5",
                cause="depth-without-effect",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain) ** depth",
                cause="spreads-multiplied",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "1 + gain * depth**0.5",
                cause="spreads-added-by-root",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** depth",
                cause="variance-without-norm",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "gain * (1 + depth) ** 0.5",
                cause="start-times-gain",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(depth + gain**2) ** 0.5",
                cause="depth-for-the-start",
            ),
        ],
        right=[
            code(
                """
                def measure(depth, gain):
                    torch.manual_seed(3)
                    x = torch.randn(64, 256)
                    for _ in range(depth):
                        part = nn.Linear(256, 256, bias=False)
                        nn.init.normal_(part.weight, std=gain / 16)
                        x = x + part(nn.LayerNorm(256)(x))
                    return x.detach().std()
                """
            ),
            code(
                """
                def measure(depth, gain):
                    x = torch.normal(0.0, 1.0, (64, 256), dtype=torch.float64)
                    for matrix in torch.randn(depth, 256, 256, dtype=torch.float64) / 16:
                        normed = (x - x.mean(-1, True)) / x.std(-1, keepdim=True)
                        x = x + gain * normed @ matrix
                    return x.square().mean().sqrt().item()


                def growth(depth, gain):
                    variance = 1
                    for _ in range(depth):
                        variance += gain**2
                    return variance**0.5
                """
            ),
        ],
        equivalent={
            "generator = torch.Generator().manual_seed(0) => ...": "other random numbers, or "
            "unseeded ones: the same spread within the margin",
            "x = torch.randn(64, 256, generator=generator) => x = torch.randn(64, 256)": "unseeded",
            "x = torch.randn(64, 256, generator=generator) => "
            "x = torch.randn(65, 256, generator=generator)": "one token more has the same spread",
            "x = torch.randn(64, 256, generator=generator) => "
            "x = torch.randn(63, 256, generator=generator)": "one token less has the same spread",
            "x = x + F.layer_norm(x, (256,)) @ matrix => "
            "x = (x) - (F.layer_norm(x, (256,)) @ matrix)": "a random matrix and its negative are "
            "equally likely",
            "matrix = torch.randn(256, 256, generator=generator) * gain / 256**0.5 => "
            "matrix = torch.randn(256, 256) * gain / 256**0.5": "unseeded",
            "matrix = torch.randn(256, 256, generator=generator) * gain / 256**0.5 => "
            "matrix = torch.randn(256, 256, generator=generator) * gain / 257**0.5": "0.2 percent",
            "matrix = torch.randn(256, 256, generator=generator) * gain / 256**0.5 => "
            "matrix = torch.randn(256, 256, generator=generator) * gain / 255**0.5": "0.2 percent",
            "return x.std().item() => return (x.std())": "a tensor of one number",
        },
    ),
}
