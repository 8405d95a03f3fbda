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


def numbers(line, *, cause=""):
    return swap(NUMBERS, line, cause=cause)


def order(pattern, *, cause=""):
    """The function of 15.2 with a different order inside a patch."""
    return swap("(c ph pw)", pattern, cause=cause)


def stretched(line, *, cause=""):
    return swap(BICUBIC, line, cause=cause)


BANK = {
    "15.1": Bank(
        wrong=[
            swap("(40, 120)", "(120, 40)", cause="sizes-in-another-order in"),
            swap("(40, 120)", "(40, 40)", cause="look-at-axes out"),
            swap("(160, 40)", "(40, 160)", cause="sizes-in-another-order in"),
            swap("(160, 40)", "(120, 40)", cause="look-at-axes out"),
            numbers("4 * 4 * (40 + 40)", cause="feed-forward-has-products-too"),
            numbers("2 * 4 * (40 + 160)", cause="attention-has-products-too"),
            numbers("4 * (40 + 40) + 2 * (40 + 160)", cause="rank-is-left-out"),
            numbers("4 * 4 * 40 + 4 * (40 + 160)", cause="one-of-two-matrices"),
            numbers("4 * 40 * 40 + 2 * 40 * 160", cause="whole-weights-counted"),
            numbers(NUMBERS + " + 5 * 40 + 160", cause="biases-stay-frozen"),
            numbers("4 * 4 * (40 + 40) + 4 * (40 + 160)", cause="one-linear-of-the-feed-forward"),
            numbers("4 * (40 + 120) + 4 * 80 + 2 * 4 * 200", cause="packed-as-one-linear"),
        ],
        right=[
            swap("(40, 120)", "torch.Size([40, 3 * 40])"),
            numbers("torch.tensor(2880)"),
        ],
    ),
    "15.2": Bank(
        wrong=[
            order("(ph pw c)", cause="channels-lie-last"),
            order("(c pw ph)", cause="patch-goes-by-columns"),
            order("(pw ph c)", cause="channels-last-column-by-column"),
            order("(ph c pw)", cause="channels-in-the-middle"),
            order("(pw c ph)", cause="channels-in-the-middle-of-columns"),
            swap(LINEAR, "kernel.reshape(kernel.shape[3], -1)", cause="kernel-not-sorted"),
            swap(LINEAR, 'rearrange(kernel, "ph pw c e -> (c ph pw) e")', cause="shape-differs"),
            swap(LINEAR, 'rearrange(kernel, "ph pw c e -> e c ph pw")', cause="shape-differs"),
            swap(LINEAR, LINEAR + ".detach()", cause="no-gradient"),
        ],
        right=[
            swap(LINEAR, "kernel.permute(3, 2, 0, 1).flatten(1)"),
            swap(LINEAR, 'torch.einsum("hwce->echw", kernel).reshape(kernel.shape[-1], -1)'),
        ],
    ),
    "15.3": Bank(
        wrong=[
            swap("c_proj.T", "c_proj", cause="c-proj-not-turned"),
            swap(SPLIT, '"b n (h three d) -> three b h n d"', cause="packed-head-by-head"),
            swap(SPLIT, '"b n (three d h) -> three b h n d"', cause="heads-run-fastest"),
            swap("q, k, v = ", "k, q, v = ", cause="keys-before-queries"),
            swap("q, k, v = ", "q, v, k = ", cause="values-exchanged-with-keys"),
            swap("q, k, v = ", "v, k, q = ", cause="values-before-all"),
            swap(", is_causal=True", "", cause="sees-later-tokens"),
            swap("c_proj.T, proj_bias", "c_proj.T", cause="proj-bias-left-out"),
            swap("c_attn.T, attn_bias", "c_attn.T", cause="attn-bias-left-out"),
            swap('-> b n (h d)"', '-> b n (d h)"', cause="heads-joined-as-d-h"),
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
                cause="cut-as-three-blocks",
            ),
            swap(
                CUT,
                "groups[:, :r], groups[:, r + 1], groups[:, r]",
                cause="keys-exchanged-with-values",
            ),
            swap(
                CUT, "groups[:, 2:], groups[:, 0], groups[:, 1]", cause="keys-and-values-lie-first"
            ),
            swap(CUT, "groups[:, 2:], groups[:, 1], groups[:, 0]", cause="queries-lie-last"),
            swap(
                "return q.flatten(0, 2)",
                "return q.transpose(0, 1).flatten(0, 2)",
                cause="queries-by-place-in-the-group",
            ),
            swap(
                CUT,
                "groups[:, 1:-1], groups[:, 0], groups[:, -1]",
                cause="keys-before-the-queries",
            ),
            swap(GROUPS, '"(heads g d) e -> g heads d e"', cause="groups-run-inside"),
            swap(GROUPS, '"(d g heads) e -> g heads d e"', cause="rows-run-outside"),
            swap("q.flatten(0, 2)", "q.flatten(1, 2)", cause="shape-differs"),
            swap("v.flatten(0, 1)", "k.flatten(0, 1)", cause="keys-returned-as-values"),
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
            stretched('mode="bilinear", align_corners=False', cause="stretched-bilinearly"),
            stretched('mode="nearest"', cause="nearest-taken"),
            stretched('mode="bicubic", align_corners=True', cause="corners-aligned"),
            stretched('mode="bilinear", align_corners=True', cause="bilinear-corners-aligned"),
            stretched(BICUBIC + ", antialias=True", cause="antialiased"),
            swap("torch.cat([first, ", "torch.cat([", cause="class-token-is-lost"),
            swap("torch.cat([first, ", "torch.cat([0 * first, ", cause="class-token-set-to-0"),
            swap(
                '"b (gh gw) e -> b e gh gw"',
                '"b (gw gh) e -> b e gh gw"',
                cause="grid-read-by-columns",
            ),
            swap(
                'rearrange(grid, "b e gh gw -> b (gh gw) e")',
                'rearrange(grid, "b e gh gw -> b (gw gh) e")',
                cause="grid-written-by-columns",
            ),
            swap("(new_gh, new_gw)", "(new_gw, new_gh)", cause="height-and-width-swapped"),
            swap(
                'rearrange(grid, "b (gh gw) e -> b e gh gw", gh=gh, gw=gw)',
                "grid.reshape(1, -1, gh, gw)",
                cause="numbers-mixed-by-a-view",
            ),
            swap(
                'rearrange(grid, "b e gh gw -> b (gh gw) e")',
                "grid.reshape(1, new_gh * new_gw, -1)",
                cause="numbers-mixed-by-a-view-at-the-end",
            ),
            code(
                """
                def resize(positions, gh, gw, new_gh, new_gw):
                    row = F.interpolate(
                        positions[:, 1:].mT, size=new_gh * new_gw, mode="linear"
                    )
                    return torch.cat([positions[:, :1], row.mT], dim=1)
                """,
                cause="stretched-as-one-row",
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
            swap("svd(after - before", "svd(after", cause="after-is-compressed-and-added"),
            swap("return before + up @ down", "return up @ down", cause="only-the-product"),
            swap("after - before", "before - after", cause="change-has-the-wrong-sign"),
            swap("return before + up", "return after + up", cause="added-to-after"),
            swap(UP_DOWN, "u[:, :r], v[:r]", cause="singular-values-left-out"),
            swap(UP_DOWN, "u[:, :r] * s[:r], s[:r, None] * v[:r]", cause="singular-values-twice"),
            swap(UP_DOWN, "u[:, -r:] * s[-r:], v[-r:]", cause="smallest-kept"),
            swap(UP_DOWN, "u[:, r:] * s[r:], v[r:]", cause="largest-left-out"),
            swap(UP_DOWN, "u[:, : r + 1] * s[: r + 1], v[: r + 1]", cause="one-too-many"),
            swap(UP_DOWN, "u[:, : r - 1] * s[: r - 1], v[: r - 1]", cause="one-too-few"),
            swap(UP_DOWN, "u * s, v", cause="nothing-is-compressed"),
            code(
                """
                def compress(before, after, r):
                    u, s, v = torch.linalg.svd(after, full_matrices=False)
                    return u[:, :r] * s[:r] @ v[:r]
                """,
                cause="after-is-compressed",
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
