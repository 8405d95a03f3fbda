"""Limits for all processes of a sandbox together, enforced by the system where it permits that.

A control group (cgroup) limits the memory and the number of the processes in it. Root, or a
container, may make one; most other users may not, and then only the supervisor in fork_server.py
enforces limits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MOST_TASKS = 500  # processes and threads: those of the notebook, and those that libraries start
SPARE = 1_500_000_000  # bytes for the fork server and for files in memory
EMPTY_CHECKS = 500  # of a group whose processes were killed
# Join the groups that are named first, then become the command.
JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || :; shift; done; shift; exec "$@"'
_count = itertools.count(1)


def most_memory(notebook: int) -> int:
    """Return the bytes that a sandbox may take if its notebooks may take `notebook` bytes."""
    return notebook * 5 // 4 + SPARE


class Group:
    """The control group of one sandbox; without effect if the system permits none.

    Args:
        memory: bytes that a notebook may take.
        root: the folder of the system's groups.
    """

    def __init__(self, memory: int, root: Path = ROOT):
        name = f"grade-{os.getpid()}-{next(_count)}"
        most = {"memory": most_memory(memory), "pids": MOST_TASKS}
        self.folders: list[Path] = []
        if (root / "cgroup.controllers").is_file():
            files = {"memory.max": most["memory"], "pids.max": most["pids"]}
            self._make(root / name, files)
            return
        self._make(root / "memory" / name, {"memory.limit_in_bytes": most["memory"]})
        self._make(root / "pids" / name, {"pids.max": most["pids"]})

    def _make(self, folder: Path, files: dict[str, int]) -> None:
        try:
            if not folder.parent.is_dir():
                return
            remove_stale(folder.parent)
            folder.mkdir()
        except OSError:  # read-only, or of another user
            return
        try:
            for name, number in files.items():
                (folder / name).write_text(str(number))
            self.folders.append(folder)
        except OSError:  # this system has no such controller
            with contextlib.suppress(OSError):
                folder.rmdir()

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command that runs a command in the group."""
        if not self.folders:
            return command
        return ["/bin/sh", "-c", JOIN, "sh", *map(str, self.folders), "--", *command]

    def end(self) -> None:
        """Kill the processes that are still in the group, and remove it."""
        for folder in self.folders:
            for _ in range(EMPTY_CHECKS):
                with contextlib.suppress(OSError, ValueError):
                    for process in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(process), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)  # killed processes take a moment to end
        self.folders = []


def remove_stale(parent: Path) -> None:
    """Remove the empty groups of runs that were killed."""
    for folder in parent.glob("grade-*-*"):
        number = folder.name.split("-")[1]
        if number.isdigit() and not Path("/proc", number).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
