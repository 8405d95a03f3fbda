"""What several tests of the clinic begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attention_clinic.capture.trial import Trial


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that small sums are added in one order, and fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine a module with one number of tokens; a second one doubles the time."""
    monkeypatch.setattr(Trial, "takes", lambda trial, number: False)
