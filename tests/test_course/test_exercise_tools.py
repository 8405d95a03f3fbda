"""Exercises are made, read, released and updated, and no work of a student is lost on the way."""

from __future__ import annotations

import ast
import copy
import io
import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from notebook_rules import ROOT, broken_links, source
from test_tools import code, notebook, prose

import exercises
import progress
import refresh
import release
import shipped
import update

Cell = dict[str, Any]
CHAPTER, MASTERS_NAME, NAME = "03_tiny.ipynb", "03_solutions.ipynb", "03_exercises.ipynb"


def answer(grade_id: str, text: str) -> Cell:
    nbgrader = {**exercises.ANSWER_FLAGS, "grade_id": grade_id}
    return {**code(text), "metadata": {"nbgrader": nbgrader}}


def check(number: int, points: int, text: str) -> Cell:
    nbgrader = {**exercises.CHECK_FLAGS, "grade_id": f"check-03-{number}", "points": points}
    return {**code(text), "metadata": {"nbgrader": nbgrader}}


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
    """A folder that looks like the course, with one master."""

    root: Path

    @property
    def master(self) -> Path:
        return self.root / "notebooks" / "solutions" / MASTERS_NAME

    @property
    def made(self) -> Path:
        return self.root / "notebooks" / "exercises" / NAME

    @property
    def new(self) -> Path:
        return shipped.beside(self.made)

    def write(self, *cells: Cell) -> None:
        self.master.write_text(refresh.canonical(notebook(*cells)), encoding="utf-8")

    def change_master(self) -> None:
        cells = copy.deepcopy(MASTER)
        cells[2]["source"] = cells[2]["source"].replace("Say it.", "Say it aloud.")
        self.write(*cells)

    def make(self, *arguments: str) -> bool:
        with pytest.raises(SystemExit) as ended:
            exercises.main(list(arguments))
        return not ended.value.code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    made = Folder(tmp_path / "course")
    made.master.parent.mkdir(parents=True)
    made.write(*MASTER)
    notebooks = made.root / "notebooks"
    (notebooks / CHAPTER).write_text(refresh.canonical(notebook(prose("# 03 Tiny"))))
    for module in (exercises, shipped):
        monkeypatch.setattr(module, "NOTEBOOKS", notebooks)
    monkeypatch.setattr(exercises, "SOLUTIONS", notebooks / "solutions")
    monkeypatch.setattr(exercises, "EXERCISES", notebooks / "exercises")
    for module in (shipped, release):
        monkeypatch.setattr(module, "ROOT", made.root)
    return made


# -------------------------------------------------------------------------- the masters, made into


def test_masters_and_exercises_fit() -> None:
    assert exercises.masters()
    assert not list(exercises.check(exercises.masters()))


