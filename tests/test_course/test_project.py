"""What holds for the project as a whole: its files agree with each other and with the code."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from notebook_rules import (
    ROOT,
    Chapter,
    broken_links,
    minutes,
    rows,
)
from packaging.requirements import Requirement

from how_long import collected
from tools.commands import Refusal
from tools.course import tables
from tools.course.registry import Chapter as Listed
from tools.course.registry import course
from tools.install import FOR_NOTEBOOKS

UTILS = sorted(path for path in ROOT.glob("utils/*.py") if path.stem != "__init__")
# A folder of utils counts as one file.
ALL_OF_UTILS = [*UTILS, *sorted(ROOT.glob("utils/*/*.py"))]
TEACHING = [path for path in UTILS if path.stem != "renamed"]
DOCUMENTED = [
    *TEACHING,
    *sorted(ROOT.glob("utils/data/*.py")),
    *sorted(ROOT.glob("utils/hub/*.py")),
]
CHAPTERS = course().notebooks()
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Whether this is the project, and not a student's copy of it.
INSTRUCTORS = DOCS / "instructors.md"
WHOLE = INSTRUCTORS.exists()

SPEAK = ("shapes",)


def part(path: Path) -> str:
    return path.relative_to(ROOT / "utils").with_suffix("").parts[0]


def title(path: Path) -> str:
    return str(path.relative_to(ROOT / "utils").with_suffix(""))


def load(path: Path) -> ModuleType:
    """Imports a script by its path, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# -------------------------------------------------------------------------------------- the package


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide the direction; write utils.name"
            if node.module == "utils":
                yield from (f"utils.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", ALL_OF_UTILS, ids=title)
def test_imports_run_in_the_direction_of_the_design(path: Path) -> None:
    order = course().utils
    (column,) = [i for i, files in enumerate(order) if part(path) in files]
    left = set().union(*order[:column])
    if part(path) != path.stem:
        left.add(part(path))
    used = {
        name.split(".")[1]
        for name in imports(ast.parse(path.read_text()))
        if name.startswith("utils.")
    }
    assert used <= left, f"{path.name} may not import {sorted(used - left)}"


def declared() -> set[str]:
    """Return the modules that `utils` may import."""
    packages = {"scikit-learn": "sklearn", "pillow": "PIL", "ipython": "IPython"}
    names = [Requirement(text).name for text in project()["dependencies"]]
    # The first comes with IPython.
    return {"matplotlib_inline", "utils", *sys.stdlib_module_names} | {
        packages.get(name, name) for name in names
    }


@pytest.mark.parametrize("path", ALL_OF_UTILS, ids=title)
def test_utils_needs_only_what_pyproject_names(path: Path) -> None:
    used = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}
    assert used <= declared(), f"{path.name} needs {sorted(used - declared())}"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_make_here_installs_what_a_notebook_needs(path: Path) -> None:
    """In another environment (Binder, for example) nothing else is installed."""
    code = "\n".join("".join(cell["source"]) for cell in Chapter.read(path).code)
    used = {name.split(".")[0] for name in imports(ast.parse(code))}
    # The last comes with transformers.
    given = {*declared(), *FOR_NOTEBOOKS, "attention_clinic", "checks", "tools", "tokenizers"}
    assert used <= given, f"{path.name} needs {sorted(used - given)}"


@pytest.mark.parametrize("path", ALL_OF_UTILS, ids=title)
def test_utils_raises_errors_and_does_not_print(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}: raise a ValueError instead"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            speaks = node.func.id == "print" and title(path) not in SPEAK
            assert not speaks, f"{path.name}, line {node.lineno}: only {SPEAK} print"
        if isinstance(node, ast.FunctionDef):
            allowed = path.stem in ("validation", "renamed")
            assert node.args.kwarg is None or allowed, f"{node.name}: no **kwargs"


def test_the_teaching_files_are_read_in_an_evening() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in TEACHING)
    # chapters 00 to 17, and each later one
    assert lines <= 3400 + 300 * len(course().chapters[18:]), f"{lines} lines"


def public(path: Path) -> Iterator[tuple[str, object]]:
    module = importlib.import_module(f"utils.{title(path)}".replace("/", "."))
    for name, value in vars(module).items():
        own = getattr(value, "__module__", "") == module.__name__
        if own and not name.startswith("_") and (inspect.isclass(value) or callable(value)):
            yield name, value


PUBLIC = [(path, name, value) for path in DOCUMENTED for name, value in public(path)]


