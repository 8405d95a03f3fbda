"""docs/instructors.md says what the code does."""

from __future__ import annotations

import re

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import collect, results_folder, student_report
from tools.grading.run_notebook import Limits

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
    for name in (
        *results_folder.TABLES,
        "class.html",
        f"{results_folder.EARLIER}/",
        "feedback/",
        "logs/",
    ):
        assert f"`{name}" in section("Grading"), name
    assert {"id", "reason"} <= set(student_report.COLUMNS)


def test_its_reasons_are_those_of_the_code():
    text = section("Why a student has 0")
    assert "an archive of kind .rar is not opened" in text and ".rar" in collect.ARCHIVES
    code = (ROOT / "tools" / "grading" / "collect.py").read_text(encoding="utf-8")
    assert "whose name does not end with .ipynb" in text and "does not end with .ipynb" in code
    assert ".new.ipynb: " in text and collect.UPDATE_COPY.search("03_exercises.new.ipynb")
