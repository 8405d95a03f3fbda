"""Patches and learned positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from attention_clinic import (
    Report,
    diagnose_embedding,
)
from patients.bank import CASES, Entry
from utils.embedding import PatchEmbedding, patchify, unpatchify

# ---------------------------------------------------------------------------- patches, positions

IMAGE, PATCH, CHANNELS, COUNT = (8, 12), (2, 3), 3, 16


def embedding(
    *ids: str,
    also: tuple = (),
    sizes: tuple = ((20, 1), (18, 1)),
    remark: bool = False,
    **options,
) -> Callable:
    """Enter a patch embedding, built with e."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_embedding(make(e), IMAGE, PATCH, CHANNELS, **options)

        CASES.append(Entry(make.__name__, ids, examine, also, sizes, remark))
        return make

    return enter


@embedding()
class ByConvolution(nn.Module):
    def __init__(self, e):
        super().__init__()
        n = (IMAGE[0] // PATCH[0]) * (IMAGE[1] // PATCH[1])
        self.conv = nn.Conv2d(CHANNELS, e, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, e))
        self.pos = nn.Parameter(torch.zeros(1, n + 1, e))

    def patches(self, images):
        return self.conv(images).flatten(2).transpose(1, 2)

    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([cls, patches], dim=1) + self.pos

    def forward(self, images):
        return self.place(self.patches(images))


@embedding()
class NormsLast(ByConvolution):
    """The norm of all comes last, after the positions."""

    def __init__(self, e):
        super().__init__(e)
        self.norm = nn.LayerNorm(e)

    def forward(self, images):
        return self.norm(super().forward(images))


@embedding("pos-before-cls")
class NormsLastAndLate(NormsLast):
    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([cls, patches + self.pos[:, 1:]], dim=1)


@embedding()
class ByLinear(nn.Module):
    """No class token, an nn.Embedding for the positions."""

    def __init__(self, e):
        super().__init__()
        self.project = nn.Linear(CHANNELS * PATCH[0] * PATCH[1], e)
        self.position = nn.Embedding(40, e)

    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)

    def place(self, tokens):
        return tokens + self.position(torch.arange(tokens.shape[1]))

    def forward(self, x):
        return self.place(self.project(self.patches(x)))


def _course(e):
    return PatchEmbedding(IMAGE, PATCH, CHANNELS, e)


def _cut_only(e):
    return lambda images: patchify(images, PATCH)


embedding()(_course)
embedding(inverse=lambda p: unpatchify(p, PATCH, IMAGE), sizes=((18, 1),))(_cut_only)


@embedding("patch-view")
class LinearOfView(ByLinear):
    def patches(self, x):
        return x.reshape(len(x), -1, self.project.in_features)


@embedding("patch-view")
class LinearOfViewChannelsLast(ByLinear):
    def patches(self, x):
        return x.movedim(1, 3).flatten(1).unflatten(1, (-1, self.project.in_features))


@embedding("patch-view")
class LinearOfEveryNth(ByLinear):
    def patches(self, x):
        return x.reshape(len(x), self.project.in_features, -1).transpose(1, 2)


@embedding("patch-channel-mix")
class LinearOfUnfold(ByLinear):
    def patches(self, x):
        x = x.unfold(2, PATCH[0], PATCH[0]).unfold(3, PATCH[1], PATCH[1])
        return x.contiguous().view(len(x), -1, self.project.in_features)


@embedding("patch-channel-mix")
class ConvolutionViewed(ByConvolution):
    def patches(self, images):
        made = self.conv(images)
        return made.reshape(len(images), -1, made.shape[1])


@embedding("patch-order", remark=True)
class LinearOfChannelsLast(ByLinear):
    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)", ph=ph, pw=pw)


@embedding("patch-order", remark=True)
class LinearOfColumns(ByLinear):
    def patches(self, x):
        cut = F.unfold(x.mT, PATCH[::-1], stride=PATCH[::-1]).mT
        return cut.unflatten(2, (CHANNELS, PATCH[1], PATCH[0])).transpose(3, 4).flatten(2)


@embedding("patch-order")
def _cut_with_channels_last(e):
    """A function has no layer that learns with its order."""
    height, width = PATCH
    pattern = "b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)"
    return lambda images: rearrange(images, pattern, ph=height, pw=width)


