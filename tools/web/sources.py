"""The sources of the site for Sphinx: notebooks, markdown, pictures, scripts."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attention_clinic import BUGS
from tools.course import outputs
from tools.course.registry import Chapter, Course
from tools.course.student_copy import for_students
from tools.web import catalogue, indexes, make_live
from tools.web.pages import Figures, chapter_page, exercises_page, linked

# Pages of docs/ that the site shows, and sections of README.md on its first page.
DOCS = ("install", "exercises", "timings")
HOW, LICENCE = "How a chapter works", "Licence and citation"
# Scripts that chapters link to, other than files of utils.
SCRIPT = re.compile(r"\]\(\.\./((?:resources|tools)/\w+\.py)\)")
HALF = 9  # the first chapter of the second half

Pages = dict[str, bytes]


def write(made: Pages, folder: Path) -> None:
    """Write the pages into a folder, and remove other files.

    Args:
        made: content by name.
        folder: for Sphinx; unchanged pages are not written, so Sphinx does not read them again.
    """
    for path in [*folder.rglob("*")] if folder.exists() else []:
        if path.is_file() and path.relative_to(folder).as_posix() not in made:
            path.unlink()
    for name, content in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def pages(course: Course, live: bool = False) -> Pages:
    """Return the content of all files by name.

    Args:
        course: whose pages are made.
        live: whether the site gets the live page, to which other pages then link.
    Raises:
        ValueError: an output or a term that the site cannot show.
    """
    root, figures = course.root, Figures()
    text = for_students((root / "README.md").read_text("utf-8"))
    made: dict[str, str] = {}
    for chapter in course.chapters:
        page = chapter_page(chapter, figures, _links(course, ""))
        page["cells"][0]["source"] = f"(ch{chapter.number})=\n{page['cells'][0]['source']}"
        if live and chapter.number in make_live.CHAPTERS:
            page["cells"].insert(1, _live_note(*make_live.CHAPTERS[chapter.number]))
        made[f"{chapter.file}.ipynb"] = json.dumps(page, ensure_ascii=False)
        page = exercises_page(chapter, _links(course, "../"))
        made[f"exercises/{chapter.exercises.name}"] = json.dumps(page, ensure_ascii=False)
    made |= {f"clinic/{name}.md": page for name, page in _clinic(course)}
    made |= {f"code/{name}.md": page for name, page in _code(course)}
    sections = [section for c in course.chapters for section in indexes.sections(c)]
    made["terms.md"] = indexes.terms_page(root / "website" / "terms.toml", sections)
    ledgers = re.sub(r"^#", "##", _page(course, "ledger", ""), flags=re.MULTILINE)
    made["shapes.md"] = indexes.shapes_page(sections, ledgers)
    made |= {f"docs/{name}.md": _page(course, name, "../") for name in DOCS}
    made["index.md"] = _index(course, text, live)
    made["static/explorers.js"] = outputs.library(root)
    made["static/explorers.css"] = outputs.styles(root)
    files = {name: content.encode() for name, content in made.items()}
    files |= {f"static/figures/{name}": png for name, png in figures.files.items()}
    for path in sorted((root / "img").glob("*.svg")):
        files[f"img/{path.name}"] = path.read_bytes()
    for path in sorted((root / "website" / "static").iterdir()):
        files[f"static/{path.name}"] = path.read_bytes()
    return files


def _page(course: Course, name: str, up: str) -> str:
    text = (course.root / "docs" / f"{name}.md").read_text("utf-8")
    return linked(for_students(text), "docs", _links(course, up))


def part(text: str, name: str) -> str:
    """Return the text under a heading `## name` of a markdown text."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"README.md must have a section {name!r}, got none. Write it")
    return found[1]


@cache
def _scripts(course: Course) -> list[str]:
    """Return the code on the site: files that chapters build, and scripts that they link to."""
    texts = "\n".join(c.notebook.read_text("utf-8") for c in course.chapters)
    parts = [course.root / "utils" / name for group in course.utils for name in group]
    files = [
        path.relative_to(course.root).as_posix()
        for part in parts
        if part.name not in ("draw", "renamed")
        for path in (sorted(part.glob("[!_]*.py")) or [part.with_suffix(".py")])
    ]
    return files + sorted(set(SCRIPT.findall(texts)))


def _page_of(script: str) -> str:
    return script.removesuffix(".py").replace("/", "-")


