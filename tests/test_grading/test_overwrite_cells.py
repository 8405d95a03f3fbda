"""Restored checks and metadata in submitted notebooks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.course import colab
from tools.course.cards import grade_id
from tools.course.local_changes import beginning, fingerprint
from tools.course.make_exercises import generate
from tools.course.registry import course
from tools.grading import overwrite_cells
from tools.grading.made_up_submissions import (
    Assignment,
    assignment_of,
    code_cell,
    inserted,
    is_check,
    raw,
    without,
)
from tools.grading.notebook_file import tidy
from tools.grading.suspicion import suspicions

TIMEOUT = 600  # seconds; no result depends on it


@pytest.fixture(scope="module")
def chapter() -> Assignment:
    return assignment_of("03")


@pytest.fixture(scope="module")
def in_a_clone() -> dict:
    """Return the notebook from notebooks/exercises, with links to the solutions."""
    return generate(json.loads(course()["03"].source_notebook.read_text(encoding="utf-8")))


def test_a_released_notebook_contains_no_work(chapter, in_a_clone):
    assert "your instructor has it" in raw(chapter.blank).decode()
    assert "your instructor has it" not in raw(in_a_clone).decode()
    for handed_in in (chapter.blank, in_a_clone):
        for handed_out in (chapter.blank, in_a_clone):
            done = overwrite_cells.overwrite_cells(tidy(raw(handed_in)), handed_out)
            assert not done.outside and not done.remarks
            for original in overwrite_cells.original_exercises(handed_out):
                answers = [done.notebook["cells"][place] for place in done.own[original.id]]
                assert [cell["source"] for cell in answers] == original.stubs


@pytest.mark.parametrize("address", [None, "https://github.com/you/attention"])
@pytest.mark.parametrize("is_bare", [False, True], ids=["as it is", "saved without metadata"])
def test_in_a_copy_for_colab_only_the_students_work_counts(chapter, in_a_clone, address, is_bare):
    folder = course()["03"].exercises.parent
    for handed_out in (in_a_clone, chapter.blank):
        made = colab.for_colab(handed_out, folder, address)
        answer = next(cell for cell in made["cells"] if grade_id(cell) == "answer-03-2")
        answer["source"] = chapter.solutions["answer-03-2"].strip()
        for cell in made["cells"] if is_bare else []:
            cell["metadata"] = {"id": "a1b2c3"}
        handed_in = tidy(raw(made))
        given = {overwrite_cells.source(c).strip() for c in chapter.blank["cells"]}
        assert not suspicions(handed_in, given)
        done = overwrite_cells.overwrite_cells(handed_in, chapter.blank)
        assert not done.outside
        lost = ["the grading metadata is missing: answers are identified by the headings"]
        assert done.remarks == (lost if is_bare else [])
        answers = [done.notebook["cells"][place]["source"] for place in done.own["03.2"]]
        assert answers == [chapter.solutions["answer-03-2"].strip()]
        sources = [cell["source"] for cell in done.notebook["cells"] if cell["source"]]
        assert sources[1] == overwrite_cells.source(chapter.blank["cells"][1])


def test_an_unsolved_copy_for_colab_is_untouched(chapter):
    made = raw(colab.for_colab(chapter.blank, course()["03"].exercises.parent, None))
    assert fingerprint("x.ipynb", made) == beginning("x.ipynb", made)


def test_long_cells_do_not_delay_grading():
    """Quadratic time would be a day for such a cell."""
    code = """
from tools.grading.overwrite_cells import overwrite_cells
for text in ("[", "[](", "[Solution](", "## " + " " * 1000):
    text = text * (1_000_000 // len(text)) + "x"
    cells = [{"cell_type": "markdown", "metadata": {}, "source": text}]
    overwrite_cells({"cells": cells}, {"cells": [], "metadata": {}})
"""
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, cwd=course().root, timeout=TIMEOUT)


def test_an_edited_hint_is_work(chapter):
    notebook = json.loads(raw(chapter.blank))
    hints = [c for c in notebook["cells"] if "Hint 1" in "".join(c["source"])]
    hints[0]["source"] = "".join(hints[0]["source"]) + "\n\nI think that it is the keys."
    done = overwrite_cells.overwrite_cells(tidy(raw(notebook)), chapter.blank)
    assert len(done.own["03.1"]) == 2


def test_cells_before_and_after_the_exercises_are_the_students(chapter):
    notebook = inserted(chapter.solved([]), "mine = 1")
    notebook["cells"].append(code_cell("mine = 2"))
    done = overwrite_cells.overwrite_cells(tidy(raw(notebook)), chapter.blank)
    cells = [done.notebook["cells"][place]["source"] for place in done.outside]
    assert cells == ["mine = 1", "mine = 2"]


def test_a_check_comes_after_every_answer_of_its_exercise(chapter):
    for left_out in (is_check, lambda cell: cell["cell_type"] != "code"):
        notebook = tidy(raw(without(chapter.solved(), left_out)))
        done = overwrite_cells.overwrite_cells(notebook, chapter.blank).notebook["cells"]
        names = [grade_id(cell) for cell in done if grade_id(cell)]
        assert names[:7] == [
            *("answer-03-1", "check-03-1", "answer-03-2", "check-03-2"),
            *("answer-03-3", "answer-03-3b", "check-03-3"),
        ]
    untouched = overwrite_cells.overwrite_cells(tidy(raw(chapter.blank)), chapter.blank)
    same = [(c["cell_type"], c["source"]) for c in untouched.notebook["cells"]]
    assert same == [(c["cell_type"], "".join(c["source"])) for c in chapter.blank["cells"]]
    assert not untouched.remarks
