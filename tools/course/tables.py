"""Write the tables of README.md, docs/timings.md and docs/ledger.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.cards import sections
from tools.course.files import write
from tools.course.notebook import parse
from tools.course.registry import ROOT, Chapter, Course

BEGIN = "<!-- The table of the chapters: make readme writes it from course.toml. -->\n"
END = "<!-- The end of the table. -->\n"
BEGIN_TIMES = "<!-- The table of times: make readme writes it from resources/times.json. -->\n"
BEGIN_LEDGER = "<!-- The ledger of {}: make readme writes it from tools/course/ledger.py. -->\n"
HEAD = "| | chapter | minutes | exercises | what you build |\n|---|---|---|---|---|\n"
HEAD_OF_LEDGER = "| step | shape | parameters |\n|---|---|---|\n"
HEAD_OF_TIMES = (
    "| | the chapter | its exercises, solved | tests of its exercises |\n|---|---|---|---|\n"
)


def count(chapter: Chapter) -> int:
    """Return the number of exercises of a chapter."""
    notebook = parse(chapter.exercises.read_bytes()) if chapter.exercises.is_file() else None
    return sum(part.number is not None for part in sections(notebook)) if notebook else 0


def row(chapter: Chapter) -> str:
    """Return the row of a chapter."""
    notebook, exercises = (
        path.relative_to(chapter.root).as_posix() for path in (chapter.notebook, chapter.exercises)
    )
    practice = f"[{n}]({exercises})" if (n := count(chapter)) else "none yet"
    return (
        f"| {chapter.number} | [{chapter.title}]({notebook}) | {chapter.minutes} | {practice} | "
        f"{chapter.summary} |\n"
    )


def with_table(text: str, here: Course) -> str:
    """Return a README with the table of chapters between its two marks.

    Raises:
        ValueError: the marks are missing.
    """
    return _between(text, BEGIN, HEAD + "".join(map(row, here.chapters)))


def _between(text: str, begin: str, table: str) -> str:
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(END)
    if not (first and last):
        raise ValueError(
            f"README.md and pages of docs must hold tables between two marks, got none. "
            f"Add {begin}{END}"
        )
    return before + first + table + last + after


def in_words(seconds: float | None) -> str:
    """Return a time rounded to 5 seconds, or to minutes from two minutes on."""
    if seconds is None:
        return "not measured"
    if seconds < 5:
        return "below 5 s"
    return f"{5 * round(seconds / 5)} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def with_times(text: str, here: Course) -> str:
    """Return a page with the table of times between its two marks.

    Raises:
        ValueError: the marks are missing.
    """
    times = json.loads((here.root / "resources" / "times.json").read_text(encoding="utf-8"))
    kinds = ("chapter", "exercises", "tests")
    lines = []
    for chapter in here.chapters:
        measured = times["chapters"].get(chapter.number, {})
        cells = [in_words(measured.get(kind)) for kind in kinds]
        lines.append((f"{chapter.number} {chapter.title}", *cells))
    sums = [sum(found.get(kind, 0) for found in times["chapters"].values()) for kind in kinds]
    lines.append(("all of them", *map(in_words, sums)))
    lines.append(("the tests of the rest", "", "", in_words(times["rest"])))
    lines.append(("`make test`, in three processes", "", "", in_words(times["elapsed"])))
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _between(text, BEGIN_TIMES, HEAD_OF_TIMES + table)


def with_ledgers(text: str, _here: Course) -> str:
    """Return a page with the tables of the ledgers between their marks."""
    from tools.course.ledger import LEDGERS  # runs torch

    for name, rows in LEDGERS.items():
        lines = ("| {} | {} | {} |\n".format(*row).replace("|  |", "| |") for row in rows())
        text = _between(text, BEGIN_LEDGER.format(name), HEAD_OF_LEDGER + "".join(lines))
    return text


WRITTEN = {
    "README.md": with_table,
    "docs/timings.md": with_times,
    "docs/ledger.md": with_ledgers,
}


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> None:
    check = parse_arguments("readme", arguments).check
    here, old = Course.read(root), []
    for name, with_its_table in WRITTEN.items():
        text = (root / name).read_text(encoding="utf-8")
        new = with_its_table(text, here)
        if check:
            old += [name] if new != text else []
        else:
            print("written" if write(root / name, new.encode()) else "unchanged", name)
    if old:
        raise Refusal(
            "tables must be those of course.toml, resources/times.json and tools/course/ledger.py, "
            f"got old ones in {', '.join(old)}. Type: {as_typed('readme')}",
            status=1,
        )
