"""Collect the exercises of all students of a hub: OUT/WEEK/NAME/03_exercises.ipynb.

`make grade SUBMISSIONS=OUT/WEEK` reads the folder. Only exercises in which the student wrote
something are copied, each with the time at which it was saved; that time is under the student's
control, so collect when the work is due. A second collection of a week replaces the first one as a
whole, which moves to OUT/earlier.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tools.commands import Refusal, as_typed, parse_arguments
from tools.course.local_changes import beginning, fingerprint
from tools.course.registry import course
from tools.grading.collect import Collector
from tools.grading.gradebook import week_name
from tools.grading.results_folder import EARLIER
from tools.grading.roster import Matching, Person
from tools.hub.accounts import Account
from tools.hub.homes import HomeFailed, Hub, one_line

# In a home. nbgitpuller clones the course there.
EXERCISES = "attention/notebooks/exercises"
MAX_BYTES = 20_000_000  # of one notebook; a chapter with pictures has about 1 MB
HEAD = 1000  # bytes of the line before each notebook


def chosen(prefixes: list[str]) -> list[str]:
    """Return the file names of the exercises whose names begin with one of the prefixes."""
    names = [chapter.exercises.name for chapter in course().chapters]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise Refusal(f"NB must be numbers of chapters, got {prefix}. Write 03.")
    return [name for name in names if name.startswith(tuple(prefixes or [""]))]


def parsed(answer: bytes, names: list[str]) -> list[tuple[str, bytes, int, str]]:
    """Return name, content, time and remark of each notebook in the answer of in_home.py.

    Raises:
        HomeFailed: the answer is not valid.
    """
    stream, left, found = io.BytesIO(answer), ["", *names], []
    try:
        while line := stream.readline(HEAD):
            name, size, changed, remark = json.loads(line)
            left.remove(name)  # each at most once
            content = stream.read(size)
            if len(content) != size or type(changed) is not int:
                raise ValueError
            found.append((name, content, changed, one_line(remark)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise HomeFailed("an answer from the home that is not valid") from None
    return found


def is_untouched(content: bytes) -> bool:
    """Return whether a notebook equals the released one."""
    try:
        return fingerprint("x.ipynb", content) == beginning("x.ipynb", content)
    except RecursionError:
        return False


def folder_names(hub: Hub, scratch: Path) -> dict[Account, str]:
    """Return a name of a folder for each account that the grader recognizes as this student."""
    matching, found = hub.matching(), {}
    for account in hub.accounts:
        forms = [account.name]
        forms += [f"{account.name} ({id})" for id in (account.email, account.id) if id]
        forms += [f"{account.name}_{account.id}_assignsubmission_file_", account.username]
        plain = (re.sub(r"[^\w .,'()@+-]", "_", form)[-150:].strip(" .-") for form in forms)
        own = (
            name for name in plain if name and _owner(name, matching, scratch) == account.username
        )
        found[account] = next(own, f"{account.username} [{len(found)}]")  # unlike any form above
    return found


def _owner(name: str, matching: Matching, scratch: Path) -> str:
    """Return the username of the student that the grader sees in the name of a folder."""
    folder = scratch / name
    folder.mkdir()
    owner = Collector(scratch, {}, scratch).owner(folder)
    folder.rmdir()
    whose = matching.whose(owner.name, owner.id)
    return whose.row["username"] if isinstance(whose, Person) else ""


def copy(hub: Hub, account: Account, names: list[str], folder: Path) -> tuple[list[str], str]:
    """Copy the notebooks of one student into a folder.

    Returns:
        The copied chapters, and a line about them.
    """
    copied, remarks = [], []
    place = f"{account.home}/{EXERCISES}"
    try:
        most = len(names) * (MAX_BYTES + HEAD)
        answer = hub.run(account, "read", place, str(MAX_BYTES), *names, most=most)
        for name, content, changed, remark in parsed(answer, names):
            if remark:
                remarks.append(f"{name[:2]} {remark}".strip())
            if not content or is_untouched(content):
                continue
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
            moment = min(max(changed, 0), time.time_ns())
            os.utime(folder / name, ns=(moment, moment))
            copied.append(name[:2])
    except HomeFailed as error:
        remarks.append(str(error))
    return copied, "; ".join([", ".join(sorted(copied)) or "nothing copied", *remarks])


def main(arguments: Sequence[str] = ()) -> None:
    options = parse_arguments("collect", arguments)
    hub, names = Hub.read(options.hub), chosen(options.names)
    if options.week != week_name(Path(), options.week) or options.week == EARLIER:
        raise Refusal(f"WEEK must be a name of letters and digits, got {options.week!r}. Write 3.")
    out = Path(options.out).expanduser().resolve()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (there := out.stat()).st_uid != os.geteuid() or there.st_mode & 0o022:
        raise Refusal(
            f"OUT must be a folder in which only you can write, got {out}. Name a new one."
        )
    made = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=out))
    try:
        count = 0
        for account, folder in folder_names(hub, made).items():
            copied, line = copy(hub, account, names, made / folder)
            print(f"{one_line(account.name)}: {line}", flush=True)
            count += len(copied)
        if not count:
            raise Refusal(
                f"a student must have written in an exercise, got none in {hub.folder}; nothing "
                "was changed. Check the lines above.",
                status=1,
            )
        put_in_place(made, out / options.week)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"{count} notebooks. Type: {as_typed(f'grade {out / options.week}')}")


def put_in_place(made: Path, week: Path) -> None:
    """Make a new folder the folder of the week, and keep the one that was there."""
    if not week.exists():
        made.rename(week)
        return
    date = datetime.now().strftime("%Y-%m-%d %H.%M.%S.%f")
    earlier = week.parent / EARLIER / f"{week.name} until {date}"
    earlier.parent.mkdir(mode=0o700, exist_ok=True)
    week.rename(earlier)
    try:
        made.rename(week)
    except OSError:
        earlier.rename(week)
        raise
