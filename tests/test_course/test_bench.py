"""`make bench` prints its tables: all models run, and give what the others give."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

import bench


@pytest.fixture
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("one_thread_afterwards")
def test_every_table_has_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"vocab_size": 50, "layers": 2, "heads": 4, "kv_heads": 2, "width": 32}
    changes = {"TOKENS": (16, 32), "WRITERS": small, "TEXTS_AT_ONCE": (1, 3)}
    for name, value in {**changes, "PROMPT": 5, "STEPS": 4}.items():
        monkeypatch.setattr(bench, name, value)
    # models of full size, which tests of utils.pretrained have small
    monkeypatch.setattr(bench, "loading", lambda rounds: None, raising=False)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--size", "digits", "--rounds", "2"])
    bench.main()
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = [tuple(words[:3]) for words in printed if words[:1] == ["digits"]]
    steps = ("training", "inference")
    assert first == [("digits", threads, step) for threads in "12" for step in steps]
    memory = {words[0]: float(words[2]) for words in printed if words[:1] in (["16"], ["32"])}
    assert memory.keys() == {"16", "32"} and min(memory.values()) > 0
    written = [tuple(words[:2]) for words in printed if words[:1] in (["GPT-2"], ["Llama"])]
    assert written == [(family, texts) for family in ("GPT-2", "Llama") for texts in "13"]
