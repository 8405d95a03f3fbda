"""Answers to the exercises of chapter 14, right and wrong."""

from exercise_bank import Bank, code, swap


def parts(line, cause=""):
    return code(f"def score_parts(q, k, i, j):\n    {line}\n", cause=cause)


def wide(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def head_entropy(weights):\n" + body, cause=cause)


def follow(step, cause="", after="return path"):
    """A rollout with a different step from layer to layer."""
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
        cause=cause,
    )


def without(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def attend_without(layer, x, head):\n" + body, cause=cause)


def ablated(change, cause=""):
    """The hook of the solution with a different line in it."""
    return code(
        f"""
        def attend_without(layer, x, head):
            def ablate(_layer, inputs):
                parts = rearrange(inputs[0], "b n (h d) -> b n h d", h=layer.num_heads).clone()
                {change}
                return (rearrange(parts, "b n h d -> b n (h d)"),)

            hook = layer.out_proj.register_forward_pre_hook(ablate)
            result = layer(x)
            hook.remove()
            return result
        """,
        cause=cause,
    )


def blocked(name, cause=""):
    """Set rows of a weight to 0 while the layer runs."""
    return without(
        "d = x.shape[-1] // layer.num_heads",
        f"old = layer.{name}.clone()",
        f"layer.{name}[head * d : (head + 1) * d] = 0",
        "result = layer(x)",
        f"layer.{name}[:] = old",
        "return result",
        cause=cause,
    )


def matter(*lines, cause=""):
    body = "".join(f"    {line}\n" for line in lines)
    return code("def importance(maps, gradients):\n" + body, cause=cause)


ROWS = "row = -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(2)"
GAINS = "each = torch.stack([w * g for w, g in zip(maps, gradients)])"

PARTS = 'parts = rearrange(inputs[0], "b n (h d) -> b n h d", h=layer.num_heads).clone()'
OWN = "no other module reads the output of the heads"

BANK = {
    "14.1": Bank(
        wrong=[
            swap("(5, 6, 65, 65)", "(5, 6, 64, 64)", cause="look-at-axes i"),
            swap("(5, 6, 65, 65)", "(5, 65, 65)", cause="number-of-axes"),
            swap("(5, 6, 65, 65)", "(6, 5, 65, 65)", cause="sizes-in-another-order"),
            swap("(5, 6, 65, 8)", "(5, 6, 65, 48)", cause="look-at-axes d"),
            swap("(5, 6, 65, 8)", "(5, 65, 48)", cause="number-of-axes"),
            swap("(5, 6, 65, 8)", "(5, 65, 6, 8)", cause="sizes-in-another-order"),
            swap("(5, 64)", "(5, 65)", cause="look-at-axes n"),
            swap("(5, 64)", "(5, 65, 65)", cause="number-of-axes"),
        ],
        right=[
            swap("(5, 6, 65, 65)", "[5, 6, 65, 65]"),
            swap("(5, 6, 65, 8)", "torch.Size([5, 6, 8 * 8 + 1, 48 // 6])"),
        ],
    ),
    "14.2": Bank(
        wrong=[
            swap(" / math.sqrt(q.shape[-1])", "", cause="parts-not-divided"),
            swap("math.sqrt(q.shape[-1])", "q.shape[-1]", cause="parts-divided-by-d"),
            swap(
                "q.shape[-1]",
                "q.shape[-1] * q.shape[1]",
                cause="parts-divided-by-whole-width",
            ),
            swap("q.shape[-1]", "q.shape[-2]", cause="parts-divided-by-tokens"),
            swap("q.shape[-1]", "k.shape[-2]", cause="parts-divided-by-tokens"),
            parts(
                "return (q[:, :, i] * k[:, :, j]).sum(dim=-1) / q.shape[-1] ** 0.5",
                cause="parts-summed",
            ),
            parts(
                "return (q[:, :, i] * k[:, :, j]).sum(dim=-1, keepdim=True) / q.shape[-1] ** 0.5",
                cause="parts-summed-with-axis",
            ),
            parts(
                "return q[:, :, j] * k[:, :, i] / q.shape[-1] ** 0.5", cause="parts-sides-exchanged"
            ),
            parts(
                "return q[:, :, i] * q[:, :, j] / q.shape[-1] ** 0.5",
                cause="parts-of-query-with-query",
            ),
            parts(
                "return k[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5", cause="parts-of-key-with-key"
            ),
            swap("k[:, :, j]", "k[:, :, i]", cause="parts-key-of-i"),
            swap("q[:, :, i]", "q[:, :, j]", cause="parts-query-of-j"),
            parts(
                "return (q[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5).softmax(dim=-1)",
                cause="parts-softmax",
            ),
            swap(
                "q[:, :, i] * k[:, :, j]",
                "(q[:, :, i] + k[:, :, j])",
                cause="parts-added",
            ),
            swap("/ math", "* math", cause="parts-multiplied-by-root"),
            parts(
                "return (q[:, :, i] * k[:, :, j] / q.shape[-1] ** 0.5).mean(dim=1)",
                cause="parts-mean-of-heads",
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
                cause="spread-zeros-not-safe",
            ),
            wide(
                "return -(weights * weights.log2()).sum(dim=-1).nan_to_num().mean(dim=(0, 2))",
                cause="spread-rows-lost",
            ),
            swap("log2()", "log()", cause="given-in-nats"),
            swap("return -(", "return (", cause="sign-missing"),
            swap("mean(dim=(0, 2))", "mean()", cause="spread-one-number"),
            swap("mean(dim=(0, 2))", "mean(dim=(1, 2))", cause="heads-averaged-texts-left"),
            swap("mean(dim=(0, 2))", "mean(dim=(0, 1))", cause="spread-heads-and-texts-averaged"),
            swap("mean(dim=(0, 2))", "sum(dim=(0, 2))", cause="spread-summed"),
            swap(
                "mean(dim=(0, 2))",
                "mean(dim=2).sum(dim=0)",
                cause="importance-summed-over-texts",
            ),
            swap("mean(dim=(0, 2))", "sum(dim=2).mean(dim=0)", cause="spread-summed-over-rows"),
            swap("mean(dim=(0, 2))", "mean(dim=2)", cause="each-text-has-a-number"),
            swap("sum(dim=-1)", "mean(dim=-1)", cause="spread-mean-over-keys"),
            wide(
                "weights = weights.mean(dim=0, keepdim=True)",
                ROWS,
                "return row.mean(dim=(0, 2))",
                cause="spread-of-the-mean-map",
            ),
            wide(
                "weights = weights.mean(dim=2, keepdim=True)",
                ROWS,
                "return row.mean(dim=(0, 2))",
                cause="spread-of-the-mean-row",
            ),
            wide(ROWS, "return 2 ** row.mean(dim=(0, 2))", cause="spread-as-a-count"),
        ],
        right=[
            wide(ROWS, "return row.mean(dim=2).mean(dim=0)"),
            wide(
                "total = torch.zeros(weights.shape[1])",
                "for each in weights:",
                "    total += -(each * each.log2()).nan_to_num().sum(dim=-1).mean(dim=-1)",
                "return total / len(weights)",
            ),
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
            swap("amax(dim=1)", "mean(dim=1)", cause="rollout-of-the-mean"),
            swap("amax(dim=1)", "amin(dim=1)", cause="rollout-of-the-least"),
            swap(" + itself", "", cause="rollout-without-residual"),
            follow("path = (most + itself) @ path", cause="rollout-rows-not-divided"),
            follow("path = (most + itself) / 2 @ path", cause="rollout-halved-only"),
            follow(
                "path = (most + itself) @ path",
                after="return path / path.sum(dim=-1, keepdim=True)",
                cause="rollout-divided-at-the-end",
            ),
            follow(
                "path = (most / most.sum(dim=-1, keepdim=True) + itself) / 2 @ path",
                cause="rollout-divided-first",
            ),
            follow(
                "path = (most / most.sum(dim=-1, keepdim=True) + itself) @ path",
                cause="rollout-divided-first",
            ),
            swap(
                "sum(dim=-1, keepdim=True)",
                "sum(dim=1, keepdim=True)",
                cause="rollout-columns-divided",
            ),
            swap(
                "sum(dim=-1, keepdim=True)",
                "sum(dim=-1)[:, None]",
                cause="rollout-keepdim-missing",
            ),
            swap("in maps:", "in maps[::-1]:", cause="rollout-backwards"),
            code(
                """
                def max_rollout(maps):
                    path = itself = torch.eye(maps[0].shape[-1])  # in single precision
                    for weights in maps:
                        path = (weights.amax(dim=1) + itself) / 2 @ path
                    return path
                """,
                cause="rollout-halved-only",
            ),
            swap(
                "path = itself\n    for weights in maps:",
                "path = maps[0].amax(dim=1)\n    for weights in maps[1:]:",
                cause="rollout-first-layer-bare",
            ),
            swap("in maps:", "in maps[-1:]:", cause="rollout-last-layer-only"),
            swap("in maps:", "in maps[:1]:", cause="rollout-first-layer-only"),
            swap("return path", "return path.mT", cause="rollout-turned"),
            follow(
                "steps = [w.amax(dim=1) + itself for w in maps]",
                after="return torch.stack([s / s.sum(-1, keepdim=True) for s in steps]).mean(0)",
                cause="rollout-layers-averaged",
            ),
            follow(
                "steps = [w.amax(dim=1) + itself for w in maps]",
                after="return torch.stack([s / s.sum(-1, keepdim=True) for s in steps]).prod(0)",
                cause="rollout-number-by-number",
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
            "itself = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype) => "
            "itself = torch.eye(maps[0].shape[-1])": "the check judges it in double precision",
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
                cause="head-after-the-projection",
            ),
            ablated(
                "inputs[0][..., head :: layer.num_heads] = 0; parts = 1 * rearrange("
                'inputs[0], "b n (h d) -> b n h d", h=layer.num_heads)',
                cause="head-interleaved",
            ),
            without("return layer(x)", cause="head-nothing-gone"),
            blocked("out_proj.weight.data", cause="head-rows-of-projection"),
            blocked("v_proj.weight.data", cause="head-bias-of-values"),
            without(
                "x = rearrange(x, 'b n (h d) -> b n h d', h=layer.num_heads).clone()",
                "x[:, :, head] = 0",
                "return layer(rearrange(x, 'b n h d -> b n (h d)'))",
                cause="head-block-of-the-input",
            ),
            without(
                "from utils.seeing import ablate_heads",
                "with ablate_heads(layer, [(0, head)]):",
                "    return layer(x)",
                cause="calls-shortcut ablate_heads",
            ),
            ablated("parts[:, :, (head + 1) % layer.num_heads] = 0", cause="head-next-one-gone"),
            ablated("parts[:, :, -1 - head] = 0", cause="head-counted-from-the-end"),
            ablated(
                "parts[:, :, head] = parts[:, :, head].mean(dim=1, keepdim=True)",
                cause="head-averaged",
            ),
            ablated(
                "parts = parts * (torch.arange(layer.num_heads) == head)[:, None]",
                cause="head-alone-is-left",
            ),
            ablated(
                "parts[:, :, head] = 0; parts = parts * layer.num_heads / (layer.num_heads - 1)",
                cause="head-others-scaled-up",
            ),
            swap("    hook.remove()\n", "", cause="head-stays-gone"),
            swap(
                "return result", "return result - layer.out_proj.bias", cause="head-and-bias-gone"
            ),
        ],
        right=[
            ablated("parts = parts * (torch.arange(layer.num_heads) != head)[:, None]"),
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
            "parts = (rearrange(inputs[0], 'b n (h d) -> b n h d', h=layer.num_heads))": OWN,
            PARTS + " => " + PARTS.replace("inputs[0]", "inputs[-1]"): "there is one input",
        },
    ),
    "14.6": Bank(
        wrong=[
            matter(
                GAINS,
                "return each.abs().sum(dim=(3, 4)).mean(dim=1)",
                cause="importance-absolute-too-early",
            ),
            matter(
                GAINS,
                "return each.sum(dim=(3, 4)).mean(dim=1).abs()",
                cause="importance-absolute-too-late",
            ),
            matter(
                GAINS,
                "return each.sum(dim=(1, 3, 4)).abs()",
                cause="importance-absolute-too-late",
            ),
            swap("gain.abs()", "gain", cause="importance-keeps-its-sign"),
            swap("gain.abs()", "gain.square()", cause="importance-squared"),
            swap("gain.abs()", "gain.clamp(min=0)", cause="importance-clamped"),
            matter(
                GAINS,
                "return each.clamp(min=0).sum(dim=(3, 4)).mean(dim=1)",
                cause="importance-of-what-helps",
            ),
            swap("(weights * gradient)", "gradient", cause="importance-without-weights"),
            swap("(weights * gradient)", "weights", cause="importance-without-gradients"),
            swap(".mean(dim=0)", ".sum(dim=0)", cause="importance-summed-over-texts"),
            swap(".sum(dim=(2, 3))", ".mean(dim=(2, 3))", cause="importance-mean-of-weights"),
            swap(".mean(dim=0)", ".mean(dim=1)", cause="heads-averaged-texts-left"),
            swap(".mean(dim=0)", "", cause="each-text-has-a-number"),
            swap("torch.stack(found)", "torch.stack(found).mT", cause="importance-turned"),
            swap(
                "torch.stack(found)",
                "torch.stack(found).mean(dim=0)",
                cause="importance-layers-averaged",
            ),
            matter(
                GAINS,
                "return each.sum(dim=4).abs().sum(dim=3).mean(dim=1)",
                cause="importance-of-rows",
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
