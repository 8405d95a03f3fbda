"""A new chapter, and a new exercise in it, are made by one command each, and all else follows."""

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
from notebook_rules import RULES, RULES_OF_MASTERS

from tools.course.cards import grade_id
from tools.course.registry import ROOT, Course

LAST = int(Course.read(ROOT).chapters[-1].number)
NEW = f"{LAST + 1:02}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the course with a chapter more, as the commands leave it: nothing was written."""
    root = tmp_path_factory.mktemp("course") / "course"
    left_out = (".git", ".venv", "__pycache__", ".*_cache", "build", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*left_out))
    call(root, "tools.run", "new-chapter", "made_up")
    said = call(root, "tools.run", "new-exercise", NEW)
    assert f"refresh {NEW}" in said
    said = call(root, "tools.run", "refresh", NEW)
    assert said.count("refreshed") == 2, said
    call(root, "tools.run", "exercises", NEW)
    call(root, "tools.run", "readme")
    return root


def call(root: Path, *module: str | Path) -> str:
    """Call a module of the copy and return what it says."""
    paths = os.pathsep.join([str(root), str(root / "clinic")])
    done = subprocess.run(
        [sys.executable, "-m", *map(str, module)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_its_row_is_in_the_readme(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert f"[Made up](notebooks/{NEW}_made_up.ipynb)" in text
    assert f"[5](notebooks/exercises/{NEW}_exercises.ipynb)" in text


def test_every_gap_is_marked(root: Path) -> None:
    chapter = Course.read(root)[NEW]
    made = [chapter.notebook, chapter.source_notebook, chapter.exercises, root / "course.toml"]
    made += [root / "checks" / f"chapter_{NEW}.py"]
    made += [root / "tests" / "test_checks" / "answers" / f"chapter_{NEW}.py"]
    for path in made:
        assert "TODO" in path.read_text(encoding="utf-8"), path
    call(root, "ruff", "check", "--no-cache", *made[:2], *made[4:])
    call(root, "ruff", "format", "--check", "--no-cache", *made[:2], *made[4:])


def test_the_rules_are_applied_to_it_and_its_bank_is_tried(root: Path) -> None:
    files = [f"tests/test_course/test_{name}.py" for name in ("notebooks", "project")]
    files.append("tests/test_checks/test_exercises.py")
    said = call(root, "pytest", "-v", "-p", "no:cacheprovider", "-k", NEW, *files)
    for rule in (*RULES, *RULES_OF_MASTERS):
        assert f"{rule.__name__}] PASSED" in said, rule
    assert f"test_chapters_say_what_the_list_says[{NEW}_made_up] PASSED" in said
    assert "refused 20 of 20 wrong answers" in said and "passed 8 of 8 right answers" in said
    whole = f"test_run_all_of_an_untouched_notebook_goes_through[{NEW}_solutions] PASSED"
    assert whole in said


def test_an_exercise_more_in_a_finished_chapter(root: Path) -> None:
    chapter = next(
        c for c in Course.read(root).chapters if c.number != NEW and count(c.source_notebook) < 8
    )
    before = chapter.source_notebook.read_text(encoding="utf-8"), count(chapter.source_notebook)
    call(root, "tools.run", "new-exercise", chapter.number)
    said = call(root, "tools.run", "exercises", chapter.number)
    assert "FAILED" not in said and count(chapter.source_notebook) == before[1] + 1
    listed = Course.read(root)[chapter.number]
    assert listed.exercise_minutes == chapter.exercise_minutes + 10
    assert f"About {listed.exercise_minutes} minutes" in chapter.source_notebook.read_text(
        encoding="utf-8"
    )
    assert f"about {listed.exercise_minutes} minutes" in chapter.notebook.read_text(
        encoding="utf-8"
    )


def count(path: Path) -> int:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return sum(
        grade_id(cell).startswith("answer-") and not grade_id(cell)[-1].isalpha() for cell in cells
    )


def test_it_is_released_without_its_solutions(root: Path) -> None:
    call(root, "tools.run", "release")
    (zipped,) = (root / "build").glob("*.zip")
    with zipfile.ZipFile(zipped) as content:
        files = {name.partition("/")[2]: content.read(name) for name in content.namelist()}
    assert {f"notebooks/{NEW}_made_up.ipynb", f"checks/chapter_{NEW}.py"} <= set(files)
    assert b"shape = (2, 3, 5, 7)" not in files[f"notebooks/exercises/{NEW}_exercises.ipynb"]
    assert not [name for name in files if "_solutions" in name]


def test_progress_shows_it(root: Path) -> None:
    assert f"{NEW}  Made up                           [----]     not run 1 2 3 4, open 5" in call(
        root, "tools.run", "progress"
    )


def test_it_is_graded(root: Path, tmp_path: Path) -> None:
    content = json.loads(Course.read(root)[NEW].exercises.read_text())
    (cell,) = [cell for cell in content["cells"] if grade_id(cell) == f"answer-{NEW}-1"]
    cell["source"] = "shape = (2, 3, 5, 7)\nprint(shape)"
    target = tmp_path / "class" / "Ada Lovelace" / f"{NEW}_exercises.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(content))
    call(root, "tools.run", "grade", tmp_path / "class", "--jobs", "1")
    with (tmp_path / "class-grades" / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["student"], row["chapter"]) == ("Ada Lovelace", NEW)
    assert (float(row["points"]), float(row["possible"])) == (1, 4), row
