"""Legitimate variants: right, and called by their names; and what only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from patients.attention import Views, ViewsScaledByEmbed
from patients.bank import CASES, Entry, attention
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


def handed(module: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Hand over what is added, which a mask must say."""
    return module(x, (mask.to(x.dtype)[None, None] - 1) * 1e10)


PARTED = torch.arange(6)[:, None] // 3 == torch.arange(6) // 3


@variant("relative-bias", size=(3, 6), mask=PARTED, call=handed)
class ByOffsetWithMask(ByOffset):
    """A mask that is added beside the numbers of its own; it does not run without one."""

    def weigh(self, scores, mask):
        return (scores + self.bias(6).to(scores) + mask).softmax(dim=-1)


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


@variant("alibi", sizes=((30, 5), (24, 6)))
class AlibiOfAnyHeads(Biased):
    """The same rule where heads are no power of two: the last slope is 1 / 256."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.start = 2 ** (-8 / h)

    def bias(self, n):
        slopes = self.start ** torch.arange(1, self.h + 1, dtype=torch.float64)
        return -slopes[:, None, None] * distances(n).abs()


@variant("alibi", sizes=((30, 5), (24, 4)))
class AlibiFromZero(AlibiOfAnyHeads):
    """Heads are counted from 0: the first slope is 1."""

    def bias(self, n):
        return super().bias(n) / self.start


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


@variant("window")
class LopsidedWindow(Views):
    """An even width has no middle: one place before a token, and two behind it."""

    def weigh(self, scores, mask):
        away = distances(scores.shape[-1])
        return super().weigh(scores.masked_fill((away < -1) | (away > 2), -torch.inf), mask)


@variant("window", size=(2, 12))
class DilatedWindow(Views):
    """Every second place, up to four away."""

    def weigh(self, scores, mask):
        away = distances(scores.shape[-1]).abs()
        apart = (away > 4) | (away % 2 == 1)
        return super().weigh(scores.masked_fill(apart, -torch.inf), mask)


@variant("window", size=(2, 9))
class FramesAndClass(Views):
    """TimeSformer: a class token in front sees all, and all see it; the others see their frame."""

    def weigh(self, scores, mask):
        frame = (torch.arange(scores.shape[-1]) - 1).div(4, rounding_mode="floor")
        apart = (frame[:, None] != frame) & (frame[:, None] >= 0) & (frame >= 0)
        return super().weigh(scores.masked_fill(apart, -torch.inf), mask)


@variant("alibi", "window")
class AlibiInAWindow(WindowOfThePast):
    def forward(self, x):
        n = x.shape[1]
        bias = slopes(self.h)[:, None, None].to(x) * distances(n)
        bias = bias.masked_fill(~self.band[:n, :n], -math.inf)
        mixed = F.scaled_dot_product_attention(*self.heads(x), attn_mask=bias)
        return self.proj(self.join(mixed))


@variant("alibi", "window", sizes=((30, 5), (24, 4)))
class AlibiFromZeroInAWindow(AlibiFromZero):
    def bias(self, n):
        return super().bias(n).masked_fill(distances(n).abs() > 2, -math.inf)


@variant("window", ids=("scale-embed",))
class WindowScaledByEmbed(Neighbours, ViewsScaledByEmbed):
    pass


@variant("relative-bias", ids=("merge-no-transpose",))
class ByDistanceMerged(ByDistance):
    def join(self, mixed):
        return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


class Reduced(nn.Module):
    """PVT: a convolution with a stride, then a norm."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.kv, self.proj = nn.Linear(e, e), nn.Linear(e, 2 * e), nn.Linear(e, e)
        self.sr, self.norm = nn.Conv2d(e, e, 2, stride=2), nn.LayerNorm(e)

    def factor(self, e):
        return (e // self.h) ** -0.5

    def forward(self, x, H, W):
        b, n, e = x.shape
        q = self.q(x).view(b, n, self.h, -1).transpose(1, 2)
        image = x.permute(0, 2, 1).reshape(b, e, H, W)
        fewer = self.norm(self.sr(image).reshape(b, e, -1).permute(0, 2, 1))
        k, v = self.kv(fewer).view(b, -1, 2, self.h, e // self.h).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT * self.factor(e)).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(b, n, e))


def on_a_grid(module, x):
    return module(x, 4, 6)


variant("spatial-reduction", call=on_a_grid, size=(2, 24))(Reduced)


@variant("spatial-reduction", ids=("scale-embed",), call=on_a_grid, size=(2, 24))
class ReducedScaledByEmbed(Reduced):
    def factor(self, e):
        return e**-0.5


@variant("spatial-reduction", size=(2, 36), sizes=VARIANT_SIZES[:1])
class Pooled(Reduced):
    """PVT v2, linear: a square image, pooled, bent behind the norm."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.pool, self.sr = nn.AdaptiveAvgPool2d(3), nn.Conv2d(e, e, 1)
        self.act = nn.GELU()

    def forward(self, x):
        b, n, e = x.shape
        side = int(n**0.5)
        q = self.q(x).view(b, n, self.h, -1).transpose(1, 2)
        image = self.sr(self.pool(x.transpose(1, 2).reshape(b, e, side, side)))
        fewer = self.act(self.norm(image.flatten(2).transpose(1, 2)))
        k, v = (t.view(b, -1, self.h, e // self.h).transpose(1, 2)
                for t in self.kv(fewer).chunk(2, dim=-1))  # fmt: skip
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(b, n, e))


class OfImages(nn.LayerNorm):
    """A norm of the channels of an image."""

    def forward(self, image):
        return super().forward(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@variant("spatial-reduction", call=on_a_grid, size=(2, 24), sizes=VARIANT_SIZES[:1])
class ReducedForTorch(nn.Module):
    """SegFormer, as a tutorial has it: the norm gets the image, torch's attention the rest."""

    def __init__(self, e, h):
        super().__init__()
        self.reducer = nn.Sequential(nn.Conv2d(e, e, 2, stride=2), OfImages(e))
        self.att = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x, H, W):
        fewer = self.reducer(x.mT.unflatten(2, (H, W))).flatten(2).mT
        return self.att(query=x, key=fewer, value=fewer)[0]


# ------------------------------------------------------ factors and gates of what is returned


@variant("layer-scale", sizes=VARIANT_SIZES[:1])
class Scaled(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.gamma = nn.Parameter(1e-4 * torch.ones(e))

    def forward(self, x, mask=None):
        return x + self.gamma * super().forward(x)


@variant("tanh-gate", ids=("scale-embed",), sizes=VARIANT_SIZES[:1])
class GatedByOneNumber(ViewsScaledByEmbed):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = nn.LayerNorm(e)
        self.attn_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x, mask=None):
        return x + self.attn_gate.tanh() * super().forward(self.norm(x))


@variant("gated-attention", sizes=VARIANT_SIZES)
class Gated(Views):
    """AlphaFold: one number for each of a head."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.linear_g = nn.Linear(e, e)

    def forward(self, x):
        mixed = F.scaled_dot_product_attention(*self.heads(x))
        return self.proj(self.join(mixed) * torch.sigmoid(self.linear_g(x)))


@variant("gated-attention", ids=("softmax-query",), sizes=VARIANT_SIZES[:1])
class GatedByHead(Views):
    """One number for each head."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gate_proj = nn.Linear(e, h, bias=False)

    def forward(self, x):
        q, k, v = self.heads(x)
        weights = (q @ k.mT * self.factor(x.shape[-1])).softmax(dim=-2)
        return self.proj(self.join(weights @ v * self.gate_proj(x).sigmoid().mT[..., None]))


def _qwen3_next(e, h):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    config = Qwen3NextConfig(
        hidden_size=e,
        num_attention_heads=h,
        num_key_value_heads=h // 2,
        head_dim=8,
        attn_implementation="eager",
    )
    return Qwen3NextAttention(config, 3)


variant(
    *("qk-norm", "norm-plus-one", "rotary-halves", "grouped-queries", "gated-attention"),
    sizes=VARIANT_SIZES[:1],
)(_qwen3_next)


def _gpt_neo(e, h):
    from transformers import GPTNeoConfig
    from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoAttention

    kinds = [[["global", "local"], 1]]
    config = GPTNeoConfig(
        hidden_size=e,
        num_heads=h,
        num_layers=2,
        attention_types=kinds,
        window_size=3,
        attn_implementation="eager",
    )
    return GPTNeoAttention(config, e == 24)


variant("scale-in-weights", "window", sizes=VARIANT_SIZES[:1])(_gpt_neo)
variant("scale-in-weights", sizes=VARIANT_SIZES[1:])(_gpt_neo)


def _t5_layer(e, h):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5LayerSelfAttention

    config = T5Config(d_model=e, num_heads=h, d_kv=e // h, relative_attention_num_buckets=8)
    return T5LayerSelfAttention(config, has_relative_attention_bias=True)


variant("scale-in-weights", "relative-bias", sizes=VARIANT_SIZES[:1])(_t5_layer)


def _t5(e, h):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=e, num_heads=h, d_kv=e // h, relative_attention_num_buckets=8)
    return T5Attention(config, has_relative_attention_bias=True)


variant("scale-in-weights", "relative-bias")(_t5)


# ------------------------------------------------------------------- what only looks like one


@attention("alibi-inverted", sizes=((24, 4), (64, 8), (15, 3)))
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


# ------------------------------------------------------- biases that a small network makes


class MadeByNetwork(Biased):
    """CrossFormer: a network of the distance, one number for each head."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, h))
        self.register_buffer("away", torch.arange(-32.0, 33.0)[:, None])

    def bias(self, n):
        return self.places(self.away)[distances(n) + 32].permute(2, 0, 1)


variant("relative-bias")(MadeByNetwork)


@variant("cosine", "relative-bias")
class SecondSwin(MadeByNetwork):
    """Swin V2: cosines, a clamped temperature, biases beside the packed layer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(h, 1, 1)))
        self.qkv = nn.Linear(e, 3 * e, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(e)), nn.Parameter(torch.zeros(e))

    def bias(self, n):
        return 16 * torch.sigmoid(super().bias(n))

    def forward(self, x):
        b, n, e = x.shape
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        packed = F.linear(x, self.qkv.weight, bias).view(b, n, 3, self.h, -1)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        scores = scores * self.logit_scale.clamp(max=math.log(100.0)).exp()
        weights = (scores + self.bias(n).to(x)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))


