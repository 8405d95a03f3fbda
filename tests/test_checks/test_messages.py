"""What a check says is data: every message has a sentence, and another language can say it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from nbformat import NotebookNode
from torch import Tensor

from attention_clinic import BUGS
from checks import Verdict, examine
from checks.engine import languages
from checks.engine import message as messages
from checks.engine import verdict as verdicts
from checks.engine.answer import raised
from checks.engine.languages import LANGUAGES, Language, language, parameters
from checks.engine.message import Message, as_message, message, say
from checks.engine.mistakes import mistakes
from checks.engine.verdict import VERDICT_MIME, exercise, exercises, open_exercise
from helpers import error_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(ROOT.glob("checks/**/*.py"))
SENTENCES = language("en").sentences
CHAPTERS = sorted(ROOT.glob("checks/chapter_*.py"))


def over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-2)
    return weights @ v, weights


# -------------------------------------------------------------------------------------- the data


def test_a_message_is_json_and_comes_back() -> None:
    inner = Message("part", {"number": 1, "of": Message("the-result")})
    said = Message("values-differ", {"shape": (2, 3), "names": ["a", inner], "got": 1 / 3})
    data = json.loads(json.dumps(said.to_json()))
    assert data["params"]["shape"] == [2, 3]
    assert data["params"]["got"] == 0.333333, "six digits: the same on every machine"
    assert Message.from_json(data) == said and hash(Message.from_json(data)) == hash(said)
    assert Message("x", {"got": float("nan")}).to_json()["params"] == {"got": "nan"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Message("Values differ"), "small letters"),
        (lambda: Message("x", {"got": torch.zeros(2)}), "got Tensor"),
        (lambda: message("no-such-id"), "'no-such-id'"),
        (lambda: message("values-differ"), "takes the parameters ['shape'], got []"),
        (lambda: message("values-differ", shape=(2,), more=1), "got ['more', 'shape']"),
        (lambda: as_message("no-such-id"), "'no-such-id'"),
        (lambda: say(Message("no-such-id")), "got no-such-id"),
        (lambda: say(Message("values-differ")), "got values-differ without 'shape'"),
        (lambda: say(Message("the-result"), "no-such-language"), "'no-such-language'"),
        (lambda: exercise("03.2", "Again")(print), "got 03.2 again"),
        (lambda: open_exercise("03.7", "Again"), "got 03.7 again"),
        (lambda: Verdict.from_json({"version": 99}), "version 1"),
        (lambda: Verdict.from_json("03.2  right"), "Run the check again"),
    ],
)
def test_what_is_no_message_is_refused(call, words: str) -> None:
    examine("03.1", ..., ...)  # the exercises of chapter 03 are registered
    assert words in error_of(call)


def test_a_verdict_is_json_and_comes_back() -> None:
    said = examine("03.4", over_the_queries)
    data = json.loads(json.dumps(said.to_json()))
    assert data["exercise"] == "03.4" and data["state"] == "not right"
    assert data["message"]["id"] == "of-part" and said.message.core.id == "values-differ"
    assert data["cause"] == {"id": "softmax-over-queries", "params": {}}
    assert data["topic"] == "softmax-over-queries" and said.named
    assert data["text"] == said.reason
    assert Verdict.from_json(data) == said and str(Verdict.from_json(data)) == str(said)


def test_a_verdict_holds_nothing_of_this_machine() -> None:
    def crashes(scores: Tensor) -> Tensor:
        raise ValueError(f"at {object()!r}")

    for answer in (crashes, lambda scores: object(), lambda scores: scores / 3):
        one, two = (json.dumps(examine("03.2", answer).to_json()) for _ in range(2))
        assert one == two and "0x" not in one and str(ROOT) not in one


def test_lines_end_between_words_only() -> None:
    said = examine("03.4", over_the_queries)
    lines = str(said).splitlines()
    assert max(map(len, lines)) <= verdicts.PAGE == 84
    assert " ".join(line.strip() for line in lines) == f"03.4  not right: {said.reason}"
    assert "(8, 2, 5)" in str(said) and "(8, 9, 5)" in str(said), "a shape stays on one line"


def test_a_long_error_is_cut_where_a_word_ends() -> None:
    words = "word " * 100
    assert str(raised(ValueError(words))).endswith(" word ...")
    first = "The first sentence says what is wrong and is long enough to be kept. "
    assert str(raised(ValueError(first + words))) == f"raises ValueError: {first.strip()[:-1]}"
    assert "Make a new tensor" in str(raised(RuntimeError("x modified by an inplace operation y")))


# ---------------------------------------------------------------------------------- the sentences


def constants(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Give the texts of a file that are no docstrings, no titles and no parts of f-strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skip: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skip.add(id(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("exercise"):
            skip |= {id(argument) for argument in node.args}
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "patches":
            skip |= set(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
            yield node, node.value


def is_english(text: str) -> bool:
    """Three words in a row, or nearly: patterns of einops and lines of code have none."""
    words = re.findall(r"\b[a-z]{3,}\b", text)
    code = re.search(r"->|[=@&*_]|\w\(", text) or is_code(text)
    return len(words) >= 3 and " " in text and not code


def is_code(text: str) -> bool:
    """Return whether Python can read a text, as what patches replace."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_sentence_stands_in_a_check(path: Path) -> None:
    found = [f"line {node.lineno}: {text}" for node, text in constants(path) if is_english(text)]
    assert not found, "it belongs into checks/locale/en/LC_MESSAGES/checks.po"


