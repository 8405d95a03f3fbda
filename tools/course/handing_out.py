"""What an instructor hands out: the course without solutions, grading and what needs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from course.files import is_beside, name_of
from course.making import generate
from course.masters import read
from course.notebook import Notebook, canonical, source
from course.registry import ROOT, Chapter, Course
from course.shipped import remember_beginning

# What stands under the hints where the links to the solutions were.
SOLUTION_LINE = "The solution: your instructor has it."

# What is handed out: names and folders with the endings that belong there.
ALONE = (
    ".binder/environment.yml",
    ".binder/postBuild",
    ".devcontainer/devcontainer.json",
    ".dockerignore",
    ".gitignore",
    "CITATION.cff",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "conftest.py",
    "course.toml",
    "notebooks/ruff.toml",
    "pyproject.toml",
    "requirements-browser.txt",
    "requirements-dev.txt",
    "requirements-slides.txt",
    "requirements.txt",
)
FOLDERS = {
    "img": (".md", ".py", ".svg"),
    "resources": (".json", ".md", ".npy", ".py", ".safetensors", ".tsv"),
    "checks": (".po", ".py"),
    "clinic": (".csv", ".md", ".py", ".toml", ".typed"),
    "tests": (".py",),
    "tools": (".css", ".html", ".js", ".py"),
    "utils": (".css", ".js", ".py"),
}
# What an instructor keeps. Everything in notebooks/ that is neither a chapter nor made from a
# master stays at home, too.
KEPT_BACK = (
    "INSTRUCTORS.md",
    "instructor.mk",
    "requirements-grading.txt",
    "requirements-site.txt",
    "tests/browser/try_site.py",
    "tests/test_checks/answers",
    "tests/test_checks/exercise_bank.py",
    "tests/test_checks/mutants.py",
    "tests/test_checks/test_checks.py",
    "tests/test_course/test_chapter_99.py",
    "tests/test_course/test_exercises_made.py",
    "tests/test_course/test_release.py",
    "tests/test_course/test_site.py",
    "tests/test_course/test_update.py",
    "tests/test_checks/test_exercises.py",
    "tests/test_course/test_workflow.py",
    "tests/test_grading",
    "tools/class_of_thirty.py",
    "tools/course/handing_out.py",
    "tools/course/leaks.py",
    "tools/course/making.py",
    "tools/course/masters.py",
    "tools/exercises.py",
    "tools/grade.py",
    "tools/grading",
    "tools/make_book.py",
    "tools/make_site.py",
    "tools/release.py",
    "tools/web",
    "website",
)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
# Of README.md, what only an instructor or a contributor reads, and what only a student does.
OTHERS = re.compile(r"<!-- not for students -->.*?<!-- for all -->\n?", re.DOTALL)
INCLUDED = re.compile(rb"(?m)^-r (requirements[\w-]*\.txt).*\n")
STUDENTS = re.compile(r"<!-- for students: (.*?) -->", re.DOTALL)

Files = dict[str, bytes]


def is_kept_back(name: str) -> bool:
    return any(name == kept or name.startswith(f"{kept}/") for kept in KEPT_BACK)


def _listed(root: Path) -> Iterator[Path]:
    for name in ALONE:
        if (root / name).is_file():
            yield root / name
    for folder, endings in FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            hidden = any(
                part.startswith((".", "__pycache__")) for part in path.relative_to(root).parts
            )
            if path.is_file() and path.suffix in endings and not hidden and not is_beside(path):
                yield path


def names(here: Course) -> set[str]:
    """Returns the names of the files that are handed out."""
    found = {name_of(path, here.root) for path in _listed(here.root)}
    found = {name for name in found if not is_kept_back(name)}
    for chapter in here.chapters:
        found.add(name_of(chapter.notebook, here.root))
        if chapter.master.is_file():
            found.add(name_of(chapter.exercises, here.root))
    return found


def collect(root: Path = ROOT) -> Files:
    """Returns the files to hand out by name, without their manifest.

    Raises:
        ValueError: a chapter or a master is not as it should be.
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
    """Makes the exercises of a chapter exactly as students get them.

    Args:
        chapter: has a master.
        known: the names of the files that are handed out, if the caller has them.
    Raises:
        ValueError: its master breaks a rule.
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
            f"{name}: chapters are handed out as `make refresh` writes them, got one that was "
            "saved by something else. Look at git diff, then: make refresh"
        )
    _unlink_cells(notebook, name, known, root)
    return canonical(notebook).encode()


def _file(root: Path, name: str, known: set[str]) -> bytes:
    content = (root / name).read_bytes()
    if name == "README.md":
        content = readme(content.decode()).encode()
    if name.endswith(".md"):
        return unlink(content.decode(), name, known, root).encode()
    if name.startswith("requirements"):
        return INCLUDED.sub(
            lambda found: b"" if is_kept_back(found[1].decode()) else found[0], content
        )
    return content


def readme(text: str) -> str:
    """Makes the README of the students from the one of the project."""
    return STUDENTS.sub(r"\1", OTHERS.sub("", text))


def _unlink_cells(notebook: Notebook, name: str, known: set[str], root: Path) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = unlink(source(cell), name, known, root).splitlines(keepends=True)


def unlink(text: str, name: str, known: set[str], root: Path = ROOT) -> str:
    """Leaves of each link to a file of the course that is not handed out only its words.

    Args:
        text: a markdown text.
        name: the file in which it stands.
        known: the names of the files that are handed out.
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
