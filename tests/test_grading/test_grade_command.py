"""The command itself: wrong calls, and interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from processes import wait_until
from tools.grading.made_up_submissions import GRADE, assignment_of, inserted, light, raw
from tools.run import answer

STEM = "03_exercises"
TIMEOUT = 600  # seconds; no result depends on it


def folder_with(folder: Path, *names: str) -> Path:
    """Make a folder of small files, and return it."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def refused(monkeypatch, capsys) -> Callable[..., str]:
    """Return what calls the command, which must refuse, and returns its message."""
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")  # set by the command
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # its handlers are for a process alone

    def call(*arguments: object) -> str:
        assert answer(["grade", *map(str, arguments)]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.count("\n") == 1 and said.err.startswith("grade: "), said.err
        return said.err

    return call


def test_errors_say_what_to_do(tmp_path, refused):
    assert "Type: python3 -m tools grade folder" in refused()
    assert "which does not exist" in refused(tmp_path / "nowhere")
    assert "got nothing" in refused(folder_with(tmp_path / "nothing"))
    empty = folder_with(tmp_path / "empty", "readme.txt")
    assert "got no such notebook" in refused(empty)
    assert "--out must be outside" in refused(empty, "--out", empty / "grades")
    assert "--out must be outside" in refused(empty, "--out", tmp_path)
    assert "--late-percent must come with --due, got 5 alone" in refused(empty, "--late-percent", 5)
    assert "--due must be a date with or without an hour, got 'x'" in refused(empty, "--due", "x")
    other = folder_with(tmp_path / "other", "mine.txt")
    assert "with other files" in refused(empty, "--out", other)
    assert (other / "mine.txt").read_text() == "mine"
    assert "--chapter must be one of" in refused(empty, "--chapter", "77")


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
