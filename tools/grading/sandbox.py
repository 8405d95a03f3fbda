"""The wall around students' code, made by the operating system, and how it is chosen.

A wall is a command that starts another command with little around it: no network, no processes but
its own, and of all files only Python, the course without its masters, and an empty folder in
memory. Which one works here is tried, best first. Where none does, students' code runs as the
instructor, and everything that is written says so.

    python -m tools.grading.sandbox      prints which walls work here, and how long each takes
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from tools.grading.cgroup import MOST_TASKS, most_memory

HERE = Path(__file__).resolve().parent
COURSE, GRADER, SCRATCH = Path("/course"), Path("/grader"), Path("/scratch")  # behind a wall
FOLDER_BYTES = 500_000_000  # what a notebook may write in all
NOBODY_UID = 65534
NO_ISOLATION = "no isolation: grade only people you trust"
TRIES = 60  # seconds for a trial; nothing is measured with it
# What Python and the libraries need of the system, as far as it is there.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
SETTINGS += ("/etc/alternatives", "/etc/fonts", "/etc/nsswitch.conf", "/etc/mime.types")


@dataclass(frozen=True)
class SandboxPaths:
    """Where things lie for the code behind the wall.

    Args:
        course: what it may read of the course.
        grader: the programs that run it.
        scratch: a folder in which it may write.
    """

    course: Path
    grader: Path
    scratch: Path


@dataclass(frozen=True)
class Sandbox:
    """One way to keep students' code away from everything else.

    Args:
        name: as it is chosen by.
        words: what the report says of it.
        holds: whether it keeps anything away at all.
        wrap: takes the command, where things lie outside, and bytes of memory; returns the command
            that runs the command behind the wall.
        tool: the program that makes it; "" for none.
        remove: takes where things lie outside, and whether the world has ended; takes away what
            does not go with the process that made it. None where nothing stays.
    """

    name: str
    words: str
    holds: bool
    wrap: Callable[[list[str], SandboxPaths, int], list[str]]
    tool: str = ""
    remove: Callable[[SandboxPaths, bool], None] | None = None

    def places(self, outside: SandboxPaths) -> SandboxPaths:
        """Return where things lie for the code, when outside they lie in the given places."""
        return SandboxPaths(COURSE, GRADER, SCRATCH) if self.holds else outside

    def problem(self) -> str | None:
        """Try it: says in a few words why it does not work here, None when it does."""
        if self.tool and not shutil.which(self.tool):
            return f"{self.tool} is not installed"
        if not self.holds:
            return None
        # Python must run, alone, and the folder of this file must not be there.
        seen = f"import os; print(os.path.exists({str(HERE)!r}), os.path.exists('/proc/self'))"
        with tempfile.TemporaryDirectory(prefix="wall-") as scratch:
            here = SandboxPaths(HERE, HERE, Path(scratch, "r"))
            try:
                command = self.wrap([sys.executable, "-I", "-c", seen], here, 2_000_000_000)
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TRIES, stdin=subprocess.DEVNULL
                )
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                return f"{self.tool} does not run: {error}"
            finally:
                if self.remove:
                    self.remove(here, False)
        if done.stdout.split() != ["False", "True"]:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
            return f"{self.tool} makes no wall here: {said[-1][:200]}"
        return None


def pythons() -> list[Path]:
    """Return the folders of Python and its packages that the system's do not hold."""
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
    """Return the places of the system that are shown as they are."""
    return [place for place in (*SYSTEM, *SETTINGS) if os.path.lexists(place)]


