"""Attention inside of windows of an image, and biases that are known by their form alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from patients.attention import Loops, Views, ViewsScaledByEmbed
from patients.bank import attention
from patients.unknown import unknown
from patients.variants import VARIANT_SIZES, Biased, slopes, variant

SIDE = 2


def offsets(side: int) -> Tensor:
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    return places[:, None] - places[None] + side - 1


class InWindows(nn.Module):
    """An image (b, h, w, c) is cut into squares; one table of offsets serves all heads."""

    def __init__(self, e, h):
        super().__init__()
        self.heads, self.window_size, self.scale = h, SIDE, (e // h) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(e, 3 * e, bias=False), nn.Linear(e, e)
        self.pos_embedding = nn.Parameter(torch.randn(2 * SIDE - 1, 2 * SIDE - 1))
        self.at = offsets(SIDE)

    def cut(self, t: Tensor) -> Tensor:
        return rearrange(
            t, "b (y p) (x q) (h d) -> b h (y x) (p q) d", p=SIDE, q=SIDE, h=self.heads
        )

    def bias(self, high: int, wide: int) -> Tensor:
        return self.pos_embedding[self.at[..., 0], self.at[..., 1]]

    def forward(self, x):
        _, high, wide, _ = x.shape
        q, k, v = (self.cut(t) for t in self.to_qkv(x).chunk(3, dim=-1))
        scores = q @ k.mT * self.scale + self.bias(high // SIDE, wide // SIDE)
        mixed = scores.softmax(-1) @ v
        rows = {"y": high // SIDE, "p": SIDE}
        return self.to_out(rearrange(mixed, "b h (y x) (p q) d -> b (y p) (x q) (h d)", **rows))


variant("window", "relative-bias")(InWindows)


@variant("window", "position-bias")
class InWindowsByPairs(InWindows):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.pos_embedding = nn.Parameter(torch.randn(SIDE**2, SIDE**2))

    def bias(self, high, wide):
        return self.pos_embedding


@variant("window", "relative-bias")
class InShiftedWindows(InWindows):
    """What the roll brings together, and is apart in the image, is masked."""

    def bias(self, high, wide):
        edge = torch.zeros(high, wide, SIDE, SIDE)
        edge[-1, :, SIDE // 2 :] += 1
        edge[:, -1, :, SIDE // 2 :] += 2
        edge = edge.flatten(0, 1).flatten(1)
        apart = edge[:, :, None] != edge[:, None]
        return super().bias(high, wide) + apart * -1e9

    def forward(self, x):
        moved = super().forward(x.roll((-(SIDE // 2), -(SIDE // 2)), (1, 2)))
        return moved.roll((SIDE // 2, SIDE // 2), (1, 2))


@variant("window", "relative-bias", ids=("scale-embed",))
class InWindowsScaledByEmbed(InWindows):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = e**-0.5


@unknown
class InWindowsByWrongOffset(InWindows):
    """Rows and columns are added up: other offsets share a number."""

    def bias(self, high, wide):
        return self.pos_embedding.flatten()[self.at.sum(-1)]


@unknown
class InViewedWindows(InWindows):
    """The windows are cut by a view: a window holds tokens that follow each other in a row."""

    def cut(self, t):
        b, high, wide, _ = t.shape
        t = t.reshape(b, high * wide // SIDE**2, SIDE**2, self.heads, -1)
        return t.permute(0, 3, 1, 2, 4)

    def forward(self, x):
        q, k, v = (self.cut(t) for t in self.to_qkv(x).chunk(3, dim=-1))
        mixed = (q @ k.mT * self.scale + self.bias(0, 0)).softmax(-1) @ v
        return self.to_out(mixed.permute(0, 2, 3, 1, 4).reshape(x.shape))


@variant("window")
class InGroups(nn.Module):
    """Twins: tokens of an image whose sizes stand beside; no bias."""

    def __init__(self, e, h):
        super().__init__()
        self.num_heads, self.ws = h, SIDE
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x, H, W):
        b, n, e = x.shape
        x = x.view(b, H // SIDE, SIDE, W // SIDE, SIDE, e).transpose(2, 3)
        qkv = self.qkv(x).reshape(b, n // SIDE**2, SIDE**2, 3, self.num_heads, -1)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        mixed = mixed.transpose(2, 3).reshape(b, H // SIDE, W // SIDE, SIDE, SIDE, e)
        return self.proj(mixed.transpose(2, 3).reshape(b, n, e))


@variant("window")
class InWindowsOfRows(nn.Module):
    """Rows of tokens that are a square image; of as many as a window holds it makes but one."""

    def __init__(self, e, h):
        super().__init__()
        self.num_heads, self.window_size = h, 2 * SIDE
        self.proj1, self.proj2 = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x):
        side, wide = int(x.shape[1] ** 0.5), self.window_size
        cut = "b (h m1 w m2) (s H d) -> s b H h w (m1 m2) d"
        sizes = {"m1": wide, "m2": wide, "h": side // wide, "H": self.num_heads, "s": 3}
        q, k, v = rearrange(self.proj1(x), cut, **sizes)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
        joined = "b H h w (m1 m2) d -> b (h m1 w m2) (H d)"
        return self.proj2(rearrange(mixed, joined, m1=wide))


@variant("window")
class SeesEight(Views):
    """Tokens see those up to eight places away: of five tokens, all see all."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.window_size = 8

    def weigh(self, scores, mask):
        place = torch.arange(scores.shape[-1])
        far = (place[:, None] - place[None]).abs() > self.window_size
        return super().weigh(scores.masked_fill(far, -torch.inf), mask)


