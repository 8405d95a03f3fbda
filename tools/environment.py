"""The paths of the course and its Python, and the start of a different Python.

Old versions of Python must also read this file.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
# The Pythons for which the pinned torch is built; pyproject.toml says the same.
OLDEST, NEWEST = (3, 11), (3, 14)
INTERRUPTED = 130


def start(python, arguments):
    """Replace this process by a different Python; on Windows, wait for it and return its status."""
    sys.stdout.flush()
    if os.name != "nt":
        os.execv(python, [python, *arguments])
    try:
        return subprocess.call([python, *arguments])
    except KeyboardInterrupt:
        return INTERRUPTED


def show_course(*more):
    """Let this process and its children find `utils`, `checks` and `attention_clinic`.

    They come before foreign packages of the same name; so do modules in `more` folders.
    """
    paths = [ROOT] + [os.path.join(ROOT, *name.split("/")) for name in ("clinic", *more)]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths + before)))
