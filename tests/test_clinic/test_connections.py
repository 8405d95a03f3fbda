"""Blocks that are connected in a way of their own, on purpose or not: words, and no name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from patients.attention import Views
from patients.between import Apart, BackwardsExperts
from patients.blocks import PostNorm, PreNorm
from patients.connections import Conditioned, TwoSided
from patients.hand_norms import RMSNormInPart, RMSNormWithGreatEps
from patients.stacks import StackOfOneMask
from patients.windowed_blocks import IMAGE, CutIntoWindows, NotPutBack, NotRolledBack
from torch import nn

from attention_clinic import diagnose_block


class DeepNorm(PostNorm):
    """Eight layers deep, its factor is 2."""

    factor = 2.0

    def forward(self, x):
        x = self.norms[0](self.factor * x + self.self_attn(x))
        return self.norms[1](self.factor * x + self.feed(x))


class LongSkip(PreNorm):
    """What enters is added at the end, too."""

    def forward(self, x):
        return x + super().forward(x)


class NormedQueries(PreNorm):
    """Queries of the norm; keys and values of the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = TwoSided(e, h)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x), x)
        return x + self.ffn(self.ln_2(x))


class TwoStreams(PostNorm):
    """ResiDual: one stream is normalised after each sum, another one at the end alone."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.last = nn.LayerNorm(e)

    def forward(self, x):
        a = self.self_attn(x)
        y = self.norms[0](x + a)
        f = self.feed(y)
        return self.norms[1](y + f) + self.last(x + a + f)


class AsksItself(PreNorm):
    """What its name calls a cross-attention asks its own tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross, self.ln_0 = Views(e, h), nn.LayerNorm(e)

    def forward(self, x):
        return super().forward(x + self.cross(self.ln_0(x)))


class AddsTheMean(PostNorm):
    """Queries of a batch get the mean of it, which is no code of places."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.self_attn = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x):
        y = x + x.mean(0)
        x = self.norms[0](x + self.self_attn(y, y, x)[0])
        return self.norms[1](x + self.feed(x))


class ScalesOneSum(PreNorm):
    """The stream is multiplied behind one part, and not behind the other."""

    def forward(self, x):
        x = 0.8 * (x + self.attention(self.ln_1(x)))
        return x + self.ffn(self.ln_2(x))


class BendsFirst(PreNorm):
    """An activation stands before the layers, too."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn.insert(0, nn.ReLU())


class BothHalves(PreNorm):
    """What opens the gate is bent, and what goes through it, too."""

    class Feed(nn.Module):
        def __init__(self, e):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(e, 9), nn.Linear(e, 9), nn.Linear(9, e)

        def forward(self, x):
            return self.down(self.opened(self.gate(x)) * self.bent(self.up(x)))

        def opened(self, t):
            return F.silu(t)

        def bent(self, t):
            return F.silu(t)

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.Feed(e)


class OpensAndBends(BothHalves):
    """A sigmoid opens the gate, a ReLU bends what goes through."""

    class Feed(BothHalves.Feed):
        def opened(self, t):
            return t.sigmoid()

        def bent(self, t):
            return F.relu(t)


class OpensTanh(BothHalves):
    """A sigmoid opens the gate, a tanh bends what goes through, as in WaveNet."""

    class Feed(BothHalves.Feed):
        def opened(self, t):
            return t.sigmoid()

        def bent(self, t):
            return t.tanh()


def test_tanh_times_sigmoid_is_a_gate() -> None:
    torch.manual_seed(5)
    report = diagnose_block(OpensTanh(24, 4), 4)
    assert report.healthy and [one.id for one in report.variants] == ["gated"]


class Convolved(PreNorm):
    """A convolution over each token and the two before it, or behind."""

    before = True

    class Feed(nn.Module):
        def __init__(self, e, before):
            super().__init__()
            self.up, self.down = nn.Conv1d(e, e + 3, 3), nn.Conv1d(e + 3, e, 1)
            self.around = (2, 0) if before else (0, 2)

        def forward(self, x):
            return self.down(F.relu(self.up(F.pad(x.mT, self.around)))).mT

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.Feed(e, self.before)


