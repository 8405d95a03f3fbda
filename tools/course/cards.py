"""The structure of exercise notebooks: cards, answer cells, checks, hints.

A section ends at the next `## heading`; an exercise is a section whose heading begins with its
number. Source notebooks and submissions are read with the same code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tools.course.notebook import Cell, Notebook, source

HEADING = re.compile(r"^## (.*\S)\s*$", re.MULTILINE)
NUMBERED = re.compile(r"(\d+)\. (.+)")
CARD_LINE = re.compile(r"^Difficulty ([1-5]) of 5 · about (\d+) minutes?$", re.MULTILINE)

# Replaces a solution in the student's notebook.
STUB = "# your code here\npass"


def grading(cell: Cell) -> dict[str, Any]:
    return cell.get("metadata", {}).get("nbgrader", {})


def grade_id(cell: Cell) -> str:
    return str(grading(cell).get("grade_id", ""))


@dataclass
class Section:
    """The cells from one `## heading` to the next."""

    heading: str
    cells: list[Cell]

    @property
    def number(self) -> int | None:
        found = NUMBERED.fullmatch(self.heading)
        return int(found.group(1)) if found else None

    @property
    def answers(self) -> list[Cell]:
        return [cell for cell in self.cells if grade_id(cell).startswith("answer-")]

    @property
    def checks(self) -> list[Cell]:
        return [cell for cell in self.cells if grade_id(cell).startswith("check-")]

    def text(self, *, after: bool) -> str:
        """Return the prose before the first answer cell (the card), or after it (the hints)."""
        places = [self.cells.index(cell) for cell in self.answers]
        first = places[0] if places else len(self.cells)
        cells = self.cells[first:] if after else self.cells[:first]
        return "\n\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")


def sections(notebook: Notebook) -> list[Section]:
    found = [Section("", [])]
    for cell in notebook["cells"]:
        heading = HEADING.match(source(cell)) if cell["cell_type"] == "markdown" else None
        if heading:
            found.append(Section(heading.group(1), []))
        found[-1].cells.append(cell)
    return found
