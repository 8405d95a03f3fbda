"""The command itself: what it refuses, and how it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading.made_up_class import chapter_of, inserted, light, raw

STEM = "03_exercises"
TOOL = ROOT / "tools" / "grade.py"
HANGS = 600  # seconds after which a test gives up; nothing is measured with it


def run(*arguments: Any, cwd: Path | None = None) -> str:
    """Run the command, which must refuse, and return its one line."""
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("grade: "), done.stderr
    return done.stderr


def test_errors_say_what_to_do(tmp_path):
    assert "Type: make grade SUBMISSIONS=folder" in run()
    assert "which is not there" in run(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "got nothing" in run(empty)
    (empty / "readme.txt").write_text("hello")
    assert "got no such notebook" in run(empty)
    assert "OUT lies outside" in run(empty, "--out", empty / "grades")
    assert "OUT lies outside" in run(empty, "--out", tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert "which holds something else" in run(empty, "--out", other)
    assert (other / "mine.txt").read_text() == "mine"
    assert "--chapter is one of" in run(empty, "--chapter", "77")


def test_stopping_leaves_nothing_behind(tmp_path):
    mark = f"9{os.getpid()}"  # others may run this test at the same time
    chapter, folder = chapter_of("03"), tmp_path / "class"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        notebook = inserted(
            light(chapter.solved([])), f"import subprocess\nsubprocess.run(['sleep', '{mark}'])"
        )
        (folder / name / f"{STEM}.ipynb").write_bytes(raw(notebook))
    scratch = tmp_path / "t"
    scratch.mkdir()
    command = [sys.executable, str(TOOL), str(folder)]
    # The sleep is what must be running when it is stopped: no limit of time ends it before.
    command += ["--cell-seconds", "9999", "--notebook-seconds", "9999"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # who runs the tests in the background has them ignore Ctrl-C, and what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def running() -> bool:
        listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
        return f"sleep {mark}" in listed.stdout

    wait_until(lambda: running() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANGS)
    assert process.returncode == 1 and said.strip() == "grade: stopped; nothing was written"
    wait_until(lambda: not running())
    assert not list(scratch.iterdir())
    assert [p.name for p in tmp_path.iterdir() if p != scratch] == ["class"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.1)