def _bubblewrap(command: list[str], places: SandboxPaths, memory: int) -> list[str]:
    wall = ["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    wall += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    wall += ["--uid", str(NOBODY_UID), "--gid", str(NOBODY_UID), "--hostname", "student"]
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
    wall += ["--size", str(FOLDER_BYTES), "--tmpfs", str(SCRATCH)]
    wall += ["--proc", "/proc", "--dev", "/dev"]
    wall += ["--size", str(FOLDER_BYTES), "--tmpfs", "/dev/shm"]
    wall += ["--mqueue", "/dev/mqueue", "--remount-ro", "/dev"]
    return [*wall, "--remount-ro", "/", "--chdir", str(SCRATCH), "--", *command]


def _help_of(tool: str) -> str:
    done = subprocess.run([tool, "--help"], capture_output=True, text=True)
    return done.stdout + done.stderr


# Podman's own pipes copy every byte twice more; these are handed through.
OUTER = 'exec 3<&0 4>&1 5>&2; exec "$@" < /dev/null > /dev/null'
INNER = 'exec "$@" <&3 >&4 2>&5 3<&- 4>&- 5>&-'
SECCOMP = Path("/usr/share/containers/seccomp.json")  # what podman lets containers ask the system
NAMESPACES = 0x7E020000  # flags of clone: all kinds of a world of one's own
USERS = 1_000_000_000  # the first of the numbers that users inside have outside, when root grades


def _podman(command: list[str], places: SandboxPaths, memory: int) -> list[str]:
    """Make the command of a container without an image: it shows what bubblewrap's world shows."""
    wall = [*_podman_run(_runtime()), "--name", _container(places)]
    wall += ["--hostname", "student", "--user", f"{NOBODY_UID}:{NOBODY_UID}", "--no-hosts"]
    wall += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--ipc", "private"]
    wall += ["--pids-limit", str(MOST_TASKS), "--memory", str(most_memory(memory))]
    wall += ["--shm-size", str(FOLDER_BYTES), "--preserve-fds", "3", "--workdir", str(SCRATCH)]
    for place in ("/tmp", str(SCRATCH)):
        wall += ["--tmpfs", f"{place}:rw,exec,nosuid,nodev,mode=1777,size={FOLDER_BYTES}"]
    shown = [(str(place), str(place)) for place in pythons()]
    shown += [(str(places.course), str(COURSE)), (str(places.grader), str(GRADER))]
    inside = ["/bin/sh", "-c", INNER, "sh", *command]
    folder = _folder_of(places)
    rest = _in_empty_root(folder / "root", shown)
    rules = folder / "seccomp.json"
    rules.write_text(json.dumps(_rules(json.loads(SECCOMP.read_text()))))
    wall += ["--security-opt", f"seccomp={rules}"]
    return ["/bin/sh", "-c", OUTER, "sh", *wall, *rest, *inside]


def _rules(usual: dict[str, Any]) -> dict[str, Any]:
    """Take from podman's rules that one may make a world of one's own, with its weak places."""
    names = {"clone", "clone3", "setns", "unshare"}
    rules = [
        {**rule, "names": [name for name in rule["names"] if name not in names]}
        for rule in usual["syscalls"]
    ]
    allowed = {"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules += [
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [allowed]},
        # Its flags cannot be looked at. Where it is not there, programs take clone.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    return {**usual, "syscalls": [rule for rule in rules if rule["names"]]}


def _podman_run(runtime: list[str]) -> list[str]:
    """Return how every container is started."""
    import resource  # not on Windows

    run = ["podman", *runtime, "run", "--rm", "--network", "none", "--log-driver", "none"]
    run += ["--read-only", "--read-only-tmpfs=false"]
    for name, wanted in (("nofile", 4096), ("nproc", 8192)):  # podman asks for more than it may
        _, most = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        number = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        run += ["--ulimit", f"{name}={number}:{number}"]
    if os.geteuid() == 0:  # others have users of their own in any case
        run += ["--uidmap", f"0:{USERS}:65536", "--gidmap", f"0:{USERS}:65536"]
    return run


def _in_empty_root(root: Path, shown: list[tuple[str, str]]) -> list[str]:
    """Make an empty folder the root of a container, with the system and what is shown in it.

    Args:
        root: a new folder.
        shown: folders outside, and where they lie inside.
    """
    for folder in root.parent.parent.glob("grade-*-*"):  # of gradings that were killed
        number = folder.name.split("-")[1]
        if number.isdigit() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)
    root.mkdir(parents=True)
    wall = []
    for place in map(Path, _system()):
        if place.is_symlink():
            inside = root / str(place)[1:]
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(place.readlink())
        else:
            wall += ["--mount", f"type=bind,ro=true,source={place},destination={place}"]
    for place, where in shown:
        wall += ["--mount", f"type=bind,ro=true,source={place},destination={where}"]
    if os.geteuid() == 0:  # whoever is root inside mounts into it
        for path in (root, *root.rglob("*")):
            os.chown(path, USERS, USERS, follow_symlinks=False)
    return [*wall, "--rootfs", str(root)]


