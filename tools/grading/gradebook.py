"""The gradebook of a term: the weeks that were graded into one folder of results.

A week is one folder of submissions and has its name. Grading it again replaces it; another folder
adds a week. `.gradebook/` keeps what is needed to write all tables and pages again, so manual
grades, due dates and the class list can change without running any notebook.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.grading import grade_changes, late_policy, manual_grades, roster
from tools.grading.collect import Student, Submission
from tools.grading.grades import (
    NOT_SUBMITTED,
    OPEN,
    ChapterGrade,
    CheckResult,
    ExerciseGrade,
    renamed,
)
from tools.grading.results_folder import BOOK
from tools.grading.student_report import Result, page_name

STATE = "counted.json.gz"
# Columns of Moodle's worksheets that belong to one assignment.
OF_ASSIGNMENT = {"Identifier", "Status", "Grade", "Maximum Grade", "Feedback comments"}
OF_ASSIGNMENT |= {"Last modified (submission)", "Last modified (grade)", "Grade can be changed"}


@dataclass
class Entry:
    """The submissions and grades of one student in one week.

    Args:
        name, id: as the tables show them.
        row: the student's row of the class list, unchanged.
        remarks: for the instructor: doubts about the student's identity.
        submissions: label, late, when and clock of each notebook, by chapter.
        ignored: ignored files, and whether each may be meant as a notebook.
        grades: before manual grades and late penalties.
    """

    name: str
    id: str
    row: dict[str, str]
    remarks: list[str]
    submissions: dict[str, dict[str, Any]]
    ignored: list[tuple[str, bool]]
    grades: list[ChapterGrade]

    @classmethod
    def of(cls, student: Student, grades: list[ChapterGrade]) -> Entry:
        submissions = {
            chapter: {
                "label": s.label,
                "late": s.late,
                "when": s.when.isoformat() if s.when else None,
                "clock": s.clock,
            }
            for chapter, s in student.chapters.items()
        }
        ignored = [(str(file), file.likely) for file in student.ignored]
        row = dict(student.row)
        return cls(student.name, student.id, row, student.remarks, submissions, ignored, grades)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Entry:
        plain = renamed(plain)
        grades = [ChapterGrade.from_plain(grade) for grade in plain["grades"]]
        ignored = [tuple(file) for file in plain["ignored"]]
        return cls(**{**plain, "grades": grades, "ignored": ignored})

    def submission(self, chapter: str) -> Submission | None:
        plain = self.submissions.get(chapter)
        if plain is None:
            return None
        when = datetime.fromisoformat(plain["when"]) if plain["when"] else None
        return Submission(Path(), plain["label"], plain["late"], when=when, clock=plain["clock"])


@dataclass
class Week:
    """One graded folder of submissions.

    Args:
        name: of the folder.
        chapters: the graded ones.
        due: the due dates as typed.
        percent: late penalty for each day.
        kind: of the class list: "moodle", "canvas", "own", or "" without one.
        columns: of the class list.
        checks: what the verdicts depend on, by exercise; see `grade_changes.checks_of`.
        stubs: the released sources of answer cells, by exercise.
        asked: rows of who.csv: submissions with unclear owners, and candidates.
        entries: of all students.
        isolation: the sandbox of students' code; see sandbox.py.
    """

    name: str
    chapters: list[str]
    due: str = ""
    percent: float = 0.0
    kind: str = ""
    columns: list[str] = field(default_factory=list)
    checks: dict[str, list[str]] = field(default_factory=dict)
    stubs: dict[str, list[str]] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    isolation: str = ""

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Week:
        return cls(**{**plain, "entries": [Entry.from_plain(e) for e in plain["entries"]]})

    def late_policy(self) -> late_policy.LatePolicy:
        return late_policy.parse(self.due, self.percent)


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _write(path: Path, plain: Any) -> None:
    """Write a file in one step."""
    partial = path.with_suffix(".part")
    partial.write_bytes(gzip.compress(json.dumps(plain).encode(), 5, mtime=0))
    os.replace(partial, path)


class Gradebook:
    """All weeks in a folder of results.

    Args:
        out: the folder; it may be missing.

    Raises:
        ValueError: by_hand.csv or who.csv contradict themselves.
    """

    def __init__(self, out: Path):
        self.out, self.folder = out, out / BOOK
        paths = sorted(self.folder.glob("week-*.json.gz"))
        self.weeks = [Week.from_plain(_read(path)) for path in paths]
        self.manual = manual_grades.read(out / manual_grades.FILE)
        self.answers = roster.read_answers(out / "who.csv")
        state = self.folder / STATE
        plain = _read(state) if state.is_file() else []
        self.before = [grade_changes.CountedExercise.from_plain(entry) for entry in plain]

    def week(self, name: str) -> Week | None:
        return next((week for week in self.weeks if week.name == name), None)

    def named(self, name: str) -> Week:
        """Return the week with a name that the instructor typed.

        Raises:
            ValueError: no week has this name.
        """
        if week := self.week(name):
            return week
        known = ", ".join(week.name for week in self.weeks)
        raise ValueError(f"WEEK must be one of {known}, got {name}. Change it.")

    def put(self, new: Week, *, chosen: bool) -> None:
        """Add a week, or replace the one with the same name.

        The due dates of the old one stay unless the new one has some.

        Args:
            new: the week.
            chosen: whether --chapter selected chapters; the others of the week stay.
        """
        old = self.week(new.name)
        if old is None:
            self.weeks.append(new)
            return
        if not new.due:
            new.due, new.percent = old.due, old.percent
        if chosen:
            _keep_chapters(old, new)
        self.weeks[self.weeks.index(old)] = new

    def settle(self) -> None:
        """Assign submissions to the students that who.csv names.

        Raises:
            ValueError: an answer fits no student or several.
        """
        for week in self.weeks:
            strangers = [e for e in week.entries if not e.row and e.name in self.answers]
            if not week.kind or not strangers:
                continue
            listed = [entry for entry in week.entries if entry.row]
            people = roster.of_rows([entry.row for entry in listed], week.name)
            answers = {entry.name: self.answers[entry.name] for entry in strangers}
            matching = roster.Matching(people, answers)
            for stranger in strangers:
                person = matching.whose(stranger.name)
                if isinstance(person, roster.Person):
                    _reassign(
                        stranger, next(e for e in listed if e.row == person.row), person.submitted
                    )
                    week.entries.remove(stranger)
                else:
                    stranger.remarks = [roster.OF_NOBODY]

    def who_rows(self) -> list[list[str]]:
        """Return the rows of who.csv: answered questions, then open ones."""
        asked = {line[0]: line for week in self.weeks for line in week.asked}
        lines = [[name, asked.get(name, ["", ""])[1], who] for name, who in self.answers.items()]
        return lines + [[*line, ""] for name, line in asked.items() if name not in self.answers]

    def latest_roster(self) -> roster.Roster | None:
        """Return the most recent class list; None if there was none."""
        week = next((week for week in reversed(self.weeks) if week.kind), None)
        if week is None:
            return None
        rows = [entry.row for entry in week.entries if entry.row]
        if week.kind == "moodle":  # its numbers and times are those of one assignment
            rows = [{k: v for k, v in row.items() if k not in OF_ASSIGNMENT} for row in rows]
        return roster.of_rows(rows, f"the class list of {week.name}")

    def results(self) -> list[Result]:
        """Return the results of all students in all weeks, with manual grades."""
        taken: set[str] = set()
        found = []
        for entries in self._students().values():
            newest = entries[max(entries)]
            shown = next((e.name for e in entries.values() if e.row), newest.name)
            chapters, grades, weeks = {}, [], {}
            for chapter in self.chapters:
                grade, week, submission = self._counting(entries, chapter)
                grades.append(grade)
                weeks[chapter] = week.name
                if submission:
                    chapters[chapter] = submission
            student = Student(shown, newest.id, chapters, row=newest.row, remarks=newest.remarks)
            student.ignored = [_IgnoredFile(*file) for e in entries.values() for file in e.ignored]
            grades = self._with_dates(student, self.manual.applied(shown, newest.id, grades), weeks)
            found.append(Result(student, page_name(shown, taken), grades, weeks))
        return found

    @property
    def chapters(self) -> list[str]:
        return sorted({chapter for week in self.weeks for chapter in week.chapters})

    def home_week(self, chapter: str) -> Week:
        """Return the week that a chapter belongs to: the first in which most students submitted it.

        A student may submit it again later; for this student, the later week counts.
        """
        weeks = [week for week in self.weeks if chapter in week.chapters]
        return max(
            weeks, key=lambda week: sum(chapter in entry.submissions for entry in week.entries)
        )

    def chapters_about(self, week: Week) -> list[str]:
        """Return the chapters that belong to a week, or else those submitted again in it."""
        own = [chapter for chapter in week.chapters if self.home_week(chapter).name == week.name]
        return own or week.chapters

    def _students(self) -> dict[tuple[Any, ...], dict[int, Entry]]:
        """Return the entries of each student by week, in the order of the newest week."""
        found: dict[tuple[Any, ...], dict[int, Entry]] = {}
        for index in reversed(range(len(self.weeks))):
            again: dict[tuple[str, ...], int] = {}
            for entry in self.weeks[index].entries:
                own = roster.words(entry.name)
                again[own] = again.get(own, 0) + 1
                found.setdefault((own, again[own]), {})[index] = entry
        return found

    def _counting(
        self, entries: dict[int, Entry], chapter: str
    ) -> tuple[ChapterGrade, Week, Submission | None]:
        """Return the grade that counts for a chapter: that of the newest week with a submission."""
        graded = [n for n, week in enumerate(self.weeks) if chapter in week.chapters]
        grades = {
            n: next((m for m in entries[n].grades if m.chapter == chapter), None)
            for n in graded
            if n in entries
        }
        sent = [n for n, grade in grades.items() if grade and grade.file]
        if not sent:
            found = [grade for n in reversed(graded) if (grade := grades.get(n))]
            grade = next(
                (m for m in found if m.reason != NOT_SUBMITTED), None
            )  # names what came instead
            grade = grade or next(iter(found), None) or self._nothing(graded[-1], chapter)
            return grade, self.home_week(chapter), None
        grade = copy.copy(grades[sent[-1]])
        for index in sent[:-1]:
            was = grades[index]
            also = f"also submitted in {self.weeks[index].name}: {was.points:g} of {was.possible:g}"
            grade.reason = "; ".join(filter(None, [grade.reason, also]))
        return grade, self.weeks[sent[-1]], entries[sent[-1]].submission(chapter)

    def _nothing(self, index: int, chapter: str) -> ChapterGrade:
        """Return the grade of a student who was not in the list of that week."""
        other = next(m for e in self.weeks[index].entries for m in e.grades if m.chapter == chapter)
        zeros = [
            ExerciseGrade(
                e.id, e.title, 0.0, e.possible, CheckResult(OPEN if e.is_open else NOT_SUBMITTED)
            )
            for e in other.exercises
        ]
        return ChapterGrade(chapter, "", zeros, NOT_SUBMITTED)

    def _with_dates(
        self, student: Student, grades: list[ChapterGrade], weeks: dict[str, str]
    ) -> list[ChapterGrade]:
        """Set the days late of each notebook, and apply the late penalty."""
        for grade in grades:
            submission = student.chapters.get(grade.chapter)
            if submission is None:
                continue
            policy = self.week(weeks[grade.chapter]).late_policy()
            if policy.due(grade.chapter) is None:  # submitted again, in a week without its due date
                policy = self.home_week(grade.chapter).late_policy()
            grade.days_late = policy.days_late(grade.chapter, submission.when)
            grade.penalty = policy.penalty(grade.earned, grade.days_late)
            if grade.penalty:
                days = "1 day" if grade.days_late == 1 else f"{grade.days_late} days"
                late = f"{days} late: {grade.penalty:g} of {grade.earned:g} points taken"
                grade.reason = "; ".join(filter(None, [late, grade.reason]))
        return grades

    def checks(self) -> dict[str, dict[str, list[str]]]:
        """Return what the verdicts depend on, by week and exercise."""
        return {week.name: week.checks for week in self.weeks}

    def save(self) -> None:
        """Write the data for the next run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, week in enumerate(self.weeks):
            _write(self.folder / f"week-{number:02}.json.gz", asdict(week))
        now = [entry.to_plain() for entry in grade_changes.counted(self.results(), self.checks())]
        _write(self.folder / STATE, now)


