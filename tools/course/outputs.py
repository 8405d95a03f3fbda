"""What a notebook stores under its cells: explorers and pictures, taken apart."""

from __future__ import annotations

import base64
import html
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# As utils/draw/explorer.py writes one: its look, what stands there without a script, its script.
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
    """A picture to click.

    Args:
        id: of its element.
        kind: what brings it to life: "pictures", "product" or "attention".
        body: what stands in the page without a script.
        data: what the script gets, as JSON in which no "<" stands.
        opens: the name of the function that brings it to life.
    """

    id: str
    kind: str
    body: str
    data: str
    opens: str


@dataclass(frozen=True)
class Picture:
    """A PNG and the words for who cannot see it."""

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
        ValueError: one that is not written as utils/draw/explorer.py writes it.
    """
    found = [explorer(match) for match in EXPLORER.finditer(text)]
    if len(found) != text.count('class="sbs-explorer"'):
        raise ValueError(
            "an explorer must be written as utils/draw/explorer.py writes it, got another form. "
            "Run: make refresh"
        )
    yield from found


def picture(match: re.Match[str]) -> Picture:
    return Picture(html.unescape(match["alt"]), base64.b64decode(match["png"]))


def pictures(text: str) -> Iterator[Picture]:
    """Yield the pictures of a stored output."""
    yield from map(picture, PICTURE.finditer(text))


def library(root: Path) -> str:
    """Return the one script that brings all explorers of a page to life.

    Args:
        root: the folder of the course.
    """
    code = "\n\n".join((root / "utils" / "draw" / name).read_text("utf-8") for name in SCRIPTS)
    return f"window.attentionCourse = (function () {{\n{code}\nreturn {{ start, look }};\n}})();\n"


def styles(root: Path) -> str:
    """Return the look of all explorers."""
    return "\n".join((root / "utils" / "draw" / name).read_text("utf-8") for name in STYLES)
