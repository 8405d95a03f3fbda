"""The study that chapter 08 draws is the one that the cases of the bench give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "resources" / "make_wild_study.py"


def test_made_anew_the_study_is_the_one_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("make_wild_study", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "TARGET", tmp_path / "wild_study.json")
    script.main()
    shipped = SCRIPT.with_name("wild_study.json").read_bytes()
    assert script.TARGET.read_bytes() == shipped, "run resources/make_wild_study.py"
