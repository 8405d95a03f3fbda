"""The purpose of each cell of a chapter, by a rule that reads only the cell.

Slides and pages use it; nothing is stored in the notebooks.

    title     the first text: `# 03 · ...`
    setup     imports and settings, nothing else
    predict   a guess: a name gets `...`, and the answer follows
    explorer  shows an interactive picture
    picture   shows a picture
    result    shows text or a table
    code      shows nothing: a function, a class, an assignment
    why       text
"""

from __future__ import annotations

import ast
from enum import StrEnum

from tools.course.notebook import Cell, source

# Functions that only draw values computed before.
DRAWING = ("show_", "explore")
ASKING = ("check_guess", "reveal")


class Kind(StrEnum):
    TITLE = "title"
    SETUP = "setup"
    PREDICT = "predict"
    EXPLORER = "explorer"
    PICTURE = "picture"
    RESULT = "result"
    CODE = "code"
    WHY = "why"


def kind(cell: Cell) -> Kind:
    """Return the purpose of a cell."""
    if cell["cell_type"] != "code":
        return Kind.TITLE if source(cell).startswith("# ") else Kind.WHY
    statements = parsed(cell)
    if not cell["outputs"] and _settles(statements):
        return Kind.SETUP
    if any(asks(statement) for statement in statements):
        return Kind.PREDICT
    shown = [output.get("data", {}) for output in cell["outputs"]]
    if any('class="sbs-explorer"' in "".join(data.get("text/html", "")) for data in shown):
        return Kind.EXPLORER
    if any("image/png" in data for data in shown):
        return Kind.PICTURE
    return Kind.RESULT if shown else Kind.CODE


def parsed(cell: Cell) -> list[ast.stmt]:
    """Return the statements of a code cell; none if it is not plain Python."""
    try:
        return ast.parse(source(cell)).body
    except SyntaxError:
        return []


def asks(statement: ast.stmt) -> bool:
    """Return whether a statement is `guess = ...`, which the reader fills in."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Constant) and value.value is ...


def only_draws(cell: Cell) -> bool:
    """Return whether a cell only draws existing values, with literal labels."""
    return all(_draws(statement) or is_literal(statement) for statement in parsed(cell))


def called(statement: ast.stmt) -> str:
    """Return the name of the function if a statement is only its call; else ""."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    found = call.func if isinstance(call, ast.Call) else None
    return found.id if isinstance(found, ast.Name) else ""


def is_literal(statement: ast.stmt) -> bool:
    """Return whether a statement assigns a literal to a name."""
    try:
        ast.literal_eval(statement.value if isinstance(statement, ast.Assign) else "?")
    except (ValueError, SyntaxError):
        return False
    return True


def _settles(statements: list[ast.stmt]) -> bool:
    """Return whether statements begin with an import, and only import or call something."""
    imports = [isinstance(one, ast.Import | ast.ImportFrom) for one in statements]
    calls = [isinstance(getattr(one, "value", None), ast.Call) for one in statements]
    plain = [isinstance(one, ast.Expr) for one in statements]
    found = [i or (c and p) for i, c, p in zip(imports, calls, plain, strict=True)]
    return bool(found) and imports[0] and all(found)


def _draws(statement: ast.stmt) -> bool:
    return called(statement).startswith(DRAWING)
