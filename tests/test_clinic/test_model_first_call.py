"""`diagnose_model` with nothing but the model: what strangers' models need to run at all."""

from __future__ import annotations

import pytest
import torch
from test_model_calls import Attention, E, EncoderLayer, H, Padded, verdicts
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_block, diagnose_model


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
