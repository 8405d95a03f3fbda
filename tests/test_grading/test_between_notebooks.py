"""Two notebooks of one student, one after the other: the first leaves no trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

import nbformat

from tools.grading.assignments import environment, prepare
from tools.grading.run_notebook import Limits, Run
from tools.grading.sandbox import SANDBOXES, Sandbox, SandboxPaths
from tools.grading.sandbox_process import SandboxProcess

# Traces in a library, files, memory, queues, a process and the environment.
LEAVES = """
import ctypes, os, subprocess, sys, torch, utils.attention
torch.ones, utils.attention.left, sys.modules["left"] = print, True, sys
os.environ["LEFT"] = "yes"
for folder in (".", "/scratch", "/tmp", os.path.expanduser("~"), "/dev/shm", "/dev/mqueue"):
    open(f"{folder}/left", "w").close()
libc = ctypes.CDLL(None)
print([libc.shmget(77, 4096, 0o1666) >= 0, libc.semget(77, 1, 0o1666) >= 0,
       libc.msgget(77, 0o1666) >= 0])
process = subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
LOOKS = """
import ctypes, glob, os, sys, torch, utils.attention
libc, found = ctypes.CDLL(None), []
found += [torch.ones is print, hasattr(utils.attention, "left"), "left" in sys.modules]
found += ["LEFT" in os.environ, "process" in globals()]
found += [glob.glob(f"{folder}/left") != []
          for folder in (".", "/scratch", "/tmp", "/dev/shm", "/dev/mqueue", os.environ["HOME"])]
found += [libc.shmget(77, 0, 0) >= 0, libc.semget(77, 0, 0) >= 0, libc.msgget(77, 0) >= 0]
found += ["sleep" in open(path).read() for path in glob.glob("/proc/[0-9]*/comm")]
print(any(found), found)
"""


@pytest.fixture(
    scope="module", params=[w for w in SANDBOXES if w.isolates], ids=lambda one: one.name
)
def kind(request) -> Sandbox:
    if why := request.param.problem():
        pytest.skip(f"no such sandbox on this machine: {why}")
    return request.param


def shown(sandbox: SandboxProcess, code: str) -> str:
    """Run a notebook of one cell, and return its output."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    Run(sandbox, Limits(cell=60))(notebook)
    return "".join(str(output.get("text", output)) for output in notebook.cells[0].outputs)


def test_no_trace_of_a_notebook_reaches_the_next_one(kind: Sandbox, tmp_path: Path):
    made = prepare({}, tmp_path / "course")
    outside = SandboxPaths(made.library, made.grader, tmp_path / "r")
    sandbox = SandboxProcess(kind, outside, environment(), 10**9, tmp_path / "log.txt")
    try:
        assert shown(sandbox, LEAVES).strip() == "[True, True, True]"
        # In the same notebook all traces are found.
        assert shown(sandbox, LEAVES + LOOKS).splitlines()[-1].startswith("True")
        said = shown(sandbox, LOOKS)
        assert said.startswith("False"), said
    finally:
        sandbox.end()
    if kind.remove:
        command = [kind.tool, "ps", "--all", "--format", "{{.Names}}"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"grade-{os.getpid()}-" not in listed
        assert not list(Path("/run").glob(f"grade-{os.getpid()}-*"))
