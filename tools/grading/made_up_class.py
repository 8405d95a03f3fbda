"""Rehearse the grading of a class with thirty made-up students: broken, careless, odd, cheating.

It makes the submissions, grades them with the command that an instructor types, and compares every
grade with the expected one.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.commands import parse_arguments
from tools.course.registry import course
from tools.grading.made_up_submissions import GRADE, MadeUpStudent, assignment_of, made_up_class
from tools.grading.results_folder import read_table


def differences(students: list[MadeUpStudent], out: Path) -> list[str]:
    """Compare grades.csv with what every student earned; return what is not so."""
    table = read_table(out / "grades.csv")
    rows = {(row["student"].lstrip("'"), row["chapter"]): row for row in table}
    wrong = []
    for student in students:
        for chapter, points in student.points.items():
            row = rows.pop((student.name, chapter), None)
            where = f"{student.name}, chapter {chapter}"
            if row is None:
                wrong.append(f"{where}: no row")
            elif float(row["points"]) != points:
                wrong.append(f"{where}: {row['points']} points, earned {points} ({row['reason']})")
            elif student.reason.get(chapter, "") not in row["reason"]:
                reason = student.reason[chapter]
                wrong.append(f"{where}: the reason lacks {reason!r}: {row['reason']!r}")
    wrong += [f"an unexpected row: {key}" for key in rows]
    pages = len(list((out / "feedback").glob("*.html")))
    if pages != len(students):
        wrong.append(f"{pages} pages of feedback for {len(students)} students")
    return wrong


def rehearse(chosen: list[str], folder: Path, options: list[str]) -> int:
    """Grade the made-up class in a folder; return the number of wrong grades."""
    numbers = sorted(chosen or [chapter.number for chapter in course().chapters])
    students = made_up_class([assignment_of(number) for number in numbers])
    submissions, out = folder / "class", folder / "class-grades"
    for number, student in enumerate(students):
        if number % 7 == 3:  # some send a zip file
            submissions.mkdir(exist_ok=True)
            with zipfile.ZipFile(submissions / f"{student.name}.zip", "w") as archive:
                for name, content in student.files.items():
                    archive.writestr(name.partition("/")[2], content)
        else:
            student.write(submissions)
    count = sum(len(student.files) for student in students)
    began = time.monotonic()
    command = [*GRADE, str(submissions), "--out", str(out), *options]
    subprocess.run(command, check=True)
    took = time.monotonic() - began
    wrong = differences(students, out)
    for line in wrong:
        print(f"WRONG      {line}", flush=True)
    grades = sum(len(student.points) for student in students)
    print(
        f"{len(students)} students, {count} notebooks, {took / 60:.1f} minutes: "
        f"{grades - len(wrong)} of {grades} grades correct"
    )
    return len(wrong)


def main(arguments: Sequence[str] = ()) -> int:
    options = parse_arguments("class", arguments)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return bool(rehearse(options.chapter, options.keep.resolve(), options.others))
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        return bool(rehearse(options.chapter, Path(folder), options.others))
