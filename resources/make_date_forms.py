"""Make `date_forms.json`: how six languages write a date, each in four forms.

Run it with `.venv/bin/python resources/make_date_forms.py`. It asks babel for the forms that
Unicode's CLDR gives a language, and writes them as templates of Python's `str.format`, with the
names of months and weekdays beside them. Chapter 11 fills them in, without babel: a newer CLDR
changes none of its strings. Before it writes, it fills in every form itself for every day of four
years, and compares it with what babel writes.
"""

import json
import re
from datetime import date, timedelta
from pathlib import Path

from babel import Locale
from babel.dates import format_date, get_date_format, get_day_names, get_month_names

from utils.data import fill_form

TARGET = Path(__file__).with_name("date_forms.json")
LANGUAGES = ("en", "ko", "de", "fr", "es", "ja")
FORMS = ("full", "long", "medium", "short")
# CLDR's letters, longest first: a word in quotes stands for itself
FIELDS = {
    "EEEE": "{weekday}",
    "MMMM": "{month_name}",
    "MMM": "{month_short}",
    "MM": "{month:02}",
    "M": "{month}",
    "dd": "{day:02}",
    "d": "{day}",
    "yy": "{year_2:02}",
    "y": "{year}",
}


def template(pattern: str) -> str:
    """Write a pattern of CLDR as a template of Python.

    >>> template("EEEE, d 'de' MMMM 'de' y")
    '{weekday}, {day} de {month_name} de {year}'
    """
    found = re.compile("|".join(["'([^']*)'", *FIELDS]))
    return found.sub(lambda m: FIELDS.get(m.group(), m.group(1)), pattern)


def build() -> dict[str, dict]:
    """Return the forms and names of every language.

    Raises:
        ValueError: a form, filled in, is not what babel writes.
    """
    table = {}
    for language in LANGUAGES:
        months = {w: get_month_names(w, locale=language) for w in ("wide", "abbreviated")}
        days = get_day_names("wide", locale=language)
        table[language] = {
            "name": Locale.parse(language).get_display_name("en"),
            "forms": {f: template(get_date_format(f, locale=language).pattern) for f in FORMS},
            "months": [months["wide"][month] for month in range(1, 13)],
            "short_months": [months["abbreviated"][month] for month in range(1, 13)],
            "weekdays": [days[day] for day in range(7)],
        }
        for form in FORMS:
            for number in range(4 * 366):
                day = date(1998, 1, 1) + timedelta(days=number)
                ours = fill_form(day, table[language], form)
                theirs = format_date(day, form, locale=language)
                if ours != theirs:
                    raise ValueError(
                        f"build: {language}, {form}: babel writes {theirs!r}, got {ours!r}. "
                        "Add the missing letters to FIELDS."
                    )
    return table


if __name__ == "__main__":
    TARGET.write_text(
        json.dumps(build(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n"
    )
