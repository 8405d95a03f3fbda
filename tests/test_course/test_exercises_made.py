"""Exercises are made from valid source notebooks, and no work of a student is lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import made_up
import nbformat
import pytest
from made_up import (
    MASTER,
    Folder,
    added,
    at,
    doubled,
    edit,
    grades,
    joined,
    last_cell_ran,
    made_text,
    moved,
    notebook,
    ran,
    removed,
    saved_by_lab,
    says,
    solved,
    solved_and_forgotten,
    solved_and_saved,
    swapped,
    without,
)

from tools.commands import Refusal
from tools.course import exercises, refresh
from tools.course.cards import grade_id
from tools.course.notebook import Cell, canonical, source
from tools.course.registry import course
from tools.course.source_notebooks import ANSWER_FLAGS, BEGIN, CHECK_FLAGS, violations


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.make(tmp_path / "course")


def make(folder: Folder, *arguments: str) -> bool:
    """Call the command; say whether it was content."""
    return not exercises.main(arguments, folder.root)


def test_made_up_source_notebooks_have_the_flags_of_real_ones() -> None:
    assert (made_up.ANSWER_FLAGS, made_up.CHECK_FLAGS) == (ANSWER_FLAGS, CHECK_FLAGS)


def test_source_notebooks_and_exercises_fit() -> None:
    here = course()
    assert here.source_notebooks()
    assert not list(
        exercises.check(here, [c for c in here.chapters if c.source_notebook.is_file()])
    )


def test_what_is_made_has_stubs_locks_checksums_and_no_solution(folder: Folder) -> None:
    from nbgrader.nbgraderformat import MetadataValidator
    from nbgrader.utils import compute_checksum

    assert make(folder)
    text = folder.made.read_text(encoding="utf-8")
    made = json.loads(text)
    cells = {grade_id(cell): cell for cell in made["cells"]}
    assert source(cells["answer-03-1"]) == "a = ...\n# your code here\npass"
    stub = "    # your code here\n    pass"
    assert source(cells["answer-03-2"]) == f"def f(x):\n{stub}\n\n\ndef g(x):\n{stub}"
    assert source(cells["answer-03-3"]) == "# your code here\npass"
    assert "SOLUTION" not in text
    assert "return y" not in text
    assert canonical(made) == text
    for cell in made["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        metadata, kind = cell["metadata"], grade_id(cell).partition("-")[0]
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
    assert make(folder)
    first, time = folder.made.read_bytes(), folder.made.stat().st_mtime_ns
    assert make(folder)
    assert (folder.made.read_bytes(), folder.made.stat().st_mtime_ns) == (first, time)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "written",
        "unchanged",
    ]
    folder.made.unlink()
    assert make(folder)
    assert folder.made.read_bytes() == first


# Text of the message, and the change of the source notebook that causes it.
BROKEN: list[tuple[str, Callable[[list[Cell]], None]]] = [
    (
        "its heading must be # 03 Solutions: Title, got '# 03 Exercises: Tiny'",
        says(0, "Solutions", "Exercises"),
    ),
    ("must be numbered ## 1. to ## n.", says(6, "2. Two", "4. Two")),
    ("answer-03-2 under 'Two parts'", says(6, "2. Two", "Two")),
    ("answer-03-1: the solution must be between", says(3, "### BEGIN SOLUTION\n", "")),
    ("answer-03-1: the solution must be between", says(3, "\n### END SOLUTION", "")),
    ("answer-03-1: the solution must be between", says(3, "### END", "    ### END")),
    ("answer-03-1: the solution must be between", says(3, "### END", "## END")),
    ("answer-03-1: the solution must be between", at(3, source="a = (2, 3)")),
    (
        "without its solution the cell must be Python",
        says(9, "def f(x):\n    ###", "if x\n    ###"),
    ),
    (
        "marks must be in answer cells",
        says(8, "**Why", "### BEGIN SOLUTION\n### END SOLUTION\n**Why"),
    ),
    ("an exercise must have an answer cell, got a check without one", without(3)),
    ("an exercise must have one check cell, got 2", doubled(4)),
    (
        "its answer cells must be ['answer-03-1'], got ['answer-02-1']",
        grades(3, grade_id="answer-02-1"),
    ),
    ("got ['answer-03-2', 'answer-03-2c']", grades(10, grade_id="answer-03-2c")),
    ("answer-03-1 must be a code cell with", grades(3, grade=True)),
    ("answer-03-1 must be a code cell with", grades(3, schema_version=2)),
    ("check-03-1 must be a code cell with", grades(4, locked=False)),
    ("its check must be check-03-1, got check-03-7", grades(4, grade_id="check-03-7")),
    ('one line check("03.1", answer)', says(4, "03.1", "03.2")),
    ('one line check("03.1", answer)', says(4, "check(", "print(1)\ncheck(")),
    ("check-03-2 must come after the answers", swapped(10, 11)),
    ("Difficulty 2 of 5", says(2, "Difficulty 1 of 5 · ", "")),
    ("Difficulty 2 of 5", says(2, " · about 3 minutes", "")),
    ("Difficulty 2 of 5", says(2, "1 of 5", "6 of 5")),
    ("points must be the difficulty, 1, got points=2", grades(4, points=2)),
    ("only the last exercise may be open", without(4)),
    ("the last exercise must be open, got a check", lambda c: c.__delitem__(slice(13, 16))),
    ("its hints must be folded", says(5, "Hint 1", "Help")),
    ("every <details> must be closed", says(5, "</details>", "</details>\n\n<details>")),
    ("[Solution](../solutions/03_solutions.ipynb#1.-Which-shape?)", says(5, "#1.", "#2.")),
    ("[Solution](../solutions/03_solutions.ipynb#2.-Two-parts)", says(6, "Two", "2")),
    ("its last line must be [Solution]", says(5, "[Solution]", "[Help]")),
    ('the last cells must be progress("03") and ## Next', says(17, "03", "04")),
    ('the last cells must be progress("03") and ## Next', without(18)),
]


@pytest.mark.parametrize(("words", "change"), BROKEN, ids=[f"{i}" for i in range(len(BROKEN))])
def test_an_invalid_source_notebook_is_refused(
    words: str, change: Callable[[list[Cell]], None]
) -> None:
    assert violations(notebook(*MASTER), "03") == []
    cells = copy.deepcopy(MASTER)
    change(cells)
    found = violations(notebook(*cells), "03")
    if "2.-Two-parts" in words:
        words = words.replace("Two", "2")
    assert any(words in what for what in found), found


def unnamed(*numbers: int) -> Callable[[list[Cell]], None]:
    return lambda cells: [cells[number].update(metadata={}) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "seen"),
    [((3,), [BEGIN]), ((4,), ["check(...)"]), ((3, 4), [BEGIN, "check(...)"]), ((10,), [BEGIN])],
)
def test_a_cell_without_its_metadata_is_given_it(numbers: tuple[int, ...], seen: list[str]) -> None:
    cells = copy.deepcopy(MASTER)
    unnamed(*numbers)(cells)
    found = violations(notebook(*cells), "03")
    assert [what.partition(" has no")[0].partition(": ")[2] for what in found] == [
        f"the cell with '{what}'" for what in seen
    ], "this, and no more about its exercise"
    for number, what in zip(numbers, found, strict=True):
        cells[number]["metadata"] = json.loads(what.partition("Give it ")[2])
    assert cells == MASTER


def test_flags_are_shown_as_they_are_pasted() -> None:
    cells = copy.deepcopy(MASTER)
    grades(3, grade=True)(cells)
    (what,) = violations(notebook(*cells), "03")
    shown = json.loads(what.partition("a code cell with ")[2].partition(", got")[0])
    assert shown == ANSWER_FLAGS


def test_a_refused_source_notebook_keeps_its_exercises_and_stops_no_others(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(folder)
    before = folder.made.read_bytes()
    cells = copy.deepcopy(MASTER)
    grades(4, points=2)(cells)
    folder.write(*cells)
    other = folder.source_notebook.with_name("04_solutions.ipynb")
    other.write_text("no notebook")
    folder.list_chapters("03", "04")
    assert not make(folder)
    said = capsys.readouterr().err
    assert (
        "notebooks/solutions/03_solutions.ipynb, exercise 1: points must be the difficulty" in said
    )
    assert "notebooks/solutions/04_solutions.ipynb: the file must be a notebook" in said
    assert folder.made.read_bytes() == before


def test_check_says_what_differs_and_writes_nothing(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not make(folder, "--check")
    assert not folder.made.exists()
    assert "got none. Type: python3 -m tools exercises" in capsys.readouterr().out
    assert make(folder)
    assert make(folder, "--check")
    folder.change_source_notebook()
    before = folder.made.read_bytes()
    capsys.readouterr()
    assert not make(folder, "--check")
    assert "got a different one. Type: python3 -m tools exercises" in capsys.readouterr().out
    assert folder.made.read_bytes() == before
    (folder.made.parent / "05_left_over.ipynb").write_text("{}")
    assert not make(folder, "--check")
    assert "05_left_over.ipynb must have a source notebook, got none" in capsys.readouterr().out


def test_a_source_notebook_needs_its_chapter(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.source_notebook.rename(folder.source_notebook.with_name("05_solutions.ipynb"))
    assert not make(folder)
    said = capsys.readouterr()
    assert "05_solutions.ipynb: course.toml has no such chapter" in said.err
    assert "03_tiny.ipynb: the chapter has no exercises yet" in said.out
    assert not make(folder, "--check")
    assert (
        "05_solutions.ipynb must belong to a chapter in course.toml, got none"
        in capsys.readouterr().out
    )


def test_a_chapter_that_is_not_listed_is_named(folder: Folder) -> None:
    with pytest.raises(Refusal, match=r"must be in course\.toml, got 09\. Add an entry"):
        exercises.main(["03", "09"], folder.root)
    chapters = folder.root / "notebooks"
    refresh.refuse_unlisted(
        [chapters / "03_tiny.ipynb", Path("/elsewhere/09.ipynb")], folder.course
    )
    with pytest.raises(Refusal, match=r"must be in course\.toml, got 09\. Add an entry"):
        refresh.refuse_unlisted([chapters / "09_new.ipynb"], folder.course)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'title = "tiny"\nminutes = 30\n',
            "",
            "course.toml: entry 03 must have all fields, got none for title, minutes.",
        ),
        (
            'number = "03"\n',
            "",
            "course.toml: entry tiny must have all fields, got none for number.",
        ),
        ("minutes = 30\n", "minutes = 30\nlevel = 2\n", "got level in entry 03"),
        ('file = "03_tiny"', 'file = "04_tiny"', "a file must begin with its number"),
    ],
)
def test_an_entry_of_the_list_is_complete(folder: Folder, old: str, new: str, words: str) -> None:
    path = folder.root / "course.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError) as refused:
        _ = folder.course
    assert words in str(refused.value)


# ------------------------------------------------------------------------------ work is never lost

UNCHANGED = [ran, last_cell_ran, saved_by_lab]
CHANGED = [solved, solved_and_saved, solved_and_forgotten, added, removed, moved, made_text]


@pytest.mark.parametrize("change", UNCHANGED, ids=lambda change: change.__name__)
def test_running_and_saving_is_no_change(folder: Folder, change: Callable) -> None:
    assert make(folder)
    edit(folder.made, change)
    folder.change_source_notebook()
    assert make(folder)
    assert "Say it aloud." in folder.made.read_text()
    assert not folder.new.exists()


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: change.__name__)
def test_a_changed_notebook_stays_and_the_newer_one_is_next_to_it(
    folder: Folder, change: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(folder)
    theirs = edit(folder.made, change)
    assert make(folder)
    forgotten = change is solved_and_forgotten  # nothing tells what they began with
    assert folder.new.exists() == forgotten
    assert f"{'newer' if forgotten else 'kept':9}  notebooks/exercises" in capsys.readouterr().out
    folder.change_source_notebook()
    for _ in range(2):
        assert make(folder)
        assert folder.made.read_bytes() == theirs
        assert "Say it aloud." in folder.new.read_text()
        assert "the newer version is 03_exercises.new.ipynb" in capsys.readouterr().out
    folder.write(*MASTER)
    assert make(folder), "the released version again: nothing is new, and nothing is lost"
    assert folder.made.read_bytes() == theirs


def test_work_in_the_notebook_next_to_it_is_also_kept(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(folder)
    theirs = edit(folder.made, solved)
    folder.change_source_notebook()
    assert make(folder)
    newer = edit(folder.new, added)
    cells = copy.deepcopy(MASTER)
    cells[0]["source"] += "\n\nA third version."
    folder.write(*cells)
    assert make(folder)
    assert "blocked" in capsys.readouterr().out
    assert (folder.made.read_bytes(), folder.new.read_bytes()) == (theirs, newer)


@pytest.mark.parametrize("content", [b"", b'{"cells": [', b"[]", b'{"cells": [3]}', b"\xff\xfe"])
def test_a_damaged_notebook_is_kept(folder: Folder, content: bytes) -> None:
    assert make(folder)
    folder.made.write_bytes(content)
    assert make(folder)
    assert folder.made.read_bytes() == content
    assert "Say it." in folder.new.read_text()


def test_a_notebook_that_reads_as_the_new_one_is_replaced(folder: Folder) -> None:
    assert make(folder)
    edit(folder.made, says_aloud := lambda n: says(2, "Say it.", "Say it aloud.")(joined(n)))
    assert says_aloud
    folder.change_source_notebook()
    assert make(folder)
    assert make(folder, "--check")
    assert not folder.new.exists()


def test_a_newer_file_next_to_exercises_needs_no_source_notebook(folder: Folder) -> None:
    folder.made.parent.mkdir()
    folder.new.write_text("{}")
    assert exercises.superfluous(folder.course) == []
    folder.new.with_name("04_exercises.ipynb").write_text("{}")
    assert [p.name for p in exercises.superfluous(folder.course)] == ["04_exercises.ipynb"]
