"""Blocks whose parts are right, and whose stream goes another way than in any known block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Loops, Views, ViewsSoftmaxQuery
from patients.blocks import PostNorm, PreNorm, block
from patients.crossing import Apart
from patients.decoders import PostDecoder, PreDecoder
from patients.wirings import ONE, TWO

# --------------------------------------------------------------------- the stream is added twice


class AddsAndNorms(Views):
    """An attention that comes with its residual and its norm."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.layer_norm = nn.LayerNorm(e)

    def forward(self, x):
        return self.layer_norm(x + super().forward(x))


class Adds(Views):
    def forward(self, x):
        return x + super().forward(x)


@block("residual-again", sizes=TWO)
class AddsTwice(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = AddsAndNorms(e, h)


@block("residual-again", sizes=TWO)
class AddsTwiceWithoutNorm(PreNorm):
    """The attention adds what it reads, which is normed, and the block the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = Adds(e, h)


@block("residual-again", "residual-from-input", sizes=ONE)
class AddsTwiceAndFromInput(AddsTwice):
    def forward(self, x):
        y = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.feed(y))


# -------------------------------------------------------------- what is added is another thing


@block("residual-from-context", context=True, sizes=TWO)
class AddsTheContext(PostDecoder):
    """It runs only where the context is as long as the tokens."""

    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        x = self.norms[1](memory + self.listen(x, memory, None))
        return self.norms[2](x + self.feed(x))


@block("residual-from-context", "residual-missing", context=True, sizes=ONE)
class AddsTheContextOnly(PostDecoder):
    def forward(self, x, memory):
        x = self.norms[0](self.look(x, None))
        x = self.norms[1](self.listen(x, memory, None) + memory)
        return self.norms[2](x + self.feed(x))


@block("residual-from-context", sizes=TWO)
class AddsTheValues(nn.Module):
    """Nobody says that there is a context: forward takes query, key and value apart."""

    def __init__(self, e, h):
        super().__init__()
        self.attend, self.bend = Apart(e, h), nn.GELU()
        self.first, self.second = nn.LayerNorm(e), nn.LayerNorm(e)
        self.wide, self.narrow = nn.Linear(e, 2 * e + 1), nn.Linear(2 * e + 1, e)

    def forward(self, query, key, value):
        y = self.first(value + self.attend(query, key, value)[0])
        return self.second(y + self.narrow(self.bend(self.wide(y))))


@block("residual-in-place", "activation-missing", sizes=TWO)
class BendsTheStream(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.first = nn.ReLU(inplace=True)

    def feed(self, x):
        return self.w_2(self.w_1(self.first(x)))


@block("residual-in-place", sizes=TWO)
class BendsTheStreamTwice(PostNorm):
    """The layers of the feed-forward stand in a module, and another activation between them."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.mlp = nn.Sequential(nn.ReLU(inplace=True), self.w_1, nn.GELU(), self.w_2)
        del self.w_1, self.w_2

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.mlp(x))


@block("residual-in-place", sizes=TWO)
class BendsByAFunction(nn.Module):
    """Torch's attention, and no module that bends."""

    def __init__(self, e, h):
        super().__init__()
        self.mha = nn.MultiheadAttention(e, h, batch_first=True)
        self.after_mha, self.after_mlp = nn.LayerNorm(e), nn.LayerNorm(e)
        self.up, self.down = nn.Linear(e, 4 * e), nn.Linear(4 * e, e)

    def forward(self, x):
        x = self.after_mha(self.mha(x, x, x, need_weights=False)[0] + x)
        made = self.down(F.gelu(self.up(F.relu_(x))))
        return self.after_mlp(made + x)


