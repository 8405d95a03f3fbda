"""Windows that are wider than the texts of an examination are said not to be tried."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from patients.attention import Views

from attention_clinic import diagnose


class Sliding(Views):
    """Causal, and sees the last tokens only."""

    def __init__(self, e, h, window):
        super().__init__(e, h)
        self.sliding_window = window

    def weigh(self, scores, mask):
        places = torch.arange(scores.shape[-1])
        back = places[:, None] - places
        allowed = (back >= 0) & (back < self.sliding_window)
        return super().weigh(scores, allowed)


class Filled(Views):
    """Texts are filled up to whole windows of 16, and cut into them."""

    def forward(self, x):
        b, n, e = x.shape
        x = F.pad(x, (0, 0, 0, -n % 16)).reshape(-1, 16, e)
        real = (torch.arange(len(x) // b * 16) < n).view(-1, 1, 1, 16).repeat(b, 1, 1, 1)
        return super().forward(x, real).reshape(b, -1, e)[:, :n]


def unseen(report) -> list[str]:
    return [words for words in report.untried if "window" in words]


def test_a_window_that_holds_all_tokens_is_not_tried() -> None:
    report = diagnose(Sliding(24, 4, 64), 4)
    words = "the end of a window (sliding_window = 64): all 5 tokens fit into it, and "
    assert report.healthy and unseen(report) == [f"{words}size=(2, 128) tries more"]
    assert [v.id for v in diagnose(Sliding(24, 4, 64), 4, size=(2, 128)).variants] == ["window"]


def test_a_window_that_texts_are_filled_up_to_is_not_tried() -> None:
    report = diagnose(Filled(24, 4), 4)
    words = "the end of a window (of 16, as many as it fills up to): all 5 tokens fit into it"
    assert report.healthy and unseen(report) == [f"{words}, and size=(2, 32) tries more"]


def test_a_window_that_was_seen_is_named() -> None:
    report = diagnose(Sliding(24, 4, 8), 4)
    assert [v.id for v in report.variants] == ["window"] and not unseen(report)