@pytest.mark.parametrize(
    ("path", "name", "value"), PUBLIC, ids=[f"{path.stem}.{name}" for path, name, _ in PUBLIC]
)
def test_docstring_has_its_blocks(path: Path, name: str, value: object) -> None:
    doc = value.__doc__ or ""
    first = doc.strip().split("\n\n")[0]
    assert first.endswith((".", ":")), f"{name}: the docstring begins with a sentence"
    if path.stem == "validation":  # its first lines say what all functions have in common
        return
    written = inspect.getsource(inspect.unwrap(value))
    signature = inspect.signature(value)
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "device"):
            continue
        assert parameter.annotation is not parameter.empty, f"{name}: {parameter.name} has no type"
        described = re.search(rf"^\s+(\w+, )*{parameter.name}\b", doc, re.M)
        assert described, f"{name}: the docstring does not describe {parameter.name}"
    tensors = "Tensor" in str(signature) or "nn.Module)" in written.split("\n")[0]
    judges = path.stem in ("shapes", "training")
    if tensors and not judges:
        assert re.search(r"^\s*Shape:", doc, re.M), f"{name}: no Shape block"
    if re.search(r"raise ValueError|\bcheck_\w+\(\s*\"", written):
        assert "\n    Raises:" in doc, f"{name} raises, but has no Raises block"
    told = re.search(r"chapters? \d\d", path.read_text(encoding="utf-8").split("\n")[0])
    assert told or "\n    Source:" in doc, f"{name}: no Source line"


# --------------------------------------------------------------------------------- files that agree


def test_utils_says_the_order_of_the_list() -> None:
    import utils

    stated = re.search(r"comes later:\n([\w,\s]+)\.", utils.__doc__).group(1)
    assert re.findall(r"\w+", stated) == [name for group in course().utils for name in group]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(file: str) -> dict[str, str]:
    found = {}
    for line in (ROOT / file).read_text().splitlines():
        if line.strip() and not line.startswith(("#", "-r")):
            wanted, _, reason = line.partition("  # ")
            assert reason.strip(), f"{file}: {wanted} has no reason"
            requirement = Requirement(wanted)
            _, exact, version = str(requirement.specifier).partition("==")
            assert exact, f"{file}: {wanted} is not pinned"
            if not requirement.marker or requirement.marker.evaluate():
                found[requirement.name] = version
    return found


def test_pins_lie_in_the_ranges_of_the_package() -> None:
    pinned = pins("requirements.txt")
    for requirement in map(Requirement, project()["dependencies"]):
        version = pinned.get(requirement.name)
        assert version, f"requirements.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


def test_everything_is_pinned_once() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("-r ")] == ["-r requirements.txt"]
    assert not pins("requirements.txt").keys() & pins("requirements-dev.txt").keys()


def test_the_photographs_and_the_digits_are_what_the_script_makes() -> None:
    script = load(ROOT / "resources" / "make_test_images.py")
    for name, made in (("test_images", script.build()), ("digits", script.split_digits())):
        stored = np.load(ROOT / "resources" / f"{name}.npy", allow_pickle=False)
        assert made.dtype == stored.dtype
        assert np.array_equal(made, stored)


def test_the_drawings_are_what_the_script_draws() -> None:
    script = load(ROOT / "img" / "make_drawings.py")
    pictures = script.drawings()
    drawn = {f"{picture.name}.svg": picture.svg() for picture in pictures}
    files = {path.name for path in ROOT.glob("img/*.svg")}
    assert files == set(drawn), "a drawing is missing or left over"
    # The house is of the size that it has today: test_house.py says when it is too old.
    drawn.pop("house.svg")
    drawn["README.md"] = script.readme(pictures)
    for name, content in drawn.items():
        stored = (ROOT / "img" / name).read_bytes().decode()
        if not WHOLE:  # a student's house lacks some rooms
            house = re.compile(r"\| \[house\.svg.*\n")
            content, stored = house.sub("", content), house.sub("", stored)
        assert stored == content, f"img/{name} is old. Run: make drawings"


def chapters_in(words: str) -> list[str]:
    """Give the numbers of the chapters that are meant by "00 to 06" or "09, 10"."""
    found: list[str] = []
    for part in words.split(", "):
        first, _, last = part.partition(" to ")
        found += [f"{n:02}" for n in range(int(first), int(last or first) + 1)]
    return found


FOR_INSTRUCTORS = pytest.mark.skipif(not WHOLE, reason="students have no page for instructors")


@FOR_INSTRUCTORS
def test_the_minutes_for_instructors_add_up() -> None:
    text = INSTRUCTORS.read_text(encoding="utf-8")
    (table,) = [table for table in rows(text) if "students' minutes" in table[0]]
    listed = {chapter.number: chapter.minutes for chapter in course().chapters}
    told = {number for row in table[1:] for number in chapters_in(row[0])}
    assert listed.keys() <= told, "Add the chapter to the table under Plans"
    for row in table[1:]:
        numbers = chapters_in(row[0])
        if listed.keys() >= set(numbers):
            assert sum(listed[number] for number in numbers) == int(row[-1]), row


HOURS = {"three hours": 3, "four hours": 4, "five hours": 5, "five and a half hours of work": 5.5}


