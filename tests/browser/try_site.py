"""The website: in a subfolder of a server and from files, without a network, wide and narrow."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, expect
from pypdf import PdfReader

from attention_clinic import BUGS
from browser.explorers import LONG, ROOT, stored, try_all
from tools.course.registry import course
from tools.web import assets, book, predictions
from tools.web.make_site import build
from utils.shapes import check_guess

CHAPTERS = course().chapters
WITH_EXPLORERS = [chapter for chapter in CHAPTERS if stored(chapter.notebook)]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
BOTH = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
LARGEST = 3 * 2**20  # bytes of a page and all that it loads, compressed

# One of each kind of page, for what takes long.
KINDS = (
    "index.html",
    "docs/install.html",
    f"{CHAPTERS[3].file}.html",
    f"{CHAPTERS[7].file}.html",
    f"{CHAPTERS[14].file}.html",
    f"exercises/{CHAPTERS[3].exercises.stem}.html",
    "clinic/index.html",
    "clinic/tool.html",
    "clinic/scale-embed.html",
    "clinic/variants.html",
    "terms.html",
    "shapes.html",
    "code/utils-attention.html",
    "search.html",
)

# What is wrong with the layout of a page: it moves sideways, a picture is broken, letters of a
# figure are too small, or something that moves sideways cannot be reached by the keyboard.
FAULTS = """() => {
  const wide = document.documentElement.scrollWidth, window = innerWidth, found = [];
  if (wide > window) found.push(`the page is ${wide} wide`);
  for (const image of document.images) {
    const shown = image.checkVisibility() && image.complete;
    if (shown && !image.naturalWidth) found.push(`broken: ${image.src}`);
    if (!image.hasAttribute("alt")) found.push(`without words: ${image.src}`);
  }
  // 12.5 points are the smallest letters of a figure and of a drawing at their natural size. A wide
  // window shows a drawing whole, a narrow one in a box that moves.
  const drawings = innerWidth < 760 ? ", .bd-article p > img[src$='.svg']" : "";
  for (const image of document.querySelectorAll(".sbs-figure" + drawings)) {
    const scale = image.getBoundingClientRect().width / image.naturalWidth;
    if (scale < 0.96) found.push(`letters of ${(12.5 * scale).toFixed(1)} px: ${image.src}`);
  }
  for (const box of document.querySelectorAll(".bd-article *")) {
    const look = getComputedStyle(box);
    if (!/auto|scroll/.test(look.overflowX) || box.scrollWidth <= box.clientWidth + 1) continue;
    if (box.tabIndex < 0 && !box.querySelector("a, button, input, select, [tabindex='0']"))
      found.push(`moves, out of the keyboard's reach: ${box.outerHTML.slice(0, 120)}`);
  }
  for (const formula of document.querySelectorAll(".bd-article .math"))
    if (!formula.querySelector("svg") || formula.querySelector("[data-mml-node='merror']"))
      found.push(`not drawn: ${formula.textContent.slice(0, 80)}`);
  return found;
}"""


@pytest.fixture(scope="module")
def site() -> Path:
    """Make the site where `make site` makes it."""
    out = ROOT / "build" / "site"
    build(course(), out, ROOT / "build" / "site-work")
    return out


@pytest.fixture(scope="module")
def address(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the site in a subfolder of a web server and return its address."""
    top = tmp_path_factory.mktemp("server")
    (top / "some").mkdir()
    (top / "some" / "where").symlink_to(site)

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(top)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/where"
    server.shutdown()


def _not_loaded(asked: Request) -> list[str]:
    """Say what a page asked for in vain; who leaves a page gives up what it still asks for."""
    given_up = asked.failure == "net::ERR_ABORTED"
    return [] if given_up else [f"not loaded: {asked.url} ({asked.failure})"]


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open an empty page; a failing script or a foreign address fails the test."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
    page.on("requestfailed", lambda asked: errors.extend(_not_loaded(asked)))
    page.on("request", lambda asked: errors.extend(_foreign(asked.url)))
    yield page
    page.close()
    assert not errors, "\n".join(errors)


def _foreign(url: str) -> list[str]:
    ours = url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))
    return [] if ours else [f"asks a foreign server: {url}"]


