"""The text of a chapter for slides: blocks, sentences, and their height.

A long paragraph is shortened to its first sentences and those with bold words, which mark the main
points; the speaker notes have the full text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

SHORT = 260  # characters of a paragraph that a slide shows in full
COLUMNS = 84  # characters in a line of text, 28 px high, on a slide 1280 px wide

COMMENT = re.compile(r"(?m)^[ \t]*<!--[^>]*-->[ \t]*\n|[ \t]*<!--[^>]*-->")
APART = re.compile(
    r"<details><summary>(?P<title>.*?)</summary>(?P<folded>.*?)</details>|^```.*?^```",
    re.DOTALL | re.MULTILINE,
)
HEADING = re.compile(r"(#+) (.+)")
PICTURE = re.compile(r"!\[(.*)\]\(([^)\s]+)\)", re.DOTALL)
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
# No sentence ends inside of these: code, formulas, links, parentheses.
WHOLE = re.compile(r"`[^`]*`|\$[^$]*\$|\[[^\]]*\](?:\([^)]*\))?|\([^()]*(?:\([^()]*\)[^()]*)*\)")
END = re.compile(r"[.?!:][\"*)]*\s+(?=[\"*(]*[A-Z0-9\x00])")


@dataclass(frozen=True)
class Block:
    """A block of text.

    Args:
        kind: "heading", "paragraph", "list", "table", "picture", "formula", "fence" or "folded".
        text: from the notebook.
        level: of a heading, 1 to 6.
        title: the visible part of folded text.
    """

    kind: str
    text: str
    level: int = 0
    title: str = ""


def blocks(text: str) -> list[Block]:
    """Split markdown into blocks; lines of a paragraph that end a sentence are separate blocks."""
    found: list[Block] = []
    start = 0
    text = COMMENT.sub("", text)
    for apart in APART.finditer(text):
        found += _plain(text[start : apart.start()])
        if apart["title"] is None:
            found.append(Block("fence", apart.group()))
        else:
            found.append(Block("folded", apart["folded"].strip(), title=apart["title"]))
        start = apart.end()
    return found + list(_plain(text[start:]))


def _plain(text: str) -> Iterator[Block]:
    for part in re.split(r"\n\s*\n", text):
        heading, *rest = part.strip("\n").split("\n")
        if found := HEADING.fullmatch(heading):
            yield Block("heading", found.group(2), level=len(found.group(1)))
            part = "\n".join(rest)
        part = part.strip()
        if part.startswith(">"):  # a box of the notebook: a slide shows only its text
            yield from _plain(re.sub(r"(?m)^> ?", "", part))
        elif part.startswith("$$"):
            yield Block("formula", part)
        elif part.startswith("|"):
            yield Block("table", part)
        elif PICTURE.fullmatch(part):
            yield Block("picture", part)
        elif part:
            yield from _lines(part)


def _lines(part: str) -> Iterator[Block]:
    """Yield lists unchanged, and lines of prose that end with a sentence one by one."""
    if (first := re.search(rf"(?m)^{ITEM.pattern}", part)) is not None:
        if first.start():
            yield from _lines(part[: first.start()].strip())
        yield Block("list", part[first.start() :])
        return
    for line in re.split(r"(?<=[.?!:)])\n(?=\S)", part):
        yield Block("paragraph", " ".join(line.split("\n")))


def sentences(text: str) -> list[str]:
    """Split a paragraph at the ends of sentences, and of clauses that end with a colon."""
    kept: list[str] = []

    def hide(match: re.Match[str]) -> str:
        kept.append(match.group())
        return f"\x00{len(kept) - 1}\x01"

    hidden = WHOLE.sub(hide, text)
    ends = [0, *(match.end() for match in END.finditer(hidden)), len(hidden)]
    parts = [hidden[a:b].strip() for a, b in pairwise(ends) if a < b]
    return [re.sub(r"\x00(\d+)\x01", lambda m: kept[int(m.group(1))], part) for part in parts]


def shortened(text: str, most: int = SHORT) -> str:
    """Return a paragraph for a slide; "…" replaces sentences that only the notes have."""
    if len(bare(text)) <= most:
        return text
    said, room, left_out = [], most, False
    for number, sentence in enumerate(sentences(text)):
        length = len(bare(sentence))
        if number == 0 or "**" in sentence or (length <= room and not left_out):
            said.append(sentence)
        elif not left_out or said[-1] != "…":
            said.append("…")
            left_out = True
        room -= length
    return " ".join(said).replace(" …", "\N{NO-BREAK SPACE}…")


def bare(text: str) -> str:
    """Return roughly the visible characters: no markup, no addresses, short formulas."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\\(?:left|right|text|,)|[{}]", "", text)
    text = re.sub(r"\\[a-zA-Z]+", "x", text)
    return re.sub(r"[`*$]", "", text)


# -------------------------------------------------------------------------------------- height


def rows(text: str, columns: float = COLUMNS) -> int:
    """Return the number of lines of a text."""
    return max(1, math.ceil(len(bare(text)) / columns))


def height(block: Block) -> int:
    """Return an upper estimate of a block's height on a slide, in CSS pixels."""
    if block.kind == "table":
        lines = [line.split("|")[1:-1] for line in block.text.split("\n")]
        del lines[1]
        widest = [
            max(len(bare(cell.strip())) for cell in column) for column in zip(*lines, strict=True)
        ]
        room = (COLUMNS + 8) / max(1.0, sum(widest) / (COLUMNS + 8))
        needed = [max(math.ceil(len(bare(c.strip())) / room) for c in line) for line in lines]
        return sum(36 * count + 10 for count in needed) + 16
    if block.kind == "list":
        items = re.split(rf"(?m)^(?={ITEM.pattern})", block.text)
        return sum(37 * rows(item, COLUMNS - 6) + 8 for item in items if item.strip()) + 14
    if block.kind == "fence":
        return 27 * (block.text.count("\n") - 1) + 44
    if block.kind == "formula":
        return 90 + 34 * block.text.count(r"\\")
    if block.kind == "heading":
        return 0
    if block.kind == "folded":
        return 54 + sum(height(part) for part in blocks(block.text))
    return 38 * rows(block.text) + 16
