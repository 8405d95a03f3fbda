"""The workflow tests what the project promises: three systems, and the Pythons of the pins."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.course.registry import ROOT
from tools.environment import NEWEST, OLDEST

FILE = ROOT / ".github" / "workflows" / "test.yml"
BUILT = {"torch", "numpy", "matplotlib", "scikit-learn", "scikit-image", "safetensors"}
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="a student's copy has no workflow")


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    # "on" is a word for true in YAML.
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def pinned() -> list[str]:
    lines = [
        line.partition("  #")[0].strip()
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().splitlines()
    ]
    names = [Requirement(line).name for line in lines if "==" in line]
    return [name for name in names if any(importlib.metadata.Distribution.discover(name=name))]


def newest_of_pins() -> str:
    """The newest Python for which every pinned package is built that is not Python alone."""
    newest = []
    for name in BUILT & set(pinned()):
        words = importlib.metadata.metadata(name).get_all("Classifier") or []
        newest.append(max(int(m) for m in re.findall(r"Python :: 3\.(\d+)", "\n".join(words))))
    return f"3.{min(newest)}"


def test_it_runs_on_three_systems_with_the_oldest_and_the_newest_python(workflow) -> None:
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["system"]} == {"ubuntu", "macos", "windows"}
    _, newest = matrix["python"]
    assert newest == newest_of_pins() == ".".join(map(str, NEWEST))
    steps = [step.get("run", "") for step in workflow["jobs"]["test"]["steps"]]
    assert "python -m tools test" in steps


def test_the_oldest_python_is_the_same_everywhere(workflow) -> None:
    oldest = workflow["jobs"]["test"]["strategy"]["matrix"]["python"][0]
    assert ".".join(map(str, OLDEST)) == oldest
    newest = ".".join(map(str, NEWEST))
    assert f"You need Python {oldest} to {newest}" in (ROOT / "README.md").read_text()
    for name in pinned():
        wanted = importlib.metadata.metadata(name).get("Requires-Python") or ">=3"
        assert SpecifierSet(wanted).contains(oldest), f"{name} does not run on {oldest}"


def test_the_newest_torch_is_tried_every_week(workflow) -> None:
    (when,) = workflow["on"]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", when["cron"])
    steps = [step.get("run", "") for step in workflow["jobs"]["newest-torch"]["steps"]]
    upgrade = next(i for i, run in enumerate(steps) if "--upgrade torch" in run)
    assert any("-m tools test" in run for run in steps[upgrade:])
