"""Collect submissions: folders, flat files from Moodle and Canvas, zip files.

    folder/Ada Lovelace/03_exercises.ipynb                            and deeper
    folder/Ada Lovelace_03_exercises.ipynb
    folder/Ada Lovelace_12345_assignsubmission_file_/03_exercises.ipynb    Moodle
    folder/lovelaceada_LATE_12345_67890_03_exercises.ipynb                 Canvas
    folder/Ada Lovelace.zip

The chapter is identified by the notebook's contents, then by its file name. Of several notebooks of
one student for one chapter, the one that changed last counts; at the same time, the last by name.
The newer version that an update put next to a student's notebook (NAME.new.ipynb) never counts.
Every ignored file has its reason.
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
UPDATE_COPY = re.compile(r"\.new(?:[ _-]?\(?\d+\)?)?\.ipynb$", re.IGNORECASE)
SKIPPED = {".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git", ".venv", "node_modules"}
ARCHIVES = {".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz"}
PRINTED = {".doc", ".docx", ".htm", ".html", ".odt", ".pdf"}
OTHER_SUFFIXES = {"", ".json", ".txt"}  # that browsers give to .ipynb files
MAX_BYTES = 100_000_000  # of one notebook; a chapter with pictures has about 1 MB
ZIP_BYTES, ZIP_FILES = 1_000_000_000, 5000  # of a zip file and the zip files in it
ZIP_DEPTH = 3  # zip files in zip files
MAX_IGNORED = 200  # files of one student that are reported
NAMED_FILES = 5  # of them, in the reason for a missing chapter


@dataclass
class Submission:
    """One notebook that counts.

    Args:
        path: of the file.
        label: how the instructor finds it.
        late: whether Canvas marked it as late.
        untouched: whether it equals the released notebook.
        notebook: its content; None if it is unreadable.
        reason: why it cannot be graded, "" if it can.
        remarks: such as other files for the same chapter.
        when: when it was written or submitted, if known.
        clock: the source of the time: "file", "zip file" or "class list".
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
        chapter: the chapter that it may be meant for; None if unknown.
        likely: whether it may be meant as a notebook.
    """

    label: str
    why: str
    chapter: str | None = None
    likely: bool = True

    def __str__(self) -> str:
        return f"{self.label}: {self.why}"


@dataclass
class Student:
    """The submissions of one student.

    Args:
        name: from the folder or file name.
        id: the number from Moodle or Canvas, "" if none.
        chapters: one notebook for each chapter, by number such as "03".
        ignored: files that are not graded.
        row: the student's row of the class list, {} without one.
        remarks: for the instructor: doubts about the student's identity.
    """

    name: str
    id: str = ""
    chapters: dict[str, Submission] = field(default_factory=dict)
    ignored: list[IgnoredFile] = field(default_factory=list)
    row: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def ignored_for(self, chapter: str) -> list[str]:
        """Return which ignored files may be meant as the notebook of a missing chapter."""
        likely = [f for f in self.ignored if f.chapter in (chapter, None)]
        if self.chapters:  # a submitted course folder holds many other files
            likely = [f for f in likely if f.likely]
        likely.sort(key=lambda f: (not f.likely, f.chapter is None))
        more = len(likely) - NAMED_FILES
        named = [str(f) for f in likely[:NAMED_FILES]]
        return [*named, f"and {more} other files"] if more > 0 else named


@dataclass(frozen=True)
class Owner:
    """The owner of a file or folder, by its name.

    Args:
        name: as shown.
        id: the number from the platform, "" if none.
        late: whether the name marks it as late.
        raw: the name with invisible characters, which distinguishes names that look equal.
    """

    name: str
    id: str = ""
    late: bool = False
    raw: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.id, self.raw


class Collector:
    """The search through a folder of submissions.

    Args:
        folder: the submissions; it is only read.
        stems: the names of the chapters' notebooks without suffix, by chapter.
        scratch: a folder for unpacked zip files.
    """

    def __init__(self, folder: Path, stems: dict[str, str], scratch: Path):
        self.folder, self.stems, self.scratch = folder, stems, scratch
        self.notebooks: dict[tuple[str, str, str], list[Submission]] = {}
        self.ignored: dict[tuple[str, str, str], list[IgnoredFile]] = {}
        self._unpacked = 0

    def add(self, owner: Owner, path: Path, label: str, inside: Budget | None = None) -> None:
        """Add a file or a folder of a student."""
        notebooks = self.notebooks.setdefault(owner.key, [])
        if path.is_symlink():
            self._ignore(owner, path, label, "a link, which is not followed")
        elif path.is_dir():
            try:
                found = sorted(path.iterdir())
            except OSError as error:
                self._ignore(owner, path, label, f"cannot be read: {error.strerror}")
                return
            for inner in found:
                if not _skipped(inner):
                    self.add(owner, inner, f"{label}/{visible(inner.name)}", inside)
        elif not path.is_file():
            self._ignore(owner, path, label, "neither a file nor a folder")
        elif path.suffix.lower() == ".zip":
            self._zip(owner, path, label, inside or Budget())
        elif UPDATE_COPY.search(path.name):
            why = "the copy of an update is not graded; if the work is in it, remove .new"
            self._ignore(owner, path, label, why)
        elif path.suffix.lower() == ".ipynb":
            clock = "zip file" if inside else "file"
            notebooks.append(Submission(path, label, owner.late, clock=clock))
        else:
            why, chapter, likely = self._what(path)
            self._ignore(owner, path, label, why, chapter, likely)

    def _ignore(
        self,
        owner: Owner,
        path: Path,
        label: str,
        why: str,
        chapter: str | None = None,
        likely: bool = True,
    ) -> None:
        ignored = self.ignored.setdefault(owner.key, [])
        if len(ignored) < MAX_IGNORED:
            chapter = chapter or self.chapter_by_name(path.name)
            ignored.append(IgnoredFile(label, why, chapter, likely))

    def _zip(self, owner: Owner, path: Path, label: str, budget: Budget) -> None:
        if budget.depth == ZIP_DEPTH:
            self._ignore(
                owner, path, label, f"a zip file inside of {ZIP_DEPTH} others is not opened"
            )
            return
        self._unpacked += 1
        target = self.scratch / f"zip{self._unpacked}"
        target.mkdir()
        if why := unpack(path, target, budget):
            self._ignore(owner, path, label, why)
        budget.depth += 1
        for inner in sorted(target.glob("*/*")):
            self.add(owner, inner, f"{label}/{visible(inner.name)}", budget)
        budget.depth -= 1

    def _what(self, path: Path) -> tuple[str, str | None, bool]:
        """Return why a file is ignored, its chapter, and whether it may be a notebook."""
        kind = path.suffix.lower()
        if kind in ARCHIVES:
            return f"an archive of kind {kind} is not opened; ask for a .zip file", None, True
        if kind in PRINTED:
            return f"a {kind} file cannot be run; ask for the .ipynb file", None, True
        if (notebook := _hidden_notebook(path)) is not None:
            why = "a notebook whose name does not end with .ipynb; rename it, and grade again"
            return why, chapter_of(notebook), True
        return "not a notebook", None, ".ipynb" in path.name.lower()

    def is_students(self, path: Path) -> bool:
        """Return whether an entry of the folder itself belongs to a student."""
        if path.is_symlink():
            return False
        kind = path.suffix.lower()
        return (
            path.is_dir()
            or kind in {".ipynb", ".zip", *ARCHIVES, *PRINTED}
            or bool(MOODLE.match(path.name) or CANVAS.match(path.name))
            or ".ipynb" in path.name.lower()
            or _hidden_notebook(path) is not None
        )

    def owner(self, path: Path) -> Owner:
        """Return the owner of an entry of the folder itself."""
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
            student = Student(shown, id, ignored=self.ignored.get(key, []))
            if seen[shown] > 1:
                student.name += f" [{seen[shown]}]"
                student.remarks.append(f"its name looks like another one: {shown}")
            self._choose(student, found)
            yield student

    def _choose(self, student: Student, found: list[Submission]) -> None:
        """Identify the chapter of each notebook, and choose the one that counts."""
        by_chapter: dict[str, list[Submission]] = {}
        for sent in found:
            chapter = self._read(sent)
            if chapter is None:
                known = ", ".join(self.stems)
                why = sent.reason or f"it belongs to none of the chapters {known}"
                if len(student.ignored) < MAX_IGNORED:
                    student.ignored.append(IgnoredFile(sent.label, why))
            else:
                by_chapter.setdefault(chapter, []).append(sent)
        for chapter, several in sorted(by_chapter.items()):
            # Gradable files count before others, and work before an untouched copy.
            several.sort(key=lambda s: (not s.reason, not s.untouched, _changed(s.path), s.label))
            *others, taken = several
            if others:
                left = ", ".join(other.label for other in others)
                fresh = any(other.untouched for other in others) and not taken.untouched
                why = "the newest with changes" if fresh else "the newest"
                taken.remarks.append(
                    f"{len(several)} files: graded {taken.label}, {why}; ignored {left}"
                )
            if taken.late:
                taken.remarks.append("late, according to its name")
            if changed := _changed(taken.path):
                taken.when = datetime.fromtimestamp(changed).astimezone()
            student.chapters[chapter] = taken

    def _read(self, sent: Submission) -> str | None:
        """Read a notebook, and return its chapter; None if it has none of the known ones."""
        try:
            if sent.path.stat().st_size > MAX_BYTES:
                raise Unreadable(f"the file is larger than {MAX_BYTES // 1_000_000} MB")
            content = sent.path.read_bytes()
            sent.notebook = tidy(content)
            sent.untouched = fingerprint("x.ipynb", content) == beginning("x.ipynb", content)
        except Unreadable as error:
            sent.reason = str(error)
        except OSError as error:
            sent.reason = f"the file cannot be read: {error.strerror}"
        inside = chapter_of(sent.notebook) if sent.notebook else None
        by_name = self.chapter_by_name(sent.path.name)
        if inside is None and not sent.reason and not _has_exercises(sent.notebook):
            sent.reason = "it has no exercises: no check, no grade_id and no heading of an exercise"
        if inside in self.stems and by_name and inside != by_name:
            sent.remarks.append(
                f"named as chapter {by_name}, but its exercises belong to chapter {inside}"
            )
        return inside if inside in self.stems else by_name


def collect(folder: Path, stems: dict[str, str], scratch: Path) -> tuple[list[Student], list[str]]:
    """Collect the students with their notebooks, in the order of their names, and other files.

    Args:
        folder: the submissions; it is only read.
        stems: the names of the chapters' notebooks without suffix, by chapter.
        scratch: a folder for unpacked zip files.
    """
    collector, others = Collector(folder, stems, scratch), []
    for path in sorted(folder.iterdir()):
        if _skipped(path):
            continue
        if collector.is_students(path):
            collector.add(collector.owner(path), path, visible(path.name))
        else:
            others.append(visible(path.name))
    return sorted(collector.students(), key=lambda s: (s.name.casefold(), s.id)), others


def _skipped(path: Path) -> bool:
    return path.name in SKIPPED or path.name.startswith((".", "~$")) or "-checkpoint" in path.stem


def visible(text: str) -> str:
    """Turn a text into one line without characters that control a terminal."""
    text = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
    return "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text)


def _clean(name: str) -> str:
    """Return a name without superfluous spaces."""
    return " ".join(visible(name).split())[:120] or "nameless"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _has_exercises(notebook: Notebook) -> bool:
    cells = notebook["cells"]
    return any(
        grade_id(c) or CALL.search(source(c)) or "\nDifficulty " in f"\n{source(c)}" for c in cells
    )


def _hidden_notebook(path: Path) -> Notebook | None:
    """Read a notebook with another suffix; return None if it is not a notebook."""
    try:
        if path.suffix.lower() not in OTHER_SUFFIXES or path.stat().st_size > MAX_BYTES:
            return None
        return tidy(path.read_bytes())
    except (OSError, Unreadable):
        return None


@dataclass
class Budget:
    """The remaining budget for unpacking a zip file and the zip files in it.

    Args:
        bytes, files: the remaining numbers.
        depth: the number of zip files around the current one.
    """

    bytes: int = field(default_factory=lambda: ZIP_BYTES)
    files: int = field(default_factory=lambda: ZIP_FILES)
    depth: int = 0


def unpack(path: Path, target: Path, budget: Budget | None = None) -> str | None:
    """Unpack the relevant files of a zip file; return what is wrong with it, None if nothing.

    Args:
        path: the zip file.
        target: an empty folder; nothing is written outside of it.
        budget: shrinks by what is unpacked.
    """
    budget = budget or Budget()
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if not m.is_dir()]
            budget.files -= len(members)
            if budget.files < 0:
                return f"a zip file of {len(members)} files, more than {ZIP_FILES}, ignored"
            for number, member in enumerate(members):
                parts = [p for p in re.split(r"[/\\]", member.filename) if p not in ("", ".")]
                if stat.S_ISLNK(member.external_attr >> 16) or not parts:
                    continue
                if any(_skipped(Path(part)) for part in parts):
                    continue
                most = min(MAX_BYTES, budget.bytes)
                content = b""  # of other files only the name matters
                if Path(parts[-1]).suffix.lower() in (".ipynb", ".zip", *OTHER_SUFFIXES):
                    with archive.open(member) as inside:
                        content = inside.read(most + 1)
                if len(content) > most:
                    return "a zip file that unpacks to too many bytes, read in part"
                budget.bytes -= len(content)
                # A folder for each file: names come from the student, paths do not.
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
    except Exception as error:  # such as zlib.error, which zipfile does not catch
        return f"a zip file that cannot be read: {type(error).__name__}"
    return None


def _date(file: Path, member: zipfile.ZipInfo) -> None:
    try:
        seconds = datetime(*member.date_time).timestamp()
        os.utime(file, (seconds, seconds))
    except (ValueError, OverflowError, OSError):
        return
