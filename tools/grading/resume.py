"""The checkpoint of a run: grades of finished students, so that a stopped run can continue.

It is the folder `.progress` in the folder of results: one file for each student, named after
everything that the grades depend on. A file is complete or absent. The folder is removed when the
tables are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import asdict
from pathlib import Path

from tools.grading.collect import Student
from tools.grading.grades import ChapterGrade

try:
    import fcntl
except ImportError:  # Windows, where grading does not run
    fcntl = None

FOLDER = ".progress"
LOCK = "lock"
# The seed of the cases in checks, the same in every later run.
SALT = ".salt"


class FolderInUse(Exception):
    """Another run writes to the same folder."""


class Checkpoint:
    """The grades of finished students.

    Args:
        out: the folder of results, made if it does not exist.
        about: what all grades depend on: code, limits and source notebooks.

    Raises:
        FolderInUse: another run uses the folder.
    """

    def __init__(self, out: Path, about: str):
        self.out, self.about = out, about
        self.folder = out / FOLDER
        self._made = not out.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise FolderInUse(str(out)) from None
        self._salt_is_new = not (out / SALT).exists()
        if self._salt_is_new:
            (out / SALT).write_text(secrets.token_hex())
        self.salt = (out / SALT).read_text()
        for left in out.glob(".unfinished-*"):  # by a killed run
            shutil.rmtree(left, ignore_errors=True)

    def path(self, student: Student, page: str) -> Path:
        """Return the file for the grades of a student.

        Args:
            student: the submissions.
            page: the name of the student's page.
        """
        submissions = {
            chapter: [one.label, one.notebook, one.reason, one.remarks]
            for chapter, one in student.chapters.items()
        }
        ignored = [str(file) for file in student.ignored]
        known = [self.about, page, student.name, student.id, submissions, ignored]
        content = json.dumps(known, sort_keys=True)
        return self.folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def read(self, path: Path) -> list[ChapterGrade] | None:
        """Return the grades in a file; None if it does not exist yet."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # no run writes half a file, but a disk may lose one
            path.unlink()
            return None
        return [ChapterGrade.from_plain(grade) for grade in plain]

    def write(self, path: Path, grades: list[ChapterGrade]) -> None:
        """Write grades into a file, in one step."""
        partial = path.with_suffix(f".{os.getpid()}")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump([asdict(grade) for grade in grades], file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)

    def count(self) -> int:
        """Return the number of finished students."""
        return len(list(self.folder.glob("*.json")))

    def end(self, *, whole: bool) -> None:
        """Unlock the folder, and remove what no later run needs.

        Args:
            whole: whether the tables were written.
        """
        if whole or not self.count():
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._salt_is_new and not whole:
                (self.out / SALT).unlink(missing_ok=True)
            if self._made:
                with contextlib.suppress(OSError):  # it may hold other files now
                    self.out.rmdir()
        os.close(self._lock)


def hash_of(*folders: Path) -> str:
    """Return a hash of all files in some folders.

    Args:
        folders: with files of the course.
    """
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(str(path.relative_to(folder)).encode() + b"\0")
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()
