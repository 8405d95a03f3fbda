"""Patients of `diagnose_embedding`: patches, their projection, class tokens, learned positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from attention_clinic import Report, diagnose_embedding
from patients.bank import CASES, Entry
from patients.positions import made
from utils.embedding import PatchEmbedding, patchify

IMAGE, PATCH, CHANNELS, COUNT = (4, 12), (2, 3), 3, 8


def embedding(*ids: str, sizes: tuple = ((20, 1), (18, 1)), name: str = "", **options) -> Callable:
    """Add a patch embedding, built with e, to the bank."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_embedding(make(e), IMAGE, PATCH, CHANNELS, **options)

        CASES.append(Entry(name or make.__name__, ids, examine, sizes, variants=None))
        return make

    return enter


@embedding()
class ByConvolution(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, e, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, e))
        self.pos = nn.Parameter(torch.zeros(1, COUNT + 1, e))

    def patches(self, images):
        return self.conv(images).flatten(2).transpose(1, 2)

    def join(self, patches):
        return torch.cat([self.cls.repeat(len(patches), 1, 1), patches], dim=1)

    def place(self, patches):
        return self.join(patches) + self.pos

    def forward(self, images):
        return self.place(self.patches(images))


@embedding()
class ByLinear(nn.Module):
    """Has no class token, and an nn.Embedding for the positions."""

    def __init__(self, e):
        super().__init__()
        self.project = nn.Linear(CHANNELS * PATCH[0] * PATCH[1], e)
        self.position = nn.Embedding(12, e)

    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)

    def place(self, tokens):
        return tokens + self.position(torch.arange(tokens.shape[1]))

    def forward(self, x):
        return self.place(self.project(self.patches(x)))


class NormsLast(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        self.norm = nn.LayerNorm(e)

    def forward(self, images):
        return self.norm(super().forward(images))


class FixedPositions(ByLinear):
    """Has sines and cosines in a frozen parameter."""

    step, cosine = 2.0, torch.cos

    def __init__(self, e):
        super().__init__(e)
        del self.position
        angle = torch.arange(COUNT)[:, None] / 10_000 ** (self.step * torch.arange(e // 2) / e)
        table = torch.stack([angle.sin(), type(self).cosine(angle)], dim=2).flatten(1)
        self.table = nn.Parameter(table[None], requires_grad=False)

    def place(self, tokens):
        return tokens + self.table


ClassTokenLast = made(ByConvolution, join=lambda m, x: ByConvolution.join(m, x).roll(-1, dims=1))
for _make in (NormsLast, ClassTokenLast, FixedPositions):
    embedding()(_make)
embedding(name="of_the_course")(lambda e: PatchEmbedding(IMAGE, PATCH, CHANNELS, e))
embedding("sincos-exponent")(made(FixedPositions, step=4.0))
embedding("sincos-cosine")(made(FixedPositions, cosine=torch.sin))


@embedding("patch-view")
class LinearOfView(ByLinear):
    def patches(self, x):
        return x.reshape(len(x), -1, self.project.in_features)


def as_channels(x):
    """View correct patches (b, n, f) as (b, f, n)."""
    cut = patchify(x, PATCH)
    return cut.reshape(len(cut), -1, COUNT).mT


@embedding("patch-channel-mix")
class LinearOfUnfold(ByLinear):
    def patches(self, x):
        x = x.unfold(2, PATCH[0], PATCH[0]).unfold(3, PATCH[1], PATCH[1])
        return x.contiguous().view(len(x), -1, self.project.in_features)


@embedding()
class LinearOfChannelsLast(ByLinear):
    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)", ph=ph, pw=pw)


embedding(sizes=((18, 1),))(lambda e: lambda x: patchify(x, PATCH))
embedding(sizes=((18, 1),))(lambda e: lambda images: F.unfold(images, PATCH, stride=PATCH).mT)


@embedding("pos-one-row")
class LinearOneRow(ByLinear):
    def place(self, tokens):
        return tokens + self.position.weight[tokens.shape[1]]


@embedding("pos-batch-axis")
class ConvolutionPositionByBatch(ByConvolution):
    def place(self, patches):
        table = self.pos.transpose(0, 1)  # (n + 1, 1, e), as for tokens (n, b, e)
        return self.join(patches) + table[: len(patches)]


@embedding("pos-before-cls")
class ConvolutionPositionFirst(ByConvolution):
    def place(self, patches):
        return self.join(patches + self.pos[:, : patches.shape[1]])


ViewedMap = made(ByConvolution, patches=lambda m, x: m.conv(x).reshape(len(x), COUNT, -1))
for _ids, _make in (
    ("patch-view", made(ByLinear, patches=lambda m, x: x.reshape(len(x), -1, COUNT).mT)),
    ("patch-view", made(ByLinear, patches=lambda m, x: x.movedim(1, 3).reshape(len(x), COUNT, -1))),
    ("patch-channel-mix", ViewedMap),
    ("patch-channel-mix", made(ByLinear, patches=lambda m, x: as_channels(x))),
    ("pos-one-row", made(ByConvolution, place=lambda m, x: m.join(x) + m.pos[:, :1])),
    ("pos-one-row", made(LinearOfChannelsLast, place=lambda m, x: x + m.position.weight[5])),
    ("pos-batch-axis", made(ByLinear, place=lambda m, x: x + m.position.weight[: len(x), None])),
    ("pos-before-cls", made(ByConvolution, place=lambda m, x: m.join(x + m.pos[:, 1:]))),
    ("pos-before-cls", made(ClassTokenLast, place=lambda m, x: m.join(x + m.pos[:, :-1]))),
    ("patch-view pos-one-row", type("ViewOneRow", (LinearOfView, LinearOneRow), {})),
    ("patch-channel-mix pos-before-cls", made(ViewedMap, place=ConvolutionPositionFirst.place)),
    ("dropout-eval", made(ByConvolution, place=lambda m, x: F.dropout(m.join(x) + m.pos, 0.1))),
):
    embedding(*_ids.split())(_make)


@embedding("param-plain-tensor")
class TokenTimesNumber(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        del self.cls
        self.cls = nn.Parameter(torch.randn(1, 1, e)) * 0.02
