"""Finds what students handed in: folders, flat files as Moodle gives them, zip files.

    folder/Ada Lovelace/03_exercises.ipynb      and deeper
    folder/Ada Lovelace_03_exercises.ipynb
    folder/Ada Lovelace_12345_assignsubmission_file_/03_exercises.ipynb
    folder/Ada Lovelace.zip

The chapter is told by what stands inside, then by the name. Of several notebooks of one student for
one chapter the one changed last counts; at the same time, the last by name.
"""

from __future__ import annotations

import re
import stat
import unicodedata
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from course.cards import grade_id
from course.notebook import source
from grading.restore import CALL, Notebook, Unreadable, chapter_of, tidy

MOODLE = re.compile(
    r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<rest>.*)$"
)
SKIPPED = {".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git", ".venv", "node_modules"}
MOST_BYTES = 100_000_000  # of one notebook; with stored pictures a chapter has about 1 MB
ZIP_BYTES, ZIP_FILES = 1_000_000_000, 5000
MOST_FILES = 200  # reports of other files and notebooks, of one student


@dataclass
class Sent:
    """One notebook that counts.

    Args:
        path: where it is now.
        label: how the instructor finds it.
        notebook: its content; None when it is unreadable.
        reason: why it cannot be graded, "" when it can.
        remarks: what else to say, such as the other files for the same chapter.
    """

    path: Path
    label: str
    notebook: Notebook | None = None
    reason: str = ""
    remarks: list[str] = field(default_factory=list)


@dataclass
class Student:
    """What one student handed in.

    Args:
        name: as the folder or the file says.
        chapters: one notebook for each chapter, "03" for example.
        remarks: files that are no notebooks of exercises, and why.
    """

    name: str
    chapters: dict[str, Sent] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def find(folder: Path, stems: dict[str, str], scratch: Path) -> tuple[list[Student], list[str]]:
    """Finds the students and their notebooks, in the order of their names, and other files.

    Args:
        folder: what was handed in; it is only read.
        stems: the name of each chapter's notebook, without ending, by chapter.
        scratch: a folder in which zip files are unpacked.
    """
    files: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    remarks: dict[tuple[str, str], list[str]] = {}

    def add(who: tuple[str, str], path: Path, label: str, depth: int = 0) -> None:
        mine = remarks.setdefault(who, [])
        listed = files.setdefault(who, [])
        if path.is_symlink():
            mine.append(f"{label}: a link, not followed")
        elif path.is_dir():
            try:
                inside = sorted(path.iterdir())
            except OSError as error:
                mine.append(f"{label}: cannot be read: {error.strerror}")
                return
            for inner in inside:
                if not _skipped(inner):
                    add(who, inner, f"{label}/{inner.name}", depth)
        elif path.suffix.lower() == ".zip":
            target = scratch / f"zip{sum(1 for _ in scratch.iterdir())}"
            target.mkdir()
            if depth:
                mine.append(f"{label}: a zip file in a zip file, left alone")
                return
            if why := unpack(path, target):
                mine.append(f"{label}: {why}")
            for inner in sorted(target.glob("*/*")):
                add(who, inner, f"{label}/{inner.name}", depth + 1)
        elif path.suffix.lower() == ".ipynb":
            listed.append((path, label))
        elif path.is_file():
            mine.append(f"{label}: no notebook, left alone")

    others = []
    for path in sorted(folder.iterdir()):
        if _skipped(path):
            continue
        if path.is_symlink() or (
            not path.is_dir() and path.suffix.lower() not in (".ipynb", ".zip")
        ):
            others.append(path.name)
        else:
            add(_who(path, folder, stems), path, path.name)
    again = Counter(name for name, _ in files)
    students = []
    for (name, number), found in files.items():
        shown = f"{name} ({number})" if again[name] > 1 and number else name
        student = Student(shown, remarks=remarks[name, number])
        _choose(student, found, stems)
        student.remarks = student.remarks[:MOST_FILES]
        students.append(student)
    return sorted(students, key=lambda student: student.name.casefold()), others


def _skipped(path: Path) -> bool:
    return path.name in SKIPPED or path.name.startswith((".", "~$")) or "-checkpoint" in path.stem


