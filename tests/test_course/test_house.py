"""The house: imports run one way and in no circle, and no room holds a third of everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_project import load

from tools.course.registry import ROOT

HOUSE = load(ROOT / "img" / "make_drawings.py")
# From left to right; clinic knows nobody, and utils does not know it.
ALLOWED = {
    ("checks", "utils"),
    ("checks", "clinic"),
    ("tools", "utils"),
    ("tools", "checks"),
    ("tools", "clinic"),
    ("tests", "utils"),
    ("tests", "checks"),
    ("tests", "tools"),
    ("tests", "clinic"),
}


def circle(imports: dict[Path, set[Path]]) -> list[str]:
    """Return files that import each other in a circle; empty when there is none."""
    done: set[Path] = set()

    def walk(path: Path, way: tuple[Path, ...]) -> list[str]:
        if path in way:
            return [str(one) for one in way[way.index(path) :]]
        if path in done:
            return []
        found = next(filter(None, (walk(p, (*way, path)) for p in sorted(imports[path]))), [])
        done.add(path)
        return found

    return next(filter(None, (walk(path, ()) for path in sorted(imports))), [])


def test_a_circle_is_seen() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    assert circle({a: {b}, b: {c}, c: {b}}) == ["b", "c"]
    assert circle({a: {b, c}, b: {c}, c: set()}) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    imports = HOUSE.imports()
    assert circle(imports) == []


def test_imports_run_one_way() -> None:
    assert HOUSE.arrows() <= ALLOWED
    seen = HOUSE.imports()[ROOT / "tests" / "test_course" / "test_house.py"]
    assert ROOT / "tools" / "course" / "registry.py" in seen, "imports are seen"


def test_no_room_holds_a_third_of_the_house() -> None:
    lines = HOUSE.lines_of_rooms()
    largest = max(lines, key=lambda room: lines[room])
    assert 3 * lines[largest] < sum(lines.values()), f"{largest} holds {lines[largest]} lines"


@pytest.mark.skipif(
    not (ROOT / "notebooks" / "solutions").exists(), reason="a student's copy lacks some rooms"
)
def test_the_drawn_house_is_the_real_one() -> None:
    stored = (ROOT / "img" / "house.svg").read_text(encoding="utf-8")
    number = re.compile(r">(\d[\d,]*)</text>")
    drawn = HOUSE.draw_house().svg()
    assert number.sub("", stored) == number.sub("", drawn), "a room or an arrow: make drawings"
    for old, new in zip(number.findall(stored), number.findall(drawn), strict=True):
        old, new = int(old.replace(",", "")), int(new.replace(",", ""))
        assert abs(old - new) <= 200 + 0.3 * new, f"the drawing says {old}, it is {new} now"
