"""Every chapter and every master keeps the rules of `notebook_rules.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_rules import ROOT, RULES, RULES_OF_MASTERS, Chapter

from shipped import chapters

CHAPTERS = chapters()
MASTERS = sorted(ROOT.glob("notebooks/solutions/[0-9][0-9]_solutions.ipynb"))


def test_chapters_are_there_without_a_gap() -> None:
    numbers = [int(path.name[:2]) for path in CHAPTERS]
    assert numbers[:8] == list(range(8)), f"chapters 00 to 07 are not all there: {numbers}"
    assert numbers == list(range(len(numbers))), f"a chapter is missing or doubled: {numbers}"


def said(path: Path, rule: Callable[[Chapter], list[str]]) -> str:
    complaints = rule(Chapter.read(path))
    return "\n  ".join([f"{path.name}: {rule.__doc__}", *complaints]) if complaints else ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_rule(path: Path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not said(path, rule)


@pytest.mark.parametrize("rule", RULES_OF_MASTERS, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_rule_of_masters(path: Path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not said(path, rule)
