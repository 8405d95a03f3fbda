"""Hand-sized tensors are cut so that exchanged letters show in the shape."""

from __future__ import annotations

import ast

import pytest
from made_up import code
from notebook_rules import Chapter, numbered

from tools.course.registry import course

CHAPTERS = course().notebooks()
# Letters that are split from one axis, (gh ph) and (gw pw): equal sizes would hide an exchange.
TOGETHER = (("gh", "ph"), ("gw", "pw"))


def mistakable(chapter: Chapter) -> list[str]:
    """Complain about each cut whose two sizes are equal numbers."""
    complaints = []
    for (where, _), tree in zip(numbered(chapter), chapter.trees, strict=True):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            sizes = {
                word.arg: word.value.value
                for word in call.keywords
                if isinstance(word.value, ast.Constant)
            }
            complaints += [
                f"{where}: {first} and {second} are both {sizes[first]}"
                for first, second in TOGETHER
                if first in sizes and sizes[first] == sizes.get(second)
            ]
    return complaints


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_cuts_cannot_be_mistaken(path) -> None:
    assert mistakable(Chapter.read(path)) == []


def test_equal_sizes_are_seen() -> None:
    calls = {
        "rearrange(x, pattern, gh=2, gw=3, ph=2, pw=3)": True,
        "rearrange(x, pattern, gw=3, pw=3)": True,
        "rearrange(x, pattern, gh=2, gw=4, ph=3, pw=2)": False,
        "rearrange(x, pattern, ph=16, pw=16)": False,
    }
    assert {call: bool(mistakable(Chapter.of(code(call)))) for call in calls} == calls
