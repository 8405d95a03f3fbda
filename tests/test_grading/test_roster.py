"""The class list, owners of submissions, and questions about them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import late_policy, roster
from tools.grading.collect import Student, Submission
from tools.grading.roster import Matching, Person, Question

MOODLE = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
    "Last modified (submission),Last modified (grade),Feedback comments\n"
    "Participant 901,María-José Núñez,mj@x.org,Submitted for grading,,100.00,Yes,"
    '"Wednesday, 18 November 2026, 11:58 PM",-,\n'
    "Participant 902,Søren Ångström,sa@x.org,No submission,,100.00,Yes,-,-,\n"
)
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Week 1 (77),Current Score\n"
    "    Points Possible,,,,,14,(read only)\n"
    '"Lovelace, Ada",12345,s0012,ada,Section A,,\n'
    '"Student, Test",99,,,Section A,,\n'
)


def list_of(*lines: str, tmp_path: Path) -> roster.Roster:
    path = tmp_path / "class.csv"
    path.write_text("\n".join(["name,id", *lines]), encoding="utf-8")
    return roster.read_roster(path)


def written(text: str, tmp_path: Path, encoding: str = "utf-8") -> Path:
    path = tmp_path / "class.csv"
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("columns", ["name,id", "First Name,Last Name,SID", "Nachname,Vorname,sid"])
def test_an_own_list(encoding, mark, columns, tmp_path):
    line = "Zoë Ångström,007" if columns == "name,id" else "Zoë,Ångström,007"
    text = f"{columns}\n{line}\n".replace(",", mark)
    (person,) = roster.read_roster(written(text, tmp_path, encoding)).people
    assert set(roster.words(person.name)) == {"zoe", "angstrom"}
    assert person.ids == {"007"} and person.id == "007"


def test_moodles_worksheet_and_canvas_gradebook(tmp_path):
    moodle = roster.read_roster(written(MOODLE, tmp_path))
    assert moodle.kind == "moodle" and [p.id for p in moodle.people] == ["901", "902"]
    assert moodle.people[0].submitted == datetime(2026, 11, 18, 23, 58).astimezone()
    assert moodle.people[1].submitted is None
    canvas = roster.read_roster(written(CANVAS, tmp_path))
    assert canvas.kind == "canvas" and [p.name for p in canvas.people] == ["Lovelace, Ada"]
    assert canvas.people[0].ids == {"12345", "s0012", "ada"} and canvas.people[0].id == "12345"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("points,exercise\n1,2\n", "one of them name"),
        ("name,id\n", "one of them name"),
        ("name,id\n,5\n", "got none"),
        ("name,id\nAda,1\nAda,1\n", "got Ada twice"),
    ],
)
def test_an_invalid_list_is_refused_with_advice(text, words, tmp_path):
    with pytest.raises(ValueError, match=r"^ROSTER must .*\. ") as error:
        roster.read_roster(written(text, tmp_path))
    assert words in str(error.value)
    with pytest.raises(ValueError, match="Check the path"):
        roster.read_roster(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("submission", "id", "person"),
    [
        ("Maria Jose Nunez", "", "María-José Núñez"),
        ("NUNEZ, Maria-Jose", "", "María-José Núñez"),
        ("nunezmariajose", "555", "María-José Núñez"),
        ("Juergen Muessig", "", "Jürgen Müßig"),
        ("Jurgen Mussig", "", "Jürgen Müßig"),
        ("OBrien Sean", "", "Sean O'Brien"),
        ("Lukasz Zolc", "", "Łukasz Żółć"),
        ("김민준", "", "김민준"),
        ("Иванов Дмитрий", "", "Дмитрий Иванов"),
        ("s4711", "", "Sean O'Brien"),
        ("Sean O'Brien s4711", "", "Sean O'Brien"),
        ("Sean", "s4711", "Sean O'Brien"),
        ("Jo Li 117", "", "Jo Li"),
        ("Jo Li", "118", "Jo Li"),
    ],
)
def test_names_are_found_without_accents_in_any_order_and_by_number(
    submission, id, person, tmp_path
):
    lines = ["María-José Núñez,1001", "Jürgen Müßig,1002", "Sean O'Brien,s4711"]
    lines += ["Łukasz Żółć,1003", "김민준,1004", "Дмитрий Иванов,1005", "Jo Li,117", "Jo Li,118"]
    found = Matching(list_of(*lines, tmp_path=tmp_path)).whose(submission, id)
    assert isinstance(found, Person), found
    assert found.name == person
    if person == "Jo Li":
        assert found.id == (id or "117")


@pytest.mark.parametrize(
    ("submission", "id", "may_be", "why"),
    [
        ("Jo Li", "", ["Jo Li", "Jo Li"], "several students"),
        ("Ada Lovelac", "", ["Ada Lovelace"], "is similar"),
        ("Ada King Lovelace", "", ["Ada Lovelace"], "is similar"),
        ("A. Lovelace", "", ["Ada Lovelace"], "is similar"),
        ("Jo Li", "1001", ["Ada Lovelace", "Jo Li", "Jo Li"], "to different people"),
        ("Bob Bobson", "1001", ["Ada Lovelace"], "its name does not"),
        ("Nobody Else", "", [], "not in the list"),
    ],
)
def test_doubtful_owners_are_asked_and_not_guessed(submission, id, may_be, why, tmp_path):
    matching = Matching(list_of("Ada Lovelace,1001", "Jo Li,117", "Jo Li,118", tmp_path=tmp_path))
    found = matching.whose(submission, id)
    assert isinstance(found, Question) and why in found.why
    assert [person.name for person in found.candidates] == may_be


def test_answers_count(tmp_path):
    people = list_of("Ada Lovelace,1001", "Jo Li,117", "Jo Li,118", tmp_path=tmp_path)
    answers = {"Al": "1001", "Jo Li": "118", "Guest": "nobody", "A": "ada lovelace"}
    matching = Matching(people, answers)
    assert matching.whose("Al").name == matching.whose("A").name == "Ada Lovelace"
    assert matching.whose("Jo Li").id == "118" and matching.whose("Guest") is None
    for wrong, got in (("Bob", "fits none of its students"), ("Jo Li", "fits 2 of its students")):
        with pytest.raises(ValueError, match=got):
            Matching(people, {"Al": wrong})


def student(name: str, *chapters: str, id: str = "", age: int = 0) -> Student:
    when = datetime(2026, 11, 20).astimezone() - timedelta(days=age)
    sent = {c: Submission(Path(), f"{name}/{c}.ipynb", when=when) for c in chapters}
    return Student(name, id, sent)


def test_students_are_in_the_order_of_the_list_with_or_without_submissions(tmp_path):
    people = list_of("Zed Zorn,1", "Ada Lovelace,2", "Jo Li,117", "Jo Li,118", tmp_path=tmp_path)
    found = [
        student("lovelace ada", "03", age=3),
        student("Ada Lovelace", "03", "04", age=1),
        student("Jo Li", "03"),
        student("Ghost", "03"),
    ]
    students, questions = roster.class_list(found, Matching(people), times=False)
    assert [s.name for s in students] == [
        *("Zed Zorn", "Ada Lovelace", "Jo Li (117)", "Jo Li (118)", "Jo Li", "Ghost")
    ]
    assert not students[0].chapters and set(students[1].chapters) == {"03", "04"}
    assert students[1].chapters["03"].label == "Ada Lovelace/03.ipynb"
    assert "2 submissions: graded Ada" in students[1].chapters["03"].remarks[0]
    assert "possible owner of Jo Li" in students[2].remarks[0]
    assert "Answer in who.csv" in students[4].remarks[0]
    assert [question.submission for question in questions] == ["Jo Li", "Ghost"]
    lines = [["Jo Li", "Jo Li (117) or Jo Li (118)"], ["Ghost", "nobody"]]
    assert roster.who_rows(questions) == lines


def test_the_lists_times_count_before_those_of_files(tmp_path):
    people = roster.read_roster(written(MOODLE, tmp_path))
    found = [student("María-José Núñez", "03", id="901")]
    (first, _), _ = roster.class_list(found, Matching(people), times=False)
    assert first.chapters["03"].clock == "file"
    (first, _), _ = roster.class_list(found, Matching(people), times=True)
    sent = first.chapters["03"]
    assert (sent.clock, sent.when) == ("class list", datetime(2026, 11, 18, 23, 58).astimezone())


@pytest.mark.parametrize(
    ("text", "chapter", "when", "days"),
    [
        ("2026-11-20", "03", "2026-11-20 23:59:59", 0),
        ("2026-11-20", "03", "2026-11-21 00:00:30", 1),
        ("2026-11-20 18:00", "03", "2026-11-21 18:00", 1),
        ("2026-11-20 18:00", "03", "2026-11-21 18:01", 2),
        ("03=2026-11-20, 04=2026-11-27", "04", "2026-11-25 12:00", 0),
        ("03=2026-11-20, 04=2026-11-27", "05", "2030-01-01 12:00", 0),
        ("2026-11-27, 03=2026-11-20 18:00", "03", "2026-11-27 12:00", 7),
        ("", "03", "2026-11-27 12:00", 0),
        ("None", "03", "2026-11-27 12:00", 0),
        ("2026-11-20 18:00+00:00", "03", "2026-11-20 18:30+01:00", 0),
    ],
)
def test_late_days(text, chapter, when, days):
    dates = late_policy.parse(text)
    assert dates.days_late(chapter, datetime.fromisoformat(when).astimezone()) == days
    assert dates.days_late(chapter, None) == 0


def test_points_are_taken_only_with_a_penalty():
    assert late_policy.parse("2026-11-20").penalty(14, 3) == 0
    assert late_policy.parse("2026-11-20", 10).penalty(14, 3) == 4.2
    assert late_policy.parse("2026-11-20", 50).penalty(14, 3) == 14


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        *(("tomorrow", 0), ("20.11.2026", 0), ("2026-13-01", 0), ("3=2026-11-20", 0)),
        *(("03=2026-11-20,03=2026-11-21", 0), ("2026-11-20", 300), ("", 10)),
    ],
)
def test_an_invalid_date_is_refused_with_advice(text, percent):
    with pytest.raises(ValueError, match=r"^(DUE|LATE) must .*got"):
        late_policy.parse(text, percent)
