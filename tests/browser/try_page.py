"""The exported page, opened from a file without a network: what a reader without Python sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page

from browser.explorers import CHAPTERS, WITH_EXPLORERS, stored, try_all

Address = Callable[[Path], str]
chapters = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
with_explorers = pytest.mark.parametrize("path", WITH_EXPLORERS, ids=lambda path: path.stem)

# The texts whose contrast with their ground (WCAG 2) is below 4.5; the grounds of parents count.
FAINT = """style => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const groundOf = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (node) => {
    const drawn = node.tagName === "text", look = getComputedStyle(node);
    const ground = drawn ? rgb(getComputedStyle(node.previousSibling).fill) : groundOf(node);
    const pair = [rgb(drawn ? look.fill : look.color), ground].map(light);
    const [low, high] = pair.sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = "p, td, th, caption, label, span, button, output, b, rect + text";
  return [...document.querySelectorAll(".sbs-explorer")].flatMap((root) => {
    root.parentElement.setAttribute("style", style);
    return [...root.querySelectorAll(texts)]
      .filter((node) => node.checkVisibility() && node.textContent.trim() && contrast(node) < 4.5)
      .map((node) => `${contrast(node)} ${node.outerHTML}`);
  });
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Address:
    """Return a function that exports a stored notebook, once, and says where the page is."""
    folder = tmp_path_factory.mktemp("pages")

    def export(path: Path) -> str:
        page = folder / f"{path.stem}.html"
        if not page.exists():
            html, _ = HTMLExporter().from_notebook_node(nbformat.read(path, as_version=4))
            page.write_text(html, encoding="utf-8")
        return page.as_uri()

    return export


def open_offline(page: Page, address: str) -> None:
    page.context.set_offline(True)
    page.goto(address, wait_until="domcontentloaded")


@with_explorers
def test_explorers_of_an_exported_page(path: Path, page: Page, address: Address) -> None:
    open_offline(page, address(path))
    try_all(page, stored(path))


@with_explorers
def test_a_page_without_scripts_says_what_is_chosen(
    path: Path, browser: Browser, address: Address
) -> None:
    with browser.new_context(java_script_enabled=False, offline=True) as context:
        page = context.new_page()
        page.goto(address(path), wait_until="domcontentloaded")
        for explorer in stored(path):
            root = page.locator(f"#{explorer.id}")
            assert root.is_visible()
            if explorer.kind == "product":
                assert " = " in root.locator(".sbs-said").first.inner_text()
                assert root.locator("td[data-lit]").count() > 0
            else:
                assert "still picture" in root.inner_text()


@chapters
def test_every_picture_has_words(path: Path, page: Page, address: Address) -> None:
    open_offline(page, address(path))
    pictures = page.locator(".jp-OutputArea-output img").all()
    silent = [at for at, node in enumerate(pictures) if not node.get_attribute("alt")]
    assert not silent, f"pictures without words: {silent} of {len(pictures)}"


@chapters
def test_no_slider_needs_a_kernel(path: Path) -> None:
    """A widget is empty for a reader, and no test here moves it: use an explorer instead."""
    assert "application/vnd.jupyter.widget-view+json" not in path.read_text(encoding="utf-8")


@with_explorers
@pytest.mark.parametrize("style", ["", "background: #111; color: #eee"], ids=["light", "dark"])
def test_words_and_numbers_stand_out(path: Path, style: str, page: Page, address: Address) -> None:
    open_offline(page, address(path))
    assert page.evaluate(FAINT, style) == []
