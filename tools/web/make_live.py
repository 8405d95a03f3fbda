"""The live page: models of the course that run in the browser, in one HTML file.

Its sources are in website/live; esbuild makes one script of them, since a browser loads no modules
from a folder. Weights, test digits and words of the clinic's catalogue travel inside the page.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from attention_clinic import BUGS
from tools.course.registry import Course
from utils.data import date_forms, date_vocabularies, load_digits, load_grammar, resource

LIVE = Path("website") / "live"
PAGE = "live.html"
MISSING = (
    f"{PAGE} needs esbuild, got none. Install Node.js, then type: npm ci --prefix website/live"
)
# The sections of the page that show a chapter's model: its number, the section, the invitation.
CHAPTERS = {
    "07": ("digits", "draw a digit for this model, and see every tensor"),
    "08": ("break", "put a bug into a running model, or find one that the page hides"),
    "11": ("dates", "let this model translate a date that you type"),
    "12": ("words", "see this model choose the next word"),
}


def esbuild(root: Path) -> Path | None:
    """Return the installed esbuild, or None.

    Args:
        root: of the course.
    """
    found = root / LIVE / "node_modules" / ".bin" / "esbuild"
    return found if found.exists() and shutil.which("node") else None


def live_page(here: Course) -> str:
    """Return the page.

    Args:
        here: the course.
    Raises:
        ValueError: esbuild is not installed, or refuses the scripts.
    """
    live = here.root / LIVE
    addresses = {
        f"{{{{chapter{chapter.number}}}}}": f"{chapter.file}.html" for chapter in here.chapters
    }
    parts = {
        "{{style}}": (live / "page.css").read_text("utf-8"),
        "{{script}}": _script(here.root),
        # a closing tag would end the element
        "{{data}}": json.dumps(_data(here), ensure_ascii=False).replace("</", "<\\/"),
        **addresses,
    }
    page = (live / "page.html").read_text("utf-8")
    for place, content in parts.items():
        page = page.replace(place, content)
    return page


def _script(root: Path) -> str:
    """Return all scripts as one classic script."""
    program = esbuild(root)
    if program is None:
        raise ValueError(MISSING)
    start = root / LIVE / "page.js"
    call = [str(program), str(start), "--bundle", "--format=iife", "--minify", "--charset=utf8"]
    made = subprocess.run(call, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ValueError(f"{PAGE}: esbuild must accept website/live, got {made.stderr}. Fix it.")
    return made.stdout.replace("</script", "<\\/script")


def _data(here: Course) -> dict[str, Any]:
    """Return all that the page carries: weights, digits, languages, words of the catalogue."""
    _, (images, labels) = load_digits()
    source, target = date_vocabularies()
    grammar = load_grammar()
    weights = {
        name: base64.b64encode(resource(f"{name}_model.safetensors").read_bytes()).decode()
        for name in ("digits", "date", "sentence")
    }
    ink = bytes((images * 16).round().int().flatten().tolist())
    return {
        **weights,
        "images": base64.b64encode(ink).decode(),
        "labels": labels.tolist(),
        "chapters": {chapter.number: f"{chapter.file}.html" for chapter in here.chapters},
        "catalogue": {
            id: {"words": bug.words, "fix": bug.fix, "chapter": bug.chapter}
            for id, bug in BUGS.items()
        },
        "dates": {"source": source.symbols, "target": target.symbols, "forms": date_forms()},
        "grammar": {
            "words": grammar.vocabulary.symbols,
            "ids": grammar.ids.tolist(),
            "probabilities": grammar.probabilities.tolist(),
        },
    }
