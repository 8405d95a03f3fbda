"""The tools that judge the notebooks can say no: each check fails on what it is there to catch."""

from __future__ import annotations

import asyncio
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

import notebook_rules as rules
import pytest
from notebook_rules import ROOT, Chapter
from PIL import Image, ImageDraw

import refresh

Cell = dict[str, Any]


def code(text: str, *tags: str) -> Cell:
    metadata = {"tags": list(tags)} if tags else {}
    cell = {"cell_type": "code", "metadata": metadata, "source": text, "outputs": []}
    return {**cell, "execution_count": None}


def prose(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def notebook(*cells: Cell) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def run(folder: Path, *cells: Cell, name: str = "00_tiny.ipynb") -> Path:
    """Writes a notebook of these cells and refreshes it."""
    path = folder / name
    path.write_text(refresh.canonical(notebook(*cells)), encoding="utf-8")
    assert asyncio.run(refresh.refresh([path])) == 0
    return path


# ------------------------------------------------------------------------- the comparison of nbval

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


SHOW = f'{DRAW}\nprint("line from 10 to 190")\ndisplay(image)'
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
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    found = dict(re.findall(r"Cell (\d+) (PASSED|FAILED)", result.stdout))
    names = [doctor.__name__ for doctor in DOCTORED]
    passed = {name: found[str(i)] == "PASSED" for i, name in enumerate(names, start=1)}
    assert passed == {d.__name__: ok for d, ok in DOCTORED.items()}, result.stdout[-3000:]
    assert found["0"] == "PASSED"


# --------------------------------------------------------------------------------------- refreshing

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
]


def test_refreshing_twice_changes_nothing(tmp_path: Path) -> None:
    path = run(tmp_path, *EVERYTHING)
    first = path.read_bytes()
    stored = json.loads(first)
    cells = stored["cells"]
    assert refresh.canonical(stored).encode() == first
    assert [cell.get("execution_count") for cell in cells] == [None, 1, 2, 3, 4, 5, 6]
    picture = base64.b64decode(cells[2]["outputs"][0]["data"]["image/png"])
    assert picture.startswith(refresh.PNG_SIGNATURE)
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


def test_canonical_form_forgets_what_a_run_leaves_behind(tmp_path: Path) -> None:
    path = run(tmp_path, *EVERYTHING[:6])
    clean = json.loads(path.read_text())
    messy = copy.deepcopy(clean)
    messy["metadata"]["language_info"]["version"] = "3.11.7"
    messy["metadata"]["kernelspec"]["display_name"] = "my-env"
    for number, cell in enumerate(messy["cells"]):
        cell["metadata"] = {"execution": {"iopub.execute_input": "12:00"}, "trusted": True}
        if cell["cell_type"] == "code":
            cell["execution_count"] = 90 - number
    text = json.dumps(messy)
    state = messy["metadata"]["widgets"][refresh.WIDGET_STATE]["state"]
    for place, model_id in enumerate(state):
        text = text.replace(model_id, f"{(place * 7919) % 65521:032x}".replace("0", "f"))
    messy = json.loads(text)
    assert messy["cells"][4] != clean["cells"][4], "the widgets have other numbers now"
    assert refresh.canonical(messy) == path.read_text()


def test_an_error_names_the_cell_and_leaves_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "00_broken.ipynb"
    path.write_text(refresh.canonical(notebook(code("a = 1"), code("a / 0"), code("b"))))
    before = path.read_bytes()
    assert asyncio.run(refresh.refresh([path])) == 1
    said = capsys.readouterr().err
    assert "00_broken.ipynb, code cell 2" in said
    assert "ZeroDivisionError: division by zero" in said
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "a temporary file is left"


def test_a_promised_error_that_does_not_come_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "00_calm.ipynb"
    path.write_text(refresh.canonical(notebook(code("1", "raises-exception"))))
    assert asyncio.run(refresh.refresh([path])) == 1


def test_what_nbgrader_needs_survives_a_run(tmp_path: Path) -> None:
    grading = {"schema_version": 3, "grade_id": "answer-03-1", "solution": True}
    metadata = {"nbgrader": grading, "editable": False, "deletable": False}
    cell = {**code("1"), "metadata": {**metadata, "trusted": True, "tags": ["b", "a"]}}
    stored = json.loads(run(tmp_path, cell).read_text())
    assert stored["cells"][0]["metadata"] == {**metadata, "tags": ["a", "b"]}
    keys = list(stored["cells"][0]["metadata"])
    assert keys == sorted(keys)
    assert list(stored["cells"][0]["metadata"]["nbgrader"]) == sorted(grading)
    stored["metadata"] |= {refresh.COURSE_KEY: {"began_as": "0"}, "toc": {}}
    kept = json.loads(refresh.canonical(stored))["metadata"]
    assert set(kept) == {"kernelspec", "language_info", refresh.COURSE_KEY}


