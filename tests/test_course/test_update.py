"""An update brings a newer course and leaves alone what the student changed."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from made_up import Folder, code, edit, joined, notebook, printed, prose, ran, says, unpack

from tools.commands import Refusal
from tools.course import local_changes, progress, release, update
from tools.course.files import newer_file
from tools.course.notebook import canonical


def chapter(*texts: str) -> bytes:
    return canonical(notebook(*map(code, texts))).encode()


def handed_out(text: str) -> bytes:
    made = notebook(code(text), code('check("03.1", a)'))
    local_changes.remember_beginning(made)
    return canonical(made).encode()


OLD = {
    "README.md": b"# Course\n",
    "notebooks/01_run.ipynb": chapter("guess = ..."),
    "notebooks/02_guessed.ipynb": chapter("guess = ..."),
    "notebooks/03_same.ipynb": chapter("guess = ..."),
    "notebooks/exercises/01_solved.ipynb": handed_out("a = ..."),
    "notebooks/exercises/02_blank.ipynb": handed_out("a = ..."),
    "resources/data.npy": b"\0\r\n\1",
    "utils/edited.py": b"a = 1\n",
    "utils/dropped.py": b"a = 2\n",
    "utils/dropped_edited.py": b"a = 3\n",
}
NEW = {
    **{name: content for name, content in OLD.items() if "dropped" not in name},
    "README.md": b"# Course, better\n",
    "notebooks/01_run.ipynb": chapter("guess = ...", "more = 1"),
    "notebooks/02_guessed.ipynb": chapter("guess = ...", "more = 1"),
    "notebooks/exercises/01_solved.ipynb": handed_out("b = ..."),
    "notebooks/exercises/02_blank.ipynb": handed_out("b = ..."),
    "resources/data.npy": b"\0\n\1",
    "utils/edited.py": b"a = 10\n",
    "utils/added.py": b"a = 4\n",
    "utils/in_the_way.py": b"a = 5\n",
}


def lay_out(files: dict[str, bytes], root: Path) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def work(root: Path) -> dict[str, bytes]:
    """What a student does in the course; returns what must stay."""
    edit(root / "notebooks/01_run.ipynb", ran)
    edit(root / "notebooks/02_guessed.ipynb", lambda n: n["cells"][0].update(source="guess = 7"))
    edit(root / "notebooks/03_same.ipynb", lambda n: n["cells"][0].update(source="guess = 8"))
    edit(
        root / "notebooks/exercises/01_solved.ipynb",
        lambda n: n["cells"][0].update(source="a = (2, 3)"),
    )
    (root / "README.md").write_bytes(b"# Course\r\n")  # only the end of the line
    lay_out(
        {
            "utils/edited.py": b"a = 1  # mine\n",
            "utils/dropped_edited.py": b"a = 3  # mine\n",
            "utils/in_the_way.py": b"mine\n",
            "notes/mine.txt": b"mine\n",
            "notebooks/exercises/copy of 01.ipynb": b"mine\n",
        },
        root,
    )
    kept = [
        "notebooks/02_guessed.ipynb",
        "notebooks/03_same.ipynb",
        "notebooks/exercises/01_solved.ipynb",
        "notebooks/exercises/copy of 01.ipynb",
        "notes/mine.txt",
        "utils/dropped_edited.py",
        "utils/edited.py",
        "utils/in_the_way.py",
    ]
    return {name: (root / name).read_bytes() for name in kept}


NEW_FILES = {
    "notebooks/02_guessed.ipynb",
    "notebooks/exercises/01_solved.ipynb",
    "utils/edited.py",
    "utils/in_the_way.py",
}


def expect(root: Path, mine: dict[str, bytes]) -> None:
    """The folder holds the new course, and everything that the student wrote."""
    newer = {newer_file(Path(name)).as_posix(): NEW[name] for name in NEW_FILES}
    wanted = {**NEW, **newer, **mine}
    files = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    found.pop(local_changes.MANIFEST, None)
    assert set(found) == set(wanted)
    assert {name for name in found if found[name] != wanted[name]} == set()


@dataclass
class Student:
    root: Path
    zip: Path
    mine: dict[str, bytes]

    def update(self, source: Path | None = None) -> bool:
        return not update.main([str(source or self.zip)], self.root)


@pytest.fixture
def student(tmp_path: Path) -> Student:
    root = unpack(release.pack(OLD, "1.0.0"), tmp_path / "old")
    zipped = tmp_path / "new.zip"
    zipped.write_bytes(release.pack(NEW, "9.0.0"))
    return Student(root, zipped, work(root))


@pytest.mark.parametrize("source", ["zip", "zip of 1.0", "folder", "folder around it"])
def test_an_update_keeps_what_the_student_changed(
    student: Student, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = student.zip
    if source == "zip of 1.0":  # its folder was called as the zip
        renamed(given, "attention-shape-by-shape-9.0.0")
    elif source != "zip":
        top = unpack(student.zip.read_bytes(), tmp_path / "new")
        given = top if source == "folder" else top.parent
    assert student.update(given)
    expect(student.root, student.mine)
    said = capsys.readouterr().out
    for line in (
        "written    README.md",
        "written    utils/added.py",
        "kept       notebooks/03_same.ipynb: you changed it, and there is no newer version",
        "newer      utils/edited.py: you changed it; the newer version is edited.new.py",
        "kept       utils/dropped_edited.py: you changed it; the new version does not have it",
        "removed    utils/dropped.py",
        "update: installed version 9.0.0: 2 kept, 4 newer, 1 removed, 5 written",
    ):
        assert line in said.splitlines(), said
    assert student.update(given), "calling it again changes nothing"
    expect(student.root, student.mine)


def test_exercises_with_a_different_name_are_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older release gave the exercises the name of their chapter."""
    folder = "notebooks/exercises"
    old = {f"{folder}/{n}_long_name.ipynb": handed_out("a = ...") for n in ("01", "02", "03")}
    new = {f"{folder}/{n}_exercises.ipynb": handed_out("a = ...") for n in ("01", "02", "03")}
    root = unpack(release.pack(old, "1.0.0"), tmp_path / "old")
    (tmp_path / "new.zip").write_bytes(release.pack(new, "2.0.0"))
    edit(root / folder / "02_long_name.ipynb", ran)
    theirs = edit(root / folder / "03_long_name.ipynb", lambda n: says(0, "...", "7")(joined(n)))
    assert not update.main([str(tmp_path / "new.zip")], root)
    found = {path.name: path.read_bytes() for path in (root / folder).iterdir()}
    assert found == {**{Path(n).name: c for n, c in new.items()}, "03_long_name.ipynb": theirs}
    assert (
        f"kept       {folder}/03_long_name.ipynb: you changed it; "
        "the new version is called 03_exercises.ipynb"
    ) in capsys.readouterr().out.splitlines()
    card = prose("## 1. Which?\n\nDifficulty 1 of 5 · about 3 minutes")
    for name in ("03_long_name", "03_exercises"):
        path = root / folder / f"{name}.ipynb"
        content = json.loads(path.read_text())
        if name == "03_long_name":
            printed(content["cells"][1], "03.1  right: yes")
        path.write_text(json.dumps({**content, "cells": [card, *content["cells"]]}))
    Folder(root).list_chapters("03")
    lines = list(progress.report(Folder(root).course))
    assert lines[-1] == "\n1 of 1 right, about 0 minutes left", "what is done in either is done"


