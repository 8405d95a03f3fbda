"""Refreshing runs notebooks and stores what they show, in one form."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import re
from pathlib import Path

import pytest
from made_up import code, notebook, prose

from tools.commands import Refusal
from tools.course import refresh
from tools.course.files import write
from tools.course.notebook import COURSE_KEY, PNG_SIGNATURE, WIDGET_STATE, Cell, canonical


def run(folder: Path, *cells: Cell, name: str = "00_tiny.ipynb") -> Path:
    """Write a notebook of these cells and refresh it."""
    path = folder / name
    path.write_text(canonical(notebook(*cells)), encoding="utf-8")
    assert asyncio.run(refresh.refresh([path])) == 0
    return path


GRADING = {
    "nbgrader": {"schema_version": 3, "grade_id": "answer-03-1", "solution": True},
    "editable": False,
    "deletable": False,
}
EVERYTHING = [
    prose("# 00 Everything that moves, with an ö"),
    code(
        "import ipywidgets as widgets\nimport matplotlib.pyplot as plt\nimport time\n"
        "from tqdm.notebook import tqdm\nfrom utils.draw import use_course_style\n"
        "use_course_style()"
    ),
    code('plt.plot([1, 3, 2])\nplt.title("ü")\nplt.show()'),
    code("for step in tqdm(range(5), desc='epochs'):\n    time.sleep(0.03)"),
    code("slider = widgets.IntSlider(value=3)\nwidgets.VBox([slider, widgets.HTML('<b>3</b>')])"),
    code('print("a")\nprint("b")\nslider'),
    code("1 / 0", "raises-exception"),
    {**code("1"), "metadata": {**GRADING, "trusted": True, "tags": ["b", "a"]}},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook of everything that moves, refreshed."""
    return run(tmp_path_factory.mktemp("everything"), *EVERYTHING)


def test_refreshing_twice_changes_nothing(path: Path) -> None:
    first = path.read_bytes()
    stored = json.loads(first)
    cells = stored["cells"]
    assert canonical(stored).encode() == first
    assert [cell.get("execution_count") for cell in cells] == [None, 1, 2, 3, 4, 5, 6, 7]
    picture = base64.b64decode(cells[2]["outputs"][0]["data"]["image/png"])
    assert picture.startswith(PNG_SIGNATURE)
    assert b"Software" not in picture
    assert "5/5" in first.decode(), "the finished bar is stored"
    assert not re.search(r"it/s\]", first.decode().replace("?it/s]", "")), "a clock is stored"
    assert cells[5]["outputs"][0]["text"] == ["a\n", "b\n"]
    assert "ö" in first.decode()
    assert first.endswith(b"}\n")
    assert b"\r" not in first
    before = path.stat().st_mtime_ns
    assert asyncio.run(refresh.refresh([path])) == 0
    assert path.read_bytes() == first
    assert path.stat().st_mtime_ns == before, "an unchanged file is not written"


def test_canonical_form_forgets_what_a_run_leaves_behind(path: Path) -> None:
    clean = json.loads(path.read_text())
    messy = copy.deepcopy(clean)
    messy["metadata"]["language_info"]["version"] = "3.11.7"
    messy["metadata"]["kernelspec"]["display_name"] = "my-env"
    for number, cell in enumerate(messy["cells"]):
        cell["metadata"] |= {"execution": {"iopub.execute_input": "12:00"}, "trusted": True}
        if cell["cell_type"] == "code":
            cell["execution_count"] = 90 - number
    text = json.dumps(messy)
    state = messy["metadata"]["widgets"][WIDGET_STATE]["state"]
    for place, model_id in enumerate(state):
        text = text.replace(model_id, f"{(place * 7919) % 65521:032x}".replace("0", "f"))
    messy = json.loads(text)
    assert messy["cells"][4] != clean["cells"][4], "the widgets have other numbers now"
    assert canonical(messy) == path.read_text()


def test_an_error_names_the_cell_and_leaves_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "00_broken.ipynb"
    path.write_text(canonical(notebook(code("a = 1"), code("a / 0"), code("b"))))
    before = path.read_bytes()
    assert asyncio.run(refresh.refresh([path])) == 1
    said = capsys.readouterr().err
    assert "00_broken.ipynb, code cell 2" in said
    assert "ZeroDivisionError: division by zero" in said
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "a temporary file is left"


def test_a_promised_error_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "00_calm.ipynb"
    path.write_text(canonical(notebook(code("1", "raises-exception"))))
    assert asyncio.run(refresh.refresh([path])) == 1


def test_what_nbgrader_needs_survives_a_run(path: Path) -> None:
    stored = json.loads(path.read_text())
    metadata = stored["cells"][-1]["metadata"]
    assert metadata == {**GRADING, "tags": ["a", "b"]}
    assert list(metadata) == sorted(metadata)
    assert list(metadata["nbgrader"]) == sorted(GRADING["nbgrader"])
    stored["metadata"] |= {COURSE_KEY: {"began_as": "0"}, "toc": {}}
    kept = json.loads(canonical(stored))["metadata"]
    assert set(kept) == {"kernelspec", "language_info", "widgets", COURSE_KEY}


def test_a_students_notebook_is_never_run(tmp_path: Path) -> None:
    names = ["03_a.ipynb", "03_a.new.ipynb", "solutions/03_a.ipynb", "exercises/03_a.ipynb"]
    folder = tmp_path / "notebooks"
    for name in [*names, "04_b.ipynb", ".ipynb_checkpoints/03_a-checkpoint.ipynb"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    found = [path.relative_to(folder).as_posix() for path in refresh.find(["03"], tmp_path)]
    assert found == ["03_a.ipynb", "solutions/03_a.ipynb"]
    assert [path.name for path in refresh.find([], tmp_path)] == [
        "03_a.ipynb",
        "04_b.ipynb",
        "03_a.ipynb",
    ]
    for name in (names[1], names[3]):
        with pytest.raises(Refusal, match="must not be a student's"):
            refresh.find([str(folder / name)], tmp_path)


def test_a_new_file_is_written_for_everybody_to_read(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "new"
    plain.write_text("")
    assert write(path, b"a")
    assert not write(path, b"a")
    assert path.stat().st_mode == plain.stat().st_mode
