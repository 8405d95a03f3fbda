"""Read the file of a submitted notebook, whatever it contains, and identify its chapter.

The first cell of a copy for Colab (tools/course/colab.py) is removed: it would install the course.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tools.course.cards import grade_id
from tools.course.notebook import Cell, Notebook, source

GRADE_ID = re.compile(r"(answer|check)-(\d\d)-(\d+)([b-z]?)")
CALL = re.compile(r"""^[ \t]*check\(\s*["'](\d\d)\.(\d+)["']""", re.MULTILINE)
COLAB_WORDS = "**In Colab, run this cell first**"
COLAB_CODE = re.compile(
    r"^(?:%cd -q /content|!\[ -d attention \] \|\| .*|%run attention/tools/in_colab\.py)[ \t]*\n?",
    re.MULTILINE,
)
MAX_CELLS = 2000


class Unreadable(Exception):
    """The file is not a notebook; the text says why."""


def tidy(content: bytes) -> Notebook:
    """Read a notebook, and keep what grading needs: kinds, sources, grade_ids.

    Args:
        content: the bytes of the file.

    Raises:
        Unreadable: it is not a notebook.
    """
    if not content.strip():
        raise Unreadable("the file is empty")
    try:
        raw = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        words = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON, or cut off"
        raise Unreadable(f"the file is not a notebook: {words}") from None
    if not isinstance(raw, dict):
        raise Unreadable("the file is not a notebook: JSON, but no cells")
    cells = raw.get("cells")
    if cells is None and isinstance(raw.get("worksheets"), list):  # the format before 2015
        cells = [c for sheet in raw["worksheets"] for c in (sheet or {}).get("cells", [])]
    if not isinstance(cells, list):
        raise Unreadable("the file is not a notebook: JSON, but no cells")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"the notebook has {len(cells)} cells, more than {MAX_CELLS}")
    return {
        "cells": [_cell(cell, index) for index, cell in enumerate(cells) if isinstance(cell, dict)]
    }


def _cell(raw: dict[str, Any], index: int) -> Cell:
    text = raw.get("source", raw.get("input", ""))
    if isinstance(text, list):
        text = "".join(part for part in text if isinstance(part, str))
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    kind = raw.get("cell_type")
    # JSON may hold half of a surrogate pair, which cannot be written to a file.
    text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""
    text = text.replace("\r\n", "\n")
    if kind == "code":
        text = COLAB_CODE.sub("", text)
    elif text.startswith(COLAB_WORDS):
        text = ""
    return {
        "cell_type": kind if kind in ("code", "markdown", "raw") else "markdown",
        "id": f"cell-{index}",
        "metadata": {"nbgrader": {"grade_id": name}} if isinstance(name, str) else {},
        "source": text,
    }


def chapter_of(notebook: Notebook) -> str | None:
    """Return the chapter of the exercises, by grade_ids, then by calls of check."""
    found: dict[str, int] = {}
    for cell in notebook["cells"]:
        match = GRADE_ID.fullmatch(grade_id(cell))
        if match:
            found[match.group(2)] = found.get(match.group(2), 0) + 1000
        for call in CALL.finditer(source(cell)):
            found[call.group(1)] = found.get(call.group(1), 0) + 1
    return max(sorted(found), key=lambda chapter: found[chapter]) if found else None
