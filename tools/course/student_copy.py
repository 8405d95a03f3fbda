"""The files for students: the course without solutions, grading and their tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tools.commands import as_typed
from tools.course.files import is_newer_file, name_of
from tools.course.local_changes import remember_beginning
from tools.course.make_exercises import generate
from tools.course.notebook import Notebook, canonical, source
from tools.course.registry import ROOT, Chapter, Course
from tools.course.source_notebooks import read

# The text that replaces the links to solutions.
SOLUTION_LINE = "The solution: your instructor has it."

# The released files: single files, and folders with their suffixes.
SINGLE = (
    ".binder/environment.yml",
    ".binder/postBuild",
    ".devcontainer/devcontainer.json",
    ".dockerignore",
    ".gitignore",
    "CHANGELOG.md",
    "CITATION.cff",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "conftest.py",
    "course.toml",
    "notebooks/ruff.toml",
    "pyproject.toml",
    "requirements-dev.txt",
    "requirements.txt",
)
FOLDERS = {
    "docs": (".md",),
    "img": (".md", ".png", ".py", ".svg"),
    "resources": (".json", ".md", ".npy", ".py", ".safetensors", ".tsv"),
    "checks": (".po", ".py"),
    "clinic": (".csv", ".md", ".py", ".toml", ".typed"),
    "tests": (".py",),
    "tools": (".css", ".html", ".js", ".py"),
    "utils": (".css", ".js", ".py"),
}
# Files for instructors only. Of notebooks/, only chapters and exercises are released.
KEPT_BACK = (
    "CONTRIBUTING.md",
    "deploy",
    "docs/class-server.md",
    "docs/cluster.svg",
    "docs/instructors.md",
    "instructor.mk",
    "tests/browser/live_reference.py",
    "tests/browser/try_live.py",
    "tests/browser/try_live_text.py",
    "tests/browser/try_site.py",
    "tests/test_checks/answers",
    "tests/test_checks/exercise_bank.py",
    "tests/test_checks/mutants.py",
    "tests/test_checks/test_checks.py",
    "tests/test_course/test_new_chapter.py",
    "tests/test_course/test_exercises_made.py",
    "tests/test_course/test_release.py",
    "tests/test_course/test_site.py",
    "tests/test_course/test_update.py",
    "tests/test_checks/test_exercises.py",
    "tests/test_course/test_workflow.py",
    "tests/test_grading",
    "tests/test_hub",
    "tools/course/exercises.py",
    "tools/course/make_exercises.py",
    "tools/course/new_chapter.py",
    "tools/course/release.py",
    "tools/course/solution_leaks.py",
    "tools/course/source_notebooks.py",
    "tools/course/student_copy.py",
    "tools/grading",
    "tools/hub",
    "tools/web",
    "website",
)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
# Parts of a page for instructors and contributors only, and for students only.
OTHERS = re.compile(r"<!-- not for students -->.*?<!-- for all -->\n?", re.DOTALL)
STUDENTS = re.compile(r"<!-- for students: (.*?) -->", re.DOTALL)

Files = dict[str, bytes]


def is_kept_back(name: str) -> bool:
    return any(name == kept or name.startswith(f"{kept}/") for kept in KEPT_BACK)


def _listed(root: Path) -> Iterator[Path]:
    for name in SINGLE:
        if (root / name).is_file():
            yield root / name
    for folder, endings in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            hidden = any(
                part.startswith((".", "__pycache__")) for part in path.relative_to(root).parts
            )
            if path.is_file() and path.suffix in endings and not hidden and not is_newer_file(path):
                yield path


def names(here: Course) -> set[str]:
    """Return the names of the released files."""
    found = {name_of(path, here.root) for path in _listed(here.root)}
    found = {name for name in found if not is_kept_back(name)}
    for chapter in here.chapters:
        found.add(name_of(chapter.notebook, here.root))
        if chapter.source_notebook.is_file():
            found.add(name_of(chapter.exercises, here.root))
    return found


def release_files(root: Path = ROOT) -> Files:
    """Return the released files by name, without their manifest.

    Raises:
        ValueError: a chapter or a source notebook breaks a rule.
    """
    here = Course.read(root)
    known = names(here)
    made = {name_of(chapter.exercises, root): chapter for chapter in here.chapters}
    chapters = {name_of(path, root) for path in here.notebooks()}
    files: Files = {}
    for name in sorted(known):
        if name in made:
            files[name] = canonical(exercises(made[name], known)).encode()
        elif name in chapters:
            files[name] = _chapter(root, name, known)
        else:
            files[name] = _file(root, name, known)
    return files


def exercises(chapter: Chapter, known: set[str] | None = None) -> Notebook:
    """Return the exercises of a chapter as they are released.

    Args:
        chapter: has a source notebook.
        known: the names of the released files, if the caller has them.
    Raises:
        ValueError: the source notebook breaks a rule.
    """
    known = names(Course.read(chapter.root)) if known is None else known
    made = generate(read(chapter), SOLUTION_LINE)
    _unlink_cells(made, name_of(chapter.exercises, chapter.root), known, chapter.root)
    remember_beginning(made)
    return made


def _chapter(root: Path, name: str, known: set[str]) -> bytes:
    text = (root / name).read_text(encoding="utf-8")
    notebook = json.loads(text)
    if canonical(notebook) != text:
        raise ValueError(
            f"{name} must be as refresh writes it, got one saved by a different program. Check "
            f"git diff, then type: {as_typed('refresh')}"
        )
    _unlink_cells(notebook, name, known, root)
    return canonical(notebook).encode()


def _file(root: Path, name: str, known: set[str]) -> bytes:
    content = (root / name).read_bytes()
    if name.endswith(".md"):
        return unlink(for_students(content.decode()), name, known, root).encode()
    return content


def for_students(text: str) -> str:
    """Return the students' version of a page."""
    return STUDENTS.sub(r"\1", OTHERS.sub("", text))


def _unlink_cells(notebook: Notebook, name: str, known: set[str], root: Path) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = unlink(source(cell), name, known, root).splitlines(keepends=True)


def unlink(text: str, name: str, known: set[str], root: Path = ROOT) -> str:
    """Replace links to files of the course that are not released by their text.

    Args:
        text: in markdown.
        name: the file of the text.
        known: the names of the released files.
        root: the folder of the course.
    """

    def words(match: re.Match[str]) -> str:
        label, target = match.group(1), unquote(match.group(2)).partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            return match.group()
        path = (root / name).parent.joinpath(target).resolve()
        inside = name_of(path, root)
        there = inside in known or any(other.startswith(f"{inside}/") for other in known)
        return match.group() if there or not path.exists() else label

    return LINK.sub(words, text)
