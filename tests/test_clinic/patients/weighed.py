"""Blocks whose sums are weighed by hand, that hold more parts, or codes of places inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.arranged import arranged
from patients.attention import Loops, Views, ViewsScaledByEmbed
from patients.blocks import PostNorm, PreNorm, block
from patients.decoders import PostDecoder
from patients.wirings import ONE

# --------------------------------------------------------------------- what is summed is scaled


@arranged("scaled-residual", sizes=ONE)
class ScalesTheSum(PreNorm):
    """ConvS2S keeps the size of its stream."""

    def forward(self, x):
        x = (x + self.attention(self.ln_1(x))) * 0.5**0.5
        return (x + self.ffn(self.ln_2(x))) * 0.5**0.5


@arranged("scaled-residual", ids=("residual-from-norm",), sizes=ONE)
class ScalesTheSumOfNorms(PreNorm):
    def forward(self, x):
        x = self.ln_1(x)
        x = (x + self.attention(x)) * 0.5**0.5
        return (x + self.ffn(self.ln_2(x))) * 0.5**0.5


@arranged("scaled-residual", ids=("norm-shared",), sizes=ONE)
class FadesTheStream(PreNorm):
    def forward(self, x):
        x = 0.8 * x + self.attention(self.ln_1(x))
        return 0.8 * x + self.ffn(self.ln_1(x))


# ----------------------------------------------------------------------- gates that no module is


@arranged("gated-residual", sizes=ONE)
class Highway(PreNorm):
    """The gate is made of the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gates = nn.ModuleList(nn.Linear(e, e) for _ in range(2))

    def gated(self, number, x, part):
        z = self.gates[number](x).sigmoid()
        return z * part + (1 - z) * x

    def forward(self, x):
        x = self.gated(0, x, self.attention(self.ln_1(x)))
        return self.gated(1, x, self.ffn(self.ln_2(x)))


@arranged("gated-residual", ids=("part-shared",), sizes=ONE)
class OneHighway(Highway):
    def gated(self, number, x, part):
        return super().gated(0, x, part)


@arranged("gated-residual", ids=("norm-shared",), sizes=ONE)
class GatesOfBoth(PostNorm):
    """The gate is made of the stream and of what a part returned; one norm stands behind both."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.first, self.second = nn.Linear(2 * e, e), nn.Linear(2 * e, e)

    def forward(self, x):
        for part, opens in ((self.self_attn, self.first), (self.feed, self.second)):
            made = part(x)
            z = torch.sigmoid(opens(torch.cat([x, made], dim=-1)))
            x = self.norms[0](z * x + (1 - z) * made)
        return x


@arranged("gated-residual", sizes=ONE)
class GatesWhatIsAdded(PreNorm):
    """The stream stays whole."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.opens = nn.ModuleList(nn.Sequential(nn.Linear(e, e), nn.Sigmoid()) for _ in range(2))

    def forward(self, x):
        x = x + self.opens[0](x) * self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x)) * self.opens[1](x)


# ------------------------------------------------------- more parts, each with its own norm


@block(sizes=ONE)
class TwoAttentions(PreNorm):
    """Over time, then over space."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.before, self.ln_0 = Views(e, h), nn.LayerNorm(e)

    def forward(self, x):
        return super().forward(x + self.before(self.ln_0(x)))


@block(sizes=ONE)
class TwoFeeds(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.more, self.last = (
            nn.Sequential(nn.Linear(e, 9), nn.GELU(), nn.Linear(9, e)),
            nn.LayerNorm(e),
        )

    def forward(self, x):
        x = super().forward(x)
        return self.last(x + self.more(x))


@block("norm-shared", sizes=ONE)
class TwoAttentionsOfOneNorm(TwoAttentions):
    def forward(self, x):
        return PreNorm.forward(self, x + self.before(self.ln_1(x)))


# ------------------------------------------------------------------------ codes of places inside


@block(sizes=ONE)
class CodesQueriesAndKeys(PostNorm):
    """DETR adds its places to queries and keys in every layer; values have none."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = nn.MultiheadAttention(e, h, batch_first=True)
        self.places = nn.Parameter(torch.randn(64, e))

    def coded(self, x):
        return x + self.places[: x.shape[1]]

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(self.coded(x), self.coded(x), x)[0])
        return self.norms[1](x + self.feed(x))


@block("norm-shared", sizes=ONE)
class CodesOfOneNorm(CodesQueriesAndKeys):
    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.self_attn(self.coded(y), self.coded(y), y)[0]
        return x + self.feed(self.norms[0](x))


