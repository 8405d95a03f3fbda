"""Grade a folder of handed-in notebooks: tables, the class at a glance, a page for each student.

    make grade SUBMISSIONS=folder                  writes folder-grades beside it
    make grade SUBMISSIONS=folder OUT=results      writes results
    make grade SUBMISSIONS=folder ARGS="--chapter 03 --jobs 4"
    make grade SUBMISSIONS=week2 OUT=term ROSTER=class.csv DUE="2026-11-20 18:00"
    make grade OUT=term                            writes tables and pages anew, runs nothing

In the folder lies one folder, one zip file, or one notebook with a name for each student; see
grading/handed_in.py. Nothing in it is changed. The notebooks of each student run in a world of
their own, with limits (grading/wall.py); what they do costs that student's grade and nobody else's.
A grading that was stopped goes on when the same is typed again. See docs/instructors.md.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import errno
import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from course.registry import ROOT, Chapter, course
from grading.due import Due, parse
from grading.handed_in import Student, find
from grading.progress import Busy, Progress, fingerprint
from grading.results import BOOK, is_of_earlier_run, put_in_place, unfinished, warn_in_heads
from grading.roster import Matching, Question, Roster, asked, class_list, read
from grading.running import START, Limits
from grading.sandbox import Sandbox
from grading.wall import PLAIN, Places, Wall, choose

FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL = 28  # with which a student's process ends when nothing can be written
TRIES = 2  # for a student whose process was killed
PR_SET_PDEATHSIG = 1


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


def place_of_results(out: str) -> Path:
    """Settles whose tables are written anew when nothing is handed in."""
    target = Path(out).expanduser().resolve()
    if not is_of_earlier_run(target) or not (target / BOOK).is_dir():
        raise fail(
            f"without SUBMISSIONS the tables of an earlier run are written anew, got {out}, which "
            "holds none. Type: make grade SUBMISSIONS=folder OUT=results"
        )
    return target


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


def _work(progress: Progress, place: Path, wall: Wall, *arguments: Any) -> None:
    """Grades one student, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    assignments, student, chapters, limits, scratch, log = arguments
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from grading.marks import environment, mark_student

    scratch.mkdir(parents=True)
    outside = Places(assignments.library, assignments.grader, scratch / "r")
    sandbox = Sandbox(wall, outside, environment(), limits.memory, log)
    try:
        marks = mark_student(
            assignments, student, chapters, sandbox, limits, progress.salt, scratch, log
        )
        progress.write(place, [dataclasses.asdict(mark) for mark in marks])
    except OSError as error:
        if error.errno not in FULL:
            raise
        sandbox.end()
        os._exit(DISK_FULL)
    finally:
        sandbox.end()


