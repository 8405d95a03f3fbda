"""Grade a folder of submissions: tables, a report about the class, a page for each student.

    make grade SUBMISSIONS=folder                  writes folder-grades beside it
    make grade SUBMISSIONS=folder OUT=results      writes results
    make grade SUBMISSIONS=folder ARGS="--chapter 03 --jobs 4"
    make grade SUBMISSIONS=week2 OUT=term ROSTER=class.csv DUE="2026-11-20 18:00"
    make grade OUT=term                            writes tables and pages again, runs nothing

The folder holds one folder, zip file or notebook for each student; see collect.py. It is only read.
The notebooks of each student run in a sandbox with limits; failures cost only that student's
points. To continue a stopped run, type the same again. See INSTRUCTORS.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tools.grading.grade_class import (
    Grading,
    GradingError,
    Settings,
    WeekOptions,
    rewrite_results,
)
from tools.grading.late_policy import parse
from tools.grading.results_folder import BOOK, is_of_earlier_run
from tools.grading.run_notebook import Limits


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


def folders(submissions: str, out: str | None) -> tuple[Path, Path]:
    """Return the folders of submissions and of results, or refuse them."""
    if not submissions:
        raise fail(
            "SUBMISSIONS must be the folder of submissions, got none. "
            "Type: make grade SUBMISSIONS=folder"
        )
    folder = Path(submissions).expanduser().resolve()
    if folder.is_file() and folder.suffix.lower() == ".zip":
        raise fail(
            f"SUBMISSIONS must be a folder, got the zip file {submissions}. Unpack it first."
        )
    if not folder.is_dir():
        raise fail(
            f"SUBMISSIONS must be a folder, got {submissions}, which does not exist. "
            "Check the name."
        )
    target = Path(out).expanduser().resolve() if out else folder.with_name(f"{folder.name}-grades")
    if target == folder or target.is_relative_to(folder) or folder.is_relative_to(target):
        raise fail(f"--out must be outside of the submissions, got {target}. Name another folder.")
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not is_of_earlier_run(target):
        raise fail(
            "--out must be new, empty or the results of an earlier run, got "
            f"{target} with other files. Name another folder."
        )
    return folder, target


def results_of_earlier_run(out: str) -> Path:
    """Return the folder of results whose tables are written again."""
    target = Path(out).expanduser().resolve()
    if not is_of_earlier_run(target) or not (target / BOOK).is_dir():
        raise fail(
            f"without SUBMISSIONS, --out must hold the results of an earlier run, got {out}. "
            "Type: make grade SUBMISSIONS=folder OUT=results"
        )
    return target


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
    if find_spec("nbgrader") is None:
        raise fail(
            "nbgrader does the grading, got no module nbgrader. "
            "Type: make grade, which installs it (requirements-grading.txt)"
        )
    try:
        dates = parse(options.due, options.late_percent)
        roster = Path(options.roster).expanduser() if options.roster else None
        week = WeekOptions(options.week, dates, options.due or "", roster)
        if not options.submissions and options.out:
            rewrite_results(results_of_earlier_run(options.out), week)
            return
    except (ValueError, GradingError) as error:
        raise fail(str(error)) from None
    folder, out = folders(options.submissions, options.out)
    limits = Limits(options.cell_seconds, options.notebook_seconds, options.memory)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        jobs = max(1, options.jobs)
        settings = Settings(options.chapter, limits, jobs, options.isolation)
        Grading(folder, out, week, settings, root).run()
    except GradingError as error:
        raise fail(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("grade: stopped; nothing was written") from None
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