def test_a_sentence_in_a_check_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "chapter.py"
    path.write_text('"""It may stand here."""\nraise Wrong("the values are not right")\n')
    assert [text for _, text in constants(path) if is_english(text)] == ["the values are not right"]
    assert not is_english("b (c side side) gh gw") and not is_english("softmax-over-queries")


def calls(path: Path) -> Iterator[tuple[str, set[str] | None]]:
    """Give the id and the parameters of each `message(...)` whose id stands there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, arguments = getattr(node.func, "id", ""), node.args
        if name == "partial" and arguments and getattr(arguments[0], "id", "") == "message":
            continue  # more parameters may come
        if name == "message" and arguments and isinstance(arguments[0], ast.Constant):
            names = {keyword.arg for keyword in node.keywords}
            yield arguments[0].value, None if None in names else names


def test_every_call_fits_its_sentence() -> None:
    found = [(path.name, id, names) for path in FILES for id, names in calls(path)]
    assert len(found) > 60
    for file, id, names in found:
        assert id in SENTENCES, f"{file}: {id} has no sentence"
        assert names in (None, parameters(SENTENCES[id])), f"{file}: {id}"


def test_every_sentence_is_said_somewhere() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in FILES)
    states = {said.id for said in verdicts.STATES.values()}
    unused = [id for id in SENTENCES if f'"{id}"' not in text and id not in states]
    assert unused == []


def test_the_mistakes_of_a_check_come_from_its_tables_and_functions() -> None:
    found = {check.id: {m.cause: m.source for m in mistakes(check)} for check in exercises("03")}
    assert found["03.2"]["softmax-over-heads"] == "SOFTMAX_MISTAKES"
    assert found["03.2"]["softmax-subtract-largest"] == "lost"
    assert "softmax-over-heads" not in found["03.3"] and found["03.7"] == {}, "03.7 is open"


def test_one_mistake_has_one_id() -> None:
    """The class at a glance counts by ids: one sentence under two of them would be two lines."""
    first: dict[str, str] = {}
    for id, sentence in SENTENCES.items():
        plain = re.sub(r"^(it|the) ", "", sentence.lower())
        assert first.setdefault(plain, id) == id, f"{first[plain]} and {id}: {sentence}"


def test_what_the_clinic_and_a_check_name_is_one_topic() -> None:
    known = examine("03.4", over_the_queries).topic
    found = Verdict("04.3", "not right", Message("values-differ"), clinic_found("softmax-query"))
    both = replace(found, cause=clinic_found("softmax-query", "scale-missing"))
    assert known == found.topic == "softmax-over-queries"
    assert both.topic == "clinic-found/softmax-query/scale-missing"
    assert verdicts.OF_CLINIC.keys() <= BUGS.keys()
    assert set(verdicts.OF_CLINIC.values()) <= SENTENCES.keys()


def clinic_found(*ids: str) -> Message:
    return Message("clinic-found", {"words": "w", "ids": list(ids), "fix": "f"})


def test_sentences_end_without_a_full_stop() -> None:
    for id, sentence in SENTENCES.items():
        assert sentence and not sentence.endswith(".") and sentence == sentence.strip(), id
        assert "  " not in sentence, id


# -------------------------------------------------------------------------------- other languages


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> str:
    """A language that says each message as <id parameter ...>."""
    fields = {id: sorted(parameters(sentence)) for id, sentence in SENTENCES.items()}
    sentences = {
        id: f"<{id}{''.join(f' {{{name}}}' for name in names)}>" for id, names in fields.items()
    }
    monkeypatch.setitem(LANGUAGES, "made-up", Language(sentences, languages.FORMS["en"], {}))
    return "made-up"


def test_another_language_needs_no_other_check(made_up: str, monkeypatch) -> None:
    monkeypatch.setenv(messages.VARIABLE, made_up)
    said = examine("03.4", over_the_queries)
    assert "<softmax-over-queries>" in said.reason and "<state-not-right>" in str(said)
    outside = said.reason
    while (inner := re.sub(r"<[^<>]*>", "", outside)) != outside:
        outside = inner
    assert not re.search(r"[a-z]", outside), "every word comes from the language"
    monkeypatch.delenv(messages.VARIABLE)
    assert "the softmax runs over the queries" in said.reason, "data, said anew"


def test_what_a_language_lacks_is_said_in_english(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "half" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    text = 'msgid ""\nmsgstr "Language: half\\n"\n\nmsgid "the-result"\nmsgstr "das Ergebnis"\n'
    (folder / "checks.po").write_text(text + '\nmsgid "nothing"\nmsgstr ""\n', encoding="utf-8")
    monkeypatch.setattr(languages, "LOCALE", tmp_path)
    said = message("shape-differs", name=Message("the-result"), got=(2, 3), want=(3,))
    assert say(said, "half") == say(said).replace("the result", "das Ergebnis")
    assert say(Message("nothing"), "half") == "None", "an empty translation counts as missing"
    del LANGUAGES["half"]


@pytest.mark.parametrize("path", languages.LOCALE.glob("*/LC_MESSAGES/checks.po"))
def test_every_catalogue_fits(path: Path) -> None:
    """Each id is there once, in one line, and its placeholders are those of English."""
    lines = path.read_text(encoding="utf-8").splitlines()
    ids = re.findall(r'(?m)^msgid "(.+)"$', "\n".join(lines))
    assert len(ids) == len(set(ids)), "an id has one sentence"
    start = lines.index("", lines.index('msgstr ""'))  # after the header
    form = re.compile(r'|#.*|msgid "[a-z0-9-]+"|msgstr "([^"\\]|\\.)*"')
    assert [line for line in lines[start:] if not form.fullmatch(line)] == []
    for id, sentence in language(path.parts[-3]).sentences.items():
        assert id in SENTENCES and parameters(sentence) <= parameters(SENTENCES[id]), id


# ----------------------------------------------------------------------------------- the notebook


@pytest.mark.parametrize("state", ["right", "not right"])
def test_a_stored_verdict_is_compared(
    request: pytest.FixtureRequest, conftest: ModuleType, tmp_path: Path, state: str
) -> None:
    """What stands beside the text is compared, too: progress and grading read only that."""
    said = examine("03.1", (2, 3, 5, 7), (2, 3, 5, 6))
    data = said.to_json()
    assert said.state == "right"

    def shown(data: dict[str, Any]) -> NotebookNode:
        both = {"text/plain": str(said), VERDICT_MIME: data}
        return nbformat.v4.new_output("display_data", data=both)

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("check()")])
    book.cells[0].outputs = [shown({**data, "state": state})]
    nbformat.write(book, tmp_path / "one.ipynb")
    notebook = conftest.Notebook.from_parent(request.session, path=tmp_path / "one.ipynb")
    (cell,) = notebook.collect()
    assert cell.compare_outputs([shown(data)], cell.cell.outputs) == (state == "right")


def test_sections_are_those_of_the_chapters() -> None:
    titles = [title for title in language("en").sections if title.startswith("Chapter")]
    assert set(titles) <= {f"Chapter {path.stem[-2:]}" for path in CHAPTERS}
    assert titles == sorted(titles) and len(titles) > 10
