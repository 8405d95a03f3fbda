"""Mistakes that were planted into right modules, and once called healthy or otherwise."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Loops, Views
from patients.bank import attention
from patients.blocks import HandNorm, PostNorm, PreNorm, block
from patients.decoders import PostDecoder, decoder
from patients.modern import SEVERAL, Llama, modern

TWO = ((24, 4), (36, 6))


@attention("softmax-missing", sizes=TWO)
class MixesWithScores(Views):
    def weigh(self, scores, mask):
        return scores


@attention("softmax-missing", sizes=TWO)
class MixesByHead(Loops):
    def normalise(self, all_scores, allow):
        return all_scores


@attention("softmax-missing", "scale-embed", sizes=TWO)
class MixesWithScoresOfAllHeadsWidth(MixesWithScores):
    def factor(self, e):
        return e**-0.5


@attention("softmax-missing", "out-bent", sizes=TWO)
class MixesWithScoresAndBends(MixesWithScores):
    def forward(self, x, mask=None):
        return super().forward(x, mask).relu()


@attention("softmax-missing", sizes=TWO)
class LastAsksBareScores(Views):
    """One token alone asks."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        return self.proj(self.join(q[:, :, -1:] * self.factor(x.shape[-1]) @ k.mT @ v))


@attention(sizes=TWO)
class KeysWithValuesFirst(Views):
    """Linear attention on purpose: no token meets another."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        return self.proj(self.join(q * self.factor(x.shape[-1]) @ (k.mT @ v)))


@attention("projection-bent", sizes=TWO)
class KeysBent(Loops):
    """Keys alone are never negative."""

    def score(self, q, k):
        return super().score(q, k.relu())


@attention("out-bent", sizes=TWO)
class BentBehind(Views):
    def forward(self, x, mask=None):
        return super().forward(x, mask).relu()


@attention("out-bent", sizes=TWO)
class LoopsBentBehind(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.bend = nn.GELU()

    def forward(self, *given):
        return self.bend(super().forward(*given))


class FourLayers(Views):
    """Layers of their own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(e, e) for _ in range(3))
        self.qkv = None

    def projected(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def heads(self, x):
        return (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in self.projected(x))


@attention("projection-unused", sizes=TWO)
class TokensAsKeys(FourLayers):
    """The layer of the keys is never called."""

    def projected(self, x):
        return self.q_proj(x), x, self.v_proj(x)


@attention("projection-unused", "scale-missing", sizes=TWO)
class TokensAsKeysAndValues(FourLayers):
    def factor(self, e):
        return 1.0

    def projected(self, x):
        return self.q_proj(x), x, x


class Apart(Llama):
    """Heads 0, 1, 0, 1 of the keys or of the values, 0, 0, 1, 1 of the other."""

    tiled: tuple[bool, ...] = (True, False)  # keys, values

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.calls = 0

    def repeated(self, t):
        self.calls += 1
        times = self.h // self.g
        if self.tiled[(self.calls + 1) % 2]:
            return t.repeat(1, times, 1, 1)
        return t.repeat_interleave(times, dim=1)


modern("groups-order", sizes=SEVERAL)(type("KeysTiled", (Apart,), {}))
modern("groups-order", sizes=SEVERAL)(type("ValuesTiled", (Apart,), {"tiled": (False, True)}))


@modern("out-unused", sizes=SEVERAL)
class NeverJoined(Llama):
    """Its heads go back as they are, though there is a layer for them."""

    def forward(self, x, mask=None):
        kept, self.o_proj = self.o_proj, nn.Identity()
        try:
            return super().forward(x, mask)
        finally:
            self.o_proj = kept


@block("norm-eps")
class DropoutAsEps(PreNorm):
    """nn.LayerNorm(width, dropout): the second argument is eps."""

    def norm(self, e):
        return nn.LayerNorm(e, 0.1)


@block("part-unused")
class NeverFeeds(PreNorm):
    """Adds what the norm returned, where what the feed-forward makes of it belongs."""

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ln_2(x)


@block("part-unused")
class NeverFeedsPost(PostNorm):
    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + x)


