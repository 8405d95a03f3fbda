"""The bank of the clinic: sick modules of every kind, each written twice, and healthy ones.

A `Case` builds a module, says how it is examined and what must be found. The two families of
attention are written differently on purpose: `Views` packs its projections and works with views on
all heads at once, `Loops` has four layers with other names and works head by head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from attention_clinic import (
    Report,
    diagnose,
    diagnose_block,
    diagnose_embedding,
    diagnose_loss,
    diagnose_positions,
)
from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.embedding import PatchEmbedding, patchify, unpatchify
from utils.encoder import Encoder, EncoderBlock
from utils.masking import causal_mask, padding_mask

SIZES = ((24, 4), (64, 8), (15, 3), (30, 10), (7, 1))  # (e, h): odd widths, n < h, one head
BLIND_WITH_ONE_HEAD = {
    "scale-embed", "merge-no-transpose", "split-no-transpose", "head-shared-projection",
    "merge-batch-head", "softmax-joint", "out-missing", "softmax-heads", "heads-not-joined",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One patient.

    Args:
        name: of the implementation.
        ids: what must be found, () for a healthy one.
        examine: (seed, e, h) -> report.
        also: further ids that give the same output and may stand beside it.
        sizes: the (e, h) that it can be built with.
    """

    name: str
    ids: tuple[str, ...]
    examine: Callable[[int, int, int], Report]
    also: tuple[tuple[str, ...], ...] = ()
    sizes: tuple[tuple[int, int], ...] = field(default=SIZES)

    def judge(self, report: Report, h: int) -> str | None:
        """Return what is wrong with a report, None when it is right."""
        expected = self.ids
        if h == 1:  # what one head cannot get wrong
            expected = tuple(id for id in expected if id not in BLIND_WITH_ONE_HEAD)
        if not expected:
            return None if report.healthy else f"healthy, but called {report.ids or 'unexplained'}"
        if report.healthy:
            return f"{' + '.join(expected)}, but called healthy"
        found = [explanation.ids for explanation in report.explanations]
        if sorted(expected) not in [sorted(ids) for ids in found]:
            return f"{' + '.join(expected)}, but called {found or 'unexplained'}"
        allowed = [sorted(ids) for ids in (expected, *self.also)]
        wrong = [ids for ids in found if sorted(ids) not in allowed]
        return f"{' + '.join(expected)}, but also called {wrong}" if wrong else None


CASES: list[Case] = []


