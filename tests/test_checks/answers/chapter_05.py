"""Answers to the exercises of chapter 05, right and wrong."""

from exercise_bank import Bank, code, swap


def weighs(replaced, result="weights", cause=""):
    """Weights out of exp and sum of other scores; another end."""
    return code(
        f"""
        def masked_weights(scores, attn_mask):
            scores = {replaced}
            powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
            weights = powers / powers.sum(dim=-1, keepdim=True)
            return {result}
        """,
        cause=cause,
    )


BANK = {
    "05.1": Bank(
        wrong=[
            swap("(3, 1, 1, 5)", "(3, 5)", cause="number-of-axes"),
            swap("(3, 1, 1, 5)", "(3, 1, 5, 1)", cause="sizes-in-another-order"),
            swap("(3, 1, 1, 5)", "(3, 4, 5, 5)", cause="look-at-axes h i"),
            swap("(3, 1, 5, 5)", "(3, 4, 5, 5)", cause="look-at-axes h"),
            swap("(3, 1, 5, 5)", "(3, 1, 1, 5)", cause="look-at-axes i"),
            swap("(3, 1, 5, 5)", "(1, 3, 5, 5)", cause="sizes-in-another-order"),
            swap("(3, 4, 5, 5)", "(3, 1, 5, 5)", cause="look-at-axes h"),
            swap("(3, 4, 5, 5)", "(12, 5, 5)", cause="number-of-axes"),
            swap("(3, 4, 5, 5)", "300", cause="no-shape"),
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
                cause="loops-over-positions",
            ),
            swap("back < width", "back <= width", cause="window-too-wide"),
            swap("back >= 0", "back > 0", cause="window-without-itself"),
            swap(
                "positions[:, None] - positions",
                "positions - positions[:, None]",
                cause="window-looks-ahead",
            ),
            swap(
                "(back >= 0) & (back < width)",
                "~((back >= 0) & (back < width))",
                cause="window-upside-down",
            ),
            swap("(back >= 0) & (back < width)", "back.abs() < width", cause="window-both-ways"),
            swap("(back >= 0) & (back < width)", "back < width", cause="window-future-open"),
            swap("(back >= 0) & (back < width)", "back >= 0", cause="window-is-causal"),
            swap("(back < width)", "(back < width - 1)", cause="window-too-narrow"),
            swap("(back < width)", "(back < 3)", cause="window-always-so-wide"),
            swap(
                "(back >= 0) & (back < width)",
                "((back >= 0) & (back < width)).float()",
                cause="dtype-differs",
            ),
            swap(
                "(back >= 0) & (back < width)",
                "((back >= 0) & (back < width))[None]",
                cause="shape-differs",
            ),
            code(
                """
                def window_mask(n, width):
                    mask = torch.zeros(n, n, dtype=torch.bool)
                    for i in range(n):
                        mask[i, max(0, i - width + 1) : i + 1] = True
                    return mask
                """,
                cause="loops-and-may-not",
            ),
            code(
                """
                def window_mask(n, width):
                    mask = torch.ones(n, n, dtype=torch.bool).tril()
                    far = torch.ones(n - width, n - width, dtype=torch.bool).tril()
                    return mask & ~F.pad(far, (0, width, width, 0))
                """,
                cause="raises RuntimeError",
            ),
            code(
                """
                def window_mask(n, width):
                    return torch.ones(n, n, dtype=torch.bool).tril().triu(1 - min(width, n - 1))
                """,
                cause="window-at-the-edge",
            ),
            swap(
                "(back >= 0) & (back < width)",
                "(back >= 0) | (back < width)",
                cause="everything-open",
            ),
            code(
                """
                def window_mask(n, width):
                    return torch.ones(n, n, dtype=torch.bool).tril(width - 1)
                """,
                cause="past-and-so-many-ahead",
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
            code("healthy = buggy", cause="mask-still-upside-down"),
            swap(".tril()", ".triu(1)", cause="only-padding-mended"),
            swap(
                "real[:, None, None, :] & past",
                "~real[:, None, None, :] & past",
                cause="only-past-mended",
            ),
            swap("& past", "| past", cause="or-instead-of-and"),
            swap("& past", "| ~past", cause="real-or-future"),
            swap(".tril()", ".tril(-1)", cause="token-without-itself"),
            swap(".tril()", ".tril(1)", cause="sees-one-ahead"),
            swap(
                "real[:, None, None, :]",
                "real[:, None, :, None]",
                cause="padded-queries-blocked",
            ),
            swap("real[:, None, None, :] & past", "past", cause="only-causal"),
            swap(" & past", "", cause="only-padding"),
            swap(", attn_mask=real[:, None, None, :] & past", "", cause="mask-not-used"),
            swap(
                ", attn_mask=real[:, None, None, :] & past",
                ", is_causal=True",
                cause="only-causal",
            ),
            swap("return F", "q *= 1\n    return F", cause="changed-in-place q"),
            code(
                """
                def healthy(q, k, v, real):
                    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
                    mask = (real[:, None, None] & past).to(q.dtype)
                    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                """,
                cause="mask-as-ones-and-zeros",
            ),
            code(
                """
                def healthy(q, k, v, real):
                    return torch.zeros_like(q)
                """,
                cause="same-for-every-input",
            ),
            swap(".tril()", ".triu()", cause="sees-itself-and-later"),
            code(
                """
                def healthy(q, k, v, real):
                    n = q.shape[2]
                    past = torch.ones(n, n, dtype=torch.bool).tril()
                    scores = (q @ k.mT).masked_fill(~(real[:, None, None] & past), -torch.inf)
                    return scores.softmax(-1) @ v
                """,
                cause="scores-not-divided",
            ),
            code(
                """
    def healthy(q, k, v, real):
        n = q.shape[2]
        past = torch.ones(n, n, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v * real[:, None, :, None], attn_mask=past)
                """,
                cause="padded-values-zero",
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
                cause="not-at-size-one",
            ),
            swap("[:, None, None, :]", "[:, None, :, None]", cause="padding-over-queries"),
            swap("[:, None, None, :]", "[:, None, :]", cause="axis-of-heads-missing"),
            swap(
                "    return real &", "    return real & real.mT &", cause="padded-rows-blocked-too"
            ),
            swap("return real & torch", "return ~real & torch", cause="real-blocked-padding-open"),
            swap("ones.bool()", "ones", cause="dtype-differs"),
            swap(".tril()", ".triu()", cause="sees-itself-and-later"),
            swap(".tril()", ".tril(-1)", cause="token-without-itself"),
            swap(".tril()", ".tril(1)", cause="sees-one-ahead"),
            swap("return real &", "return real |", cause="or-instead-of-and"),
            swap(
                "return real & torch.ones(n, n, dtype=torch.bool).tril()",
                "return real.expand(-1, 1, n, n)",
                cause="only-padding",
            ),
            code(
                """
                def decoder_mask(ones):
                    n = ones.shape[1]
                    real = torch.arange(n) < ones.sum(dim=1, keepdim=True)
                    return real[:, None, None] & torch.ones(n, n, dtype=torch.bool).tril()
                """,
                cause="ones-are-counted",
            ),
            code(
                """
                def decoder_mask(ones):
                    n = ones.shape[1]
                    rows = [ones.bool() & (torch.arange(n) <= i) for i in range(n)]
                    return torch.stack(rows, dim=1)[:, None]
                """,
                cause="loops-and-may-not",
            ),
            swap("~attn_mask.any", "attn_mask.any", cause="rows-with-a-key"),
            swap("attn_mask.any", "attn_mask.all", cause="rows-with-a-blocked-key"),
            swap("~attn_mask.any(dim=-1)", "~attn_mask.any(dim=-2)", cause="keys-nobody-sees"),
            swap("any(dim=-1)", "any(dim=-1, keepdim=True)", cause="keepdim-left-an-axis"),
            swap("any(dim=-1)", "any(dim=3)", cause="raises IndexError"),
            swap("~attn_mask.any(dim=-1)", "attn_mask.sum(dim=-1)", cause="dtype-differs"),
            swap(
                "return real & torch.ones(n, n, dtype=torch.bool).tril()",
                "return ~real | torch.ones(n, n, dtype=torch.bool).triu(1)",
                cause="mask-upside-down",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "attn_mask.sum(dim=-1) == 1",
                cause="rows-with-one-key",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask.any()",
                cause="one-answer-for-all",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask",
                cause="mask-turned-round",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask.any(dim=-1).any(dim=-1)",
                cause="same-for-every-input",
            ),
            swap(
                "~attn_mask.any(dim=-1)",
                "~attn_mask[..., -1]",
                cause="last-key-alone",
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
            code(  # 1e-9 is 0 in float16, so a fully masked row is 0 / 0
                """
                def masked_weights(scores, attn_mask):
                    low = scores.masked_fill(~attn_mask, -torch.inf)
                    powers = (low - low.amax(dim=-1, keepdim=True)).exp()
                    powers = powers.masked_fill(~attn_mask, 0.0)
                    return powers / (powers.sum(dim=-1, keepdim=True) + 1e-9)
                """,
                cause="holds-nan",
            ),
            swap("-torch.inf", "0.0", cause="largest-of-masked-as-zero"),
            weighs("scores.masked_fill(~attn_mask, 0.0)", cause="masked-score-is-zero"),
            weighs("scores * attn_mask", cause="masked-score-is-zero"),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp()
                    return powers / powers.sum(dim=-1, keepdim=True) * attn_mask
                """,
                cause="masked-after-softmax",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp() * attn_mask
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                cause="powers-times-mask",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    powers = scores.exp().masked_fill(~attn_mask, 0.0)
                    total = powers.sum(dim=-1, keepdim=True)
                    return powers / total.masked_fill(total == 0, 1.0)
                """,
                cause="nothing-is-subtracted",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    largest = scores.amax(dim=-1, keepdim=True)
                    powers = (scores - largest).exp().masked_fill(~attn_mask, 0.0)
                    total = powers.sum(dim=-1, keepdim=True)
                    return powers / total.masked_fill(total == 0, 1.0)
                """,
                cause="largest-of-all-keys",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    largest = (scores * attn_mask).amax(dim=-1, keepdim=True)
                    powers = (scores - largest).exp().masked_fill(~attn_mask, 0.0)
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                cause="largest-of-masked-as-zero",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    middle = scores.mean(dim=-1, keepdim=True)
                    powers = (scores - middle).exp().masked_fill(~attn_mask, 0.0)
                    return powers / powers.sum(dim=-1, keepdim=True)
                """,
                cause="mean-is-subtracted",
            ),
            swap(
                "scores.amax(dim=-1, keepdim=True)",
                "scores.amax()",
                cause="largest-of-all-rows",
            ),
            swap("~attn_mask", "attn_mask", cause="weights-upside-down-no-nan"),
            weighs("scores.masked_fill(attn_mask, -torch.inf)", cause="weights-upside-down"),
            weighs("scores", cause="weights-without-mask"),
            weighs("scores + attn_mask", cause="scores-plus-ones"),
            weighs("scores.masked_fill(~attn_mask, torch.inf)", cause="masked-score-is-infinite"),
            swap("total.masked_fill(total == 0, 1.0)", "total", cause="empty-row-is-nan"),
            swap(".exp().masked_fill(~attn_mask, 0.0)", ".exp()", cause="empty-row-is-nan"),
            weighs("scores.masked_fill(~attn_mask, -1e9)", cause="empty-row-has-weights"),
            weighs("scores.masked_fill(~attn_mask, -1e4)", cause="fill-too-small"),
            weighs(
                "scores.masked_fill(~attn_mask, -1e9)",
                "weights.masked_fill(~attn_mask, 0.0)",
                cause="raises",
            ),
            weighs(
                "scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)",
                cause="empty-row-has-weights",
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
                cause="gradient-nan-with-empty-rows",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores = scores.masked_fill(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    powers[powers.isnan()] = 0
                    return powers / powers.sum(dim=-1, keepdim=True).clamp_min(1.0)
                """,
                cause="raises-in-place",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    scores.masked_fill_(~attn_mask, -torch.inf)
                    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
                    return (powers / powers.sum(dim=-1, keepdim=True)).nan_to_num()
                """,
                cause="changed-in-place",
            ),
            swap(
                "powers.sum(dim=-1, keepdim=True)",
                "powers.sum(dim=-2, keepdim=True)",
                cause="sum-over-queries",
            ),
            swap("powers.sum(dim=-1, keepdim=True)", "powers.sum()", cause="sum-over-everything"),
            swap(
                "powers / total.masked_fill(total == 0, 1.0)",
                "powers",
                cause="weights-not-divided",
            ),
            swap("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-1)", cause="raises"),
            swap(
                "scores = scores.masked_fill",
                "scores = scores.float().masked_fill",
                cause="dtype-differs",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    return scores.masked_fill(~attn_mask, -torch.inf).softmax(dim=-1).nan_to_num()
                """,
                cause="calls-shortcut softmax",
            ),
            code(
                """
                from utils.attention import scaled_dot_product_attention as attend

                def masked_weights(scores, attn_mask):
                    d = scores.shape[-1]
                    keys = torch.eye(d, dtype=scores.dtype).expand(*scores.shape[:2], d, d)
                    return attend(scores * d**0.5, keys, keys, attn_mask)[1]
                """,
                cause="calls-shortcut",
            ),
            code(
                """
                def masked_weights(scores, attn_mask):
                    p = torch.exp(scores) * attn_mask
                    return p / (p.sum(-1, keepdim=True) + 1e-9)
                """,
                cause="six-digits-only",
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
            swap("table[:, j]", "table[j, :]", cause="table-transposed"),
            swap("> 1e-6", "== 0", cause="table-upside-down"),
            swap("changed = x.clone()", "changed = x", cause="changes-pile-up"),
            swap(
                "torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "x[j] + 1",
                cause="same-number-added",
            ),
            swap(
                "torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "x[j] * 2",
                cause="token-only-scaled",
            ),
            swap(
                "changed[j] = torch.randn(x.shape[1], generator=generator, dtype=x.dtype)",
                "changed[j, 0] += 1",
                cause="first-number-of-token",
            ),
            swap(".abs().amax(dim=-1)", ".sum(dim=-1).abs()", cause="outputs-summed"),
            swap(".abs().amax(dim=-1)", "[:, 0].abs()", cause="first-number-of-output"),
            swap("amax", "amin", cause="all-numbers-must-move"),
            swap(".abs()", "", cause="sign-matters"),
            swap("1e-6", "0.01", cause="faint-is-missed"),
            code(
                """
                def influences(layer, x):
                    return torch.ones(len(x), len(x), dtype=torch.bool).tril()
                """,
                cause="layer-never-called",
            ),
            code(
                """
                def influences(layer, x):
                    changed = layer(torch.randn_like(x)) - layer(x)
                    moved = changed.abs().amax(dim=-1) > 1e-6
                    return moved[:, None].expand(-1, len(x))
                """,
                cause="all-tokens-changed",
            ),
            code(
                """
                def influences(layer, x):
                    sums = torch.autograd.functional.jacobian(lambda x: layer(x).sum(dim=-1), x)
                    return sums.abs().amax(dim=-1) > 0
                """,
                cause="layer-normalizes-outputs",
            ),
            code(
                """
                def influences(layer, x):
                    jacobian = torch.autograd.functional.jacobian(layer, x)
                    return jacobian.abs().sum(dim=(1, 3))
                """,
                cause="dtype-differs",
            ),
            code(
                """
                def influences(layer, x):
                    return layer.graph
                """,
                cause="layer-never-called",
            ),
            swap("num_layers * (width - 1)", "num_layers * width", cause="width-counts-itself"),
            swap("num_layers * (width - 1)", "width - 1", cause="one-layer-alone"),
            swap(
                "num_layers * (width - 1)",
                "num_layers * (width - 1) + 1",
                cause="counts-the-token-itself",
            ),
            swap("num_layers * (width - 1)", "(width - 1) ** num_layers", cause="steps-multiplied"),
            swap("num_layers * (width - 1)", "width**num_layers", cause="widths-multiplied"),
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
                cause="changed-from-here-on",
            ),
            swap(
                "num_layers * (width - 1)",
                "width * num_layers - 1",
                cause="width-counts-itself-in-each-layer",
            ),
            swap(
                "num_layers * (width - 1)",
                "width + num_layers - 1",
                cause="one-step-a-layer",
            ),
            swap(
                "num_layers * (width - 1)",
                "(width - 1) * (num_layers - 1)",
                cause="one-layer-less",
            ),
            swap(
                "num_layers * (width - 1)",
                "2 * (width - 1)",
                cause="two-layers-alone",
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
