"""The pages of the site before Sphinx reads them: whole, and without a solution."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attention_clinic import BUGS, VARIANTS
from tools.course import outputs, release
from tools.course.registry import ROOT, Course, course
from tools.course.solution_leaks import leaks, solutions
from tools.course.source_notebooks import BEGIN, END
from tools.web import (
    book,
    catalogue,
    indexes,
    links,
    make_live,
    make_site,
    pages,
    predictions,
    sources,
)


@pytest.fixture(scope="module")
def made() -> sources.Pages:
    return sources.pages(course())


def cells(made: sources.Pages, name: str) -> list[dict]:
    return json.loads(made[name])["cells"]


def html(made: sources.Pages, name: str) -> str:
    data = [o.get("data", {}) for c in cells(made, name) for o in c.get("outputs", [])]
    return "\n".join(one["text/html"] for one in data if "text/html" in one)


def test_every_chapter_has_its_pages(made: sources.Pages) -> None:
    for chapter in course().chapters:
        stored = json.loads(chapter.notebook.read_text("utf-8"))["cells"]
        page = cells(made, f"{chapter.file}.ipynb")
        assert len(page) == len(stored) + 1
        for one, other in zip(stored, page, strict=False):
            assert len(one.get("outputs", [])) == len(other.get("outputs", []))
        assert f"exercises/{chapter.exercises.name}" in made
        assert f"{chapter.number} · {chapter.title} <{chapter.file}>" in made["index.md"].decode()


def test_no_page_holds_a_solution(made: sources.Pages) -> None:
    bodies = solutions()
    assert bodies and list(leaks(made, bodies)) == []
    stolen = {**made, "terms.md": b"\n" + max(bodies, key=len).encode() + b"\n"}
    assert len(list(leaks(stolen, bodies))) > 0


def test_pictures_are_files_with_words_and_explorers_are_data(made: sources.Pages) -> None:
    for chapter in course().chapters:
        stored = [
            "".join(output.get("data", {}).get("text/html", ""))
            for cell in json.loads(chapter.notebook.read_text("utf-8"))["cells"]
            for output in cell.get("outputs", [])
        ]
        page = html(made, f"{chapter.file}.ipynb")
        assert "data:image" not in page and "<style" not in page
        pictures = [picture for text in stored for picture in outputs.pictures(text)]
        shown = re.findall(r'alt="([^"]+)" src="_static/(figures/[^"]+)"', page)
        assert len(shown) == len(pictures) == page.count("<img")
        for picture, (_, name) in zip(pictures, shown, strict=True):
            assert made[f"static/{name}"] == picture.png
        explorers = [one for text in stored for one in outputs.explorers(text)]
        assert list(outputs.explorers(page)) == explorers
        assert page.count("<script") == len(explorers)
    assert "KINDS.attention" in made["static/explorers.js"].decode()


def test_an_explorer_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="make refresh"):
        list(outputs.explorers('<div id="explorer-a" class="sbs-explorer"></div>'))


def test_every_bug_has_a_page_that_says_all(made: sources.Pages) -> None:
    assert sorted(id for part in catalogue.catalogue_files() for id in part.ids) == sorted(BUGS)
    listed = made["clinic/index.md"].decode()
    for id, bug in BUGS.items():
        page = made[f"clinic/{id}.md"].decode()
        heads = ["Symptoms", "The code", "The test", "The fix", "Where it happened"]
        assert re.findall(r"^#+ (.+)$", page, re.M) == [id, *heads]
        assert f"[{id}]({id}.md)" in listed
        assert catalogue.plain(bug.fix[1:]) in page and f"[{bug.chapter}, " in page
        for place in bug.threads:
            assert catalogue.thread(place) in page
    variants = made["clinic/variants.md"].decode()
    assert all(f"## {id}\n" in variants for id in VARIANTS)


def test_most_bugs_show_code(made: sources.Pages) -> None:
    said = "The code is in the clinic's catalogue"
    silent = [id for id in BUGS if said in made[f"clinic/{id}.md"].decode()]
    assert len(silent) < 0.2 * len(BUGS), silent
    page = made["clinic/scale-embed.md"].decode()
    assert "return scores / p.e**0.5" in page and "scores / p.own_dim**0.5" in page


def test_words_stay_words_in_markdown() -> None:
    assert catalogue.plain("(b, h) ** -0.5 <x> a_b") == r"(b, h) \*\* -0.5 \<x\> a\_b"
    assert catalogue.thread("a/b#1") == "[a/b#1](https://github.com/a/b/issues/1)"
    assert catalogue.thread("a/b, repaired") == "a/b, repaired"


def test_code_at_the_beginning_of_a_sentence_stays_code(made: sources.Pages) -> None:
    assert catalogue.sentence("take it over the keys") == "Take it over the keys"
    assert catalogue.sentence("nn.GELU() is exact") == "nn.GELU() is exact"
    assert '"""' not in made["code/index.md"].decode()


