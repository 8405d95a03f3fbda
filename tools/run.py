"""Run a command in this Python, without installing anything: `python -m tools.run refresh 03`.

Messages go to stderr after the command's name. The exit status is that of the command: 2 after a
wrong call, 130 after Ctrl-C, 128 + n when signal n ended it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module

from tools.commands import (
    CALL,
    Command,
    Refusal,
    commands,
    in_words_typed,
    overview,
    parse_arguments,
    version,
)
from tools.environment import INTERRUPTED, PYTHON, ROOT, VENV, show_course, start


def run(command: Command, arguments: list[str]) -> int:
    """Run a command in this Python; return its exit status."""
    show_course(*command.paths)
    os.environ.update(command.settings)
    if command.target:
        module, _, function = command.target.partition(":")
        return getattr(import_module(module), function or "main")(arguments) or 0
    parse_arguments(command.name, arguments)
    if command.passes_on == "pytest":
        # The user's start-up files for IPython must not change the outputs of cells.
        os.environ["IPYTHONDIR"] = os.path.join(VENV, "ipython")
    os.chdir(ROOT)
    calls = [[*call, *arguments] for call in command.calls]
    if len(calls) == 1:
        return start(sys.executable, calls[0])
    done = [subprocess.call([sys.executable, *call]) for call in calls]
    return next((128 - status if status < 0 else status for status in done if status), 0)


def install_and_run(command: Command, arguments: list[str]) -> int:
    """Install the packages that a command needs, and run it in the Python of .venv."""
    parse_arguments(command.name, arguments)
    if not command.level:
        return run(command, arguments)
    from tools.install import install

    install(command.level)
    for name in ("PYTHONHOME", "PYTHONPATH", "MPLBACKEND"):
        os.environ.pop(name, None)
    os.chdir(ROOT)
    return start(PYTHON, ["-m", "tools.run", command.name, *arguments])


def answer(arguments: list[str], call: Callable[[Command, list[str]], int] = run) -> int:
    """Answer a command line with `call`; print a refusal as one line."""
    name, *rest = arguments or ["help"]
    if name in ("help", "--help", "-h"):
        print(overview())
        return 0
    if name == "--version":
        print("attention-shape-by-shape", version())
        return 0
    known = commands()
    try:
        if name not in known:
            raise Refusal(
                f"a command must be one of {', '.join(known)}, got {name!r}. Type: {CALL}"
            )
        return call(known[name], rest)
    except Refusal as refusal:
        text = f"tools: {refusal}"
        if name in known:
            text = f"{name}: {in_words_typed(str(refusal), known[name])}"
        print(text, file=sys.stderr, flush=True)
        return refusal.status
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:]))
