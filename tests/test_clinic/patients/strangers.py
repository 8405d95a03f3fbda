"""What strangers' code does: styles whose verdict was once wrong, and must not be again."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from patients.attention import Loops, LoopsUnscaled, Views, ViewsUnscaled
from patients.bank import SIZES, attention
from patients.masks import padding
from patients.unknown import Rotary, Sines, unknown

# ------------------------------------- nothing to see: what was compared could not have differed


@unknown
class RotaryZeroed(Rotary):
    """An output layer that starts at zero, beside tables of angles."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("cos", torch.randn(32, e // h))
        nn.init.zeros_(self.proj.weight)


@unknown
class SinesZeroed(Sines):
    """No softmax and no scale; zeros behind, and a triangle that nobody uses."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("tril", torch.ones(16, 16).tril())
        for parameter in self.proj.parameters():
            nn.init.zeros_(parameter)

    def factor(self, e):
        return 1.0


@unknown
class NotNumbers(Rotary):
    """Memory that nobody filled: NaN in, NaN out."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("distances", torch.randn(9, e // h))
        for parameter in self.parameters():
            nn.init.constant_(parameter, math.nan)


@unknown
class TableNotNumbers(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("bias", torch.full((4, 4), math.nan))

    def weigh(self, scores, mask):
        return (scores + self.bias.sum()).softmax(dim=-1)


# -------------------------------------------------------------- a scale that is a tensor of one


@attention()
class RootOfFloatTensor(Views):
    """A tensor of one number in single precision: off by 6e-8."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = torch.sqrt(torch.FloatTensor([e // h]))

    def weigh(self, scores, mask):
        return super().weigh(scores / self.scale, mask)

    def factor(self, e):
        return 1.0


@attention("scale-embed", sizes=SIZES[:4])
class RootOfFloatTensorEmbed(RootOfFloatTensor):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = torch.sqrt(torch.FloatTensor([e]))


@attention()
class RootOfTensor(LoopsUnscaled):
    def score(self, q, k):
        return super().score(q, k) / torch.sqrt(torch.tensor(self.width))


@attention("scale-embed", sizes=SIZES[:4])
class RootOfTensorEmbed(LoopsUnscaled):
    def score(self, q, k):
        return super().score(q, k) / torch.sqrt(torch.tensor(self.toqueries.in_features))


@attention()
class RootInBuffer(RootOfFloatTensor):
    def __init__(self, e, h):
        super().__init__(e, h)
        del self.scale
        self.register_buffer("scale", torch.tensor(e // h).sqrt())


@attention("scale-embed", sizes=SIZES[:4])
class RootInBufferEmbed(RootOfFloatTensor):
    def __init__(self, e, h):
        super().__init__(e, h)
        del self.scale
        self.register_buffer("scale", torch.tensor(e).sqrt())


@attention()
class LearnedScale(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = nn.Parameter(torch.tensor((e // h) ** -0.5))

    def score(self, q, k):
        return q @ k.mT * self.scale


@attention("scale-other", remark=True)
class LearnedTemperature(Loops):
    """Starts at 0.3, and 0.3 is what a report may quote; it may learn to be any other."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.temperature = nn.Parameter(torch.full((1,), 0.3))

    def score(self, q, k):
        return q @ k.mT * self.temperature


@attention("scale-other", sizes=SIZES[:2])
class FrozenTemperature(LearnedTemperature):
    """Nothing learns it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.temperature.requires_grad_(False)


@attention("softmax-query", sizes=SIZES[:2])
class LearnedTemperatureSoftmaxQuery(LearnedTemperature):
    def normalise(self, all_scores, allow):
        return [scores.softmax(dim=1) for scores in all_scores]


@attention("scale-other", remark=True, sizes=SIZES[:2])
class LearnedTemperatures(nn.Module):
    """Each head is a module, and has one of its own, which divides."""

    class Head(nn.Module):
        def __init__(self, e, d):
            super().__init__()
            self.queries, self.keys, self.values = (nn.Linear(e, d) for _ in range(3))
            self.cooling = nn.Parameter(torch.tensor(0.5 * d**0.5))

        def forward(self, x):
            scores = self.queries(x) @ self.keys(x).mT / self.cooling
            return scores.softmax(dim=-1) @ self.values(x)

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([self.Head(e, e // h) for _ in range(h)])
        self.joined = nn.Linear(e, e)

    def forward(self, x):
        return self.joined(torch.cat([head(x) for head in self.heads], dim=-1))


@attention("scale-missing", sizes=SIZES[:2])
class GainBeforeAll(ViewsUnscaled):
    """A learned number that multiplies the tokens is no temperature: values follow it, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x, mask=None):
        return super().forward(x * self.gain, mask)


