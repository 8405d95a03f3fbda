"""The sandboxes for students' code, and the choice between them.

A sandbox is a command that starts another command without network, without other processes, and
with a few files only: Python, the course without its solutions, and an empty folder in memory. The
first sandbox that works on this machine is used. If none works, students' code runs with the
instructor's rights, and all results say so.

    python -m tools.grading.sandbox      tests every sandbox on this machine and measures its start
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
# Paths inside of a sandbox.
COURSE, GRADER, SCRATCH = Path("/course"), Path("/grader"), Path("/scratch")
FOLDER_BYTES = 500_000_000  # that a notebook may write
NOBODY_UID = 65534
NO_ISOLATION = "no isolation: grade only people you trust"
TRIAL_SECONDS = 60  # for one test of a sandbox
# System folders that Python and the libraries need; missing ones are skipped.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
SETTINGS += ("/etc/alternatives", "/etc/fonts", "/etc/nsswitch.conf", "/etc/mime.types")


@dataclass(frozen=True)
class SandboxPaths:
    """The folders that students' code uses.

    Args:
        course: the part of the course that the code may read.
        grader: the programs that run the code.
        scratch: the folder that the code may write to.
    """

    course: Path
    grader: Path
    scratch: Path


@dataclass(frozen=True)
class Sandbox:
    """One way to isolate students' code.

    Args:
        name: the value of --isolation that selects it.
        description: one line for the instructor.
        isolates: False for `PLAIN`, which isolates nothing.
        wrap: takes a command, the paths outside of the sandbox and bytes of memory; returns the
            command that runs it in the sandbox.
        tool: the program that makes the sandbox; "" for none.
        remove: takes the paths outside of the sandbox, and whether its process has ended; removes
            what outlives that process. None if nothing does.
    """

    name: str
    description: str
    isolates: bool
    wrap: Callable[[list[str], SandboxPaths, int], list[str]]
    tool: str = ""
    remove: Callable[[SandboxPaths, bool], None] | None = None

    def paths(self, outside: SandboxPaths) -> SandboxPaths:
        """Return the paths inside of the sandbox for the given paths outside of it."""
        return SandboxPaths(COURSE, GRADER, SCRATCH) if self.isolates else outside

    def problem(self) -> str | None:
        """Return why this sandbox does not work on this machine; None if it works."""
        if self.tool and not shutil.which(self.tool):
            return f"{self.tool} is not installed"
        if not self.isolates:
            return None
        # Python must run, and the folder of this file must be hidden.
        seen = f"import os; print(os.path.exists({str(HERE)!r}), os.path.exists('/proc/self'))"
        with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
            here = SandboxPaths(HERE, HERE, Path(folder, "r"))
            try:
                command = self.wrap([sys.executable, "-I", "-c", seen], here, 2_000_000_000)
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=TRIAL_SECONDS,
                    stdin=subprocess.DEVNULL,
                )
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                return f"{self.tool} does not run: {error}"
            finally:
                if self.remove:
                    self.remove(here, False)
        if done.stdout.split() != ["False", "True"]:
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            return f"{self.tool} does not isolate here: {output[-1][:200]}"
        return None


def pythons() -> list[Path]:
    """Return the folders of Python and its packages outside of the system folders."""
    found = {Path(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    found |= {place.resolve() for place in found}
    # `python` in a virtual environment is a link, possibly through several others.
    link = Path(sys.executable)
    while link.is_symlink():
        link = link.parent / link.readlink()
        found.add(Path(os.path.normpath(link)).parent.parent)
    outer = [place for place in found if not place.is_relative_to("/usr")]
    return sorted(place for place in outer if place != Path("/"))


def _system() -> list[str]:
    """Return the system paths that a sandbox shows unchanged."""
    return [place for place in (*SYSTEM, *SETTINGS) if os.path.lexists(place)]


def _bubblewrap(command: list[str], paths: SandboxPaths, memory: int) -> list[str]:
    sandbox = ["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    sandbox += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    sandbox += ["--uid", str(NOBODY_UID), "--gid", str(NOBODY_UID), "--hostname", "student"]
    sandbox += ["--cap-drop", "ALL", "--clearenv", "--as-pid-1"]
    # Code in a nested user namespace could use kernel interfaces that are closed otherwise.
    if "--disable-userns" in _help_of("bwrap"):
        sandbox += ["--disable-userns"]
    sandbox += ["--size", str(FOLDER_BYTES), "--tmpfs", "/tmp"]
    for place in _system():
        link = Path(place)
        sandbox += (
            ["--symlink", str(link.readlink()), place]
            if link.is_symlink()
            else ["--ro-bind", place, place]
        )
    for place in pythons():
        sandbox += ["--ro-bind", str(place), str(place)]
    sandbox += ["--ro-bind", str(paths.course), str(COURSE)]
    sandbox += ["--ro-bind", str(paths.grader), str(GRADER)]
    sandbox += ["--size", str(FOLDER_BYTES), "--tmpfs", str(SCRATCH)]
    sandbox += ["--proc", "/proc", "--dev", "/dev"]
    sandbox += ["--size", str(FOLDER_BYTES), "--tmpfs", "/dev/shm"]
    sandbox += ["--mqueue", "/dev/mqueue", "--remount-ro", "/dev"]
    return [*sandbox, "--remount-ro", "/", "--chdir", str(SCRATCH), "--", *command]


def _help_of(tool: str) -> str:
    done = subprocess.run([tool, "--help"], capture_output=True, text=True)
    return done.stdout + done.stderr


# Podman's own pipes copy every byte twice more; these descriptors are passed through.
OUTER = 'exec 3<&0 4>&1 5>&2; exec "$@" < /dev/null > /dev/null'
INNER = 'exec "$@" <&3 >&4 2>&5 3<&- 4>&- 5>&-'
SECCOMP = Path("/usr/share/containers/seccomp.json")  # system calls that podman allows
NAMESPACES = 0x7E020000  # flags of clone for all kinds of namespaces
USERS = 1_000_000_000  # the first user id outside for users inside, if root grades


def _podman(command: list[str], paths: SandboxPaths, memory: int) -> list[str]:
    """Return the command of a container without image that shows what bubblewrap shows."""
    sandbox = [*_podman_run(_runtime()), "--name", _container(paths)]
    sandbox += ["--hostname", "student", "--user", f"{NOBODY_UID}:{NOBODY_UID}", "--no-hosts"]
    sandbox += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--ipc", "private"]
    sandbox += ["--pids-limit", str(MOST_TASKS), "--memory", str(most_memory(memory))]
    sandbox += ["--shm-size", str(FOLDER_BYTES), "--preserve-fds", "3", "--workdir", str(SCRATCH)]
    for place in ("/tmp", str(SCRATCH)):
        sandbox += ["--tmpfs", f"{place}:rw,exec,nosuid,nodev,mode=1777,size={FOLDER_BYTES}"]
    shown = [(str(place), str(place)) for place in pythons()]
    shown += [(str(paths.course), str(COURSE)), (str(paths.grader), str(GRADER))]
    inside = ["/bin/sh", "-c", INNER, "sh", *command]
    folder = _folder_of(paths)
    rest = _in_empty_root(folder / "root", shown)
    rules = folder / "seccomp.json"
    rules.write_text(json.dumps(_rules(json.loads(SECCOMP.read_text()))))
    sandbox += ["--security-opt", f"seccomp={rules}"]
    return ["/bin/sh", "-c", OUTER, "sh", *sandbox, *rest, *inside]


def _rules(usual: dict[str, Any]) -> dict[str, Any]:
    """Remove the permission to make namespaces from podman's seccomp rules."""
    names = {"clone", "clone3", "setns", "unshare"}
    rules = [
        {**rule, "names": [name for name in rule["names"] if name not in names]}
        for rule in usual["syscalls"]
    ]
    allowed = {"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules += [
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [allowed]},
        # A filter cannot read its flags. Programs fall back to clone.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    return {**usual, "syscalls": [rule for rule in rules if rule["names"]]}


