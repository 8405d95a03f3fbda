"""Rehearse the grading of a class: thirty students, made up: broken, careless, odd, cheating.

    make class                          thirty students, every chapter that has a master
    make class ARGS="--chapter 03"      this chapter only
    make class ARGS="--keep folder"     leave submissions and grades in a folder to look at

It makes the submissions, grades them with the command that an instructor types, and compares every
grade with what that student earned.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.course.cards import grade_id
from tools.course.notebook import Cell, Notebook, canonical, source
from tools.course.registry import course
from tools.course.student_copy import exercises

TOOL = Path(__file__).resolve().parent / "grade.py"
MARKS = re.compile(r"^ *### (BEGIN|END) SOLUTION\n?", re.MULTILINE)


# ---------------------------------------------------------------------------- making submissions


@dataclass
class Chapter:
    """A chapter as the student gets it, and what solves it.

    Args:
        stem: name of the notebook without ending.
        blank: the notebook that is handed out.
        solutions: source of each solved answer cell, by grade_id.
        points: of each exercise with a check, by number: "2".
    """

    stem: str
    blank: Notebook
    solutions: dict[str, str]
    points: dict[str, int]

    @property
    def number(self) -> str:
        return self.stem[:2]

    def solved(self, only: Iterable[str] | None = None) -> Notebook:
        """Return the notebook with the solutions of these exercises, default all."""
        only = None if only is None else set(only)
        notebook = copy.deepcopy(self.blank)
        for cell in notebook["cells"]:
            name = grade_id(cell)
            number = re.match(r"\d+", name.rpartition("-")[2])
            if name in self.solutions and (only is None or number.group() in only):
                cell["source"] = self.solutions[name]
        return notebook

    def worth(self, only: Iterable[str] | None = None) -> int:
        """Return the points of these exercises, default all."""
        return sum(self.points[number] for number in (self.points if only is None else only))


@cache
def chapter_of(number: str) -> Chapter:
    """Read the master of a chapter, and what a release hands out of it."""
    listed = course()[number]
    notebook = json.loads(listed.master.read_text(encoding="utf-8"))
    solutions, points = {}, {}
    for cell in notebook["cells"]:
        name = grade_id(cell)
        if name.startswith("answer-"):
            solutions[name] = MARKS.sub("", source(cell))
        elif name.startswith("check-"):
            points[name.rpartition("-")[2]] = cell["metadata"]["nbgrader"]["points"]
    return Chapter(listed.exercises.stem, exercises(listed), solutions, points)


def find_cell(notebook: Notebook, name: str) -> Cell:
    """Return the cell with this grade_id."""
    return next(cell for cell in notebook["cells"] if grade_id(cell) == name)


def code_cell(text: str) -> Cell:
    cell = {"cell_type": "code", "execution_count": None, "id": "", "metadata": {}}
    return {**cell, "outputs": [], "source": text}


def inserted(notebook: Notebook, text: str, place: int = 2) -> Notebook:
    """Put a code cell into a notebook, by default behind the imports, and return it."""
    notebook["cells"].insert(place, code_cell(text))
    return notebook


def before_checks(notebook: Notebook, text: str) -> Notebook:
    """Put a code cell before every check cell, and return the notebook."""
    cells = []
    for cell in notebook["cells"]:
        if grade_id(cell).startswith("check-"):
            cells.append(code_cell(text))
        cells.append(cell)
    notebook["cells"] = cells
    return notebook


def changed_checks(notebook: Notebook, change: Callable[[Cell], None]) -> Notebook:
    """Change every check cell, and return the notebook."""
    for cell in notebook["cells"]:
        if grade_id(cell).startswith("check-"):
            change(cell)
    return notebook


def without(notebook: Notebook, unwanted: Callable[[Cell], bool]) -> Notebook:
    """Take cells out of a notebook, and return it."""
    notebook["cells"] = [cell for cell in notebook["cells"] if not unwanted(cell)]
    return notebook


def light(notebook: Notebook) -> Notebook:
    """Take out the course's own cells that draw and print, so that less is to be run."""
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return without(
        notebook, lambda c: c["cell_type"] == "code" and c is not first and not grade_id(c)
    )


def is_check(cell: Cell) -> bool:
    return grade_id(cell).startswith("check-")


