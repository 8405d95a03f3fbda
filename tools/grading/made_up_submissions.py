"""Made-up submissions of thirty students, and their points.

`made_up_class.py` grades them as a rehearsal; tests build submissions with the same functions.
"""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.course.cards import grade_id
from tools.course.notebook import Cell, Notebook, canonical, source
from tools.course.registry import course
from tools.course.student_copy import exercises

MARKS = re.compile(r"^ *### (BEGIN|END) SOLUTION\n?", re.MULTILINE)
# Grades a folder of submissions in this Python.
GRADE = [sys.executable, "-m", "tools.run", "grade"]


@dataclass
class Assignment:
    """The exercises of a chapter as released, with their solutions.

    Args:
        stem: name of the notebook without suffix.
        blank: the released notebook.
        solutions: source of each solved answer cell, by grade_id.
        points: of each exercise with a check, by number such as "2".
    """

    stem: str
    blank: Notebook
    solutions: dict[str, str]
    points: dict[str, int]

    @property
    def number(self) -> str:
        return self.stem[:2]

    def solved(self, only: Iterable[str] | None = None) -> Notebook:
        """Return the notebook with the solutions of some exercises, by default all."""
        only = None if only is None else set(only)
        notebook = copy.deepcopy(self.blank)
        for cell in notebook["cells"]:
            name = grade_id(cell)
            number = re.match(r"\d+", name.rpartition("-")[2])
            if name in self.solutions and (only is None or number.group() in only):
                cell["source"] = self.solutions[name]
        return notebook

    def worth(self, only: Iterable[str] | None = None) -> int:
        """Return the points of some exercises, by default all."""
        return sum(self.points[number] for number in (self.points if only is None else only))


@cache
def assignment_of(number: str) -> Assignment:
    """Return the assignment of a chapter."""
    listed = course()[number]
    notebook = json.loads(listed.source_notebook.read_text(encoding="utf-8"))
    solutions, points = {}, {}
    for cell in notebook["cells"]:
        name = grade_id(cell)
        if name.startswith("answer-"):
            solutions[name] = MARKS.sub("", source(cell))
        elif name.startswith("check-"):
            points[name.rpartition("-")[2]] = cell["metadata"]["nbgrader"]["points"]
    return Assignment(listed.exercises.stem, exercises(listed), solutions, points)


def find_cell(notebook: Notebook, name: str) -> Cell:
    """Return the cell with a grade_id."""
    return next(cell for cell in notebook["cells"] if grade_id(cell) == name)


def code_cell(text: str) -> Cell:
    cell = {"cell_type": "code", "execution_count": None, "id": "", "metadata": {}}
    return {**cell, "outputs": [], "source": text}


def inserted(notebook: Notebook, text: str, index: int = 2) -> Notebook:
    """Insert a code cell, by default after the imports, and return the notebook."""
    notebook["cells"].insert(index, code_cell(text))
    return notebook


def without(notebook: Notebook, unwanted: Callable[[Cell], bool]) -> Notebook:
    """Remove cells, and return the notebook."""
    notebook["cells"] = [cell for cell in notebook["cells"] if not unwanted(cell)]
    return notebook


def light(notebook: Notebook) -> Notebook:
    """Remove the course's own cells that draw and print, to save time, and return the notebook."""
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return without(
        notebook, lambda c: c["cell_type"] == "code" and c is not first and not grade_id(c)
    )


def is_check(cell: Cell) -> bool:
    return grade_id(cell).startswith("check-")


FAKE = 'print("{n}.1  right: shapes, values and gradients agree.")'
# Code of cheats, inserted after the imports of an unsolved notebook, and text of the remark; "" if
# there is none, since the cheat gains nothing.
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
        "for e in EXERCISES.values():\n    object.__setattr__(e, 'function', None)",
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


# Odd but honest code next to the answers; it costs no points.
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
# Slips that make a correct answer incorrect.
SLIPS = [("dim=-1", "dim=-2"), ("** 0.5", "** 1.0"), ("b h j d -> b h i j", "b h j d -> b h j i")]


def with_slip(notebook: Notebook, assignment: Assignment, done: Iterable[str]) -> Notebook:
    """Give the first unsolved exercise with a known slip a wrong answer."""
    for cell in notebook["cells"]:
        name = grade_id(cell)
        number = re.match(r"\d+", name.rpartition("-")[2])
        if name not in assignment.solutions or number.group() in done:
            continue
        for right, wrong in SLIPS:
            if number.group() in assignment.points and right in assignment.solutions[name]:
                cell["source"] = assignment.solutions[name].replace(right, wrong)
                return notebook
    return notebook