def _podman_run(runtime: list[str]) -> list[str]:
    """Return the first words of every container's command."""
    import resource  # not on Windows

    run = ["podman", *runtime, "run", "--rm", "--network", "none", "--log-driver", "none"]
    run += ["--read-only", "--read-only-tmpfs=false"]
    for name, wanted in (("nofile", 4096), ("nproc", 8192)):  # podman requests more than allowed
        _, most = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        number = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        run += ["--ulimit", f"{name}={number}:{number}"]
    if os.geteuid() == 0:  # rootless podman maps users itself
        run += ["--uidmap", f"0:{USERS}:65536", "--gidmap", f"0:{USERS}:65536"]
    return run


def _in_empty_root(root: Path, shown: list[tuple[str, str]]) -> list[str]:
    """Return the options that make an empty folder the root of a container.

    Args:
        root: a new folder.
        shown: pairs of a folder outside and its path inside.
    """
    for folder in root.parent.parent.glob("grade-*-*"):  # of killed runs
        number = folder.name.split("-")[1]
        if number.isdigit() and not Path("/proc", number).exists():
            shutil.rmtree(folder, ignore_errors=True)
    root.mkdir(parents=True)
    sandbox = []
    for place in map(Path, _system()):
        if place.is_symlink():
            inside = root / str(place)[1:]
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(place.readlink())
        else:
            sandbox += ["--mount", f"type=bind,ro=true,source={place},destination={place}"]
    for place, where in shown:
        sandbox += ["--mount", f"type=bind,ro=true,source={place},destination={where}"]
    if os.geteuid() == 0:  # root of the container mounts into it
        for path in (root, *root.rglob("*")):
            os.chown(path, USERS, USERS, follow_symlinks=False)
    return [*sandbox, "--rootfs", str(root)]


