"""The gradebook of a term: manual grades, weeks, lateness, grade changes."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import sys
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

import checks
from checks.engine import verdict
from tools.grading import grade_changes, gradebook, manual_grades, results_folder, roster
from tools.grading.collect import Student, Submission
from tools.grading.gradebook import Entry, Gradebook, Week
from tools.grading.grades import OLD_KEYS, ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.publish import publish
from tools.grading.results_folder import read_table

NOON = datetime(2026, 11, 20, 12).astimezone()


def cell(source: str, kind: str = "code") -> dict[str, Any]:
    return {"number": 3, "kind": kind, "source": source, "text": "", "pictures": [], "id": ""}


def chapter(number: str, got: float, essay: str = "", state: str = "right") -> ChapterGrade:
    checked = ExerciseGrade(
        f"{number}.1", "One", got, 2.0, CheckResult(state, "so"), [cell("x = 1")]
    )
    wrote = [cell(essay, "markdown")] if essay else []
    is_open = ExerciseGrade(
        f"{number}.2", "Two", 0.0, 0.0, CheckResult("open"), cells=wrote, written=bool(essay)
    )
    return ChapterGrade(number, f"{number}.ipynb", [checked, is_open])


def missing(number: str) -> ChapterGrade:
    grade = chapter(number, 0.0, state="not handed in")
    grade.exercises[0].cells = []
    return ChapterGrade(number, "", grade.exercises, "not handed in")


def entry(
    name: str, *grades: ChapterGrade, id: str = "", when: datetime | None = NOON, **row: str
) -> Entry:
    sent = {m.chapter: Submission(Path(), m.file, when=when) for m in grades if m.file}
    return Entry.of(Student(name, id, sent, row=row), list(grades))


def week(name: str, *entries: Entry, **more: Any) -> Week:
    chapters = sorted({grade.chapter for e in entries for grade in e.grades})
    return Week(name, chapters, entries=list(entries), **more)


def graded(out: Path, new: Week | None = None, *, chosen: bool = False) -> list[str]:
    """Write results as a run does."""
    book = Gradebook(out)
    if new is not None:
        book.put(copy.deepcopy(new), chosen=chosen)
    book.settle()
    with results_folder.unfinished(out) as made:
        return publish(book, new or book.weeks[-1], made)


def table(out: Path, name: str) -> list[dict[str, str]]:
    return read_table(out / name)


def typed(out: Path, **cells: str) -> None:
    """Edit the first row of by_hand.csv, with a German spreadsheet."""
    rows = table(out, manual_grades.FILE)
    rows[0] |= cells
    with (out / manual_grades.FILE).open("w", encoding="cp1252", newline="") as file:
        lines = csv.DictWriter(file, manual_grades.COLUMNS, delimiter=";")
        lines.writeheader()
        lines.writerows(rows)


FIRST = week("week 1", entry("Ada", chapter("03", 2.0, "An essay.")), entry("Bo", missing("03")))


def test_manual_grades_survive_every_new_run(tmp_path):
    graded(tmp_path, FIRST)
    (row,) = table(tmp_path, "by_hand.csv")
    assert (row["student"], row["exercise"], row["points"]) == ("Ada", "exercise 03.2", "")
    assert table(tmp_path, "grades.csv")[0]["to_read"] == "1"
    typed(tmp_path, points="1,5", of="3", comment="Schön:\nweiter so")
    for _ in range(2):
        assert graded(tmp_path, FIRST) and graded(tmp_path)
        (row,) = table(tmp_path, "by_hand.csv")
        assert (row["points"], row["of"], row["comment"]) == ("1.5", "3", "Schön:\nweiter so")
        ada, bo = table(tmp_path, "grades.csv")
        assert (ada["points"], ada["possible"], ada["to_read"]) == ("3.5", "5", "0")
        assert ada["exercises"] == "03.1 2/2; 03.2 1.5/3 by hand"
        assert (bo["points"], bo["possible"]) == ("0", "5")
        page = (tmp_path / "feedback" / "Ada.html").read_text(encoding="utf-8")
        assert "Schön:\nweiter so" in page and "read by the instructor" in page


def test_the_class_report_warns_of_a_week_without_isolation(tmp_path):
    for isolation, warns in (("podman", False), ("plain", True)):
        graded(tmp_path, week("w", entry("Ada", chapter("03", 2.0)), isolation=isolation))
        page = (tmp_path / "class.html").read_text(encoding="utf-8")
        assert ("no isolation" in page) is warns


def test_unread_answers_that_are_worth_points_are_reported(tmp_path):
    both = [entry(name, chapter("03", 2.0, f"An essay of {name}.")) for name in ("Ada", "Bo")]
    told = "open answers to 03.2 not read yet, with 0 points until then: 1"
    assert told not in graded(tmp_path, week("w", *both))
    typed(tmp_path, points="1", of="3")
    assert told in graded(tmp_path)


def test_an_answer_that_changed_after_reading_must_be_read_again(tmp_path):
    graded(tmp_path, FIRST)
    typed(tmp_path, points="1")
    other = week("week 1", entry("Ada", chapter("03", 2.0, "Another.")), entry("Bo", missing("03")))
    for _ in range(2):
        graded(tmp_path, other)
        (row,) = table(tmp_path, "by_hand.csv")
        assert row["note"] == manual_grades.AGAIN and row["points"] == "1"
        assert table(tmp_path, "grades.csv")[0]["to_read"] == "1"
    typed(tmp_path, answer="")
    graded(tmp_path, other)
    assert not table(tmp_path, "by_hand.csv")[0]["note"]
    assert table(tmp_path, "grades.csv")[0]["to_read"] == "0"


def test_manual_points_replace_those_of_a_check(tmp_path):
    graded(tmp_path, week("week 1", entry("Ada", chapter("03", 0.0, state="not right"))))
    (tmp_path / "by_hand.csv").write_text("student,exercise,points\nAda,3.1,2\n")
    graded(tmp_path)
    (row,) = table(tmp_path, "grades.csv")
    assert (row["points"], row["exercises"]) == ("2", "03.1 2/2 by hand")
    assert table(tmp_path, "moved.csv")[0]["why"] == "given by hand"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("Ada,03.2,two,", "points must be a number, got 'two' in line 2"),
        ("Ada,03.2,-1,", "points must be a number"),
        ("Ada,essay,1,", "Write an exercise as 03.8"),
        (",03.2,1,", "must name a student"),
        ("Ada,03.2,1,\nAda,03.2,2,", "must have one line"),
        ("Ada,03.2,1,3\nBo,03.2,2,4", "must be the same for all"),
        ("Ada,03.2,5,3", "points must be at most 3"),
    ],
)
def test_invalid_rows_are_refused_before_anything_runs(lines, words, tmp_path):
    (tmp_path / "by_hand.csv").write_text(f"student,exercise,points,of\n{lines}\n")
    with pytest.raises(ValueError, match=r"^by_hand.csv: ") as error:
        Gradebook(tmp_path)
    assert words in str(error.value)


def test_a_row_about_no_student_is_reported_and_kept(tmp_path):
    graded(tmp_path, FIRST)
    (tmp_path / "by_hand.csv").write_text("student,exercise,points\nZed,03.2,2\n")
    assert "by_hand.csv, line 2: exercise 03.2 of Zed is not in this gradebook" in graded(tmp_path)
    rows = table(tmp_path, "by_hand.csv")
    assert ("Zed", "2") in [(row["student"], row["points"]) for row in rows]


def test_one_gradebook_holds_several_weeks(tmp_path):
    graded(tmp_path, FIRST)
    assert not any(name.endswith(": points") for name in table(tmp_path, "totals.csv")[0])
    second = week("week 2", entry("Bo", chapter("04", 1.0)), entry("Cy", chapter("04", 2.0)))
    graded(tmp_path, second)
    rows = {row["student"]: row for row in table(tmp_path, "totals.csv")}
    assert {name: row["points"] for name, row in rows.items()} == {"Ada": "2", "Bo": "1", "Cy": "2"}
    assert {row["possible"] for row in rows.values()} == {"4"}
    assert (rows["Ada"]["week 1: points"], rows["Ada"]["week 2: points"]) == ("2", "0")
    assert (rows["Cy"]["week 1: of"], rows["Cy"]["week 2: points"]) == ("2", "2")
    lines = {(row["student"], row["chapter"]): row for row in table(tmp_path, "grades.csv")}
    assert lines["Ada", "04"]["reason"] == "not handed in" and len(lines) == 6
    assert lines["Cy", "04"]["week"] == "week 2"
    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "week 2" in page and "2 students" in page
    graded(tmp_path, FIRST)  # again: it replaces itself
    assert [week.name for week in Gradebook(tmp_path).weeks] == ["week 1", "week 2"]
    assert len(table(tmp_path, "totals.csv")) == 3


def test_a_chapter_in_two_weeks_counts_once(tmp_path):
    graded(tmp_path, FIRST)
    late = week("week 2", entry("Bo", chapter("03", 2.0)), entry("Ada", missing("03")))
    graded(tmp_path, late)
    lines = {row["student"]: row for row in table(tmp_path, "grades.csv")}
    assert (lines["Ada"]["points"], lines["Ada"]["week"]) == ("2", "week 1")
    assert (lines["Bo"]["points"], lines["Bo"]["week"]) == ("2", "week 2")
    graded(tmp_path, week("week 3", entry("Bo", chapter("03", 1.0))))
    (bo,) = [row for row in table(tmp_path, "grades.csv") if row["student"] == "Bo"]
    assert bo["points"] == "1" and "also submitted in week 2: 2 of 2" in bo["reason"]


def test_a_resubmission_changes_no_other_grades(tmp_path):
    """For all other students, the chapter and its due date stay in the first week."""
    both = entry("Ada", chapter("03", 1.0)), entry("Bo", chapter("03", 2.0)), entry("Cy")
    graded(tmp_path, week("week 1", *both, due="2026-11-20 12:00", percent=25.0))
    late = entry("Ada", chapter("03", 2.0), chapter("04", 2.0), when=NOON + timedelta(hours=25))
    graded(tmp_path, week("week 2", late, entry("Cy"), due="04=2026-11-27", percent=25.0))
    totals = {row["student"]: row for row in table(tmp_path, "totals.csv")}
    of_weeks = {n: (row["week 1: of"], row["week 2: of"]) for n, row in totals.items()}
    assert of_weeks == {"Ada": ("0", "4"), "Bo": ("2", "2"), "Cy": ("2", "2")}
    days = {
        (row["student"], row["chapter"]): row["days_late"] for row in table(tmp_path, "grades.csv")
    }
    assert (days["Ada", "03"], days["Ada", "04"]) == ("2", "")
    assert {row["exercise"][:2] for row in table(tmp_path, "class.csv")} == {"04"}
    graded(tmp_path, week("week 3", entry("Ada", chapter("03", 2.0)), entry("Bo", missing("03"))))
    (row,) = [row for row in table(tmp_path, "class.csv") if row["exercise"] == "03.1"]
    assert (row["students"], row["solved"]) == ("2", "2")


def test_the_reason_for_a_missing_notebook_stays_in_later_weeks(tmp_path):
    broken = missing("03")
    broken.reason = "not handed in; ada.rar: an archive"
    graded(tmp_path, week("week 1", entry("Ada", broken), entry("Bo", chapter("03", 2.0))))
    graded(tmp_path, week("week 2", entry("Ada", missing("03")), entry("Bo", chapter("03", 1.0))))
    assert table(tmp_path, "grades.csv")[0]["reason"] == broken.reason


def test_grading_one_chapter_keeps_the_others_of_its_week(tmp_path):
    both = week("week 1", entry("Ada", chapter("03", 2.0), chapter("04", 2.0)))
    graded(tmp_path, both)
    graded(tmp_path, week("week 1", entry("Ada", chapter("04", 1.0))), chosen=True)
    assert [row["points"] for row in table(tmp_path, "grades.csv")] == ["2", "1"]
    graded(tmp_path, week("week 1", entry("Ada", chapter("04", 1.0))))
    assert [row["chapter"] for row in table(tmp_path, "grades.csv")] == ["04"]


def test_late_days_are_a_column_and_cost_points_only_with_a_penalty(tmp_path):
    late = entry("Ada", chapter("03", 2.0), when=NOON + timedelta(hours=25))
    graded(tmp_path, week("week 1", late, entry("Bo", chapter("03", 2.0)), due="2026-11-20 12:00"))
    ada, bo = table(tmp_path, "grades.csv")
    assert (ada["late"], ada["days_late"], ada["points"]) == ("late", "2", "2")
    assert ada["handed_in"].startswith("2026-11-21 13:00")
    assert (bo["late"], bo["days_late"]) == ("", "")
    taking = week("week 1", late, due="2026-11-20 12:00", percent=25.0)
    graded(tmp_path, taking)
    (ada,) = table(tmp_path, "grades.csv")
    assert ada["points"] == "1" and "2 days late: 1 of 2 points taken" in ada["reason"]
    assert "2 days late" in (tmp_path / "feedback" / "Ada.html").read_text(encoding="utf-8")
    moved_now = table(tmp_path, "moved.csv")[0]
    assert moved_now["why"] == "late by the current due date"
    assert (moved_now["before"], moved_now["now"]) == ("0", "-1")
    graded(tmp_path, week("week 1", late))  # again, as after a corrected check
    (ada,) = table(tmp_path, "grades.csv")
    assert (ada["points"], ada["days_late"]) == ("1", "2")
    graded(tmp_path, week("week 1", late, due="none"))
    (ada,) = table(tmp_path, "grades.csv")
    assert (ada["points"], ada["days_late"]) == ("2", "")


CHECKS = {"03.1": ["own", "chapter", "all"]}


@pytest.mark.parametrize(
    ("checks", "points", "file", "source", "why"),
    [
        (["new", "chapter", "all"], 0.0, "03.ipynb", "x = 1", "the check of 03.1 was changed"),
        (["own", "new", "all"], 0.0, "03.ipynb", "x = 1", "the checks of chapter 03 were changed"),
        (["own", "chapter", "new"], 0.0, "03.ipynb", "x = 1", "code of all checks was"),
        (CHECKS["03.1"], 0.0, "03.ipynb", "x = 2", "the answer was changed"),
        (CHECKS["03.1"], 0.0, "b.ipynb", "x = 1", "b.ipynb counts instead of 03.ipynb"),
        (CHECKS["03.1"], 0.0, "", "x = 1", "no longer submitted"),
        (CHECKS["03.1"], 0.0, "03.ipynb", "x = 1", grade_changes.UNEXPLAINED),
        (["new", "chapter", "all"], 2.0, "03.ipynb", "x = 2", None),
    ],
)
def test_grade_changes_have_a_cause(checks, points, file, source, why, tmp_path):
    others = [entry(name, chapter("03", 2.0)) for name in ("Bo", "Cy")]
    graded(tmp_path, week("week 1", entry("Ada", chapter("03", 2.0)), *others, checks=CHECKS))
    assert not (tmp_path / "moved.csv").exists()
    grade = chapter("03", points, state="not right")
    grade.file, grade.exercises[0].cells = file, [cell(source)]
    now = week("week 1", entry("Ada", grade), *others, checks={"03.1": checks})
    said = graded(tmp_path, now)
    rows = table(tmp_path, "moved.csv")
    if why is None:
        assert not rows and "no grades have changed since the earlier run" in said
        return
    (row,) = rows
    assert (row["student"], row["before"], row["now"]) == ("Ada", "2", "0")
    assert row["why"].startswith(why) and said[0].startswith("grades of 1 student ")
    assert (row["said_before"], row["says_now"]) == ("right: so", "not right: so")


def test_a_changed_check_is_reported_for_the_week_that_was_graded_again(tmp_path):
    """A different week with a resubmission still has the old check."""
    bo = entry("Bo", chapter("03", 1.0))
    graded(tmp_path, week("week 1", entry("Ada", chapter("03", 2.0)), bo, checks=CHECKS))
    graded(tmp_path, week("week 2", entry("Bo", chapter("03", 2.0)), checks=CHECKS))
    new = {"03.1": ["new", "chapter", "all"]}
    graded(tmp_path, week("week 1", entry("Ada", chapter("03", 0.0)), bo, checks=new))
    (row,) = table(tmp_path, "moved.csv")
    assert (row["student"], row["why"]) == ("Ada", "the check of 03.1 was changed")


def test_hashes_distinguish_what_a_verdict_depends_on(tmp_path, monkeypatch):
    """A changed check changes the hash of its own exercise only."""
    text = (grade_changes.ROOT / "checks" / "chapter_03.py").read_text(encoding="utf-8")
    text = text.replace('exercise("03.', 'exercise("98.')
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])

    def hashes(text: str) -> dict[str, tuple[str, str, str]]:
        (tmp_path / "chapter_98.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(verdict, "EXERCISES", {})
        monkeypatch.delitem(sys.modules, "checks.chapter_98", raising=False)
        return grade_changes.checks_of("98")

    before = hashes(text)
    assert {"98.1", "98.2"} <= set(before) and "98.7" not in before, "98.7 is open"
    assert hashes(text + "\n# a comment\n") == before
    after = hashes(text.replace('return "gives-both-shapes"', 'return "gives"', 1))
    assert [id for id in before if before[id] != after[id]] == ["98.1"]
    rest = hashes(text + "\nMORE = 1\n")
    assert all(rest[id][0] == before[id][0] and rest[id][1] != before[id][1] for id in before)


def test_a_stored_week_is_read_unchanged(tmp_path):
    own = entry("Ada", chapter("03", 2.0, "An essay."), id="7", Name="Ada", email="a@x.org")
    new = week("week 1", own, due="2026-11-20", percent=5.0, kind="own", columns=["Name", "email"])
    graded(tmp_path, new)
    (back,) = Gradebook(tmp_path).weeks
    assert json.dumps(asdict(back)) == json.dumps(asdict(new))
    assert [p.name for p in Gradebook(tmp_path).latest_roster().people] == ["Ada"]
    assert gradebook.week_name(Path("/x/Woche 3"), None) == "Woche 3"
    assert gradebook.week_name(Path("/x/y"), "../a/b: c") == "_a_b_ c"


def old_keys(plain: Any) -> Any:
    """Return the JSON of version 1.0: other keys, and the result of a check among the others."""
    if isinstance(plain, list):
        return [old_keys(part) for part in plain]
    if not isinstance(plain, dict):
        return plain
    names = {new: old for old, new in OLD_KEYS.items()}
    result = plain.get("result", {})
    kept = {name: value for name, value in {**plain, **result}.items() if name != "result"}
    kept = {name: value for name, value in kept.items() if not (result and name == "remarks")}
    return {names.get(name, name): old_keys(value) for name, value in kept.items()}


def test_a_gradebook_of_version_1_0_is_read(tmp_path):
    graded(tmp_path, FIRST)
    (path,) = (tmp_path / ".gradebook").glob("week-*")
    plain = json.loads(gzip.decompress(path.read_bytes()))
    assert "marks" in str(old_keys(plain)) and "'result'" not in str(old_keys(plain))
    path.write_bytes(gzip.compress(json.dumps(old_keys(plain)).encode()))
    assert [asdict(week) for week in Gradebook(tmp_path).weeks] == [
        asdict(Week.from_plain(plain)),
    ]


def test_an_answer_in_who_csv_assigns_a_submission_without_a_new_run(tmp_path):
    listed = [entry("Ada Lovelace", missing("03"), Name="Ada Lovelace", sid="7")]
    listed[0].remarks = ["possible owner of Al: see who.csv"]
    asked = [["Al", "Ada Lovelace (7)"], ["Guest", "nobody"]]
    strangers = [entry("Al", chapter("03", 2.0)), entry("Guest", chapter("03", 1.0))]
    columns = ["Name", "sid"]
    first = week("w", *listed, *strangers, kind="own", columns=columns, asked=asked)
    graded(tmp_path, first)
    assert [row["points"] for row in table(tmp_path, "grades.csv")] == ["0", "2", "1"]
    assert [row["is"] for row in table(tmp_path, "who.csv")] == ["", ""]
    (tmp_path / "who.csv").write_text("handed_in;might_be;is\nAl;;7\nGuest;;nobody\n")
    for _ in range(2):
        graded(tmp_path)
        ada, guest = table(tmp_path, "grades.csv")
        assert (ada["student"], ada["points"], ada["file"]) == ("Ada Lovelace", "2", "03.ipynb")
        assert ada["reason"] == "submitted as Al"
        assert guest["student"] == "Guest" and roster.OF_NOBODY in guest["reason"]
        answers = {row["handed_in"]: row["is"] for row in table(tmp_path, "who.csv")}
        assert answers == {"Al": "7", "Guest": "nobody"}
    (tmp_path / "who.csv").write_text("handed_in,might_be,is\nGuest,,Bob\n")
    with pytest.raises(ValueError, match="fits none of its students"):
        graded(tmp_path)
