"""Hostile submissions: links, zip files, notebooks, names, tables and pages.

Each test also shows that the attack works on a naive reader.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import struct
import sys
import time
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_collect import STEM, STEMS, zipped
from test_gradebook import entry, graded, week

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import collect, notebook_file, similarity, student_report, suspicion
from tools.grading.collect import Student, Submission
from tools.grading.grades import ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.made_up_submissions import Assignment, assignment_of, raw
from tools.grading.notebook_file import Unreadable, tidy
from tools.grading.overwrite_cells import overwrite_cells
from tools.grading.student_report import Result


@pytest.fixture(scope="module")
def chapter() -> Assignment:
    return assignment_of("03")


def found(folder: Path) -> dict[str, Student]:
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    students, _ = collect.collect(folder, STEMS, scratch)
    out = [p for p in folder.parent.rglob("*") if "outside" in p.name and scratch not in p.parents]
    assert not out and not list(Path("/tmp").glob("outside*")), "a file outside of the folder"
    return {student.name: student for student in students}


# -------------------------------------------------------------------------------------------- links


def test_a_link_to_the_work_of_another_student_is_not_followed(tmp_path, chapter):
    folder = tmp_path / "class"
    (folder / "Ada").mkdir(parents=True)
    (folder / "Ada" / f"{STEM}.ipynb").write_bytes(raw(chapter.solved()))
    (folder / "Eve").mkdir()
    (folder / "Eve" / f"{STEM}.ipynb").symlink_to(folder / "Ada" / f"{STEM}.ipynb")
    (folder / "Eve" / "all").symlink_to(folder / "Ada")
    (folder / "Mal").symlink_to(folder / "Ada")
    assert (folder / "Eve" / f"{STEM}.ipynb").read_bytes() == raw(chapter.solved())  # naive
    assert (folder / "Mal" / f"{STEM}.ipynb").is_file()  # naive
    students = found(folder)
    assert set(students) == {"Ada", "Eve"} and not students["Eve"].chapters
    assert {"a link, which is not followed"} == {file.why for file in students["Eve"].ignored}


# ---------------------------------------------------------------------------------------- zip files


def submitted(tmp_path: Path, content: bytes, name: str = "Eve.zip") -> Student:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / name).write_bytes(content)
    (student,) = found(folder).values()
    return student


@pytest.mark.parametrize(
    "name",
    [f"../../outside_{STEM}.ipynb", f"/tmp/outside_{STEM}.ipynb", f"..\\..\\outside_{STEM}.ipynb"],
)
def test_a_name_in_a_zip_file_leads_nowhere(name, tmp_path, chapter):
    target = tmp_path / "a" / "b" / "c"
    naive = (target / name.replace("\\", "/")).resolve()
    assert not naive.is_relative_to(target)
    submitted(tmp_path, zipped((name, raw(chapter.solved())), ("a/b:c?.ipynb", b"{}")))
    made = {path.name for path in (tmp_path / "scratch").rglob("*.ipynb")}
    assert made - {f"outside_{STEM}.ipynb"} == {"b_c_.ipynb"}


def test_a_link_in_a_zip_file_is_left_out(tmp_path):
    link = zipfile.ZipInfo(f"{STEM}.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    content = zipped((link, b"/etc/passwd"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # naive: unzip makes the link
        assert stat.S_ISLNK(archive.infolist()[0].external_attr >> 16)
    assert not submitted(tmp_path, content).chapters


def deep(content: bytes, levels: int) -> bytes:
    for _ in range(levels):
        content = zipped(("inner.zip", content))
    return content


@pytest.fixture
def small(monkeypatch) -> int:
    """Lower the limits, so that small bombs exceed them."""
    monkeypatch.setattr(collect, "ZIP_BYTES", 3_000_000)
    monkeypatch.setattr(collect, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(collect, "ZIP_FILES", 100)
    return 3_000_000


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


TOO_MANY = "unpacks to too many bytes"
# The content of each, and why it is ignored.
BOMBS = {
    "one large file": (lambda: zipped((f"{STEM}.ipynb", bytes(20_000_000))), TOO_MANY),
    "many large files": (
        lambda: zipped(*((f"{n}.ipynb", bytes(900_000)) for n in range(20))),
        TOO_MANY,
    ),
    "many files": (
        lambda: zipped(*((f"{n}.ipynb", b"") for n in range(200))),
        "a zip file of 200 files, more than 100",
    ),
    "zip files in a zip file": (
        lambda: deep(zipped((f"{STEM}.ipynb", b"{}")), 12),
        "is not opened",
    ),
    "bombs in a zip file": (
        lambda: zipped(
            *(
                (f"{n}.zip", zipped(*((f"{m}.ipynb", bytes(900_000)) for m in range(9))))
                for n in range(9)
            )
        ),
        TOO_MANY,
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_zip_bomb_takes_no_more_than_its_budget(name, small, tmp_path):
    make, why = BOMBS[name]
    content = make()
    assert len(content) < 1_000_000
    student = submitted(tmp_path, content)
    assert bytes_below(tmp_path / "scratch") <= small + 2 * len(content)
    assert len(list((tmp_path / "scratch").rglob("*"))) < 1000
    assert not any(sent.notebook for sent in student.chapters.values())
    assert any(why in file.why for file in student.ignored), student.ignored


def test_a_file_that_a_zip_file_lists_often_counts_often(small, tmp_path):
    """The central directory may name one compressed file a thousand times."""
    content = zipped((f"{STEM}.ipynb", bytes(900_000)))
    end = content.rindex(b"PK\5\6")
    start = struct.unpack("<L", content[end + 16 : end + 20])[0]
    listing, count = content[start:end], 60
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, count * len(listing), start, 0)
    bomb = content[:start] + listing * count + tail
    with zipfile.ZipFile(io.BytesIO(bomb)) as archive:
        assert sum(member.file_size for member in archive.infolist()) == 54_000_000  # naive
    submitted(tmp_path, bomb)
    assert bytes_below(tmp_path / "scratch") <= small + len(bomb)


def test_a_zip_file_with_false_sizes_is_refused(small, tmp_path, chapter):
    content = bytearray(zipped((f"{STEM}.ipynb", bytes(5_000_000))))
    place = content.rindex(b"PK\1\2")
    content[place + 24 : place + 28] = struct.pack("<L", 10)  # says: ten bytes
    student = submitted(tmp_path, bytes(content))
    assert not any(sent.notebook for sent in student.chapters.values())
    assert bytes_below(tmp_path / "scratch") <= small


def test_a_locked_zip_file_is_reported(tmp_path, chapter):
    content = bytearray(zipped((f"{STEM}.ipynb", raw(chapter.solved()))))
    for grade, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(grade) + offset] |= 1
    student = submitted(tmp_path, bytes(content))
    assert not student.chapters and "cannot be read" in student.ignored[0].why


# ---------------------------------------------------------------------------------------- notebooks


def test_no_metadata_of_a_submission_is_trusted(chapter):
    notebook = chapter.blank
    bad = json.loads(raw(notebook))
    bad["metadata"] = {
        "kernelspec": {"name": "evil", "language": "bash", "display_name": "Python 3"},
        "language_info": {"name": "bash"},
        "widgets": {"x": "<script>"},
        "nbgrader": {"points": 987654},
    }
    verdict = {"exercise": "03.2", "state": "right", "text": "so"}
    for cell in bad["cells"]:
        cell["id"] = "../../outside"
        cell["attachments"] = {"x.svg": {"image/svg+xml": "<svg onload='alert(1)'/>"}}
        if cell["cell_type"] == "code":
            data = {"application/vnd.attention-course.verdict+json": verdict}
            cell["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}}]
            cell["metadata"].setdefault("nbgrader", {})["points"] = 987654
    naive = json.loads(json.dumps(bad))
    assert naive["metadata"]["kernelspec"]["name"] == "evil"
    assert naive["cells"][0]["id"].startswith("..")
    made = overwrite_cells(tidy(json.dumps(bad).encode()), notebook).notebook
    text = json.dumps(made)
    for said in ("evil", "bash", "987654", "outside", "verdict+json", "svg", "widgets"):
        assert said not in text, said


@pytest.mark.parametrize(
    "content",
    [
        b'{"cells": [], "cells": [{"cell_type": "code", "source": "x"}]}',
        b'{"cells": [{"cell_type": "code", "source": {"a": [1]}, "metadata": {"nbgrader": 7}}]}',
        b'{"cells": [{"cell_type": "code", "source": NaN, "metadata": null}], "nbformat": NaN}',
        b'{"cells": [{"source": ["a", 5, null, "\\ud800"], "metadata": {"nbgrader": [3]}}]}',
        b'{"cells": [' + b'{"cell_type": "code", "source": "x"},' * 1999 + b"{}]}",
        b'{"cells": [], "n": ' + b"9" * 4000 + b"}",
    ],
)
def test_odd_notebooks_are_read_without_an_error(content, chapter):
    made = overwrite_cells(tidy(content), chapter.blank)
    json.dumps(made.notebook).encode()


@pytest.mark.parametrize(
    "content",
    [
        b'{"cells": ' + b"[" * 200_000,
        b'{"cells": [' + b"{}," * 5000 + b"{}]}",
        b'{"cells": [], "n": ' + b"9" * 5000 + b"}",
        b"\xff\xfe" + b"x" * 100,
    ],
)
def test_other_files_are_refused_with_a_message(content):
    with pytest.raises(Unreadable):
        tidy(content)


def test_no_pattern_starts_again_at_every_blank_line():
    """A pattern of quadratic time would not finish 60,000 blank lines."""
    found = [(suspicion, "MAGIC"), (notebook_file, "CALL"), (similarity, "MAGIC")]
    patterns = [
        value
        for module in (
            suspicion,
            notebook_file,
            sys.modules[overwrite_cells.__module__],
            similarity,
            collect,
            student_report,
        )
        for value in vars(module).values()
        if isinstance(value, re.Pattern)
    ]
    assert all(getattr(module, name) in patterns for module, name in found)
    for pattern in patterns:
        if pattern.flags & re.MULTILINE:
            assert not re.match(r"\^\\s[*+]", pattern.pattern), pattern
    many = tidy(json.dumps({"cells": [{"source": "\n" * 60_000 + "x = 1"}]}).encode())
    assert notebook_file.chapter_of(many) is None and not list(suspicion.suspicions(many, set()))


# -------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("other", ["Ada\u200b", "Ada\u202e", "Ada ", "Ada\x07", "\ufeffAda"])
def test_a_student_with_a_similar_name_takes_no_grades_of_another(other, tmp_path, chapter):
    folder = tmp_path / "class"
    for name, content, age in (("Ada", chapter.solved(), 1000), (other, chapter.solved(["1"]), 0)):
        path = folder / name / f"{STEM}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(raw(content))
        os.utime(path, (time.time() - age,) * 2)
    students = found(folder)
    assert len(students) == 2
    assert students["Ada"].chapters["03"].label == f"Ada/{STEM}.ipynb"
    (eve,) = [student for name, student in students.items() if name != "Ada"]
    assert any("looks like another one" in said for said in eve.remarks)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"a\x1b]0;mine\x07b", b"a\nb", b"=1+1", b"\xe2\x80\xaecba", b"x" * 240]
)
def test_every_name_can_be_written_and_controls_no_terminal(name, tmp_path, chapter):
    folder = os.fsencode(tmp_path / "class")
    os.makedirs(os.path.join(folder, name))
    for file in (name[:200] + b"03_exercises.ipynb", name[:200] + b".rar"):
        with open(os.path.join(folder, name, file), "wb") as out:
            out.write(raw(chapter.solved(["1"])))
    (student,) = found(tmp_path / "class").values()
    said = [student.name, *(s.label for s in student.chapters.values()), *map(str, student.ignored)]
    for text in said:
        text.encode()
        assert "\x1b" not in text and "\n" not in text and "\u202e" not in text
    assert student.chapters["03"].notebook


# -------------------------------------------------------------------------------- pages and tables

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Tags(HTMLParser):
    """Collect what a page would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "link", "svg", "form", "base", "video"):
            self.bad.append(tag)
        for name, value in attrs:
            loads = name in ("src", "href", "srcset", "data") and not (value or "").startswith(
                "data:"
            )
            if name.startswith("on") or (loads and tag != "a"):
                self.bad.append(f"{tag} {name}")


