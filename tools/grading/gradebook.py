"""The gradebook of a term: the weeks that were graded into one folder of results.

A week is one folder of submissions, called as the folder is. Grading it again replaces it; another
folder adds a week. What must be known to write all tables and pages anew lies in `.gradebook/`:
so points given by hand, a date, or the list of the class change them without running anything.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.grading import grade_changes, late_policy, manual_grades, roster
from tools.grading.autograde import ChapterGrade
from tools.grading.collect import Submission, Student
from tools.grading.results_folder import BOOK
from tools.grading.student_report import Result, page_name

NOTHING = "not handed in"
STATE = "counted.json.gz"
# Columns of Moodle's worksheets that belong to one assignment.
OF_ASSIGNMENT = {"Identifier", "Status", "Grade", "Maximum Grade", "Feedback comments"}
OF_ASSIGNMENT |= {"Last modified (submission)", "Last modified (grade)", "Grade can be changed"}


@dataclass
class Entry:
    """What one student handed in, in one week.

    Args:
        name, id: as the tables show them.
        row: the student's line of the class list, as it stands there.
        remarks: for the instructor: what is unclear about whose it is.
        sent: by chapter, what is known of the notebook: label, late, when, clock.
        others: files that were left alone, those first that may have been meant as notebooks.
        grades: before anything was given by hand or taken for lateness.
    """

    name: str
    id: str
    row: dict[str, str]
    remarks: list[str]
    sent: dict[str, dict[str, Any]]
    others: list[tuple[str, bool]]
    grades: list[ChapterGrade]

    @classmethod
    def of(cls, student: Student, grades: list[ChapterGrade]) -> Entry:
        sent = {
            chapter: {
                "label": s.label,
                "late": s.late,
                "when": s.when.isoformat() if s.when else None,
                "clock": s.clock,
            }
            for chapter, s in student.chapters.items()
        }
        others = [(str(other), other.likely) for other in student.others]
        row = dict(student.row)
        return cls(student.name, student.id, row, student.remarks, sent, others, grades)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Entry:
        grades = [ChapterGrade.from_plain(grade) for grade in plain["grades"]]
        others = [tuple(other) for other in plain["others"]]
        return cls(**{**plain, "grades": grades, "others": others})

    def submission(self, chapter: str) -> Submission | None:
        plain = self.sent.get(chapter)
        if plain is None:
            return None
        when = datetime.fromisoformat(plain["when"]) if plain["when"] else None
        return Submission(Path(), plain["label"], plain["late"], when=when, clock=plain["clock"])


@dataclass
class Week:
    """One folder of submissions, graded.

    Args:
        name: of the folder.
        chapters: those that were graded.
        due: the date, as it was typed.
        percent: of the points that each day of lateness costs.
        kind: of the class list: "moodle", "canvas", "own", or "" without one.
        columns: of the class list.
        checks: what the verdicts depend on, by exercise; see `moved.checks_of`.
        stubs: the sources that were handed out in the place of answers, by exercise.
        asked: of which submissions it is unclear whose they are, and whose they may be.
        entries: of all students.
        isolation: the wall behind which students' code ran; see wall.py.
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

    def dates(self) -> late_policy.LatePolicy:
        return late_policy.parse(self.due, self.percent)


def _read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def _write(path: Path, plain: Any) -> None:
    """Write a file in one step, so that it is never half."""
    partial = path.with_suffix(".part")
    partial.write_bytes(gzip.compress(json.dumps(plain).encode(), 5, mtime=0))
    os.replace(partial, path)