def attention(
    *ids: str, also: tuple[tuple[str, ...], ...] = (), sizes: tuple = SIZES, **options
) -> Callable:
    """Enter a class of attention, built with (e, h), among the patients."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            given = {key: v(seed) if callable(v) else v for key, v in options.items()}
            if "call" in options:
                given["call"] = options["call"]
            return diagnose(make(e, h), h, **given)

        CASES.append(Case(make.__name__, ids, examine, also, sizes))
        return make

    return enter


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


@attention("out-missing", sizes=SIZES[:4])
class ViewsNoOut(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.proj = nn.Identity()


@attention("out-missing", sizes=SIZES[:4])
class LoopsOutUnused(Loops):
    def forward(self, tokens):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.num_heads) for t in
                   self.projected(tokens))  # fmt: skip
        return rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")


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


# ----------------------------------------------------------------------------------------- masks


def padding(seed: int) -> Tensor:
    return padding_mask(torch.tensor([4, 6]), 6)


def triangle(seed: int) -> Tensor:
    return causal_mask(6)[None, None]


def ragged(seed: int) -> Tensor:
    """Three samples, each of whose queries sees other keys."""
    allow = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(seed)) < 0.5
    return allow | torch.eye(5, dtype=torch.bool)


def empty_row(seed: int) -> Tensor:
    return padding_mask(torch.tensor([0, 3]), 5)


for _kind in (padding, triangle, ragged):
    attention(mask=_kind)(type(f"Views_{_kind.__name__}", (Views,), {}))
    attention(mask=_kind)(type(f"Loops_{_kind.__name__}", (Loops,), {}))


@attention("mask-inverted", mask=padding)
@attention("mask-inverted", mask=ragged, also=(("mask-inverted", "mask-query-axis"),))
class ViewsMaskInverted(Views):
    def weigh(self, scores, mask):
        mask = mask if mask is None else ~mask
        return super().weigh(scores, mask) if mask is not None else scores.softmax(-1)


@attention("mask-inverted", mask=padding)
class LoopsMaskInverted(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(self.flat(allow), -math.inf)


@attention("mask-multiply", mask=padding, also=(("mask-tiny",),))
class ViewsMaskMultiply(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores * mask).softmax(dim=-1)


@attention("mask-multiply", mask=ragged, also=(("mask-tiny",),))
class LoopsMaskMultiply(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else torch.where(self.flat(allow), scores, 0.0)


@attention("mask-tiny", mask=padding, also=(("mask-multiply",),))
class ViewsMaskTiny(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e-12)).softmax(-1)


@attention("mask-tiny", mask=triangle, also=(("mask-multiply",),))
class LoopsMaskTiny(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else torch.where(self.flat(allow), scores, 1e-10)


@attention("mask-added", mask=padding)
class ViewsMaskAdded(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores + mask).softmax(dim=-1)


@attention("mask-added", mask=ragged)
class LoopsMaskAdded(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.add(self.flat(allow).to(scores.dtype))


@attention("mask-after-softmax", mask=padding)
class ViewsMaskAfter(Views):
    def weigh(self, scores, mask):
        weights = scores.softmax(dim=-1)
        return weights if mask is None else weights * mask


@attention("mask-after-softmax", mask=triangle)
class LoopsMaskAfter(Loops):
    def normalise(self, all_scores, allow):
        weights = [s.softmax(-1) for s in all_scores]
        return weights if allow is None else [w.masked_fill(~self.flat(allow), 0) for w in weights]


@attention("mask-query-axis", mask=padding)
class ViewsMaskQuery(Views):
    def weigh(self, scores, mask):
        return super().weigh(scores, None if mask is None else mask.transpose(-2, -1))


@attention("mask-query-axis", mask=ragged)
class LoopsMaskQuery(Loops):
    def flat(self, allow):
        return rearrange(allow, "b 1 j i -> b i j")


@attention("mask-dropped", mask=padding)
class ViewsMaskDropped(Views):
    def weigh(self, scores, mask):
        return scores.softmax(dim=-1)


@attention("mask-dropped", mask=ragged)
class LoopsMaskDropped(Loops):
    def block(self, scores, allow, head):
        return scores


@attention("mask-row-empty", mask=empty_row)
class ViewsRowNan(Views):
    pass


@attention("mask-row-empty", mask=empty_row)
class LoopsRowEven(Loops):
    def block(self, scores, allow, head):
        return scores if allow is None else scores.masked_fill(~self.flat(allow), -1e9 if
               scores.dtype != torch.half else -1e4)  # fmt: skip


@attention("mask-fp16", mask=padding)
class ViewsMaskHalf(Views):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(dim=-1)


@attention("mask-fp16", mask=ragged)
class LoopsMaskHalf(Loops):
    def block(self, scores, allow, head):
        return (
            scores if allow is None else scores.masked_fill_(self.flat(allow).logical_not(), -1e20)
        )


class Causal(Views):
    """Draws its own mask."""

    diagonal = 0

    def weigh(self, scores, mask):
        n = scores.shape[-1]
        return super().weigh(scores, torch.ones(n, n, dtype=torch.bool).tril(self.diagonal))


class CausalLoops(Loops):
    def block(self, scores, allow, head):
        i = torch.arange(scores.shape[1])
        return scores.masked_fill(self.later(i[:, None], i[None, :]), -math.inf)

    def later(self, i, j):
        return j > i


attention(causal=True)(Causal)
attention()(type("CausalUnsaid", (Causal,), {}))
attention(causal=True)(CausalLoops)
attention("mask-off-by-one")(type("CausalWithoutItself", (Causal,), {"diagonal": -1}))
attention("mask-off-by-one", causal=True)(type("CausalOnePast", (Causal,), {"diagonal": 1}))


@attention("mask-off-by-one", causal=True)
class CausalLoopsOff(CausalLoops):
    def later(self, i, j):
        return j >= i


attention("mask-not-causal", causal=True)(type("ViewsNotCausal", (Views,), {}))
attention("mask-not-causal", causal=True)(type("LoopsNotCausal", (Loops,), {}))


@attention("mask-inverted", causal=True)
class CausalUpsideDown(CausalLoops):
    def later(self, i, j):
        return j <= i


# ----------------------------------------------------------------------------------------- pairs


def pair(*ids: str, sizes: tuple = SIZES[:4], **options) -> Callable:
    return attention(*ids, sizes=sizes, **options)


@pair("scale-embed", "merge-no-transpose")
class Pair1(ViewsScaledByEmbed, ViewsMerge):
    pass


@pair("scale-missing", "merge-no-transpose")
class Pair2(LoopsUnscaled, LoopsMerge):
    pass


@pair("scale-missing", "softmax-query")
class Pair3(ViewsUnscaled, ViewsSoftmaxQuery):
    pass


@pair("scale-embed", "softmax-query")
class Pair4(LoopsScaledByEmbed, LoopsSoftmaxQuery):
    pass


@pair("split-no-transpose", "merge-no-transpose")
class Pair5(ViewsSplit, ViewsMerge):
    pass


@pair("split-no-transpose", "scale-missing")
class Pair6(LoopsSplit, LoopsUnscaled):
    pass


@pair("out-missing", "scale-embed")
class Pair7(ViewsNoOut, ViewsScaledByEmbed):
    pass


@pair("value-from-key", "scale-missing")
class Pair8(LoopsValueFromKey, LoopsUnscaled):
    pass


@pair("scale-embed", "dropout-eval")
class Pair9(ViewsScaledByEmbed, ViewsDropoutEval):
    pass


@pair("softmax-heads", "merge-batch-head")
class Pair10(ViewsSoftmaxHeads, ViewsMergeBatch):
    pass


@pair("scale-embed", "mask-multiply", mask=padding, also=(("scale-embed", "mask-tiny"),))
class Pair11(ViewsScaledByEmbed, ViewsMaskMultiply):
    pass


@pair("merge-no-transpose", "mask-inverted", mask=padding)
class Pair12(LoopsMerge, LoopsMaskInverted):
    pass


@pair("head-shared-projection", "scale-missing")
class Pair13(LoopsUnscaled, SharedLoops):
    pass


# --------------------------------------------------------------------------------------- healthy


def by_sizes(make: Callable, name: str, sizes: tuple = SIZES, **options) -> None:
    make.__name__ = name
    attention(sizes=sizes, **options)(make)


by_sizes(lambda e, h: MultiHeadAttention(e, h), "course")
by_sizes(lambda e, h: MultiHeadAttention(e, h, dropout=0.2), "course with dropout")
by_sizes(lambda e, h: MultiHeadAttention(e, h), "course, padding", mask=padding)
by_sizes(lambda e, h: MultiHeadAttention(e, h), "course, empty row", mask=empty_row)
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), "torch")
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, dropout=0.1, bias=False), "torch, batch second")
by_sizes(lambda e, h: nn.MultiheadAttention(e, h, batch_first=True), "torch, mask", mask=ragged)


@attention()
class EinsumParameters(nn.Module):
    """Bare parameters with an axis for the heads, as in Flax."""

    def __init__(self, e, h):
        super().__init__()
        d = e // h
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(e, h, d)) for _ in range(3))
        self.w_o = nn.Parameter(torch.randn(h, d, e))

    def forward(self, x):
        q, k, v = (einsum(x, w, "b n e, e h d -> b h n d") for w in (self.w_q, self.w_k, self.w_v))
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
        return einsum(scores.softmax(-1), v, self.w_o, "b h i j, b h j d, h d e -> b i e")


@attention()
class MatricesOnTheRight(nn.Module):
    """x @ w with names that say nothing, all biases apart."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.m1, self.m2, self.m3, self.m4 = (nn.Parameter(torch.randn(e, e)) for _ in range(4))

    def forward(self, x):
        q, k, v = (rearrange(x @ m, "b n (h d) -> b h n d", h=self.h) for m in
                   (self.m3, self.m1, self.m4))  # fmt: skip
        return rearrange(scaled_dot_product_attention(q, k, v)[0], "b h n d -> b n (h d)") @ self.m2


