"""The record of fresh shares: what a row counts, and that the clinic's page shows the rows."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from wild import record
from wild.cases import Case
from wild.scoring import BROKEN, FALSE, OPEN, REFUSED, RIGHT, WRONG, Result
from wild.trial import Verdict

DAY = datetime.date(2026, 1, 31)
SICK = Case("a", "x/y", "0" * 40, "m.py", "M()", "", "bug", "by hand", ids=("scale-embed",))
HEALTHY = replace(SICK, id="b", repository="x/z", truth="healthy", ids=())


@pytest.fixture
def results() -> list[Result]:
    return [
        Result(SICK, Verdict("answered", ids=(("scale-embed",),), seconds=1.0), RIGHT),
        Result(SICK, Verdict("answered", seconds=2.0), OPEN),
        Result(SICK, Verdict("answered", healthy=True, seconds=4.0, helped=True), FALSE),
        Result(HEALTHY, Verdict("answered", ids=(("scale-embed",),), seconds=8.0), WRONG),
        Result(HEALTHY, Verdict("refused", words="ValueError: size"), REFUSED),
        Result(replace(HEALTHY, repository="x/w"), Verdict("broken"), BROKEN),
    ]


def test_a_row_counts_what_was_built(results: list[Result]) -> None:
    assert list(record.row(results, DAY, "ViT").values()) == [
        *("2026-01-31", "ViT", "5", "2"),
        *("0", "2", "1", "3", "0", "0"),
        *("1", "1", "1", "1", "2.00", "8.00"),
    ]
    with pytest.raises(ValueError, match="must have modules that run, got none"):
        record.row(results[-1:], DAY, "ViT")
    with pytest.raises(ValueError, match="areas must say where was looked"):
        record.row(results, DAY, " ")


def test_rows_are_kept_and_shown(results: list[Result], tmp_path: Path) -> None:
    path, page = tmp_path / "record.csv", tmp_path / "README.md"
    page.write_text(
        "above\n<!-- The record: --record writes it. -->\nold\n<!-- Its end. -->\nbelow"
    )
    first = record.row(results, DAY, "ViT")
    record.write([first], path, page)
    record.write([*record.read(path), record.row(results[:1], DAY, "ViT")], path, page)
    assert record.read(path)[0] == first and len(record.read(path)) == 2
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("\nbelow") and "old" not in text
    cells = "5, 2 | 0 of 2 (0 %) | 1 of 3 (33 %) | - | 1 | 1 | 1 | 2.00 s, 8.00 s"
    assert f"| 2026-01-31 | ViT | {cells} |" in text


def test_a_page_without_a_place_loses_nothing(results: list[Result], tmp_path: Path) -> None:
    path, page = tmp_path / "record.csv", tmp_path / "README.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="must say where the table stands"):
        record.write([record.row(results, DAY, "ViT")], path, page)
    assert page.read_text() == "nothing" and not path.exists()


def test_the_page_of_the_clinic_shows_the_record() -> None:
    found = record.PLACE.search(record.SHOWN.read_text(encoding="utf-8"))
    assert found and found[0] == record.table(record.read()), "a row is written by --record"