@block(context=True, sizes=ONE)
class CodesItsContext(PostDecoder):
    """DETR's decoder: the keys of a context get codes of their own places."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.asks, self.asked = (nn.Parameter(torch.randn(64, e)) for _ in range(2))

    def listen(self, x, memory, mask):
        n, j = x.shape[1], memory.shape[1]
        return self.src_attn(x + self.asks[:n], memory + self.asked[:j], memory, mask)[0]


# ----------------------------------------------------------------------------- learned activations


class Wave(nn.Module):
    """PINNsFormer's activation."""

    def __init__(self):
        super().__init__()
        self.sine, self.cosine = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.sine * x.sin() + self.cosine * x.cos()


class Beta(nn.Module):
    """Swish with a slope that it learns."""

    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


@block(sizes=ONE)
class Waves(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        layers = (nn.Linear(e, 9), Wave(), nn.Linear(9, 9), Wave(), nn.Linear(9, e))
        self.ffn = nn.Sequential(*layers)


@block("activation-last", sizes=ONE)
class BendsLastByLearnedSlope(PostNorm):
    """The attention is written head by head."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn, self.bend = Loops(e, h), Beta()

    def feed(self, x):
        return self.bend(self.w_2(F.relu(self.w_1(x))))


# ------------------------------------------------------------ heads that the block calls itself


class Slice(nn.Module):
    """A head that is as wide as what it gets."""

    def __init__(self, d, out=False):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d, d) for _ in range(3))
        self.to_out = nn.Linear(d, d) if out else nn.Identity()

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5).softmax(-1)
        return self.to_out(weights @ self.value(x))


@block("head-own-slice", "out-missing", "activation-missing", sizes=ONE)
class CallsSlices(PreNorm):
    out = False

    def __init__(self, e, h):
        super().__init__(e, h)
        self.h, self.heads = h, nn.ModuleList(Slice(e // h, self.out) for _ in range(h))
        del self.attention

    def bend(self):
        return nn.Identity()

    def attention(self, x):
        slices = x.chunk(self.h, dim=-1)
        return torch.cat([head(t) for head, t in zip(self.heads, slices, strict=True)], dim=-1)


@block(
    "head-own-slice",
    "norm-shared",
    also=(("head-own-slice", "norm-shared", "out-missing"),),
    sizes=ONE,
)
class CallsSlicesOfOneNorm(CallsSlices):
    """Each head has an output layer of its own."""

    out = True

    def bend(self):
        return nn.GELU()

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


@block("head-own-slice", "residual-missing", "norm-shared", sizes=ONE)
class CallsSlicesAndJoins(PostNorm):
    """An output layer stands behind the heads."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.heads, self.d = nn.ModuleList(Slice(e // h) for _ in range(h)), e // h
        self.self_attn = nn.Linear(e, e)

    def forward(self, x):
        made = [
            head(x[:, :, i * self.d : i * self.d + self.d]) for i, head in enumerate(self.heads)
        ]
        x = self.norms[0](self.self_attn(torch.cat(made, dim=-1)))
        return self.norms[0](x + self.feed(x))


# ------------------------------------------------------------- convolutions and their norms


@arranged("conv-part", sizes=ONE)
class LooksNormsAndBends(PreNorm):
    """Layer, norm, activation, and then the sum, all in the block."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.look, self.still = nn.Conv1d(e, e, 3, padding=1), nn.LayerNorm(e)

    def forward(self, x):
        return super().forward(x + F.relu(self.still(self.look(x.mT).mT)))


@arranged("conv-part", ids=("norm-shared",), sizes=ONE)
class LooksWithOneNorm(LooksNormsAndBends):
    def forward(self, x):
        x = x + F.relu(self.ln_1(self.look(x.mT).mT))
        return PreNorm.forward(self, x)


# ---------------------------------------------------------------- layers that forward builds


@block("scale-embed", "layers-in-forward", sizes=ONE)
class BuildsALayer(PreNorm):
    """What the attention returns goes through a new layer of tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)
        self.ffn = None

    def forward(self, x):
        e = x.shape[-1]
        x = x + self.attention(self.ln_1(x))
        feed = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))
        return x + feed(self.ln_2(x))


@block("residual-missing", "layers-in-forward", sizes=ONE)
class BuildsNorms(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        del self.norms

    def forward(self, x):
        x = nn.LayerNorm(x.shape[-1])(self.self_attn(x))
        return nn.LayerNorm(x.shape[-1])(x + self.feed(x))
