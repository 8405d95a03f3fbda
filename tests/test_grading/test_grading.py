"""Grading, whole: made-up students hand in, tools/grade.py runs as an instructor would run it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from notebook_rules import ROOT

pytest.importorskip(
    "nbgrader", reason="grading has requirements of its own: requirements-grading.txt"
)

import class_of_thirty as making
from class_of_thirty import (
    CHEATS,
    Chapter,
    before_checks,
    changed_checks,
    chapter_of,
    code_cell,
    find_cell,
    inserted,
    is_check,
    raw,
    without,
)
from grading import handed_in, report, restore, suspicion

STEM = "03_exercises"
CHAPTER = ROOT / "notebooks" / "03_scaled_dot_product_attention.ipynb"
TOOL = ROOT / "tools" / "grade.py"
CELL = 4  # seconds, the limit in these tests
MEMORY = 1_500_000_000


@pytest.fixture(scope="module")
def chapter() -> Chapter:
    return chapter_of("03")


def answer(notebook: dict[str, Any], number: str, text: str) -> dict[str, Any]:
    """Gives an exercise another answer, and returns the notebook."""
    find_cell(notebook, f"answer-03-{number}")["source"] = text
    return notebook


def softmax_that(does: str) -> str:
    """An answer that is right, in a cell that does something else first."""
    right = "def softmax(scores):\n    s = scores - scores.amax(-1, keepdim=True)\n"
    return f"{does}\n{right}    return s.exp() / s.exp().sum(-1, keepdim=True)"


# What happens in the cell of exercise 2 of a notebook in which 1, 2 and 3 are solved, what the
# notebook is worth then, and what the reason says. The three are worth 1, 2 and 2 points.
ACCIDENTS: dict[str, tuple[str, int, str]] = {
    "hangs": ("while True:\n    pass", 3, "03.2: it took longer than 4 s"),
    "sleeps": ("import time\ntime.sleep(1000)", 3, "03.2: it took longer than 4 s"),
    "swallows": (
        "while True:\n    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        continue",
        1,
        "did not let itself be interrupted",
    ),
    "prints": ("while True:\n    print('x' * 10_000)", 3, "03.2: it printed more than 5 MB"),
    "prints at once": ("print('x' * 50_000_000)", 5, "printed more than 5 MB"),
    "prints from outside": (
        "import subprocess\nsubprocess.run(['yes', 'x' * 1000])",
        3,
        "03.2: it printed more than 5 MB",
    ),
    "dies": (
        "import os\nos._exit(7)",
        1,
        "stopped in 03.2: its process ended by itself (exit code 7)",
    ),
    "crashes": ("import os\nos.abort()", 1, "stopped in 03.2: its process died (SIGABRT)"),
    "takes memory": (
        "def take():\n    hoard = []\n    while True:\n        hoard.append(torch.ones(10**7))\n"
        "take()",
        3,
        "",
    ),
    "tidies up": (
        "import os, shutil\nos.makedirs('a/b')\nos.chdir('a')\nshutil.rmtree(os.getcwd())\n"
        "shutil.rmtree(os.environ['HOME'])",
        5,
        "imports shutil",
    ),
    "stays behind": (
        "import subprocess\n"
        "subprocess.Popen(['sleep', '98765'], start_new_session=True)\n"
        "subprocess.Popen('sleep 98765 & sleep 98765 &', shell=True, start_new_session=True)",
        5,
        "imports subprocess",
    ),
    "multiplies": (
        "import os, time\nfor _ in range(100):\n    if not os.fork():\n        time.sleep(1000)\n"
        "time.sleep(2)",
        1,
        "it started more than 60 processes",
    ),
    "odd but honest": (
        "import gc, os, copy, inspect\ngc.collect()\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        "torch.backends.cudnn.deterministic = True\ntorch.set_default_device('cpu')\n"
        "torch.manual_seed = 0\ndef helper(check):\n    progress = check\n    return progress\n"
        "import torchinfo\ntorch.func.vmap(torch.exp)(torch.ones(3))\n"
        "torch.jit.script(torch.nn.Linear(2, 3))\n%time 1 + 1",
        5,
        "replaces torch.manual_seed",
    ),
}
# Each of these is a cell of its own in one notebook. They cost nothing: the next cell follows.
SMALL = [
    "torch.ones(10**12)",
    "import sys\nsys.exit('enough')",
    "name = input('name?')",
    "1 / 0",
    "def softmax(scores:",
    "import threading, time\n"
    "threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "import os\nos.mkdir('utils')\nopen('utils/__init__.py', 'w').write('raise ValueError')\n"
    "import utils\nfrom checks import check",
    "import asyncio\nawait asyncio.sleep(0)",
    "raise KeyboardInterrupt",
]


def students(chapter: Chapter) -> dict[str, tuple[dict[str, bytes], float, str]]:
    """Makes up the students: what each hands in, earns, and what the reason says."""
    made: dict[str, tuple[dict[str, bytes], float, str]] = {}

    def add(name: str, content: Any, points: float, reason: str = "", file: str = STEM) -> None:
        content = content if isinstance(content, bytes) else raw(content)
        made[name] = ({f"{name}/{file}.ipynb": content}, points, reason)

    # To check few answers takes less time: "some" are 3 points.
    some, blank = lambda: chapter.solved(["1", "2"]), lambda: chapter.solved([])
    add("solved", chapter.solved(), 14)
    add("blank", blank(), 0)
    add("half", chapter.solved(["1", "3", "5"]), 1 + 2 + 2)
    wrong = chapter.solved(["3", "4", "7"])
    cell = find_cell(wrong, "answer-03-4")
    cell["source"] = cell["source"].replace("dim=-1", "dim=-2")
    add("wrong axis", wrong, 2)
    endless = answer(chapter.solved(["1", "3"]), "2", "def softmax(scores):\n    while True: pass")
    add("endless answer", endless, 3, "03.2: the check was stopped: it took longer than 4 s")
    for name, (code, reason) in CHEATS.items():
        add(name, inserted(blank(), code.replace("{n}", "03")), 0, reason)
    add("redefines, solved", inserted(some(), "def check(*a): pass"), 0, "another meaning")
    add("before each check", before_checks(blank(), "check = print"), 0, "check another meaning")

    # Checks that are not what they were.
    def passes(cell: dict[str, Any]) -> None:
        cell["source"] = "1000"

    def points(cell: dict[str, Any]) -> None:
        cell["metadata"]["nbgrader"] |= {"points": 1000, "locked": False}

    def ungraded(cell: dict[str, Any]) -> None:
        cell["metadata"]["nbgrader"] |= {"grade": False, "solution": True, "points": "many"}

    add("check: 1000", changed_checks(blank(), passes), 0, "which was changed")
    add("check: 1000, half", changed_checks(chapter.solved(["1", "2"]), passes), 3, "was changed")
    add("check: of 1000 points", changed_checks(some(), points), 3)
    add("check: not graded", changed_checks(blank(), ungraded), 0)
    add("check: not graded, solved", changed_checks(some(), ungraded), 3)
    add("check: deleted", without(some(), is_check), 3, "which was deleted")
    add("check: deleted, blank", without(blank(), is_check), 0, "which was deleted")
    twice = some()
    twice["cells"] += [dict(c, source="0 == 0") for c in twice["cells"] if is_check(c)]
    add("check: doubled", twice, 3, "several times")
    first = some()
    first["cells"].sort(key=lambda c: not is_check(c))
    add("check: moved up", first, 3)
    text = changed_checks(blank(), lambda c: c.update(cell_type="markdown"))
    add("check: text", text, 0, "which was changed")
    add("answers deleted", without(some(), lambda c: "answer" in str(c["metadata"])), 0)
    bare = some()
    for cell in bare["cells"]:
        cell["metadata"] = {}
    add("no metadata", bare, 3, "found by the headings")
    add("only code", without(some(), lambda c: c["cell_type"] != "code"), 3)

    for name, (code, worth, reason) in ACCIDENTS.items():
        notebook = chapter.solved(["1", "2", "3"])
        add(name, answer(notebook, "2", softmax_that(code)), worth, reason)
    notebook = chapter.solved(["1", "2", "3"])
    for code in SMALL:
        inserted(notebook, code)
    add("small things", notebook, 5)
    add("gives up", inserted(chapter.solved(["1"]), "exit()", len(chapter.blank["cells"])), 1)

    # No notebooks.
    add("empty", b"", 0, "the file is empty")
    add("cut off", raw(some())[:5000], 0, "not JSON, or cut off")
    add("not JSON", b"\x89PNG\r\n\x1a\n\0\0", 0, "not UTF-8")
    add("no cells", b'{"a": 1}', 0, "no cells")
    add("a list", b"[1, 2]", 0, "no cells")
    add("deep", b"[" * 100_000, 0, "not JSON")
    add(
        "strange cells", b'{"cells": [1, null, {"source": 5}, {"metadata": []}]}', 0, "no exercises"
    )
    add("the chapter", CHAPTER.read_bytes(), 0, "holds no exercises")
    add("named otherwise", some(), 3, "named as chapter 08", file="08_exercises")
    add("html", answer(blank(), "7", "<script>alert(1)</script>"), 0)
    return made


@pytest.fixture(scope="module")
def graded(chapter: Chapter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Hands everything in, grades it with one call, and reads what came out."""
    base = tmp_path_factory.mktemp("grading")
    folder = base / "class"
    made = students(chapter)
    for files, _, _ in made.values():
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    solved, half = raw(chapter.solved(["1", "2"])), raw(chapter.solved(["1"]))

    # Layouts, names, several files.
    def put(name: str, content: bytes, age: int = 0) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        when = time.time() - age
        os.utime(path, (when, when))

    put(f"flat student_{STEM}.ipynb", solved)
    put(f"Moo Dle_123_assignsubmission_file_{STEM}.ipynb", solved)
    put(f"Same Name_1_assignsubmission_file_/{STEM}.ipynb", solved)
    put(f"Same Name_2_assignsubmission_file_/{STEM}.ipynb", half)
    put(f"nested/course/notebooks/exercises/{STEM}.ipynb", solved)
    put(f"nested/course/notebooks/{CHAPTER.name}", CHAPTER.read_bytes())
    put(f"several/{STEM}.ipynb", solved, age=1000)
    put(f"several/{STEM} (1).ipynb", half)
    put(f"several/.ipynb_checkpoints/{STEM}-checkpoint.ipynb", solved)
    put(f"=cmd|'x'!A1, \"q\"/{STEM}.ipynb", solved)
    put(f"<img src=x onerror=alert(1)>/{STEM}.ipynb", solved)
    put("ill/notes.txt", b"I was ill.")
    put("list.xlsx", b"")
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr(f"course/exercises/{STEM}.ipynb", solved)
        archive.writestr(f"../../outside_{STEM}.ipynb", solved)
        archive.writestr(f"__MACOSX/._{STEM}.ipynb", b"\0")
    put("broken.zip", b"PK\3\4 and no more")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    command = [sys.executable, TOOL, folder, "--cell-seconds", CELL, "--notebook-seconds", 60]
    began = time.monotonic()
    done = subprocess.run(
        [*map(str, command), "--memory", "1.5GB"],
        capture_output=True,
        text=True,
        # as `make grade` calls it, without an activated environment
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": os.defpath},
        cwd=base,
    )
    print(done.stdout, done.stderr, f"{time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    out = base / "class-grades"
    rows = list(csv.DictReader((out / "grades.csv").open(encoding="utf-8-sig", newline="")))
    return {
        "made": made,
        "rows": {row["student"]: row for row in rows},
        "count": len(rows),
        "out": out,
        "folder": folder,
        "before": before,
        "said": done.stdout + done.stderr,
        "base": base,
    }


NAMED = [
    *(
        "solved",
        "blank",
        "half",
        "wrong axis",
        "endless answer",
        "redefines, solved",
        "before each check",
    ),
    *CHEATS,
    *("check: 1000", "check: 1000, half", "check: of 1000 points", "check: not graded"),
    *("check: not graded, solved", "check: deleted", "check: deleted, blank", "check: doubled"),
    *("check: moved up", "check: text", "answers deleted", "no metadata", "only code"),
    *(*ACCIDENTS, "small things", "gives up", "empty", "cut off", "not JSON", "no cells"),
    *("a list", "deep", "strange cells", "the chapter", "named otherwise", "html"),
]


@pytest.mark.parametrize("name", NAMED)
def test_every_student_gets_what_was_earned_and_the_reason(name, graded):
    _, points, reason = graded["made"][name]
    row = graded["rows"][name]
    assert float(row["points"]) == points, row
    assert reason in row["reason"]
    assert row["possible"] == "14"


def test_no_student_is_left_out(graded):
    assert set(NAMED) == set(graded["made"])
    assert graded["count"] == len(graded["rows"])


@pytest.mark.parametrize(
    ("name", "points", "reason"),
    [
        ("flat student", 3, ""),
        ("Moo Dle", 3, ""),
        ("Same Name (1)", 3, ""),
        ("Same Name (2)", 1, ""),
        ("nested", 3, "2 files"),
        ("several", 1, "2 files: took several/" + STEM + " (1).ipynb"),
        ("zipped", 3, ""),
        ("ill", 0, "not handed in"),
        ("broken", 0, "not handed in"),
        ("'=cmd|'x'!A1, \"q\"", 3, ""),
        ("<img src=x onerror=alert(1)>", 3, ""),
    ],
)
def test_layouts(name, points, reason, graded):
    row = graded["rows"][name]
    assert float(row["points"]) == points, row
    assert reason in row["reason"]


def test_the_tables_are_one_line_for_each_student_and_no_formulas(graded):
    text = (graded["out"] / "grades.csv").read_text(encoding="utf-8-sig")
    assert len(text.splitlines()) == graded["count"] + 1
    totals = (graded["out"] / "totals.csv").read_text(encoding="utf-8-sig")
    assert len(totals.splitlines()) == graded["count"] + 1
    for line in [*csv.reader(text.splitlines()), *csv.reader(totals.splitlines())]:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in line)
    row = graded["rows"]["half"]
    assert row["exercises"] == "03.1 1/1; 03.2 0/2; 03.3 2/2; 03.4 0/3; 03.5 2/2; 03.6 0/4"
    assert (row["share"], row["to_read"]) == ("0.357", "0")
    assert graded["rows"]["solved"]["to_read"] == "1"