@attention()
class InterleavedByHead(nn.Module):
    """(h, 3, d) packed, as in Megatron."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.query_key_value = nn.Linear(e, 3 * e)
        self.dense = nn.Linear(e, e)

    def forward(self, hidden):
        packed = rearrange(self.query_key_value(hidden), "b n (h k d) -> k b h n d", h=self.h, k=3)
        mixed = F.scaled_dot_product_attention(*packed)
        return self.dense(rearrange(mixed, "b h n d -> b n (h d)"))


@attention()
class InterleavedByFeature(nn.Module):
    """(h, d, 3) and (d, h) packed: odd, and right."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.lin, self.out = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x):
        q, k, v = rearrange(self.lin(x), "b n (h d k) -> k b h n d", h=self.h, k=3)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(rearrange(mixed, "b h n d -> b n (d h)"))


@attention()
class KeysAndValuesPacked(nn.Module):
    """to_q and to_kv, a norm of its own, a Sequential at the end."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = (
            rearrange(t, "b n (h d) -> b h n d", h=self.heads)
            for t in (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        )
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return self.to_out(rearrange(dots.softmax(dim=-1) @ v, "b h n d -> b n (h d)"))


class OneHead(nn.Module):
    def __init__(self, e, d):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(e, d, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(16, 16)))

    def forward(self, x):
        n = x.shape[1]
        q, k = self.query(x), self.key(x)
        scores = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ self.value(x)


@attention()
@attention(causal=True)
class ModulesByHead(nn.Module):
    """A module for each head, as in lectures."""

    def __init__(self, e, h):
        super().__init__()
        self.heads = nn.ModuleList([OneHead(e, e // h) for _ in range(h)])
        self.proj = nn.Linear(e, e)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class OneHeadScaledByEmbed(OneHead):
    def forward(self, x):
        _, n, c = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * c**-0.5
        wei = wei.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


@attention("scale-embed")
class ModulesByHeadScaledByEmbed(ModulesByHead):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.heads = nn.ModuleList([OneHeadScaledByEmbed(e, e // h) for _ in range(h)])


@attention()
class FourClones(nn.Module):
    """self.linears, as in the annotated Transformer."""

    def __init__(self, d_model, h):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=0.1)

    def forward(self, query, key, value, mask=None):
        b = query.size(0)
        query, key, value = (
            lin(t).view(b, -1, self.h, self.d_k).transpose(1, 2)
            for lin, t in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        mixed = torch.matmul(self.dropout(scores.softmax(dim=-1)), value)
        return self.linears[-1](mixed.transpose(1, 2).contiguous().view(b, -1, self.h * self.d_k))


@attention()
class PointwiseConvolutions(nn.Module):
    """1-wide convolutions for the projections."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Conv1d(e, 3 * e, 1), nn.Conv1d(e, e, 1)

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x.mT), "b (k h d) n -> k b h n d", k=3, h=self.h)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.o(rearrange(mixed, "b h n d -> b (h d) n")).mT


