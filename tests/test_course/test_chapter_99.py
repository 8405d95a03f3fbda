"""A new chapter is an entry, a notebook, a master, its checks and answers; all else follows."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from made_up import ANSWER_FLAGS, CHECK_FLAGS, code, notebook, prose
from notebook_rules import RULES, RULES_OF_MASTERS

from course.cards import grade_id
from course.notebook import canonical
from course.registry import ROOT

ENTRY = """
[[chapters]]
number = "99"
file = "99_made_up"
title = "Made up"
minutes = 30
exercise_minutes = 30
summary = "say that the list is enough"
"""
CHAPTER = [
    prose(
        "# 99 · Made up\n\nAbout 30 minutes.\n\n| step | shape | parameters |\n|---|---|---|\n"
        "| scores, weights | (6, 8, 37, 37) | |"
    ),
    code("import torch\n\nfrom utils.shapes import describe"),
    prose("## Steps"),
    code('describe(torch.zeros(2, 3), "i j")'),
    prose("## What `utils` holds now\n\nNothing new."),
    prose("## Exercises\n\n[Exercises 99](exercises/99_exercises.ipynb), about 30 minutes."),
    prose("## Next\n\nNothing."),
]
HINTS = "<details><summary>Hint 1</summary>\n\nThink.\n</details>\n\n[Solution](../solutions/{})"
MASTER = [
    prose("# 99 Solutions: Made up\n\nAbout 30 minutes, after [chapter 99](../99_made_up.ipynb)."),
    code("from checks import check, progress"),
    prose("## 1. Which shape?\n\nSay it.\n\nDifficulty 1 of 5 · about 10 minutes"),
    code("shape = ...\n### BEGIN SOLUTION\nshape = (2, 3, 5, 7)\n### END SOLUTION\nprint(shape)"),
    code('check("99.1", shape)'),
    prose(HINTS.format("99_solutions.ipynb#1.-Which-shape?")),
    prose("## 2. Open\n\nTry.\n\nDifficulty 2 of 5 · about 20 minutes"),
    code('### BEGIN SOLUTION\nprint("a thought nobody else had")\n### END SOLUTION'),
    prose(HINTS.format("99_solutions.ipynb#2.-Open")),
    prose("## What is done"),
    code('progress("99")'),
    prose("## Next\n\nNothing."),
]
for place, name in ((3, "answer-99-1"), (4, "check-99-1"), (7, "answer-99-2")):
    flags = {**CHECK_FLAGS, "points": 1} if place == 4 else ANSWER_FLAGS
    MASTER[place]["metadata"] = {"nbgrader": {**flags, "grade_id": name}}
CHECKS = '''"""Checks of the exercises of chapter 99: made up."""

from checks.engine.answer import written
from checks.engine.guesses import same_shape
from checks.engine.verdict import exercise, open_exercise


@exercise("99.1", "Which shape?")
def which_shape(shape) -> str:
    written(shape)
    same_shape(shape, (2, 3, 5, 7), "b h i j")
    return "gives-both-shapes"


open_exercise("99.2", "Open")
'''

ANSWERS = '''"""Answers to the exercises of chapter 99, right and wrong."""

from exercise_bank import Bank, swap

SHAPE = "(2, 3, 5, 7)"
BANK = {
    "99.1": Bank(
        wrong=[
            swap(SHAPE, "(2, 3, 7, 5)", says="right sizes in another order"),
            swap(SHAPE, "(2, 3, 5, 5)", says="look at j"),
            swap(SHAPE, "(2, 3, 4, 7)", says="look at i"),
            swap(SHAPE, "(2, 3, 5)", says="needs 4 axes"),
            swap(SHAPE, "210", says="a tuple of whole numbers"),
        ],
        right=[swap(SHAPE, "[2, 3, 5, 7]"), swap(SHAPE, "tuple([2, 3, 5, 7])")],
    ),
}
'''
# What a chapter of two exercises, the smallest one, does not keep.
TOO_SMALL = ("test_checks_know_the_exercises", "test_chapter_and_readme_tell_how_many")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the course with a chapter more: five things were written, the rest was called."""
    root = tmp_path_factory.mktemp("course") / "course"
    left_out = (".git", ".venv", "__pycache__", ".*_cache", "build", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*left_out))
    with (root / "course.toml").open("a", encoding="utf-8") as file:
        file.write(ENTRY)
    for path, cells in (("99_made_up", CHAPTER), ("solutions/99_solutions", MASTER)):
        text = canonical(notebook(*cells))
        (root / "notebooks" / f"{path}.ipynb").write_text(text, encoding="utf-8")
    (root / "checks" / "chapter_99.py").write_text(CHECKS, encoding="utf-8")
    answers = root / "tests" / "test_checks" / "answers"
    (answers / "chapter_99.py").write_text(ANSWERS, encoding="utf-8")
    said = call(root, "tools/refresh.py", "99")
    assert said.count("refreshed") == 2, said
    call(root, "tools/exercises.py", "99")
    call(root, "tools/readme.py")
    return root


