"""Search released files for solutions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.course.notebook import parse, source
from tools.course.registry import ROOT, Course
from tools.course.source_notebooks import BEGIN, END, regions
from tools.course.student_copy import Files

# A solution of one line with this length is also found inside of a line. A shorter one, such as
# "scale = 5", may occur by chance, and is found only as a whole line.
LONG = 24
# Files that check answers, and the number of lines of formulas in them.
CHECKERS, FORMULA = ("checks/", "clinic/"), 2


def texts(name: str, content: bytes) -> Iterator[str]:
    """Yield the readable texts of a file: of a notebook, its cells and their text outputs."""
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
    """Return the body of each secret solution, its lines without indentation.

    Code that the course shows openly is not secret: in `utils`, in chapters, and in source
    notebooks outside of solutions, such as the correct half of a class with a bug.
    """
    here = Course.read(root)
    notebooks = (json.loads(path.read_text(encoding="utf-8")) for path in here.source_notebooks())
    cells = [cell for notebook in notebooks for cell in notebook["cells"]]
    given = [source(cell) for cell in cells if not regions(cell)]
    for path in [*here.notebooks(), *sorted((root / "utils").rglob("*.py"))]:
        given += texts(path.name, path.read_bytes())
    shown = "\n\n".join(map(_lines_of, given))
    bodies = (_flat(body) for cell in cells for body in regions(cell))
    return [body for body in bodies if not _contains(shown, body)]


def _lines_of(text: str) -> str:
    return f"\n{_flat(text)}\n"


def _flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _contains(flat: str, body: str) -> bool:
    """Return whether a text of `_lines_of` contains a solution."""
    line = body.removeprefix("return ")
    if "\n" not in body and len(line) >= LONG:
        return line in flat
    return f"\n{body}\n" in flat


def leaks(files: Files, bodies: list[str]) -> Iterator[str]:
    """Yield the solutions, and their marks, found in released files.

    Checks hold correct formulas for comparison, so they are searched only for longer solutions.

    Args:
        files: content by name.
        bodies: the solutions, see `solutions`.
    """
    for name, content in files.items():
        flat = [_lines_of(text) for text in texts(name, content)]
        for mark in (BEGIN, END):
            if any(f"\n{mark}\n" in text for text in flat):
                yield f"{name} with the mark {mark!r}"
        for body in bodies:
            if name.startswith(CHECKERS) and body.count("\n") < FORMULA:
                continue
            if any(_contains(text, body) for text in flat):
                yield f"{name} with the solution that begins {body.splitlines()[0]!r}"
