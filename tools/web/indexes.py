"""The index of terms and the index of shapes, made from the chapters."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.course.notebook import Notebook, source
from tools.course.registry import Chapter
from tools.web.pages import FENCE, HEADING, anchor

BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
# The format of utils.shapes.describe: queries (b=6, h=8, n=37, d=96)
DESCRIBED = re.compile(r"^(\S.*?) \(((?:[\w']+=\d+)(?:, [\w']+=\d+)*)\)$", re.MULTILINE)
LEDGER_ROW = re.compile(r"^\| \**([^|*]+?)\** \| \**([^|*]+?)\** \|", re.MULTILINE)
TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
SHAPE = re.compile(r"\(\d+(?:, ?\d+)+\)|\(\d+,\)")


@dataclass(frozen=True)
class Section:
    """The content under one heading of a chapter.

    Args:
        chapter: its number.
        place: the number of the heading, 0 for the top of the page.
        title: the heading, without formulas.
        text: the prose.
        printed: what its cells print.
    """

    chapter: str
    place: int
    title: str
    text: str
    printed: str

    @property
    def link(self) -> str:
        """The section, as a markdown link."""
        if not self.place:
            return f"[{self.chapter}](#ch{self.chapter})"
        return f"[{self.chapter}, {self.title}](#{anchor(self.chapter, self.place)})"


def sections(chapter: Chapter) -> list[Section]:
    """Return the sections of a chapter, in order."""
    notebook: Notebook = json.loads(chapter.notebook.read_text("utf-8"))
    found: list[list[str]] = [["", "", ""]]  # title, text, printed
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            for output in cell["outputs"]:
                found[-1][2] += "".join(output.get("text", ""))
            continue
        for part in FENCE.split(source(cell))[::2]:
            at = 0
            for match in HEADING.finditer(part):
                found[-1][1] += part[at : match.start()] + "\n"
                found.append([plain_title(match[2]), "", ""])
                at = match.end()
            found[-1][1] += part[at:] + "\n"
    return [Section(chapter.number, place, *texts) for place, texts in enumerate(found)]


def plain_title(heading: str) -> str:
    """Return the text of a heading without markup, formulas as they are read aloud."""
    words = re.sub(r"\$\\sqrt\{(\w)\}\$", r"√\1", heading)
    return re.sub(r"[`$\[\]\\]", "", words).strip()


# ------------------------------------------------------------------------------------------ terms


def terms(listed: Path) -> dict[str, str]:
    """Return the terms of the index, and the bold text that explains each."""
    return tomllib.loads(listed.read_text("utf-8"))["terms"]


def explained(bold: str, all_sections: list[Section]) -> Section | None:
    """Return the first section with a term in bold."""
    wanted = bold.lower()
    for section in all_sections:
        prose = TABLE_ROW.sub("", section.text)
        if any(found.lower() == wanted for found in BOLD.findall(prose)):
            return section
    return None


def _uses(term: str, all_sections: list[Section]) -> list[str]:
    """Return the chapters whose prose has a term, in singular or plural."""
    all_sections = [s for s in all_sections if term.lower() in f"{s.title}\n{s.text}".lower()]
    pattern = re.compile(rf"(?<![\w-]){re.escape(term)}(?:e?s)?(?![\w-])", re.IGNORECASE)
    return sorted({s.chapter for s in all_sections if pattern.search(f"{s.title}\n{s.text}")})


def terms_page(listed: Path, all_sections: list[Section]) -> str:
    """Return the index of terms, as markdown.

    Args:
        listed: the file of the terms.
        all_sections: of all chapters, in order.
    Raises:
        ValueError: no chapter has a term in bold.
    """
    lines = [
        "# Index of terms",
        "",
        "Where each word of the course is explained first, and which chapters use it.",
        "",
    ]
    letter = ""
    for term, bold in sorted(terms(listed).items(), key=lambda pair: pair[0].lower()):
        section = explained(bold, all_sections)
        if section is None:
            raise ValueError(
                f"{listed.name}: a term must be in bold where it is explained, got {bold!r} "
                "in no chapter. Write it as the chapter does"
            )
        if term[0].upper() != letter:
            letter = term[0].upper()
            lines += ["", f"## {letter}", ""]
        uses = [
            f"[{n}](#ch{n})" for n in _uses(bold, all_sections) if int(n) != int(section.chapter)
        ]
        also = f"; also in {', '.join(uses)}" if uses else ""
        lines.append(f"- **{term}**: {section.link}{also}")
    return "\n".join([*lines, ""])


# ----------------------------------------------------------------------------------------- shapes


def shapes(all_sections: list[Section]) -> Iterator[tuple[tuple[int, ...], str, str, Section]]:
    """Yield every shape that a chapter prints or enters into a ledger.

    Args:
        all_sections: of all chapters.
    Returns:
        The sizes, the letters of the axes ("" if unknown), the name, and the section.
    """
    for section in all_sections:
        for name, axes in DESCRIBED.findall(section.printed):
            pairs = [pair.split("=") for pair in axes.split(", ")]
            letters = " ".join(letter for letter, _ in pairs)
            yield tuple(int(size) for _, size in pairs), letters, name, section
        if section.place == 0:
            for step, cell in LEDGER_ROW.findall(section.text):
                for shape in SHAPE.findall(cell):
                    sizes = tuple(int(size) for size in re.findall(r"\d+", shape))
                    yield sizes, "", step, section


def shapes_page(all_sections: list[Section], ledgers: str) -> str:
    """Return the index of shapes, as markdown.

    Args:
        all_sections: of all chapters, in order.
        ledgers: docs/ledger.md, one level deeper.
    """
    found: dict[tuple[int, ...], list[tuple[str, str, Section]]] = {}
    for sizes, letters, name, section in shapes(all_sections):
        rows = found.setdefault(sizes, [])
        same = any(name == n and section == s for n, _, s in rows)
        if not same:
            rows.append((name, letters, section))
    lines = ["# Index of shapes", "", ledgers.strip(), "", "## Every shape, by its sizes", ""]
    lines += [
        "Each shape that a chapter prints or adds to its ledger: its axes by their letters, what "
        "it is, and where. Shapes with fewer axes come first.",
    ]
    last = 0
    for sizes in sorted(found, key=lambda sizes: (len(sizes), sizes)):
        if len(sizes) != last:
            last = len(sizes)
            axes = "One axis" if last == 1 else f"{NUMBERS[last]} axes"
            lines += ["", f"### {axes}", "", "| shape | axes | what it is | where |"]
            lines += ["|---|---|---|---|"]
        shape = f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
        for number, (name, letters, section) in enumerate(found[sizes]):
            first = shape if number == 0 else ""
            what = re.sub(r"[|_*<>`\[\]$]", r"\\\g<0>", name)
            lines.append(f"| {first} | {letters} | {what} | {section.link} |")
    return "\n".join([*lines, ""])


NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
