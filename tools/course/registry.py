"""The chapters of the course and their notebooks, as course.toml lists them."""

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
    """One chapter.

    Args:
        root: the folder of the course.
        number: two digits, such as "03"; never changes.
        file: the name of its notebook, without suffix.
        title: as in its first heading.
        minutes: for a reader.
        exercise_minutes: for its exercises.
        summary: what a reader builds, in at most ten words.
        builds: files of utils ("masking") or names in them ("encoder.Encoder") that it builds.
        ahead: names of utils that it uses although a later chapter builds them.
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
    def source_notebook(self) -> Path:
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
        chapters: in order of their numbers.
        utils: the files of utils; each imports only from earlier groups.
        free: files of utils, or names in them, that no chapter builds.
    """

    root: Path
    chapters: tuple[Chapter, ...]
    utils: tuple[tuple[str, ...], ...]
    free: tuple[str, ...]

    @classmethod
    def read(cls, root: Path) -> Course:
        """Read the course of a folder.

        Raises:
            ValueError: an entry has a missing or unknown field, or a number occurs twice.
        """
        content = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
        chapters = tuple(_chapter(root, entry) for entry in content.pop("chapters"))
        numbers = [chapter.number for chapter in chapters]
        if numbers != sorted(set(numbers)):
            raise ValueError(
                f"{LIST}: numbers must be unique and in order, got {numbers}. Append new chapters."
            )
        utils = tuple(tuple(group) for group in content.pop("utils"))
        return cls(root, chapters, utils, tuple(content.pop("free")))

    def __getitem__(self, number: str) -> Chapter:
        """Return the chapter with a number.

        Raises:
            KeyError: there is none.
        """
        for chapter in self.chapters:
            if chapter.number == number:
                return chapter
        raise KeyError(number)

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Return the numbers at the start of notebook names that no chapter has."""
        numbers = {chapter.number for chapter in self.chapters}
        found = {match.group() for name in names if (match := re.match(r"\d\d", name))}
        return sorted(found - numbers)

    def built_in(self) -> dict[str, dict[str, int | None]]:
        """Return the chapter that builds each name of utils, by file and name.

        The name "*" means a whole file; None means that no chapter builds it.
        """
        found: dict[str, dict[str, int | None]] = {}
        pairs = [(what, None) for what in self.free]
        pairs += [(what, int(c.number)) for c in self.chapters for what in c.builds]
        for what, number in pairs:
            file, _, name = what.partition(".")
            found.setdefault(file, {})[name or "*"] = number
        return found

    def notebooks(self) -> list[Path]:
        """Return the notebooks of the chapters, in order."""
        return [chapter.notebook for chapter in self.chapters]

    def source_notebooks(self) -> list[Path]:
        """Return the existing source notebooks, in order; a student's copy has none."""
        return [
            chapter.source_notebook
            for chapter in self.chapters
            if chapter.source_notebook.is_file()
        ]


def _chapter(root: Path, entry: dict[str, Any]) -> Chapter:
    known = {f.name: f.default for f in fields(Chapter) if f.name != "root"}
    name = entry.get("number") or entry.get("title") or "without a number"
    missing = [key for key, default in known.items() if default is MISSING and key not in entry]
    if missing:
        raise ValueError(
            f"{LIST}: entry {name} must have all fields, got none for {', '.join(missing)}. "
            "Add them."
        )
    if unknown := sorted(entry.keys() - known):
        raise ValueError(
            f"{LIST}: the fields of an entry must be {', '.join(known)}, got "
            f"{', '.join(unknown)} in entry {name}. Fix it."
        )
    made = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()}
    chapter = Chapter(root, **made)
    if chapter.file[:3] != f"{chapter.number}_":
        raise ValueError(
            f"{LIST}: a file must begin with its number, got number={chapter.number!r} and "
            f"file={chapter.file!r}. Change one."
        )
    return chapter


@cache
def course() -> Course:
    """Return the course of this file."""
    return Course.read(ROOT)
