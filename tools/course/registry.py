"""The chapters of the course and where their notebooks are, as course.toml lists them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = "course.toml"


@dataclass(frozen=True)
class Chapter:
    """One chapter of the list.

    Args:
        root: the folder of the course.
        number: two digits, such as "03"; never changes.
        file: the name of its notebook, without ending.
        title: as its first heading has it.
        minutes: what a reader needs for it.
        exercise_minutes: what its exercises need.
        summary: what a reader builds, in at most ten words.
        builds: files of utils ("masking") or names in them ("encoder.Encoder") that it builds.
        ahead: names that it takes from utils although a later chapter builds them.
    """

    root: Path
    number: str
    file: str
    title: str
    minutes: int
    exercise_minutes: int
    summary: str
    builds: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()

    @property
    def notebook(self) -> Path:
        return self.root / "notebooks" / f"{self.file}.ipynb"

    @property
    def master(self) -> Path:
        """The exercises with their solutions."""
        return self.root / "notebooks" / "solutions" / f"{self.number}_solutions.ipynb"

    @property
    def exercises(self) -> Path:
        """The exercises as a student has them."""
        return self.root / "notebooks" / "exercises" / f"{self.number}_exercises.ipynb"


@dataclass(frozen=True)
class Course:
    """The course in one folder.

    Args:
        root: the folder.
        chapters: in the order of their numbers.
        utils: the files of utils; each knows only files of earlier groups.
        free: files of utils, or names in them, that no chapter builds.
    """

    root: Path
    chapters: tuple[Chapter, ...]
    utils: tuple[tuple[str, ...], ...]
    free: tuple[str, ...]

    @classmethod
    def read(cls, root: Path) -> Course:
        """Reads the list of a folder.

        Raises:
            ValueError: the list has an entry too much or too little, or a number twice.
        """
        content = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
        chapters = tuple(_chapter(root, entry) for entry in content.pop("chapters"))
        numbers = [chapter.number for chapter in chapters]
        if numbers != sorted(set(numbers)):
            raise ValueError(
                f"{LIST}: every number stands once, in order, got {numbers}. Append new chapters"
            )
        utils = tuple(tuple(group) for group in content.pop("utils"))
        return cls(root, chapters, utils, tuple(content.pop("free")))

    def __getitem__(self, number: str) -> Chapter:
        """Returns the chapter with this number.

        Raises:
            KeyError: the list has none.
        """
        for chapter in self.chapters:
            if chapter.number == number:
                return chapter
        raise KeyError(number)

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Returns the numbers with which these names of notebooks begin and no chapter has."""
        numbers = {chapter.number for chapter in self.chapters}
        found = {match.group() for name in names if (match := re.match(r"\d\d", name))}
        return sorted(found - numbers)

    def built_in(self) -> dict[str, dict[str, int | None]]:
        """Returns the chapter that builds each name of utils, by file and name.

        The name "*" stands for all of a file; None for what no chapter builds.
        """
        found: dict[str, dict[str, int | None]] = {}
        pairs = [(what, None) for what in self.free]
        pairs += [(what, int(c.number)) for c in self.chapters for what in c.builds]
        for what, number in pairs:
            file, _, name = what.partition(".")
            found.setdefault(file, {})[name or "*"] = number
        return found

    def notebooks(self) -> list[Path]:
        """Returns the notebooks of the chapters, in order."""
        return [chapter.notebook for chapter in self.chapters]

    def masters(self) -> list[Path]:
        """Returns the masters that are there, in order; a student's copy has none."""
        return [chapter.master for chapter in self.chapters if chapter.master.is_file()]


def _chapter(root: Path, entry: dict[str, Any]) -> Chapter:
    known = {f.name: f.default for f in fields(Chapter) if f.name != "root"}
    name = entry.get("number") or entry.get("title") or "without a number"
    missing = [key for key, default in known.items() if default is MISSING and key not in entry]
    if missing:
        raise ValueError(f"{LIST}: entry {name} lacks {', '.join(missing)}. Write them into it")
    if unknown := sorted(entry.keys() - known):
        raise ValueError(
            f"{LIST}: the fields of an entry are {', '.join(known)}, got {', '.join(unknown)} in "
            f"entry {name}. Mend it"
        )
    made = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    chapter = Chapter(root, **made)
    if chapter.file[:3] != f"{chapter.number}_":
        raise ValueError(
            f"{LIST}: a file begins with its number, got number={chapter.number!r} and "
            f"file={chapter.file!r}. Change one"
        )
    return chapter


@cache
def course() -> Course:
    """Returns the course that this file belongs to."""
    return Course.read(ROOT)