def end_with_parent() -> None:
    """Has this process killed when the one that made it is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclasses.dataclass
class Class:
    """All students, and with what they are graded.

    Args:
        students: in order.
        names: of their pages.
        chapters: those that count.
        assignments: what was handed out.
        wall: around their code.
        limits: of each notebook.
    """

    students: list[Student]
    names: list[str]
    chapters: list[str]
    assignments: Any
    wall: Wall
    limits: Limits


def mark_all(
    graded: Class, progress: Progress, jobs: int, root: Path, logs: Path
) -> dict[str, list[Any]]:
    """Grades all students, a few at once; returns the marks by name of the page.

    Args:
        graded: the students.
        progress: what an earlier grading has done, and where this one writes.
        jobs: how many at once.
        root: a folder for what is temporary.
        logs: a folder for what happened.
    """
    from grading.marks import Mark, missing, not_handed_in

    fork = multiprocessing.get_context("fork")
    students, names, chapters = graded.students, graded.names, graded.chapters
    waiting = list(range(len(students)))
    running: dict[Any, tuple[int, float]] = {}
    tries = dict.fromkeys(waiting, 0)
    marks: dict[str, list[Mark]] = {}
    places = [progress.place(*pair) for pair in zip(students, names, strict=True)]
    # Every notebook has limits of its own; this one, in seconds of the clock, is for what nobody
    # thought of. So a busy machine must not reach it.
    most = len(chapters) * 20 * (graded.limits.notebook + START)

    def done(number: int, again: str = "") -> bool:
        if (plain := progress.read(places[number])) is None:
            return False
        marks[names[number]] = [Mark.from_plain(mark) for mark in plain]
        tell(students[number], marks[names[number]], len(marks), len(students), again)
        return True

    try:
        waiting = [number for number in waiting if not done(number, " (done before)")]
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.pop(0)
                tries[number] += 1
                scratch = root / f"s{number}.{tries[number]}"
                given = graded.assignments, students[number], chapters, graded.limits, scratch
                log = places[number].with_suffix(".txt")
                log.unlink(missing_ok=True)
                process = fork.Process(
                    target=_work, args=(progress, places[number], graded.wall, *given, log)
                )
                process.start()
                running[process] = number, time.monotonic() + most
            wait([process.sentinel for process in running], timeout=1)
            for process, (number, end) in list(running.items()):
                late = time.monotonic() >= end
                if process.is_alive() and not late:
                    continue
                process.kill()
                process.join()
                del running[process]
                shutil.rmtree(root / f"s{number}.{tries[number]}", ignore_errors=True)
                if done(number):
                    continue
                if process.exitcode == DISK_FULL:
                    raise OSError(errno.ENOSPC, "the disk is full")
                if tries[number] < TRIES and not late:  # something from outside killed it
                    waiting.insert(0, number)
                    continue
                student, name = students[number], names[number]
                why = (
                    f"grading failed: its process ended (code {process.exitcode}). Look at the log"
                )
                marks[name] = [
                    missing(graded.assignments, c, why, student.chapters[c].label, "not checked")
                    if c in student.chapters
                    else not_handed_in(graded.assignments, c, student)
                    for c in chapters
                ]
                tell(student, marks[name], len(marks), len(students))
    finally:
        for process in running:
            process.kill()
            process.join()
    for place, name in zip(places, names, strict=True):
        if (log := place.with_suffix(".txt")).is_file():
            shutil.copyfile(log, logs / f"{name}.txt")
    return marks


def tell(student: Student, marks: list[Any], number: int, count: int, again: str = "") -> None:
    """Prints one line about a student."""
    got, possible = sum(m.points for m in marks), sum(m.possible for m in marks)
    reasons = [f"{m.chapter} {m.reason}" for m in marks if m.reason and m.file]
    if not student.chapters:
        reasons = [*map(str, student.others)] or ["nothing handed in"]
    words = "; ".join(reasons)
    words = words if len(words) <= 100 else words[:97] + "..."
    line = f"{number:3}/{count}  {got:4g} of {possible:g}  {student.name}{again}"
    print(f"{line}{': ' if words else ''}{words}", flush=True)


@dataclasses.dataclass(frozen=True)
class Said:
    """What the instructor says about the class and the week.

    Args:
        week: the name of the week, None for that of the folder.
        due: the date.
        due_text: as it was typed.
        roster: the class list; None for that of the week before, if there was one.
    """

    week: str | None
    due: Due
    due_text: str
    roster: Roster | None


def whose(
    found: list[Student], book: Any, said: Said
) -> tuple[list[Student], list[Question], Roster | None]:
    """Says whose each submission is; with a class list, also who handed in nothing."""
    roster = said.roster or book.list_of_class()
    if roster is None:
        return found, [], None
    matching = Matching(roster, book.answers)
    students, questions = class_list(found, matching, times=said.roster is not None)
    for question in questions:
        may_be = " or ".join(person.name for person in question.candidates)
        ask = f"is it {may_be}?" if may_be else "it resembles nobody."
        print(f"not in the class list: {question.handed_in}; {ask} Answer in who.csv", flush=True)
    return students, questions, roster


def grade(
    folder: Path,
    out: Path,
    said: Said,
    chosen: list[str],
    limits: Limits,
    jobs: int,
    isolation: str,
    root: Path,
) -> None:
    """Grades a folder; everything temporary goes below root."""
    began = time.monotonic()
    from grading import gradebook, moved, publish, report

    try:
        book = gradebook.Gradebook(out)
    except ValueError as error:
        raise fail(str(error)) from None
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
    try:
        students, questions, roster = whose(students, book, said)
    except ValueError as error:  # an answer in who.csv
        raise fail(str(error)) from None
    for name in others:
        print(f"left alone: {name} is of no student", flush=True)
    handed_in = {chapter for student in students for chapter in student.chapters}
    chapters = sorted(chosen or handed_in)
    from grading.marks import prepare

    wall = chosen_wall(isolation)
    print(
        f"{len(students)} students, chapters {', '.join(chapters)}: making the assignments",
        flush=True,
    )
    try:
        assignments = prepare({number: known[number] for number in chapters}, root / "course")
    except ValueError as error:  # a master that breaks a rule
        raise fail(f"{error}") from None
    taken: set[str] = set()
    pages = [report.page_name(student.name, taken) for student in students]
    load_checks(chapters)
    graded = Class(students, pages, chapters, assignments, wall, limits)
    masters = {number: str(known[number].master) for number in chapters}
    with_what = fingerprint(assignments.library, ROOT / "checks", Path(__file__).parent / "grading")
    texts = [Path(master).read_text(encoding="utf-8") for master in masters.values()]
    about = json.dumps([with_what, wall.name, dataclasses.astuple(limits), chapters, texts])
    try:
        progress = Progress(out, about)
    except Busy:
        raise fail(
            f"one grading writes into OUT at a time, got another one at work in {out}. "
            "Wait for it, or type: make grade SUBMISSIONS=folder OUT=another"
        ) from None
    whole = False
    try:
        with unfinished(out) as made:
            (made / "logs").mkdir()
            work = root / "w"
            work.mkdir()
            marks = mark_all(graded, progress, jobs, work, made / "logs")
            entries = [
                gradebook.Entry.of(student, marks[page])
                for student, page in zip(students, pages, strict=True)
            ]
            week = gradebook.Week(
                gradebook.week_name(folder, said.week),
                chapters,
                said.due_text,
                said.due.percent,
                roster.kind if roster else "",
                list(roster.columns) if roster else [],
                {id: c for chapter in chapters for id, c in moved.checks_of(chapter).items()},
                dict(gradebook.stubs_of(assignments)),
                asked(questions),
                entries,
                wall.name,
            )
            book.put(week, chosen=bool(chosen))
            told = publish.write(made, book, week)
            warn(made, book)
            earlier = put_in_place(made, out)
            book.save()
            whole = True
    except KeyboardInterrupt:
        kept = progress.count()
        more = f"; {kept} of {len(students)} students are done: type the same to go on"
        raise SystemExit(f"grade: stopped; nothing was written{more if kept else ''}") from None
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise fail(
            f"there must be room on the disk, got none in {out} or {root}; no table was touched, "
            f"{progress.count()} of {len(students)} students are done. Make room, and type the same"
        ) from None
    finally:
        progress.end(whole=whole)
    for line in told:
        print(line, flush=True)
    if earlier:
        print(f"what an earlier run wrote is in {earlier}", flush=True)
    minutes, rest = divmod(int(time.monotonic() - began), 60)
    count = sum(len(student.chapters) for student in students)
    notebooks = "1 notebook" if count == 1 else f"{count} notebooks"
    print(
        f"{len(students)} students, {notebooks} in {minutes} min {rest} s: "
        f"{out / 'grades.csv'}, {out / 'class.html'}"
    )


def warn(made: Path, book: Any) -> None:
    """Writes into the tables when a week was graded with nothing around students' code."""
    if any(week.isolation == PLAIN.name for week in book.weeks):
        warn_in_heads(made)


