"""Made-up notebooks, and a folder that looks like the course, for the tests of the tools."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.course.files import newer_file
from tools.course.notebook import Cell, canonical, source
from tools.course.notebook import code_cell as code
from tools.course.notebook import notebook_of as notebook
from tools.course.notebook import text_cell as prose
from tools.course.registry import Course

# What nbgrader needs to know of an answer cell and of a check cell.
ANSWER_FLAGS = {
    "grade": False,
    "locked": False,
    "schema_version": 3,
    "solution": True,
    "task": False,
}
CHECK_FLAGS = {**ANSWER_FLAGS, "grade": True, "locked": True, "solution": False}
CHAPTER, MASTERS_NAME, NAME = "03_tiny.ipynb", "03_solutions.ipynb", "03_exercises.ipynb"


def answer(grade_id: str, text: str) -> Cell:
    return code(text, nbgrader={**ANSWER_FLAGS, "grade_id": grade_id})


def check(number: int, points: int, text: str) -> Cell:
    return code(text, nbgrader={**CHECK_FLAGS, "grade_id": f"check-03-{number}", "points": points})


def hints(anchor: str) -> Cell:
    hint = "<details><summary>Hint 1</summary>\n\nThink.\n</details>"
    return prose(f"{hint}\n\n[Solution](../solutions/{MASTERS_NAME}#{anchor})")


MASTER = [
    prose("# 03 Solutions: Tiny"),
    code("from checks import check, progress"),
    prose("## 1. Which `shape`?\n\nSay it.\n\nDifficulty 1 of 5 · about 3 minutes"),
    answer("answer-03-1", "a = ...\n### BEGIN SOLUTION\na = (2, 3)\n### END SOLUTION"),
    check(1, 1, 'check("03.1", a)'),
    hints("1.-Which-shape?"),
    prose("## 2. Two parts\n\nWrite them."),
    code("given = 3"),
    prose("**Why:** so.\n\nDifficulty 4 of 5 · about 10 minutes"),
    answer(
        "answer-03-2",
        "def f(x):\n    ### BEGIN SOLUTION\n    y = x + 1\n    return y\n    ### END SOLUTION\n\n\n"
        "def g(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION",
    ),
    answer("answer-03-2b", "### BEGIN SOLUTION\nh = f\n### END SOLUTION"),
    check(2, 4, 'check("03.2", f, g, h)'),
    hints("2.-Two-parts"),
    prose("## 3. Open\n\nTry.\n\nDifficulty 2 of 5 · about 5 minutes"),
    answer("answer-03-3", "### BEGIN SOLUTION\nprint(a)\n### END SOLUTION"),
    hints("3.-Open"),
    prose("## What is done"),
    code('progress("03")'),
    prose("## Next"),
]


@dataclass
class Folder:
    """A folder that looks like the course, with one chapter and its source notebook."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Folder:
        folder = cls(root)
        folder.source_notebook.parent.mkdir(parents=True)
        folder.list_chapters("03")
        folder.write(*MASTER)
        (root / "notebooks" / CHAPTER).write_text(canonical(notebook(prose("# 03 Tiny"))))
        return folder

    def list_chapters(self, *numbers: str) -> None:
        entries = [
            f'[[chapters]]\nnumber = "{number}"\nfile = "{number}_tiny"\ntitle = "tiny"\n'
            f'minutes = 30\nexercise_minutes = 18\nsummary = "say it"\n'
            for number in numbers
        ]
        (self.root / "course.toml").write_text("utils = []\nfree = []\n" + "".join(entries))

    @property
    def course(self) -> Course:
        return Course.read(self.root)

    @property
    def source_notebook(self) -> Path:
        return self.root / "notebooks" / "solutions" / MASTERS_NAME

    @property
    def made(self) -> Path:
        return self.root / "notebooks" / "exercises" / NAME

    @property
    def new(self) -> Path:
        return newer_file(self.made)

    def write(self, *cells: Cell) -> None:
        self.source_notebook.write_text(canonical(notebook(*cells)), encoding="utf-8")

    def change_source_notebook(self) -> None:
        cells = copy.deepcopy(MASTER)
        cells[2]["source"] = cells[2]["source"].replace("Say it.", "Say it aloud.")
        self.write(*cells)


def at(number: int, **fields: Any) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[number].update(fields)


def says(number: int, old: str, new: str) -> Callable[[list[Cell]], None]:
    def change(cells: list[Cell]) -> None:
        assert old in cells[number]["source"]
        cells[number]["source"] = cells[number]["source"].replace(old, new)

    return change


def grades(number: int, **fields: Any) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[number]["metadata"]["nbgrader"].update(fields)


def without(number: int) -> Callable[[list[Cell]], None]:
    return lambda cells: cells.pop(number)


def doubled(number: int) -> Callable[[list[Cell]], None]:
    return lambda cells: cells.insert(number, copy.deepcopy(cells[number]))


def swapped(first: int, second: int) -> Callable[[list[Cell]], None]:
    def change(cells: list[Cell]) -> None:
        cells[first], cells[second] = cells[second], cells[first]

    return change


def ran(notebook: dict[str, Any]) -> None:
    for count, cell in enumerate((c for c in notebook["cells"] if "outputs" in c), start=7):
        cell["execution_count"] = count
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": "03.1  not yet: x"}]
        cell["metadata"]["execution"] = {"iopub.execute_input": "12:00"}


def last_cell_ran(notebook: dict[str, Any]) -> None:
    ran(notebook)
    notebook["cells"].append({**code(""), "id": "empty"})


def saved_by_lab(notebook: dict[str, Any]) -> None:
    notebook["nbformat_minor"] = 4
    notebook["metadata"]["language_info"]["version"] = "3.12.1"
    notebook["metadata"]["toc"] = {"base": 1}
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")
        cell.pop("id")


def solved(notebook: dict[str, Any]) -> None:
    notebook["cells"][3]["source"] = "a = (2, 3)"


def solved_and_saved(notebook: dict[str, Any]) -> None:
    solved(notebook)
    saved_by_lab(notebook)


def solved_and_forgotten(notebook: dict[str, Any]) -> None:
    solved(notebook)
    notebook["metadata"] = {}


def added(notebook: dict[str, Any]) -> None:
    notebook["cells"].append(code("print(1)"))


def removed(notebook: dict[str, Any]) -> None:
    notebook["cells"].pop(5)


def moved(notebook: dict[str, Any]) -> None:
    notebook["cells"].reverse()


def made_text(notebook: dict[str, Any]) -> None:
    notebook["cells"][3]["cell_type"] = "markdown"


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content))  # no newline at the end, other indentation
    return path.read_bytes()


def joined(notebook: dict[str, Any]) -> list[Cell]:
    for cell in notebook["cells"]:
        cell["source"] = source(cell)
    return notebook["cells"]


def printed(cell: Cell, text: str, count: int = 1) -> None:
    cell["execution_count"] = count
    cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": [text]}]


def unpack(content: bytes, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        zipped.extractall(folder)
    (top,) = folder.iterdir()
    return top