def open_file(page: Page, site: Path, name: str) -> None:
    """Open a page from its file, without a network, and wait until its formulas are drawn."""
    page.context.set_offline(True)
    page.goto((site / name).as_uri(), wait_until="load", timeout=LONG)
    page.evaluate("() => window.MathJax && MathJax.startup && MathJax.startup.promise")


@cache
def compressed(path: Path) -> int:
    """Return the bytes of a file as a server sends it."""
    return len(gzip.compress(path.read_bytes(), 6))


def names(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


@BOTH
def test_every_page_is_small_and_fits_into_its_window(
    size: dict[str, int], site: Path, page: Page
) -> None:
    page.set_viewport_size(size)
    loaded: set[str] = set()
    page.on("requestfinished", lambda asked: loaded.add(asked.url))
    faults = {}
    for name in names(site):
        loaded.clear()
        open_file(page, site, name)
        found = page.evaluate(FAULTS)
        paths = {Path(re.sub(r"[?#].*", "", url).removeprefix("file://")) for url in loaded}
        bytes_of = sum(map(compressed, paths))
        if bytes_of > LARGEST:
            found.append(f"{bytes_of / 2**20:.1f} MB with all that it loads")
        if found:
            faults[name] = found
    assert not faults


@pytest.mark.parametrize("name", KINDS)
def test_axe_finds_nothing_serious(name: str, site: Path, page: Page) -> None:
    open_file(page, site, name)
    script = assets.package("axe_playwright_python") / "axe.min.js"
    page.evaluate(script.read_text("utf-8"))
    page.add_style_tag(content="* { transition: none !important; }")  # colours on their way
    for mode in ("light", "dark"):
        page.evaluate("mode => { document.documentElement.dataset.theme = mode }", mode)
        result = page.evaluate("() => axe.run({preload: false, resultTypes: ['violations']})")
        serious = [
            f"{found['id']} ({found['impact']}): {node['html'][:160]}: {node['failureSummary']}"
            for found in result["violations"]
            if found["impact"] in ("serious", "critical")
            for node in found["nodes"]
        ]
        assert not serious, mode + "\n" + "\n".join(serious)


@pytest.mark.parametrize("chapter", WITH_EXPLORERS, ids=lambda chapter: chapter.file)
def test_explorers_live(chapter, site: Path, page: Page) -> None:
    open_file(page, site, f"{chapter.file}.html")
    try_all(page, stored(chapter.notebook))


@pytest.mark.parametrize("kind", ["chapters", "exercises"])
def test_folds_open_by_mouse_and_by_keyboard(kind: str, site: Path, page: Page) -> None:
    """Guesses in a wide window, hints in a narrow one."""
    page.set_viewport_size(WIDE if kind == "chapters" else NARROW)
    for chapter in CHAPTERS:
        exercises = f"exercises/{chapter.exercises.stem}.html"
        open_file(page, site, f"{chapter.file}.html" if kind == "chapters" else exercises)
        folds = page.locator(".bd-article details:not(.sbs-explorer details)").all()
        assert folds, chapter.file
        for number, fold in enumerate(folds):
            assert fold.get_attribute("open") is None, "an answer is folded"
            summary = fold.locator("summary").first
            if number % 2:
                summary.press("Enter", timeout=LONG)
            else:
                summary.click(timeout=LONG)
            expect(fold).to_have_attribute("open", "")


def test_no_page_shows_a_solution(site: Path) -> None:
    for chapter in CHAPTERS:
        text = (site / "exercises" / f"{chapter.exercises.stem}.html").read_text("utf-8")
        assert "SOLUTION" not in text and "solutions/" not in text
        assert "# your code here" in text


@pytest.mark.parametrize("way", ["file", "server"])
def test_the_search_finds_what_diagnose_prints(
    way: str, site: Path, address: str, page: Page, tmp_path: Path
) -> None:
    """By mouse and by keyboard; the first result is the page of the bug. A stick has any name."""
    stick = tmp_path / "Mein Stück, 100 %"
    stick.symlink_to(site)
    start = (stick / "index.html").as_uri() if way == "file" else f"{address}/index.html"
    for number, id in enumerate(["scale-embed", "mask-inverted", "loading-packed", "pos-one-row"]):
        page.goto(start, timeout=LONG)
        if number % 2:
            page.keyboard.press("Control+k")
        else:
            page.locator(".search-button__button, .search-button").filter(
                visible=True
            ).first.click()
        page.keyboard.type(id)
        page.keyboard.press("Enter")
        # results come one after the other, and what is clicked before the last one may have moved
        expect(page.locator(".search-summary")).to_contain_text("finished", timeout=LONG)
        first = page.locator("#search-results li a").first
        expect(first).to_have_text(re.compile(re.escape(id)), timeout=LONG)
        first.press("Enter") if number % 2 else first.click()
        page.wait_for_url(re.compile(rf"/clinic/{id}\.html"), timeout=LONG)
        expect(page.locator("h1").first).to_contain_text(id)


def _field(page: Page, number: int) -> tuple[Locator, Locator]:
    """Return a field for a prediction and what the page says below it."""
    form = page.locator("form.sbs-predict").nth(number)
    return form.locator("input"), form.locator("output")


def test_a_page_says_to_a_prediction_what_the_notebook_says(
    site: Path, page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    open_file(page, site, f"{CHAPTERS[3].file}.html")
    field, said = _field(page, 3)
    shape = (6, 8, 37, 96)
    for guess in [shape, (6, 37, 96), (6, 37, 8, 96), (3, 16, 37, 96), (5, 8, 37, 99), (4,)]:
        check_guess(guess, shape)
        field.fill(str(guess))
        field.press("Enter")
        expect(said).to_have_text(capsys.readouterr().out.strip())
        page.get_by_role("button", name="Forget").click()
        expect(said).to_be_empty(timeout=LONG)


def test_predictions_are_checked_kept_and_forgotten(site: Path, page: Page) -> None:
    chapter = CHAPTERS[3]
    open_file(page, site, f"{chapter.file}.html")
    folds, note = page.locator("details[data-guess]"), page.locator("p.sbs-kept")
    expect(note).to_have_text(re.compile("^0 of 4 predictions right. What you type is kept"))
    right, said = _field(page, 0)
    for bad in ("", "two by three", "(2, 3", "1e300", "2.5 3", "2,,3", "9" * 30):
        right.fill(bad)
        right.press("Enter")
        expect(said).to_have_text(
            f"a guess is a tuple of integers such as (2, 3), got {bad or 'nothing'}"
        )
    expect(folds.nth(0)).not_to_have_attribute("open", "")
    right.fill("i=2 j=3")
    right.press("Enter")
    expect(said).to_have_text("right: (2, 3)")
    wrong, said_too = _field(page, 2)
    wrong.fill("(6, 37, 8, 37)")
    page.locator("form.sbs-predict button").nth(2).click()
    expect(said_too).to_have_text(
        "not (6, 37, 8, 37): the shape is (6, 8, 37, 37), the same sizes in a different order"
    )
    page.reload()
    assert [fold.get_attribute("open") for fold in folds.all()] == ["", None, "", None]
    expect(said).to_have_text("right: (2, 3)")
    expect(wrong).to_have_value("(6, 37, 8, 37)")
    assert not wrong.is_editable()
    expect(note).to_contain_text("1 of 4 predictions right")
    page.goto((site / "index.html").as_uri())
    entry = page.locator(".sbs-chapters small")
    expect(entry).to_have_text("1 of 4 predictions right")
    expect(entry.locator("xpath=..")).to_contain_text(chapter.title)
    page.get_by_role("button", name="Forget").click()
    expect(entry).to_have_count(0)
    page.goto((site / f"{chapter.file}.html").as_uri())
    expect(note).to_contain_text("0 of 4 predictions right")
    assert not page.locator("details[data-guess][open]").count()


@pytest.mark.parametrize("number", range(len(CHAPTERS)))
def test_the_first_exercise_is_checked_without_telling_the_answer(
    number: int, site: Path, page: Page
) -> None:
    chapter = CHAPTERS[number]
    answers = predictions.first_answers(chapter)
    open_file(page, site, f"exercises/{chapter.exercises.stem}.html")
    for place, (name, answer) in enumerate(answers.items()):
        field, said = _field(page, place)
        expect(page.get_by_label(name, exact=True)).to_have_count(1)
        expected = "one number" if isinstance(answer, int) else f"{len(answer)} ax[ei]s"
        for typed, got in [("1 1 1 1 1 1 1", ""), ("none", ", got none")]:
            field.fill(typed)
            field.press("Enter")
            expect(said).to_have_text(re.compile(f"^not yet: expected {expected}{got}$"))
        field.fill(str(answer))
        field.press("Enter")
        expect(said).to_have_text("right")
    page.reload()
    done = f"{len(answers)} of {len(answers)} right in exercise 1"
    expect(page.locator("p.sbs-kept")).to_contain_text(done)
    page.goto((site / "index.html").as_uri())
    expect(page.locator(".sbs-chapters small")).to_have_text(done)


def test_where_nothing_is_kept_the_page_says_so_and_works(
    site: Path, context: BrowserContext
) -> None:
    """The theme's own scripts fail there; ours do not."""
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('refused'); }})"
    )
    open_file(page, site, f"{CHAPTERS[3].file}.html")
    expect(page.locator("p.sbs-kept")).to_contain_text("This browser keeps nothing for this page")
    field, said = _field(page, 0)
    field.fill("2 3")
    field.press("Enter")
    expect(said).to_have_text("right: (2, 3)")
    page.get_by_role("button", name="Forget").click()
    expect(said).to_be_empty(timeout=LONG)
    page.goto((site / "index.html").as_uri())
    expect(page.locator(".sbs-chapters")).to_be_visible()
    assert not [error for error in errors if "predictions.js" in error]


