"""The book: all pages of the site printed and joined with their links."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from attention_clinic import BUGS
from tools.course.registry import Course
from tools.web import front_matter, proofread
from tools.web.front_matter import Entry
from tools.web.links import Page

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab
    from pypdf import PdfWriter

LONG = 600_000  # milliseconds: no result depends on the speed of a machine
TITLE = "Attention, shape by shape"
TOP = 842.0  # of an A4 page, in PDF's points
ARTICLE = re.compile(r'<article class="bd-article">(.*?)</article>', re.DOTALL)
# Every page shows its number, which continues from part to part.
PAPER = """@page { size: A4; margin: 16mm 17mm 18mm;
  @bottom-center { content: counter(page); font: 9px sans-serif; color: #444; } }
html { counter-reset: page %d; }"""
PRINTED = {"width": 665, "height": 994}  # points between the margins
# Opens folded text, adds further pages of the part, and links to all targets of other parts:
# Chromium writes only those targets into the PDF to which the page itself has a link.
PREPARE = """([more, places]) => {
  const article = document.querySelector(".bd-article");
  for (const text of more) article.insertAdjacentHTML("beforeend", text);
  for (const fold of document.querySelectorAll(".bd-article details")) fold.open = true;
  // A section may begin at the end of a page, and its heading overleaf: link to the heading.
  for (const section of document.querySelectorAll(".bd-article section[id]")) {
    const heading = section.querySelector(":scope > :is(h1, h2, h3, h4)"), id = section.id;
    if (!heading) continue;
    section.removeAttribute("id");
    heading.id = id;
  }
  const links = document.createElement("div");
  links.hidden = true;
  for (const place of places) {
    const link = document.createElement("a");
    link.href = "#" + place;
    links.append(link);
  }
  article.append(links);
}"""
# Replaces pixels by drawings with the same width.
SHARPEN = """async (sharp) => {
  for (const image of document.querySelectorAll("img.sbs-figure")) {
    const drawing = sharp[image.src.split("/").pop()];
    if (!drawing) continue;
    image.src = drawing;
    await image.decode();
  }
}"""


@dataclass(frozen=True)
class Part:
    """One print job with an entry in the contents.

    Args:
        name: of the page of the site.
        title: in the contents.
        deep: whether it belongs to the part before it.
        opened: whether the contents also list its numbered sections.
        more: names of further pages in it; each is a link target with the name of its file.
    """

    name: str
    title: str
    deep: bool = False
    opened: bool = False
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Printed:
    """A printed part.

    Args:
        first: the number of its first page, from 0.
        places: of each link target, page from 0 and height.
    """

    first: int
    places: dict[str, tuple[int, float]]


def parts(here: Course) -> list[Part]:
    """Return the parts of the book in order."""
    found = []
    for chapter in here.chapters:
        title = f"{chapter.number} · {chapter.title}"
        found.append(Part(f"{chapter.file}.html", title, opened=True))
        found.append(Part(f"exercises/{chapter.exercises.stem}.html", "Exercises", deep=True))
    bugs = tuple(f"clinic/{id}.html" for id in BUGS)
    found.append(Part("clinic/index.html", "The catalogue of bugs", more=bugs))
    found.append(Part("clinic/variants.html", "Variants", deep=True))
    found.append(Part("clinic/tool.html", "The tool that names bugs", deep=True))
    found.append(Part("terms.html", "Index of terms"))
    found.append(Part("shapes.html", "Index of shapes"))
    return found


def write(
    browser: Browser,
    site: Path,
    listed: Sequence[Part],
    out: Path,
    drawn: Mapping[str, Path] | None = None,
) -> int:
    """Write the book, check it, and return the number of its pages.

    Args:
        browser: prints.
        site: the finished pages.
        listed: the parts of the book, in order.
        out: the file.
        drawn: replacements of figures, by the names of their files.
    Raises:
        ValueError: text is cut off, a page is empty, or the contents name a wrong page.
    """
    from pypdf import PdfReader, PdfWriter

    tab = browser.new_page(viewport=PRINTED)
    tab.set_default_timeout(LONG)
    tab.emulate_media(media="print", color_scheme="light")
    wanted, book = _wanted(site, listed), PdfWriter()
    sharp = {name: path.resolve().as_uri() for name, path in (drawn or {}).items()}
    printed: dict[str, Printed] = {}
    cut: list[str] = []
    without_font: set[str] = set()
    for part in listed:
        first = len(book.pages)
        _open(tab, site, part, wanted[part.name], sharp)
        cut += [f"{part.name}: {words}" for words in tab.evaluate(proofread.CUT)]
        without_font |= set(tab.evaluate(proofread.WITHOUT_FONT))
        tab.add_style_tag(content=PAPER % first)
        printout = tab.pdf(print_background=True, prefer_css_page_size=True)
        reader = PdfReader(io.BytesIO(printout))
        places = {
            str(name).removeprefix("/"): (first + (page or 0), float(place.top or 0))
            for name, place in reader.named_destinations.items()
            if (page := reader.get_destination_page_number(place)) is not None
        }
        printed[part.name] = Printed(first, places)
        book.append(reader, import_outline=False)
    entries = list(_entries(site, listed, printed))
    cover = PdfReader(io.BytesIO(front_matter.write(tab, TITLE, entries)))
    for number, page in enumerate(cover.pages):
        book.insert_page(page, number)
    before = len(cover.pages)
    _link(book, site, listed, printed, entries, before)
    above: Any = None
    for entry in entries:
        item = book.add_outline_item(
            title=entry.title,
            page_number=before + entry.page,
            parent=above if entry.deep else None,
        )
        above = above if entry.deep else item
    book.add_metadata({"/Title": TITLE})
    book.page_mode = "/UseOutlines"
    book.compress_identical_objects()
    out.parent.mkdir(parents=True, exist_ok=True)
    book.write(out)
    if without_font:
        print(proofread.ADVICE.format(letters="".join(sorted(without_font))), file=sys.stderr)
    if found := [*cut, *proofread.problems(out, entries, before)]:
        raise ValueError(f"{out} is written and has errors:\n  " + "\n  ".join(found))
    return len(book.pages)


def _entries(site: Path, listed: Sequence[Part], printed: Mapping[str, Printed]) -> Iterator[Entry]:
    """Yield the lines of the contents."""
    for part in listed:
        text, where = (site / part.name).read_text("utf-8"), printed[part.name]
        _, _, heading = front_matter.headings(text, 1)[0]
        yield Entry(part.title, heading, part.deep, where.first, TOP)
        if part.opened:
            for id, title, heading in front_matter.sections(text):
                yield Entry(title, heading, True, *where.places[id])


def _home(listed: Sequence[Part]) -> dict[str, tuple[str, str]]:
    """Return, for each page of the site in the book, its part and its link target there."""
    found = {part.name: (part.name, "") for part in listed}
    for part in listed:
        found |= {name: (part.name, Path(name).stem) for name in part.more}
    return found


def _targets(site: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the page of the site, and the anchor in it, of each link of a page."""
    for target in Page((site / name).read_text("utf-8")).links:
        address = urlsplit(target)
        if not address.scheme and not address.netloc:
            path = (site / name).parent / unquote(address.path) if address.path else site / name
            yield path.resolve().relative_to(site.resolve()).as_posix(), unquote(address.fragment)


def _wanted(site: Path, listed: Sequence[Part]) -> dict[str, set[str]]:
    """Return the link targets, by their parts."""
    home = _home(listed)
    found: dict[str, set[str]] = {part.name: set() for part in listed}
    for part in listed:
        found[part.name] |= {Path(name).stem for name in part.more}
        if part.opened:
            text = (site / part.name).read_text("utf-8")
            found[part.name] |= {id for id, _, _ in front_matter.sections(text)}
        for name in (part.name, *part.more):
            for page, place in _targets(site, name):
                if place and home.get(page, ("", "x"))[1] == "":
                    found[page].add(place)
    return found


def _article(page: Path) -> str:
    """Return the content of a page, its headings one level deeper."""
    found = ARTICLE.search(page.read_text("utf-8"))
    if not found:
        raise ValueError(f"{page.name}: a page must have an article, got none. Check the theme")
    return re.sub(r"<(/?)h([1-5])\b", lambda h: f"<{h[1]}h{int(h[2]) + 1}", found[1])


def _open(tab: Tab, site: Path, part: Part, places: set[str], sharp: dict[str, str]) -> None:
    """Open a part and prepare it for printing."""
    tab.goto((site / part.name).as_uri(), wait_until="load", timeout=LONG)
    more = [_article(site / name) for name in part.more]
    tab.evaluate(PREPARE, [more, sorted(places)])
    tab.evaluate(SHARPEN, sharp)
    tab.evaluate("() => window.MathJax && MathJax.startup && MathJax.startup.promise")


def _link(
    book: PdfWriter,
    site: Path,
    listed: Sequence[Part],
    printed: Mapping[str, Printed],
    entries: Sequence[Entry],
    before: int,
) -> None:
    """Redirect every link to its page in the book; remove links without one.

    Args:
        book: with all its pages.
        site: the printed pages.
        listed: the parts.
        printed: their link targets.
        entries: of the contents.
        before: the number of pages before the first part.
    """
    from pypdf.generic import ArrayObject, FloatObject, NameObject, NullObject

    home, top = _home(listed), site.resolve().as_uri()

    def goes(annotation: Any, number: int, height: float) -> bool:
        spot = [book.pages[before + number].indirect_reference, NameObject("/XYZ"), NullObject()]
        annotation.pop("/A", None)
        annotation[NameObject("/Dest")] = ArrayObject([*spot, FloatObject(height), NullObject()])
        return True

    def led(annotation: Any, part: str) -> bool:
        """Redirect a link; return whether it has a target."""
        action = annotation.get("/A", {})
        if str(action.get("/URI", "")).startswith("book:"):
            entry = entries[int(str(action["/URI"])[5:])]
            return goes(annotation, entry.page, entry.height)
        if "/Dest" in annotation:
            page, place = part, str(annotation["/Dest"]).removeprefix("/")
        elif str(action.get("/URI", "")).startswith(top):
            address = urlsplit(str(action["/URI"]).removeprefix(top + "/"))
            page, inside = home.get(unquote(address.path), ("", ""))
            place = inside or unquote(address.fragment)
        else:
            return True
        if page not in printed:
            return False
        return goes(annotation, *printed[page].places.get(place, (printed[page].first, TOP)))

    ends = [(before + printed[part.name].first, part.name) for part in listed]
    for number, page in enumerate(book.pages):
        part = next((name for first, name in reversed(ends) if first <= number), "")
        links = page.get("/Annots")
        if links is not None:
            kept = [one for one in links if led(one.get_object(), part)]
            page[NameObject("/Annots")] = ArrayObject(kept)
