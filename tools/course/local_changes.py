"""Tell what a student changed since it was handed out, and never writes over it.

`make exercises` and `make update` both bring newer files to where a student worked. What was
handed out is known by a fingerprint: a sha256 of the text of a file or, for a notebook, of the
types and sources of its cells, so that running a notebook is no change and writing into it is one.
An exercise notebook carries the fingerprint of its beginning in its own metadata; for all other
files it stands in MANIFEST.json, which a release holds, or follows from the commit of a clone.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tools.course.files import beside, name_of, write
from tools.course.notebook import COURSE_KEY, Notebook, parse, source
from tools.course.registry import ROOT

MANIFEST = "MANIFEST.json"
BEGAN_AS = "began_as"

# What putting a newer file in place may come to; the first word of the line that says so.
SAME, WRITTEN, KEPT, BESIDE, BLOCKED = "unchanged", "written", "kept", "beside", "blocked"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sources(notebook: Notebook) -> list[tuple[str, str]]:
    """List the cells that say something: JupyterLab adds an empty one when the last is run."""
    texts = (
        (cell["cell_type"], source(cell).replace("\r\n", "\n").strip("\n"))
        for cell in notebook["cells"]
    )
    return [(kind, text) for kind, text in texts if text.strip()]


def notebook_fingerprint(notebook: Notebook) -> str:
    return _digest(json.dumps(sources(notebook)).encode())


def fingerprint(name: str, content: bytes) -> str:
    """Return the sha256 of what counts in a file: for a notebook, of its cells' sources.

    Args:
        name: the file's name; its ending tells what it is.
        content: what stands in the file. A notebook that cannot be read is taken as bytes.
    """
    notebook = parse(content) if name.endswith(".ipynb") else None
    if notebook is not None:
        return notebook_fingerprint(notebook)
    # Git on Windows may have changed the ends of lines.
    return _digest(content if b"\0" in content else content.replace(b"\r\n", b"\n"))


def remember_beginning(notebook: Notebook) -> None:
    """Note in the metadata of a notebook how it is now, before a student has it."""
    notebook.setdefault("metadata", {})[COURSE_KEY] = {BEGAN_AS: notebook_fingerprint(notebook)}


def beginning(name: str, content: bytes) -> str | None:
    """Return the fingerprint that a notebook carries of its beginning, if it carries one."""
    notebook: Any = parse(content) if name.endswith(".ipynb") else None
    try:
        return notebook["metadata"][COURSE_KEY][BEGAN_AS]
    except (TypeError, KeyError):
        return None


def changed(path: Path, began: str | None) -> bool:
    """Return whether a file is other than it was handed out; when that is unknown, it is.

    Args:
        path: a file that is there.
        began: the fingerprint of what was handed out, None if it is not known.
    """
    content = path.read_bytes()
    return fingerprint(path.name, content) not in (began, beginning(path.name, content))


def put(path: Path, new: bytes, began: str | None = None) -> str:
    """Bring a newer version of a file to its place, or beside it where a student changed it.

    Calling it again with the same bytes changes nothing more.

    Args:
        path: where the file belongs; need not be there.
        new: the newer version.
        began: fingerprint of the version that was handed out. Without it an exercise notebook is
            asked for its own; a file of which nothing is known counts as changed.
    Returns:
        "unchanged" (it was there already), "written", "kept" (changed by the student, and nothing
        is new), "beside" (the same, and the new one stands beside it), or "blocked" (the student
        changed what stands beside it, too).
    """
    wanted = fingerprint(path.name, new)
    if path.exists():
        old = path.read_bytes()
        if fingerprint(path.name, old) != wanted and changed(path, began):
            if wanted == (began or beginning(path.name, old)):
                return KEPT
            there = beside(path)
            is_new = there.exists() and fingerprint(there.name, there.read_bytes()) == wanted
            if there.exists() and not is_new and changed(there, began):
                return BLOCKED
            write(there, new)
            return BESIDE
    path.parent.mkdir(parents=True, exist_ok=True)
    return WRITTEN if write(path, new) else SAME


SAYS = {
    KEPT: "you changed it, and nothing is new",
    BESIDE: "you changed it; the new one is {new}",
    BLOCKED: "you changed both it and {new}. Rename the second, then call again",
}


def say(state: str, path: Path, root: Path = ROOT) -> None:
    """Print what `put` did with a file, one line."""
    reason = SAYS.get(state, "").format(new=beside(path).name)
    print(f"{state:9}  {name_of(path, root)}{': ' if reason else ''}{reason}", flush=True)
