"""Answers to the exercises of chapter 16, right and wrong."""

from exercise_bank import Bank, code, swap

BYTES = "2 * 6 * 5 * 4 * 33 * 8 * 4"
ONE, TWO = "(top_1 - top).exp()", "(top_2 - top).exp()"
PLACES = "j - i + first + torch.arange(rows.shape[2])[:, None]"
FACTORS = "sizes * len(sizes) / sizes.sum()"
PAIRS = "[(k[parents], v[parents]) for k, v in layers]"
X_SCALE = "x.abs().amax(dim=-1, keepdim=True) / 127"
SCALE = "weight.abs().amax(dim=-1, keepdim=True) / 127"


BANK = {
    "16.1": Bank(
        wrong=[
            swap("(5, 4, 1, 8)", "(5, 4, 33, 8)", says="look at n"),
            swap("(5, 4, 1, 8)", "(5, 1, 4, 8)", says="right sizes in another order"),
            swap("(5, 4, 33, 8)", "(5, 12, 33, 8)", says="look at g"),
            swap("(5, 4, 33, 8)", "(5, 4, 20, 8)", says="look at n"),
            swap("(5, 12, 1, 33)", "(5, 12, 33, 33)", says="look at i"),
            swap("(5, 12, 1, 33)", "(5, 4, 1, 33)", says="look at h"),
            swap("(5, 12, 1, 33)", "(5, 12, 33)", says="needs 4 axes"),
            swap(BYTES, "6 * 5 * 4 * 33 * 8 * 4", says="keys and values are kept"),
            swap(BYTES, "2 * 5 * 4 * 33 * 8 * 4", says="that is one layer"),
            swap(BYTES, "5 * 4 * 33 * 8 * 4", says="the keys of one layer"),
            swap(BYTES, "2 * 6 * 4 * 33 * 8 * 4", says="that is one text"),
            swap(BYTES, "2 * 6 * 5 * 4 * 8 * 4", says="one token of each text"),
            swap(BYTES, "2 * 6 * 5 * 4 * 20 * 8 * 4", says="the first 20 tokens"),
            swap(BYTES, "2 * 6 * 5 * 4 * 13 * 8 * 4", says="the 13 later tokens"),
            swap(BYTES, "2 * 6 * 5 * 4 * 32 * 8 * 4", says="one token too few"),
            swap(BYTES, "2 * 6 * 5 * 4 * 33 * 8", says="each has 4 bytes"),
            swap(BYTES, "2 * 6 * 5 * 12 * 33 * 8 * 4", says="queries are not kept"),
        ],
        right=[
            swap("(5, 4, 1, 8)", "torch.Size([5, 4, 1, 8])"),
            swap(BYTES, "torch.tensor(253440.0)"),
        ],
    ),
    "16.2": Bank(
        wrong=[
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    return torch.maximum(top_1, top_2), total_1 + total_2, mixed_1 + mixed_2
                """,
                says="added as they are",
            ),
            swap(
                "mixed_1 * shrink_1 + mixed_2 * shrink_2", "mixed_1 + mixed_2", says="mixed is not"
            ),
            swap(
                "total = total_1 * shrink_1 + total_2 * shrink_2",
                "total = total_1 + total_2",
                says="total is not",
            ),
            swap(f"{ONE}, {TWO}", "(top - top_1).exp(), (top - top_2).exp()", says="wrong sign"),
            swap(f"{ONE}, {TWO}", f"{TWO}, {ONE}", says="are exchanged"),
            swap(f"{ONE}, {TWO}", "top_1 - top, top_2 - top", says="not the difference itself"),
            swap(f"{ONE}, {TWO}", "top_1.exp(), top_2.exp()", says="as they are"),
            swap(
                "mixed_1 * shrink_1 + mixed_2 * shrink_2",
                "(mixed_1 * shrink_1 + mixed_2 * shrink_2) / total",
                says="divided by total already",
            ),
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    top = torch.maximum(top_1, top_2)
                    one, two = (top_1 - top).exp(), (top_2 - top).exp()
                    mixed = mixed_1 / total_1 * one + mixed_2 / total_2 * two
                    return top, total_1 * one + total_2 * two, mixed
                """,
                says="by its own total",
            ),
            swap("torch.maximum", "torch.minimum", says="the smaller maximum"),
            swap("torch.maximum(top_1, top_2)", "top_1", says="of the first half"),
            swap("torch.maximum(top_1, top_2)", "top_2", says="of the second half"),
            swap("torch.maximum(top_1, top_2)", "(top_1 + top_2) / 2", says="the mean of the two"),
            swap(
                "torch.maximum(top_1, top_2)",
                "torch.maximum(top_1, top_2).max().expand_as(top_1)",
                says="each query has its own",
            ),
        ],
        right=[
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    tops = torch.stack([top_1, top_2])
                    top = tops.amax(dim=0)
                    shrink = torch.exp(tops - top)
                    total = (torch.stack([total_1, total_2]) * shrink).sum(dim=0)
                    return top, total, (torch.stack([mixed_1, mixed_2]) * shrink).sum(dim=0)
                """
            ),
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    top = torch.where(top_1 > top_2, top_1, top_2)
                    whole = torch.logaddexp(top_1 + total_1.log(), top_2 + total_2.log())
                    mixed = mixed_1 * (top_1 - top).exp() + mixed_2 * (top_2 - top).exp()
                    return top, (whole - top).exp(), mixed
                """
            ),
        ],
        equivalent={
            "top = torch.maximum(top_1, top_2) => top = torch.maximum(top_2, top_1)": "the larger "
            "of two, in another order",
        },
    ),
    "16.3": Bank(
        wrong=[
            swap(PLACES, "first + torch.arange(rows.shape[2])[:, None]", says="the last i of j"),
            swap("scores.masked_fill(future, -torch.inf)", "scores + 0", says="in the last one"),
            code(
                """
                def attend_back(q, k, v, size):
                    out = torch.empty_like(q)
                    for first in range(0, q.shape[2], size):
                        rows = q[:, :, first : first + size] / q.shape[3] ** 0.5
                        top = torch.full_like(rows[..., :1], -torch.inf)
                        total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
                        for start in range(0, k.shape[2], size):
                            scores = rows @ k[:, :, start : start + size].mT
                            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
                            shrink, weights = (top - higher).exp(), (scores - higher).exp()
                            total = total * shrink + weights.sum(dim=-1, keepdim=True)
                            mixed = mixed * shrink + weights @ v[:, :, start : start + size]
                            top = higher
                        out[:, :, first : first + size] = mixed / total
                    return out
                """,
                says="every query sees all keys",
            ),
            swap("> places", "> places + 1", says="one key too many"),
            swap(
                "rows = q[:, :, first : first + size] / d**0.5",
                "rows = q[:, :, first : first + size]",
                says="not divided",
            ),
            swap("/ d**0.5", "/ d", says="it is the root of d"),
            swap("mixed = mixed * shrink + ", "mixed = mixed + ", says="mixed does not shrink"),
            swap("total = total * shrink + ", "total = total + ", says="total does not shrink"),
            swap("mixed / total", "mixed", says="never divided"),
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    scores = q @ k.mT / q.shape[3] ** 0.5
                    future = torch.arange(j) > j - i + torch.arange(i)[:, None]
                    return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
                """,
                says="makes a table of 24 times 40",
            ),
            swap(
                "out = torch.empty_like(q)",
                "out, future_of_all = torch.empty_like(q), torch.ones(i, j).triu(j - i + 1)",
                says="makes a table of 24 times 40",
            ),
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    parts = []
                    for first in range(0, i, size):
                        rows = q[:, :, first : first + size]
                        scores = rows @ k.mT / q.shape[3] ** 0.5
                        places = j - i + first + torch.arange(rows.shape[2])[:, None]
                        scores = scores.masked_fill(torch.arange(j) > places, -torch.inf)
                        parts.append(scores.softmax(dim=-1) @ v)
                    return torch.cat(parts, dim=2)
                """,
                says="makes a table of 8 times 40",
            ),
        ],
        right=[
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    parts = []
                    for first in range(0, i, size):
                        rows = q[:, :, first : first + size] * q.shape[3] ** -0.5
                        b, h, n, d = rows.shape
                        top = rows.new_full((b, h, n), -torch.inf)
                        total, mixed = rows.new_zeros(b, h, n), rows.new_zeros(b, h, n, d)
                        for start in range(0, j, size):
                            keys = k[:, :, start : start + size]
                            values = v[:, :, start : start + size]
                            scores = torch.einsum("bhid,bhjd->bhij", rows, keys)
                            query = j - i + first + torch.arange(n)
                            key = start + torch.arange(keys.shape[2])
                            scores = torch.where(key <= query[:, None], scores, -torch.inf)
                            higher = torch.maximum(top, scores.max(dim=-1).values)
                            weights = torch.exp(scores - higher[..., None])
                            total = total * torch.exp(top - higher) + weights.sum(dim=-1)
                            mixed = mixed * torch.exp(top - higher)[..., None] + weights @ values
                            top = higher
                        parts.append(mixed / total[..., None])
                    return torch.cat(parts, dim=2)
                """
            ),
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    rows = []
                    for r in range(i):
                        query, end = q[:, :, r : r + 1] / q.shape[3] ** 0.5, j - i + r + 1
                        top, total, mixed = torch.tensor(-torch.inf), 0, 0
                        for start in range(0, end, size):
                            part = slice(start, min(start + size, end))
                            scores = query @ k[:, :, part].mT
                            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
                            shrink, weights = (top - higher).exp(), (scores - higher).exp()
                            total = total * shrink + weights.sum(dim=-1, keepdim=True)
                            mixed = mixed * shrink + weights @ v[:, :, part]
                            top = higher
                        rows.append(mixed / total)
                    return torch.cat(rows, dim=2)
                """
            ),
        ],
        equivalent={
            "top = torch.full_like(rows[..., :1], -torch.inf) => top = (rows[..., :1])": "as long "
            "as total and mixed are 0, any number may stand there",
            "total, mixed = torch.zeros_like(top), torch.zeros_like(rows) => total, mixed = "
            "torch.zeros_like(top), (rows)": "the first tile multiplies it by exp(-inf)",
            "higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True)) => higher = "
            "torch.maximum(scores.amax(dim=-1, keepdim=True), top)": "in another order",
            "for start in range(0, int(places.max()) + 1, size): => for start in range(0, "
            "(places.max()) + 1, size):": "range takes a tensor of one whole number",
            "higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True)) => higher = "
            "torch.maximum(top, scores.amax(keepdim=True))": "any number will do that is not "
            "smaller than the largest score",
        },
    ),
    "16.4": Bank(
        wrong=[
            swap(X_SCALE, "x.abs().max()[None, None] / 127", says="all tokens share one"),
            swap(
                X_SCALE,
                "x.abs().amax(dim=(1, 2), keepdim=True) / 127",
                says="all tokens of a text share",
            ),
            code(
                """
                def whole_linear(x, weight):
                    columns = x.abs().amax(dim=1, keepdim=True) / 127
                    rows = weight.abs().amax(dim=1, keepdim=True) / 127
                    x, weight = (x / columns).round() * columns, (weight / rows).round() * rows
                    return x @ weight.T
                """,
                says="of a column of x",
            ),
            swap(SCALE, "weight.abs().max()[None, None] / 127", says="all rows of the weight"),
            code(
                """
                def whole_linear(x, weight):
                    x_scale = x.amax(dim=-1, keepdim=True) / 127
                    scale = weight.amax(dim=-1, keepdim=True) / 127
                    return (x / x_scale).round() @ (weight / scale).round().T * x_scale * scale.T
                """,
                says="the largest absolute one",
            ),
            code(
                """
                def whole_linear(x, weight):
                    return x @ weight.T
                """,
                says="nothing is rounded",
            ),
            swap(".round()", ".trunc()", says="cut off behind the point"),
            swap(".round()", ".floor()", says="rounded down"),
            swap("/ 127", "/ 128", says="int8 ends at 127"),
            swap("/ 127", "/ 255", says="go up to 255"),
            swap(" * x_scale * scale[:, 0]", " * scale[:, 0]", says="of the tokens is not"),
            swap(" * x_scale * scale[:, 0]", " * x_scale", says="of the rows is not"),
            swap(
                "return product * x_scale * scale[:, 0]", "return product.to(x)", says="are not put"
            ),
            swap(
                'torch.einsum("bne,oe->bno", whole_x, whole)',
                "(whole_x @ whole.T).to(torch.int8)",
                says="wrap around",
            ),
            code(
                """
                def whole_linear(x, weight):
                    scale = weight.abs().amax(dim=1, keepdim=True) / 127
                    return x @ ((weight / scale).round() * scale).T
                """,
                says="only the weight was made whole",
            ),
            code(
                """
                def whole_linear(x, weight):
                    scale = x.abs().amax(dim=-1, keepdim=True) / 127
                    return (x / scale).round() * scale @ weight.T
                """,
                says="only x was made whole",
            ),
        ],
        right=[
            code(
                """
                def whole_linear(x, weight):
                    def whole(numbers):
                        scale = numbers.abs().max(dim=-1, keepdim=True).values / 127
                        return (numbers / scale).round(), scale

                    (x, x_scale), (weight, scale) = whole(x), whole(weight)
                    return x @ weight.T * x_scale * scale.T
                """
            ),
            code(
                """
                def whole_linear(x, weight):
                    x_scale = x.abs().amax(dim=-1, keepdim=True) / 127
                    scale = weight.abs().amax(dim=-1) / 127
                    whole_x = (x / x_scale).round().long()
                    whole = (weight / scale[:, None]).round().long()
                    return torch.matmul(whole_x, whole.T) * (x_scale * scale)
                """
            ),
        ],
        equivalent={
            "scale = weight.abs().amax(dim=-1, keepdim=True) / 127  # (o, 1) => scale = "
            "weight.abs().amax(dim=(1), keepdim=True) / 127  # (o, 1)": "axis 1 is the last one",
            "return product * x_scale * scale[:, 0] => return product * x_scale * scale[:, -1]": ""
            "scale has one column",
        },
    ),
    "16.5": Bank(
        wrong=[
            swap(PAIRS, "sick_follow(layers, parents)", says="still written one after the other"),
            swap(PAIRS, "[(k[parents], v.clone()) for k, v in layers]", says="the values stay"),
            swap(PAIRS, "[(k.clone(), v[parents]) for k, v in layers]", says="the keys stay"),
            swap(
                PAIRS,
                "[(layers[0][0][parents], layers[0][1][parents])] + layers[1:]",
                says="the later ones stay",
            ),
            swap(PAIRS, "list(layers)", says="all stays with the old beams"),
            swap(
                PAIRS,
                "[(k.index_copy(0, parents, k), v.index_copy(0, parents, v)) for k, v in layers]",
                says="the other way round",
            ),
            swap(PAIRS, "[(v[parents], k[parents]) for k, v in layers]", says="are exchanged"),
            swap(
                PAIRS,
                "[(k[:, parents % k.shape[1]], v[:, parents % v.shape[1]]) for k, v in layers]",
                says="beams are the first axis",
            ),
            code(
                """
                def follow(layers, parents):
                    for k, v in layers:
                        k.copy_(k[parents])
                        v.copy_(v[parents])
                    return layers
                """,
                says=" ",
            ),
        ],
        right=[
            code(
                """
                def follow(layers, parents):
                    return [
                        tuple(part.index_select(0, parents) for part in pair) for pair in layers
                    ]
                """
            ),
            code(
                """
                def follow(layers, parents):
                    followed = []
                    for k, v in layers:
                        new_k, new_v = torch.empty_like(k), torch.empty_like(v)
                        for row, parent in enumerate(parents.tolist()):
                            new_k[row], new_v[row] = k[parent], v[parent]
                        followed.append((new_k, new_v))
                    return followed
                """
            ),
        ],
    ),
    "16.6": Bank(
        wrong=[
            swap(FACTORS, "sizes / sizes.sum()", says="DDP still divides"),
            swap(FACTORS, "torch.ones(len(sizes))", says="counts as much as a large one"),
            swap(FACTORS, "sizes.sum() / (sizes * len(sizes))", says="upside down"),
            swap(FACTORS, "sizes", says="not divided by anything"),
            swap(FACTORS, "sizes / sizes.max()", says="divides by the largest share"),
        ],
        right=[
            swap(FACTORS, "sizes / sizes.mean()"),
            swap(FACTORS, "torch.tensor([s * len(sizes) / sum(sizes) for s in sizes.tolist()])"),
        ],
        equivalent={
            "sizes = torch.tensor(sizes, dtype=torch.float32) => sizes = torch.tensor(sizes)": ""
            "the division makes float32 of whole numbers",
        },
    ),
}
