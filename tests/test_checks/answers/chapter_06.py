"""Answers to the exercises of chapter 06, right and wrong."""

from exercise_bank import Bank, code, swap

# The layer_norm of the solution, in pieces that other answers exchange.
CENTRED = "centred = x - x.mean(dim=-1, keepdim=True)"
ROOT = "(variance + eps).sqrt()"
LAYER = "centred / (variance + eps).sqrt() * weight + bias"
RMS = "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight"
RMS_MEAN = "x.square().mean(dim=-1, keepdim=True) + eps"


def fed(line, *, says=""):
    """The class of 06.2 that makes something else of a piece."""
    return swap("self.fc2(F.gelu(self.fc1(piece)))", line, says=says)


def pieces(*lines, says=""):
    """The class of 06.2 with another forward."""
    solution = (
        "pieces = x.split(self.tokens_at_once, dim=1)\n"
        "        return torch.cat([self.fc2(F.gelu(self.fc1(piece))) for piece in pieces], dim=1)"
    )
    return swap(solution, ("\n" + " " * 8).join(lines), says=says)


def healthy(*lines, says=""):
    """The class of 06.5 with another forward."""
    body = "\n        ".join(lines)
    return code(f"class Healthy(Sick):\n    def forward(self, x):\n        {body}", says=says)


def measured(line, *, says=""):
    """The experiment of 06.6 with another step."""
    return swap("x = x + F.layer_norm(x, (256,)) @ matrix", line, says=says)


