"""What several tests of the clinic begin with."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """Spare the garbage collector the libraries: recorded runs make many small objects."""
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that small sums are added in one order, and fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