class Heads(Loops):
    """Its heads, side by side: the output layer stands in the block."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unifyheads = nn.Identity()


@block(sizes=TWO)
class ProjectsOutside(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn, self.proj = Heads(e, h), nn.Linear(e, e)

    def attended(self, x):
        return x + self.proj(self.self_attn(x))

    def forward(self, x):
        x = self.norms[0](self.attended(x))
        return self.norms[1](x + self.feed(x))


@block("residual-missing", sizes=TWO)
class AddsTheHeads(ProjectsOutside):
    """ALBERT, under one name too few: h = attn(h), and proj(h) is added to that."""

    def attended(self, x):
        x = self.self_attn(x)
        return x + self.proj(x)


@block("residual-missing", "norm-missing", sizes=TWO)
class AddsTheAttentionOnly(PreNorm):
    """What the attention returned is added twice, and the stream never again."""

    def forward(self, x):
        y = self.attention(self.ln_1(x))
        return self.ffn(x + y) + y


@block("residual-from-norm", sizes=TWO)
class AsksWhatNobodyNormed(PreNorm):
    """SASRec: queries of the norm, keys and values of the stream itself."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = TwoSided(e, h)

    def forward(self, x):
        y = self.ln_1(x)
        y = self.ln_2(y + self.attention(y, x))
        return y + self.ffn(y)


