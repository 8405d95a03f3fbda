"""PDFs of slides: printed by Chromium, a page for each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.course.chromium import launched

LONG = 300_000  # milliseconds


def printed(pages: list[Path]) -> Iterator[tuple[Path, int]]:
    """Print pages next to their files; yield each PDF with the number of its pages.

    Raises:
        ValueError: no browser is installed.
    """
    with launched() as browser:
        for path in pages:
            with browser.new_context(
                viewport={"width": 1280, "height": 720}, offline=True
            ) as context:
                page = context.new_page()
                page.goto(f"{path.resolve().as_uri()}?print", timeout=LONG)
                page.wait_for_selector("html[data-ready]", state="attached", timeout=LONG)
                target = path.with_suffix(".pdf")
                page.pdf(path=target, prefer_css_page_size=True, print_background=True, tagged=True)
                yield target, page.locator(".page").count()
