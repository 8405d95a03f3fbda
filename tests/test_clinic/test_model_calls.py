"""`diagnose_model` calls models as their users do: ids, masks, places and whatever they need."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attention_clinic import ModelReport, diagnose, diagnose_block, diagnose_model
from helpers import error_of
from wild.clinic import examine

E, H = 24, 4


@pytest.fixture(autouse=True)
def start(one_thread: None) -> None:
    torch.manual_seed(0)


def verdicts(report: ModelReport) -> dict[str, str]:
    """Return what was found, by place."""
    return {row.where: row.verdict for row in report.rows}


class Attention(nn.Module):
    """Takes queries, keys, values and a mask; as most translations do it."""

    def __init__(self, blocks: bool = False, h: int = H):
        super().__init__()
        self.h, self.blocks = h, blocks
        self.query, self.key, self.value, self.out = (nn.Linear(E, E) for _ in range(4))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(t).unflatten(2, (self.h, -1)).transpose(1, 2)
            for layer, t in ((self.query, q), (self.key, k), (self.value, v))
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mask if self.blocks else mask == 0, -1e9)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(E, 40), nn.ReLU(), nn.Linear(40, E))


class EncoderLayer(nn.Module):
    def __init__(self, shared: bool = False, blocks: bool = False):
        super().__init__()
        self.attention, self.feed = Attention(blocks), feed_forward()
        self.norm1 = nn.LayerNorm(E)
        self.norm2 = self.norm1 if shared else nn.LayerNorm(E)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x, x, mask))
        return self.norm2(x + self.feed(x))


class DecoderLayer(nn.Module):
    """Its context has a name that says nothing."""

    def __init__(self, shared: bool = False, blocks: bool = False):
        super().__init__()
        self.first, self.second, self.feed = Attention(blocks), Attention(blocks), feed_forward()
        self.norm1, self.norm3 = nn.LayerNorm(E), nn.LayerNorm(E)
        self.norm2 = self.norm1 if shared else nn.LayerNorm(E)

    def forward(self, x: Tensor, given: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        x = self.norm1(x + self.first(x, x, x, tgt_mask))
        x = self.norm2(x + self.second(x, given, given, src_mask))
        return self.norm3(x + self.feed(x))


class Translation(nn.Module):
    """Takes both masks from its caller."""

    def __init__(self, shared: bool = False, blocks: bool = False):
        super().__init__()
        self.words = nn.Embedding(40, E)
        self.encoder = nn.ModuleList(EncoderLayer(shared, blocks) for _ in range(2))
        self.decoder = nn.ModuleList(DecoderLayer(shared, blocks) for _ in range(2))

    def forward(self, src: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        x, y = self.words(src), self.words(tgt)
        for layer in self.encoder:
            x = layer(x, src_mask)
        for layer in self.decoder:
            y = layer(y, x, src_mask, tgt_mask)
        return y @ self.words.weight.T


class Padded(Translation):
    """Makes its masks itself: a padding that stands behind the ids of all ends."""

    def __init__(self):
        super().__init__(blocks=True)
        self.padding_id = 3

    def forward(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        src_mask = (inputs == self.padding_id)[:, None, None]
        future = torch.ones(2 * outputs.shape[1:], dtype=torch.bool).triu(1)
        mask = (outputs == self.padding_id)[:, None, None] | future
        return super().forward(inputs, src_mask, outputs, mask)


@pytest.mark.parametrize("blocks", [False, True])
def test_masks_that_a_model_needs_block_nothing(blocks: bool) -> None:
    report = diagnose_model(Translation(blocks=blocks))
    assert report, report
    assert verdicts(report) == {"encoder.0-1": "healthy", "decoder.0-1": "healthy"}
    report = diagnose_model(Translation(shared=True, blocks=blocks))
    assert set(report.ids) == {"norm-shared"}, report


@pytest.mark.parametrize("blocks", [False, True])
def test_a_block_that_needs_a_mask_is_not_called_with_one_that_blocks_all(blocks: bool) -> None:
    assert diagnose_block(EncoderLayer(blocks=blocks), H)
    report = diagnose_block(EncoderLayer(shared=True, blocks=blocks), H)
    assert report.ids == ("norm-shared",), report


def test_ids_are_no_padding_and_outputs_are_ids() -> None:
    report = diagnose_model(Padded())
    assert report, report
    assert verdicts(report) == {"encoder.0-1": "healthy", "decoder.0-1": "healthy; causal"}


class Optional(Padded):
    """Takes the source after the target, and could do without."""

    def forward(self, dec_x: Tensor, enc_x: Tensor | None = None) -> Tensor:
        return super().forward(enc_x, dec_x)


def test_a_source_that_may_be_left_out_is_given() -> None:
    report = diagnose_model(Optional())
    assert report and len(report.rows) == 2, report


class Llama(nn.Module):
    """Is told at which place it begins, as the first LLaMA was."""

    def __init__(self, typed: bool = True):
        super().__init__()
        self.words = nn.Embedding(40, E)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.register_buffer("places", torch.randn(32, E))

    def forward(self, tokens: Tensor, start_pos: int, is_last: bool) -> Tensor:
        n = tokens.shape[1]
        x = self.words(tokens) + self.places[start_pos : start_pos + n]
        for layer in self.layers:
            x = layer(x, torch.ones(n, n).tril())
        return x[:, -1:] if is_last else x


def test_the_place_where_tokens_begin_is_0() -> None:
    report = diagnose_model(Llama())
    assert report, report
    assert verdicts(report) == {"layers.0-1": "healthy; causal"}


class AddAndNorm(nn.Module):
    """Hands on whatever it gets beside the stream."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part, self.norm = part, nn.LayerNorm(E)

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        return self.norm(x + self.part(x, *beside))


