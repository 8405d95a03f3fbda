"""Four small trained models to look into, and what they read (chapter 14)."""

import json
from datetime import date, timedelta
from functools import cache
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from utils.decoder import Transformer
from utils.images import resource
from utils.language_model import LanguageModel, load_shipped_model
from utils.shapes import check_positive, check_shape
from utils.text import BEGIN, END, Vocabulary
from utils.vision_transformer import VisionTransformer

DIGIT = 8  # pixels of a digit's side
RULE_SYMBOLS = "abcdef123456"

# what the four load_...() and resources/make_small_models.py build
CANVAS_MODEL = {
    "image_size": 24,
    "patch_size": 4,
    "in_channels": 1,
    "num_classes": 10,
    "embed_dim": 64,
    "num_heads": 4,
    "mlp_dim": 256,
    "num_layers": 3,
}
SENTENCE_MODEL = {
    "vocab_size": 27,
    "embed_dim": 48,
    "num_heads": 4,
    "mlp_dim": 192,
    "num_layers": 2,
    "max_length": 10,
}
DATE_MODEL = {
    "embed_dim": 64,
    "num_heads": 4,
    "mlp_dim": 128,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "max_length": 40,
    "positions": "learned",
    "scale": True,
}
RULES_MODEL = {
    "vocab_size": len(RULE_SYMBOLS),
    "embed_dim": 32,
    "num_heads": 2,
    "mlp_dim": 128,
    "num_layers": 2,
    "max_length": 20,
}


# ------------------------------------------------------------------------------ digits on a canvas


def on_canvas(digits: Tensor, corners: Tensor, size: int = 24) -> Tensor:
    """Put each digit on a black canvas of its own.

    Args:
        digits: pictures of 8 x 8 pixels, as `load_digits` gives them.
        corners: row and column of each digit's upper left pixel.
        size: side of the canvases in pixels.

    Shape:
        digits   (b, 1, 8, 8)
        corners  (b, 2), integers from 0 to size - 8
        result   (b, 1, size, size)

    Raises:
        ValueError: digits or corners of another shape, or a digit that does not fit.

    Source: chapter 14.
    """
    fix = "Take those of load_digits."
    check_shape("on_canvas", "digits", digits, "b c H W", fix, c=1, H=DIGIT, W=DIGIT)
    fix = "One row and one column for each digit."
    check_shape("on_canvas", "corners", corners, "b s", fix, b=len(digits), s=2)
    if len(corners) and not 0 <= corners.min() <= corners.max() <= size - DIGIT:
        raise ValueError(
            f"on_canvas: corners must lie from 0 to {size - DIGIT} on a canvas of {size} pixels, "
            f"got {corners.min()} to {corners.max()}. Take those of random_corners."
        )
    canvases = digits.new_zeros(len(digits), 1, size, size)
    for canvas, digit, (row, column) in zip(canvases, digits, corners.tolist(), strict=True):
        canvas[:, row : row + DIGIT, column : column + DIGIT] = digit
    return canvases


def random_corners(count: int, generator: torch.Generator, size: int = 24) -> Tensor:
    """Draw a place for each of `count` digits, anywhere where a digit fits.

    Args:
        count: how many.
        generator: of torch, on the CPU.
        size: side of the canvases in pixels.

    Shape:
        result  (count, 2), integers from 0 to size - 8

    Raises:
        ValueError: a canvas smaller than a digit.

    Source: chapter 14.
    """
    if size < DIGIT:
        raise ValueError(
            f"random_corners: size must be at least {DIGIT}, the side of a digit, got size={size}. "
            "Use 24."
        )
    return torch.randint(size - DIGIT + 1, (count, 2), generator=generator)


def load_canvas_model() -> VisionTransformer:
    """Load the model that reads a digit anywhere on a canvas of 24 x 24 pixels, in eval mode.

    Patches have 4 x 4 pixels, so there are 37 tokens: the class token and 36 patches.

    Shape:
        images  (b, 1, 24, 24)
        result  (b, 10)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_small_models.py; chapter 14.
    """
    model = VisionTransformer(**CANVAS_MODEL)
    model.load_state_dict(load_file(resource("canvas_model.safetensors")))
    return model.eval()


# --------------------------------------------------------------------------- sentences and letters


def load_sentence_model() -> LanguageModel:
    """Load a GPT of the sentences of `utils.grammar`, two blocks of four heads, in eval mode.

    Shape:
        ids     (b, n), n up to 10
        result  (b, n, 27)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_small_models.py; chapter 14.
    """
    return load_shipped_model(SENTENCE_MODEL, "sentence_model")