class KeysDetached(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        return q, k.detach(), v


@block("graph-cut")
class KeysNeverLearn(PreNorm):
    """A third of one layer of the block: little of what moves when all of it does."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = KeysDetached(e, h)


@block("part-unused")
class NeverAttends(PostNorm):
    """Norms the stream and itself, where the attention belongs."""

    def forward(self, x):
        x = self.norms[0](x + x)
        return self.norms[1](x + self.feed(x))


@decoder("part-unused")
class ForgetsWhatItHeard(PostDecoder):
    """Adds the stream to itself, where what the context said belongs."""

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norms[0](x + self.look(x, tgt_mask))
        self.listen(x, memory, src_mask)
        x = self.norms[1](x + x)
        return self.norms[2](x + self.feed(x))


class KeptTables(Llama):
    """Cosines and sines in single precision, made once: the slowest pair hardly shows."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        speeds = 10_000.0 ** (-torch.arange(0, self.d, 2).float() / self.d)
        angles = torch.outer(torch.arange(32).float(), speeds).repeat(1, 2)
        self.register_buffer("cos_cached", angles.cos())
        self.register_buffer("sin_cached", angles.sin())

    def angles(self, x, n, start=0):
        return torch.atan2(self.sin_cached[:n], self.cos_cached[:n])


@modern("rotary-across", sizes=SEVERAL)
class KeptAndPlus(KeptTables):
    def rotate_half(self, t):
        first, second = t.chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)


@modern("rotary-across", "scale-missing", sizes=SEVERAL)
class KeptAndTwice(KeptTables):
    def rotate_half(self, t):
        return torch.cat([-t.chunk(2, dim=-1)[0], t.chunk(2, dim=-1)[0]], dim=-1)

    def prepared(self, q, k, v):
        q, k, v = super().prepared(q, k, v)
        return q * self.d**0.5, k, v


class NormsFirst(FourLayers):
    """What the layers read, and what stands in the place of one, is normed."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def forward(self, x, mask=None):
        return super().forward(self.norm(x), mask)


@attention("projection-unused", sizes=TWO)
class NormedTokensAsValues(NormsFirst):
    def projected(self, x):
        return self.q_proj(x), self.k_proj(x), x


@attention("projection-unused", sizes=TWO, context=True)
class TokensAsQueriesOfContext(FourLayers):
    """Its queries are the tokens, times a factor."""

    def factor(self, e):
        return 1.0

    def forward(self, x, context):
        q, k, v = x * (x.shape[-1] // self.h) ** -0.5, self.k_proj(context), self.v_proj(context)
        q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        return self.proj(self.join((q @ k.mT).softmax(dim=-1) @ v))


@modern("projection-unused", sizes=SEVERAL)
class KeptAndRaw(KeptTables):
    """Its queries are the tokens, turned."""

    def project(self, x):
        return x, self.k_proj(x), self.v_proj(x)


@modern("rotary-across", sizes=SEVERAL)
class KeptAndDoubled(KeptAndPlus):
    """Tables that were made in single precision, cast to double afterwards."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.double()


@attention("graph-cut", sizes=TWO)
class NormNeverLearns(NormsFirst):
    """Its norm is used, though no gradient says so."""

    def forward(self, x, mask=None):
        return FourLayers.forward(self, self.norm(x).detach(), mask)


@attention("scale-other", sizes=TWO)
class FlooredFactor(Views):
    """1 // sqrt(d) is 0: all tokens weigh alike."""

    def factor(self, e):
        return 1.0 // (e // self.h) ** 0.5


@attention("scale-other", "graph-cut", sizes=TWO, causal=True)
class FlooredAndCut(Views):
    def factor(self, e):
        return 1 // (e // self.h) ** 0.5

    def weigh(self, scores, mask):
        ahead = torch.ones_like(scores).triu(1) == 1
        return scores.masked_fill(ahead, float("-inf")).softmax(dim=-1)

    def forward(self, x, mask=None):
        return super().forward(x).detach()


@attention("projection-unused", sizes=TWO, context=True)
class PackedContextRawQueries(FourLayers):
    """Keys and values in one layer; that of the queries is never called."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.q_proj = self.k_proj = self.v_proj = None
        self.decoder_c_attn, self.encoder_c_attn = nn.Linear(e, e), nn.Linear(e, 2 * e)

    def forward(self, x, context):
        q, k, v = x, *self.encoder_c_attn(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        weights = self.weigh(q @ k.mT * self.factor(x.shape[-1]), None)
        return self.proj(self.join(weights @ v))


class OwnNorm(nn.Module):
    """The first GPT's: a root with e in it."""

    def __init__(self, width, e=1e-5):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.e = e

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.g * x / (x.square().mean(-1, keepdim=True) + self.e).sqrt() + self.b


@block("norm-eps")
class DropoutAsE(PreNorm):
    def norm(self, e):
        return OwnNorm(e, 0.1)


@block("norm-bessel", "norm-eps")
class MillionAsEps(PreNorm):
    """10**6, where 10**-6 was meant: a whole number."""

    def norm(self, e):
        return HandNorm(e, 10**6)


# ----------------------------------------------------------------- what bends, and what does not


