"""Make the files of a new chapter, with TODO for missing parts.

It makes the entry in course.toml, the chapter, its source notebook with three checked exercises and
an open one, their checks, and answers to test the checks with. Everything runs and passes the
tests, so you can replace one TODO after the other and test in between. CONTRIBUTING.md explains
the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.cards import Section, sections
from tools.course.files import name_of, write
from tools.course.notebook import (
    Cell,
    Notebook,
    canonical,
    code_cell,
    notebook_of,
    source,
    text_cell,
)
from tools.course.registry import LIST, ROOT, Chapter, Course
from tools.course.source_notebooks import ANSWER_FLAGS, CHECK_FLAGS

COUNTS = {4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}  # of exercises in a chapter
MINUTES = 10  # of a new exercise
ENTRY = """
[[chapters]]
number = "{n}"
file = "{n}_{name}"
title = "{title}"
minutes = 30
exercise_minutes = {minutes}
summary = "TODO: what a reader builds, in at most ten words"
"""
CHAPTER = (
    text_cell(
        "# {n} · {title}\n\nTODO: what this chapter is about. About 30 minutes.\n\n"
        "| step | shape | parameters |\n|---|---|---|\n| scores, weights | (6, 8, 37, 37) | |"
    ),
    code_cell("import torch\n\nfrom utils.shapes import describe"),
    text_cell("## TODO: steps"),
    code_cell('describe(torch.zeros(2, 3), "i j")'),
    text_cell("## What `utils` holds now\n\nTODO, or: nothing new."),
    text_cell(
        "## Exercises\n\n**[Exercises {n}](exercises/{n}_exercises.ipynb)**: four of them, about "
        "{minutes} minutes, each with hints and a check that says at once what is wrong and why."
    ),
    text_cell("## Next\n\nTODO: what comes next."),
)
SOURCE = (
    text_cell(
        "# {n} Solutions: {title}\n\n**What you do here:** TODO.\n\n**About {minutes} minutes**, "
        "four exercises, after [chapter {n}](../{n}_{name}.ipynb)."
    ),
    code_cell("from checks import check, progress"),
    text_cell("## What is done"),
    code_cell('progress("{n}")'),
    text_cell("## Next\n\nTODO: what comes next."),
)
CHECKS = '''"""Checks of the exercises of chapter {n}: TODO."""

from __future__ import annotations

from checks.engine.answer import written
from checks.engine.guesses import same_shape
from checks.engine.verdict import exercise, open_exercise


open_exercise("{n}.1", "TODO open")
'''
CHECK = """@exercise("{n}.{number}", "TODO title {number}")
def todo_{number}(shape) -> str:
    written(shape)
    same_shape(shape, (2, 3, 5, 7), "b h i j")
    return "gives-both-shapes"


"""
ANSWERS = '''"""Correct and wrong answers to the exercises of chapter {n}."""

from exercise_bank import Bank, swap

BANK = {{
}}
'''
BANK = """    "{n}.{number}": Bank(
        wrong=[  # TODO
            swap("(2, 3, 5, 7)", "(2, 3, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 3, 5, 7)", "(2, 3, 5, 5)", cause="look-at-axes j"),
            swap("(2, 3, 5, 7)", "(2, 3, 4, 7)", cause="look-at-axes i"),
            swap("(2, 3, 5, 7)", "(2, 3, 5)", cause="number-of-axes"),
            swap("(2, 3, 5, 7)", "210", cause="no-shape"),
        ],
        right=[swap("(2, 3, 5, 7)", "[2, 3, 5, 7]"), swap("(2, 3, 5, 7)", "tuple([2, 3, 5, 7])")],
    ),