def test_a_students_notebook_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["03_a.ipynb", "03_a.new.ipynb", "solutions/03_a.ipynb", "exercises/03_a.ipynb"]
    for name in [*names, "04_b.ipynb", ".ipynb_checkpoints/03_a-checkpoint.ipynb"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(refresh, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(refresh, "EXERCISES", tmp_path / "exercises")
    found = [path.relative_to(tmp_path).as_posix() for path in refresh.find(["03"])]
    assert found == ["03_a.ipynb", "solutions/03_a.ipynb"]
    assert [path.name for path in refresh.find([])] == ["03_a.ipynb", "04_b.ipynb", "03_a.ipynb"]
    for name in (names[1], names[3]):
        with pytest.raises(SystemExit, match="a student's notebook is never run"):
            refresh.find([str(tmp_path / name)])


def test_a_new_file_is_written_for_everybody_to_read(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "new"
    plain.write_text("")
    assert refresh.write(path, b"a")
    assert not refresh.write(path, b"a")
    assert path.stat().st_mode == plain.stat().st_mode


def test_nbval_leaves_exercises_and_what_an_update_put_beside_alone(tmp_path: Path) -> None:
    for name in ("03_a.ipynb", "03_a.new.ipynb", "solutions/03_a.ipynb", "exercises/03_a.ipynb"):
        path = tmp_path / "notebooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(refresh.canonical(notebook(code("1"))))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval", "notebooks", "--collect-only", "-q"]
    command += ["-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    found = set(re.findall(r"^(\S+)::", result.stdout, re.MULTILINE))
    assert found == {"notebooks/03_a.ipynb", "notebooks/solutions/03_a.ipynb"}, result.stdout


# ------------------------------------------------------------------- the rules for the stored files

GOOD_TOP = (
    "# 03 Title\n\nAbout 30 minutes.\n\n| step | shape | parameters |\n|---|---|---|\n"
    "| scores, weights | (6, 8, 37, 37) | |\n"
)
GOOD = [
    prose(GOOD_TOP),
    code("import torch\nfrom utils.shapes import describe"),
    prose("## Steps\nThe shape is (2, 3). It costs $a_{1}$, [see](#Next). `$(9, 9` is code."),
    code("guess = ..."),
    code("describe(torch.zeros(2, 3), 'i j')"),
    code("torch.zeros(2, 3).shape[5]", "raises-exception"),
    code("def double(x):\n    def inner():\n        return x\n    return inner() + inner()"),
    prose("## What `utils` holds now"),
    code("from utils.embedding import patchify\nprint(patchify(torch.zeros(1, 1, 4, 4), 2).shape)"),
    prose("## Exercises\n[Exercises 03](exercises/03_exercises.ipynb)"),
    prose("## Next"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Chapter:
    folder = tmp_path_factory.mktemp("good")
    (folder / "exercises").mkdir()
    (folder / "exercises" / "03_exercises.ipynb").write_text("{}")
    return Chapter.read(run(folder, *GOOD, name="03_good.ipynb"))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_good_chapter_keeps_every_rule(good: Chapter, rule: Callable) -> None:
    assert rule(good) == []


def stdout(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": [text]}


def html(text: str) -> dict[str, Any]:
    return {"data": {"text/html": [text]}, "metadata": {}, "output_type": "display_data"}


def shows(output: dict[str, Any]) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[4]["outputs"].append(output)


def says(text: str) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[2].update(source=text)


def runs(text: str) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[6].update(source=text)


def setting(number: int, **fields: Any) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[number].update(fields)


VIEW = {
    "data": {rules.WIDGET_VIEW: {"model_id": "1", "version_major": 2, "version_minor": 0}},
    "metadata": {},
    "output_type": "display_data",
}
ERROR = {"ename": "E", "evalue": "e", "output_type": "error", "traceback": ["E: e"]}

# Rule, what it must catch, and the change to the cells of the good chapter that brings it about.
BROKEN: list[tuple[Callable, str, Callable[[list[Cell]], None]]] = [
    (rules.clean_run, "count of a later run", setting(3, execution_count=7)),
    (rules.clean_run, "never run", setting(3, execution_count=None)),
    (rules.clean_run, "empty cell", setting(3, source="")),
    (rules.errors, "error without its tag", shows(ERROR)),
    (rules.errors, "promised error missing", setting(5, outputs=[])),
    (rules.quiet, "stderr", shows({"name": "stderr", "output_type": "stream", "text": ["x"]})),
    (rules.quiet, "warning", shows(stdout("UserWarning: old"))),
    (rules.ids, "id twice", lambda cells: cells[3].update(id=cells[2]["id"])),
    (rules.ids, "no id", lambda cells: cells[3].pop("id")),
    (rules.form, "metadata of a run", setting(3, metadata={"trusted": True})),
    (rules.form, "long traceback", lambda c: c[5]["outputs"][0].update(traceback=["File /a"])),
    (rules.no_traces, "absolute path", shows(stdout("File /home/me/utils/attention.py"))),
    (rules.no_traces, "path in html", shows(html("<i>/tmp/x</i>"))),
    (rules.no_traces, "address", shows(stdout("<function f at 0x7f3c2b1a>"))),
    (rules.no_traces, "version", shows(stdout("torch 2.13.0"))),
    (rules.no_traces, "version with build", shows(stdout("2.13.0+cpu"))),
    (rules.no_traces, "date", shows(stdout("2026-11-20"))),
    (rules.no_traces, "clock", shows(stdout("took 00:14"))),
    (rules.no_traces, "timing", shows(stdout("9.3 ms"))),
    (rules.no_traces, "seconds", shows(stdout("trained in 12.4 s"))),
    (rules.no_traces, "device", shows(stdout("tensor([1], device='cuda:0')"))),
    (rules.compared, "nbval comment", runs("# NBVAL_IGNORE_OUTPUT\n1")),
    (rules.compared, "nbval tag", setting(4, metadata={"tags": ["nbval-skip"]})),
    (rules.widgets, "widget without state", shows(VIEW)),
    (rules.shows_something, "silent cells", setting(4, outputs=[])),
    (rules.lengths, "long cell", runs("a = 1\n" * 26)),
    (rules.lengths, "long median", lambda cells: [c.update(source="a = 1\n" * 6) for c in cells]),
    (rules.plain_python, "magic", runs("%matplotlib inline")),
    (rules.plain_python, "sys.path", runs("import sys\nsys.path.append('..')")),
    (rules.no_globals, "function", runs("size = 3\ndef f(x):\n    return x * size")),
    (rules.no_globals, "method", runs("n = 3\nclass A:\n    def f(self):\n        return n")),
    (rules.no_globals, "default", runs("n = 3\nclass A:\n    width = n")),
    (
        rules.no_globals,
        "inner",
        runs("n = 3\ndef f():\n    def g():\n        return n\n    return g"),
    ),
    (rules.no_globals, "declared", runs("n = 3\ndef f():\n    global n\n    n = n + 1")),
    (rules.earlier_only, "later chapter", runs("from utils.attention import MultiHeadAttention")),
    (rules.earlier_only, "later module", runs("from utils import encoder\nencoder.Encoder")),
    (rules.earlier_only, "later import", runs("import utils.masking\nutils.masking.causal_mask")),
    (
        rules.earlier_only,
        "own, not built",
        runs("from utils import attention as a\na.scaled_dot_product_attention"),
    ),
    (rules.earlier_only, "unknown file", runs("from utils.magic import trick")),
    (rules.links, "missing file", says("[x](04_nowhere.ipynb)")),
    (rules.links, "missing picture", says("![a long text](../img/nothing.svg)")),
    (rules.links, "no alt text", says("![](https://a.b/c.svg)")),
    (rules.links, "no alt text in html", says('<img src="03_good.ipynb">')),
    (rules.links, "missing html picture", says('<img src="no.svg" alt="a long text">')),
    (rules.links, "picture from a network", says("![a long text](https://a.b/c.png)")),
    (rules.links, "missing heading", says("[x](#Nowhere)")),
    (rules.links, "heading elsewhere", says("[x](03_good.ipynb#Nowhere)")),
    (rules.links, "absolute", says("[x](/etc/hosts)")),
    (rules.links, "linked picture", says("[![a long text](no.svg)](03_good.ipynb)")),
    (rules.links, "attachment", says("![a long text](attachment:no.png)")),
    (rules.math, "dollar left over", says("It is $a + b.")),
    (rules.math, "display left over", says("$$a + b\n\nThen")),
    (rules.math, "brace", says(r"$\frac{a}{b$")),
    (rules.math, "left without right", says(r"$\left( a$")),
    (rules.math, "begin without end", says(r"$$\begin{aligned} a$$")),
    (rules.tables, "no ruler", says("| a | b |\n| 1 | 2 |")),
    (rules.tables, "short row", says("| a | b |\n|---|---|\n| 1 |")),
    (rules.stated_shapes, "shape not shown", says("The shape is (3, 2).")),
    (rules.stated_shapes, "in code", says("The shape is `(2, 3, 1)`.")),
    (rules.stated_shapes, "named sizes", says("The shape is (b=2, n=4).")),
    (rules.ledger_agrees, "wrong shape", setting(0, source=GOOD_TOP.replace("37,", "36,"))),
    (rules.ledger_agrees, "wrong count", setting(0, source=GOOD_TOP.replace("| |", "| 7 |"))),
    (rules.ledger_agrees, "wrong step", setting(0, source=GOOD_TOP.replace("scores", "goals"))),
    (rules.frame, "wrong number", setting(0, source=GOOD_TOP.replace("03", "04"))),
    (rules.frame, "no minutes", setting(0, source=GOOD_TOP.replace("30 minutes", "long"))),
    (rules.frame, "too many minutes", setting(0, source=GOOD_TOP.replace("30", "50"))),
    (rules.frame, "no ledger", setting(0, source="# 03 Title\n\nAbout 30 minutes.")),
    (rules.frame, "no section", setting(10, source="## Then")),
    (rules.frame, "no exercises", setting(9, source="## Exercises")),
    (rules.frame, "imports later", runs("import math")),
    (rules.frame, "no import cell", setting(1, source="1 + 1")),
]


@pytest.mark.parametrize(
    ("rule", "what", "change"), BROKEN, ids=[f"{r.__name__}-{w}" for r, w, _ in BROKEN]
)
def test_a_broken_chapter_is_caught(
    good: Chapter, rule: Callable, what: str, change: Callable[[list[Cell]], None]
) -> None:
    broken = copy.deepcopy(good.json)
    change(broken["cells"])
    text = json.dumps(broken, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert rule(Chapter(good.path, text)), f"{rule.__name__} does not see: {what}"


def test_every_rule_is_proved_to_fail() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(rules.RULES)


MASTER_TOP = "# 03 Solutions: Title\n\nOf [chapter 03](../03_good.ipynb). About 30 minutes."
MASTER = [
    prose(MASTER_TOP),
    code("import torch"),
    prose("## 1. One\n\nDifficulty 2 of 5 · about 12 minutes"),
    prose("## 2. Two"),
    prose("**Why:** so.\n\nDifficulty 2 of 5 · about 18 minutes"),
    code('progress("03")'),
    prose("## Next"),
]
MASTERS_FAULTS = {
    "title": setting(0, source=MASTER_TOP.replace("03 Solutions", "04 Solutions")),
    "link": setting(0, source=MASTER_TOP.replace("../", "")),
    "no minutes": setting(0, source=MASTER_TOP.replace("30 minutes", "long")),
    "wrong sum": setting(0, source=MASTER_TOP.replace("30", "40")),
    "too little": lambda cells: [
        c.update(source=c["source"].replace("18", "8").replace("30", "20")) for c in cells
    ],
    "no imports": setting(1, source="1 + 1"),
    "no progress": setting(5, source='progress("04")'),
    "no end": setting(6, source="## Last"),
}


@pytest.mark.parametrize("fault", ["", *MASTERS_FAULTS])
def test_the_frame_of_a_master(fault: str) -> None:
    cells = copy.deepcopy(MASTER)
    if fault:
        MASTERS_FAULTS[fault](cells)
    path = ROOT / "notebooks" / "solutions" / "03_solutions.ipynb"
    found = rules.exercise_frame(Chapter(path, json.dumps(notebook(*cells))))
    assert bool(found) == bool(fault), found


ALLOWED: list[tuple[Callable, Callable[[list[Cell]], None]]] = [
    (rules.stated_shapes, says("At (9, 9). <!-- shape: example -->")),
    (rules.stated_shapes, says("The vector (0, 1, 0) and 590,592 and (1,000).")),
    (rules.no_traces, shows(stdout("  0%|   | 0/7 [00:00<?, ?epoch/s]"))),
    (rules.no_traces, shows(stdout("accuracy 0.99 with 3 seeds, 7 x 2.5 = 17.5"))),
    (rules.math, says(r"`$` and \$3 and $a_{i}$ and $$\left\{ b \right\}$$")),
    (rules.tables, says("| `a \\| b` | c |\n|---|:-:|\n| 1 | 2 |")),
    (rules.links, says("[x](03_good.ipynb#Exercises) [y](#What-utils-holds-now) `[z](no)`")),
    (rules.no_globals, runs("w = 1\ndef show(change):\n    w.value = 2\nw.observe(show, 'value')")),
    (rules.earlier_only, runs("def scaled_dot_product_attention(): ...")),
]


@pytest.mark.parametrize(("rule", "change"), ALLOWED)
def test_what_is_allowed_is_not_caught(
    good: Chapter, rule: Callable, change: Callable[[list[Cell]], None]
) -> None:
    fine = copy.deepcopy(good.json)
    change(fine["cells"])
    assert rule(Chapter(good.path, json.dumps(fine))) == []
