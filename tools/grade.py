"""Grade a folder of handed-in notebooks: tables, the class at a glance, a page for each student.

    make grade SUBMISSIONS=folder                  writes folder-grades beside it
    make grade SUBMISSIONS=folder OUT=results      writes results
    make grade SUBMISSIONS=folder ARGS="--chapter 03 --jobs 4"

In the folder lies one folder, one zip file, or one notebook with a name for each student; see
grading/handed_in.py. Nothing in it is changed. Each notebook runs in a process of its own with
limits; what it does costs that student's grade and nobody else's. It is no prison: students' code
runs as the user who types the command. See INSTRUCTORS.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from course.registry import ROOT, Chapter, course
from grading.handed_in import Student, find
from grading.results import Typed, is_of_earlier_run, put_in_place, unfinished
from grading.running import START, Limits

WARM = Path(__file__).resolve().parent / "grading" / "warm.py"


def fail(text: str) -> SystemExit:
    return SystemExit(f"grade: {text}")


def amount(text: str) -> int:
    """Reads an amount of memory such as 3GB."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    digits = text.strip().upper().rstrip("KMGB")
    unit = text.strip().upper()[len(digits) :]
    try:
        return int(float(digits) * units[unit])
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"memory is a number and a unit, got {text!r}. Write 3GB"
        ) from None


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 86_400:
        raise argparse.ArgumentTypeError(f"seconds are a number above 0, got {text!r}. Write 30")
    return number


def places(submissions: str, out: str | None) -> tuple[Path, Path]:
    """Settles where the notebooks are and where the grades go, before anything runs."""
    if not submissions:
        raise fail(
            "SUBMISSIONS is the folder of handed-in notebooks, got none. "
            "Type: make grade SUBMISSIONS=folder"
        )
    folder = Path(submissions).expanduser().resolve()
    if folder.is_file() and folder.suffix.lower() == ".zip":
        raise fail(f"SUBMISSIONS is a folder, got the zip file {submissions}. Unpack it first")
    if not folder.is_dir():
        raise fail(
            f"SUBMISSIONS is a folder, got {submissions}, which is not there. Look at its name"
        )
    target = Path(out).expanduser().resolve() if out else folder.with_name(f"{folder.name}-grades")
    if target == folder or target.is_relative_to(folder) or folder.is_relative_to(target):
        raise fail(
            f"OUT lies outside of what was handed in, got {target}. "
            "Type: make grade SUBMISSIONS=folder OUT=another"
        )
    if target.exists() and not is_of_earlier_run(target) and not _is_empty(target):
        raise fail(
            f"OUT is new, or of an earlier run, got {target}, which holds something else. "
            "Type: make grade SUBMISSIONS=folder OUT=another"
        )
    return folder, target


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def known_chapters() -> dict[str, Chapter]:
    """Finds the chapters with a master, by number."""
    found = {chapter.number: chapter for chapter in course().chapters if chapter.master.is_file()}
    if not found:
        raise fail(
            f"the masters stand in notebooks/solutions, got none in {ROOT}. "
            "A copy that was handed out has none: grade in the instructor's copy of the course"
        )
    return found


