"""The wall around students' code, made by the operating system, and how it is chosen.

A wall is a command that starts another command with little around it: no network, no processes but
its own, and of all files only Python, the course without its masters, and an empty folder in
memory. Which one works here is tried, best first. Where none does, students' code runs as the
instructor, and everything that is written says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
COURSE, GRADER, ROOM = Path("/course"), Path("/grader"), Path("/room")  # behind a wall
FOLDER_BYTES = 500_000_000  # what a notebook may write in all
NOBODY = 65534
NO_ISOLATION = "no isolation: grade only people you trust"
TRIES = 60  # seconds for a trial; nothing is measured with it
# What Python and the libraries need of the system, as far as it is there.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
SETTINGS += ("/etc/alternatives", "/etc/fonts", "/etc/nsswitch.conf", "/etc/mime.types")


@dataclass(frozen=True)
class Places:
    """Where things lie for the code behind the wall.

    Args:
        course: what it may read of the course.
        grader: the programs that run it.
        room: a folder in which it may write.
    """

    course: Path
    grader: Path
    room: Path


@dataclass(frozen=True)
class Wall:
    """One way to keep students' code away from everything else.

    Args:
        name: as it is chosen by.
        words: what the report says of it.
        holds: whether it keeps anything away at all.
        wrap: takes the command, where things lie outside, and bytes of memory; returns the command
            that runs the command behind the wall.
        tool: the program that makes it; "" for none.
    """

    name: str
    words: str
    holds: bool
    wrap: Callable[[list[str], Places, int], list[str]]
    tool: str = ""

    def places(self, outside: Places) -> Places:
        """Returns where things lie for the code, when outside they lie in the given places."""
        return Places(COURSE, GRADER, ROOM) if self.holds else outside

    def problem(self) -> str | None:
        """Tries it: says in a few words why it does not work here, None when it does."""
        if self.tool and not shutil.which(self.tool):
            return f"{self.tool} is not installed"
        if not self.holds:
            return None
        here = Places(HERE, HERE, HERE)
        # Python must run, alone, and the folder of this file must not be there.
        seen = f"import os; print(os.path.exists({str(HERE)!r}), os.path.exists('/proc/self'))"
        command = self.wrap([sys.executable, "-I", "-c", seen], here, 2_000_000_000)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TRIES, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.tool} does not run: {error}"
        if done.stdout.split() != ["False", "True"]:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
            return f"{self.tool} makes no wall here: {said[-1][:200]}"
        return None


def pythons() -> list[Path]:
    """Returns the folders of Python and its packages that the system's do not hold."""
    found = {Path(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    found |= {place.resolve() for place in found}
    # python in a virtual environment is a link, maybe over several others
    link = Path(sys.executable)
    while link.is_symlink():
        link = link.parent / link.readlink()
        found.add(Path(os.path.normpath(link)).parent.parent)
    outer = [place for place in found if not place.is_relative_to("/usr")]
    return sorted(place for place in outer if place != Path("/"))


def _system() -> list[str]:
    """Returns the places of the system that are shown as they are."""
    return [place for place in (*SYSTEM, *SETTINGS) if os.path.lexists(place)]


def _bubblewrap(command: list[str], places: Places, memory: int) -> list[str]:
    wall = ["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    wall += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    wall += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "student"]
    wall += ["--cap-drop", "ALL", "--clearenv", "--as-pid-1"]
    # Nothing inside can make a wall of its own, behind which the system's weak places lie open.
    if "--disable-userns" in _help_of("bwrap"):
        wall += ["--disable-userns"]
    wall += ["--size", str(FOLDER_BYTES), "--tmpfs", "/tmp"]
    for place in _system():
        link = Path(place)
        wall += (
            ["--symlink", str(link.readlink()), place]
            if link.is_symlink()
            else ["--ro-bind", place, place]
        )
    for place in pythons():
        wall += ["--ro-bind", str(place), str(place)]
    wall += ["--ro-bind", str(places.course), str(COURSE)]
    wall += ["--ro-bind", str(places.grader), str(GRADER)]
    wall += ["--size", str(FOLDER_BYTES), "--tmpfs", str(ROOM)]
    wall += ["--proc", "/proc", "--dev", "/dev"]
    wall += ["--size", str(FOLDER_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*wall, "--remount-ro", "/", "--chdir", str(ROOM), "--", *command]


def _help_of(tool: str) -> str:
    done = subprocess.run([tool, "--help"], capture_output=True, text=True)
    return done.stdout + done.stderr


def _plain(command: list[str], places: Places, memory: int) -> list[str]:
    return command


BUBBLEWRAP = Wall(
    "bubblewrap",
    "bubblewrap: own users, processes, network and files; nothing of yours can be reached",
    True,
    _bubblewrap,
    "bwrap",
)
PLAIN = Wall("plain", NO_ISOLATION, False, _plain)
WALLS = (BUBBLEWRAP, PLAIN)


def choose(wanted: str = "") -> tuple[Wall, list[str]]:
    """Returns the first wall that works here, and why those before it do not.

    Args:
        wanted: the name of one, when no other will do; "" for the best.

    Raises:
        ValueError: the wanted one does not work, or there is none of that name.
    """
    named = {wall.name: wall for wall in WALLS}
    if wanted and wanted not in named:
        raise ValueError(f"--isolation is one of {', '.join(named)}, got {wanted}. Change it")
    problems = []
    for wall in [named[wanted]] if wanted else WALLS:
        problem = wall.problem()
        if problem is None:
            return wall, problems
        problems.append(problem)
    raise ValueError(
        f"--isolation {wanted} must work here, got: {problems[-1]}. "
        "Install it (apt install bubblewrap), or leave the option away"
    )
