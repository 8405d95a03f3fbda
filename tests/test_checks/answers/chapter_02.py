"""Answers to the exercises of chapter 02, right and wrong."""

from exercise_bank import Bank, code, swap

BANK = {
    "02.1": Bank(
        wrong=[
            swap("(12, 10)", "(10, 12)", cause="sizes-in-another-order"),
            swap("(12, 10)", "(7, 10)", cause="look-at-axes new"),
            swap("(4, 7, 12)", "(4, 7, 10)", cause="look-at-axes new"),
            swap("(4, 7, 12)", "(4, 12, 7)", cause="sizes-in-another-order"),
            swap("(4, 3, 7, 4)", "(4, 7, 3, 4)", cause="sizes-in-another-order"),
            swap("(4, 3, 7, 4)", "(4, 3, 7, 12)", cause="look-at-axes d"),
            swap("(4, 3, 7, 4)", "(12, 7, 4)", cause="number-of-axes"),
            swap("12 * 10 + 12", "12 * 10", cause="learned-without-biases"),
            swap("12 * 10 + 12", "12 * 10 + 10", cause="learned-biases-of-token"),
            swap("12 * 10 + 12", "3 * (12 * 10 + 12)", cause="heads-share-rows"),
            swap("12 * 10 + 12", "(12, 10)", cause="number-is-asked"),
        ],
        right=[
            swap("(12, 10)", "torch.Size([12, 10])"),
            swap("12 * 10 + 12", "sum(p.numel() for p in nn.Linear(10, 12).parameters())"),
        ],
    ),
    "02.2": Bank(
        wrong=[
            code(
                """
                def split_heads(x, num_heads):
                    b, n, width = x.shape
                    return x.view(b, num_heads, n, width // num_heads)
                """,
                cause="heads-cut-by-memory",
            ),
            code(
                """
                def split_heads(x, num_heads):
                    b, n, width = x.shape
                    return x.reshape(b, n, width // num_heads, num_heads).permute(0, 3, 1, 2)
                """,
                cause="heads-take-every-hth",
            ),
            swap("num_heads).transpose(1, 2)", "num_heads)", cause="shape-differs"),
            swap("num_heads).transpose(1, 2)", "num_heads).transpose(2, 3)", cause="shape-differs"),
            code(
                """
                def split_heads(x, num_heads):
                    return rearrange(x, "b n (h d) -> b h n d", h=num_heads)
                """,
                cause="calls-shortcut rearrange",
            ),
            code(
                """
                def split_heads(x, num_heads):
                    b, n, width = x.shape
                    return x.reshape(b, n, 8, width // 8).transpose(1, 2)
                """,
                cause="raises RuntimeError",
            ),
            code(
                """
                def join_heads(heads):
                    b, h, n, d = heads.shape
                    return heads.reshape(b, n, h * d)
                """,
                cause="heads-cut-by-memory",
            ),
            code(
                """
                def join_heads(heads):
                    b, h, n, d = heads.shape
                    return heads.transpose(1, 2).view(b, n, h * d)
                """,
                cause="raises RuntimeError",
            ),
            code(
                """
                def join_heads(heads):
                    return torch.cat(heads.split(1, dim=1), dim=-1).squeeze()
                """,
                cause="not-at-size-one",
            ),
            code(
                """
                def join_heads(heads):
                    b, h, n, d = heads.shape
                    return heads.permute(0, 2, 3, 1).reshape(b, n, h * d)
                """,
                cause="heads-shuffled-at-join",
            ),
            code(
                """
                def join_heads(heads):
                    b, h, n, d = heads.shape
                    heads.unsqueeze_(0)
                    return heads[0].transpose(1, 2).reshape(b, n, h * d)
                """,
                cause="changed-in-place heads",
            ),
            code(
                """
                from einops.layers.torch import Rearrange


                def join_heads(heads):
                    return Rearrange("b h n d -> b n (h d)")(heads)
                """,
                cause="calls-shortcut Rearrange",
            ),
        ],
        right=[
            code(
                """
                def join_heads(heads):
                    b, h, n, d = heads.shape
                    return heads.transpose(1, 2).reshape(b, n, h * d).float()
                """,
            ),
            code(
                """
                def split_heads(x, num_heads):
                    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


                def join_heads(heads):
                    return torch.cat(heads.unbind(1), dim=-1)
                """
            ),
            code(
                """
                def split_heads(x, num_heads):
                    return x.unflatten(-1, (num_heads, -1)).permute(0, 2, 1, 3)


                def join_heads(heads):
                    return heads.movedim(1, 2).flatten(2)
                """
            ),
            code(
                """
                def split_heads(x, num_heads):
                    b, n, width = x.shape
                    return x.view(b, n, num_heads, -1).swapaxes(1, 2).contiguous()


                def join_heads(heads):
                    b, h, n, d = heads.shape
                    return heads.transpose(1, 2).contiguous().view(b, n, -1)
                """
            ),
        ],
        equivalent={
            "return x.reshape(b, n, num_heads, width // num_heads).transpose(1, 2) => "
            "return x.reshape(b, n, num_heads, width // num_heads).transpose(2, 1)": "transpose "
            "exchanges two axes, whichever is named first",
            "return heads.transpose(1, 2).reshape(b, n, h * d) => "
            "return heads.transpose(2, 1).reshape(b, n, h * d)": "transpose exchanges two axes, "
            "whichever is named first",
        },
    ),
    "02.3": Bank(
        wrong=[
            swap('d e -> b n d") + bias', 'd e -> b n d")', cause="head-biases-missing"),
            swap("dim=1)", "dim=2)", cause="shape-differs"),
            swap("dim=1)", "dim=0)", cause="shape-differs"),
            swap("einsum(x, table, ", "einsum(x, tables[0], ", cause="table-of-head-zero"),
            swap(
                "return torch.stack(heads, dim=1)",
                "return torch.stack(heads, dim=2).reshape(len(x), len(tables), x.shape[1], -1)",
                cause="heads-reshaped-to-front",
            ),
            swap(
                "zip(tables, biases)", "zip(tables.flip(0), biases.flip(0))", cause="heads-reversed"
            ),
            swap(
                'return projected + rearrange(biases, "h d -> h 1 d")',
                "return projected",
                cause="head-biases-missing",
            ),
            swap(
                "projected + rearrange(biases, ",
                "projected - rearrange(biases, ",
                cause="head-biases-subtracted",
            ),
            swap('rearrange(biases, "h d -> h 1 d")', "biases", cause="raises RuntimeError"),
            swap('rearrange(biases, "h d -> h 1 d")', "biases[0]", cause="biases-of-head-zero"),
            swap('rearrange(biases, "h d -> h 1 d")', "biases.sum(0)", cause="sum-of-head-biases"),
            swap("-> b h n d", "-> b n h d", cause="raises RuntimeError"),
            code(
                """
                def heads(x, tables, biases):
                    return heads_loop(x, tables, biases)
                """,
                cause="loops-and-may-not",
            ),
            code(
                """
                def heads(x, tables, biases):
                    wide = einsum(x, tables, "b n e, h d e -> b n h d") + biases
                    return wide.view(len(x), len(tables), x.shape[1], -1)
                """,
                cause="heads-reshaped-to-front",
            ),
            code(
                """
                def heads_loop(x, tables, biases):
                    return heads(x, tables, biases)
                """,
                cause="loop-is-missing",
            ),
            code(
                """
                def heads(x, tables, biases):
                    return einsum(x, tables, "b n e, z d e -> b n d")[:, None] + biases[:, None]
                """,
                cause="sum-of-head-tables",
            ),
        ],
        right=[
            code(
                """
                def heads_loop(x, tables, biases):
                    linear = torch.nn.functional.linear
                    return torch.stack([linear(x, *pair) for pair in zip(tables, biases)], dim=1)


                def heads(x, tables, biases):
                    return x[:, None] @ tables.mT + biases[:, None]
                """
            ),
            code(
                """
                def heads_loop(x, tables, biases):
                    result = torch.zeros(len(x), len(tables), x.shape[1], tables.shape[1])
                    result = result.to(x.dtype)
                    for h in range(len(tables)):
                        result[:, h] = x @ tables[h].T + biases[h]
                    return result


                def heads(x, tables, biases):
                    wide = x @ tables.flatten(0, 1).T + biases.flatten()
                    return rearrange(wide, "b n (h d) -> b h n d", h=len(tables))
                """
            ),
        ],
    ),
    "02.4": Bank(
        wrong=[
            code("Healthy = Buggy", cause="shape-differs"),
            swap(
                "nn.Linear(embed_dim, embed_dim)",
                "nn.Linear(embed_dim, embed_dim // num_heads)",
                cause="shape-differs",
            ),
            swap(
                "nn.Linear(embed_dim, embed_dim)",
                "nn.Linear(embed_dim, embed_dim, bias=False)",
                cause="bias-missing q_proj",
            ),
            swap("self.q_proj", "self.query", cause="parameter-missing"),
            swap("b n (h d) ->", "b n (d h) ->", cause="heads-take-every-hth"),
            swap("-> b h n d", "-> b n h d", cause="shape-differs"),
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.q_proj = nn.Linear(embed_dim, embed_dim)

                    def forward(self, x):
                        b, n, e = x.shape
                        return self.q_proj(x).view(b, self.num_heads, n, e // self.num_heads)
                """,
                cause="heads-cut-by-memory",
            ),
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.q_proj = nn.Linear(embed_dim, embed_dim)

                    def forward(self, x):
                        return self.q_proj(rearrange(x, "b n (h d) -> b h n d", h=self.num_heads))
                """,
                cause="raises RuntimeError",
            ),
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        d = embed_dim // num_heads
                        self.q_proj = nn.ModuleList(nn.Linear(d, d) for _ in range(num_heads))

                    def forward(self, x):
                        parts = zip(self.q_proj, x.chunk(self.num_heads, dim=-1))
                        return torch.stack([layer(part) for layer, part in parts], dim=1)
                """,
                cause="too-few-layers q_proj",
            ),
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.q_proj = nn.Linear(embed_dim, embed_dim)

                    def forward(self, x):
                        with torch.no_grad():
                            queries = self.q_proj(x)
                        return rearrange(queries, "b n (h d) -> b h n d", h=self.num_heads)
                """,
                cause="no-gradient",
            ),
        ],
        right=[
            code(
                """
                class Healthy(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.q_proj = nn.Linear(embed_dim, embed_dim)

                    def forward(self, x):
                        return self.q_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                """
            ),
            code(
                """
                class Healthy(Buggy):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__(embed_dim, num_heads)
                        self.q_proj = nn.Linear(embed_dim, embed_dim)

                    def forward(self, x):
                        weight, bias = self.q_proj.weight, self.q_proj.bias
                        tables = rearrange(weight, "(h d) e -> h d e", h=self.num_heads)
                        biases = rearrange(bias, "(h d) -> h 1 d", h=self.num_heads)
                        return einsum(x, tables, "b n e, h d e -> b h n d") + biases
                """
            ),
        ],
    ),
    "02.5": Bank(
        wrong=[
            swap("b n (three h d) ->", "b n (h three d) ->", cause="wide-read-head-by-head"),
            swap("b n (three h d) ->", "b n (h d three) ->", cause="wide-read-in-turns"),
            swap("b n (three h d) ->", "b n (three d h) ->", cause="wide-every-hth"),
            swap("three b h n d", "three b n h d", cause="shape-differs"),
            swap("return q, k, v", "return k, q, v", cause="wide-queries-keys-exchanged"),
            swap("return q, k, v", "return v, k, q", cause="wide-reversed"),
            swap("return q, k, v", "return q, k, k", cause="wide-keys-as-values"),
            swap("return q, k, v", "return torch.stack([q, k, v])", cause="is-no-sequence"),
            swap("return q, k, v", "return q, k", cause="has-parts"),
            swap("3 * embed_dim", "embed_dim", cause="shape-differs"),
            swap("self.qkv_proj", "self.proj", cause="parameter-missing"),
            code(
                """
                class WideProjection(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)

                    def forward(self, x):
                        b, n, e = x.shape
                        q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
                        return tuple(t.reshape(b, self.num_heads, n, -1) for t in (q, k, v))
                """,
                cause="wide-heads-by-memory",
            ),
            code(
                """
                class WideProjection(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.num_heads = num_heads
                        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)

                    def forward(self, x):
                        b, n, e = x.shape
                        q, k, v = self.qkv_proj(x).view(3, b, self.num_heads, n, -1)
                        return q, k, v
                """,
                cause="wide-parts-by-memory",
            ),
            code(
                """
                def in_our_order(weight, num_heads):
                    return rearrange(weight, "(three h d) e -> (h three d) e", three=3, h=num_heads)
                """,
                cause="order-ours-to-theirs",
            ),
            swap("-> (three h d) e", "-> (three d h) e", cause="order-every-hth"),
            swap('"(h three d) e', '"(h d three) e', cause="order-read-in-turns"),
            code(
                """
                def in_our_order(weight, num_heads):
                    return weight.reshape(3, num_heads, -1, weight.shape[1]).flatten(0, 2)
                """,
                cause="returns-argument weight",
            ),
        ],
        right=[
            code(
                """
                class WideProjection(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.h = num_heads
                        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)

                    def forward(self, x):
                        parts = self.qkv_proj(x).chunk(3, dim=-1)
                        return [t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in parts]


                def in_our_order(weight, num_heads):
                    d = len(weight) // num_heads // 3
                    blocks = weight.view(num_heads, 3, d, -1)
                    return torch.cat([blocks[:, i].flatten(0, 1) for i in range(3)])
                """
            ),
            code(
                """
                class WideProjection(nn.Module):
                    def __init__(self, embed_dim, num_heads):
                        super().__init__()
                        self.qkv_proj = nn.Linear(embed_dim, embed_dim * 3)
                        self.num_heads, self.d = num_heads, embed_dim // num_heads

                    def forward(self, x):
                        b, n, _ = x.shape
                        wide = self.qkv_proj(x).view(b, n, 3, self.num_heads, self.d)
                        return wide.permute(2, 0, 3, 1, 4).unbind(0)


                def in_our_order(weight, num_heads):
                    places = torch.arange(len(weight))
                    rows = rearrange(places, "(h t d) -> (t h d)", t=3, h=num_heads)
                    return weight[rows]
                """
            ),
        ],
    ),
    "02.6": Bank(
        wrong=[
            swap(
                "torch.randn(1000, embed_dim)",
                "torch.randn(10, embed_dim)",
                cause="too-few-samples",
            ),
            swap(
                "torch.randn(1000, embed_dim)",
                "torch.rand(1000, embed_dim)",
                cause="uniform-for-normal",
            ),
            swap(
                "tables * embed_dim, embed_dim",
                "embed_dim, embed_dim",
                cause="variance-of-own-table",
            ),
            swap(".var()", ".std()", cause="deviation-not-variance"),
            swap("(tokens @ table[:embed_dim].T)", "table", cause="variance-of-weights"),
            swap(
                "nn.init.xavier_uniform_(table)",
                "nn.init.kaiming_uniform_(table, 5**0.5)",
                cause="linear-fills-otherwise",
            ),
            code(
                """
                def measure(embed_dim, tables):
                    return 2 / (1 + tables)
                """,
                cause="nothing-measured",
            ),
            code(
                """
                def measure(embed_dim, tables):
                    return 0.5
                """,
                cause="nothing-measured",
            ),
            code(
                """
                def measure(embed_dim, tables):
                    linear = nn.Linear(embed_dim, tables * embed_dim)
                    return linear(torch.randn(1000, embed_dim)).var().item()
                """,
                cause="linear-fills-otherwise",
            ),
            swap(".var().item()", ".var(dim=0)", cause="measure-is-no-number"),
            swap("** 0.5", "* 1.0", cause="gain-root-missing"),
            swap("((1 + tables) / 2) ** 0.5", "tables**0.5", cause="gain-root-of-tables"),
            swap("((1 + tables) / 2) ** 0.5", "2**0.5", cause="gain-for-three-tables"),
            swap(
                "((1 + tables) / 2) ** 0.5", "(2 / (1 + tables)) ** 0.5", cause="gain-upside-down"
            ),
            swap("((1 + tables) / 2) ** 0.5", "2 / (1 + tables)", cause="gain-is-variance"),
        ],
        right=[
            code(
                """
                def gain(tables):
                    return torch.tensor((1 + tables) / 2).sqrt()
                """
            ),
            code(
                """
                def gain(tables):
                    return measure(96, tables) ** -0.5
                """
            ),
            code(
                """
                def measure(embed_dim, tables):
                    wide = nn.Linear(embed_dim, tables * embed_dim, bias=False)
                    nn.init.xavier_uniform_(wide.weight)
                    with torch.no_grad():
                        return wide(torch.randn(1200, embed_dim))[:, :embed_dim].var()
                """
            ),
            code(
                """
                def measure(embed_dim, tables):
                    table = nn.init.xavier_uniform_(torch.zeros(embed_dim * tables, embed_dim))
                    tokens = torch.randn(8, 250, embed_dim)
                    q = einsum(tokens, table[:embed_dim], "b n e, new e -> b n new")
                    return float(q.square().mean())


                def gain(tables):
                    return (tables / 2 + 0.5) ** (1 / 2)
                """
            ),
        ],
        equivalent={
            "return (tokens @ table[:embed_dim].T).var().item() => "
            "return ((tokens @ table[:embed_dim].T).var())": "a tensor of one number",
            "tokens = torch.randn(1000, embed_dim) => "
            "tokens = torch.randn(1001, embed_dim)": "one token more",
            "tokens = torch.randn(1000, embed_dim) => "
            "tokens = torch.randn(999, embed_dim)": "one token less",
            "return (tokens @ table[:embed_dim].T).var().item() => "
            "return (tokens @ (table[:embed_dim])).var().item()": "the first rows are a square of "
            "random numbers: its columns have the variance of its rows",
            "return (tokens @ table[:embed_dim].T).var().item() => "
            "return (tokens @ (table).T).var().item()": "all rows of the wide table are filled "
            "alike: keys and values have the variance of the queries",
        },
    ),
}
