"""Limits that the system itself keeps for all processes of a world together, where it lets us.

A control group (cgroup) counts the memory and the processes of whatever is started in it. Whoever
grades as root, or in a container, may make one; most others may not, and then warm.py alone watches
what it can.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MOST_TASKS = 500  # processes and threads: what warm.py allows, and what libraries start beside
SPARE = 1_500_000_000  # bytes beside a notebook's: the warm process, and files in memory
LOOKS = 500  # at a group that must become empty
# Joins the groups named first, then becomes the command.
JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || :; shift; done; shift; exec "$@"'
_count = itertools.count(1)


def most_memory(notebook: int) -> int:
    """Return the bytes that a world may take, whose notebooks may take so many."""
    return notebook * 5 // 4 + SPARE


class Group:
    """A control group of one world; without effect where none can be made.

    Args:
        memory: bytes that a notebook may take.
        root: where the system shows its groups.
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
            remove_left_over(folder.parent)
            folder.mkdir()
        except OSError:  # read-only, or not ours
            return
        try:
            for name, number in files.items():
                (folder / name).write_text(str(number))
            self.folders.append(folder)
        except OSError:  # this system counts something else
            with contextlib.suppress(OSError):
                folder.rmdir()

    def around(self, command: list[str]) -> list[str]:
        """Return the command that runs a command in the group."""
        if not self.folders:
            return command
        return ["/bin/sh", "-c", JOIN, "sh", *map(str, self.folders), "--", *command]

    def end(self) -> None:
        """End what is still in the group, and remove it."""
        for folder in self.folders:
            for _ in range(LOOKS):
                with contextlib.suppress(OSError, ValueError):
                    for process in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(process), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.01)  # what was killed is still on its way out
        self.folders = []


def remove_left_over(parent: Path) -> None:
    """Remove the empty groups of gradings that were killed."""
    for folder in parent.glob("grade-*-*"):
        number = folder.name.split("-")[1]
        if number.isdigit() and not Path("/proc", number).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