@dataclass(frozen=True)
class _IgnoredFile:
    """A file that was ignored in an earlier run, in the words of that run."""

    words: str
    likely: bool

    def __str__(self) -> str:
        return self.words


def _reassign(stranger: Entry, owner: Entry, submitted: datetime | None) -> None:
    """Give submissions under another name to their owner; the newest counts.

    Args:
        stranger: the entry under the other name.
        owner: the student.
        submitted: the time from the class list, if any.
    """
    for grade in stranger.grades:
        new, old = stranger.submission(grade.chapter), owner.submission(grade.chapter)
        if new is None or (old is not None and old.when and new.when and old.when > new.when):
            continue
        grade.reason = "; ".join(filter(None, [grade.reason, f"submitted as {stranger.name}"]))
        owner.grades = [grade if m.chapter == grade.chapter else m for m in owner.grades]
        owner.submissions[grade.chapter] = stranger.submissions[grade.chapter]
        if submitted is not None:
            owner.submissions[grade.chapter] |= {
                "when": submitted.isoformat(),
                "clock": "class list",
            }
    owner.ignored += stranger.ignored
    owner.remarks = [remark for remark in owner.remarks if stranger.name not in remark]


def _keep_chapters(old: Week, new: Week) -> None:
    """Copy the chapters that were not graded this time into the new week."""
    kept = [chapter for chapter in old.chapters if chapter not in new.chapters]
    new.checks = {**old.checks, **new.checks}
    by_name = {roster.words(entry.name): entry for entry in new.entries}
    for entry in old.entries:
        grades = [grade for grade in entry.grades if grade.chapter in kept]
        submissions = {c: value for c, value in entry.submissions.items() if c in kept}
        own = by_name.get(roster.words(entry.name))
        if own is None:
            new.entries.append(replace(entry, grades=grades, submissions=submissions))
        else:
            own.grades += grades
            own.submissions.update(submissions)
    new.chapters = sorted([*new.chapters, *kept])


def week_name(folder: Path, chosen: str | None) -> str:
    """Return the name of a week: the chosen one, or that of its folder."""
    name = " ".join((chosen or folder.name).split())
    return re.sub(r"[^\w .()-]", "_", name)[:60].strip(" .") or "week"