def call(root: Path, *command: str | Path) -> str:
    """Calls a command of the copy and returns what it says."""
    paths = os.pathsep.join([str(root), str(root / "clinic")])
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def solve(root: Path, target: Path) -> None:
    """Writes the exercises with the right answer, not run."""
    content = json.loads((root / "notebooks/exercises/99_exercises.ipynb").read_text())
    (cell,) = [cell for cell in content["cells"] if grade_id(cell) == "answer-99-1"]
    cell["source"] = "shape = (2, 3, 5, 7)\nprint(shape)"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content))


def test_the_readme_has_its_row(root: Path) -> None:
    row = (
        "| 99 | [Made up](notebooks/99_made_up.ipynb) | 30 | "
        "[2](notebooks/exercises/99_exercises.ipynb) | say that the list is enough |"
    )
    assert row in (root / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_rules_are_applied_to_it_and_its_bank_is_tried(root: Path) -> None:
    files = [f"tests/test_course/test_{name}.py" for name in ("notebooks", "project")]
    files.append("tests/test_checks/test_exercises.py")
    chosen = f"99 and not {' and not '.join(TOO_SMALL)}"
    said = call(root, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, *files)
    for rule in (*RULES, *RULES_OF_MASTERS):
        assert f"{rule.__name__}] PASSED" in said, rule
    assert "test_chapters_say_what_the_list_says[99_made_up] PASSED" in said
    assert "refused 5 of 5 wrong answers" in said and "passed 2 of 2 right answers" in said
    assert "test_run_all_of_an_untouched_notebook_goes_through[99_solutions] PASSED" in said


def test_it_is_released_without_its_solutions(root: Path) -> None:
    call(root, "tools/release.py")
    (zipped,) = (root / "build").glob("*.zip")
    with zipfile.ZipFile(zipped) as content:
        files = {name.partition("/")[2]: content.read(name) for name in content.namelist()}
    assert {"notebooks/99_made_up.ipynb", "checks/chapter_99.py"} <= set(files)
    assert b"a thought nobody else had" not in files["notebooks/exercises/99_exercises.ipynb"]
    assert not [name for name in files if "99_solutions" in name]


def test_progress_shows_it(root: Path) -> None:
    assert "99  Made up                           [-]        not run 1, open 2" in call(
        root, "tools/progress.py"
    )


def test_it_is_graded(root: Path, tmp_path: Path) -> None:
    solve(root, tmp_path / "class" / "Ada Lovelace" / "99_exercises.ipynb")
    call(root, "tools/grade.py", tmp_path / "class", "--jobs", "1")
    with (tmp_path / "class-grades" / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["student"], row["chapter"]) == ("Ada Lovelace", "99")
    assert (float(row["points"]), float(row["possible"])) == (1, 1), row