@attention()
class WiderInside(nn.Module):
    """Heads that together are wider than a token."""

    def __init__(self, e, h):
        super().__init__()
        self.h, inner = h, h * (e // h + 2)
        self.to_qkv, self.to_out = nn.Linear(e, 3 * inner, bias=False), nn.Linear(inner, e)

    def forward(self, x):
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h)
                   for t in self.to_qkv(x).chunk(3, dim=-1))  # fmt: skip
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(rearrange(mixed, "b h n d -> b n (h d)"))


@attention()
class SeveralTensors(Views):
    """Returns weights too; scales both sides by the fourth root."""

    def forward(self, x, return_weights=True):
        q, k, v = self.heads(x)
        root = q.shape[-1] ** -0.25
        weights = ((q * root) @ (k * root).mT).softmax(-1)
        return self.proj(self.join(weights @ v)), weights


@attention()
class SingleSoftmax(Views):
    """Casts to single precision for the softmax."""

    def weigh(self, scores, mask):
        return torch.softmax(scores.float(), dim=-1).to(scores.dtype)


def function_case(name: str, ids: tuple[str, ...], scale: Callable, **weights_of) -> None:
    """Enter a plain function with its weights handed over."""

    def examine(seed: int, e: int, h: int) -> Report:
        generator = torch.Generator().manual_seed(seed)
        wq, wk, wv, wo = (
            torch.randn(e, e, generator=generator, dtype=torch.float64) / e**0.5 for _ in range(4)
        )
        bias = torch.randn(e, generator=generator, dtype=torch.float64)

        def attend(x: Tensor) -> Tensor:
            q, k, v = (rearrange(x @ w, "b n (h d) -> b h n d", h=h) for w in (wq, wk, wv))
            mixed = (q @ k.mT * scale(e, h)).softmax(-1) @ v
            return rearrange(mixed, "b h n d -> b n (h d)") @ wo + bias

        given = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bo": bias}
        return diagnose(attend, h, weights=given)

    CASES.append(Case(name, ids, examine))