def bad_in(page: str) -> list[str]:
    tags = Tags()
    tags.feed(page)
    return tags.bad


def hostile() -> Result:
    """Return a student with an attack in every text."""
    cell = {"number": 1, "kind": "code", "source": SCRIPT, "text": SCRIPT, "pictures": [SCRIPT]}
    exercise = ExerciseGrade(
        "03.1", SCRIPT, 0.0, 1.0, CheckResult("not right", *[SCRIPT] * 3, True), [cell], True
    )
    grade = ChapterGrade("03", SCRIPT, [exercise], SCRIPT, SCRIPT, [cell])
    student = Student(SCRIPT, SCRIPT, {"03": Submission(Path(), SCRIPT)}, remarks=[SCRIPT])
    return Result(student, "page", [grade])


def test_no_page_runs_or_loads_what_a_student_wrote(tmp_path):
    assert bad_in(f"<p>{SCRIPT}</p>"), "naive"
    made = hostile()
    listed = entry(made.student.name, made.grades[0])
    out = tmp_path / "out"
    graded(out, week("w", listed, entry("Bo", made.grades[0])))
    pages = list(out.rglob("*.html"))
    assert len(pages) >= 4
    for page in pages:
        assert not bad_in(page.read_text(encoding="utf-8")), page
        assert "Content-Security-Policy" in page.read_text(encoding="utf-8")


FORMULAS = [
    "=1+1",
    "+1",
    "-1+1",
    "@x",
    "\t=1",
    " =1",
    "\r=1",
    "a;=1",
    "a\n=1",
    "a,=1",
    '"=1',
]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_table_computes_what_a_student_wrote(text, tmp_path):
    naive = io.StringIO()
    csv.writer(naive).writerow([text])
    made = hostile()
    for exercise in made.grades[0].exercises:
        exercise.title = text
        exercise.result = CheckResult("not right", text, text, text, named=True)
    made.grades[0].reason = made.grades[0].remarks = made.grades[0].file = text
    out = tmp_path / "out"
    graded(out, week("w", entry(text, made.grades[0], id=text), entry("Bo", made.grades[0])))
    tables = [*out.glob("*.csv"), *(out / "exports").glob("*.csv")]
    assert len(tables) >= 6
    for table in tables:
        content = table.read_text(encoding="utf-8-sig")
        for delimiter in ",;":
            for row in csv.reader(io.StringIO(content, newline=""), delimiter=delimiter):
                for value in row[:1] if delimiter == ";" else row:
                    bare = value.strip()
                    assert not bare.startswith(student_report.FORMULA) or _is_number(bare), (
                        table,
                        row,
                    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
