"""The comparison of stored notebooks can say no: nbval with what `conftest.py` adds to it."""

from __future__ import annotations

import base64
import copy
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import code, notebook
from PIL import Image, ImageDraw
from test_refresh import run

from checks.engine.verdict import VERDICT_MIME
from course.notebook import Cell, canonical
from course.registry import ROOT

DRAW = """
image = Image.new("RGB", (200, 120), "white")
ImageDraw.Draw(image).line((10, 20, 190, 100), fill="black", width=2)
""".strip()


def line(end: int, size: tuple[int, int] = (200, 120)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).line((10, 20, 190, end), fill="black", width=2)
    return image


def encoded(image: Image.Image) -> str:
    memory = io.BytesIO()
    image.save(memory, "PNG")
    return base64.b64encode(memory.getvalue()).decode()


def only_picture(cell: Cell) -> dict[str, Any]:
    return next(o for o in cell["outputs"] if "image/png" in o.get("data", {}))["data"]


def another_line(cell: Cell) -> None:
    only_picture(cell)["image/png"] = encoded(line(40))


def one_dot(cell: Cell) -> None:
    image = line(100)
    image.putpixel((100, 10), (0, 0, 0))
    only_picture(cell)["image/png"] = encoded(image)


def another_size(cell: Cell) -> None:
    only_picture(cell)["image/png"] = encoded(line(100, (201, 120)))


def one_level(cell: Cell) -> None:
    image = line(100).point(lambda level: max(level - 1, 0))
    only_picture(cell)["image/png"] = encoded(image)


def drop_picture(cell: Cell) -> None:
    cell["outputs"] = [o for o in cell["outputs"] if "image/png" not in o.get("data", {})]


def drop_only_the_png(cell: Cell) -> None:
    del only_picture(cell)["image/png"]


def extra_picture(cell: Cell) -> None:
    cell["outputs"].append(copy.deepcopy(cell["outputs"][-1]))


def swap(cell: Cell) -> None:
    cell["outputs"].reverse()


def strip(cell: Cell) -> None:
    cell["outputs"], cell["execution_count"] = [], None


def another_text(cell: Cell) -> None:
    cell["outputs"][0]["text"] = ["line from 10 to 191\n"]


def untouched(cell: Cell) -> None:
    pass


def another_state(cell: Cell) -> None:
    cell["outputs"][1]["data"][VERDICT_MIME]["state"] = "right"


VERDICT = f'{{"text/plain": "a verdict", "{VERDICT_MIME}": {{"state": "not right"}}}}'
SHOW = f"""{DRAW}
print("line from 10 to 190")
display({VERDICT}, raw=True)
display(image)"""
DOCTORED: dict[Callable[[Cell], None], bool] = {
    untouched: True,
    one_level: True,
    another_line: False,
    one_dot: False,
    another_size: False,
    drop_picture: False,
    drop_only_the_png: False,
    extra_picture: False,
    swap: False,
    strip: False,
    another_text: False,
    another_state: False,
}


def test_nbval_sees_pictures_order_and_cells_never_run(tmp_path: Path) -> None:
    """One notebook, one cell for each way to doctor the stored outputs, one plain nbval run."""
    imports = code("from IPython.display import display\nfrom PIL import Image, ImageDraw")
    path = run(tmp_path, imports, *(code(SHOW) for _ in DOCTORED))
    stored = json.loads(path.read_text())
    for cell, doctor in zip(stored["cells"][1:], DOCTORED, strict=True):
        doctor(cell)
    path.write_text(json.dumps(stored))
    shutil.copy(ROOT / "conftest.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval", path.name, "-v", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    found = dict(re.findall(r"Cell (\d+) (PASSED|FAILED)", result.stdout))
    names = [doctor.__name__ for doctor in DOCTORED]
    passed = {name: found[str(i)] == "PASSED" for i, name in enumerate(names, start=1)}
    assert passed == {d.__name__: ok for d, ok in DOCTORED.items()}, result.stdout[-3000:]
    assert found["0"] == "PASSED"


def test_nbval_leaves_exercises_and_what_an_update_put_beside_alone(tmp_path: Path) -> None:
    for name in ("03_a.ipynb", "03_a.new.ipynb", "solutions/03_a.ipynb", "exercises/03_a.ipynb"):
        path = tmp_path / "notebooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(canonical(notebook(code("1"))))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval", "notebooks", "--collect-only", "-q"]
    command += ["-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    found = set(re.findall(r"^(\S+)::", result.stdout, re.MULTILINE))
    assert found == {"notebooks/03_a.ipynb", "notebooks/solutions/03_a.ipynb"}, result.stdout


def test_a_kernel_has_time_to_answer_on_a_busy_machine(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    kernel = object.__new__(conftest.PatientKernel)
    answer = {"parent_header": {"msg_id": "m"}, "content": {"status": "ok"}}
    asked: list[float] = []
    kernel.get_message = lambda stream, timeout: asked.append(timeout) or answer
    for seconds in (10, None, 900):
        kernel.await_reply("m", timeout=seconds)
    assert asked == [conftest.OUTPUT_SECONDS, conftest.OUTPUT_SECONDS, 900]
