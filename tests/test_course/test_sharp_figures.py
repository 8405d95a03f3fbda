"""The figures of the book are drawn in lines, and are those that the notebooks store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up import code, notebook

from tools.course import outputs
from tools.course.execute import NotebookError, execute, settle_environment
from tools.course.notebook import canonical
from tools.course.registry import course
from tools.web import vector_figures, vector_hook

DRAWS = """from utils.draw import show_figure, use_course_style
import matplotlib.pyplot as plt
use_course_style()
plt.plot([1, 3, 2])
plt.title("A title")
show_figure("A curve.")"""


def test_a_chapter_that_runs_keeps_what_it_draws(tmp_path: Path) -> None:
    """In its own kernel, under the hash of the pixels that it stores; twice the same."""
    settle_environment()
    path = tmp_path / "00_tiny.ipynb"
    kept = f"import pathlib\n(path,) = pathlib.Path({str(tmp_path)!r}).glob('*.svg')"
    kept += "\npath.rename(path.with_suffix('.first'))"
    book = notebook(code(DRAWS), code(kept), code(DRAWS))
    path.write_text(canonical(book), encoding="utf-8")
    text = asyncio.run(execute(path, 600, vector_figures.before(tmp_path)))
    cell, _, _ = json.loads(text)["cells"]
    assert cell["execution_count"] == 1
    (picture,) = outputs.pictures("".join(cell["outputs"][0]["data"]["text/html"]))
    drawn = vector_figures.drawings({"00-1-0.png": picture.png}, tmp_path)["00-1-0.png"]
    svg = drawn.read_bytes()
    assert drawn.with_suffix(".first").read_bytes() == svg
    assert b"<svg" in svg and b"<text" not in svg, "letters need no font"
    assert b"<image" not in svg


def test_a_figure_that_is_another_one_has_no_drawing(tmp_path: Path) -> None:
    (tmp_path / f"{vector_hook.name(b'this one')}.svg").write_text("<svg/>")
    drawn = vector_figures.drawings({"a.png": b"this one", "b.png": b"another"}, tmp_path)
    assert {name: path.read_text() for name, path in drawn.items()} == {"a.png": "<svg/>"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what draws figures of some chapters and says which of them ran."""

    def draw(stored: dict[str, bytes], failing: str = "") -> list[str]:
        ran = []

        async def execute(path: Path, timeout: float, first: str) -> str:
            ran.append(path.name[:2])
            assert first == vector_figures.before(tmp_path)
            if path.name[:2] == failing:
                raise NotebookError(f"{path.name}, code cell 1: ValueError: no")
            for name, png in stored.items():
                if name.startswith(path.name[:2]) and png != b"a time":
                    (tmp_path / f"{vector_hook.name(png)}.svg").write_text("<svg/>")
            return ""

        monkeypatch.setattr(vector_figures, "execute", execute)
        vector_figures.draw(course(), stored, tmp_path)
        return ran

    return draw


def test_only_what_is_not_drawn_yet_runs(runs: Callable[..., list[str]], tmp_path: Path) -> None:
    stored = {"02-1-0.png": b"a", "02-2-0.png": b"b", "05-1-0.png": b"c"}
    assert runs(stored) == ["02", "05"]
    assert runs(stored) == []
    assert runs({**stored, "03-1-0.png": b"d"}) == ["03"]
    for mark in tmp_path.glob("*.ran"):
        mark.unlink()  # as a change of the words of a notebook does
    assert runs(stored) == []


def test_what_is_measured_anew_each_time_is_not_tried_again(
    runs: Callable[..., list[str]],
) -> None:
    stored = {"16-1-0.png": b"a time"}
    assert [runs(stored), runs(stored)] == [["16"], []]


def test_a_chapter_that_fails_stops_no_other(
    runs: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = {"02-1-0.png": b"a", "05-1-0.png": b"c"}
    assert runs(stored, failing="02") == ["02", "05"]
    assert "figures keep their pixels: 02_qkv_projection.ipynb" in capsys.readouterr().err
    assert runs(stored) == ["02"]
