"""Mistakes beside steps that no form has: these are said in words, and the mistakes are named."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.bank import SIZES, attention

SOME = SIZES[:3]


class Apart(nn.Module):
    """Queries, keys and values of layers of their own, and an output layer."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.q, self.k, self.v, self.o = (nn.Linear(e, e) for _ in range(4))

    def cut(self, t):
        return t.view(t.shape[0], -1, self.heads, t.shape[2] // self.heads).transpose(1, 2)

    def few(self, t):
        return t

    def behind(self, y):
        return y

    def weights(self, scores, e):
        return (scores * (e // self.heads) ** -0.5).softmax(-1)

    def forward(self, x):
        q, k, v = self.cut(self.q(x)), self.cut(self.few(self.k(x))), self.cut(self.few(self.v(x)))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ v
        return self.behind(self.o(mixed.transpose(1, 2).flatten(2)))


@attention("softmax-query", sizes=SOME)
class BentAtTheEnd(Apart):
    def weights(self, scores, e):
        return (scores * (e // self.heads) ** -0.5).softmax(-2)

    def behind(self, y):
        return F.gelu(y).tanh()


@attention("softmax-query", "dropout-unused", sizes=SOME)
class BentAndNeverDropped(BentAtTheEnd):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.1)


@attention("scale-embed", sizes=SOME)
class ScaledBesideScoresSquared(Apart):
    def weights(self, scores, e):
        scores = scores / e**0.5
        return (scores + 0.1 * scores.sin()).softmax(-1)


@attention("softmax-query", sizes=SOME)
class FewPlaces(Apart):
    """Means of neighbours are asked, as in Linformer, and the softmax is over those who ask."""

    def few(self, t):
        return F.avg_pool1d(t.mT, 2, 1).mT

    def weights(self, scores, e):
        return (scores * (e // self.heads) ** -0.5).softmax(-2)


@attention("scale-embed", "softmax-query", sizes=SOME)
class TwoLayersBehind(Apart):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.last = nn.Linear(e, e)

    def weights(self, scores, e):
        return (scores / e**0.5).softmax(-2)

    def behind(self, y):
        return self.last(F.relu(y))


@attention("projection-shared", "softmax-missing", causal=True, sizes=SOME)
class HiddenWithoutSoftmax(Apart):
    """Nothing is a number but the last token."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.q = self.k

    def weights(self, scores, e):
        ahead = torch.ones_like(scores[0, 0]).triu(1).bool()
        return scores.masked_fill(ahead, -torch.inf) * (e // self.heads) ** -0.5


@attention("softmax-missing", sizes=SOME)
class BareBeforeAnActivation(Apart):
    def weights(self, scores, e):
        return scores * (e // self.heads) ** -0.5

    def behind(self, y):
        return F.gelu(y).tanh()


@attention("mix-transposed", causal=True, sizes=SOME)
class TransposedAndBent(Apart):
    """Its mask lies as it should: the weights are turned over behind it."""

    def weights(self, scores, e):
        ahead = torch.ones_like(scores[0, 0]).triu(1).bool()
        return super().weights(scores.masked_fill(ahead, -torch.inf), e).mT

    def behind(self, y):
        return F.gelu(y).tanh()


@attention("mix-transposed", causal=True, sizes=SIZES[1:2])
class TransposedAndTurned(TransposedAndBent):
    """Rotary positions, in halves."""

    def turned(self, t):
        half = t.shape[-1] // 2
        speeds = 10_000.0 ** (-torch.arange(half).to(t) / half)
        angles = torch.arange(t.shape[2]).to(t)[:, None] * speeds
        cos, sin, first, second = angles.cos(), angles.sin(), t[..., :half], t[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def forward(self, x):
        q, k, v = (self.cut(layer(x)) for layer in (self.q, self.k, self.v))
        mixed = self.weights(self.turned(q) @ self.turned(k).mT, x.shape[2]) @ v
        return self.behind(self.o(mixed.transpose(1, 2).flatten(2)))


@attention("scale-embed", sizes=SOME)
class BySums(Apart):
    """Products are written as multiplications and sums, and a ReLU stands before the output."""

    def forward(self, x):
        q, k, v = (self.cut(layer(x)) for layer in (self.q, self.k, self.v))
        scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1) / x.shape[2] ** 0.5
        mixed = (scores.softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(3)
        return self.o(F.relu(mixed.transpose(1, 2).flatten(2)))


@attention("scale-embed", "projection-unused", sizes=SOME)
class NeverProjected(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.queries, self.keys, self.values = (nn.Linear(e // h, e // h) for _ in range(3))
        self.fc_out = nn.Linear(e, e)

    def forward(self, x):
        t = x.unflatten(2, (self.heads, -1)).transpose(1, 2)
        weights = (t @ t.mT / x.shape[2] ** 0.5).softmax(-1)
        return self.fc_out((weights @ t).transpose(1, 2).flatten(2))


@attention("head-own-slice", "scale-after-softmax", sizes=SOME)
class SlicedAndScaledLate(nn.Module):
    """Each head has narrow layers for its slice; a norm stands before the output layer."""

    def __init__(self, e, h):
        super().__init__()
        self.h, d = h, e // h
        self.q, self.k, self.v = (
            nn.ModuleList(nn.Linear(d, d) for _ in range(h)) for _ in range(3)
        )
        self.norm, self.o = nn.LayerNorm(e), nn.Linear(e, e)

    def forward(self, x):
        made = []
        for t, q, k, v in zip(x.chunk(self.h, -1), self.q, self.k, self.v, strict=True):
            weights = (q(t) @ k(t).mT).softmax(-1) / t.shape[2] ** 0.5
            made.append(weights @ v(t))
        return self.o(self.norm(torch.cat(made, -1)))


@attention("head-own-slice", sizes=SOME)
class SlicedWithSlopes(nn.Module):
    """ALiBi beside it, whose steps are all that a run shows as strange."""

    def __init__(self, e, h):
        super().__init__()
        self.h, d = h, e // h
        self.q, self.k, self.v = (
            nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(h)) for _ in range(3)
        )
        self.out = nn.Linear(e, e)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        slopes = 2.0 ** (-8 * torch.arange(1, self.h + 1) / self.h)
        bias, made = slopes[:, None, None] * -(at[:, None] - at).abs(), []
        for t, q, k, v, own in zip(x.chunk(self.h, -1), self.q, self.k, self.v, bias, strict=True):
            scores = q(t) @ k(t).mT / t.shape[2] ** 0.5 + own
            made.append(scores.softmax(-1) @ v(t))
        return self.out(torch.cat(made, -1))


@attention("norm-missing", sizes=SOME)
class QueriesNormedAlone(nn.Module):
    """One head of keys and values, which are made before the norm; rows of all heads ask it."""

    def __init__(self, e, h):
        super().__init__()
        self.heads, self.norm = h, nn.LayerNorm(e)
        self.to_q, self.to_kv = nn.Linear(e, e), nn.Linear(e, 2 * (e // h))
        self.to_out = nn.Linear(e, e)

    def forward(self, x):
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q = self.to_q(self.norm(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        scores = torch.einsum("bhid,bjd->bhij", q * k.shape[-1] ** -0.5, k)
        mixed = torch.einsum("bhij,bjd->bhid", scores.softmax(-1), v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


@attention("scale-missing", "norm-missing", sizes=SOME)
class KeysNormedAlone(Apart):
    """The name of the tokens is given to what the norm returns, once queries are made."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def weights(self, scores, e):
        return scores.softmax(-1)

    def forward(self, x):
        q, x = self.cut(self.q(x)), self.norm(x)
        mixed = self.weights(q @ self.cut(self.k(x)).mT, x.shape[2]) @ self.cut(self.v(x))
        return self.o(mixed.transpose(1, 2).flatten(2))


@attention("softmax-query", sizes=SOME)
class FewAreNormed(Apart):
    """Means of neighbours are normed, as in PVT: the queries need no norm."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)

    def weights(self, scores, e):
        return (scores * (e // self.heads) ** -0.5).softmax(-2)

    def forward(self, x):
        few = self.norm((x + x.roll(1, 1)) / 2)
        q, k, v = self.cut(self.q(x)), self.cut(self.k(few)), self.cut(self.v(few))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


@attention("scale-embed", "projection-shared", sizes=SOME)
class CalledTwice(Apart):
    """One layer makes queries and keys, in two calls; weights that sum to 1 are divided again."""

    def weights(self, scores, e):
        weights = (scores / e**0.5).clamp(-1e4, 1e4).softmax(-1) + 1e-9
        return weights / weights.sum(-1, keepdim=True)

    def forward(self, x):
        q, k, v = self.cut(self.q(x)), self.cut(self.q(x)), self.cut(self.v(x))
        return self.o((self.weights(q @ k.mT, x.shape[2]) @ v).transpose(1, 2).flatten(2))


@attention("norm-missing", sizes=((64, 4), (48, 3)))
class NormedHeadsOfBareTokens(Apart):
    """Keys and values are made of bare tokens, though heads of queries and keys are normed."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)
        self.q_norm, self.k_norm = nn.LayerNorm(e // h), nn.LayerNorm(e // h)

    def forward(self, x):
        q, k = self.q_norm(self.cut(self.q(self.norm(x)))), self.k_norm(self.cut(self.k(x)))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ self.cut(self.v(x))
        return self.o(mixed.transpose(1, 2).flatten(2))


@attention("scale-embed", "softmax-query", sizes=SOME)
class BothTurnedByAMatrix(Apart):
    """Queries and keys go through one more matrix, the same for both: they share no layer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.register_buffer("turn", torch.linalg.qr(torch.randn(e, e))[0])

    def weights(self, scores, e):
        return (scores / e**0.5).softmax(-2)

    def forward(self, x):
        q, k = (self.cut(layer(x) @ self.turn.to(x)) for layer in (self.q, self.k))
        mixed = self.weights(q @ k.mT, x.shape[2]) @ self.cut(self.v(x))
        return self.o(mixed.transpose(1, 2).flatten(2))


@attention("softmax-missing", "scale-embed", sizes=SOME)
class SoftmaxThrownAway(Apart):
    """What softmax returns has a name of its own, and nothing reads it."""

    def weights(self, scores, e):
        scores = scores / e**0.5
        weights = scores.softmax(-1)
        del weights
        return scores


@attention("value-from-key", "split-no-transpose", sizes=SOME[:2])
class SplitTwice(Apart):
    """Heads of keys are taken for tokens and split once more: these are the values."""

    def forward(self, x):
        q, k = self.cut(self.q(x)), self.cut(self.k(x))
        v = k.reshape(x.shape[0], -1, self.heads, k.shape[3]).transpose(1, 2)
        return self.o((self.weights(q @ k.mT, x.shape[2]) @ v).transpose(1, 2).flatten(2))


@attention("split-no-transpose", "merge-no-transpose", sizes=SOME[:2])
class MatricesAndATriangle(nn.Module):
    """Plain matrices by einsum, scores cut by tril before the mask, and the stream added inside."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = h
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(e, e)) for _ in range(4))

    def forward(self, x):
        made = (torch.einsum("bne,eo->bno", x, w) for w in (self.q, self.k, self.v))
        q, k, v = (t.reshape(x.shape[0], self.heads, x.shape[1], -1) for t in made)
        scores = torch.einsum("...nd,...md->...nm", q, k)
        hidden = torch.ones_like(scores).triu(1).bool()
        scores = scores.tril() + torch.zeros_like(scores).masked_fill(hidden, -torch.inf)
        mixed = (scores * q.shape[-1] ** -0.5).softmax(-1) @ v
        return x + torch.einsum("bno,oe->bne", mixed.reshape(x.shape), self.o)


@attention("projection-shared", "scale-missing", "softmax-heads", context=True, sizes=SOME[:2])
class OneLayerForBothSides(Apart):
    """The layer of the queries makes the keys of the context, too."""

    def forward(self, x, context):
        q, k, v = self.cut(self.q(x)), self.cut(self.q(context)), self.cut(self.v(context))
        return self.o(((q @ k.mT).softmax(1) @ v).transpose(1, 2).flatten(2))
