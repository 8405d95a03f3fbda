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
        mixed = (weights @ v).transpose(1, 2).reshape(b, i, e)
        return self.out_proj(mixed)
"""


def layer(*changes, says=""):
    """The layer with pieces of its text replaced."""
    text = LAYER
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return code(text, says=says)


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
            swap("(2, 4, 7, 6)", "(2, 7, 4, 6)", says="right sizes in another order"),
            swap("(2, 4, 7, 6)", "(2, 4, 7, 24)", says="look at d"),
            swap("(2, 4, 7, 6)", "(2, 4, 5, 6)", says="look at j"),
            swap("(2, 4, 5, 7)", "(2, 5, 7)", says="needs 4 axes"),
            swap("(2, 4, 5, 7)", "(2, 4, 7, 5)", says="right sizes in another order"),
            swap("(2, 4, 5, 7)", "(2, 4, 5, 5)", says="look at j"),
            swap("(2, 5, 24)", "(2, 7, 24)", says="look at i"),
            swap("(2, 5, 24)", "(2, 5, 6)", says="look at e"),
            swap("(2, 5, 24)", "(2, 4, 5, 6)", says="needs 3 axes"),
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
                says="nothing loops",
            ),
            swap("torch.cat(said, dim=-1)", "torch.cat(said, dim=1)", says="asked for is"),
            swap("torch.cat(said, dim=-1)", "torch.stack(said, dim=1)", says="asked for is"),
            swap("torch.cat(said, dim=-1)", "sum(said)", says="asked for is"),
            swap(
                "torch.cat(said, dim=-1)",
                "torch.stack(said, dim=-1).flatten(2)",
                says="shuffled into each other",
            ),
            swap("torch.cat(said", "torch.cat(said[::-1]", says="opposite order"),
            swap("v[:, h])", "v[:, 0])", says="the values of head 0"),
            swap("(q[:, h], k[:, h], v", "(q[:, 0], k[:, 0], v", says="the weights of head 0"),
            swap(
                'rearrange(mixed, "b h i d -> b i (h d)")',
                "mixed.reshape(len(q), q.shape[2], -1)",
                says="joined as they lie in memory",
            ),
            swap("-> b i (h d)", "-> b i (d h)", says="shuffled into each other"),
            swap("-> b i (h d)", "-> b h (i d)", says="asked for is"),
            code(
                """
                def at_once(q, k, v):
                    scores = einsum(q, k, "b h i d, b h j d -> b i j") / q.shape[-1] ** 0.5
                    mixed = einsum(scores.softmax(-1), v, "b i j, b h j d -> b h i d")
                    return rearrange(mixed, "b h i d -> b i (h d)")
                """,
                says="one table of weights for all heads",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).mean(1, keepdim=True)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                says="the mean of the heads' weights",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT).softmax(-1)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                says="not divided by the square root of d",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(1)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                says="over the heads",
            ),
            code(
                """
                def at_once(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2)
                    return rearrange(weights @ v, "b h i d -> b i (h d)")
                """,
                says="columns sum to 1",
            ),
            code(
                """
                def at_once(q, k, v):
                    mixed, _ = scaled_dot_product_attention(q, k, v)
                    return mixed.transpose(0, 1).reshape(len(q), q.shape[2], -1)
                """,
                says="samples get each other's heads",
            ),
            code("at_once = head_by_head", says="it loops"),
            code(
                """
                def at_once(q, k, v):
                    q /= q.shape[-1] ** 0.5
                    return rearrange((q @ k.mT).softmax(-1) @ v, "b h i d -> b i (h d)")
                """,
                says="q was changed in place",
            ),
            code(
                """
                def at_once(q, k, v):
                    return rearrange(torch.zeros_like(q), "b h i d -> b i (h d)")
                """,
                says="it gives the same for every input",
            ),
            swap(
                "mixed, _ = scaled_dot_product_attention(q[:, h], k[:, h], v[:, h])",
                "mixed, _ = scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])",
                says="every head says what head 0 says",
            ),
            code(
                """
                def at_once(q, k, v):
                    q, k, v = (rearrange(t, "b h n d -> b n (h d)") for t in (q, k, v))
                    return scaled_dot_product_attention(q, k, v)[0]
                """,
                says="the heads are joined before they attend, so there",
            ),
            code(
                """
                def at_once(q, k, v):
                    mixed, _ = scaled_dot_product_attention(q, v, k)
                    return rearrange(mixed, "b h i d -> b i (h d)")
                """,
                says="keys and values are exchanged",
            ),
            code(
                """
                def at_once(q, k, v):
                    mixed, _ = scaled_dot_product_attention(q, k, k)
                    return rearrange(mixed, "b h i d -> b i (h d)")
                """,
                says="the keys are mixed",
            ),
            code(
                """
                def head_by_head(q, k, v):
                    said = []
                    for h in range(q.shape[1]):
                        scores = q[:, h] @ k[:, h].mT / (q.shape[1] * q.shape[3]) ** 0.5
                        said.append(scores.softmax(-1) @ v[:, h])
                    return torch.cat(said, dim=-1)
                """,
                says="the scores are divided by the square root of",
            ),
            code(
                """
                def head_by_head(q, k, v):
                    said = []
                    for h in range(q.shape[0]):
                        mixed, _ = scaled_dot_product_attention(q[h], k[h], v[h])
                        said.append(mixed)
                    return torch.cat(said, dim=-1)
                """,
                says="the loop runs over the samples, axis 0; the",
            ),
        ],
        right=[
            code(
                """
                def head_by_head(q, k, v):
                    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1))
                    said = [scaled_dot_product_attention(*head)[0] for head in heads]
                    return torch.cat(said, dim=-1)


                def at_once(q, k, v):
                    scale = torch.sqrt(torch.tensor(q.shape[-1]))
                    return ((q @ k.mT / scale).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
                """,
            ),
            code(
                """
                def head_by_head(q, k, v):
                    heads = zip(q.unbind(1), k.unbind(1), v.unbind(1))
                    mixed = [scaled_dot_product_attention(*head)[0] for head in heads]
                    return torch.stack(mixed, dim=2).flatten(2)
                """
            ),
            code(
                """
                def head_by_head(q, k, v):
                    b, h, i, d = q.shape
                    said = torch.zeros(b, i, h * d, dtype=q.dtype)
                    for n in range(h):
                        weights = (q[:, n] @ k[:, n].mT / d**0.5).softmax(dim=-1)
                        said[:, :, n * d : (n + 1) * d] = weights @ v[:, n]
                    return said
                """
            ),
            code(
                """
                def at_once(q, k, v):
                    mixed = F.scaled_dot_product_attention(q, k, v)
                    return mixed.transpose(1, 2).reshape(len(q), q.shape[2], -1)
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
            layer((".transpose(1, 2).reshape(b, i, e)", ".reshape(b, i, e)"), says="merge-no-"),
            layer(
                ("view(b, i, self.num_heads, d).transpose(1, 2)", "view(b, self.num_heads, i, d)"),
                (
                    "view(b, -1, self.num_heads, d).transpose(1, 2)",
                    "view(b, self.num_heads, -1, d)",
                ),
                says="split-no-transpose",
            ),
            layer(("/ d**0.5", "/ e**0.5"), says="scale-embed"),
            layer((" / d**0.5", ""), says="scale-missing"),
            layer(("softmax(dim=-1)", "softmax(dim=-2)"), says="softmax-query"),
            layer(
                ("self.v_proj(context)", "self.k_proj(context)"),
                says="the values are made by k_proj",
            ),
            layer(("self.out_proj(mixed)", "mixed"), says="out-unused"),
            layer(
                ("(weights @ v).transpose(1, 2)", "(weights @ v).transpose(0, 1)"),
                says="merge-batch-head",
            ),
            layer(
                ("view(b, i, self.num_heads, d).transpose(1, 2)", "unflatten(2, (d, -1)).mT.mT"),
                says="it raises",
            ),
            swap("(h d) -> b h", "(d h) -> b h", says="(d h), and the join puts neighbours"),
            swap("(h d)", "(d h)", says="every h-th number of a token"),
            swap("-> b i (h d)", "-> b i (d h)", says="shuffled into each other"),
            swap("x if context is None else context", "x", says="context is not used"),
            swap("self.q_proj(x)", "self.q_proj(context)", says="queries come from context, too"),
            swap("self.k_proj(context)", "self.k_proj(x)", says="the keys still come from x"),
            swap("self.v_proj(context)", "self.v_proj(x)", says="the values still come from x"),
            layer(
                ("self.q_proj(x).view(b, i,", "self.q_proj(context).view(b, -1,"),
                ("self.k_proj(context)", "self.k_proj(x)"),
                ("self.v_proj(context)", "self.v_proj(x)"),
                (".reshape(b, i, e)", ".flatten(2)"),
                says="x and context are exchanged",
            ),
            swap("h=self.num_heads", "h=2", says="it always has 2 heads"),
            layer(
                (
                    "_proj = nn.Linear(embed_dim, embed_dim)",
                    "_proj = nn.Linear(embed_dim, embed_dim, bias=False)",
                ),
                says="has no",
            ),
            layer(("q_proj", "query"), says="has no q_proj.weight: keep the names"),
            layer(
                (
                    "self.k_proj = nn.Linear(embed_dim, embed_dim)",
                    "self.k_proj = self.q_proj",
                ),
                says="the two share one weight",
            ),
            layer(
                ("return self.out_proj(mixed)", "return self.out_proj(mixed), weights"),
                says="a tensor of shape",
            ),
            layer(("return self.out_proj(mixed)", "self.out_proj(mixed)"), says="returns None"),
            layer(("self.out_proj(mixed)", "self.out_proj(mixed).detach()"), says="no gradient"),
            layer(
                ("self.out_proj(mixed)", "self.out_proj(mixed) + x"),
                says="it adds x to the result",
            ),
            code(
                """
                class MultiHeadAttention(attention.MultiHeadAttention):
                    def forward(self, x, context=None):
                        return super().forward(x, context)
                """,
                says="it calls MultiHeadAttention",
            ),
            code("MultiHeadAttention = attention.MultiHeadAttention", says="it calls MultiHead"),
            code(
                """
                class MultiHeadAttention(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

                    def forward(self, x, context=None):
                        return self.attn(x, context, context)
                """,
                says="keep the names that the card gives",
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
            mixed, _ = scaled_dot_product_attention(q, v, k)
            return self.out_proj(rearrange(mixed, "b h i d -> b i (h d)"))
                """,
                says="keys and values are exchanged",
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
            mixed, _ = scaled_dot_product_attention(k, q, v)
            return self.out_proj(rearrange(mixed, "b h i d -> b i (h d)"))
                """,
                says="queries and keys are exchanged",
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
            mixed, _ = scaled_dot_product_attention(v, k, q)
            return self.out_proj(rearrange(mixed, "b h i d -> b i (h d)"))
                """,
                says="queries and values are exchanged",
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
            mixed, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(mixed, "b i h d -> b i (h d)"))
                """,
                says="the split gives",
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
            mixed, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(mixed, "b h i d -> b i (h d)"))
                """,
                says="the values are not projected",
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
            mixed, _ = scaled_dot_product_attention(q, k, v)
            return self.out_proj(rearrange(mixed, "b h i d -> b i (h d)"))
                """,
                says="the scores are divided twice",
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
                        said = [F.scaled_dot_product_attention(*head) for head in heads]
                        return self.out_proj(torch.cat(said, dim=-1))
                """
            ),
        ],
    ),
    "04.4": Bank(
        wrong=[
            code("healthy = sick", says="square root of e, the width of a whole token"),
            swap(" / q.shape[-1] ** 0.5", "", says="not divided by anything"),
            swap("q.shape[-1] ** 0.5", "num_heads**0.5", says="the number of heads"),
            swap("q.shape[-1] ** 0.5", "q.shape[-1]", says="without its square root"),
            swap("q.shape[-1] ** 0.5", "q.shape[2] ** 0.5", says="a number of tokens"),
            swap("/ q.shape", "* q.shape", says="multiplied by the square root of d"),
            swap(
                'rearrange(mixed, "b h i d -> b i (h d)")',
                "mixed.flatten(1).unflatten(1, (mixed.shape[2], -1))",
                says="joined as they lie in memory",
            ),
            swap("dim=-1", "dim=-2", says="softmax runs over the queries"),
            swap("scores.softmax(dim=-1)", "scores", says="there is no softmax"),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
                """,
                says="only one head",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return sick(q, k, v, 1)
                """,
                says="only one head",
            ),
            swap(
                "q.shape[-1] ** 0.5",
                "k.shape[2] ** 0.5",
                says="it multiplies the scores by a number other than 1",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    scale = q.shape[-1] ** 0.5 / num_heads
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / scale
                    mixed = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(mixed, "b h i d -> b i (h d)")
                """,
                says="the scores are divided by the square root of",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    scale = q.shape[-1] ** 0.5
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j")
                    mixed = einsum(scores.softmax(dim=-1) / scale, v, "b h i j, b h j d -> b h i d")
                    return rearrange(mixed, "b h i d -> b i (h d)")
                """,
                says="the weights are divided by the square root of",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
                    mixed = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(mixed, "b h i d -> b i (d h)")
                """,
                says="the numbers of the heads are shuffled into each",
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (d h) -> b h n d", h=num_heads) for t in (q, k, v))
                    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
                    mixed = einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d")
                    return rearrange(mixed, "b h i d -> b i (d h)")
                """,
                says="a head takes every h-th number of a token,",
            ),
            swap("softmax(dim=-1)", "softmax(dim=1)", says="the softmax runs over the heads"),
        ],
        right=[
            code(HEALTHY),
            code(
                """
                def healthy(q, k, v, num_heads):
                    return sick(q * num_heads**0.5, k, v, num_heads)
                """
            ),
            code(
                """
                def healthy(q, k, v, num_heads):
                    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
                    mixed = F.scaled_dot_product_attention(q, k, v)
                    return rearrange(mixed, "b h i d -> b i (h d)")
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
                says="no head has moved",
            ),
            swap(
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n",
                "",
                says="out_proj still reads the heads in their old order",
            ),
            swap(
                "            part.bias.copy_(part.bias[moved])\n",
                "",
                says="the biases of q_proj, k_proj and v_proj",
            ),
            swap("weight[:, moved]", "weight[moved]", says="with its columns, not with its rows"),
            swap(
                "moved = numbers[order]",
                "moved = numbers[torch.tensor(order).argsort()]",
                says="the other way round",
            ),
            swap(
                "weight[:, moved]",
                "weight[:, numbers[torch.tensor(order).argsort()].flatten()]",
                says="the columns of out_proj move the opposite way",
            ),
            swap("deepcopy(layer)", "layer", says="changed the one that it was given"),
            swap("    return new\n", "    return None\n", says="returns None"),
            swap("    return new\n", "    return new.state_dict()\n", says="is asked for"),
            swap("new.k_proj, new.v_proj)", "new.k_proj)", says="v_proj did not move"),
            swap(
                "new.q_proj, new.k_proj, new.v_proj",
                "new.v_proj,",
                says="q_proj and k_proj did not move",
            ),
            swap('"(h d) -> h d"', '"(d h) -> h d"', says="neighbouring rows"),
            swap("numbers[order].flatten()", "order", says="it raises"),
            swap(
                "new.q_proj, new.k_proj, new.v_proj",
                "new.q_proj, new.k_proj, new.v_proj, new.out_proj",
                says="the rows and the bias of out_proj moved, too",
            ),
            swap(
                "part.weight.copy_(part.weight[moved])",
                "part.weight.copy_(part.weight[:, moved])",
                says="the columns of q_proj, k_proj and v_proj moved",
            ),
            swap(
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n",
                "        new.out_proj.weight.copy_(new.out_proj.weight[:, moved])\n"
                "        new.out_proj.bias.copy_(new.out_proj.bias[moved])\n",
                says="the bias of out_proj moved, and it belongs to",
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
                says="heads are read from the layer that is being",
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
                says="k_proj and v_proj did not move, and neither did the columns of",
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
            swap("] = 0", "] *= 1", says="nobody is silent"),
            swap("weight[:, numbers", "weight[numbers", says="what it writes"),
            swap('"(h d) -> h d"', '"(d h) -> h d"', says="neighbouring columns"),
            swap("numbers[heads]", "numbers[heads[:1]]", says="only the first head"),
            swap(
                "    return quiet\n",
                "    quiet.out_proj.bias.data[:] = 0\n    return quiet\n",
                says="bias of out_proj belongs to no head",
            ),
            code(
                SILENCE.replace("out_proj.weight.data[:, ", "v_proj.weight.data["),
                says="the values still have their bias",
            ),
            code(
                SILENCE.replace(
                    "out_proj.weight.data[:, head * d : (head + 1) * d] = 0",
                    "out_proj.weight.data[:, head] = 0",
                ),
                says="has d columns of out_proj, not one",
            ),
            code(
                SILENCE.replace("out_proj.weight.data[:, ", "q_proj.weight.data["),
                says="zeros in the weight of q_proj",
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
                says="zeros in q_proj or k_proj",
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
                says="all others are silent",
            ),
            swap("quiet = deepcopy(layer)", "quiet = layer", says="silence changed the one"),
            code(
                """
                loaded = load_shipped("digits")

                def still_read(layer, heads, images, labels):
                    block = loaded.encoder.layers[layer]
                    block.attn = silence(block.attn, heads)
                    return (loaded(images).argmax(dim=-1) == labels).sum().item()
                """,
                says="silent in the next one, too",
            ),
            swap("layers[layer]", "layers[0]", says="whatever layer is asked for"),
            swap("layers[layer]", "layers[1 - layer]", says="the heads of the other layer"),
            swap("    block.attn = silence", "    silence", says="nobody is silent"),
            swap("== labels", "!= labels", says="counts what is read wrongly"),
            swap(".sum().item()", ".double().mean().item()", says="it is a share"),
            code(
                """
                def still_read(layer, heads, images, labels):
                    model = load_shipped("digits")
                    block = model.encoder.layers[layer]
                    block.attn = silence(block.attn, heads)
                    return model(images).argmax(dim=-1) == labels
                """,
                says="an int is asked for",
            ),
            code(
                """
                def still_read(layer, heads, images, labels):
                    return 110
                """,
                says="it gives the same for every input",
            ),
            code(
                """
                def still_read(layer, heads, images, labels):
                    model = load_shipped("digits")
                    silence(model.encoder.layers[layer].attn, heads)
                    return (model(images).argmax(dim=-1) == labels).sum().item()
                """,
                says="nobody is silent",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet = deepcopy(layer)
                    quiet.out_proj.weight[:, : layer.embed_dim // layer.num_heads] = 0
                    return quiet
                """,
                says="it raises RuntimeError: a",
            ),
            swap(
                "lost_alone = [before - still_read", "lost_alone = [still_read", says="still read"
            ),
            swap("[before -", "[360 -", says="only what it read can be lost"),
            swap("(0, [head]", "(1, [head]", says="the heads of layer 1"),
            swap("range(4)", "range(3)", says="a list of four numbers"),
            swap("(0, [head]", "(0, []", says="nothing is lost"),
            swap(
                "[before - still_read(0, [head], images, labels)",
                "[0 * head + still_read(0, [head], images, labels) - before",
                says="before minus after",
            ),
            swap(
                "lost_together = before -",
                "lost_together = sum(lost_alone)  #",
                says="the sum of the four",
            ),
            swap("lost_together = before -", "lost_together =", says="so many are still read"),
            swap("lost_together = before -", "lost_together = 360 -", says="only what it read"),
            swap("0, [0, 1, 2, 3]", "1, [0, 1, 2, 3]", says="the heads of layer 1"),
            swap("[0, 1, 2, 3]", "[0, 1, 2]", says="head 3 still speaks"),
            swap(
                "numbers = rearrange(\n"
                '        torch.arange(layer.embed_dim), "(h d) -> h d", h=layer.num_heads\n'
                "    )",
                "d = layer.num_heads\n"
                "    numbers = torch.stack([torch.arange(h * d, h * d + d) for h in "
                "range(layer.embed_dim // d)])",
                says="d is the width of a head, embed_dim //",
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
                says="the rows and the bias of out_proj are what",
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
                says="the columns of a head begin at head *",
            ),
            code(
                """
                def silence(layer, heads):
                    quiet, d = deepcopy(layer), layer.embed_dim // layer.num_heads
                    with torch.no_grad():
                        quiet.out_proj.weight[:, min(heads) * d : (max(heads) + 1) * d] = 0
                    return quiet
                """,
                says="all heads from the smallest to the largest of",
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
                says="the columns of v_proj are what it reads from",
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