@attention("scale-missing", remark=True)
class LearnedScaleOfOne(ViewsUnscaled):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.temperature = nn.Parameter(torch.ones(()))

    def weigh(self, scores, mask):
        return super().weigh(scores * self.temperature, mask)


@attention()
class LearnedBesideOne(Loops):
    """Begins at the root exactly; 0 says nothing of what it adds to."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.warmth = nn.Parameter(torch.zeros(()))

    def score(self, q, k):
        return (1.0 + self.warmth) * (q @ k.mT) / q.shape[-1] ** 0.5


@attention("softmax-query", sizes=SIZES[:2])
class LearnedBesideOneSoftmaxQuery(LearnedBesideOne):
    def normalise(self, all_scores, allow):
        return [scores.softmax(dim=1) for scores in all_scores]


@attention("graph-cut", sizes=SIZES[:2])
class LearnedBesideOneAsNumber(Loops):
    """A number of Python, which has no gradient."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.warmth = nn.Parameter(torch.zeros(()))

    def score(self, q, k):
        return (1.0 + self.warmth.item()) * (q @ k.mT) / q.shape[-1] ** 0.5


@attention(sizes=SIZES[:2])
class FrozenLogarithm(ViewsUnscaled):
    """A power of e that nothing learns, and the root beside."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.log_heat = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.root = (e // h) ** 0.5

    def weigh(self, scores, mask):
        return super().weigh(scores / self.root * torch.exp(self.log_heat), mask)


@attention("scale-other", sizes=SIZES[:2])
class FrozenSoftplus(ViewsUnscaled):
    """0.69 at any width, and nothing learns it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.raw = nn.Parameter(torch.zeros(1), requires_grad=False)

    def weigh(self, scores, mask):
        return super().weigh(scores * torch.log1p(self.raw.exp()), mask)


@attention("scale-other", remark=True, sizes=SIZES[:2])
class LearnedSoftplus(FrozenSoftplus):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.raw.requires_grad_(True)


@attention(sizes=SIZES[:2])
class TemperatureOfEachHead(ViewsUnscaled):
    """Divides; all begin at the root."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.tau = nn.Parameter(torch.full((1, h, 1, 1), (e // h) ** 0.5))

    def weigh(self, scores, mask):
        return super().weigh(scores / self.tau, mask)


@attention("scale-missing", remark=True, sizes=SIZES[:2])
class TemperatureOfEachHeadFromOne(TemperatureOfEachHead):
    def __init__(self, e, h):
        super().__init__(e, h)
        nn.init.ones_(self.tau)


@attention("value-from-key", sizes=SIZES[:2])
class TemperatureOfEachHeadValueFromKey(TemperatureOfEachHead):
    def heads(self, x):
        q, k, _ = super().heads(x)
        return q, k, k


@attention(sizes=SIZES[:2])
class GainOfEachNumber(ViewsUnscaled):
    """Every number of a query has its own factor, and keys have none."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.per_dim = nn.Parameter(torch.full((e // h,), (e // h) ** -0.5))

    def heads(self, x):
        q, k, v = super().heads(x)
        return q * self.per_dim, k, v


# ------------------------------------------------------------- masks in the caller's convention


def ones_and_zeros(seed: int) -> Tensor:
    """A float triangle, as a loop over batches often makes it."""
    return torch.tril(torch.ones(6, 6))


