"""The class list, and the owner of each submission.

A class list is a csv file: your own, the grading worksheet of a Moodle assignment, or the gradebook
from Canvas. Names are compared without accents and in any order, numbers and logins as they are.
Doubtful cases are not guessed: they are listed in `who.csv` for the instructor to answer.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import permutations
from pathlib import Path

from tools.grading.collect import Student, Submission
from tools.grading.results_folder import read_table

FULL = ("name", "fullname", "student", "studentname")
FIRST = ("firstname", "givenname", "forename", "vorname", "prenom")
LAST = ("lastname", "surname", "familyname", "nachname", "nom")
IDS = (
    *("id", "identifier", "idnumber", "studentid", "studentnumber", "sid", "number"),
    *("sisuserid", "sisloginid", "username", "login", "email", "emailaddress", "matrikelnummer"),
)
SUBMITTED = "lastmodifiedsubmission"
# Formats of times: in Moodle's English worksheets, and in other programs.
TIMES = ("%A, %d %B %Y, %I:%M %p", "%A, %d %B %Y, %H:%M", "%d %B %Y, %I:%M %p", "%d.%m.%Y %H:%M")
NOBODY = "nobody"
OF_NOBODY = "not in this class, according to who.csv"
SIMILAR = 0.75  # ratio of similar names
MAX_CANDIDATES = 3  # for one submission
# Letters that Unicode does not decompose into a letter and an accent.
LETTERS = str.maketrans(
    {"ß": "ss", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe"}
    | {"\N{LATIN SMALL LETTER DOTLESS I}": "i"}
)
APOSTROPHE = re.compile("['`\N{RIGHT SINGLE QUOTATION MARK}\N{MODIFIER LETTER APOSTROPHE}]")
UMLAUT = re.compile(r"(?<=[aou])e")  # Mueller is Müller
WHO = ("handed_in", "might_be", "is")


@dataclass(frozen=True)
class Person:
    """One row of the class list.

    Args:
        name: as the list writes it.
        ids: numbers, logins and addresses, in lower case.
        row: the row, unchanged.
        submitted: when the learning platform took the submission, if the list has the time.
    """

    name: str
    ids: frozenset[str] = frozenset()
    row: dict[str, str] = field(default_factory=dict, hash=False)
    submitted: datetime | None = None

    @property
    def id(self) -> str:
        """The number of the student on the platform; "" if none."""
        for column in ("Identifier", "ID", "id"):
            if value := self.row.get(column, "").strip():
                return value.removeprefix("Participant ").strip()
        return min(self.ids, key=lambda text: (not text.isdigit(), len(text)), default="")


@dataclass(frozen=True)
class Roster:
    """The class list.

    Args:
        people: in the order of the list.
        kind: "moodle", "canvas" or "own".
        columns: the names of its columns.
    """

    people: list[Person]
    kind: str = "own"
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """A submission with an unclear owner.

    Args:
        submission: the name of the folder or file.
        candidates: possible owners; empty if the name resembles none.
        why: what is unclear.
    """

    submission: str
    candidates: tuple[Person, ...]
    why: str

    def __str__(self) -> str:
        people = " or ".join(person.name for person in self.candidates)
        ask = f"is it {people}?" if people else "it resembles no student."
        return f"{self.submission}; {ask} Answer in who.csv"


def parts(name: str) -> list[str]:
    """Return the parts of a name: without accents, in lower case."""
    text = unicodedata.normalize("NFKD", name).casefold().translate(LETTERS)
    text = "".join(c for c in text if not 0x300 <= ord(c) <= 0x36F)
    text = APOSTROPHE.sub("", text)
    kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return "".join(kept).split()


def words(name: str) -> tuple[str, ...]:
    """Return the parts of a name, sorted."""
    return tuple(sorted(parts(name)))


def _bare(column: str) -> str:
    return re.sub(r"[^a-z]", "", column.casefold())


def read_roster(path: Path) -> Roster:
    """Read a class list.

    Args:
        path: a csv file with a column for the name, or two for first and last name.

    Raises:
        ValueError: the file is missing, or the list is invalid; see `of_rows`.
    """
    try:
        rows = read_table(path)
    except OSError as error:
        raise ValueError(
            f"ROSTER must be a csv file with a line for each student, got {path} "
            f"({error.strerror}). Check the path."
        ) from None
    return of_rows(rows, path.name)


def of_rows(rows: list[dict[str, str]], where: str) -> Roster:
    """Return the class of the rows of a list.

    Args:
        rows: by column.
        where: the name of the file, for messages.

    Raises:
        ValueError: the list has no column of names, no student, or a student twice.
    """
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    by_kind = {_bare(name): name for name in reversed(columns)}
    full = next((by_kind[kind] for kind in FULL if kind in by_kind), None)
    first = next((by_kind[kind] for kind in FIRST if kind in by_kind), None)
    last = next((by_kind[kind] for kind in LAST if kind in by_kind), None)
    if not full and not (first and last):
        raise ValueError(
            f"ROSTER must name its columns in the first line, one of them name, got "
            f"{', '.join(columns)} in {where}. Write name,id above the list."
        )
    ids = [name for kind, name in by_kind.items() if kind in IDS]
    found = []
    for row in rows:
        name = row.get(full, "") if full else f"{row.get(first, '')} {row.get(last, '')}"
        name = " ".join(name.replace("\ufeff", "").split())
        if name and not _is_no_student(name, row):
            own = {value.casefold() for value in (row.get(k, "").strip() for k in ids) if value}
            own |= {value.removeprefix("participant ") for value in own}
            own |= {value.partition("@")[0] for value in own if "@" in value}
            found.append(Person(name, frozenset(own), row, _time(row, by_kind.get(SUBMITTED))))
    if not found:
        raise ValueError(f"ROSTER must list the students, got none in {where}. Check the file.")
    twice = Counter((words(person.name), person.ids) for person in found)
    if again := [person.name for person in found if twice[words(person.name), person.ids] > 1]:
        raise ValueError(
            f"ROSTER must list each student once, got {again[0]} twice in {where}. "
            "Remove one, or give both an id."
        )
    return Roster(found, _kind(columns), columns)


def _kind(columns: tuple[str, ...]) -> str:
    if "Identifier" in columns and "Grade" in columns:
        return "moodle"
    names = columns[:1] == ("Student",) or columns[:2] == ("LastName", "FirstName")
    return "canvas" if names and "ID" in columns and "Section" in columns else "own"


def _is_no_student(name: str, row: dict[str, str]) -> bool:
    """Return whether a row of Canvas holds points or its test student."""
    return "Points Possible" in name or (name == "Student, Test" and "ID" in row)


def _time(row: dict[str, str], column: str | None) -> datetime | None:
    text = row.get(column or "", "").strip()
    for pattern in TIMES:
        try:
            return datetime.strptime(text, pattern).astimezone()
        except ValueError:
            continue
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None


def read_answers(path: Path) -> dict[str, str]:
    """Read the answers in who.csv: owners by the name of the submission; {} without a file."""
    rows = read_table(path) if path.is_file() else []
    return {
        row["handed_in"].removeprefix("'"): row["is"].strip().removeprefix("'")
        for row in rows
        if row.get("handed_in") and row.get("is", "").strip()
    }


class Matching:
    """The search for the owner of each submission.

    Args:
        roster: the class list.
        answers: of the instructor, by the name of the submission.

    Raises:
        ValueError: an answer fits no student of the class or several.
    """

    def __init__(self, roster: Roster, answers: dict[str, str] | None = None):
        self.roster = roster
        self._answers = {name: self._named(name, who) for name, who in (answers or {}).items()}
        self._by_words: dict[tuple[str, ...], list[Person]] = {}
        self._joined: dict[str, list[Person]] = {}
        for person in roster.people:
            own = words(person.name)
            for key in dict.fromkeys((own, self._without_umlauts(own))):
                self._by_words.setdefault(key, []).append(person)
            for order in permutations(own) if len(own) <= 4 else [own]:
                people = self._joined.setdefault("".join(order), [])
                if person not in people:
                    people.append(person)

    @staticmethod
    def _without_umlauts(own: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(UMLAUT.sub("", word) for word in own))

    def _named(self, submission: str, who: str) -> Person | None:
        """Return the person that an answer names; None for a stranger."""
        if who.casefold() == NOBODY:
            return None
        people = [
            person
            for person in self.roster.people
            if who.casefold() in person.ids or words(who) == words(person.name)
        ]
        if len(people) != 1:
            got = f"{len(people)} of its students" if people else "none of its students"
            raise ValueError(
                f"who.csv: {submission} must belong to one student of the class list, got {who!r}, "
                f"which fits {got}. Write a name or id as in the list, or {NOBODY}."
            )
        return people[0]

    def whose(self, name: str, id: str = "") -> Person | Question | None:
        """Return the owner of a submission, or a question about it; None for a stranger.

        Args:
            name: of the folder or file.
            id: the number from the platform; "" if none.
        """
        if name in self._answers:
            return self._answers[name]
        by_name, by_id = self._of_name(name), self._of_id(name, id)
        both = [person for person in by_name if person in by_id]
        if len(both) == 1:
            return both[0]
        if len(by_name) == 1 and not by_id:
            return by_name[0]
        if len(by_name) > 1 and not by_id:
            return Question(name, tuple(by_name), "several students have this name")
        if len(by_id) == 1 and not by_name and self._may_be(name, by_id[0]):
            return by_id[0]
        if by_id:
            why = "its number and its name belong to different people" if by_name else ""
            people = dict.fromkeys([*by_id, *by_name])
            return Question(name, tuple(people), why or "its number fits, but its name does not")
        similar = self._resembling(name)
        why = "its name is similar to one in the list" if similar else "its name is not in the list"
        return Question(name, similar, why)

    def _of_name(self, name: str) -> list[Person]:
        own = words(name)
        found = self._by_words.get(own) or self._by_words.get(self._without_umlauts(own), [])
        return found or self._joined.get("".join(own), [])

    def _of_id(self, name: str, id: str) -> list[Person]:
        """Return the people whose number or login is given."""
        given = {id.casefold()} if id else set()
        given |= {name.casefold(), *re.findall(r"[^\s_(),]+", name.casefold())}
        given = {word for word in given if len(word) > 2 or word == id}
        return [person for person in self.roster.people if person.ids & given]

    @staticmethod
    def _may_be(name: str, person: Person) -> bool:
        """Return whether a name is compatible with the person that a number names."""
        own = [word for word in words(name) if not any(c.isdigit() for c in word)]
        theirs = "".join(words(person.name))
        return not own or any(word in theirs for word in own) or "".join(own) in person.ids

    def _resembling(self, name: str) -> tuple[Person, ...]:
        """Return the people with similar names: in full, in part, or by first letters."""
        own = self._without_umlauts(words(name))

        def likeness(person: Person) -> float:
            theirs = self._without_umlauts(words(person.name))
            whole = [word for word in own if len(word) > 2 and word in theirs]
            short = [word for word in own if len(word) == 1]
            letters = [word for word in short if any(t.startswith(word) for t in theirs)]
            if len(whole) > 1 or (whole and len(whole) + len(letters) == len(own) > 1):
                return 1.0
            return difflib.SequenceMatcher(None, " ".join(own), " ".join(theirs)).ratio()

        ranked = sorted(self.roster.people, key=likeness, reverse=True)
        return tuple(person for person in ranked[:MAX_CANDIDATES] if likeness(person) >= SIMILAR)


def who_rows(questions: Iterable[Question]) -> list[list[str]]:
    """Return a row of who.csv for each question: the submission, and its possible owners."""
    rows = []
    for question in questions:
        people = [
            f"{p.name} ({min(p.ids, key=len)})" if p.ids else p.name for p in question.candidates
        ]
        rows.append([question.submission, " or ".join(people) or NOBODY])
    return rows


def class_list(
    found: list[Student], matching: Matching, *, times: bool
) -> tuple[list[Student], list[Question]]:
    """Return submissions in the order of the class list, and students without submissions.

    Args:
        found: the submissions.
        matching: of the class.
        times: whether the times of the list belong to these submissions.
    Returns:
        The students, followed by submissions of unknown owners; and the questions.
    """
    own: dict[Person, list[Student]] = {}
    strangers, questions = [], []
    for student in found:
        whose = matching.whose(student.name, student.id)
        if isinstance(whose, Person):
            own.setdefault(whose, []).append(student)
            continue
        strangers.append(student)
        if whose is None:
            student.remarks.append(OF_NOBODY)
            continue
        questions.append(whose)
        people = " or ".join(person.name for person in whose.candidates)
        ask = f"; is it {people}?" if people else "."
        student.remarks.append(f"not in the class list: {whose.why}{ask} Answer in who.csv")
    again = Counter(words(person.name) for person in matching.roster.people)
    perhaps = {p: q.submission for q in questions for p in q.candidates}
    students = []
    for person in matching.roster.people:
        shown = person.name
        if again[words(person.name)] > 1:
            shown = f"{person.name} ({person.id})"
        student = _one(shown, person, own.get(person, []), times)
        if person in perhaps and not student.chapters:
            student.remarks.append(f"possible owner of {perhaps[person]}: see who.csv")
        students.append(student)
    return [*students, *strangers], questions


def _one(shown: str, person: Person, found: list[Student], times: bool) -> Student:
    """Return one student with all submissions of a person."""
    student = Student(shown, person.id, row=person.row)
    several: dict[str, list[Submission]] = {}
    for each in found:
        student.ignored += each.ignored
        for chapter, submission in each.chapters.items():
            several.setdefault(chapter, []).append(submission)
    for chapter, submissions in several.items():
        submissions.sort(
            key=lambda s: (not s.reason, not s.untouched, s.when.timestamp() if s.when else 0.0)
        )
        *others, taken = submissions
        if others:
            labels = ", ".join(other.label for other in others)
            count = len(submissions)
            taken.remarks.append(f"{count} submissions: graded {taken.label}; ignored {labels}")
        if times and person.submitted:
            taken.when, taken.clock = person.submitted, "class list"
        student.chapters[chapter] = taken
    return student
