"""A notebook as a page: the same cells, with pictures, explorers and links for the site."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from tools.course import outputs
from tools.course.cards import grade_id
from tools.course.notebook import Cell, Notebook, source
from tools.course.registry import Chapter
from tools.course.templates import rendered
from tools.web import predictions
from utils.draw.explorer import UNSEEN

HEADING = re.compile(r"^(##+) (.+)$", re.MULTILINE)
NUMBERED = re.compile(r"(\d+)\. ")
SOLUTION = re.compile(r"\n*\[Solution\]\(\.\./solutions/[^)]*\)\n*")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
WITHOUT_SCRIPTS = "The explorer needs JavaScript; the still picture next to it shows the same."
# The summary of a guess that was not made. On the site no code runs: one click shows the answer.
ASKED = re.compile(r"<summary>no (?:guess|answer) yet[^<]*</summary>")
TO_OPEN = "<summary>Predict first, then open the answer</summary>"
# One style sheet and one script of the site serve all explorers; their data are JSON in the page.
STYLE_OR_SCRIPT = re.compile(r"<style>.*?</style>|<script>.*?</script>", re.DOTALL)


@dataclass
class Figures:
    """The pictures of all pages, by the names of their files.

    Args:
        prefix: their folder, seen from a page at the top of the site.
    """

    prefix: str = "_static/figures/"
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, content: bytes) -> str:
        self.files[name] = content
        return self.prefix + name


def anchor(chapter: str, place: int) -> str:
    """Return the anchor of a section; place counts the headings of a chapter from 1."""
    return f"ch{chapter}-{place}"


def chapter_page(chapter: Chapter, figures: Figures, link: Callable[[str], str | None]) -> Notebook:
    """Return the page of a chapter.

    Args:
        chapter: of the course.
        figures: collects the pictures.
        link: returns the address of a path of the course on the site, None if it has none.
    """
    notebook = json.loads(chapter.notebook.read_text("utf-8"))
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text, count = _anchored(linked(source(cell), "notebooks", link), chapter.number, count)
            cells.append({**cell, "source": text})
        else:
            place, name = f"{chapter.number}-{len(cells)}", f"{chapter.number} {cell['id']}"
            shown = [_output(one, place, name, figures) for one in cell["outputs"]]
            cells.append({**cell, "outputs": shown})
    folder = f"```{{toctree}}\n:hidden:\n\nexercises/{chapter.exercises.stem}\n```\n"
    cells.append({"cell_type": "markdown", "id": "exercises", "metadata": {}, "source": folder})
    return {**notebook, "cells": cells}


def exercises_page(chapter: Chapter, link: Callable[[str], str | None]) -> Notebook:
    """Return the page of a chapter's exercises: cards, stubs, checks and hints, no solutions.

    Args:
        chapter: of the course.
        link: see `chapter_page`.
    """
    notebook = json.loads(chapter.exercises.read_text("utf-8"))
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = SOLUTION.sub("\n", source(cell))
            cell = {**cell, "source": linked(text, "notebooks/exercises", link)}
        cells.append(cell)
        if grade_id(cell) == predictions.answer_id(chapter):
            cells += predictions.first_questions(chapter)
    work = (
        ":::{note}\nThis page checks exercise 1 only. To work, open "
        f"`notebooks/exercises/{chapter.exercises.name}` in your copy of the course: there the "
        "checks answer. [How to get it](../docs/install.md).\n:::"
    )
    note = {"cell_type": "markdown", "id": "how-to-work", "metadata": {}, "source": work}
    return {**notebook, "cells": [cells[0], note, *cells[1:]]}


def _anchored(text: str, chapter: str, count: int) -> tuple[str, int]:
    """Return a text with an anchor before each heading, and the number of headings so far."""

    def mark(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"({anchor(chapter, count)})=\n{match[0]}"

    parts = FENCE.split(text)
    return "".join(HEADING.sub(mark, p) if i % 2 == 0 else p for i, p in enumerate(parts)), count


def linked(text: str, folder: str, link: Callable[[str], str | None]) -> str:
    """Return a text whose links into the course lead to pages of the site.

    A link to a file that the site does not have is replaced by its text.

    Args:
        text: markdown.
        folder: of the text's file, relative to the course.
        link: returns the address of a path on the site, seen from the page; None if it has none.
    Raises:
        ValueError: a drawing that the site does not have.
    """

    def move(match: re.Match[str]) -> str:
        bang, words, target = match.groups()
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match[0]
        path, _, _ = unquote(target).partition("#")
        there = link(_normal(f"{folder}/{path}".lstrip("/")))
        if there is None and bang:
            raise ValueError(f"{folder}: every drawing must be in img/, got {target}. Move it.")
        return words if there is None else f"{bang}[{words}]({there})"

    parts = FENCE.split(text)
    return "".join(LINK.sub(move, p) if i % 2 == 0 else p for i, p in enumerate(parts))


def _normal(path: str) -> str:
    """Return a path without "..": "notebooks/../img/a.svg" is "img/a.svg"."""
    found: list[str] = []
    for part in Path(path).parts:
        if part == "..":
            found.pop()
        elif part != ".":
            found.append(part)
    return "/".join(found)


def _output(output: Cell, place: str, name: str, figures: Figures) -> Cell:
    """Return a stored output for the site: only its HTML, if it has some."""
    data = output.get("data", {})
    if "text/html" not in data:
        return output
    text = "".join(data["text/html"])
    text = STYLE_OR_SCRIPT.sub("", text).replace(UNSEEN, WITHOUT_SCRIPTS)
    text = outputs.PICTURE.sub(lambda found: _picture(outputs.picture(found), place, figures), text)
    text = ASKED.sub(TO_OPEN, predictions.marked(text, name))
    if "<table" in text and "sbs-explorer" not in text:
        text = f'<div class="sbs-wide">{text}</div>'
    return {**output, "data": {"text/html": text}}


def _picture(one: outputs.Picture, place: str, figures: Figures) -> str:
    number = sum(name.startswith(f"{place}-") for name in figures.files)
    address = figures.add(f"{place}-{number}.png", one.png)
    return rendered("web/templates/picture.html", picture=one, address=address)
