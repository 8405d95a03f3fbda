"""Write the table of the chapters in README.md from course.toml.

make readme
make readme ARGS=--check        write nothing, complain when the table is old
"""

from __future__ import annotations

import argparse
from pathlib import Path

from course.cards import sections
from course.files import write
from course.notebook import parse
from course.registry import ROOT, Chapter, Course

BEGIN = "<!-- The table of the chapters: make readme writes it from course.toml. -->\n"
END = "<!-- The end of the table. -->\n"
HEAD = "| | chapter | minutes | exercises | what you can do at the end |\n|---|---|---|---|---|\n"


def count(chapter: Chapter) -> int:
    """Returns how many exercises a chapter has."""
    notebook = parse(chapter.exercises.read_bytes()) if chapter.exercises.is_file() else None
    return sum(part.number is not None for part in sections(notebook)) if notebook else 0


def row(chapter: Chapter) -> str:
    """Returns a chapter's line of the table."""
    notebook, exercises = (
        path.relative_to(chapter.root).as_posix() for path in (chapter.notebook, chapter.exercises)
    )
    practice = f"[{n}]({exercises})" if (n := count(chapter)) else "none yet"
    return (
        f"| {chapter.number} | [{chapter.title}]({notebook}) | {chapter.minutes} | {practice} | "
        f"{chapter.able} |\n"
    )


def with_table(text: str, here: Course) -> str:
    """Returns a README with the table between the two marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, first, rest = text.partition(BEGIN)
    _, last, after = rest.partition(END)
    if not (first and last):
        raise ValueError(
            f"README.md: its table stands between two marks, got none. Add {BEGIN}{END}"
        )
    table = HEAD + "".join(map(row, here.chapters))
    return before + first + table + last + after


def main(arguments: list[str] | None = None, root: Path = ROOT) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only complain")
    check = parser.parse_args(arguments).check
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    new = with_table(text, Course.read(root))
    if check and new != text:
        raise SystemExit("readme: the table is that of course.toml, got an old one: make readme")
    if not check:
        print("written" if write(path, new.encode()) else "unchanged", "README.md")


if __name__ == "__main__":
    main()
