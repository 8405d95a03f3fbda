"""Slides: everything of a chapter is there, the class predicts first, and notes say why."""

from __future__ import annotations

import base64
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from tools.commands import Refusal
from tools.course.cells import Kind, kind, only_draws
from tools.course.notebook import source
from tools.course.registry import ROOT, Chapter, course
from tools.lecture import drawings, make_slides, prose
from tools.lecture.deck import deck
from tools.lecture.reveal_page import line, markdown, page
from tools.lecture.slide import FULL, ROOM, Deck, Element, Slide
from tools.lecture.wrong_answers import exercises, nearest, reasons_of

CHAPTERS = pytest.mark.parametrize("chapter", course().chapters, ids=lambda c: c.file)
made = cache(deck)


def cells(chapter: Chapter) -> list[dict[str, Any]]:
    return json.loads(chapter.notebook.read_text(encoding="utf-8"))["cells"]


def code(text: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": text, "outputs": list(outputs)}


def shown(**data: str) -> dict[str, Any]:
    kinds = {"png": "image/png", "html": "text/html", "text": "text/plain"}
    return {"output_type": "display_data", "data": {kinds[k]: v for k, v in data.items()}}


PRINTED = {"output_type": "stream", "name": "stdout", "text": ["1\n"]}


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ({"cell_type": "markdown", "source": "# 03 · Title\n\nText."}, "title"),
        ({"cell_type": "markdown", "source": "## 1. Part"}, "why"),
        (code("import a\nfrom b import c\n\nuse_course_style()"), "setup"),
        (code("import a.b\n\na.b.be_quiet()"), "setup"),
        (code("import a\nc = a.b()"), "code"),
        (code("import a\nprint(1)", PRINTED), "result"),
        (code("guess = ...  # which?\nx = 1\ncheck_guess(guess, x)", PRINTED), "predict"),
        (code("x = y[..., 0]"), "code"),
        (code("show_lines(a)", shown(png="", html="<img>")), "picture"),
        (code("explore(a)", shown(html='<div class="sbs-explorer">')), "explorer"),
        (code("show_measured(a)", shown(html="<table>")), "result"),
        (code("%magic"), "code"),
    ],
)
def test_a_cell_says_itself_what_it_is_for(cell: dict[str, Any], wanted: str) -> None:
    assert kind(cell) == wanted


def test_what_only_draws_goes_without_its_code() -> None:
    assert only_draws(code('titles = ("a", "b")\nshow_matrices([a, b], titles)'))
    assert only_draws(code("explore_product(a, b)"))
    assert not only_draws(code("c = a @ b\nshow_matrices(c)"))
    assert not only_draws(code("print(a)"))


# ------------------------------------------------------------------------------- nothing is lost


def contents(deck: Deck, cell: int) -> str:
    parts = [part for slide in deck.slides if cell in slide.cells for part in slide.parts]
    return "\n".join(part.content for part in parts)


@CHAPTERS
def test_every_output_is_on_a_slide(chapter: Chapter) -> None:
    for place, cell in enumerate(cells(chapter)):
        for output in cell.get("outputs", []):
            data = {k: "".join(v) for k, v in output.get("data", {}).items() if "json" not in k}
            page = data.get("text/html", "")
            if page.startswith("<details>"):
                page = BeautifulSoup(page, "html.parser").find("summary").next_sibling.get_text()
            text = "".join(output.get("text", "")) or page or data.get("text/plain", "")
            there = contents(made(chapter), place)
            lost = [row for row in text.strip("\n").split("\n") if row.rstrip() not in there]
            assert not lost, (place, lost)


DOTS = r"\w+ = (\.\.\.|\(\n +\.\.\.\n\))( +#.*)?$"
ASKING = re.compile(rf"{DOTS}|(check_guess|reveal)\(.*\)$", re.MULTILINE)


@CHAPTERS
def test_all_code_is_on_a_slide_but_imports_drawing_and_guesses(chapter: Chapter) -> None:
    for place, cell in enumerate(cells(chapter)):
        what = kind(cell)
        if cell["cell_type"] == "markdown" or what is Kind.SETUP or only_draws(cell):
            continue
        there = contents(made(chapter), place)
        rest = ASKING.sub("", source(cell))
        lost = [row for row in rest.split("\n") if row.rstrip() not in there]
        # The words of an answer that stands in the code are seen as the answer only.
        lost = [row for row in lost if re.sub(r'^\w+ = "|"$', "", row) not in there]
        assert not lost, (place, lost)
        asked = [found[2].strip(" #") for found in ASKING.finditer(source(cell)) if found[2]]
        assert all(question in there for question in asked)


@CHAPTERS
def test_all_text_is_on_a_slide_or_in_the_notes(chapter: Chapter) -> None:
    for place, cell in enumerate(cells(chapter)):
        if cell["cell_type"] != "markdown":
            continue
        slides = [slide for slide in made(chapter).slides if place in slide.cells]
        there = contents(made(chapter), place) + "\n".join(n for s in slides for n in s.notes)
        there += "\n".join(slide.heading for slide in made(chapter).slides)
        there = re.sub(r"\.svg#\d+-\d+", ".svg", there)
        for block in prose.blocks(source(cell)):
            lost = [row for row in block.text.split("\n") if row.strip() not in there]
            assert not lost, (place, lost)


