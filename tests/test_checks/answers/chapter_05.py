"""Answers to the exercises of chapter 05, right and wrong."""

from exercise_bank import Bank, code, swap


def weighs(replaced, result="weights", says=""):
    """Weights out of exp and sum of other scores; another end."""
    return code(
        f"""
        def masked_weights(scores, attn_mask):
            scores = {replaced}
            powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
            weights = powers / powers.sum(dim=-1, keepdim=True)
            return {result}
        """,
        says=says,
    )


BANK = {
    "05.1": Bank(
        wrong=[
            swap("(3, 1, 1, 5)", "(3, 5)", says="needs 4 axes"),
            swap("(3, 1, 1, 5)", "(3, 1, 5, 1)", says="right sizes in another order"),
            swap("(3, 1, 1, 5)", "(3, 4, 5, 5)", says="look at h, i"),
            swap("(3, 1, 5, 5)", "(3, 4, 5, 5)", says="look at h"),
            swap("(3, 1, 5, 5)", "(3, 1, 1, 5)", says="look at i"),
            swap("(3, 1, 5, 5)", "(1, 3, 5, 5)", says="right sizes in another order"),
            swap("(3, 4, 5, 5)", "(3, 1, 5, 5)", says="look at h"),
            swap("(3, 4, 5, 5)", "(12, 5, 5)", says="needs 4 axes"),
            swap("(3, 4, 5, 5)", "300", says="a tuple of whole numbers"),
        ],
        right=[
            swap("(3, 1, 1, 5)", "[3, 1, 1, 5]"),
            swap("(3, 4, 5, 5)", "torch.Size([3, 4, 5, 5])"),
        ],
    ),
    "05.2": Bank(
        wrong=[
            code(
                """
                def window_mask(n, width):
                    return torch.tensor([[0 <= i - j < width for j in range(n)] for i in range(n)])
                """,
                says="it loops",
            ),
            swap("back < width", "back <= width", says="one too wide"),
            swap("back >= 0", "back > 0", says="a token does not see itself"),
            swap("positions[:, None] - positions", "positions - positions[:, None]", says="ahead"),
            swap(
                "(back >= 0) & (back < width)",
                "~((back >= 0) & (back < width))",
                says="it is upside down",
            ),
            swap("(back >= 0) & (back < width)", "back.abs() < width", says="as well as back"),
            swap("(back >= 0) & (back < width)", "back < width", says="the future is open"),
            swap("(back >= 0) & (back < width)", "back >= 0", says="it is the causal mask"),
            swap("(back < width)", "(back < width - 1)", says="one too narrow"),
            swap("(back < width)", "(back < 3)", says="the window is 3 wide, whatever"),
            swap(
                "(back >= 0) & (back < width)",
                "((back >= 0) & (back < width)).float()",
                says="the dtype is not",
            ),
            swap(
                "(back >= 0) & (back < width)",
                "((back >= 0) & (back < width))[None]",
                says="has shape",
            ),
            code(
                """
                def window_mask(n, width):
                    mask = torch.zeros(n, n, dtype=torch.bool)
                    for i in range(n):
                        mask[i, max(0, i - width + 1) : i + 1] = True
                    return mask
                """,
                says="it loops",
            ),
            code(
                """
                def window_mask(n, width):
                    mask = torch.ones(n, n, dtype=torch.bool).tril()
                    far = torch.ones(n - width, n - width, dtype=torch.bool).tril()
                    return mask & ~F.pad(far, (0, width, width, 0))
                """,
                says="it raises RuntimeError",
            ),
            code(
                """
                def window_mask(n, width):
                    return torch.ones(n, n, dtype=torch.bool).tril().triu(1 - min(width, n - 1))
                """,
                says="right for other sizes",
            ),
            swap(
                "(back >= 0) & (back < width)",
                "(back >= 0) | (back < width)",
                says="everything is open",
            ),
            code(
                """
                def window_mask(n, width):
                    return torch.ones(n, n, dtype=torch.bool).tril(width - 1)
                """,
                says="it opens all of the past, and the width",
            ),
        ],
        right=[
            code(
                """
                def window_mask(n, width):
                    return torch.ones(n, n, dtype=torch.bool).tril().triu(1 - width)
                """
            ),
            code(
                """
                def window_mask(n, width):
                    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
                    return torch.logical_and(j <= i, j > i - width)
                """
            ),
            code(
                """
                def window_mask(n, width):
                    past = torch.ones(n, n).tril()
                    return (past - past.tril(-width)).bool()
                """
            ),
        ],
    ),
    "05.3": Bank(
        wrong=[
            code("healthy = sick", says="still upside down"),
            swap(".tril()", ".triu(1)", says="the future is still open"),
            swap("real[:, None, None, :] & past", "~real[:, None, None, :] & past", says="blocked"),
            swap("& past", "| past", says="& and not |"),
            swap("& past", "| ~past", says="real or in the future"),
            swap(".tril()", ".tril(-1)", says="a token does not see itself"),
            swap(".tril()", ".tril(1)", says="sees the one after it"),
            swap(
                "real[:, None, None, :]",
                "real[:, None, :, None]",
                says="in the padding are blocked",
            ),
            swap("real[:, None, None, :] & past", "past", says="the padding is open"),
            swap(" & past", "", says="the mask only knows the padding"),
            swap(", attn_mask=real[:, None, None, :] & past", "", says="there is no mask at all"),
            swap(
                ", attn_mask=real[:, None, None, :] & past",
                ", is_causal=True",
                says="the padding is open",
            ),
            swap("return F", "q *= 1\n    return F", says="q was changed in place"),
            code(
                """
                def healthy(q, k, v, real):
                    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
                    mask = (real[:, None, None] & past).to(q.dtype)
                    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                """,
                says="the mask is added as ones and zeros",
            ),
            code(
                """
                def healthy(q, k, v, real):
                    return torch.zeros_like(q)
                """,
                says="it gives the same for every input",
            ),
            swap(".tril()", ".triu()", says="a query sees the tokens after it and not"),
            code(
                """
                def healthy(q, k, v, real):
                    n = q.shape[2]
                    past = torch.ones(n, n, dtype=torch.bool).tril()
                    scores = (q @ k.mT).masked_fill(~(real[:, None, None] & past), -torch.inf)
                    return scores.softmax(-1) @ v
                """,
                says="the scores are not divided by the square root",
            ),
            code(
                """
    def healthy(q, k, v, real):
        n = q.shape[2]
        past = torch.ones(n, n, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v * real[:, None, :, None], attn_mask=past)
                """,
                says="the values of the padding are 0, but its",
            ),
        ],
        right=[
            code(
                """
                def healthy(q, k, v, real):
                    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
                    blocked = ~real[:, None, None, :] | future
                    return F.scaled_dot_product_attention(q, k, v, attn_mask=~blocked)
                """
            ),
            code(
                """
                def healthy(q, k, v, real):
                    n = q.shape[-2]
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    scores = scores.masked_fill(~real[:, None, None], -torch.inf)
                    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
                    return scores.softmax(dim=-1) @ v
                """
            ),
        ],
    ),
    "05.4": Bank(
        wrong=[
            swap(
                "~attn_mask.any(dim=-1)",
                "(~attn_mask.any(dim=-1)).squeeze()",
                says="drops such axes",
            ),
            swap("[:, None, None, :]", "[:, None, :, None]", says="over the queries"),
            swap("[:, None, None, :]", "[:, None, :]", says="the axis of the heads is missing"),
            swap(
                "    return real &", "    return real & real.mT &", says="the rows of the padding"
            ),
            swap("return real & torch", "return ~real & torch", says="the real tokens are blocked"),
            swap("ones.bool()", "ones", says="the dtype is not"),
            swap(".tril()", ".triu()", says="those before it"),
            swap(".tril()", ".tril(-1)", says="a token does not see itself"),
            swap(".tril()", ".tril(1)", says="sees the one after it"),
            swap("return real &", "return real |", says="& and not |"),
            swap(
                "return real & torch.ones(n, n, dtype=torch.bool).tril()",
                "return real.expand(-1, 1, n, n)",
                says="the future is open",
            ),
            code(
                """
                def decoder_mask(ones):
                    n = ones.shape[1]
                    real = torch.arange(n) < ones.sum(dim=1, keepdim=True)
                    return real[:, None, None] & torch.ones(n, n, dtype=torch.bool).tril()
                """,
                says="padding may stand anywhere",
            ),
            code(
                """
                def decoder_mask(ones):
                    n = ones.shape[1]
                    rows = [ones.bool() & (torch.arange(n) <= i) for i in range(n)]
                    return torch.stack(rows, dim=1)[:, None]
                """,
                says="it loops",
            ),
            swap("~attn_mask.any", "attn_mask.any", says="the rows that have a key"),
            swap("attn_mask.any", "attn_mask.all", says="some key is blocked"),
            swap("~attn_mask.any(dim=-1)", "~attn_mask.any(dim=-2)", says="that nobody sees"),
            swap("any(dim=-1)", "any(dim=-1, keepdim=True)", says="keepdim"),
            swap("any(dim=-1)", "any(dim=3)", says="it raises IndexError"),
            swap("~attn_mask.any(dim=-1)", "attn_mask.sum(dim=-1)", says="the dtype is not"),
            swap(
                "return real & torch.ones(n, n, dtype=torch.bool).tril()",
                "return ~real | torch.ones(n, n, dtype=torch.bool).triu(1)",
                says="it is upside down",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "attn_mask.sum(dim=-1) == 1",
                says="these are the rows with exactly one key; an",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask.any()",
                says="it asks whether the whole mask is empty; ask",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask",
                says="it is the mask turned round; ask of each",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask.any(dim=-1).any(dim=-1)",
                says="it gives the same for every input",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask[..., -1]",
                says="it looks at the last key alone",
            ),
        ],
        right=[
            code(
                """
                def decoder_mask(ones):
                    positions = torch.arange(ones.shape[1])
                    return (ones[:, None, None] == 1) & (positions <= positions[:, None])


                def empty_rows(attn_mask):
                    return attn_mask.sum(dim=-1) == 0
                """
            ),
            code(
                """
                def decoder_mask(ones):
                    b, n = ones.shape
                    return (ones > 0).view(b, 1, 1, n).expand(b, 1, n, n).tril()


                def empty_rows(attn_mask):
                    return (~attn_mask).all(-1)
                """
            ),
        ],
    ),
    "05.5": Bank(
        wrong=[
            swap("-torch.inf", "0.0", says="a masked score counts as 0 when the largest is sought"),
            weighs("scores.masked_fill(~attn_mask, 0.0)", says="a score of 0 is a score like any"),
            weighs("scores * attn_mask", says="a score of 0 is a score like any"),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp()
                    return powers / powers.sum(dim=-1, keepdim=True) * attn_mask
                """,
                says="the rows no longer sum to 1",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp() * attn_mask
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                says="infinity times 0 is no number",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp().masked_fill(~attn_mask, 0.0)
                    total = powers.sum(dim=-1, keepdim=True)
                    return powers / total.masked_fill(total == 0, 1.0)
                """,
                says="exp of a large score is infinite",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    largest = scores.amax(dim=-1, keepdim=True)
                    powers = (scores - largest).exp().masked_fill(~attn_mask, 0.0)
                    total = powers.sum(dim=-1, keepdim=True)
                    return powers / total.masked_fill(total == 0, 1.0)
                """,
                says="the largest score of the row is sought among the masked ones",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    largest = (scores * attn_mask).amax(dim=-1, keepdim=True)
                    powers = (scores - largest).exp().masked_fill(~attn_mask, 0.0)
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                says="a masked score counts as 0 when the largest is sought",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    middle = scores.mean(dim=-1, keepdim=True)
                    powers = (scores - middle).exp().masked_fill(~attn_mask, 0.0)
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                says="the mean of the row is subtracted",
            ),
            swap(
                "scores.amax(dim=-1, keepdim=True)",
                "scores.amax()",
                says="each row has a largest score of its own",
            ),
            swap("~attn_mask", "attn_mask", says="upside down"),
            weighs("scores.masked_fill(attn_mask, -torch.inf)", says="the mask is upside down"),
            weighs("scores", says="there is no mask"),
            weighs("scores + attn_mask", says="added as ones and zeros"),
            weighs("scores.masked_fill(~attn_mask, torch.inf)", says="plus infinity"),
            swap("total.masked_fill(total == 0, 1.0)", "total", says="an empty row becomes NaN"),
            swap(".exp().masked_fill(~attn_mask, 0.0)", ".exp()", says="an empty row becomes NaN"),
            weighs("scores.masked_fill(~attn_mask, -1e9)", says="gets weights on masked keys"),
            weighs("scores.masked_fill(~attn_mask, -1e4)", says="only -inf is smaller than every"),
            weighs(
                "scores.masked_fill(~attn_mask, -1e9)",
                "weights.masked_fill(~attn_mask, 0.0)",
                says="not for float16",
            ),
            weighs(
                "scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)",
                says="an empty row gets weights on masked keys",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    added = torch.zeros(attn_mask.shape, dtype=scores.dtype)
                    scores = scores + added.masked_fill(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    weights = powers / powers.sum(dim=-1, keepdim=True)
                    return weights.masked_fill(~attn_mask, 0.0)
                """,
                says="their gradient is NaN",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores = scores.masked_fill(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    powers[powers.isnan()] = 0
                    return powers / powers.sum(dim=-1, keepdim=True).clamp_min(1.0)
                """,
                says="written into after a step",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores.masked_fill_(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    return (powers / powers.sum(dim=-1, keepdim=True)).nan_to_num()
                """,
                says="changed in place",
            ),
            swap(
                "powers.sum(dim=-1, keepdim=True)",
                "powers.sum(dim=-2, keepdim=True)",
                says="over the queries",
            ),
            swap("powers.sum(dim=-1, keepdim=True)", "powers.sum()", says="the sum of all of them"),
            swap(
                "powers / total.masked_fill(total == 0, 1.0)",
                "powers",
                says="not divided by the sum",
            ),
            swap("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-1)", says="it raises"),
            swap(
                "scores = scores.masked_fill",
                "scores = scores.float().masked_fill",
                says="the dtype is not",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    return scores.masked_fill(~attn_mask, -torch.inf).softmax(dim=-1).nan_to_num()
                """,
                says="it calls softmax",
            ),
            code(
                """
                from utils.attention import scaled_dot_product_attention as attend

                def masked_weights(scores, attn_mask):
                    d = scores.shape[-1]
                    keys = torch.eye(d, dtype=scores.dtype).expand(*scores.shape[:2], d, d)
                    return attend(scores * d**0.5, keys, keys, attn_mask)[1]
                """,
                says="it calls",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    p = torch.exp(scores) * attn_mask
                    return p / (p.sum(-1, keepdim=True) + 1e-9)
                """,
                says="they agree to about six digits only",
            ),
        ],
        right=[
            code(
                """
                def masked_weights(scores, attn_mask):
                    empty = ~attn_mask.any(dim=-1, keepdim=True)
                    scores = torch.where(attn_mask | empty, scores, -torch.inf)
                    powers = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
                    return powers / powers.sum(dim=-1, keepdim=True) * ~empty
                """
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
                    powers = (scores - scores.max(-1, keepdim=True).values.detach()).exp()
                    return torch.nan_to_num(powers / powers.sum(-1, keepdim=True), nan=0.0)
                """
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    least = torch.finfo(scores.dtype).min
                    scores = torch.where(attn_mask, scores, least)
                    powers = (scores - scores.amax(-1, keepdim=True)).exp() * attn_mask
                    return powers / powers.sum(-1, keepdim=True).clamp_min(0.5)
                """
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores = scores.masked_fill(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    weights = powers / powers.sum(dim=-1, keepdim=True)
                    weights[weights.isnan()] = 0
                    return weights
                """
            ),
        ],
        equivalent={
            "return powers / total.masked_fill(total == 0, 1.0) => "
            "return powers / total.masked_fill(total == 0, 2.0)": "0 divided by 2 is 0",
        },
    ),
    "05.6": Bank(
        wrong=[
            swap("table[:, j]", "table[j, :]", says="rows and columns are exchanged"),
            swap("> 1e-6", "== 0", says="upside down"),
            swap("changed = x.clone()", "changed = x", says="pile up"),
            swap(
                "torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "x[j] + 1",
                says="the same number was added",
            ),
            swap(
                "torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "x[j] * 2",
                says="the token was only multiplied by a number",
            ),
            swap(
                "changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "changed[j, 0] += 1",
                says="only the first number of each token",
            ),
            swap(".abs().amax(dim=-1)", ".sum(dim=-1).abs()", says="added up with their signs"),
            swap(".abs().amax(dim=-1)", "[:, 0].abs()", says="first number of each output"),
            swap("amax", "amin", says="one is enough"),
            swap(".abs()", "", says="take the absolute value"),
            swap("1e-6", "0.01", says="a faint dependence is missed"),
            code(
                """
                def influences(layer, x):
                    return torch.ones(len(x), len(x), dtype=torch.bool).tril()
                """,
                says="nothing was measured",
            ),
            code(
                """
                def influences(layer, x):
                    changed = layer(torch.randn_like(x)) - layer(x)
                    moved = changed.abs().amax(dim=-1) > 1e-6
                    return moved[:, None].expand(-1, len(x))
                """,
                says="all tokens were changed at once",
            ),
            code(
                """
                def influences(layer, x):
                    sums = torch.autograd.functional.jacobian(lambda x: layer(x).sum(dim=-1), x)
                    return sums.abs().amax(dim=-1) > 0
                """,
                says="sum to 0",
            ),
            code(
                """
                def influences(layer, x):
                    jacobian = torch.autograd.functional.jacobian(layer, x)
                    return jacobian.abs().sum(dim=(1, 3))
                """,
                says="the dtype is not",
            ),
            code(
                """
                def influences(layer, x):
                    return layer.graph
                """,
                says="nothing was measured",
            ),
            swap("num_layers * (width - 1)", "num_layers * width", says="one of the keys"),
            swap("num_layers * (width - 1)", "width - 1", says="one layer alone"),
            swap("num_layers * (width - 1)", "num_layers * (width - 1) + 1", says="itself"),
            swap("num_layers * (width - 1)", "(width - 1) ** num_layers", says="add up"),
            swap("num_layers * (width - 1)", "width**num_layers", says="add up"),
            code(
                """
                def influences(layer, x):
                    before = layer(x)
                    table = torch.zeros(len(x), len(x), dtype=torch.bool)
                    for j in range(len(x)):
                        c = x.clone()
                        c[j:] = torch.randn_like(c[j:])
                        table[:, j] = (layer(c) - before).abs().amax(dim=-1) > 1e-6
                    return table
                """,
                says="token j and all behind it were changed; change",
            ),
            swap(
                "num_layers * (width - 1)",
                "width * num_layers - 1",
                says="the token itself is one of the keys of",
            ),
            swap(
                "num_layers * (width - 1)",
                "width + num_layers - 1",
                says="each layer adds width - 1 tokens, not one,",
            ),
            swap(
                "num_layers * (width - 1)",
                "(width - 1) * (num_layers - 1)",
                says="one layer less was counted than there are",
            ),
            swap(
                "num_layers * (width - 1)",
                "2 * (width - 1)",
                says="that is a stack of two, whatever num_layers says",
            ),
        ],
        right=[
            code(
                """
                def influences(layer, x):
                    return torch.func.jacrev(layer)(x).ne(0).any(dim=-1).any(dim=1)


                def tokens_back(width, num_layers):
                    return num_layers * (width - 1)
                """,
            ),
            code(
                """
                def influences(layer, x):
                    jacobian = torch.autograd.functional.jacobian(layer, x)
                    return jacobian.abs().amax(dim=(1, 3)) > 0
                """
            ),
            code(
                """
                def influences(layer, x):
                    columns = []
                    for j in range(x.shape[0]):
                        other = x.clone()
                        other[j] = x[j].flip(0) * 3 - x[j].square()
                        same = torch.isclose(layer(other), layer(x), rtol=0, atol=1e-7)
                        columns.append(~same.all(dim=1))
                    return torch.stack(columns).T


                def tokens_back(width, num_layers):
                    return sum(width - 1 for _ in range(num_layers))
                """
            ),
            code(
                """
                def influences(layer, x):
                    x = x.detach().requires_grad_()
                    table = torch.zeros(len(x), len(x), dtype=torch.bool)
                    for i, output in enumerate(layer(x)):
                        for number in output:
                            if number.requires_grad:
                                (g,) = torch.autograd.grad(number, x, retain_graph=True)
                                table[i] |= (g != 0).any(dim=1)
                    return table


                def tokens_back(width, num_layers):
                    return width * num_layers - num_layers
                """
            ),
        ],
        equivalent={
            "generator = torch.Generator().manual_seed(0) => ...": "other random numbers, or "
            "unseeded ones, change a token as well",
            "table = torch.zeros(len(x), len(x), dtype=torch.bool) => "
            "table = torch.ones(len(x), len(x), dtype=torch.bool)": "every column is overwritten",
            "changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype) => "
            "changed[j] = (x.shape[1])": "one number written over the whole token changes it, too",
            "changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype) => "
            "changed[j] = torch.randn(x.shape[1], dtype=x.dtype)": "unseeded numbers do as well",
            "changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype) => "
            "changed[j] = torch.randn(x.shape[1], generator=generator)": "numbers of single "
            "precision, written into a tensor of double, are random as well",
            "table[:, j] = (layer(changed) - before).abs().amax(dim=-1) > 1e-6 => "
            "table[:, j] = ((layer(changed) - before).abs().amax(dim=-1)) >= (1e-06)": "nothing "
            "differs by exactly 1e-6",
            "table[:, j] = (layer(changed) - before).abs().amax(dim=-1) > 1e-6 => "
            "table[:, j] = (layer(changed) - before).abs().amax(dim=-1) > 2e-06": "the threshold "
            "only has to lie between rounding and the faintest dependence",
            "table[:, j] = (layer(changed) - before).abs().amax(dim=-1) > 1e-6 => "
            "table[:, j] = (layer(changed) - before).abs().amax(dim=(1)) > 1e-6": "axis 1 is the "
            "last",
        },
    ),
}