@attention(mask=ones_and_zeros)
class WhereMaskIsZero(Views):
    def weigh(self, scores, mask):
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        return scores.softmax(-1)


@attention(mask=lambda seed: torch.tril(torch.ones(6, 6))[None, None])
class WhereMaskIsOne(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else torch.where(allow[0] == 1, scores, -math.inf)


@attention("mask-inverted", mask=ones_and_zeros)
class WhereMaskIsOneBlocked(Views):
    def weigh(self, scores, mask):
        if mask is not None:
            scores = scores.masked_fill(mask == 1, -math.inf)
        return scores.softmax(-1)


@attention("mask-inverted", mask=lambda seed: padding(seed).float())
class WhereMaskIsOneBlockedByHead(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(allow[:, 0] > 0, -math.inf)


def padded(seed: int) -> Tensor:
    return torch.arange(6) >= torch.tensor([[4], [6]])


class Padded(Views):
    """True is padding, as in PyTorch: its name says so."""

    def forward(self, x, key_padding_mask=None):
        blocked = key_padding_mask
        return super().forward(x, None if blocked is None else ~blocked[:, None, None, :])


class BlockedWhereTrue(Loops):
    """True is blocked, and nothing says so."""

    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(allow[:, None], -math.inf)


attention(mask=padded)(Padded)
attention(mask=padded, true_means="block")(BlockedWhereTrue)
attention(mask=lambda seed: ~padded(seed))(
    type(
        "PaddedTheOtherWay",
        (Padded,),
        {
            "forward": lambda self, x, key_padding_mask=None: Padded.forward(
                self, x, None if key_padding_mask is None else ~key_padding_mask
            )
        },
    )
)
attention("mask-inverted", mask=padded, true_means="attend")(
    type("PaddedSaidOtherwise", (Padded,), {})
)
attention("mask-dropped", mask=padded)(
    type(
        "PaddedDropped",
        (Padded,),
        {"forward": lambda self, x, key_padding_mask=None: Views.forward(self, x)},
    )
)


@attention("mask-fp16", mask=padding, remark=True)
class FilledByNumber(Views):
    """-1e9 is as good as -inf in single precision."""

    def weigh(self, scores, mask):
        return F.softmax(scores if mask is None else scores.masked_fill(~mask, -1e9), dim=-1)


@attention("mask-fp16", mask=padding)
class FilledByNumberInHalf(FilledByNumber):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.half()


# ----------------------------------------------------------- tokens first, output layer elsewhere


@attention()
class TimeFirst(nn.Module):
    """Multi-headed attention. Input shape: Time x Batch x Channel."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(e, e) for _ in range(3))
        self.out_proj = nn.Linear(e, e)

    def forward(self, query, key, value):
        q, k, v = (
            rearrange(layer(t), "n b (h d) -> b h n d", h=self.heads)
            for layer, t in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(rearrange(mixed, "b h n d -> n b (h d)")), None


@attention("scale-embed", sizes=SIZES[:4])
class TimeFirstByNames(Loops):
    """Says it by the names of its sizes only."""

    def forward(self, tokens):
        tgt_len, bsz, embed_dim = tokens.size()
        q, k, v = (
            t.contiguous().view(tgt_len, bsz * self.num_heads, self.width).transpose(0, 1)
            for t in self.projected(tokens)
        )
        weights = torch.bmm(q, k.transpose(1, 2)).div(embed_dim**0.5).softmax(-1)
        mixed = torch.bmm(weights, v).transpose(0, 1).contiguous()
        return self.unifyheads(mixed.view(tgt_len, bsz, embed_dim))


@attention("out-missing", remark=True)
@attention(out_proj=False)
class OutElsewhere(nn.Module):
    """Queries, keys and values; the block around it has the fourth layer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(dim, dim) for _ in range(3))
        self.heads = heads

    def forward(self, x):
        q, k, v = self.proj_q(x), self.proj_k(x), self.proj_v(x)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        return rearrange(weights @ v, "b h n d -> b n (h d)")