def rule_texts(count: int, generator: torch.Generator, examples: int = 10) -> Tensor:
    """Draw texts that each have a rule of their own: it gives every letter a digit.

    A text says a letter, its digit, a letter, its digit, and so on: examples of its rule. Only an
    earlier example tells a digit.

    Args:
        count: how many texts.
        generator: of torch, on the CPU.
        examples: pairs of letter and digit in a text.

    Shape:
        result  (count, 2 * examples), ids that stand for `RULE_SYMBOLS`

    Raises:
        ValueError: a count below 1, or no examples.

    Source: chapters 12 and 14.
    """
    check_positive("rule_texts", count=count, examples=examples)
    half = len(RULE_SYMBOLS) // 2
    rules = torch.randint(half, (count, half), generator=generator)
    letters = torch.randint(half, (count, examples), generator=generator)
    digits = half + rules.gather(1, letters)
    return torch.stack([letters, digits], dim=2).flatten(1)


def load_rules_model() -> LanguageModel:
    """Load a GPT that was trained on `rule_texts`, two blocks of two heads, in eval mode.

    Shape:
        ids     (b, n), n up to 20
        result  (b, n, 12)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_small_models.py; chapter 14.
    """
    return load_shipped_model(RULES_MODEL, "rules_model")


# ------------------------------------------------------------------------------------------- dates


@cache
def date_forms() -> dict[str, Any]:
    """Return how six languages write a date: language -> names, months, weekdays, four forms.

    Raises:
        ValueError: the file is missing.

    Source: resources/make_date_forms.py; chapter 11.
    """
    return json.loads(resource("date_forms.json").read_text(encoding="utf-8"))


def write_date(day: date, language: str, form: str) -> str:
    """Write a day as people do.

    Args:
        day: a day.
        language: one of "en", "ko", "de", "fr", "es", "ja".
        form: one of "full", "long", "medium", "short".

    Raises:
        ValueError: another language or form.

    Source: chapter 11.
    """
    table = date_forms().get(language)
    if table is None or form not in table["forms"]:
        raise ValueError(
            "write_date: language and form must be ones that the course has, "
            f"got language={language!r} and form={form!r}. Pick from {[*date_forms()]} and "
            f"{[*date_forms()['en']['forms']]}."
        )
    return fill_form(day, table, form)


def fill_form(day: date, table: dict[str, Any], form: str) -> str:
    """Write a day in one form of a language's table.

    Args:
        day: a day.
        table: the names and forms of a language, as `date_forms` has them.
        form: one of "full", "long", "medium", "short".

    Source: chapter 11.
    """
    return table["forms"][form].format(
        year=day.year,
        year_2=day.year % 100,
        month=day.month,
        day=day.day,
        month_name=table["months"][day.month - 1],
        month_short=table["short_months"][day.month - 1],
        weekday=table["weekdays"][day.weekday()],
    )


@cache
def date_vocabularies() -> tuple[Vocabulary, Vocabulary]:
    """Return the ids of chapter 11: of letters in written dates, and of those in the answers.

    Source: chapter 11.
    """
    days = [date(1998, 1, 1) + timedelta(days=number) for number in range(365)]
    ways = [(language, form) for language, table in date_forms().items() for form in table["forms"]]
    letters = {letter for day in days for way in ways for letter in write_date(day, *way)}
    languages = [f"<{language}>" for language in date_forms()]
    return Vocabulary([*languages, *sorted(letters)]), Vocabulary("0123456789-")


def date_ids(day: date, language: str, form: str) -> tuple[list[int], list[int]]:
    """Return a written day as ids, its language in front, and the answer between begin and end.

    Args:
        day: a day.
        language: see `write_date`.
        form: see `write_date`.

    Raises:
        ValueError: as `write_date`.

    Source: chapter 11.
    """
    source, target = date_vocabularies()
    written = source.encode([f"<{language}>", *write_date(day, language, form)])
    return written, [BEGIN, *target.encode(day.isoformat()), END]


def load_date_model() -> Transformer:
    """Load a translator of dates like the one of chapter 11, in eval mode.

    Shape:
        source  (b, j), ids of `date_ids`, padded
        target  (b, i), ids of the answer so far
        result  (b, i, 15)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_small_models.py; chapters 11 and 14.
    """
    source, target = date_vocabularies()
    model = Transformer(source_size=len(source), target_size=len(target), **DATE_MODEL)
    model.load_state_dict(load_file(resource("date_model.safetensors")))
    return model.eval()
