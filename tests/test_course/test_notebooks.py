"""Every chapter and every source notebook keeps the rules of `notebook_rules.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_rules import RULES, RULES_OF_MASTERS, Chapter

from tools.course.registry import ROOT, course

CHAPTERS = course().notebooks()
MASTERS = course().source_notebooks()


def test_chapters_are_there_without_a_gap() -> None:
    numbers = [int(chapter.number) for chapter in course().chapters]
    assert numbers[:8] == list(range(8)), f"chapters 00 to 07 are not all there: {numbers}"
    assert numbers == list(range(len(numbers))), f"a chapter is missing or doubled: {numbers}"


def test_the_list_names_every_notebook() -> None:
    assert sorted(ROOT.glob("notebooks/[0-9][0-9]_*[!w].ipynb")) == CHAPTERS
    if MASTERS:  # a student's copy has none
        assert sorted(ROOT.glob("notebooks/solutions/*.ipynb")) == MASTERS


def said(path: Path, rule: Callable[[Chapter], list[str]]) -> str:
    complaints = rule(Chapter.read(path))
    return "\n  ".join([f"{path.name}: {rule.__doc__}", *complaints]) if complaints else ""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_rule(path: Path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not said(path, rule)


@pytest.mark.parametrize("rule", RULES_OF_MASTERS, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_rule_of_source_notebooks(path: Path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not said(path, rule)
