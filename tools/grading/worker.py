"""What a worker of a Dask cluster does for cluster.py: describe its machine, and grade students.

For each run, a worker starts one process, which makes the assignments and imports the checks once.
That process has a `Pool` of its own and grades one student after the other as on one machine. It
ends with the worker, at the end of the run, or when nothing comes for a while.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tools.course.registry import ROOT, course
from tools.environment import show_course
from tools.grading.assignments import prepare
from tools.grading.autograde import Autograder
from tools.grading.collect import Student
from tools.grading.pool import Pool, end_with_parent, load_checks
from tools.grading.resume import Checkpoint, hash_of
from tools.grading.run_notebook import Limits
from tools.grading.sandbox import SANDBOXES

PROGRAM = "import sys; from tools.grading.worker import main; main(*sys.argv[1:])"
IDLE = 60.0  # seconds without a student, after which the process of a run ends
FOLDERS = ("checks", "clinic", "resources", "tools", "utils")  # of the course, all that grades
# Variables that change texts and times, which must not depend on the machine.
SPOKEN = ("COURSE_LANGUAGE", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


def same_everywhere(chapters: list[str]) -> dict[str, str]:
    """Return what must be equal on all machines: files of the course, versions of packages.

    Args:
        chapters: the chapters to grade.
    """
    found = {f"the folder {name}": hash_of(ROOT / name)[:12] for name in FOLDERS}
    sources = [course()[chapter].source_notebook.read_bytes() for chapter in chapters]
    found["source notebooks"] = sha256(b"\0".join(sources)).hexdigest()[:12]
    found["Python"] = ".".join(platform.python_version_tuple()[:2])
    pinned = re.findall(r"(?m)^([\w.-]+)==", (ROOT / "requirements.txt").read_text("utf-8"))
    return found | {name: _version(name) for name in [*pinned, "nbgrader"]}


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]  # without the kind of processor of torch
    except PackageNotFoundError:
        return "none"


def describe(chapters: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what must be equal on all machines, and why sandboxes do not work here.

    Args:
        chapters: the chapters to grade.
    """
    return same_everywhere(chapters), {s.name: s.problem() or "" for s in SANDBOXES}


@dataclass(frozen=True)
class Order:
    """What all students of a run have in common.

    Args:
        run: an id.
        chapters, limits, salt: see `Autograder`.
        sandbox: its name.
        variables: of the environment, those in SPOKEN.
    """

    run: str
    chapters: list[str]
    limits: Limits
    salt: str
    sandbox: str
    variables: dict[str, str]


@dataclass(frozen=True)
class Graded:
    """The result of one student, plain data.

    Args:
        grades: of the chapters.
        log: what a log file holds.
        is_final: False if the student's process failed, so that a later run tries it again.
    """

    grades: list[dict[str, Any]]
    log: bytes
    is_final: bool


class Grader:
    """The process that grades the students of a run, seen from its worker.

    Args:
        order: what they have in common.
        parent: a folder of the worker.
    """

    def __init__(self, order: Order, parent: str):
        self.folder = Path(tempfile.mkdtemp(prefix="g", dir=parent))
        others = {name: text for name, text in os.environ.items() if name not in SPOKEN}
        self._connection, inside = Pipe()
        with inside:
            # Not multiprocessing: Dask's workers may have no children of its kind.
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(inside.fileno()), str(self.folder)],
                pass_fds=[inside.fileno()],
                cwd=ROOT,
                env=others | order.variables | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection.send(order)  # a pipe: arguments and variables are seen by other users

    def grade(self, student: Student, page: str) -> Graded:
        """Grade one student.

        Raises:
            RuntimeError: the process has failed or ended.
        """
        try:
            self._connection.send((student, page))
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"its process ended (code {self.process.wait()})") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def end(self) -> None:
        """End the process, its students' sandboxes with it, and remove its files."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_graders: dict[str, Grader | None] = {}  # by run; None for a run that has ended
_lock = threading.Lock()


def grade(order: Order, student: Student, page: str) -> Graded:
    """Grade one student in the process of the run; a task of Dask.

    Args:
        order: what the students of the run have in common.
        student: the submissions.
        page: name of the page of feedback.

    Raises:
        RuntimeError: the process has failed or ended.
    """
    from distributed import get_worker

    with _lock:
        grader = _graders.get(order.run)
        if grader is None and order.run in _graders:
            raise RuntimeError("the run has ended")
        if grader is None or grader.process.poll() is not None:
            if grader is not None:
                grader.end()
            grader = _graders[order.run] = Grader(order, get_worker().local_directory)
    return grader.grade(student, page)


def end(run: str) -> None:
    """End the process of a run; a function that Dask calls on each worker."""
    with _lock:
        grader, _graders[run] = _graders.get(run), None
    if grader is not None:
        grader.end()


def main(descriptor: str, folder: str) -> None:
    """Grade the students that arrive; runs in the process of a run.

    Args:
        descriptor: of the connection with the worker.
        folder: for temporary files.
    """
    end_with_parent()
    show_course()
    connection = Connection(int(descriptor))
    try:
        pool = _pool(connection.recv(), Path(folder))
        while connection.poll(IDLE):
            connection.send(_graded(pool, *connection.recv(), Path(folder)))
    except EOFError:  # the worker has ended
        return
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def _pool(order: Order, folder: Path) -> Pool:
    """Prepare everything as a run on one machine does."""
    known = {chapter: course()[chapter] for chapter in order.chapters}
    assignments = prepare(known, folder / "course")
    load_checks(order.chapters)
    grader = Autograder(assignments, order.chapters, order.limits, order.salt)
    sandbox = next(one for one in SANDBOXES if one.name == order.sandbox)
    return Pool(grader, Checkpoint(folder / "out", ""), sandbox, folder, jobs=1)


def _graded(pool: Pool, student: Student, page: str, logs: Path) -> Graded:
    pool.run([student], [page], logs)
    grades = [asdict(grade) for grade in pool.grades.pop(page)]
    log = logs / f"{page}.txt"
    is_final = pool.checkpoint.path(student, page).exists()
    return Graded(grades, log.read_bytes() if log.exists() else b"", is_final)
