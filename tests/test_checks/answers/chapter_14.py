"""Answers to the exercises of chapter 14, right and wrong."""

from exercise_bank import Bank, code, swap


def parts(line, says=""):
    return code(f"def score_parts(q, k, i, j):\n    {line}\n", says=says)


def wide(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def spread(weights):\n" + body, says=says)


def follow(step, says="", after="return path"):
    """A rollout whose step from layer to layer is another one."""
    return code(
        f"""
        def max_rollout(maps):
            itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
            path = itself
            for weights in maps:
                most = weights.amax(dim=1)
                {step}
            {after}
        """,
        says=says,
    )


def without(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def attend_without(layer, x, head):\n" + body, says=says)


def silenced(change, says=""):
    """The hook of the solution with another line in it."""
    return code(
        f"""
        def attend_without(layer, x, head):
            def silence(_layer, inputs):
                parts = rearrange(inputs[0], "b n (h d) -> b n h d", h=layer.num_heads).clone()
                {change}
                return (rearrange(parts, "b n h d -> b n (h d)"),)

            hook = layer.out_proj.register_forward_pre_hook(silence)
            result = layer(x)
            hook.remove()
            return result
        """,
        says=says,
    )


def matter(*lines, says=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def importance(maps, gradients):\n" + body, says=says)


ROWS = "row = -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(2)"
GAINS = "each = torch.stack([w * g for w, g in zip(maps, gradients)])"

PARTS = 'parts = rearrange(inputs[0], "b n (h d) -> b n h d", h=layer.num_heads).clone()'
BROUGHT = "nobody else reads what the heads bring"

BANK = {
    "14.1": Bank(
        wrong=[
            swap("(5, 6, 65, 65)", "(5, 6, 64, 64)", says="look at i"),
            swap("(5, 6, 65, 65)", "(5, 65, 65)", says="needs 4 axes"),
            swap("(5, 6, 65, 65)", "(6, 5, 65, 65)", says="right sizes in another order"),
            swap("(5, 6, 65, 8)", "(5, 6, 65, 48)", says="look at d"),
            swap("(5, 6, 65, 8)", "(5, 65, 48)", says="needs 4 axes"),
            swap("(5, 6, 65, 8)", "(5, 65, 6, 8)", says="right sizes in another order"),
            swap("(5, 64)", "(5, 65)", says="look at n"),
            swap("(5, 64)", "(5, 65, 65)", says="needs 2 axes"),
        ],
        right=[
            swap("(5, 6, 65, 65)", "[5, 6, 65, 65]"),
            swap("(5, 6, 65, 8)", "torch.Size([5, 6, 8 * 8 + 1, 48 // 6])"),
        ],
    ),
    "14.2": Bank(
        wrong=[
            swap(" / math.sqrt(q.shape[-1])", "", says="divided by the root of d"),
            swap("math.sqrt(q.shape[-1])", "q.shape[-1]", says="this divides by d"),
            swap(
                "q.shape[-1]",
                "q.shape[-1] * q.shape[1]",
                says="the width of all heads together",
            ),
            swap("q.shape[-1]", "q.shape[-2]", says="the number of tokens"),
            parts(
                "return (q[:, :, i] * k[:, :, j]).sum(dim=-1) / q.shape[-1] ** 0.5",
                says="this is the score itself",
            ),
            parts(
                "return (q[:, :, i] * k[:, :, j]).sum(dim=-1, keepdim=True) / q.shape[-1] ** 0.5",
                says="this is the score itself",
            ),
            parts(
                "return q[:, :, j] * k[:, :, i] / q.shape[-1] ** 0.5", says="the other way round"
            ),
            parts("return q[:, :, i] * q[:, :, j] / q.shape[-1] ** 0.5", says="are queries"),
            parts("return k[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5", says="are keys"),
            parts(
                "return (q[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5).softmax(dim=-1)",
                says="before any softmax",
            ),
            swap(
                "q[:, :, i] * k[:, :, j]",
                "(q[:, :, i] + k[:, :, j])",
                says="multiplied, feature by feature",
            ),
            swap("/ math", "* math", says="multiplies by the root"),
            parts(
                "return (q[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5).mean(dim=1)",
                says="each has its own parts",
            ),
        ],
        right=[
            parts("return q[..., i, :] * (k[..., j, :] / math.sqrt(k.shape[-1]))"),
            parts("return (q * q.shape[-1] ** -0.5)[:, :, i].mul(k[:, :, j])"),
        ],
    ),
    "14.3": Bank(
        wrong=[
            wide(
                "return -(weights * weights.log2()).sum(dim=-1).mean(dim=(0, 2))",
                says="0 times the log of 0",
            ),
            swap("log2()", "log()", says="these are nats"),
            swap("return -(", "return (", says="the sign is wrong"),
            swap("mean(dim=(0, 2))", "mean()", says="all heads are averaged"),
            swap("mean(dim=(0, 2))", "mean(dim=(1, 2))", says="each text has a number"),
            swap("mean(dim=(0, 2))", "mean(dim=(0, 1))", says="each place has a number"),
            swap("mean(dim=(0, 2))", "sum(dim=(0, 2))", says="texts and rows are summed"),
            swap("mean(dim=(0, 2))", "sum(dim=2).mean(dim=0)", says="the rows are summed"),
            swap("mean(dim=(0, 2))", "mean(dim=2)", says="each text has its own number"),
            swap("sum(dim=-1)", "mean(dim=-1)", says="the number of keys"),
            wide(
                "weights = weights.mean(dim=0, keepdim=True)",
                ROWS,
                "return row.mean(dim=(0, 2))",
                says="the texts are averaged first",
            ),
            wide(
                "weights = weights.mean(dim=2, keepdim=True)",
                ROWS,
                "return row.mean(dim=(0, 2))",
                says="the rows are averaged first",
            ),
            wide(ROWS, "return 2 ** row.mean(dim=(0, 2))", says="numbers of tokens"),
        ],
        right=[
            wide(ROWS, "return row.mean(dim=2).mean(dim=0)"),
            wide(
                "logs = torch.where(weights > 0, weights, 1.0).log2()",
                'return -torch.einsum("bhij,bhij->h", weights, logs) / weights[:, 0, :, 0].numel()',
            ),
        ],
        equivalent={
            "logs = weights.clamp(min=1e-30).log2() => "
            "logs = weights.clamp(min=2e-30).log2()": "no weight lies between",
            "return -(weights * logs).sum(dim=-1).mean(dim=(0, 2)) => "
            "return -(weights * logs).sum(dim=-2).mean(dim=(0, 2))": "a map is square: the mean "
            "of its rows' sums is the mean of its columns'",
        },
    ),
    "14.4": Bank(
        wrong=[
            swap("amax(dim=1)", "mean(dim=1)", says="this is the mean of the heads"),
            swap("amax(dim=1)", "amin(dim=1)", says="this is the weakest head"),
            swap(" + itself", "", says="the residual is missing"),
            follow("path = (most + itself) @ path", says="rows do not sum to 1"),
            follow("path = (most + itself) / 2 @ path", says="sum to more than 1"),
            follow(
                "path = (most + itself) @ path",
                after="return path / path.sum(dim=-1, keepdim=True)",
                says="once, at the end",
            ),
            follow(
                "path = (most / most.sum(dim=-1, keepdim=True) + itself) / 2 @ path",
                says="before the identity is added",
            ),
            swap("sum(dim=-1, keepdim=True)", "sum(dim=1, keepdim=True)", says="columns sum to 1"),
            swap(
                "sum(dim=-1, keepdim=True)",
                "sum(dim=-1)[:, None]",
                says="keepdim=True is missing",
            ),
            swap("in maps:", "in maps[::-1]:", says="in the wrong order"),
            swap("in maps:", "in maps[-1:]:", says="the last layer alone"),
            swap("in maps:", "in maps[:1]:", says="the first layer alone"),
            swap("return path", "return path.mT", says="rows and columns are exchanged"),
            follow(
                "steps = [w.amax(dim=1) + itself for w in maps]",
                after="return torch.stack([s / s.sum(-1, keepdim=True) for s in steps]).mean(0)",
                says="the layers are averaged",
            ),
            follow(
                "steps = [w.amax(dim=1) + itself for w in maps]",
                after="return torch.stack([s / s.sum(-1, keepdim=True) for s in steps]).prod(0)",
                says="number by number",
            ),
        ],
        right=[
            follow(
                "step = most + itself; path = torch.matmul(step / step.sum(-1)[..., None], path)"
            ),
            follow(
                "path = torch.nn.functional.normalize(most + itself, p=1, dim=-1) @ path",
            ),
        ],
        equivalent={
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)"
            " => "
            "itself = torch.eye(maps[0].shape[-2], dtype=maps[0].dtype)": "maps are alike",
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)"
            " => "
            "itself = torch.eye(maps[1].shape[-1], dtype=maps[0].dtype)": "maps are alike",
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)"
            " => "
            "itself = torch.eye(maps[-1].shape[-1], dtype=maps[0].dtype)": "maps are alike",
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)"
            " => "
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[1].dtype)": "maps are alike",
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)"
            " => "
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[-1].dtype)": "maps are alike",
        },
    ),
    "14.5": Bank(
        wrong=[
            without(
                'parts = rearrange(layer(x), "b n (h d) -> b n h d", h=layer.num_heads).clone()',
                "parts[:, :, head] = 0",
                'return rearrange(parts, "b n h d -> b n (h d)")',
                says="behind the output projection",
            ),
            silenced(
                "inputs[0][..., head :: layer.num_heads] = 0; parts = 1 * rearrange("
                'inputs[0], "b n (h d) -> b n h d", h=layer.num_heads)',
                says="stand side by side",
            ),
            without("return layer(x)", says="nothing is taken away"),
            silenced("parts[:, :, (head + 1) % layer.num_heads] = 0", says="count from 0"),
            silenced("parts[:, :, -1 - head] = 0", says="counted from the end"),
            silenced(
                "parts[:, :, head] = parts[:, :, head].mean(dim=1, keepdim=True)",
                says="its mean over the tokens",
            ),
            silenced(
                "parts = parts * (torch.arange(layer.num_heads) == head)[:, None]",
                says="only this head is left",
            ),
            silenced(
                "parts[:, :, head] = 0; parts = parts * layer.num_heads / (layer.num_heads - 1)",
                says="scaled up",
            ),
            swap("    hook.remove()\n", "", says="take the hook off"),
            swap("return result", "return result - layer.out_proj.bias", says="belongs to no head"),
        ],
        right=[
            silenced("parts = parts * (torch.arange(layer.num_heads) != head)[:, None]"),
            without(
                "h = layer.num_heads",
                'q, k, v = (rearrange(part(x), "b n (h d) -> b h n d", h=h)',
                "           for part in (layer.q_proj, layer.k_proj, layer.v_proj))",
                "mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v",
                "keep = torch.arange(h) != head",
                'mixed = rearrange(mixed * keep[:, None, None], "b h n d -> b n (h d)")',
                "return layer.out_proj(mixed)",
            ),
        ],
        equivalent={
            PARTS + " => "
            "parts = (rearrange(inputs[0], 'b n (h d) -> b n h d', h=layer.num_heads))": BROUGHT,
            PARTS + " => " + PARTS.replace("inputs[0]", "inputs[-1]"): "there is one input",
        },
    ),
    "14.6": Bank(
        wrong=[
            matter(
                GAINS,
                "return each.abs().sum(dim=(3, 4)).mean(dim=1)",
                says="made positive before they are added",
            ),
            matter(
                GAINS,
                "return each.sum(dim=(3, 4)).mean(dim=1).abs()",
                says="averaged before the sign is dropped",
            ),
            swap("gain.abs()", "gain", says="the signs stay"),
            swap("gain.abs()", "gain.clamp(min=0)", says="count as 0"),
            matter(
                GAINS,
                "return each.clamp(min=0).sum(dim=(3, 4)).mean(dim=1)",
                says="only weights that help",
            ),
            swap("(weights * gradient)", "gradient", says="multiply with the weights"),
            swap("(weights * gradient)", "weights", says="gradients are not used"),
            swap(".mean(dim=0)", ".sum(dim=0)", says="the texts are summed"),
            swap(".sum(dim=(2, 3))", ".mean(dim=(2, 3))", says="weights of a head are averaged"),
            swap(".mean(dim=0)", ".mean(dim=1)", says="each text has a number"),
            swap(".mean(dim=0)", "", says="each text has its own number"),
            swap("torch.stack(found)", "torch.stack(found).mT", says="the other way round"),
            swap(
                "torch.stack(found)", "torch.stack(found).mean(dim=0)", says="layers are averaged"
            ),
            matter(
                GAINS,
                "return each.sum(dim=4).abs().sum(dim=3).mean(dim=1)",
                says="row by row",
            ),
        ],
        right=[
            matter(GAINS, "return each.sum(dim=(-1, -2)).abs().mean(dim=1)"),
            matter(
                'pairs = [torch.einsum("bhij,bhij->hb", w, g) for w, g in zip(maps, gradients)]',
                "return torch.stack([pair.abs().mean(dim=-1) for pair in pairs])",
            ),
        ],
        equivalent={
            "for weights, gradient in zip(maps, gradients):"
            " => "
            "for weights, gradient in zip(gradients, maps):": "a product has no order",
        },
    ),
}