@BOTH
def test_predictions_fit_and_can_be_read(size: dict[str, int], site: Path, page: Page) -> None:
    page.set_viewport_size(size)
    asking = [f"{CHAPTERS[3].file}.html", f"exercises/{CHAPTERS[3].exercises.stem}.html"]
    for name in asking:
        open_file(page, site, name)
        for field in page.locator("form.sbs-predict input").all():
            field.fill("(2, 3)")
            field.press("Enter")
        assert page.evaluate(FAULTS) == []
    script = assets.package("axe_playwright_python") / "axe.min.js"
    for name in (*asking, "index.html"):
        open_file(page, site, name)
        page.evaluate(script.read_text("utf-8"))
        page.add_style_tag(content="* { transition: none !important; }")
        for mode in ("light", "dark"):
            page.evaluate("mode => { document.documentElement.dataset.theme = mode }", mode)
            ours = [[".sbs-predict"], [".sbs-kept"]]
            found = page.evaluate("ours => axe.run({include: ours}, {preload: false})", ours)[
                "violations"
            ]
            assert found == [], f"{name}, {mode}"


def test_every_bug_has_a_page(site: Path) -> None:
    found = {path.stem for path in (site / "clinic").glob("*.html")}
    assert found == {*BUGS, "index", "tool", "variants"}


