"""`diagnose_model` on blocks that are no modules of their own, or whose attention is a shell."""

from __future__ import annotations

import pytest
import torch
from test_model_calls import Alone, E, H, verdicts
from torch import Tensor, nn

from attention_clinic import diagnose_model


@pytest.fixture(autouse=True)
def start(one_thread: None) -> None:
    torch.manual_seed(0)


class Unscaled(Alone):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(2, (self.h, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return self.out(((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """A feed-forward with its norm."""

    def __init__(self, bends: bool = True):
        super().__init__()
        bend = [nn.GELU()] * bends
        self.net = nn.Sequential(nn.LayerNorm(E), nn.Linear(E, 2 * E), *bend, nn.Linear(2 * E, E))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Normed(nn.Module):
    """An attention with its norm, as in vit-pytorch."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(E), attention

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.norm(x))


class Pairs(nn.Module):
    """Layers in pairs, and one part that runs them all.

    Args:
        wrong: what is wrong, in the second of three layers.
    """

    def __init__(self, wrong: str = ""):
        super().__init__()
        self.wrong = wrong
        self.layers = nn.ModuleList()
        for number in range(3):
            attention = Unscaled() if wrong == "scale" and number == 1 else Alone()
            feed = Feed(wrong != "bend" or number != 1)
            self.layers.append(nn.ModuleList([Normed(attention), feed]))

    def forward(self, x: Tensor) -> Tensor:
        for number, (attention, feed) in enumerate(self.layers):
            x = x + attention(x)
            x = feed(x) if self.wrong == "residual" and number == 1 else x + feed(x)
        return x


class Words(nn.Module):
    def __init__(self, stack: nn.Module):
        super().__init__()
        self.words, self.stack, self.head = nn.Embedding(50, E), stack, nn.Linear(E, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.stack(self.words(ids)))


def test_layers_in_pairs_are_judged_with_what_stands_around_them() -> None:
    report = diagnose_model(Words(Pairs()))
    assert report and verdicts(report) == {"stack": "healthy"}, report
    assert not any("norm" in words for words in report.untried)


@pytest.mark.parametrize(
    ("wrong", "id", "where"),
    [
        ("bend", "activation-missing", "in the feed-forward layers.1.1.net"),
        ("residual", "residual-missing", "around the feed-forward layers.1.1.net"),
    ],
)
def test_a_mistake_in_one_of_several_pairs_has_its_place(wrong: str, id: str, where: str) -> None:
    report = diagnose_model(Words(Pairs(wrong)))
    assert verdicts(report)["stack"] == f"sick: {id}", report
    assert where in str(report)


def test_the_mistake_of_one_attention_is_said_once() -> None:
    report = diagnose_model(Words(Pairs("scale")))
    said = {row.where: row.verdict for row in report.sick}
    assert list(said.values()) == ["sick: scale-missing"], report
    assert "layers.1.0" in next(iter(said))


class Near(Alone):
    """Sees its window, and holds its norm and residual itself."""

    def __init__(self, window_size: int = 8):
        super().__init__()
        self.norm, self.window_size = nn.LayerNorm(E), window_size

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weighed(self.norm(x))

    def weighed(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            layer(x).view(b, n, H, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        place = torch.arange(n)
        far = (place[:, None] - place).abs() > self.window_size
        scores = (q @ k.transpose(-1, -2) / (E // H) ** 0.5).masked_fill(far, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, E))


class NearBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed = Near(), Feed()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return x + self.feed(x)


def test_what_an_attention_with_its_own_norm_and_residual_is_stays_named() -> None:
    report = diagnose_model(Words(nn.Sequential(NearBlock(), NearBlock())))
    assert verdicts(report) == {"stack.0-1": "variant: window"}, report