"""


def exercise_cells(chapter: str, number: int, *, is_open: bool) -> list[Cell]:
    """Return the cells of a new exercise: card, answer, check and hints."""
    title = "TODO open" if is_open else f"TODO title {number}"
    shape = "shape = ...\n### BEGIN SOLUTION\nshape = (2, 3, 5, 7)\n### END SOLUTION\nprint(shape)"
    answer = '### BEGIN SOLUTION\nprint("TODO")\n### END SOLUTION' if is_open else shape
    id = f"{chapter}-{number}"
    check = {**CHECK_FLAGS, "grade_id": f"check-{id}", "points": 1}
    anchor = f"../solutions/{chapter}_solutions.ipynb#{number}.-{title.replace(' ', '-')}"
    hint = "<details><summary>Hint 1</summary>\n\nTODO\n</details>"
    cells = [
        text_cell(
            f"## {number}. {title}\n\nTODO: what to do. <!-- shape: example -->\n\n"
            f"Difficulty 1 of 5 · about {MINUTES} minutes"
        ),
        code_cell(answer, nbgrader={**ANSWER_FLAGS, "grade_id": f"answer-{id}"}),
        code_cell(f'check("{chapter}.{number}", shape)', nbgrader=check),
        text_cell(f"{hint}\n\n[Solution]({anchor})"),
    ]
    return [cell for cell in cells if not (is_open and "check(" in cell["source"])]


def main(arguments: Sequence[str] = (), root: Path = ROOT) -> None:
    """Make a chapter."""
    given = parse_arguments("new-chapter", arguments)
    here = Course.read(root)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", given.name):
        raise Refusal(
            f"NAME must consist of a-z, 0-9 and _, got {given.name!r}. Write linear_attention."
        )
    number = f"{int(here.chapters[-1].number) + 1:02}"
    title = given.title or given.name.replace("_", " ").capitalize()
    words = {"n": number, "name": given.name, "title": title, "minutes": MINUTES}
    with (root / LIST).open("a", encoding="utf-8") as file:
        file.write(ENTRY.format(**words))
    chapter = Course.read(root)[number]
    cells = [_filled(cell, words) for cell in SOURCE]
    cells[2:2] = exercise_cells(number, 1, is_open=True)
    made = {
        chapter.notebook: canonical(notebook_of(*(_filled(cell, words) for cell in CHAPTER))),
        chapter.source_notebook: canonical(notebook_of(*cells)),
        _checks(chapter): CHECKS.format(**words),
        _answers(chapter): ANSWERS.format(**words),
    }
    for path, text in made.items():
        write(path, text.encode())
        print(f"written  {name_of(path, root)}")
    for _ in range(3):
        add_exercise(Course.read(root)[number])
    _print_next_steps(chapter)


def new_exercise(arguments: Sequence[str] = (), root: Path = ROOT) -> None:
    """Add an exercise to a chapter, before the open one."""
    number = parse_arguments("new-exercise", arguments).chapter
    here = Course.read(root)
    if number not in [chapter.number for chapter in here.chapters]:
        raise Refusal(f"NB must be the number of a chapter in {LIST}, got {number!r}. Write 03.")
    chapter = here[number]
    if not chapter.source_notebook.is_file():
        raise Refusal(
            f"NB must be a chapter with a source notebook, got {number} without "
            f"{name_of(chapter.source_notebook, root)}. Use an instructor's copy.",
            status=1,
        )
    if (count := _count(chapter)) >= max(COUNTS):
        raise Refusal(
            f"a chapter must have at most {max(COUNTS)} exercises, got {count}. Replace one."
        )
    add_exercise(chapter)
    _print_next_steps(chapter)


def add_exercise(chapter: Chapter) -> None:
    """Add an exercise before the open one, in all files that list exercises."""
    number = _count(chapter)  # the open exercise has it now and gets the next one
    n, minutes = chapter.number, chapter.exercise_minutes + MINUTES
    notebook = _read(chapter.source_notebook)
    *_, last = [part for part in sections(notebook) if part.number is not None]
    index = notebook["cells"].index(last.cells[0])
    _renumber(last, n, number)
    notebook["cells"][index:index] = exercise_cells(n, number, is_open=False)
    _set_counts(notebook["cells"][0], number + 1, minutes)
    write(chapter.source_notebook, canonical(notebook).encode())

    text = _read(chapter.notebook)
    for cell in text["cells"]:
        if f"(exercises/{n}_exercises.ipynb)" in source(cell):
            _set_counts(cell, number + 1, minutes)
    write(chapter.notebook, canonical(text).encode())

    words = {"n": n, "number": number}
    _edit(
        _checks(chapter),
        rf'(?=open_exercise\("{n}\.{number}", )',
        CHECK.format(**words),
    )
    _edit(_checks(chapter), rf'open_exercise\("{n}\.{number}"', f'open_exercise("{n}.{number + 1}"')
    _edit(_answers(chapter), r"(?=^\}\n\Z)", BANK.format(**words))
    _edit(
        chapter.root / LIST,
        rf'(?<=^number = "{n}"\n)((?:(?!\[\[).*\n)*?)exercise_minutes = \d+',
        rf"\1exercise_minutes = {minutes}",
    )


def _filled(cell: Cell, words: dict[str, object]) -> Cell:
    text = cell["source"]
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", str(value))
    return {**cell, "source": text}


def _read(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def _checks(chapter: Chapter) -> Path:
    return chapter.root / "checks" / f"chapter_{chapter.number}.py"


def _answers(chapter: Chapter) -> Path:
    return chapter.root / "tests" / "test_checks" / "answers" / f"chapter_{chapter.number}.py"


def _count(chapter: Chapter) -> int:
    return sum(part.number is not None for part in sections(_read(chapter.source_notebook)))


def _renumber(section: Section, chapter: str, number: int) -> None:
    """Give the open exercise the next number."""
    pairs = (
        (f"## {number}. ", f"## {number + 1}. "),
        (f"{chapter}_solutions.ipynb#{number}.", f"{chapter}_solutions.ipynb#{number + 1}."),
    )
    for cell in section.cells:
        text = source(cell)
        for old, new in pairs:
            text = text.replace(old, new)
        cell["source"] = text
    for cell in section.answers:
        grading = cell["metadata"]["nbgrader"]
        id = f"answer-{chapter}-{number}"
        grading["grade_id"] = grading["grade_id"].replace(id, f"answer-{chapter}-{number + 1}")


def _set_counts(cell: Cell, count: int, minutes: int) -> None:
    """Update the number of exercises and of minutes in a text."""
    text = re.sub(r"(?i)(?<=about )\d+(?= minutes)", str(minutes), source(cell), count=1)
    words = "|".join(COUNTS.values())
    new = COUNTS.get(count, COUNTS[min(COUNTS)])
    cell["source"] = re.sub(rf"\b({words})(?= (?:of them|exercises)\b)", new, text, count=1)


def _edit(path: Path, pattern: str, new: str) -> None:
    """Replace the only match of a pattern in a file."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(pattern, text, re.MULTILINE)
    if len(found) != 1:
        raise Refusal(
            f"{path.name} must have one match of {pattern}, got {len(found)}. "
            "Add the exercise by hand.",
            status=1,
        )
    write(path, re.sub(pattern, new, text, flags=re.MULTILINE).encode())


def _print_next_steps(chapter: Chapter) -> None:
    n = chapter.number
    print(f"Replace every TODO in {LIST} and in the files of chapter {n}. Then type:")
    for line in (f"refresh {n}", f"exercises {n}", "readme", f"mutants {n}"):
        print(f"  {as_typed(line)}")
    print('Edit by hand: "Next" of the previous chapter, and the plans for instructors.')
