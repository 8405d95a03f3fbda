"""The study that chapter 08 draws is the one that the cases of the bench give."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import pytest

from wild.cases import NONE, read_cases
from wild.study import STORED

SCRIPT = Path(__file__).parents[2] / "resources" / "make_wild_study.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_wild_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_anew_the_study_is_the_one_that_ships(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "TARGET", tmp_path / "wild_study.json")
    shipped = SCRIPT.with_name("wild_study.json").read_bytes()
    script.main()
    assert script.TARGET.read_bytes() == shipped, "run resources/make_wild_study.py"


def test_the_study_counts_what_the_table_of_the_bench_counts() -> None:
    study = json.loads(SCRIPT.with_name("wild_study.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader(io.StringIO(STORED.read_text(encoding="utf-8"))))
    sampled = {row["id"]: int(row["sample"]) for row in rows}
    assert study["bugs"] == {id: n for id, n in sampled.items() if n and id != NONE}
    truths = [case.truth for case in read_cases() if case.found == "sample"]
    assert study["modules"] == {truth: truths.count(truth) for truth in study["modules"]}
    assert set(truths) == set(study["modules"])