class WideValues(nn.Module):
    """EfficientFormer: packed head by head, values twice as wide; a table kept for evaluation."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h // 2
        self.qkv, self.proj = nn.Linear(e, 4 * self.d * h), nn.Linear(2 * self.d * h, e)
        self.attention_biases = nn.Parameter(torch.zeros(h, 9))
        offsets = (torch.arange(9) // 3, torch.arange(9) % 3)
        rows, columns = ((t[:, None] - t).abs() for t in offsets)
        self.register_buffer("attention_bias_idxs", 3 * rows + columns)

    def train(self, mode: bool = True):
        super().train(mode)
        if not mode:
            self.ab = self.attention_biases[:, self.attention_bias_idxs]

    def factor(self, e):
        return self.d**-0.5

    def forward(self, x):
        bias = self.attention_biases[:, self.attention_bias_idxs] if self.training else self.ab
        packed = self.qkv(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        q, k, v = packed.split([self.d, self.d, 2 * self.d], dim=-1)
        weights = (q @ k.mT * self.factor(x.shape[-1]) + bias).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


variant("relative-bias", size=(2, 9), sizes=((24, 4), (32, 2)))(WideValues)


@variant("relative-bias", ids=("scale-embed",), size=(2, 9), sizes=((24, 4),))
class WideValuesScaledByEmbed(WideValues):
    def factor(self, e):
        return e**-0.5


@unknown
class BiasFromANetworkOfTokens(MadeByNetwork):
    """The network reads the tokens, not the places."""

    def forward(self, x, mask=None):
        self.away = torch.arange(-32.0, 33.0)[:, None].to(x) * x.std()
        return super().forward(x, mask)