class ConvolvedLate(Convolved):
    before = False


def test_which_tokens_a_convolution_sees_is_said() -> None:
    torch.manual_seed(5)
    report = diagnose_block(Convolved(24, 4), 4)
    assert report.healthy and "a convolution over earlier tokens alone" in report.checked[0]


class BendsItsOneLayer(PreNorm):
    """A convolution of each channel and one of each token are one layer, with nothing between."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = Apart(e)


SAID = {
    BothHalves: "the feed-forward bends both halves of its gate",
    OpensAndBends: "the feed-forward bends both halves of its gate",
    ConvolvedLate: "sees later tokens, and no earlier ones",
    DeepNorm: "behind the self-attention, x is added once more",
    LongSkip: "behind the feed-forward, x is added once more",
    TwoStreams: "",
    AsksItself: "it runs self-attention, self-attention, feed-forward",
    AddsTheMean: "",
    ScalesOneSum: "behind its parts, the stream is multiplied by 0.8 and 1",
    BendsItsOneLayer: "ffn is what nothing explains",
    BendsFirst: "the feed-forward bends what it reads",
    Conditioned: "a condition scales and shifts its norms",
}


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_what_may_be_meant_so_gets_words_and_no_name(make: type) -> None:
    torch.manual_seed(5)
    report = diagnose_block(make(24, 4), 4, effort=0.25)
    assert not report.healthy and not report.explanations
    assert any(SAID[make] in said for said in report.failing) or not SAID[make]


def test_keys_that_nobody_normalised_lack_a_norm() -> None:
    torch.manual_seed(5)
    report = diagnose_block(NormedQueries(24, 4), 4)
    assert report.ids == ("norm-missing",)
    assert "asks x, with queries of what ln_1 returned" in report.explanations[0].detail


class Mixed(PreNorm):
    """One norm before the attention, one on what the feed-forward returns."""

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ln_2(self.ffn(x))


def test_norms_before_one_part_and_on_what_another_returns_are_mixed() -> None:
    torch.manual_seed(5)
    assert diagnose_block(Mixed(24, 4), 4).ids == ("norm-mixed",)


class Pairs(nn.Module):
    """Layers that are no modules: attention and feed-forward in turn, and a norm behind all.

    Each attention hides a token from itself, so that its softmax must be told from the others.
    """

    def __init__(self, e, h, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(PreNorm(e, h) for _ in range(depth))
        for layer in self.layers:
            layer.attention = Alone(e, h)
        self.pairs = nn.ModuleList(
            nn.ModuleList((one.ln_1, one.attention, one.ln_2, one.ffn)) for one in self.layers
        )
        del self.layers
        self.last = nn.LayerNorm(e)

    def forward(self, x):
        for before, attention, norm, feed in self.pairs:
            x = x + attention(before(x))
            x = x + feed(norm(x))
        return self.last(x)


class Alone(nn.Module):
    """An attention that hides each token from itself."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(e, 3 * e), nn.Linear(e, e)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / (e // self.h) ** 0.5
        scores = scores.masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))


def test_layers_that_are_no_modules_are_examined_one_after_another() -> None:
    torch.manual_seed(5)
    report = diagnose_block(Pairs(24, 4), 4)
    assert report.healthy and [one.id for one in report.variants] == ["no-self"]
    assert "2 times in a row" in report.checked[0]


class DropsAlways(PreNorm):
    """A part that nobody knows, and a dropout that never rests."""

    def forward(self, x):
        x = x + self.attention(self.ln_1(x)).cumsum(1)
        return x + torch.dropout(self.ffn(self.ln_2(x)).cumsum(1), 0.2, True)


def test_dropout_that_acts_while_evaluating_is_named_whatever_else_a_block_does() -> None:
    torch.manual_seed(5)
    report = diagnose_block(DropsAlways(24, 4), 4, effort=0.25)
    assert report.ids == ("dropout-eval",) and "exactly" not in report.explanations[0].evidence


