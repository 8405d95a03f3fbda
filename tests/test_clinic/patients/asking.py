"""Who asks, and what is done to queries, keys and values before they are split."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Loops, Views
from patients.bank import SIZES, attention
from patients.unknown import unknown
from patients.variants import variant

# ------------------------------------------------------------------------- one token asks alone


class OneAsks(nn.Module):
    """CaiT: the first token asks, three layers."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.proj = (nn.Linear(e, e) for _ in range(4))

    def asking(self, x):
        return x[:, :1]

    def factor(self, e):
        return (e // self.h) ** -0.5

    def forward(self, x):
        q, k, v = self.q(self.asking(x)), self.k(x), self.v(x)
        q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT * self.factor(x.shape[-1])).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


variant("class-attention", sizes=SIZES)(OneAsks)


@variant("class-attention")
class LastAsks(Loops):
    """CeiT: the last token asks."""

    def forward(self, tokens):
        return super().forward(tokens)[:, -1:]


@variant("class-attention")
class FirstAsksPacked(nn.Module):
    """VOLO: keys and values packed, the fused kernel."""

    def __init__(self, e, h):
        super().__init__()
        self.num_heads = h
        self.kv, self.q = nn.Linear(e, 2 * e, bias=False), nn.Linear(e, e, bias=False)
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        b, n, e = x.shape
        k, v = self.kv(x).reshape(b, n, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q = self.q(x[:, :1]).reshape(b, self.num_heads, 1, -1)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, 1, e))


@variant("class-attention", ids=("scale-embed",))
class OneAsksScaledByEmbed(OneAsks):
    def factor(self, e):
        return e**-0.5


@variant("class-attention", ids=("out-unused",))
class OneAsksUnprojected(OneAsks):
    def forward(self, x):
        projected, self.proj = self.proj, nn.Identity()
        try:
            return super().forward(x)
        finally:
            self.proj = projected


@unknown
class OneAsksWithoutSoftmax(OneAsks):
    """Nothing that has a name."""

    def forward(self, x):
        return super().forward(x).sigmoid()


# --------------------------------------------------------------------------- bent where they are


@attention("projection-bent", sizes=SIZES[:3])
class ViewsBent(Views):
    """A ReLU behind each layer, as in Kyubyong's Transformer."""

    def heads(self, x):
        return tuple(t.relu() for t in super().heads(x))


@attention("projection-bent", sizes=SIZES[:3])
class LoopsBent(Loops):
    def projected(self, tokens):
        return [F.relu(t) for t in super().projected(tokens)]


@attention("out-missing", "projection-bent", sizes=SIZES[:1], out_proj=True)
class BentWithoutOut(nn.Module):
    """nn.Sequential(nn.Linear, nn.ReLU) three times, and no layer behind."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.Q_proj, self.K_proj, self.V_proj = (
            nn.Sequential(nn.Linear(e, e), nn.ReLU()) for _ in range(3)
        )

    def forward(self, x):
        q, k, v = self.Q_proj(x), self.K_proj(x), self.V_proj(x)
        q, k, v = (torch.cat(t.chunk(self.h, dim=2), dim=0) for t in (q, k, v))
        weights = torch.softmax(q.bmm(k.transpose(1, 2)) / k.shape[-1] ** 0.5, dim=-1)
        return torch.cat(weights.bmm(v).chunk(self.h, dim=0), dim=2)


@attention("projection-bent", sizes=SIZES[:1])
class OnlyValuesBent(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k, F.gelu(v)