BANK = {
    "06.1": Bank(
        wrong=[
            swap("(3, 7, 24)", "(3, 7, 10)", says="look at m"),
            swap("(3, 7, 24)", "(3, 24, 7)", says="right sizes in another order"),
            swap("(24, 10)", "(10, 24)", says="right sizes in another order"),
            swap("(24, 10)", "(7, 24, 10)", says="needs 2 axes"),
            swap("(10,)", "(7, 10)", says="needs 1 axis, e, and not 2"),
            swap("(10,)", "(7,)", says="look at e"),
            swap("(10,)", "10", says="a tuple of whole numbers"),
        ],
        right=[
            swap("(3, 7, 24)", "torch.Size([3, 7, 24])"),
            swap("(24, 10)", "[24, 10]"),
            swap("(10,)", "nn.LayerNorm(10).weight.shape"),
        ],
    ),
    "06.2": Bank(
        wrong=[
            fed("self.fc2(self.fc1(piece))", says="two Linears are one"),
            fed("self.fc2(F.relu(self.fc1(piece)))", says="bends with ReLU"),
            fed("self.fc2(F.silu(self.fc1(piece)))", says="bends with SiLU"),
            fed("self.fc2(F.gelu(self.fc1(piece), approximate='tanh'))", says="only comes close"),
            fed("F.gelu(self.fc2(self.fc1(piece)))", says="bends after fc2"),
            fed("piece + self.fc2(F.gelu(self.fc1(piece)))", says="it adds x"),
            fed("self.fc2(F.gelu(self.fc1(piece.detach())))", says="no gradient reaches x"),
            fed("self.fc2(F.gelu(self.fc1(piece.float()).double()))", says="raises RuntimeError"),
            fed("piece", says="it returns x as it came"),
            pieces("return self.fc2(F.gelu(self.fc1(x)))", says="all tokens go through at once"),
            swap("x.split(self", "x.chunk(self", says="taken for the number of pieces"),
            pieces(
                "pieces = x.split(self.tokens_at_once)",
                "return torch.cat([self.fc2(F.gelu(self.fc1(piece))) for piece in pieces])",
                says="the cut runs along the batch",
            ),
            pieces(
                "pieces = []",
                "for start in range(0, x.shape[1] - self.tokens_at_once, self.tokens_at_once):",
                "    piece = x[:, start : start + self.tokens_at_once]",
                "    pieces.append(self.fc2(F.gelu(self.fc1(piece))))",
                "return torch.cat(pieces, dim=1)",
                says="the last piece may be shorter",
            ),
            pieces(
                "for piece in x.split(self.tokens_at_once, dim=1):",
                "    result = self.fc2(F.gelu(self.fc1(piece)))",
                "return result",
                says="only the last piece comes back",
            ),
            pieces(
                "for piece in x.split(self.tokens_at_once, dim=1):",
                "    return self.fc2(F.gelu(self.fc1(piece)))",
                says="only the first piece comes back",
            ),
            pieces(
                "inner = F.gelu(self.fc1(x))",
                "pieces = inner.split(self.tokens_at_once, dim=1)",
                "return torch.cat([self.fc2(piece) for piece in pieces], dim=1)",
                says="all tokens go through at once",
            ),
            pieces(
                "for start in range(0, x.shape[1], self.tokens_at_once):",
                "    piece = slice(start, start + self.tokens_at_once)",
                "    x[:, piece] = self.fc2(F.gelu(self.fc1(x[:, piece].clone())))",
                "return x",
                says="x was changed in place",
            ),
            swap(", dim=1)\n", ")\n", says="the cut runs along the batch"),
            swap("mlp_dim)\n", "embed_dim)\n", says="fc1.weight has shape"),
            swap("embed_dim, mlp_dim)\n", "embed_dim, 4 * embed_dim)\n", says="has shape"),
            swap("self.fc1", "self.linear1", says="has no fc1.weight"),
            swap("self.fc1 =", "fc1 =", says="write self.fc1"),
            swap(
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)",
                "self.fc2 = nn.Linear(mlp_dim, embed_dim, bias=False)",
                says="built without a bias",
            ),
            swap(
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)",
                "self.fc2 = nn.Linear(mlp_dim, embed_dim)\n"
                "        self.norm = nn.LayerNorm(embed_dim)",
                says="which no step of the exercise needs",
            ),
            code(
                """
                class FeedForward(encoder.FeedForward):
                    def __init__(self, embed_dim, mlp_dim, tokens_at_once):
                        super().__init__(embed_dim, mlp_dim)
                        self.tokens_at_once = tokens_at_once

                    def forward(self, x):
                        pieces = x.split(self.tokens_at_once, dim=1)
                        return torch.cat([super(FeedForward, self).forward(p) for p in pieces], 1)
                """,
                says="it calls FeedForward",
            ),
        ],
        right=[
            fed(
                "self.fc2((t := self.fc1(piece)) * (1 + torch.erf(t / torch.tensor(2.0).sqrt()))"
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
            swap('"weight": linear.weight[:, :, None], ', '"weight": conv.weight, ', says="weight"),
            swap('"bias": linear.bias', '"bias": conv.bias', says="its bias is not taken over"),
            swap(
                '    conv.load_state_dict({"weight": linear.weight[:, :, None], '
                '"bias": linear.bias})\n',
                "",
                says="its weight and bias is not taken over",
            ),
            swap("linear.weight[:, :, None]", "linear.weight", says="raises RuntimeError"),
            swap("return conv\n", "return linear\n", says="returns a Linear"),
            swap(
                "kernel_size=1)\n",
                "kernel_size=3, padding=1)\n    return conv\n",
                says="a window one token wide",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.out_features, linear.in_features, 1)
                    return conv
                """,
                says="outputs, inputs",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1, bias=False)
                    conv.weight.data = linear.weight.data[:, :, None].clone()
                    return conv
                """,
                says="has no bias",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight = nn.Parameter(linear.weight[:, :, None])
                    conv.bias = nn.Parameter(linear.bias.clone())
                    return conv
                """,
                says="share their numbers",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight.data = linear.weight.data[:, :, None].clone()
                    conv.bias = linear.bias
                    return conv
                """,
                says="share their numbers",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
                    return conv.requires_grad_(False)
                """,
                says="cannot learn",
            ),
            code(
                """
                def as_convolution(linear):
                    def conv(x):
                        return linear(x.mT).mT

                    return conv
                """,
                says="an nn.Conv1d is asked for",
            ),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
                    nn.init.zeros_(linear.bias)
                    return conv
                """,
                says="the bias of the Linear was changed",
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
                says="its weight is not taken over",
            ),
            swap("= 5", "= 3", says="the second carries it one token further"),
            swap("= 5", "= 1", says="a window of three sees"),
            swap("= 5", "= 37", says="only attention reaches every token"),
            swap("= 5", "= [7, 8, 9, 10, 11]", says="is a number"),
            code(
                """
                def as_convolution(linear):
                    conv = nn.Conv1d(linear.in_features, linear.out_features, 1)
                    conv.weight = nn.Parameter(linear.weight.clone())
                    conv.bias = nn.Parameter(linear.bias.clone())
                    return conv
                """,
                says="the axis of the window is missing, weight[",
            ),
            swap("= 5", "= 7", says="a window of three reaches one token to each"),
            swap("= 5", "= 6", says="two windows of three overlap in the middle"),
            swap("= 5", "= 2", says="count to both sides, and token 9 itself"),
            swap("= 5", "= 9", says="two windows of three, one after the other, reach"),
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
                says="the variance divides by e - 1, and by e it should",
            ),
            swap(ROOT, "(variance.sqrt() + eps)", says="eps is added outside the root"),
            swap(
                LAYER,
                "centred / (x.std(dim=-1, keepdim=True) + eps) * weight + bias",
                says="divides by e - 1, and eps is added outside",
            ),
            swap(ROOT, "variance.sqrt()", says="eps is missing"),
            swap(ROOT, "(variance + 1e-5).sqrt()", says="eps is 1e-5, whatever"),
            swap(ROOT, "(variance + eps)", says="divides by the variance"),
            swap(
                LAYER,
                "(x - x.mean(-2, keepdim=True)) / (x.var(-2, correction=0, keepdim=True) + eps)"
                ".sqrt() * weight + bias",
                says="over the tokens",
            ),
            swap(
                LAYER,
                "(x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias",
                says="the whole tensor at once",
            ),
            swap(LAYER, "x / (variance + eps).sqrt() * weight + bias", says="mean is not subtract"),
            swap(LAYER, "centred / (variance + eps).sqrt()", says="weight and bias are not used"),
            swap(LAYER, "centred / (variance + eps).sqrt() * weight", says="bias is not used"),
            swap(LAYER, "centred / (variance + eps).sqrt() + bias", says="the weight is not used"),
            swap(
                LAYER,
                "(centred / (variance + eps).sqrt() + bias) * weight",
                says="bias is added before the weight",
            ),
            swap(CENTRED, "x -= x.mean(dim=-1, keepdim=True)\n    centred = x", says="in place"),
            swap(
                LAYER,
                "centred / (variance.sqrt() ** 2 + eps).sqrt() * weight + bias",
                says="the root of 0 has no slope",
            ),
            swap(
                "variance = centred.square()",
                "variance = centred.detach().square()",
                says="the gradient of x is not",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    return F.layer_norm(x, weight.shape, weight, bias, eps)
                """,
                says="it calls layer_norm",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    norm = nn.LayerNorm(x.shape[-1], eps, elementwise_affine=False)
                    return norm(x) * weight + bias
                """,
                says="it calls layer_norm",
            ),
            code(
                """
                def layer_norm(x, weight, bias, eps):
                    centred = x - x.mean(2, True)
                    return centred / (centred**2).mean(2, True).add(eps).sqrt() * weight + bias
                """,
                says="over the tokens",
            ),
            swap(
                RMS_MEAN,
                "x.square().mean(dim=-1) + eps",
                says="raises RuntimeError: The size of tensor a",
            ),
            swap(
                RMS,
                "(x - x.mean(-1, keepdim=True)) / "
                "(x.var(-1, correction=0, keepdim=True) + eps).sqrt() * weight",
                says="the mean is subtracted",
            ),
            swap(
                RMS,
                "x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * weight",
                says="take the squares of x itself",
            ),
            swap(
                RMS_MEAN,
                "x.square().sum(dim=-1, keepdim=True) + eps",
                says="their mean is asked for",
            ),
            swap(
                RMS,
                "x / (x.square().mean(dim=-1, keepdim=True).sqrt() + eps) * weight",
                says="eps is added outside the root",
            ),
            swap(RMS, RMS.removesuffix(" * weight"), says="the weight is not used"),
            swap(RMS_MEAN, "x.square().mean(dim=-2, keepdim=True) + eps", says="over the tokens"),
            swap(RMS_MEAN, "x.square().mean() + eps", says="the whole tensor at once"),
            swap(
                RMS,
                "x / (x.square().mean(dim=-1, keepdim=True) + eps) * weight",
                says="not by its root",
            ),
            swap(RMS, "F.rms_norm(x, weight.shape, weight, eps)", says="it calls rms_norm"),
            swap(RMS, "x", says="the values are not: it returns x as it came"),
            swap(
                "centred / (variance + eps).sqrt() * weight + bias",
                "centred / (variance + eps**2).sqrt() * weight + bias",
                says="eps is squared, and added as it is it",
            ),
            swap(
                "x - x.mean(dim=-1, keepdim=True)",
                "x - x.mean()",
                says="the mean of the whole tensor is subtracted, in",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.square().mean(dim=-1, keepdim=True)",
                says="the variance is the mean of the squares of",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "centred.abs().mean(dim=-1, keepdim=True)",
                says="the mean of the absolute values stands where the",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "centred.square().sum(dim=-1, keepdim=True)",
                says="the squares are summed; the variance is their mean",
            ),
            swap(
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.std(dim=-1, keepdim=True)",
                says="the standard deviation stands under the root, and it",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.mean(dim=-1, keepdim=True).square() + eps).sqrt() * weight",
                says="it squares the mean, and the mean of the",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.norm(dim=-1, keepdim=True) + eps) * weight",
                says="it divides by the length of the token, the",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x * (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                says="it multiplies by the root, and divides it should",
            ),
            swap(
                "x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight",
                "x / (x.square().mean(dim=-1, keepdim=True)).sqrt() + eps * weight",
                says="eps is added behind the division, it belongs under",
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
            healthy("return super().forward(x)", says="this is Sick"),
            healthy(
                "x = self.norm1(x)",
                "x = x + self.attn(x)",
                "x = self.norm2(x)",
                "return x + self.mlp(x)",
                says="now both sums add to a normalised x",
            ),
            healthy(
                "x = self.norm1(x + self.attn(x))",
                "return self.norm2(x + self.mlp(x))",
                says="this is post-norm",
            ),
            healthy(
                "x = x + self.attn(self.norm1(x))",
                "return self.norm2(x + self.mlp(x))",
                says="the second sum is normalised",
            ),
            swap("self.mlp(self.norm2(x))", "self.mlp(x)", says="reads the stream without a norm"),
            swap("self.norm2(x)", "self.norm1(x)", says="the feed-forward reads norm1"),
            swap("x + self.mlp", "self.mlp", says="the feed-forward is not added"),
            swap("x = x + self.attn", "x = self.attn", says="the attention is not added"),
            healthy(
                "return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))",
                says="as it was before attention added to it",
            ),
            healthy(
                "after = x + self.attn(self.norm1(x))",
                "return x + self.mlp(self.norm2(after))",
                says="what attention added is lost",
            ),
            healthy(
                "x = x + self.norm1(self.attn(x))",
                "return x + self.norm2(self.mlp(x))",
                says="the norm stands behind the part",
            ),
            healthy(
                "x = x + self.mlp(self.norm2(x))",
                "return x + self.attn(self.norm1(x))",
                says="runs before the attention",
            ),
            swap("x = x + self.attn", "x += self.attn", says="x was changed in place"),
            healthy(
                "x = x + self.attn(self.norm1(x.detach()))",
                "return x + self.mlp(self.norm2(x))",
                says="the gradient of x is not",
            ),
            code(
                """
                class Healthy(encoder.EncoderBlock):
                    pass
                """,
                says="it calls EncoderBlock",
            ),
            code("Healthy = Sick", says="this is Sick"),
            code("Healthy = Sick(48, 4, 192)", says="a class that extends nn.Module"),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm1(x))\n"
                "        x += self.mlp(self.norm2(x))\n"
                "        return self.norm2(x)",
                says="the end of the block is normalised as well",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "return x + self.mlp(self.norm2(self.attn(self.norm1(x))))",
                says="the feed-forward reads what attention returns instead of the",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "y = self.attn(self.norm1(x))\n        return x + y + self.mlp(self.norm2(y))",
                says="the feed-forward reads what attention returns, and not the",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm2(x))\n        return x + self.mlp(self.norm1(x))",
                says="norm1 and norm2 have changed places",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(x)\n        return x + self.mlp(x)",
                says="there is no norm at all",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.norm1(x) + self.attn(self.norm1(x))\n"
                "        return x + self.mlp(self.norm2(x))",
                says="norm1(x) is added as well",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = self.norm1(x)\n"
                "        x = x + self.attn(x)\n"
                "        return x + self.mlp(self.norm2(x))",
                says="the first sum adds to norm1(x), not to the",
            ),
            swap(
                "x = x + self.attn(self.norm1(x))\n        return x + self.mlp(self.norm2(x))",
                "x = x + self.attn(self.norm1(x))\n        return 2 * x + self.mlp(self.norm2(x))",
                says="the stream is added twice in the second half",
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
            measured("x = x + x @ matrix", says="nothing is normalised before the matrix"),
            measured("x = F.layer_norm(x + x @ matrix, (256,))", says="as in post-norm"),
            measured("x = F.layer_norm(x, (256,)) @ matrix", says="each layer replaces the stream"),
            measured("x = x @ matrix", says="nothing is added and nothing normalised"),
            measured(
                "x = F.layer_norm(x, (256,))\n        x = x + x @ matrix",
                says="the normalised stream is added",
            ),
            measured("x = x + F.layer_norm(x @ matrix, (256,))", says="the gain has no effect"),
            swap("* gain / 256**0.5", "* gain", says="not divided by the root of 256"),
            swap("256**0.5", "256", says="not by its root"),
            swap(" * gain / 256**0.5", " / 256**0.5", says="the gain has no effect"),
            swap("x.std()", "x.var()", says="this is the variance"),
            swap("range(depth)", "range(depth + 1)", says="one layer too many"),
            swap("range(depth)", "range(1, depth)", says="one layer too few"),
            swap("return x.std().item()", "return x.std(dim=-1)", says="a number is asked for"),
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
                says="all layers have the same matrix",
            ),
            code(
                """
                def measure(depth, gain):
                    return (1 + depth * gain**2) ** 0.5
                """,
                says="nothing was measured",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5", "1 + depth * gain**2", says="this is the variance"
            ),
            swap("(1 + depth * gain**2)", "(1 + depth * gain)", says="the gain needs its square"),
            swap("(1 + depth * gain**2)", "(depth * gain**2)", says="variance 1, which is missing"),
            swap("(1 + depth * gain**2) ** 0.5", "1 + depth * gain", says="spreads are added"),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** (depth / 2)",
                says="without the norm",
            ),
            swap("(1 + depth * gain**2) ** 0.5", "measure(depth, gain)", says="draws random"),
            swap(
                "* gain / 256**0.5",
                "* (gain / 256)**0.5",
                says="the root is taken of the gain, too",
            ),
            swap(
                "x = x + F.layer_norm(x, (256,)) @ matrix",
                "x = F.layer_norm(x, (256,)) + x @ matrix",
                says="the norm stands on what is added to, not",
            ),
            swap(
                "torch.randn(64, 256, generator=generator)",
                "torch.rand(64, 256, generator=generator)",
                says="the tokens are uniform between 0 and 1, as",
            ),
            swap(
                "matrix = torch.randn(256, 256, generator=generator)",
                "matrix = torch.rand(256, 256, generator=generator)",
                says="the numbers of the matrix are uniform between 0",
            ),
            swap("* gain / 256**0.5", "* gain**2 / 256**0.5", says="the gain is squared"),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** 0.5",
                says="the depth has no effect",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain) ** depth",
                says="the spreads are multiplied; variances add up",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "1 + gain * depth**0.5",
                says="the spread of what is added is right, but",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(1 + gain**2) ** depth",
                says="that would be the variance without the norm, when",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "gain * (1 + depth) ** 0.5",
                says="the variance 1 of the start is multiplied by",
            ),
            swap(
                "(1 + depth * gain**2) ** 0.5",
                "(depth + gain**2) ** 0.5",
                says="the depth belongs to what the layers add, gain",
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
