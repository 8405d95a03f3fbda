"""Blocks whose parts are called in unusual ways, or are not all understood."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.attention import Views, ViewsNoOut, ViewsScaledByEmbed, ViewsSoftmaxQuery
from patients.blocks import PostNorm, PreNorm, block
from patients.decoders import CAUSAL, PADDED, PostDecoder, PreDecoder, decoder
from patients.wirings import ONE, TWO
from utils.masking import padding_mask

# ------------------------------------------------------------------ what nothing ever uses


@block("mask-dropped", sizes=TWO)
class TakesAMask(PreNorm):
    """The mask ends in the block."""

    def forward(self, x, attn_mask=None):
        return super().forward(x)


@block("mask-dropped", "norm-shared", sizes=TWO)
class AnnotatedMask(PostNorm):
    """A colon stands where = was meant: the line is an annotation, which nobody runs."""

    def forward(self, x, mask=None):
        y = x.mean(dim=-1)
        if mask is not None:
            y: torch.masked_fill(y, mask == 0, 0.0)
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[0](x + self.feed(x))


@decoder("context-mask-dropped", sizes=TWO)
class TakesTwoMasks(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        return super().forward(x, context, mask)


@decoder("cross-ignored", sizes=TWO)
class TakesAContext(PostNorm):
    """It has one attention; the context ends in the block."""

    def forward(self, x, context):
        return super().forward(x)


class ValuesFirst(nn.Module):
    """forward(V, K, Q), for texts of one length."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(e, e, bias=False) for _ in range(4))

    def forward(self, V, K, Q, mask=None):
        layers = ((self.W_Q, Q), (self.W_K, K), (self.W_V, V))
        q, k, v = (one(t).unflatten(2, (self.h, -1)).transpose(1, 2) for one, t in layers)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.W_O((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LayersBefore(nn.Module):
    """Queries, keys and values are made twice: by the block, and by its attention."""

    def __init__(self, e, h):
        super().__init__()
        self.make_q, self.make_k, self.make_v = (nn.Linear(e, e) for _ in range(3))
        self.own, self.cross = ValuesFirst(e, h), ValuesFirst(e, h)
        self.feed = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))
        self.norms = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))

    def sees(self, n):
        return torch.ones(n, n).tril()

    def forward(self, x, context):
        made = self.make_v(x), self.make_k(x), self.make_q(x)
        x = self.norms[0](x + self.own(*made, self.sees(x.shape[1])))
        x = self.norms[1](x + self.cross(context, context, x))
        return self.norms[2](x + self.feed(x))


@decoder("mask-inverted", sizes=TWO, causal=True)
class LayersBeforeSeeTheFuture(LayersBefore):
    def sees(self, n):
        return torch.ones(n, n).triu(1)


@block(sizes=TWO)
class OpensWithAFlag(PreNorm):
    """Nobody uses its mask until a flag says so."""

    def __init__(self, e, h, hides=False):
        super().__init__(e, h)
        self.hides = hides

    def forward(self, x, mask=None):
        x = x + self.attention(self.ln_1(x), mask if self.hides else None)
        return x + self.ffn(self.ln_2(x))


@block("dropout-unused", sizes=TWO)
class HoldsADropout(PreNorm):
    def __init__(self, e, h, dropout=0.2):
        super().__init__(e, h)
        self.dropout = nn.Dropout(dropout)


