"""A deck as one HTML page for reveal.js that needs no network, with its assets."""

from __future__ import annotations

import base64
import html
import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import matplotlib
import ziamath
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tools.course.registry import Course
from tools.course.templates import rendered
from tools.lecture import drawings
from tools.lecture.slide import Deck

HERE = Path(__file__).resolve().parent
ASSETS = "assets"
# Files of reveal.js in the wheel of sphinx-revealjs.
REVEAL = (
    "LICENSE",
    "dist/reset.css",
    "dist/reveal.css",
    "dist/reveal.js",
    "plugin/notes/notes.js",
    "plugin/zoom/zoom.js",
    "dist/theme/fonts/source-sans-pro/LICENSE",
    "dist/theme/fonts/source-sans-pro/source-sans-pro-italic.woff",
    "dist/theme/fonts/source-sans-pro/source-sans-pro-regular.woff",
    "dist/theme/fonts/source-sans-pro/source-sans-pro-semibold.woff",
    "dist/theme/fonts/source-sans-pro/source-sans-pro-semibolditalic.woff",
)
# Fonts of matplotlib for code, equal on every machine.
MONO = ("LICENSE_DEJAVU", "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")

# Formulas as outlines need no font and no script. <use> would need unique ids on the page.
ziamath.config.svg2 = False


class _Words(IPythonRenderer):
    """Render markdown for a slide: formulas and drawings inside of the page, no local links."""

    def __init__(self, size: int):
        super().__init__(escape=False, exclude_anchor_links=True)
        self.size = size

    def inline_math(self, body: str) -> str:
        return formula(body, self.size, inline=True)

    def block_math(self, body: str) -> str:
        return f'<p class="formula">{formula(body, self.size + 4, inline=False)}</p>'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Keep the address of a web page; show only the text of a link into the course."""
        if re.match(r"https?:", url):
            return f'<a href="{html.escape(url)}">{text}</a>'
        return f"<em>{text}</em>"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        content = base64.b64encode(drawings.svg(url)).decode()
        return f'<img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{content}">'


def formula(tex: str, size: int, *, inline: bool) -> str:
    """Return a formula as SVG, aligned with the text and in its color."""
    drawn = ziamath.Latex(tex, size=size, inline=inline)
    svg = drawn.svg().replace('fill="black"', 'fill="currentColor"')
    words = html.escape(f"formula: {tex.strip()}", quote=True)
    head = f'<svg role="img" aria-label="{words}" style="vertical-align:{drawn.getyofst():.2f}px"'
    return svg.replace("<svg", head, 1)


def markdown(text: str, size: int = 28) -> str:
    """Return a text of a chapter as HTML."""
    return MarkdownWithMath(renderer=_Words(size)).render(text)


def line(text: str, size: int = 28) -> str:
    """Return a line of text, such as a heading, without a paragraph around it."""
    text = re.sub(r"^(\d+)\.", r"\1\\.", text)  # "3. Weights" is not a list
    return re.sub(r"</?p>", "", markdown(text, size)).strip()


def code(text: str) -> str:
    """Return code with its colours."""
    return highlight(text, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()


def plain(text: str) -> str:
    """Return a heading without markup, for titles of pages."""
    return re.sub(r"[*`$]|\\(?=[a-z])|[{}]", "", text)


def page(deck: Deck) -> str:
    """Return the page of a deck."""
    words = {"code": code, "line": line, "markdown": markdown, "plain": plain}
    return rendered("lecture/templates/deck.html", deck=deck, assets=ASSETS, **words)


def index(here: Course, made: list[str]) -> str:
    """Return the page that lists the decks of a folder."""
    chapters = [chapter for chapter in here.chapters if chapter.file in made]
    return rendered("lecture/templates/index.html", chapters=chapters, assets=ASSETS)


def copy_assets(folder: Path) -> None:
    """Copy the scripts, styles and fonts of the pages into a folder, with their licences."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with as_file(files("sphinx_revealjs") / "_static" / "revealjs") as reveal:
        for name in REVEAL:
            target = Path(name)
            licence = {"LICENSE": "LICENSE-reveal.js"}.get(name)
            licence = licence or ("LICENSE-source-sans-pro" if target.name == "LICENSE" else None)
            shutil.copyfile(reveal / name, folder / (licence or target.name))
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in MONO:
        shutil.copyfile(fonts / name, folder / name)
    for name in ("slides.css", "slides.js"):
        shutil.copyfile(HERE / name, folder / name)