class Handed(nn.Module):
    """Eight heads ask six tokens, in calls whose values have no names."""

    def __init__(self):
        super().__init__()
        self.words, self.mask = nn.Embedding(40, E), torch.ones(1)
        self.first, self.second = AddAndNorm(Attention(h=8)), AddAndNorm(Attention(h=8))
        self.feed = AddAndNorm(feed_forward())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.words(source), self.words(target)
        x = self.feed(self.first(x, x, x, self.mask))
        return self.second(y, x, x, self.mask)


def test_values_without_a_name_are_tokens_too() -> None:
    report = diagnose_model(Handed())
    assert report, report
    assert verdicts(report) == {"first": "healthy", "second": "healthy"}


class PreNorm(nn.Module):
    def __init__(self, part: nn.Module):
        super().__init__()
        self.norm, self.part = nn.LayerNorm(E), part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.norm(x))


class Alone(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, torch.ones(1))


class Paired(nn.Module):
    """Layers that are lists of two parts in shells of one class, as in vit-pytorch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([PreNorm(Alone()), PreNorm(feed_forward())]) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attention, feed in self.layers:
            x = x + attention(x)
            x = x + feed(x)
        return x


def test_a_feed_forward_in_the_shell_of_an_attention_hides_none() -> None:
    model = nn.Sequential(nn.Linear(5, E), Paired())
    report = diagnose_model(model)
    assert report, report
    assert verdicts(report) == {"1": "healthy"}


class Grids(Alone):
    """Normalises what it gets, and returns a grid: nothing can be said of it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(E)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x)).sort(dim=1).values.unflatten(1, (1, -1))


class NormedInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed = Grids(), PreNorm(feed_forward())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x).view_as(x)
        return x + self.feed(x)


def test_a_norm_that_an_unexplained_attention_may_hold_is_not_missing() -> None:
    report = diagnose_model(nn.Sequential(nn.Linear(5, E), NormedInside()), num_heads=H)
    assert not report and not report.ids, report


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))

    def forward(self, words: Tensor, kind: object) -> Tensor:
        raise RuntimeError("this kind is not known")


def test_a_model_that_takes_nothing_asks_for_its_inputs() -> None:
    class Silent(Refuses):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(E, E)])

    message = error_of(lambda: diagnose_model(Silent()))
    assert (
        "diagnose_model: Silent must run on inputs made for it, got RuntimeError: this" in message
    )
    assert "Pass what you call it with: diagnose_model(model, inputs=(words, kind,))." in message
    assert "did not run" in str(diagnose_model(Refuses())), "its layers can be examined"


