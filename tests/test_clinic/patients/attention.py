"""Two families of attention, each written differently on purpose, and their mistakes.

`Views` packs its projections and works with views on all heads at once, `Loops` has four layers
with other names and works head by head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from patients.bank import SIZES, attention

# ------------------------------------------------------------------- two families, both healthy


@attention()
class Views(nn.Module):
    """Packed projections, all heads at once."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(e, 3 * e)
        self.proj = nn.Linear(e, e)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        b, n, e = x.shape
        packed = self.qkv(x).reshape(b, n, 3, self.h, e // self.h)
        return packed.permute(2, 0, 3, 1, 4).unbind(0)

    def factor(self, e: int) -> float:
        return (e // self.h) ** -0.5

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(dim=-1)

    def join(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.heads(x)
        weights = self.weigh(q @ k.transpose(-2, -1) * self.factor(x.shape[-1]), mask)
        return self.proj(self.join(weights @ v))


@attention()
class Loops(nn.Module):
    """Four layers with other names, head after head."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.num_heads, self.width = h, e // h
        self.toqueries = nn.Linear(e, e, bias=False)
        self.tokeys = nn.Linear(e, e, bias=False)
        self.tovalues = nn.Linear(e, e, bias=False)
        self.unifyheads = nn.Linear(e, e)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.toqueries(x), self.tokeys(x), self.tovalues(x)

    def cut(self, t: Tensor) -> list[Tensor]:
        return list(t.split(self.width, dim=2))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bid,bjd->bij", q, k) / math.sqrt(self.width)

    def normalise(self, all_scores: list[Tensor], allow: Tensor | None) -> list[Tensor]:
        return [F.softmax(self.block(s, allow, i), dim=2) for i, s in enumerate(all_scores)]

    def block(self, scores: Tensor, allow: Tensor | None, head: int) -> Tensor:
        return scores if allow is None else torch.where(self.flat(allow), scores, -math.inf)

    def flat(self, allow: Tensor) -> Tensor:
        return allow[:, 0] if allow.ndim == 4 else allow

    def concatenate(self, mixed: list[Tensor]) -> Tensor:
        return torch.cat(mixed, dim=2)

    def forward(self, tokens: Tensor, allow_mask: Tensor | None = None) -> Tensor:
        queries, keys, values = (self.cut(t) for t in self.projected(tokens))
        scores = [self.score(q, k) for q, k in zip(queries, keys, strict=True)]
        weights = self.normalise(scores, allow_mask)
        mixed = [torch.bmm(w, v) for w, v in zip(weights, values, strict=True)]
        return self.unifyheads(self.concatenate(mixed))


# --------------------------------------------------------------------------------------- scaling


@attention("scale-embed")
class ViewsScaledByEmbed(Views):
    def factor(self, e):
        return e**-0.5


@attention("scale-embed")
class LoopsScaledByEmbed(Loops):
    def score(self, q, k):
        return (q / self.toqueries.in_features**0.5) @ k.transpose(1, 2)


@attention("scale-missing")
class ViewsUnscaled(Views):
    def factor(self, e):
        return 1.0


@attention("scale-missing")
class LoopsUnscaled(Loops):
    def score(self, q, k):
        return torch.bmm(q, k.mT)


@attention("scores-rounded", sizes=SIZES[:1])
class ViewsRounded(Views):
    def weigh(self, scores, mask):
        return super().weigh(torch.floor(scores), mask)


@attention("scores-rounded", sizes=SIZES[:1])
class LoopsRounded(Loops):
    def score(self, q, k):
        return torch.bmm(q, k.mT) // math.sqrt(self.width)


@attention("scale-other")
class ViewsScaledByConstant(Views):
    def factor(self, e):
        return 0.2718


@attention("scale-other", sizes=((24, 4), (15, 3), (30, 10)))  # 1 / 8 is 1 / sqrt(64)
class LoopsScaledByWidth(Loops):
    def score(self, q, k):
        return q @ k.mT / self.width


@attention("scale-other")
class LoopsScaledByLength(Loops):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(k.shape[1])


@attention("scale-after-softmax")
class ViewsScaledTwice(Views):
    """The scores are scaled, as they should be, and the weights are, too."""

    def weigh(self, scores, mask):
        return super().weigh(scores, mask) / 2


@attention("scale-after-softmax")
class ViewsScaledAfter(Views):
    def factor(self, e):
        return 1.0

    def weigh(self, scores, mask):
        return scores.softmax(dim=-1) / (self.proj.in_features // self.h) ** 0.5


@attention("scale-after-softmax")
class LoopsScaledAfter(LoopsUnscaled):
    def normalise(self, all_scores, allow):
        scaling = self.toqueries.in_features ** (1 / 2)
        return [F.softmax(s, dim=-1) / scaling for s in all_scores]


# ------------------------------------------------------------------------------ scores and mixing


@attention("key-no-transpose")
class ViewsOfKeys(Views):
    def forward(self, x):
        q, k, v = self.heads(x)
        b, h, n, d = k.shape
        scores = torch.matmul(q, k.reshape(b, h, d, n)) / math.sqrt(d)
        return self.proj(self.join(scores.softmax(-1) @ v))


@attention("key-no-transpose")
class LoopsOfKeys(Loops):
    def score(self, q, k):
        return q.bmm(k.contiguous().view(k.shape[0], k.shape[2], -1)) * self.width**-0.5


@attention("mix-transposed")
class ViewsMixTransposed(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-1).transpose(2, 3)


@attention("mix-transposed")
class LoopsMixTransposed(Loops):
    def normalise(self, all_scores, allow):
        return [torch.einsum("bij->bji", w) for w in super().normalise(all_scores, allow)]


@attention("softmax-query", also=(("mix-transposed",),))
class UnnamedSoftmaxQuery(nn.Module):
    """Nothing says which is the query: both names fit."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.layers = h, nn.ParameterList([torch.randn(e, e) for _ in range(5)][1:])

    def forward(self, x):
        a, b, c = (rearrange(x @ m, "b n (h d) -> b h n d", h=self.h) for m in
                   (self.layers[i] for i in (2, 0, 3)))  # fmt: skip
        weights = (a @ b.mT / a.shape[-1] ** 0.5).softmax(2)
        return rearrange(weights @ c, "b h n d -> b n (h d)") @ self.layers[1]


# --------------------------------------------------------------------------------------- softmax


@attention("softmax-query")
class ViewsSoftmaxQuery(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-2)


@attention("softmax-query")
class LoopsSoftmaxQuery(Loops):
    def normalise(self, all_scores, allow):
        return [s.exp() / s.exp().sum(dim=1, keepdim=True) for s in all_scores]


@attention("softmax-heads", sizes=SIZES[:4])
class ViewsSoftmaxHeads(Views):
    def weigh(self, scores, mask):
        return F.softmax(scores, dim=1)


@attention("softmax-heads", sizes=SIZES[:4])
class LoopsSoftmaxHeads(Loops):
    def normalise(self, all_scores, allow):
        return list(torch.stack(all_scores).softmax(dim=0))


@attention("softmax-batch")
class ViewsSoftmaxBatch(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=0)


@attention("softmax-batch")
class FlatSoftmaxBatch(Views):
    def weigh(self, scores, mask):
        flat = scores.flatten(0, 1)  # (b * h, i, j), as for torch.bmm
        return nn.Softmax(dim=0)(flat).view_as(scores)


@attention("softmax-joint", sizes=SIZES[:4])
class ViewsSoftmaxJoint(Views):
    def weigh(self, scores, mask):
        together = scores.transpose(1, 2)
        return together.flatten(2).softmax(-1).view_as(together).transpose(1, 2)


@attention("softmax-joint", sizes=SIZES[:4])
class LoopsSoftmaxJoint(Loops):
    def normalise(self, all_scores, allow):
        return list(torch.cat(all_scores, dim=2).softmax(dim=2).chunk(self.num_heads, dim=2))


# ---------------------------------------------------------------------------- splitting, joining


@attention("split-no-transpose", sizes=SIZES[:4])
class ViewsSplit(Views):
    def heads(self, x):
        b, n, e = x.shape
        return tuple(t.reshape(b, self.h, n, e // self.h) for t in self.qkv(x).chunk(3, dim=-1))


@attention("split-no-transpose", sizes=SIZES[:4])
class LoopsSplit(Loops):
    def cut(self, t):
        b, n, _ = t.shape
        return [part.squeeze(1) for part in t.contiguous().view(b, -1, n, self.width).split(1, 1)]


@attention("merge-no-transpose", sizes=SIZES[:4])
class ViewsMerge(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.reshape(b, n, h * d)


@attention("merge-no-transpose", sizes=SIZES[:4])
class LoopsMerge(Loops):
    def concatenate(self, mixed):
        b, n, _ = mixed[0].shape
        return torch.stack(mixed, dim=1).view(b, n, -1)


@attention("merge-no-transpose", sizes=SIZES[:4])
class ViewsMergeTail(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        return mixed.permute(0, 1, 3, 2).reshape(b, n, h * d)


@attention("merge-batch-head", sizes=SIZES[:4])
class ViewsMergeBatch(Views):
    def join(self, mixed):
        b, h, n, d = mixed.shape
        rows = mixed.transpose(0, 1).reshape(h * b, n, d)
        return rows.view(b, h, n, d).transpose(1, 2).reshape(b, n, h * d)


@attention("merge-batch-head", sizes=SIZES[:4])
class LoopsMergeBatch(Loops):
    def concatenate(self, mixed):
        rows = torch.stack(mixed, dim=1).flatten(0, 1)  # (b * h, n, d)
        return rearrange(rows, "(h b) n d -> b n (h d)", h=self.num_heads)


@attention("merge-batch-head", sizes=SIZES[:4])
class LoopsMergeFlat(Loops):
    def concatenate(self, mixed):
        b, n, _ = mixed[0].shape
        return torch.stack(mixed).view(b, n, -1)


@attention("heads-not-joined", sizes=SIZES[:4])
class ViewsUnjoined(Views):
    def join(self, mixed):
        return mixed


@attention("heads-not-joined", sizes=SIZES[:4])
class LoopsUnjoined(Loops):
    def concatenate(self, mixed):
        return torch.stack(mixed, dim=2)


# ----------------------------------------------------------------------------------- projections


@attention("projection-shared")
class ViewsKeysFromQueries(Views):
    def heads(self, x):
        q, _, v = super().heads(x)
        return q, q, v


@attention("projection-shared")
class LoopsQueriesFromValues(Loops):
    def projected(self, tokens):
        _, k, v = super().projected(tokens)
        return v, k, v


@attention("projection-shared", sizes=SIZES[:3])
class LoopsAllFromOne(Loops):
    def projected(self, tokens):
        q, _, _ = super().projected(tokens)
        return q, q, q


@attention("value-from-key")
class ViewsValueFromKey(Views):
    def heads(self, x):
        q, k, _ = super().heads(x)
        return q, k, k


@attention("value-from-key")
class LoopsValueFromKey(Loops):
    def projected(self, x):
        return self.toqueries(x), self.tokeys(x), self.tokeys(x)


@attention("value-from-key")
class TwoLayers(nn.Module):
    """There is no value layer at all."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.query, self.key, self.out = (
            h,
            nn.Linear(e, e),
            nn.Linear(e, e),
            nn.Linear(e, e),
        )

    def forward(self, x):
        q, k = (rearrange(f(x), "b n (h d) -> b h n d", h=self.h) for f in (self.query, self.key))
        return self.out(rearrange(F.scaled_dot_product_attention(q, k, k), "b h n d -> b n (h d)"))


@attention("head-shared-projection", sizes=SIZES[:4])
class SharedViews(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.h, d = h, e // h
        self.values, self.keys, self.queries = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.fc_out = nn.Linear(e, e)

    def forward(self, values, keys, query):
        b, n, e = query.shape
        split = [t.reshape(b, n, self.h, e // self.h) for t in (values, keys, query)]
        v, k, q = self.values(split[0]), self.keys(split[1]), self.queries(split[2])
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / (e // self.h) ** 0.5
        mixed = torch.einsum("nhql,nlhd->nqhd", energy.softmax(dim=3), v)
        return self.fc_out(mixed.reshape(b, n, e))


@attention("head-shared-projection", sizes=SIZES[:4])
class SharedLoops(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.toqueries, self.tokeys, self.tovalues = (
            nn.Linear(self.width, self.width) for _ in range(3)
        )

    def projected(self, x):
        parts = x.chunk(self.num_heads, dim=-1)
        layers = (self.toqueries, self.tokeys, self.tovalues)
        return tuple(torch.cat([layer(part) for part in parts], dim=-1) for layer in layers)


@attention("out-missing", sizes=SIZES[:4], out_proj=True)
@attention("out-missing", remark=True)
class ViewsNoOut(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj = nn.Identity()


@attention("out-missing", sizes=SIZES[:4], out_proj=True)
class LoopsNoOut(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.unifyheads = nn.Identity()


# ------------------------------------------------------------------------------------- behaviour

tokens = torch.randn(2, 6, 24)  # the variable of a notebook


@attention("ignores-input", sizes=((24, 4), (24, 1)))
class ReadsGlobal(Views):
    def forward(self, x):
        return super().forward(tokens.to(self.proj.weight))


@attention("ignores-input")
class ReadsOwnTokens(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.example = nn.Parameter(torch.randn(1, 1, e))

    def forward(self, tokens):
        return super().forward(self.example.expand(tokens.shape[0], tokens.shape[1], -1))


@attention("dropout-eval")
class ViewsDropoutEval(Views):
    def weigh(self, scores, mask):
        return F.dropout(scores.softmax(dim=-1), 0.3)


@attention("dropout-eval")
class FusedDropoutEval(Views):
    def forward(self, x):
        q, k, v = self.heads(x)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        return self.proj(self.join(mixed))


@attention("dropout-eval")
class ViewsDrawsWhatIsKept(Views):
    def weigh(self, scores, mask):
        kept = torch.empty_like(scores).bernoulli_(0.9)
        return scores.softmax(dim=-1) * kept / 0.9


@attention("dropout-eval")
class LoopsDropoutBuiltInForward(Loops):
    def normalise(self, all_scores, allow):
        return [nn.Dropout(0.5)(w) for w in super().normalise(all_scores, allow)]


@attention("dropout-unused")
class ViewsDropoutUnused(Views):
    def __init__(self, e, h, dropout=0.1):
        super().__init__(e, h)


@attention("dropout-unused")
class LoopsDropoutUnused(Loops):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.2)


@attention("dropout-unused")
class LoopsDropoutInVain(Loops):
    """It drops a copy of the weights, and mixes with the weights themselves."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.2)

    def normalise(self, all_scores, allow):
        all_weights = super().normalise(all_scores, allow)
        self.dropped = [self.drop(w) for w in all_weights]
        return all_weights


@attention("dropout-unused", sizes=SIZES[:2])
class ViewsDropoutForgotten(Views):
    """What it drops of the weights goes nowhere; behind the output layer another one drops."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop, self.behind = nn.Dropout(0.1), nn.Dropout(0.1)

    def weigh(self, scores, mask):
        weights = super().weigh(scores, mask)
        self.drop(weights)
        return weights

    def forward(self, x, mask=None):
        return self.behind(super().forward(x, mask))


@attention("dropout-unused")
class LoopsOneOfTwoDropouts(Loops):
    """The one that is called drops nothing, the one that would is not called."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Dropout(0.0)

    def normalise(self, all_scores, allow):
        return [self.proj_drop(w) for w in super().normalise(all_scores, allow)]


@attention("batch-first")
class TorchNotBatchFirst(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.attn = nn.MultiheadAttention(e, h)

    def forward(self, x):
        return self.attn(x, x, x)[0]


@attention("batch-first")
class LoopsOverBatch(Loops):
    def forward(self, tokens):
        n, b, _ = tokens.shape  # what it believes
        q, k, v = (t.view(n, b, self.num_heads, self.width) for t in self.projected(tokens))
        scores = einsum(q, k, "i b h d, j b h d -> b h i j") / self.width**0.5
        mixed = einsum(scores.softmax(-1), v, "b h i j, j b h d -> i b h d")
        return self.unifyheads(mixed.reshape(n, b, -1))