class TimesTooLarge(nn.Module):
    """An RMSNorm that multiplies by eps under the root, where it belongs to the sum."""

    def __init__(self, e):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(e))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) * 1e-6)


class TextNorm(TimesTooLarge):
    """An RMSNorm of all tokens of a text, with a weight for each place."""

    def __init__(self, e):
        super().__init__(e)
        self.weight = nn.Parameter(torch.ones(16, e))

    def forward(self, x):
        return self.weight[: x.shape[1]] * x / x.pow(2).mean((1, 2), keepdim=True).sqrt()


@pytest.mark.parametrize(
    ("norm", "id", "said"),
    [
        (TimesTooLarge, "norm-formula", "1000 times"),
        (TextNorm, "norm-axis", "it changes with other tokens"),
    ],
)
def test_a_norm_of_no_known_formula_is_named_by_what_it_gives(norm, id, said) -> None:
    torch.manual_seed(5)
    block = PreNorm(24, 4)
    block.ln_1, block.ln_2 = norm(24), norm(24)
    report = diagnose_block(block, 4)
    assert report.ids == (id,) and said in report.explanations[0].detail


@pytest.mark.parametrize("norm", (RMSNormWithGreatEps, RMSNormInPart))
def test_a_norm_that_may_be_meant_so_is_no_mistake(norm) -> None:
    torch.manual_seed(5)
    block = PreNorm(24, 4)
    block.ln_1, block.ln_2 = norm(24), norm(24)
    assert diagnose_block(block, 4, effort=0.25).ids == ()


class OwnSoftmax(Alone):
    """Takes its softmax by hand, and hides nothing."""

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / (e // self.h) ** 0.5).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))


class Doubled(PreNorm):
    """Two parts side by side, each with the stream."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = OwnSoftmax(e, h)

    def forward(self, x):
        return x + self.attention(self.ln_1(x)) + (x + self.ffn(self.ln_2(x)))


def test_a_stream_that_two_parts_side_by_side_bring_along_is_one_too_many() -> None:
    torch.manual_seed(5)
    report = diagnose_block(Doubled(24, 4), 4)
    assert report.ids == ("residual-again",)
    assert [one.id for one in report.variants] == ["parallel"]


class OneNorm(PreNorm):
    """One norm for the tokens that ask and for the context that they ask."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross, self.ln_3 = TwoSided(e, h), nn.LayerNorm(e)

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        x = x + self.cross(self.ln_2(x), self.ln_2(context))
        return x + self.ffn(self.ln_3(x))


def test_one_norm_for_two_streams_is_shared() -> None:
    torch.manual_seed(5)
    report = diagnose_block(OneNorm(24, 4), 4, context=True)
    assert report.ids == ("norm-shared",)


class AsksByOption(PreNorm):
    """Reads the context only where an option says so."""

    crossed = False

    def forward(self, query, context):
        asked = context if self.crossed else self.ln_1(query)
        query = query + self.attention(self.ln_1(query) + 0 * asked.mean() * self.crossed)
        return query + self.ffn(self.ln_2(query))


def test_a_context_that_an_option_asks_for_is_not_ignored() -> None:
    torch.manual_seed(5)
    assert diagnose_block(AsksByOption(24, 4), 4).healthy


class ScaledByContext(PreNorm):
    """The mean of the context scales what a norm returns: it is heard, though nothing asks it."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x) * (1 + context.mean((0, 1))))


def test_a_context_that_scales_a_norm_is_not_ignored() -> None:
    torch.manual_seed(0)
    assert "cross-ignored" not in diagnose_block(ScaledByContext(24, 4), 4, context=True).ids


class WindowsInside(CutIntoWindows):
    """Takes images, rows of rows, as its attention does, which cuts them into windows itself."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.inside = Inside(self)
        del self.attention, self.apart

    def forward(self, image):
        assert image.ndim == 4
        x = image + self.inside(self.ln_1(image))
        return x + self.ffn(self.ln_2(x))


class Inside(nn.Module):
    """The attention of such a block."""

    def __init__(self, block):
        super().__init__()
        self.attention, self.together = block.attention, block.together

    def forward(self, image):
        side = 2
        sizes = {"p": side, "q": side}
        windows = rearrange(image, "b (y p) (x q) e -> (b y x) (p q) e", **sizes)
        made = self.attention(windows)
        _, rows, columns, _ = image.shape
        sizes |= {"y": rows // side, "x": columns // side}
        return rearrange(made, "(b y x) (p q) e -> b (y p) (x q) e", **sizes)


def test_images_whose_tokens_come_last_are_cut_into_windows_by_the_attention_itself() -> None:
    torch.manual_seed(5)
    report = diagnose_block(WindowsInside(24, 4), 4)
    assert report.healthy, report
    assert {one.id for one in report.variants} == {"window", "relative-bias"}


@pytest.mark.parametrize("wrong", (NotPutBack, NotRolledBack, StackOfOneMask))
def test_windows_that_are_wrong_are_not_called_right_nor_named(wrong: type) -> None:
    torch.manual_seed(0)
    report = diagnose_block(wrong(24, 4), 4, size=IMAGE)
    assert not report.healthy and not report.ids
    assert report.variants == () or wrong is StackOfOneMask  # of its other layer


def test_experts_that_the_lowest_scores_choose_get_no_name() -> None:
    torch.manual_seed(0)
    report = diagnose_block(BackwardsExperts(24, 4), 4)
    assert not report.healthy and not report.ids


class NormThatBends(nn.BatchNorm1d):
    """As timm's, it holds its activation."""

    def __init__(self, e):
        super().__init__(e)
        self.act = nn.Identity()

    def forward(self, x):
        return self.act(super().forward(x))


class NormsBehindItsConvolution(nn.Module):
    """FastViT's feed-forward: a convolution of each number, its norm, and then two layers."""

    def __init__(self, e):
        super().__init__()
        self.near, self.norm = nn.Conv1d(e, e, 3, padding=1, groups=e), NormThatBends(e)
        self.up, self.down = nn.Conv1d(e, 2 * e, 1), nn.Conv1d(2 * e, e, 1)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(self.near(x.mT))))).mT


