"""What .venv holds, and how it gets there: whole or not at all, and only on machines that can.

Everything goes into .venv, and nothing is registered outside of the folder. An installation that
was interrupted is done again; a .venv that came here with a moved folder is built again.
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

UV = "uv==0.13.9"  # knows where PyTorch keeps its build for the CPU
BROWSER = "Or use Colab or Binder in a browser: README.md says how."

# Windows refuses longer paths unless a setting of the system allows them. The longest path that the
# pinned packages install below the folder of the course fits when the folder's own is this long.
LONGEST_FOLDER = 100

# No question about news, no look for updates: after the installation the course needs no network.
JUPYTERLAB = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}
# The kernel by which notebooks elsewhere find a course that was installed with `here`.
KERNEL = "Attention, shape by shape"


# --------------------------------------------------------------------------------- what can do it


def unsupported(
    kind: str = sysconfig.get_platform(),
    machine: str = platform.machine(),
    macos: str = platform.mac_ver()[0],
    glibc: tuple[str, str] = platform.libc_ver(),
) -> str | None:
    """Return what this machine is, if the pinned torch is not built for it.

    Args:
        kind: what Python was built for, such as "linux-x86_64" or "win-amd64".
        machine: its processor.
        macos: its version.
        glibc: ("glibc", its version); something else where the system has another C library.
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
    """Refuse, before anything is downloaded, a machine on which it could not be installed."""
    if found := unsupported():
        raise Refusal(
            "the machine must be one for which PyTorch is built (Linux on x86_64 or aarch64 with "
            "glibc 2.28 or newer, macOS 14 or newer on Apple silicon, Windows on x86_64), got "
            f"{found}. Use another Python or machine. {BROWSER}"
        )


def check_folder(length: int) -> None:
    """Refuse a folder with a path so long that Windows could not write what lies in it."""
    if os.name == "nt" and length > LONGEST_FOLDER and not _long_paths():
        raise Refusal(
            f"the path of the folder must have at most {LONGEST_FOLDER} characters on Windows, got "
            f"{length}. Move the folder, for example to C:\\attention."
        )


def _long_paths() -> bool:
    """Say whether this Windows allows paths of more than 260 characters."""
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
    """Return a level and those that its requirements bring with them."""
    brought = re.findall(r"(?m)^-r (\S+)", _read(LEVELS[level]))
    return [level, *(other for other, name in LEVELS.items() if name in brought)]


def fingerprint(level: str) -> str:
    """Return what the installation of a level depends on, as one hash."""
    text = "".join(_read(LEVELS[one]) for one in included(level))
    return hashlib.sha256(text.encode()).hexdigest()


STATE = os.path.join(VENV, "installed.json")


def state() -> dict:
    """Return what .venv holds; {} when it is not there, not whole, or was made elsewhere."""
    try:
        found = json.loads(_read(STATE))
    except (OSError, ValueError):
        # What version 1.0 of the course left when it had installed everything.
        mark = os.path.join(VENV, "made-in")
        found = {"made in": _read(mark), "levels": {}} if os.path.exists(mark) else {}
    if found.get("made in") != ROOT or not os.path.exists(PYTHON):
        return {}
    return {} if subprocess.call([PYTHON, "-c", "pass"], stderr=subprocess.DEVNULL) else found


# --------------------------------------------------------------------------------------- installing


def install(level: str) -> None:
    """Bring .venv to a level, unless it is there already."""
    found = state()
    levels = found.get("levels", {})
    if levels.get(level) == fingerprint(level):
        return
    check_machine()
    check_folder(len(ROOT))
    if not found:
        _make_venv()
    # What is known goes first: an interrupted installation leaves nothing behind that says it was
    # done, and since pip may have stopped half-way through a package, the next call begins again.
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
    """Install with pip; where TORCH=cpu asks for it, PyTorch's build for the CPU first.

    For Linux, pip brings the build with CUDA, which is ten times as large. Elsewhere the ordinary
    build is the small one.
    """
    wanted = os.environ.get("TORCH", "")
    if wanted not in ("", "cpu"):
        raise Refusal(
            f"TORCH must be cpu or not set, got TORCH={wanted}. Change it or leave it out."
        )
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    calls = [[*pip, *what]]
    if wanted and sys.platform == "linux":
        lines = _read(LEVELS["course"]).splitlines()
        torch = [line.partition("  #")[0] for line in lines if line.startswith("torch==")]
        uv = [python, "-m", "uv", "pip", "install", "--python", python, "--torch-backend", "cpu"]
        calls = [[*pip, UV], [*uv, *torch], *calls]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for call in calls:
        if subprocess.call(call, cwd=ROOT, env=environment):
            raise Refusal(f"{call[-1]} could not be installed, see above. Call it again.", status=1)


def _make_venv() -> None:
    if os.path.islink(VENV):
        os.unlink(VENV)
    elif os.path.exists(VENV):
        print(".venv is incomplete or was made elsewhere: building it again", flush=True)
        shutil.rmtree(VENV)
    python = getattr(sys, "_base_executable", sys.executable)  # not the one that has just gone
    if subprocess.call([python, "-m", "venv", VENV]):
        shutil.rmtree(VENV, ignore_errors=True)
        raise Refusal(
            f"Python must be able to make a virtual environment, got {python}, which is not. On "
            "Debian and Ubuntu, install the package python3-venv.",
            status=1,
        )


def write_path(packages: Path, *, always: bool, root: str = ROOT) -> None:
    """Put `utils`, `checks` and `attention_clinic` on the path of an environment's processes.

    A file .pth holds one line that Python runs when it starts, and that it reads in the encoding of
    the locale: so the line is ASCII. In the course's own .venv every process finds the course,
    wherever its notebook lies. In somebody else's environment only those do that work inside the
    course's folder: a project there keeps a `utils` of its own. PYTHONPATH comes first, so that
    a second copy of the course can be tried in this environment; other packages come after.

    Args:
        packages: the site-packages of an environment.
        always: whether the environment is the course's own.
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
    """Give an environment a kernel of Jupyter that finds the course from every folder."""
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
    """Only install."""
    install(parse_arguments("install", arguments).level)


def here(arguments: Sequence[str] = ()) -> None:
    """Install what the course needs into the environment of the Python that runs this."""
    parse_arguments("here", arguments)
    check_machine()
    _pip(sys.executable, "-e", "./clinic", "-e", ".", "torchinfo", "jupyter")
    write_path(Path(sysconfig.get_path("purelib")), always=False)
    write_kernel(Path(sys.prefix))
    print(f"notebooks inside {ROOT} find the course now; restart their kernels")
    print(f"notebooks in other folders find it with the kernel {KERNEL!r}")


def clean(arguments: Sequence[str] = ()) -> None:
    """Remove what was installed and cached."""
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