def plans(text: str) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Give (name, length, parts) of each plan for a class; a part is a list of chapters."""
    plan = re.compile(r"\*\*([\w ]+)\*\*(?: \(([^)]+)\))?: ([\w ·,*]*\b\d\d\b[\w ·,*]*)")
    for name, length, told in plan.findall(text):
        parts = [re.findall(r"\b\d\d\b", part) for part in told.split(" · ")]
        yield name, length, [part for part in parts if part]


@FOR_INSTRUCTORS
def test_the_plans_for_instructors_fit_into_their_hours() -> None:
    text = INSTRUCTORS.read_text(encoding="utf-8")
    listed = {chapter.number: chapter.minutes for chapter in course().chapters}
    found = {name: (length, parts) for name, length, parts in plans(text)}
    days = [name for name in found if name.endswith("day")]
    evenings = [name for name in found if name in ("Four evenings", "Eight more")]
    assert len(days) == 4 and len(evenings) == 2
    for names in (days, evenings):
        told = [number for name in names for part in found[name][1] for number in part]
        assert told == sorted(told), "in their order, and none twice"
        # "the clinic of 08 to take home"
        assert listed.keys() - set(told) <= {"08"}, "Add the chapter to the plans"
    for name in days:
        length, parts = found[name]
        hours = HOURS[length.split(", ")[0]]
        numbers = [number for part in parts for number in part]
        if listed.keys() >= set(numbers):
            assert hours - 1 < sum(map(listed.get, numbers)) / 60 <= hours, name
    for name in evenings:
        length, parts = found[name]
        for part in parts:
            minutes_of_part = sum(listed.get(number, 0) for number in part)
            assert minutes_of_part <= int(length.split()[0]), (name, part)


def test_times_are_said_in_words() -> None:
    said = [tables.in_words(seconds) for seconds in (None, 0.2, 4.9, 7.6, 58, 119, 125, 700)]
    words = ["not measured", "below 5 s", "below 5 s", "10 s", "60 s", "120 s", "2 min", "12 min"]
    assert said == words


def test_seconds_are_added_up_where_they_belong() -> None:
    spans = {
        "notebooks/07_encoder.ipynb::Cell 3": 1.0,
        "notebooks/07_encoder.ipynb::Cell 4": 2.0,
        "notebooks/solutions/07_solutions.ipynb::Cell 0": 4.0,
        "tests/test_checks/test_exercises.py::test_the_answers[07.6-wrong]": 8.0,
        "tests/test_course/test_notebooks.py::test_chapter[07_encoder-form]": 16.0,
        "tests/test_utils/test_encoder.py::test_equal[7-2]": 32.0,
    }
    chapter = {"chapter": 3.0, "exercises": 4.0, "tests": 24.0}
    found = collected(spans.items())
    assert {**found, "files": None} == {"chapters": {"07": chapter}, "files": None, "rest": 32.0}
    assert list(found["files"].values()) == [3.0, 4.0, 8.0, 16.0, 32.0]
    assert found["files"]["notebooks/07_encoder.ipynb"] == 3.0


def test_the_tables_are_made_from_the_list_and_the_measurement(tmp_path: Path) -> None:
    tables.main(["--check"])
    with pytest.raises(ValueError, match="must hold tables between two marks, got none"):
        tables.with_table("# Course", course())
    for name in (*tables.WRITTEN, "course.toml", "resources/times.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        for now, old in {" s |": "0 s |", "(6, 8, 37, 96)": "(6, 8, 36, 96)"}.items():
            text = text.replace(now, old)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(
        Refusal, match=r"got old ones in README.md, docs/timings.md, docs/ledger.md"
    ):
        tables.main(["--check"], tmp_path)
    assert all(len(chapter.summary.split()) <= 10 for chapter in course().chapters)


def test_the_front_door_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 1300


def test_readme_shows_what_diagnose_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    code, said = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", text, re.DOTALL).groups()
    exec(code, {"__name__": "readme"})
    assert capsys.readouterr().out == said
    assert len(f"{code}{said}".splitlines()) <= 20


@pytest.mark.parametrize("chapter", course().chapters, ids=lambda chapter: chapter.file)
def test_chapters_say_what_the_list_says(chapter: Listed) -> None:
    top = Chapter.read(chapter.notebook).markdown[0]
    assert top.startswith(f"# {chapter.number} · {chapter.title}\n")
    assert minutes(top) == (chapter.minutes,)
    top = Chapter.read(chapter.exercises).markdown[0]
    assert top.startswith(f"# {chapter.number} Exercises: {chapter.title}\n")
    assert minutes(top) == (chapter.exercise_minutes,)


PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md")]
PAGES += [ROOT / folder / "README.md" for folder in ("clinic", "img", "resources")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_pages_exist(path: Path) -> None:
    assert not broken_links(path.read_text(encoding="utf-8"), path)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_is_content(command: list[str]) -> None:
    call = [sys.executable, "-m", "ruff", *command, "--no-cache", "--output-format=concise", "."]
    result = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
