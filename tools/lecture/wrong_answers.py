"""Wrong answers of a class: the reasons that the checks of the exercises give.

A check knows the mistakes that it can name. They are read from its source: the ids of messages that
an exercise reaches in checks/chapter_NN.py, with their sentences in checks/locale.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from checks.engine.languages import language, parameters
from tools.course.cards import CARD_LINE, sections
from tools.course.notebook import source
from tools.course.registry import Chapter

# Ids of messages about a right answer.
SAYS_RIGHT = re.compile(r"(gives|and)-|agree|-right$")
WORD = re.compile(r"[a-z]{3,}")
# Words of all chapters.
USUAL = {"and", "are", "but", "for", "from", "has", "have", "its", "not", "one"}
USUAL |= {"that", "the", "then", "this", "what", "with"}


@dataclass(frozen=True)
class Exercise:
    """An exercise from its card, with reasons for wrong answers.

    Args:
        title: with its number, "2. The softmax by hand".
        card: its text.
        difficulty: 1 to 5.
        minutes: for a student.
        reasons: sentences without a period; empty for an open exercise.
    """

    title: str
    card: str
    difficulty: int
    minutes: int
    reasons: tuple[str, ...]


def exercises(chapter: Chapter) -> list[Exercise]:
    """Return the exercises of a chapter in order."""
    known = reasons_of(chapter)
    found = []
    for section in sections(json.loads(chapter.exercises.read_text(encoding="utf-8"))):
        if section.number is None:
            continue
        card = "\n".join(source(cell) for cell in section.cells)
        difficulty, minutes = map(int, CARD_LINE.search(card).groups())
        reasons = known.get(f"{chapter.number}.{section.number}", ())
        found.append(Exercise(section.heading, card, difficulty, minutes, reasons))
    return found


def reasons_of(chapter: Chapter) -> dict[str, tuple[str, ...]]:
    """Return the reasons for wrong answers by exercise, such as "03.2".

    Sentences that need the student's numbers are left out.
    """
    tree = ast.parse((chapter.root / "checks" / f"chapter_{chapter.number}.py").read_text())
    defined = {name: node for node in tree.body for name in _names(node)}
    english = language("en")
    titles = "Causes in any chapter", f"Chapter {chapter.number}"
    ids = [id for title in titles for id in english.sections.get(title, ())]
    sentences = {
        id: english.sentences[id]
        for id in ids
        if not parameters(english.sentences[id]) and not SAYS_RIGHT.search(id)
    }
    return {
        number: tuple(
            sentences[id] for id in dict.fromkeys(_texts(node, defined)) if id in sentences
        )
        for number, node in _checks(tree)
    }


def _checks(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the number and the function of each exercise with a check."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "exercise":
                    yield ast.literal_eval(call.args[0]), node


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _texts(node: ast.AST, defined: dict[str, ast.stmt]) -> Iterator[str]:
    """Yield the strings in a function and in everything that it uses within its file."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
            elif isinstance(part, ast.Name) and part.id in defined:
                waiting.append(defined[part.id])


# ---------------------------------------------------------------------------------- their place


@cache
def words(text: str) -> Counter[str]:
    """Count the words of a text without endings: "scores" and "scored" are one."""
    found = (re.sub(r"(ies|es|s|ed|ing)$", "", word) for word in WORD.findall(text.lower()))
    return Counter(word for word in found if word not in USUAL)


def nearest(text: str, places: list[str]) -> int | None:
    """Return the number of the text with the most similar words; None if it shares none.

    Texts are compared by the angle between their word counts, weighted by how rare a word is.

    Args:
        text: the one to compare.
        places: the candidates.
    """
    counts = [words(place) for place in places]
    held = Counter(word for count in counts for word in count)
    weight = {word: math.log((1 + len(places)) / n) for word, n in held.items()}

    def vector(count: Counter[str]) -> dict[str, float]:
        found = {w: (1 + math.log(n)) * weight[w] for w, n in count.items() if w in weight}
        length = math.sqrt(sum(value**2 for value in found.values())) or 1.0
        return {word: value / length for word, value in found.items()}

    wanted = vector(words(text))
    near = [
        sum(value * place.get(w, 0) for w, value in wanted.items()) for place in map(vector, counts)
    ]
    return near.index(max(near)) if near and max(near) > 0 else None
