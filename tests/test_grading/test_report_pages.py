"""The tables and the pages."""

from __future__ import annotations

import csv
import io

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import student_report
from tools.grading.collect import IgnoredFile, Student, Submission
from tools.grading.grades import ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.results_folder import Typed
from tools.grading.student_report import Result


def result(name: str = "Ada", **grade) -> Result:
    student = Student(name, "77", {"03": Submission(None, "03.ipynb", late=True)})
    cell = {"number": 2, "kind": "code", "source": "x = '<b>'", "text": "", "pictures": []}
    done = ExerciseGrade("03.1", "One", 1.0, 1.0, CheckResult("right", "shapes agree."), [cell])
    return Result(student, "page", [ChapterGrade("03", "03.ipynb", [done], **grade)])


def written(tmp_path, *results: Result) -> list[str]:
    student_report.write(
        tmp_path,
        list(results),
        Typed(tmp_path / "nowhere", {k: () for k in ("grades.csv", "totals.csv")}),
    )
    return (tmp_path / "grades.csv").read_text(encoding="utf-8-sig").splitlines()


@pytest.mark.parametrize("name", ["Ada;=1+1", "Ada; =cmd|'x'", 'A "B";=2', "=1;+2", "A\n;=1"])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_nothing_becomes_a_formula_whatever_ends_a_cell(name, delimiter, tmp_path):
    made = result(name, reason=f"read {name}; -1; @x")
    made.grades[0].file = f"{name}.ipynb"
    for line in written(tmp_path, made):
        for cell in next(csv.reader([line], delimiter=delimiter)):
            assert not cell.strip().startswith(("=", "+", "-", "@")), line


def test_a_name_is_one_cell_whatever_ends_a_cell(tmp_path):
    _, line = written(tmp_path, result("Ada;=1+1"))
    (first, *_), (whole, *_) = (next(csv.reader([line], delimiter=d)) for d in ",;")
    assert first == "Ada;=1+1"
    assert whole.startswith("Ada;=1+1")


def test_the_id_and_the_lateness_have_columns(tmp_path):
    lines = written(tmp_path, result(reason="why", remarks="odd"))
    (row,) = csv.DictReader(io.StringIO("\n".join(lines)))
    assert (row["student"], row["id"], row["late"]) == ("Ada", "77", "late")
    assert row["reason"] == "why; odd"


def test_a_page_shows_cells_outside_of_exercises_and_hides_remarks():
    outside = {
        "number": 1,
        "kind": "code",
        "source": "import numpy as np",
        "text": "",
        "pictures": [],
    }
    page = student_report.feedback(result(outside=[outside], reason="why", remarks="suspicious"))
    assert "Outside of the exercises" in page and "import numpy as np" in page
    assert "why" in page and "suspicious" not in page
    assert "&lt;b&gt;" in page
    assert "Outside of the exercises" not in student_report.feedback(result())


def test_a_page_names_ignored_files_that_may_be_work():
    made = result()
    made.student.ignored += [
        IgnoredFile("a.rar", "not opened"),
        IgnoredFile("b.png", "no notebook", likely=False),
    ]
    page = student_report.feedback(made)
    assert "a.rar: not opened" in page and "b.png" not in page


def test_pages_never_share_a_name():
    taken: set[str] = set()
    names = ["Ada", "ada", "a/b", "a:b", "..", "ADA", "x" * 500, "Ada 2"]
    made = [student_report.page_name(name, taken) for name in names]
    assert len({name.casefold() for name in made}) == len(names)
    assert made[:4] == ["Ada", "ada 2", "a_b", "a_b 2"]
    assert all("/" not in name and len(name) < 130 for name in made)
