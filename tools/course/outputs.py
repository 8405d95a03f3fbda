"""Stored outputs of cells: explorers and pictures, parsed."""

from __future__ import annotations

import base64
import html
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The form of utils/draw/explorer.py: style, HTML without a script, script.
EXPLORER = re.compile(
    r"<style>\n.*?\n</style>\n"
    r'(?P<body><div id="(?P<id>explorer-[a-z0-9-]+)" class="sbs-explorer">.*?</div>)\n<script>\n'
    r'\(function \(\) \{\n.*?\n(?P<opens>start|look)\("(?P=id)", "(?P<kind>\w+)", '
    r"(?P<data>\{[^\n]*\})\);\n\}\)\(\);\n</script>",
    re.DOTALL,
)
PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="data:image/png;base64,(?P<png>[^"]+)">')
SCRIPTS, STYLES = ("explorer.js", "attention.js"), ("explorer.css", "attention.css")


@dataclass(frozen=True)
class Explorer:
    """An interactive picture.

    Args:
        id: of its element.
        kind: of its script: "pictures", "product" or "attention".
        body: its HTML without a script.
        data: JSON for the script, without "<".
        opens: the name of the function that starts it.
    """

    id: str
    kind: str
    body: str
    data: str
    opens: str


@dataclass(frozen=True)
class Picture:
    """A PNG and its alternative text."""

    alt: str
    png: bytes

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width, height


def explorer(match: re.Match[str]) -> Explorer:
    return Explorer(*(match[name] for name in ("id", "kind", "body", "data", "opens")))


def explorers(text: str) -> Iterator[Explorer]:
    """Yield the explorers of a stored output.

    Raises:
        ValueError: an explorer does not have the form of utils/draw/explorer.py.
    """
    found = [explorer(match) for match in EXPLORER.finditer(text)]
    if len(found) != text.count('class="sbs-explorer"'):
        raise ValueError(
            "an explorer must have the form of utils/draw/explorer.py, got a different one. "
            "Run: make refresh"
        )
    yield from found


def picture(match: re.Match[str]) -> Picture:
    return Picture(html.unescape(match["alt"]), base64.b64decode(match["png"]))


def pictures(text: str) -> Iterator[Picture]:
    """Yield the pictures of a stored output."""
    yield from map(picture, PICTURE.finditer(text))


def library(root: Path) -> str:
    """Return the script that starts all explorers of a page.

    Args:
        root: the folder of the course.
    """
    code = "\n\n".join((root / "utils" / "draw" / name).read_text("utf-8") for name in SCRIPTS)
    return f"window.attentionCourse = (function () {{\n{code}\nreturn {{ start, look }};\n}})();\n"


def styles(root: Path) -> str:
    """Return the style sheet of all explorers."""
    return "\n".join((root / "utils" / "draw" / name).read_text("utf-8") for name in STYLES)
