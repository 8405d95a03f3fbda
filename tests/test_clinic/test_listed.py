"""Layers in a plain list: right numbers that no optimizer ever changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_block


class Head(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, size)
        self.query = nn.Linear(width, size)
        self.value = nn.Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.key(x), self.query(x), self.value(x)
        return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v


class Listed(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.heads = kind(Head(24, 6) for _ in range(4))
        self.proj = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class InDict(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.layers = {name: nn.Linear(24, 24) for name in "qkvo"}
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        b, n, e = x.shape
        q, k, v = (self.layers[name](x).view(b, n, 4, 6).transpose(1, 2) for name in "qkv")
        weights = (q @ k.mT / 6**self.power).softmax(-1)
        return self.layers["o"]((weights @ v).transpose(1, 2).reshape(b, n, e))


def test_a_plain_list_of_layers_is_named() -> None:
    for module in (Listed(list), Listed(tuple), InDict(0.5)):
        report = diagnose(module, 4)
        assert report.ids == ("param-plain-tensor",), report
        assert "nn.ModuleList" in report.explanations[0].detail
    assert diagnose(Listed(nn.ModuleList), 4).healthy
    assert set(diagnose(InDict(0.0), 4).ids) == {"scale-missing", "param-plain-tensor"}


class Experts(nn.Module):
    """Two of them, each with its share, in a list of any kind."""

    def __init__(self, kind: type, drop: float) -> None:
        super().__init__()
        self.attention = Listed(nn.ModuleList)
        self.ln1, self.ln2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.experts = kind(
            nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24), nn.Dropout(drop))
            for _ in range(2)
        )
        self.router = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        z = self.ln2(x)
        shares = self.router(z).softmax(-1)
        return x + sum(shares[..., k : k + 1] * one(z) for k, one in enumerate(self.experts))


def test_dropout_in_a_plain_list_goes_on_while_evaluating() -> None:
    class Dropping(Head):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.1, self.training)

    module = Listed(list)
    module.heads = [Dropping(24, 6) for _ in range(4)]
    report = diagnose(module, 4)
    assert set(report.ids) == {"param-plain-tensor", "dropout-eval"}, report
    assert "eval() does not reach self.heads" in str(report)
    module.heads = nn.ModuleList(module.heads)
    assert diagnose(module, 4).healthy
    report = diagnose_block(Experts(list, 0.1), 4)
    assert {"param-plain-tensor", "dropout-eval"} <= set(report.ids), report
    for kind, drop in ((list, 0.0), (nn.ModuleList, 0.1)):
        assert "dropout-eval" not in diagnose_block(Experts(kind, drop), 4).ids


def test_the_module_stays_as_it_was() -> None:
    module = Listed(list)
    before = module.heads[0].key.weight.clone()
    diagnose(module, 4)
    assert len(list(module.parameters())) == 2 and len(list(module.modules())) == 2
    assert torch.equal(module.heads[0].key.weight, before) and module.heads[0].training


class Nested(nn.Module):
    """Lists of the layers of each head, in lists with names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._heads = [[nn.Linear(24, 6) for _ in range(3)] for _ in range(4)]
        self._output = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        made = []
        for layers in self._heads:
            q, k, v = (layer(x) for layer in layers)
            made.append((q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v)
        return self._output(torch.cat(made, dim=-1))


class KnowsOthers(Listed):
    """Hides who holds it from PyTorch."""

    def __init__(self) -> None:
        super().__init__(nn.ModuleList)
        self._holder = [nn.Linear(24, 24)]


def test_layers_are_found_in_lists_of_lists_and_behind_names_of_ones_own() -> None:
    report = diagnose(Nested(), 4)
    assert report.ids == ("param-plain-tensor",), report
    assert "self._heads" in report.explanations[0].detail
    assert diagnose(KnowsOthers(), 4).healthy


class PlainHead(nn.Module):
    """Matrices that want gradients, and are no parameters."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        made = (torch.randn(width, size, requires_grad=True) for _ in "qkv")
        self.Wq, self.Wk, self.Wv = made

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x @ self.Wq, x @ self.Wk, x @ self.Wv
        return (q @ k.mT / k.shape[-1] ** 0.5).softmax(-1) @ v


class PlainMatrices(nn.Module):
    """No parameter at all: heads in a list, matrices in another."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.heads = [PlainHead(24, 6) for _ in range(4)]
        self.W = [torch.randn(24, 24, requires_grad=True) for _ in range(1 + last)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1) @ self.W[-1]


@pytest.mark.parametrize("last", [False, True])
def test_plain_tensors_that_want_gradients_are_weights(last: bool) -> None:
    report = diagnose(PlainMatrices(last), 4)
    assert report.ids[:1] == ("param-plain-tensor",), report


def test_plain_tensors_of_one_head_are_named() -> None:
    report = diagnose(PlainHead(24, 24), 1, out_proj=False)
    assert report.ids == ("param-plain-tensor",) and "self.Wq asks for gradients" in str(report)


class Block(nn.Module):
    """Both parts in a row, around any attention."""

    def __init__(self, heads: type, scale: Tensor | None = None, slope: float = 0.0) -> None:
        super().__init__()
        self.attend = Listed(heads)
        self.first, self.second = nn.LayerNorm(24), nn.LayerNorm(24)
        self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)
        self.scale, self.slope = scale, slope

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        y = self.up(self.second(x))
        y = self.down(torch.where(y > 0, y, self.slope * y))
        return x + (y if self.scale is None else self.scale.to(y) * y)


def test_plain_layers_inside_of_a_block_are_named() -> None:
    report = diagnose_block(Block(list), 4)
    assert report.ids == ("param-plain-tensor",), report
    assert "self.attend.heads" in report.explanations[0].detail
    assert diagnose_block(Block(nn.ModuleList), 4).healthy
    report = diagnose_block(Block(list, slope=1.0), 4)
    assert set(report.ids) == {"activation-missing", "param-plain-tensor"}, report
    report = diagnose_block(Block(nn.ModuleList, torch.rand(24, requires_grad=True)), 4)
    assert report.ids == ("param-plain-tensor",), report


class Blocks(nn.Module):
    """Blocks in a row, in a list of any kind."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.layers = kind(Block(nn.ModuleList) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_plain_list_of_blocks_is_named() -> None:
    assert diagnose_block(Blocks(list), 4).ids == ("param-plain-tensor",)
    assert diagnose_block(Blocks(nn.ModuleList), 4).healthy
