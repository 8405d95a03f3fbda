"""Limits of the system for all processes of a world: made where they can be, removed afterwards."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="nothing is graded on Windows")

from tools.grading.cgroup import MOST_TASKS, Group


def made_up(root: Path, *, new: bool) -> None:
    """Make a folder that looks like the system's; its groups have no files of their own."""
    if new:
        (root / "cgroup.controllers").write_text("memory pids")
    else:
        (root / "memory").mkdir()
        (root / "pids").mkdir()


@pytest.mark.parametrize(("new", "count"), [(True, 1), (False, 2)])
def test_both_kinds_of_groups_get_their_limits_and_the_command_joins(tmp_path, new, count):
    made_up(tmp_path, new=new)
    group = Group(10**9, tmp_path)
    folders = list(group.folders)
    assert len(folders) == count
    limits = {file.name: file.read_text() for folder in folders for file in folder.iterdir()}
    assert limits["pids.max"] == str(MOST_TASKS) and len(limits) == 2
    done = subprocess.run(
        group.around(["/bin/echo", "-n", "a b"]), capture_output=True, text=True, check=True
    )
    assert done.stdout == "a b"
    joined = {(folder / "cgroup.procs").read_text().strip() for folder in folders}
    assert len(joined) == 1 and joined.pop().isdigit()
    for file in (file for folder in folders for file in folder.iterdir()):
        file.unlink()  # the system's are no real files
    group.end()
    assert not any(folder.exists() for folder in folders)


def test_what_is_still_in_a_group_is_ended_and_left_over_groups_go(tmp_path):
    made_up(tmp_path, new=True)
    left_over, of_others = tmp_path / "grade-999999999-1", tmp_path / "grade-1-1"
    for folder in (left_over, of_others):
        folder.mkdir()
    group = Group(10**9, tmp_path)
    assert not left_over.exists() and of_others.exists()
    (folder,) = group.folders
    process = subprocess.Popen(["sleep", "600"])
    for file in folder.iterdir():
        file.unlink()
    (folder / "cgroup.procs").write_text(str(process.pid))
    thread = threading.Thread(target=group.end)
    thread.start()
    assert process.wait(timeout=600) == -signal.SIGKILL
    (folder / "cgroup.procs").unlink()  # the system does that when the last process has ended
    thread.join()
    assert not folder.exists()


def test_where_none_can_be_made_the_command_stays_as_it_is(tmp_path):
    group = Group(10**9, tmp_path / "nothing")
    assert group.around(["true"]) == ["true"]
    group.end()
