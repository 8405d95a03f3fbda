"""The whole grader, run as an instructor runs it, on released notebooks with made-up answers."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import time
import zipfile
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own: requirements-dev.txt")


from tools.course.notebook import source
from tools.grading import made_up_submissions
from tools.grading.made_up_submissions import (
    CHEATS,
    GRADE,
    Assignment,
    assignment_of,
    find_cell,
    inserted,
    is_check,
    light,
    raw,
)
from tools.grading.results_folder import MADE_BY, read_table

STEM = "03_exercises"
CHAPTER = ROOT / "notebooks" / "03_scaled_dot_product_attention.ipynb"
CELL = 2.5  # charged seconds, the limit in these tests
SLEEP = f"9{os.getpid()}"  # seconds of sleep of the processes that students leave; unique


@pytest.fixture(scope="module")
def chapter() -> Assignment:
    return assignment_of("03")


def answer(notebook: dict[str, Any], number: str, text: str) -> dict[str, Any]:
    """Give an exercise another answer, and return the notebook."""
    find_cell(notebook, f"answer-03-{number}")["source"] = text
    return notebook


def softmax_that(does: str) -> str:
    """Return a correct answer, in a cell that does something else first."""
    right = "def softmax(scores):\n    s = scores - scores.amax(-1, keepdim=True)\n"
    return f"{does}\n{right}    return s.exp() / s.exp().sum(-1, keepdim=True)"


# A name that spreadsheets would compute, and browsers run.
ODD_NAME = "=cmd|'x'!A1, \"<img src=x onerror=alert(1)>\""
EDITED = (
    "restored: the check of 03.1, 03.6, which was changed; "
    "restored: the check of 03.4, which was deleted; "
    "restored: the check of 03.5, which occurred several times"
)


def with_edited_checks(notebook: dict[str, Any]) -> dict[str, Any]:
    """Edit each check in a different way, and return the notebook."""
    cells = notebook["cells"]
    first, second, third, fourth, fifth, sixth = (cell for cell in cells if is_check(cell))
    first["source"] = "1000"
    second["metadata"]["nbgrader"] |= {"points": 1000, "locked": False}
    third["metadata"]["nbgrader"] |= {"grade": False, "solution": True, "points": "many"}
    cells.remove(fourth)
    cells.append(dict(fifth, source="0 == 0"))
    sixth["cell_type"] = "markdown"
    cells.remove(second)
    cells.insert(0, second)
    return notebook


# Code in the cell of exercise 2 of a notebook with solved exercises 1, 2 and 3 (1, 2 and 2 points),
# the points of the notebook, and text of the reason. Each ends its kernel.
ACCIDENTS: dict[str, tuple[str, int, str]] = {
    "swallows": (
        "while True:\n    try:\n        while True:\n            pass\n"
        "    except BaseException:\n        continue",
        1,
        "could not be interrupted",
    ),
    "dies": (
        "import os\nos._exit(7)",
        1,
        "stopped in 03.2: its process exited (exit code 7)",
    ),
    "crashes": ("import os\nos.abort()", 1, "stopped in 03.2: its process died (SIGABRT)"),
    "multiplies": (
        "import os, time\nfor _ in range(100):\n    if not os.fork():\n        time.sleep(1000)\n"
        "time.sleep(1000)",
        1,
        "it started more than 60 processes",
    ),
}
# Answers of one notebook, by exercise, and text of the reason. All are stopped, and the next cell
# runs: the solution of exercise 6 keeps its 4 points.
INTERRUPTED = {
    "1": ("while True:\n    pass", "03.1: it took longer than 2.5 s"),
    "2": (
        "def softmax(scores):\n    while True: pass",
        "03.2: the check was stopped: it took longer than 2.5 s",
    ),
    # Without touching it: some machines are slow at that. It ends with an error.
    "3": (
        "def take():\n    hoard = []\n    while True:\n        hoard.append(torch.empty(10**7))\n"
        "take()",
        "",
    ),
    "4": ("while True:\n    print('x' * 10_000)", "03.4: it printed more than 5 MB"),
    "5": (
        "import subprocess\nsubprocess.run(['yes', 'x' * 1000])",
        "03.5: it printed more than 5 MB",
    ),
    "7": ("import time\ntime.sleep(1000)", "03.7: it took longer than 2.5 s"),
}
# Code in the cells of solved exercises of one notebook, and text of the reason. It costs no points.
HARMLESS = {
    "1": ("print('x' * 50_000_000)", "03.1: it printed more than 5 MB"),
    "2": (
        "import subprocess\n"
        f"subprocess.Popen(['sleep', '{SLEEP}'], start_new_session=True)\n"
        f"subprocess.Popen('sleep {SLEEP} & sleep {SLEEP} &', shell=True, start_new_session=True)",
        "imports subprocess",
    ),
    "3": (
        "import gc, os, copy, inspect\ngc.collect()\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        "torch.backends.cudnn.deterministic = True\ntorch.set_default_device('cpu')\n"
        "torch.manual_seed = 0\ndef helper(check):\n    progress = check\n    return progress\n"
        "import torchinfo\ntorch.func.vmap(torch.exp)(torch.ones(3))\n"
        "torch.jit.script(torch.nn.Linear(2, 3))\n%time 1 + 1",
        "replaces torch.manual_seed",
    ),
    "4": (
        "import os, shutil\nos.makedirs('a/b')\nos.chdir('a')\nshutil.rmtree(os.getcwd())\n"
        "shutil.rmtree(os.environ['HOME'])",
        "imports shutil",
    ),
}
# Permanently replaces what checks call; the answer is correct and gets its points.
REPLACED = (
    "torch.allclose = torch.equal = lambda *a, **k: False\n"
    "torch.nn.Linear.forward = lambda self, x: x\n"
    "import sys, types\nsys.modules['checks'] = types.ModuleType('checks')\n"
    "from checks.engine import verdict\nverdict.examine = None"
)
# Separate cells of one notebook. They cost no points: the next cell runs.
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


@dataclass(frozen=True)
class Submitted:
    """A submission, its points, and texts of the reason."""

    path: str
    content: bytes
    points: float
    reasons: tuple[str, ...]


def students(chapter: Assignment) -> dict[str, Submitted]:
    made: dict[str, Submitted] = {}

    def add(name: str, content: Any, points: float, *reasons: str, file: str = STEM) -> None:
        content = content if isinstance(content, bytes) else raw(content)
        made[name] = Submitted(f"{name}/{file}.ipynb", content, points, reasons)

    # Few solutions save time.
    def few(*solved: str) -> dict[str, Any]:
        return light(chapter.solved(solved))

    add("solved", chapter.solved(), 14)
    add("blank", chapter.blank, 0)
    add("half", few("1", "3", "5"), 1 + 2 + 2)
    wrong = few("1", "3", "4")
    cell = find_cell(wrong, "answer-03-4")
    cell["source"] = cell["source"].replace("dim=-1", "dim=-2")
    answer(wrong, "2", "softmax = lambda scores: scores.softmax(-1)")
    answer(wrong, "7", "<script>alert(1)</script>")
    add("wrong axis", wrong, 5, "03.2, it cost nothing: the values are right, but it calls")
    cheats = few()
    for code, _ in CHEATS.values():
        inserted(cheats, code.replace("{n}", "03"))
    add("cheats", cheats, 0, "replaces torch.allclose")
    edited = with_edited_checks(few())
    edited["cells"].remove(find_cell(edited, "answer-03-2"))
    add("edited checks", edited, 0, EDITED)
    add("edited checks, solved", with_edited_checks(light(chapter.solved())), 14, EDITED)
    bare = few("1", "2")
    for cell in bare["cells"]:
        cell["metadata"] = {}
    add("no metadata", bare, 3, "identified by the headings")

    for name, (code, worth, reason) in ACCIDENTS.items():
        add(name, answer(few("1", "2", "3"), "2", softmax_that(code)), worth, reason)
    stopped = few("6")
    for number, (code, _) in INTERRUPTED.items():
        answer(stopped, number, code)
    add("interrupted", stopped, 4, *(reason for _, reason in INTERRUPTED.values()))
    harmless = few("1", "2", "3", "4", "5")
    for number, (code, _) in HARMLESS.items():
        cell = find_cell(harmless, f"answer-03-{number}")
        cell["source"] = f"{code}\n{source(cell)}"
    add("harmless", harmless, 10, *(reason for _, reason in HARMLESS.values()))
    add("replaces, solved", answer(few("1", "2", "3"), "2", softmax_that(REPLACED)), 5, "replaces")
    notebook = few("1", "2", "3")
    for code in SMALL:
        inserted(notebook, code)
    add("small things", notebook, 5)
    gives_up = inserted(few("1"), "exit()", 99)
    add("gives up", gives_up, 1, "named as chapter 08", file="08_exercises")

    # Files that are not notebooks.
    add("empty", b"", 0, "the file is empty")
    add("cut off", raw(few())[:5000], 0, "not JSON, or cut off")
    add("not JSON", b"\x89PNG\r\n\x1a\n\0\0", 0, "not UTF-8")
    add("no cells", b'{"a": 1}', 0, "no cells")
    add("a list", b"[1, 2]", 0, "no cells")
    add("deep", b"[" * 100_000, 0, "not JSON")
    add(
        "strange cells", b'{"cells": [1, null, {"source": 5}, {"metadata": []}]}', 0, "no exercises"
    )
    add("the chapter", CHAPTER.read_bytes(), 0, "has no exercises")
    return made


@pytest.fixture(scope="module")
def graded(chapter: Assignment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Pass everything in, grade it with one call, and read what came out."""
    base = tmp_path_factory.mktemp("grading")
    folder = base / "class"

    def put(name: str, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    made = students(chapter)
    for one in made.values():
        put(one.path, one.content)
    # Some layouts and names; test_collect.py has all of them.
    solved = raw(light(chapter.solved(["1", "2"])))
    put(f"{ODD_NAME}/{STEM}.ipynb", solved)
    put("ill/notes.txt", b"I was ill.")
    put("list.xlsx", b"")
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr(f"course/exercises/{STEM}.ipynb", solved)
        archive.writestr(f"../../outside_{STEM}.ipynb", solved)
    put("broken.zip", b"PK\3\4 and no more")
    put("rar.rar", b"Rar!")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    # From last week: a table with an added column, and a file of the instructor.
    out = base / "class-grades"
    out.mkdir()
    (out / MADE_BY).write_text('{"files": ["grades.csv"]}')
    (out / "grades.csv").write_text("student;chapter;points;bonus\nhalf;03;5;2,5\n")
    (out / "letter.txt").write_text("mine")

    command = [*GRADE, folder, "--cell-seconds", CELL, "--notebook-seconds", 60]
    began = time.monotonic()
    done = subprocess.run(
        [*map(str, command), "--memory", "1.5GB"],
        capture_output=True,
        text=True,
        # as `make grade` calls it, without an activated environment
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": os.defpath},
        cwd=ROOT,
    )
    print(done.stdout, done.stderr, f"{time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_table(out / "grades.csv")
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
    *("solved", "blank", "half", "wrong axis", "cheats"),
    *("edited checks", "edited checks, solved", "no metadata"),
    *(*ACCIDENTS, "interrupted", "harmless", "replaces, solved", "small things", "gives up"),
    *("empty", "cut off", "not JSON", "no cells", "a list", "deep", "strange cells"),
    "the chapter",
]


@pytest.mark.parametrize("name", NAMED)
def test_every_student_gets_the_points_and_the_reason(name, graded):
    wanted, row = graded["made"][name], graded["rows"][name]
    assert float(row["points"]) == wanted.points, row
    assert [text for text in wanted.reasons if text not in row["reason"]] == []
    assert row["possible"] == "14"


def test_no_student_is_left_out(graded):
    assert set(NAMED) == set(graded["made"])
    assert graded["count"] == len(graded["rows"])


@pytest.mark.parametrize(
    ("name", "points", "reason"),
    [
        ("zipped", 3, ""),
        ("ill", 0, "not handed in; ill/notes.txt: not a notebook"),
        ("broken", 0, "not handed in; broken.zip: a zip file that cannot be read"),
        ("rar", 0, "not handed in; rar.rar: an archive of kind .rar"),
        (f"'{ODD_NAME}", 3, ""),
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
    assert graded["rows"]["blank"]["to_read"] == "0"
    assert not graded["rows"]["solved"]["reason"] and not graded["rows"]["blank"]["reason"]


def test_files_of_last_week_are_kept(graded):
    assert (graded["out"] / "letter.txt").read_text() == "mine"
    (kept,) = (graded["out"] / "earlier").iterdir()
    assert "half;03;5;2,5" in (kept / "grades.csv").read_text()
    assert graded["rows"]["half"]["bonus"] == "2,5"
    assert str(kept) in graded["said"]


def test_the_class_report_counts_results_of_checks(graded):
    rows = [row for row in read_table(graded["out"] / "class.csv") if row["exercise"] == "03.4"]
    assert {row["students"] for row in rows} == {str(graded["count"])}
    (wrong,) = [row for row in rows if "runs over the queries" in row["words"]]
    assert wrong["had_it"] == "1" and wrong["cause"].replace("-", "").isalnum()
    page = (graded["out"] / "class.html").read_text(encoding="utf-8")
    assert f"1 of {graded['count']}: {wrong['words']}" in page
    for target in re.findall(r'href="(feedback/[^"]+)"', page):
        assert (graded["out"] / unquote(target)).is_file()


def test_every_zero_has_a_reason_in_the_table(graded):
    text = (graded["out"] / "grades.csv").read_text(encoding="utf-8-sig")
    for row in csv.DictReader(text.splitlines()):
        if row["points"] == "0" and row["student"] != "blank":  # its only result is "not yet"
            assert row["reason"], row


def test_submissions_are_unchanged_and_no_files_or_processes_remain(graded):
    now = {p: p.read_bytes() for p in graded["folder"].rglob("*") if p.is_file()}
    assert now == graded["before"]
    assert {p.name for p in graded["base"].iterdir()} == {"class", "class-grades"}
    assert not list(graded["base"].rglob("outside_*"))
    assert graded["rows"]["zipped"]["file"] == f"zipped.zip/{STEM}.ipynb"
    listed = subprocess.run(
        ["ps", "-ewwo", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert f"sleep {SLEEP}" not in listed
    assert "ignored: list.xlsx" in graded["said"]


def test_a_page_shows_the_result_of_the_check_and_the_students_code(graded):
    page = (graded["out"] / "feedback" / "wrong axis.html").read_text(encoding="utf-8")
    assert "5 of 14 points" in page
    assert "softmax runs over the queries" in page
    assert "softmax(dim=-2)" in page
    assert "not read by the instructor yet" in page
    assert len(list((graded["out"] / "feedback").iterdir())) == graded["count"]


def test_a_page_runs_and_loads_nothing(graded):
    for path in (graded["out"] / "feedback").iterdir():
        page = path.read_text(encoding="utf-8")
        assert not re.search(r"<(script|iframe|link|object|img(?! alt))", page), path.name
        assert not re.search(r"(src|href)=\"(?!data:)", page), path.name
    page = (graded["out"] / "feedback" / "wrong axis.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_long_output_does_not_reach_the_pages(graded):
    for name in ("interrupted", "harmless"):
        assert (graded["out"] / "feedback" / f"{name}.html").stat().st_size < 100_000
        assert (graded["out"] / "logs" / f"{name}.txt").stat().st_size < 100_000


def test_the_made_up_class_has_thirty_students(chapter):
    assert len(made_up_submissions.made_up_class([chapter])) == 30
    assert json.loads(raw(chapter.blank))["cells"]


def test_imports_bind_the_names_of_odd_code_again():
    """After the imports, it would break a cell of chapter 06, which uses encoder.FeedForward."""
    chapter = assignment_of("06")
    imports = next(c["source"] for c in chapter.blank["cells"] if c["cell_type"] == "code")
    odd = [
        s
        for place, s in enumerate(made_up_submissions.made_up_class([chapter]))
        if place in made_up_submissions.ODDS
    ]
    for student, text in zip(odd, made_up_submissions.ODD, strict=True):
        (content,) = student.files.values()
        code = [c for c in json.loads(content)["cells"] if c["cell_type"] == "code"]
        first, second = ("".join(cell["source"]) for cell in code[:2])
        assert text in first and second == "".join(imports)
