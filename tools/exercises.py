"""Make the exercise notebooks from the masters, in which the solutions stand.

    make exercises                     every master in notebooks/solutions/
    make exercises NB=03               the masters whose name starts with 03
    make exercises ARGS=--check        write nothing, complain about what does not fit

A master is written as the README says. nbgrader's own preprocessors lock the cells and take the
solutions out. A notebook that a student changed stays byte for byte as it is; when the new one
differs from what the student began with, it is put beside it as NN_exercises.new.ipynb.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from cards import CARD_LINE, Cell, Section, grade_id, grading, sections, source
from refresh import EXERCISES, NOTEBOOKS, Notebook, canonical
from shipped import chapters, is_beside, name_of, parse, put, remember_beginning, say

SOLUTIONS = NOTEBOOKS / "solutions"
STUB = "# your code here\npass"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"

TITLE = re.compile(r"\A(# \d\d) Solutions: ")
SOLUTION_LINK = re.compile(r"\[Solution\]\(([^)#]+)#(.+)\)\s*$")
ANSWER_FLAGS = {
    "grade": False,
    "locked": False,
    "schema_version": 3,
    "solution": True,
    "task": False,
}
CHECK_FLAGS = {**ANSWER_FLAGS, "grade": True, "locked": True, "solution": False}


# ------------------------------------------------------------------------- the rules of a master


def regions(cell: Cell) -> list[str]:
    """Returns what stands between each pair of marks, without its indentation."""
    pattern = rf"^( *){BEGIN}\n(.*?)^\1{END}$"
    found = re.finditer(pattern, source(cell), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{m.group(1)}", "", m.group(2), flags=re.MULTILINE) for m in found]


def complaints(notebook: Notebook, name: str) -> list[str]:
    """Says what in a master does not fit: marks, metadata, order, points, cards, hints, links.

    Args:
        notebook: the parsed master.
        name: its file name, NN_solutions.ipynb.
    """
    chapter = name[:2]
    parts = sections(notebook)
    tasks = [part for part in parts if part.number is not None]
    found = list(_marks(notebook))
    if not source(notebook["cells"][0]).startswith(f"# {chapter} Solutions: "):
        first = source(notebook["cells"][0]).partition("\n")[0]
        found.append(f"its heading is # {chapter} Solutions: Title, got {first!r}. Change it")
    if [task.number for task in tasks] != list(range(1, len(tasks) + 1)) or not tasks:
        numbers = [task.number for task in tasks]
        found.append(f"exercises are numbered ## 1. to ## n., got {numbers}. Number the cards anew")
    for part in parts:
        if part.number is None and (part.answers or part.checks):
            cell = (part.answers + part.checks)[0]
            found.append(
                f"every answer and check stands under a card, got {grade_id(cell)} under "
                f"{part.heading or 'the title'!r}. Begin its card with ## 2. Title"
            )
    for task in tasks:
        where = f"exercise {task.number}"
        found += [f"{where}: {what}" for what in _cells_of(task, chapter)]
        found += [f"{where}: {what}" for what in _card(task, is_last=task is tasks[-1])]
        found += [f"{where}: {what}" for what in _hints(task, name)]
    found += _end(notebook, chapter)
    return found


def _marks(notebook: Notebook) -> Iterator[str]:
    for cell in notebook["cells"]:
        marks = re.findall(r"^.*(?:BEGIN|END) SOLUTION.*$", source(cell), re.MULTILINE)
        if not grade_id(cell).startswith("answer-"):
            if marks:
                yield f"marks stand in answer cells, got {marks[0].strip()!r} in another. Move it"
            continue
        wanted = (BEGIN, END) * (len(marks) // 2)
        pairs = zip(marks[::2], marks[1::2], strict=False)
        indented = all(_indent(first) == _indent(last) for first, last in pairs)
        if not marks or tuple(mark.strip() for mark in marks) != wanted or not indented:
            yield (
                f"{grade_id(cell)}: the solution stands between '{BEGIN}' and '{END}', indented "
                f"alike, got {marks}. Put both lines around it"
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


def _cells_of(task: Section, chapter: str) -> Iterator[str]:
    number = f"{task.number}"
    if not task.answers:
        checked = "a check without one. Put it under" if task.checks else "none. Put one under"
        yield f"an exercise has an answer cell, got {checked} the card"
    if len(task.checks) > 1:
        yield f"an exercise has one check cell, got {len(task.checks)}. Join them"
    wanted = [f"answer-{chapter}-{number}{letter}" for letter in ["", *"bcdefgh"]]
    got = [grade_id(cell) for cell in task.answers]
    if got != wanted[: len(got)]:
        yield f"its answer cells are {wanted[: len(got)]}, got {got}. Change their grade_id"
    for cell in task.answers + task.checks:
        flags = CHECK_FLAGS if cell in task.checks else ANSWER_FLAGS
        own = ("grade_id", "points") if cell in task.checks else ("grade_id",)
        rest = {key: value for key, value in grading(cell).items() if key not in own}
        if rest != flags or cell["cell_type"] != "code":
            yield f"{grade_id(cell)}: a code cell with {flags}, got {rest}. Change its metadata"
    for cell in task.checks:
        if grade_id(cell) != f"check-{chapter}-{number}":
            yield f"its check is check-{chapter}-{number}, got {grade_id(cell)}. Change it"
        if not re.fullmatch(rf'check\("{chapter}\.{number}", .+\)', source(cell)):
            yield (
                f'its check cell is one line check("{chapter}.{number}", answer), got '
                f"{source(cell)!r}. Write it so"
            )
        places = [task.cells.index(answer) for answer in task.answers]
        if places and task.cells.index(cell) < max(places):
            yield f"{grade_id(cell)} stands before an answer. Move it below"


def _card(task: Section, *, is_last: bool) -> Iterator[str]:
    found = CARD_LINE.findall(task.text(after=False))
    if len(found) != 1:
        yield (
            "its card has one line 'Difficulty 2 of 5 · about 8 minutes', "
            f"got {len(found)}. Write it above the answer cell"
        )
    for cell in task.checks:
        points = grading(cell).get("points")
        if found and points != int(found[0][0]):
            yield f"points are the difficulty, {found[0][0]}, got points={points}. Change one"
    if not task.checks and not is_last:
        yield "only the last exercise is open, got no check cell. Add one, or move the exercise"
    if task.checks and is_last:
        yield "the last exercise is open, got a check cell. Add an open exercise"


def _hints(task: Section, name: str) -> Iterator[str]:
    text = task.text(after=True)
    if not re.search(r"<details><summary>Hint 1</summary>.+?</details>", text, re.DOTALL):
        yield "its hints are folded, got no <details><summary>Hint 1</summary>. Write one"
    if text.count("<details>") != text.count("</details>"):
        yield "every <details> is closed, got one that is not. Add </details>"
    link = SOLUTION_LINK.search(text)
    # JupyterLab makes the anchor of a heading so.
    anchor = re.sub(r"[*`]", "", task.heading).replace(" ", "-")
    target = f"../solutions/{name}#{anchor}"
    if not link or link.group(1) != f"../solutions/{name}" or unquote(link.group(2)) != anchor:
        got = link.group() if link else text.strip()[-60:]
        yield f"its last line is [Solution]({target}), got {got!r}. Change it"


def _end(notebook: Notebook, chapter: str) -> Iterator[str]:
    wanted = f'progress("{chapter}")'
    cells = notebook["cells"]
    if len(cells) < 2 or source(cells[-2]) != wanted or not source(cells[-1]).startswith("## Next"):
        yield f"the last cells are {wanted} and ## Next, got others. Add them"


# ------------------------------------------------------------------------------------ generating


def generate(master: Notebook, solution_line: str | None = None) -> Notebook:
    """Makes the notebook of the student from a master that keeps the rules.

    Args:
        master: the parsed master; it stays as it is.
        solution_line: what stands in place of the links to the solutions; None keeps the links.
    Returns:
        The notebook without solutions, outputs and counts, with the fingerprint of itself.
    """
    try:
        import nbformat
        from nbgrader.preprocessors import (
            CheckCellMetadata,
            ClearOutput,
            ClearSolutions,
            ComputeChecksums,
            LockCells,
        )
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"exercises: nbgrader makes the notebooks, got no module {error.name}. "
            "Type: make exercises, which installs it (requirements-grading.txt)"
        ) from None

    master = copy.deepcopy(master)
    title = source(master["cells"][0])
    # Tabs, headings and links tell the student's notebook from the one with the solutions.
    master["cells"][0]["source"] = TITLE.sub(r"\1 Exercises: ", title)
    for cell in master["cells"]:
        if solution_line is not None and cell["cell_type"] == "markdown":
            cell["source"] = SOLUTION_LINK.sub(lambda _: solution_line, source(cell))
    node = nbformat.reads(json.dumps(master), as_version=4)
    # nbgrader's generate_assignment uses these and, for what the masters do not have, some more.
    for step in (
        LockCells(),
        ClearSolutions(code_stub={"python": STUB}),
        ClearOutput(),
        ComputeChecksums(),
        CheckCellMetadata(),
    ):
        node, _ = step.preprocess(node, {})
    notebook = json.loads(nbformat.writes(node))
    for cell in notebook["cells"]:
        # LockCells knows only cells with a grade_id. Cards and hints are nobody's to edit either.
        if cell["cell_type"] == "markdown":
            cell["metadata"] |= {"deletable": False, "editable": False}
    remember_beginning(notebook)
    return json.loads(canonical(notebook))


def read(path: Path) -> Notebook:
    """Reads a master and refuses one that breaks a rule.

    Raises:
        ValueError: the master is no notebook, or breaks rules; one line for each.
    """
    notebook = parse(path.read_bytes())
    if notebook is None:
        raise ValueError(f"{name_of(path)}: a master is a notebook, got a damaged one. Mend it")
    said = complaints(notebook, path.name)
    if not any(chapter.name[:2] == path.name[:2] for chapter in chapters()):
        said.append("a master has the number of its chapter, got no such chapter. Rename it")
    if said:
        raise ValueError("\n".join(f"{name_of(path)}, {what}." for what in said))
    return notebook


def masters() -> list[Path]:
    """Finds the masters, in order."""
    return sorted(SOLUTIONS.glob("[0-9][0-9]_solutions.ipynb"))


def made_from(master: Path) -> Path:
    """Returns where the exercises that are made from a master stand."""
    return EXERCISES / f"{master.name[:2]}_exercises.ipynb"


def superfluous() -> list[Path]:
    """Finds exercise notebooks without a master."""
    known = {made_from(path).name for path in masters()}
    found = [path for path in EXERCISES.glob("*.ipynb") if not is_beside(path)]
    return sorted(path for path in found if path.name not in known)


def check(paths: list[Path]) -> Iterator[str]:
    """Says, without writing anything, what does not fit: masters, and what is made of them."""
    for path in paths:
        try:
            wanted = canonical(generate(read(path)))
        except ValueError as error:
            yield str(error)
            continue
        made = made_from(path)
        if not made.exists() or made.read_bytes() != wanted.encode():
            got = "another" if made.exists() else "none"
            yield f"{name_of(made)}: it is made from its master, got {got}. Run: make exercises"
    for path in superfluous():
        yield f"{name_of(path)}: every one has its master, got none. Remove it, or add a master"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, only complain")
    options = parser.parse_args(arguments)
    if not SOLUTIONS.is_dir():
        raise SystemExit(
            "exercises: they are made from notebooks/solutions, got no such folder. "
            "A copy of the course that was handed out has none; its exercises are ready"
        )
    found = [p for p in masters() if p.name.startswith(tuple(options.names or [""]))]
    if not found:
        raise SystemExit(f"exercises: no master's name starts with {' or '.join(options.names)}")
    if options.check:
        said = list(check(found))
        print("\n".join(said) or f"{len(found)} masters and their exercises fit", flush=True)
        raise SystemExit(bool(said))
    failed = False
    for path in found:
        try:
            text = canonical(generate(read(path)))
        except ValueError as error:
            print(f"FAILED     {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        made = made_from(path)
        say(put(made, text.encode()), made)
    for path in superfluous():
        print(f"no master  {name_of(path)}: it is left as it is", flush=True)
    numbers = {path.name[:2] for path in masters()}
    for path in chapters() if not options.names else ():
        if path.name[:2] not in numbers:
            print(f"no master  {name_of(path)}: its chapter has no exercises yet", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
