"""Blocks whose keys and values are made of a smaller image: PVT, SegFormer."""

from __future__ import annotations

from torch import Tensor, nn

from patients.arranged import arranged
from patients.blocks import PreNorm
from patients.variants import Reduced, ReducedScaledByEmbed, on_a_grid

GRID = {"call": on_a_grid, "size": (2, 24)}


@arranged("spatial-reduction", **GRID)
class OfASmallerImage(PreNorm):
    """The norm of what was made smaller stands in the attention, beside its layers."""

    attends: type = Reduced

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = self.attends(e, h)

    def forward(self, x, H, W):
        x = x + self.attention(self.ln_1(x), H, W)
        return x + self.ffn(self.ln_2(x))


@arranged("spatial-reduction", ids=("scale-embed",), **GRID)
class OfASmallerImageScaledByEmbed(OfASmallerImage):
    attends = ReducedScaledByEmbed


@arranged("spatial-reduction", **GRID)
class MadeSmallerInTheBlock(nn.Module):
    """All in one forward: the layers behind the smaller image get no tokens of the block."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.ln_1, self.ln_2, self.ln_sr = (nn.LayerNorm(e) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(e, e) for _ in range(4))
        self.sr = nn.Conv2d(e, e, 2, stride=2)
        self.mlp = nn.Sequential(nn.Linear(e, 2 * e + 1), nn.GELU(), nn.Linear(2 * e + 1, e))

    def heads(self, t: Tensor) -> Tensor:
        return t.unflatten(2, (self.h, -1)).transpose(1, 2)

    def factor(self, e: int) -> float:
        return (e // self.h) ** -0.5

    def forward(self, x, H, W):
        y = self.ln_1(x)
        fewer = self.ln_sr(self.sr(y.mT.unflatten(2, (H, W))).flatten(2).mT)
        q, k, v = self.heads(self.q(y)), self.heads(self.k(fewer)), self.heads(self.v(fewer))
        mixed = (q @ k.mT * self.factor(x.shape[2])).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


@arranged("spatial-reduction", ids=("scale-missing",), **GRID)
class MadeSmallerInTheBlockUnscaled(MadeSmallerInTheBlock):
    def factor(self, e):
        return 1.0