function_case("function", (), lambda e, h: (e // h) ** -0.5)
function_case("function scaled by embed", ("scale-embed",), lambda e, h: e**-0.5)


def _transformers(name: str, make: Callable, sizes: tuple = SIZES, **options) -> None:
    by_sizes(make, name, sizes, **options)


def _vit(e, h):
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTAttention

    config = ViTConfig(hidden_size=e, num_attention_heads=h, attn_implementation="eager")
    return ViTAttention(config)


def _bert(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    config = BertConfig(hidden_size=e, num_attention_heads=h, attn_implementation="eager")
    return BertAttention(config)


def _gpt2(e, h):
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention(
        GPT2Config(n_embd=e, n_head=h, n_positions=32, attn_implementation="sdpa"), layer_idx=0
    )


_transformers("HuggingFace ViT", _vit)
_transformers("HuggingFace BERT", _bert)
_transformers("HuggingFace GPT-2", _gpt2)


# ---------------------------------------------------------------------------- patches, positions

IMAGE, PATCH, CHANNELS = (8, 12), (2, 3), 3


def embedding(
    *ids: str, also: tuple = (), sizes: tuple = ((20, 1), (18, 1)), **options
) -> Callable:
    """Enter a patch embedding, built with e."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_embedding(make(e), IMAGE, PATCH, CHANNELS, **options)

        CASES.append(Case(make.__name__, ids, examine, also, sizes))
        return make

    return enter


@embedding()
class ByConvolution(nn.Module):
    def __init__(self, e):
        super().__init__()
        n = (IMAGE[0] // PATCH[0]) * (IMAGE[1] // PATCH[1])
        self.conv = nn.Conv2d(CHANNELS, e, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, e))
        self.pos = nn.Parameter(torch.zeros(1, n + 1, e))

    def patches(self, images):
        return self.conv(images).flatten(2).transpose(1, 2)

    def place(self, patches):
        cls = self.cls.repeat(len(patches), 1, 1)
        return torch.cat([cls, patches], dim=1) + self.pos

    def forward(self, images):
        return self.place(self.patches(images))


@embedding()
class ByLinear(nn.Module):
    """No class token, an nn.Embedding for the positions."""

    def __init__(self, e):
        super().__init__()
        self.project = nn.Linear(CHANNELS * PATCH[0] * PATCH[1], e)
        self.position = nn.Embedding(40, e)

    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)

    def place(self, tokens):
        return tokens + self.position(torch.arange(tokens.shape[1]))

    def forward(self, x):
        return self.place(self.project(self.patches(x)))


def _course(e):
    return PatchEmbedding(IMAGE, PATCH, CHANNELS, e)


def _cut_only(e):
    return lambda images: patchify(images, PATCH)


embedding()(_course)
embedding(inverse=lambda p: unpatchify(p, PATCH, IMAGE), sizes=((18, 1),))(_cut_only)


@embedding("patch-view")
class LinearOfView(ByLinear):
    def patches(self, x):
        return x.reshape(len(x), -1, self.project.in_features)


@embedding("patch-view")
class LinearOfViewChannelsLast(ByLinear):
    def patches(self, x):
        return x.movedim(1, 3).flatten(1).unflatten(1, (-1, self.project.in_features))


@embedding("patch-channel-mix")
class LinearOfUnfold(ByLinear):
    def patches(self, x):
        x = x.unfold(2, PATCH[0], PATCH[0]).unfold(3, PATCH[1], PATCH[1])
        return x.contiguous().view(len(x), -1, self.project.in_features)


@embedding("patch-channel-mix")
class ConvolutionViewed(ByConvolution):
    def patches(self, images):
        made = self.conv(images)
        return made.reshape(len(images), -1, made.shape[1])


@embedding("patch-order")
class LinearOfChannelsLast(ByLinear):
    def patches(self, x):
        ph, pw = PATCH
        return rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (ph pw c)", ph=ph, pw=pw)


@embedding("patch-order")
class LinearOfColumns(ByLinear):
    def patches(self, x):
        cut = F.unfold(x.mT, PATCH[::-1], stride=PATCH[::-1]).mT
        return cut.unflatten(2, (CHANNELS, PATCH[1], PATCH[0])).transpose(3, 4).flatten(2)


@embedding("pos-one-row")
class ConvolutionOneRow(ByConvolution):
    def place(self, patches):
        cls = self.cls.expand(len(patches), -1, -1)
        return torch.cat([cls, patches], dim=1) + self.pos[:, :1]


@embedding("pos-one-row")
class LinearOneRow(ByLinear):
    def place(self, tokens):
        return tokens + self.position.weight[tokens.shape[1]]


@embedding("pos-batch-axis")
class LinearPositionByBatch(ByLinear):
    def place(self, tokens):
        return tokens + self.position(torch.arange(tokens.shape[0]))[:, None]


@embedding("pos-batch-axis")
class ConvolutionPositionByBatch(ByConvolution):
    def place(self, patches):
        all_tokens = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1)
        table = self.pos.transpose(0, 1)  # (n + 1, 1, e), as for tokens (n, b, e)
        return all_tokens + table[: all_tokens.size(0)]


@embedding("pos-before-cls")
class ConvolutionPositionFirst(ByConvolution):
    def place(self, patches):
        placed = patches + self.pos[:, : patches.shape[1]]
        return torch.cat([self.cls.expand(len(patches), -1, -1), placed], dim=1)


@embedding("pos-before-cls")
class LinearPositionFirst(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.token = nn.Parameter(torch.randn(1, e))

    def place(self, tokens):
        front = self.token.repeat(len(tokens), 1).unsqueeze(1)
        return torch.cat((front, super().place(tokens)), 1)


@embedding("param-batch-size")
class TokenPerSample(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        self.cls = nn.Parameter(torch.randn(8, 1, e))

    def place(self, patches):
        return torch.cat([self.cls, patches], dim=1) + self.pos


@embedding("param-batch-size")
class PositionPerSample(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.table = nn.Parameter(torch.randn(6, 16, e))

    def place(self, tokens):
        return tokens + self.table


@embedding("param-plain-tensor")
class TokenTimesNumber(ByConvolution):
    def __init__(self, e):
        super().__init__(e)
        del self.cls
        self.cls = nn.Parameter(torch.randn(1, 1, e)) * 0.02


@embedding("param-plain-tensor")
class PositionMoved(ByLinear):
    def __init__(self, e):
        super().__init__(e)
        self.table = nn.Parameter(torch.randn(16, e, dtype=torch.float64)).to(torch.float32)

    def place(self, tokens):
        return tokens + self.table.to(tokens.dtype)


def _cut_by_unfold(e):
    return lambda images: F.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


embedding(sizes=((18, 1),))(_cut_by_unfold)


def _wrong_inverse(patches):
    return rearrange(patches, "b (gh gw) (ph pw c) -> b c (gh ph) (gw pw)", gh=4, ph=2, pw=3)


def _viewed_inverse(patches):
    return patches.reshape(len(patches), CHANNELS, *IMAGE)


embedding("unpatch-order", inverse=_wrong_inverse, sizes=((18, 1),))(_cut_only)
embedding("unpatch-order", inverse=_viewed_inverse, sizes=((18, 1),))(_cut_by_unfold)
embedding("patch-view", "pos-one-row")(type("EmbeddingPair1", (LinearOfView, LinearOneRow), {}))
embedding("patch-channel-mix", "pos-before-cls")(
    type("EmbeddingPair2", (ConvolutionViewed, ConvolutionPositionFirst), {})
)


def positions(*ids: str) -> Callable:
    """Enter a function that makes a table of positions."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            return diagnose_positions(make, e)

        CASES.append(Case(make.__name__, ids, examine, sizes=((16, 1), (10, 1))))
        return make

    return enter


@positions()
def interleaved(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(0, e, 2) * (-math.log(10000.0) / e))
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : e // 2]
    return table


@positions()
def interleaved_loop(n, e):
    rows = [[p / 10000 ** ((i - i % 2) / e) for i in range(e)] for p in range(n)]
    return torch.tensor(
        [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in rows]
    )[None]


@positions("sincos-halves", "sincos-odd")
def halves(n, e):
    angle = torch.outer(torch.arange(n), 10000 ** (-torch.arange(e // 2) / (e // 2)))
    table = torch.empty(n, e)
    table[:] = torch.cat([angle.sin(), angle.cos()], dim=1)
    return table


@positions("sincos-halves")
def halves_padded(n, e):
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) / e)
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :e]


@positions("sincos-halves")
def halves_cosine_first(n, e):
    place = torch.arange(n).view(-1, 1)
    columns = [
        torch.cos(place / 10000 ** (2 * (i % ((e + 1) // 2)) / e) - (i * 2 >= e) * math.pi / 2)
        for i in range(e)
    ]
    return torch.cat(columns, dim=1).unsqueeze(0)


@positions("sincos-same")
def same(n, e):
    i = torch.arange(e)
    row = torch.where(i % 2 == 0, (n / 10000 ** (i / e)).sin(), (n / 10000 ** ((i - 1) / e)).cos())
    return row.expand(n, e)


@positions("sincos-same")
def same_by_copy(n, e):
    return interleaved(n, e)[3].repeat(n, 1)


@positions("sincos-odd")
def breaks_on_odd(n, e):
    table = torch.zeros(n, e)
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, e, 2) / e)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


@positions("sincos-odd")
def refuses_odd(n, e):
    if e % 2:
        raise ValueError("even widths only")
    return interleaved_loop(n, e)


# ---------------------------------------------------------------------------------------- blocks

BLOCK_SIZES = ((24, 4), (15, 3), (7, 1))


def block(*ids: str, sizes: tuple = BLOCK_SIZES, also: tuple = (), **options) -> Callable:
    """Enter a block or a stack, built with (e, h)."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            return diagnose_block(make(e, h), h, **options)

        CASES.append(Case(make.__name__, ids, examine, also, sizes))
        return make

    return enter


@block()
class PreNorm(nn.Module):
    """Every part written out, other names."""

    def __init__(self, e, h):
        super().__init__()
        self.ln_1, self.ln_2 = self.norm(e), self.norm(e)
        self.attention = Views(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e + 1), self.bend(), nn.Linear(2 * e + 1, e))

    def norm(self, e):
        return nn.LayerNorm(e, eps=1e-6)

    def bend(self):
        return nn.GELU()

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        x = x + self.ffn(self.ln_2(x))
        return x


@block()
class PostNorm(nn.Module):
    """Two more modules inside, as in the annotated Transformer."""

    def __init__(self, e, h):
        super().__init__()
        self.self_attn = Loops(e, h)
        self.w_1, self.w_2 = nn.Linear(e, e + 5), nn.Linear(e + 5, e)
        self.norms = nn.ModuleList([nn.LayerNorm(e), nn.LayerNorm(e)])

    def feed(self, x):
        return self.w_2(self.w_1(x).relu())

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.feed(x))


def _block_course(e, h):
    return EncoderBlock(e, h, 2 * e)


def _block_course_post(e, h):
    return EncoderBlock(e, h, 2 * e, dropout=0.1, norm_first=False, activation="relu")


def _block_torch(e, h):
    return nn.TransformerEncoderLayer(e, h, 3 * e, batch_first=True, norm_first=True)


def _block_torch_post(e, h):
    return nn.TransformerEncoderLayer(e, h, e + 3, batch_first=True, activation="gelu")


def _stack_course(e, h):
    return Encoder(3, e, h, 2 * e)


for _make in (_block_course, _block_course_post, _block_torch, _block_torch_post, _stack_course):
    block()(_make)
block(norm_first=False, activation="relu", norm_eps=1e-5)(_block_course_post)


def _layer_vit(e, h):
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTLayer

    return ViTLayer(ViTConfig(hidden_size=e, num_attention_heads=h, intermediate_size=e + 7))


def _layer_bert(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    return BertLayer(BertConfig(hidden_size=e, num_attention_heads=h, intermediate_size=2 * e))


block()(_layer_vit)
block()(_layer_bert)


@block("residual-from-norm")
class AddsNorm(PreNorm):
    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        x = self.ln_2(x)
        return x + self.ffn(x)


@block("residual-from-norm")
class CourseAddsNorm(EncoderBlock):
    def __init__(self, e, h):
        super().__init__(e, h, 2 * e)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return self.mlp(y := self.norm2(x)) + y


@block("residual-missing")
class NoResidual(PreNorm):
    def forward(self, x):
        x = self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("residual-missing")
class PostNormDoubled(PostNorm):
    def forward(self, x):
        x = self.self_attn(x)
        x = self.norms[0](x + x)
        return self.norms[1](x + self.feed(x))


@block("residual-from-input")
class FromInput(PostNorm):
    def forward(self, x):
        y = self.norms[0](x + self.self_attn(x))
        return self.norms[1](x + self.feed(y))


@block("residual-from-input")
class PreFromInput(PreNorm):
    def forward(self, x):
        return x + self.ffn(self.ln_2(x + self.attention(self.ln_1(x))))


block("norm-order", norm_first=False)(PreNorm)
block("norm-order", norm_first=True)(_block_torch_post)
block("norm-eps", norm_eps=1e-5)(PreNorm)
block("norm-eps", norm_eps=1e-12)(_block_torch)
block("activation-other", activation="gelu")(PostNorm)
block("activation-other", activation="relu")(_block_course)
block("gelu-tanh", activation="gelu-tanh")(_block_course)


@block("gelu-tanh", activation="gelu")
class TanhByHand(PostNorm):
    def feed(self, x):
        t = self.w_1(x)
        inner = math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)
        return self.w_2(0.5 * t * (1 + torch.tanh(inner)))


class HandNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class HandNormInside(HandNorm):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.a_2 + self.b_2


@block("norm-bessel")
class BesselOutside(PreNorm):
    def norm(self, e):
        return HandNorm(e)


@block("norm-bessel")
class BesselInside(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([HandNormInside(e), HandNormInside(e)])


@block("dropout-eval")
class BlockDropoutEval(PreNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1)


@block("scale-embed", sizes=BLOCK_SIZES[:2])
class BlockScaledByEmbed(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)


@block("merge-no-transpose", "residual-from-norm", sizes=BLOCK_SIZES[:2])
class BlockPair(AddsNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsMerge(e, h)


@block("layers-shared")
class OneLayerThrice(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.layer = PreNorm(e, h)

    def forward(self, x):
        for _ in range(3):
            x = self.layer(x)
        return x


@block("layers-shared")
def _listed_thrice(e, h):
    return nn.Sequential(*[PostNorm(e, h)] * 3)


@block("layers-same-init")
def _stack_torch(e, h):
    layer = nn.TransformerEncoderLayer(e, h, 2 * e, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


@block("layers-same-init")
def _stack_copied(e, h):
    import copy

    layer = PreNorm(e, h)
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(3)))


@block("stack-last-only")
class LastOnly(Encoder):
    def __init__(self, e, h):
        super().__init__(3, e, h, 2 * e)

    def forward(self, x):
        for layer in self.layers:
            out = layer(x)
        return self.norm(out)


@block("stack-last-only")
class LastOfList(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.blocks = nn.ModuleList(PostNorm(e, h) for _ in range(2))

    def forward(self, src):
        return [block(src) for block in self.blocks][-1]


# ---------------------------------------------------------------------------------------- losses


def loss(*ids: str, next_token: bool = False) -> Callable:
    """Enter a loss function."""

    def enter(function: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            return diagnose_loss(function, e, next_token=next_token)

        CASES.append(Case(function.__name__, ids, examine, sizes=((7, 1), (10, 1))))
        return function

    return enter


loss()(F.cross_entropy)


@loss()
def by_hand(scores, classes):
    return -(scores.log_softmax(-1).gather(1, classes[:, None])).mean()


@loss()
def log_softmax_twice(scores, classes):
    return F.cross_entropy(scores.log_softmax(dim=-1), classes)  # changes nothing


@loss("double-softmax")
def softmax_first(scores, classes):
    return F.cross_entropy(scores.softmax(dim=1), classes)


@loss("double-softmax")
def softmax_in_the_model(scores, classes):
    probabilities = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return nn.CrossEntropyLoss(reduction="sum")(probabilities, classes)


@loss(next_token=True)
def shifted(scores, tokens):
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@loss("target-not-shifted", next_token=True)
def unshifted(scores, tokens):
    return F.cross_entropy(scores.transpose(1, 2), tokens)


@loss("target-not-shifted", next_token=True)
def both_cut(scores, tokens):
    scores, tokens = scores[:, :-1], tokens[:, :-1]
    return F.nll_loss(scores.log_softmax(-1).reshape(-1, scores.shape[-1]), tokens.reshape(-1))


@loss("target-not-shifted", "double-softmax", next_token=True)
def unshifted_softmax(scores, tokens):
    return F.cross_entropy(scores.softmax(-1).flatten(0, 1), tokens.flatten())


# ------------------------------------------------------------------------------- a batch of one

for _make in (Views, Loops, EinsumParameters, ModulesByHead, ViewsMergeBatch):
    attention(size=(1, 6))(type(f"{_make.__name__}_alone", (_make,), {}))
for _make, _id, _also in (
    (ViewsScaledByEmbed, "scale-embed", ()),
    (LoopsMerge, "merge-no-transpose", (("merge-batch-head",),)),
    (ViewsSplit, "split-no-transpose", ()),
    (LoopsSoftmaxQuery, "softmax-query", ()),
    (TwoLayers, "value-from-key", ()),
):
    attention(_id, size=(1, 6), sizes=SIZES[:4], also=_also)(
        type(f"{_make.__name__}_alone", (_make,), {})
    )
attention("softmax-batch", size=(1, 6), sizes=SIZES[:4], also=(("batch-first",),))(
    type("ViewsSoftmaxBatch_alone", (ViewsSoftmaxBatch,), {})
)

# ------------------------------------------------- no known mistake, and must not be called one


def unknown(make: Callable) -> Callable:
    """Enter an attention that no entry of the catalogue explains."""
    UNKNOWN.append(make)
    return make


UNKNOWN: list[Callable] = []


@unknown
class Sigmoid(Views):
    def weigh(self, scores, mask):
        return scores.sigmoid()


@unknown
class Linearised(Loops):
    def normalise(self, all_scores, allow):
        return [s / s.shape[2] for s in all_scores]


@unknown
class NormedQueries(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v


@unknown
class Rotary(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        angle = torch.arange(x.shape[1])[:, None].to(x)
        return (
            q * angle.cos() + q.flip(-1) * angle.sin(),
            k * angle.cos() + k.flip(-1) * angle.sin(),
            v,
        )


@unknown
class ThreeMistakes(ViewsScaledByEmbed, ViewsSoftmaxQuery, ViewsMerge):
    pass


@unknown
class Noisy(Loops):
    def score(self, q, k):
        return super().score(q, k) + 0.01 * torch.randn(q.shape[1], k.shape[1]).to(q)


@unknown
class NearlyRight(Views):
    def weigh(self, scores, mask):
        return (scores + 1e-4 * scores**2).softmax(dim=-1)
