"""Grade many students: each in a separate process of this machine, several at a time.

cluster.py does the same on other machines.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tools.grading.assignments import environment
from tools.grading.autograde import Autograder
from tools.grading.collect import Student
from tools.grading.grades import ChapterGrade
from tools.grading.resume import Checkpoint
from tools.grading.run_notebook import START
from tools.grading.sandbox import Sandbox, SandboxPaths
from tools.grading.sandbox_process import SandboxProcess

FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL = 28  # exit status of a student's process that cannot write
TRIES = 2  # for a student whose process was killed
LINE = 100  # characters of the reasons in a line of progress
PR_SET_PDEATHSIG = 1


@dataclass
class Job:
    """The grading of one student.

    Args:
        number: of the student.
        student: the submissions.
        page: name of the page of feedback.
        path: the file of the checkpoint for the grades; its log is next to it.
        tries: how often it was started.
        deadline: when the current try is given up, in seconds of the clock.
    """

    number: int
    student: Student
    page: str
    path: Path
    tries: int = 0
    deadline: float = 0.0

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".txt")


class Graders(ABC):
    """Grade students, several at a time.

    Args:
        grader: grades one student.
        checkpoint: keeps the grades of finished students.
    """

    def __init__(self, grader: Autograder, checkpoint: Checkpoint):
        self.grader, self.checkpoint = grader, checkpoint
        self.grades: dict[str, list[ChapterGrade]] = {}  # by page
        self.running: dict[Any, Job] = {}  # by what grades it
        self._count = 0
        # Notebooks have their own limits. This one, in seconds of the clock, is for unforeseen
        # failures, and a busy machine must not reach it.
        self.seconds = len(grader.chapters) * 20 * (grader.limits.notebook + START)

    def run(self, students: list[Student], pages: list[str], logs: Path) -> None:
        """Grade all students.

        Args:
            students: the submissions.
            pages: names of their pages.
            logs: a folder for the logs.
        """
        every = [
            Job(number, student, page, self.checkpoint.path(student, page))
            for number, (student, page) in enumerate(zip(students, pages, strict=True))
        ]
        self._count = len(every)
        waiting = [job for job in every if not self.load(job, " (done before)")]
        try:
            while waiting or self.running:
                waiting = self.step(waiting)
        finally:
            self.stop()
        for job in every:
            if job.log.is_file():
                shutil.copyfile(job.log, logs / f"{job.page}.txt")

    @abstractmethod
    def step(self, waiting: list[Job]) -> list[Job]:
        """Start jobs, wait a moment, and take in grades; return the jobs that still wait."""

    @abstractmethod
    def stop(self) -> None:
        """End what still runs."""

    def load(self, job: Job, note: str = "") -> bool:
        """Take in the grades of a finished student; return whether they are there."""
        if (grades := self.checkpoint.read(job.path)) is None:
            return False
        self.keep(job, grades, note)
        return True

    def keep(self, job: Job, grades: list[ChapterGrade], note: str = "") -> None:
        """Take in grades, and print a line about them."""
        self.grades[job.page] = grades
        print(f"{len(self.grades):3}/{self._count}  {_line(job.student, grades, note)}", flush=True)


class Pool(Graders):
    """Grade students in processes of this machine.

    Args:
        grader: grades one student.
        checkpoint: keeps the grades of finished students.
        sandbox: isolates the student's code.
        root: a folder for temporary files.
        jobs: students at a time.
    """

    def __init__(
        self, grader: Autograder, checkpoint: Checkpoint, sandbox: Sandbox, root: Path, jobs: int
    ):
        super().__init__(grader, checkpoint)
        self.sandbox, self.root, self.jobs = sandbox, root, jobs

    def step(self, waiting: list[Job]) -> list[Job]:
        while waiting and len(self.running) < self.jobs:
            self._start(waiting.pop(0))
        wait([process.sentinel for process in self.running], timeout=1)
        return [*self._finish(), *waiting]

    def stop(self) -> None:
        for process in self.running:
            process.kill()
            process.join()

    def _scratch(self, job: Job) -> Path:
        return self.root / f"s{job.number}.{job.tries}"  # short, for paths of sockets

    def _start(self, job: Job) -> None:
        job.tries += 1
        job.deadline = time.monotonic() + self.seconds
        job.log.unlink(missing_ok=True)
        fork = multiprocessing.get_context("fork")
        process: BaseProcess = fork.Process(target=self._grade, args=(job,))
        process.start()
        self.running[process] = job

    def _finish(self) -> list[Job]:
        """Take in the grades of ended processes; return the jobs to try again."""
        again = []
        for process, job in list(self.running.items()):
            is_late = time.monotonic() >= job.deadline
            if process.is_alive() and not is_late:
                continue
            process.kill()
            process.join()
            del self.running[process]
            shutil.rmtree(self._scratch(job), ignore_errors=True)
            if self.load(job):
                continue
            if process.exitcode == DISK_FULL:
                raise OSError(errno.ENOSPC, "the disk is full")
            if job.tries < TRIES and not is_late:  # killed from outside
                again.append(job)
                continue
            reason = f"grading failed: its process ended (code {process.exitcode}). See the log"
            self.keep(job, self.grader.failed(job.student, reason))
        return again

    def _grade(self, job: Job) -> None:
        """Grade one student; runs in the student's process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        file = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        scratch, assignments = self._scratch(job), self.grader.assignments
        scratch.mkdir(parents=True)
        outside = SandboxPaths(assignments.library, assignments.grader, scratch / "r")
        memory = self.grader.limits.memory
        sandbox = SandboxProcess(self.sandbox, outside, environment(), memory, job.log)
        try:
            grades = self.grader.grade(job.student, sandbox, scratch, job.log)
            self.checkpoint.write(job.path, grades)
        except OSError as error:
            if error.errno not in FULL:
                raise
            sandbox.end()
            os._exit(DISK_FULL)
        finally:
            sandbox.end()


def end_with_parent() -> None:
    """Have this process killed when its parent is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _line(student: Student, grades: list[ChapterGrade], note: str) -> str:
    """Return one line about a student: points, name and reasons."""
    points, possible = sum(g.points for g in grades), sum(g.possible for g in grades)
    reasons = [f"{g.chapter} {g.reason}" for g in grades if g.reason and g.file]
    if not student.chapters:
        reasons = [*map(str, student.ignored)] or ["nothing submitted"]
    text = "; ".join(reasons)
    text = text if len(text) <= LINE else f"{text[: LINE - 3]}..."
    line = f"{points:4g} of {possible:g}  {student.name}{note}"
    return f"{line}: {text}" if text else line


def load_checks(chapters: list[str]) -> None:
    """Import the checks once, before the students' processes are forked."""
    import torch

    from checks.engine.verdict import exercises

    torch.set_num_threads(1)
    for chapter in chapters:
        exercises(chapter)
    gc.collect()
    gc.freeze()  # these objects stay: the students' processes need not collect them
