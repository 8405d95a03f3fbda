"""The zip that is handed out holds what students need, and no solution."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from made_up import CHAPTER, NAME, Folder, code, edit, notebook, printed, solved, unpack
from notebook_rules import broken_links

from tools.course import exercises, local_changes, release, solution_leaks, student_copy, update
from tools.course.notebook import source
from tools.course.registry import ROOT, course
from tools.install import LONGEST_FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.make(tmp_path / "course")


@pytest.fixture(scope="module")
def given() -> dict[str, bytes]:
    return student_copy.release_files()


@pytest.fixture(scope="module")
def packed(given: dict[str, bytes]) -> bytes:
    return release.pack(given, "1.0.0")


@pytest.fixture(scope="module")
def unpacked(packed: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(packed, tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def bodies() -> list[str]:
    return solution_leaks.solutions()


def test_every_file_of_the_project_is_handed_out_or_kept_back(given: dict[str, bytes]) -> None:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False
    )
    tracked = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    if not tracked:
        pytest.skip("only a clone knows which files belong to the project")
    home = (".ci/", ".github/", "notebooks/solutions/")
    left = [
        n for n in tracked if not (n in given or student_copy.is_kept_back(n) or n.startswith(home))
    ]
    assert left == []
    assert {"Makefile", "checks/engine/verdict.py", "tools/course/update.py"} <= set(given)
    assert not [name for name in given if student_copy.is_kept_back(name) or "solutions" in name]
    made = {c.exercises.relative_to(ROOT).as_posix() for c in course().chapters}
    assert made == {name for name in given if name.startswith("notebooks/exercises/")}


def test_no_solution_is_handed_out(given: dict[str, bytes], bodies: list[str]) -> None:
    assert len(bodies) > 10
    assert list(solution_leaks.leaks(given, bodies)) == []
    for name, content in given.items():
        if name.startswith("notebooks/exercises/"):
            assert b"solutions/" not in content
            assert student_copy.SOLUTION_LINE.encode() in content
    body = max(bodies, key=len)
    inside = "\n".join(f"    {line}" for line in body.splitlines())
    cell = json.dumps(notebook(code(f"def f():\n{inside}\n    # more"))).encode()
    shown = code("1")
    printed(shown, body)
    for name, content in {
        "README.md": f"Text\n\n{body}\n".encode(),
        "notebooks/exercises/01_a.ipynb": cell,
        "notebooks/exercises/02_b.ipynb": json.dumps(notebook(shown)).encode(),
        "tests/a.py": f"if a:\n{inside}\n".encode(),
    }.items():
        assert len(list(solution_leaks.leaks({name: content}, bodies))) == 1, name
        assert list(solution_leaks.leaks({name: content}, [])) == []
    marked = json.dumps(notebook(code("    ### BEGIN SOLUTION\n    1"))).encode()
    assert list(solution_leaks.leaks({"notebooks/01_a.ipynb": marked}, []))


def test_solutions_of_one_line_are_searched_for(bodies: list[str]) -> None:
    assert len([body for body in bodies if "\n" not in body]) > 10
    telling = "return einsum(q, k, 'b h i d, b h j d -> b h i j')"
    short = "scale = 5"
    where = {
        "tests/a.py": "    scores = einsum(q, k, 'b h i d, b h j d -> b h i j') / 2",
        "tests/b.py": "    scale = 5",
        "tests/c.py": "    autoscale = 55",
        "checks/d.py": telling,
        "clinic/e.py": telling,
    }
    files = {name: f"a = 1\n{text}\n".encode() for name, text in where.items()}
    said = list(solution_leaks.leaks(files, [telling, short]))
    assert [text.partition(" ")[0] for text in said] == ["tests/a.py", "tests/b.py"]


def test_a_release_has_the_same_bytes_and_lists_its_files(
    given: dict[str, bytes], packed: bytes
) -> None:
    assert release.pack(dict(reversed(given.items())), "1.0.0") == packed
    with zipfile.ZipFile(io.BytesIO(packed)) as zipped:
        names = zipped.namelist()
        assert {entry.date_time for entry in zipped.infolist()} == {release.DATE}
    assert names == sorted(names)
    # Windows unpacks it below a folder that is called as the zip is, and has a limit of its own.
    assert {name.partition("/")[0] for name in names} == {"attention"}
    assert max(map(len, names)) + LONGEST_FOLDER < 250


def test_a_fresh_copy_is_unchanged(
    unpacked: Path, packed: bytes, given: dict[str, bytes], tmp_path: Path
) -> None:
    zipped = tmp_path / "same.zip"
    zipped.write_bytes(packed)
    before = {p: p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    assert len(before) == len(given) + 1
    assert not update.main([str(zipped)], unpacked)
    assert before == {p: p.read_bytes() for p in unpacked.rglob("*") if p.is_file()}
    began = json.loads((unpacked / local_changes.MANIFEST).read_text())["files"]
    assert not [name for name in began if local_changes.changed(unpacked / name, began[name])]
    for path in (unpacked / "notebooks" / "exercises").glob("*.ipynb"):
        assert not local_changes.changed(path, None), f"{path.name} carries its own beginning"


def test_links_lead_somewhere_in_what_is_handed_out(unpacked: Path) -> None:
    complaints = []
    for path in sorted(unpacked.rglob("*.md")):
        complaints += [f"{path.name}: {c}" for c in broken_links(path.read_text(), path)]
    for path in sorted(unpacked.rglob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                attached = set(cell.get("attachments", {}))
                found = broken_links(source(cell), path, attached)
                complaints += [f"{path.name}: {c}" for c in found]
    assert complaints == []


def test_what_is_handed_out_needs_nothing_that_is_kept_back(unpacked: Path) -> None:
    missing = {
        name: Path(name).stem
        for name in student_copy.KEPT_BACK
        if name.endswith(".py") and (ROOT / name).exists()
    }
    for path in [*unpacked.glob("tests/*.py"), *unpacked.rglob("tools/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & set(missing.values()), f"{path.name}, line {node.lineno}"
    makefile = (unpacked / "Makefile").read_text()
    for script in re.findall(r"\b\w+/\w+\.py\b", makefile):
        assert (unpacked / script).exists(), (
            f"the Makefile calls {script}; move it to instructor.mk"
        )
    for path in unpacked.glob("requirements*.txt"):
        for name in re.findall(r"^-r (\S+)", path.read_text(), re.MULTILINE):
            assert (unpacked / name).exists(), f"{path.name} wants {name}"


def test_the_pages_of_the_students_speak_to_students(unpacked: Path) -> None:
    pages = [unpacked / "README.md", unpacked / "CHANGELOG.md", *(unpacked / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    said = subprocess.run(
        [sys.executable, "-m", "tools"],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = {line.split()[3] for line in said.splitlines() if line.startswith("python3 -m tools")}
    named = set(re.findall(r"`make (\w+)|^make (\w+)", text, re.MULTILINE))
    assert {one or other for one, other in named} <= set(known)
    assert "grade" not in known and "lab" in known
    for word in ("Cheating", "instructor.mk", "For instructors", "at a glance", "<!-- not"):
        assert word not in text
    assert "instructor has the solution" in text
    assert "instructor has" in student_copy.SOLUTION_LINE
    sources = [ROOT / page.relative_to(unpacked) for page in pages]
    whole = "\n".join(page.read_text(encoding="utf-8") for page in sources)
    assert whole.count("<!-- not for students -->") == whole.count("<!-- for all -->") >= 3
    assert "instructor has" not in re.sub(r"<!--.*?-->", "", whole)


def test_links_to_what_is_kept_back_become_words(folder: Folder) -> None:
    names = {"README.md", "notebooks/03_tiny.ipynb"}
    text = (
        "[all](notebooks/solutions) and [one](notebooks/solutions/03_solutions.ipynb#1.-W), "
        "[chapter](notebooks/03_tiny.ipynb#A), [all](notebooks), [here](#A), [web](https://a.b/c)"
    )
    assert student_copy.unlink(text, "README.md", names, folder.root) == (
        "all and one, "
        "[chapter](notebooks/03_tiny.ipynb#A), [all](notebooks), [here](#A), [web](https://a.b/c)"
    )


def test_a_run_of_the_instructor_is_not_handed_out(folder: Folder) -> None:
    assert not exercises.main([], folder.root)
    edit(folder.made, solved)
    name = f"notebooks/exercises/{NAME}"
    assert b"(2, 3)" not in student_copy.release_files(folder.root)[name]
    edit(folder.root / "notebooks" / CHAPTER, lambda n: n["metadata"].update(toc={}))
    with pytest.raises(ValueError, match="must be as refresh writes it"):
        student_copy.release_files(folder.root)


def test_students_need_no_nbgrader() -> None:
    """What is handed out imports it nowhere, and the rest only inside of functions."""
    for path in sorted((ROOT / "tools").rglob("*.py")):
        tree = ast.parse(path.read_text())
        given = not student_copy.is_kept_back(path.relative_to(ROOT).as_posix())
        nodes = ast.walk(tree) if given else tree.body
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                assert not any(str(name).startswith("nbgrader") for name in names), path.name
