"""Blocks whose feed-forward is convolutions over the tokens, as FastSpeech has them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from patients.arranged import arranged
from patients.attention import LoopsSoftmaxQuery
from patients.blocks import PostNorm, PreNorm


class Turn(nn.Module):
    """Tokens in rows become tokens in columns, and the reverse."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def convolutions(e: int, *behind: nn.Module, first: int = 3, second: int = 3) -> nn.Sequential:
    """Return two convolutions that get tokens channels first, and what stands behind them."""
    return nn.Sequential(
        nn.Conv1d(e, e + 5, first, padding="same"),
        nn.ReLU(),
        nn.Conv1d(e + 5, e, second, padding="same"),
        *behind,
    )


@arranged("conv-feed")
class TurnedOutside(PostNorm):
    """A row of layers gets the tokens turned over."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.conv = convolutions(e, nn.Dropout(0.1), first=5, second=1)

    def feed(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


@arranged("conv-feed", ids=("softmax-query",))
class TurnedOutsideOverQueries(TurnedOutside):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = LoopsSoftmaxQuery(e, h)


@arranged("conv-feed", ids=("activation-last",))
class TurnedOutsideBent(TurnedOutside):
    """What bends the result gets it turned over, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.conv = convolutions(e, nn.ReLU(inplace=True))


class ChannelsFirst(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.up, self.down = nn.Conv1d(e, 2 * e, 9, padding=4), nn.Conv1d(2 * e, e, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


@arranged("conv-feed")
class TurnedForAModule(TurnedOutside):
    """The same, and the layers stand in a module of its own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.conv = ChannelsFirst(e)


@arranged("conv-feed")
class TurnedInside(PreNorm):
    """Modules between the others turn the tokens over."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(Turn(), *convolutions(e, nn.Dropout(0.1)), Turn())


class ConvolvedHalf(nn.Module):
    """A half of the block with a norm and a residual of its own."""

    def __init__(self, e):
        super().__init__()
        self.w_1, self.w_2 = nn.Conv1d(e, 2 * e, 3, padding=1), nn.Conv1d(2 * e, e, 3, padding=1)
        self.layer_norm, self.dropout = nn.LayerNorm(e), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.w_2(self.w_1(x.transpose(1, 2)).relu()).transpose(1, 2)
        return self.layer_norm(self.dropout(made) + x)


class AttendingHalf(PreNorm):
    """The other half: its norm in front, and layers behind the attention's last one."""

    def __init__(self, e, h):
        super().__init__(e, h)
        del self.ffn, self.ln_2
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.attention(self.ln_1(x))) + x


@arranged("conv-feed", ids=("norm-mixed",))
class HalvesOfTwoKinds(nn.Module):
    """The dropout behind the attention is no layer of the feed-forward."""

    def __init__(self, e, h):
        super().__init__()
        self.slf_attn, self.pos_ffn = AttendingHalf(e, h), ConvolvedHalf(e)

    def forward(self, x: Tensor) -> Tensor:
        return self.pos_ffn(self.slf_attn(x))


@arranged("conv-feed", ids=("attention-unused",))
class HalfThrownAway(HalvesOfTwoKinds):
    """Where the norm of the unused attention stands says nothing."""

    def forward(self, x: Tensor) -> Tensor:
        self.slf_attn(x)
        return self.pos_ffn(x)
