"""Progress is read from what the checks said in the student's own notebooks."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_up import MASTER, Folder, notebook, printed

from tools.course import progress
from tools.course.cards import STUB
from tools.course.notebook import canonical, source


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """The course with exercises as a student has them: blank."""
    made = Folder.make(tmp_path / "course")
    blank = notebook(*copy.deepcopy(MASTER))
    for cell in blank["cells"]:
        cell["source"] = re.sub(
            r"^( *)### BEGIN SOLUTION\n.*?### END SOLUTION$",
            lambda m: "\n".join(m.group(1) + line for line in STUB.splitlines()),
            source(cell),
            flags=re.DOTALL | re.MULTILINE,
        )
    made.made.parent.mkdir()
    made.made.write_text(canonical(blank))
    return made


def states(notebook: dict[str, Any]) -> list[str]:
    return [exercise.state for exercise in progress.exercises(notebook, "03")]


def test_progress_reads_what_the_checks_said(folder: Folder) -> None:
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
    half = json.loads(folder.made.read_text())
    printed(half["cells"][4], "03.1  right: yes")
    folder.made.write_text(json.dumps(half))
    folder.new.write_text("{}")
    broken = folder.made.with_name("04_broken.ipynb")
    broken.write_text("{")
    odd = copy.deepcopy(half)
    odd["cells"][4]["outputs"] = None
    broken.with_name("03_zero.ipynb").write_text(json.dumps(odd))
    folder.list_chapters("03", "05")
    before = {path: path.read_bytes() for path in folder.root.rglob("*.ipynb")}
    lines = list(progress.report(folder.course))
    assert before == {path: path.read_bytes() for path in folder.root.rglob("*.ipynb")}
    assert len(lines) == 5
    assert re.fullmatch(
        r"03  tiny +\[#-\] +right 1, not run 2, open 3  \(a newer version: \w+.new.ipynb\)",
        lines[0],
    )
    assert lines[1].startswith("03  zero") and lines[1].endswith("its exercise notebook is damaged")
    assert lines[2].startswith("04  broken") and lines[2].endswith(
        "its exercise notebook is damaged"
    )
    assert lines[3].startswith("05  tiny") and lines[3].endswith("is missing")
    assert lines[4] == "\n1 of 2 right, about 15 minutes left"
    half["cells"][14]["source"] = "print(3)"
    folder.made.write_text(json.dumps(half))
    assert list(progress.report(folder.course))[-1] == "\n1 of 2 right, about 10 minutes left"
