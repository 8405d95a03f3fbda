"""Text is plain English: wordings that readers could not look up are written differently.

CONTRIBUTING.md says for whom. Half of the readers have English as a second language.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from notebook_rules import Chapter, source

from tools.course.registry import ROOT, course

# What must not be written, and what to write instead. Exceptions are in the pattern.
BANNED = {
    r"\bwhoever\b": "name the agent: any model, you, the reader",
    r"\b(?:is|are|was|were) asked for\b": "expected",
    r", (?:of|from|in|by|with|for) whom\b": "a sentence of its own",
    r"\bfrom where\b(?!\?)": "where ... from",
    r"\bcomes? to (?:stand|lie)\b": "be, occur, come before or after",
    r"\b(?:nobody|somebody)\b(?!`)": "you, we, or a noun",
    r"\banew\b": "again",
    r"(?<!Flip the photographs )(?<!## 7\. )\bupside down\b(?!, it would)": "inverted",
    r"\bas long as you\b": "until",
    r"\blook(?:s|ed)? whether\b": "check whether",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bcall it again\b": "run it again",
    r"\bnot without an?\b": "far from, or a positive form",
    r"(?<!has a )\bbends?\b": "activation function, activation",
    r"\bempty rows?\b": "fully masked row",
    r"\bopen form\b": "naive (materialized) attention",
    r"\bwhole numbers?\b": "integers",
    r"\bgraphics cards?\b": "GPU",
    r"\bprocessor cores?\b": "CPU core",
    r"\bturn(?:s|ed)? over\b": "swap, invert or reverse",
    r"\bsick\b": "buggy",
    r"\bmeasured here\b": "in the last run of this cell",
    r"\bfrom nothing\b": "from scratch",
    r"\bTransformer of 2017\b": "the original Transformer (Vaswani et al., 2017)",
    r"(?<!mouse )(?<!\")\b(?:hears?|heard|listens? to)\b(?! of)": "depend on, attend to",
    r"\bmixed values\b": "attention output, weighted sum",
    r"\b(?:a|one|each|two|three) trainings?\b(?= (?:takes?|of|with|that|is|was|on)\b)": "a run",
    r"\b(?:is|are) told (?:its|their) cause\b": "explains, identifies",
    r"\bscores over (?:classes|a vocabulary|the vocabulary|all)\b": "logits",
    r"\bmeanwhile\b": "during that time",
    r"\b(?:un)?(?:normal|initial|special|recogn|summar|token|optim)is(?:e[ds]?|ing|ation)\b": (
        "-ize"
    ),
}


def in_code(text: str) -> str:
    """Return the comments and docstrings of Python code."""
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return "\n".join([*comments, *(ast.get_docstring(node) or "" for node in nodes)])


def of_notebook(path: Path) -> str:
    chapter = Chapter.read(path)
    code = [in_code(source(cell)) for cell in chapter.code if not source(cell).startswith("%")]
    return "\n".join([*chapter.markdown, *code])


def of_package(folder: str) -> str:
    return "\n".join(in_code(path.read_text("utf-8")) for path in (ROOT / folder).rglob("*.py"))


def of_sentences() -> str:
    with (ROOT / "checks/locale/en/LC_MESSAGES/checks.po").open("rb") as file:
        return "\n".join(str(message.string) for message in read_po(file) if message.id)


NOTEBOOKS = [*course().notebooks(), *course().source_notebooks()]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "clinic").glob("*.md")]
PACKAGES = ["utils", "checks", "tools", "clinic/attention_clinic"]


def found(text: str) -> Iterator[str]:
    """Yield each banned wording of a text, and what to write."""
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    text = re.sub(r"\s+", " ", text)
    for pattern, instead in BANNED.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            around = text[max(0, match.start() - 40) : match.end() + 40]
            yield f"{match.group()!r} in {around!r}: write {instead}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(path: Path) -> None:
    assert not list(found(of_notebook(path)))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages(path: Path) -> None:
    assert not list(found(path.read_text("utf-8")))


@pytest.mark.parametrize("folder", PACKAGES)
def test_docstrings_and_comments(folder: str) -> None:
    assert not list(found(of_package(folder)))


def test_sentences_of_the_checks() -> None:
    assert not list(found(of_sentences()))


@pytest.mark.parametrize(
    "text",
    [
        "Whoever answers can only choose.",
        "a list is asked for",
        "the bend is missing",
        "Weights as whole numbers",
        "one training takes a minute",
        "every token hears the change",
    ],
)
def test_a_banned_wording_is_found(text: str) -> None:
    assert list(found(text))


def test_what_is_plain_passes() -> None:
    assert not list(found("It has a bend. Flip the photographs upside down. We train it twice."))
