"""Make exercise notebooks from source notebooks, with nbgrader: instructors only."""

from __future__ import annotations

import copy
import json
import re

from tools.commands import CALL, Refusal
from tools.course.cards import STUB
from tools.course.local_changes import remember_beginning
from tools.course.notebook import Notebook, canonical, source
from tools.course.source_notebooks import SOLUTION_LINK

TITLE = re.compile(r"\A(# \d\d) Solutions: ")


def generate(source_notebook: Notebook, solution_line: str | None = None) -> Notebook:
    """Return the student's notebook of a valid source notebook.

    Args:
        source_notebook: the parsed source notebook; it is not changed.
        solution_line: replaces the links to the solutions; None keeps the links.
    Returns:
        The notebook without solutions, outputs and counts, with its own fingerprint.
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
        raise Refusal(
            f"nbgrader must be installed to make the exercises, got no module {error.name}. "
            f"Type: {CALL} install dev",
            status=1,
        ) from None

    made = copy.deepcopy(source_notebook)
    title = source(made["cells"][0])
    # Only the heading distinguishes the student's notebook from the one with solutions.
    made["cells"][0]["source"] = TITLE.sub(r"\1 Exercises: ", title)
    for cell in made["cells"]:
        if solution_line is not None and cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION_LINK.sub(lambda _: solution_line, source(cell))
    node = nbformat.reads(json.dumps(made), as_version=4)
    # Preprocessors of nbgrader's generate_assignment that apply to these notebooks.
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
        # LockCells locks only cells with a grade_id; also lock cards and hints.
        if cell["cell_type"] == "markdown":
            cell["metadata"] |= {"deletable": False, "editable": False}
    remember_beginning(notebook)
    return json.loads(canonical(notebook))