@block("dropout-unused", "residual-missing", sizes=TWO)
class HoldsTwoDropouts(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.drops = nn.ModuleList([nn.Dropout(0.1), nn.Dropout(0.1)])

    def forward(self, x):
        x = self.norms[0](self.self_attn(x))
        return self.norms[1](x + self.feed(x))


@block("out-missing", sizes=TWO)
class AddsItsHeads(PreNorm):
    """What the heads mixed is added to the stream: no output layer stands elsewhere."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsNoOut(e, h)


@block("scale-embed", "out-missing", "residual-missing", sizes=TWO)
class KeepsItsHeads(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = ViewsScaledByEmbed(e, h)
        self.self_attn.proj = nn.Identity()

    def forward(self, x):
        x = self.norms[0](self.self_attn(x))
        return self.norms[1](x + self.feed(x))


# --------------------------------------------- masks of blocks whose connections are wrong, too


@decoder(
    *("norm-shared", "activation-missing", "context-mask-dropped"),
    sizes=TWO,
    mask=CAUSAL[None, None],
    context_mask=PADDED,
)
class OneNormAndOneMask(PostDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([self.norms[0]] * 3)

    def feed(self, x):
        return self.w_2(self.w_1(x))

    def listen(self, x, memory, mask):
        return super().listen(x, memory, None)


@decoder("mask-inverted", "norm-shared", "norm-missing", sizes=TWO, context_mask=PADDED)
class NoNormAndTheOtherMask(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(x, mask)
        hides = None if context_mask is None else ~context_mask
        x = x + self.cross(self.ln_2(x), context, hides)
        return x + self.ffn(self.ln_2(x))


class AddedToColumns(ViewsSoftmaxQuery):
    """What is added to all scores of a key cancels, where these are weighed together."""

    def weigh(self, scores, mask):
        return super().weigh(scores if mask is None else scores + mask, None)


@block(
    "softmax-query",
    sizes=TWO,
    mask=padding_mask(torch.tensor([4, 6]), 6),
    call=lambda block, x, mask: block(x, (1.0 - mask.to(x)) * -1e4),
)
class CancelsItsMask(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = AddedToColumns(e, h)

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.ffn(self.ln_2(x))


class JoinsOtherAxes(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.transpose(0, 1).reshape(b, n, h * d)


@decoder("merge-batch-head", "norm-missing", sizes=TWO, mask=CAUSAL, context_mask=PADDED)
class SwapsItsHeads(PreDecoder):
    """Samples get each other's heads, so that no mask can be judged by what it does."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = JoinsOtherAxes(e, h)

    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        x = x + self.cross(self.ln_2(x), context, context_mask)
        return x + self.ffn(x)


class JoinsAsItLies(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.reshape(b, n, h * d)


@block("merge-no-transpose", "norm-missing", sizes=TWO, mask=CAUSAL)
@block("merge-no-transpose", "norm-missing", sizes=TWO)
class HidesTheFutureTwice(PreNorm):
    """Its own mask hides later tokens, whatever is mixed behind it: another one adds nothing."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = JoinsAsItLies(e, h)

    def forward(self, x, attn_mask=None):
        later = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        x = x + self.attention(self.ln_1(x), later)
        return x + self.ffn(x)


# ------------------------------------------------- parts that stand in several modules, or in none


class Projects(nn.Module):
    """Queries, keys and values by heads."""

    def __init__(self, e, h):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(e, e) for _ in range(3)])
        self.h = h

    def forward(self, x):
        return [layer(x).unflatten(2, (self.h, -1)).transpose(1, 2) for layer in self.layers]


class Weighs(nn.Module):
    """Mixes heads and joins them."""

    def __init__(self, e):
        super().__init__()
        self.fc = nn.Linear(e, e)

    def forward(self, q, k, v):
        made = F.scaled_dot_product_attention(q, k, v)
        return self.fc(made.transpose(1, 2).flatten(2))


@block(sizes=TWO)
class InTwoModules(PostNorm):
    """One module makes the heads, another one weighs them."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.heads, self.mix, self.self_attn = Projects(e, h), Weighs(e), nn.Identity()

    def forward(self, x):
        x = self.norms[0](x + self.mix(*self.heads(x)))
        return self.norms[1](x + self.feed(x))


@block("norm-shared", sizes=TWO)
class InTwoModulesShared(InTwoModules):
    def forward(self, x):
        x = self.norms[0](x + self.mix(*self.heads(x)))
        return self.norms[0](x + self.feed(x))


class NormedFlat(Views):
    """Queries and keys are normed before they are split, by norms with names of their own."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.h = h
        self.ln_a, self.ln_b = nn.LayerNorm(e), nn.LayerNorm(e)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        parts = [t.unflatten(2, (self.h, -1)).transpose(1, 2)
                 for t in (self.ln_a(q), self.ln_b(k), v)]  # fmt: skip
        return self.proj(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


@block("residual-missing", sizes=TWO)
class NormsInside(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = NormedFlat(e, h)

    def forward(self, x):
        x = self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("norm-shared", sizes=TWO)
class CallsForward(PreNorm):
    """Its parts are called by their forward, past every hook."""

    def forward(self, x):
        x = x + self.attention.forward(self.ln_1.forward(x))
        return x + self.ffn.forward(self.ln_1.forward(x))


# --------------------------------------------------------- one part is not understood, others are


class Unheard(Views):
    """Weights that no known attention has."""

    def forward(self, x):
        y = super().forward(x)
        return y + (y * y.cumsum(dim=1)).sin()


@block("norm-shared", sizes=ONE)
class UnheardAndShared(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = Unheard(e, h)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


class OwnFeed(nn.Module):
    """A feed-forward that no one knows."""

    def __init__(self, e):
        super().__init__()
        self.up, self.down = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

    def forward(self, x):
        y = self.up(x)
        return self.down(y.relu() * y.mean(dim=-1, keepdim=True).cos())


@decoder("part-shared", sizes=ONE)
class SharedBesideOwnFeed(PostDecoder):
    """One attention for both, and a feed-forward that nothing explains."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.src_attn, self.w_1, self.w_2 = self.self_attn, OwnFeed(e), nn.Identity()

    def feed(self, x):
        return self.w_1(x)


# ---------------------------------------------------------------------------- feed-forwards


class Convolves(nn.Module):
    """Two convolutions, and a residual of its own, as in SASRec."""

    def __init__(self, e, width=1):
        super().__init__()
        self.up = nn.Conv1d(e, e, width, padding=width // 2)
        self.down = nn.Conv1d(e, e, 1)

    def made(self, x):
        return self.down(self.up(x.mT).relu()).mT

    def forward(self, x):
        return x + self.made(x)


@block("residual-again", sizes=TWO)
class ConvolvesAndAdds(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.w_1, self.w_2 = Convolves(e), nn.Identity()

    def feed(self, x):
        return self.w_1(x)


@block("residual-from-norm", sizes=TWO)
class ConvolvesTheNorm(PreNorm):
    """The feed-forward adds what the norm returned, and nobody adds the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = Convolves(e)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return self.ffn(self.ln_2(x))


@block(sizes=TWO)
class ConvolvesNeighbours(ConvolvesAndAdds):
    """FastSpeech: three neighbours are mixed."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.w_1 = Convolves(e, 3)

    def feed(self, x):
        return self.w_1.made(x)


class GatedAndNormed(nn.Module):
    """A norm stands behind the gate."""

    def __init__(self, e, bend=F.silu):
        super().__init__()
        self.gate, self.value, self.down = (
            nn.Linear(e, 2 * e), nn.Linear(e, 2 * e), nn.Linear(2 * e, e)
        )  # fmt: skip
        self.norm, self.bend = nn.LayerNorm(2 * e), bend

    def forward(self, x):
        return self.down(self.norm(self.bend(self.gate(x)) * self.value(x)))


@block(sizes=TWO)
class NormsTheGate(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = GatedAndNormed(e)


@block("activation-last", sizes=TWO)
class LeaksLast(PreNorm):
    """Another activation between the layers than behind them."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(
            nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e), nn.LeakyReLU()
        )  # fmt: skip


@block(sizes=TWO)
class NeedsNoNorm(PreNorm):
    """ModernBERT's first layer: its tokens are normalised already."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_1 = nn.Identity()


@block("activation-missing", sizes=TWO)
class FeedsByOneLayer(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Linear(e, e)


@block("part-shared", sizes=TWO)
class FeedsOnItself(PreNorm):
    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ffn(self.ln_2(x)))


class Squared(nn.Module):
    """Squared ReLU, of Primer and Nemotron."""

    def forward(self, x):
        return x.relu().square()


@block(sizes=TWO)
class BendsBySquares(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), Squared(), nn.Linear(2 * e, e))


@block("activation-last", sizes=TWO)
class BendsBySquaresLast(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(
            nn.Linear(e, 2 * e), Squared(), nn.Linear(2 * e, e), nn.LeakyReLU()
        )  # fmt: skip


@block(sizes=TWO)
class BendsAsLearned(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e), nn.PReLU(), nn.Linear(2 * e, e))


# ------------------------------------------------------------------------------ who asks whom


@decoder("cross-queries", "cross-values", sizes=TWO)
class MemoryAsksItself(PostDecoder):
    """attention(memory, memory, x), where both are of the same length."""

    def listen(self, x, memory, mask):
        return self.src_attn(memory, memory, x, mask)[0]


@decoder("cross-queries", "cross-values", "residual-missing", sizes=TWO)
class MemoryAsksItselfAlone(MemoryAsksItself):
    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        x = self.norms[0](x + self.look(x, tgt_mask))
        x = self.norms[1](self.listen(x, memory, src_mask))
        return self.norms[2](x + self.feed(x))


class DropsAlways(Views):
    """A dropout that is made anew in each call: it always trains."""

    def weigh(self, scores, mask):
        return nn.Dropout(0.5)(scores.softmax(dim=-1))


@block("dropout-eval", "norm-shared", sizes=TWO)
class DropsAndShares(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = DropsAlways(e, h)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


class NormedHead(nn.Module):
    """One head, which begins with a norm."""

    def __init__(self, e, d):
        super().__init__()
        self.ln, self.qkv = nn.LayerNorm(e), nn.Linear(e, 3 * d)

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.qkv(self.ln(x)).chunk(3, dim=-1))


class NormedHeads(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([NormedHead(e, e // h) for _ in range(h)])
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


@block("norm-doubled", sizes=TWO)
class NormsInEachHead(PreNorm):
    """The block norms, and so does each of its heads."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = NormedHeads(e, h)


@block(sizes=ONE)
class NormsInHeadsAlone(NormsInEachHead):
    def forward(self, x):
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


# ---------------------------------------------------------------------------------- images


class OfImages(PreNorm):
    """Takes and returns images, and works on rows of tokens."""

    def forward(self, x):
        rows = super().forward(x.flatten(2).mT)
        return rows.mT.reshape(x.shape)


block(sizes=TWO)(OfImages)


@block("residual-missing", sizes=TWO)
class AllInImages(nn.Module):
    """Convolutions of width 1 and group norms; what the feed-forward returns stands alone."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Conv2d(e, 3 * e, 1), nn.Conv2d(e, e, 1)
        self.norm1, self.norm2 = nn.GroupNorm(1, e), nn.GroupNorm(1, e)
        self.mlp = nn.Sequential(nn.Conv2d(e, 2 * e, 1), nn.SiLU(), nn.Conv2d(2 * e, e, 1))

    def attend(self, x):
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, self.h, -1)).transpose(-1, -2).unbind(1)
        made = F.scaled_dot_product_attention(q, k, v)
        return self.proj(made.transpose(-1, -2).reshape(x.shape))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return self.mlp(self.norm2(x))


class Mixes(nn.Module):
    """SegFormer's feed-forward: a convolution over the image between its layers."""

    def __init__(self, e):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)
        self.dwconv = nn.Conv2d(2 * e, 2 * e, 3, padding=1, groups=2 * e)

    def forward(self, x, rows, columns):
        y = self.fc1(x).mT
        y = self.dwconv(y.unflatten(2, (rows, columns))).flatten(2).mT
        return self.fc2(F.gelu(y))


@block(sizes=TWO)
class MixesNeighbours(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = Mixes(e)

    def forward(self, x, H, W):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x), H, W)


# ---------------------------------------------------------------- layers that are no modules


class Bare(nn.Module):
    """Parameters of three axes, and einsum."""

    def __init__(self, e, last=False):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(1, *s) / 4) for s in ((e, 2 * e), (2 * e, e)))
        self.last = last

    def forward(self, x):
        y = torch.einsum("bni,kij->bnj", x, self.a).relu()
        y = torch.einsum("bnj,kji->bni", y, self.b)
        return y.relu() if self.last else y


@block(sizes=TWO)
class BareFeed(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = Bare(e)


@block("activation-last", sizes=TWO)
class BareFeedBendsLast(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = Bare(e, last=True)
