"""Answers to the exercises of chapter 04, right and wrong."""

from exercise_bank import Bank, code, swap

# Another way to write the steps of the layer, with a place for a mistake in each.
LAYER = """
class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.embed_dim = num_heads, embed_dim
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, context=None):
        if context is None:
            context = x
        b, i, e = x.shape
        d = e // self.num_heads
        q = self.q_proj(x).view(b, i, self.num_heads, d).transpose(1, 2)
        k = self.k_proj(context).view(b, -1, self.num_heads, d).transpose(1, 2)
        v = self.v_proj(context).view(b, -1, self.num_heads, d).transpose(1, 2)
        weights = (q @ k.transpose(-2, -1) / d**0.5).softmax(dim=-1)
        output = (weights @ v).transpose(1, 2).reshape(b, i, e)
        return self.out_proj(output)
"""


def layer(*changes, cause=""):
    """The layer with pieces of its text replaced."""
    text = LAYER
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return code(text, cause=cause)


HEALTHY = """
def healthy(q, k, v, num_heads):
    b, i, e = q.shape
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)
"""

REORDER = """
def reorder(layer, order):
    new, d = deepcopy(layer), layer.embed_dim // layer.num_heads
    with torch.no_grad():
        for here, old in enumerate(order):
            to, of = slice(here * d, here * d + d), slice(old * d, old * d + d)
            for name in ("q_proj", "k_proj", "v_proj"):
                getattr(new, name).weight[to] = getattr(layer, name).weight[of]
                getattr(new, name).bias[to] = getattr(layer, name).bias[of]
            new.out_proj.weight[:, to] = layer.out_proj.weight[:, of]
    return new
"""

SILENCE = """
def silence(layer, heads):
    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
    for head in heads:
        quiet.out_proj.weight.data[:, head * d : (head + 1) * d] = 0
    return quiet
"""

