"""The book: figures in lines, not in pixels, and it is read again when it is printed."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.course import outputs
from tools.course.registry import ROOT
from tools.web import book, front_matter

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# One pixel, as large on the page as a figure.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PAGE = (
    '<article class="bd-article"><section id="one"><h1>One<a class="headerlink"></a></h1>{inside}'
    "</section></article>"
)
FIGURE = '<img class="sbs-figure" alt="a" src="figures/a.png" width="300" height="200">'
SECTIONS = (
    '<p>Words.</p><section id="s1"><h2>1. First<a class="headerlink"></a></h2><p>Words.</p>'
    '</section><section style="break-before: page" id="s2"><span id="old"></span>'
    '<h2>2. Divide by \\(\\sqrt{d}\\)<a class="headerlink"></a></h2><p>Words.</p></section>'
    '<section id="s3"><h2>Next<a class="headerlink"></a></h2></section>'
)
# The first section ends where a page ends: the next one begins there, and its heading overleaf.
AT_THE_END = (
    "<style>h2 {{ break-after: avoid; }}</style>"
    '<section id="s1"><h2>1. First<a class="headerlink"></a></h2>'
    '<p style="height: {height}px">Words.</p></section><section id="s2"><span id="old"></span>'
    '<h2>2. Second<a class="headerlink"></a></h2>'
    '<div style="height: 300px; break-inside: avoid">Words.</div></section>'
)
# What is wrong with a page, and what is said of it.
WRONG = {
    "page 2 is empty": '<div style="break-before: page; height: 9px"></div>',
    "cut at the right by": '<img alt="a" src="figures/a.png" width="900" height="9">',
    "hides something": '<pre style="overflow: hidden">' + 200 * "x" + "</pre>",
    "higher than a page": '<img alt="a" src="figures/a.png" width="9" height="1100">',
}
# A formula as MathJax writes it: the drawing, and invisible words for screen readers.
FORMULA = (
    "<style>mjx-assistive-mml {{ position: absolute !important; display: block !important; }}"
    '</style><p><span style="display: inline-flex; overflow: hidden; width: 50px">'
    '<mjx-container style="position: relative"><svg width="{width}" height="9"></svg>'
    '<mjx-assistive-mml style="width: 90px">x</mjx-assistive-mml></mjx-container></span></p>'
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
    (site / "one.html").write_text(PAGE.format(inside=FIGURE), encoding="utf-8")
    drawing.write_text(LINES, encoding="utf-8")
    listed, found = [book.Part("one.html", "One")], {}
    for name, drawn in (("pixels", {}), ("lines", {"a.png": drawing})):
        book.write(browser, site, listed, tmp_path / f"{name}.pdf", drawn)
        pages = PdfReader(tmp_path / f"{name}.pdf").pages
        found[name] = sum(len(page.images) for page in pages)
    assert found == {"pixels": 1, "lines": 0}


@pytest.fixture
def write(browser: Browser, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that makes a book of one chapter and returns the text of its pages."""
    from pypdf import PdfReader

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(PIXEL)

    def make(inside: str) -> list[str]:
        (tmp_path / "one.html").write_text(PAGE.format(inside=inside), encoding="utf-8")
        book.write(
            browser, tmp_path, [book.Part("one.html", "One", opened=True)], tmp_path / "a.pdf"
        )
        return [page.extract_text() for page in PdfReader(tmp_path / "a.pdf").pages]

    return make


def test_the_contents_name_chapters_and_their_numbered_sections(
    write: Callable[[str], list[str]],
) -> None:
    texts = write(SECTIONS)
    assert texts[1].splitlines() == ["Contents", "One 1", "1. First 1", "2. Divide by √d 2"]


def test_a_section_begins_where_its_heading_stands(write: Callable[[str], list[str]]) -> None:
    found = {write(AT_THE_END.format(height=height))[1] for height in (500, 640, 700, 840)}
    assert {text.splitlines()[-1] for text in found} == {"2. Second 1", "2. Second 2"}


def test_contents_that_name_another_page_are_seen(
    write: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = front_matter.write
    for name, off in (("One", 1), ("1. First", 1), ("2. Divide by √d", -1)):

        def wrong(tab, title, entries, name=name, off=off):
            shown = [replace(e, page=e.page + off * (e.title == name)) for e in entries]
            return right(tab, title, shown)

        monkeypatch.setattr(front_matter, "write", wrong)
        with pytest.raises(ValueError, match=f"say that '{re.escape(name)}' is on page"):
            write(SECTIONS)


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_on_a_page_is_seen(words: str, write: Callable[[str], list[str]]) -> None:
    write("<p>Words.</p>")
    with pytest.raises(ValueError, match=words):
        write("<p>Words.</p>" + WRONG[words])


def test_of_a_formula_only_the_drawing_must_fit(write: Callable[[str], list[str]]) -> None:
    write(FORMULA.format(width=50))
    with pytest.raises(ValueError, match="hides something"):
        write(FORMULA.format(width=90))


def test_letters_without_a_font_are_named(
    write: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    write("<p>ä √ → · é</p>")
    assert capsys.readouterr().err == ""
    write("<p>\ue123</p>")  # stands in no font: everybody may use it as he likes
    assert "boxes replace \ue123: this computer has no font" in capsys.readouterr().err


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