def write_anew(out: Path, said: Said) -> None:
    """Writes tables and pages of all weeks once more, with what was typed since."""
    from grading import gradebook, publish

    if said.roster is not None:
        raise fail("ROSTER comes with SUBMISSIONS, got it alone. Add SUBMISSIONS=folder")
    book = gradebook.Gradebook(out)
    book.settle()
    week = book.weeks[-1]
    if said.week is not None:
        name = gradebook.week_name(out, said.week)
        week = book.week(name)
        if week is None:
            known = ", ".join(week.name for week in book.weeks)
            raise fail(f"WEEK is one of {known}, got {name}. Change it")
    if said.due_text:
        week.due, week.percent = said.due_text, said.due.percent
    with unfinished(out) as made:
        told = publish.write(made, book, week)
        warn(made, book)
        earlier = put_in_place(made, out)
        book.save()
    for line in told:
        print(line)
    print(f"what an earlier run wrote is in {earlier}")
    print(f"written anew, nothing was run: {out / 'grades.csv'}, {out / 'totals.csv'}")


def load_checks(chapters: list[str]) -> None:
    """Imports the checks once, before the processes are made that judge."""
    import torch

    from checks.engine.verdict import exercises
    from grading.marks import OF_DIGITS

    torch.set_num_threads(1)
    for chapter in chapters:
        exercises(chapter)
    loaded = [sys.modules[f"checks.chapter_{chapter}"] for chapter in chapters]
    if any(hasattr(checks, "load_digits") for checks in loaded):
        for name in OF_DIGITS:
            import_module(name)
    gc.collect()
    gc.freeze()  # all of this stays: no student's process need look through it


