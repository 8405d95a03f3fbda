"""Answers to the exercises of chapter 15, right and wrong."""

from exercise_bank import Bank, code, swap

NUMBERS = "4 * 4 * (40 + 40) + 2 * 4 * (40 + 160)"
LINEAR = 'rearrange(kernel, "ph pw c e -> e (c ph pw)")'
PROJECT = 'rearrange(mixed, "b h n d -> b n (h d)"), c_proj.T, proj_bias'
SPLIT = '"b n (three h d) -> three b h n d"'
GROUPS = '"(g heads d) e -> g heads d e"'
CUT = "groups[:, :r], groups[:, r], groups[:, r + 1]"
UP_DOWN = "u[:, :r] * s[:r], v[:r]"
BICUBIC = 'mode="bicubic", align_corners=False'


def numbers(line, *, says=""):
    return swap(NUMBERS, line, says=says)


def order(pattern, *, says=""):
    """The function of 15.2 that lays a patch out otherwise."""
    return swap("(c ph pw)", pattern, says=says)


def stretched(line, *, says=""):
    return swap(BICUBIC, line, says=says)


BANK = {
    "15.1": Bank(
        wrong=[
            swap("(40, 120)", "(120, 40)", says="right sizes in another order"),
            swap("(40, 120)", "(40, 40)", says="look at out"),
            swap("(160, 40)", "(40, 160)", says="right sizes in another order"),
            swap("(160, 40)", "(120, 40)", says="look at out"),
            numbers("4 * 4 * (40 + 40)", says="fc1 and fc2 have theirs"),
            numbers("2 * 4 * (40 + 160)", says="q, k, v and out have theirs"),
            numbers("4 * (40 + 40) + 2 * (40 + 160)", says="that is for rank 1"),
            numbers("4 * 4 * 40 + 4 * (40 + 160)", says="each product has two"),
            numbers("4 * 40 * 40 + 2 * 40 * 160", says="the weights themselves"),
            numbers(NUMBERS + " + 5 * 40 + 160", says="the biases stay frozen"),
            numbers("4 * 4 * (40 + 40) + 4 * (40 + 160)", says="two Linears, fc1 and fc2"),
            numbers("4 * (40 + 120) + 4 * 80 + 2 * 4 * 200", says="three Linears"),
        ],
        right=[
            swap("(40, 120)", "torch.Size([40, 3 * 40])"),
            numbers("torch.tensor(2880)"),
        ],
    ),
    "15.2": Bank(
        wrong=[
            order("(ph pw c)", says="the channels run fastest"),
            order("(c pw ph)", says="column by column"),
            order("(pw ph c)", says="the patch goes column by column"),
            order("(ph c pw)", says="between rows and columns"),
            order("(pw c ph)", says="columns, channels, rows"),
            swap(LINEAR, "kernel.reshape(kernel.shape[3], -1)", says="axes have to be moved"),
            swap(LINEAR, 'rearrange(kernel, "ph pw c e -> (c ph pw) e")', says="shape"),
            swap(LINEAR, 'rearrange(kernel, "ph pw c e -> e c ph pw")', says="asked for is"),
            swap(LINEAR, LINEAR + ".detach()", says="gradient"),
        ],
        right=[
            swap(LINEAR, "kernel.permute(3, 2, 0, 1).flatten(1)"),
            swap(LINEAR, 'torch.einsum("hwce->echw", kernel).reshape(kernel.shape[-1], -1)'),
        ],
    ),
    "15.3": Bank(
        wrong=[
            swap("c_proj.T", "c_proj", says="it is square"),
            swap(SPLIT, '"b n (h three d) -> three b h n d"', says="head by head"),
            swap(SPLIT, '"b n (three d h) -> three b h n d"', says="the heads run fastest"),
            swap("q, k, v = ", "k, q, v = ", says="queries and keys are exchanged"),
            swap("q, k, v = ", "q, v, k = ", says="keys and values are exchanged"),
            swap("q, k, v = ", "v, k, q = ", says="queries and values are exchanged"),
            swap(", is_causal=True", "", says="GPT-2 is causal"),
            swap("c_proj.T, proj_bias", "c_proj.T", says="the bias of c_proj"),
            swap("c_attn.T, attn_bias", "c_attn.T", says="the bias of c_attn"),
            swap('"b h n d -> b n (h d)"', '"b h n d -> b n (d h)"', says="values"),
        ],
        right=[
            code(
                """
                def attention(x, c_attn, attn_bias, c_proj, proj_bias, h):
                    q, k, v = (
                        rearrange(part, "b n (h d) -> b h n d", h=h)
                        for part in (x @ c_attn + attn_bias).chunk(3, dim=-1)
                    )
                    scores = q @ k.mT / q.shape[-1] ** 0.5
                    n = x.shape[1]
                    later = torch.ones(n, n, dtype=torch.bool).triu(1)
                    weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
                    return (weights @ v).transpose(1, 2).flatten(2) @ c_proj + proj_bias
                """
            ),
            swap(
                "F.linear(" + PROJECT + ")",
                'proj_bias + rearrange(mixed, "b h n d -> b n (h d)") @ c_proj',
            ),
        ],
    ),
    "15.4": Bank(
        wrong=[
            code(
                """
                def unpack(packed, g, r):
                    rows = len(packed) // (r + 2)
                    return packed.split([r * rows, rows, rows])
                """,
                says="three blocks",
            ),
            swap(CUT, "groups[:, :r], groups[:, r + 1], groups[:, r]", says="values is the last"),
            swap(CUT, "groups[:, 2:], groups[:, 0], groups[:, 1]", says="the front of each group"),
            swap(CUT, "groups[:, 2:], groups[:, 1], groups[:, 0]", says="the end of each group"),
            swap(
                "return q.flatten(0, 2)",
                "return q.transpose(0, 1).flatten(0, 2)",
                says="place in the group",
            ),
            swap(GROUPS, '"(heads g d) e -> g heads d e"', says="the group goes outside"),
            swap(GROUPS, '"(d g heads) e -> g heads d e"', says="lie together"),
            swap("q.flatten(0, 2)", "q.flatten(1, 2)", says="asked for is"),
            swap("v.flatten(0, 1)", "k.flatten(0, 1)", says="values"),
        ],
        right=[
            code(
                """
                def unpack(packed, g, r):
                    d = len(packed) // (g * (r + 2))
                    q, k, v = [], [], []
                    for group in packed.chunk(g):
                        q.append(group[: r * d])
                        k.append(group[r * d : (r + 1) * d])
                        v.append(group[(r + 1) * d :])
                    return torch.cat(q), torch.cat(k), torch.cat(v)
                """
            ),
            code(
                """
                def unpack(packed, g, r):
                    e = packed.shape[1]
                    groups = packed.reshape(g, r + 2, -1, e)
                    q, k, v = groups.split([r, 1, 1], dim=1)
                    return q.reshape(-1, e), k.reshape(-1, e), v.reshape(-1, e)
                """
            ),
        ],
    ),
    "15.5": Bank(
        wrong=[
            stretched('mode="bilinear", align_corners=False', says="bilinear"),
            stretched('mode="nearest"', says="nearest"),
            stretched('mode="bicubic", align_corners=True', says="align_corners=True"),
            stretched('mode="bilinear", align_corners=True', says="bilinear"),
            swap("torch.cat([first, ", "torch.cat([", says="the row of the class token is missing"),
            swap("torch.cat([first, ", "torch.cat([0 * first, ", says="stays as it was"),
            swap('"b (gh gw) e -> b e gh gw"', '"b (gw gh) e -> b e gh gw"', says="row by row"),
            swap(
                'rearrange(grid, "b e gh gw -> b (gh gw) e")',
                'rearrange(grid, "b e gh gw -> b (gw gh) e")',
                says="written column by column",
            ),
            swap("size=(new_gh, new_gw)", "size=(new_gw, new_gh)", says="values"),
            swap(
                'rearrange(grid, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)',
                "grid.reshape(1, -1, gh, gw)",
                says="a view makes channels",
            ),
            swap(
                'rearrange(grid, "b e gh gw -> b (gh gw) e")',
                "grid.reshape(1, new_gh * new_gw, -1)",
                says="a view makes rows",
            ),
            code(
                """
                def resize(positions, gh, gw, new_gh, new_gw):
                    row = F.interpolate(
                        positions[:, 1:].mT, size=new_gh * new_gw, mode="linear"
                    )
                    return torch.cat([positions[:, :1], row.mT], dim=1)
                """,
                says="one long row",
            ),
        ],
        right=[
            code(
                """
                def resize(positions, gh, gw, new_gh, new_gw):
                    grid = positions[0, 1:].reshape(gh, gw, -1).permute(2, 0, 1)[None]
                    grid = F.interpolate(grid, size=(new_gh, new_gw), mode="bicubic")
                    rows = grid[0].flatten(1).T
                    return torch.cat([positions[0, :1], rows])[None]
                """
            ),
            code(
                """
                def resize(positions, gh, gw, new_gh, new_gw):
                    new = positions.new_zeros(1, 1 + new_gh * new_gw, positions.shape[2])
                    grid = positions[:, 1:].mT.reshape(1, -1, gh, gw)
                    grid = F.interpolate(grid, (new_gh, new_gw), mode="bicubic")
                    new[:, :1], new[:, 1:] = positions[:, :1], grid.flatten(2).mT
                    return new
                """
            ),
        ],
        equivalent={
            'grid = rearrange(grid, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw) => '
            "grid = rearrange(grid, 'b (gh gw) e -> b e gh gw', gw=gw)": "one size gives the other",
            'grid = rearrange(grid, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw) => '
            "grid = rearrange(grid, 'b (gh gw) e -> b e gh gw', gh=gh)": "one size gives the other",
            'grid = F.interpolate( grid, size=(new_gh, new_gw), mode="bicubic", '
            "align_corners=False ) => grid = F.interpolate(grid, size=(new_gh, new_gw), "
            "mode='bicubic')": "PyTorch's default",
        },
    ),
    "15.6": Bank(
        wrong=[
            swap("svd(after - before", "svd(after", says="the product for what changed"),
            swap("return before + up @ down", "return up @ down", says="`before` is missing"),
            swap("after - before", "before - after", says="before - after"),
            swap("return before + up", "return after + up", says="has the change already"),
            swap(UP_DOWN, "u[:, :r], v[:r]", says="weighted"),
            swap(UP_DOWN, "u[:, :r] * s[:r], s[:r, None] * v[:r]", says="come in twice"),
            swap(UP_DOWN, "u[:, -r:] * s[-r:], v[-r:]", says="smallest singular values"),
            swap(UP_DOWN, "u[:, r:] * s[r:], v[r:]", says="largest singular values out"),
            swap(UP_DOWN, "u[:, : r + 1] * s[: r + 1], v[: r + 1]", says="keeps r + 1"),
            swap(UP_DOWN, "u[:, : r - 1] * s[: r - 1], v[: r - 1]", says="keeps r - 1"),
            swap(UP_DOWN, "u * s, v", says="nothing is of low rank"),
            code(
                """
                def compress(before, after, r):
                    u, s, v = torch.linalg.svd(after, full_matrices=False)
                    return u[:, :r] * s[:r] @ v[:r]
                """,
                says="`after` itself",
            ),
        ],
        right=[
            code(
                """
                def compress(before, after, r):
                    u, s, v = torch.linalg.svd(after - before)
                    change = torch.zeros_like(before)
                    for place in range(r):
                        change = change + s[place] * torch.outer(u[:, place], v[place])
                    return before + change
                """
            ),
            code(
                """
                def compress(before, after, r):
                    change = after - before
                    _, vectors = torch.linalg.eigh(change.T @ change)
                    down = vectors[:, -r:].T  # eigh has the largest last
                    return before + (change @ down.T) @ down
                """
            ),
        ],
        equivalent={
            "u, s, v = torch.linalg.svd(after - before, full_matrices=False) => "
            "u, s, v = torch.linalg.svd(after - before)": "what is larger then is cut off anyway",
            "u, s, v = torch.linalg.svd(after - before, full_matrices=False) => "
            "u, s, v = torch.linalg.svd(after - before, full_matrices=True)": "the same",
        },
    ),
}
