"""The slides, opened from files without a network: nothing is cut off, and they go step by step."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.explorers import LONG, stored, try_attention, try_pictures, try_product
from tools.course.registry import Chapter, course
from tools.lecture import make_slides
from tools.lecture.deck import deck

Address = Callable[[Chapter], Path]
CHAPTERS = pytest.mark.parametrize("chapter", course().chapters, ids=lambda c: c.file)
EXPLORERS = {"pictures": try_pictures, "product": try_product, "attention": try_attention}

# What sticks out of its slide, is torn, too small or hardly told from its ground, page by page.
FAULTS = """() => [...document.querySelectorAll(".page")].flatMap((page, place) => {
  const found = [], sheet = page.getBoundingClientRect();
  const body = page.querySelector(".body").getBoundingClientRect();
  const say = (what, node) => {
    found.push(`page ${place + 1}: ${what}: ${node.outerHTML.slice(0, 90)}`);
  };
  const light = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const folded = "details:not([open]) > :not(summary)";
  for (const node of page.querySelectorAll("h1, h2, .body, .body *")) {
    if (node.matches(`${folded}, ${folded} *, option, style, script, title`)) continue;
    const box = node.getBoundingClientRect(), limit = node.closest(".body") ? body : sheet;
    const over = [box.right - limit.right, box.bottom - limit.bottom, limit.left - box.left];
    if (box.width && box.height && Math.max(...over) > 1) say("sticks out", node);
    const small = Math.min(node.naturalWidth, box.width, box.height) < 40;
    if (node.tagName === "IMG" && small) say("no picture", node);
    const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!text || node.closest(".explorer, svg")) continue;
    const look = getComputedStyle(node), zoom = Number(node.closest(".part")?.style.zoom || 1);
    if (parseFloat(look.fontSize) * zoom < 15) say(`small, ${look.fontSize} x ${zoom}`, node);
    const [low, high] = [light(look.color), light(ground(node))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) say("faint", node);
  }
  for (const part of page.querySelectorAll(".part")) {
    const zoom = Number(part.style.zoom || 1);
    if (zoom < (part.matches(".explorer, .html") ? 0.75 : 0.85)) say(`made smaller, ${zoom}`, part);
  }
  return found;
})"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Address:
    """Return a function that makes the slides of a chapter, once, and says where they are."""
    folder = tmp_path_factory.mktemp("slides") / "Mein Stück, 100 %"  # a stick has any name

    def make(chapter: Chapter) -> Path:
        path = folder / f"{chapter.file}.html"
        if not path.exists():
            make_slides.write([chapter], folder)
        return path

    return make


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open an empty page of 1280 x 720 points; an error of a script fails the test."""
    with browser.new_context(viewport={"width": 1280, "height": 720}, offline=True) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
        page.on("requestfailed", lambda request: errors.append(f"not there: {request.url}"))
        yield page
        assert not errors, "\n".join(errors)


def open_slides(page: Page, address: Address, chapter: Chapter, ending: str = "") -> None:
    page.goto(address(chapter).as_uri() + ending, timeout=LONG)
    page.wait_for_selector("html[data-ready]", state="attached", timeout=LONG)


@CHAPTERS
def test_nothing_is_cut_off(chapter: Chapter, address: Address, page: Page) -> None:
    open_slides(page, address, chapter, "?print")
    assert page.locator(".page").count() > 40
    assert page.evaluate(FAULTS) == []


def test_a_slide_that_is_too_full_is_seen(address: Address, page: Page) -> None:
    open_slides(page, address, course()["03"], "?print")
    number = page.evaluate(
        """() => {
          const pages = [...document.querySelectorAll(".page")];
          const first = pages.findIndex((one) => one.querySelector(".code pre"));
          const part = pages[first].querySelector(".code pre");
          part.textContent = "x\\n".repeat(40);
          part.style.color = "#ccc";
          return first + 1;
        }"""
    )
    said = {" ".join(fault.split()[:3]) for fault in page.evaluate(FAULTS)}
    assert said == {f"page {number}: sticks", f"page {number}: faint:"}


def test_the_space_bar_goes_through_every_step(address: Address, page: Page) -> None:
    chapter = course()["03"]
    open_slides(page, address, chapter)
    wanted = page_steps(chapter)
    seen = []
    for _ in range(25):
        seen.append(
            page.evaluate(
                """() => [
                  document.querySelectorAll(".slides section section").length,
                  [...document.querySelectorAll(".slides section section")]
                    .indexOf(Reveal.getCurrentSlide()),
                  Reveal.getCurrentSlide().querySelectorAll(".fragment.visible").length,
                ]"""
            )
        )
        page.keyboard.press("Space")
    path = [
        [len(wanted), slide, step]
        for slide, steps in enumerate(wanted)
        for step in range(len(steps) + 1)
    ]
    assert seen == path[:25]


def page_steps(chapter: Chapter) -> list[list[str]]:
    return [[part.kind for part in slide.parts if part.step] for slide in deck(chapter).slides]


def test_an_answer_is_hidden_until_its_step(address: Address, page: Page) -> None:
    open_slides(page, address, course()["03"])
    place = page.evaluate(
        """() => {
          const slide = document.querySelector('section[data-kind="predict"]');
          const { h, v } = Reveal.getIndices(slide);
          Reveal.slide(h, v, -1);
          return [h, v];
        }"""
    )
    answer = page.locator("section.present section.present .answer")
    expect(answer).to_have_css("visibility", "hidden")
    page.keyboard.press("Space")
    expect(answer).to_have_css("visibility", "visible", timeout=LONG)
    expect(answer).to_have_text("shape (2, 3)")
    page.keyboard.press("Space")
    assert page.evaluate("() => { const { h, v } = Reveal.getIndices(); return [h, v]; }") != place


@pytest.mark.parametrize(
    ("number", "size"),
    [("03", (1920, 1080)), ("07", (1280, 720)), ("14", (1280, 720))],
    ids=["product", "pictures", "attention"],
)
def test_explorers_work_on_slides(
    number: str, size: tuple[int, int], address: Address, page: Page
) -> None:
    chapter = course()[number]
    page.set_viewport_size({"width": size[0], "height": size[1]})
    open_slides(page, address, chapter)
    first = stored(chapter.notebook)[0]
    page.evaluate(
        """(id) => {
          const slide = document.getElementById(id).closest("section");
          const { h, v } = Reveal.getIndices(slide);
          Reveal.slide(h, v);
        }""",
        first.id,
    )
    before = page.evaluate("() => JSON.stringify(Reveal.getIndices())")
    root = page.locator(f"#{first.id}")
    expect(root).to_be_visible(timeout=LONG)
    EXPLORERS[first.kind](root, first)
    # The keys went to the explorer: the slide is the same.
    assert page.evaluate("() => JSON.stringify(Reveal.getIndices())") == before


def test_the_notes_open_in_a_window_of_their_own(address: Address, page: Page) -> None:
    open_slides(page, address, course()["03"])
    with page.expect_popup(timeout=LONG) as opened:
        page.keyboard.press("s")
    notes = opened.value.locator(".speaker-controls-notes .value")
    page.evaluate("""() => {
      const slide = document.querySelector('section[data-kind="predict"]');
      const { h, v } = Reveal.getIndices(slide);
      Reveal.slide(h, v);
    }""")
    expect(notes).to_contain_text("Let all students write an answer first", timeout=LONG)
    expect(notes).to_contain_text("Wrong answers to exercise 3, Scores", timeout=LONG)


def test_the_pdf_has_a_page_for_each_step(tmp_path: Path) -> None:
    chapter = course()["02"]
    command = [sys.executable, "-m", "tools.run", "slides", chapter.number, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    pages = sum(1 + len(slide) for slide in page_steps(chapter))
    assert f"{chapter.file}.pdf: {pages} pages" in done.stdout
    content = (tmp_path / f"{chapter.file}.pdf").read_bytes()
    assert set(re.findall(rb"/MediaBox \[([\d. ]+)\]", content)) == {b"0 0 960 540"}
    assert len(re.findall(rb"/Type /Page\b(?!s)", content)) == pages