def test_an_interrupted_update_is_finished_by_the_next(
    student: Student, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (student.root / local_changes.MANIFEST).read_bytes()
    for stop in range(len(NEW)):
        left = iter(range(stop))

        def put(path: Path, new: bytes, began: str | None, left: Any = left) -> str:
            if next(left, None) is None:
                raise OSError("No space left on device")
            return local_changes.put(path, new, began)

        monkeypatch.setattr(update, "put", put)
        with pytest.raises(Refusal, match="No space left on device"):
            student.update()
        assert (student.root / local_changes.MANIFEST).read_bytes() == before
    monkeypatch.setattr(update, "put", local_changes.put)
    assert student.update()
    expect(student.root, student.mine)


def test_two_updates_after_each_other(student: Student) -> None:
    assert student.update()
    third = {**NEW, "utils/edited.py": b"a = 11\n", "notebooks/02_guessed.ipynb": chapter("b")}
    student.zip.write_bytes(release.pack(third, "9.1.0"))
    own = student.root / "notebooks/02_guessed.new.ipynb"
    theirs = edit(own, lambda n: n["cells"][0].update(source="guess = 9"))
    assert not student.update(), "the student changed the chapter and the file next to it"
    assert own.read_bytes() == theirs
    assert (student.root / "utils/edited.new.py").read_bytes() == b"a = 11\n"
    own.rename(own.with_name("mine.ipynb"))
    assert student.update()
    assert own.read_bytes() == third["notebooks/02_guessed.ipynb"]
    mine = {name: (student.root / name).read_bytes() for name in student.mine}
    assert mine == student.mine


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as zipped:
        files = {name: zipped.read(name) for name in zipped.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)


def renamed(path: Path, top: str) -> None:
    def change(files: dict[str, bytes]) -> None:
        for name in list(files):
            files[f"{top}/{name.partition('/')[2]}"] = files.pop(name)

    rewritten(path, change)


def climbing(files: dict[str, bytes]) -> None:
    (name,) = [name for name in files if name.endswith(local_changes.MANIFEST)]
    listed = json.loads(files[name])
    listed["files"]["../../evil.py"] = "0"
    files[name] = json.dumps(listed).encode()


REFUSED: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "damaged": (
        lambda files: files.update(dict.fromkeys([n for n in files if "added" in n], b"x")),
        "got a changed utils/added.py. Get the zip again",
    ),
    "incomplete": (
        lambda files: files.pop(next(n for n in files if "added" in n)),
        "got a changed utils/added.py",
    ),
    "no course": (
        lambda files: files.pop(next(n for n in files if "MANIFEST" in n)),
        "without MANIFEST.json",
    ),
    "climbing": (climbing, "must list files in the course's folder, got '../../evil.py'"),
    "no list": (
        lambda files: files.update({n: b"[]" for n in files if "MANIFEST" in n}),
        "must list the files of the course, got something else",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_zip_that_is_no_course_is_refused(student: Student, what: str) -> None:
    before = {path: path.read_bytes() for path in student.root.rglob("*") if path.is_file()}
    change, words = REFUSED[what]
    rewritten(student.zip, change)
    with pytest.raises(Refusal, match=re.escape(words)):
        student.update()
    assert before == {p: p.read_bytes() for p in student.root.rglob("*") if p.is_file()}


def test_update_refuses_kindly(student: Student, tmp_path: Path) -> None:
    text = tmp_path / "text.zip"
    text.write_text("no zip")
    with pytest.raises(Refusal, match="FROM must be a zip of the course"):
        student.update(text)
    with pytest.raises(Refusal, match="FROM must be a zip of the course"):
        student.update(tmp_path / "nowhere.zip")
    (student.root / local_changes.MANIFEST).unlink()
    with pytest.raises(Refusal, match="FROM must be used in an unpacked zip"):
        student.update()
    with pytest.raises(Refusal, match="must be a git clone, got none"):
        update.main([], student.root)


def git(folder: Path, *command: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *command], check=True, capture_output=True)


def commit(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            path.unlink()
    lay_out(files, folder)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "x")


def test_a_clone_is_updated_in_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    above, root = tmp_path / "above", tmp_path / "clone"
    above.mkdir()
    git(above, "init", "--quiet", "-b", "main")
    commit(above, OLD)
    git(tmp_path, "clone", "--quiet", str(above), str(root))
    update.main([], root)
    assert "already up to date" in capsys.readouterr().out
    mine = work(root)
    commit(above, NEW)
    pull = subprocess.run(["git", "-C", root, "pull"], capture_output=True)
    assert pull.returncode, "git alone refuses; that is why there is an update"
    for _ in range(2):
        assert not update.main([], root)
        expect(root, mine)
    assert "already up to date" in capsys.readouterr().out
    with pytest.raises(Refusal, match="FROM must be used in an unpacked zip"):
        update.main([str(tmp_path)], root)
    git(root, "add", "utils/edited.py")
    with pytest.raises(Refusal, match="the git index must be empty"):
        update.main([], root)
    git(root, "commit", "--quiet", "-m", "mine")
    with pytest.raises(Refusal, match="no own commits, got 1"):
        update.main([], root)
    above.rename(tmp_path / "gone")
    with pytest.raises(Refusal, match="git fetch must reach"):
        update.main([], root)
    git(root, "branch", "--unset-upstream")
    with pytest.raises(Refusal, match="must have an upstream, got none"):
        update.main([], root)


def test_a_fingerprint_sees_what_counts() -> None:
    assert local_changes.fingerprint("a.py", b"a\r\n") == local_changes.fingerprint("a.py", b"a\n")
    assert local_changes.fingerprint("a.npy", b"\0\r\n") != local_changes.fingerprint(
        "a.npy", b"\0\n"
    )
    damaged = [local_changes.fingerprint("a.ipynb", content) for content in (b"", b"{", b"[]")]
    assert len(set(damaged)) == 3
