"""Make the zip that an instructor hands out: the course without what stands in its solutions.

    make release

It holds the chapters, freshly made exercises, `utils`, the tests that need no solutions, and
MANIFEST.json, by which `make update` tells later what a student changed. The same course gives the
same bytes. It is searched for solutions before it is written.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from course.files import is_beside, name_of, write
from course.making import generate
from course.masters import BEGIN, END, read, regions
from course.notebook import canonical, parse, source
from course.registry import ROOT, Course
from course.shipped import MANIFEST, fingerprint

NAME = "attention-shape-by-shape"
DATE = (2026, 1, 1, 0, 0, 0)  # of every file, so that the same course gives the same bytes
SOLUTION_LINE = "The solution: your instructor has it."

# What is handed out: names and folders with the endings that belong there.
ALONE = (
    ".gitignore",
    "CITATION.cff",
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
    "img": (".md", ".py", ".svg"),
    "resources": (".json", ".md", ".npy", ".py", ".safetensors"),
    "checks": (".py",),
    "clinic": (".py", ".toml"),
    "tests": (".py",),
    "tools": (".py",),
    "utils": (".css", ".js", ".py"),
}
# What an instructor keeps. Everything in notebooks/ that is neither a chapter nor made from a
# master stays at home, too.
KEPT_BACK = (
    "instructor.mk",
    "requirements-grading.txt",
    "tests/test_checks/answers",
    "tests/test_checks/exercise_bank.py",
    "tests/test_checks/mutants.py",
    "tests/test_checks/test_checks.py",
    "tests/test_course/test_exercises_made.py",
    "tests/test_course/test_release.py",
    "tests/test_course/test_update.py",
    "tests/test_checks/test_exercises.py",
    "tests/test_grading",
    "tools/class_of_thirty.py",
    "tools/course/making.py",
    "tools/course/masters.py",
    "tools/exercises.py",
    "tools/grade.py",
    "tools/grading",
    "tools/release.py",
)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")

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


def collect(root: Path = ROOT) -> Files:
    """Returns the files to hand out by name, without their manifest.

    Raises:
        ValueError: a chapter or a master is not as it should be.
    """
    files: Files = {}
    for path in _listed(root):
        if not is_kept_back(name_of(path, root)):
            files[name_of(path, root)] = path.read_bytes()
    for chapter in Course.read(root).chapters:
        files[name_of(chapter.notebook, root)] = _chapter(chapter.notebook, root)
        if chapter.master.is_file():
            made = generate(read(chapter), SOLUTION_LINE)
            files[name_of(chapter.exercises, root)] = canonical(made).encode()
    names = set(files)
    for name in files:
        files[name] = _for_students(name, files[name], names, root)
    return files


def _chapter(path: Path, root: Path) -> bytes:
    text = path.read_text(encoding="utf-8")
    if canonical(json.loads(text)) != text:
        raise ValueError(
            f"{name_of(path, root)}: chapters are handed out as `make refresh` writes them, got "
            "one that was saved by something else. Look at git diff, then: make refresh"
        )
    return text.encode()


def _for_students(name: str, content: bytes, names: set[str], root: Path) -> bytes:
    """Takes out what leads to files that stay at home."""
    if name.endswith(".md"):
        return unlink(content.decode(), name, names, root).encode()
    if name == "requirements-dev.txt":
        return re.sub(rb"(?m)^-r requirements-grading.txt.*\n", b"", content)
    if not name.endswith(".ipynb"):
        return content
    notebook = json.loads(content)
    before = json.dumps(notebook)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = unlink(source(cell), name, names, root).splitlines(keepends=True)
    return content if json.dumps(notebook) == before else canonical(notebook).encode()


def unlink(text: str, name: str, names: set[str], root: Path = ROOT) -> str:
    """Leaves of each link to a file of the course that is not handed out only its words.

    Args:
        text: a markdown text.
        name: the file in which it stands.
        names: the files that are handed out.
        root: the folder of the course.
    """

    def words(match: re.Match[str]) -> str:
        label, target = match.group(1), unquote(match.group(2)).partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            return match.group()
        path = (root / name).parent.joinpath(target).resolve()
        inside = name_of(path, root)
        there = inside in names or any(other.startswith(f"{inside}/") for other in names)
        return match.group() if there or not path.exists() else label

    return LINK.sub(words, text)


# ------------------------------------------------------------------------------- nothing leaks


def texts(name: str, content: bytes) -> Iterator[str]:
    """Gives what a reader finds in a file: of a notebook, its cells and what they printed."""
    notebook = parse(content) if name.endswith(".ipynb") else None
    if notebook is None:
        yield content.decode("utf-8", errors="replace")
        return
    for cell in notebook["cells"]:
        yield source(cell)
        for output in cell.get("outputs", []):
            yield "".join(output.get("text", ""))
            yield "".join(output.get("data", {}).get("text/plain", ""))


def solutions(root: Path = ROOT) -> list[str]:
    """Returns the body of each solution of more than one line, its lines without indentation.

    What the course shows openly is no secret: `utils`, the chapters, and what a master gives away,
    such as the right half of a class with a bug.
    """
    here = Course.read(root)
    notebooks = (json.loads(path.read_text(encoding="utf-8")) for path in here.masters())
    cells = [cell for notebook in notebooks for cell in notebook["cells"]]
    given = [source(cell) for cell in cells if not regions(cell)]
    for path in [*here.notebooks(), *sorted((root / "utils").rglob("*.py"))]:
        given += texts(path.name, path.read_bytes())
    shown = "\n\n".join(map(_lines_of, given))
    bodies = (_flat(body) for cell in cells for body in regions(cell))
    return [body for body in bodies if "\n" in body and f"\n{body}\n" not in shown]


def _lines_of(text: str) -> str:
    return f"\n{_flat(text)}\n"


def _flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def leaks(files: Files, bodies: list[str]) -> Iterator[str]:
    """Says where a solution, or a mark of one, stands in what is handed out.

    Args:
        files: content by name.
        bodies: the solutions, see `solutions`.
    """
    for name, content in files.items():
        flat = [_lines_of(text) for text in texts(name, content)]
        for mark in (BEGIN, END):
            if any(f"\n{mark}\n" in text for text in flat):
                yield f"{name} holds the mark {mark!r}"
        for body in bodies:
            if any(f"\n{body}\n" in text for text in flat):
                yield f"{name} holds the solution that begins with {body.splitlines()[0]!r}"


# ---------------------------------------------------------------------------------------- the zip


def version(root: Path = ROOT) -> str:
    """Returns the version that pyproject.toml names."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def pack(files: Files, version: str) -> bytes:
    """Packs the files below one folder; the same files give the same bytes."""
    top = f"{NAME}-{version}"
    listed = {name: fingerprint(name, content) for name, content in sorted(files.items())}
    text = json.dumps({"course": NAME, "version": version, "files": listed}, indent=1) + "\n"
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in sorted({**files, MANIFEST: text.encode()}.items()):
            entry = zipfile.ZipInfo(f"{top}/{name}", date_time=DATE)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, content)
    return memory.getvalue()


def main() -> None:
    if not Course.read(ROOT).masters():
        raise SystemExit(
            "release: it is made from the course with its solutions, got no notebooks/solutions. "
            "A copy that was handed out cannot be handed on so; give its zip instead"
        )
    try:
        files = collect()
    except ValueError as error:
        raise SystemExit(f"release: {error}") from None
    if found := list(leaks(files, solutions())):
        raise SystemExit("release: no solution is handed out, got\n  " + "\n  ".join(found))
    path = ROOT / "build" / f"{NAME}-{version()}.zip"
    path.parent.mkdir(exist_ok=True)
    content = pack(files, version())
    write(path, content)
    size = len(content) / 2**20
    print(f"{name_of(path)}: {len(files) + 1} files, {size:.1f} MB, no solutions", flush=True)


if __name__ == "__main__":
    main()