@CHAPTERS
def test_no_slide_is_fuller_than_it_may_be(chapter: Chapter) -> None:
    assert not [(s.heading, s.cells, s.height) for s in made(chapter).slides if s.height > FULL]
    full = [s for s in made(chapter).slides if s.height > ROOM]
    assert all("code" in {part.kind for part in slide.parts} for slide in full)
    assert len(full) < len(made(chapter).slides) / 10
    assert not [(s.heading, s.cells) for s in made(chapter).slides if not s.parts]


# ------------------------------------------------------------------------------------ step by step


@CHAPTERS
def test_the_class_predicts_before_it_sees(chapter: Chapter) -> None:
    for slide in made(chapter).slides:
        before = [part for part in slide.parts if not part.step]
        assert before, slide
        for place, part in enumerate(slide.parts):
            if part.kind == "answer":
                assert part.step or place == 0, slide
            if part.kind in ("output", "picture", "html") and place:
                assert part.step, slide


@CHAPTERS
def test_the_notes_know_the_answers_and_the_mistakes(chapter: Chapter) -> None:
    for slide in made(chapter).slides:
        for part in slide.parts:
            if part.kind == "answer" and "\n" not in part.content:
                assert part.content in slide.notes[0]
                assert not any(part.content in other.content for other in slide.parts[:1])
    told = "\n".join(note for slide in made(chapter).slides for note in slide.notes)
    known = exercises(chapter)
    assert len(known) > 3
    reasons = [reason for exercise in known for reason in exercise.reasons]
    assert reasons and all(reason in told for reason in reasons)


def test_the_reasons_are_those_of_the_checks() -> None:
    found = reasons_of(course()["03"])
    assert "the softmax runs over the heads" in found["03.2"]
    assert "the scores are divided by d; divide them by its square root" in found["03.3"]
    assert "the softmax runs over the heads" not in found["03.3"]
    all_of_them = [reasons_of(chapter).values() for chapter in course().chapters]
    said = [reason for of_one in all_of_them for reasons in of_one for reason in reasons]
    assert not [s for s in said if "{" in s or s.startswith("the code gives")]


def test_a_mistake_is_told_where_its_subject_is_taught() -> None:
    places = ["apples are red and round", "pears are green and long", "plums, blue plums"]
    assert nearest("a long green fruit", places) == 1
    assert nearest("three plums", places) == 2
    assert nearest("nothing of it", places) is None
    section = {s[0].heading[:2]: s[0].notes for s in made(course()["03"]).sections if s}
    softmax = "\n".join(section["3."])
    assert "**Wrong answers to exercise 2, The softmax by hand:**" in softmax
    assert "exercise 6" in "\n".join(section["5."])


# -------------------------------------------------------------------------------------- the words


def test_sentences_end_where_they_end() -> None:
    text = "The `a. B` is (e.g. This) one. Is it? *Yes!* See [x. Y](z. A): Good. $a. B$ and 1.5 x."
    assert prose.sentences(text) == [
        "The `a. B` is (e.g. This) one.", "Is it?", "*Yes!*", "See [x. Y](z. A):", "Good.",
        "$a. B$ and 1.5 x.",
    ]  # fmt: skip


def test_a_long_paragraph_keeps_its_beginning_and_what_is_bold() -> None:
    one, two = "One " + "a" * 100 + ".", "Two " + "b" * 200 + "."
    bold = "**This** counts."
    assert prose.shortened(f"{one} {bold}") == f"{one} {bold}"
    short = f"{one}\N{NO-BREAK SPACE}… {bold}\N{NO-BREAK SPACE}…"
    assert prose.shortened(f"{one} {two} {bold} {two}") == short


