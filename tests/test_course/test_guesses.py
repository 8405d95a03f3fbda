"""A guess in a chapter is a guess: asked and checked in one cell, its answer folded."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from notebook_rules import Chapter, numbered, output_texts, source

from tools.course.registry import course

CHAPTERS = course().notebooks()
# A tuple of axes in a comment, such as (b, h, i, j) or (c, H, b W): only arithmetic is left.
AXES = re.compile(r"\((?:[A-Za-z0-9*]+(?: [A-Za-z0-9*]+)*)(?:, *[A-Za-z0-9* ]+)+\)")


def asked(chapter: Chapter) -> Iterator[tuple[str, dict[str, Any], ast.Module]]:
    """The cells in which a guess is written or checked."""
    for (where, cell), tree in zip(numbered(chapter), chapter.trees, strict=True):
        imports = any(isinstance(node, ast.ImportFrom) for node in tree.body)
        if not imports and re.search(r"^guess\b|\bcheck_guess\(", source(cell), re.M):
            yield where, cell, tree


def bound(chapter: Chapter) -> list[str]:
    """A guess is written in the cell that checks it, so no check judges an earlier one."""
    complaints = []
    for where, _, tree in asked(chapter):
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "check_guess"
        ]
        of_guess = [call for call in calls if ast.unparse(call.args[0]) == "guess"]
        written = [
            node.lineno
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "guess"
        ]
        if of_guess and not (written and written[0] < of_guess[0].lineno):
            complaints.append(f"{where}: checks a guess that it does not ask for")
        if written and len(of_guess) != 1:
            complaints.append(f"{where}: asks for a guess and has {len(of_guess)} checks of it")
    return complaints


def folded(chapter: Chapter) -> list[str]:
    """Where no guess is written, the stored answer is folded."""
    complaints = []
    for where, cell, _ in asked(chapter):
        if re.search(r"^guess = \.\.\.", source(cell), re.M):
            html = [o["data"].get("text/html") for o in cell["outputs"] if "data" in o]
            if not any("<details><summary>" in "".join(text) for text in html if text):
                complaints.append(f"{where}: has no folded answer")
            texts = "".join(t for o in cell["outputs"] for t in output_texts(o))
            if "shape (" in re.sub(r"<details>.*?</details>", "", texts):
                complaints.append(f"{where}: shows the answer")
    return complaints


def predictable(chapter: Chapter) -> list[str]:
    """Where the text says Predict, the next code cell asks for a guess."""
    complaints = []
    for number, cell in enumerate(chapter.cells):
        if cell["cell_type"] == "markdown" and "**Predict**" in source(cell):
            after = [c for c in chapter.cells[number:] if c["cell_type"] == "code"][:1]
            if not after or not re.search(r"^guess = ", source(after[0]), re.M):
                complaints.append(f"no cell to predict in after {source(cell)[:50]!r}")
    return complaints


def thought(chapter: Chapter) -> list[str]:
    """At least half of the questions do not give the axes away."""
    comments = re.findall(
        r"^guess = \.\.\.\s*#(.*)$", "\n".join(source(cell) for cell in chapter.code), re.M
    )
    given = [comment for comment in comments if AXES.search(comment)]
    if 2 * len(given) <= len(comments):
        return []
    return [f"{len(given)} of {len(comments)} comments give the axes away: {'; '.join(given)}"]


RULES = [bound, folded, predictable, thought]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_guesses(path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not rule(Chapter.read(path)), rule.__doc__


FOLDED = {
    "data": {
        "text/html": ["<details><summary>no guess yet</summary>shape (2, 3)</details>"],
        "text/plain": ["no guess yet"],
    },
    "metadata": {},
    "output_type": "display_data",
}
OPEN = {"name": "stdout", "output_type": "stream", "text": ["shape (2, 3); no guess yet"]}


def code(text: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": [text], "outputs": list(outputs)}


PREDICT = {"cell_type": "markdown", "source": ["**Predict** the shape."]}
WHOLE = "guess = ...  # how many rows?\nx = y\ncheck_guess(guess, x)"


def test_a_right_chapter_passes() -> None:
    right = Chapter.of(PREDICT, code(WHOLE, FOLDED), code("check_guess((2, 3), x)", OPEN))
    assert [rule(right) for rule in RULES] == [[], [], [], []]


@pytest.mark.parametrize(
    "rule, cells",
    [
        (bound, [code("guess = ...  # rows?"), code("check_guess(guess, x)", FOLDED)]),
        (bound, [code("check_guess(guess, x)\nguess = ...", FOLDED)]),
        (bound, [code("guess = (2, 3)")]),
        (folded, [code(WHOLE, OPEN)]),
        (folded, [code(WHOLE, FOLDED, OPEN)]),
        (folded, [code(WHOLE)]),
        (predictable, [PREDICT, code("x = 1"), code(WHOLE, FOLDED)]),
        (predictable, [code(WHOLE, FOLDED), PREDICT]),
        (thought, [code(WHOLE.replace("how many rows?", "the shape of x, (b, n, e)"), FOLDED)]),
        (thought, [code(WHOLE.replace("how many rows?", "the shape, (c, H, b W)"), FOLDED)]),
    ],
)
def test_each_rule_can_fail(
    rule: Callable[[Chapter], list[str]], cells: list[dict[str, Any]]
) -> None:
    assert rule(Chapter.of(*cells))
