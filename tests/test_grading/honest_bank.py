"""Grade every correct answer of the exercise banks, with odd but honest code.


Each notebook has a different correct answer in every exercise, after a cell of odd code. No student
may lose a point; the others are listed with the reason.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from exercise_bank import Answer, bank

from tools.commands import parse_arguments
from tools.course.cards import grade_id
from tools.course.notebook import Cell, Notebook
from tools.course.registry import course
from tools.grading.made_up_submissions import GRADE, ODD, Assignment, assignment_of, inserted, raw
from tools.grading.results_folder import read_table

OWN_SECONDS = ["--cell-seconds", "120", "--notebook-seconds", "1200"]


def answered(cells: list[Cell], answer: Answer) -> None:
    """Write an answer into the solved cells of one exercise.

    Args:
        cells: of the exercise, with the solution in them.
        answer: a different correct one; see `exercise_bank.Answer`.
    """
    if answer.old:
        for cell in cells:
            cell["source"] = cell["source"].replace(answer.old, answer.text)
    else:
        cells[-1]["source"] += f"\n\n{answer.text}"


def notebooks(chapter: Assignment) -> Iterator[Notebook]:
    """Yield notebooks that contain every known correct answer once."""
    answers = {
        id.partition(".")[2]: own.right for id, own in bank(chapter.number).items() if own.right
    }
    for place in range(max(map(len, answers.values()))):
        notebook = copy.deepcopy(chapter.solved())
        for number, right in answers.items():
            name = re.compile(rf"answer-{chapter.number}-{number}[b-z]?")
            cells = [cell for cell in notebook["cells"] if name.fullmatch(grade_id(cell))]
            answered(cells, right[place % len(right)])
        # Before the imports, which bind its names again. Every chapter starts with a different one,
        # since few have as many correct answers as there are oddities.
        odd = ODD[(place + int(chapter.number)) % len(ODD)]
        yield inserted(notebook, f"import torch\n{odd}", 1)


def graded(numbers: list[str], folder: Path, options: list[str]) -> tuple[int, list[str]]:
    """Grade all notebooks with one call; return their number, and those that lost points.

    Args:
        numbers: of the chapters.
        folder: an empty one.
        options: of the command grade.
    """
    worth = {}
    for number in numbers:
        chapter = assignment_of(number)
        for place, notebook in enumerate(notebooks(chapter)):
            path = folder / "class" / f"right {place:02}" / f"{chapter.stem}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw(notebook))
            worth[path.parent.name, number] = chapter.worth()
    command = [*GRADE, str(folder / "class"), *OWN_SECONDS, *options]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    table = read_table(folder / "class-grades" / "grades.csv")
    rows = {(row["student"], row["chapter"]): row for row in table}
    lost = [
        f"{name}, chapter {number}: {rows[name, number]['points']} of {points}: "
        f"{rows[name, number]['exercises']}: {rows[name, number]['reason']}"
        for (name, number), points in worth.items()
        if float(rows[name, number]["points"]) != points
        or "0 points" in rows[name, number]["reason"]
    ]
    return len(worth), lost


def main() -> None:
    given = parse_arguments("honest", sys.argv[1:])
    numbers = given.chapters or [chapter.number for chapter in course().chapters]
    with tempfile.TemporaryDirectory(prefix="honest-") as folder:
        count, lost = graded(numbers, Path(folder), given.others)
    for line in lost:
        print(f"LOST       {line}")
    print(f"{count} notebooks of correct answers, {count - len(lost)} with every point")
    raise SystemExit(bool(lost))


if __name__ == "__main__":
    main()
