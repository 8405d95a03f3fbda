"""A stopped run continues where it stopped."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")
pytest.importorskip("fcntl", reason="nothing is graded on Windows")

from processes import wait_until
from tools.grading.collect import Student, Submission
from tools.grading.framing import (
    OF_CHECK,
    PLAIN,
    BrokenFrame,
    FrameDecoder,
    decode,
    encode,
    receive,
    send,
    with_kind,
)
from tools.grading.grades import ChapterGrade
from tools.grading.made_up_submissions import GRADE, assignment_of, inserted, light, raw
from tools.grading.results_folder import read_table
from tools.grading.resume import FOLDER, Checkpoint, FolderInUse

STEM = "03_exercises"

GRADES = [ChapterGrade("03", "a.ipynb", [])]


def student(name: str, text: str = "x = 1") -> Student:
    notebook = {"cells": [{"cell_type": "code", "source": text}]}
    return Student(name, chapters={"03": Submission(Path("/tmp/x"), "a.ipynb", notebook=notebook)})


def test_finished_grades_are_reused_until_something_changes(tmp_path):
    out, ada = tmp_path / "out", student("Ada")
    checkpoint = Checkpoint(out, "checks 1")
    path = checkpoint.path(ada, "Ada")
    assert checkpoint.read(path) is None
    checkpoint.write(path, GRADES)
    checkpoint.end(whole=False)
    again = Checkpoint(out, "checks 1")
    assert again.read(again.path(student("Ada"), "Ada")) == GRADES
    for other in (again.path(student("Ada", "x = 2"), "Ada"), again.path(student("Bo"), "Bo")):
        assert again.read(other) is None
    again.end(whole=False)
    changed = Checkpoint(out, "checks 2")
    assert changed.read(changed.path(ada, "Ada")) is None
    changed.end(whole=True)
    assert not (out / FOLDER).exists()


def test_a_damaged_file_is_made_again(tmp_path):
    checkpoint = Checkpoint(tmp_path / "out", "")
    path = checkpoint.path(student("Ada"), "Ada")
    path.write_text('[{"chap')
    assert checkpoint.read(path) is None and not path.exists()
    checkpoint.end(whole=False)


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    checkpoint = Checkpoint(tmp_path / "out", "")
    path = checkpoint.path(student("Ada"), "Ada")

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(path, GRADES)
    assert [p.name for p in checkpoint.folder.iterdir()] == ["lock"]
    checkpoint.end(whole=False)
    assert not (tmp_path / "out").exists()


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    first = Checkpoint(tmp_path / "out", "")
    with pytest.raises(FolderInUse):
        Checkpoint(tmp_path / "out", "")
    first.end(whole=False)
    Checkpoint(tmp_path / "out", "").end(whole=False)


def test_unfinished_files_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / ".unfinished-x" / "logs").mkdir(parents=True)
    Checkpoint(tmp_path, "").end(whole=False)
    assert not list(tmp_path.iterdir())


def test_messages_are_assembled_from_any_chunks(tmp_path):
    messages = [{"a": 1}, {"text": "é" * 1000}, {}, {"b": [b"\0{", {"c": b""}], "d": b"x" * 999}]
    messages.append({"check": messages[-1]})
    stream = b"".join(map(encode, messages))
    for size in (1, 3, 1000, len(stream)):
        arriving = FrameDecoder()
        pieces = [stream[n : n + size] for n in range(0, len(stream), size)]
        assert [m for piece in pieces for m in arriving.add(piece)] == messages
    head, short = b"\0\0\0\6\0\0\0\0\2", b"\0\0\0\2\0{}"
    nested = b"[" * 100_000
    for odd in (b"\xff" * 8, head + b"[]", head + b"{]", short, _frame(nested)):
        with pytest.raises(BrokenFrame):
            FrameDecoder().add(odd)
    reading, writing = os.pipe()
    thread = threading.Thread(target=lambda: [send(writing, m) for m in messages])
    thread.start()
    assert [receive(reading) for _ in messages] == messages
    thread.join()
    os.close(writing)
    assert receive(reading) is None


def _frame(text: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("!IBI", 4 + len(text + rest), 0, len(text)) + text + rest


@pytest.mark.parametrize("counts", [[6], [5, 1], [-1], [True], ["5"], [1.0], [[]]])
def test_missing_bytes_are_refused(counts):
    """A message cannot use more than its five bytes, nor use some twice."""
    said = [{"$bytes": count} for count in counts]
    assert FrameDecoder().add(_frame(b"[]".join([b'{"a":', b"}"]), b"12345")) == [{"a": []}]
    with pytest.raises(BrokenFrame):
        FrameDecoder().add(_frame(json.dumps({"a": said}).encode(), b"12345"))


def test_an_answer_cannot_impersonate_its_supervisor():
    """The supervisor sets the kind of forwarded frames, whatever an answer wrote."""
    forged = bytearray(encode({"own": 0.0, "over": True}))
    assert decode(with_kind(forged, OF_CHECK)) == {"check": {"own": 0.0, "over": True}}
    # A message to an answer is read there unchanged.
    assert decode(with_kind(bytearray(encode({"check": {"a": b"1"}})), PLAIN)) == {"a": b"1"}


def test_a_killed_run_continues_where_it_stopped(tmp_path):
    """The second student hangs until the run is killed; the first one's grades are kept."""
    chapter, folder, out = assignment_of("03"), tmp_path / "class", tmp_path / "out"
    hanging = inserted(light(chapter.solved(["1"])), "import time\ntime.sleep(9999)")
    for name, notebook in (("one", light(chapter.solved(["1"]))), ("two", hanging)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{STEM}.ipynb").write_bytes(raw(notebook))
    scratch = tmp_path / "t"
    scratch.mkdir()
    options = ["--out", str(out), "--jobs", "1"]
    command = [*GRADE, str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    limits = ["--cell-seconds", "5000", "--notebook-seconds", "9999"]
    process = subprocess.Popen([*command, *limits], stdout=subprocess.PIPE, env=environment)
    wait_until(lambda: any(out.glob(f"{FOLDER}/*.json")) or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "grades.csv").exists()
    # The replacement of the hanging notebook is graded; the other one is not run again.
    done = light(chapter.solved(["1"]))
    (folder / "two" / f"{STEM}.ipynb").write_bytes(raw(done))
    said = subprocess.run(
        [*command, *limits], capture_output=True, text=True, env=environment, check=True
    ).stdout
    assert "one (done before)" in said and "two (done before)" not in said
    assert [row["points"] for row in read_table(out / "grades.csv")] == ["1", "1"]
    assert not (out / FOLDER).exists() and not list(out.glob(".unfinished-*"))
    assert {path.name for path in (out / "logs").iterdir()} == {"one.txt", "two.txt"}
