"""Search what is handed out for solutions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.course.notebook import parse, source
from tools.course.registry import ROOT, Course
from tools.course.source_notebooks import BEGIN, END, regions
from tools.course.student_copy import Files

# A solution of one line is found inside of a line, too, when it is as long as this; a shorter one
# ("scale = 5") may stand elsewhere by chance, and is found as a line of its own.
TELLING = 24
# What judges an answer, and how many lines a formula has there.
JUDGES, FORMULA = ("checks/", "clinic/"), 2


def texts(name: str, content: bytes) -> Iterator[str]:
    """Yield what a reader finds in a file: of a notebook, its cells and what they printed."""
    notebook = parse(content) if name.endswith(".ipynb") else None
    if notebook is None:
        yield content.decode("utf-8", errors="replace")
        return
    for cell in notebook["cells"]:
        yield source(cell)
        for output in cell.get("outputs", []):
            yield "".join(output.get("text", ""))
            yield "".join(output.get("data", {}).get("text/plain", ""))


def solutions(root: Path = ROOT) -> list[str]:
    """Return the body of each solution that is a secret, its lines without indentation.

    What the course shows openly is none: `utils`, the chapters, and what a master gives away, such
    as the right half of a class with a bug.
    """
    here = Course.read(root)
    notebooks = (json.loads(path.read_text(encoding="utf-8")) for path in here.source_notebooks())
    cells = [cell for notebook in notebooks for cell in notebook["cells"]]
    given = [source(cell) for cell in cells if not regions(cell)]
    for path in [*here.notebooks(), *sorted((root / "utils").rglob("*.py"))]:
        given += texts(path.name, path.read_bytes())
    shown = "\n\n".join(map(_lines_of, given))
    bodies = (_flat(body) for cell in cells for body in regions(cell))
    return [body for body in bodies if not _stands_in(body, shown)]


def _lines_of(text: str) -> str:
    return f"\n{_flat(text)}\n"


def _flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _stands_in(body: str, flat: str) -> bool:
    """Return whether a solution stands in a text of `_lines_of`."""
    telling = body.removeprefix("return ")
    if "\n" not in body and len(telling) >= TELLING:
        return telling in flat
    return f"\n{body}\n" in flat


def leaks(files: Files, bodies: list[str]) -> Iterator[str]:
    """Yield where a solution, or a mark of one, stand in what is handed out.

    What judges holds right formulas to compare with, so it is searched only for solutions that are
    longer than such a formula.

    Args:
        files: content by name.
        bodies: the solutions, see `solutions`.
    """
    for name, content in files.items():
        flat = [_lines_of(text) for text in texts(name, content)]
        for mark in (BEGIN, END):
            if any(f"\n{mark}\n" in text for text in flat):
                yield f"{name} holds the mark {mark!r}"
        for body in bodies:
            if name.startswith(JUDGES) and body.count("\n") < FORMULA:
                continue
            if any(_stands_in(body, text) for text in flat):
                yield f"{name} holds the solution that begins with {body.splitlines()[0]!r}"
