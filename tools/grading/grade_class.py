"""Grade the submissions of a class: each student in a separate process, several at a time."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tools.commands import Refusal
from tools.course.registry import ROOT, Chapter, course
from tools.environment import INTERRUPTED
from tools.grading.assignments import DIGITS_IMPORTS, Assignments, environment, prepare
from tools.grading.autograde import Autograder
from tools.grading.collect import Student, collect
from tools.grading.grade_changes import checks_of
from tools.grading.gradebook import Entry, Gradebook, Week, week_name
from tools.grading.grades import ChapterGrade
from tools.grading.late_policy import LatePolicy
from tools.grading.publish import publish
from tools.grading.results_folder import unfinished
from tools.grading.resume import Checkpoint, FolderInUse, hash_of
from tools.grading.roster import Matching, Question, Roster, class_list, read_roster, who_rows
from tools.grading.run_notebook import START, Limits
from tools.grading.sandbox import Sandbox, SandboxPaths, choose
from tools.grading.sandbox_process import SandboxProcess
from tools.grading.student_report import page_name

FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL = 28  # exit status of a student's process that cannot write
TRIES = 2  # for a student whose process was killed
LINE = 100  # characters of the reasons in a line of progress
PR_SET_PDEATHSIG = 1


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a `ValueError` about what the instructor typed into a `Refusal`."""
    try:
        yield
    except ValueError as error:
        raise Refusal(str(error)) from None


@dataclass(frozen=True)
class WeekOptions:
    """The options about the class and the week.

    Args:
        name: of the week; None for the name of the folder.
        late_policy: due dates and the penalty.
        due: the dates as typed.
        roster: the path of the class list; None for the list of the week before, if any.
    """

    name: str | None
    late_policy: LatePolicy
    due: str
    roster: Path | None


@dataclass(frozen=True)
class Settings:
    """The options about the run.

    Args:
        chapters: the chapters to grade; empty for all that were submitted.
        limits: of each notebook.
        jobs: students at a time.
        isolation: the name of a sandbox; "" for the first that works.
    """

    chapters: list[str]
    limits: Limits
    jobs: int
    isolation: str


# ------------------------------------------------------------------------------- the students