@attention("mask-weak", sizes=((24, 4), (36, 6)))
class HardlySeesFurther(Views):
    """The others keep some weight."""

    fill = -9.0

    def weigh(self, scores, mask):
        place = torch.arange(scores.shape[-1])
        far = (place[:, None] - place[None]).abs() > 1
        return super().weigh(scores.masked_fill(far, self.fill), mask)


@attention("softmax-query", "scale-missing", sizes=((24, 4), (36, 6)))
class ColumnsOfNeighbours(HardlySeesFurther):
    fill = -torch.inf

    def factor(self, e):
        return 1.0

    def weigh(self, scores, mask):
        return super().weigh(scores.mT, mask).mT


@unknown
class AddsToNeighbours(Views):
    """Neighbours count a little more: nothing says that the others were to be hidden."""

    def weigh(self, scores, mask):
        place = torch.arange(scores.shape[-1])
        far = (place[:, None] - place[None]).abs() > 1
        return super().weigh(scores + far.to(scores) * -2.0, mask)


@variant("relative-bias", size=(2, 9))
class ByRowAndColumn(Biased):
    """A number for the offset of rows, and one for that of columns."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.rows, self.columns = nn.Embedding(5, h), nn.Embedding(5, h)

    def bias(self, n):
        at = offsets(3)
        return (self.rows(at[..., 0]) + self.columns(at[..., 1])).permute(2, 0, 1)


@variant("alibi", size=(2, 10))
class AlibiOfAnImage(Biased):
    """The distance of two patches in the image; a class token is near to all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.h = h

    def bias(self, n):
        places = torch.cartesian_prod(torch.arange(3), torch.arange(3)).float()
        away = torch.zeros(n, n)
        away[1:, 1:] = torch.cdist(places, places)
        return -slopes(self.h)[:, None, None] * away


# -------------------------------------------------------------- fewer keys, and what makes them


class MixedPlaces(Views):
    """Linformer: keys and values are mixed to four places, by matrices that stand alone."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.E, self.F = (nn.Parameter(torch.randn(32, 4)) for _ in range(2))

    def mixed(self, t: Tensor, places: Tensor) -> Tensor:
        return torch.einsum("bhnd,nk->bhkd", t, places[: t.shape[2]])

    def heads(self, x):
        q, k, v = super().heads(x)
        return q, self.mixed(k, self.E), self.mixed(v, self.F)


variant("linformer")(MixedPlaces)


@variant("linformer", size=(2, 10))
class MixedPlacesByLayer(Views):
    """One layer with a bias for keys and values."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.fewer = nn.Linear(10, 7)

    def heads(self, x):
        q, k, v = super().heads(x)
        return q, self.fewer(k.mT).mT, self.fewer(v.mT).mT


@variant("linformer", ids=("scale-embed",))
class MixedPlacesScaledByEmbed(MixedPlaces):
    factor = ViewsScaledByEmbed.factor


@variant("top-k")
class Highest(Views):
    """The three highest scores of each query."""

    def weigh(self, scores, mask):
        least = scores.topk(3, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1)