class NormsInThePart(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn, self.ln_2 = NormsBehindItsConvolution(e), None

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(x)


def test_a_part_with_a_norm_of_its_own_lacks_none() -> None:
    assert "norm-missing" not in diagnose_block(NormsInThePart(24, 4).eval(), 4).ids


class ReducedWithoutSoftmax(nn.Module):
    """Keys and values are made of a smaller image, and no softmax makes weights."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.norm, self.sr = h, nn.LayerNorm(e), nn.Conv2d(e, e, 2, stride=2)
        self.q, self.kv, self.proj = nn.Linear(e, e), nn.Linear(e, 2 * e), nn.Linear(e, e)

    def forward(self, x):
        b, n, e = x.shape
        fewer = self.sr(x.mT.reshape(b, e, 4, 4)).flatten(2).mT
        k, v = self.kv(self.norm(fewer)).reshape(b, -1, 2, self.h, e // self.h).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (self.q(x).view(b, n, self.h, -1), k, v))
        mixed = (q @ k.mT / (e // self.h) ** 0.5) @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))


def test_what_looks_like_a_convolution_was_called() -> None:
    block = PreNorm(24, 4)
    block.attention = ReducedWithoutSoftmax(24, 4)
    report = diagnose_block(block.eval(), 4, size=(2, 16))
    assert not report.healthy and "part-unused" not in report.ids


def test_a_mask_that_call_never_fills_is_said_to_be_untried() -> None:
    class Masked(PreNorm):
        def forward(self, x, hidden_mask):
            return super().forward(x) + 0 * hidden_mask

    block = Masked(24, 4).eval()
    words = "a mask (the argument hidden_mask): what call gives is alike everywhere"
    none = diagnose_block(block, 4, call=lambda m, x: m(x, torch.zeros(x.shape[:2])[..., None]))
    assert none.healthy and words in none.untried
    some = torch.arange(2)[:, None, None]
    told = diagnose_block(block, 4, call=lambda m, x: m(x, some), size=(2, 5))
    assert told.healthy and words not in told.untried
