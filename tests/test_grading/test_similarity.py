"""Similar answers, and the sentences to start the next lecture with."""

from __future__ import annotations

import pytest
from test_class_report import OPEN, RESULTS, grade, student

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import class_report, lecture_summary, similarity
from tools.grading.collect import Student
from tools.grading.grades import ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.student_report import Result

STUB = """def softmax(scores):
    largest = scores.amax(dim=-1, keepdim=True)
    # your code here
    pass"""
ANSWER = """def softmax(scores):
    largest = scores.amax(dim=-1, keepdim=True)
    powers = torch.exp(scores - largest)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total
"""
RENAMED = '''# mine alone
def softmax(s: Tensor) -> Tensor:
    """Shares."""
    largest = s.amax(dim=-1, keepdim=True)
    p = torch.exp( s - largest )  # powers

    t = p.sum(dim=-1,
              keepdim=True)
    return p / t
'''
OTHER = ANSWER.replace("powers / total", "powers * (1 / total)")


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        (ANSWER, True),
        (RENAMED, True),
        (f"import torch\n\n%time 1\n{ANSWER}\n", True),
        (ANSWER.replace("total", "summe"), True),
        (OTHER, False),
        (ANSWER.replace("dim=-1", "dim=-2"), False),
        (ANSWER.replace("exp", "exp2"), False),
    ],
)
def test_answers_are_equal_without_names_comments_and_layout(text, is_same):
    assert (similarity.normal_form(text) == similarity.normal_form(ANSWER)) is is_same
    assert similarity.normal_form(ANSWER) is not None


@pytest.mark.parametrize(
    ("text", "stub"),
    [
        ("def softmax(scores):\n    return scores.softmax(-1)", ""),
        (STUB.replace("# your code here\n    pass", "return 2 * largest"), STUB),
        (STUB, STUB),
        ("", ""),
        ("x = (1,", ""),
    ],
)
def test_short_and_released_code_is_ignored(text, stub):
    assert similarity.normal_form(text, [stub]) is None


def test_code_that_does_not_parse_is_compared_by_its_words():
    broken = ANSWER + "    return ("
    assert similarity.normal_form(broken) == similarity.normal_form(
        broken.replace("\n    p", "\n\n\n    p")
    )
    assert similarity.normal_form(broken) != similarity.normal_form(broken.replace("powers", "p"))


def wrote(name: str, *sources: str, kind: str = "code", state: str = "right") -> Result:
    grades = [
        ExerciseGrade(
            f"03.{n}",
            "A <b>",
            1.0,
            1.0,
            CheckResult(state if kind == "code" else "open"),
            cells=[{"number": 1, "kind": kind, "source": source, "text": "", "pictures": []}],
            written=True,
        )
        for n, source in enumerate(sources, start=2)
    ]
    return Result(Student(name), name, [ChapterGrade("03", "x.ipynb", grades)])


def test_pairs_with_most_shared_answers_come_first(tmp_path):
    second = ANSWER.replace("exp", "exp2")
    results = [
        wrote("Ada", ANSWER, second),
        wrote("Bo", OTHER),
        wrote("<Cy>", RENAMED.replace(": Tensor) -> Tensor", ")"), second, state="not right"),
        wrote("Di", second.replace("amax", "amin")),
    ]
    (pair,) = similarity.pairs_of(results, {})
    assert [r.student.name for r in (pair.first, pair.second)] == ["Ada", "<Cy>"]
    assert [(s.exercise, s.is_exact, s.state) for s in pair.same] == [
        ("03.2", False, "with different verdicts"),
        ("03.3", True, "with different verdicts"),
    ]
    similarity.write(tmp_path, results, {})
    page = (tmp_path / "same.html").read_text(encoding="utf-8")
    assert "&lt;Cy&gt;" in page and "<Cy>" not in page and "no accusation" not in page
    assert "<script" not in page and "2 answers" in page
    rows = (tmp_path / "same.csv").read_text(encoding="utf-8-sig").splitlines()
    assert rows[1] == '"Ada","<Cy>","2","1","03.2; 03.3"'


