"""Answers to the exercises of chapter 00, right and wrong."""

from exercise_bank import Bank, code, swap

BANK = {
    "00.1": Bank(
        wrong=[
            swap("(8, 70, 3)", "(8, 3, 70)", cause="sizes-in-another-order"),
            swap("(8, 70, 3)", "(8, 19, 3)", cause="look-at-axes"),
            swap("(8, 70, 3)", "(8, 5, 14, 3)", cause="number-of-axes"),
            swap("(5, 2, 7)", "(5, 4, 2)", cause="look-at-axes gh gw"),
            swap("(5, 2, 7)", "(5, 3, 2, 7)", cause="number-of-axes"),
            swap("(5, 14, 6)", "(5, 6, 14)", cause="sizes-in-another-order"),
            swap("(5, 14, 6)", "(5, 14, 3)", cause="look-at-axes new"),
            swap("(5, 14, 6)", "(5, 8, 14, 6)", cause="number-of-axes"),
            swap("(5, 2, 7)", "70", cause="no-shape"),
            swap("(8, 70, 3)", "torch.zeros(8, 70, 3)", cause="no-shape Tensor"),
        ],
        right=[
            swap("(8, 70, 3)", "[8, 70, 3]"),
            swap("(5, 14, 6)", "torch.zeros(5, 14, 6).shape"),
        ],
    ),
    "00.2": Bank(
        wrong=[
            swap("(across down)", "(down across)", cause="sheet-goes-along-rows"),
            swap("c (down H)", "c (H down)", cause="sheet-rows-shuffled"),
            swap("(across W)", "(W across)", cause="sheet-columns-shuffled"),
            swap("c (down H) (across W)", "c (across H) (down W)", cause="shape-differs"),
            code(
                """
                def sheet(images, across):
                    return torch.cat([torch.cat(list(row), -1) for row in images.chunk(across)], 1)
                """,
                cause="shape-differs",
            ),
            code(
                """
                def sheet(images, across):
                    b, c, H, W = images.shape
                    return images.reshape(c, b // across * H, across * W)
                """,
                cause="only-cut-anew",
            ),
            code(
                """
                def sheet(images, across):
                    return rearrange(images, "(a d) c H W -> c (d H) (a W)", d=2)
                """,
                cause="shape-differs",
            ),
            swap("(b H) (c W)", "(H b) (c W)", cause="apart-rows-shuffled"),
            swap("(b H) (c W)", "(b H) (W c)", cause="apart-columns-shuffled"),
            swap("(b H) (c W)", "(c H) (b W)", cause="shape-differs"),
            code(
                """
                def channels_apart(images):
                    b, c, H, W = images.shape
                    return images.reshape(b * H, c * W)
                """,
                cause="only-cut-anew",
            ),
            code(
                """
                def channels_apart(images):
                    return rearrange(images.detach(), "b c H W -> (b H) (c W)")
                """,
                cause="no-gradient images",
            ),
            code(
                """
                def channels_apart(images):
                    b, c, H, W = images.shape
                    return torch.zeros(b * H, c * W, dtype=images.dtype)
                """,
                cause="same-for-every-input",
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
            swap("b (c ph pw) gh gw", "b (ph pw c) gh gw", cause="fold-channel-fastest"),
            swap(
                "-> b (c ph pw) gh gw",
                "-> b (c pw ph) gh gw",
                cause="fold-row-and-column-exchanged",
            ),
            swap("(gh ph) (gw pw) ->", "(ph gh) (pw gw) ->", cause="fold-takes-distant-pixels"),
            swap("-> b (c ph pw) gh gw", "-> b (c ph pw) gw gh", cause="shape-differs"),
            code(
                """
                def to_channels(images, side):
                    return torch.nn.functional.pixel_unshuffle(images, side)
                """,
                cause="calls-shortcut pixel_unshuffle",
            ),
            code(
                """
                def to_channels(images, side):
                    b, c, H, W = images.shape
                    return images.reshape(b, c * side * side, H // side, W // side)
                """,
                cause="only-cut-anew",
            ),
            code(
                """
                def to_channels(images, side):
                    return rearrange(images, "b c (gh ph) (gw pw) -> b (c ph pw) gh gw", ph=2, pw=2)
                """,
                cause="raises",
            ),
            swap(
                "-> b c (gh ph) (gw pw)",
                "-> b c (ph gh) (pw gw)",
                cause="fold-takes-distant-pixels",
            ),
            swap(
                '"b (c ph pw) gh gw ->',
                '"b (c pw ph) gh gw ->',
                cause="fold-row-and-column-exchanged",
            ),
            swap('"b (c ph pw) gh gw ->', '"b (ph pw c) gh gw ->', cause="fold-channel-fastest"),
            code(
                """
                def to_pixels(folded, side):
                    return torch.nn.PixelShuffle(side)(folded)
                """,
                cause="calls-shortcut pixel_shuffle",
            ),
            code(
                """
                def to_pixels(folded, side):
                    b, c, gh, gw = folded.shape
                    return folded.reshape(b, c // side**2, gh * side, gw * side)
                """,
                cause="only-cut-anew",
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
            code("healthy = buggy", cause="normalized-columns"),
            code(
                """
                def healthy(images, mean, std):
                    return images - mean[:, None, None] / std[:, None, None]
                """,
                cause="only-mean-divided",
            ),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for i in range(len(mean)):
                        result[:, :, i] = (result[:, :, i] - mean[i]) / std[i]
                    return result
                """,
                cause="normalized-rows",
            ),
            code(
                """
                def healthy(images, mean, std):
                    result = images.clone()
                    for i in range(len(mean)):
                        result[i] = (result[i] - mean[i]) / std[i]
                    return result
                """,
                cause="normalized-pictures",
            ),
            code(
                """
                def healthy(images, mean, std):
                    for i in range(len(mean)):
                        images[:, i] -= mean[i]
                        images[:, i] /= std[i]
                    return images
                """,
                cause="changed-in-place images",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return (images - mean) / std
                """,
                cause="raises RuntimeError",
            ),
            swap(' / rearrange(std, "c -> c 1 1")', "", cause="std-missing"),
            swap(") / rear", ") * rear", cause="std-multiplied"),
            swap("(images - rear", "(images + rear", cause="mean-added"),
            swap(
                "healthy(images, mean, std)",
                "healthy(images, std, mean)",
                cause="mean-and-std-exchanged",
            ),
            swap('rearrange(mean, "c -> c 1 1")', "mean[0]", cause="mean-of-first-channel"),
            code(
                """
                def healthy(images, mean, std):
                    mine = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
                    return (images - mine[0]) / mine[1]
                """,
                cause="own-mean-and-std",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return images
                """,
                cause="returns-argument images",
            ),
            code(
                """
                def healthy(images, mean, std):
                    return (images - mean[:, None, None]) / std[:, None, None] ** 2
                """,
                cause="divided-by-variance",
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
                cause="only-first-picture",
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
            swap("mixed[new] +=", "mixed[new] =", cause="last-product-only"),
            code(  # in single precision, as hint 1 has it: that is not the mistake
                """
                def remix_loop(image, table):
                    mixed = torch.zeros(len(table), *image.shape[1:])
                    for new in range(len(table)):
                        for c in range(len(image)):
                            mixed[new] = table[new, c] * image[c]
                    return mixed
                """,
                cause="last-product-only",
            ),
            swap("table[new, c] * image[c]", "image[c]", cause="sum-without-table"),
            swap("return mixed", "return mixed / len(image)", cause="mean-over-channels"),
            code(
                """
                def remix_loop(image, table):
                    return einsum(image, table, "c H W, new c -> new H W")
                """,
                cause="calls-shortcut einsum",
            ),
            code(
                """
                def remix_loop(image, table):
                    return (table @ image.flatten(1)).reshape(len(table), *image.shape[1:])
                """,
                cause="calls-shortcut matmul",
            ),
            swap(
                'tables, "b c H W, b new c',
                'tables[0], "b c H W, new c',
                cause="first-pictures-table",
            ),
            swap("b new c -> b new", "z new c -> b new", cause="sum-of-all-tables"),
            swap("-> b new H W", "-> b H W new", cause="shape-differs"),
            swap("-> b new H W", "-> new H W", cause="shape-differs"),
            code(
                """
                def remix(images, tables):
                    return torch.stack([remix_loop(i, t) for i, t in zip(images, tables)])
                """,
                cause="loops-and-may-not",
            ),
            code(
                """
                def remix(images, tables):
                    mixed = einsum(images[:, None], tables, "b one c H W, b new c -> one b new H W")
                    return mixed.squeeze()
                """,
                cause="not-at-size-one",
            ),
            code(
                """
                def remix(images, tables):
                    turned = tables.view(len(tables), images.shape[1], -1)
                    return einsum(images, turned, "b c H W, b c new -> b new H W")
                """,
                cause="tables-cut-anew",
            ),
            code(
                """
                def remix_loop(image, table):
                    return (table[:, :, None, None] * image).sum(dim=1)
                """,
                cause="loop-is-missing",
            ),
        ],
        right=[
            swap(", dtype=image.dtype", ""),
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
        equivalent={
            "mixed = torch.zeros(len(table), *image.shape[1:], dtype=image.dtype) => "
            "mixed = torch.zeros(len(table), *image.shape[1:])": "the check judges it in double "
            "precision, the notebook in single",
        },
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
                cause="grid-for-block",
            ),
            swap(".square().mean()", ".square().sum()", cause="sum-not-mean"),
            swap(".square().mean()", ".mean()", cause="differences-cancel"),
            swap(".square().mean()", ".abs().mean()", cause="size-not-square"),
            swap(".square().mean()", ".square().mean().sqrt()", cause="root-of-mean-square"),
            swap(".square().mean()", ".square().mean().item()", cause="is-no-tensor float"),
            swap('(gh ph) (gw pw)", ph', '(ph gh) (pw gw)", ph', cause="enlarged-by-tiling"),
            swap('"mean", ph', '"max", ph', cause="blocks-hold-largest"),
            swap("(images - blocks)", "small", cause="square-of-shrunk"),
            swap("ph=side, pw=side", "ph=4, pw=4", cause="raises"),
            swap("lost(shuffled, 4) / lost(photos, 4)", "1.0", cause="shuffled-keep-neighbours"),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(photos, 4) / lost(shuffled, 4)",
                cause="quotient-upside-down",
            ),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(shuffled, 2) / lost(photos, 2)",
                cause="blocks-of-two",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "photos[torch.randperm(6)]",
                cause="shuffled-keep-neighbours",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "torch.stack([p.flatten()[torch.randperm(27648)].view(3, 96, 96) for p in photos])",
                cause="stayed-in-photograph",
            ),
            swap(
                "numbers[torch.randperm(len(numbers))].reshape(photos.shape)",
                "photos.flatten(2)[..., torch.randperm(9216)].reshape(photos.shape)",
                cause="stayed-in-photograph-and-channel",
            ),
            swap("lost(shuffled, 4) / lost(photos, 4)", "'ten'", cause="number-is-asked"),
            swap(
                "lost(shuffled, 4) / lost(photos, 4)",
                "lost(shuffled, 4)",
                cause="loss-of-shuffled",
            ),
            code(
                """
                times = 0.0622
                """,
                cause="difference-not-quotient",
            ),
            code(
                """
                times = 0.0
                """,
                cause="too-small",
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
