"""Grade the submissions of a class: collect, prepare, grade each student, write the results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tools.commands import Refusal
from tools.course.registry import ROOT, Chapter, course
from tools.environment import INTERRUPTED
from tools.grading.assignments import Assignments, prepare
from tools.grading.autograde import Autograder
from tools.grading.collect import Student, collect
from tools.grading.grade_changes import checks_of
from tools.grading.gradebook import Entry, Gradebook, Week, week_name
from tools.grading.late_policy import LatePolicy
from tools.grading.pool import FULL, Graders, Pool, load_checks
from tools.grading.publish import publish
from tools.grading.results_folder import unfinished
from tools.grading.resume import Checkpoint, FolderInUse, hash_of
from tools.grading.roster import Matching, Question, Roster, class_list, read_roster, who_rows
from tools.grading.run_notebook import Limits
from tools.grading.sandbox import choose
from tools.grading.student_report import page_name

if TYPE_CHECKING:
    from tools.grading.cluster import Workers


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
        scheduler: the address of a Dask scheduler; "" for grading on this machine.
    """

    chapters: list[str]
    limits: Limits
    jobs: int
    isolation: str
    scheduler: str = ""


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
        self._choose_sandbox()
        numbers = ", ".join(self.chapters)
        print(f"{len(self.students)} students, chapters {numbers}: preparing", flush=True)
        with _refusing():
            chapters = {number: self.known[number] for number in self.chapters}
            self.assignments: Assignments = prepare(chapters, self.root / "course")
        load_checks(self.chapters)

    def _choose_sandbox(self) -> None:
        self.workers: Workers | None = None
        problems: list[str] = []
        if self.settings.scheduler:
            from tools.grading.cluster import Workers  # imports Dask

            self.workers = Workers(self.settings.scheduler, self.chapters)
            self.sandbox = self.workers.choose(self.settings.isolation)
        else:
            with _refusing():
                self.sandbox, problems = choose(self.settings.isolation)
        why = f" ({'; '.join(problems)})" if problems else ""
        print(f"isolation: {self.sandbox.description}{why}", flush=True)

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
        graders = self._graders(grader, checkpoint, scratch)
        graders.run(self.students, pages, logs)
        pairs = zip(self.students, pages, strict=True)
        week = self._week([Entry.of(student, graders.grades[page]) for student, page in pairs])
        self.book.put(week, chosen=bool(self.settings.chapters))
        return publish(self.book, week, made)

    def _graders(self, grader: Autograder, checkpoint: Checkpoint, scratch: Path) -> Graders:
        if self.workers is None:
            return Pool(grader, checkpoint, self.sandbox, scratch, self.settings.jobs)
        from tools.grading.cluster import Cluster

        return Cluster(grader, checkpoint, self.sandbox, self.workers)

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
