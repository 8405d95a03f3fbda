"""Stored outputs of cells: explorers and pictures, parsed."""

from __future__ import annotations

import base64
import html
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup

PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="data:image/png;base64,(?P<png>[^"]+)">')
SCRIPTS, STYLES = ("explorer.js", "attention.js"), ("explorer.css", "attention.css")


@dataclass(frozen=True)
class Explorer:
    """An interactive picture.

    Args:
        id: of its element.
        kind: of its script: "pictures", "product" or "attention".
        data: for the script.
    """

    id: str
    kind: str
    data: dict[str, Any]


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


def explorers(text: str) -> Iterator[Explorer]:
    """Yield the explorers of a stored output or of a page.

    Raises:
        ValueError: an explorer has no data.
    """
    page = BeautifulSoup(text, "html.parser")
    for root in page.select(".sbs-explorer"):
        tag = page.find("script", attrs={"data-for": root["id"]})
        if tag is None:
            raise ValueError(
                f"{root['id']} must have its data as JSON next to it, got none. Run: make refresh"
            )
        yield Explorer(root["id"], tag["data-kind"], json.loads(tag.string))


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
    return f"window.attentionCourse = (function () {{\n{code}\nreturn {{ start }};\n}})();\n"


def styles(root: Path) -> str:
    """Return the style sheet of all explorers."""
    return "\n".join((root / "utils" / "draw" / name).read_text("utf-8") for name in STYLES)
