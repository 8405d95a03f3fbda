"""Cross-attention: two families of it, their mistakes, and those of other projects' classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from patients.attention import Views
from patients.bank import SIZES, attention
from utils.attention import MultiHeadAttention
from utils.masking import padding_mask

CROSSED = ((24, 4), (15, 3), (7, 1))

# ------------------------------------------------------------------- two families, both healthy


class Packed(nn.Module):
    """to_q and to_kv, all heads at once; forward(x, context)."""

    def __init__(self, e: int, h: int, c: int | None = None):
        super().__init__()
        self.h = h
        self.to_q = nn.Linear(e, e, bias=False)
        self.to_kv = nn.Linear(c or e, 2 * e, bias=False)
        self.to_out = nn.Linear(e, e)

    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, context, context

    def scale(self, e: int) -> float:
        return (e // self.h) ** -0.5

    def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)

    def split(self, t: Tensor) -> Tensor:
        return rearrange(t, "b n (h d) -> b h n d", h=self.h)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        asks, keyed, valued = self.sides(x, context)
        q, k = self.split(self.to_q(asks)), self.split(self.to_kv(keyed).chunk(2, -1)[0])
        v = self.split(self.to_kv(valued).chunk(2, -1)[1])
        weights = self.weigh(q @ k.mT * self.scale(self.to_q.out_features), mask)
        return self.to_out(rearrange(weights @ v, "b h n d -> b n (h d)"))


class Apart(nn.Module):
    """Four layers, head by head; forward(query, key, value)."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.heads, self.d_k = h, e // h
        self.w_q, self.w_k, self.w_v, self.fc = (nn.Linear(e, e) for _ in range(4))

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        return self.w_q(query), self.w_k(key), self.w_v(value)

    def root(self) -> float:
        return math.sqrt(self.d_k)

    def forward(self, query, key, value, mask=None):
        mixed = []
        parts = (t.split(self.d_k, dim=-1) for t in self.projected(query, key, value))
        for q, k, v in zip(*parts, strict=True):
            scores = torch.einsum("bid,bjd->bij", q, k) / self.root()
            if mask is not None:
                scores = scores.masked_fill(mask[:, 0] == 0, -1e9)
            mixed.append(torch.bmm(F.softmax(scores, dim=-1), v))
        return self.fc(torch.cat(mixed, dim=-1)), None


def context_padding(seed: int) -> Tensor:
    return padding_mask(torch.tensor([4, 8]), 8)


def rectangle(seed: int) -> Tensor:
    """Three samples, five queries, each of which sees other ones of seven keys."""
    allow = torch.rand(3, 1, 5, 7, generator=torch.Generator().manual_seed(seed)) < 0.5
    allow[..., 0] = True
    return allow


for _make in (Packed, Apart):
    attention(context=True, sizes=SIZES)(_make)
    for _mask in (context_padding, rectangle):
        _name = f"{_make.__name__}_{_mask.__name__}"
        attention(context=True, mask=_mask, sizes=CROSSED)(type(_name, (_make,), {}))
attention(context=11, sizes=CROSSED)(type("PackedWide", (Packed,), {
    "__init__": lambda self, e, h: Packed.__init__(self, e, h, 11)}))  # fmt: skip
attention(context=(4, 11), sizes=CROSSED)(type("PackedWideShort", (Packed,), {
    "__init__": lambda self, e, h: Packed.__init__(self, e, h, 11)}))  # fmt: skip


def _course(e, h):
    return MultiHeadAttention(e, h)


def _torch(e, h):
    return nn.MultiheadAttention(e, h, batch_first=True)


def _torch_second(e, h):
    return nn.MultiheadAttention(e, h, kdim=10, vdim=10)


attention(context=True)(_course)
attention(context=True, mask=context_padding)(_course)
attention(context=True, mask=rectangle)(_course)
attention(context=True)(_torch)
attention(context=True, mask=rectangle, sizes=CROSSED)(_torch)
attention(context=True, mask=context_padding, sizes=CROSSED)(_torch)
attention(context=10, sizes=CROSSED)(_torch_second)


def _bert_cross(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    config = BertConfig(hidden_size=e, num_attention_heads=h, is_decoder=True)
    config._attn_implementation = "eager"
    return BertAttention(config, is_cross_attention=True)


attention(context=True, sizes=CROSSED)(_bert_cross)


@attention(context=True, sizes=CROSSED)
class ValuesFirst(Apart):
    """The order of its arguments is its own."""

    def forward(self, values, keys, query, mask):
        return super().forward(query, keys, values, mask)


@attention(context=True, sizes=CROSSED)
class ByMemory(Packed):
    def forward(self, x, memory, src_mask=None):
        return super().forward(x, memory, src_mask)


@attention(context=True, sizes=CROSSED)
class NamesThatSayNothing(Packed):
    """The second argument asks, and no name says so."""

    def forward(self, a, b):
        return super().forward(b, a)


@attention(context=True, sizes=CROSSED)
class NormsOfBothSides(Packed):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.norm, self.norm_context = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, context):
        return super().forward(self.norm(x), self.norm_context(context))


