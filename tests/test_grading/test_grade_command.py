"""The command itself: wrong calls, and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading.made_up_submissions import GRADE, assignment_of, inserted, light, raw

STEM = "03_exercises"
WITHOUT_MAKE = {key: value for key, value in os.environ.items() if key != "MAKELEVEL"}
TIMEOUT = 600  # seconds; no result depends on it


def run(*arguments: Any, cwd: Path | None = None) -> str:
    """Run the command, which must refuse, and return its message."""
    command = [*GRADE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=WITHOUT_MAKE)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("grade: "), done.stderr
    return done.stderr


def test_errors_say_what_to_do(tmp_path):
    assert "Type: python3 -m tools grade folder" in run()
    assert "which does not exist" in run(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "got nothing" in run(empty)
    (empty / "readme.txt").write_text("hello")
    assert "got no such notebook" in run(empty)
    assert "--out must be outside" in run(empty, "--out", empty / "grades")
    assert "--out must be outside" in run(empty, "--out", tmp_path)
    assert "--late-percent must come with --due, got 5 alone" in run(empty, "--late-percent", 5)
    assert "--due must be a date with or without an hour, got 'x'" in run(empty, "--due", "x")
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert "with other files" in run(empty, "--out", other)
    assert (other / "mine.txt").read_text() == "mine"
    assert "--chapter must be one of" in run(empty, "--chapter", "77")


def test_stopping_leaves_nothing_behind(tmp_path):
    mark = f"9{os.getpid()}"  # unique, if this test runs twice at a time
    chapter, folder = assignment_of("03"), tmp_path / "class"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        notebook = inserted(
            light(chapter.solved([])), f"import subprocess\nsubprocess.run(['sleep', '{mark}'])"
        )
        (folder / name / f"{STEM}.ipynb").write_bytes(raw(notebook))
    scratch = tmp_path / "t"
    scratch.mkdir()
    command = [*GRADE, str(folder)]
    # No limit of time may end the sleep before the command is stopped.
    command += ["--cell-seconds", "9999", "--notebook-seconds", "9999"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # tests in the background ignore Ctrl-C, and so would their children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def running() -> bool:
        listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
        return f"sleep {mark}" in listed.stdout

    wait_until(lambda: running() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and said.strip() == "grade: stopped; nothing was written"
    wait_until(lambda: not running())
    assert not list(scratch.iterdir())
    assert [p.name for p in tmp_path.iterdir() if p != scratch] == ["class"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.1)
