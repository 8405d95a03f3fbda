"""Answers to the exercises of chapter 01, right and wrong."""

from exercise_bank import Bank, code, swap

PATTERN = '"b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)"'

FOLLOWS = "the size left out follows from the others and the width of the weight"


def pattern(new, cause):
    return swap(PATTERN, f'"{new}"', cause=cause)


BANK = {
    "01.1": Bank(
        wrong=[
            swap("(2, 21, 120)", "(2, 21, 30)", cause="look-at-axes p"),
            swap("(2, 21, 120)", "(2, 120, 21)", cause="sizes-in-another-order"),
            swap("(2, 21, 120)", "(2, 3, 7, 120)", cause="number-of-axes"),
            swap("(2, 21, 120)", "(2, 84, 30)", cause="laid-out-otherwise"),
            swap("(2, 22, 9)", "(2, 21, 9)", cause="look-at-axes n"),
            swap("(2, 22, 9)", "(2, 22, 120)", cause="look-at-axes e"),
            swap("(9, 4, 5, 6)", "(4, 9, 5, 6)", cause="sizes-in-another-order"),
            swap("(9, 4, 5, 6)", "(9, 120)", cause="number-of-axes"),
        ],
        right=[
            swap("(2, 21, 120)", "[2, 21, 120]"),
            swap("(2, 22, 9)", "torch.Size([2, 22, 9])"),
            swap("(9, 4, 5, 6)", "nn.Conv2d(4, 9, (5, 6)).weight.shape"),
        ],
    ),
    "01.2": Bank(
        wrong=[
            pattern("b c (gh ph) (gw pw) -> b (gw gh) (c ph pw)", "patches-by-column"),
            pattern("b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)", "patch-channels-last"),
            pattern("b c (gh ph) (gw pw) -> b (gh gw) (c pw ph)", "patch-by-column"),
            pattern("b c (ph gh) (pw gw) -> b (gh gw) (c ph pw)", "patches-of-distant-pixels"),
            swap("ph=ph, pw=pw", "ph=pw, pw=ph", cause="raises EinopsError"),
            swap("ph=ph, pw=pw", "ph=ph, pw=ph", cause="shape-differs"),
            code(
                """
                def cut(images, ph, pw):
                    return images.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                cause="patches-are-strips",
            ),
            code(
                """
                def cut(images, ph, pw):
                    columns = F.unfold(images, (ph, pw), stride=(ph, pw))
                    return columns.reshape(len(images), columns.shape[2], -1)
                """,
                cause="unfold-viewed",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return F.unfold(images, (ph, pw), stride=(ph, pw)).mT
                """,
                cause="calls-shortcut unfold",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return patchify(images, (ph, pw))
                """,
                cause="calls-shortcut patchify",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return torch.stack([cut_loop(image, ph, pw) for image in images])
                """,
                cause="loops-and-may-not",
            ),
            swap(".flatten()", ".mT.flatten()", cause="patch-by-column"),
            swap(".flatten()", ".permute(1, 2, 0).flatten()", cause="patch-channels-last"),
            swap(
                "range(0, image.shape[2], pw)",
                "range(0, image.shape[1], pw)",
                cause="raises RuntimeError",
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    patches = []
                    for left in range(0, image.shape[2], pw):
                        for top in range(0, image.shape[1], ph):
                            patches.append(image[:, top : top + ph, left : left + pw].flatten())
                    return torch.stack(patches)
                """,
                cause="patches-by-column",
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    return cut(image[None], ph, pw)[0]
                """,
                cause="calls-shortcut rearrange",
            ),
            code(
                """
                def cut(images, ph, pw):
                    images -= 0.5
                    images += 0.5
                    return rearrange(images, PATTERN, ph=ph, pw=pw)
                """.replace("PATTERN", PATTERN),
                cause="changed-in-place images",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return rearrange(images.detach(), PATTERN, ph=ph, pw=pw)
                """.replace("PATTERN", PATTERN),
                cause="no-gradient images",
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    c, H, W = image.shape
                    grid = image.view(c, H // ph, ph, W // pw, pw).permute(1, 3, 0, 2, 4)
                    return grid.reshape(-1, c * ph * pw)
                """,
                cause="loop-is-missing",
            ),
        ],
        right=[
            code(
                """
                def cut_loop(image, ph, pw):
                    gh, gw = image.shape[1] // ph, image.shape[2] // pw
                    patches = torch.zeros(gh * gw, len(image) * ph * pw)
                    for row in range(gh):
                        for column in range(gw):
                            rows = slice(row * ph, row * ph + ph)
                            patch = image[:, rows, column * pw : column * pw + pw]
                            patches[row * gw + column] = patch.flatten()
                    return patches
                """,
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    patches = []
                    for band in image.split(ph, dim=1):
                        for square in torch.split(band, pw, dim=2):
                            patches.append(square.flatten())
                    return torch.stack(patches)
                """
            ),
            code(
                """
                def cut(images, ph, pw):
                    b, c, height, width = images.shape
                    grid = images.reshape(b, c, height // ph, ph, width // pw, pw)
                    return grid.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * ph * pw)
                """
            ),
            code(
                """
                def cut(images, ph, pw):
                    gh = images.shape[-2] // ph
                    rows = rearrange(images, "b c (gh ph) W -> b gh c ph W", gh=gh)
                    return rearrange(rows, "b gh c ph (gw pw) -> b (gh gw) (c ph pw)", pw=pw)
                """
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    c, height, width = image.shape
                    patches = torch.zeros(height // ph * width // pw, c * ph * pw).to(image)
                    for n in range(len(patches)):
                        top, left = n // (width // pw) * ph, n % (width // pw) * pw
                        patches[n] = image[:, top : top + ph, left : left + pw].reshape(-1)
                    return patches
                """
            ),
        ],
    ),
    "01.3": Bank(
        wrong=[
            code("healthy = buggy", cause="channels-before-grid"),
            swap("b (gh gw) (c ph pw)", "b (gw gh) (c ph pw)", cause="patches-by-column"),
            swap("b (gh gw) (c ph pw)", "b (gh gw) (ph pw c)", cause="patch-channels-last"),
            swap("b (gh gw) (c ph pw)", "b (gh gw) (c pw ph)", cause="patch-by-column"),
            swap("b (gh gw) (c ph pw)", "b (c gh) (gw ph pw)", cause="shape-differs"),
            swap("unfold(3, pw, pw)", "unfold(3, pw, 1)", cause="shape-differs"),
            code(
                """
                def healthy(images, ph, pw):
                    return images.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                cause="patches-are-strips",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    squares = images.unfold(2, ph, ph).unfold(3, pw, pw).transpose(1, 2)
                    return squares.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                cause="columns-behind-channels",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    return patchify(images, (ph, pw))
                """,
                cause="calls-shortcut patchify",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    n = images.shape[2] // ph * (images.shape[3] // pw)
                    return torch.zeros(len(images), n, images[0, :, :ph, :pw].numel()).to(images)
                """,
                cause="same-for-every-input",
            ),
        ],
        right=[
            code(
                """
                def healthy(images, ph, pw):
                    pattern = "c (gh y) (gw x) -> (gh gw) (c y x)"
                    return torch.stack([rearrange(image, pattern, y=ph, x=pw) for image in images])
                """
            ),
            code(
                """
                def healthy(images, ph, pw):
                    squares = images.unfold(2, ph, ph).unfold(3, pw, pw)
                    squares = squares.permute(0, 2, 3, 1, 4, 5)
                    return squares.flatten(3).flatten(1, 2)
                """
            ),
            code(
                """
                def healthy(images, ph, pw):
                    return F.unfold(images, (ph, pw), stride=(ph, pw)).transpose(1, 2)
                """
            ),
        ],
    ),
    "01.4": Bank(
        wrong=[
            swap(
                "e (c ph pw) -> e c ph pw",
                "e (ph pw c) -> e c ph pw",
                cause="weight-split-channels-last",
            ),
            swap(
                "e (c ph pw) -> e c ph pw",
                "e (c pw ph) -> e c ph pw",
                cause="weight-split-by-column",
            ),
            swap("b e gh gw -> b (gh gw) e", "b e gh gw -> b (gw gh) e", cause="tokens-by-column"),
            swap("b e gh gw -> b (gh gw) e", "b e gh gw -> b e (gh gw)", cause="shape-differs"),
            swap("kernel, bias,", "kernel,", cause="projection-bias-missing"),
            swap("stride=(ph, pw)", "stride=1", cause="shape-differs"),
            swap("stride=(ph, pw)", "stride=(pw, ph)", cause="shape-differs"),
            swap(
                'rearrange(maps, "b e gh gw -> b (gh gw) e")',
                "maps.reshape(len(images), -1, len(weight))",
                cause="maps-viewed-as-tokens",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return F.linear(patchify(images, (ph, pw)), weight, bias)
                """,
                cause="calls-shortcut patchify",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return F.linear(cut(images, ph, pw), weight, bias)
                """,
                cause="convolution-missing",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    e, c = len(weight), images.shape[1]
                    conv = nn.Conv2d(c, e, (ph, pw), stride=(ph, pw)).to(images)
                    conv.load_state_dict({"weight": weight.view(e, c, ph, pw), "bias": bias})
                    return conv(images).flatten(2).mT
                """,
                cause="no-gradient weight",
            ),
            swap(
                "e (ph pw c) -> e (c ph pw)", "e (c ph pw) -> e (ph pw c)", cause="weight-way-back"
            ),
            swap(
                "e (ph pw c) -> e (c ph pw)",
                "e (pw ph c) -> e (c ph pw)",
                cause="weight-read-pw-ph-c",
            ),
            swap(
                "e (ph pw c) -> e (c ph pw)",
                "e (ph pw c) -> e (c pw ph)",
                cause="weight-out-c-pw-ph",
            ),
            swap(
                'rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw)',
                "weight.view(-1, c, ph, pw).flatten(1)",
                cause="returns-argument weight",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return patchify(images, (ph, pw)) @ weight.T + bias
                """,
                cause="calls-shortcut",
            ),
        ],
        right=[
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    kernel = weight.view(len(weight), images.shape[1], ph, pw)
                    maps = F.conv2d(images, kernel, stride=(ph, pw))
                    return maps.flatten(2).transpose(1, 2) + bias


                def converted(weight, c, ph, pw):
                    return weight.view(-1, ph, pw, c).permute(0, 3, 1, 2).flatten(1)
                """
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    kernel = weight.unflatten(1, (-1, ph, pw))
                    maps = torch.conv2d(images, kernel, bias, (ph, pw))
                    return torch.einsum("beij->bije", maps).flatten(1, 2)


                def converted(weight, c, ph, pw):
                    return weight.reshape(len(weight), ph * pw, c).mT.reshape(weight.shape)
                """
            ),
        ],
        equivalent={
            'return rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw) => '
            "return rearrange(weight, 'e (ph pw c) -> e (c ph pw)', ph=ph, pw=pw)": FOLLOWS,
            'return rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw) => '
            "return rearrange(weight, 'e (ph pw c) -> e (c ph pw)', c=c, pw=pw)": FOLLOWS,
            'return rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw) => '
            "return rearrange(weight, 'e (ph pw c) -> e (c ph pw)', c=c, ph=ph)": FOLLOWS,
        },
    ),
    "01.5": Bank(
        wrong=[
            swap(
                "+ self.positions",
                "+ self.positions.roll(1, dims=1)",
                cause="positions-shifted",
            ),
            swap(
                "+ self.positions",
                "+ self.positions.roll(-1, dims=1)",
                cause="positions-shifted",
            ),
            swap(" + self.positions", "", cause="positions-missing"),
            swap("[class_token, patches]", "[patches, class_token]", cause="class-token-at-end"),
            swap(
                "torch.cat([class_token, patches], dim=1) + self.positions",
                "torch.cat([class_token, patches + self.positions[:, 1:]], dim=1)",
                cause="class-token-without-position",
            ),
            swap(
                "torch.cat([class_token, patches], dim=1) + self.positions",
                "torch.cat([class_token, patches + self.positions[:, :-1]], dim=1)",
                cause="positions-of-neighbours",
            ),
            swap("self.positions\n", "self.positions[:, :1]\n", cause="clinic-found/pos-one-row"),
            swap(
                "+ self.positions\n",
                "+ self.positions[0, : len(images), None]\n",
                cause="clinic-found/pos-batch-axis",
            ),
            swap("+ self.positions", "* self.positions", cause="positions-multiplied"),
            swap("torch.randn(1, n + 1,", "torch.randn(1, n,", cause="shape-differs positions"),
            swap("torch.randn(1, 1, e", "torch.randn(6, 1, e", cause="shape-differs class_token"),
            swap(
                "nn.Parameter(torch.randn(1, n + 1, embed_dim) * 0.02)",
                "nn.Parameter(torch.randn(1, n + 1, embed_dim)) * 0.02",
                cause="no-parameter",
            ),
            swap(
                "self.class_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)",
                'self.register_buffer("class_token", torch.zeros(1, 1, embed_dim))',
                cause="no-parameter",
            ),
            swap("self.proj = nn.Linear", "self.project = nn.Linear", cause="parameter-missing"),
            swap("in_channels * ph * pw", "ph * pw", cause="shape-differs"),
            swap(
                "(height // ph) * (width // pw)",
                "(height // ph) ** 2",
                cause="shape-differs positions",
            ),
            swap("n + 1, embed_dim) * 0.02", "n + 1, embed_dim)", cause="starts-with-deviation"),
            swap("1, 1, embed_dim) * 0.02", "1, 1, embed_dim) * 0", cause="starts-with-deviation"),
            swap(
                "patchify(images, self.patch_size)",
                "images.reshape(len(images), -1, self.proj.in_features)",
                cause="clinic-found/patch-view",
            ),
            swap(
                "self.class_token.expand(len(images), -1, -1)", "self.class_token", cause="raises"
            ),
            code(
                """
                from utils import embedding


                class PatchEmbedding(embedding.PatchEmbedding):
                    pass
                """,
                cause="calls-shortcut PatchEmbedding",
            ),
            swap("+ self.positions", "+ self.positions + self.positions", cause="positions-twice"),
        ],
        right=[
            code(
                """
                class PatchEmbedding(nn.Module):
                    def __init__(self, image_size, patch_size, in_channels, embed_dim):
                        super().__init__()
                        self.ph, self.pw = patch_size
                        n = image_size[0] * image_size[1] // (self.ph * self.pw)
                        self.proj = nn.Linear(in_channels * self.ph * self.pw, embed_dim)
                        self.class_token = nn.Parameter(torch.empty(1, 1, embed_dim))
                        self.positions = nn.Parameter(torch.empty(1, n + 1, embed_dim))
                        nn.init.normal_(self.class_token, std=0.02)
                        nn.init.trunc_normal_(self.positions, std=0.02)

                    def forward(self, images):
                        patches = cut(images, self.ph, self.pw) @ self.proj.weight.T
                        patches = patches + self.proj.bias
                        first = self.class_token.repeat(images.shape[0], 1, 1)
                        return torch.cat((first, patches), 1) + self.positions
                """
            ),
            code(
                """
                class PatchEmbedding(nn.Module):
                    def __init__(self, image_size, patch_size, in_channels, embed_dim):
                        super().__init__()
                        self.patch_size = patch_size
                        n = len(range(0, image_size[0], patch_size[0]))
                        n *= len(range(0, image_size[1], patch_size[1]))
                        p = in_channels * patch_size[0] * patch_size[1]
                        self.positions = nn.Parameter(0.02 * torch.randn(1, n + 1, embed_dim))
                        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, embed_dim))
                        self.proj = nn.Linear(p, embed_dim)

                    def forward(self, images):
                        columns = F.unfold(images, self.patch_size, stride=self.patch_size)
                        patches = self.proj(columns.mT) + self.positions[:, 1:]
                        first = self.class_token + self.positions[:, :1]
                        return torch.cat([first.expand(len(images), -1, -1), patches], dim=1)
                """
            ),
        ],
        equivalent={
            "class_token = self.class_token.expand(len(images), -1, -1)  # (b, 1, e) => "
            "class_token = self.class_token.expand(len(images), (1), -1)  # (b, 1, e)": "that axis "
            "has size 1 already",
        },
    ),
    "01.6": Bank(
        wrong=[
            swap(
                "images.clone()",
                "images",
                cause="painted-without-fresh-copy",
            ),
            swap("return table", "return table.mT", cause="influence-transposed"),
            swap("return table", "return ~table", cause="influence-inverted"),
            swap("return table", "return table.float()", cause="dtype-differs"),
            swap("painted[:, :, top", "painted[:, 0, top", cause="paints-first-channel"),
            swap("painted[:, :, top", "painted[:, :1, top", cause="paints-first-channel"),
            swap("any(dim=2)", "all(dim=2)", cause="asks-all-numbers"),
            swap("row * gw + column", "column * gh + row", cause="squares-by-column"),
            swap("row * gw + column", "row * gh + column", cause="raises IndexError"),
            swap(
                "painted = images.clone()", "painted = images", cause="painted-without-fresh-copy"
            ),
            code(
                """
                def influence(cut, images, ph, pw):
                    gh, gw = images.shape[2] // ph, images.shape[3] // pw
                    return torch.eye(gh * gw, dtype=torch.bool)
                """,
                cause="always-own-patch",
            ),
            code(
                """
                def influence(cut, images, ph, pw):
                    gh, gw = images.shape[2] // ph, images.shape[3] // pw
                    before, rows = cut(images, ph, pw).clone(), []
                    for k in range(gh * gw):
                        top, left = k // gw * ph, k % gw * pw
                        square = images[:, :, top : top + ph, left : left + pw]
                        square += 1
                        rows.append((cut(images, ph, pw) != before).any(dim=2).any(dim=0))
                        square -= 1
                    return torch.stack(rows)
                """,
                cause="paint-taken-away",
            ),
            code(
                """
                def influence(cut, images, ph, pw):
                    gh, gw = images.shape[2] // ph, images.shape[3] // pw
                    before, rows, painted = cut(images, ph, pw).clone(), [], images.clone()
                    for k in range(gh * gw):
                        top, left = k // gw * ph, k % gw * pw
                        painted[:, :, top : top + ph, left : left + pw] += 1
                        rows.append((cut(painted, ph, pw) != before).any(dim=2).any(dim=0))
                    return torch.stack(rows)
                """,
                cause="painted-without-fresh-copy",
            ),
            swap("before = cut(", "images += 0\n    before = cut(", cause="changed-in-place"),
            swap(
                "(cut(painted, ph, pw) != before)",
                "(before != before)",
                cause="no-patch-changes",
            ),
            swap("tables[0].sum(dim=1)", "tables[1].sum(dim=1)", cause="reach-of-right-cut"),
            swap(".sum(dim=1).float().mean()", ".float().mean()", cause="reach-as-share"),
            swap(".sum(dim=1).float().mean()", ".sum()", cause="reach-of-all-marks"),
            swap(
                "any(dim=2).any(dim=0)",
                "any(dim=2)[0]",
                cause="asks-all-pictures",
            ),
            swap("left + pw] += 1", "left + pw] = 1", cause="paints-white"),
            swap("left + pw] += 1", "left + pw] *= 0", cause="paints-black"),
            code("reach = 36", cause="reach-number-of-patches"),
            code("reach = tables", cause="number-is-asked list"),
            code(
                """
                def influence(cut, images, ph, pw):
                    before, rows = cut(images, ph, pw), []
                    for y in range(0, images.shape[2], ph):
                        for x in range(0, images.shape[3], pw):
                            painted = images.clone()
                            painted[:, :, y : y + ph, x : x + pw] += 1
                            rows.append((cut(painted, ph, pw) - before).sum((0, 2)).abs() > 1e-6)
                    return torch.stack(rows)
                """,
                cause="values-differ",
            ),
        ],
        right=[
            code(
                """
                def influence(cut, images, ph, pw):
                    gh, gw = images.shape[2] // ph, images.shape[3] // pw
                    squares = torch.eye(gh * gw).reshape(-1, 1, 1, gh, gw).to(images)
                    paint = squares.repeat_interleave(ph, 3).repeat_interleave(pw, 4)
                    before = cut(images, ph, pw)
                    after = torch.stack([cut(images + one, ph, pw) for one in paint])
                    return (after != before).any(-1).any(1)


                reach = influence(buggy, photos[:1], 16, 16)[5].sum()
                """
            ),
            code(
                """
                def influence(cut, images, ph, pw):
                    rows, before = [], cut(images, ph, pw)
                    for top in range(0, images.shape[2], ph):
                        for left in range(0, images.shape[3], pw):
                            painted = images.clone()
                            painted[..., top : top + ph, left : left + pw] += 1
                            moved = (cut(painted, ph, pw) - before).abs().sum(dim=(0, 2))
                            rows.append((moved > 0.5).tolist())
                    return torch.tensor(rows)


                reach = 3
                """
            ),
        ],
        equivalent={
            "table = torch.zeros(gh * gw, gh * gw, dtype=torch.bool) => "
            "table = torch.ones(gh * gw, gh * gw, dtype=torch.bool)": "every row is overwritten",
            "painted[:, :, top : top + ph, left : left + pw] += 1 => "
            "painted[:, :, top : top + ph, left : left + pw] += 2": "2 changes what 1 changes",
            "painted[:, :, top : top + ph, left : left + pw] += 1 => "
            "painted[:, :, top:top + ph, left:left + pw] -= 1": "-1 changes what 1 changes",
            "reach = tables[0].sum(dim=1).float().mean().item() => "
            "reach = (tables[0].sum(dim=1).float().mean())": "a tensor of one number",
            "reach = tables[0].sum(dim=1).float().mean().item() => "
            "reach = tables[0].sum(dim=0).float().mean().item()": "as many columns as rows share "
            "the same marks",
            'show_matrices( tables, ["buggy", "patchify"], rows="painted square k", '
            'columns="changed patch t" ) => ...': "the picture is looked at, not checked",
            'tables, ["buggy", "patchify"], rows="painted square k", '
            'columns="changed patch t" => ...': "the picture is looked at, not checked",
        },
    ),
}