def test_the_bench_reads_whole_models() -> None:
    model = Translation(shared=True)
    said = examine(model, "diagnose_model", {})
    assert not said["healthy"] and said["ids"] == [["norm-shared"]] and said["variants"] == []
    assert examine(Translation(), "diagnose_model", {})["healthy"]


# ------------------------------------------------------------------------ masks of a first call

CAUSAL = torch.ones(5, 5).tril().bool()


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_block_that_needs_a_mask_is_handed_that_of_its_user(layer, blocks: bool) -> None:
    report = diagnose_block(layer(blocks=blocks), H, causal=True, mask=CAUSAL)
    assert report.ids == ("mask-inverted",) * blocks, report
    shared = diagnose_block(layer(shared=True), H, mask=CAUSAL)
    assert shared.ids == ("norm-shared",), shared


@pytest.mark.parametrize("blocks", [False, True])
def test_what_must_be_causal_and_needs_a_mask_is_handed_a_causal_one(blocks: bool) -> None:
    for tool, module in (
        (diagnose, Attention(blocks)),
        (diagnose_block, EncoderLayer(blocks=blocks)),
        (diagnose_block, DecoderLayer(blocks=blocks)),
    ):
        report = tool(module, H, causal=True)
        assert report, report
        way = "blocked" if blocks else "may attend"
        assert f"mask, in which True means {way}" in report.checked[-1]
        assert "handed a causal mask as " in report.checked[-1]


class Rows(Attention):
    """Takes a mask of the keys alone: no mask can make it causal."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, x, x, mask[:, None, None])


class Free(Attention):
    """Sees the future where nobody hands it a mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, x, x, torch.ones(1) if mask is None else mask)


def test_what_a_mask_makes_causal_is_not_causal_without_it() -> None:
    assert diagnose(Rows(), H, causal=True).ids == ("mask-not-causal",)
    report = diagnose(Free(), H, causal=True)
    assert report.ids == ("mask-not-causal",)
    assert "in which True means may attend, it hides the future" in report.explanations[0].detail
    assert diagnose(Free(), H)


class Queried(DecoderLayer):
    """A layer of DETR: learned queries are added to its tokens."""

    def forward(self, target: Tensor, query_embed: Tensor, encoder_output: Tensor) -> Tensor:
        free = torch.ones(1)
        return super().forward(target + query_embed, encoder_output, free, free)


def test_queries_that_are_added_are_no_tokens() -> None:
    report = diagnose_block(Queried(), H)
    assert report, report
    assert "what is added as query_embed: it was 0" in report.untried


class Placed(nn.Module):
    """A layer of DETR: places are added to queries and keys, not to values."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(E, H, batch_first=True)
        self.feed, self.norm1, self.norm2 = feed_forward(), nn.LayerNorm(E), nn.LayerNorm(E)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        asks = x + places
        x = self.norm1(x + self.attention(asks, asks, value=x)[0])
        return self.norm2(x + self.feed(x))


class Detects(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.places = nn.Linear(5, E), nn.Parameter(torch.randn(1, 7, E))
        self.layers = nn.ModuleList([Placed(), Placed()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x, self.places.expand_as(x))
        return x


def test_values_without_the_places_of_queries_and_keys_are_no_context() -> None:
    report = diagnose_model(Detects())
    assert report.healthy and not report.ids, report
    assert not any("cross" in row.kind for row in report.rows)


class Kept(EncoderLayer):
    """Empties what is padding behind itself, and weighs its tokens as nothing explains."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.attention(x, x, x.sort(dim=1).values, mask[:, None, None])
        x = self.norm1(x + y)
        return self.norm2(x + self.feed(x)) * mask.unsqueeze(-1).float()


def test_a_mask_that_empties_all_explains_nothing() -> None:
    report = diagnose_block(Kept(), H)
    assert not report and not report.ids, report


class Fixed(Alone):
    """Takes one number of tokens, and no fewer."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 36, "a grid of 6 times 6"
        Fixed.calls += 1
        return super().forward(x)


def test_many_tokens_that_cannot_be_fewer_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attention_clinic.examine.model.MANY", 30)
    Fixed.calls = 0
    model = nn.Sequential(nn.Linear(5, E), PreNorm(Fixed()))
    report = diagnose_model(model, torch.randn(2, 36, 5), num_heads=H)
    assert not report and not report.ids, report
    assert Fixed.calls < 10
