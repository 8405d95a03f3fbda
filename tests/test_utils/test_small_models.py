"""The small trained models do what they were trained for, and their data is what it says."""

from datetime import date

import pytest
import torch

from helpers import error_of, load
from utils.grammar import load_grammar
from utils.images import RESOURCES, load_digits
from utils.small_models import (
    date_forms,
    date_ids,
    date_vocabularies,
    load_canvas_model,
    load_date_model,
    load_sentence_model,
    load_words_model,
    made_up_words,
    on_canvas,
    random_corners,
    write_date,
)
from utils.text import PADDING, pad, padding_mask_of_ids


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the models


@torch.no_grad()
def test_the_canvas_model_reads_digits_anywhere():
    _, (images, labels) = load_digits()
    corners = random_corners(len(images), seeded(5))
    right = load_canvas_model()(on_canvas(images, corners)).argmax(dim=-1) == labels
    assert right.double().mean() > 0.92


@torch.no_grad()
def test_the_sentence_model_knows_the_probabilities():
    grammar, model = load_grammar(), load_sentence_model()
    log = model(grammar.ids[:, :-1]).double().log_softmax(dim=-1)
    truth = grammar.after(grammar.ids)[:, :-1]
    apart = (truth * (truth.clamp(min=1e-300).log() - log)).sum(dim=-1)
    said = (grammar.ids[:, 1:] != PADDING) * grammar.probabilities[:, None]
    assert (apart * said).sum() / said.sum() < 0.01


@torch.no_grad()
def test_the_words_model_spells_what_it_was_told():
    ids, follows = made_up_words(300, seeded(5))
    right = load_words_model()(ids[:, :-1]).argmax(dim=-1) == ids[:, 1:]
    assert right[follows[:, 1:]].double().mean() > 0.95


@torch.no_grad()
def test_the_date_model_translates():
    ways = [(lang, form) for lang in date_forms() for form in ("full", "long", "medium")]
    pairs = [date_ids(date(2011, 3, 27), *way) for way in ways]
    source, target = (pad([pair[side] for pair in pairs]) for side in (0, 1))
    scores = load_date_model()(source, target[:, :-1], padding_mask_of_ids(source))
    right = (scores.argmax(dim=-1) == target[:, 1:]).all(dim=1)
    assert right.double().mean() > 0.9


def test_all_models_come_from_the_script_and_are_small():
    script = load(RESOURCES / "make_small_models.py")
    files = [RESOURCES / f"{name}_model.safetensors" for name in script.MODELS]
    assert len(files) == 4 and sum(file.stat().st_size for file in files) < 2_000_000


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


def test_made_up_words_follow_once_they_were_said():
    """A letter is marked exactly where the letter before it was followed by it earlier, always."""
    ids, follows = made_up_words(50, seeded(), length=30)
    assert ids.shape == follows.shape == (50, 30) and 0 <= ids.min() <= ids.max() < 26
    for text, known in zip(ids.tolist(), follows.tolist(), strict=True):
        for place in range(1, 30):
            earlier = [at for at in range(1, place) if text[at - 1] == text[place - 1]]
            if known[place]:
                assert earlier and {text[at] for at in earlier} == {text[place]}
        assert not known[0]
    assert 0.3 < follows.double().mean() < 0.6


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
        (lambda: made_up_words(0, seeded()), "made_up_words: count"),
        (lambda: write_date(date(2000, 1, 1), "xx", "full"), "got language='xx'"),
        (lambda: write_date(date(2000, 1, 1), "en", "tiny"), "form='tiny'"),
    ]:
        assert said in error_of(call)


def test_a_missing_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("utils.images.RESOURCES", tmp_path)
    for call in (load_canvas_model, load_sentence_model, load_words_model):
        assert "safetensors" in error_of(call)
