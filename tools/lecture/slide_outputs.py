"""Stored outputs of a cell as a slide shows them: text, pictures, tables, explorers."""

from __future__ import annotations

import base64
import html
import re
import struct
from dataclasses import dataclass
from typing import Any

from tools.course.notebook import Cell

FOLDED = re.compile(r"<details><summary>.*?</summary>(.*)</details>", re.DOTALL)
COLORS = re.compile(r"\x1b\[[0-9;]*m")
WIDE, ENLARGED = 1150, 1.15  # maximal width of a picture; maximal enlargement


@dataclass(frozen=True)
class Output:
    """One output of a cell.

    Args:
        kind: "text", "answer" (to a guess), "picture", "html" or "explorer".
        content: plain text, or HTML.
        height: on a screen 1280 wide; 0 if it follows from the lines.
    """

    kind: str
    content: str
    height: int = 0


def outputs(cell: Cell) -> list[Output]:
    """Return the outputs of a cell, in order."""
    found = (_output(output) for output in cell["outputs"])
    return [output for output in found if output.content.strip()]


def _output(output: dict[str, Any]) -> Output:
    kind = output["output_type"]
    if kind == "stream":
        return Output("text", "".join(output["text"]).rstrip("\n"))
    if kind == "error":
        return Output("text", COLORS.sub("", "\n".join(output["traceback"])))
    data = {mime: "".join(value) for mime, value in output["data"].items() if mime[:5] != "appli"}
    page = data.get("text/html", "")
    if folded := FOLDED.fullmatch(page.strip()):
        return _answer(html.unescape(re.sub(r"</?pre>", "", folded.group(1))).strip("\n"))
    if 'class="sbs-explorer"' in page:
        return Output("explorer", page, 440)
    if "image/png" in data:
        wide, high = struct.unpack(">II", base64.b64decode(data["image/png"][:64])[16:24])
        image = page or f'<img alt="" src="data:image/png;base64,{data["image/png"]}">'
        return Output("picture", image, round(high * min(ENLARGED, WIDE / wide)) + 16)
    if page:
        return Output("html", page, 42 * max(page.count("<tr"), page.count("<li")) + 90)
    return Output("text", data.get("text/plain", ""))


def _answer(text: str) -> Output:
    lines = text.count("\n") + 1
    return Output("answer", text, 27 * lines + 44 if lines > 1 else 76)
