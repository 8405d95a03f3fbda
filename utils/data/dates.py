"""Dates as six languages write them, and their ids (chapters 11 and 14)."""

import json
from datetime import date, timedelta
from functools import cache
from typing import Any

from utils.data.files import resource
from utils.text import BEGIN, END, Vocabulary


@cache
def date_forms() -> dict[str, Any]:
    """Return how six languages write a date: language -> names, months, weekdays, four forms.

    Raises: ValueError for a missing file.
    Source: resources/make_date_forms.py; chapter 11.
    """
    return json.loads(resource("date_forms.json").read_text(encoding="utf-8"))


def write_date(day: date, language: str, form: str) -> str:
    """Write a day as people do.

    Args:
        day: a day.
        language: one of "en", "ko", "de", "fr", "es", "ja".
        form: one of "full", "long", "medium", "short".

    Raises: ValueError for another language or form.
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

    Raises: as `write_date`.
    Source: chapter 11.
    """
    source, target = date_vocabularies()
    written = source.encode([f"<{language}>", *write_date(day, language, form)])
    return written, [BEGIN, *target.encode(day.isoformat()), END]
