"""The drawings of a chapter on slides; a drawing that is higher than wide is split in two."""

from __future__ import annotations

import re

from tools.course.registry import ROOT

FOLDER = ROOT / "notebooks"
BOX = re.compile(r'viewBox="0 0 (\d+) (\d+)"')
LINE = re.compile(r'<text[^>]* y="([\d.]+)"')
ROWS = re.compile(r"#(\d+)-(\d+)$")


def halves(found: re.Match[str]) -> list[str]:
    """Return a picture in markdown, or its two halves with their rows: `a.svg#0-531`."""
    alt, url = found.groups()
    text = (FOLDER / url).read_text(encoding="utf-8")
    wide, high = map(int, BOX.search(text).groups())
    if high <= wide:
        return [f"![{alt}]({url})"]
    cut = _gap(text, high)
    return [f"![{alt}]({url}#{a}-{b})" for a, b in ((0, cut), (cut, high))]


def _gap(text: str, high: int) -> int:
    """Return the row near the middle with the largest distance to all lines of text."""
    lines = [float(y) - 5 for y in LINE.findall(text)]
    rows = range(round(0.4 * high), round(0.6 * high))
    return max(rows, key=lambda row: min(abs(row - y) for y in lines) - abs(row - high / 2) / 60)


def svg(url: str) -> bytes:
    """Return the drawing, or the part of it, at an address in markdown."""
    path, _, _ = url.partition("#")
    text = (FOLDER / path).read_text(encoding="utf-8")
    if found := ROWS.search(url):
        first, last = map(int, found.groups())
        wide = BOX.search(text).group(1)
        text = BOX.sub(f'viewBox="0 {first} {wide} {last - first}"', text, count=1)
        head, rest = text.split(">", 1)
        text = re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest
    return text.encode()
