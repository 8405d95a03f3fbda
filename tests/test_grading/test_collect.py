"""Submissions: layouts, names, zip files, and other files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import collect
from tools.grading.made_up_submissions import Assignment, assignment_of, raw

STEM = "03_exercises"
STEMS = {"03": STEM, "04": "04_exercises"}


@pytest.fixture(scope="module")
def chapter() -> Assignment:
    return assignment_of("03")


class Class:
    """A folder of submissions."""

    def __init__(self, base: Path):
        self.base, self.folder = base, base / "class"
        self.folder.mkdir()

    def put(self, name: str, content: bytes = b"", age: int = 0) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (2_000_000_000 - age,) * 2)

    def found(self) -> tuple[dict[str, collect.Student], list[str]]:
        scratch = self.base / "scratch"
        scratch.mkdir()
        students, others = collect.collect(self.folder, STEMS, scratch)
        return {student.name: student for student in students}, others


@pytest.fixture
def submissions(tmp_path) -> Class:
    return Class(tmp_path)


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return memory.getvalue()


@pytest.mark.parametrize(
    ("name", "student", "id", "late"),
    [
        ("Ada Lovelace/x.ipynb", "Ada Lovelace", "", False),
        (f"Ada Lovelace_{STEM}.ipynb", "Ada Lovelace", "", False),
        ("Ada Lovelace_03_scaled_dot_product_attention.ipynb", "Ada Lovelace", "", False),
        (f"Ada Lovelace_12345_assignsubmission_file_{STEM}.ipynb", "Ada Lovelace", "12345", False),
        (f"Ada Lovelace_12345_assignsubmission_file_/{STEM}.ipynb", "Ada Lovelace", "12345", False),
        (f"lovelaceada_12345_67890_{STEM}.ipynb", "lovelaceada", "12345", False),
        (f"lovelaceada_LATE_12345_67890_{STEM}-2.ipynb", "lovelaceada", "12345", True),
        (f"Ada_LATE_{STEM}.ipynb", "Ada", "", True),
        (f"Jo LATER_{STEM}.ipynb", "Jo LATER", "", False),
        (f"Ada_2026_11_{STEM}.ipynb", "Ada_2026_11", "", False),
    ],
)
def test_names(name, student, id, late, submissions, chapter):
    submissions.put(name, raw(chapter.solved(["1"])))
    found, others = submissions.found()
    assert (list(found), others) == ([student], [])
    assert found[student].id == id
    sent = found[student].chapters["03"]
    assert sent.late is late and ("late, according to its name" in sent.remarks) is late


def test_equal_names_are_distinguished_by_their_numbers(submissions, chapter):
    for number in (1, 2):
        submissions.put(f"Jo Li_{number}_assignsubmission_file_/{STEM}.ipynb", raw(chapter.blank))
    found, _ = submissions.found()
    assert {name: student.id for name, student in found.items()} == {
        "Jo Li (1)": "1",
        "Jo Li (2)": "2",
    }


@pytest.mark.parametrize(
    "name", [f"{STEM}.new.ipynb", f"{STEM}.new (1).ipynb", f"{STEM}.NEW-2.ipynb"]
)
@pytest.mark.parametrize("age", [0, 1000])
def test_the_copy_of_an_update_is_never_graded(name, age, submissions, chapter):
    submissions.put(f"Ada/{STEM}.ipynb", raw(chapter.solved()), age=500)
    submissions.put(f"Ada/{name}", raw(chapter.blank), age=age)
    ada = submissions.found()[0]["Ada"]
    assert ada.chapters["03"].label == f"Ada/{STEM}.ipynb"
    assert not ada.chapters["03"].remarks
    assert [str(other) for other in ada.ignored] == [
        f"Ada/{name}: the copy of an update is not graded; if the work is in it, remove .new"
    ]


def test_a_copy_of_an_update_alone_is_the_reason_for_a_missing_notebook(submissions, chapter):
    submissions.put(f"Ada/{STEM}.new.ipynb", raw(chapter.solved()))
    ada = submissions.found()[0]["Ada"]
    assert not ada.chapters
    assert "if the work is in it, remove .new" in ada.ignored_for("03")[0]


def test_work_counts_before_a_newer_untouched_copy(submissions, chapter):
    submissions.put(f"Ada/{STEM}.ipynb", raw(chapter.solved(["1"])), age=500)
    submissions.put(f"Ada/{STEM} (1).ipynb", raw(chapter.blank))
    sent = submissions.found()[0]["Ada"].chapters["03"]
    assert sent.label == f"Ada/{STEM}.ipynb"
    assert "the newest with changes" in sent.remarks[0]


def test_the_newest_of_several_copies_counts(submissions, chapter):
    submissions.put(f"Ada/{STEM}.ipynb", raw(chapter.solved()), age=500)
    submissions.put(f"Ada/{STEM} (1).ipynb", raw(chapter.solved(["1"])))
    submissions.put(f"Ada/.ipynb_checkpoints/{STEM}-checkpoint.ipynb", raw(chapter.solved()))
    (said,) = submissions.found()[0]["Ada"].chapters["03"].remarks
    assert said.startswith(f"2 files: graded Ada/{STEM} (1).ipynb, the newest; ignored ")


def test_the_contents_identify_the_chapter_before_the_name(submissions, chapter):
    solved = raw(chapter.solved(["1"]))
    folder = "Ada/course/notebooks"
    submissions.put(f"{folder}/exercises/04_exercises.ipynb", solved)
    submissions.put(f"{folder}/03_scaled_dot_product_attention.ipynb", b'{"cells": []}')
    submissions.put("Bo.zip", zipped((f"{STEM}.ipynb", solved), (f"__MACOSX/{STEM}.ipynb", b"")))
    found, _ = submissions.found()
    sent = found["Ada"].chapters["03"]
    assert sent.label == f"{folder}/exercises/04_exercises.ipynb"
    assert "named as chapter 04, but its exercises belong to chapter 03" in sent.remarks[0]
    assert sent.remarks[1].startswith(f"2 files: graded {sent.label}, ")
    assert not found["Bo"].chapters["03"].remarks and not found["Bo"].ignored


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{STEM}.ipynb.txt", "rename it, and grade again"),
        (f"{STEM}.json", "rename it, and grade again"),
        ("work", "rename it, and grade again"),
        (f"{STEM}.pdf", "a .pdf file cannot be run; ask for the .ipynb file"),
        (f"{STEM}.html", "a .html file cannot be run"),
        ("work.rar", "an archive of kind .rar is not opened; ask for a .zip file"),
        ("work.tar.gz", "an archive of kind .gz"),
    ],
)
@pytest.mark.parametrize("where", ["Ada/{}", "Ada.zip", "Ada_77_assignsubmission_file_{}"])
def test_every_other_file_has_a_reason(name, why, where, submissions, chapter):
    content = raw(chapter.solved())
    if where == "Ada.zip":
        submissions.put(where, zipped((f"deep/{name}", content)))
    else:
        submissions.put(where.format(name), content)
    ada = submissions.found()[0]["Ada"]
    assert not ada.chapters
    (said,) = ada.ignored_for("03")
    assert name in said and why in said


def test_flat_archives_and_prints_belong_to_students_and_lists_do_not(submissions):
    for name in ("Ada.rar", "Bo.pdf", f"Cy_{STEM}.ipynb.txt", "list.xlsx", "readme.txt", "link"):
        submissions.put(name)
    (submissions.folder / "link").unlink()
    (submissions.folder / "link").symlink_to(submissions.folder / "Ada.rar")
    found, others = submissions.found()
    assert list(found) == ["Ada", "Bo", "Cy"]
    assert others == ["link", "list.xlsx", "readme.txt"]
    assert all(student.ignored_for("03") for student in found.values())


def test_a_missing_chapter_names_only_likely_files(submissions, chapter):
    submissions.put(f"Ada/{STEM}.ipynb", raw(chapter.solved()))
    for name in ("04_exercises.pdf", "README.md", "utils/shapes.py", "03_notes.pdf"):
        submissions.put(f"Ada/{name}")
    ada = submissions.found()[0]["Ada"]
    assert ada.ignored_for("04") == [
        "Ada/04_exercises.pdf: a .pdf file cannot be run; ask for the .ipynb file"
    ]
    assert len(ada.ignored) == 4


def test_many_files_are_counted(submissions):
    for number in range(9):
        submissions.put(f"Ada/{number}.rar")
    said = submissions.found()[0]["Ada"].ignored_for("03")
    assert len(said) == collect.NAMED_FILES + 1 and said[-1] == "and 4 other files"


def test_nested_zip_files_are_opened_to_a_limited_depth(submissions, chapter):
    content = raw(chapter.solved())
    for _ in range(collect.ZIP_DEPTH - 1):
        content = zipped(("a.zip" if content[:2] == b"PK" else f"{STEM}.ipynb", content))
    submissions.put("Ada.zip", zipped(("a.zip", content)))
    submissions.put("Bo.zip", zipped(("b.zip", zipped(("a.zip", content)))))
    found, _ = submissions.found()
    assert found["Ada"].chapters["03"].label == f"Ada.zip/a.zip/a.zip/{STEM}.ipynb"
    assert not found["Bo"].chapters
    assert "is not opened" in found["Bo"].ignored_for("03")[0]