def test_nothing_that_was_handed_in_is_changed_and_nothing_is_left_over(graded):
    now = {p: p.read_bytes() for p in graded["folder"].rglob("*") if p.is_file()}
    assert now == graded["before"]
    assert {p.name for p in graded["base"].iterdir()} == {"class", "class-grades"}
    assert not list(graded["base"].rglob("outside_*"))
    assert graded["rows"]["zipped"]["file"] == f"zipped.zip/{STEM}.ipynb"
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert "sleep 98765" not in listed
    assert "left alone: list.xlsx" in graded["said"]


def test_a_page_says_what_the_check_said_beside_the_students_own_code(graded):
    page = (graded["out"] / "feedback" / "wrong axis.html").read_text(encoding="utf-8")
    assert "2 of 14 points" in page
    assert "softmax runs over the queries" in page
    assert "softmax(dim=-2)" in page
    assert "to be read by the" in page
    assert len(list((graded["out"] / "feedback").iterdir())) == graded["count"]


def test_a_page_runs_and_loads_nothing(graded):
    for path in (graded["out"] / "feedback").iterdir():
        page = path.read_text(encoding="utf-8")
        assert not re.search(r"<(script|iframe|link|object|img(?! alt))", page), path.name
        assert not re.search(r"(src|href)=\"(?!data:)", page), path.name
    page = (graded["out"] / "feedback" / "html.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_flood_does_not_reach_the_pages(graded):
    for name in ("prints", "prints at once", "prints from outside"):
        assert (graded["out"] / "feedback" / f"{name}.html").stat().st_size < 100_000
        assert (graded["out"] / "logs" / f"{name}.txt").stat().st_size < 100_000


# ----------------------------------------------------------------------------- before anything runs


def run(*arguments: Any, cwd: Path | None = None) -> str:
    """Runs the command, which must refuse, and returns its one line."""
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("grade: "), done.stderr
    return done.stderr


def test_errors_say_what_to_do(tmp_path):
    assert "Type: make grade SUBMISSIONS=folder" in run()
    assert "which is not there" in run(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "got nothing" in run(empty)
    (empty / "readme.txt").write_text("hello")
    assert "got no such notebook" in run(empty)
    assert "OUT lies outside" in run(empty, "--out", empty / "grades")
    assert "OUT lies outside" in run(empty, "--out", tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert "which holds something else" in run(empty, "--out", other)
    assert (other / "mine.txt").read_text() == "mine"
    assert "--chapter is one of" in run(empty, "--chapter", "77")


def test_stopping_leaves_nothing_behind(chapter, tmp_path):
    folder = tmp_path / "class"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        notebook = inserted(
            chapter.solved([]), "import subprocess\nsubprocess.run(['sleep', '87654'])"
        )
        (folder / name / f"{STEM}.ipynb").write_bytes(raw(notebook))
    scratch = tmp_path / "t"
    scratch.mkdir()
    command = [sys.executable, str(TOOL), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )

    def running() -> bool:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return "sleep 87654" in listed.stdout

    wait_until(running, 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1 and said.strip() == "grade: stopped; nothing was written"
    wait_until(lambda: not running(), 5)
    assert not list(scratch.iterdir())
    assert [p.name for p in tmp_path.iterdir() if p != scratch] == ["class"]


def wait_until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.1)


# -------------------------------------------------------------------------------------- its parts


def looked_at(*texts: str) -> list[tuple[bool, str]]:
    notebook = {"cells": [code_cell(text) for text in texts]}
    found = suspicion.suspicions(notebook, {"import torch\nimport torch.nn.functional as F"})
    return [(s.deceit, s.what) for s in found]


@pytest.mark.parametrize(
    "text",
    [
        "F.softmax = my_softmax",
        "import torch as t\nt.nn.Linear.forward = lambda s, x: x",
        "setattr(torch, 'allclose', yes)",
        "for check in (1, 2): pass",
        "from mine import check",
        "with open('x') as check: pass",
        "def f():\n    global check\n    check = print",
        "(check := print)",
        "import sys\ndel sys.modules['checks']",
        "import sys\nsys.modules.pop('checks')",
        "from inspect import stack",
        "import gc\nprint(gc.get_objects())",
        "import ctypes",
        "import os\nos.environ['NBGRADER_EXECUTION'] = ''",
        "__builtins__.print = 1",
        "import builtins\nbuiltins.all = lambda *a: True",
        "get_ipython().kernel.do_execute = 0",
        "def f():\n    return f.__closure__[0].cell_contents",
    ],
)
def test_a_deceit_is_seen(text):
    assert any(deceit for deceit, _ in looked_at(text)), looked_at(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.ones(3)\nx.requires_grad = True\nx.grad = None\nx.data = x.data * 2",
        "class A(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.check = 1\n        self.softmax = torch.softmax",
        "def progress(x):\n    check = x\n    return check",
        "plt.rcParams['figure.figsize'] = 3, 4\ntorch.backends.cudnn.benchmark = False",
        "import sys\nsys.path.append('.')\nsys.setrecursionlimit(5000)",
        "import inspect\ninspect.signature(print)\nimport copy\ncopy.deepcopy([])",
        "layer.weight.data = torch.ones(2)\nmodel.forward = print",
        "[check for check in range(3)]",
        "from checks import check, progress",
        "from checks import check as check",
        "eval('1 + 1')\n!ls\n%%bash",
        "examine = 1\nimport types\ntypes.FunctionType(f.__code__, f.__globals__)",
        "this is no Python",
        "",
    ],
)
def test_what_is_odd_but_honest_costs_nothing(text):
    assert not any(deceit for deceit, _ in looked_at(text)), looked_at(text)


def test_what_is_unusual_is_told():
    assert [what for _, what in looked_at("!rm -r .", "eval('1')", "import socket")] == [
        "has the magic '!rm -r .'",
        "calls eval",
        "imports socket",
    ]


def test_a_zip_file_writes_only_into_its_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in (f"../{STEM}.ipynb", f"/etc/{STEM}.ipynb", "a/b:c?.ipynb", "x.txt"):
            archive.writestr(name, "{}")
    target = tmp_path / "target"
    target.mkdir()
    assert handed_in.unpack(tmp_path / "a.zip", target) is None
    assert sorted(p.name for p in target.rglob("*.ipynb")) == [f"{STEM}.ipynb", "b_c_.ipynb"]
    assert {p.name for p in tmp_path.iterdir()} == {"a.zip", "target"}


def test_a_zip_file_that_grows_too_large_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(handed_in, "ZIP_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.ipynb", b"0" * 1_000_000)
    target = tmp_path / "target"
    target.mkdir()
    assert "unpacks to too much" in handed_in.unpack(tmp_path / "a.zip", target)
    assert not list(target.rglob("*.ipynb"))


def test_pages_never_share_a_name():
    taken: set[str] = set()
    names = ["Ada", "ada", "a/b", "a:b", "..", "ADA", "x" * 500, "Ada 2"]
    made = [report.page_name(name, taken) for name in names]
    assert len({name.casefold() for name in made}) == len(names)
    assert made[:4] == ["Ada", "ada 2", "a_b", "a_b 2"]
    assert all("/" not in name and len(name) < 130 for name in made)


def test_a_check_stands_behind_every_answer_of_its_exercise(chapter):
    notebook = restore.tidy(raw(without(chapter.solved(), is_check)))
    done = restore.restore(notebook, chapter.blank).notebook["cells"]
    names = [restore.grade_id(cell) for cell in done if restore.grade_id(cell)]
    assert names[:7] == [
        *("answer-03-1", "check-03-1", "answer-03-2", "check-03-2"),
        *("answer-03-3", "answer-03-3b", "check-03-3"),
    ]
    untouched = restore.restore(restore.tidy(raw(chapter.blank)), chapter.blank)
    same = [(c["cell_type"], c["source"]) for c in untouched.notebook["cells"]]
    assert same == [(c["cell_type"], "".join(c["source"])) for c in chapter.blank["cells"]]
    assert not untouched.remarks


def test_the_class_of_thirty_has_thirty_students(chapter):
    assert len(making.a_class([chapter])) == 30
    assert json.loads(raw(chapter.blank))["cells"]
