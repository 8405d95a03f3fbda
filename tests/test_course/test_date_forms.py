"""The forms of dates that chapter 11 writes: what the script makes with the pinned babel."""

from __future__ import annotations

import json

from test_project import load

from tools.course.registry import ROOT


def test_the_forms_of_dates_are_what_the_script_makes() -> None:
    script = load(ROOT / "resources" / "make_date_forms.py")
    stored = json.loads((ROOT / "resources" / "date_forms.json").read_text(encoding="utf-8"))
    assert stored == script.build(), "another CLDR? The chapter keeps its strings; say so here"


def test_a_pattern_becomes_a_template() -> None:
    script = load(ROOT / "resources" / "make_date_forms.py")
    assert (
        script.template("EEEE, d 'de' MMMM 'de' y") == "{weekday}, {day} de {month_name} de {year}"
    )
    assert script.template("dd.MM.yy") == "{day:02}.{month:02}.{year_2:02}"