def _clean(name: str) -> str:
    """Makes a name one line of visible characters."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    name = "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in name)
    return " ".join(name.split())[:120] or "nameless"


def _who(path: Path, folder: Path, stems: dict[str, str]) -> tuple[str, str]:
    """Returns the name of the student and, if Moodle gave one, the number."""
    name = path.name if path.is_dir() else path.stem
    if match := MOODLE.match(name):
        return _clean(match["name"]), match["id"]
    if path.is_dir() or path.suffix.lower() != ".ipynb":
        return _clean(name), ""
    for stem in stems.values():
        place = name.casefold().find(stem.casefold())
        if place >= 0:
            return _clean(name[:place].rstrip(" _-.") or folder.resolve().name), ""
    if match := re.match(r"(?P<name>.*?)[ _-]*(?<!\d)\d\d(?!\d)(?:[ _-].*)?$", name):
        return _clean(match["name"] or folder.resolve().name), ""
    return _clean(name), ""


def _choose(student: Student, found: list[tuple[Path, str]], stems: dict[str, str]) -> None:
    """Finds out which chapter each notebook is, and which one counts."""
    by_chapter: dict[str, list[Sent]] = {}
    for path, label in found:
        sent = Sent(path, label)
        try:
            if path.stat().st_size > MOST_BYTES:
                raise Unreadable(f"the file is larger than {MOST_BYTES // 1_000_000} MB")
            sent.notebook = tidy(path.read_bytes())
        except Unreadable as error:
            sent.reason = str(error)
        except OSError as error:
            sent.reason = f"the file cannot be read: {error.strerror}"
        inside = chapter_of(sent.notebook) if sent.notebook else None
        by_name = _chapter_by_name(path.name, stems)
        chapter = inside if inside in stems else by_name
        if chapter is None:
            known = ", ".join(stems)
            why = sent.reason or f"it belongs to none of the chapters {known}"
            student.remarks.append(f"{label}: {why}")
            continue
        if inside is None and not sent.reason and not _has_cards(sent.notebook):
            sent.reason = "it holds no exercises: no check, no grade_id and no heading of them"
        if inside and by_name and inside != by_name and inside in stems:
            sent.remarks.append(f"named as chapter {by_name}, its exercises are of {inside}")
        by_chapter.setdefault(chapter, []).append(sent)
    for chapter, several in sorted(by_chapter.items()):
        # A notebook that can be graded counts before one that cannot.
        several.sort(key=lambda s: (not s.reason, _changed(s.path), s.label))
        *others, taken = several
        if others:
            left = ", ".join(other.label for other in others)
            taken.remarks.append(
                f"{len(several)} files: took {taken.label}, the newest; left {left}"
            )
        student.chapters[chapter] = taken


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


def _chapter_by_name(name: str, stems: dict[str, str]) -> str | None:
    match = MOODLE.match(name)
    name = (match["rest"] if match else name).casefold()
    for chapter, stem in stems.items():
        if stem.casefold() in name:
            return chapter
    for number in re.findall(r"(?<!\d)\d\d(?!\d)", name):
        if number in stems:
            return number
    return None


def unpack(path: Path, target: Path) -> str | None:
    """Unpacks the notebooks of a zip file; says what was wrong with it, None if nothing was.

    Args:
        path: the zip file.
        target: an empty folder. Nothing is written outside of it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if not m.is_dir()]
            if len(members) > ZIP_FILES:
                return f"a zip file of {len(members)} files, more than {ZIP_FILES}, left alone"
            left = ZIP_BYTES
            for number, member in enumerate(members):
                parts = [p for p in re.split(r"[/\\]", member.filename) if p not in ("", ".")]
                if stat.S_ISLNK(member.external_attr >> 16) or not parts:
                    continue
                if not parts[-1].lower().endswith(".ipynb") or SKIPPED & set(parts):
                    continue
                if any(part.startswith(".") for part in parts) or "-checkpoint" in parts[-1]:
                    continue
                # Every file gets a folder of its own: names are the student's, paths are ours.
                place = target / f"{number:04}"
                place.mkdir()
                with archive.open(member) as inside:
                    content = inside.read(min(MOST_BYTES, left) + 1)
                if len(content) > min(MOST_BYTES, left):
                    return "a zip file that unpacks to too much, left in the middle"
                left -= len(content)
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
    import os
    from datetime import datetime

    try:
        seconds = datetime(*member.date_time).timestamp()
        os.utime(file, (seconds, seconds))
    except (ValueError, OverflowError, OSError):
        return
