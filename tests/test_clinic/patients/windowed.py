"""Attention inside of windows of an image, and biases that are known by their form alone."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from patients.unknown import unknown
from patients.variants import Biased, slopes, variant

SIDE = 2


def offsets(side: int) -> Tensor:
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    return places[:, None] - places[None] + side - 1


class InWindows(nn.Module):
    """An image (b, h, w, c) is cut into squares; one table of offsets serves all heads."""

    def __init__(self, e, h):
        super().__init__()
        self.heads, self.window_size, self.scale = h, SIDE, (e // h) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(e, 3 * e, bias=False), nn.Linear(e, e)
        self.pos_embedding = nn.Parameter(torch.randn(2 * SIDE - 1, 2 * SIDE - 1))
        self.at = offsets(SIDE)

    def cut(self, t: Tensor) -> Tensor:
        return rearrange(
            t, "b (y p) (x q) (h d) -> b h (y x) (p q) d", p=SIDE, q=SIDE, h=self.heads
        )

    def bias(self, high: int, wide: int) -> Tensor:
        return self.pos_embedding[self.at[..., 0], self.at[..., 1]]

    def forward(self, x):
        _, high, wide, _ = x.shape
        q, k, v = (self.cut(t) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * self.scale + self.bias(high // SIDE, wide // SIDE)
        mixed = scores.softmax(-1) @ v
        rows = {"y": high // SIDE, "p": SIDE}
        return self.to_out(rearrange(mixed, "b h (y x) (p q) d -> b (y p) (x q) (h d)", **rows))


variant("window", "relative-bias")(InWindows)


@variant("window", "position-bias")
class InWindowsByPairs(InWindows):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.pos_embedding = nn.Parameter(torch.randn(SIDE**2, SIDE**2))

    def bias(self, high, wide):
        return self.pos_embedding


@variant("window", "relative-bias")
class InShiftedWindows(InWindows):
    """What the roll brings together, and is apart in the image, is masked."""

    def bias(self, high, wide):
        edge = torch.zeros(high, wide, SIDE, SIDE)
        edge[-1, :, SIDE // 2 :] += 1
        edge[:, -1, :, SIDE // 2 :] += 2
        edge = edge.flatten(0, 1).flatten(1)
        apart = edge[:, :, None] != edge[:, None]
        return super().bias(high, wide) + apart * -1e9

    def forward(self, x):
        moved = super().forward(x.roll((-(SIDE // 2), -(SIDE // 2)), (1, 2)))
        return moved.roll((SIDE // 2, SIDE // 2), (1, 2))


@variant("window", "relative-bias", ids=("scale-embed",))
class InWindowsScaledByEmbed(InWindows):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = e**-0.5


@unknown
class InWindowsByWrongOffset(InWindows):
    """Rows and columns are added up: other offsets share a number."""

    def bias(self, high, wide):
        return self.pos_embedding.flatten()[self.at.sum(-1)]


@unknown
class InViewedWindows(InWindows):
    """The windows are cut by a view: a window holds tokens that follow each other in a row."""

    def cut(self, t):
        b, high, wide, _ = t.shape
        t = t.reshape(b, high * wide // SIDE**2, SIDE**2, self.heads, -1)
        return t.permute(0, 3, 1, 2, 4)

    def forward(self, x):
        q, k, v = (self.cut(t) for t in self.to_qkv(x).chunk(3, dim=-1))
        mixed = (q @ k.mT * self.scale + self.bias(0, 0)).softmax(-1) @ v
        return self.to_out(mixed.permute(0, 2, 3, 1, 4).reshape(x.shape))


@variant("window")
class InGroups(nn.Module):
    """Twins: tokens of an image whose sizes stand beside; no bias."""

    def __init__(self, e, h):
        super().__init__()
        self.num_heads, self.ws = h, SIDE
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x, H, W):
        b, n, e = x.shape
        x = x.view(b, H // SIDE, SIDE, W // SIDE, SIDE, e).transpose(2, 3)
        qkv = self.qkv(x).reshape(b, n // SIDE**2, SIDE**2, 3, self.num_heads, -1)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        mixed = mixed.transpose(2, 3).reshape(b, H // SIDE, W // SIDE, SIDE, SIDE, e)
        return self.proj(mixed.transpose(2, 3).reshape(b, n, e))


@variant("relative-bias", size=(2, 9))
class ByRowAndColumn(Biased):
    """A number for the offset of rows, and one for that of columns."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rows, self.columns = nn.Embedding(5, h), nn.Embedding(5, h)

    def bias(self, n):
        at = offsets(3)
        return (self.rows(at[..., 0]) + self.columns(at[..., 1])).permute(2, 0, 1)


@variant("alibi", size=(2, 10))
class AlibiOfAnImage(Biased):
    """The distance of two patches in the image; a class token is near to all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.h = h

    def bias(self, n):
        places = torch.cartesian_prod(torch.arange(3), torch.arange(3)).float()
        away = torch.zeros(n, n)
        away[1:, 1:] = torch.cdist(places, places)
        return -slopes(self.h)[:, None, None] * away
