"""Exports for learning platforms, read by the rules of their importers."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path

import pytest
from test_gradebook import NOON, chapter, graded, missing, week
from test_roster import CANVAS, MOODLE, written

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import manual_grades, roster
from tools.grading.collect import Student, Submission
from tools.grading.gradebook import Entry, Week
from tools.grading.grades import ChapterGrade

NAMED = (("ada", "101"), ("bo", "102"), ("cy", "103"))


def entry(
    name: str, folder: str, grade: ChapterGrade, id: str = "", row: dict | None = None
) -> Entry:
    sent = {grade.chapter: Submission(Path(), f"{folder}", when=NOON)} if grade.file else {}
    return Entry.of(Student(name, id, sent, row=row or {}), [grade])


def moodle(tmp_path: Path) -> Week:
    """A week whose class list is Moodle's grading worksheet."""
    listed = roster.read_roster(written(MOODLE, tmp_path))
    nunez, angstrom = listed.people
    folder = f"{nunez.name}_901_assignsubmission_file_/03_exercises.ipynb"
    entries = (
        entry(nunez.name, folder, chapter("03", 2.0, "An essay."), nunez.id, nunez.row),
        entry(angstrom.name, "", missing("03"), angstrom.id, angstrom.row),
    )
    return week("week 1", *entries, kind=listed.kind, columns=list(listed.columns))


def lines(path: Path) -> list[list[str]]:
    content = path.read_bytes()
    assert not content.startswith(b"\xef\xbb\xbf"), "Ruby's csv reads a BOM as part of a name"
    return list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))


def moodle_takes(path: Path) -> dict[str, tuple[float, str]]:
    """Read a worksheet as importgradeslib.php and locallib.php do: grades by participant."""
    head, *rows = lines(path)
    id, grade, when = (head.index(n) for n in ("Identifier", "Grade", "Last modified (grade)"))
    comment = head.index("Feedback comments")
    taken = {}
    for row in rows:
        assert row[id].startswith("Participant ") and when >= 0
        if row[grade] != "" and 0 <= float(row[grade]) <= 100:
            taken[row[id][len("Participant ") :]] = float(row[grade]), row[comment]
    return taken


def canvas_takes(path: Path) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Read a gradebook as gradebook_importer.rb does: assignments, grades by id, points."""
    head, *rows = lines(path)
    assert len(head) > 3 and "Student" in head[0] and "ID" in head[1]
    count = 3
    if re.search(r"SIS\s+Login\s+ID", head[2]):
        count += 1
    elif re.search(r"SIS\s+User\s+ID", head[2]) and re.search(r"SIS\s+Login\s+ID", head[3]):
        count += 2
    assert "Section" in head[count - 1]
    possible = next(row for row in rows if "Points Possible" in row[0])
    students = {row[1]: row[count:] for row in rows if row is not possible}
    return head[count:], students, possible[count:]


def moodle_finds(path: Path) -> dict[str, str]:
    """Find whose each file is, as is_valid_filename_for_import does."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            info = name.split("/")[0].split("_", 4)
            assert (
                len(info) >= 4 and info[1].isdigit() and info[2:4] == ["assignsubmission", "file"]
            )
            found[info[1]] = archive.read(name).decode()
    return found


