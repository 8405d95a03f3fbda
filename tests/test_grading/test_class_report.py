"""The class report: results of checks are counted by id, not by their words."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import class_report
from tools.grading.collect import Student, Submission
from tools.grading.grades import ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.results_folder import read_table
from tools.grading.student_report import Result


def student(name: str, *exercises: ExerciseGrade) -> Result:
    made = Student(name, chapters={"03": Submission(None, "03.ipynb")})
    return Result(made, name, [ChapterGrade("03", "03.ipynb", list(exercises))])


def grade(state: str, topic: str = "", words: str = "", named: bool = True) -> ExerciseGrade:
    return ExerciseGrade(
        "03.2", "A <b>title</b>", 0.0, 2.0, CheckResult(state, "x", topic, words, named)
    )


OPEN = ExerciseGrade("03.7", "Open", 0.0, 0.0, CheckResult("open"), written=True)
RESULTS = [
    student("Ada", grade("right"), OPEN),
    student("Bo & Co", grade("not right", "over-queries", "the softmax runs over i"), OPEN),
    student("Cy", grade("not right", "over-queries", "the softmax runs over i (2)")),
    student("Di", grade("not right", "values-differ", "the values are not", named=False)),
    student("Ed", grade("not right", "zoo", "=1+1")),
    student("Fay", grade("not yet")),
    student("<script>Gus</script>", grade("not handed in")),
]


@pytest.fixture
def made(tmp_path):
    class_report.write(tmp_path, RESULTS)
    return tmp_path


def test_equal_causes_are_counted_by_id(made):
    rows = read_table(made / "class.csv")
    of_two = [row for row in rows if row["exercise"] == "03.2"]
    assert {(row["students"], row["tried"], row["solved"]) for row in of_two} == {("7", "5", "1")}
    assert [(row["cause"], row["had_it"], row["words"]) for row in of_two] == [
        ("over-queries", "2", "the softmax runs over i"),
        ("zoo", "1", "'=1+1"),
        ("values-differ", "1", "the values are not"),
    ]
    (of_seven,) = [row for row in rows if row["exercise"] == "03.7"]
    assert (of_seven["tried"], of_seven["solved"], of_seven["cause"]) == ("2", "", "")


def test_the_page_begins_with_the_most_frequent_mistakes(made):
    page = (made / "class.html").read_text(encoding="utf-8")
    top = page[page.index("What to repeat") : page.index("Chapter 03")]
    assert top.index("the softmax runs over i") < top.index("=1+1")
    assert "2 of 7" in top and "the values are not" not in top
    assert re.search(r"2 of 7: the softmax runs over i", page)
    assert "7 students" in page and "1 of 7" in page and "5 of 7" in page


def test_a_mistake_in_two_exercises_is_listed_once():
    same = CheckResult("not right", "x", "over-queries", "w", named=True)
    second = ExerciseGrade("03.4", "B", 0.0, 3.0, same)
    results = [
        *RESULTS,
        student("Hal", second),
        student("Ida", grade("not right", "over-queries"), second),
    ]
    cause, where = class_report.to_repeat(class_report.exercises_of(results))[0]
    assert (cause.topic, where) == ("over-queries", ["03.2", "03.4"])
    assert [r.student.name for r in cause.results] == ["Bo & Co", "Cy", "Ida", "Hal"]


def test_the_page_links_to_students_and_escapes_their_names(made):
    page = (made / "class.html").read_text(encoding="utf-8")
    assert '<a href="feedback/Bo%20%26%20Co.html">Bo &amp; Co</a>' in page
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "A &lt;b&gt;title" in page


def test_the_page_loads_nothing_and_its_tables_have_heads(made):
    page = (made / "class.html").read_text(encoding="utf-8")
    assert not re.search(r"(src=|https?:|@import|<link|<img)", page)
    assert all(target in ("#", "f") for target in re.findall(r'href="(.)', page))
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert "<caption>" in table and 'scope="col"' in table and 'scope="row"' in table
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


def test_an_empty_class_has_a_page(tmp_path):
    class_report.write(tmp_path, [student("Ada", grade("right"))])
    assert "No check named a mistake." in (tmp_path / "class.html").read_text(encoding="utf-8")