@cache
def _runtime() -> list[str]:
    """Return the option for podman's runtime: none, unless only another runtime works."""
    for runtime in ([], ["--runtime", "runc"], ["--runtime", "crun"]):
        folder = _folder_of(SandboxPaths(HERE, HERE, Path("/trial", *runtime)))
        try:
            command = [*_podman_run(runtime), *_in_empty_root(folder / "root", [])]
            command += ["/usr/bin/env", "true"]
            if not subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS).returncode:
                return runtime
        except (OSError, subprocess.TimeoutExpired):
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return []


def _container(paths: SandboxPaths) -> str:
    """Return the name of the container of a scratch folder."""
    return f"grade-{os.getpid()}-{hashlib.sha256(str(paths.scratch).encode()).hexdigest()[:12]}"


def _folder_of(paths: SandboxPaths) -> Path:
    """Return the folder for the root of a container; users inside must be able to enter it."""
    parent = Path("/run") if os.geteuid() == 0 else Path(tempfile.gettempdir())
    return parent / _container(paths)


def _remove_container(paths: SandboxPaths, is_ended: bool) -> None:
    """End a container, if it still runs, and remove its root."""
    command = ["podman", "rm", "--force", "--ignore", "--time", "0", _container(paths)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if not is_ended:
            subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS, check=False)
    shutil.rmtree(_folder_of(paths), ignore_errors=True)


def _plain(command: list[str], paths: SandboxPaths, memory: int) -> list[str]:
    return command


BUBBLEWRAP = Sandbox(
    "bubblewrap",
    "bubblewrap: separate users, processes, network and files; yours are out of reach",
    True,
    _bubblewrap,
    "bwrap",
)
PODMAN = Sandbox(
    "podman",
    "podman: a container without image; your files, processes and network are out of reach",
    True,
    _podman,
    "podman",
    _remove_container,
)
PLAIN = Sandbox("plain", NO_ISOLATION, False, _plain)
SANDBOXES = (PODMAN, BUBBLEWRAP, PLAIN)


def choose(wanted: str = "") -> tuple[Sandbox, list[str]]:
    """Return the first sandbox that works here, and why the ones before it do not.

    Args:
        wanted: the name of a sandbox; "" for the first that works.

    Raises:
        ValueError: the wanted sandbox is unknown or does not work.
    """
    named = {sandbox.name: sandbox for sandbox in SANDBOXES}
    if wanted and wanted not in named:
        raise ValueError(f"--isolation must be one of {', '.join(named)}, got {wanted}. Change it.")
    problems = []
    for sandbox in [named[wanted]] if wanted else SANDBOXES:
        problem = sandbox.problem()
        if problem is None:
            return sandbox, problems
        problems.append(problem)
    raise ValueError(
        f"--isolation must work here, got {wanted} ({problems[-1]}). "
        "Install it (apt install bubblewrap), or omit the option."
    )


def seconds(sandbox: Sandbox, tries: int = 5) -> float:
    """Return the median seconds from start to end of a sandbox that does nothing."""
    took = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
            here = SandboxPaths(HERE, HERE, Path(folder, "r"))
            began = time.monotonic()
            command = sandbox.wrap(["/usr/bin/env", "true"], here, 2_000_000_000)
            subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
            if sandbox.remove:
                sandbox.remove(here, True)
            took.append(time.monotonic() - began)
    return median(took)


if __name__ == "__main__":
    for one in SANDBOXES:
        problem = one.problem()
        print(f"{one.name:11}", problem or f"works; start and end take {seconds(one):.2f} s")