def canvas_finds(path: Path) -> dict[tuple[str, str], str]:
    """Find student and attachment of each file, as infer_comment_context_from_filename does."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            parts = [part for part in name.split("_") if part != "LATE"]
            assert parts[0] != "anon" and not re.match("link", parts[-1])
            user, attachment = [part for part in parts if re.fullmatch(r"\d+", part)][:2]
            found[user, attachment] = archive.read(name).decode()
    return found


def test_the_points_possible_of_canvas_are_those_of_most_students(tmp_path):
    """The first student submits an earlier chapter again, and has different sums."""
    first = (entry(name, f"{name}_{id}_{id}9_03.ipynb", chapter("03", 1.0)) for name, id in NAMED)
    graded(tmp_path, week("week 1", *first))
    ada, *rest = NAMED
    again = entry(ada[0], f"{ada[0]}_{ada[1]}_8_03.ipynb", chapter("03", 2.0))
    others = (entry(name, f"{name}_{id}_{id}7_04.ipynb", chapter("04", 1.0)) for name, id in rest)
    graded(tmp_path, week("week 2", again, *others))
    _, students, possible = canvas_takes(tmp_path / "exports" / "canvas.csv")
    assert possible == ["2", "2"]
    assert (students["101"], students["102"]) == (["0", "2"], ["1", "1"])


def test_moodles_worksheet_comes_back_filled_in(tmp_path):
    out = tmp_path / "out"
    graded(out, moodle(tmp_path))
    path = out / "exports" / "week 1 for Moodle.csv"
    assert moodle_takes(path) == {"901": (100.0, "03.1 2/2"), "902": (0.0, "03.1 0/2")}
    head, first, _ = lines(path)
    given = csv.reader(io.StringIO(MOODLE, newline=""))
    assert head == next(given)
    kept = {"Email address": "mj@x.org", "Last modified (grade)": "-", "Maximum Grade": "100.00"}
    assert {name: first[head.index(name)] for name in kept} == kept


def test_a_worksheet_is_made_from_the_names_of_moodles_folders(tmp_path):
    named = [f"{name}_{id}_assignsubmission_file_/x.ipynb" for name, id in (("Ada", 5), ("Bo", 6))]
    entries = [
        entry("Ada", named[0], chapter("03", 2.0)),
        entry("Bo", named[1], chapter("03", 1.0)),
    ]
    graded(tmp_path, week("w", *entries, entry("Cy", "Cy/x.ipynb", chapter("03", 1.0))))
    taken = moodle_takes(tmp_path / "exports" / "w for Moodle.csv")
    assert {id: grade for id, (grade, _) in taken.items()} == {"5": 2.0, "6": 1.0}
    pages = moodle_finds(tmp_path / "exports" / "w feedback for Moodle.zip")
    assert set(pages) == {"5", "6"} and "<h1>Ada</h1>" in pages["5"]


def test_comments_go_with_the_grade(tmp_path):
    out = tmp_path / "out"
    graded(out, moodle(tmp_path))
    (out / manual_grades.FILE).write_text(
        "student,exercise,points,of,comment\nMaria Jose Nunez,3.2,1,2,Fine\n"
    )
    graded(out)
    taken = moodle_takes(out / "exports" / "week 1 for Moodle.csv")
    assert taken["901"] == (75.0, "03.1 2/2; 03.2 1/2; 03.2: Fine")


def test_canvas_gradebook_comes_back_with_its_assignments(tmp_path):
    listed = roster.read_roster(written(CANVAS, tmp_path))
    (ada,) = listed.people
    out = tmp_path / "out"
    late = "lovelaceada_LATE_12345_67890_03_exercises-1.ipynb"
    more = {"kind": listed.kind, "columns": list(listed.columns)}
    graded(out, week("Week 1", entry(ada.name, late, chapter("03", 2.0), ada.id, ada.row), **more))
    graded(out, week("Week 2", entry(ada.name, "", missing("04"), ada.id, ada.row), **more))
    assignments, grades, possible = canvas_takes(out / "exports" / "canvas.csv")
    assert assignments == ["Week 1 (77)", "Week 2"] and possible == ["2", "2"]
    assert grades == {"12345": ["2", "0"]}
    pages = canvas_finds(out / "exports" / "Week 1 feedback for Canvas.zip")
    assert list(pages) == [("12345", "67890")]
    assert not (out / "exports" / "Week 1 for Moodle.csv").exists()


def test_a_canvas_table_is_made_from_the_names_of_files(tmp_path):
    graded(
        tmp_path, week("w", entry("lovelaceada", "lovelaceada_12_34_x.ipynb", chapter("03", 2.0)))
    )
    assert canvas_takes(tmp_path / "exports" / "canvas.csv")[1] == {"12": ["2"]}


def test_every_platform_has_a_table_and_every_student_a_page(tmp_path):
    row = {"name": "Ada", "email": "ada@x.org"}
    due = "2026-11-20 10:30"
    entries = (
        entry("Ada", "Ada/x.ipynb", chapter("03", 1.0), "7", row),
        entry("=1+1", "", missing("03")),
    )
    graded(tmp_path, week("w", *entries, due=due))
    head, ada, other = lines(tmp_path / "exports" / "points.csv")
    assert head == [
        *("Name", "SID", "Email"),
        *("w", "w - Max Points", "w - Submission Time", "w - Lateness (H:M:S)"),
    ]
    assert ada[:5] == ["Ada", "7", "ada@x.org", "1", "2"] and ada[6] == "01:30:00"
    assert ada[5].startswith("2026-11-20 12:00:00 ")
    assert other == ["'=1+1", "", "", "0", "2", "", ""]
    first = (tmp_path / "exports" / "w feedback.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.namelist() == [
            "Ada/feedback.html",
            "=1+1/feedback.html".replace("=", "_").replace("+", "_"),
        ]
    graded(tmp_path)
    assert (tmp_path / "exports" / "w feedback.zip").read_bytes() == first
    assert not list((tmp_path / "exports").glob("*Moodle*")) + list(
        (tmp_path / "exports").glob("*anvas*")
    )


def test_a_page_for_a_week_has_only_this_week(tmp_path):
    graded(tmp_path, week("w", entry("Ada", "Ada/x.ipynb", chapter("03", 1.0))))
    graded(tmp_path, week("v", entry("Ada", "Ada/y.ipynb", chapter("04", 2.0))))
    with zipfile.ZipFile(tmp_path / "exports" / "v feedback.zip") as archive:
        page = archive.read("Ada/feedback.html").decode()
    assert "Chapter 04" in page and "Chapter 03" not in page and "2 of 2 points" in page
    assert "Chapter 03" in (tmp_path / "feedback" / "Ada.html").read_text(encoding="utf-8")
