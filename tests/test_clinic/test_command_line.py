"""The clinic in a project of its user: in a test, as a command, as a check of whole files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import attention_clinic
from attention_clinic.__main__ import main

CLINIC = Path(attention_clinic.__file__).parents[1]
PLUGIN = "attention_clinic.pytest_plugin"
MODEL = """
from torch import nn


class Buggy(nn.Module):
    dim = -2

    def __init__(self, width=24, heads=4, root=0.5):
        super().__init__()
        self.heads, self.root = heads, root
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** self.root
        return self.proj((scores.softmax(self.dim) @ v).transpose(1, 2).reshape(b, n, e))


class Healthy(Buggy):
    dim = -1


ready = Buggy()
"""
WHOLE = """
from torch import nn

from parts import Buggy, Healthy

class Feed(nn.Module):
    def __init__(self, width, wording):
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, x):
        return self.line(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Healthy()

    def forward(self, x):
        return self.attend(x)
"""
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """What the command says in a folder of two projects."""
    (tmp_path / "one").mkdir()
    for place, text in (("model", MODEL), ("one/parts", MODEL), ("one/whole", WHOLE)):
        (tmp_path / f"{place}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)

    def said(*arguments: str) -> tuple[int, str, str]:
        status = main(list(arguments))
        return status, *capsys.readouterr()

    return said


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that finds nothing of the course but the clinic."""
    environment = {**os.environ, "PYTHONPATH": str(CLINIC), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, **options)


def test_a_failing_assertion_prints_the_fix(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_model.py").write_text(
        "import model\nfrom attention_clinic import assert_healthy, diagnose\n"
        "def test_healthy(): assert_healthy(model.Healthy(), num_heads=4)\n"
        "def test_buggy(): assert_healthy(model.Buggy(), num_heads=4)\n"
        "def test_by_hand(): assert diagnose(model.Buggy(), 4)\n"
        "def test_attribute(): assert diagnose(model.Buggy(), 4).healthy\n"
    )
    brought = any(e.value == PLUGIN for e in entry_points(group="pytest11"))  # once only
    plugin = [] if brought else ["-p", PLUGIN]
    done = run(tmp_path, "-m", "pytest", "-qrN", "-p", "no:cacheprovider", "--rootdir=.", *plugin)
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert done.stdout.count("take the softmax over the keys, dim=-1.") >= 3
    assert done.stdout.count("  Checked: projections, split") == 2, "the whole report, once"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ("model.py:Healthy --num-heads 4", 0, "Healthy: healthy"),
        ("model.py:Healthy", 0, "4 heads of 24"),
        ("model.py:Buggy --num-heads 4", 1, "softmax-query"),
        ("model.py:Healthy --num-heads 4 --args 24 root=0.25", 1, "scale-other"),
        ("model.py:Healthy --num-heads 4 --causal", 1, "mask-not-causal"),
        ("torch.nn:MultiheadAttention --num-heads 4 --args 24 4", 0, "healthy"),
        ("model.py:Nobody --num-heads 4", 2, "Its modules are Buggy, Healthy."),
        ("model.py --num-heads 4", 2, "PLACE:NAME"),
        ("missing.py:Buggy --num-heads 4", 2, "there is no file missing.py"),
        ("model.py:Buggy --args 1 2 3 4", 2, "Give them as --args for Buggy(width=24"),
        ("model.py:nn --num-heads 4", 2, "must build an nn.Module"),
    ],
)
def test_one_attention(said: Said, arguments: str, status: int, words: str) -> None:
    found, out, err = said(*arguments.split())
    assert found == status and words in (err if status == 2 else out), (out, err)
    assert not (out if status == 2 else err)


def test_check_examines_whole_files(said: Said) -> None:
    """Every model of a file, none of what it imports; JSON and annotations for programs."""
    status, out, _ = said("check", "model.py", "--json")
    found = {one["target"]: one for one in json.loads(out)}
    assert status == 1 and list(found) == ["model.py:Buggy", "model.py:Healthy", "model.py:ready"]
    assert [one["healthy"] for one in found.values()] == [False, True, False]
    buggy = found["model.py:Buggy"]
    assert buggy["rows"][0]["explanations"][0]["ids"] == ["softmax-query"]
    assert (buggy["file"], buggy["line"]) == ("model.py", 5)
    status, out, _ = said("check", "model.py:Buggy", "--github")
    assert status == 1 and out.startswith("::error file=model.py,line=5,title=")
    assert "softmax-query::takes the softmax over the queries" in out and out.count("\n") == 1
    status, out, _ = said("check", "one/whole.py", "model.py:Healthy(24, 4)")
    assert status == 0 and "name it as one/whole.py:Feed(...)" in out and "Healthy: healthy" in out
    assert said("check", "gone.py")[0] == 2 and said("check", "model.py:Buggy(1)")[0] == 2


def test_what_is_named_and_not_examined_does_not_pass(said: Said) -> None:
    for place, words in (
        ("one/whole.py:Feed", "name it as one/whole.py:Feed(...)"),
        ("one/whole.py:Feed(24, 1)", "nothing was found that could be examined"),
    ):
        status, out, _ = said("check", place)
        assert status == 2 and words in out
        status, out, _ = said("check", place, "--github")
        assert status == 2 and out.startswith("::error file=one/whole.py,line=6,title=Feed%3A ")
    assert said("check", "one/whole.py")[0] == 0, "in a file it is one of many"


def test_folders_and_packages(said: Said, tmp_path: Path) -> None:
    """A folder is walked, a file of a package belongs to it, and hides no module of Python's."""
    kit = tmp_path / "kit" / "inner"
    (kit / ".hidden").mkdir(parents=True)
    for folder in (kit, kit.parent):
        (folder / "__init__.py").write_text("")
    (kit / "parts.py").write_text(MODEL)
    (kit / "random.py").write_text("from .parts import Buggy\n\n\nclass Mine(Buggy):\n    ...\n")
    (kit / ".hidden" / "parts.py").write_text("class Broken(int):\n    raise ValueError\n")
    status, out, _ = said("check", "kit", "--github")
    assert status == 1 and "file=kit/inner/parts.py,line=5,title=Buggy%3A softmax-query" in out
    random = sys.modules["random"]
    status, out, _ = said("check", "kit/inner/random.py")
    assert status == 1 and "kit/inner/random.py:Mine\n" in out and sys.modules["random"] is random
