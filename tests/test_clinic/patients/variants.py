"""Legitimate variants: right, and called by their names; and what only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from patients.attention import Views, ViewsScaledByEmbed
from patients.bank import CASES, Entry
from patients.unknown import unknown

VARIANT_SIZES = ((24, 4), (15, 3))


def variant(*names: str, ids: tuple[str, ...] = (), sizes: tuple = VARIANT_SIZES, **options):
    """Enter an attention whose report must name these variants."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            report = diagnose(make(e, h), h, **options)
            assert tuple(v.id for v in report.variants) == names, report
            return report

        CASES.append(Entry(make.__name__, ids, examine, sizes=sizes))
        return make

    return enter


class Biased(Views):
    """Adds something to the scores that depends on the places only."""

    def bias(self, n: int) -> Tensor:
        raise NotImplementedError

    def weigh(self, scores, mask):
        return super().weigh(scores + self.bias(scores.shape[-1]).to(scores), mask)


def distances(n: int) -> Tensor:
    return torch.arange(n)[None, :] - torch.arange(n)[:, None]


@variant("relative-bias")
class ByDistance(Biased):
    """One number for every distance and head, as T5 for short ones."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative = nn.Embedding(64, h)

    def bias(self, n):
        return self.relative(distances(n) + 32).permute(2, 0, 1)


@variant("relative-bias")
class ByBucket(Biased):
    """Distances above 2 share a number; the table has the heads first."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.table = nn.Parameter(torch.zeros(h, 5))

    def bias(self, n):
        return self.table[:, distances(n).clamp(-2, 2) + 2]


@variant("relative-bias", size=(3, 6))
class ByOffset(Biased):
    """Six places are two rows of three, as in a window of Swin."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(15, h))
        rows, columns = torch.arange(6) // 3, torch.arange(6) % 3
        offset = (rows[:, None] - rows + 1) * 5 + columns[:, None] - columns + 2
        self.register_buffer("index", offset)

    def bias(self, n):
        return self.relative_position_bias_table[self.index].permute(2, 0, 1)


@variant("position-bias")
class ByPlaces(Biased):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.pairs = nn.Parameter(torch.zeros(1, h, 32, 32))

    def bias(self, n):
        return self.pairs[:, :, :n, :n]


def slopes(h: int) -> Tensor:
    if math.log2(h).is_integer():
        return torch.tensor([2 ** (-8 * (k + 1) / h) for k in range(h)])
    whole = 2 ** math.floor(math.log2(h))
    return torch.cat([slopes(whole), slopes(2 * whole)[0::2][: h - whole]])


@variant("alibi")
class Alibi(Biased):
    """Both directions alike."""

    def bias(self, n):
        return -slopes(self.h)[:, None, None] * distances(n).abs()


@variant("alibi", causal=True)
@variant("alibi")
class AlibiOfThePast(Views):
    """The slope times the place of the key, as BLOOM writes it."""

    def weigh(self, scores, mask):
        n = scores.shape[-1]
        bias = slopes(self.h)[:, None, None].to(scores) * torch.arange(n)
        past = torch.ones(n, n).tril().bool()
        return F.softmax((scores + bias).masked_fill(~past, -math.inf), dim=-1)


@variant("window")
class Neighbours(Biased):
    def bias(self, n):
        return torch.zeros(n, n).masked_fill(distances(n).abs() > 2, -math.inf)


@variant("window", causal=True)
class WindowOfThePast(Views):
    """The fused kernel with a band of its own in a buffer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        band = (distances(64) <= 0) & (distances(64) > -3)
        self.register_buffer("band", band)

    def forward(self, x):
        n = x.shape[1]
        mixed = F.scaled_dot_product_attention(*self.heads(x), attn_mask=self.band[:n, :n])
        return self.proj(self.join(mixed))


@variant("alibi", "window")
class AlibiInAWindow(WindowOfThePast):
    def forward(self, x):
        n = x.shape[1]
        bias = slopes(self.h)[:, None, None].to(x) * distances(n)
        bias = bias.masked_fill(~self.band[:n, :n], -math.inf)
        mixed = F.scaled_dot_product_attention(*self.heads(x), attn_mask=bias)
        return self.proj(self.join(mixed))


@variant("window", ids=("scale-embed",))
class WindowScaledByEmbed(Neighbours, ViewsScaledByEmbed):
    pass


@variant("relative-bias", ids=("merge-no-transpose",))
class ByDistanceMerged(ByDistance):
    def join(self, mixed):
        return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


def _t5(e, h):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=e, num_heads=h, d_kv=e // h, relative_attention_num_buckets=8)
    return T5Attention(config, has_relative_attention_bias=True)


variant("scale-in-weights", "relative-bias")(_t5)


# ------------------------------------------------------------------- what only looks like one


@unknown
class SlopesUpwards(Biased):
    """Far tokens are preferred: the sign of ALiBi is wrong."""

    def bias(self, n):
        return slopes(self.h)[:, None, None] * distances(n).abs()


@unknown
class WindowWithoutItself(Biased):
    def bias(self, n):
        blocked = (distances(n).abs() > 2) | (distances(n) == 0)
        return torch.zeros(n, n).masked_fill(blocked, -math.inf)


@unknown
class BiasOfTheTokens(ByDistance):
    """The bias depends on what the tokens are."""

    def forward(self, x, mask=None):
        self.size = x.norm()
        return super().forward(x, mask)

    def bias(self, n):
        return super().bias(n) * self.size


@unknown
class BiasFromNowhere(Biased):
    """No parameter holds its numbers."""

    def bias(self, n):
        return torch.cos(1.7 * distances(n))
