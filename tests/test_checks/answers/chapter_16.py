"""Answers to the exercises of chapter 16, right and wrong."""

from exercise_bank import Bank, code, swap

BYTES = "2 * 6 * 5 * 4 * 33 * 8 * 4"
ONE, TWO = "(top_1 - top).exp()", "(top_2 - top).exp()"
POSITIONS = "j - i + first + torch.arange(rows.shape[2])[:, None]"
STATE = """        top = torch.full_like(rows[..., :1], -torch.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
"""
LOOP = """        for start in range(0, int(positions.max()) + 1, size):
            scores = rows @ k[:, :, start : start + size].mT
            future = start + torch.arange(scores.shape[3]) > positions
"""
ALL_KEYS = LOOP.replace("int(positions.max()) + 1", "j")
FACTORS = "sizes * len(sizes) / sizes.sum()"
PAIRS = "[(k[parents], v[parents]) for k, v in layers]"
X_SCALE = "x.abs().amax(dim=-1, keepdim=True) / 127"
SCALE = "weight.abs().amax(dim=-1, keepdim=True) / 127"


BANK = {
    "16.1": Bank(
        wrong=[
            swap("(5, 4, 1, 8)", "(5, 4, 33, 8)", cause="look-at-axes n"),
            swap("(5, 4, 1, 8)", "(5, 1, 4, 8)", cause="sizes-in-another-order"),
            swap("(5, 4, 33, 8)", "(5, 12, 33, 8)", cause="look-at-axes g"),
            swap("(5, 4, 33, 8)", "(5, 4, 20, 8)", cause="look-at-axes n"),
            swap("(5, 12, 1, 33)", "(5, 12, 33, 33)", cause="look-at-axes i"),
            swap("(5, 12, 1, 33)", "(5, 4, 1, 33)", cause="look-at-axes h"),
            swap("(5, 12, 1, 33)", "(5, 12, 33)", cause="number-of-axes"),
            swap(BYTES, "6 * 5 * 4 * 33 * 8 * 4", cause="keys-and-values-are-kept"),
            swap(BYTES, "2 * 5 * 4 * 33 * 8 * 4", cause="cache-of-every-layer"),
            swap(BYTES, "5 * 4 * 33 * 8 * 4", cause="cache-of-every-layer-both"),
            swap(BYTES, "2 * 6 * 4 * 33 * 8 * 4", cause="cache-of-every-text"),
            swap(BYTES, "2 * 6 * 5 * 4 * 8 * 4", cause="cache-of-every-token"),
            swap(BYTES, "2 * 6 * 5 * 4 * 20 * 8 * 4", cause="cache-of-later-tokens"),
            swap(BYTES, "2 * 6 * 5 * 4 * 13 * 8 * 4", cause="cache-of-earlier-tokens"),
            swap(BYTES, "2 * 6 * 5 * 4 * 32 * 8 * 4", cause="cache-of-last-token"),
            swap(BYTES, "2 * 6 * 5 * 4 * 33 * 8", cause="cache-in-bytes"),
            swap(BYTES, "2 * 6 * 5 * 12 * 33 * 8 * 4", cause="cache-keeps-no-queries"),
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
                cause="halves-not-shrunk",
            ),
            swap(
                "mixed_1 * shrink_1 + mixed_2 * shrink_2",
                "mixed_1 + mixed_2",
                cause="only-total-shrinks",
            ),
            swap(
                "total = total_1 * shrink_1 + total_2 * shrink_2",
                "total = total_1 + total_2",
                cause="only-mixed-shrinks",
            ),
            swap(f"{ONE}, {TWO}", "(top - top_1).exp(), (top - top_2).exp()", cause="halves-grow"),
            swap(f"{ONE}, {TWO}", f"{TWO}, {ONE}", cause="factors-exchanged"),
            swap(f"{ONE}, {TWO}", "top_1 - top, top_2 - top", cause="factors-without-exp"),
            swap(f"{ONE}, {TWO}", "top_1.exp(), top_2.exp()", cause="relative-to-nothing"),
            swap(
                f"{ONE}, {TWO}",
                "top_1.exp() / top.exp(), top_2.exp() / top.exp()",
                cause="divided-after-exp",
            ),
            swap(
                "mixed_1 * shrink_1 + mixed_2 * shrink_2",
                "(mixed_1 * shrink_1 + mixed_2 * shrink_2) / total",
                cause="mixed-is-divided",
            ),
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    top = torch.maximum(top_1, top_2)
                    one, two = (top_1 - top).exp(), (top_2 - top).exp()
                    mixed = mixed_1 / total_1 * one + mixed_2 / total_2 * two
                    return top, total_1 * one + total_2 * two, mixed
                """,
                cause="halves-are-divided",
            ),
            swap("torch.maximum", "torch.minimum", cause="relative-to-smaller"),
            swap("torch.maximum(top_1, top_2)", "top_1", cause="relative-to-first"),
            swap("torch.maximum(top_1, top_2)", "top_2", cause="relative-to-second"),
            swap("torch.maximum(top_1, top_2)", "(top_1 + top_2) / 2", cause="relative-to-mean"),
            swap(
                "torch.maximum(top_1, top_2)",
                "torch.maximum(top_1, top_2).max().expand_as(top_1)",
                cause="relative-to-all-queries",
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
                    total = torch.logaddexp(top_1 + total_1.log(), top_2 + total_2.log())
                    mixed = mixed_1 * (top_1 - top).exp() + mixed_2 * (top_2 - top).exp()
                    return top, (total - top).exp(), mixed
                """
            ),
            code(
                """
                def join(top_1, total_1, mixed_1, top_2, total_2, mixed_2):
                    top = torch.full_like(top_1, -torch.inf)
                    total, mixed = torch.zeros_like(total_1), torch.zeros_like(mixed_1)
                    for i in range(top.shape[2]):  # one query at a time
                        one, two = top_1[:, :, i], top_2[:, :, i]
                        top[:, :, i] = torch.maximum(one, two)
                        one, two = (one - top[:, :, i]).exp(), (two - top[:, :, i]).exp()
                        total[:, :, i] = total_1[:, :, i] * one + total_2[:, :, i] * two
                        mixed[:, :, i] = mixed_1[:, :, i] * one + mixed_2[:, :, i] * two
                    return top, total, mixed
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
            swap(
                POSITIONS,
                "first + torch.arange(rows.shape[2])[:, None]",
                cause="corner-at-top-left",
            ),
            swap(
                "scores.masked_fill(future, -torch.inf)",
                "scores + 0",
                cause="no-causal-mask-in-tiles",
            ),
            swap(
                "scores.masked_fill(future, -torch.inf)",
                "scores.masked_fill(future, 0.0)",
                cause="future-scores-zero-in-tiles",
            ),
            code(
                """
                def attend_back(q, k, v, size):
                    scores = q @ k.mT / q.shape[3] ** 0.5
                    past = torch.ones_like(scores).tril(k.shape[2] - q.shape[2])
                    return (scores * past).softmax(dim=-1) @ v
                """,
                cause="future-scores-zero",
            ),
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
                cause="no-causal-mask",
            ),
            swap("> positions", "> positions + 1", cause="sees-one-key-too-many-in-tiles"),
            swap(
                "rows = q[:, :, first : first + size] / d**0.5",
                "rows = q[:, :, first : first + size]",
                cause="tiles-scores-not-divided",
            ),
            swap("/ d**0.5", "/ d", cause="scores-divided-twice"),
            swap(LOOP, ALL_KEYS.replace("start + torch", "torch"), cause="keys-counted-in-tile"),
            swap(
                f"{POSITIONS}\n{STATE}{LOOP}",
                f"{POSITIONS.replace('first + ', '')}\n{STATE}{ALL_KEYS}",
                cause="queries-counted-in-tile",
            ),
            swap("mixed = mixed * shrink + ", "mixed = mixed + ", cause="tiles-mixed-not-shrunk"),
            swap("total = total * shrink + ", "total = total + ", cause="tiles-total-not-shrunk"),
            swap("mixed / total", "mixed", cause="tiles-not-divided"),
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    scores = q @ k.mT / q.shape[3] ** 0.5
                    future = torch.arange(j) > j - i + torch.arange(i)[:, None]
                    return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
                """,
                cause="holds-a-table",
            ),
            swap(
                "out = torch.empty_like(q)",
                "out, future_of_all = torch.empty_like(q), torch.ones(i, j).triu(j - i + 1)",
                cause="holds-a-table",
            ),
            code(
                """
                def attend_back(q, k, v, size):
                    i, j = q.shape[2], k.shape[2]
                    parts = []
                    for first in range(0, i, size):
                        rows = q[:, :, first : first + size]
                        scores = rows @ k.mT / q.shape[3] ** 0.5
                        positions = j - i + first + torch.arange(rows.shape[2])[:, None]
                        scores = scores.masked_fill(torch.arange(j) > positions, -torch.inf)
                        parts.append(scores.softmax(dim=-1) @ v)
                    return torch.cat(parts, dim=2)
                """,
                cause="holds-a-table",
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
            "for start in range(0, int(positions.max()) + 1, size): => for start in range(0, "
            "(positions.max()) + 1, size):": "range takes a tensor of one integer",
            "higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True)) => higher = "
            "torch.maximum(top, scores.amax(keepdim=True))": "any number will do that is not "
            "smaller than the largest score",
        },
    ),
    "16.4": Bank(
        wrong=[
            swap(X_SCALE, "x.abs().max()[None, None] / 127", cause="one-scale-for-all-tokens"),
            swap(
                X_SCALE,
                "x.abs().amax(dim=(1, 2), keepdim=True) / 127",
                cause="one-scale-for-each-text",
            ),
            code(
                """
                def int8_linear(x, weight):
                    columns = x.abs().amax(dim=1, keepdim=True) / 127
                    rows = weight.abs().amax(dim=1, keepdim=True) / 127
                    x, weight = (x / columns).round() * columns, (weight / rows).round() * rows
                    return x @ weight.T
                """,
                cause="scale-of-columns-of-x",
            ),
            swap(SCALE, "weight.abs().max()[None, None] / 127", cause="one-scale-for-all-rows"),
            code(
                """
                def int8_linear(x, weight):
                    x_scale = x.amax(dim=-1, keepdim=True) / 127
                    scale = weight.amax(dim=-1, keepdim=True) / 127
                    return (x / x_scale).round() @ (weight / scale).round().T * x_scale * scale.T
                """,
                cause="scale-without-abs",
            ),
            code(
                """
                def int8_linear(x, weight):
                    return x @ weight.T
                """,
                cause="not-rounded",
            ),
            swap(".round()", ".trunc()", cause="cut-off-not-rounded"),
            swap(".round()", ".floor()", cause="rounded-down"),
            swap("/ 127", "/ 128", cause="up-to-128"),
            swap("/ 127", "/ 255", cause="up-to-255"),
            swap(" * x_scale * scale[:, 0]", " * scale[:, 0]", cause="scale-of-x-is-missing"),
            swap(" * x_scale * scale[:, 0]", " * x_scale", cause="scale-of-weight-is-missing"),
            swap(
                "return product * x_scale * scale[:, 0]",
                "return product.to(x)",
                cause="scales-are-missing",
            ),
            swap(
                'torch.einsum("bne,oe->bno", int_x, int_weight)',
                "(int_x @ int_weight.T).to(torch.int8)",
                cause="sums-in-eight-bits",
            ),
            code(
                """
                def int8_linear(x, weight):
                    scale = weight.abs().amax(dim=1, keepdim=True) / 127
                    return x @ ((weight / scale).round() * scale).T
                """,
                cause="only-weight-is-whole",
            ),
            code(
                """
                def int8_linear(x, weight):
                    scale = x.abs().amax(dim=-1, keepdim=True) / 127
                    return (x / scale).round() * scale @ weight.T
                """,
                cause="only-x-is-whole",
            ),
        ],
        right=[
            code(
                """
                def int8_linear(x, weight):
                    def quantize(numbers):
                        scale = numbers.abs().max(dim=-1, keepdim=True).values / 127
                        return (numbers / scale).round(), scale

                    (x, x_scale), (weight, scale) = quantize(x), quantize(weight)
                    return x @ weight.T * x_scale * scale.T
                """
            ),
            code(
                """
                def int8_linear(x, weight):
                    x_scale = x.abs().amax(dim=-1, keepdim=True) / 127
                    scale = weight.abs().amax(dim=-1) / 127
                    int_x = (x / x_scale).round().long()
                    int_weight = (weight / scale[:, None]).round().long()
                    return torch.matmul(int_x, int_weight.T) * (x_scale * scale)
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
            swap(PAIRS, "buggy_follow(layers, parents)", cause="rows-overwritten"),
            swap(PAIRS, "[(k[parents], v.clone()) for k, v in layers]", cause="values-stay"),
            swap(PAIRS, "[(k.clone(), v[parents]) for k, v in layers]", cause="keys-stay"),
            swap(
                PAIRS,
                "[(layers[0][0][parents], layers[0][1][parents])] + layers[1:]",
                cause="later-layers-stay",
            ),
            swap(PAIRS, "list(layers)", cause="nothing-follows"),
            swap(
                PAIRS,
                "[(k.index_copy(0, parents, k), v.index_copy(0, parents, v)) for k, v in layers]",
                cause="beams-go-to-parents",
            ),
            swap(
                PAIRS,
                "[(v[parents], k[parents]) for k, v in layers]",
                cause="wide-keys-values-exchanged",
            ),
            swap(
                PAIRS,
                "[(k[:, parents % k.shape[1]], v[:, parents % v.shape[1]]) for k, v in layers]",
                cause="heads-follow",
            ),
            code(
                """
                def follow(layers, parents):
                    for k, v in layers:
                        k.copy_(k[parents])
                        v.copy_(v[parents])
                    return layers
                """,
                cause="changed-in-place",
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
            swap(PAIRS, f"tuple({PAIRS})"),
        ],
    ),
    "16.6": Bank(
        wrong=[
            swap(FACTORS, "sizes / sizes.sum()", cause="division-by-processes-forgotten"),
            swap(FACTORS, "torch.ones(len(sizes))", cause="shares-count-alike"),
            swap(FACTORS, "sizes.sum() / (sizes * len(sizes))", cause="factor-upside-down"),
            swap(FACTORS, "sizes.sum() / sizes", cause="factor-upside-down"),
            swap(FACTORS, "sizes", cause="sizes-not-divided"),
            swap(FACTORS, "sizes / sizes.max()", cause="divided-by-largest-share"),
            swap(FACTORS, "sizes / sizes.min()", cause="divided-by-smallest-share"),
        ],
        right=[
            swap(FACTORS, "sizes / sizes.mean()"),
            swap(FACTORS, "torch.tensor([s * len(sizes) / sum(sizes) for s in sizes.tolist()])"),
        ],
        equivalent={
            "sizes = torch.tensor(sizes, dtype=torch.float32) => sizes = torch.tensor(sizes)": ""
            "the division makes float32 of integers",
        },
    ),
}
