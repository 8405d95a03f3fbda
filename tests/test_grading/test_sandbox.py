"""Sandboxes: what code sees inside of them, and which one is chosen."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading import class_report, results_folder, sandbox
from tools.grading.sandbox import (
    BUBBLEWRAP,
    NO_ISOLATION,
    PLAIN,
    SANDBOXES,
    Sandbox,
    SandboxPaths,
    choose,
)

KINDS = [one for one in SANDBOXES if one.isolates]


@pytest.fixture(scope="module", params=KINDS, ids=lambda one: one.name)
def kind(request) -> Sandbox:
    """Return every sandbox that works on this machine."""
    if why := request.param.problem():
        pytest.skip(f"no such sandbox on this machine: {why} (apt install {request.param.name})")
    return request.param


SEEN = """
import json, os, socket, sys
def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
def unshared():
    import ctypes
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # a user namespace of its own
        raise OSError(ctypes.get_errno(), "unshare")
print(json.dumps({
    "root": sorted(os.listdir("/")),
    "solutions": os.path.exists(SOLUTIONS),
    "home": os.path.exists(HOME),
    "secret": os.environ.get("SECRET"),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "connects": tried(lambda: socket.create_connection(("192.0.2.1", 80), timeout=1)),
    "user": os.getuid(),
    "host": socket.gethostname(),
    "writes course": tried(lambda: open("/course/x", "w")),
    "writes grader": tried(lambda: open("/grader/x", "w")),
    "writes python": tried(lambda: open(sys.executable + ".x", "w")),
    "writes /": tried(lambda: open("/x", "w")),
    "writes /dev": tried(lambda: open("/dev/x", "w")),
    "writes scratch": tried(lambda: open("x", "w")),
    "fills scratch": tried(lambda: [open("x", "a").write("x" * 50_000_000) for _ in range(12)]),
    "unshares": tried(unshared),
    "kills outside": tried(lambda: os.kill(OUTSIDE, 9)),
}))
"""


def in_sandbox(kind: Sandbox, course: Path, code: str, **names: object) -> dict[str, object]:
    """Run code in the sandbox, and return its JSON output."""
    code = "\n".join(f"{name} = {value!r}" for name, value in names.items()) + code
    command = [sys.executable, "-c", code]
    places = SandboxPaths(course, course, course / "scratch")
    command = kind.wrap(command, places, 10**9)
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SECRET": "s"}
    )
    if kind.remove:
        kind.remove(places, False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_code_in_the_sandbox_sees_and_writes_nothing_of_the_machine(kind, tmp_path):
    outside = subprocess.Popen(["sleep", "600"])
    try:
        seen = in_sandbox(
            kind,
            tmp_path,
            SEEN,
            SOLUTIONS=str(ROOT / "notebooks" / "solutions"),
            HOME=str(Path.home() / ".profile"),
            OUTSIDE=outside.pid,
        )
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()
    assert not seen["solutions"] and not seen["home"] and seen["secret"] is None
    assert not {"home", "srv", "opt", "mnt", "var", "boot"} & set(seen["root"])
    assert (
        seen["processes"] == [1]
        and seen["interfaces"] == ["lo"]
        and seen["user"] == sandbox.NOBODY_UID
    )
    assert seen["connects"] != "done" and seen["host"] == "student"
    for where in ("course", "grader", "python", "/", "/dev"):
        assert seen[f"writes {where}"] in ("OSError", "PermissionError"), where
    assert seen["writes scratch"] == "done" and seen["fills scratch"] == "OSError"
    assert seen["unshares"] != "done" and seen["kills outside"] == "ProcessLookupError"
    assert not list(tmp_path.iterdir())


def test_the_first_sandbox_that_works_is_chosen():
    works = replace(BUBBLEWRAP, name="works", tool="", isolates=False)
    fails = replace(BUBBLEWRAP, name="fails", tool="a-tool-that-nobody-has")
    kept, sandbox.SANDBOXES = sandbox.SANDBOXES, (fails, works, PLAIN)
    try:
        assert choose() == (works, ["a-tool-that-nobody-has is not installed"])
        sandbox.SANDBOXES = (fails, PLAIN)
        chosen, why = choose()
        assert chosen is PLAIN and chosen.description == NO_ISOLATION and len(why) == 1
        with pytest.raises(ValueError, match="--isolation must work here, got fails"):
            choose("fails")
        with pytest.raises(ValueError, match="--isolation must be one of fails, plain, got prison"):
            choose("prison")
    finally:
        sandbox.SANDBOXES = kept


def test_a_tool_that_does_not_isolate_is_refused():
    open_sandbox = replace(BUBBLEWRAP, wrap=lambda command, places, memory: command, tool="")
    assert "does not isolate here" in open_sandbox.problem()


def test_without_a_sandbox_all_tables_and_the_page_warn(tmp_path):
    with (tmp_path / "grades.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["student", "bonus"], ["Ada", "1"]])
    results_folder.warn_in_heads(tmp_path)
    (row,) = csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8-sig", newline=""))
    assert NO_ISOLATION in row and (row["student"], row["bonus"]) == ("Ada", "1")
    # A later run does not read it as an added column.
    assert results_folder.read_table(tmp_path / "grades.csv") == [{"student": "Ada", "bonus": "1"}]
    assert f"<strong>{NO_ISOLATION}</strong>" in class_report.page([], [], warning=NO_ISOLATION)
    assert "<strong>" not in class_report.page([], [])