def start_warm(socket: Path, library: Path, log: Path) -> subprocess.Popen:
    """Starts the process that has everything imported, and waits until it has."""
    from grading.marks import environment

    # The user's own home is needed once, for the list of fonts that matplotlib keeps there.
    homes = {name: os.environ[name] for name in ("HOME", "MPLCONFIGDIR") if name in os.environ}
    with log.open("w") as file:
        warm = subprocess.Popen(
            [sys.executable, str(WARM), str(socket), str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=environment(library) | homes,
            text=True,
        )
    if warm.stdout.readline().strip() != "ready":
        warm.kill()
        said = log.read_text(errors="replace").strip().splitlines() or ["no words"]
        raise fail(
            f"the process that runs notebooks must start, got: {said[-1]}. "
            "Look whether a notebook of the course runs: make lab"
        )
    return warm


def _work(result: Path, *arguments: Any) -> None:
    """Grades one student, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(arguments[-1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore")  # nbgrader makes sqlalchemy warn
    from grading.marks import mark_student

    marks = [dataclasses.asdict(mark) for mark in mark_student(*arguments)]
    partial = result.with_suffix(".part")
    partial.write_text(json.dumps(marks), encoding="utf-8")
    partial.rename(result)


def mark_all(
    students: list[Student],
    names: list[str],
    chapters: list[str],
    assignments: Any,
    address: str,
    limits: Limits,
    jobs: int,
    root: Path,
    logs: Path,
) -> dict[str, list[Any]]:
    """Grades all students, a few at once; returns the marks by name of the page."""
    from grading.marks import Mark, missing, not_handed_in

    fork = multiprocessing.get_context("fork")
    waiting = list(enumerate(zip(students, names, strict=True)))
    running: dict[Any, tuple[int, float]] = {}
    marks: dict[str, list[Mark]] = {}
    # Every notebook has limits of its own; this one, in seconds of the clock, is for what nobody
    # thought of. So a busy machine must not reach it.
    most = len(chapters) * 20 * (limits.notebook + START)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, (student, name) = waiting.pop(0)
                result = root / f"{number}.json"
                arguments = (assignments, student, chapters, address, limits, root / f"s{number}")
                process = fork.Process(
                    target=_work, args=(result, *arguments, logs / f"{name}.txt")
                )
                process.start()
                running[process] = number, time.monotonic() + most
            wait([process.sentinel for process in running], timeout=1)
            for process, (number, end) in list(running.items()):
                if process.is_alive() and time.monotonic() < end:
                    continue
                process.kill()
                process.join()
                del running[process]
                student, name = students[number], names[number]
                result = root / f"{number}.json"
                if result.exists():
                    plain = json.loads(result.read_text(encoding="utf-8"))
                    marks[name] = [Mark.from_plain(mark) for mark in plain]
                else:
                    code = process.exitcode
                    why = f"grading failed: its process ended (code {code}). Look at the log"
                    marks[name] = [
                        missing(assignments, c, why, student.chapters[c].label, "not checked")
                        if c in student.chapters
                        else not_handed_in(assignments, c, student)
                        for c in chapters
                    ]
                shutil.rmtree(root / f"s{number}", ignore_errors=True)
                tell(student, marks[name], len(marks), len(students))
    finally:
        for process in running:
            process.kill()
            process.join()
    return marks


def tell(student: Student, marks: list[Any], number: int, count: int) -> None:
    """Prints one line about a student."""
    got, possible = sum(m.points for m in marks), sum(m.possible for m in marks)
    reasons = [f"{m.chapter} {m.reason}" for m in marks if m.reason and m.file]
    words = "; ".join(reasons)
    words = words if len(words) <= 100 else words[:97] + "..."
    line = f"{number:3}/{count}  {got:4g} of {possible:g}  {student.name}"
    print(f"{line}{': ' if words else ''}{words}", flush=True)


def grade(
    folder: Path, out: Path, chosen: list[str], limits: Limits, jobs: int, root: Path
) -> None:
    """Grades a folder; everything temporary goes below root."""
    began = time.monotonic()
    from grading import glance, report

    known = known_chapters()
    if unknown := [chapter for chapter in chosen if chapter not in known]:
        raise fail(f"--chapter is one of {', '.join(known)}, got {unknown[0]}. Change it")
    (root / "zip").mkdir()
    stems = {number: chapter.exercises.stem for number, chapter in known.items()}
    students, others = find(folder, stems, root / "zip")
    if not any(student.chapters for student in students):
        got = "no such notebook" if students or others else "nothing"
        raise fail(
            f"in SUBMISSIONS lies a folder, zip file or notebook for each student, got {got} in "
            f"{folder}. Name the notebooks as they were handed out, or look at the folder's name"
        )
    for name in others:
        print(f"left alone: {name} is of no student", flush=True)
    handed_in = {chapter for student in students for chapter in student.chapters}
    chapters = sorted(chosen or handed_in)
    from grading.marks import prepare

    print(
        f"{len(students)} students, chapters {', '.join(chapters)}: making the assignments",
        flush=True,
    )
    warnings.simplefilter("ignore")  # nbgrader makes sqlalchemy warn
    try:
        assignments = prepare({number: known[number] for number in chapters}, root / "course")
    except ValueError as error:  # a master that breaks a rule
        raise fail(f"{error}") from None
    warm = start_warm(root / "warm", assignments.library, root / "warm.log")
    taken: set[str] = set()
    pages = [report.page_name(student.name, taken) for student in students]
    typed = Typed(out, {"grades.csv": report.COLUMNS, "totals.csv": report.TOTALS})
    try:
        with unfinished(out) as made:
            (made / "logs").mkdir()
            work = root / "w"
            work.mkdir()
            places = str(root / "warm"), limits, jobs, work, made / "logs"
            marks = mark_all(students, pages, chapters, assignments, *places)
            results = [
                report.Result(student, page, marks[page])
                for student, page in zip(students, pages, strict=True)
            ]
            report.write(made, results, typed)
            glance.write(made, results)
            if (root / "warm.log").stat().st_size:
                shutil.copy(root / "warm.log", made / "logs" / ".kernels.txt")
            earlier = put_in_place(made, out)
    finally:
        warm.stdin.close()
        try:
            warm.wait(timeout=10)
        except subprocess.TimeoutExpired:
            warm.kill()
    if earlier:
        print(f"what an earlier run wrote is in {earlier}", flush=True)
    minutes, rest = divmod(int(time.monotonic() - began), 60)
    count = sum(len(student.chapters) for student in students)
    print(
        f"{len(students)} students, {count} notebooks in {minutes} min {rest} s: "
        f"{out / 'grades.csv'}, {out / 'class.html'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("submissions", nargs="?", default="", help="folder of handed-in notebooks")
    parser.add_argument("--out", help="folder for the grades (default: SUBMISSIONS-grades)")
    parser.add_argument(
        "--chapter", action="append", default=[], help="grade this one (repeatable)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="students at once (default 2)")
    parser.add_argument("--cell-seconds", type=seconds, default=30.0, help="limit of a cell")
    parser.add_argument("--notebook-seconds", type=seconds, default=180.0, help="of a notebook")
    parser.add_argument("--memory", type=amount, default="3GB", help="of a notebook (default 3GB)")
    options = parser.parse_args()
    # nbgrader calls the command alembic by its name, and .venv need not be activated.
    commands = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    os.environ["PATH"] = os.pathsep.join(commands)
    if find_spec("nbgrader") is None:
        raise fail(
            "nbgrader does the grading, got no module nbgrader. "
            "Type: make grade, which installs it (requirements-grading.txt)"
        )
    folder, out = places(options.submissions, options.out)
    limits = Limits(options.cell_seconds, options.notebook_seconds, options.memory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        grade(folder, out, options.chapter, limits, max(1, options.jobs), root)
    except KeyboardInterrupt:
        raise SystemExit("grade: stopped; nothing was written") from None
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
