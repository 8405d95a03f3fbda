"""Make a student's notebook of exercises from its master, with nbgrader: instructors only."""

from __future__ import annotations

import copy
import json
import re

from tools.course.cards import STUB
from tools.course.local_changes import remember_beginning
from tools.course.notebook import Notebook, canonical, source
from tools.course.source_notebooks import SOLUTION_LINK

TITLE = re.compile(r"\A(# \d\d) Solutions: ")


def generate(master: Notebook, solution_line: str | None = None) -> Notebook:
    """Make the notebook of the student from a master that keeps the rules.

    Args:
        master: the parsed master; it stays as it is.
        solution_line: what stands in place of the links to the solutions; None keeps the links.
    Returns:
        The notebook without solutions, outputs and counts, with the fingerprint of itself.
    """
    try:
        import nbformat
        from nbgrader.preprocessors import (
            CheckCellMetadata,
            ClearOutput,
            ClearSolutions,
            ComputeChecksums,
            LockCells,
        )
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"exercises: nbgrader makes the notebooks, got no module {error.name}. "
            "Type: make exercises, which installs it (requirements-grading.txt)"
        ) from None

    master = copy.deepcopy(master)
    title = source(master["cells"][0])
    # Tabs, headings and links tell the student's notebook from the one with the solutions.
    master["cells"][0]["source"] = TITLE.sub(r"\1 Exercises: ", title)
    for cell in master["cells"]:
        if solution_line is not None and cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION_LINK.sub(lambda _: solution_line, source(cell))
    node = nbformat.reads(json.dumps(master), as_version=4)
    # nbgrader's generate_assignment uses these and, for what the masters do not have, some more.
    for step in (
        LockCells(),
        ClearSolutions(code_stub={"python": STUB}),
        ClearOutput(),
        ComputeChecksums(),
        CheckCellMetadata(),
    ):
        node, _ = step.preprocess(node, {})
    notebook = json.loads(nbformat.writes(node))
    for cell in notebook["cells"]:
        # LockCells knows only cells with a grade_id. Cards and hints are nobody's to edit either.
        if cell["cell_type"] == "markdown":
            cell["metadata"] |= {"deletable": False, "editable": False}
    remember_beginning(notebook)
    return json.loads(canonical(notebook))
