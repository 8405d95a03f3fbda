"""Answers to the exercises of chapter 01, right and wrong."""

from exercise_bank import Bank, code, swap

PATTERN = '"b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)"'

FOLLOWS = "the size left out follows from the others and the width of the weight"


def pattern(new, says):
    return swap(PATTERN, f'"{new}"', says=says)


BANK = {
    "01.1": Bank(
        wrong=[
            swap("(2, 21, 120)", "(2, 21, 30)", says="look at p"),
            swap("(2, 21, 120)", "(2, 120, 21)", says="right sizes in another order"),
            swap("(2, 21, 120)", "(2, 3, 7, 120)", says="needs 3 axes"),
            swap("(2, 21, 120)", "(2, 84, 30)", says="as many numbers, but laid out otherwise"),
            swap("(2, 22, 9)", "(2, 21, 9)", says="look at n"),
            swap("(2, 22, 9)", "(2, 22, 120)", says="look at e"),
            swap("(9, 4, 5, 6)", "(4, 9, 5, 6)", says="right sizes in another order"),
            swap("(9, 4, 5, 6)", "(9, 120)", says="needs 4 axes"),
        ],
        right=[
            swap("(2, 21, 120)", "[2, 21, 120]"),
            swap("(2, 22, 9)", "torch.Size([2, 22, 9])"),
            swap("(9, 4, 5, 6)", "nn.Conv2d(4, 9, (5, 6)).weight.shape"),
        ],
    ),
    "01.2": Bank(
        wrong=[
            pattern("b c (gh ph) (gw pw) -> b (gw gh) (c ph pw)", "numbered column by column"),
            pattern("b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)", "channels last"),
            pattern("b c (gh ph) (gw pw) -> b (gh gw) (c pw ph)", "laid out column by column"),
            pattern("b c (ph gh) (pw gw) -> b (gh gw) (c ph pw)", "letter of the grid comes first"),
            swap("ph=ph, pw=pw", "ph=pw, pw=ph", says="EinopsError"),
            swap("ph=ph, pw=pw", "ph=ph, pw=ph", says="asked for is"),
            code(
                """
                def cut(images, ph, pw):
                    return images.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                says="strips of the picture, not patches",
            ),
            code(
                """
                def cut(images, ph, pw):
                    columns = F.unfold(images, (ph, pw), stride=(ph, pw))
                    return columns.reshape(len(images), columns.shape[2], -1)
                """,
                says="must be swapped, not viewed",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return F.unfold(images, (ph, pw), stride=(ph, pw)).mT
                """,
                says="it calls unfold",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return patchify(images, (ph, pw))
                """,
                says="it calls patchify",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return torch.stack([cut_loop(image, ph, pw) for image in images])
                """,
                says="it loops",
            ),
            swap(".flatten()", ".mT.flatten()", says="laid out column by column"),
            swap(".flatten()", ".permute(1, 2, 0).flatten()", says="channels last"),
            swap(
                "range(0, image.shape[2], pw)",
                "range(0, image.shape[1], pw)",
                says="raises RuntimeError",
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
                says="numbered column by column",
            ),
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
                says="dtype",
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    return cut(image[None], ph, pw)[0]
                """,
                says="it calls rearrange",
            ),
            code(
                """
                def cut(images, ph, pw):
                    images -= 0.5
                    images += 0.5
                    return rearrange(images, PATTERN, ph=ph, pw=pw)
                """.replace("PATTERN", PATTERN),
                says="images was changed in place",
            ),
            code(
                """
                def cut(images, ph, pw):
                    return rearrange(images.detach(), PATTERN, ph=ph, pw=pw)
                """.replace("PATTERN", PATTERN),
                says="no gradient reaches images",
            ),
            code(
                """
                def cut_loop(image, ph, pw):
                    c, H, W = image.shape
                    grid = image.view(c, H // ph, ph, W // pw, pw).permute(1, 3, 0, 2, 4)
                    return grid.reshape(-1, c * ph * pw)
                """,
                says="nothing loops",
            ),
        ],
        right=[
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
            code("healthy = sick", says="one channel of different places"),
            swap("b (gh gw) (c ph pw)", "b (gw gh) (c ph pw)", says="numbered column by column"),
            swap("b (gh gw) (c ph pw)", "b (gh gw) (ph pw c)", says="channels last"),
            swap("b (gh gw) (c ph pw)", "b (gh gw) (c pw ph)", says="laid out column by column"),
            swap("b (gh gw) (c ph pw)", "b (c gh) (gw ph pw)", says="asked for is"),
            swap("unfold(3, pw, pw)", "unfold(3, pw, 1)", says="asked for is"),
            code(
                """
                def healthy(images, ph, pw):
                    return images.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                says="strips of the picture, not patches",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    squares = images.unfold(2, ph, ph).unfold(3, pw, pw).transpose(1, 2)
                    return squares.reshape(len(images), -1, images.shape[1] * ph * pw)
                """,
                says="gw stands behind the channels",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    return patchify(images, (ph, pw))
                """,
                says="it calls patchify",
            ),
            code(
                """
                def healthy(images, ph, pw):
                    n = images.shape[2] // ph * (images.shape[3] // pw)
                    return torch.zeros(len(images), n, images[0, :, :ph, :pw].numel()).to(images)
                """,
                says="it gives the same for every input",
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
            swap("e (c ph pw) -> e c ph pw", "e (ph pw c) -> e c ph pw", says="split as (ph pw c)"),
            swap("e (c ph pw) -> e c ph pw", "e (c pw ph) -> e c ph pw", says="split as (c pw ph)"),
            swap("b e gh gw -> b (gh gw) e", "b e gh gw -> b (gw gh) e", says="column by column"),
            swap("b e gh gw -> b (gh gw) e", "b e gh gw -> b e (gh gw)", says="asked for is"),
            swap("kernel, bias,", "kernel,", says="the bias is missing"),
            swap("stride=(ph, pw)", "stride=1", says="asked for is"),
            swap("stride=(ph, pw)", "stride=(pw, ph)", says="asked for is"),
            swap(
                'rearrange(maps, "b e gh gw -> b (gh gw) e")',
                "maps.reshape(len(images), -1, len(weight))",
                says="e must move to the end",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return F.linear(patchify(images, (ph, pw)), weight, bias)
                """,
                says="it calls patchify",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return F.linear(cut(images, ph, pw), weight, bias)
                """,
                says="there is no convolution",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    e, c = len(weight), images.shape[1]
                    conv = nn.Conv2d(c, e, (ph, pw), stride=(ph, pw)).to(images)
                    conv.load_state_dict({"weight": weight.view(e, c, ph, pw), "bias": bias})
                    return conv(images).flatten(2).mT
                """,
                says="no gradient reaches weight",
            ),
            swap("e (ph pw c) -> e (c ph pw)", "e (c ph pw) -> e (ph pw c)", says="the way back"),
            swap(
                "e (ph pw c) -> e (c ph pw)",
                "e (pw ph c) -> e (c ph pw)",
                says="are read as (pw ph c)",
            ),
            swap(
                "e (ph pw c) -> e (c ph pw)",
                "e (ph pw c) -> e (c pw ph)",
                says="go out as (c pw ph)",
            ),
            swap(
                'rearrange(weight, "e (ph pw c) -> e (c ph pw)", c=c, ph=ph, pw=pw)',
                "weight.view(-1, c, ph, pw).flatten(1)",
                says="it returns weight as it came",
            ),
            code(
                """
                def tokens_by_conv(images, weight, bias, ph, pw):
                    return patchify(images, (ph, pw)) @ weight.T + bias
                """,
                says="F.conv2d cuts and projects in one step",
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
                says="the rows of the positions are shifted by one",
            ),
            swap(
                "+ self.positions",
                "+ self.positions.roll(-1, dims=1)",
                says="the rows of the positions are shifted by one",
            ),
            swap(" + self.positions", "", says="the positions are missing"),
            swap("[class_token, patches]", "[patches, class_token]", says="at the end"),
            swap(
                "torch.cat([class_token, patches], dim=1) + self.positions",
                "torch.cat([class_token, patches + self.positions[:, 1:]], dim=1)",
                says="the class token gets no position: put it in front",
            ),
            swap(
                "torch.cat([class_token, patches], dim=1) + self.positions",
                "torch.cat([class_token, patches + self.positions[:, :-1]], dim=1)",
                says="the one of its neighbour",
            ),
            swap("self.positions\n", "self.positions[:, :1]\n", says="pos-one-row"),
            swap(
                "+ self.positions\n",
                "+ self.positions[0, : len(images), None]\n",
                says="pos-batch-axis",
            ),
            swap("+ self.positions", "* self.positions", says="multiplied, not added"),
            swap("torch.randn(1, n + 1,", "torch.randn(1, n,", says="positions has shape"),
            swap("torch.randn(1, 1, e", "torch.randn(6, 1, e", says="class_token has shape"),
            swap(
                "nn.Parameter(torch.randn(1, n + 1, embed_dim) * 0.02)",
                "nn.Parameter(torch.randn(1, n + 1, embed_dim)) * 0.02",
                says="not a parameter",
            ),
            swap(
                "self.class_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)",
                'self.register_buffer("class_token", torch.zeros(1, 1, embed_dim))',
                says="not a parameter",
            ),
            swap("self.proj = nn.Linear", "self.project = nn.Linear", says="has no proj.weight"),
            swap("in_channels * ph * pw", "ph * pw", says="proj.weight has shape"),
            swap(
                "(height // ph) * (width // pw)", "(height // ph) ** 2", says="positions has shape"
            ),
            swap("n + 1, embed_dim) * 0.02", "n + 1, embed_dim)", says="standard deviation 1,"),
            swap("1, 1, embed_dim) * 0.02", "1, 1, embed_dim) * 0", says="standard deviation 0,"),
            swap(
                "patchify(images, self.patch_size)",
                "images.reshape(len(images), -1, self.proj.in_features)",
                says="strips of the image",
            ),
            swap("self.class_token.expand(len(images), -1, -1)", "self.class_token", says="raises"),
            code(
                """
                from utils import embedding


                class PatchEmbedding(embedding.PatchEmbedding):
                    pass
                """,
                says="it calls PatchEmbedding",
            ),
            swap("+ self.positions", "+ self.positions + self.positions", says="added twice"),
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
                says="start each from a fresh copy, images.clone()",
            ),
            swap("return table", "return table.mT", says="rows and columns are exchanged"),
            swap("return table", "return ~table", says="False where a patch changes"),
            swap("return table", "return table.float()", says="dtype"),
            swap("painted[:, :, top", "painted[:, 0, top", says="only channel 0"),
            swap("painted[:, :, top", "painted[:, :1, top", says="only channel 0 is painted"),
            swap("any(dim=2)", "all(dim=2)", says="any, not all"),
            swap("row * gw + column", "column * gh + row", says="numbered column by column"),
            swap("row * gw + column", "row * gh + column", says="raises IndexError"),
            swap(
                "painted = images.clone()", "painted = images", says="start each from a fresh copy"
            ),
            code(
                """
                def influence(cut, images, ph, pw):
                    gh, gw = images.shape[2] // ph, images.shape[3] // pw
                    return torch.eye(gh * gw, dtype=torch.bool)
                """,
                says="each square changes its own patch, whatever the cut does",
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
                says="leaves rounded numbers",
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
                says="start each from a fresh copy",
            ),
            swap("before = cut(", "images += 0\n    before = cut(", says="changed in place"),
            swap(
                "(cut(painted, ph, pw) != before)",
                "(before != before)",
                says="no patch ever changes",
            ),
            swap("tables[0].sum(dim=1)", "tables[1].sum(dim=1)", says="in a right cut"),
            swap(".sum(dim=1).float().mean()", ".float().mean()", says="the share of all patches"),
            swap(".sum(dim=1).float().mean()", ".sum()", says="number of all marks"),
            swap(
                "any(dim=2).any(dim=0)",
                "any(dim=2)[0]",
                says="not only in all or in the first",
            ),
            swap("left + pw] += 1", "left + pw] = 1", says="white already"),
            swap("left + pw] += 1", "left + pw] *= 0", says="black already"),
            code("reach = 36", says="the number of patches"),
            code("reach = tables", says="is a number, got a list"),
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
                says="every second number a minus",
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


                reach = influence(sick, photos[:1], 16, 16)[5].sum()
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
            'show_matrices( tables, ["sick", "patchify"], rows="painted square k", '
            'columns="changed patch t" ) => ...': "the picture is looked at, not checked",
            'tables, ["sick", "patchify"], rows="painted square k", '
            'columns="changed patch t" => ...': "the picture is looked at, not checked",
        },
    ),
}
