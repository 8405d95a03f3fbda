"""What a grading has done so far, so that one that was stopped goes on where it stopped.

It lies in `.progress` in the folder of results while a grading is not whole: one file for each
student, named after everything on which the grades depend. A file is there whole or not at all. When
the tables are written, the folder is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from tools.grading.collect import Student

try:
    import fcntl
except ImportError:  # Windows, on which nothing is graded
    fcntl = None

PROGRESS = ".progress"
LOCK = "lock"
# From what stands in it the cases of the checks are made, the same ones in every later grading.
SALT = ".salt"


class FolderInUse(Exception):
    """Another grading writes into the same folder."""


class Checkpoint:
    """The students that are done.

    Args:
        out: the folder of results, made if it is not there.
        about: the same for all students: what is graded with, and how.

    Raises:
        FolderInUse: another grading is at work there.
    """

    def __init__(self, out: Path, about: str):
        self.out, self.about = out, about
        self.folder = out / PROGRESS
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
        for left in out.glob(".unfinished-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)

    def place(self, student: Student, page: str) -> Path:
        """Return the file for the grades of a student.

        Args:
            student: what was handed in.
            page: the name of the student's page.
        """
        sent = {
            chapter: [one.label, one.notebook, one.reason, one.remarks]
            for chapter, one in student.chapters.items()
        }
        others = [str(other) for other in student.others]
        known = [self.about, page, student.name, student.id, sent, others]
        content = json.dumps(known, sort_keys=True)
        return self.folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"

    def read(self, place: Path) -> list[dict[str, Any]] | None:
        """Return the grades that stand in a file, None when they are still to be made."""
        try:
            return json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # nobody writes half a file; a disk may lose one
            place.unlink()
            return None

    def write(self, place: Path, grades: list[dict[str, Any]]) -> None:
        """Write grades into a file, which is whole from the first moment."""
        partial = place.with_suffix(f".{os.getpid()}")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(grades, file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(place)
        finally:
            partial.unlink(missing_ok=True)

    def count(self) -> int:
        """Return how many students are done."""
        return len(list(self.folder.glob("*.json")))

    def end(self, *, whole: bool) -> None:
        """Let others into the folder, and remove what nobody needs any more.

        Args:
            whole: whether the tables were written.
        """
        if whole or not self.count():
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._salt_is_new and not whole:
                (self.out / SALT).unlink(missing_ok=True)
            if self._made:
                with contextlib.suppress(OSError):  # others may have put something there
                    self.out.rmdir()
        os.close(self._lock)


def fingerprint(*folders: Path) -> str:
    """Return a number that differs when a file in one of the folders does.

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