def chosen_wall(wanted: str) -> Wall:
    """Chooses what keeps students' code apart, and says what it is."""
    try:
        wall, problems = choose(wanted)
    except ValueError as error:
        raise fail(str(error)) from None
    why = f" ({'; '.join(problems)})" if problems else ""
    print(f"isolation: {wall.words}{why}", flush=True)
    return wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("submissions", nargs="?", default="", help="folder of handed-in notebooks")
    parser.add_argument("--out", help="folder for the grades (default: SUBMISSIONS-grades)")
    parser.add_argument(
        "--chapter", action="append", default=[], help="grade this one (repeatable)"
    )
    parser.add_argument("--roster", help="csv file with a line for each student")
    parser.add_argument("--due", help="2026-11-20, with an hour if you like")
    parser.add_argument("--week", help="name of the week (default: that of the folder)")
    parser.add_argument(
        "--late-percent",
        type=float,
        default=0.0,
        help="of the points for each late day (default 0)",
    )
    # a student's judge and world wait for each other, for about a quarter of the time
    jobs = (os.cpu_count() or 1) + 1
    parser.add_argument("--jobs", type=int, default=jobs, help=f"students at once (here {jobs})")
    parser.add_argument("--cell-seconds", type=seconds, default=30.0, help="limit of a cell")
    parser.add_argument("--notebook-seconds", type=seconds, default=180.0, help="of a notebook")
    parser.add_argument("--memory", type=amount, default="3GB", help="of a notebook (default 3GB)")
    parser.add_argument(
        "--isolation",
        default="",
        help="podman, bubblewrap or plain (default: the first of them that works here)",
    )
    options = parser.parse_args()
    # Each process that judges takes one processor, beside the one of the student's code.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(ROOT), str(ROOT / "clinic")]
    if find_spec("nbgrader") is None:
        raise fail(
            "nbgrader does the grading, got no module nbgrader. "
            "Type: make grade, which installs it (requirements-grading.txt)"
        )
    try:
        dates = parse(options.due, options.late_percent)
        roster = read(Path(options.roster).expanduser()) if options.roster else None
        said = Said(options.week, dates, options.due or "", roster)
        if not options.submissions and options.out:
            write_anew(place_of_results(options.out), said)
            return
    except ValueError as error:
        raise fail(str(error)) from None
    folder, out = places(options.submissions, options.out)
    limits = Limits(options.cell_seconds, options.notebook_seconds, options.memory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        isolation, jobs = options.isolation, max(1, options.jobs)
        grade(folder, out, said, options.chapter, limits, jobs, isolation, root)
    except KeyboardInterrupt:
        raise SystemExit("grade: stopped; nothing was written") from None
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
