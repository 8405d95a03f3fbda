"""Questions of shape that a page of the site checks: predictions and the first exercise."""

from __future__ import annotations

import ast
import json
import re
from hashlib import sha256

from tools.course.cards import grade_id
from tools.course.notebook import Cell
from tools.course.registry import Chapter
from tools.course.source_notebooks import regions

# A folded shape, of which no guess was made. website/static/predictions.js puts a field above it.
FOLDED_SHAPE = re.compile(r"<details>(?=<summary>no guess yet[^<]*</summary>shape \()")

# What a = (5, 12 * 16, 40) is made of.
LITERAL = (
    *(ast.Module, ast.Assign, ast.Name, ast.Tuple, ast.Constant, ast.BinOp),
    *(ast.operator, ast.expr_context),
)


def marked(html: str, name: str) -> str:
    """Return the HTML of an output in which a folded shape has the name of its prediction.

    Args:
        html: of a stored output.
        name: number of the chapter and id of the cell.
    """
    return FOLDED_SHAPE.sub(f'<details data-guess="{name}">', html)


def first_answers(chapter: Chapter) -> dict[str, tuple[int, ...] | int]:
    """Return the shapes and numbers that the first exercise of a chapter asks for, by name.

    It is empty if the exercise asks for something else.
    """
    cells = json.loads(chapter.source_notebook.read_text("utf-8"))["cells"]
    bodies = [body for c in cells if grade_id(c) == answer_id(chapter) for body in regions(c)]
    tree = ast.parse("\n".join(bodies))
    if not all(isinstance(node, LITERAL) for node in ast.walk(tree)):
        return {}
    found: dict[str, tuple[int, ...] | int] = {}
    exec(compile(tree, chapter.source_notebook.name, "exec"), {}, found)
    return found


def answer_id(chapter: Chapter) -> str:
    """Return the grade_id of the cell in which the first exercise of a chapter is answered."""
    return f"answer-{chapter.number}-1"


def first_questions(chapter: Chapter) -> list[Cell]:
    """Return a cell with a place for each answer of the first exercise, if it asks for shapes.

    It holds a hash of the answer, not the answer: a page is handed out without solutions.
    """
    places = []
    for name, value in first_answers(chapter).items():
        asked = f"{chapter.number}.1 {name}"
        sizes = value if isinstance(value, tuple) else (value,)
        axes = f"{len(sizes)} {'axis' if len(sizes) == 1 else 'axes'}"
        expected = "one number" if isinstance(value, int) else axes
        digest = sha256(f"{asked} {','.join(map(str, sizes))}".encode()).hexdigest()
        places.append(
            f'<div data-ask="{asked}" data-expected="{expected}" data-hash="{digest}"></div>'
        )
    cell = {"cell_type": "markdown", "id": "ask", "metadata": {}, "source": "\n".join(places)}
    return [cell] if places else []
