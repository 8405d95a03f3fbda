"""Wrong answers of a class: the reasons that the checks of the exercises give.

The registry in checks/engine/mistakes.py lists them for each exercise.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from checks.engine.languages import parameters
from checks.engine.mistakes import mistakes
from checks.engine.verdict import exercises as checks_of
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
    return {
        check.id: tuple(
            mistake.sentence
            for mistake in mistakes(check)
            if not parameters(mistake.sentence) and not SAYS_RIGHT.search(mistake.cause)
        )
        for check in checks_of(chapter.number)
        if check.function
    }


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