def test_an_answer_opens_without_a_word_of_running(made: sources.Pages) -> None:
    pages = [content.decode() for name, content in made.items() if name.endswith(".ipynb")]
    folded = sum(page.count("<summary>Predict first, then open the answer") for page in pages)
    assert folded > 100
    assert not [page for page in pages if "run again, or click" in page]


def test_each_folded_shape_is_a_prediction_with_a_name(made: sources.Pages) -> None:
    for chapter in course().chapters:
        stored = json.loads(chapter.notebook.read_text("utf-8"))["cells"]
        asked = [c for c in stored if re.search(r"^guess = \.\.\.", "".join(c["source"]), re.M)]
        found = re.findall(r'<details data-guess="([^"]+)">', html(made, f"{chapter.file}.ipynb"))
        assert found == [f"{chapter.number} {cell['id']}" for cell in asked] != []


def test_the_first_exercise_asks_for_shapes_and_does_not_tell_them(made: sources.Pages) -> None:
    for chapter in course().chapters:
        answers = predictions.first_answers(chapter)
        texts = ["".join(c["source"]) for c in cells(made, f"exercises/{chapter.exercises.name}")]
        (ask,) = (text for text in texts if "data-ask" in text)
        assert texts[texts.index(ask) - 1].startswith(f"{next(iter(answers))} = ...")
        assert re.findall(r'data-ask="\S+ (\w+)"', ask) == [*answers]
        told = re.sub(r'data-(ask|hash)="[^"]+"', "", ask)
        assert not [value for value in answers.values() if str(value) in told]


def test_a_first_exercise_without_shapes_has_no_fields(tmp_path: Path) -> None:
    chapter = replace(course()["03"], root=tmp_path)
    chapter.source_notebook.parent.mkdir(parents=True)
    for body, names in [("a = (3, 4 * 5)\nb = 7", ["a", "b"]), ("a = print(1)", [])]:
        cell = {
            "metadata": {"nbgrader": {"grade_id": "answer-03-1"}},
            "source": f"a = ...\n{BEGIN}\n{body}\n{END}\n",
        }
        chapter.source_notebook.write_text(json.dumps({"cells": [cell]}))
        assert [*predictions.first_answers(chapter)] == names
        assert len(predictions.first_questions(chapter)) == bool(names)


def test_the_indexes_lead_to_their_places(made: sources.Pages, tmp_path: Path) -> None:
    anchors = {
        anchor
        for chapter in course().chapters
        for cell in cells(made, f"{chapter.file}.ipynb")
        for anchor in re.findall(r"^\((ch[\d-]+)\)=$", "".join(cell["source"]), re.M)
    }
    terms, shapes = (made[name].decode() for name in ("terms.md", "shapes.md"))
    for page in (terms, shapes):
        targets = set(re.findall(r"\]\(#(ch[\d-]+)\)", page))
        assert targets and targets <= anchors
    assert "- **fused kernel**: [03, 7. " in terms
    assert re.search(r"\| \(6, 8, 37, 37\) \| .*\[0\d", shapes)
    assert re.search(r"\| b h n d \| queries \| \[02, \d", shapes)
    listed = tmp_path / "terms.toml"
    listed.write_text('[terms]\n"x" = "a word that nobody says"\n')
    with pytest.raises(ValueError, match="explained, got 'a word that nobody says' in no chapter"):
        indexes.terms_page(listed, indexes.sections(course().chapters[0]))