class Gradebook:
    """All weeks in a folder of results.

    Args:
        out: the folder; it need not be there.

    Raises:
        ValueError: by_hand.csv or who.csv contradict themselves; see there.
    """

    def __init__(self, out: Path):
        self.out, self.folder = out, out / BOOK
        paths = sorted(self.folder.glob("week-*.json.gz"))
        self.weeks = [Week.from_plain(_read(path)) for path in paths]
        self.given = manual_grades.read(out / manual_grades.FILE)
        self.answers = roster.read_answers(out / "who.csv")
        state = self.folder / STATE
        plain = _read(state) if state.is_file() else []
        self.before = [grade_changes.CountedExercise.from_plain(entry) for entry in plain]

    def week(self, name: str) -> Week | None:
        return next((week for week in self.weeks if week.name == name), None)

    def put(self, new: Week, *, chosen: bool) -> None:
        """Take in a week; one of the same name gives way, and leave its date if there is none.

        Args:
            new: the week.
            chosen: whether only chosen chapters were graded; then the others of it stay.
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
        """Yield submissions to those of whom who.csv says by now that they are theirs.

        Raises:
            ValueError: an answer names nobody of the class, or several.
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
                    _hand_over(
                        stranger, next(e for e in listed if e.row == person.row), person.sent
                    )
                    week.entries.remove(stranger)
                else:
                    stranger.remarks = [roster.OF_NOBODY]

    def questions(self) -> list[list[str]]:
        """Return the lines of who.csv: what was answered, and what is still to be answered."""
        asked = {line[0]: line for week in self.weeks for line in week.asked}
        lines = [[name, asked.get(name, ["", ""])[1], who] for name, who in self.answers.items()]
        return lines + [[*line, ""] for name, line in asked.items() if name not in self.answers]

    def list_of_class(self) -> roster.Roster | None:
        """Return the class list that was used last; None if there was none."""
        week = next((week for week in reversed(self.weeks) if week.kind), None)
        if week is None:
            return None
        rows = [entry.row for entry in week.entries if entry.row]
        if week.kind == "moodle":  # its numbers and times are those of one assignment
            rows = [{k: v for k, v in row.items() if k not in OF_ASSIGNMENT} for row in rows]
        return roster.of_rows(rows, f"the class list of {week.name}")

    def results(self) -> list[Result]:
        """Return what every student has in all weeks, with what was given by hand."""
        taken: set[str] = set()
        found = []
        for key, entries in self._students().items():
            newest = entries[max(entries)]
            shown = next((e.name for e in entries.values() if e.row), newest.name)
            chapters, grades, weeks = {}, [], {}
            for chapter in self.chapters:
                grade, week, sent = self._counting(key, entries, chapter)
                grades.append(grade)
                weeks[chapter] = week.name
                if sent:
                    chapters[chapter] = sent
            student = Student(shown, newest.id, chapters, row=newest.row, remarks=newest.remarks)
            student.others = [_Told(*other) for e in entries.values() for other in e.others]
            grades = self._with_dates(student, self.given.applied(shown, newest.id, grades), weeks)
            found.append(Result(student, page_name(shown, taken), grades, weeks))
        return found

    @property
    def chapters(self) -> list[str]:
        return sorted({chapter for week in self.weeks for chapter in week.chapters})

    def home(self, chapter: str) -> Week:
        """Return the week to which a chapter belongs: most handed it in then; the first of these.

        Somebody may hand it in again later, and what counts for that student counts then.
        """
        weeks = [week for week in self.weeks if chapter in week.chapters]
        return max(weeks, key=lambda week: sum(chapter in entry.sent for entry in week.entries))

    def about(self, week: Week) -> list[str]:
        """Return the chapters that belong to a week; where none does, those handed in again."""
        own = [chapter for chapter in week.chapters if self.home(chapter).name == week.name]
        return own or week.chapters

    def _students(self) -> dict[tuple[Any, ...], dict[int, Entry]]:
        """Return the entries of each student by week: in the order of the newest week."""
        found: dict[tuple[Any, ...], dict[int, Entry]] = {}
        for place in reversed(range(len(self.weeks))):
            again: dict[tuple[str, ...], int] = {}
            for entry in self.weeks[place].entries:
                own = roster.words(entry.name)
                again[own] = again.get(own, 0) + 1
                found.setdefault((own, again[own]), {})[place] = entry
        return found

    def _counting(
        self, key: Any, entries: dict[int, Entry], chapter: str
    ) -> tuple[ChapterGrade, Week, Submission | None]:
        """Return the grade that counts for a chapter: the newest week in which it was handed in."""
        graded = [n for n, week in enumerate(self.weeks) if chapter in week.chapters]
        grades = {
            n: next((m for m in entries[n].grades if m.chapter == chapter), None)
            for n in graded
            if n in entries
        }
        sent = [n for n, grade in grades.items() if grade and grade.file]
        if not sent:
            found = [grade for n in reversed(graded) if (grade := grades.get(n))]
            grade = next((m for m in found if m.reason != NOTHING), None)  # says what came instead
            grade = grade or next(iter(found), None) or self._nothing(graded[-1], chapter)
            return grade, self.home(chapter), None
        grade = copy.copy(grades[sent[-1]])
        for place in sent[:-1]:
            was = grades[place]
            told = f"also handed in in {self.weeks[place].name}: {was.points:g} of {was.possible:g}"
            grade.reason = "; ".join(filter(None, [grade.reason, told]))
        return grade, self.weeks[sent[-1]], entries[sent[-1]].submission(chapter)

    def _nothing(self, place: int, chapter: str) -> ChapterGrade:
        """Return the grade of who was in no list of that week."""
        other = next(m for e in self.weeks[place].entries for m in e.grades if m.chapter == chapter)
        zeros = [
            replace(
                e,
                points=0.0,
                state="open" if e.state == "open" else "not handed in",
                **dict.fromkeys(("reason", "topic", "words"), ""),
                named=False,
                cells=[],
                written=False,
            )
            for e in other.exercises
        ]
        return ChapterGrade(chapter, "", zeros, NOTHING)

    def _with_dates(self, student: Student, grades: list[ChapterGrade], weeks: dict[str, str]) -> list[ChapterGrade]:
        """Note how many days late each notebook came, and take what was said to take."""
        for grade in grades:
            sent = student.chapters.get(grade.chapter)
            if sent is None:
                continue
            dates = self.week(weeks[grade.chapter]).dates()
            if dates.of(grade.chapter) is None:  # handed in later, when only others had a date
                dates = self.home(grade.chapter).dates()
            grade.days_late = dates.days_late(grade.chapter, sent.when)
            grade.late_penalty = dates.penalty(grade.earned, grade.days_late)
            if grade.late_penalty:
                days = "1 day" if grade.days_late == 1 else f"{grade.days_late} days"
                told = f"{days} late: {grade.late_penalty:g} of {grade.earned:g} points taken"
                grade.reason = "; ".join(filter(None, [told, grade.reason]))
        return grades

    def checks(self) -> dict[str, dict[str, list[str]]]:
        """Return, by week, what the verdicts of the exercises depend on."""
        return {week.name: week.checks for week in self.weeks}

    def save(self) -> None:
        """Write what the next run needs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, week in enumerate(self.weeks):
            _write(self.folder / f"week-{number:02}.json.gz", asdict(week))
        now = [entry.to_plain() for entry in grade_changes.counted(self.results(), self.checks())]
        _write(self.folder / STATE, now)


@dataclass(frozen=True)
class _Told:
    """A file that was left alone in an earlier run, in the words of that run."""

    words: str
    likely: bool

    def __str__(self) -> str:
        return self.words


def _hand_over(stranger: Entry, owner: Entry, sent: datetime | None) -> None:
    """Make what was handed in under another name a student's own; the newest counts.

    Args:
        stranger: what was handed in.
        owner: whose it is.
        sent: when the learning platform took it, if the class list says so.
    """
    for grade in stranger.grades:
        new, old = stranger.submission(grade.chapter), owner.submission(grade.chapter)
        if new is None or (old is not None and old.when and new.when and old.when > new.when):
            continue
        grade.reason = "; ".join(filter(None, [grade.reason, f"handed in as {stranger.name}"]))
        owner.grades = [grade if m.chapter == grade.chapter else m for m in owner.grades]
        owner.sent[grade.chapter] = stranger.sent[grade.chapter]
        if sent is not None:
            owner.sent[grade.chapter] |= {"when": sent.isoformat(), "clock": "class list"}
    owner.others += stranger.others
    owner.remarks = [said for said in owner.remarks if stranger.name not in said]


def _keep_chapters(old: Week, new: Week) -> None:
    """Bring the chapters that were not graded this time into the new week."""
    kept = [chapter for chapter in old.chapters if chapter not in new.chapters]
    new.checks = {**old.checks, **new.checks}
    by_name = {roster.words(entry.name): entry for entry in new.entries}
    for entry in old.entries:
        grades = [grade for grade in entry.grades if grade.chapter in kept]
        sent = {chapter: value for chapter, value in entry.sent.items() if chapter in kept}
        own = by_name.get(roster.words(entry.name))
        if own is None:
            new.entries.append(replace(entry, grades=grades, sent=sent))
        else:
            own.grades += grades
            own.sent.update(sent)
    new.chapters = sorted([*new.chapters, *kept])


def week_name(folder: Path, chosen: str | None) -> str:
    """Return what a week is called: as said, or as its folder is."""
    name = " ".join((chosen or folder.name).split())
    return re.sub(r"[^\w .()-]", "_", name)[:60].strip(" .") or "week"


def stubs_of(assignments: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the sources that were handed out in the place of answers, by exercise."""
    for chapter in assignments.notebooks:
        for original in assignments.originals(chapter):
            yield original.id, original.stubs