@cache
def _runtime() -> list[str]:
    """Choose what podman starts containers with: its own choice, unless only another one runs."""
    for runtime in ([], ["--runtime", "runc"], ["--runtime", "crun"]):
        folder = _folder_of(SandboxPaths(HERE, HERE, Path("/trial", *runtime)))
        try:
            command = [*_podman_run(runtime), *_in_empty_root(folder / "root", [])]
            command += ["/usr/bin/env", "true"]
            if not subprocess.run(command, capture_output=True, timeout=TRIES).returncode:
                return runtime
        except (OSError, subprocess.TimeoutExpired):
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return []


def _container(places: SandboxPaths) -> str:
    """Return the name of the container of a world."""
    return f"grade-{os.getpid()}-{hashlib.sha256(str(places.scratch).encode()).hexdigest()[:12]}"


def _folder_of(places: SandboxPaths) -> Path:
    """Return where the root of a container is made; users inside must be able to come there."""
    parent = Path("/run") if os.geteuid() == 0 else Path(tempfile.gettempdir())
    return parent / _container(places)


def _remove_container(places: SandboxPaths, is_ended: bool) -> None:
    """End the container of a world, if it still runs, and remove its root."""
    command = ["podman", "rm", "--force", "--ignore", "--time", "0", _container(places)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if not is_ended:
            subprocess.run(command, capture_output=True, timeout=TRIES, check=False)
    shutil.rmtree(_folder_of(places), ignore_errors=True)


def _plain(command: list[str], places: SandboxPaths, memory: int) -> list[str]:
    return command


BUBBLEWRAP = Sandbox(
    "bubblewrap",
    "bubblewrap: own users, processes, network and files; nothing of yours can be reached",
    True,
    _bubblewrap,
    "bwrap",
)
PODMAN = Sandbox(
    "podman",
    "podman: a container of its own, without an image; nothing of yours can be reached",
    True,
    _podman,
    "podman",
    _remove_container,
)
PLAIN = Sandbox("plain", NO_ISOLATION, False, _plain)
SANDBOXES = (PODMAN, BUBBLEWRAP, PLAIN)


def choose(wanted: str = "") -> tuple[Sandbox, list[str]]:
    """Return the first wall that works here, and why those before it do not.

    Args:
        wanted: the name of one, when no other will do; "" for the best.

    Raises:
        ValueError: the wanted one does not work, or there is none of that name.
    """
    named = {wall.name: wall for wall in SANDBOXES}
    if wanted and wanted not in named:
        raise ValueError(f"--isolation is one of {', '.join(named)}, got {wanted}. Change it")
    problems = []
    for wall in [named[wanted]] if wanted else SANDBOXES:
        problem = wall.problem()
        if problem is None:
            return wall, problems
        problems.append(problem)
    raise ValueError(
        f"--isolation {wanted} must work here, got: {problems[-1]}. "
        "Install it (apt install bubblewrap), or leave the option away"
    )


def seconds(wall: Sandbox, tries: int = 5) -> float:
    """Return how long a world takes in which nothing is done, from its making to its end."""
    took = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="wall-") as scratch:
            here = SandboxPaths(HERE, HERE, Path(scratch, "r"))
            began = time.monotonic()
            command = wall.wrap(["/usr/bin/env", "true"], here, 2_000_000_000)
            subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
            if wall.remove:
                wall.remove(here, True)
            took.append(time.monotonic() - began)
    return median(took)


if __name__ == "__main__":
    for one in SANDBOXES:
        found = one.problem()
        print(f"{one.name:11}", found or f"a world is made and ended in {seconds(one):.2f} s")
