"""Cross-attention: two families of it, and their bugs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from patients.bank import attention, changed
from patients.healthy import Loops, Views, named
from utils.attention import MultiHeadAttention
from utils.masking import padding_mask

CROSSED = ((24, 4), (15, 3), (7, 1))


class Packed(Views):
    """q and kv, all heads at once; forward(x, context)."""

    def __init__(self, e: int, h: int, c: int | None = None):
        super().__init__(e, h)
        self.q, self.kv = nn.Linear(e, e, bias=False), nn.Linear(c or e, 2 * e, bias=False)
        del self.qkv

    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, context, context

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        of_queries, of_keys, of_values = self.given
        made = (
            self.q(of_queries),
            self.kv(of_keys).chunk(2, -1)[0],
            self.kv(of_values).chunk(2, -1)[1],
        )
        return tuple(t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in made)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        self.given = self.sides(x, context)
        return super().forward(x, mask)


class Apart(Loops):
    """Four layers, head by head; forward(query, key, value) returns a tuple."""

    def sides(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, value

    def projected(self, sides):
        return self.toqueries(sides[0]), self.tokeys(sides[1]), self.tovalues(sides[2])

    def forward(self, query, key, value, mask=None):
        return super().forward(self.sides(query, key, value), mask), None


def context_padding(seed: int) -> Tensor:
    return padding_mask(torch.tensor([4, 8]), 8)


def rectangle(seed: int) -> Tensor:
    """Three samples, five queries, each of which sees other ones of seven keys."""
    allow = torch.rand(3, 1, 5, 7, generator=torch.Generator().manual_seed(seed)) < 0.5
    allow[..., 0] = True
    return allow


for _make in (Packed, Apart):
    for _mask in (None, context_padding, rectangle):
        attention(context=True, mask=_mask, sizes=CROSSED)(_make)


two = {"context": True, "sizes": CROSSED}
named("course, context", lambda e, h: MultiHeadAttention(e, h), **two, mask=context_padding)
named("torch, context", partial(nn.MultiheadAttention, batch_first=True), **two, mask=rectangle)
wide = partial(nn.MultiheadAttention, kdim=10, vdim=10)
named("torch, wide context", lambda e, h: wide(e, h), context=10, sizes=CROSSED)
named("wide context", lambda e, h: Packed(e, h, 11), context=(4, 11), sizes=CROSSED)


# ------------------------------------------------------------------------------- the wrong side


@attention("cross-ignored", context=True, sizes=CROSSED)
class ContextIgnored(Packed):
    def sides(self, x, context):
        return x, x, x


apart, packed = partial(changed, Apart), partial(changed, Packed)
apart("cross-ignored", **two, sides=lambda self, q, k, v: (q, q, q))

# ---------------------------------------------------------- bugs of every attention, on two sides

masked = {**two, "mask": context_padding}
apart("scale-missing", **two, score=lambda self, q, k: q @ k.mT)
packed("softmax-query", **two, weigh=lambda self, s, m: s.softmax(-2))
packed("mask-dropped", **masked, weigh=lambda self, s, m: s.softmax(-1))
apart("mask-multiply", **masked, block=lambda self, s, m: s * m)
apart("mask-inverted", **masked, block=lambda self, s, m: s.masked_fill(m, -1e9))
