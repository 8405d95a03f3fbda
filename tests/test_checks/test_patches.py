"""Wrong versions of references are made by changing their source."""

from __future__ import annotations

import pytest
import torch

from checks.engine.patches import patches
from helpers import error_of


def scaled(x: torch.Tensor) -> torch.Tensor:
    half = x / 2
    return half + 1


def test_a_patch_is_another_source() -> None:
    (one,), (two,) = patches(
        scaled, {"a": ("/ 2", "/ 4"), "b": [("/ 2", "", "+ 1", "- 1")]}
    ).values()
    assert (one(8), two(8), scaled(8)) == (3, 7, 5)
    assert one.__name__ == "scaled" and "/ 4" in one.source


@pytest.mark.parametrize("patch", [("/ 3", "/ 4"), ("/ 2", "/ 2")])
def test_a_patch_that_changes_nothing_is_refused(patch: tuple[str, str]) -> None:
    assert "must be in the source of scaled" in error_of(lambda: patches(scaled, {"a": patch}))
