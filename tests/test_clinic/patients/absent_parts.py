"""Blocks in which a part is never called, or called once more for its shape alone."""

from __future__ import annotations

from patients.blocks import PostNorm, PreNorm, block
from patients.connections import AddsAndNorms
from patients.decoders import PostDecoder, PreDecoder
from patients.wirings import ONE, TWO


@block("part-unused", context=True, sizes=TWO)
class DeafToTheContext(PostDecoder):
    """The tokens are added to themselves, where the cross-attention belongs."""

    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        x = self.norms[1](x + x)
        return self.norms[2](x + self.feed(x))


@block("part-unused", context=True, sizes=TWO)
class OnlyNormed(PostDecoder):
    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        x = self.norms[1](x)
        return self.norms[2](x + self.feed(x))


@block("part-unused", context=True, sizes=ONE)
class NormAdded(PreDecoder):
    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        x = x + self.ln_2(x)
        return x + self.ffn(self.ln_3(x))


@block("part-unused", sizes=TWO)
class AddedToItself(PreNorm):
    def forward(self, x):
        x = x + x
        return x + self.ffn(self.ln_2(x))


@block(sizes=TWO)
class LooksAtTheShape(PostNorm):
    """The attention is called once more, and nothing is done with what it returns."""

    def forward(self, x):
        if self.self_attn(x).shape != x.shape:
            raise ValueError("the attention changes the width")
        return super().forward(x)


@block("norm-shared", sizes=TWO)
class LooksAndShares(PostNorm):
    def forward(self, x):
        if self.self_attn(x).shape != x.shape:
            raise ValueError("the attention changes the width")
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[0](x + self.feed(x))


@block("residual-again", sizes=ONE)
class LooksAndAddsTwice(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = AddsAndNorms(e, h)

    def forward(self, x):
        assert self.attention(x).shape == x.shape
        x = self.ln_1(x + self.attention(x))
        return self.ln_2(x + self.ffn(x))
