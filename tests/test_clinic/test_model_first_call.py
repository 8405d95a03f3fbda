"""`diagnose_model` with nothing but the model: what strangers' models need to run at all."""

from __future__ import annotations

import math

import pytest
import torch
from test_model_calls import (
    Attention,
    DecoderLayer,
    E,
    EncoderLayer,
    H,
    Padded,
    feed_forward,
    verdicts,
)
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attention_clinic import diagnose, diagnose_block, diagnose_model
from helpers import error_of


@pytest.fixture(autouse=True)
def start():
    torch.manual_seed(0)


class Abroad(EncoderLayer):
    """Names the device of its author."""

    def __init__(self, where: str, shared: bool = False):
        super().__init__(shared)
        self.where = where

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = torch.ones(n, n, device=self.where).tril()
        return super().forward(x.to(self.where), mask)


class Hard(Attention):
    """Calls for the device where others ask for it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, torch.ones(x.shape[1], x.shape[1]).cuda())


class Device(nn.Module):
    def __init__(self, shared: bool):
        super().__init__()
        self.words = nn.Embedding(40, E)
        self.layers = nn.ModuleList(Abroad("cuda:0", shared) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids.to(torch.device("cuda")))
        for layer in self.layers:
            x = layer(x)
        return x


def test_what_names_another_device_is_examined_on_the_cpu() -> None:
    assert diagnose(Hard(), H)
    assert diagnose_block(Abroad("cuda"), H, causal=True)
    report = diagnose_model(Device(shared=False))
    assert report and report.rows[0].kind == "block", report
    assert not any("as a whole" in words for words in report.untried)
    assert set(diagnose_model(Device(shared=True)).ids) == {"norm-shared"}


def test_a_context_as_long_as_the_tokens_is_a_context() -> None:
    ids = torch.randint(4, 40, (2, 7))
    report = diagnose_model(Padded(), inputs=(ids, ids.flip(1)))
    assert report, report
    assert verdicts(report) == {"encoder.0-1": "healthy", "decoder.0-1": "healthy; causal"}
    assert not any("comes from outside" in words for words in report.untried), report


class Grid(nn.Module):
    """Takes tokens, and returns them as the rows and columns of an image."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, H, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
        side = math.isqrt(x.shape[1])
        return self.out((weights @ v).transpose(1, 2).flatten(2)).unflatten(1, (side, side))


class GridLayer(nn.Module):
    def __init__(self, late: bool):
        super().__init__()
        self.attention, self.feed, self.late = Grid(), feed_forward(), late
        self.norm1, self.norm2 = nn.LayerNorm(E), nn.LayerNorm(E)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = (y if self.late else x) + self.attention(y).view_as(x)
        return x + self.feed(self.norm2(x))


class Image(nn.Module):
    def __init__(self, late: bool = False):
        super().__init__()
        self.cut = nn.Conv2d(3, E, 8, 8)
        self.layers = nn.ModuleList(GridLayer(late) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        x = self.cut(image).flatten(2).mT
        for layer in self.layers:
            x = layer(x)
        return x.mean(dim=1)


def test_an_attention_may_return_an_image_of_its_tokens() -> None:
    report = diagnose_model(Image())
    assert report, report
    assert verdicts(report)["layers.0-1"] == "healthy"
    assert set(diagnose_model(Image(late=True)).ids) == {"residual-from-norm"}


class Segments(nn.Module):
    """Reads two kinds of segments, and texts of one length."""

    def __init__(self):
        super().__init__()
        self.words, self.kinds = nn.Embedding(40, E), nn.Embedding(2, E)
        self.places = nn.Parameter(torch.randn(1, 12, E))
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        x = self.words(ids) + self.kinds(segments) + self.places
        for layer in self.layers:
            x = layer(x, torch.ones(1))
        return x


def test_texts_are_as_long_as_the_places_and_ids_as_few_as_the_segments() -> None:
    report = diagnose_model(Segments())
    assert report, report
    assert verdicts(report) == {"layers.0-1": "healthy"}
    assert not any("as a whole" in words for words in report.untried), report


class Unsized(nn.Module):
    """A ViT whose layers get their sizes in the first call, which takes an image."""

    def __init__(self):
        super().__init__()
        self.cut, self.block = nn.Conv2d(3, E, 8, 8), EncoderLayer()
        self.head = nn.LazyLinear(5)
        self.img_size = 32

    def forward(self, pixels: Tensor) -> Tensor:
        assert pixels.ndim == 4
        tokens = self.block(self.cut(pixels).flatten(2).mT, torch.ones(1))
        return self.head(tokens.mean(1))


def test_lazy_layers_of_a_model_get_their_sizes_of_its_own_inputs() -> None:
    model = Unsized()
    report = diagnose_model(model)
    assert verdicts(report)["block"] == "healthy", report
    assert is_lazy(model.head.weight)
    assert diagnose_model(Unsized(), inputs=torch.randn(2, 3, 16, 16))
    assert "Call it once first: model(inputs)" in error_of(
        lambda: diagnose_model(Unsized(), inputs=torch.randn(2, 5, E))
    )


class Halves(nn.Module):
    """Says how to encode and how to decode, and has no forward."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(30, E), nn.Embedding(40, E)
        self.encoder = nn.ModuleList([EncoderLayer(), EncoderLayer()])
        self.decoder = nn.ModuleList([DecoderLayer(), DecoderLayer()])
        self.ran: list[torch.Size] = []

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        x = self.source(src)
        for layer in self.encoder:
            x = layer(x, src_mask)
        return x

    def decode(self, memory: Tensor, src_mask: Tensor, tgt: Tensor, tgt_mask: Tensor) -> Tensor:
        self.ran.append(tgt.shape)
        x = self.target(tgt)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return x


def test_a_model_that_encodes_and_decodes_needs_no_forward() -> None:
    model = Halves()
    report = diagnose_model(model)
    assert verdicts(report) == {"encoder.0-1": "healthy", "decoder.0-1": "healthy"}, report
    assert any("encoder: 2 layers, each reads" in words for words in report.checked)
    assert not any("did not run" in words for words in report.untried)
    assert type(model) is Halves and not model.ran


class OneText(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block = nn.Embedding(30, E), EncoderLayer()

    def forward(self, ids: Tensor) -> Tensor:
        (n,) = ids.shape
        return self.block(self.words(ids)[None], torch.ones(n, n))[0]


def test_a_model_of_one_text_gets_ids_without_an_axis_of_samples() -> None:
    report = diagnose_model(OneText())
    assert verdicts(report) == {"block": "healthy"}, report
    assert not any("did not run" in words for words in report.untried)
