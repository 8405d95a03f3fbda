"""Make copies of the notebooks for Google Colab, each with a first cell that prepares everything.

With the address of a repository, the cell clones the course; without one, it unpacks the zip of the
course, which you upload first.

The copies of chapters and exercises are written to build/colab/, with their pictures inside. Upload
one to Colab, or keep them in a branch: colab.research.google.com opens a notebook of a public
repository by its address.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tools.commands import Refusal, parse_arguments
from tools.course.files import name_of
from tools.course.local_changes import remember_beginning
from tools.course.notebook import COURSE_KEY, Notebook, source
from tools.course.registry import ROOT, course

OUT = ROOT / "build" / "colab"
PICTURE = re.compile(r"(!\[[^\]]*\])\((?!https?:|data:)([^)\s]+\.svg)\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)[^)\s]+\)")
WORDS = (
    "**In Colab, run this cell first**, and again after every restart of the session. It downloads "
    "the course and its packages in about a minute; the session needs no restart."
)
CLONE = "[ -d attention ] || git clone --quiet --depth 1 {address} attention"
UNPACK = "[ -d attention ] || unzip -q attention-shape-by-shape-*.zip"
BY_HAND = (
    " Before that, upload the zip of the course: Files (the folder icon on the left), Upload; it "
    "takes a moment to appear in the list."
)


def first_cell(address: str | None) -> str:
    """Return the code that prepares a session for the course.

    Args:
        address: of a public git repository; None for an uploaded zip.
    """
    fetch = CLONE.format(address=address) if address else UNPACK
    return f"%cd -q /content\n!{fetch}\n%run attention/tools/in_colab.py"


def for_colab(notebook: Notebook, folder: Path, address: str | None) -> Notebook:
    """Return a copy of a notebook with the first cell, and its pictures inside.

    Args:
        notebook: a chapter, or exercises.
        folder: of the notebook; the addresses of its pictures are relative to it.
        address: as above.
    """
    made = copy.deepcopy(notebook)
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            text = PICTURE.sub(lambda found: _inside(found, folder), source(cell))
            # A copy has no files next to it, so links to them become text.
            cell["source"] = LINK.sub(r"*\1*", text).splitlines(keepends=True)
    words = WORDS + ("" if address else BY_HAND)
    made["cells"][:0] = [
        {"cell_type": "markdown", "id": "colab-words", "metadata": {}, "source": [words]},
        {
            "cell_type": "code",
            "execution_count": None,
            "id": "colab-first",
            "metadata": {},
            "outputs": [],
            "source": first_cell(address).splitlines(keepends=True),
        },
    ]
    if COURSE_KEY in made["metadata"]:
        remember_beginning(made)  # so that the grader recognizes changes to the copy
    return made


def _inside(found: re.Match[str], folder: Path) -> str:
    content = base64.b64encode((folder / found[2]).read_bytes()).decode()
    return f"{found[1]}(data:image/svg+xml;base64,{content})"


def main(arguments: Sequence[str] = ()) -> None:
    address = parse_arguments("colab", arguments).address
    if address and (urlsplit(address).scheme not in ("http", "https") or " " in address):
        raise Refusal(
            f"FROM must begin with https://, got {address!r}. Write an address for git clone."
        )
    OUT.mkdir(parents=True, exist_ok=True)
    for chapter in course().chapters:
        for path in (chapter.notebook, chapter.exercises):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            text = json.dumps(
                for_colab(notebook, path.parent, address), indent=1, ensure_ascii=False
            )
            (OUT / path.name).write_text(text + "\n", encoding="utf-8")
    print(f"{name_of(OUT)}: {2 * len(course().chapters)} notebooks", flush=True)