@embedding("pos-one-row")
class ConvolutionOneRow(ByConvolution):
    def place(self, patches):
        cls = self.cls.expand(len(patches), -1, -1)
        return torch.cat([cls, patches], dim=1) + self.pos[:, :1]


@embedding("pos-one-row")
class LinearOneRow(ByLinear):
    def place(self, tokens):
        return tokens + self.position.weight[tokens.shape[1]]


@embedding("pos-one-row")
class LinearOneCode(ByLinear):
    def place(self, tokens):
        return tokens + torch.arange(tokens.shape[2], dtype=tokens.dtype).cos()


@embedding()
class LinearCodesOfItsOwn(ByLinear):
    def place(self, tokens):
        places, waves = (torch.arange(size, dtype=tokens.dtype) for size in tokens.shape[1:])
        return tokens + (places[:, None] / 100 ** (waves / len(waves))).sin()


@embedding("pos-batch-axis")
class LinearPositionByBatch(ByLinear):
    def place(self, tokens):
        return tokens + self.position(torch.arange(tokens.shape[0]))[:, None]


@embedding("pos-batch-axis")
class ConvolutionPositionByBatch(ByConvolution):
    def place(self, patches):
        all_tokens = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1)
        table = self.pos.transpose(0, 1)  # (n + 1, 1, e), as for tokens (n, b, e)
        return all_tokens + table[: all_tokens.size(0)]


@embedding("pos-before-cls")
class ConvolutionPositionFirst(ByConvolution):
    def place(self, patches):
        placed = patches + self.pos[:, : patches.shape[1]]
        return torch.cat([self.cls.expand(len(patches), -1, -1), placed], dim=1)


