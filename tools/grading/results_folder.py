"""The folder of results: what is new comes in whole, and nothing that was there is lost.

Of an earlier run, tables and pages go to `earlier/` below the folder, named after the day on which
they were made; so does whatever else stands where something new must go. All other files stay.
Columns that the instructor added to a table come into the new one.
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

from tools.grading.resume import PROGRESS
from tools.grading.sandbox import NO_ISOLATION

MADE_BY = ".made-by-grade"  # marks the folder of an earlier run, and lists what that wrote
EARLIER = "earlier"
BOOK = ".gradebook"  # what the next run must know; see gradebook.py
TABLES = (
    "grades.csv",
    "totals.csv",
    "class.csv",
    "by_hand.csv",
    "moved.csv",
    "same.csv",
    "who.csv",
)
HEADED = ("grades.csv", "totals.csv", "class.csv")  # whose heads warn where there was no wall
WEEKLY = (": points", ": of")  # how the columns of totals.csv end that each week has
# What tells the lines of a table apart.
KEYS = {"grades.csv": ("student", "chapter"), "totals.csv": ("student",)}


def is_of_earlier_run(folder: Path) -> bool:
    return (folder / MADE_BY).is_file() or (folder / PROGRESS).is_dir()


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """Yield a hidden folder inside of OUT for what is being made; later nothing is left of it.

    Args:
        out: the folder of results; made if it is not there, and removed if it stays empty.
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
    """Move what was made into OUT, and what an earlier run made there to a folder of its own.

    Every file is whole at every moment; the tables come last.

    Args:
        made: the folder with what is new.
        out: the folder of results.
    Returns:
        The folder that now holds what the earlier run made; None if there was none.
    """
    new = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    new.sort(key=lambda name: str(name) in TABLES)
    old = [name for name in {*_listed(out), *new} if (out / name).exists()]
    kept = _free_name(out) if old else None
    listed = made / MADE_BY  # a full disk is noticed here, before anything has moved
    listed.write_text(
        json.dumps({"made by": "tools/grade.py", "files": [name.as_posix() for name in new]})
    )
    for name in sorted(old):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(out / name, kept / name)
    for name in new:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, out / name)
    os.replace(listed, out / MADE_BY)
    return kept


def _listed(out: Path) -> list[Path]:
    """List what an earlier run wrote, as far as it is known."""
    try:
        names = json.loads((out / MADE_BY).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):  # of the course's first version, which kept no list
        found = [*out.glob("feedback/*.html"), *out.glob("logs/*.txt")]
        return [Path(name) for name in TABLES] + [path.relative_to(out) for path in found]
    return [Path(name) for name in names if ".." not in Path(name).parts]


def _free_name(out: Path) -> Path:
    """Name a new folder in `earlier/` after the day on which the earlier table was made."""
    table = out / "grades.csv"
    made = datetime.fromtimestamp((table if table.exists() else out).stat().st_mtime)
    name, number = f"{made:%Y-%m-%d %H.%M}", 1
    while (kept := out / EARLIER / name).exists():
        number += 1
        name = f"{made:%Y-%m-%d %H.%M} ({number})"
    return kept


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a table that an instructor may have saved with a spreadsheet of any language."""
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
    """Write into the heads of all tables that nothing kept students' code apart.

    Args:
        made: the folder with what is new.
    """
    for path in (made / name for name in HEADED if (made / name).exists()):
        head, end, rest = path.read_text(encoding="utf-8-sig").partition("\n")
        path.write_text(f'{head},"{NO_ISOLATION}"{end}{rest}', encoding="utf-8-sig")
    page = made / "class.html"
    text = page.read_text(encoding="utf-8")
    warning = f'</h1>\n<p role="note"><strong>{NO_ISOLATION}</strong></p>'
    page.write_text(text.replace("</h1>", warning, 1), encoding="utf-8")


class Typed:
    """The columns that an instructor added to the tables in a folder of results.

    Args:
        out: the folder of results, with its earlier ones.
        ours: the columns that grading writes, by name of the table.
    """

    def __init__(self, out: Path, ours: dict[str, tuple[str, ...]]):
        self._values: dict[str, dict[tuple[str, ...], dict[str, str]]] = {}
        self._columns: dict[str, list[str]] = {}
        folders = [*sorted((out / EARLIER).glob("*/")), out]  # the newest table is right
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
        """Return the names of the added columns."""
        return self._columns[table]

    def values(self, table: str, key: tuple[str, ...]) -> list[str]:
        """Return what stands in the added columns of a line.

        Args:
            table: its name.
            key: of the line, see KEYS.
        """
        row = self._values[table].get(tuple(map(_bare, key)), {})
        return [row.get(name, "") for name in self._columns[table]]


def _bare(text: str) -> str:
    """Return a key as a spreadsheet may have changed it: 03 becomes 3."""
    text = text.strip().removeprefix("'")
    return text.lstrip("0") if text.isdigit() else text
