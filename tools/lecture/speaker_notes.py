"""Speaker notes: text for the instructor that the class does not see."""

from __future__ import annotations

import re

from tools.course.cells import Kind
from tools.course.notebook import Cell, source
from tools.lecture.slide import Deck, Element, Slide
from tools.lecture.wrong_answers import Exercise, nearest


def write_notes(made: Deck, cells: list[Cell], known: list[Exercise]) -> None:
    """Write the notes: answers to guesses, wrong answers by section, numbers of cells."""
    for slide in made.slides:
        answers = [part.content for part in slide.parts if part.kind == "answer"]
        if answers:
            shown = "; ".join(a for a in answers if "\n" not in a)
            said = f" Correct: {shown.rstrip('.')}." if shown else ""
            slide.notes.insert(0, f"**Let all students write an answer first.**{said}")
    numbered = _numbered(made, cells)
    for exercise in known:
        text = exercise.title * 3 + exercise.card + " ".join(exercise.reasons)
        index = nearest(text, [text for _, text in numbered])
        if index is not None and exercise.reasons:
            numbered[index][0].notes.append(_wrong(exercise, most=8))
    _exercise_slides(made, known)
    for slide in made.slides:
        if slide.cells:
            numbers = ", ".join(str(cell + 1) for cell in slide.cells)
            slide.notes.append(f"In the notebook: cell {numbers}.")


def _numbered(made: Deck, cells: list[Cell]) -> list[tuple[Slide, str]]:
    """Return the first slide and the whole text of each numbered section."""
    parts = re.split(r"(?m)^## ", "\n".join(source(cell) for cell in cells))[1:]
    texts = {part.partition("\n")[0]: part for part in parts}
    first = [section[0] for section in made.sections if section]
    return [
        (slide, text)
        for heading, text in texts.items()
        for slide in first
        if re.match(r"\d+\. ", heading)
        and (slide.heading == heading or slide.heading.startswith(f"{heading}: "))
    ]


def _wrong(exercise: Exercise, most: int | None = None) -> str:
    said = [f"- {reason}" for reason in exercise.reasons[:most]]
    number, _, title = exercise.title.partition(". ")
    return f"**Wrong answers to exercise {number}, {title}:**\n\n" + "\n".join(said)


def _exercise_slides(made: Deck, known: list[Exercise]) -> None:
    """Add a table of the exercises, with all reasons in its notes."""
    sections = [s for s in made.sections if s and s[0].heading == "Exercises"]
    if not sections or not known:
        return
    rows = [
        f"| {e.title} | {'●' * e.difficulty}{'○' * (5 - e.difficulty)} | {e.minutes} |"
        for e in known
    ]
    table = "\n".join(["| exercise | difficulty | minutes |", "|---|---|---|", *rows])
    slide = Slide(Kind.WHY, "Exercises", [Element("table", table, 46 * (len(rows) + 1) + 16)])
    slide.notes = [_wrong(exercise) for exercise in known if exercise.reasons]
    sections[0].insert(1, slide)
