"""`diagnose(module)` and nothing else: heads, layouts, grids and numbers of tokens are found."""

from __future__ import annotations

import pytest
import torch
from patients.attention import Views, ViewsScaledByEmbed
from patients.blocks import PreNorm
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_block, diagnose_positions
from helpers import error_of
from utils.encoder import EncoderBlock
from utils.positions import sinusoidal_positions


class Core(nn.Module):
    """Attention over rows (b, n, e); what stands around it says how they lie."""

    def __init__(self, e: int = 24, h: int = 4, over: int = -1):
        super().__init__()
        self.parts, self.over = h, over
        self.qkv, self.proj = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def rows(self, x: Tensor) -> Tensor:
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.parts, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(self.over)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x)


class Pictures(nn.Module):
    """Images (b, c, h, w), projected by convolutions of one pixel."""

    def __init__(self, e: int = 24, h: int = 4, over: int = -1):
        super().__init__()
        self.heads, self.over = h, over
        self.to_qkv, self.to_out = nn.Conv2d(e, 3 * e, 1, bias=False), nn.Conv2d(e, e, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        q, k, v = self.to_qkv(x).view(b, 3, self.heads, -1, height * width).unbind(1)
        weights = (q.mT @ k / q.shape[2] ** 0.5).softmax(self.over)
        return self.to_out((v @ weights.mT).reshape(b, c, height, width))


class LastAxis(Core):
    """Images (b, h, w, c)."""

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        return self.rows(x.reshape(b, height * width, c)).view(b, height, width, c)


class Grid(Core):
    """Rows of tokens, and the sizes of their grid."""

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        assert x.shape[1] == H * W
        return self.rows(x.unflatten(1, (H, W)).flatten(1, 2))


class Pair(Core):
    """Rows of tokens, and both sizes in one argument."""

    def forward(self, x: Tensor, x_size: tuple[int, int]) -> Tensor:
        height, width = x_size
        return self.rows(x.unflatten(1, (height, width)).flatten(1, 2))


class Fixed(Core):
    """Takes one number of tokens: those of its window."""

    def __init__(self, e: int = 24, h: int = 4, over: int = -1):
        super().__init__(e, h, over)
        self.window_size = (4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x + torch.zeros(16, 1).to(x))


class Channels(Core):
    """Channels before tokens, (b, c, n), as in a diffusion model."""

    def __init__(self, e: int = 24, h: int = 4, over: int = -1):
        super().__init__(e, h, over)
        self.norm = nn.GroupNorm(1, e, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 24
        return self.rows(x.mT).mT


class Positioned(Core):
    """Something is added to the tokens, and something else to the scores."""

    def forward(self, x: Tensor, pos_embedding: Tensor, attn_bias: Tensor | None) -> Tensor:
        return self.rows(x + pos_embedding)


class Alone(Core):
    """One sample, (n, e)."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.ndim == 2
        return self.rows(x[None])[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Core, "4 heads of 24 wide tokens"),
        (Pictures, "images (b, c, h, w) 2 x 3"),
        (LastAxis, "images (b, h, w, c) 2 x 3"),
        (Grid, "tokens of a grid 2 x 3"),
        (Pair, "tokens of a grid 2 x 3"),
        (Fixed, "4 heads of 24 wide tokens"),
        (Channels, "channels before tokens"),
        (Positioned, "4 heads of 24 wide tokens"),
        (Alone, "one sample at a time"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_how_tokens_lie_is_found_out(make: type, words: str) -> None:
    torch.manual_seed(0)
    heads = () if make in (Core, Pictures) else (4,)
    report = diagnose(make(), *heads)
    assert report, report
    assert any(words in line for line in report.checked), report
    assert diagnose(make(over=-2), *heads).ids == ("softmax-query",)
    if make is Positioned:
        assert any("pos_embedding" in line for line in report.untried)


def test_heads_are_those_that_the_module_says_or_its_softmax_has() -> None:
    assert diagnose(ViewsScaledByEmbed(24, 4)).ids == ("scale-embed",)
    assert "4 heads" in str(diagnose(nn.MultiheadAttention(24, 4, batch_first=True)))
    assert diagnose_block(EncoderBlock(24, 4, 40))
    text = error_of(lambda: diagnose(nn.Linear(24, 24)))
    assert text == (
        "diagnose: num_heads must be given where the module does not say it, got Linear. "
        "Write diagnose(module, num_heads=8), with its own number."
    )


def test_what_cannot_be_worked_out_is_asked_for_with_the_line_to_paste() -> None:
    class Odd(Views):
        def forward(self, x, table, level):
            return super().forward(x * table[level])

    text = error_of(lambda: diagnose(Odd(24, 4), 4))
    assert text.endswith(
        "Give what else it needs: call=lambda module, x: module(x, table=..., level=...)."
    )
    assert "Repair that line" not in text
    given = {"call": lambda m, x: m(x, {"one": 1.0}, "one")}
    assert diagnose(Odd(24, 4), 4, **given)

    class Broken(Views):
        def forward(self, x):
            return super().forward(x)[:, :, :7] @ torch.eye(3)

    assert "Repair that line" in error_of(lambda: diagnose(Broken(24, 4), 4))


class Reads(Views):
    """Makes keys and values of a context, and has a default for it that does not work."""

    def forward(self, x, context=None):
        b, n, e = x.shape
        q, k, v = self.qkv.weight.view(3, e, e)
        bias = self.qkv.bias.view(3, e)
        j = context.shape[1]
        q, k, v = x @ q.T + bias[0], context @ k.T + bias[1], context @ v.T + bias[2]
        q, k, v = (t.view(b, m, self.h, -1).transpose(1, 2) for t, m in ((q, n), (k, j), (v, j)))
        weights = (q @ k.mT / (e // self.h) ** 0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))


class Breaks(Reads):
    """Breaks in another line."""

    cos = None

    def forward(self, x, context=None):
        turned = x * self.cos
        return super().forward(turned, turned if context is None else context)


def test_who_cannot_do_without_a_context_gets_one() -> None:
    report = diagnose(Reads(24, 4), 4)
    assert report.healthy and "a context (context) 24 wide" in report.checked[0]
    with pytest.raises(ValueError, match="NoneType"):
        diagnose(Breaks(24, 4), 4)


def test_tokens_that_may_be_left_out_are_tokens() -> None:
    class Asks(Reads):
        def forward(self, hidden_states=None, encoder_hidden_states=None):
            return super().forward(hidden_states, encoder_hidden_states)

    assert diagnose(Asks(24, 4), 4, context=True).healthy


def test_a_mask_that_no_argument_takes_is_not_called_dropped() -> None:
    class Unmasked(Views):
        def forward(self, x, radius=None):
            return super().forward(x)

    with pytest.raises(ValueError, match="forward takes no mask"):
        diagnose(Unmasked(24, 4), 4, mask=torch.ones(6, 6).tril().bool())
    block = nn.Sequential(Unmasked(24, 4), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
    with pytest.raises(ValueError, match="forward takes no mask"):
        diagnose_block(block, 4, mask=torch.ones(6, 6).tril().bool())


def test_slopes_that_must_be_given_are_0() -> None:
    class Slopes(Views):
        def forward(self, x, alibi):
            self.slopes = alibi.view(len(x), self.h, 1, -1)
            return super().forward(x)

        def weigh(self, scores, mask):
            return super().weigh(scores + self.slopes, mask)

    report = diagnose(Slopes(24, 4), 4)
    assert report.healthy and "what is added as alibi: it was 0" in report.untried


class ReadsOther(Reads):
    """Calls its context by a name that says nothing."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return super().forward(x, y)


def test_what_may_be_left_out_is_a_context() -> None:
    report = diagnose(ReadsOther(24, 4), 4, context=True)
    assert report.healthy and "a context (y) 24 wide" in report.checked[0]


class Turner(Views):
    """Calls what turns, which nobody can hand over, and needs a mask."""

    runs = 0

    def forward(self, x, rope, mask):
        Turner.runs += 1
        return super().forward(rope(x)) + mask


def test_what_no_table_and_no_mask_mends_is_refused_soon() -> None:
    assert "not callable" in error_of(lambda: diagnose(Turner(24, 4), 4))
    assert Turner.runs < 1000, "each table with each mask would be thousands"


class Cache:
    """Keeps what the last call made, with its history."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Tensor]] = []


class Keeps(Core):
    """A cache that is no module, and numbers of the run before in a list."""

    def __init__(self, *given: int) -> None:
        super().__init__(*given)
        self.cache = Cache()

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.cache.layers = [{"last": y}]
        return y


def test_what_an_earlier_run_left_in_a_cache_is_copied() -> None:
    module = Keeps()
    module(torch.randn(2, 5, 24))
    assert diagnose(module).healthy
    assert module.cache.layers[0]["last"].requires_grad


class Viewed(Pictures):
    """Views its images where they may lie otherwise in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(x.shape[0], -1).view(x.shape))


@pytest.mark.parametrize("over", [-1, -2])
def test_what_views_images_gets_them_in_order(over: int) -> None:
    def call(module: nn.Module, x: Tensor) -> Tensor:
        return module(x.transpose(1, 2).unflatten(2, (2, 3))).flatten(2).transpose(1, 2)

    report = diagnose(Viewed(over=over), size=(2, 6), call=call)
    assert report.ids == () if over == -1 else ("softmax-query",)
    assert report.healthy == (over == -1)


def test_a_block_of_one_length_is_called_with_it() -> None:
    class Fixed(Views):
        """Its mask is never cut to the number of its tokens."""

        def weigh(self, scores, mask):
            return super().weigh(scores, torch.ones(8, 8).tril().bool())

    block = PreNorm(24, 4)
    block.attention = Fixed(24, 4)
    block.attention.register_buffer("past", torch.ones(8, 8).tril())
    assert diagnose_block(block, 4, causal=True).healthy


def test_a_width_that_a_module_holds_as_a_number_is_tried() -> None:
    class Made(nn.Module):
        """Makes its table in every call."""

        def __init__(self, width: int):
            super().__init__()
            self.embedding_dim = width

        def forward(self, x):
            return x + sinusoidal_positions(x.shape[1], self.embedding_dim).to(x)

    assert diagnose_positions(Made(40)).healthy


class NamesItsMask(Core):
    """Its mask has no default, and may be None."""

    def forward(self, x: Tensor, attn_mask: Tensor | None) -> Tensor:
        return self.rows(x if attn_mask is None else x * attn_mask)


def test_a_mask_that_must_be_named_and_got_none_was_not_tried() -> None:
    report = diagnose(NamesItsMask())
    assert report.healthy
    assert "without a mask" in report.checked[0]
    assert "a mask (the argument attn_mask): mask=... tries one" in report.untried


class Several(Core):
    """Returns its tokens behind something else: a count, or the weights of one head."""

    def __init__(self, kind: str, over: int = -1):
        super().__init__(over=over)
        self.kind = kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | dict[str, Tensor]:
        b, n, _ = x.shape
        y = self.rows(x)
        if self.kind == "dict":
            return {"steps": torch.tensor(3), "last_hidden_state": y}
        return torch.zeros((b, n, n) if self.kind == "one" else (b, 4, n, n)), y


@pytest.mark.parametrize("kind", ["one", "all", "dict"])
@pytest.mark.parametrize(("over", "ids"), [(-1, ()), (-2, ("softmax-query",))])
def test_of_several_results_the_tokens_are_examined(kind: str, over: int, ids: tuple) -> None:
    report = diagnose(Several(kind, over))
    assert report.healthy == (not ids)
    assert report.ids == ids


class AtLeast(Core):
    """Refuses short texts, and takes all others."""

    def __init__(self, least: int, over: int = -1):
        super().__init__(over=over)
        self.least = least

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] < self.least:
            raise ValueError(f"{self.least} tokens are the least")
        return self.rows(tokens)


@pytest.mark.parametrize("least", [14, 18, 33])
@pytest.mark.parametrize(("over", "ids"), [(-1, ()), (-2, ("softmax-query",))])
def test_who_needs_many_tokens_gets_more_of_them_and_no_image(least, over, ids) -> None:
    report = diagnose(AtLeast(least, over), 4)
    assert report.healthy == (not ids)
    assert report.ids == ids
    assert not any("images" in words for words in report.checked)
