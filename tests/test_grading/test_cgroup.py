"""Control groups of sandboxes: made where the system permits it, removed afterwards."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="nothing is graded on Windows")

from tools.grading.cgroup import MOST_TASKS, Group


def made_up(root: Path, *, new: bool) -> None:
    """Make a folder like the system's, but without the files that a real group has."""
    if new:
        (root / "cgroup.controllers").write_text("memory pids")
    else:
        (root / "memory").mkdir()
        (root / "pids").mkdir()


@pytest.mark.parametrize(("new", "count"), [(True, 1), (False, 2)])
def test_both_versions_of_cgroups_get_their_limits_and_the_command_joins(tmp_path, new, count):
    made_up(tmp_path, new=new)
    group = Group(10**9, tmp_path)
    folders = list(group.folders)
    assert len(folders) == count
    limits = {file.name: file.read_text() for folder in folders for file in folder.iterdir()}
    assert limits["pids.max"] == str(MOST_TASKS) and len(limits) == 2
    done = subprocess.run(
        group.wrap(["/bin/echo", "-n", "a b"]), capture_output=True, text=True, check=True
    )
    assert done.stdout == "a b"
    joined = {(folder / "cgroup.procs").read_text().strip() for folder in folders}
    assert len(joined) == 1 and joined.pop().isdigit()
    for file in (file for folder in folders for file in folder.iterdir()):
        file.unlink()  # a real group has no files to remove
    group.end()
    assert not any(folder.exists() for folder in folders)


def test_processes_in_a_group_are_killed_and_stale_groups_are_removed(tmp_path):
    made_up(tmp_path, new=True)
    stale, of_another_run = tmp_path / "grade-999999999-1", tmp_path / "grade-1-1"
    for folder in (stale, of_another_run):
        folder.mkdir()
    group = Group(10**9, tmp_path)
    assert not stale.exists() and of_another_run.exists()
    (folder,) = group.folders
    process = subprocess.Popen(["sleep", "600"])
    for file in folder.iterdir():
        file.unlink()
    (folder / "cgroup.procs").write_text(str(process.pid))
    thread = threading.Thread(target=group.end)
    thread.start()
    assert process.wait(timeout=600) == -signal.SIGKILL
    (folder / "cgroup.procs").unlink()  # the system does this after the last process
    thread.join()
    assert not folder.exists()


def test_without_permission_the_command_stays_unchanged(tmp_path):
    group = Group(10**9, tmp_path / "nothing")
    assert group.wrap(["true"]) == ["true"]
    group.end()
