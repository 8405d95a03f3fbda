"""Answers to the exercises of chapter 03, right and wrong."""

from exercise_bank import Bank, code, swap

NOT_SCALED = swap(" / q.shape[-1] ** 0.5", "", cause="scores-not-divided")
OVER_QUERIES = swap("softmax(dim=-1)", "softmax(dim=-2)", cause="softmax-over-queries")

# As well for 03.4 as for 03.5: another way to write each step.
RIGHT_ATTENTIONS = [
    """
    def NAME(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        return weights @ v, weights
    """,
    """
    def NAME(q, k, v):
        scores = torch.matmul(q / q.shape[-1] ** 0.5, k.mT)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = powers / powers.sum(-1, keepdim=True)
        return torch.einsum("...ij,...jd->...id", weights, v), weights
    """,
]


def right_attentions(name):
    return [code(text.replace("NAME", name)) for text in RIGHT_ATTENTIONS]


def constant(name):
    return code(
        f"""
        def {name}(q, k, v):
            weights = torch.full((*q.shape[:-1], k.shape[-2]), 1 / k.shape[-2], dtype=q.dtype)
            return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype), weights
        """,
        cause="same-for-every-input",
    )


BANK = {
    "03.1": Bank(
        wrong=[
            swap("(2, 3, 5, 7)", "(2, 3, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 3, 5, 7)", "(2, 3, 5, 5)", cause="look-at-axes j"),
            swap("(2, 3, 5, 7)", "(3, 5, 7)", cause="number-of-axes"),
            swap("(2, 3, 5, 6)", "(2, 3, 5, 4)", cause="look-at-axes dv"),
            swap("(2, 3, 5, 6)", "(2, 3, 7, 6)", cause="look-at-axes i"),
            swap("(2, 3, 5, 7)", "210", cause="no-shape"),
        ],
        right=[
            swap("(2, 3, 5, 7)", "[2, 3, 5, 7]"),
            swap("(2, 3, 5, 6)", "torch.Size([2, 3, 5, 6])"),
        ],
    ),
    "03.2": Bank(
        wrong=[
            code(
                """
                def softmax(scores):
                    powers = torch.exp(scores - scores.mean(-1, keepdim=True))
                    return powers / powers.sum(-1, keepdim=True)
                """,
                cause="softmax-less-mean",
            ),
            code(
                """
                def softmax(scores):
                    powers = torch.exp(scores)
                    return powers / powers.sum(-1, keepdim=True)
                """,
                cause="softmax-less-nothing",
            ),
            swap(
                "powers / powers.sum(dim=-1, keepdim=True)",
                "powers / powers.sum()",
                cause="softmax-over-everything",
            ),
            swap("dim=-1", "dim=-2", cause="softmax-over-queries"),
            swap("dim=-1", "dim=1", cause="softmax-over-heads"),
            swap(
                "powers / powers.sum(dim=-1, keepdim=True)",
                "powers",
                cause="softmax-without-division",
            ),
            code(
                """
                def softmax(scores):
                    return scores.exp()
                """,
                cause="softmax-without-division",
            ),
            code(
                """
                def softmax(scores):
                    return scores.softmax(dim=-1)
                """,
                cause="calls-shortcut softmax",
            ),
            code(
                """
                def softmax(scores):
                    return torch.nn.functional.log_softmax(scores, -1).exp()
                """,
                cause="calls-shortcut log_softmax",
            ),
            code(
                """
                def softmax(scores):
                    powers = scores.exp()
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                cause="softmax-less-nothing",
            ),
            code(
                """
                def softmax(scores):
                    scores -= scores.amax(dim=-1, keepdim=True)
                    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
                """,
                cause="changed-in-place",
            ),
            code(
                """
                def softmax(scores):
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    return powers / powers.sum()
                """,
                cause="softmax-over-everything",
            ),
            code(
                """
                def softmax(scores):
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp().detach()
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                cause="no-gradient scores",
            ),
            code(
                """
                def softmax(scores):
                    powers = (scores - scores.max()).exp()
                    return powers / powers.sum(-1, keepdim=True)
                """,
                cause="softmax-less-total",
            ),
            code(
                """
                def softmax(scores):
                    powers = scores.clamp(max=80).exp()
                    return powers / powers.sum(-1, keepdim=True)
                """,
                cause="softmax-subtract-largest",
            ),
            swap("dim=-1", "dim=0", cause="softmax-over-batch"),
        ],
        right=[
            code(
                """
                def softmax(scores):
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp().float()
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
            ),
            code(
                """
                def softmax(scores):
                    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
                    return powers / powers.sum(-1)[..., None]
                """
            ),
            code(
                """
                def softmax(scores):
                    shifted = scores - scores.detach().amax(-1).unsqueeze(-1)
                    return shifted.exp() * shifted.exp().sum(-1, keepdim=True).reciprocal()
                """
            ),
        ],
    ),
    "03.3": Bank(
        wrong=[
            code(  # in single precision, as hint 1 has it: that is not the mistake
                """
                def scores_loop(q, k):
                    scores = torch.zeros(len(q), len(k))
                    for i in range(len(q)):
                        for j in range(len(k)):
                            scores[i, j] = (q[i] * k[j]).sum()
                    return scores
                """,
                cause="scores-not-divided",
            ),
            code(
                """
                def scores(q, k):
                    return einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[1] ** 0.5
                """,
                cause="scores-divided-by-heads",
            ),
            code(
                """
                def scores(q, k):
                    return einsum(q, k, "b h i d, b h j d -> b h i j") / len(q) ** 0.5
                """,
                cause="scores-divided-by-axis",
            ),
            NOT_SCALED,
            swap("** 0.5", "", cause="scores-divided-by-d"),
            swap("q.shape[-1] ** 0.5", "q.shape[-2] ** 0.5", cause="scores-divided-by-queries"),
            swap("-> b h i j", "-> b h j i", cause="scores-transposed"),
            swap(
                "/ q.shape[-1] ** 0.5\n    ### END",
                "/ (q.shape[1] * q.shape[-1]) ** 0.5\n    ### END",
                cause="scores-divided-by-token-width",
            ),
            code(
                """
                def scores(q, k):
                    rows = [q[:, :, i : i + 1] @ k.mT for i in range(q.shape[2])]
                    return torch.cat(rows, dim=2) / q.shape[-1] ** 0.5
                """,
                cause="loops-and-may-not",
            ),
            code(
                """
                def scores(q, k):
                    return q @ k.mT / 96**0.5
                """,
                cause="scores-divided-by-a-fixed-number",
            ),
            code(
                """
                def scores(q, k):
                    q /= q.shape[-1] ** 0.5
                    return q @ k.mT
                """,
                cause="changed-in-place q",
            ),
            code(
                """
                def scores_loop(q, k):
                    return q @ k.T / q.shape[-1] ** 0.5
                """,
                cause="loop-is-missing",
            ),
            code(
                """
                def scores(q, k):
                    b, h, j, d = k.shape
                    return q @ k.view(b, h, d, j) / d**0.5
                """,
                cause="keys-viewed",
            ),
            code(
                """
                def scores(q, k):
                    pairs = zip(q.flatten(0, 1), k.flatten(0, 1))
                    tables = torch.stack([scores_loop(a, b) for a, b in pairs])
                    return tables.unflatten(0, q.shape[:2])
                """,
                cause="loops-and-may-not",
            ),
            code(
                """
                def scores(q, k):
                    return einsum(q, k, "b h i d, b z j d -> b h i j") / q.shape[-1] ** 0.5
                """,
                cause="scores-of-all-heads",
            ),
        ],
        right=[
            swap(", dtype=q.dtype", ""),
            code(
                """
                def scores_loop(q, k):
                    table = torch.zeros(len(q), len(k), dtype=q.dtype)
                    for i in range(len(q)):
                        for j in range(len(k)):
                            total = 0.0
                            for x, y in zip(q[i].tolist(), k[j].tolist()):
                                total += x * y
                            table[i, j] = total / q.shape[1] ** 0.5
                    return table


                def scores(q, k):
                    return q @ k.mT / torch.tensor(q.shape[-1]).sqrt()
                """
            ),
            code(
                """
                def scores_loop(q, k):
                    rows = [[q_i @ k_j / len(q_i) ** 0.5 for k_j in k] for q_i in q]
                    return torch.stack([torch.stack(row) for row in rows])
                """
            ),
            code(
                """
                def scores(q, k):
                    return q.matmul(k.transpose(2, 3)).div(q.size(3) ** 0.5)
                """
            ),
            code(
                """
                def scores(q, k):
                    return (q[:, :, :, None] * k[:, :, None]).sum(-1) * q.shape[-1] ** -0.5
                """
            ),
        ],
        equivalent={
            "scores = torch.zeros(len(q), len(k), dtype=q.dtype) => "
            "scores = torch.zeros(len(q), len(k))": "the check judges it in double "
            "precision, the notebook in single",
            "scores = torch.zeros(len(q), len(k), dtype=q.dtype) => "
            "scores = torch.ones(len(q), len(k), dtype=q.dtype)": "every number is overwritten",
            "scores[i, j] = (q[i] * k[j]).sum() / q.shape[-1] ** 0.5 => "
            "scores[i, j] = (q[i] * k[j]).sum() / q.shape[(1)] ** 0.5": "the last of two axes",
        },
    ),
    "03.4": Bank(
        wrong=[
            code(
                """
                def attention(q, k, v):
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    weights = scores.flatten(-2).softmax(dim=-1).view(scores.shape)
                    return weights @ v, weights
                """,
                cause="softmax-over-queries-and-keys",
            ),
            code(
                """
                def attention(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=0)
                    return weights @ v, weights
                """,
                cause="softmax-over-axis-zero",
            ),
            OVER_QUERIES,
            NOT_SCALED,
            code(
                """
                def attention(q, k, v):
                    weights = (q @ k.mT).softmax(dim=-1) / q.shape[-1] ** 0.5
                    return weights @ v, weights
                """,
                cause="weights-divided",
            ),
            swap("q.shape[-1] ** 0.5", "v.shape[-1] ** 0.5", cause="scores-divided-by-value-width"),
            swap(", weights\n", ", scores\n", cause="scores-returned"),
            swap(
                'einsum(weights, v, "... i j, ... j dv -> ... i dv"), weights',
                'einsum(weights, v, "... i j, ... j dv -> ... i dv")',
                cause="is-no-sequence",
            ),
            code(
                """
                def attention(q, k, v):
                    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                    return mixed, (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
                """,
                cause="calls-shortcut scaled_dot_product_attention",
            ),
            code(
                """
                from utils.attention import scaled_dot_product_attention as attend

                def attention(q, k, v):
                    return attend(q, k, v)
                """,
                cause="calls-shortcut scaled_dot_product_attention",
            ),
            constant("attention"),
        ],
        right=right_attentions("attention"),
    ),
    "03.5": Bank(
        wrong=[
            code(
                """
                def healthy(q, k, v):
                    weights = (q @ k.mT / len(q) ** 0.5).softmax(dim=-1)
                    return weights @ v, weights
                """,
                cause="scores-divided-by-axis",
            ),
            code(
                """
                def healthy(q, k, v):
                    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
                    return weights @ v / q.shape[-1] ** 0.5, weights
                """,
                cause="mix-divided",
            ),
            code(
                """
                def healthy(q, k, v):
                    weights = (q @ k.mT).softmax(dim=-1)
                    return weights @ v / q.shape[-1] ** 0.5, weights
                """,
                cause="mix-divided",
            ),
            code("healthy = buggy", cause="weights-divided"),
            OVER_QUERIES,
            NOT_SCALED,
            swap("q.shape[-1] ** 0.5", "q.shape[-1]", cause="scores-divided-by-d"),
            swap("weights = scores.softmax(dim=-1)", "weights = scores", cause="no-softmax"),
            swap("q.shape[-1] ** 0.5", "k.shape[-2] ** 0.5", cause="scores-divided-by-keys"),
            constant("healthy"),
        ],
        right=right_attentions("healthy"),
    ),
    "03.6": Bank(
        wrong=[
            swap("20_000", "100", cause="too-few-samples"),
            code(
                """
                def measure(d, q_std, k_std):
                    q, k = torch.randn(100, d) * q_std, torch.randn(100, d) * k_std
                    return (q * k).sum(-1).var().item()
                """,
                cause="too-few-samples",
            ),
            swap(
                "torch.randn(",
                "torch.rand(",
                cause="uniform-for-normal",
            ),
            swap(" * k * k_std", " * k", cause="keys-without-spread"),
            swap("q * q_std * k", "q * k", cause="queries-without-spread"),
            swap(".var()", ".std()", cause="deviation-not-variance"),
            swap(".sum(dim=-1).var()", ".var()", cause="products-not-summed"),
            swap(".sum(dim=-1)", ".mean(dim=-1)", cause="products-averaged"),
            swap("d**0.5 * q_std * k_std", "d**0.5", cause="divisor-without-spreads"),
            swap("d**0.5 * q_std", "d * q_std", cause="divisor-width-without-root"),
            swap(
                "d**0.5 * q_std * k_std",
                "d * (q_std * k_std) ** 2",
                cause="divisor-is-variance",
            ),
            swap(
                "d**0.5 * q_std * k_std",
                "(d * q_std * k_std) ** 0.5",
                cause="divisor-root-of-spreads",
            ),
            code(
                """
                def measure(d, q_std, k_std):
                    return float(d * (q_std * k_std) ** 2)
                """,
                cause="nothing-measured",
            ),
            code(
                """
                def measure(d, q_std, k_std):
                    return 64.0
                """,
                cause="same-for-all-sizes",
            ),
            swap(
                ".sum(dim=-1).var()",
                ".sum(dim=-1).div(d**0.5).var()",
                cause="products-not-summed",
            ),
            swap(
                "d**0.5 * q_std * k_std",
                "d**0.5 * (q_std + k_std)",
                cause="divisor-spreads-added",
            ),
            swap(
                "d**0.5 * q_std * k_std",
                "1 / (d**0.5 * q_std * k_std)",
                cause="divisor-upside-down",
            ),
        ],
        right=[
            code(
                """
                import numpy


                def measure(d, q_std, k_std):
                    q = numpy.random.normal(0, q_std, (20_000, d))
                    k = numpy.random.normal(0, k_std, (20_000, d))
                    return (q * k).sum(axis=1).var()


                def divisor(d, q_std, k_std):
                    return torch.tensor(measure(d, q_std, k_std)).sqrt()
                """
            ),
            code(
                """
                def measure(d, q_std, k_std):
                    torch.manual_seed(1)
                    q, k = torch.randn(30_000, d) * q_std, torch.randn(30_000, d) * k_std
                    return einsum(q, k, "n d, n d -> n").var()
                """
            ),
            code(
                """
                def measure(d, q_std, k_std):
                    q = torch.empty(25_000, d).normal_(generator=torch.Generator().manual_seed(2))
                    k = torch.normal(0.0, float(k_std), (25_000, d))
                    return ((q * q_std * k).sum(1) ** 2).mean().item()


                def divisor(d, q_std, k_std):
                    return (d * q_std**2 * k_std**2) ** 0.5
                """
            ),
        ],
        equivalent={
            "generator = torch.Generator().manual_seed(0) => ...": "other random numbers, or "
            "unseeded ones: the same variance within the margin",
            "q, k = torch.randn(2, 20_000, d, generator=generator) => "
            "q, k = torch.randn(2, 20000, d)": "unseeded numbers have the same variance",
            "q, k = torch.randn(2, 20_000, d, generator=generator) => "
            "q, k = torch.randn(2, 20001, d, generator=generator)": "one experiment more",
            "q, k = torch.randn(2, 20_000, d, generator=generator) => "
            "q, k = torch.randn(2, 19999, d, generator=generator)": "one experiment less",
            "return (q * q_std * k * k_std).sum(dim=-1).var().item() => "
            "return ((q * q_std * k * k_std).sum(dim=-1).var())": "a tensor of one number",
            "return (q * q_std * k * k_std).sum(dim=-1).var().item() => "
            "return (q * q_std * k * k_std).sum(dim=(1)).var().item()": "axis 1 is the last",
            "return (q * q_std * k * k_std).sum(dim=-1).var().item() => "
            "return ((q * q_std) * k_std).sum(dim=-1).var().item()": "without the keys, "
            "whose variance is 1, the sum has the same variance",
            "return (q * q_std * k * k_std).sum(dim=-1).var().item() => "
            "return ((q_std) * k * k_std).sum(dim=-1).var().item()": "without the queries, "
            "whose variance is 1, the sum has the same variance",
        },
    ),
}
