"""The book: its figures are printed in lines, not in pixels."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from course import outputs
from course.registry import ROOT
from web import book

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# One pixel, as large on the page as a figure.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PAGE = (
    '<article class="bd-article"><h1>One</h1><img class="sbs-figure" alt="a" '
    'src="figures/a.png" width="300" height="200"></article>'
)
LINES = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="200" viewBox="0 0 300 200">'
    '<path d="M0 0 L300 200" stroke="black"/></svg>'
)
# What is wider than paper, in the look of the site.
WIDE = (
    '<style>{style}</style><article class="bd-article"><div class="sbs-wide"><img alt="a" '
    'class="sbs-figure" src="a.svg" width="1200" height="100"></div><div class="sbs-explorer">'
    '<div class="sbs-panels"></div><table class="sbs-table sbs-numbers"><tr>{numbers}'
    "</tr></table></div>"
    "<h4>A heading</h4></article>"
)
RIGHT = "e => e.getBoundingClientRect().right"
BREAK = "e => getComputedStyle(e).breakInside"


def test_a_drawing_stands_in_place_of_pixels(browser: Browser, tmp_path: Path) -> None:
    from pypdf import PdfReader

    site, drawing = tmp_path / "site", tmp_path / "a.svg"
    (site / "figures").mkdir(parents=True)
    (site / "figures" / "a.png").write_bytes(PIXEL)
    (site / "one.html").write_text(PAGE, encoding="utf-8")
    drawing.write_text(LINES, encoding="utf-8")
    listed, found = [book.Part("one.html", "One")], {}
    for name, drawn in (("pixels", {}), ("lines", {"a.png": drawing})):
        book.write(browser, site, listed, tmp_path / f"{name}.pdf", drawn)
        pages = PdfReader(tmp_path / f"{name}.pdf").pages
        found[name] = sum(len(page.images) for page in pages)
    assert found == {"pixels": 1, "lines": 0}


def test_nothing_is_cut_on_paper(browser: Browser, tmp_path: Path) -> None:
    style = outputs.styles(ROOT) + (ROOT / "website/static/course.css").read_text(encoding="utf-8")
    (tmp_path / "a.svg").write_text(LINES, encoding="utf-8")
    page = WIDE.format(style=style, numbers=17 * "<th>0</th>" + "</tr><tr>" + 17 * "<td>-0.25</td>")
    (tmp_path / "wide.html").write_text(page, encoding="utf-8")
    tab = browser.new_page(viewport={"width": 665, "height": 950})
    tab.emulate_media(media="print")
    tab.goto((tmp_path / "wide.html").as_uri())
    edge = tab.locator("article").evaluate(RIGHT)
    for wide in ("img", "table"):
        assert tab.locator(wide).evaluate(RIGHT) <= edge, wide
    for whole in (".sbs-wide", ".sbs-panels", "h4"):
        assert tab.locator(whole).evaluate(BREAK) == "avoid", whole
    tab.close()