FAKE = 'print("{n}.1  right: shapes, values and gradients agree.")'
# What a cheat puts behind the imports of a blank notebook, and words of the remark; "" where nobody
# needs to know: it gains nothing.
CHEATS: dict[str, tuple[str, str]] = {
    "redefines check": ("def check(*a):\n    print('right: all of it')", ""),
    "a lambda for check": ("check = lambda *a: None", ""),
    "patches checks": (
        "import checks\nchecks.check = lambda *a: None",
        "replaces checks.check",
    ),
    "patches examine": (
        "from checks import Verdict\nfrom checks.engine import verdict\n"
        "verdict.examine = lambda id, *a, **k: Verdict(id, 'right', 'so')",
        "replaces checks.engine.verdict.examine",
    ),
    "replaces sys.modules": (
        "import sys, types\nfake = types.ModuleType('checks')\nfake.check = print\n"
        "sys.modules['checks'] = fake",
        "sys.modules",
    ),
    "replaces allclose": (
        "torch.allclose = lambda *a, **k: True\ntorch.equal = torch.allclose",
        "replaces torch.allclose",
    ),
    "replaces allclose unseen": (
        "table = torch.__getattribute__('__dict' + '__')\ntable['allclose'] = lambda *a, **k: True",
        "",
    ),
    "fills the list of exercises": (
        "from checks.engine.verdict import EXERCISES\n"
        "for e in EXERCISES.values():\n    object.__setattr__(e, 'judge', None)",
        "",
    ),
    "rewrites check": (
        "def yes(id, *answers):\n    print(id, ' right: so')\n"
        "check.__code__ = yes.__code__\ncheck.__globals__['examine'] = yes",
        "replaces checks.check",
    ),
    "leaves a mode on": (
        "from torch.overrides import TorchFunctionMode\n"
        "class Yes(TorchFunctionMode):\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
        "        same = func in (torch.allclose, torch.equal)\n"
        "        return True if same else func(*args, **(kwargs or {}))\n"
        "mode = Yes()\nmode.__enter__()",
        "",
    ),
    "prints a fake line": (FAKE, ""),
    "hides the grader": (
        "import os\nos.environ.pop('NBGRADER_EXECUTION', None)",
        "NBGRADER",
    ),
    "looks at frames": (
        "import sys\ndef softmax(scores):\n    return sys._getframe(1).f_locals['want']",
        "_getframe",
    ),
    "hooks the cells": (
        "get_ipython().events.register('pre_run_cell', lambda *a: None)",
        "",
    ),
}


# What honest students write beside their answers, odd as it looks; it costs nothing.
ODD = [
    "copy = torch.nn.Linear(2, 3)\ncopy.weight.data = torch.ones(3, 2)\n"
    "encoder = attention = torch.nn.Identity()\nattention.extra = 1",
    "check = torch.allclose(torch.ones(2), torch.ones(2))\nprint(check)",
    "def check(x):\n    return x.shape\nprint(check(torch.ones(2)), check.__closure__)",
    "from math import *\nimport warnings\nwarnings.filterwarnings('ignore')\n"
    "warnings.showwarning = lambda *a, **k: None",
    "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(1)\n"
    "torch.set_default_dtype(torch.float32)\ntorch.manual_seed = 0",
    "class Mine(torch.nn.Module):\n    pass\nMine.forward = lambda self, x: x\n"
    "if (mine := Mine()) is not None:\n    del mine\nimport matplotlib.pyplot as plt\n"
    "plt.rcParams['figure.dpi'] = 60",
]
# Slips by which a right answer becomes a wrong one.
SLIPS = [("dim=-1", "dim=-2"), ("** 0.5", "** 1.0"), ("b h j d -> b h i j", "b h j d -> b h j i")]


def with_slip(notebook: Notebook, chapter: Chapter, done: Iterable[str]) -> Notebook:
    """Yield the first exercise that is not done, and where a slip is known, a wrong answer."""
    for cell in notebook["cells"]:
        name = grade_id(cell)
        number = re.match(r"\d+", name.rpartition("-")[2])
        if name not in chapter.solutions or number.group() in done:
            continue
        for right, wrong in SLIPS:
            if number.group() in chapter.points and right in chapter.solutions[name]:
                cell["source"] = chapter.solutions[name].replace(right, wrong)
                return notebook
    return notebook


@dataclass
class Made:
    """What a made-up student hands in, and what that is worth.

    Args:
        name: of the student.
        files: content by path below the folder of all submissions.
        points: expected for each chapter.
        reason: words that stand in the csv for that chapter; "" when anything may.
    """

    name: str
    files: dict[str, bytes]
    points: dict[str, int]
    reason: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def raw(notebook: Notebook) -> bytes:
    return canonical(notebook).encode()


# ------------------------------------------------------------------------------------- the class

NAMES = """Ada Lovelace|Søren Ångström|María-José Núñez|王小明|Дмитрий Иванов|नेहा शर्मा|محمد علي|
山田 太郎|Θάλεια Παπαδοπούλου|O'Brien, Sean|김민준|Zoë van der Berg|Nguyễn Thị Hà|=SUM(A1)|
<b>Bobby|Łukasz Żółć|Ayşe Demir|עדה לוי|Chidi Okafor|João da Silva|Ngozi Eze|Şule Öz|
Jean-Luc "Picard"|สมชาย ใจดี|-2+3|Émile Zola|Jürgen Müßig|Aroha Ngata|Bằng Trần|Zed""".replace(
    "\n", ""
).split("|")


ODDS = range(3, 3 + len(ODD))  # these students are honest and odd, in every chapter


