"""Embeddings of images with other tokens beside the patches, and what drops or is added there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.embedding import (
    COUNT,
    ByConvolution,
    LinearOfChannelsLast,
    embedding,
)


class ClassTokenLast(ByConvolution):
    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([patches, cls], dim=1) + self.pos


embedding()(ClassTokenLast)


@embedding("pos-before-cls")
class ClassTokenLastAndLate(ClassTokenLast):
    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([patches + self.pos[:, :-1], cls], dim=1)


@embedding()
class TwoTokens(ByConvolution):
    """DeiT: one for the classes, one for what is distilled."""

    def __init__(self, e):
        super().__init__(e)
        self.dist = nn.Parameter(torch.zeros(1, 1, e))
        self.pos = nn.Parameter(torch.zeros(1, COUNT + 2, e))

    def place(self, patches):
        held = [t.expand(len(patches), -1, -1) for t in (self.cls, self.dist)]
        return torch.cat([*held, patches], dim=1) + self.pos


@embedding()
class Registers(LinearOfChannelsLast):
    def __init__(self, e):
        super().__init__(e)
        self.registers = nn.Parameter(torch.randn(4, e))
        self.cls = nn.Parameter(torch.randn(1, 1, e))

    def place(self, tokens):
        several = self.registers.expand(len(tokens), -1, -1)
        whole = torch.cat([self.cls.expand(len(tokens), -1, -1), several, tokens], dim=1)
        return super().place(whole)


@embedding("patch-view", "pos-one-row")
class ClassTokenLastOfStrips(ClassTokenLast):
    def patches(self, images):
        strips = images.reshape(len(images), COUNT, -1)
        return strips @ self.conv.weight.flatten(1).T + self.conv.bias

    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([patches, cls], dim=1) + self.pos[:, :1]


@embedding("dropout-eval")
class DropsAlways(ByConvolution):
    def place(self, patches):
        return F.dropout(super().place(patches), 0.1)


@embedding("dropout-eval", "pos-before-cls")
class DropsAlwaysAndLate(ClassTokenLastAndLate):
    def place(self, patches):
        return super().place(F.dropout(patches, 0.3, training=True))


@embedding("pos-one-row")
class OneRowOfChannelsLast(LinearOfChannelsLast):
    """The order inside its patches is no mistake beside another one either."""

    def place(self, tokens):
        return tokens + self.position.weight[5]


@embedding("pos-batch-axis")
class BySampleOfChannelsLast(LinearOfChannelsLast):
    def place(self, tokens):
        return tokens + self.position(torch.arange(len(tokens)))[:, None]