def test_answers_of_many_students_make_no_pair():
    four = [wrote(name, ANSWER) for name in ("Ada", "Bo", "Cy")]
    assert similarity.pairs_of(four, {}) == []
    assert len(similarity.pairs_of(four[:2], {})) == 1
    many = four + [wrote(f"S{n}", OTHER.replace("1", str(n + 2))) for n in range(30)]
    assert len(similarity.pairs_of(many, {})) == 3  # three of 33 are few


def test_equal_prose_makes_a_pair():
    essay = "The keys that match best get the largest weights, and the rest of them get the rest."
    results = [
        wrote(name, text, kind="markdown") for name, text in (("A", essay), ("B", essay.upper()))
    ]
    (pair,) = similarity.pairs_of(results, {})
    assert not pair.same[0].is_exact and pair.same[0].state == "open"
    assert not similarity.pairs_of([wrote(n, "I do not know.", kind="markdown") for n in "AB"], {})
    assert not similarity.pairs_of(results, {"03.2": [essay, essay.upper()]})
    noted = [wrote(name, f"# {text}\nx = 1") for name, text in (("A", essay), ("B", essay.upper()))]
    assert len(similarity.pairs_of(noted, {})) == 1
    assert not similarity.pairs_of(noted, {"03.2": [f"# {essay}", f"# {essay.upper()}"]})


def spoken(results: list[Result]) -> list[str]:
    exercises = class_report.exercises_of(results)
    return lecture_summary.sentences(
        exercises, class_report.to_repeat(exercises), {"03": len(results)}
    )


def test_three_sentences_for_the_lecture_come_from_the_reasons():
    first, second, third = spoken(RESULTS)
    assert first == (
        "In 03.2 (A <b>title</b>), 2 of 5 students who tried it had the same mistake: "
        "the softmax runs over i."
    )
    left_out = "2 of 7 students with chapter 03 left out 03.2 (A <b>title</b>)"
    assert second == f"{left_out}: show its first step."
    assert (
        third == "2 of 7 students answered the open exercise 03.7 (Open): read two answers aloud."
    )
    different = [
        student(f"S{n}", grade("not right", "values-differ", "so", named=False)) for n in range(3)
    ]
    assert spoken(different)[0].startswith("All 3 students who tried 03.2")


def test_sentences_name_the_exercise_left_out_and_the_solved_ones():
    blank = [student(f"S{n}", grade("not yet")) for n in range(5)]
    assert spoken(blank)[0].startswith("All 5 students with chapter 03 left out 03.2")
    solved = [student(f"S{n}", grade("right")) for n in range(3)]
    assert spoken(solved)[0] == "All students solved 03.2: there is nothing to repeat."
    wrote = [student("A", grade("right"), OPEN), student("B", grade("right"))]
    read = "1 of 2 students answered the open exercise 03.7 (Open): read two answers aloud."
    assert spoken(wrote)[1] == read
    assert 1 <= len(spoken(solved)) <= 3


def test_students_without_a_chapter_left_out_no_exercise_of_it(tmp_path):
    """Two submitted this chapter, three a different one: none left out an exercise."""
    absent = [student(f"S{n}", grade("not handed in")) for n in range(3)]
    for result in absent:
        result.student.chapters["04"] = result.student.chapters.pop("03")
    class_report.write(
        tmp_path, [student("A", grade("right")), student("B", grade("right")), *absent]
    )
    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "left out" not in page and "All students solved 03.2" in page


def test_the_page_shows_the_sentences(tmp_path):
    class_report.write(tmp_path, RESULTS, "week <1>")
    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    top = page[page.index("To start the next lecture") : page.index("What to repeat")]
    assert top.count("<li>") == 3 and "2 of 5 students who tried it had" in top
    assert "week &lt;1&gt;" in page
