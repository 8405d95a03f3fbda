"""`make bench` prints its tables: all models run, and give what the others give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import GPT2Config, ViTConfig

from tools.course import bench


@pytest.fixture
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("one_thread_afterwards")
def test_every_table_has_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"vocab_size": 50, "layers": 2, "heads": 4, "kv_heads": 2, "width": 32}
    changes = {"TOKENS": (16, 32), "WRITERS": small, "BATCH_SIZES": (1, 3)}
    for name, value in {**changes, "PROMPT": 5, "STEPS": 4}.items():
        monkeypatch.setattr(bench, name, value)
    # what is loaded is of full size otherwise
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 20}
    vit = {**sizes, "num_hidden_layers": 1}
    gpt2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 70}
    monkeypatch.setattr(bench, "ViTConfig", lambda **given: ViTConfig(**{**vit, **given}))
    monkeypatch.setattr(bench, "GPT2Config", lambda **given: GPT2Config(**{**gpt2, **given}))
    bench.main(["--size", "digits", "--rounds", "2"])
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = [tuple(words[:3]) for words in printed if words[:1] == ["digits"]]
    steps = ("training", "inference")
    assert first == [("digits", threads, step) for threads in "12" for step in steps]
    memory = {words[0]: float(words[2]) for words in printed if words[:1] in (["16"], ["32"])}
    assert memory.keys() == {"16", "32"} and min(memory.values()) > 0
    rows = [tuple(words[:2]) for words in printed if words[:1] in (["GPT-2"], ["Llama"])]
    assert rows[:-1] == [(family, texts) for family in ("GPT-2", "Llama") for texts in "13"]
    loaded = {words[0]: words[1:] for words in printed[-2:]}
    assert loaded.keys() == {"ViT-B/16", "GPT-2"}
    assert all(float(seconds) >= 0 for _, seconds, *_ in loaded.values())  # two digits are shown


def test_one_table_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "TOKENS", (16,))
    bench.main(["--table", "memory"])
    assert [line.split()[0] for line in capsys.readouterr().out.split("\n") if line] == [
        "attention",
        "tokens",
        "16",
    ]
