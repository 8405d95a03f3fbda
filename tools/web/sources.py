"""All pages of the site as Sphinx reads them: notebooks, markdown, pictures, scripts."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from attention_clinic import BUGS
from course import outputs
from course.handing_out import readme
from course.registry import Chapter, Course
from web import catalogue, indexes
from web.pages import Figures, chapter_page, exercises_page, linked

# Sections of README.md, by the page that shows them.
START = ("Start", "The exercises", "What takes how long", "Other ways to install")
LEDGERS, NAMING, LICENCE = "The ledger", "Name the bug", "Licence and citation"
# Scripts that chapters lead to, beside the files of utils.
SCRIPT = re.compile(r"\]\(\.\./((?:resources|tools)/\w+\.py)\)")
HALF = 9  # the number of the chapter with which the second half begins

Pages = dict[str, bytes]


def write(made: Pages, folder: Path) -> None:
    """Writes the pages into a folder; what is there and not made any more goes.

    Args:
        made: content by name.
        folder: for Sphinx; an unchanged page is left alone, so that Sphinx need not read it again.
    """
    for path in [*folder.rglob("*")] if folder.exists() else []:
        if path.is_file() and path.relative_to(folder).as_posix() not in made:
            path.unlink()
    for name, content in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def pages(course: Course) -> Pages:
    """Returns the content of all files by name.

    Raises:
        ValueError: an output or a term that the site does not know how to show.
    """
    root, figures = course.root, Figures()
    text = readme((root / "README.md").read_text("utf-8"))
    made: dict[str, str] = {}
    for chapter in course.chapters:
        page = chapter_page(chapter, figures, _links(course, ""))
        page["cells"][0]["source"] = f"(ch{chapter.number})=\n{page['cells'][0]['source']}"
        made[f"{chapter.file}.ipynb"] = json.dumps(page, ensure_ascii=False)
        page = exercises_page(chapter, _links(course, "../"))
        made[f"exercises/{chapter.exercises.name}"] = json.dumps(page, ensure_ascii=False)
    made |= {f"clinic/{name}.md": page for name, page in _clinic(course, text)}
    made |= {f"code/{name}.md": page for name, page in _code(course)}
    sections = [section for c in course.chapters for section in indexes.sections(c)]
    made["terms.md"] = indexes.terms_page(root / "website" / "terms.toml", sections)
    ledgers = linked(f"## The ledgers\n{part(text, LEDGERS)}", "", _links(course, ""))
    made["shapes.md"] = indexes.shapes_page(sections, ledgers)
    made["start.md"] = "# Get the course and run it\n\n" + linked(
        "\n".join(f"## {name}\n{part(text, name)}" for name in START), "", _links(course, "")
    )
    made["index.md"] = _index(course, text)
    made["static/explorers.js"] = outputs.library(root)
    made["static/explorers.css"] = outputs.styles(root)
    files = {name: content.encode() for name, content in made.items()}
    files |= {f"static/figures/{name}": png for name, png in figures.files.items()}
    for path in sorted((root / "img").glob("*.svg")):
        files[f"img/{path.name}"] = path.read_bytes()
    for path in sorted((root / "website" / "static").iterdir()):
        files[f"static/{path.name}"] = path.read_bytes()
    return files


def part(text: str, name: str) -> str:
    """Returns what stands under a heading `## name` of a markdown text."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"README.md: it has a section {name!r}, got none. Write it, or mend START")
    return found[1]


@cache
def _scripts(course: Course) -> list[str]:
    """Returns the code that the site shows: what chapters build, and scripts that they name."""
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
    """Returns the function that says where a path of the course stands on the site.

    Args:
        course: whose files are meant.
        up: how a page gets to the top of the site.
    """
    there = {f"notebooks/{c.file}.ipynb": f"{c.file}.ipynb" for c in course.chapters}
    there |= {
        f"notebooks/exercises/{c.exercises.name}": f"exercises/{c.exercises.name}"
        for c in course.chapters
    }
    there |= {f"img/{path.name}": f"img/{path.name}" for path in course.root.glob("img/*.svg")}
    there |= {script: f"code/{_page_of(script)}.md" for script in _scripts(course)}
    there |= {"utils": "code/index.md", "clinic/README.md": "clinic/tool.md"}

    def link(path: str) -> str | None:
        return f"{up}{there[path]}" if path in there else None

    return link


def _clinic(course: Course, text: str) -> Iterator[tuple[str, str]]:
    root, shown = course.root, catalogue.Shown.of(course.root)
    chapters = {c.number: f"[{c.number}, {c.title}](../{c.file}.ipynb)" for c in course.chapters}
    yield "index", catalogue.catalogue_page(chapters)
    yield "variants", catalogue.variants_page(chapters)
    tool = (root / "clinic" / "README.md").read_text("utf-8")
    yield "tool", linked(tool, "clinic", _links(course, "../"))
    for one in catalogue.parts():
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


def _index(course: Course, text: str) -> str:
    """Returns the first page: README's beginning, the chapters, and where the rest is."""
    beginning = linked(text[: text.index("\n## ")], "", _links(course, ""))
    lines = [beginning, "", "## The chapters", "", ":::{container} sbs-chapters", ""]
    lines += ["| | chapter | minutes | what you can do at the end |", "|---|---|---|---|"]
    for c in course.chapters:
        lines.append(f"| {c.number} | [{c.title}]({c.file}.ipynb) | {c.minutes} | {c.able} |")
    lines += ["", ":::", "", _how(text), "", "## To look something up", ""]
    lines += [
        f"- **[The catalogue of bugs](clinic/index.md)**: {len(BUGS)} mistakes, each with a page. "
        "What `diagnose` prints, the search finds.",
        "- **[Index of terms](terms.md)** and **[index of shapes](shapes.md)**.",
        "- **[The finished code](code/index.md)** that the chapters build.",
        "- **[Get the course and run it](start.md)**: the notebooks, the exercises that answer, "
        "the tool that names bugs.",
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
    lines += _tree("To run", ["start", "code/index"])
    return "\n".join(lines)


def _entry(chapter: Chapter) -> str:
    return f"{chapter.number} · {chapter.title} <{chapter.file}>"


def _tree(caption: str, entries: list[str]) -> list[str]:
    return ["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]


def _how(text: str) -> str:
    """Returns what README says under its table: how each chapter works."""
    return (
        part(text, "The chapters")
        .rpartition("-->")[2]
        .strip()
        .replace("](utils)", "](code/index.md)")
    )


def empty(folder: Path) -> None:
    """Removes a folder that was made here; it need not be there."""
    if folder.is_dir() and not os.path.islink(folder):
        shutil.rmtree(folder)
