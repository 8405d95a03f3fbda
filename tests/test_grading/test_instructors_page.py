"""docs/instructors.md says what the code does."""

from __future__ import annotations

import re

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from grading import handed_in, report, results
from grading.running import Limits

TEXT = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE).group(1)


def test_its_links_lead_to_its_headings():
    anchors = {h.lower().replace(" ", "-") for h in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == anchors


def test_its_limits_are_those_of_the_code():
    limits, text = Limits(), section("Limits")
    assert f"A cell may run {limits.cell:g} seconds and show {limits.output / 1e6:g} MB" in text
    assert f"may run {limits.notebook:g} seconds and take {limits.memory / 1e9:g} GB" in text


def test_its_files_are_those_that_are_written():
    for name in (*results.TABLES, "class.html", f"{results.EARLIER}/", "feedback/", "logs/"):
        assert f"`{name}" in section("Grading"), name
    assert {"id", "reason"} <= set(report.COLUMNS)


def test_its_reasons_are_those_of_the_code():
    text = section("Why a student has 0")
    assert "an archive of kind .rar is not opened" in text and ".rar" in handed_in.ARCHIVES
    for said in ("what an update put beside is not graded", "whose name does not end with .ipynb"):
        assert said in text
        assert said in (ROOT / "tools" / "grading" / "handed_in.py").read_text(encoding="utf-8")