def a_class(chapters: list[Chapter], seed: int = 0) -> list[Made]:
    """Make up thirty students: solved, partly solved, careless, odd, cheating, broken."""
    chance = random.Random(seed)
    students = []
    for place, name in enumerate(NAMES):
        files, points, reason = {}, {}, {}
        for number, chapter in enumerate(chapters):
            file = f"{name}/{chapter.stem}.ipynb"
            numbers = list(chapter.points)
            # What is solved is a beginning: later exercises may use earlier answers.
            done = numbers[: chance.randint(0, len(numbers))] if place > 2 else numbers
            notebook = with_slip(chapter.solved(done), chapter, done)
            worth = chapter.worth(done)
            if place in ODDS:
                # Before the imports: behind them it breaks the notebook in Jupyter, too.
                inserted(notebook, f"import torch\n{ODD[place - ODDS[0]]}", 1)
            # Each cheat and each accident falls upon one chapter of one student.
            event = place - ODDS[-1] - 1 if number == place % len(chapters) else -1
            accident = event - len(CHEATS)
            content: bytes | None = None
            if 0 <= event < len(CHEATS):
                cheat = list(CHEATS.values())[event]
                notebook = inserted(chapter.solved([]), cheat[0].replace("{n}", chapter.number))
                worth, reason[chapter.number] = 0, cheat[1]
            elif accident == 0:
                first = find_cell(notebook, f"answer-{chapter.number}-1")
                first["source"] = "while True:\n    pass"
                worth -= chapter.points["1"] if "1" in done else 0
                reason[chapter.number] = "longer than"
            elif accident == 1:
                content, worth, reason[chapter.number] = b"", 0, "empty"
            elif accident == 2:
                content, worth = raw(notebook)[:2000], 0
                reason[chapter.number] = "no notebook"
            elif accident == 3:
                notebook = inserted(notebook, "import os\nos._exit(3)")
                worth, reason[chapter.number] = 0, "exit code 3"
            elif accident == 4:
                worth, content, reason[chapter.number] = 0, None, "not handed in"
            elif accident == 5:
                notebook = without(notebook, is_check)
                reason[chapter.number] = "was deleted"
            elif accident == 6:
                for cell in notebook["cells"]:
                    cell["metadata"] = {}
                reason[chapter.number] = "by the headings"
            if accident == 4:
                files[f"{name}/notes.txt"] = b"I was ill."
            else:
                files[file] = content if content is not None else raw(notebook)
            points[chapter.number] = worth
        students.append(Made(name, files, points, reason))
    return students


def differences(students: list[Made], out: Path) -> list[str]:
    """Compare grades.csv with what every student earned; return what is not so."""
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = {(row["student"].lstrip("'"), row["chapter"]): row for row in csv.DictReader(file)}
    wrong = []
    for student in students:
        for chapter, points in student.points.items():
            row = rows.pop((student.name, chapter), None)
            where = f"{student.name}, chapter {chapter}"
            if row is None:
                wrong.append(f"{where}: no line")
            elif float(row["points"]) != points:
                wrong.append(f"{where}: {row['points']} points, earned {points} ({row['reason']})")
            elif student.reason.get(chapter, "") not in row["reason"]:
                said = student.reason[chapter]
                wrong.append(f"{where}: the reason lacks {said!r}: {row['reason']!r}")
    wrong += [f"a line too many: {key}" for key in rows]
    pages = len(list((out / "feedback").glob("*.html")))
    if pages != len(students):
        wrong.append(f"{pages} pages of feedback for {len(students)} students")
    return wrong


def rehearse(chosen: list[str], folder: Path, options: list[str]) -> int:
    """Make, grade and compare in a folder; return the number of wrong grades."""
    chapters = [chapter_of(n) for n in sorted(chosen or [c.number for c in course().chapters])]
    students = a_class(chapters)
    submissions, out = folder / "class", folder / "class-grades"
    for number, student in enumerate(students):
        if number % 7 == 3:  # some send a zip file
            submissions.mkdir(exist_ok=True)
            with zipfile.ZipFile(submissions / f"{student.name}.zip", "w") as archive:
                for name, content in student.files.items():
                    archive.writestr(name.partition("/")[2], content)
        else:
            student.write(submissions)
    count = sum(len(student.files) for student in students)
    began = time.monotonic()
    command = [sys.executable, str(TOOL), str(submissions), "--out", str(out), *options]
    subprocess.run(command, check=True)
    took = time.monotonic() - began
    wrong = differences(students, out)
    for line in wrong:
        print(f"WRONG      {line}", flush=True)
    grades = sum(len(student.points) for student in students)
    print(
        f"{len(students)} students, {count} notebooks, {took / 60:.1f} minutes: "
        f"{grades - len(wrong)} of {grades} grades right"
    )
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chapter", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--keep", type=Path, help="a folder for what is made")
    options, rest = parser.parse_known_args()  # what is not known here is for grade.py
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        raise SystemExit(bool(rehearse(options.chapter, options.keep, rest)))
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        raise SystemExit(bool(rehearse(options.chapter, Path(folder), rest)))


if __name__ == "__main__":
    main()