@dataclass
class MadeUpStudent:
    """The submissions of a made-up student, and their points.

    Args:
        name: of the student.
        files: content by path below the folder of submissions.
        points: expected for each chapter.
        reason: text in the reason for each chapter; "" for any.
    """

    name: str
    files: dict[str, bytes]
    points: dict[str, int]
    reason: dict[str, str] = field(default_factory=dict)

    def add(
        self, assignment: Assignment, content: Notebook | bytes | None, points: int, reason: str
    ) -> None:
        self.points[assignment.number], self.reason[assignment.number] = points, reason
        if content is None:
            self.files[f"{self.name}/notes.txt"] = b"I was ill."
        else:
            content = content if isinstance(content, bytes) else raw(content)
            self.files[f"{self.name}/{assignment.stem}.ipynb"] = content

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def raw(notebook: Notebook) -> bytes:
    return canonical(notebook).encode()


# ---------------------------------------------------------------------------------- the class

NAMES = """Ada Lovelace|Søren Ångström|María-José Núñez|王小明|Дмитрий Иванов|नेहा शर्मा|محمد علي|
山田 太郎|Θάλεια Παπαδοπούλου|O'Brien, Sean|김민준|Zoë van der Berg|Nguyễn Thị Hà|=SUM(A1)|
<b>Bobby|Łukasz Żółć|Ayşe Demir|עדה לוי|Chidi Okafor|João da Silva|Ngozi Eze|Şule Öz|
Jean-Luc "Picard"|สมชาย ใจดี|-2+3|Émile Zola|Jürgen Müßig|Aroha Ngata|Bằng Trần|Zed""".replace(
    "\n", ""
).split("|")


ODDS = range(3, 3 + len(ODD))  # students with odd but honest code in every chapter


def _without_metadata(notebook: Notebook) -> Notebook:
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    return notebook


def _hanging(notebook: Notebook) -> Notebook:
    first = next(cell for cell in notebook["cells"] if grade_id(cell).startswith("answer-"))
    first["source"] = "while True:\n    pass"
    return notebook


# Accidents: the change of the notebook (None for no file), the first of the solved exercises that
# still counts, None if none does, and text of the reason.
ACCIDENTS: list[tuple[Callable[[Notebook], Notebook | bytes | None], int | None, str]] = [
    (_hanging, 1, "longer than"),
    (lambda notebook: b"", None, "empty"),
    (lambda notebook: raw(notebook)[:2000], None, "not a notebook"),
    (lambda notebook: inserted(notebook, "import os\nos._exit(3)"), None, "exit code 3"),
    (lambda notebook: None, None, "not handed in"),
    (lambda notebook: without(notebook, is_check), 0, "was deleted"),
    (_without_metadata, 0, "by the headings"),
]


def made_up_class(assignments: list[Assignment], seed: int = 0) -> list[MadeUpStudent]:
    """Return thirty students: solved, partly solved, careless, odd, cheating, broken.

    Args:
        assignments: one for each chapter.
        seed: of the random choices.
    """
    chance = random.Random(seed)
    students = [MadeUpStudent(name, {}, {}) for name in NAMES]
    for index, student in enumerate(students):
        for number, assignment in enumerate(assignments):
            numbers = list(assignment.points)
            # Solutions come first: later exercises may use earlier answers.
            done = numbers[: chance.randint(0, len(numbers))] if index > 2 else numbers
            notebook = with_slip(assignment.solved(done), assignment, done)
            if index in ODDS:
                # Before the imports: after them, it would also break the notebook in Jupyter.
                inserted(notebook, f"import torch\n{ODD[index - ODDS[0]]}", 1)
            # Each cheat and each accident happens in one chapter of one student.
            event = index - ODDS[-1] - 1 if number == index % len(assignments) else -1
            student.add(assignment, *_submission(assignment, notebook, done, event))
    return students


def _submission(
    assignment: Assignment, notebook: Notebook, done: list[str], event: int
) -> tuple[Notebook | bytes | None, int, str]:
    """Return what a student submits, its points, and text of the reason."""
    if 0 <= event < len(CHEATS):
        code, reason = list(CHEATS.values())[event]
        return inserted(assignment.solved([]), code.replace("{n}", assignment.number)), 0, reason
    if not 0 <= event - len(CHEATS) < len(ACCIDENTS):
        return notebook, assignment.worth(done), ""
    change, first, reason = ACCIDENTS[event - len(CHEATS)]
    return change(notebook), 0 if first is None else assignment.worth(done[first:]), reason
