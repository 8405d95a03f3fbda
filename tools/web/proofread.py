"""Check the printed book: no text is cut off, no page is empty, the contents are correct."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.web.front_matter import Entry

MIN_DRAWING = 400  # bytes of drawing commands; an empty page has less
ADVICE = (
    "book: boxes replace {letters}: this computer has no font for them. Install one and "
    "print again (Debian, Ubuntu: sudo apt install fonts-noto-cjk fonts-noto-color-emoji)"
)
# In a tab as wide as paper: elements that exceed the right margin, hide content, or exceed a page.
CUT = """() => {
  const article = document.querySelector(".bd-article"), found = [];
  const edge = article.getBoundingClientRect().right + 1, seen = document.createElement("style");
  // MathJax's text for screen readers is invisible and of any width.
  seen.textContent = "mjx-assistive-mml { display: none !important; }";
  document.body.append(seen);
  for (const node of article.querySelectorAll("*:not(svg *, mjx-container *, script, style)")) {
    const box = node.getBoundingClientRect(), look = getComputedStyle(node);
    const say = (what) => found.push(`${what}: ${node.outerHTML.slice(0, 120)}`);
    if (!box.width || !box.height || look.clipPath !== "none") continue;
    if (box.right > edge) say(`cut at the right by ${Math.round(box.right - edge)} points`);
    const hides = look.display !== "inline" && !/visible|clip/.test(look.overflowX);
    if (hides && node.scrollWidth > node.clientWidth + 6) say("hides something at its right");
    if (node.tagName === "IMG" && box.height > innerHeight) say("higher than a page");
  }
  seen.remove();
  return found;
}"""

# Characters without a font: they look like a character that no font has.
WITHOUT_FONT = """() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const look = (letter) => {
    pen.clearRect(0, 0, 40, 40);
    pen.font = "24px sans-serif";
    pen.fillText(letter, 4, 30);
    return String(pen.getImageData(0, 0, 40, 40).data);
  };
  const none = look("\\u{10FFFF}"), text = document.querySelector(".bd-article").innerText;
  return [...new Set(text)].filter((letter) => letter > "\\u02ff" && look(letter) === none);
}"""


def problems(pdf: Path, entries: Sequence[Entry], before: int) -> Iterator[str]:
    """Yield what is wrong with a book.

    Args:
        pdf: its file.
        entries: the expected lines of the contents.
        before: the number of pages before page 1.
    """
    from pypdf import PdfReader

    reader = PdfReader(pdf)
    texts = [page.extract_text() for page in reader.pages]
    front = "\n".join(texts[:before])
    listed = [(_plain(title), int(n)) for title, n in re.findall(r"(?m)^(.+?) *(\d+)$", front)]
    if len(listed) != len(entries):
        yield f"the contents must have {len(entries)} lines, got {len(listed)}"
    for entry, (title, number) in zip(entries, listed, strict=False):
        if title != _plain(entry.title):
            yield f"the contents must say {entry.title!r}, got {title!r}"
        elif _plain(entry.heading) not in _plain("".join(texts[before + number - 1 :][:1])):
            yield f"the contents say that {entry.title!r} is on page {number}; it is not"
    for number, text in enumerate(texts[before:], start=1):
        if not _number(text, str(number)):
            yield f"page {number} does not say its number"
        elif len(text.split()) == 1 and _is_empty(reader.pages[before + number - 1]):
            yield f"page {number} is empty"


def _number(text: str, number: str) -> bool:
    words = text.split()
    return bool(words) and number in (words[0], words[-1])


def _plain(text: str) -> str:
    """Return text for comparison: without spaces, ligatures resolved."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _is_empty(page: object) -> bool:
    contents = page.get_contents()
    return not len(page.images) and (contents is None or len(contents.get_data()) < MIN_DRAWING)
