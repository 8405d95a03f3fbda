"""Release the assignments, and a copy of the modules that students' code imports."""

from __future__ import annotations

import ast
import compileall
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

from tools.course.notebook import Notebook, source
from tools.course.registry import ROOT, Chapter
from tools.course.student_copy import exercises
from tools.grading.overwrite_cells import OriginalExercise, original_exercises

# Variables of the instructor's environment that students' code needs; others may be private.
KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
KEPT_VARIABLES += ("COURSE_LANGUAGE",)
# The modules that run in the sandbox.
INSIDE = ("__init__.py", "fork_server.py", "framing.py", "cpu_time.py", "serialization.py")
INSIDE += ("remote_modes.py", "remote_objects.py", "answer_server.py")


@dataclass
class Assignments:
    """The released notebooks and the files that grading needs.

    Args:
        notebooks: the released notebooks, with checks and metadata, by chapter.
        stems: the names of the notebooks without suffix, by chapter.
        library: a copy of `utils` and its data without solutions.
        grader: a copy of the modules that run in the sandbox.
    """

    notebooks: dict[str, Notebook]
    stems: dict[str, str]
    library: Path
    grader: Path

    def originals(self, chapter: str) -> list[OriginalExercise]:
        return original_exercises(self.notebooks[chapter])

    def stubs(self) -> dict[str, list[str]]:
        """Return the sources of the released answer cells, by exercise."""
        found = (original for chapter in self.notebooks for original in self.originals(chapter))
        return {original.id: original.stubs for original in found}


def prepare(chapters: dict[str, Chapter], root: Path) -> Assignments:
    """Make the assignments, and a copy of the modules that students' code imports.

    Args:
        chapters: the chapters to grade, by number.
        root: a new folder.

    Raises:
        ValueError: a source notebook breaks a rule.
    """
    library, grader = _copy_library(root / "library"), _copy_grader(root / "grader")
    stems = {number: chapter.exercises.stem for number, chapter in chapters.items()}
    made = Assignments({}, stems, library, grader)
    for number, chapter in chapters.items():
        made.notebooks[number] = exercises(chapter)
    names = sorted({name for notebook in made.notebooks.values() for name in imported(notebook)})
    (library / "imports.txt").write_text("\n".join(names))
    # A sandbox is read-only: without compiled files, every process would compile all modules.
    mode = PycInvalidationMode.UNCHECKED_HASH
    for folder in (library, grader):
        compileall.compile_dir(folder, quiet=2, stripdir=root, invalidation_mode=mode)
    return made


def _copy_library(library: Path) -> Path:
    for name in ("utils", "checks", "clinic", "resources"):
        ignored = shutil.ignore_patterns("__pycache__", "*.md")
        shutil.copytree(ROOT / name, library / name, ignore=ignored)
    # Of the checks only the code that traces calls: no references, cases or mistakes.
    for path in (library / "checks").glob("chapter_*.py"):
        path.unlink()
    shutil.copy(Path(__file__).with_name("no_checks.py"), library / "checks" / "__init__.py")
    _copy_fonts(library / "fonts")
    return library


def _copy_grader(grader: Path) -> Path:
    inside = grader / "tools" / "grading"
    inside.mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "__init__.py", inside.parent)
    for name in INSIDE:
        shutil.copy(Path(__file__).with_name(name), inside)
    return grader


def imported(notebook: Notebook) -> Iterator[str]:
    """Yield the imports of a notebook: modules, and names that may be modules."""
    texts = (source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code")
    plain = (re.sub(r"(?m)^[%!].*", "", text) for text in texts)
    for node in (node for text in plain for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _copy_fonts(folder: Path) -> None:
    """Copy matplotlib's list of fonts, which takes seconds to make."""
    import matplotlib.font_manager  # makes the list if it is missing

    folder.mkdir()
    for path in Path(matplotlib.get_cachedir()).glob("fontlist-*.json"):
        shutil.copy(path, folder)


def environment() -> dict[str, str]:
    """Return the environment variables of students' code."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    programs = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return kept | {
        "PATH": os.pathsep.join(programs),
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "USER": "student",
        "TERM": "dumb",
        # Otherwise Apple's frameworks end a process that forks.
        **({"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"} if sys.platform == "darwin" else {}),
    }
