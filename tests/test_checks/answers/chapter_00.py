"""Answers to the exercises of chapter 00, right and wrong."""

from exercise_bank import Bank, code, swap

BANK = {
    "00.1": Bank(
        wrong=[
            swap("(8, 70, 3)", "(8, 3, 70)", says="right sizes in another order"),
            swap("(8, 70, 3)", "(8, 19, 3)", says="look at (bW)"),
            swap("(8, 70, 3)", "(8, 5, 14, 3)", says="needs 3 axes"),
            swap("(5, 2, 7)", "(5, 4, 2)", says="look at gh, gw"),
            swap("(5, 2, 7)", "(5, 3, 2, 7)", says="needs 3 axes"),
            swap("(5, 14, 6)", "(5, 6, 14)", says="right sizes in another order"),
            swap("(5, 14, 6)", "(5, 14, 3)", says="look at new"),
            swap("(5, 14, 6)", "(5, 8, 14, 6)", says="needs 3 axes"),
            swap("(5, 2, 7)", "70", says="a tuple of whole numbers"),
            swap("(8, 70, 3)", "torch.zeros(8, 70, 3)", says="got a Tensor"),
        ],
        right=[
            swap("(8, 70, 3)", "[8, 70, 3]"),
            swap("(5, 14, 6)", "torch.zeros(5, 14, 6).shape"),
        ],
    ),
    "00.2": Bank(
        wrong=[
            swap("(across down)", "(down across)", says="should go down its columns"),
            swap("c (down H)", "c (H down)", says="(H down) should be (down H)"),
            swap("(across W)", "(W across)", says="(W across) should be (across W)"),
            swap("c (down H) (across W)", "c (across H) (down W)", says="asked for is"),
            code(
                """
                def sheet(images, across):
                    return torch.cat([torch.cat(list(row), -1) for row in images.chunk(across)], 1)
                """,
                says="asked for is",
            ),
            code(
                """
                def sheet(images, across):
                    b, c, H, W = images.shape
                    return images.reshape(c, b // across * H, across * W)
                """,
                says="cut anew as they lie in memory",
            ),
            code(
                """
                def sheet(images, across):
                    return rearrange(images, "(a d) c H W -> c (d H) (a W)", d=2)
                """,
                says="asked for is",
            ),
            swap("(b H) (c W)", "(H b) (c W)", says="(H b) should be (b H)"),
            swap("(b H) (c W)", "(b H) (W c)", says="(W c) should be (c W)"),
            swap("(b H) (c W)", "(c H) (b W)", says="asked for is"),
            code(
                """
                def channels_apart(images):
                    b, c, H, W = images.shape
                    return images.reshape(b * H, c * W)
                """,
                says="cut anew as they lie in memory",
            ),
            code(
                """
                def channels_apart(images):
                    return rearrange(images.detach(), "b c H W -> (b H) (c W)")
                """,
                says="no gradient reaches images",
            ),
            code(
                """
                def channels_apart(images):
                    b, c, H, W = images.shape
                    return torch.zeros(b * H, c * W, dtype=images.dtype)
                """,
                says="it gives the same for every input",
            ),
        ],
        right=[
            code(
                """
                def sheet(images, across):
                    columns = [torch.cat(list(column), dim=1) for column in images.chunk(across)]
                    return torch.cat(columns, dim=2)


                def channels_apart(images):
                    return torch.cat([torch.cat(list(image), dim=1) for image in images])
                """
            ),
            code(
                """
                def sheet(images, across):
                    b, c, H, W = images.shape
                    split = images.reshape(across, b // across, c, H, W)
                    return split.permute(2, 1, 3, 0, 4).reshape(c, b // across * H, across * W)


                def channels_apart(images):
                    return images.transpose(1, 2).flatten(2).flatten(0, 1)
                """
            ),
        ],
    ),
    "00.3": Bank(
        wrong=[
            swap("b (c ph pw) gh gw", "b (ph pw c) gh gw", says="the channel runs fastest"),
            swap("-> b (c ph pw) gh gw", "-> b (c pw ph) gh gw", says="row and column"),
            swap("(gh ph) (gw pw) ->", "(ph gh) (pw gw) ->", says="neighbouring pixels"),
            swap("-> b (c ph pw) gh gw", "-> b (c ph pw) gw gh", says="asked for is"),
            code(
                """
                def to_channels(images, side):
                    return torch.nn.functional.pixel_unshuffle(images, side)
                """,
                says="it calls pixel_unshuffle",
            ),
            code(
                """
                def to_channels(images, side):
                    b, c, H, W = images.shape
                    return images.reshape(b, c * side * side, H // side, W // side)
                """,
                says="cut anew as they lie in memory",
            ),
            code(
                """
                def to_channels(images, side):
                    return rearrange(images, "b c (gh ph) (gw pw) -> b (c ph pw) gh gw", ph=2, pw=2)
                """,
                says="can't divide axis",
            ),
            swap("-> b c (gh ph) (gw pw)", "-> b c (ph gh) (pw gw)", says="neighbouring pixels"),
            swap('"b (c ph pw) gh gw ->', '"b (c pw ph) gh gw ->', says="row and column"),
            swap('"b (c ph pw) gh gw ->', '"b (ph pw c) gh gw ->', says="the channel runs fastest"),
            code(
                """
                def to_pixels(folded, side):
                    return torch.nn.PixelShuffle(side)(folded)
                """,
                says="it calls pixel_shuffle",
            ),
            code(
                """
                def to_pixels(folded, side):
                    b, c, gh, gw = folded.shape
                    return folded.reshape(b, c // side**2, gh * side, gw * side)
                """,
                says="cut anew as they lie in memory",
            ),
        ],
        right=[
            code(
                """
                def to_channels(images, side):
                    b, c, H, W = images.shape
                    split = images.reshape(b, c, H // side, side, W // side, side)
                    return split.permute(0, 1, 3, 5, 2, 4).reshape(b, -1, H // side, W // side)


                def to_pixels(folded, side):
                    b, c, gh, gw = folded.shape
                    split = folded.reshape(b, -1, side, side, gh, gw).permute(0, 1, 4, 2, 5, 3)
                    return split.reshape(b, -1, gh * side, gw * side)
                """
            ),
            code(
                """
                def to_channels(images, side):
                    flat = torch.nn.functional.unfold(images, side, stride=side)
                    return flat.unflatten(2, (images.shape[2] // side, images.shape[3] // side))


                def to_pixels(folded, side):
                    size = folded.shape[2] * side, folded.shape[3] * side
                    return torch.nn.functional.fold(folded.flatten(2), size, side, stride=side)
                """
            ),
        ],
    ),
    "00.4": Bank(
        wrong=[
            code("healthy = sick", says="the first columns are normalised"),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for i in range(len(mean)):
                        result[:, :, i] = (result[:, :, i] - mean[i]) / std[i]
                    return result
                """,
                says="the first rows are normalised",
            ),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for i in range(len(mean)):
                        result[i] = (result[i] - mean[i]) / std[i]
                    return result
                """,
                says="the first pictures are normalised",
            ),
            code(
                """
                def healthy(images, mean, std):
                    for i in range(len(mean)):
                        images[:, i] -= mean[i]
                        images[:, i] /= std[i]
                    return images
                """,
                says="images was changed in place",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return (images - mean) / std
                """,
                says="it raises RuntimeError",
            ),
            swap(' / rearrange(std, "c -> c 1 1")', "", says="the division by std is missing"),
            swap(") / rear", ") * rear", says="multiplied by std"),
            swap("(images - rear", "(images + rear", says="the mean is added"),
            swap("healthy(images, mean, std)", "healthy(images, std, mean)", says="are exchanged"),
            swap('rearrange(mean, "c -> c 1 1")', "mean[0]", says="the mean of the first"),
            code(
                """
                def healthy(images, mean, std):
                    mine = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
                    return (images - mine[0]) / mine[1]
                """,
                says="own mean and std",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return images
                """,
                says="it returns images as it came",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return (images - mean[:, None, None]) / std[:, None, None] ** 2
                """,
                says="divided by the square of std",
            ),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for image in result:
                        for i in range(len(mean)):
                            image[i] -= mean[i]
                            image[i] /= std[i]
                        return result
                """,
                says="only the first picture",
            ),
        ],
        right=[
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for image in result:
                        for i in range(len(mean)):
                            image[i] -= mean[i]
                            image[i] /= std[i]
                    return result
                """
            ),
            code(
                """
                def healthy(images, mean, std):
                    return torch.nn.functional.batch_norm(images, mean, std**2, eps=0.0)
                """
            ),
            code(
                """
                def healthy(images, mean, std):
                    lined = mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1) + 1e-8
                    return (images - lined[0]) / lined[1]
                """
            ),
            code(
                """
                def healthy(images, mean, std):
                    return (images - mean[:, None, None]) / std[:, None, None]
                """
            ),
            code(
                """
                def healthy(images, mean, std):
                    pairs = zip(images.unbind(1), mean, std)
                    return torch.stack([(channel - m) / s for channel, m, s in pairs], dim=1)
                """
            ),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for i in range(len(mean)):
                        result[:, i] -= mean[i]
                        result[:, i] /= std[i]
                    return result
                """
            ),
        ],
    ),
    "00.5": Bank(
        wrong=[
            swap("mixed[new] +=", "mixed[new] =", says="holds its last product only"),
            swap(", dtype=image.dtype", "", says="dtype"),
            swap("table[new, c] * image[c]", "image[c]", says="without the table"),
            swap("return mixed", "return mixed / len(image)", says="not the sum"),
            code(
                """
                def remix_loop(image, table):
                    return einsum(image, table, "c H W, new c -> new H W")
                """,
                says="it calls einsum",
            ),
            code(
                """
                def remix_loop(image, table):
                    return (table @ image.flatten(1)).reshape(len(table), *image.shape[1:])
                """,
                says="it calls matmul",
            ),
            swap('tables, "b c H W, b new c', 'tables[0], "b c H W, new c', says="first picture"),
            swap("b new c -> b new", "z new c -> b new", says="the sum of all tables"),
            swap("-> b new H W", "-> b H W new", says="asked for is"),
            swap("-> b new H W", "-> new H W", says="asked for is"),
            code(
                """
                def remix(images, tables):
                    return torch.stack([remix_loop(i, t) for i, t in zip(images, tables)])
                """,
                says="it loops",
            ),
            code(
                """
                def remix(images, tables):
                    mixed = einsum(images[:, None], tables, "b one c H W, b new c -> one b new H W")
                    return mixed.squeeze()
                """,
                says="not where axes have size 1",
            ),
            code(
                """
                def remix(images, tables):
                    turned = tables.view(len(tables), images.shape[1], -1)
                    return einsum(images, turned, "b c H W, b c new -> b new H W")
                """,
                says="view or reshape",
            ),
            code(
                """
                def remix_loop(image, table):
                    return (table[:, :, None, None] * image).sum(dim=1)
                """,
                says="nothing loops",
            ),
        ],
        right=[
            code(
                """
                def remix_loop(image, table):
                    mixed = image.new_zeros(len(table), *image.shape[1:])
                    for n in range(len(table)):
                        for row in range(image.shape[1]):
                            for column in range(image.shape[2]):
                                for c in range(len(image)):
                                    pixel = image[c, row, column]
                                    mixed[n, row, column] += table[n, c].item() * pixel
                    return mixed
                """
            ),
            code(
                """
                def remix_loop(image, table):
                    rows = []
                    for row in table:
                        rows.append(sum(weight * channel for weight, channel in zip(row, image)))
                    return torch.stack(rows)


                def remix(images, tables):
                    return (tables @ images.flatten(2)).unflatten(2, images.shape[2:])
                """
            ),
            code(
                """
                def remix(images, tables):
                    return (tables[..., None, None] * images[:, None]).sum(2)
                """
            ),
            code(
                """
                def remix(images, tables):
                    return torch.einsum("bchw,bnc->bnhw", images, tables)
                """
            ),
        ],
    ),
    "00.6": Bank(
        wrong=[
            code(
                """
                def lost(images, side):
                    pattern = "b c (gh ph) (gw pw) -> b c gh gw"
                    small = reduce(images, pattern, "mean", gh=side, gw=side)
                    rows, columns = (size // side for size in images.shape[2:])
                    blocks = repeat(
                        small, "b c gh gw -> b c (gh ph) (gw pw)", ph=rows, pw=columns
                    )
                    return (images - blocks).square().mean()
                """,
                says="side is taken for the number of blocks",
            ),
            swap(".square().mean()", ".square().sum()", says="it is the sum"),
            swap(".square().mean()", ".mean()", says="the differences cancel each other"),
            swap(".square().mean()", ".abs().mean()", says="mean size"),
            swap(".square().mean()", ".square().mean().sqrt()", says="root"),
            swap(".square().mean()", ".square().mean().item()", says="is a float"),
            swap('(gh ph) (gw pw)", ph', '(ph gh) (pw gw)", ph', says="tiling"),
            swap('"mean", ph', '"max", ph', says="largest number"),
            swap("(images - blocks)", "small", says="shrunk pictures"),
            swap("ph=side, pw=side", "ph=4, pw=4", says="can't divide axis"),
            swap("lost(shuffled, 4) / lost(photos, 4)", "1.0", says="the old neighbours"),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(photos, 4) / lost(shuffled, 4)",
                says="the other way round",
            ),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(shuffled, 2) / lost(photos, 2)",
                says="blocks of 2 x 2",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "photos[torch.randperm(6)]",
                says="the old neighbours",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "torch.stack([p.flatten()[torch.randperm(27648)].view(3, 96, 96) for p in photos])",
                says="stayed in their photograph;",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "photos.flatten(2)[..., torch.randperm(9216)].reshape(photos.shape)",
                says="in their photograph and in their channel",
            ),
            swap("lost(shuffled, 4) / lost(photos, 4)", "'ten'", says="is a number"),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(shuffled, 4)",
                says="divide it by what the photographs lose",
            ),
            code(
                """
                times = 0.0622
                """,
                says="this is a difference",
            ),
            code(
                """
                times = 0.0
                """,
                says="it is too small",
            ),
        ],
        right=[
            code(
                """
                def lost(images, side):
                    small = torch.nn.functional.avg_pool2d(images, side)
                    large = small.repeat_interleave(side, 2).repeat_interleave(side, 3)
                    return torch.nn.functional.mse_loss(large, images)


                times = 9.75
                """
            ),
            code(
                """
                def lost(images, side):
                    pattern = "b c (gh y) (gw x) -> b c gh gw (y x)"
                    split = rearrange(images, pattern, y=side, x=side)
                    return split.var(dim=-1, correction=0).mean()


                generator = torch.Generator().manual_seed(9)
                places = torch.rand(photos.numel(), generator=generator).argsort()
                mixed = photos.reshape(-1)[places].view(6, 3, 96, 96)
                times = (lost(mixed, 4) / lost(photos, 4)).item()
                """
            ),
        ],
    ),
}