def test_what_is_made_has_stubs_locks_checksums_and_no_solution(folder: Folder) -> None:
    from nbgrader.nbgraderformat import MetadataValidator
    from nbgrader.utils import compute_checksum

    assert folder.make()
    text = folder.made.read_text(encoding="utf-8")
    made = json.loads(text)
    cells = {exercises.grade_id(cell): cell for cell in made["cells"]}
    assert source(cells["answer-03-1"]) == "a = ...\n# your code here\npass"
    stub = "    # your code here\n    pass"
    assert source(cells["answer-03-2"]) == f"def f(x):\n{stub}\n\n\ndef g(x):\n{stub}"
    assert source(cells["answer-03-3"]) == "# your code here\npass"
    assert "SOLUTION" not in text
    assert "return y" not in text
    assert refresh.canonical(made) == text
    for cell in made["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        metadata, kind = cell["metadata"], exercises.grade_id(cell).partition("-")[0]
        locked = kind == "check" or cell["cell_type"] == "markdown"
        assert ("editable" in metadata) == locked, source(cell)
        assert ("deletable" in metadata) == (locked or kind == "answer"), source(cell)
        assert metadata.get("editable", False) is metadata.get("deletable", False) is False
    node = nbformat.reads(text, as_version=4)
    MetadataValidator().validate_nb(node)
    for cell in node.cells:
        if "nbgrader" in cell.metadata:
            assert cell.metadata.nbgrader.checksum == compute_checksum(cell)


def test_making_twice_changes_nothing(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.make()
    first, time = folder.made.read_bytes(), folder.made.stat().st_mtime_ns
    assert folder.make()
    assert (folder.made.read_bytes(), folder.made.stat().st_mtime_ns) == (first, time)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "written",
        "unchanged",
    ]
    folder.made.unlink()
    assert folder.make()
    assert folder.made.read_bytes() == first


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


# What the complaint must say, and the change to the cells of the master that brings it about.
BROKEN: list[tuple[str, Callable[[list[Cell]], None]]] = [
    (
        "its heading is # 03 Solutions: Title, got '# 03 Exercises: Tiny'",
        says(0, "Solutions", "Exercises"),
    ),
    ("numbered ## 1. to ## n.", says(6, "2. Two", "4. Two")),
    ("answer-03-2 under 'Two parts'", says(6, "2. Two", "Two")),
    ("answer-03-1: the solution stands between", says(3, "### BEGIN SOLUTION\n", "")),
    ("answer-03-1: the solution stands between", says(3, "\n### END SOLUTION", "")),
    ("answer-03-1: the solution stands between", says(3, "### END", "    ### END")),
    ("answer-03-1: the solution stands between", says(3, "### END", "## END")),
    ("answer-03-1: the solution stands between", at(3, source="a = (2, 3)")),
    (
        "without its solution the cell must be Python",
        says(9, "def f(x):\n    ###", "if x\n    ###"),
    ),
    (
        "marks stand in answer cells",
        says(7, "given", "### BEGIN SOLUTION\n### END SOLUTION\ngiven"),
    ),
    ("an exercise has an answer cell, got a check without one", without(3)),
    ("an exercise has one check cell, got 2", doubled(4)),
    (
        "its answer cells are ['answer-03-1'], got ['answer-02-1']",
        grades(3, grade_id="answer-02-1"),
    ),
    ("got ['answer-03-2', 'answer-03-2c']", grades(10, grade_id="answer-03-2c")),
    ("answer-03-1: a code cell with", grades(3, grade=True)),
    ("answer-03-1: a code cell with", grades(3, schema_version=2)),
    ("check-03-1: a code cell with", grades(4, locked=False)),
    ("its check is check-03-1, got check-03-7", grades(4, grade_id="check-03-7")),
    ('one line check("03.1", answer)', says(4, "03.1", "03.2")),
    ('one line check("03.1", answer)', says(4, "check(", "print(1)\ncheck(")),
    ("check-03-2 stands before an answer", swapped(10, 11)),
    ("Difficulty 2 of 5", says(2, "Difficulty 1 of 5 · ", "")),
    ("Difficulty 2 of 5", says(2, " · about 3 minutes", "")),
    ("Difficulty 2 of 5", says(2, "1 of 5", "6 of 5")),
    ("points are the difficulty, 1, got points=2", grades(4, points=2)),
    ("only the last exercise is open", without(4)),
    ("the last exercise is open, got a check", lambda c: c.__delitem__(slice(13, 16))),
    ("its hints are folded", says(5, "Hint 1", "Help")),
    ("every <details> is closed", says(5, "</details>", "</details>\n\n<details>")),
    ("[Solution](../solutions/03_solutions.ipynb#1.-Which-shape?)", says(5, "#1.", "#2.")),
    ("[Solution](../solutions/03_solutions.ipynb#2.-Two-parts)", says(6, "Two", "2")),
    ("its last line is [Solution]", says(5, "[Solution]", "[Help]")),
    ('the last cells are progress("03") and ## Next', says(17, "03", "04")),
    ('the last cells are progress("03") and ## Next', without(18)),
]


@pytest.mark.parametrize(("words", "change"), BROKEN, ids=[f"{i}" for i in range(len(BROKEN))])
def test_a_broken_master_is_refused(words: str, change: Callable[[list[Cell]], None]) -> None:
    assert exercises.complaints(notebook(*MASTER), MASTERS_NAME) == []
    cells = copy.deepcopy(MASTER)
    change(cells)
    found = exercises.complaints(notebook(*cells), MASTERS_NAME)
    if "2.-Two-parts" in words:
        words = words.replace("Two", "2")
    assert any(words in what for what in found), found


def test_a_refused_master_stops_neither_the_others_nor_touches_its_exercises(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.make()
    before = folder.made.read_bytes()
    cells = copy.deepcopy(MASTER)
    grades(4, points=2)(cells)
    folder.write(*cells)
    other = folder.master.with_name("04_solutions.ipynb")
    other.write_text("no notebook")
    assert not folder.make()
    said = capsys.readouterr().err
    assert "notebooks/solutions/03_solutions.ipynb, exercise 1: points are the difficulty" in said
    assert "notebooks/solutions/04_solutions.ipynb: a master is a notebook" in said
    assert folder.made.read_bytes() == before


def test_check_says_what_differs_and_writes_nothing(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not folder.make("--check")
    assert not folder.made.exists()
    assert "got none. Run: make exercises" in capsys.readouterr().out
    assert folder.make()
    assert folder.make("--check")
    folder.change_master()
    before = folder.made.read_bytes()
    capsys.readouterr()
    assert not folder.make("--check")
    assert "got another. Run: make exercises" in capsys.readouterr().out
    assert folder.made.read_bytes() == before
    (folder.made.parent / "05_left_over.ipynb").write_text("{}")
    assert not folder.make("--check")
    assert "05_left_over.ipynb: every one has its master" in capsys.readouterr().out


def test_a_master_needs_its_chapter(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.master.rename(folder.master.with_name("05_solutions.ipynb"))
    assert not folder.make()
    assert "a master has the number of its chapter" in capsys.readouterr().err


# ------------------------------------------------------------------------------ work is never lost


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


UNCHANGED = [ran, last_cell_ran, saved_by_lab]
CHANGED = [solved, solved_and_saved, solved_and_forgotten, added, removed, moved, made_text]


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content))  # no newline at the end, other indentation
    return path.read_bytes()


@pytest.mark.parametrize("change", UNCHANGED, ids=lambda change: change.__name__)
def test_running_and_saving_is_no_change(folder: Folder, change: Callable) -> None:
    assert folder.make()
    edit(folder.made, change)
    folder.change_master()
    assert folder.make()
    assert "Say it aloud." in folder.made.read_text()
    assert not folder.new.exists()


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: change.__name__)
def test_a_changed_notebook_stays_and_the_new_one_is_put_beside_it(
    folder: Folder, change: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.make()
    theirs = edit(folder.made, change)
    assert folder.make()
    forgotten = change is solved_and_forgotten  # nothing tells what they began with
    assert folder.new.exists() == forgotten
    assert f"{'beside' if forgotten else 'kept':9}  notebooks/exercises" in capsys.readouterr().out
    folder.change_master()
    for _ in range(2):
        assert folder.make()
        assert folder.made.read_bytes() == theirs
        assert "Say it aloud." in folder.new.read_text()
        assert "you changed it; the new one is 03_exercises.new.ipynb" in capsys.readouterr().out
    folder.write(*MASTER)
    assert folder.make(), "the same as in the beginning: nothing is new, and nothing is lost"
    assert folder.made.read_bytes() == theirs


def test_work_in_the_notebook_beside_it_is_kept_too(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.make()
    theirs = edit(folder.made, solved)
    folder.change_master()
    assert folder.make()
    beside = edit(folder.new, added)
    cells = copy.deepcopy(MASTER)
    cells[0]["source"] += "\n\nA third version."
    folder.write(*cells)
    assert folder.make()
    assert "blocked" in capsys.readouterr().out
    assert (folder.made.read_bytes(), folder.new.read_bytes()) == (theirs, beside)


@pytest.mark.parametrize("content", [b"", b'{"cells": [', b"[]", b'{"cells": [3]}', b"\xff\xfe"])
def test_a_damaged_notebook_is_kept(folder: Folder, content: bytes) -> None:
    assert folder.make()
    folder.made.write_bytes(content)
    assert folder.make()
    assert folder.made.read_bytes() == content
    assert "Say it." in folder.new.read_text()


def test_a_notebook_that_reads_as_the_new_one_is_replaced(folder: Folder) -> None:
    assert folder.make()
    edit(folder.made, says_aloud := lambda n: says(2, "Say it.", "Say it aloud.")(joined(n)))
    assert says_aloud
    folder.change_master()
    assert folder.make()
    assert folder.make("--check")
    assert not folder.new.exists()


def joined(notebook: dict[str, Any]) -> list[Cell]:
    for cell in notebook["cells"]:
        cell["source"] = source(cell)
    return notebook["cells"]


def test_a_fingerprint_sees_what_counts() -> None:
    assert shipped.fingerprint("a.py", b"a\r\n") == shipped.fingerprint("a.py", b"a\n")
    assert shipped.fingerprint("a.npy", b"\0\r\n") != shipped.fingerprint("a.npy", b"\0\n")
    damaged = [shipped.fingerprint("a.ipynb", content) for content in (b"", b"{", b"[]")]
    assert len(set(damaged)) == 3


def test_what_stands_beside_a_chapter_is_no_chapter(folder: Folder) -> None:
    (folder.root / "notebooks" / "03_tiny.new.ipynb").write_text("{}")
    assert [path.name for path in shipped.chapters()] == [CHAPTER]
    folder.made.parent.mkdir()
    folder.new.write_text("{}")
    assert exercises.superfluous() == []


# ---------------------------------------------------------------------------------------- progress


def printed(cell: Cell, text: str, count: int = 1) -> None:
    cell["execution_count"] = count
    cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": [text]}]


def states(notebook: dict[str, Any]) -> list[str]:
    return [exercise.state for exercise in progress.exercises(notebook, "03")]


def test_progress_reads_what_the_checks_said(folder: Folder) -> None:
    assert folder.make()
    blank = json.loads(folder.made.read_text())
    assert states(blank) == ["not run", "not run", "open"]
    half = copy.deepcopy(blank)
    printed(half["cells"][4], "03.1  right: yes")
    printed(half["cells"][11], "I print 03.2  right: so\n03.2  not right: no")
    half["cells"][14]["source"] = "print(3)"
    assert states(half) == ["right", "not right", "open, begun"]
    shuffled = {**half, "cells": [half["cells"][4], *half["cells"][:4], *half["cells"][5:]]}
    assert states(shuffled) == states(half)
    twice = copy.deepcopy(half)
    twice["cells"].append(copy.deepcopy(twice["cells"][4]))
    printed(twice["cells"][-1], "03.1  not yet: no", count=9)
    assert states(twice) == ["not yet", "not right", "open, begun"], "the last run counts"
    bare = copy.deepcopy(half)
    for cell in bare["cells"]:
        cell["metadata"] = {}
    assert states(bare) == states(half), "metadata lost"
    other = copy.deepcopy(blank)
    printed(other["cells"][4], "03.2  right: another exercise")
    other["cells"][11]["outputs"] = [
        {"output_type": "error", "ename": "NameError", "evalue": "f", "traceback": []}
    ]
    assert states(other) == ["not run", "not run", "open"]


def test_progress_reports_in_lines(folder: Folder) -> None:
    assert folder.make()
    half = json.loads(folder.made.read_text())
    printed(half["cells"][4], "03.1  right: yes")
    folder.made.write_text(json.dumps(half))
    folder.new.write_text("{}")
    broken = folder.made.with_name("04_broken.ipynb")
    broken.write_text("{")
    odd = copy.deepcopy(half)
    odd["cells"][4]["outputs"] = None
    broken.with_name("03_zero.ipynb").write_text(json.dumps(odd))
    missing = folder.root / "notebooks" / "05_missing.ipynb"
    missing.write_text("{}")
    before = {path: path.read_bytes() for path in folder.root.rglob("*.ipynb")}
    lines = list(progress.report(progress.notebooks(folder.made.parent)))
    assert before == {path: path.read_bytes() for path in folder.root.rglob("*.ipynb")}
    assert len(lines) == 5
    assert re.fullmatch(
        r"03  tiny +\[#-\] +right 1, not run 2, open 3  \(a newer version: \w+.new.ipynb\)",
        lines[0],
    )
    assert lines[1].startswith("03  zero") and lines[1].endswith("the file is damaged")
    assert lines[2].startswith("04  broken") and lines[2].endswith("the file is damaged")
    assert lines[3].startswith("05  missing") and lines[3].endswith("is there")
    assert lines[4] == "\n1 of 2 right, about 15 minutes left"
    half["cells"][14]["source"] = "print(3)"
    folder.made.write_text(json.dumps(half))
    assert list(progress.report([folder.made]))[-1] == "\n1 of 2 right, about 10 minutes left"


def test_students_need_no_nbgrader() -> None:
    """What is handed out imports it nowhere, and the rest only inside of functions."""
    for path in sorted((ROOT / "tools").rglob("*.py")):
        tree = ast.parse(path.read_text())
        given = not release.is_kept_back(path.relative_to(ROOT).as_posix())
        nodes = ast.walk(tree) if given else tree.body
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not any(str(name).startswith("nbgrader") for name in names), path.name


# ----------------------------------------------------------------------------------------- updates


def chapter(*texts: str) -> bytes:
    return refresh.canonical(notebook(*map(code, texts))).encode()


def handed_out(text: str) -> bytes:
    made = notebook(code(text), code('check("03.1", a)'))
    shipped.remember_beginning(made)
    return refresh.canonical(made).encode()


OLD = {
    "README.md": b"# Course\n",
    "notebooks/01_run.ipynb": chapter("guess = ..."),
    "notebooks/02_guessed.ipynb": chapter("guess = ..."),
    "notebooks/03_same.ipynb": chapter("guess = ..."),
    "notebooks/exercises/01_solved.ipynb": handed_out("a = ..."),
    "notebooks/exercises/02_blank.ipynb": handed_out("a = ..."),
    "resources/data.npy": b"\0\r\n\1",
    "utils/edited.py": b"a = 1\n",
    "utils/dropped.py": b"a = 2\n",
    "utils/dropped_edited.py": b"a = 3\n",
}
NEW = {
    **{name: content for name, content in OLD.items() if "dropped" not in name},
    "README.md": b"# Course, better\n",
    "notebooks/01_run.ipynb": chapter("guess = ...", "more = 1"),
    "notebooks/02_guessed.ipynb": chapter("guess = ...", "more = 1"),
    "notebooks/exercises/01_solved.ipynb": handed_out("b = ..."),
    "notebooks/exercises/02_blank.ipynb": handed_out("b = ..."),
    "resources/data.npy": b"\0\n\1",
    "utils/edited.py": b"a = 10\n",
    "utils/added.py": b"a = 4\n",
    "utils/in_the_way.py": b"a = 5\n",
}


def unpack(content: bytes, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        zipped.extractall(folder)
    (top,) = folder.iterdir()
    return top


def lay_out(files: dict[str, bytes], root: Path) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def work(root: Path) -> dict[str, bytes]:
    """What a student does in the course; returns what must stay."""
    edit(root / "notebooks/01_run.ipynb", ran)
    edit(root / "notebooks/02_guessed.ipynb", lambda n: n["cells"][0].update(source="guess = 7"))
    edit(root / "notebooks/03_same.ipynb", lambda n: n["cells"][0].update(source="guess = 8"))
    edit(
        root / "notebooks/exercises/01_solved.ipynb",
        lambda n: n["cells"][0].update(source="a = (2, 3)"),
    )
    (root / "README.md").write_bytes(b"# Course\r\n")  # only the end of the line
    lay_out(
        {
            "utils/edited.py": b"a = 1  # mine\n",
            "utils/dropped_edited.py": b"a = 3  # mine\n",
            "utils/in_the_way.py": b"mine\n",
            "notes/mine.txt": b"mine\n",
            "notebooks/exercises/copy of 01.ipynb": b"mine\n",
        },
        root,
    )
    kept = [
        "notebooks/02_guessed.ipynb",
        "notebooks/03_same.ipynb",
        "notebooks/exercises/01_solved.ipynb",
        "notebooks/exercises/copy of 01.ipynb",
        "notes/mine.txt",
        "utils/dropped_edited.py",
        "utils/edited.py",
        "utils/in_the_way.py",
    ]
    return {name: (root / name).read_bytes() for name in kept}


BESIDE = {
    "notebooks/02_guessed.ipynb",
    "notebooks/exercises/01_solved.ipynb",
    "utils/edited.py",
    "utils/in_the_way.py",
}


def expect(root: Path, mine: dict[str, bytes]) -> None:
    """The folder holds the new course, and everything that the student wrote."""
    beside = {shipped.beside(Path(name)).as_posix(): NEW[name] for name in BESIDE}
    wanted = {**NEW, **beside, **mine}
    files = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    found.pop(shipped.MANIFEST, None)
    assert set(found) == set(wanted)
    assert {name for name in found if found[name] != wanted[name]} == set()


@dataclass
class Student:
    root: Path
    zip: Path
    mine: dict[str, bytes]

    def update(self, source: Path | None = None) -> bool:
        with pytest.raises(SystemExit) as ended:
            update.main([str(source or self.zip)])
        if isinstance(ended.value.code, str):
            raise ValueError(ended.value.code)
        return not ended.value.code


@pytest.fixture
def student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Student:
    root = unpack(release.pack(OLD), tmp_path / "old")
    monkeypatch.setattr(release, "version", lambda: "9.0.0")
    zipped = tmp_path / "new.zip"
    zipped.write_bytes(release.pack(NEW))
    for module in (update, shipped):
        monkeypatch.setattr(module, "ROOT", root)
    return Student(root, zipped, work(root))


@pytest.mark.parametrize("source", ["zip", "folder", "folder around it"])
def test_an_update_keeps_what_the_student_changed(
    student: Student, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = student.zip
    if source != "zip":
        top = unpack(student.zip.read_bytes(), tmp_path / "new")
        given = top if source == "folder" else top.parent
    assert student.update(given)
    expect(student.root, student.mine)
    said = capsys.readouterr().out
    for line in (
        "written    README.md",
        "written    utils/added.py",
        "kept       notebooks/03_same.ipynb: you changed it, and nothing is new",
        "beside     utils/edited.py: you changed it; the new one is edited.new.py",
        "kept       utils/dropped_edited.py: you changed it; the new version has it no more",
        "removed    utils/dropped.py",
        "update: this is version 9.0.0 now: 4 beside, 2 kept, 1 removed, 5 written",
    ):
        assert line in said.splitlines(), said
    assert student.update(given), "calling it again changes nothing"
    expect(student.root, student.mine)


def test_exercises_that_were_called_otherwise_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older release gave the exercises the name of their chapter."""
    folder = "notebooks/exercises"
    old = {f"{folder}/{n}_long_name.ipynb": handed_out("a = ...") for n in ("01", "02", "03")}
    new = {f"{folder}/{n}_exercises.ipynb": handed_out("a = ...") for n in ("01", "02", "03")}
    root = unpack(release.pack(old), tmp_path / "old")
    (tmp_path / "new.zip").write_bytes(release.pack(new))
    for module in (update, shipped):
        monkeypatch.setattr(module, "ROOT", root)
    edit(root / folder / "02_long_name.ipynb", ran)
    theirs = edit(root / folder / "03_long_name.ipynb", lambda n: says(0, "...", "7")(joined(n)))
    with pytest.raises(SystemExit) as ended:
        update.main([str(tmp_path / "new.zip")])
    assert not ended.value.code
    found = {path.name: path.read_bytes() for path in (root / folder).iterdir()}
    assert found == {**{Path(n).name: c for n, c in new.items()}, "03_long_name.ipynb": theirs}
    assert (
        f"kept       {folder}/03_long_name.ipynb: you changed it; "
        "the new version is called 03_exercises.ipynb"
    ) in capsys.readouterr().out.splitlines()
    card = prose("## 1. Which?\n\nDifficulty 1 of 5 · about 3 minutes")
    for name in ("03_long_name", "03_exercises"):
        path = root / folder / f"{name}.ipynb"
        content = json.loads(path.read_text())
        if name == "03_long_name":
            printed(content["cells"][1], "03.1  right: yes")
        path.write_text(json.dumps({**content, "cells": [card, *content["cells"]]}))
    lines = list(progress.report(sorted((root / folder).glob("03_*"))))
    assert lines[-1] == "\n1 of 1 right, about 0 minutes left", "what is done in either is done"


def test_an_interrupted_update_is_finished_by_the_next(
    student: Student, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (student.root / shipped.MANIFEST).read_bytes()
    for stop in range(len(NEW)):
        left = iter(range(stop))

        def put(path: Path, new: bytes, began: str | None, left: Any = left) -> str:
            if next(left, None) is None:
                raise OSError("No space left on device")
            return shipped.put(path, new, began)

        monkeypatch.setattr(update, "put", put)
        with pytest.raises(ValueError, match="No space left on device"):
            student.update()
        assert (student.root / shipped.MANIFEST).read_bytes() == before
    monkeypatch.setattr(update, "put", shipped.put)
    assert student.update()
    expect(student.root, student.mine)


def test_two_updates_after_each_other(student: Student, monkeypatch: pytest.MonkeyPatch) -> None:
    assert student.update()
    third = {**NEW, "utils/edited.py": b"a = 11\n", "notebooks/02_guessed.ipynb": chapter("b")}
    student.zip.write_bytes(release.pack(third))
    own = student.root / "notebooks/02_guessed.new.ipynb"
    theirs = edit(own, lambda n: n["cells"][0].update(source="guess = 9"))
    assert not student.update(), "both the chapter and what is beside it are the student's"
    assert own.read_bytes() == theirs
    assert (student.root / "utils/edited.new.py").read_bytes() == b"a = 11\n"
    own.rename(own.with_name("mine.ipynb"))
    assert student.update()
    assert own.read_bytes() == third["notebooks/02_guessed.ipynb"]
    mine = {name: (student.root / name).read_bytes() for name in student.mine}
    assert mine == student.mine


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as zipped:
        files = {name: zipped.read(name) for name in zipped.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)


def climbing(files: dict[str, bytes]) -> None:
    (name,) = [name for name in files if name.endswith(shipped.MANIFEST)]
    listed = json.loads(files[name])
    listed["files"]["../../evil.py"] = "0"
    files[name] = json.dumps(listed).encode()


REFUSED: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "damaged": (
        lambda files: files.update(dict.fromkeys([n for n in files if "added" in n], b"x")),
        "got another utils/added.py. Get the zip again",
    ),
    "incomplete": (
        lambda files: files.pop(next(n for n in files if "added" in n)),
        "got another utils/added.py",
    ),
    "no course": (
        lambda files: files.pop(next(n for n in files if "MANIFEST" in n)),
        "without MANIFEST.json",
    ),
    "climbing": (climbing, "files lie in the course's folder, got '../../evil.py'"),
    "no list": (
        lambda files: files.update({n: b"[]" for n in files if "MANIFEST" in n}),
        "lists the files of the course, got something else",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_zip_that_is_no_course_is_refused(student: Student, what: str) -> None:
    before = {path: path.read_bytes() for path in student.root.rglob("*") if path.is_file()}
    change, words = REFUSED[what]
    rewritten(student.zip, change)
    with pytest.raises(ValueError, match=re.escape(words)):
        student.update()
    assert before == {p: p.read_bytes() for p in student.root.rglob("*") if p.is_file()}


def test_update_refuses_kindly(student: Student, tmp_path: Path) -> None:
    text = tmp_path / "text.zip"
    text.write_text("no zip")
    with pytest.raises(ValueError, match="FROM is a zip of the course"):
        student.update(text)
    with pytest.raises(ValueError, match="FROM is a zip of the course"):
        student.update(tmp_path / "nowhere.zip")
    (student.root / shipped.MANIFEST).unlink()
    with pytest.raises(ValueError, match="a zip updates what came as a zip"):
        student.update()
    with pytest.raises(SystemExit, match="no git clone, so it needs a zip"):
        update.main([])


def git(folder: Path, *command: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *command], check=True, capture_output=True)


def commit(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            path.unlink()
    lay_out(files, folder)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "x")


def test_a_clone_is_updated_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    above, root = tmp_path / "above", tmp_path / "clone"
    above.mkdir()
    git(above, "init", "--quiet", "-b", "main")
    commit(above, OLD)
    git(tmp_path, "clone", "--quiet", str(above), str(root))
    monkeypatch.setattr(update, "ROOT", root)
    monkeypatch.setattr(shipped, "ROOT", root)
    update.main([])
    assert "nothing is new" in capsys.readouterr().out
    mine = work(root)
    commit(above, NEW)
    pull = subprocess.run(["git", "-C", root, "pull"], capture_output=True)
    assert pull.returncode, "git alone refuses; that is why there is an update"
    for _ in range(2):
        try:
            update.main([])
        except SystemExit as ended:
            assert not ended.code
        expect(root, mine)
    assert "nothing is new" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="a zip updates what came as a zip"):
        update.main([str(tmp_path)])
    git(root, "add", "utils/edited.py")
    with pytest.raises(SystemExit, match="something is staged"):
        update.main([])
    git(root, "commit", "--quiet", "-m", "mine")
    with pytest.raises(SystemExit, match="commits of its own, got 1"):
        update.main([])
    above.rename(tmp_path / "gone")
    with pytest.raises(SystemExit, match="git fetch failed"):
        update.main([])
    git(root, "branch", "--unset-upstream")
    with pytest.raises(SystemExit, match="got no upstream"):
        update.main([])


# ----------------------------------------------------------------------------------- what is given


@pytest.fixture(scope="module")
def given() -> dict[str, bytes]:
    return release.collect()


@pytest.fixture(scope="module")
def unpacked(given: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(release.pack(given), tmp_path_factory.mktemp("given"))


def test_every_file_of_the_project_is_handed_out_or_kept_back(given: dict[str, bytes]) -> None:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False
    )
    tracked = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    if not tracked:
        pytest.skip("only a clone knows which files belong to the project")
    home = (".ci/", "notebooks/solutions/")
    left = [n for n in tracked if not (n in given or release.is_kept_back(n) or n.startswith(home))]
    assert left == []
    assert {"Makefile", "checks/engine/verdict.py", "tools/update.py"} <= set(given)
    assert not [name for name in given if release.is_kept_back(name) or "solutions" in name]
    made = {f"notebooks/exercises/{exercises.made_from(p).name}" for p in exercises.masters()}
    assert made == {name for name in given if name.startswith("notebooks/exercises/")}


def test_no_solution_is_handed_out(given: dict[str, bytes]) -> None:
    bodies = release.solutions()
    assert len(bodies) > 10
    assert list(release.leaks(given, bodies)) == []
    for name, content in given.items():
        if name.startswith("notebooks/exercises/"):
            assert b"solutions/" not in content
            assert release.SOLUTION_LINE.encode() in content
    body = max(bodies, key=len)
    inside = "\n".join(f"    {line}" for line in body.splitlines())
    cell = json.dumps(notebook(code(f"def f():\n{inside}\n    # more"))).encode()
    shown = code("1")
    printed(shown, body)
    for name, content in {
        "README.md": f"Text\n\n{body}\n".encode(),
        "notebooks/exercises/01_a.ipynb": cell,
        "notebooks/exercises/02_b.ipynb": json.dumps(notebook(shown)).encode(),
        "tests/a.py": f"if a:\n{inside}\n".encode(),
    }.items():
        assert len(list(release.leaks({name: content}, bodies))) == 1, name
        assert list(release.leaks({name: content}, [])) == []
    marked = json.dumps(notebook(code("    ### BEGIN SOLUTION\n    1"))).encode()
    assert list(release.leaks({"notebooks/01_a.ipynb": marked}, []))


def test_a_release_has_the_same_bytes_and_lists_its_files(given: dict[str, bytes]) -> None:
    first = release.pack(given)
    assert release.pack(dict(reversed(given.items()))) == first
    with zipfile.ZipFile(io.BytesIO(first)) as zipped:
        names = zipped.namelist()
        assert {entry.date_time for entry in zipped.infolist()} == {release.DATE}
    assert names == sorted(names)
    assert len({name.partition("/")[0] for name in names}) == 1


def test_a_fresh_copy_is_unchanged(
    unpacked: Path, given: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = tmp_path / "same.zip"
    zipped.write_bytes(release.pack(given))
    monkeypatch.setattr(update, "ROOT", unpacked)
    before = {p: p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    assert len(before) == len(given) + 1
    with pytest.raises(SystemExit) as ended:
        update.main([str(zipped)])
    assert not ended.value.code
    assert before == {p: p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    began = json.loads((unpacked / shipped.MANIFEST).read_text())["files"]
    assert not [name for name in began if shipped.changed(unpacked / name, began[name])]
    for path in (unpacked / "notebooks" / "exercises").glob("*.ipynb"):
        assert not shipped.changed(path, None), f"{path.name} carries its own beginning"


def test_links_lead_somewhere_in_what_is_handed_out(unpacked: Path) -> None:
    complaints = []
    for path in sorted(unpacked.rglob("*.md")):
        complaints += [f"{path.name}: {c}" for c in broken_links(path.read_text(), path)]
    for path in sorted(unpacked.rglob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                attached = set(cell.get("attachments", {}))
                found = broken_links(source(cell), path, attached)
                complaints += [f"{path.name}: {c}" for c in found]
    assert complaints == []


def test_what_is_handed_out_needs_nothing_that_is_kept_back(unpacked: Path) -> None:
    missing = {
        name: Path(name).stem
        for name in release.KEPT_BACK
        if name.endswith(".py") and (ROOT / name).exists()
    }
    for path in [*unpacked.glob("tests/*.py"), *unpacked.glob("tools/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & set(missing.values()), f"{path.name}, line {node.lineno}"
    makefile = (unpacked / "Makefile").read_text()
    for script in re.findall(r"\b\w+/\w+\.py\b", makefile):
        assert (unpacked / script).exists(), (
            f"the Makefile calls {script}; move it to instructor.mk"
        )
    for path in unpacked.glob("requirements*.txt"):
        for name in re.findall(r"^-r (\S+)", path.read_text(), re.MULTILINE):
            assert (unpacked / name).exists(), f"{path.name} wants {name}"


def test_links_to_what_is_kept_back_become_words(folder: Folder) -> None:
    names = {"README.md", "notebooks/03_tiny.ipynb"}
    text = (
        "[all](notebooks/solutions) and [one](notebooks/solutions/03_solutions.ipynb#1.-W), "
        "[chapter](notebooks/03_tiny.ipynb#A), [all](notebooks), [here](#A), [web](https://a.b/c)"
    )
    assert release.unlink(text, "README.md", names) == (
        "all and one, "
        "[chapter](notebooks/03_tiny.ipynb#A), [all](notebooks), [here](#A), [web](https://a.b/c)"
    )


def test_a_run_of_the_instructor_is_not_handed_out(folder: Folder) -> None:
    assert folder.make()
    edit(folder.made, solved)
    name = f"notebooks/exercises/{NAME}"
    assert b"(2, 3)" not in release.collect()[name]
    edit(folder.root / "notebooks" / CHAPTER, lambda n: n["metadata"].update(toc={}))
    with pytest.raises(ValueError, match="chapters are handed out as `make refresh` writes them"):
        release.collect()