@dataclass
class Job:
    """The grading of one student.

    Args:
        number: of the student.
        student: the submissions.
        page: name of the page of feedback.
        path: the file of the checkpoint for the grades; its log is next to it.
        tries: how many processes were started.
        deadline: when the current process is killed, in seconds of the clock.
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


class Pool:
    """Grade students in processes, several at a time.

    Args:
        grader: grades one student.
        sandbox: isolates the student's code.
        checkpoint: keeps the grades of finished students.
        root: a folder for temporary files.
    """

    def __init__(self, grader: Autograder, sandbox: Sandbox, checkpoint: Checkpoint, root: Path):
        self.grader, self.sandbox, self.checkpoint, self.root = grader, sandbox, checkpoint, root
        self.grades: dict[str, list[ChapterGrade]] = {}  # by page
        self._count = 0
        self._running: dict[BaseProcess, Job] = {}
        # Notebooks have their own limits. This one, in seconds of the clock, is for unforeseen
        # failures, and a busy machine must not reach it.
        limit = grader.limits.notebook + START
        self._seconds = len(grader.chapters) * 20 * limit

    def run(self, students: list[Student], pages: list[str], jobs: int, logs: Path) -> None:
        """Grade all students.

        Args:
            students: the submissions.
            pages: names of their pages.
            jobs: students at a time.
            logs: a folder for the logs.
        """
        every = [
            Job(number, student, page, self.checkpoint.path(student, page))
            for number, (student, page) in enumerate(zip(students, pages, strict=True))
        ]
        self._count = len(every)
        waiting = [job for job in every if not self._load(job, " (done before)")]
        try:
            while waiting or self._running:
                while waiting and len(self._running) < jobs:
                    self._start(waiting.pop(0))
                wait([process.sentinel for process in self._running], timeout=1)
                waiting = [*self._finish(), *waiting]
        finally:
            for process in self._running:
                process.kill()
                process.join()
        for job in every:
            if job.log.is_file():
                shutil.copyfile(job.log, logs / f"{job.page}.txt")

    def _scratch(self, job: Job) -> Path:
        return self.root / f"s{job.number}.{job.tries}"  # short, for paths of sockets

    def _start(self, job: Job) -> None:
        job.tries += 1
        job.deadline = time.monotonic() + self._seconds
        job.log.unlink(missing_ok=True)
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=self._grade, args=(job,))
        process.start()
        self._running[process] = job

    def _finish(self) -> list[Job]:
        """Take in the grades of ended processes; return the jobs to try again."""
        again = []
        for process, job in list(self._running.items()):
            is_late = time.monotonic() >= job.deadline
            if process.is_alive() and not is_late:
                continue
            process.kill()
            process.join()
            del self._running[process]
            shutil.rmtree(self._scratch(job), ignore_errors=True)
            if self._load(job):
                continue
            if process.exitcode == DISK_FULL:
                raise OSError(errno.ENOSPC, "the disk is full")
            if job.tries < TRIES and not is_late:  # killed from outside
                again.append(job)
                continue
            reason = f"grading failed: its process ended (code {process.exitcode}). See the log"
            self._keep(job, self.grader.failed(job.student, reason))
        return again

    def _load(self, job: Job, note: str = "") -> bool:
        """Take in the grades of a finished student; return whether they are there."""
        if (grades := self.checkpoint.read(job.path)) is None:
            return False
        self._keep(job, grades, note)
        return True

    def _keep(self, job: Job, grades: list[ChapterGrade], note: str = "") -> None:
        self.grades[job.page] = grades
        print(f"{len(self.grades):3}/{self._count}  {_line(job.student, grades, note)}", flush=True)

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


# ------------------------------------------------------------------------------------ the run


@dataclass
class Grading:
    """One run over a folder of submissions.

    Args:
        submissions: the folder; it is only read.
        out: the folder of results.
        week: options about the class and the week.
        settings: options about the run.
        root: a folder for temporary files.
    """

    submissions: Path
    out: Path
    week: WeekOptions
    settings: Settings
    root: Path

    def run(self) -> None:
        """Grade the submissions, and write all results.

        Raises:
            Refusal: something typed is wrong, or the disk is full.
        """
        began = time.monotonic()
        with _refusing():
            self.book = Gradebook(self.out)
        self._check_chapters()
        self._collect()
        self._prepare()
        for message in self._grade():
            print(message, flush=True)
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        count = sum(len(student.chapters) for student in self.students)
        print(
            f"{len(self.students)} students, {count} notebook{'s' if count != 1 else ''} in "
            f"{minutes} min {seconds} s: {self.out / 'grades.csv'}, {self.out / 'class.html'}"
        )

    @cached_property
    def known(self) -> dict[str, Chapter]:
        """The chapters with a source notebook, by number."""
        found = {c.number: c for c in course().chapters if c.source_notebook.is_file()}
        if not found:
            raise Refusal(
                f"notebooks/solutions must hold the source notebooks, got none in {ROOT}. "
                "Grade in the instructor's copy of the course.",
                status=1,
            )
        return found

    def _check_chapters(self) -> None:
        if unknown := [number for number in self.settings.chapters if number not in self.known]:
            known = ", ".join(self.known)
            raise Refusal(f"--chapter must be one of {known}, got {unknown[0]}. Change it.")

    def _collect(self) -> None:
        """Collect the submissions, and find out whose they are."""
        unpacked = self.root / "zip"
        unpacked.mkdir()
        stems = {number: chapter.exercises.stem for number, chapter in self.known.items()}
        students, ignored = collect(self.submissions, stems, unpacked)
        if not any(student.chapters for student in students):
            got = "no such notebook" if students or ignored else "nothing"
            raise Refusal(
                "SUBMISSIONS must hold a folder, zip file or notebook for each student, got "
                f"{got} in {self.submissions}. Keep the released names of the notebooks, or check "
                "the path."
            )
        with _refusing():
            self._match(students)
        for name in ignored:
            print(f"ignored: {name} belongs to no student", flush=True)

    def _match(self, students: list[Student]) -> None:
        """Assign the submissions to the students of the class list, if there is one."""
        self.questions: list[Question] = []
        given = read_roster(self.week.roster) if self.week.roster else None
        self.roster: Roster | None = given or self.book.latest_roster()
        self.students = students
        if self.roster is None:
            return
        matching = Matching(self.roster, self.book.answers)
        self.students, self.questions = class_list(students, matching, times=given is not None)
        for question in self.questions:
            print(f"not in the class list: {question}", flush=True)

    def _prepare(self) -> None:
        """Choose a sandbox, make the assignments, and load the checks."""
        submitted = {chapter for student in self.students for chapter in student.chapters}
        self.chapters = sorted(self.settings.chapters or submitted)
        with _refusing():
            self.sandbox, problems = choose(self.settings.isolation)
        why = f" ({'; '.join(problems)})" if problems else ""
        print(f"isolation: {self.sandbox.description}{why}", flush=True)
        numbers = ", ".join(self.chapters)
        print(f"{len(self.students)} students, chapters {numbers}: preparing", flush=True)
        with _refusing():
            chapters = {number: self.known[number] for number in self.chapters}
            self.assignments: Assignments = prepare(chapters, self.root / "course")
        load_checks(self.chapters)

    def _checkpoint(self) -> Checkpoint:
        """Open the grades of an earlier, stopped run; they count if nothing has changed."""
        code = hash_of(self.assignments.library, ROOT / "checks", Path(__file__).parent)
        sources = [self.known[n].source_notebook.read_text("utf-8") for n in self.chapters]
        limits = astuple(self.settings.limits)
        about = json.dumps([code, self.sandbox.name, limits, self.chapters, sources])
        try:
            return Checkpoint(self.out, about)
        except FolderInUse:
            raise Refusal(
                f"OUT must be used by one run at a time, got another run in {self.out}. "
                "Wait for it, or name another folder.",
                status=1,
            ) from None

    def _grade(self) -> list[str]:
        """Grade all students, and write the results; return messages."""
        checkpoint, is_whole = self._checkpoint(), False
        try:
            with unfinished(self.out) as made:
                messages = self._write(checkpoint, made)
            is_whole = True
            return messages
        except KeyboardInterrupt:
            done = checkpoint.count()
            more = f"; {done} of {len(self.students)} students are done: run it again to continue"
            raise Refusal(
                f"stopped; nothing was written{more if done else ''}", INTERRUPTED
            ) from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise Refusal(
                f"the disk must have free space, got none in {self.out} or {self.root}. No table "
                f"has changed, {checkpoint.count()} of {len(self.students)} students are done. "
                "Free some space, and run it again.",
                status=1,
            ) from None
        finally:
            checkpoint.end(whole=is_whole)

    def _write(self, checkpoint: Checkpoint, made: Path) -> list[str]:
        """Grade all students, and write the results into a new folder; return messages."""
        logs, scratch = made / "logs", self.root / "w"
        logs.mkdir()
        scratch.mkdir()
        taken: set[str] = set()
        pages = [page_name(student.name, taken) for student in self.students]
        limits = self.settings.limits
        grader = Autograder(self.assignments, self.chapters, limits, checkpoint.salt)
        pool = Pool(grader, self.sandbox, checkpoint, scratch)
        pool.run(self.students, pages, self.settings.jobs, logs)
        pairs = zip(self.students, pages, strict=True)
        week = self._week([Entry.of(student, pool.grades[page]) for student, page in pairs])
        self.book.put(week, chosen=bool(self.settings.chapters))
        return publish(self.book, week, made)

    def _week(self, entries: list[Entry]) -> Week:
        return Week(
            week_name(self.submissions, self.week.name),
            self.chapters,
            self.week.due,
            self.week.late_policy.percent,
            self.roster.kind if self.roster else "",
            list(self.roster.columns) if self.roster else [],
            {id: hashes for c in self.chapters for id, hashes in checks_of(c).items()},
            self.assignments.stubs(),
            who_rows(self.questions),
            entries,
            self.sandbox.name,
        )


def load_checks(chapters: list[str]) -> None:
    """Import the checks once, before the students' processes are forked."""
    import torch

    from checks.engine.verdict import exercises

    torch.set_num_threads(1)
    for chapter in chapters:
        exercises(chapter)
    loaded = [sys.modules[f"checks.chapter_{chapter}"] for chapter in chapters]
    if any(hasattr(checks, "load_digits") for checks in loaded):
        for name in DIGITS_IMPORTS:
            import_module(name)
    gc.collect()
    gc.freeze()  # these objects stay: the students' processes need not collect them


def rewrite_results(out: Path, options: WeekOptions) -> None:
    """Write tables and pages of all weeks again, with points and answers typed since.

    Args:
        out: the results of an earlier run.
        options: a week to report about, and new due dates.

    Raises:
        Refusal: something typed is wrong.
    """
    if options.roster is not None:
        raise Refusal("ROSTER must come with SUBMISSIONS, got it alone. Add SUBMISSIONS.")
    with _refusing():
        book = Gradebook(out)
        book.settle()
        week = book.named(week_name(out, options.name)) if options.name else book.weeks[-1]
    if options.due:
        week.due, week.percent = options.due, options.late_policy.percent
    with unfinished(out) as made:
        messages = publish(book, week, made)
    for message in messages:
        print(message)
    print(f"written again, nothing was run: {out / 'grades.csv'}, {out / 'totals.csv'}")