def _links(course: Course, up: str) -> Callable[[str], str | None]:
    """Return a function from paths of the course to addresses on the site.

    Args:
        course: whose files are meant.
        up: the path from a page to the top of the site.
    """
    there = {f"notebooks/{c.file}.ipynb": f"{c.file}.ipynb" for c in course.chapters}
    there |= {
        f"notebooks/exercises/{c.exercises.name}": f"exercises/{c.exercises.name}"
        for c in course.chapters
    }
    there |= {f"img/{path.name}": f"img/{path.name}" for path in course.root.glob("img/*.svg")}
    there |= {script: f"code/{_page_of(script)}.md" for script in _scripts(course)}
    there |= {"utils": "code/index.md", "clinic/README.md": "clinic/tool.md"}
    there |= {f"docs/{name}.md": f"docs/{name}.md" for name in DOCS}
    there["docs/ledger.md"] = "shapes.md"

    def link(path: str) -> str | None:
        return f"{up}{there[path]}" if path in there else None

    return link


def _clinic(course: Course) -> Iterator[tuple[str, str]]:
    root, shown = course.root, catalogue.Shown.of(course.root)
    chapters = {c.number: f"[{c.number}, {c.title}](../{c.file}.ipynb)" for c in course.chapters}
    yield "index", catalogue.catalogue_page(chapters)
    yield "variants", catalogue.variants_page(chapters)
    tool = (root / "clinic" / "README.md").read_text("utf-8")
    yield "tool", linked(tool, "clinic", _links(course, "../"))
    for one in catalogue.catalogue_files():
        for id in one.ids:
            bug = BUGS[id]
            yield id, catalogue.bug_page(bug, one, chapters[bug.chapter], root, shown)


def _code(course: Course) -> Iterator[tuple[str, str]]:
    scripts = _scripts(course)
    lines = ["# The finished code", "", "What the chapters build, one idea in each file.", ""]
    for script in scripts:
        code = (course.root / script).read_text("utf-8")
        first = (ast.get_docstring(ast.parse(code)) or "").split("\n")[0].replace("`", "")
        lines.append(f"- [`{script}`]({_page_of(script)}.md): {catalogue.plain(first)}")
        yield _page_of(script), f"# {script}\n\n{catalogue.fenced(code)}"
    names = "\n".join(map(_page_of, scripts))
    yield "index", "\n".join([*lines, "", "```{toctree}", ":hidden:", "", names, "```", ""])


def _live_note(section: str, words: str) -> dict[str, Any]:
    """Return a cell that leads to a section of the live page; it is not printed."""
    # HTML, as Sphinx knows no such page
    text = (
        f'<p class="d-print-none"><strong><a href="{make_live.PAGE}#{section}">'
        f"Live in the browser</a></strong>: {words}.</p>"
    )
    return {"cell_type": "markdown", "id": "live", "metadata": {}, "source": text}


def _index(course: Course, text: str, live: bool) -> str:
    """Return the first page: the start of README, the chapters, and links to other pages."""
    beginning = linked(text[: text.index("\n## ")], "", _links(course, ""))
    if live:
        words = "draw a digit, see every tensor of the model, and break it yourself"
        beginning += f"\n\n{_live_note('digits', words)['source']}"
    lines = [beginning, "", "## The chapters", "", ":::{container} sbs-chapters", ""]
    lines += ["| | chapter | minutes | what you build |", "|---|---|---|---|"]
    for c in course.chapters:
        lines.append(f"| {c.number} | [{c.title}]({c.file}.ipynb) | {c.minutes} | {c.summary} |")
    how = linked(part(text, HOW), "", _links(course, ""))
    lines += ["", ":::", "", f"## {HOW}", how, "## To look something up", ""]
    lines += [
        f"- **[The catalogue of bugs](clinic/index.md)**: {len(BUGS)} mistakes, each with a page. "
        "What `diagnose` prints, the search finds.",
        "- **[Index of terms](terms.md)** and **[index of shapes](shapes.md)**.",
        "- **[The finished code](code/index.md)** that the chapters build.",
        "- **[Installation](docs/install.md)**, **[exercises](docs/exercises.md)** and "
        "**[timings](docs/timings.md)**: the course on your own machine.",
        "",
        f"## {LICENCE}",
        linked(part(text, LICENCE), "", _links(course, "")),
    ]
    halves = [
        ("The first half: pictures", [c for c in course.chapters if int(c.number) < HALF]),
        ("The second half: text", [c for c in course.chapters if int(c.number) >= HALF]),
    ]
    for caption, chapters in halves:
        lines += _tree(caption, [_entry(c) for c in chapters])
    lines += _tree("To look up", ["clinic/index", "clinic/tool", "terms", "shapes"])
    lines += _tree("To run", [*(f"docs/{name}" for name in DOCS), "code/index"])
    return "\n".join(lines)


def _entry(chapter: Chapter) -> str:
    return f"{chapter.number} · {chapter.title} <{chapter.file}>"


def _tree(caption: str, entries: list[str]) -> list[str]:
    return ["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]


def empty(folder: Path) -> None:
    """Remove a generated folder; it may be missing."""
    if folder.is_dir() and not os.path.islink(folder):
        shutil.rmtree(folder)
