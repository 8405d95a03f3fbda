"""Stacks whose layers are not alike, or get more from the stack than their tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patients.attention import Views, ViewsScaledByEmbed
from patients.blocks import BLOCK_SIZES, PreNorm, block
from patients.windowed_blocks import CutIntoShiftedWindows, CutIntoWindows, windowed_block

FEW_SIZES = BLOCK_SIZES[:2]


class Masked(CutIntoWindows):
    """Swin's block as it is mostly written: the stack makes the mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.mask = mask
        return super().forward(x)

    def masked(self, windows: Tensor) -> Tensor:
        return self.attention(windows, self.mask)


class MaskedShifted(Masked, CutIntoShiftedWindows):
    pass


@windowed_block()
class StackOfWindows(nn.Module):
    """One layer in two is shifted, and gets a mask."""

    def __init__(self, e, h):
        super().__init__()
        self.blocks = nn.ModuleList((Masked(e, h), MaskedShifted(e, h)))

    def mask(self, layer: Masked) -> Tensor | None:
        return self.blocks[1].apart if layer.step else None

    def forward(self, x):
        for layer in self.blocks:
            x = layer(x, self.mask(layer))
        return x


class StackOfOneMask(StackOfWindows):
    """The mask of shifted windows is laid over all: unexplained."""

    def mask(self, layer):
        return self.blocks[1].apart


class ScaledByEmbed(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)


@block("scale-embed", sizes=FEW_SIZES)
class LastScaledByEmbed(nn.Module):
    """The first layer is right, the last is not."""

    def __init__(self, e, h):
        super().__init__()
        self.layers = nn.ModuleList((PreNorm(e, h), PreNorm(e, h), ScaledByEmbed(e, h)))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class WithoutStream(PreNorm):
    def forward(self, x):
        x = self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("scale-embed", "residual-missing", sizes=FEW_SIZES)
def _each_wrong_otherwise(e, h):
    return nn.Sequential(WithoutStream(e, h), ScaledByEmbed(e, h))


class Hiding(PreNorm):
    """What is added to the scores comes from the stack."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = HidingViews(e, h)

    def forward(self, x, hidden=None):
        self.attention.hidden = 0.0 if hidden is None else hidden
        return super().forward(x)


class HidingViews(Views):
    def weigh(self, scores, mask):
        return (scores + self.hidden).softmax(dim=-1)


class StackThatHides(nn.Module):
    """Alone, its layers see the future."""

    def __init__(self, e, h):
        super().__init__()
        self.layers = nn.ModuleList(Hiding(e, h) for _ in range(2))

    def forward(self, x):
        hidden = x.new_full(x.shape[1:2] * 2, -torch.inf).triu(1)
        for layer in self.layers:
            x = layer(x, hidden)
        return x


block(causal=True, sizes=FEW_SIZES)(StackThatHides)


@block("mask-not-causal", causal=True, sizes=FEW_SIZES)
class StackThatHidesNothing(StackThatHides):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x.new_zeros(x.shape[1:2] * 2))
        return x


class Normed(nn.Module):
    def __init__(self, e, part):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(e), part

    def forward(self, x):
        return self.fn(self.norm(x))


def _feed(e):
    return nn.Sequential(nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))


@block("layers-shared", sizes=FEW_SIZES)
class OnePairThrice(nn.Module):
    """A layer is a list of two parts, and the list of layers holds one such list three times."""

    def __init__(self, e, h):
        super().__init__()
        pair = nn.ModuleList([Normed(e, Views(e, h)), Normed(e, _feed(e))])
        self.layers = nn.ModuleList([pair] * 3)
        self.norm = nn.LayerNorm(e)

    def forward(self, x):
        for attention, feed in self.layers:
            x = attention(x) + x
            x = feed(x) + x
        return self.norm(x)


@block("layers-shared", "scale-embed", sizes=FEW_SIZES)
class OneDictTwice(nn.Module):
    """Norms behind the sums; its attention is wrong, too."""

    def __init__(self, e, h):
        super().__init__()
        parts = {"attention": ViewsScaledByEmbed(e, h), "norm1": nn.LayerNorm(e)}
        parts |= {"feed": _feed(e), "norm2": nn.LayerNorm(e)}
        self.layers = nn.ModuleList([nn.ModuleDict(parts)] * 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer["norm1"](x + layer["attention"](x))
            x = layer["norm2"](x + layer["feed"](x))
        return x


class PartsInLists(nn.Module):
    """Each kind of part has a list of its own."""

    def __init__(self, e, h):
        super().__init__()
        self.attentions = nn.ModuleList(Views(e, h) for _ in range(3))
        self.feeds = nn.ModuleList(_feed(e) for _ in range(3))
        self.norms1 = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))
        self.norms2 = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))

    def forward(self, x):
        lists = (self.attentions, self.norms1, self.feeds, self.norms2)
        for attention, norm1, feed, norm2 in zip(*lists, strict=True):
            x = x + attention(norm1(x))
            x = x + feed(norm2(x))
        return x


block(sizes=FEW_SIZES)(PartsInLists)


@block("layers-shared", sizes=FEW_SIZES)
class OneAttentionThrice(PartsInLists):
    """Its feed-forwards and norms are different ones."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attentions = nn.ModuleList([Views(e, h)] * 3)