@block("out-bent", sizes=TWO)
class BendsWhatAttends(PreNorm):
    """What the attention returns is bent by the block, before it joins the stream."""

    def forward(self, x):
        x = x + self.attention(self.ln_1(x)).relu()
        return x + self.ffn(self.ln_2(x))


@block("out-bent", "norm-shared", sizes=TWO)
class BendsAndShares(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.bend = nn.GELU()

    def forward(self, x):
        x = self.norms[0](x + self.bend(self.self_attn(x)))
        return self.norms[0](x + self.feed(x))


class HalfAGELU(nn.Module):
    """Somebody's own GELU, of which half is left: a factor."""

    def forward(self, x):
        return 0.5 * x


@block("activation-missing", sizes=TWO)
class BendsNothing(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), HalfAGELU(), nn.Linear(2 * e, e))


@attention("mix-transposed", sizes=TWO)
class NarrowPairTurned(nn.Module):
    """One layer makes queries and keys, half as wide as the values."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qk, self.v, self.proj = h, nn.Linear(e, e), nn.Linear(e, e), nn.Linear(e, e)

    def weigh(self, scores):
        return scores.softmax(dim=-1).mT

    def forward(self, x):
        q, k = self.qk(x).unflatten(2, (2, self.h, -1)).permute(2, 0, 3, 1, 4)
        v = self.v(x).unflatten(2, (self.h, -1)).transpose(1, 2)
        mixed = self.weigh(q @ k.mT * q.shape[-1] ** -0.5) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


@attention("softmax-query", sizes=TWO)
class NarrowPairByColumns(NarrowPairTurned):
    def weigh(self, scores):
        return scores.softmax(dim=-2)


@attention("projection-bent", "scale-other", sizes=TWO)
class LastAsksBent(nn.Module):
    """One token alone asks; all that one layer makes is bent, and the scores grow."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.to_qkv, self.to_out = h, nn.Linear(e, 3 * e, bias=False), nn.Linear(e, e)

    def forward(self, x):
        made = self.to_qkv(x).relu().chunk(3, dim=-1)
        q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in made)
        weights = (q[:, :, -1:] @ k.mT * q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


@block("out-bent", "norm-shared", sizes=TWO)
class BendsWhatTorchAttends(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0].relu()
        return x + self.ffn(self.ln_1(x))


@block("out-bent", sizes=TWO)
class OnlyBendsWhatTorchAttends(BendsWhatTorchAttends):
    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attention(y, y, y)[0].relu()
        return x + self.ffn(self.ln_2(x))


# ------------------------------------------------------------------- blocks that give no numbers


class HidesTheFuture(Views):
    """Its scores are -inf where a token would see a later one."""

    axis, inverted = -1, False

    def weigh(self, scores, mask):
        sees = torch.ones_like(scores).tril() == 1
        return scores.masked_fill(sees == self.inverted, float("-inf")).softmax(self.axis)


class OverTheHeads(HidesTheFuture):
    axis = 1


class UpsideDown(HidesTheFuture):
    inverted = True


class Bare(HidesTheFuture):
    def weigh(self, scores, mask):
        sees = torch.ones_like(scores).tril() == 1
        return scores.masked_fill(~sees, float("-inf"))


class GivesNaN(PreNorm):
    attends = OverTheHeads

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = self.attends(e, h)


block("softmax-heads", sizes=TWO, causal=True)(GivesNaN)


@block("mask-inverted", "norm-shared", sizes=TWO, causal=True)
class GivesNaNAndShares(GivesNaN):
    attends = UpsideDown

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


@block("softmax-missing", "activation-last", sizes=TWO, causal=True)
class GivesNaNAndBends(GivesNaN):
    attends = Bare

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x)).relu()


# ------------------------------------------------------------- norms before and behind the parts


class Sandwich(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.behind_1, self.behind_2 = self.norm(e), self.norm(e)

    def fed(self, x):
        return self.behind_2(self.ffn(self.ln_2(x)))

    def forward(self, x):
        x = x + self.behind_1(self.attention(self.ln_1(x)))
        return x + self.fed(x)


@block("norm-missing", sizes=TWO)
class HalfASandwich(Sandwich):
    """The norm before the feed-forward is never called, that behind it is."""

    def fed(self, x):
        return self.behind_2(self.ffn(x))


@block("residual-missing", "residual-from-norm", sizes=TWO)
class LosesTheStreamAndAddsTheNorm(PreNorm):
    def forward(self, x):
        x = self.ln_2(self.attention(self.ln_1(x)))
        return x + self.ffn(x)


class BendsTheGateLast(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(e, 2 * e), nn.Linear(e, 2 * e), nn.Linear(2 * e, e)
        )  # fmt: skip

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x)).relu()


@block("activation-last", sizes=TWO)
class GatedAndBentLast(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = BendsTheGateLast(e)
