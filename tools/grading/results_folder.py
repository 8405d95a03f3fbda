"""The folder of results: new results replace old ones as a whole, and nothing is lost.

Tables and pages of an earlier run move to `earlier/` in the folder, named after the day on which
they were made; so does any other file with the name of a new one. All other files stay. Columns
that the instructor added to a table are copied to the new one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tools.grading.resume import FOLDER
from tools.grading.sandbox import NO_ISOLATION

MADE_BY = ".made-by-grade"  # marks a folder of results, and lists the files of the run
EARLIER = "earlier"
BOOK = ".gradebook"  # the data for the next run; see gradebook.py
TABLES = (
    "grades.csv",
    "totals.csv",
    "class.csv",
    "by_hand.csv",
    "moved.csv",
    "same.csv",
    "who.csv",
)
HEADED = ("grades.csv", "totals.csv", "class.csv")  # their heads warn about a run without a sandbox
WEEKLY = (": points", ": of")  # suffixes of the columns that totals.csv has for each week
# The columns that identify the rows of a table.
KEYS = {"grades.csv": ("student", "chapter"), "totals.csv": ("student",)}


def is_of_earlier_run(folder: Path) -> bool:
    return (folder / MADE_BY).is_file() or (folder / FOLDER).is_dir()


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """Yield a hidden folder in the folder of results for new files; remove it afterwards.

    Args:
        out: the folder of results; made if it does not exist, and removed if it stays empty.
    """
    was_there = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=out))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if not was_there and not any(out.iterdir()):
            out.rmdir()


def put_in_place(made: Path, out: Path) -> Path | None:
    """Move new files into the folder of results, and those of an earlier run out of it.

    Every file is complete at every moment; the tables come last.

    Args:
        made: the folder with the new files.
        out: the folder of results.
    Returns:
        The folder that now holds the files of the earlier run; None if there were none.
    """
    new = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    new.sort(key=lambda name: str(name) in TABLES)
    old = [name for name in {*_listed(out), *new} if (out / name).exists()]
    kept = _free_name(out) if old else None
    listed = made / MADE_BY  # a full disk fails here, before any file has moved
    listed.write_text(json.dumps({"made by": "grade", "files": [name.as_posix() for name in new]}))
    for name in sorted(old):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(out / name, kept / name)
    for name in new:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, out / name)
    os.replace(listed, out / MADE_BY)
    return kept


def _listed(out: Path) -> list[Path]:
    """Return the known files of an earlier run."""
    try:
        names = json.loads((out / MADE_BY).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):  # of version 1.0.0, which kept no list
        found = [*out.glob("feedback/*.html"), *out.glob("logs/*.txt")]
        return [Path(name) for name in TABLES] + [path.relative_to(out) for path in found]
    return [Path(name) for name in names if ".." not in Path(name).parts]


def _free_name(out: Path) -> Path:
    """Return a new folder in `earlier/`, named after the day of the earlier table."""
    table = out / "grades.csv"
    made = datetime.fromtimestamp((table if table.exists() else out).stat().st_mtime)
    name, number = f"{made:%Y-%m-%d %H.%M}", 1
    while (kept := out / EARLIER / name).exists():
        number += 1
        name = f"{made:%Y-%m-%d %H.%M} ({number})"
    return kept


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a table that the instructor may have saved with a spreadsheet of any language."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    names = {name for name in rows.fieldnames or [] if name and name != NO_ISOLATION}
    return [{k: v for k, v in row.items() if k in names and isinstance(v, str)} for row in rows]


def warn_in_heads(made: Path) -> None:
    """Write into the heads of all tables that students' code was not isolated.

    Args:
        made: the folder with the new files.
    """
    for path in (made / name for name in HEADED if (made / name).exists()):
        head, end, rest = path.read_text(encoding="utf-8-sig").partition("\n")
        path.write_text(f'{head},"{NO_ISOLATION}"{end}{rest}', encoding="utf-8-sig")


class Typed:
    """The columns that an instructor added to the tables.

    Args:
        out: the folder of results, with its earlier ones.
        ours: the columns that the grader writes, by name of the table.
    """

    def __init__(self, out: Path, ours: dict[str, tuple[str, ...]]):
        self._values: dict[str, dict[tuple[str, ...], dict[str, str]]] = {}
        self._columns: dict[str, list[str]] = {}
        folders = [*sorted((out / EARLIER).glob("*/")), out]  # the newest table wins
        for table, keys in KEYS.items():
            values = self._values[table] = {}
            for path in (folder / table for folder in folders):
                for row in read_table(path) if path.is_file() else []:
                    key = tuple(_bare(row.get(name, "")) for name in keys)
                    values[key] = {
                        k: v
                        for k, v in row.items()
                        if k not in ours[table] and not k.endswith(WEEKLY)
                    }
            every = [name for row in values.values() for name in row]
            self._columns[table] = list(dict.fromkeys(every))

    def columns(self, table: str) -> list[str]:
        """Return the names of the added columns of a table."""
        return self._columns[table]

    def values(self, table: str, key: tuple[str, ...]) -> list[str]:
        """Return the added cells of a row.

        Args:
            table: its name.
            key: of the row, see KEYS.
        """
        row = self._values[table].get(tuple(map(_bare, key)), {})
        return [row.get(name, "") for name in self._columns[table]]


def _bare(text: str) -> str:
    """Return a key without what a spreadsheet may change: 03 becomes 3."""
    text = text.strip().removeprefix("'")
    return text.lstrip("0") if text.isdigit() else text