@embedding("pos-before-cls")
class LinearPositionFirst(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.token = nn.Parameter(torch.randn(1, e))

    def place(self, tokens):
        front = self.token.repeat(len(tokens), 1).unsqueeze(1)
        return torch.cat((front, super().place(tokens)), 1)


@embedding("param-batch-size")
class TokenPerSample(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        self.cls = nn.Parameter(torch.randn(8, 1, e))

    def place(self, patches):
        return torch.cat([self.cls, patches], dim=1) + self.pos


@embedding("param-batch-size")
class PositionPerSample(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.table = nn.Parameter(torch.randn(6, 16, e))

    def place(self, tokens):
        return tokens + self.table


@embedding("param-batch-size")
class TokenForOneImage(ByConvolution):
    """As a stranger wrote it."""

    def place(self, patches):
        return torch.cat([self.cls, patches], dim=1) + self.pos


@embedding("param-batch-size")
class TokenForSoMany(ByConvolution):
    """A class token is repeated for as many images as were said when it was built."""

    def __init__(self, e):
        super().__init__(e)
        self.batch_size = 7

    def place(self, patches):
        front = self.cls.expand(self.batch_size, -1, -1)
        return torch.cat([front, patches], dim=1) + self.pos


@embedding("param-batch-size")
class TokenBehind(ByLinear):
    """Writes tokens behind each other; the first has one row for all samples."""

    def __init__(self, e):
        super().__init__(e)
        self.first = nn.Parameter(torch.randn(1, 1, e))
        self.table = nn.Parameter(torch.randn(1, 17, e))

    def place(self, tokens):
        return torch.hstack((self.first, tokens)) + self.table


@embedding("param-plain-tensor")
class TokenTimesNumber(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        del self.cls
        self.cls = nn.Parameter(torch.randn(1, 1, e)) * 0.02


@embedding("param-plain-tensor", sizes=((40, 1), (36, 1)))
class TokenOfNobody(ByConvolution):
    """Drawn once: the class token asks for no gradients, and is no parameter."""

    def __init__(self, e):
        super().__init__(e)
        del self.cls
        self.cls = torch.randn(1, 1, e)


@embedding("param-plain-tensor")
class PositionMoved(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.table = nn.Parameter(torch.randn(16, e, dtype=torch.float64)).to(torch.float32)

    def place(self, tokens):
        return tokens + self.table.to(tokens.dtype)


def _cut_by_unfold(e):
    return lambda images: F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


embedding(sizes=((18, 1),))(_cut_by_unfold)


def _wrong_inverse(patches):
    return rearrange(patches, "b (gh gw) (ph pw c) -> b c (gh ph) (gw pw)", gh=4, ph=2, pw=3)


def _viewed_inverse(patches):
    return patches.reshape(len(patches), CHANNELS, *IMAGE)


embedding("unpatch-order", inverse=_wrong_inverse, sizes=((18, 1),))(_cut_only)
embedding("unpatch-order", inverse=_viewed_inverse, sizes=((18, 1),))(_cut_by_unfold)
embedding("patch-view", "pos-one-row")(type("EmbeddingPair1", (LinearOfView, LinearOneRow), {}))
embedding("patch-channel-mix", "pos-before-cls")(
    type("EmbeddingPair2", (ConvolutionViewed, ConvolutionPositionFirst), {})
)


@embedding("patch-channel-mix", also=(("patch-view",),))
class ChannelsLastRead(nn.Module):
    """Takes channels that stand last for channels that stand first, and cuts what it has then."""

    def __init__(self, e):
        super().__init__()
        self.layer = nn.Linear(CHANNELS * PATCH[0] * PATCH[1], e)

    def forward(self, images):
        b, c, height, width = images.shape
        read = images.permute(0, 2, 3, 1).reshape(b, c, height, width)
        pattern = "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)"
        return self.layer(rearrange(read, pattern, ph=PATCH[0], pw=PATCH[1]))


class RowsAndColumns(ByConvolution):
    """A learned table for the rows of patches, and one for the columns."""

    def __init__(self, e):
        super().__init__(e)
        self.pos = None
        gh, gw = (size // side for size, side in zip(IMAGE, PATCH, strict=True))
        self.rows = nn.Parameter(torch.randn(gh, 1, e // 2))
        self.columns = nn.Parameter(torch.randn(1, gw, e - e // 2))

    def places(self):
        sides = self.rows.shape[0], self.columns.shape[1], -1
        return torch.cat([self.rows.expand(sides), self.columns.expand(sides)], dim=-1).flatten(
            0, 1
        )

    def place(self, patches):
        return torch.cat([self.cls.expand(len(patches), -1, -1), patches + self.places()], dim=1)


embedding("pos-before-cls")(RowsAndColumns)


@embedding()
class RowsColumnsAndOwn(RowsAndColumns):
    """The class token has a place of its own."""

    def __init__(self, e):
        super().__init__(e)
        self.own = nn.Parameter(torch.randn(e))

    def place(self, patches):
        placed = super().place(patches)
        return torch.cat([placed[:, :1] + self.own, placed[:, 1:]], dim=1)


@embedding("pos-before-cls")
class TwoTablesFirst(ByLinear):
    """Two tables are added up, before the class token comes."""

    def __init__(self, e):
        super().__init__(e)
        self.cls_token, self.more = nn.Parameter(torch.randn(1, 1, e)), nn.Embedding(40, e)

    def place(self, tokens):
        tokens = super().place(tokens) + self.more.weight[: tokens.shape[1]]
        return torch.cat((self.cls_token.expand(len(tokens), -1, -1), tokens), 1)


@embedding("parameter-unused")
class TableForNothing(ByLinear):
    """A second table for the positions is learned, and nothing adds it."""

    def __init__(self, e):
        super().__init__(e)
        self.pos_embed = nn.Parameter(torch.zeros(1, 24, e))

    def place(self, tokens):
        return tokens


class FixedPlaces(ByLinear):
    """Sines and cosines that nobody learns, in a frozen parameter."""

    step = 2.0

    def __init__(self, e):
        super().__init__(e)
        del self.position
        table = torch.zeros(COUNT, e)
        angle = torch.arange(COUNT)[:, None] / 10_000 ** (self.step * torch.arange(e // 2) / e)
        table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
        self.pos_embed = nn.Parameter(table[None], requires_grad=False)

    def place(self, tokens):
        return tokens + self.pos_embed


embedding()(FixedPlaces)
embedding("sincos-exponent")(type("FixedPlacesDoubled", (FixedPlaces,), {"step": 4.0}))


@embedding("sincos-cosine")
class FixedSinesTwice(FixedPlaces):
    """In a buffer, and no cosines."""

    def __init__(self, e):
        super().__init__(e)
        table = self.pos_embed.data.clone()
        del self.pos_embed
        table[..., 1::2] = table[..., 0::2]
        self.register_buffer("pos_embed", table)


@embedding("param-plain-tensor")
class DrawnPlaces(FixedPlaces):
    """Drawn once, and no parameter: no optimizer sees them."""

    def __init__(self, e):
        super().__init__(e)
        del self.pos_embed
        self.pos_embed = torch.randn(1, COUNT, e)