def test_text_comes_in_blocks() -> None:
    text = """## A\n\nOne line,\ngoes on. <!-- shape: example -->\nTwo:\n\n- a\n- b\n
| a |\n|---|\n| 1 |\n\n![x](a.svg)\n\n$$a$$\n
<details><summary>Hint</summary>\n\nInside.\n\nMore.\n</details>\n\n```\na\n\nb\n```"""
    found = [(block.kind, block.text) for block in prose.blocks(text)]
    assert found == [
        ("heading", "A"), ("paragraph", "One line, goes on."), ("paragraph", "Two:"),
        ("list", "- a\n- b"), ("table", "| a |\n|---|\n| 1 |"), ("picture", "![x](a.svg)"),
        ("formula", "$$a$$"), ("folded", "Inside.\n\nMore."), ("fence", "```\na\n\nb\n```"),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------- the pages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    make_slides.write([course()["03"]], folder)
    return folder


def test_a_page_needs_no_network_and_nothing_but_its_folder(folder: Path) -> None:
    for path in folder.glob("*.html"):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        used = [node[key] for node in soup.find_all() for key in ("src", "srcset") if node.get(key)]
        used += [node["href"] for node in soup.find_all("link")]
        outside = [address for address in used if not address.startswith("data:")]
        assert outside or path.stem == "index"
        assert not [address for address in outside if not (folder / address).is_file()]
        links = [a["href"] for a in soup.find_all("a") if not a["href"].startswith("https://")]
        assert not [link for link in links if not (folder / link).is_file()]
    for style in folder.glob("assets/*.css"):
        for address in re.findall(r"url\([\"']?([^)\"']+)", style.read_text(encoding="utf-8")):
            assert address.startswith("data:") or (style.parent / address).is_file(), address
    licences = {p.name for p in folder.glob("assets/LICENSE*")}
    assert licences == {"LICENSE-reveal.js", "LICENSE-source-sans-pro", "LICENSE_DEJAVU"}


def test_a_page_has_its_kinds_steps_and_notes(folder: Path) -> None:
    (path,) = folder.glob("03_*.html")
    soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    found = soup.select(".slides > section > section")
    wanted = made(course()["03"]).slides
    assert [node["data-kind"] for node in found] == [str(slide.kind) for slide in wanted]
    steps = [len(node.select(".fragment")) for node in found]
    assert steps == [sum(part.step for part in slide.parts) for slide in wanted]
    assert all(node.select_one("aside.notes").get_text(strip=True) for node in found)
    # a formula is drawn, with its words; none is left as it was typed
    assert soup.select_one('svg[aria-label="formula: \\\\sqrt{d}"]')
    assert not re.search(r"\$[^$]*\\", soup.select_one(".slides").get_text())


def test_text_becomes_html_for_a_slide() -> None:
    assert line("3. Weights: `softmax`") == "3. Weights: <code>softmax</code>"
    assert markdown("[chapter 08](08_clinic.ipynb)") == "<p><em>chapter 08</em></p>\n"
    assert 'href="https://a.b/c"' in markdown("[x](https://a.b/c)")
    drawn = markdown("![words](../img/attention_head.svg)")
    content = (ROOT / "img" / "attention_head.svg").read_bytes()
    assert base64.b64encode(content).decode() in drawn and 'alt="words"' in drawn


def test_a_drawing_that_is_higher_than_wide_comes_in_two_pieces() -> None:
    drawn = [
        part.content for part in (p for s in made(course()["00"]).slides for p in s.parts)
        if part.kind == "drawing"
    ]  # fmt: skip
    first, last = (drawings.ROWS.search(text.rstrip(")")) for text in drawn)
    assert first[2] == last[1] and last[2] == "1062"
    for text in drawn:
        shown = drawings.svg(prose.PICTURE.fullmatch(text)[2]).decode()
        assert f'viewBox="0 {drawings.ROWS.search(text[:-1])[1]} 960 ' in shown
        assert shown.count("<svg") == shown.count("</svg>") == 1
    (wide,) = drawings.halves(prose.PICTURE.fullmatch("![a](../img/masks.svg)"))
    assert wide == "![a](../img/masks.svg)"


def test_a_box_of_the_notebook_comes_as_text_and_table() -> None:
    found = prose.blocks("> **Warning.** Two.\n>\n> | a |\n> |---|\n> | 1 |\n>\n> Turn it.")
    assert [(block.kind, block.text) for block in found] == [
        ("paragraph", "**Warning.** Two."), ("table", "| a |\n|---|\n| 1 |"),
        ("paragraph", "Turn it."),
    ]  # fmt: skip


def test_a_page_escapes_outputs_and_answers_and_keeps_html() -> None:
    kinds = {"output": "1 < 2", "answer": "a & b", "html": "<table></table>", "code": "x < 1"}
    slide = Slide("result", "`a < b`", [Element(kind, text, 9) for kind, text in kinds.items()])
    text = page(Deck(course()["03"], [[slide]]))
    for shown in ("<pre>1 &lt; 2</pre>", "<p>a &amp; b</p>", "<table></table>", "&lt;</span>"):
        assert shown in text
    assert "<h2><code>a &lt; b</code></h2>" in text


def test_an_unknown_chapter_is_refused_and_several_are_found() -> None:
    assert [chapter.number for chapter in make_slides.find(["04", "03"])] == ["03", "04"]
    assert make_slides.find([]) == list(course().chapters)
    with pytest.raises(Refusal, match="must be prefixes of chapter names, got '99'"):
        make_slides.find(["99"])


def test_without_a_browser_the_pages_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(pages: list[Path]) -> None:
        raise ValueError("no Chromium was found")

    monkeypatch.setattr(make_slides, "printed", printed)
    make_slides.main(["02", "--out", str(tmp_path)])
    assert "made the pages, but no PDFs: no Chromium was found" in capsys.readouterr().out
    assert (tmp_path / "02_qkv_projection.html").is_file()