class TwoSided(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.h, self.proj = h, nn.Linear(e, e)
        self.query, self.key, self.value = (nn.Linear(e, e) for _ in range(3))

    def forward(self, x, other):
        b, n, e = x.shape
        q = self.query(x).view(b, n, self.h, -1).transpose(1, 2)
        k, v = (to(other).view(b, n, self.h, -1).transpose(1, 2) for to in (self.key, self.value))
        weights = (q @ k.transpose(2, 3) / (e // self.h) ** 0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))


# ------------------------------------------------------------------- what is read is another thing


@block("wiring-other", sizes=TWO)
class FeedsTheAttentionOnly(PreNorm):
    """The feed-forward reads what the attention returned, not the stream."""

    def forward(self, x):
        y = self.attention(self.ln_1(x))
        return x + y + self.ffn(self.ln_2(y))


@block("wiring-other", sizes=TWO)
class FeedsTheInput(PostNorm):
    """The feed-forward reads what came into the block."""

    def forward(self, x):
        y = self.norms[0](x + self.self_attn(x))
        return self.norms[1](y + self.feed(x))


@block("attention-unused", sizes=TWO)
class ThrowsAttentionAway(PreNorm):
    def forward(self, x):
        self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("attention-unused", sizes=TWO)
class StartsAgain(nn.Module):
    """The feed-forward and its sum take x once more; the norm stands behind both halves."""

    def __init__(self, e, h):
        super().__init__()
        self.att, self.norm = ViewsSoftmaxQuery(e, h), nn.LayerNorm(e)
        self.up, self.down = nn.Linear(e, 3 * e), nn.Linear(3 * e, e)

    def forward(self, x):
        self.norm(self.att(x) + x)
        return self.norm(self.down(self.up(x).relu()) + x)


@block("part-unused", context=True, sizes=ONE)
class ThrowsTheContextAway(PostDecoder):
    """Tokens still see each other."""

    def forward(self, x, memory):
        x = self.norms[0](x + self.look(x, None))
        self.norms[1](x + self.listen(x, memory, None))
        return self.norms[2](x + self.feed(x))


@block("part-shared", context=True, sizes=TWO)
class LooksAndListensWithOne(PostDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.src_attn = self.self_attn


@block("part-shared", "part-unused", context=True, sizes=TWO)
class ListensWithTheOther(PostDecoder):
    """An attention for the context is built, too."""

    def listen(self, x, memory, mask):
        return self.self_attn(x, memory, memory, mask)[0]


@block("part-shared", context=True, sizes=TWO)
class FeedsTwice(PreDecoder):
    """A norm of its own each time, and the same layers."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_4 = nn.LayerNorm(e)

    def forward(self, x, context):
        x = super().forward(x, context)
        return x + self.ffn(self.ln_4(x))


@block("part-shared", context=True, sizes=TWO)
class OneAttentionForBoth(PreDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = None

    def forward(self, x, context):
        y = self.ln_1(x)
        x = x + self.cross(y, y)
        x = x + self.cross(self.ln_2(x), context)
        return x + self.ffn(self.ln_3(x))


class Weighs(nn.Module):
    """One head without layers of its own."""

    def forward(self, q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -torch.inf)
        return scores.softmax(dim=-1) @ v


@block(context=True, mask=torch.ones(5, 5).tril().bool(), sizes=((8, 1), (24, 1)))
class OneKernelForBoth(PostDecoder):
    """What has no weights may stand in both places."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = self.src_attn = None
        self.q1, self.k1, self.v1 = (nn.Linear(e, e) for _ in range(3))
        self.q2, self.k2, self.v2 = (nn.Linear(e, e) for _ in range(3))
        self.attention = Weighs()

    def look(self, x, mask):
        return self.attention(self.q1(x), self.k1(x), self.v1(x), mask)

    def listen(self, x, memory, mask):
        return self.attention(self.q2(x), self.k2(memory), self.v2(memory))

    def forward(self, x, memory, tgt_mask=None):
        return super().forward(x, memory, None, tgt_mask)


@block("norm-shared", "norm-doubled", sizes=TWO)
class NormsBehindNorms(PostNorm):
    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](self.norms[0](x + self.feed(x)))


# ------------------------------------------------------------------- feed-forwards that are right


@block(sizes=TWO)
class ThreeLayers(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        layers = nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, 2 * e), nn.ReLU()
        self.ffn = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(2 * e, e))


@block("norm-missing", sizes=TWO)
class NormsTheHidden(PostNorm):
    """The second norm stands inside the feed-forward."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms[1] = nn.LayerNorm(e + 5)

    def feed(self, x):
        return self.w_2(torch.relu(self.norms[1](self.w_1(x))))

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return x + self.feed(x)


class TimeFirst(nn.Module):
    """Torch's attention, which takes tokens first; its caller turns them."""

    def __init__(self, e, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(e, h)
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.up, self.down = nn.Linear(e, 3 * e), nn.Linear(3 * e, e)

    def forward(self, x):
        x = self.norm1(x + self.attn(x, x, x)[0])
        return self.norm2(x + self.down(self.up(x).relu()))


def turned(block, x):
    return block(x.transpose(0, 1)).transpose(0, 1)


@block(call=turned, sizes=TWO)
class TurnedAround(TimeFirst):
    pass


@block("residual-missing", call=turned, sizes=TWO)
class TurnedAroundAndLost(TimeFirst):
    def forward(self, x):
        x = self.norm1(self.attn(x, x, x)[0])
        return self.norm2(x + self.down(self.up(x).relu()))


# ------------------------------------------------------------------------ factors and conditions


@block(sizes=TWO)
class ReZero(PreNorm):
    """A factor that begins at 0 stands for the norms."""

    def __init__(self, e, h):
        super().__init__(e, h)
        del self.ln_1, self.ln_2
        self.factor = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x + self.factor * self.attention(x)
        return x + self.factor * self.ffn(x)


class Conditioned(PreNorm):
    """DiT: a condition says by what norms and parts are multiplied, and what is added."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.made = nn.Sequential(nn.SiLU(), nn.Linear(e, 6 * e))

    def numbers(self, x):
        condition = torch.ones(len(x), 1, x.shape[2], dtype=x.dtype)
        return self.made(condition).chunk(6, dim=-1)

    def forward(self, x):
        a, b, c, d, e, f = self.numbers(x)
        x = x + c * self.attention(self.ln_1(x) * (1 + a) + b)
        return x + f * self.ffn(self.ln_2(x) * (1 + d) + e)


@block("residual-from-norm", sizes=TWO)
class ConditionedFromNorm(Conditioned):
    def forward(self, x):
        a, b, c, d, e, f = self.numbers(x)
        x = self.ln_1(x) * (1 + a) + b
        x = x + c * self.attention(x)
        return x + f * self.ffn(self.ln_2(x) * (1 + d) + e)


@block("residual-missing", "norm-shared", sizes=ONE)
class ConditionedAndLost(Conditioned):
    def forward(self, x):
        a, b, c, d, e, f = self.numbers(x)
        x = c * self.attention(self.ln_1(x) * (1 + a) + b)
        return x + f * self.ffn(self.ln_1(x) * (1 + d) + e)


@block("norm-axis", sizes=TWO)
class NormsPlaces(PreNorm):
    """InstanceNorm over the places of each number."""

    def norm(self, e):
        return nn.InstanceNorm1d(e, affine=True)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x.mT).mT)
        return x + self.ffn(self.ln_2(x.mT).mT)
