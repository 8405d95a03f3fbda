"""Install the packages of the course into .venv, completely or not at all.

Nothing is registered outside of the folder. An interrupted installation is repeated, and a .venv in
a moved folder is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tools.command_list import LEVELS
from tools.commands import Refusal, parse_arguments
from tools.environment import PYTHON, ROOT, VENV

UV = "uv==0.13.9"  # it knows the address of PyTorch's build for the CPU
BROWSER = "Or use Colab or Binder in a browser: README.md says how."

# Windows refuses longer paths unless a setting of the system allows them. With this length, the
# longest path of the pinned packages still fits.
LONGEST_FOLDER = 100

# No news and no updates: after the installation the course needs no network.
JUPYTERLAB = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
# The kernel for notebooks outside of a course that was installed with `here`.
KERNEL = "Attention, shape by shape"
# What notebooks import, or need to run, and `utils` does not.
FOR_NOTEBOOKS = ("jupyter", "pycocotools", "torchinfo", "transformers")


# --------------------------------------------------------------------------------- what can do it


def unsupported(
    kind: str = sysconfig.get_platform(),
    machine: str = platform.machine(),
    macos: str = platform.mac_ver()[0],
    glibc: tuple[str, str] = platform.libc_ver(),
) -> str | None:
    """Return a description of this machine if the pinned torch is not built for it.

    Args:
        kind: the platform of this Python, such as "linux-x86_64" or "win-amd64".
        machine: its processor.
        macos: its version.
        glibc: ("glibc", its version), or another C library.
    """
    system, _, processor = kind.partition("-")
    if system == "linux" and glibc[0] != "glibc":
        return f"Linux with the C library {glibc[0] or 'musl'}"
    if system == "linux" and _numbers(glibc[1]) < (2, 28):
        return f"Linux with glibc {glibc[1]}"
    if system == "macosx" and machine != "arm64":
        return f"a Python for {machine} on macOS"
    if system == "macosx" and _numbers(macos) < (14,):
        return f"macOS {macos}"
    if kind in ("linux-x86_64", "linux-aarch64", "win-amd64") or system == "macosx":
        return None
    return f"a Python for {processor or kind} on {platform.system()}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def check_machine() -> None:
    """Refuse an unsupported machine before anything is downloaded."""
    if found := unsupported():
        raise Refusal(
            "the machine must be one for which PyTorch is built (Linux on x86_64 or aarch64 with "
            "glibc 2.28 or newer, macOS 14 or newer on Apple silicon, Windows on x86_64), got "
            f"{found}. Use another Python or machine. {BROWSER}"
        )


def check_folder(length: int) -> None:
    """Refuse a folder whose path is too long for Windows."""
    if os.name == "nt" and length > LONGEST_FOLDER and not _long_paths():
        raise Refusal(
            f"the path of the folder must have at most {LONGEST_FOLDER} characters on Windows, got "
            f"{length}. Move the folder, for example to C:\\attention."
        )


def _long_paths() -> bool:
    """Return whether this Windows allows paths of more than 260 characters."""
    import winreg

    place = r"SYSTEM\CurrentControlSet\Control\FileSystem"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    except OSError:
        return False


# ----------------------------------------------------------------------------------- what is there


def _read(name: str) -> str:
    return Path(ROOT, name).read_text(encoding="utf-8")


def included(level: str) -> list[str]:
    """Return a level and those that its requirements include."""
    brought = re.findall(r"(?m)^-r (\S+)", _read(LEVELS[level]))
    return [level, *(other for other, name in LEVELS.items() if name in brought)]


def fingerprint(level: str) -> str:
    """Return a hash of the requirements of a level."""
    text = "".join(_read(LEVELS[one]) for one in included(level))
    return hashlib.sha256(text.encode()).hexdigest()


STATE = os.path.join(VENV, "installed.json")


def state() -> dict:
    """Return the contents of .venv; {} if it is missing, incomplete, or from another folder."""
    try:
        found = json.loads(_read(STATE))
    except (OSError, ValueError):
        # The mark of version 1.0 of the course after a complete installation.
        mark = os.path.join(VENV, "made-in")
        found = {"made in": _read(mark), "levels": {}} if os.path.exists(mark) else {}
    if found.get("made in") != ROOT or not os.path.exists(PYTHON):
        return {}
    return {} if subprocess.call([PYTHON, "-c", "pass"], stderr=subprocess.DEVNULL) else found


# --------------------------------------------------------------------------------------- installing


def install(level: str) -> None:
    """Install a level into .venv, unless it is already there."""
    found = state()
    levels = found.get("levels", {})
    if levels.get(level) == fingerprint(level):
        return
    check_machine()
    check_folder(len(ROOT))
    if not found:
        _make_venv()
    # Remove the state first: pip may be interrupted in the middle of a package, and then the next
    # call must begin again.
    for path in (STATE, os.path.join(VENV, "made-in")):
        if os.path.exists(path):
            os.remove(path)
    print(f"installing {LEVELS[level]} into .venv (minutes the first time)", flush=True)
    _pip(PYTHON, "-r", LEVELS[level])
    settings = Path(VENV, "share", "jupyter", "lab", "settings")
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(JUPYTERLAB), encoding="utf-8")
    where = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"
    packages = json.loads(subprocess.check_output([PYTHON, "-c", where]))
    write_path(Path(packages), always=True)
    levels = {one: hash for one, hash in levels.items() if one in LEVELS}
    levels.update({one: fingerprint(one) for one in included(level)})
    Path(STATE).write_text(json.dumps({"made in": ROOT, "levels": levels}), encoding="utf-8")


def _pip(python: str, *what: str) -> None:
    """Install with pip; with TORCH=cpu, install PyTorch's build for the CPU first.

    On Linux, pip installs the build with CUDA, which is ten times as large. On other systems the
    default build is the small one.
    """
    wanted = os.environ.get("TORCH", "")
    if wanted not in ("", "cpu"):
        raise Refusal(f"TORCH must be cpu or not set, got {wanted}. Change it, or leave it out.")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    calls = [[*pip, *what]]
    if wanted and sys.platform == "linux":
        lines = _read(LEVELS["course"]).splitlines()
        torch = [line.partition(";")[0] for line in lines if re.match('torch==.*!= "win32"', line)]
        uv = [python, "-m", "uv", "pip", "install", "--python", python, "--torch-backend", "cpu"]
        calls = [[*pip, UV], [*uv, *torch], *calls]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for call in calls:
        if subprocess.call(call, cwd=ROOT, env=environment):
            raise Refusal(
                f"pip must install {call[-1]}, got an error (above). Run it again.", status=1
            )


def _make_venv() -> None:
    if os.path.islink(VENV):
        os.unlink(VENV)
    elif os.path.exists(VENV):
        print(".venv is incomplete or was made elsewhere: building it again", flush=True)
        shutil.rmtree(VENV)
    python = getattr(sys, "_base_executable", sys.executable)  # not the removed one
    if subprocess.call([python, "-m", "venv", VENV]):
        shutil.rmtree(VENV, ignore_errors=True)
        raise Refusal(
            f"Python must be able to make a virtual environment, got {python}, which cannot. On "
            "Debian and Ubuntu, install the package python3-venv.",
            status=1,
        )


def write_path(packages: Path, *, always: bool, root: str = ROOT) -> None:
    """Put `utils`, `checks` and `attention_clinic` on the path of an environment's processes.

    A .pth file holds one line that Python runs at its start. The line is ASCII, since Python reads
    it in the encoding of the locale. In the course's .venv every process finds the course. In a
    different environment only processes inside the course's folder do, so that other projects keep
    their own `utils`. PYTHONPATH comes first, so that a second copy of the course can be tried in
    this environment; other packages come after.

    Args:
        packages: the site-packages of an environment.
        always: whether the environment is the course's .venv.
        root: the folder of the course.
    """
    line = (
        f"import os, sys; r = {os.path.realpath(root)!a}; "
        "c = os.path.realpath(os.curdir) if os.path.exists(os.curdir) else ''; "
        "i = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path)); "
        "sys.path[i:i] = [r, os.path.join(r, 'clinic')] "
    )
    line += "\n" if always else "if (c + os.sep).startswith(r + os.sep) else []\n"
    (packages / "attention_course.pth").write_text(line, encoding="ascii")


def write_kernel(prefix: Path, python: str = sys.executable, root: str = ROOT) -> None:
    """Add a Jupyter kernel to an environment that finds the course from every folder."""
    folder = prefix / "share" / "jupyter" / "kernels" / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [root, os.path.join(root, "clinic")]
    content = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": KERNEL,
        "language": "python",
        "env": {"PYTHONPATH": os.pathsep.join(paths)},
    }
    (folder / "kernel.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


# ------------------------------------------------------------------------------------- the commands


def main(arguments: Sequence[str] = ()) -> None:
    """Install a level, and do nothing else."""
    install(parse_arguments("install", arguments).level)


def here(arguments: Sequence[str] = ()) -> None:
    """Install the packages for learning into the current Python's environment."""
    parse_arguments("here", arguments)
    check_machine()
    _pip(sys.executable, "-e", "./clinic", "-e", ".", *FOR_NOTEBOOKS)
    write_path(Path(sysconfig.get_path("purelib")), always=False)
    write_kernel(Path(sys.prefix))
    print(f"notebooks in {ROOT} now find the course; restart their kernels")
    print(f"notebooks in other folders find it with the kernel {KERNEL!r}")


def clean(arguments: Sequence[str] = ()) -> None:
    """Remove .venv, caches and build/."""
    parse_arguments("clean", arguments)
    for name in (".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "build"):
        path = os.path.join(ROOT, name)
        os.unlink(path) if os.path.islink(path) else shutil.rmtree(path, ignore_errors=True)
    for folder, names, _ in os.walk(ROOT):
        if ".git" in names:
            names.remove(".git")
        for name in list(names):
            if name in ("__pycache__", ".ipynb_checkpoints") or name.endswith(".egg-info"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                names.remove(name)
