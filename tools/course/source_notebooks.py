"""The rules of source notebooks: exercises with their solutions.

A solution is between two marks in an answer cell; each exercise has a card, a check cell and hints.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

from tools.course.cards import CARD_LINE, Section, grade_id, grading, sections
from tools.course.files import name_of
from tools.course.notebook import Cell, Notebook, parse, source
from tools.course.registry import Chapter

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SOLUTION_LINK = re.compile(r"\[Solution\]\(([^)#]+)#(.+)\)\s*$")
ANSWER_FLAGS = {
    "grade": False,
    "locked": False,
    "schema_version": 3,
    "solution": True,
    "task": False,
}
CHECK_FLAGS = {**ANSWER_FLAGS, "grade": True, "locked": True, "solution": False}
LETTERS = ["", *"bcdefgh"]  # suffixes of the answer cells of one exercise


def regions(cell: Cell) -> list[str]:
    """Return the text between each pair of marks, without its indentation."""
    pattern = rf"^( *){BEGIN}\n(.*?)^\1{END}$"
    found = re.finditer(pattern, source(cell), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{m.group(1)}", "", m.group(2), flags=re.MULTILINE) for m in found]


def violations(notebook: Notebook, chapter: str) -> list[str]:
    """Return the violated rules of a source notebook: marks, metadata, order, cards, hints, links.

    Args:
        notebook: the parsed source notebook.
        chapter: its number, such as "03".
    """
    parts = sections(notebook)
    tasks = [part for part in parts if part.number is not None]
    found = list(_marks(notebook))
    if not source(notebook["cells"][0]).startswith(f"# {chapter} Solutions: "):
        first = source(notebook["cells"][0]).partition("\n")[0]
        found.append(f"its heading must be # {chapter} Solutions: Title, got {first!r}. Change it")
    if [task.number for task in tasks] != list(range(1, len(tasks) + 1)) or not tasks:
        numbers = [task.number for task in tasks]
        found.append(
            f"exercises must be numbered ## 1. to ## n., got {numbers}. Renumber the cards"
        )
    for part in parts:
        if part.number is None and (part.answers or part.checks):
            cell = (part.answers + part.checks)[0]
            found.append(
                f"every answer and check must be under a card, got {grade_id(cell)} under "
                f"{part.heading or 'the title'!r}. Begin its card with ## 2. Title"
            )
    for task in tasks:
        where = f"exercise {task.number}"
        if unnamed := list(_without_metadata(task, chapter)):
            # Without metadata the roles of the cells are unknown, so other rules must wait.
            found += [f"{where}: {what}" for what in unnamed]
            continue
        found += [f"{where}: {what}" for what in _cells_of(task, chapter)]
        found += [f"{where}: {what}" for what in _card(task, is_last=task is tasks[-1])]
        found += [f"{where}: {what}" for what in _hints(task, chapter)]
    found += _end(notebook, chapter)
    return found


def _marks(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        marks = re.findall(r"^.*(?:BEGIN|END) SOLUTION.*$", source(cell), re.MULTILINE)
        if not grade_id(cell).startswith("answer-"):
            if marks and not _unnamed(cell):
                yield f"marks must be in answer cells, got {marks[0].strip()!r} elsewhere. Move it"
            continue
        wanted = (BEGIN, END) * (len(marks) // 2)
        pairs = zip(marks[::2], marks[1::2], strict=False)
        indented = all(_indent(first) == _indent(last) for first, last in pairs)
        if not marks or tuple(mark.strip() for mark in marks) != wanted or not indented:
            yield (
                f"{grade_id(cell)}: the solution must be between '{BEGIN}' and '{END}' with equal "
                f"indentation, got {marks}. Put both lines around it"
            )
            continue
        try:
            region = re.compile(rf"^( *){BEGIN}$.*?^ *{END}$", re.MULTILINE | re.DOTALL)
            ast.parse(region.sub(r"\1...", source(cell)))
        except SyntaxError as error:
            yield (
                f"{grade_id(cell)}: without its solution the cell must be Python, got "
                f"{error.msg!r} in line {error.lineno}. Move a mark"
            )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _unnamed(cell: Cell) -> str:
    """Return the mark of an answer or a check in a code cell without metadata; else ""."""
    if cell["cell_type"] != "code" or grade_id(cell):
        return ""
    if BEGIN in source(cell):
        return BEGIN
    return "check(...)" if source(cell).startswith("check(") else ""


def _without_metadata(task: Section, chapter: str) -> Iterator[str]:
    card = CARD_LINE.search("\n\n".join(source(cell) for cell in task.cells))
    answers = 0
    for cell in task.cells:
        seen = _unnamed(cell)
        if seen == "check(...)":
            points = int(card.group(1)) if card else 1
            own = {"grade_id": f"check-{chapter}-{task.number}", "points": points}
            wanted = {**CHECK_FLAGS, **own}
        else:
            letter = LETTERS[min(answers, len(LETTERS) - 1)]
            wanted = {**ANSWER_FLAGS, "grade_id": f"answer-{chapter}-{task.number}{letter}"}
        answers += seen == BEGIN or cell in task.answers
        if seen:
            given = json.dumps({"nbgrader": wanted}, sort_keys=True)
            yield f"the cell with '{seen}' has no metadata nbgrader. Give it {given}"


def _cells_of(task: Section, chapter: str) -> Iterator[str]:
    number = f"{task.number}"
    if not task.answers:
        checked = "a check without one" if task.checks else "none"
        yield f"an exercise must have an answer cell, got {checked}. Add one under the card"
    if len(task.checks) > 1:
        yield f"an exercise must have one check cell, got {len(task.checks)}. Join them"
    wanted = [f"answer-{chapter}-{number}{letter}" for letter in LETTERS]
    got = [grade_id(cell) for cell in task.answers]
    if got != wanted[: len(got)]:
        yield f"its answer cells must be {wanted[: len(got)]}, got {got}. Change their grade_id"
    for cell in task.answers + task.checks:
        flags = CHECK_FLAGS if cell in task.checks else ANSWER_FLAGS
        own = ("grade_id", "points") if cell in task.checks else ("grade_id",)
        rest = {key: value for key, value in grading(cell).items() if key not in own}
        if rest != flags or cell["cell_type"] != "code":
            yield (
                f"{grade_id(cell)} must be a code cell with {json.dumps(flags)}, got "
                f"{json.dumps(rest)}. Change its metadata nbgrader"
            )
    for cell in task.checks:
        if grade_id(cell) != f"check-{chapter}-{number}":
            yield f"its check must be check-{chapter}-{number}, got {grade_id(cell)}. Change it"
        if not re.fullmatch(rf'check\("{chapter}\.{number}", .+\)', source(cell)):
            yield (
                f'its check cell must be one line check("{chapter}.{number}", answer), got '
                f"{source(cell)!r}. Change it"
            )
        places = [task.cells.index(answer) for answer in task.answers]
        if places and task.cells.index(cell) < max(places):
            yield f"{grade_id(cell)} must come after the answers, got it before one. Move it"


def _card(task: Section, *, is_last: bool) -> Iterator[str]:
    found = CARD_LINE.findall(task.text(after=False))
    if len(found) != 1:
        yield (
            "its card must have one line 'Difficulty 2 of 5 · about 8 minutes', "
            f"got {len(found)}. Write it above the answer cell"
        )
    for cell in task.checks:
        points = grading(cell).get("points")
        if found and points != int(found[0][0]):
            yield f"points must be the difficulty, {found[0][0]}, got points={points}. Change one"
    if not task.checks and not is_last:
        yield "only the last exercise may be open, got no check cell. Add one, or move the exercise"
    if task.checks and is_last:
        yield "the last exercise must be open, got a check cell. Add an open exercise"


def _hints(task: Section, chapter: str) -> Iterator[str]:
    text = task.text(after=True)
    if not re.search(r"<details><summary>Hint 1</summary>.+?</details>", text, re.DOTALL):
        yield "its hints must be folded, got no <details><summary>Hint 1</summary>. Write one"
    if text.count("<details>") != text.count("</details>"):
        yield "every <details> must be closed, got one that is not. Add </details>"
    link = SOLUTION_LINK.search(text)
    # The anchor that JupyterLab makes of a heading.
    anchor = re.sub(r"[*`]", "", task.heading).replace(" ", "-")
    file = f"../solutions/{chapter}_solutions.ipynb"
    target = f"{file}#{anchor}"
    if not link or link.group(1) != file or unquote(link.group(2)) != anchor:
        got = link.group() if link else text.strip()[-60:]
        yield f"its last line must be [Solution]({target}), got {got!r}. Change it"


def _end(notebook: Notebook, chapter: str) -> Iterator[str]:
    wanted = f'progress("{chapter}")'
    cells = notebook["cells"]
    if len(cells) < 2 or source(cells[-2]) != wanted or not source(cells[-1]).startswith("## Next"):
        yield f"the last cells must be {wanted} and ## Next, got different ones. Add them"


def read(chapter: Chapter) -> Notebook:
    """Read the source notebook of a chapter.

    Raises:
        ValueError: it is not a notebook, or violates rules; one line for each.
    """
    where = name_of(chapter.source_notebook, chapter.root)
    notebook = parse(chapter.source_notebook.read_bytes())
    if notebook is None:
        raise ValueError(f"{where}: the file must be a notebook, got a damaged one. Fix it")
    if found := violations(notebook, chapter.number):
        raise ValueError("\n".join(f"{where}, {what}." for what in found))
    return notebook
