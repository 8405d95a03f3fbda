"""Find what students handed in: folders, flat files as Moodle and Canvas give them, zip files.

    folder/Ada Lovelace/03_exercises.ipynb                            and deeper
    folder/Ada Lovelace_03_exercises.ipynb
    folder/Ada Lovelace_12345_assignsubmission_file_/03_exercises.ipynb    Moodle
    folder/lovelaceada_LATE_12345_67890_03_exercises.ipynb                 Canvas
    folder/Ada Lovelace.zip

The chapter is told by what stands inside, then by the name. Of several notebooks of one student for
one chapter the one changed last counts; at the same time, the last by name. What an update put
beside a student's notebook (NAME.new.ipynb) never counts. Whatever is left alone has its reason.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tools.course.cards import grade_id
from tools.course.local_changes import beginning, fingerprint
from tools.course.notebook import source
from tools.grading.notebook_file import CALL, Notebook, Unreadable, chapter_of, tidy

MOODLE = re.compile(
    r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<rest>.*)$"
)
CANVAS = re.compile(r"^(?P<name>.+?)_(?P<id>\d{3,})_\d{3,}_(?P<rest>.+)$")
LATE = re.compile(r"[ _-]LATE(?=[ _-]|$)")
BESIDE = re.compile(r"\.new(?:[ _-]?\(?\d+\)?)?\.ipynb$", re.IGNORECASE)
SKIPPED = {".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git", ".venv", "node_modules"}
ARCHIVES = {".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz"}
PRINTS = {".doc", ".docx", ".htm", ".html", ".odt", ".pdf"}
HIDES_IN = {"", ".json", ".txt"}  # what browsers make of .ipynb
MOST_BYTES = 100_000_000  # of one notebook; with stored pictures a chapter has about 1 MB
ZIP_BYTES, ZIP_FILES = 1_000_000_000, 5000  # of a zip file with all that are in it
ZIP_DEPTH = 3  # zip files in zip files
MOST_FILES = 200  # reports of other files and notebooks, of one student
NAMED_FILES = 5  # of these, in the reason why a chapter is missing


@dataclass
class Sent:
    """One notebook that counts.

    Args:
        path: where it is now.
        label: how the instructor finds it.
        late: whether Canvas says that it came late.
        untouched: whether it is as it was handed out.
        notebook: its content; None when it is unreadable.
        reason: why it cannot be graded, "" when it can.
        remarks: what else to say, such as the other files for the same chapter.
        when: it was written or sent, as far as anybody knows.
        clock: who says so: "file", "zip file" or "class list".
    """

    path: Path
    label: str
    late: bool = False
    untouched: bool = False
    notebook: Notebook | None = None
    reason: str = ""
    remarks: list[str] = field(default_factory=list)
    when: datetime | None = None
    clock: str = "file"


@dataclass(frozen=True)
class IgnoredFile:
    """A file that is not graded.

    Args:
        label: how the instructor finds it.
        why: what it is, and what to do about it.
        chapter: whose notebook it may have been meant to be; None if nobody knows.
        likely: whether it may have been meant as a notebook at all.
    """

    label: str
    why: str
    chapter: str | None = None
    likely: bool = True

    def __str__(self) -> str:
        return f"{self.label}: {self.why}"


@dataclass
class Student:
    """What one student handed in.

    Args:
        name: as the folder or the file says.
        id: the number that Moodle or Canvas gave, "" if none.
        chapters: one notebook for each chapter, "03" for example.
        others: files that are not graded.
        row: the student's line of the class list, {} without one.
        remarks: for the instructor: what is unclear about whose it is.
    """

    name: str
    id: str = ""
    chapters: dict[str, Submission] = field(default_factory=dict)
    others: list[IgnoredFile] = field(default_factory=list)
    row: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def ignored_for(self, chapter: str) -> list[str]:
        """Return which files may have been meant as the notebook of a chapter that is missing."""
        likely = [f for f in self.others if f.chapter in (chapter, None)]
        if self.chapters:  # whoever hands in the whole folder hands in much else
            likely = [f for f in likely if f.likely]
        likely.sort(key=lambda f: (not f.likely, f.chapter is None))
        more = len(likely) - NAMED_FILES
        named = [str(f) for f in likely[:NAMED_FILES]]
        return [*named, f"and {more} other files"] if more > 0 else named


@dataclass(frozen=True)
class Owner:
    """Whose something is, as its name says.

    Args:
        name: as it is shown.
        id: the number of the platform, "" if none.
        late: whether the name says so.
        raw: the name with all that does not show, by which two are told apart who look the same.
    """

    name: str
    id: str = ""
    late: bool = False
    raw: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.id, self.raw


class Search:
    """Go through what was handed in.

    Args:
        folder: what was handed in; it is only read.
        stems: the name of each chapter's notebook, without ending, by chapter.
        scratch: a folder in which zip files are unpacked.
    """

    def __init__(self, folder: Path, stems: dict[str, str], scratch: Path):
        self.folder, self.stems, self.scratch = folder, stems, scratch
        self.notebooks: dict[tuple[str, str, str], list[Submission]] = {}
        self.others: dict[tuple[str, str, str], list[IgnoredFile]] = {}
        self._unpacked = 0

    def add(self, who: Who, path: Path, label: str, inside: Budget | None = None) -> None:
        """Take in a file or a folder of a student."""
        notebooks = self.notebooks.setdefault(who.key, [])
        if path.is_symlink():
            self._leave(who, path, label, "a link, not followed")
        elif path.is_dir():
            try:
                found = sorted(path.iterdir())
            except OSError as error:
                self._leave(who, path, label, f"cannot be read: {error.strerror}")
                return
            for inner in found:
                if not _skipped(inner):
                    self.add(who, inner, f"{label}/{visible(inner.name)}", inside)
        elif not path.is_file():
            self._leave(who, path, label, "neither a file nor a folder")
        elif path.suffix.lower() == ".zip":
            self._zip(who, path, label, inside or Budget())
        elif BESIDE.search(path.name):
            why = "what an update put beside is not graded; if the work is in it, take off .new"
            self._leave(who, path, label, why)
        elif path.suffix.lower() == ".ipynb":
            clock = "zip file" if inside else "file"
            notebooks.append(Submission(path, label, who.late, clock=clock))
        else:
            why, chapter, likely = self._what(path)
            self._leave(who, path, label, why, chapter, likely)

    def _leave(
        self,
        who: Who,
        path: Path,
        label: str,
        why: str,
        chapter: str | None = None,
        likely: bool = True,
    ) -> None:
        others = self.others.setdefault(who.key, [])
        if len(others) < MOST_FILES:
            chapter = chapter or self.chapter_by_name(path.name)
            others.append(IgnoredFile(label, why, chapter, likely))

    def _zip(self, who: Who, path: Path, label: str, budget: Budget) -> None:
        if budget.depth == ZIP_DEPTH:
            self._leave(who, path, label, f"a zip file in {ZIP_DEPTH} others is not opened")
            return
        self._unpacked += 1
        target = self.scratch / f"zip{self._unpacked}"
        target.mkdir()
        if why := unpack(path, target, budget):
            self._leave(who, path, label, why)
        budget.depth += 1
        for inner in sorted(target.glob("*/*")):
            self.add(who, inner, f"{label}/{visible(inner.name)}", budget)
        budget.depth -= 1

    def _what(self, path: Path) -> tuple[str, str | None, bool]:
        """Return of a file that is no notebook what it is, of which chapter, and how likely."""
        kind = path.suffix.lower()
        if kind in ARCHIVES:
            return f"an archive of kind {kind} is not opened; ask for a .zip file", None, True
        if kind in PRINTS:
            return f"a {kind} file cannot be run; ask for the .ipynb file", None, True
        if (notebook := _hidden_notebook(path)) is not None:
            why = "a notebook whose name does not end with .ipynb; rename it, and grade again"
            return why, chapter_of(notebook), True
        return "no notebook, left alone", None, ".ipynb" in path.name.lower()

    def is_students(self, path: Path) -> bool:
        """Return whether something that lies in the folder itself was sent by a student."""
        if path.is_symlink():
            return False
        kind = path.suffix.lower()
        return (
            path.is_dir()
            or kind in {".ipynb", ".zip", *ARCHIVES, *PRINTS}
            or bool(MOODLE.match(path.name) or CANVAS.match(path.name))
            or ".ipynb" in path.name.lower()
            or _hidden_notebook(path) is not None
        )

    def who(self, path: Path) -> Owner:
        """Return whose something in the folder itself is."""
        name = path.name if path.is_dir() else path.stem
        if match := MOODLE.match(name) or CANVAS.match(name):
            bare, late = LATE.subn("", match["name"])
            return Owner(_clean(bare), match["id"], late > 0, unicodedata.normalize("NFC", bare))
        bare, late = LATE.subn("", name)
        if not path.is_dir() and ".ipynb" in path.name.lower():
            bare = self._before_the_chapter(re.sub(r"(?i)\.ipynb.*", "", bare))
        return Owner(_clean(bare), "", late > 0, unicodedata.normalize("NFC", bare))

    def _before_the_chapter(self, name: str) -> str:
        for stem in self.stems.values():
            place = name.casefold().find(stem.casefold())
            if place >= 0:
                return name[:place].rstrip(" _-.") or self.folder.resolve().name
        if match := re.match(r"(?P<name>.*?)[ _-]*(?<!\d)\d\d(?!\d)(?:[ _-].*)?$", name):
            return match["name"] or self.folder.resolve().name
        return name

    def chapter_by_name(self, name: str) -> str | None:
        match = MOODLE.match(name) or CANVAS.match(name)
        name = (match["rest"] if match else name).casefold()
        for chapter, stem in self.stems.items():
            if stem.casefold() in name:
                return chapter
        for number in re.findall(r"(?<!\d)\d\d(?!\d)", name):
            if number in self.stems:
                return number
        return None

    def students(self) -> Iterator[Student]:
        """Yield all students, each with one notebook for a chapter."""
        again = Counter(name for name, _, _ in self.notebooks)
        seen: Counter[str] = Counter()
        for key, found in sorted(self.notebooks.items(), key=lambda item: item[0][2] != item[0][0]):
            name, id, _ = key
            shown = f"{name} ({id})" if again[name] > 1 and id else name
            seen[shown] += 1
            student = Student(shown, id, others=self.others.get(key, []))
            if seen[shown] > 1:
                student.name += f" [{seen[shown]}]"
                student.remarks.append(f"its name looks the same as another one: {shown}")
            self._choose(student, found)
            yield student

    def _choose(self, student: Student, found: list[Submission]) -> None:
        """Find out which chapter each notebook is, and which one counts."""
        by_chapter: dict[str, list[Submission]] = {}
        for sent in found:
            chapter = self._read(sent)
            if chapter is None:
                known = ", ".join(self.stems)
                why = sent.reason or f"it belongs to none of the chapters {known}"
                if len(student.others) < MOST_FILES:
                    student.others.append(IgnoredFile(sent.label, why))
            else:
                by_chapter.setdefault(chapter, []).append(sent)
        for chapter, several in sorted(by_chapter.items()):
            # What can be graded counts before what cannot, and work before a fresh copy.
            several.sort(key=lambda s: (not s.reason, not s.untouched, _changed(s.path), s.label))
            *others, taken = several
            if others:
                left = ", ".join(other.label for other in others)
                fresh = any(other.untouched for other in others) and not taken.untouched
                why = "the newest that was worked in" if fresh else "the newest"
                taken.remarks.append(
                    f"{len(several)} files: took {taken.label}, {why}; left {left}"
                )
            if taken.late:
                taken.remarks.append("late, says its name")
            if changed := _changed(taken.path):
                taken.when = datetime.fromtimestamp(changed).astimezone()
            student.chapters[chapter] = taken

    def _read(self, sent: Submission) -> str | None:
        """Read a notebook and return its chapter, None if it has none of these."""
        try:
            if sent.path.stat().st_size > MOST_BYTES:
                raise Unreadable(f"the file is larger than {MOST_BYTES // 1_000_000} MB")
            content = sent.path.read_bytes()
            sent.notebook = tidy(content)
            sent.untouched = fingerprint("x.ipynb", content) == beginning("x.ipynb", content)
        except Unreadable as error:
            sent.reason = str(error)
        except OSError as error:
            sent.reason = f"the file cannot be read: {error.strerror}"
        inside = chapter_of(sent.notebook) if sent.notebook else None
        by_name = self.chapter_by_name(sent.path.name)
        if inside is None and not sent.reason and not _has_cards(sent.notebook):
            sent.reason = "it holds no exercises: no check, no grade_id and no heading of them"
        if inside in self.stems and by_name and inside != by_name:
            sent.remarks.append(f"named as chapter {by_name}, its exercises are of {inside}")
        return inside if inside in self.stems else by_name


def find(folder: Path, stems: dict[str, str], scratch: Path) -> tuple[list[Student], list[str]]:
    """Find the students and their notebooks, in the order of their names, and other files.

    Args:
        folder: what was handed in; it is only read.
        stems: the name of each chapter's notebook, without ending, by chapter.
        scratch: a folder in which zip files are unpacked.
    """
    search, others = Search(folder, stems, scratch), []
    for path in sorted(folder.iterdir()):
        if _skipped(path):
            continue
        if search.is_students(path):
            search.add(search.who(path), path, visible(path.name))
        else:
            others.append(visible(path.name))
    return sorted(search.students(), key=lambda s: (s.name.casefold(), s.id)), others


def _skipped(path: Path) -> bool:
    return path.name in SKIPPED or path.name.startswith((".", "~$")) or "-checkpoint" in path.stem


def visible(text: str) -> str:
    """Make a text one line that can be written and that commands no terminal."""
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
    return "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text)


def _clean(name: str) -> str:
    """Make a name of it, without spaces too many."""
    return " ".join(visible(name).split())[:120] or "nameless"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _has_cards(notebook: Notebook) -> bool:
    cells = notebook["cells"]
    return any(
        grade_id(c) or CALL.search(source(c)) or "\nDifficulty " in f"\n{source(c)}" for c in cells
    )


def _hidden_notebook(path: Path) -> Notebook | None:
    """Read a notebook that is not called one; None if it is none."""
    try:
        if path.suffix.lower() not in HIDES_IN or path.stat().st_size > MOST_BYTES:
            return None
        return tidy(path.read_bytes())
    except (OSError, Unreadable):
        return None


@dataclass
class Budget:
    """What may still be unpacked of a zip file and of those in it.

    Args:
        bytes, files: so many.
        depth: in how many zip files the current one lies.
    """

    bytes: int = field(default_factory=lambda: ZIP_BYTES)
    files: int = field(default_factory=lambda: ZIP_FILES)
    depth: int = 0


def unpack(path: Path, target: Path, budget: Budget | None = None) -> str | None:
    """Unpack what counts in a zip file; return what was wrong with it, None if nothing was.

    Args:
        path: the zip file.
        target: an empty folder. Nothing is written outside of it.
        budget: what may be unpacked; it shrinks by what was.
    """
    budget = budget or Budget()
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if not m.is_dir()]
            budget.files -= len(members)
            if budget.files < 0:
                return f"a zip file of {len(members)} files, more than {ZIP_FILES}, left alone"
            for number, member in enumerate(members):
                parts = [p for p in re.split(r"[/\\]", member.filename) if p not in ("", ".")]
                if stat.S_ISLNK(member.external_attr >> 16) or not parts:
                    continue
                if any(_skipped(Path(part)) for part in parts):
                    continue
                most = min(MOST_BYTES, budget.bytes)
                content = b""  # of what nobody will read, the name is enough
                if Path(parts[-1]).suffix.lower() in (".ipynb", ".zip", *HIDES_IN):
                    with archive.open(member) as inside:
                        content = inside.read(most + 1)
                if len(content) > most:
                    return "a zip file that unpacks to too much, left in the middle"
                budget.bytes -= len(content)
                # Every file gets a folder of its own: names are the student's, paths are ours.
                place = target / f"{number:04}"
                place.mkdir()
                file = place / (re.sub(r"[^\w .()-]", "_", parts[-1])[-120:])
                file.write_bytes(content)
                _date(file, member)
    except (
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        OSError,
        EOFError,
        ValueError,
    ) as error:
        return f"a zip file that cannot be read: {error}"[:200]
    except Exception as error:  # zlib.error and the like, which zipfile lets through
        return f"a zip file that cannot be read: {type(error).__name__}"
    return None


def _date(file: Path, member: zipfile.ZipInfo) -> None:
    try:
        seconds = datetime(*member.date_time).timestamp()
        os.utime(file, (seconds, seconds))
    except (ValueError, OverflowError, OSError):
        return