@BOTH
def test_the_switch_makes_it_dark_and_light(size: dict[str, int], site: Path, page: Page) -> None:
    page.set_viewport_size(size)
    open_file(page, site, f"{CHAPTERS[3].file}.html")
    grounds = []
    for mode in ("dark", "light"):
        page.locator(".theme-switch-button").filter(visible=True).first.click()
        page.locator(f'.theme-change-button[data-mode="{mode}"]').filter(visible=True).click()
        expect(page.locator("html")).to_have_attribute("data-theme", mode)
        grounds.append(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_on_a_telephone_the_list_of_chapters_opens(site: Path, page: Page) -> None:
    page.set_viewport_size(NARROW)
    open_file(page, site, "index.html")
    page.locator("button.primary-toggle").click()
    entry = page.locator("dialog a").filter(has_text=CHAPTERS[3].title, visible=True)
    entry.first.click()
    expect(page.locator("h1").first).to_contain_text(CHAPTERS[3].title)


def test_on_a_telephone_code_goes_on_below(site: Path, page: Page) -> None:
    """No line leaves a narrow window, and the code stays the same; a wide one shows it as it is."""
    chapter = CHAPTERS[3]
    page.set_viewport_size(NARROW)
    open_file(page, site, f"{chapter.file}.html")
    code = page.locator(".cell_input pre")
    wider = (
        "boxes => boxes.filter((b) => b.scrollWidth > b.clientWidth + 1).map((b) => b.innerText)"
    )
    assert code.evaluate_all(wider) == []
    cells = json.loads(chapter.notebook.read_text("utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [text.rstrip("\n") for text in code.all_text_contents()] == sources
    page.set_viewport_size(WIDE)
    shown = """boxes => boxes.map((box) => {
      const look = getComputedStyle(box), around = parseFloat(look.paddingTop) * 2;
      return Math.round((box.clientHeight - around) / parseFloat(look.lineHeight));
    })"""
    assert code.evaluate_all(shown) == [text.count("\n") + 1 for text in sources]


def test_a_picture_that_goes_on_says_so_until_its_end(site: Path, page: Page) -> None:
    page.set_viewport_size(NARROW)
    open_file(page, site, f"{CHAPTERS[3].file}.html")
    box = page.locator(".sbs-wide[data-wider]").first
    expect(box).to_have_attribute("data-more", "")
    said = "box => getComputedStyle(box, '::after').content"
    assert "more at the right" in box.evaluate(said)
    box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
    expect(box).not_to_have_attribute("data-more", "")


def test_a_picture_is_seen_whole_by_a_tap(site: Path, page: Page) -> None:
    """Curves have their legend at the right, beyond a narrow window; a drawing is wide, too."""
    page.set_viewport_size(NARROW)
    open_file(page, site, f"{CHAPTERS[3].file}.html")
    for kind in (".sbs-wide", "p"):
        _try_taps(page, page.locator(f"{kind}[data-wider]:has(> img)").first)


def _try_taps(page: Page, box: Locator) -> None:
    image, widest = box.locator("img"), box.evaluate("box => box.clientWidth")
    width = "image => image.getBoundingClientRect().width"
    large = image.evaluate(width)
    for act in (image.click, lambda: box.press("Enter")):
        act()
        assert image.evaluate(width) <= widest < large
        expect(box).not_to_have_attribute("data-more", "")
        page.evaluate("() => dispatchEvent(new Event('resize'))")
        act()
        assert image.evaluate(width) == large


@pytest.mark.skipif("VNU_JAR" not in os.environ, reason="VNU_JAR names no checker of the W3C")
def test_pages_are_valid_html(site: Path) -> None:
    command = ["java", "-Xss4m", "-jar", os.environ["VNU_JAR"], "--errors-only", "--skip-non-html"]
    result = subprocess.run([*command, str(site)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_chapters_read_well_without_scripts(site: Path, browser: Browser) -> None:
    with browser.new_context(java_script_enabled=False, offline=True) as context:
        page = context.new_page()
        for chapter in WITH_EXPLORERS:
            page.goto((site / f"{chapter.file}.html").as_uri(), timeout=LONG)
            for explorer in stored(chapter.notebook):
                words = page.locator(f"#{explorer.id}").inner_text()
                assert (" = " if explorer.kind == "product" else "still picture") in words
            assert page.locator("details[data-guess]").count()
            assert not page.locator(".sbs-predict, .sbs-kept").count()
        page.close()


def test_the_book_has_contents_numbers_and_links(
    site: Path, browser: Browser, tmp_path: Path
) -> None:
    chapter = CHAPTERS[3]
    own = {f"{chapter.file}.html", f"exercises/{chapter.exercises.stem}.html", "terms.html"}
    listed = [part for part in book.parts(course()) if part.name in own]
    count = book.write(browser, site, listed, tmp_path / "book.pdf")
    reader = PdfReader(tmp_path / "book.pdf")
    texts = [page.extract_text() for page in reader.pages]
    assert len(texts) == count and [texts[2].count("Scaled dot-product"), count > 20] == [1, True]
    told = re.findall(r"^(.+) (\d+)$", texts[1], re.MULTILINE)
    titles = [part.title for part in listed]
    starts = [int(number) for title, number in told if title in titles]
    assert len(starts) == len(titles) and len(told) == len(titles) + 8
    assert starts[0] == 1 and starts == sorted(starts)
    for number, text in enumerate(texts[2:], start=1):
        assert text.split()[-1] == str(number) or text.split()[0] == str(number)
    for start, words in zip(starts, ("Scaled dot", "Exercises", "Index of terms"), strict=True):
        assert words in texts[start + 1]
    cells = json.loads(chapter.notebook.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(code).splitlines()
    longest = max(lines, key=len).strip()
    assert any(longest in text for text in texts), f"cut: {longest}"
    links = [one.get_object() for page in reader.pages for one in page.get("/Annots", [])]
    outside = [str(link["/A"]["/URI"]) for link in links if "/A" in link]
    assert len(links) > len(outside) + 20
    assert all(address.startswith("https://") for address in outside)
