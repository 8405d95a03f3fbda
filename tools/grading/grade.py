"""Grade a folder of submissions: tables, a report about the class, a page for each student.

The folder holds one folder, zip file or notebook for each student; see collect.py. It is only read.
The notebooks of each student run in a sandbox with limits; failures cost only that student's
points. To continue a stopped run, type the same again. Without a folder, tables and pages of an
earlier run are written again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tools.commands import CALL, Refusal, as_typed, parse_arguments
from tools.environment import INTERRUPTED
from tools.grading.grade_class import Grading, Settings, WeekOptions, rewrite_results
from tools.grading.late_policy import parse
from tools.grading.results_folder import BOOK, is_of_earlier_run
from tools.grading.run_notebook import Limits


def folders(submissions: str, out: str | None) -> tuple[Path, Path]:
    """Return the folders of submissions and of results, or refuse them."""
    if not submissions:
        raise Refusal(
            "SUBMISSIONS must be the folder of submissions, got none. "
            f"Type: {as_typed('grade folder')}"
        )
    folder = Path(submissions).expanduser().resolve()
    if folder.is_file() and folder.suffix.lower() == ".zip":
        raise Refusal(
            f"SUBMISSIONS must be a folder, got the zip file {submissions}. Unpack it first."
        )
    if not folder.is_dir():
        raise Refusal(
            f"SUBMISSIONS must be a folder, got {submissions}, which does not exist. "
            "Check the name."
        )
    target = Path(out).expanduser().resolve() if out else folder.with_name(f"{folder.name}-grades")
    if target == folder or target.is_relative_to(folder) or folder.is_relative_to(target):
        raise Refusal(
            f"OUT must be outside of the submissions, got {target}. "
            f"Type: {as_typed('grade folder --out another')}"
        )
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty and not is_of_earlier_run(target):
        raise Refusal(
            f"OUT must be new, empty or the results of an earlier run, got {target} with other "
            f"files. Type: {as_typed('grade folder --out another')}"
        )
    return folder, target


def results_of_earlier_run(out: str) -> Path:
    """Return the folder of results whose tables are written again."""
    target = Path(out).expanduser().resolve()
    if not is_of_earlier_run(target) or not (target / BOOK).is_dir():
        raise Refusal(
            f"without SUBMISSIONS, OUT must hold the results of an earlier run, got {out}. "
            f"Type: {as_typed('grade folder --out results')}"
        )
    return target


def main(arguments: Sequence[str] = ()) -> None:
    options = parse_arguments("grade", arguments)
    # Each process that runs checks uses one core, in addition to the one of the student's code.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("nbgrader", "distributed") if options.scheduler else ("nbgrader",):
        if find_spec(name) is None:
            raise Refusal(
                f"{name} must be installed, got no module {name}. Type: {CALL} install dev",
                status=1,
            )
    try:
        policy = parse(options.due, options.late_percent)
    except ValueError as error:
        raise Refusal(str(error)) from None
    roster = Path(options.roster).expanduser() if options.roster else None
    week = WeekOptions(options.week, policy, options.due or "", roster)
    if not options.submissions and options.out:
        rewrite_results(results_of_earlier_run(options.out), week)
        return
    folder, out = folders(options.submissions, options.out)
    limits = Limits(options.cell_seconds, options.notebook_seconds, options.memory)
    settings = Settings(
        options.chapter, limits, options.jobs, options.isolation or "", options.scheduler or ""
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        Grading(folder, out, week, settings, root).run()
    except KeyboardInterrupt:
        raise Refusal("stopped; nothing was written", INTERRUPTED) from None
    finally:
        shutil.rmtree(root, ignore_errors=True)
