"""The parts of the live page that read text: they equal PyTorch's, and they work in a browser."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from browser.try_live import needs_node, node
from utils.attention import record_attention
from utils.data import date_forms, date_vocabularies, load_grammar, load_shipped, resource
from utils.data.dates import date_ids, write_date
from utils.generation import beam_search, next_probabilities
from utils.text import BEGIN, END

WIDTHS = [1, 4]
CHOICES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"top_p": 0.7},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.9},
    {"temperature": 0},
]
CAMEL = {"temperature": "temperature", "top_k": "topK", "top_p": "topP"}
# what a text in a language means, or the sentence about it
READ = {
    ("2/1/98", "en"): "1998-02-01",
    ("2/1/98", "es"): "1998-01-02",
    ("12/31/49", "en"): "2049-12-31",
    ("1/1/50", "en"): "1950-01-01",
    ("Monday, January 2, 1998", "en"): "1998-01-02 The weekday of this day is Friday.",
    ("January 2, 1850", "en"): "1850-01-02 The model was trained on 1950 to 2049 only.",
    ("February 29, 2000", "en"): "2000-02-29",
    ("February 29, 1900", "en"): "The day must be 1 to 28 in February 1900, got 29.",
    ("31. Februar 1998", "de"): "The day must be 1 to 28 in Februar 1998, got 31.",
    ("13/2/98", "en"): "The month must be 1 to 12, got 13.",
    ("January 0, 1998", "en"): "The day must be 1 to 31",
    ("January 2, 1998", "fr"): "The text must be a date as French writes it",
    ("yesterday", "en"): "The text must be a date as English writes it, got “yesterday”.",
    ("02x01y1998", "de"): "The text must be a date as German writes it",  # periods are no wildcards
}


def some_dates() -> list[tuple[date, str, str]]:
    """Return 50 days, each in a language and a form, all 24 ways at least twice."""
    ways = [(language, form) for language, table in date_forms().items() for form in table["forms"]]
    days = torch.randint(36_525, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    first = date(1950, 1, 1)
    return [(first + timedelta(days=n), *ways[at % len(ways)]) for at, n in enumerate(days)]


def some_beginnings() -> list[list[int]]:
    """Return 50 beginnings of sentences, of 1 to 8 ids; the last is of no sentence."""
    sampled = load_grammar().sample(49, torch.Generator().manual_seed(0)).tolist()
    cut = [[id for id in row if id > END] for row in sampled]
    return [[BEGIN, *ids[: at % len(ids)]] for at, ids in enumerate(cut)] + [[BEGIN, 6, 6]]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    """Return what website/live computes."""
    source, _ = date_vocabularies()
    grammar = load_grammar()
    given = {
        "date": str(resource("date_model.safetensors")),
        "sentence": str(resource("sentence_model.safetensors")),
        "forms": date_forms(),
        "symbols": source.symbols,
        "widths": WIDTHS,
        "dates": [
            {
                "day": [day.year, day.month, day.day],
                "language": language,
                "form": form,
                "target": date_ids(day, language, form)[1][:-1],
            }
            for day, language, form in some_dates()
        ],
        "beginnings": some_beginnings(),
        "choices": [{CAMEL[key]: value for key, value in one.items()} for one in CHOICES],
        "grammar": {
            "words": grammar.vocabulary.symbols,
            "ids": grammar.ids.tolist(),
            "probabilities": grammar.probabilities.tolist(),
        },
        "texts": [*READ],
    }
    return json.loads(node("text_trace.mjs", given))


def close(mine: list[float], theirs: Tensor) -> None:
    """Check that numbers equal a tensor's to 1e-5."""
    ours = torch.tensor(mine, dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.double().flatten(), atol=1e-5, rtol=1e-5)


@needs_node
@torch.no_grad()
def test_translator_equals_pytorch(traced: dict[str, Any]) -> None:
    model = load_shipped("date").double()
    for (day, language, form), mine in zip(some_dates(), traced["dates"], strict=True):
        ids, target = date_ids(day, language, form)
        assert (mine["text"], mine["ids"]) == (write_date(day, language, form), ids)
        assert mine["read"] == day.isoformat()
        memory = model.encode(torch.tensor([ids]))
        close(mine["memory"], memory)
        with record_attention(model.decoder) as maps:
            logits = model.decode(torch.tensor([target[:-1]]), memory)
        close(mine["logits"], logits)
        across = list(maps)[1::2]  # in each block, cross-attention comes second
        for ours, theirs in zip(mine["weights"], across, strict=True):
            close(ours, theirs)


@needs_node
@torch.no_grad()
def test_greedy_and_beam_equal_pytorch(traced: dict[str, Any]) -> None:
    model = load_shipped("date").double()
    for (day, language, form), mine in zip(some_dates(), traced["dates"], strict=True):
        memory = model.encode(torch.tensor([date_ids(day, language, form)[0]]))

        def next_scores(ids: Tensor, memory: Tensor = memory) -> Tensor:
            logits = model.decode(ids, memory.expand(len(ids), -1, -1))
            return logits[:, -1].log_softmax(dim=-1)

        for width, ours in zip(WIDTHS, mine["found"], strict=True):
            theirs = beam_search(next_scores, BEGIN, END, width, max_length=20)
            assert [one["ids"] for one in ours] == [ids for ids, _ in theirs]
            close([one["score"] for one in ours], torch.tensor([score for _, score in theirs]))
            for one in ours:  # a row of weights for each character that it wrote
                with record_attention(model.decoder) as maps:
                    model.decode(torch.tensor([one["ids"][:-1]]), memory)
                close(one["w"], maps[-1])


@needs_node
@torch.no_grad()
def test_language_model_equals_pytorch(traced: dict[str, Any]) -> None:
    model, grammar = load_shipped("sentence").double(), load_grammar()
    for ids, mine in zip(some_beginnings(), traced["beginnings"], strict=True):
        logits = model(torch.tensor([ids]))[0]
        close(mine["logits"], logits)
        for choice, ours in zip(CHOICES, mine["chosen"], strict=True):
            close(ours, next_probabilities(logits[-1], **choice))
        close(mine["truth"], grammar.after(torch.tensor([ids]))[0, -1])


@needs_node
def test_dates_are_read_or_refused_with_a_sentence(traced: dict[str, Any]) -> None:
    for (text, words), mine in zip(READ.items(), traced["read"], strict=True):
        assert mine.startswith(words), text
        if words[0].isdigit():
            assert mine == words
