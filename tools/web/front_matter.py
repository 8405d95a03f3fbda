"""The front of the book: its title, and the contents with page numbers."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.course.templates import rendered

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

# A section with its heading, and anchors for older links between them.
HEADING = (
    r'<section[^>]* id="([^"]+)">\s*(?:<span id="[^"]*"></span>\s*)*<h%d>(.*?)<a class="headerlink"'
)
ROOT_OF = re.compile(r"\\\(\\sqrt\{(\w+)\}\\\)")  # the only formula in headings
TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class Entry:
    """A line of the contents.

    Args:
        title: its text.
        heading: the heading on its page.
        deep: whether it belongs to the line before it.
        page: the number of the page, from 0.
        height: of the heading on the page.
    """

    title: str
    heading: str
    deep: bool
    page: int
    height: float


def headings(page: str, level: int) -> list[tuple[str, str, str]]:
    """Return the anchor, the title and the plain text of each heading; formulas have no plain text.

    Args:
        page: of the site, as HTML.
        level: 1 for the title, 2 for sections.
    """
    found = []
    for id, inside in re.findall(HEADING % level, page, re.DOTALL):
        words = " ".join(html.unescape(TAG.sub("", inside)).split())
        found.append((id, ROOT_OF.sub(r"√\1", words), ROOT_OF.sub("", words)))
    return found


def sections(page: str) -> list[tuple[str, str, str]]:
    """Return the numbered headings; the final sections of chapters have no number."""
    return [found for found in headings(page, 2) if found[1][:1].isdigit()]


def write(tab: Tab, title: str, entries: Sequence[Entry]) -> bytes:
    """Print the title and the contents; each line is a link to book:number.

    Args:
        tab: of a browser.
        title: of the book.
        entries: the lines; the links have their numbers.
    """
    tab.set_content(rendered("web/templates/contents.html", title=title, entries=entries))
    return tab.pdf(print_background=True, prefer_css_page_size=True)