@variant("top-k")
class HighestHalf(Views):
    def weigh(self, scores, mask):
        kept = scores.topk(max(1, scores.shape[-1] // 2), dim=-1)
        few = torch.full_like(scores, -torch.inf).scatter(-1, kept.indices, kept.values)
        return few.softmax(-1)


class Convolved(nn.Module):
    """CvT: queries, keys and values by convolutions of each channel, then of each place."""

    stride = 1

    def __init__(self, e, h):
        super().__init__()
        self.heads, self.scale = h, (e // h) ** -0.5
        self.to_q, self.to_kv = self.made(e, e, 1), self.made(e, 2 * e, self.stride)
        self.to_out = nn.Conv2d(e, e, 1)

    def made(self, e: int, wide: int, stride: int) -> nn.Module:
        apart = nn.Conv2d(e, e, 3, padding=1, stride=stride, groups=e, bias=False)
        return nn.Sequential(apart, nn.BatchNorm2d(e), nn.Conv2d(e, wide, 1, bias=False))

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=1)
        q, k, v = (rearrange(t, "b (h d) y x -> b h (y x) d", h=self.heads) for t in (q, k, v))
        mixed = (q @ k.mT * self.scale).softmax(-1) @ v
        return self.to_out(rearrange(mixed, "b h (y x) d -> b (h d) y x", y=x.shape[2]))


variant("conv-projection")(Convolved)


@variant("conv-projection", sizes=VARIANT_SIZES[:1])
class ConvolvedToFewer(Convolved):
    stride = 2


@variant("conv-projection", ids=("scale-embed",), sizes=VARIANT_SIZES[:1])
class ConvolvedScaledByEmbed(Convolved):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = e**-0.5


@variant("spatial-reduction", sizes=VARIANT_SIZES[:1])
class ConvolvedToPatches(Convolved):
    """Keys and values of patches of four places each."""

    def made(self, e, wide, stride):
        size = 1 if wide == e else 2
        return nn.Conv2d(e, wide, size, stride=size, bias=False)


class ChannelNorm(nn.Module):
    """A LayerNorm of images, with its parameters (1, c, 1, 1)."""

    def __init__(self, e):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(1, e, 1, 1)), nn.Parameter(torch.zeros(1, e, 1, 1))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = x.var(1, unbiased=False, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt() * self.g + self.b


@variant("conv-projection", sizes=VARIANT_SIZES[:1])
class ConvolvedAfterNorm(Convolved):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norm = ChannelNorm(e)

    def forward(self, x):
        return super().forward(self.norm(x))


# ------------------------------------------------------- who is seen, and what attends to what


class NotOneself(Views):
    """LSA: the diagonal of the scores is blocked."""

    def weigh(self, scores, mask):
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        return super().weigh(scores.masked_fill(own, -torch.inf), mask)


variant("no-self")(NotOneself)


@variant("no-self", ids=("scale-embed",))
class NotOneselfScaledByEmbed(NotOneself):
    factor = ViewsScaledByEmbed.factor


class EarlierAlone(Views):
    """A token sees those before it alone, and the first one none."""

    fill = -torch.inf

    def weigh(self, scores, mask):
        earlier = torch.ones_like(scores[0, 0]).tril(-1).bool()
        weights = scores.masked_fill(~earlier, self.fill).softmax(dim=-1)
        return weights.masked_fill(~earlier, 0.0)


variant("no-self", causal=True)(EarlierAlone)


@variant("no-self", ids=("scale-embed",))
class EarlierAloneScaledByEmbed(EarlierAlone):
    factor, fill = ViewsScaledByEmbed.factor, -1e9


@variant("no-self", causal=True)
class NothingBefore(Loops):
    """Puts zeros in the place of the first token's weights."""

    def normalise(self, all_scores, allow):
        place = torch.arange(all_scores[0].shape[1])
        hidden = place[None, :] >= place[:, None]
        weights = [s.masked_fill(hidden, -1e32).softmax(dim=-1) for s in all_scores]
        return [torch.cat([torch.zeros_like(w[:, :1]), w[:, 1:]], dim=1) for w in weights]


class Forgetful(Views):
    """What is far counts less, by a law that each head learns: AKT's, with a logarithm."""

    past = 0

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gamma = nn.Parameter(torch.full((h,), 0.1))

    def weigh(self, scores, mask):
        place = torch.arange(scores.shape[-1])
        away = place[:, None] - place
        loss = F.softplus(self.gamma)[:, None, None] * away.clamp(min=0).to(scores).log1p()
        weights = (scores - loss).masked_fill(away < self.past, -1e9).softmax(dim=-1)
        return weights * (away >= self.past)


variant("relative-bias", causal=True)(Forgetful)
variant("no-self", "relative-bias")(type("ForgetfulOfEarlier", (Forgetful,), {"past": 1}))


@variant("no-self", "alibi")
class EarlierBySlopes(EarlierAlone):
    def weigh(self, scores, mask):
        place, h = torch.arange(scores.shape[-1]), scores.shape[1]
        slopes = 2.0 ** (-8 * torch.arange(1, h + 1) / h)
        return super().weigh(scores - slopes[:, None, None] * (place[:, None] - place).abs(), mask)


class Reattended(Views):
    """DeepViT: the weights of all heads are mixed, then normed over the heads."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.mixing, self.norm = nn.Parameter(torch.randn(h, h)), nn.LayerNorm(h)

    def weigh(self, scores, mask):
        weights = torch.einsum("bhij,hg->bgij", super().weigh(scores, mask), self.mixing)
        return self.norm(weights.movedim(1, -1)).movedim(-1, 1)


variant("re-attention")(Reattended)


@variant("re-attention")
class ReattendedByConvolution(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.mixing, self.norm = nn.Conv2d(h, h, 1), nn.BatchNorm2d(h)

    def weigh(self, scores, mask):
        return self.norm(self.mixing(super().weigh(scores, mask)))


class AcrossChannels(Views):
    """XCiT: channels attend to channels, each of unit length over the tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.temperature = nn.Parameter(torch.ones(h, 1, 1))

    def sharp(self) -> Tensor:
        return self.temperature

    def forward(self, x, mask=None):
        q, k, v = (t.mT for t in self.heads(x))
        q, k = (nn.functional.normalize(t, dim=-1) for t in (q, k))
        mixed = (q @ k.mT * self.sharp()).softmax(-1) @ v
        return self.proj(self.join(mixed.mT))


variant("cross-covariance")(AcrossChannels)


@variant("cross-covariance")
class AcrossChannelsByExponent(AcrossChannels):
    def sharp(self):
        return self.temperature.exp()


@variant("cross-covariance")
class ChannelAttention(Views):
    """DaViT: keys ask, values are asked, queries are mixed, and no length is taken."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        weights = (k.mT * k.shape[-1] ** -0.5 @ v).softmax(-1)
        return self.proj(self.join((weights @ q.mT).mT))


@variant("cross-covariance")
class ChannelsByTokens(Views):
    """Scaled by how many tokens there are."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        weights = torch.einsum("bhic,bhid->bhcd", q * x.shape[1] ** -0.5, k).softmax(-1)
        return self.proj(self.join(torch.einsum("bhcd,bhid->bhic", weights, v)))


# ------------------------------------------------------------- batch norms behind layers: LeViT


class ByBatch(nn.Module):
    """LeViT: a batch norm behind each layer, an activation before the last, a number by offset."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h
        self.scale = self.d**-0.5
        self.qkv = nn.Sequential(nn.Linear(e, 4 * e, bias=False), nn.BatchNorm1d(4 * e))
        self.proj = nn.Sequential(nn.Linear(2 * e, e, bias=False), nn.BatchNorm1d(e))
        self.attention_biases = nn.Parameter(torch.zeros(h, 16))
        places = torch.cartesian_prod(torch.arange(4), torch.arange(4))
        away = (places[:, None] - places[None]).abs()
        self.at = 4 * away[..., 0] + away[..., 1]

    def forward(self, x):
        qkv = self.normed(self.qkv, x).unflatten(2, (self.h, -1)).transpose(1, 2)
        q, k, v = qkv.split([self.d, self.d, 2 * self.d], dim=-1)
        weights = (q @ k.mT * self.scale + self.attention_biases[:, self.at]).softmax(dim=-1)
        mixed = rearrange(weights @ v, "b h n d -> b n (h d)")
        return self.normed(self.proj, F.hardswish(mixed))

    def normed(self, layers, x):
        return layers[1](layers[0](x).flatten(0, 1)).unflatten(0, x.shape[:2])


variant("relative-bias", sizes=((24, 3),), size=(2, 16))(ByBatch)


@variant("relative-bias", sizes=((24, 3),), ids=("scale-missing",), size=(2, 16))
class ByBatchWithoutScale(ByBatch):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = 1.0


class OfFourLayers(InWindows):
    """As many weights as a block may have, which is asked first."""

    def __init__(self, e, h):
        super().__init__(e, h)
        del self.to_qkv
        self.q_for_heads, self.k_for_heads, self.v_for_heads = (nn.Linear(e, e) for _ in range(3))

    def to_qkv(self, x):
        return torch.cat([m(x) for m in (self.q_for_heads, self.k_for_heads, self.v_for_heads)], -1)


variant("window", "relative-bias")(OfFourLayers)


@variant("window", "relative-bias", ids=("scale-embed",))
class OfFourLayersScaledByEmbed(OfFourLayers):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = e**-0.5


# ------------------------------------------------- one average of weights for all heads, as in TFT


@variant("talking-heads")
class Averaged(Views):
    def weigh(self, scores, mask):
        weights = super().weigh(scores, mask)
        return weights.mean(dim=1, keepdim=True).expand_as(weights)


@variant("talking-heads", sizes=((24, 3), (64, 4)))
class AveragedForWholeValues(Views):
    """The values of all heads are mixed by one average, and never split."""

    def forward(self, x, mask=None):
        q, k, v = self.heads(x)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1).mean(dim=1)
        return self.proj(weights @ self.join(v))
