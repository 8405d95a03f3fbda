"""Check the finished pages: every link has a target, nothing comes from other servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a page loads by itself; other links need a click.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
OUTSIDE = re.compile(r"^(?:https?:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)")
METADATA_LINKS = ("canonical", "search", "index", "next", "prev")


class Page(HTMLParser):
    """The ids and links of a page.

    Args:
        text: its HTML.
    """

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.twice: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if name := found.get("id"):
            (self.twice if name in self.ids else self.ids).add(name)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in LOADED and LOADED[tag] in found:
            rel = found.get("rel", "").split()
            asked = self.links if set(rel) & set(METADATA_LINKS) else self.loads
            asked.append(found[LOADED[tag]])


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a site.

    Args:
        site: its folder, as a browser gets it.
    """
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for id in sorted(page.twice):
            yield f"{name}: id {id!r} occurs twice"
        for target in page.loads:
            if OUTSIDE.match(target):
                yield f"{name}: loads {target} from a foreign server"
            elif not target.startswith("data:") and not _file(path, target).exists():
                yield f"{name}: loads {target}, which is not there"
        for target in dict.fromkeys(page.links):
            if words := broken(path, target, pages):
                yield f"{name}: {words}"
    for path in sorted(site.rglob("*.css")):
        for target in IN_STYLE.findall(path.read_text("utf-8")):
            yield f"{path.relative_to(site)}: loads {target} from a foreign server"


def broken(path: Path, target: str, pages: dict[Path, Page]) -> str:
    """Return what is wrong with a link, "" if nothing."""
    parts = urlsplit(target)
    if parts.scheme:
        return "" if parts.scheme in ("https", "http", "mailto") else f"{target} leads nowhere"
    if parts.netloc or target.startswith("/"):
        return f"{target} works from the top of a server only"
    there = _file(path, target) if parts.path else path
    if not there.is_file():
        return f"{target} leads to no file"
    fragment = unquote(parts.fragment)
    if fragment and there in pages and fragment not in pages[there].ids:
        return f"{target} leads to a missing anchor"
    return ""


def _file(path: Path, target: str) -> Path:
    return (path.parent / unquote(urlsplit(target).path)).resolve()
