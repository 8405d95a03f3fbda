"""Norms inside of parts: of what heads mixed, and between the layers of a feed-forward."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from torch import nn

from patients.attention import Views
from patients.blocks import PreNorm, block
from patients.followed import WIDE
from patients.variants import variant
from patients.wirings import TWO


@variant("sub-norm", sizes=WIDE)
class NormsTheJoined(Views):
    """MAGNETO's: LayerNorm over all heads at once."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.inner = nn.LayerNorm(e)

    def forward(self, x):
        q, k, v = self.heads(x)
        mixed = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1) @ v
        return self.proj(self.inner(self.join(mixed)))


@variant("sub-norm", sizes=WIDE)
class NormsEachHead(nn.Module):
    """RetNet's: an RMSNorm of every head, written out; torch's kernel; the past alone is seen."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))
        self.weight = nn.Parameter(nn.init.normal_(self.q.weight.new_empty(e // h)))

    def forward(self, x):
        made = (self.q(x), self.k(x), self.v(x))
        split = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        mixed = self.weight * mixed * (mixed.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.o(rearrange(mixed, "b h n d -> b n (h d)"))


class SubNorms(PreNorm):
    """MAGNETO's block, its attention written out in it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.h, self.inner = h, nn.LayerNorm(e)
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))
        self.attention, self.between = nn.Identity(), nn.LayerNorm(2 * e + 1)

    def attend(self, x):
        made = (self.q(x), self.k(x), self.v(x))
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        return self.o(self.inner(rearrange(mixed, "b h n d -> b n (h d)")))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        inner = self.between(self.ffn[1](self.ffn[0](self.ln_2(x))))
        return x + self.ffn[2](inner)


block(sizes=TWO)(SubNorms)


@block("residual-from-norm", sizes=TWO)
class SubNormsFromNorm(SubNorms):
    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attend(x)
        inner = self.between(self.ffn[1](self.ffn[0](self.ln_2(x))))
        return x + self.ffn[2](inner)
