"""What a model does by itself before its first block, and the masks that it hands on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_clinic import diagnose_model


def layers(e: int = 24, batch_first: bool = True) -> nn.ModuleList:
    kinds = (nn.TransformerEncoderLayer(e, 4, 40, batch_first=batch_first) for _ in range(2))
    return nn.ModuleList(kinds)


class Vision(nn.Module):
    """Cuts its images in forward."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 24, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 17, 24))
        self.layers, self.head = layers(), nn.Linear(24, 5)

    def entering(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places

    def forward(self, images: Tensor) -> Tensor:
        x = self.entering(images)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class VisionViews(Vision):
    def entering(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x.view(len(x), -1, 24)
        return torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places


class VisionPlacesFirst(Vision):
    def entering(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.places[:, 1:]
        return torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)


class VisionTimeFirst(Vision):
    """Its layers take (n, b, e): the class tokens of all samples see each other alone."""

    def __init__(self):
        super().__init__()
        self.layers = layers(batch_first=False)


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24, padding_idx=0)
        self.wpe = nn.Embedding(40, 24)
        self.layers, self.head = layers(), nn.Linear(24, 50)

    def placed(self, ids: Tensor) -> Tensor:
        return self.wpe(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.placed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class TextOneRow(Text):
    def placed(self, ids: Tensor) -> Tensor:
        return self.wpe(torch.tensor(ids.shape[1] - 1))


class TextBySample(Text):
    def placed(self, ids: Tensor) -> Tensor:
        return self.wpe(torch.arange(len(ids)))[:, None]


class Sines(nn.Module):
    """A table (n, 1, e), for tokens that come first."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(60)[:, None] / 10000 ** (torch.arange(0, 24, 2) / 24)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("pe", table[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.shape[0]]


class TextSines(nn.Module):
    def __init__(self, batch_first: bool):
        super().__init__()
        self.embed, self.sines, self.head = nn.Embedding(50, 24), Sines(), nn.Linear(24, 50)
        self.layers = layers(batch_first=batch_first)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.sines(self.embed(ids))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("make", "ids"),
    [
        (Vision, set()),
        (VisionViews, {"patch-channel-mix"}),
        (VisionPlacesFirst, {"pos-before-cls"}),
        (Text, set()),
        (TextOneRow, {"pos-one-row"}),
        (TextBySample, {"pos-batch-axis"}),
        (lambda: TextSines(True), {"pos-batch-axis"}),
    ],
)
def test_what_enters_the_first_block(make, ids: set[str]) -> None:
    report = diagnose_model(make())
    assert set(report.ids) == ids
    assert report.healthy == (not ids)


def test_what_a_vision_model_cuts_by_itself_is_examined() -> None:
    report = diagnose_model(Vision())
    assert ("patches", "(the model itself)") in [(row.kind, row.where) for row in report.rows]
    assert "other parts: head" in report.untried


@pytest.mark.parametrize("make", [VisionTimeFirst, lambda: TextSines(False)])
def test_tokens_first_mix_samples_and_no_table_is_blamed(make) -> None:
    report = diagnose_model(make())
    assert not report and any("samples stay apart" in words for words in report.failing)
    assert not report.ids


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(2, (4, 6)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x))
        )
        scores = (q @ k.mT / 6**0.5).masked_fill(mask == 0, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(24), nn.LayerNorm(24)
        self.feed = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.feed(x))


class Padded(Text):
    """Makes its mask of its ids: 1 = a token."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def mask(self, ids: Tensor) -> Tensor:
        return (ids != 0)[:, None, None]

    def forward(self, ids: Tensor) -> Tensor:
        x, mask = self.embed(ids) + self.placed(ids), self.mask(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class PaddedTurned(Padded):
    def mask(self, ids: Tensor) -> Tensor:
        return (ids == 0)[:, None, None]


class PaddedNumbers(Padded):
    def mask(self, ids: Tensor) -> Tensor:
        return 1.0 - (ids != 0).float()[:, None, None]


def test_a_mask_that_blocks_a_text_without_padding_is_upside_down() -> None:
    assert diagnose_model(Padded())
    for make in (PaddedTurned, PaddedNumbers):
        assert set(diagnose_model(make()).ids) == {"mask-inverted"}
