"""The small trained models do what they were trained for, and their data is what it says."""

from datetime import date

import pytest
import torch

from helpers import error_of
from utils.data import (
    RULE_SYMBOLS,
    SHIPPED,
    date_forms,
    date_ids,
    date_vocabularies,
    load_digits,
    load_grammar,
    load_shipped,
    on_canvas,
    random_corners,
    rule_sequences,
    write_date,
)
from utils.data.files import RESOURCES
from utils.text import PADDING, pad, padding_mask_of_ids


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the models


@torch.no_grad()
def test_the_canvas_model_reads_digits_anywhere():
    _, (images, labels) = load_digits()
    corners = random_corners(len(images), seeded(5))
    right = load_shipped("canvas")(on_canvas(images, corners)).argmax(dim=-1) == labels
    assert right.double().mean() > 0.92


@torch.no_grad()
def test_the_sentence_model_knows_the_probabilities():
    grammar, model = load_grammar(), load_shipped("sentence")
    ids = grammar.ids[::5]
    log = model(ids[:, :-1]).double().log_softmax(dim=-1)
    truth = grammar.after(ids)[:, :-1]
    apart = (truth * (truth.clamp(min=1e-300).log() - log)).sum(dim=-1)
    said = (ids[:, 1:] != PADDING) * grammar.probabilities[::5, None]
    assert (apart * said).sum() / said.sum() < 0.01


@torch.no_grad()
def test_the_rules_model_reads_a_rule_from_its_prompt():
    ids = rule_sequences(300, seeded(5))
    right = load_shipped("rules")(ids[:, :-1])[:, ::2].argmax(dim=-1) == ids[:, 1::2]
    letters = ids[:, ::2]
    told = (letters[:, :, None] == letters[:, None]).tril(-1).any(dim=-1)
    assert right[told].double().mean() > 0.98 and right[~told].double().mean() < 0.3


@torch.no_grad()
def test_the_date_model_translates():
    ways = [(lang, form) for lang in date_forms() for form in ("full", "long", "medium")]
    pairs = [date_ids(date(2011, 3, 27), *way) for way in ways]
    source, target = (pad([pair[side] for pair in pairs]) for side in (0, 1))
    scores = load_shipped("date")(source, target[:, :-1], padding_mask_of_ids(source))
    right = (scores.argmax(dim=-1) == target[:, 1:]).all(dim=1)
    assert right.double().mean() > 0.9


def test_all_models_are_small():
    names = ("canvas", "date", "rules", "sentence")
    files = [RESOURCES / f"{name}_model.safetensors" for name in names]
    assert sum(file.stat().st_size for file in files) < 2_000_000


# --- what they read


def test_a_digit_stands_where_its_corner_says():
    digits = torch.rand(3, 1, 8, 8)
    corners = torch.tensor([[0, 0], [16, 3], [5, 16]])
    canvases = on_canvas(digits, corners)
    assert canvases.shape == (3, 1, 24, 24)
    for canvas, digit, (row, column) in zip(canvases, digits, corners.tolist(), strict=True):
        assert torch.equal(canvas[:, row : row + 8, column : column + 8], digit)
        assert canvas.sum() == pytest.approx(digit.sum().item(), rel=1e-5)
    assert on_canvas(digits.double(), corners, size=30).dtype == torch.float64


def test_corners_reach_every_place_and_no_further():
    corners = random_corners(4000, seeded(), size=12)
    assert corners.min() == 0 and corners.max() == 4 and len(corners.unique(dim=0)) == 25


def test_every_text_has_one_digit_for_a_letter_and_texts_differ():
    ids = rule_sequences(60, seeded(), examples=12)
    assert ids.shape == (60, 24)
    assert ids[:, ::2].max() < 6 <= ids[:, 1::2].min() and ids.max() < len(RULE_SYMBOLS)
    rules = [dict(zip(text[::2], text[1::2], strict=True)) for text in ids.tolist()]
    for text, rule in zip(ids.tolist(), rules, strict=True):
        assert all(
            rule[letter] == digit for letter, digit in zip(text[::2], text[1::2], strict=True)
        )
    assert {rule[0] for rule in rules if 0 in rule} == set(range(6, 12))


def test_dates_are_written_and_read_as_in_chapter_11():
    source, target = date_vocabularies()
    assert (len(source), len(target)) == (80, 15)
    day = date(1998, 1, 2)
    assert write_date(day, "fr", "full") == "vendredi 2 janvier 1998"
    assert write_date(day, "de", "short") == "02.01.98"
    written, answer = date_ids(day, "ko", "long")
    assert source.decode(written) == ["<ko>", *"1998년 1월 2일"]
    assert "".join(target.decode(answer[1:-1])) == "1998-01-02"


def test_bad_input():
    digits, corners = torch.zeros(2, 1, 8, 8), torch.zeros(2, 2, dtype=torch.long)
    for call, said in [
        (lambda: on_canvas(digits[..., 1:], corners), "on_canvas: digits"),
        (lambda: on_canvas(digits, corners[:1]), "on_canvas: corners"),
        (lambda: on_canvas(digits, corners + 17), "from 0 to 16 on a canvas of 24"),
        (lambda: on_canvas(digits, corners - 1), "got -1 to -1"),
        (lambda: random_corners(2, seeded(), size=7), "got size=7"),
        (lambda: rule_sequences(0, seeded()), "rule_sequences: count"),
        (lambda: rule_sequences(2, seeded(), examples=0), "rule_sequences: examples"),
        (lambda: write_date(date(2000, 1, 1), "xx", "full"), "got language='xx'"),
        (lambda: write_date(date(2000, 1, 1), "en", "tiny"), "form='tiny'"),
    ]:
        assert said in error_of(call)


def test_a_missing_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("utils.data.files.RESOURCES", tmp_path)
    for name in SHIPPED:
        assert f"{name}_model.safetensors" in error_of(lambda name=name: load_shipped(name))


def test_another_name_is_refused():
    text = error_of(lambda: load_shipped("digit"))
    assert "name must be one of ['digits', 'drawing'," in text and "got name='digit'" in text
