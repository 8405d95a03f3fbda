"""Attention and blocks that do not run without a mask: they are tried with one that is open."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from patients.attention import Loops, LoopsUnscaled, Views, ViewsMerge
from patients.bank import attention
from patients.blocks import block
from patients.modern import Llama
from patients.modern_blocks import LlamaBlock

TWO = ((24, 4), (15, 3))


@attention(sizes=TWO)
class BlockedAfterHeads(Views):
    """True is blocked, and the mask of a sample is (b, 1, n)."""

    def forward(self, q, k, v, mask, cache=None):
        q, k, v = self.heads(q)
        scores = q @ k.mT * self.factor(self.qkv.in_features)
        scores = scores.masked_fill(mask.unsqueeze(1), -1e9)
        return self.proj(self.join(scores.softmax(-1) @ v))


@attention(sizes=TWO)
class OpenWhereOne(Loops):
    """Ones and zeros for every pair of tokens."""

    def forward(self, tokens, attention_mask):
        blocked = attention_mask.eq(0)
        assert attention_mask.dim() == 2 and blocked.shape[0] == blocked.shape[1]
        return super().forward(tokens, ~blocked[None, None])


@attention("merge-no-transpose", sizes=TWO)
class BlockedAndMerged(BlockedAfterHeads, ViewsMerge):
    pass


@attention("scale-missing", sizes=TWO)
class OpenAndUnscaled(OpenWhereOne, LoopsUnscaled):
    pass


@attention("softmax-heads", sizes=((64, 4), (15, 3)))
class OpenOverHeads(Views):
    """A mask of False would close it, and leave every head the same share."""

    def forward(self, x, mask):
        q, k, v = self.heads(x)
        scores = q @ k.mT * self.factor(x.shape[2])
        scores.masked_fill_(mask == 0, -1e9)
        return self.proj(self.join(scores.softmax(dim=1) @ v))


@attention(sizes=TWO[:1])
class BlockedAndTurned(Llama):
    """Angles and a mask, both from outside."""

    def forward(self, x, mask, cos, sin):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, -1, self.d).transpose(1, 2) for t in self.project(x))
        q, k = (t * cos[None, None] + self.rotate_half(t) * sin[None, None] for t in (q, k))
        scores = (q @ self.repeated(k).mT).masked_fill(mask, -math.inf)
        mixed = (scores / self.d**0.5).softmax(-1) @ self.repeated(v)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, n, -1))


class Needs(nn.Module):
    """A post-norm layer that multiplies by what is no padding."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.slf_attn = Views(e, h)
        self.norm_1, self.norm_2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.fc1, self.fc2 = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

    def forward(self, enc_input: Tensor, non_pad_mask=None, slf_attn_mask=None) -> Tensor:
        x = self.norm_1(enc_input + self.slf_attn(enc_input, slf_attn_mask))
        x = x * non_pad_mask
        x = self.norm_2(x + self.fc2(torch.relu(self.fc1(x))))
        return x * non_pad_mask


block(sizes=TWO[:1])(Needs)


@block("residual-missing", sizes=TWO[:1])
class NeedsResidual(Needs):
    def forward(self, enc_input, non_pad_mask=None, slf_attn_mask=None):
        x = self.norm_1(enc_input + self.slf_attn(enc_input, slf_attn_mask)) * non_pad_mask
        return self.norm_2(self.fc2(torch.relu(self.fc1(x)))) * non_pad_mask


@block(sizes=TWO[:1])
class BlockedAndTurnedBlock(LlamaBlock):
    attention = BlockedAndTurned

    def forward(self, x, mask, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), mask, cos, sin)
        return x + self.feed(self.post_attention_layernorm(x))
