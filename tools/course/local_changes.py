"""Detect what a student changed in released files, and never overwrite it.

`make exercises` and `make update` bring newer files to a folder with a student's work. The released
version is known by a fingerprint: a sha256 of a file's text or, for a notebook, of the types and
sources of its cells, so that running a notebook is not a change and writing in it is one. An
exercise notebook stores the fingerprint of its released version in its metadata; for all other
files it is in MANIFEST.json of a release, or follows from the commit of a clone.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tools.course.files import name_of, newer_file, write
from tools.course.notebook import COURSE_KEY, Notebook, parse, source
from tools.course.registry import ROOT

MANIFEST = "MANIFEST.json"
BEGAN_AS = "began_as"

# Results of `put`, the first words of its lines.
SAME, WRITTEN, KEPT, NEWER, BLOCKED = "unchanged", "written", "kept", "newer", "blocked"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sources(notebook: Notebook) -> list[tuple[str, str]]:
    """Return the types and sources of non-empty cells; JupyterLab adds an empty one at the end."""
    texts = (
        (cell["cell_type"], source(cell).replace("\r\n", "\n").strip("\n"))
        for cell in notebook["cells"]
    )
    return [(kind, text) for kind, text in texts if text.strip()]


def notebook_fingerprint(notebook: Notebook) -> str:
    return _digest(json.dumps(sources(notebook)).encode())


def fingerprint(name: str, content: bytes) -> str:
    """Return the sha256 of a file's content: for a notebook, of its cells' sources.

    Args:
        name: the file's name; its suffix is the type.
        content: of the file. An unreadable notebook counts as bytes.
    """
    notebook = parse(content) if name.endswith(".ipynb") else None
    if notebook is not None:
        return notebook_fingerprint(notebook)
    # Git on Windows may change line endings.
    return _digest(content if b"\0" in content else content.replace(b"\r\n", b"\n"))


def remember_beginning(notebook: Notebook) -> None:
    """Store the fingerprint of a notebook in its metadata, before a student gets it."""
    notebook.setdefault("metadata", {})[COURSE_KEY] = {BEGAN_AS: notebook_fingerprint(notebook)}


def beginning(name: str, content: bytes) -> str | None:
    """Return the fingerprint of the released version that a notebook stores; None without one."""
    notebook: Any = parse(content) if name.endswith(".ipynb") else None
    try:
        return notebook["metadata"][COURSE_KEY][BEGAN_AS]
    except (TypeError, KeyError):
        return None


def changed(path: Path, began: str | None) -> bool:
    """Return whether a file differs from its released version; True if that is unknown.

    Args:
        path: an existing file.
        began: the fingerprint of the released version, None if unknown.
    """
    content = path.read_bytes()
    return fingerprint(path.name, content) not in (began, beginning(path.name, content))


def put(path: Path, new: bytes, began: str | None = None) -> str:
    """Write a newer version of a file, next to the old one if a student changed it.

    A second call with the same bytes changes nothing.

    Args:
        path: of the file; it may be missing.
        new: the newer version.
        began: fingerprint of the released version. Without it, an exercise notebook has its own;
            any other file counts as changed.
    Returns:
        "unchanged" (it was up to date), "written", "kept" (the student changed it, and there is no
        newer version), "newer" (the newer version is next to it), or "blocked" (the student also
        changed the file next to it).
    """
    wanted = fingerprint(path.name, new)
    if path.exists():
        old = path.read_bytes()
        if fingerprint(path.name, old) != wanted and changed(path, began):
            if wanted == (began or beginning(path.name, old)):
                return KEPT
            there = newer_file(path)
            is_new = there.exists() and fingerprint(there.name, there.read_bytes()) == wanted
            if there.exists() and not is_new and changed(there, began):
                return BLOCKED
            write(there, new)
            return NEWER
    path.parent.mkdir(parents=True, exist_ok=True)
    return WRITTEN if write(path, new) else SAME


REASONS = {
    KEPT: "you changed it, and there is no newer version",
    NEWER: "you changed it; the newer version is {new}",
    BLOCKED: "you changed it and {new}. Rename {new}, then run it again",
}


def say(state: str, path: Path, root: Path = ROOT) -> None:
    """Print the result of `put`, one line."""
    reason = REASONS.get(state, "").format(new=newer_file(path).name)
    print(f"{state:9}  {name_of(path, root)}{': ' if reason else ''}{reason}", flush=True)
