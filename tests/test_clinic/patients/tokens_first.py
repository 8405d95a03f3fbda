"""Blocks of (b, n, e) that hand their tokens to PyTorch's attention as it wants them: (n, b, e)."""

from __future__ import annotations

import torch
from torch import nn

from patients.blocks import PostNorm, PreNorm, block
from patients.wirings import ONE, TWO


class Inside(nn.Module):
    """PyTorch's attention, which gets tokens first."""

    def __init__(self, e, h, batch_first=False):
        super().__init__()
        self.mha = nn.MultiheadAttention(e, h, batch_first=batch_first)

    def forward(self, x, memory=None):
        x = x.transpose(0, 1)
        memory = x if memory is None else memory.transpose(0, 1)
        return self.mha(x, memory, memory, need_weights=False)[0].transpose(0, 1)


@block("residual-from-norm", causal=True, sizes=TWO)
class TurnsForItsAttention(PreNorm):
    """universome/transformer-lm: the stream is what the norm returned."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h)

    def forward(self, x):
        future = torch.full((x.size(1), x.size(1)), float("-inf"), dtype=x.dtype).triu(1)
        x = self.ln_1(x)
        turned = x.permute(1, 0, 2)
        mixed, _ = self.attention(turned, turned, turned, attn_mask=future)
        x = self.ln_2(mixed.permute(1, 0, 2) + x)
        return self.ffn(x) + x


@block("norm-shared", "residual-from-input", sizes=ONE)
class TurnsAndShares(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = nn.MultiheadAttention(e, h)
        self.norms = self.norms[:1]

    def forward(self, x):
        y = x.transpose(0, 1)
        y = self.norms[0](x + self.self_attn(y, y, y)[0].transpose(0, 1))
        return self.norms[0](x + self.feed(y))


@block("norm-shared", context=True, sizes=ONE)
class TurnsBothAndShares(nn.Module):
    """A decoder's block: the tokens and the context are turned."""

    def __init__(self, e, h):
        super().__init__()
        self.own, self.cross = Inside(e, h), Inside(e, h)
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.fc1, self.fc2 = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

    def forward(self, x, memory):
        x = self.norm1(x + self.own(x))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm2(x + self.fc2(self.fc1(x).relu()))


@block("batch-first", "residual-from-norm", sizes=ONE)
class TurnsWhatNeedsNoTurn(PreNorm):
    """Its attention says batch_first=True, and gets tokens first."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x):
        read = self.ln_1(x)
        turned = read.transpose(0, 1)
        x = read + self.attention(turned, turned, turned)[0].transpose(0, 1)
        return x + self.ffn(self.ln_2(x))
