"""Every chapter keeps every rule of `notebook_rules.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_rules import ROOT, RULES, Chapter

CHAPTERS = sorted(ROOT.glob("notebooks/[0-9][0-9]_*.ipynb"))


def test_chapters_are_there_without_a_gap() -> None:
    numbers = [int(path.name[:2]) for path in CHAPTERS]
    assert numbers[:8] == list(range(8)), f"chapters 00 to 07 are not all there: {numbers}"
    assert numbers == list(range(len(numbers))), f"a chapter is missing or doubled: {numbers}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_rule(path: Path, rule: Callable[[Chapter], list[str]]) -> None:
    complaints = rule(Chapter.read(path))
    said = "\n  ".join(complaints)
    assert not complaints, f"{path.name}: {rule.__doc__}\n  {said}"
