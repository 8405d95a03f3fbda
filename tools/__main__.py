"""The command line of the course, on Linux, macOS and Windows: `python3 -m tools lab`.

It installs the packages that a command needs into .venv, and runs the command there. Any Python can
start it: an unsupported version hands over to .venv, or prints advice.
"""

import os
import shutil
import sys

from tools.environment import NEWEST, OLDEST, PYTHON, start


def unsupported(version, command):
    """Return why this Python cannot run the course, or None."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    oldest, newest, got = (".".join(map(str, v[:2])) for v in (OLDEST, NEWEST, version))
    names = ["python3." + str(minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    there = [name for name in names if shutil.which(name)]
    if there:
        how = f"Type: {there[0]} -m tools {command} (or make {command} PYTHON={there[0]})"
    else:
        how = (
            "Install one of them (python.org, or your system's packages), "
            "or use Colab or Binder in a browser: README.md says how"
        )
    return f"tools: Python must be {oldest} to {newest}, got {got}. {how}."


def main(arguments):
    reason = unsupported(sys.version_info, " ".join(arguments[:1]) or "lab")
    if reason is None:
        from tools.run import answer, install_and_run

        return answer(arguments, install_and_run)
    if os.path.exists(PYTHON) and os.path.realpath(sys.executable) != os.path.realpath(PYTHON):
        return start(PYTHON, ["-m", "tools", *arguments])
    sys.stderr.write(reason + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