def test_links_lead_to_pages_or_leave_their_words() -> None:
    def link(path: str) -> str | None:
        return {"notebooks/01_a.ipynb": "../01_a.ipynb"}.get(path)

    text = "[a](../01_a.ipynb), [b](../../LICENSE), ![c](https://x.org/c.png)\n```\n[d](e)\n```"
    assert pages.linked(text, "notebooks/exercises", link) == (
        "[a](../01_a.ipynb), b, ![c](https://x.org/c.png)\n```\n[d](e)\n```"
    )


def test_the_live_page_is_linked_only_where_it_is_made(made: sources.Pages) -> None:
    with_page = sources.pages(course(), live=True)
    named = {name for name, content in with_page.items() if make_live.PAGE.encode() in content}
    chapters = [chapter for chapter in course().chapters if chapter.number in make_live.CHAPTERS]
    assert len(chapters) == len(make_live.CHAPTERS)
    assert named == {"index.md", *(f"{chapter.file}.ipynb" for chapter in chapters)}
    assert not [name for name, content in made.items() if make_live.PAGE.encode() in content]
    sections = {section for section, _ in make_live.CHAPTERS.values()}
    page = (ROOT / make_live.LIVE / "page.html").read_text("utf-8")
    assert all(f'<section id="{section}"' in page for section in sections)


def test_a_live_page_without_esbuild_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_live.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match="type: npm ci --prefix website/live"):
        make_live.live_page(course())


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"></p><p id="x"></p><a href="b.html#there">1</a><a href="b.html#gone">2</a>'
        '<a href="c.html">3</a><a href="/top">4</a><a href="https://x.org">5</a><a href="#x">6</a>'
        '<script src="https://x.org/y.js"></script><img src="no.png">'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    (tmp_path / "a.css").write_text("@import url(https://x.org/font.css);")
    assert list(links.problems(tmp_path)) == [
        "a.html: id 'x' occurs twice",
        "a.html: loads https://x.org/y.js from a foreign server",
        "a.html: loads no.png, which is not there",
        "a.html: b.html#gone leads to a missing anchor",
        "a.html: c.html leads to no file",
        "a.html: /top works from the top of a server only",
        "a.css: loads https://x.org/font.css from a foreign server",
    ]


def test_pages_that_are_not_made_any_more_go(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    (tmp_path / "same.md").write_text("same")
    before = (tmp_path / "same.md").stat().st_mtime_ns
    sources.write({"same.md": b"same", "a/new.md": b"new"}, tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    assert left == {"same.md", "a/new.md"}
    assert (tmp_path / "same.md").stat().st_mtime_ns == before


def test_the_site_asks_for_the_files_that_it_has(made: sources.Pages) -> None:
    for name in ("explorers.js", "course.js", "predictions.js", "explorers.css", "course.css"):
        assert f"static/{name}" in made
        assert f'"{name}"' in (ROOT / "website" / "conf.py").read_text("utf-8")


def test_the_book_has_all_chapters_and_all_bugs(made: sources.Pages) -> None:
    listed = book.parts(course())
    names = [name for part in listed for name in (part.name, *part.more)]
    pages_of_site = {f"{name.rpartition('.')[0]}.html" for name in made}
    assert len(names) == len(set(names)) and set(names) <= pages_of_site
    for chapter in course().chapters:
        assert f"{chapter.file}.html" in names
        assert f"exercises/{chapter.exercises.stem}.html" in names
    assert {f"clinic/{id}.html" for id in BUGS} <= set(names)


def test_a_release_takes_the_site_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(here: Course, out: Path, work: Path) -> None:
        (out / "clinic").mkdir(parents=True)
        (out / "clinic" / "a.html").write_text("a page")

    monkeypatch.setattr(make_site, "build", build)
    assert release.site_files(tmp_path / "site") == {"site/clinic/a.html": b"a page"}
    refused = ValueError("a link leads nowhere")
    monkeypatch.setattr(make_site, "build", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises(ValueError, match="leads nowhere"):
        release.site_files(tmp_path / "other")


def test_pages_of_an_earlier_time_go(tmp_path: Path) -> None:
    (tmp_path / "_static" / "figures").mkdir(parents=True)
    for name in ("old.html", "new.html", "search.html", "_static/figures/old.png"):
        (tmp_path / name).write_text("")
    make_site.remove_stale(tmp_path, {"new.md": b""})
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"new.html", "search.html"}