@attention(context=True, sizes=CROSSED)
class WithResidual(nn.Module):
    """layer_norm(q + attention(q, k, v)), as in one of the first translations to PyTorch."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.attention, self.layer_norm = Apart(d_model, n_head), nn.LayerNorm(d_model)

    def forward(self, q, k, v, mask=None):
        return self.layer_norm(q + self.attention(q, k, v, mask)[0])


# ------------------------------------------------------------------------------- the wrong side


@attention("cross-ignored", context=True, sizes=CROSSED)
class PackedIgnores(Packed):
    def sides(self, x, context):
        return x, x, x


class Rotary(nn.Module):
    """Turns the first numbers, neighbours together, along the axis before the last."""

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("freqs", 10_000.0 ** -(torch.arange(0, width, 2) / width).double())

    def forward(self, t):
        wide = 2 * len(self.freqs)
        angles = torch.arange(t.shape[-2]).to(t)[:, None] * self.freqs.to(t)
        turned = torch.view_as_complex(t[..., :wide].unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angles), angles))
        return torch.cat([turned.flatten(-2), t[..., wide:]], dim=-1)


@attention("rotary-before-split", context=True, sizes=((24, 4), (64, 8)))
class PackedTurnedInPart(Packed):
    """Half of all numbers are turned before they are split: the last heads are not."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rotary_emb = Rotary(e // 2)

    def forward(self, x, context):
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, -1)
        q, k, v = (self.split(t) for t in (self.rotary_emb(q), self.rotary_emb(k), v))
        weights = self.weigh(q @ k.mT * self.scale(self.to_q.out_features), None)
        return self.to_out(rearrange(weights @ v, "b h n d -> b n (h d)"))


@attention("rotary-before-split", sizes=((24, 4), (64, 8)))
class ViewsTurnedByOneHead(Views):
    """The angles of one head are enough for the first one only."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rotary = Rotary(e // h)

    def heads(self, x):
        q, k, v = (t.transpose(1, 2).flatten(2) for t in super().heads(x))
        split = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in map(self.rotary, (q, k)))
        return *split, rearrange(v, "b n (h d) -> b h n d", h=self.h)


@attention("cross-ignored", context=True, sizes=CROSSED)
class ApartIgnores(Apart):
    def projected(self, query, key, value):
        return super().projected(query, query, query)


@attention("cross-keys", context=True, sizes=CROSSED)
class PackedKeys(Packed):
    """Runs for contexts that are as long as the tokens only."""

    def sides(self, x, context):
        return x, x, context


@attention("cross-keys", context=True, sizes=CROSSED)
class ApartKeys(Apart):
    def projected(self, query, key, value):
        return self.w_q(query), self.w_k(query), self.w_v(value)


@attention("cross-values", context=True, sizes=CROSSED)
class PackedValues(Packed):
    def sides(self, x, context):
        return x, context, x


@attention("cross-values", context=True, sizes=CROSSED)
class ApartValues(Apart):
    def projected(self, query, key, value):
        return self.w_q(query), self.w_k(key), self.w_v(query)


@attention("cross-queries", context=True, sizes=CROSSED)
class PackedQueries(Packed):
    def sides(self, x, context):
        return context, context, context


@attention("cross-queries", context=True, sizes=CROSSED)
class ApartQueries(Apart):
    def projected(self, query, key, value):
        return super().projected(key, key, value)


@attention("cross-swapped", context=True, sizes=CROSSED)
class PackedSwapped(Packed):
    def sides(self, x, context):
        return context, x, x


@attention("cross-swapped", context=True, sizes=CROSSED)
class ApartSwapped(Apart):
    def projected(self, query, key, value):
        return super().projected(key, query, query)


@attention("cross-queries", "cross-values", context=True, sizes=CROSSED)
class ApartQueriesAndValues(Apart):
    def projected(self, query, key, value):
        return super().projected(key, key, query)


# ------------------------------------------------ mistakes of every attention, across two sides


@attention("scale-embed", context=True, sizes=CROSSED[:2])
class PackedScaledByEmbed(Packed):
    def scale(self, e):
        return e**-0.5


@attention("scale-missing", "cross-ignored", context=True, sizes=CROSSED)
class ApartUnscaledIgnores(ApartIgnores):
    def root(self):
        return 1.0


@attention("split-no-transpose", context=True, sizes=CROSSED[:2])
class PackedSplit(Packed):
    def split(self, t):
        b, n, e = t.shape
        return t.reshape(b, self.h, n, e // self.h)


@attention("softmax-query", context=True, sizes=CROSSED)
class PackedSoftmaxQuery(Packed):
    def weigh(self, scores, mask):
        return scores.softmax(-2)


@attention("mask-dropped", context=True, mask=context_padding, sizes=CROSSED)
class PackedMaskDropped(Packed):
    def weigh(self, scores, mask):
        return scores.softmax(-1)


@attention("mask-inverted", context=True, mask=rectangle, sizes=CROSSED)
class ApartMaskInverted(Apart):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, None if mask is None else ~mask)


@attention("mask-multiply", context=True, mask=rectangle, sizes=CROSSED, also=(("mask-tiny",),))
class PackedMaskMultiply(Packed):
    def weigh(self, scores, mask):
        return (scores if mask is None else scores * mask).softmax(-1)


@attention(context=40, sizes=((24, 4), (15, 3)))
class UncustomaryNames(nn.Module):
    """A context of another width, and layers whose names follow no custom."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h = h
        self.first_map, self.last_map = nn.Linear(e, e, bias=False), nn.Linear(e, e, bias=False)
        self.second_map, self.third_map = (nn.Linear(40, e, bias=False) for _ in range(2))

    def forward(self, asks: Tensor, told: Tensor) -> Tensor:
        made = self.first_map(asks), self.second_map(told), self.third_map(told)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.h) for t in made)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.last_map(rearrange(mixed, "b h n d -> b n (h d)"))


# ------------------------------------------- without a word of a context: it is tried all the same

for _sick, _ids in (
    (PackedIgnores, ("cross-ignored",)),
    (ApartKeys, ("cross-keys",)),
    (ApartValues, ("cross-values",)),
    (PackedSwapped, ("cross-swapped",)),
):
    attention(*_ids, sizes=CROSSED[:1])(type(f"{_sick.__name__}Unsaid", (_sick,), {}))
