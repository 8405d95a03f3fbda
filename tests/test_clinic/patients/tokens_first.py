"""Blocks of (b, n, e) that hand their tokens to PyTorch's attention as it wants them: (n, b, e)."""

from __future__ import annotations

import torch
from torch import nn

from patients.bank import attention
from patients.blocks import PreNorm, block
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


class TimeMajor(nn.Module):
    """The code takes the sizes of its tokens apart as T, B, D."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def width(self, D):
        return D // self.h

    def forward(self, inputs):
        T, B, D = inputs.shape
        q, k, v = (t.reshape(T, B, self.h, -1) for t in self.qkv(inputs).split(D, dim=-1))
        scores = torch.einsum("tbhd,sbhd->bhts", q, k) / self.width(D) ** 0.5
        return self.out(torch.einsum("bhts,sbhd->tbhd", scores.softmax(-1), v).reshape(T, B, D))


class TimeMajorScaledByEmbed(TimeMajor):
    def width(self, D):
        return D


attention(sizes=TWO)(TimeMajor)
attention("scale-embed", sizes=TWO)(TimeMajorScaledByEmbed)


@block("residual-from-norm", causal=True, sizes=TWO)
class TurnsForItsAttention(PreNorm):
    """universome/transformer-lm: the stream is what the norm returned."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h)

    def bend(self):
        return nn.ReLU()

    def forward(self, x):
        future = torch.full((x.size(1), x.size(1)), float("-inf"), dtype=x.dtype).triu(1)
        x = self.ln_1(x)
        turned = x.permute(1, 0, 2)
        mixed, _ = self.attention(turned, turned, turned, attn_mask=future)
        x = self.ln_2(mixed.permute(1, 0, 2) + x)
        return self.ffn(x) + x


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


@block("batch-first", "residual-from-norm", "activation-missing", sizes=ONE)
class TurnsWhatNeedsNoTurn(PreNorm):
    """Its attention says batch_first=True, and gets tokens first."""

    def bend(self):
        return nn.Identity()

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x):
        read = self.ln_1(x)
        turned = read.transpose(0, 1)
        x = read + self.attention(turned, turned, turned)[0].transpose(0, 1)
        return x + self.ffn(self.ln_2(x))


class AllTurned(PreNorm):
    """Norms, attention and sums of (n, b, e), between two turns."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h)

    def attended(self, x, memory):
        future = torch.ones(len(x), len(memory)).triu(1).bool()
        return self.attention(x, memory, memory, attn_mask=future)[0]


@block("norm-shared", "residual-from-norm", causal=True, sizes=TWO)
class NormsTurned(AllTurned):
    """shivanandmn/Knowledge-Tracing-SAINT: the feed-forward gets (b, n, e) again."""

    def forward(self, x):
        x = self.ln_1(x.permute(1, 0, 2))
        x = self.ln_1((x + self.attended(x, x)).permute(1, 0, 2))
        return x + self.ffn(x)


@block(causal=True, sizes=TWO)
class TurnsAround(AllTurned):
    """The feed-forward gets (n, b, e), too."""

    def forward(self, x):
        x = x.permute(1, 0, 2)
        read = self.ln_1(x)
        x = x + self.attended(read, read)
        return (x + self.ffn(self.ln_2(x))).permute(1, 0, 2)


@block("norm-shared", "part-shared", context=True, sizes=ONE)
class TurnsFirst(nn.Module):
    """HarperLi680/knowledge-tracing: one attention for both places, one norm for all three."""

    def __init__(self, e, h):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(e, h), nn.LayerNorm(e)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))

    def forward(self, x, memory):
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        x = self.norm(x + self.attention(x, x, x)[0])
        x = self.norm(x + self.attention(x, memory, memory)[0]).transpose(0, 1)
        return self.norm(x + self.ffn(x))