BANK = {
    "04.1": Bank(
        wrong=[
            swap("(2, 4, 7, 6)", "(2, 7, 4, 6)", cause="sizes-in-another-order"),
            swap("(2, 4, 7, 6)", "(2, 4, 7, 24)", cause="look-at-axes d"),
            swap("(2, 4, 7, 6)", "(2, 4, 5, 6)", cause="look-at-axes j"),
            swap("(2, 4, 5, 7)", "(2, 5, 7)", cause="number-of-axes"),
            swap("(2, 4, 5, 7)", "(2, 4, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 4, 5, 7)", "(2, 4, 5, 5)", cause="look-at-axes j"),
            swap("(2, 5, 24)", "(2, 7, 24)", cause="look-at-axes i"),
            swap("(2, 5, 24)", "(2, 5, 6)", cause="look-at-axes e"),
            swap("(2, 5, 24)", "(2, 4, 5, 6)", cause="number-of-axes"),
        ],
        right=[
            swap("(2, 4, 7, 6)", "[2, 4, 7, 24 // 4]"),
            swap("(2, 5, 24)", "torch.Size([2, 5, 24])"),
        ],
    ),
    "04.2": Bank(
        wrong=[
            code(
                """
                def at_once(q, k, v):
                    return scaled_dot_product_attention(q, k, v)[0].transpose(1, 2).flatten(2)


                def head_by_head(q, k, v):
                    return at_once(q, k, v)
                """,
                cause="loop-is-missing",
            ),
            swap("torch.cat(outputs, dim=-1)", "torch.cat(outputs, dim=1)", cause="shape-differs"),
            swap(
                "torch.cat(outputs, dim=-1)",
                "torch.stack(outputs, dim=1)",
                cause="heads-not-joined",
            ),
            swap("torch.cat(outputs, dim=-1)", "sum(outputs)", cause="shape-differs"),
            swap(
                "torch.cat(outputs, dim=-1)",
                "torch.stack(outputs, dim=-1).flatten(2)",
                cause="joined-interleaved",
            ),
            swap("torch.cat(outputs", "torch.cat(outputs[::-1]", cause="joined-heads-reversed"),
            swap("v[:, h])", "v[:, 0])", cause="values-of-head-zero"),
            swap("(q[:, h], k[:, h], v", "(q[:, 0], k[:, 0], v", cause="weights-of-head-zero"),
            swap(
                'rearrange(output, "b h i d -> b i (h d)")',
                "output.reshape(len(q), q.shape[2], -1)",
                cause="joined-as-in-memory",
            ),
            swap("-> b i (h d)", "-> b i (d h)", cause="joined-interleaved"),
            swap("-> b i (h d)", "-> b h (i d)", cause="shape-differs"),
            code(
                """
                def at_once(q, k, v):
                    scores = einsum(q, k, "b h i d, b h j d -> b i j") / q.shape[-1] ** 0.5
                    output = einsum(scores.softmax(-1), v, "b i j, b h j d -> b h i d")
                    return rearrange(output, "b h i d -> b i (h d)")
                """,
                cause="one-table-for-all-heads",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).mean(1, keepdim=True)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                cause="mean-of-weights",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT).softmax(-1)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                cause="scores-not-divided",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(1)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                cause="softmax-over-heads",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                cause="softmax-over-queries",
            ),
            code(
                """
                def at_once(q, k, v):
                    output, _ = scaled_dot_product_attention(q, k, v)
                    return output.transpose(0, 1).reshape(len(q), q.shape[2], -1)
                """,
                cause="samples-swap-heads",
            ),
            code("at_once = head_by_head", cause="loops-and-may-not"),
            code(
                """
                def at_once(q, k, v):
                    q /= q.shape[-1] ** 0.5
                    return rearrange((q @ k.mT).softmax(-1) @ v, "b h i d -> b i (h d)")
                """,
                cause="changed-in-place q",
            ),
            code(
                """
                def at_once(q, k, v):
                    return rearrange(torch.zeros_like(q), "b h i d -> b i (h d)")
                """,
                cause="same-for-every-input",
            ),
            swap(
                "output, _ = scaled_dot_product_attention(q[:, h], k[:, h], v[:, h])",
                "output, _ = scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])",
                cause="always-head-zero",
            ),
            code(
                """
                def at_once(q, k, v):
                    q, k, v = (rearrange(t, "b h n d -> b n (h d)") for t in (q, k, v))
                    return scaled_dot_product_attention(q, k, v)[0]
                """,
                cause="joined-before-attending",
            ),
            code(
                """
                def at_once(q, k, v):
                    output, _ = scaled_dot_product_attention(q, v, k)
                    return rearrange(output, "b h i d -> b i (h d)")
                """,
                cause="keys-and-values-exchanged",
            ),
            code(
                """
                def at_once(q, k, v):
                    output, _ = scaled_dot_product_attention(q, k, k)
                    return rearrange(output, "b h i d -> b i (h d)")
                """,
                cause="keys-are-mixed",
            ),
            code(
                """
                def head_by_head(q, k, v):
                    outputs = []
                    for h in range(q.shape[1]):
                        scores = q[:, h] @ k[:, h].mT / (q.shape[1] * q.shape[3]) ** 0.5
                        outputs.append(scores.softmax(-1) @ v[:, h])
                    return torch.cat(outputs, dim=-1)
                """,
                cause="scaled-by-token-width",
            ),
            code(
                """
                def head_by_head(q, k, v):
                    outputs = []
                    for h in range(q.shape[0]):
                        output, _ = scaled_dot_product_attention(q[h], k[h], v[h])
                        outputs.append(output)
                    return torch.cat(outputs, dim=-1)
                """,
                cause="loops-over-samples",
            ),
        ],
        right=[
            code(
                """
                def head_by_head(q, k, v):
                    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1))
                    outputs = [scaled_dot_product_attention(*head)[0] for head in heads]
                    return torch.cat(outputs, dim=-1)


                def at_once(q, k, v):
                    scale = torch.sqrt(torch.tensor(q.shape[-1]))
                    return ((q @ k.mT / scale).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
                """,
            ),
            code(
                """
                def head_by_head(q, k, v):
                    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1))
                    output = [scaled_dot_product_attention(*head)[0] for head in heads]
                    return torch.stack(output, dim=2).flatten(2)
                """
            ),
            code(
                """
                def head_by_head(q, k, v):
                    b, h, i, d = q.shape
                    outputs = torch.zeros(b, i, h * d, dtype=q.dtype)
                    for n in range(h):
                        weights = (q[:, n] @ k[:, n].mT / d**0.5).softmax(dim=-1)
                        outputs[:, :, n * d : (n + 1) * d] = weights @ v[:, n]
                    return outputs
                """
            ),
            code(
                """
                def at_once(q, k, v):
                    output = F.scaled_dot_product_attention(q, k, v)
                    return output.transpose(1, 2).reshape(len(q), q.shape[2], -1)
                """
            ),
            code(
                """
                def at_once(q, k, v):
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j")
                    weights = (scores / q.shape[3] ** 0.5).exp()
                    weights = weights / weights.sum(dim=-1, keepdim=True)
                    return torch.einsum("bhij,bhjd->bihd", weights, v).flatten(-2)
                """
            ),
        ],
    ),
    "04.3": Bank(
        wrong=[
            layer(
                (".transpose(1, 2).reshape(b, i, e)", ".reshape(b, i, e)"),
                cause="clinic-found/merge-no-transpose",
            ),
            layer(
                ("view(b, i, self.num_heads, d).transpose(1, 2)", "view(b, self.num_heads, i, d)"),
                (
                    "view(b, -1, self.num_heads, d).transpose(1, 2)",
                    "view(b, self.num_heads, -1, d)",
                ),
                cause="clinic-found/split-no-transpose",
            ),
            layer(("/ d**0.5", "/ e**0.5"), cause="clinic-found/scale-embed"),
            layer((" / d**0.5", ""), cause="scores-not-divided"),
            layer(("softmax(dim=-1)", "softmax(dim=-2)"), cause="softmax-over-queries"),
            layer(
                ("self.v_proj(context)", "self.k_proj(context)"),
                cause="made-by-wrong-layer values k_proj",
            ),
            layer(("self.out_proj(output)", "output"), cause="clinic-found/out-unused"),
            layer(
                ("(weights @ v).transpose(1, 2)", "(weights @ v).transpose(0, 1)"),
                cause="clinic-found/merge-batch-head",
            ),
            layer(
                ("view(b, i, self.num_heads, d).transpose(1, 2)", "unflatten(2, (d, -1)).mT.mT"),
                cause="raises",
            ),
            swap("(h d) -> b h", "(d h) -> b h", cause="split-interleaved-join-not"),
            swap("(h d)", "(d h)", cause="every-hth-number"),
            swap("-> b i (h d)", "-> b i (d h)", cause="joined-interleaved"),
            swap("x if context is None else context", "x", cause="context-not-used"),
            swap("self.q_proj(x)", "self.q_proj(context)", cause="queries-from-context"),
            swap("self.k_proj(context)", "self.k_proj(x)", cause="keys-from-x"),
            swap("self.v_proj(context)", "self.v_proj(x)", cause="values-from-x"),
            layer(
                ("self.q_proj(x).view(b, i,", "self.q_proj(context).view(b, -1,"),
                ("self.k_proj(context)", "self.k_proj(x)"),
                ("self.v_proj(context)", "self.v_proj(x)"),
                (".reshape(b, i, e)", ".flatten(2)"),
                cause="x-and-context-exchanged",
            ),
            swap("h=self.num_heads", "h=2", cause="always-so-many-heads"),
            layer(
                (
                    "_proj = nn.Linear(embed_dim, embed_dim)",
                    "_proj = nn.Linear(embed_dim, embed_dim, bias=False)",
                ),
                cause="bias-missing",
            ),
            layer(("q_proj", "query"), cause="parameter-missing"),
            layer(
                (
                    "self.k_proj = nn.Linear(embed_dim, embed_dim)",
                    "self.k_proj = self.q_proj",
                ),
                cause="parameters-are-one",
            ),
            layer(
                ("return self.out_proj(output)", "return self.out_proj(output), weights"),
                cause="is-no-tensor",
            ),
            layer(("return self.out_proj(output)", "self.out_proj(output)"), cause="returns-none"),
            layer(("self.out_proj(output)", "self.out_proj(output).detach()"), cause="no-gradient"),
            layer(
                ("self.out_proj(output)", "self.out_proj(output) + x"),
                cause="adds-x",
            ),
            code(
                """
                class MultiHeadAttention(attention.MultiHeadAttention):
                    def forward(self, x, context=None):
                        return super().forward(x, context)
                """,
                cause="calls-shortcut MultiHeadAttention",
            ),
            code("MultiHeadAttention = attention.MultiHeadAttention", cause="calls-shortcut"),
            code(
                """
                class MultiHeadAttention(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

                    def forward(self, x, context=None):
                        return self.attn(x, context, context)
                """,
                cause="parameter-missing",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            v = rearrange(self.v_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(q, v, k)
            return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
                """,
                cause="keys-and-values-exchanged",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            v = rearrange(self.v_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(k, q, v)
            return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
                """,
                cause="queries-and-keys-exchanged",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            v = rearrange(self.v_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(v, k, q)
            return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
                """,
                cause="queries-and-values-exchanged",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = rearrange(self.q_proj(x), "b i (h d) -> b i h d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b j h d", h=self.num_heads)
            v = rearrange(self.v_proj(context), "b j (h d) -> b j h d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(output, "b i h d -> b i (h d)"))
                """,
                cause="heads-attend-inside-tokens",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            v = rearrange(context, "b j (h d) -> b h j d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
                """,
                cause="not-projected values",
            ),
            code(
                """
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_dim, num_heads):
            super().__init__()
            self.num_heads, self.embed_dim = num_heads, embed_dim
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, x, context=None):
            context = x if context is None else context
            q = self.q_proj(x) / self.embed_dim**0.5
            q = rearrange(q, "b i (h d) -> b h i d", h=self.num_heads)
            k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            v = rearrange(self.v_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
            output, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
                """,
                cause="scaled-twice",
            ),
        ],
        right=[
            layer(),
            code(
                """
                class MultiHeadAttention(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.h = num_heads
                        for name in ("out_proj", "v_proj", "k_proj", "q_proj"):
                            setattr(self, name, nn.Linear(embed_dim, embed_dim))

                    def forward(self, x, context=None):
                        context = x if context is None else context
                        q, k, v = self.q_proj(x), self.k_proj(context), self.v_proj(context)
                        heads = zip(*(t.chunk(self.h, dim=-1) for t in (q, k, v)))
                        outputs = [F.scaled_dot_product_attention(*head) for head in heads]
                        return self.out_proj(torch.cat(outputs, dim=-1))
                """
            ),
        ],
    ),
    "04.4": Bank(
        wrong=[
            code("healthy = buggy", cause="still-scaled-by-token-width"),
            swap(" / q.shape[-1] ** 0.5", "", cause="not-scaled"),
            swap("q.shape[-1] ** 0.5", "num_heads**0.5", cause="scaled-by-number-of-heads"),
            swap("q.shape[-1] ** 0.5", "q.shape[-1]", cause="scaled-without-root"),
            swap("q.shape[-1] ** 0.5", "q.shape[2] ** 0.5", cause="scaled-by-number-of-tokens"),
            swap("/ q.shape", "* q.shape", cause="scores-multiplied"),
            swap(
                'rearrange(output, "b h i d -> b i (h d)")',
                "output.flatten(1).unflatten(1, (output.shape[2], -1))",
                cause="joined-as-in-memory",
            ),
            swap("dim=-1", "dim=-2", cause="softmax-over-queries"),
            swap("scores.softmax(dim=-1)", "scores", cause="softmax-is-missing"),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
                """,
                cause="only-one-head",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return buggy(q, k, v, 1)
                """,
                cause="only-one-head",
            ),
            swap(
                "q.shape[-1] ** 0.5",
                "k.shape[2] ** 0.5",
                cause="clinic-found/scale-other",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    scale = q.shape[-1] ** 0.5 / num_heads
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / scale
                    output = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(output, "b h i d -> b i (h d)")
                """,
                cause="scaled-by-root-over-heads",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    scale = q.shape[-1] ** 0.5
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j")
                    z = einsum(scores.softmax(dim=-1) / scale, v, "b h i j, b h j d -> b h i d")
                    return rearrange(z, "b h i d -> b i (h d)")
                """,
                cause="weights-are-scaled-by-token-width",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
                    output = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(output, "b h i d -> b i (d h)")
                """,
                cause="joined-interleaved",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (d h) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
                    output = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(output, "b h i d -> b i (d h)")
                """,
                cause="every-hth-number",
            ),
            swap("softmax(dim=-1)", "softmax(dim=1)", cause="softmax-over-heads"),
        ],
        right=[
            code(HEALTHY),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return buggy(q * num_heads**0.5, k, v, num_heads)
                """
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    output = F.scaled_dot_product_attention(q, k, v)
                    return rearrange(output, "b h i d -> b i (h d)")
                """
            ),
        ],
    ),
    "04.5": Bank(
        wrong=[
            code(
                """
                def reorder(layer, order):
                    return deepcopy(layer)
                """,
                cause="no-head-moved",
            ),
            swap(
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n",
                "",
                cause="old-columns-of-out",
            ),
            swap(
                "            part.bias.copy_(part.bias[moved])\n",
                "",
                cause="biases-stand-still",
            ),
            swap("weight[:, moved]", "weight[moved]", cause="rows-of-out-moved"),
            swap(
                "moved = numbers[order]",
                "moved = numbers[torch.tensor(order).argsort()]",
                cause="order-the-other-way",
            ),
            swap(
                "weight[:, moved]",
                "weight[:, numbers[torch.tensor(order).argsort()].flatten()]",
                cause="columns-move-opposite",
            ),
            swap("deepcopy(layer)", "layer", cause="changed-the-given-layer"),
            swap("    return new\n", "    return None\n", cause="returns-none"),
            swap("    return new\n", "    return new.state_dict()\n", cause="new-layer-is-asked"),
            swap("new.k_proj, new.v_proj)", "new.k_proj)", cause="parts-stand-still v_proj"),
            swap(
                "new.q_proj, new.k_proj, new.v_proj",
                "new.v_proj,",
                cause="parts-stand-still q_proj k_proj",
            ),
            swap('"(h d) -> h d"', '"(d h) -> h d"', cause="rows-are-every-hth"),
            swap("numbers[order].flatten()", "order", cause="raises"),
            swap(
                "new.q_proj, new.k_proj, new.v_proj",
                "new.q_proj, new.k_proj, new.v_proj, new.out_proj",
                cause="rows-and-bias-of-out-moved-too",
            ),
            swap(
                "part.weight.copy_(part.weight[moved])",
                "part.weight.copy_(part.weight[:, moved])",
                cause="columns-of-projections-moved",
            ),
            swap(
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n",
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n"
                "        new.out_proj.bias.copy_(new.out_proj.bias[moved])\n",
                cause="bias-of-out-moved",
            ),
            code(
                """
                def reorder(layer, order):
                    new, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        for here, old in enumerate(order):
                            to, of = slice(here * d, here * d + d), slice(old * d, old * d + d)
                            for name in ('q_proj', 'k_proj', 'v_proj'):
                                getattr(new, name).weight[to] = getattr(new, name).weight[of]
                                getattr(new, name).bias[to] = getattr(new, name).bias[of]
                            new.out_proj.weight[:, to] = new.out_proj.weight[:, of]
                    return new
                """,
                cause="heads-overwritten",
            ),
            code(
                """
                def reorder(layer, order):
                    new = deepcopy(layer)
                    moved = torch.arange(layer.embed_dim).view(layer.num_heads, -1)[order].flatten()
                    with torch.no_grad():
                        new.q_proj.weight.copy_(new.q_proj.weight[moved])
                        new.q_proj.bias.copy_(new.q_proj.bias[moved])
                    return new
                """,
                cause="parts-and-out-stand-still k_proj v_proj",
            ),
        ],
        right=[
            code(REORDER),
            code(
                """
                def reorder(layer, order):
                    new, state, h = deepcopy(layer), {}, layer.num_heads
                    for name, t in layer.state_dict().items():
                        if name == "out_proj.weight":
                            t = rearrange(t, "e (h d) -> h e d", h=h)[order]
                            state[name] = rearrange(t, "h e d -> e (h d)")
                        elif name == "out_proj.bias":
                            state[name] = t
                        else:
                            state[name] = t.unflatten(0, (h, -1))[order].flatten(0, 1)
                    new.load_state_dict(state)
                    return new
                """
            ),
        ],
    ),
    "04.6": Bank(
        wrong=[
            swap("] = 0", "] *= 1", cause="nobody-is-silent"),
            swap("weight[:, numbers", "weight[numbers", cause="rows-of-out-silenced"),
            swap('"(h d) -> h d"', '"(d h) -> h d"', cause="columns-are-neighbours"),
            swap("numbers[heads]", "numbers[heads[:1]]", cause="first-of-list-is-silent"),
            swap(
                "    return quiet\n",
                "    quiet.out_proj.bias.data[:] = 0\n    return quiet\n",
                cause="bias-of-out-must-stay",
            ),
            code(
                SILENCE.replace("out_proj.weight.data[:, ", "v_proj.weight.data["),
                cause="values-keep-their-bias",
            ),
            code(
                SILENCE.replace(
                    "out_proj.weight.data[:, head * d : (head + 1) * d] = 0",
                    "out_proj.weight.data[:, head] = 0",
                ),
                cause="one-column-for-a-head",
            ),
            code(
                SILENCE.replace("out_proj.weight.data[:, ", "q_proj.weight.data["),
                cause="silenced-weight-of-queries",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    for head in heads:
                        for part in (quiet.q_proj, quiet.k_proj):
                            part.weight.data[head * d : (head + 1) * d] = 0
                            part.bias.data[head * d : (head + 1) * d] = 0
                    return quiet
                """,
                cause="silenced-where-it-looks",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet = deepcopy(layer)
                    others = [h for h in range(layer.num_heads) if h not in heads]
                    for part in quiet.out_proj.weight.data.chunk(layer.num_heads, dim=1):
                        part.zero_() if others.count(0) else None
                        others = [h - 1 for h in others]
                    return quiet
                """,
                cause="others-are-silent",
            ),
            swap(
                "quiet = deepcopy(layer)", "quiet = layer", cause="changed-the-given-layer silence"
            ),
            code(
                """
                loaded = load_shipped("digits")

                def still_read(layer, heads, images, labels):
                    block = loaded.encoder.layers[layer]
                    block.attn = silence(block.attn, heads)
                    return (loaded(images).argmax(dim=-1) == labels).sum().item()
                """,
                cause="silent-in-the-next-call",
            ),
            swap("layers[layer]", "layers[0]", cause="always-layer-zero"),
            swap("layers[layer]", "layers[1 - layer]", cause="other-layer-is-silent"),
            swap("    block.attn = silence", "    silence", cause="nobody-is-silent"),
            swap("== labels", "!= labels", cause="counts-misread"),
            swap(".sum().item()", ".double().mean().item()", cause="share-instead-of-number"),
            code(
                """
                def still_read(layer, heads, images, labels):
                    model = load_shipped("digits")
                    block = model.encoder.layers[layer]
                    block.attn = silence(block.attn, heads)
                    return model(images).argmax(dim=-1) == labels
                """,
                cause="is-another-kind int",
            ),
            code(
                """
                def still_read(layer, heads, images, labels):
                    return 110
                """,
                cause="same-for-every-input",
            ),
            code(
                """
                def still_read(layer, heads, images, labels):
                    model = load_shipped("digits")
                    silence(model.encoder.layers[layer].attn, heads)
                    return (model(images).argmax(dim=-1) == labels).sum().item()
                """,
                cause="nobody-is-silent",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet = deepcopy(layer)
                    quiet.out_proj.weight[:, : layer.embed_dim // layer.num_heads] = 0
                    return quiet
                """,
                cause="raises RuntimeError",
            ),
            swap(
                "lost_alone = [before - still_read",
                "lost_alone = [still_read",
                cause="still-read-not-lost",
            ),
            swap("[before -", "[360 -", cause="read-before-was-less"),
            swap("(0, [head]", "(1, [head]", cause="heads-of-layer-one"),
            swap("range(4)", "range(3)", cause="four-numbers-are-asked"),
            swap("(0, [head]", "(0, []", cause="nothing-is-lost"),
            swap(
                "[before - still_read(0, [head], images, labels)",
                "[0 * head + still_read(0, [head], images, labels) - before",
                cause="after-minus-before",
            ),
            swap(
                "lost_together = before -",
                "lost_together = sum(lost_alone)  #",
                cause="sum-of-the-four",
            ),
            swap("lost_together = before -", "lost_together =", cause="still-read-not-lost"),
            swap("lost_together = before -", "lost_together = 360 -", cause="read-before-was-less"),
            swap("0, [0, 1, 2, 3]", "1, [0, 1, 2, 3]", cause="heads-of-layer-one"),
            swap("[0, 1, 2, 3]", "[0, 1, 2]", cause="one-head-still-speaks"),
            swap(
                "numbers = rearrange(\n"
                '        torch.arange(layer.embed_dim), "(h d) -> h d", h=layer.num_heads\n'
                "    )",
                "d = layer.num_heads\n"
                "    numbers = torch.stack([torch.arange(h * d, h * d + d) for h in "
                "range(layer.embed_dim // d)])",
                cause="d-is-not-num-heads",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        for head in heads:
                            quiet.out_proj.weight[head * d : (head + 1) * d] = 0
                            quiet.out_proj.bias[head * d : (head + 1) * d] = 0
                    return quiet
                """,
                cause="rows-and-bias-of-out-silenced",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        for head in heads:
                            quiet.out_proj.weight[:, head : head + d] = 0
                    return quiet
                """,
                cause="columns-begin-at-head",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        quiet.out_proj.weight[:, min(heads) * d : (max(heads) + 1) * d] = 0
                    return quiet
                """,
                cause="all-between-are-silent",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        for head in heads:
                            quiet.v_proj.weight[:, head * d : (head + 1) * d] = 0
                    return quiet
                """,
                cause="columns-of-values-silenced",
            ),
        ],
        right=[
            code(SILENCE),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        for head in heads:
                            quiet.v_proj.weight[head * d : (head + 1) * d] = 0
                            quiet.v_proj.bias[head * d : (head + 1) * d] = 0
                    return quiet


                def still_read(layer, heads, images, labels):
                    model = load_shipped("digits").double()
                    loud = model.encoder.layers[layer].attn
                    model.encoder.layers[layer].attn = silence(loud, heads)
                    with torch.inference_mode():
                        read = model(images.double()).max(dim=-1).indices
                        return (labels == read).count_nonzero()


                lost_alone = (13, 12, 3, 16)
                lost_together = torch.tensor(246)
                """
            ),
        ],
        equivalent={
            "quiet.out_proj.weight[:, numbers[heads].flatten()] = 0 => "
            "quiet.out_proj.weight[:, (numbers[heads])] = 0": "a table of numbers picks the same "
            "columns as their list",
            "return (model(images).argmax(dim=-1) == labels).sum().item() => "
            "return ((model(images).argmax(dim=-1) == labels).sum())": "a tensor of one number",
            "return (model(images).argmax(dim=-1) == labels).sum().item() => "
            "return (model(images).argmax(dim=(1)) == labels).sum().item()": "axis 1 is the last",
            "before = still_read(0, [], images, labels) => "
            "before = still_read(1, [], images, labels)": "no head is silent in any layer",
            "before = still_read(0, [], images, labels) => "
            "before = still_read(-1, [], images, labels)": "no head is silent in any layer",
        },
    ),
}
